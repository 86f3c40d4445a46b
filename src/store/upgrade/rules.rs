//! Rules for an upgrade of the agent's own program: the next step, given the files on the disk, the health of
//! the agent, and the time passed.
//!
//! Owns the order of steps ([`INSTALL`], [`effects`]), the judgement ([`step`]) and the text of the record.
//! Every effect leaves the disk in a state from which [`step`] continues after a power cut: the program is
//! the old one or the new one, whole, and once the new one is in place there is a record of it, and the init
//! system starts a process that watches it.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use crate::model::api::pod::{ContainerStatus, Pod};
use crate::model::types::Timestamp;

/// How many starts of the new program are accepted; one more counts as a crash loop.
pub(in crate::store) const MOST_STARTS: usize = 3;
/// How many starts of the watch are accepted: each is a boot of the machine, or the death of the previous
/// watcher.
pub(in crate::store) const MOST_WATCHES: u32 = 3;
/// How long containers must appear lost: early reports may come from the store.
pub(in crate::store) const LOSS_COUNTS_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Build {
    /// As the program reports it, `0.1.0`.
    pub version: String,
    /// SHA-256 of the file, in hex.
    pub digest: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UpgradePhase {
    /// The new program is being installed, or is watched.
    #[default]
    Trial,
    /// The old one is being restored.
    RollingBack,
    /// The new one stays.
    Upgraded,
    /// The old one is back.
    RolledBack,
    /// Aborted before the new one was installed.
    Abandoned,
    /// A third program was put into place.
    Replaced,
}

const PHASES: [(UpgradePhase, &str); 6] = [
    (UpgradePhase::Trial, "Trial"),
    (UpgradePhase::RollingBack, "RollingBack"),
    (UpgradePhase::Upgraded, "Upgraded"),
    (UpgradePhase::RolledBack, "RolledBack"),
    (UpgradePhase::Abandoned, "Abandoned"),
    (UpgradePhase::Replaced, "Replaced"),
];

impl UpgradePhase {
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        PHASES.iter().find(|(phase, _)| *phase == self).map_or("", |(_, name)| name)
    }

    #[must_use]
    pub(crate) fn is_settled(self) -> bool {
        !matches!(self, Self::Trial | Self::RollingBack)
    }
}

/// A container that ran before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    /// `namespace/name` of its pod, a slash, its name.
    pub name: String,
    /// The runtime's id.
    pub id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpgradeRecord {
    pub phase: UpgradePhase,
    /// Why it was rolled back or aborted.
    pub reason: String,
    /// The file that is replaced.
    pub program: String,
    pub from: Build,
    pub to: Build,
    pub since: Timestamp,
    pub settled: Timestamp,
    /// How long the new program has to be healthy without interruption.
    pub window: Duration,
    /// How long it may take to become healthy.
    pub patience: Duration,
    /// How the agent is restarted: the text form of `Service` in `cmd::upgrade`.
    pub service: String,
    pub socket: String,
    /// How often a watch has started.
    pub watches: u32,
    /// The boot in which `containers` ran.
    pub boot: String,
    /// The runtime was ready.
    pub was_ready: bool,
    pub containers: Vec<Ran>,
}

impl UpgradeRecord {
    /// One fact per line, `key value`.
    #[must_use]
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        let mut add = |key: &str, value: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{key} {}", value.replace('\n', " "));
        };
        add("phase", self.phase.as_str());
        add("reason", &self.reason);
        add("program", &self.program);
        add("from", &self.from.version);
        add("fromDigest", &self.from.digest);
        add("to", &self.to.version);
        add("toDigest", &self.to.digest);
        add("since", &self.since.as_nanos().to_string());
        add("settled", &self.settled.as_nanos().to_string());
        add("window", &self.window.as_millis().to_string());
        add("patience", &self.patience.as_millis().to_string());
        add("service", &self.service);
        add("socket", &self.socket);
        add("watches", &self.watches.to_string());
        add("boot", &self.boot);
        add("ready", if self.was_ready { "1" } else { "0" });
        for ran in &self.containers {
            add("container", &[&ran.id, " ", &ran.name].concat());
        }
        text
    }

    /// Parses the text; unknown lines are skipped. `None` without a phase.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut record = Self::default();
        let mut phase = None;
        let millis = |value: &str| Duration::from_millis(value.parse().unwrap_or_default());
        let time = |value: &str| Timestamp::from_nanos(value.parse().unwrap_or_default());
        for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let value_of = || value.to_owned();
            match key {
                "phase" => phase = PHASES.iter().find(|(_, name)| *name == value).map(|(phase, _)| *phase),
                "reason" => record.reason = value_of(),
                "program" => record.program = value_of(),
                "from" => record.from.version = value_of(),
                "fromDigest" => record.from.digest = value_of(),
                "to" => record.to.version = value_of(),
                "toDigest" => record.to.digest = value_of(),
                "since" => record.since = time(value),
                "settled" => record.settled = time(value),
                "window" => record.window = millis(value),
                "patience" => record.patience = millis(value),
                "service" => record.service = value_of(),
                "socket" => record.socket = value_of(),
                "watches" => record.watches = value.parse().unwrap_or_default(),
                "boot" => record.boot = value_of(),
                "ready" => record.was_ready = value == "1",
                "container" => {
                    let (id, name) = value.split_once(' ').unwrap_or((value, ""));
                    record.containers.push(Ran { name: name.to_owned(), id: id.to_owned() });
                }
                _ => {}
            }
        }
        record.phase = phase?;
        Some(record)
    }
}

/// Which program is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InPlace {
    Old,
    New,
    Other,
    Missing,
}

/// One run of an agent: process id and start time, in nanoseconds.
pub(crate) type Life = (u32, i64);

/// An agent that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answering {
    pub life: Life,
    /// It runs the installed program.
    pub runs_program: bool,
    /// Its runtime is ready, or was not ready before the upgrade either.
    pub is_ready: bool,
    /// Containers that ran before and do not now, without having exited by themselves.
    pub lost: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// On the disk.
    pub in_place: InPlace,
    pub rollback_requested: bool,
    /// The agent, or why it does not answer.
    pub agent: Result<Answering, String>,
}

/// The watch's state between two checks. Times are counted from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    lives: BTreeSet<Life>,
    is_restarted: bool,
    well: Option<(Duration, Life)>,
    ill_since: Option<Duration>,
    lost_since: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    CheckAgain,
    /// Have the service start the new program, once.
    Restart,
    /// End the upgrade, with a reason where there is one.
    Settle(UpgradePhase, String),
}

/// The next step of this watch, `passed` after its start. A settled upgrade is left alone.
#[must_use]
pub(crate) fn step(watch: &mut Watch, record: &UpgradeRecord, seen: &Seen, passed: Duration) -> Step {
    let back = |reason: String| Step::Settle(UpgradePhase::RolledBack, reason);
    match (record.phase, seen.in_place) {
        (phase, _) if phase.is_settled() => return Step::Settle(phase, record.reason.clone()),
        (_, InPlace::Other) => {
            let reason = ["another process replaced ", &record.program].concat();
            return Step::Settle(UpgradePhase::Replaced, reason);
        }
        (UpgradePhase::RollingBack, _) => return back(record.reason.clone()),
        (_, InPlace::New) => {}
        (_, InPlace::Old) => {
            let reason = "it was interrupted before the new program was installed";
            return Step::Settle(UpgradePhase::Abandoned, reason.to_owned());
        }
        (_, InPlace::Missing) => return back([&record.program, " no longer exists"].concat()),
    }
    if seen.rollback_requested {
        return back("requested".to_owned());
    }
    if record.watches > MOST_WATCHES {
        return back("the machine or the watching process restarted repeatedly".to_owned());
    }
    let trouble = match &seen.agent {
        Err(why) => why.clone(),
        Ok(agent) if !agent.runs_program => {
            if !watch.is_restarted {
                watch.is_restarted = true;
                return Step::Restart;
            }
            ["the service is not running ", &record.program].concat()
        }
        Ok(agent) => {
            watch.lives.insert(agent.life);
            if watch.lives.len() > MOST_STARTS {
                return back(format!("the agent started {} times", watch.lives.len()));
            }
            if agent.lost.is_empty() {
                watch.lost_since = None;
            } else if passed.saturating_sub(*watch.lost_since.get_or_insert(passed)) >= LOSS_COUNTS_AFTER {
                return back(["containers stopped running: ", &agent.lost.join(", ")].concat());
            }
            match (agent.lost.is_empty(), agent.is_ready) {
                (false, _) => "containers stopped running".to_owned(),
                (true, false) => "the runtime is not ready".to_owned(),
                (true, true) => String::new(),
            }
        }
    };
    // Beyond this the program has been unhealthy too often, and the watch ends.
    let longest = record.window.saturating_mul(3).saturating_add(record.patience);
    match &seen.agent {
        Ok(agent) if trouble.is_empty() => {
            watch.ill_since = None;
            let since = match watch.well {
                Some((since, life)) if life == agent.life => since,
                _ => passed,
            };
            watch.well = Some((since, agent.life));
            if passed.saturating_sub(since) >= record.window {
                return Step::Settle(UpgradePhase::Upgraded, String::new());
            }
        }
        _ => {
            watch.well = None;
            let since = *watch.ill_since.get_or_insert(passed);
            if passed.saturating_sub(since) >= record.patience {
                return back(trouble);
            }
        }
    }
    if passed >= longest { back("it did not stay healthy long enough".to_owned()) } else { Step::CheckAgain }
}

/// One change to the machine: it happens as a whole or not at all, and may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Write this phase to the record.
    Note(UpgradePhase),
    /// The machine starts a watch at boot, with the kept program.
    Guard,
    /// That no longer.
    Unguard,
    /// The installed program is also kept under another name.
    Keep,
    /// The new program is installed.
    SwapIn,
    /// The kept program is installed.
    PutBack,
    /// The service runs the installed program.
    Restart,
    /// The kept one no longer exists.
    Forget,
}

/// The steps up to an installed program that waits for its watch. Keep comes before guard: the watch runs the
/// kept program.
pub(crate) const INSTALL: &[Effect] =
    &[Effect::Note(UpgradePhase::Trial), Effect::Keep, Effect::Guard, Effect::SwapIn];

/// The effects that end an upgrade whose record is at `from`. The old program is kept until it cannot be
/// started any more; after an upgrade it stays for a rollback on request. A settled upgrade is only cleaned
/// up after.
#[must_use]
pub(crate) fn effects(from: UpgradePhase, to: UpgradePhase) -> &'static [Effect] {
    match to {
        UpgradePhase::Trial => &[],
        UpgradePhase::RolledBack | UpgradePhase::Abandoned if from.is_settled() => {
            &[Effect::Unguard, Effect::Forget]
        }
        _ if from.is_settled() => &[Effect::Unguard],
        UpgradePhase::RollingBack | UpgradePhase::RolledBack => &[
            Effect::Note(UpgradePhase::RollingBack),
            Effect::PutBack,
            Effect::Restart,
            Effect::Note(UpgradePhase::RolledBack),
            Effect::Unguard,
            Effect::Forget,
        ],
        UpgradePhase::Upgraded => &[Effect::Note(UpgradePhase::Upgraded), Effect::Unguard],
        UpgradePhase::Abandoned => &[Effect::Note(UpgradePhase::Abandoned), Effect::Unguard, Effect::Forget],
        UpgradePhase::Replaced => &[Effect::Note(UpgradePhase::Replaced), Effect::Unguard],
    }
}

/// The result, in one line.
#[must_use]
pub(crate) fn summary(record: &UpgradeRecord) -> String {
    let (from, to, reason) = (&record.from.version, &record.to.version, &record.reason);
    let because = if reason.is_empty() { String::new() } else { [": ", reason].concat() };
    let window = record.window.as_secs();
    match record.phase {
        UpgradePhase::Trial => {
            format!("{to} is on trial as replacement for {from}, until it has been healthy for {window} s")
        }
        UpgradePhase::RollingBack => format!("{to} is being rolled back to {from}{because}"),
        UpgradePhase::Upgraded => format!("{from} was upgraded to {to}{because}"),
        UpgradePhase::RolledBack => format!("{to} was rolled back to {from}{because}"),
        UpgradePhase::Abandoned => format!("{from} was kept, the upgrade to {to} was aborted{because}"),
        UpgradePhase::Replaced => format!("the upgrade from {from} to {to} was abandoned{because}"),
    }
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.init_container_statuses.iter().chain(&pod.status.container_statuses)
}

fn name(pod: &Pod, container: &ContainerStatus) -> String {
    [&pod.metadata.namespace, "/", &pod.metadata.name, "/", &container.name].concat()
}

#[must_use]
pub(crate) fn running(pods: &[Pod]) -> Vec<Ran> {
    let mut found = Vec::new();
    for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        for status in statuses(pod).filter(|status| status.state.running.is_some()) {
            found.push(Ran { name: name(pod, status), id: status.container_id.clone() });
        }
    }
    found
}

/// Which of `before` do not run any more, and did not exit by themselves: exit codes 137 (128 + SIGKILL) and
/// 143 (128 + SIGTERM) mean that the container was killed or stopped from outside.
#[must_use]
pub(crate) fn lost(before: &[Ran], pods: &[Pod]) -> Vec<String> {
    let stays = |ran: &Ran| {
        pods.iter().flat_map(statuses).any(|status| {
            let ended =
                [&status.state, &status.last_state].into_iter().filter_map(|state| state.terminated.as_ref());
            let by_itself = |code: i32| !matches!(code, 137 | 143);
            (status.container_id == ran.id && status.state.running.is_some())
                || ended.into_iter().any(|end| end.container_id == ran.id && by_itself(end.exit_code))
        })
    };
    before.iter().filter(|ran| !stays(ran)).map(|ran| ran.name.clone()).collect()
}

/// `left` is older than `right`, by their numbers; suffixes (`-rc1`) do not count.
#[must_use]
pub(crate) fn is_older(left: &str, right: &str) -> bool {
    let numbers = |version: &str| -> Vec<u64> {
        let plain = version.trim_start_matches('v').split(['-', '+']).next().unwrap_or_default();
        plain.split('.').map(|part| part.parse().unwrap_or_default()).collect()
    };
    numbers(left) < numbers(right)
}

#[cfg(test)]
mod tests;
