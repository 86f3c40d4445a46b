//! The decisions check by check, and the order of steps under power cuts between any two of them.

use proptest::prelude::*;

use super::*;
use crate::model::api::pod::{ContainerState, ContainerStateRunning, ContainerStateTerminated};

const SECOND: Duration = Duration::from_secs(1);

fn record() -> UpgradeRecord {
    UpgradeRecord {
        program: "/usr/bin/agent".to_owned(),
        from: Build { version: "0.1.0".to_owned(), digest: "a".to_owned() },
        to: Build { version: "0.2.0".to_owned(), digest: "b".to_owned() },
        since: Timestamp::from_secs(1_700_000_000),
        window: SECOND * 10,
        patience: SECOND * 5,
        service: "command sh -c 'a b'".to_owned(),
        watches: 1,
        was_ready: true,
        containers: vec![Ran { name: "default/web/main".to_owned(), id: "containerd://1".to_owned() }],
        ..UpgradeRecord::default()
    }
}

fn agent(pid: u32) -> Answering {
    Answering { life: (pid, 1), runs_program: true, is_ready: true, lost: Vec::new() }
}

fn seen(agent: Result<Answering, &str>) -> Seen {
    Seen { in_place: InPlace::New, rollback_requested: false, agent: agent.map_err(str::to_owned) }
}

/// Checks once a second what `at` returns, until there is something to do; returns the second, and the step.
fn watch(record: &UpgradeRecord, at: impl Fn(u32) -> Seen) -> (u32, Step) {
    let mut watch = Watch::default();
    for second in 0..1000 {
        match step(&mut watch, record, &at(second), SECOND * second) {
            Step::CheckAgain => {}
            other => return (second, other),
        }
    }
    panic!("the watch does not end: {watch:?}");
}

fn back(reason: &str) -> Step {
    Step::Settle(UpgradePhase::RolledBack, reason.to_owned())
}

fn stays() -> Step {
    Step::Settle(UpgradePhase::Upgraded, String::new())
}

#[test]
fn upgrade_record_round_trips_and_ignores_unknown_lines() {
    let written =
        UpgradeRecord { reason: "first\nsecond".to_owned(), settled: Timestamp::from_nanos(5), ..record() };
    let text = written.to_text();
    let read = UpgradeRecord::parse(&(text + "moon 3\n")).unwrap();
    assert_eq!(read, UpgradeRecord { reason: "first second".to_owned(), ..written });
    assert_eq!(UpgradeRecord::parse(""), None);
    assert_eq!(UpgradeRecord::parse("phase Landed\n"), None);
    for (phase, name) in PHASES {
        assert_eq!(UpgradeRecord::parse(&format!("phase {name}\n")).unwrap().phase, phase);
    }
}

#[test]
fn one_that_is_well_for_the_window_stays() {
    assert_eq!(watch(&record(), |_| seen(Ok(agent(1)))), (10, stays()));
    // The window begins when the program is healthy, and again with each restart.
    let slow = |second| if second < 4 { seen(Err("nobody listens")) } else { seen(Ok(agent(1))) };
    assert_eq!(watch(&record(), slow), (14, stays()));
    let again = |second| seen(Ok(agent(if second < 7 { 1 } else { 2 })));
    assert_eq!(watch(&record(), again), (17, stays()));
}

#[test]
fn the_agent_is_restarted_once_when_it_runs_what_was_there() {
    let other = || seen(Ok(Answering { runs_program: false, ..agent(1) }));
    let mut remembered = Watch::default();
    assert_eq!(step(&mut remembered, &record(), &other(), SECOND), Step::Restart);
    for second in 2..7 {
        assert_eq!(step(&mut remembered, &record(), &other(), SECOND * second), Step::CheckAgain, "{second}");
    }
    let reason = back("the service is not running /usr/bin/agent");
    assert_eq!(step(&mut remembered, &record(), &other(), SECOND * 7), reason);
}

#[test]
fn unresponsive_agent_is_rolled_back_only_after_a_while() {
    assert_eq!(watch(&record(), |_| seen(Err("nobody listens"))), (5, back("nobody listens")));
    let dies = |second| if second < 8 { seen(Ok(agent(1))) } else { seen(Err("nobody listens")) };
    assert_eq!(watch(&record(), dies), (13, back("nobody listens")));
    let unready = |_| seen(Ok(Answering { is_ready: false, ..agent(1) }));
    assert_eq!(watch(&record(), unready), (5, back("the runtime is not ready")));
}

#[test]
fn one_that_loops_is_given_up() {
    let loops = |second| seen(Ok(agent(second / 3)));
    assert_eq!(watch(&record(), loops), (9, back("the agent started 4 times")));
    // Healthy for a moment, unhealthy for a moment, without a restart: the watch does not wait forever.
    let flaps = |second| seen(if second % 4 < 2 { Ok(agent(1)) } else { Err("the agent did not answer") });
    assert_eq!(watch(&record(), flaps), (35, back("it did not stay healthy long enough")));
    let rebooted = UpgradeRecord { watches: MOST_WATCHES + 1, ..record() };
    assert!(matches!(
        watch(&rebooted, |_| seen(Ok(agent(1)))),
        (0, Step::Settle(UpgradePhase::RolledBack, _))
    ));
}

#[test]
fn one_under_which_containers_go_is_given_up() {
    let loses = |second| {
        let lost = if second >= 3 { vec!["default/web/main".to_owned()] } else { Vec::new() };
        seen(Ok(Answering { lost, ..agent(1) }))
    };
    assert_eq!(watch(&record(), loses), (8, back("containers stopped running: default/web/main")));
    // An early report may come from the store.
    let young = |second| {
        let lost = if second < 3 { vec!["default/web/main".to_owned()] } else { Vec::new() };
        seen(Ok(Answering { lost, ..agent(1) }))
    };
    assert_eq!(watch(&record(), young), (13, stays()));
}

#[test]
fn what_is_on_the_disk_decides_before_how_the_agent_does() {
    let with = |in_place| Seen { in_place, ..seen(Ok(agent(1))) };
    let settled = |in_place| match step(&mut Watch::default(), &record(), &with(in_place), SECOND) {
        Step::Settle(phase, _) => Some(phase),
        _ => None,
    };
    assert_eq!(settled(InPlace::Old), Some(UpgradePhase::Abandoned));
    assert_eq!(settled(InPlace::Other), Some(UpgradePhase::Replaced));
    assert_eq!(settled(InPlace::Missing), Some(UpgradePhase::RolledBack));
    assert_eq!(settled(InPlace::New), None);
    let going_back = UpgradeRecord { phase: UpgradePhase::RollingBack, reason: "so".to_owned(), ..record() };
    for (in_place, phase) in [
        (InPlace::New, UpgradePhase::RolledBack),
        (InPlace::Old, UpgradePhase::RolledBack),
        (InPlace::Missing, UpgradePhase::RolledBack),
        (InPlace::Other, UpgradePhase::Replaced),
    ] {
        let step = step(&mut Watch::default(), &going_back, &with(in_place), SECOND);
        assert!(matches!(step, Step::Settle(found, _) if found == phase), "{in_place:?}: {step:?}");
    }
    let asked = Seen { rollback_requested: true, ..with(InPlace::New) };
    assert_eq!(step(&mut Watch::default(), &record(), &asked, SECOND), back("requested"));
    for (phase, _) in PHASES.into_iter().filter(|(phase, _)| phase.is_settled()) {
        let over = UpgradeRecord { phase, reason: "so".to_owned(), ..record() };
        assert!(
            !effects(phase, phase).iter().any(|effect| matches!(effect, Effect::Note(_) | Effect::PutBack))
        );
        assert_eq!(step(&mut Watch::default(), &over, &asked, SECOND), Step::Settle(phase, "so".to_owned()));
    }
}

fn pod(name: &str, status: ContainerStatus) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = "default".to_owned();
    pod.metadata.name = name.to_owned();
    pod.status.container_statuses = vec![status];
    pod
}

fn running_as(id: &str) -> ContainerStatus {
    let state =
        ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
    ContainerStatus {
        name: "main".to_owned(),
        container_id: id.to_owned(),
        state,
        ..ContainerStatus::default()
    }
}

fn ended(id: &str, exit_code: i32) -> ContainerState {
    let end = ContainerStateTerminated {
        container_id: id.to_owned(),
        exit_code,
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(end), ..ContainerState::default() }
}

#[test]
fn a_container_is_lost_unless_it_runs_on_or_ended_by_itself() {
    let before = running(&[pod("web", running_as("c://1"))]);
    assert_eq!(before, [Ran { name: "default/web/main".to_owned(), id: "c://1".to_owned() }]);
    let lost_with = |status: ContainerStatus| lost(&before, &[pod("web", status)]);
    let gone = vec!["default/web/main".to_owned()];
    assert!(lost_with(running_as("c://1")).is_empty());
    assert_eq!(lost_with(running_as("c://2")), gone);
    assert_eq!(lost(&before, &[]), gone);
    for (code, is_lost) in [(0, false), (1, false), (137, true), (143, true)] {
        let done = ContainerStatus { state: ended("c://1", code), ..running_as("c://1") };
        assert_eq!(lost_with(done) == gone, is_lost, "{code}");
        let restarted = ContainerStatus { last_state: ended("c://1", code), ..running_as("c://2") };
        assert_eq!(lost_with(restarted) == gone, is_lost, "{code}");
    }
    let mut going = pod("web", running_as("c://1"));
    going.metadata.deletion_timestamp = Some(Timestamp::from_secs(1));
    assert!(
        running(&[going, pod("job", ContainerStatus { state: ended("c://3", 0), ..running_as("c://3") })])
            .is_empty()
    );
}

#[test]
fn versions_are_compared_by_number() {
    for (left, right, expected) in [
        ("0.1.0", "0.2.0", true),
        ("0.9.0", "0.10.0", true),
        ("0.1", "0.1.0", true),
        ("0.1.0", "0.1.0", false),
        ("v1.0.0-rc1", "1.0.0", false),
        ("1.0.0", "0.9.9", false),
    ] {
        assert_eq!(is_older(left, right), expected, "{left} {right}");
    }
}

/// A program of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Old,
    New,
}

/// The new program's behaviour, by the second of its run.
#[derive(Clone, Copy, Debug)]
enum Manners {
    Good,
    NeverAnswers,
    DiesAfter(u32),
    KillsPods,
}

/// The disk and the running processes: a machine in which every effect is one atomic change.
#[derive(Clone, Debug)]
struct World {
    record: Option<UpgradeRecord>,
    program: Program,
    previous: Option<Program>,
    is_guarded: bool,
    /// The program of the agent's process, and its start in seconds.
    agent: (Program, u32),
    boots: u32,
    now: u32,
}

impl World {
    fn new() -> Self {
        Self {
            record: None,
            program: Program::Old,
            previous: None,
            is_guarded: false,
            agent: (Program::Old, 0),
            boots: 0,
            now: 0,
        }
    }

    fn carry_out(&mut self, effect: Effect, record: &mut UpgradeRecord) {
        match effect {
            Effect::Note(phase) => {
                record.phase = phase;
                self.record = Some(record.clone());
            }
            Effect::Guard => self.is_guarded = true,
            Effect::Unguard => self.is_guarded = false,
            Effect::Keep => self.previous = Some(self.program),
            Effect::SwapIn => self.program = Program::New,
            Effect::PutBack => {
                assert_eq!(
                    self.previous.unwrap_or(self.program),
                    Program::Old,
                    "the old one is there to put back"
                );
                self.program = Program::Old;
            }
            Effect::Restart => self.agent = (self.program, self.now),
            Effect::Forget => self.previous = None,
        }
        // The invariants after every effect, since power may fail at any of them.
        assert!(self.program == Program::Old || self.previous == Some(Program::Old), "no way back: {self:?}");
        let is_safe =
            self.program == Program::Old || self.is_guarded || record.phase == UpgradePhase::Upgraded;
        assert!(is_safe, "a new program that nobody watches after a power cut: {self:?}");
    }

    fn look(&self, manners: Manners) -> Seen {
        let (program, since) = self.agent;
        let age = self.now - since;
        let life = match (program, manners) {
            // The service manager restarts it.
            (Program::New, Manners::DiesAfter(seconds)) => age / seconds.max(1),
            _ => 0,
        };
        let lost = match (program, manners) {
            (Program::New, Manners::KillsPods) if self.boots == 0 => vec!["default/web/main".to_owned()],
            _ => Vec::new(),
        };
        let answers = !matches!((program, manners), (Program::New, Manners::NeverAnswers));
        let answering = Answering {
            life: (since * 1000 + life, i64::from(self.boots)),
            runs_program: program == self.program,
            is_ready: true,
            lost,
        };
        Seen {
            in_place: if self.program == Program::Old { InPlace::Old } else { InPlace::New },
            rollback_requested: false,
            agent: if answers { Ok(answering) } else { Err("nobody listens".to_owned()) },
        }
    }

    /// Power is lost and restored: the installed program runs.
    fn reboot(&mut self) {
        self.boots += 1;
        self.now += 30;
        self.agent = (self.program, self.now);
    }
}

/// Does what `agent upgrade` and its watch do, with power for `fuel` effects and checks. True when the
/// upgrade ended.
fn carry_on(world: &mut World, manners: Manners, fuel: &mut u32, is_first: bool) -> bool {
    let mut spend = || {
        *fuel = fuel.saturating_sub(1);
        *fuel > 0
    };
    let mut noted = world.record.clone().unwrap_or_else(record);
    if is_first {
        noted.watches = 0;
        for effect in INSTALL {
            if !spend() {
                return false;
            }
            world.carry_out(*effect, &mut noted);
        }
    }
    if !noted.phase.is_settled() {
        noted.watches += 1;
    }
    world.record = Some(noted.clone());
    let (mut watch, begin) = (Watch::default(), world.now);
    loop {
        if !spend() {
            return false;
        }
        match step(&mut watch, &noted, &world.look(manners), SECOND * (world.now - begin)) {
            Step::CheckAgain => world.now += 1,
            Step::Restart => world.agent = (world.program, world.now),
            Step::Settle(phase, reason) => {
                noted.reason = reason;
                for effect in effects(noted.phase, phase) {
                    if !spend() {
                        return false;
                    }
                    world.carry_out(*effect, &mut noted);
                }
                return true;
            }
        }
    }
}

fn manners() -> impl Strategy<Value = Manners> {
    prop_oneof![
        Just(Manners::Good),
        Just(Manners::NeverAnswers),
        Just(Manners::KillsPods),
        (0..40_u32).prop_map(Manners::DiesAfter),
    ]
}

proptest! {
    #[test]
    fn power_may_go_between_any_two_steps(manners in manners(), cuts in proptest::collection::vec(1..60_u32, 0..8)) {
        let mut world = World::new();
        let mut is_first = true;
        let mut ended = false;
        for mut fuel in cuts.iter().copied().chain([100_000]) {
            if is_first || world.is_guarded {
                ended = carry_on(&mut world, manners, &mut fuel, is_first);
            }
            is_first = false;
            if ended {
                break;
            }
            world.reboot();
        }
        let phase = world.record.as_ref().map(|record| record.phase);
        // Cut off before it was guarded: nothing has changed but a note that the next upgrade reads.
        let is_untouched = world.program == Program::Old && !world.is_guarded && phase != Some(UpgradePhase::RollingBack);
        prop_assert!(ended || is_untouched, "{:?}", world);
        prop_assert!(!world.is_guarded, "{:?}", world);
        match world.program {
            Program::New => {
                prop_assert_eq!(phase, Some(UpgradePhase::Upgraded));
                prop_assert_eq!(world.previous, Some(Program::Old));
                let is_good = match manners {
                    Manners::Good => true,
                    // Its containers ended with a boot before any check; it lives for longer than the window.
                    Manners::KillsPods => world.boots > 0,
                    Manners::DiesAfter(seconds) => seconds >= 10,
                    Manners::NeverAnswers => false,
                };
                prop_assert!(is_good, "{:?}", world);
            }
            Program::Old => {
                prop_assert_ne!(phase, Some(UpgradePhase::Upgraded));
                prop_assert_eq!(world.agent.0, Program::Old);
                if cuts.is_empty() {
                    prop_assert!(!matches!(manners, Manners::Good));
                }
            }
        }
    }
}
