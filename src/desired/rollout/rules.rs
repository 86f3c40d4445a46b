//! The rollout of a new set of manifests: it stays once its pods have started; otherwise the last good set is
//! restored.
//!
//! Owns the phases of a rollout and the arithmetic of its time. Invariants: a rollout ends after a
//! bounded number of parts, however often the agent restarts meanwhile; a failed answer is refused until a
//! different one arrives. Time is counted as parts that are used up, never as timestamps: a wrong clock does
//! no harm.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::codec::hex;
use crate::desired::merge::is_semantically_different;
use crate::model::api::pod::{ContainerStatus, Pod, PodStatus};
use crate::model::objects::{LocalObject, wire};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::provenance::LOCAL_ANNOTATIONS;
use crate::model::source::{SourceObject, SourcePod, SourceSet};
use crate::model::types::Timestamp;
use crate::store::rollout::RolloutPhase;

/// The number of parts of a rollout's time. One is used up when its time is over, and one by each start of the agent,
/// so that the rollout of a set that makes the machine restart ends, too.
pub(in crate::desired) const PARTS: u8 = 4;
/// The longest time that all pods must have been up without interruption: a crash-looping container is up for
/// moments, and waits ten seconds after its second crash.
const SETTLE: Duration = Duration::from_secs(10);
/// The most pods that a message names.
const NAMED_PODS: usize = 3;

/// The progress of a pod of the new set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Ready, or completed successfully.
    Started,
    /// Not started yet, and the reason.
    Waiting(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RolloutTimes {
    /// The length of the whole rollout.
    pub after: Duration,
    /// The time since the current part began.
    pub in_part: Duration,
    /// For how long all pods have been up without interruption; `None` when they are not.
    pub all_started: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RolloutVerdict {
    /// The set stays.
    Good,
    /// Check again after this time, or when a status changes; `None`: only then.
    Wait(Option<Duration>),
    /// One part is used up; the next one begins.
    EndPart,
    RollBack(String),
}

impl RolloutPhase {
    /// True for an answer that has failed before.
    #[must_use]
    pub(in crate::desired) fn refuses(&self, answer: &str) -> bool {
        matches!(self, Self::RolledBack { digest, .. } if digest == answer)
    }

    /// True while the pods have to be observed.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Unproven | Self::Progressing { .. })
    }

    /// The state after an answer that changed the desired set (or only the complaint: an answer that equals
    /// the good set ends it). `known` is the set desired until now, `None` if the source had never answered.
    #[must_use]
    pub(in crate::desired) fn after_answer(
        self,
        digest: String,
        is_change: bool,
        known: Option<SourceSet>,
    ) -> Self {
        match (self, known) {
            (_, None) => Self::Unproven,
            (Self::RolledBack { .. }, Some(_)) if !is_change => Self::Good,
            (phase, _) if !is_change => phase,
            (Self::Unproven, _) => Self::Unproven,
            // During a rollout the last good set is unchanged: the one in between never became good.
            (Self::Good | Self::RolledBack { .. }, Some(last_good))
            | (Self::Progressing { last_good, .. }, _) => {
                Self::Progressing { last_good, digest, parts_left: PARTS }
            }
        }
    }

    /// The phase after a start of the agent, from the stored one.
    #[must_use]
    pub(in crate::desired) fn after_start(self) -> Self {
        match self {
            Self::Progressing { last_good, digest, parts_left } => {
                Self::Progressing { last_good, digest, parts_left: parts_left.saturating_sub(1) }
            }
            phase => phase,
        }
    }

    /// The pods that decide: those of `wanted` that are new or changed. The new set is not to blame
    /// for a pod that was there before.
    pub(in crate::desired) fn new_pods<'a>(
        &self,
        wanted: impl Iterator<Item = &'a SourcePod>,
    ) -> impl Iterator<Item = &'a Rc<Pod>> {
        let before: BTreeMap<_, _> = match self {
            Self::Progressing { last_good, .. } => {
                last_good.pods.iter().map(|known| (&known.pod.metadata.uid, &known.pod)).into_map()
            }
            _ => BTreeMap::new(),
        };
        let is_open = self.is_open();
        wanted.map(|pod| &pod.pod).filter(move |pod| {
            is_open
                && before
                    .get(&pod.metadata.uid)
                    .is_none_or(|known| !Rc::ptr_eq(known, pod) && is_semantically_different(known, pod))
        })
    }

    /// Judges an open phase. `pods` are those of [`Self::new_pods`], with their names.
    #[must_use]
    pub(crate) fn verdict(&self, pods: &[(String, Progress)], times: RolloutTimes) -> RolloutVerdict {
        let part = times.after / u32::from(PARTS);
        let settle = SETTLE.min(part);
        if let Some(up) = times.all_started
            && pods.iter().all(|(_, progress)| *progress == Progress::Started)
        {
            let missing = settle.saturating_sub(up);
            return if missing.is_zero() || pods.is_empty() {
                RolloutVerdict::Good
            } else {
                RolloutVerdict::Wait(Some(missing))
            };
        }
        match self {
            Self::Good | Self::RolledBack { .. } | Self::Unproven => RolloutVerdict::Wait(None),
            Self::Progressing { parts_left: 0, .. } => RolloutVerdict::RollBack(reasons(pods)),
            Self::Progressing { .. } if times.in_part < part => {
                RolloutVerdict::Wait(Some(part.saturating_sub(times.in_part)))
            }
            Self::Progressing { parts_left: 1, .. } => RolloutVerdict::RollBack(reasons(pods)),
            Self::Progressing { .. } => RolloutVerdict::EndPart,
        }
    }
}

#[must_use]
pub(crate) fn progress(status: Option<&PodStatus>) -> Progress {
    let Some(status) = status else { return Progress::Waiting("not started yet".to_owned()) };
    let is_ready =
        status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if status.phase == "Succeeded" || (status.phase == "Running" && is_ready) {
        return Progress::Started;
    }
    let containers = || status.init_container_statuses.iter().chain(&status.container_statuses);
    let waiting = containers().find_map(waiting_reason);
    let own = (!status.reason.is_empty()).then(|| with_message(&status.reason, &status.message));
    let unready = || {
        let condition = status.conditions.iter().find(|condition| {
            matches!(&*condition.type_, "ContainersReady" | "Ready") && !condition.message.is_empty()
        });
        condition.map(|condition| condition.message.clone())
    };
    let ended = || containers().find_map(ended);
    let why = own.or(waiting).or_else(ended).or_else(unready);
    Progress::Waiting(why.unwrap_or_else(|| format!("phase {}", status.phase)))
}

fn waiting_reason(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.waiting.as_ref()?;
    // These reasons only mean that other containers are awaited.
    let is_dull = matches!(&*waiting.reason, "" | "PodInitializing" | "ContainerCreating");
    (!is_dull).then(|| format!("{}: {}", container.name, with_message(&waiting.reason, &waiting.message)))
}

fn ended(container: &ContainerStatus) -> Option<String> {
    let end = container.state.terminated.as_ref()?;
    (end.exit_code != 0).then(|| format!("{}: {} (exit code {})", container.name, end.reason, end.exit_code))
}

fn with_message(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") }
}

fn reasons(pods: &[(String, Progress)]) -> String {
    let mut failing = pods.iter().filter_map(|(name, progress)| match progress {
        Progress::Started => None,
        Progress::Waiting(why) => Some(format!("pod {name}: {why}")),
    });
    let named: Vec<String> = failing.by_ref().take(NAMED_PODS).collect();
    let more = failing.count();
    match (named.is_empty(), more) {
        (true, _) => "its pods did not keep running".to_owned(),
        (_, 0) => named.join("; "),
        (_, more) => format!("{}; and {more} more", named.join("; ")),
    }
}

/// A digest of an answer's meaning: independent of origins, of the times of first observation, and of order.
#[must_use]
pub(in crate::desired) fn answer_digest(pods: &[SourcePod], objects: &[SourceObject]) -> String {
    let mut parts: Vec<String> = pods.iter().map(|pod| pod_text(&pod.pod)).collect();
    parts.extend(objects.iter().map(|object| {
        let plain = LocalObject { created: Timestamp::default(), ..LocalObject::clone(&object.object) };
        wire::to_value(&plain, wire::Values::Shown).to_string()
    }));
    parts.order_by(Ord::cmp);
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex::encode(&hash.finalize())
}

fn pod_text(pod: &Pod) -> String {
    let mut pod = Pod { status: PodStatus::default(), ..pod.clone() };
    pod.metadata.annotations.retain(|name, _| !LOCAL_ANNOTATIONS.contains(&name.as_str()));
    // A pod that came from JSON can be serialized; two that could not would get the same digest.
    serde_json::to_string(&pod).unwrap_or_default()
}

#[cfg(test)]
mod tests;
