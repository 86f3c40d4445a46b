//! Properties: plans are carried out on a small model of a runtime, with containers that end and fail their
//! probes, a runtime whose sandboxes die and that forgets, and an agent that dies between create and start.

use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::json;

use super::tests::pod;
use super::*;
use crate::model::api::pod::{ContainerStatus, PodStatus};
use crate::model::containers::{all_containers, find_container, is_sidecar, is_terminal};
use crate::model::observed::{ContainerStateKind as State, ObservedContainer, ObservedSandbox};
use crate::model::ordered::Sortable as _;
use crate::pod::plan::termination::compute_teardown;
use crate::pod::prober::rules::{ProbeResult, has_started};
use crate::pod::restart::counts_after;
use crate::pod::status::rules::{StatusContext, compute_pod_status};

/// More steps than any of these scenarios may need.
const STEPS_MAX: usize = 300;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// All sandboxes and what runs in them end, as in a reboot.
    Reboot,
    /// The agent dies after making the next container, before starting it.
    DieBeforeStart,
    /// The runtime loses track of what runs.
    LoseState,
    /// The runtime's records are wiped, and nothing runs any more.
    Wipe,
}

struct Model {
    pod: Pod,
    observed: ObservedPod,
    context: PlanContext,
    /// The last status.
    status: Option<PodStatus>,
    /// Exit codes of the coming runs of each container; then it runs for good (an init container succeeds).
    scripts: BTreeMap<ContainerName, VecDeque<i32>>,
    /// How many of the coming runs fail their startup or liveness probe.
    failures: BTreeMap<ContainerName, u32>,
    ids: u32,
    dies_before_start: bool,
    /// A regular container was running when the current plan was computed.
    initialised: bool,
    /// Every instance that was started, in order.
    started: Vec<(ContainerName, u32)>,
}

impl Model {
    fn pass(&mut self, seconds: i64) {
        let delta = Duration::from_secs(seconds.unsigned_abs());
        self.context.now = self.context.now.saturating_add(delta);
    }

    fn next_id(&mut self) -> String {
        self.ids += 1;
        self.pass(1);
        format!("id{}", self.ids)
    }

    fn plan(&self) -> PodPlan {
        let plan = compute_pod_plan(&self.pod, &self.observed, &self.context);
        assert_eq!(plan, compute_pod_plan(&self.pod, &self.observed, &self.context), "equal inputs");
        plan
    }

    /// One sync of a worker: computes the plan, then the status that the next plan depends on.
    fn look(&mut self) -> PodPlan {
        self.context.shown_counts = counts_after(self.status.as_ref());
        let plan = self.plan();
        let waiting = BTreeMap::new();
        let context = StatusContext {
            now: self.context.now,
            up: Duration::MAX,
            previous: self.status.as_ref(),
            earlier_counts: &BTreeMap::new(),
            waiting: &waiting,
            blocked: &plan.blocked,
            node_ips: &[],
            terminal: false,
            runtime_name: "model",
            is_static: true,
            probes: &self.context.probes,
        };
        let status = compute_pod_status(&self.pod, &self.observed, &context);
        for old in self.status.iter().flat_map(all_statuses) {
            let new =
                all_statuses(&status).find(|new| new.name == old.name).expect("every container is told of");
            assert!(new.restart_count >= old.restart_count, "restart count of {} went back", new.name);
        }
        if self.pod.spec.restart_policy == "Always" {
            assert!(!is_terminal(&status), "{} although it always restarts", status.phase);
        }
        self.status = Some(status);
        self.initialised = self.pod.spec.containers.iter().any(|container| {
            let mut records = self.observed.containers.iter();
            records.any(|record| {
                record.name.as_str() == container.name
                    && matches!(record.state, State::Running | State::Created)
            })
        });
        plan
    }

    fn end(&mut self, id: &ContainerId, code: i32) {
        let now = self.context.now;
        let mut records = self.observed.containers.iter_mut();
        let record = records.find(|record| record.id == *id).expect("plans name what exists");
        if matches!(record.state, State::Running | State::Unknown) {
            (record.state, record.exit_code, record.finished_at) = (State::Exited, code, now);
        }
    }

    /// False when the agent has died.
    fn apply(&mut self, action: &Action) -> bool {
        match action {
            Action::ResizeContainer(resize) => panic!("nothing to resize here: {}", resize.name),
            Action::StopContainers { groups, .. } => {
                for group in groups {
                    self.check_sidecars_stop_last(group);
                    for stop in group {
                        self.end(&stop.id, 137);
                    }
                }
            }
            Action::StopSandbox { id } => self.stop_sandbox(id),
            Action::RemoveSandbox { id } => {
                let found = self.observed.sandboxes.iter().position(|sandbox| sandbox.id == *id);
                let sandbox = self.observed.sandboxes.remove(found.expect("plans name what exists"));
                assert!(!sandbox.ready, "only stopped sandboxes are removed");
                assert!(self.observed.containers.iter().all(|record| record.sandbox != *id));
            }
            Action::RemoveContainer { id, .. } => {
                let found = self.observed.containers.iter().position(|record| record.id == *id);
                let record = self.observed.containers.remove(found.expect("plans name what exists"));
                assert!(matches!(record.state, State::Created | State::Exited));
            }
            Action::CreateSandbox { attempt } => {
                assert!(
                    self.observed.sandboxes.iter().all(|other| !other.ready && other.attempt != *attempt)
                );
                let sandbox = ObservedSandbox {
                    id: self.next_id().into(),
                    ready: true,
                    attempt: *attempt,
                    created_at: self.context.now,
                    ips: vec!["10.0.0.2".into()],
                    ..Default::default()
                };
                self.observed.sandboxes.insert(0, sandbox);
            }
            Action::StartContainer(start) => return self.start(start),
        }
        true
    }

    /// A sidecar that stops because the pod ends leaves only sidecars behind that are before it in the spec.
    fn check_sidecars_stop_last(&self, group: &[StopContainer]) {
        let is_going = |stop: &&StopContainer| {
            let newest = self.observed.container(&stop.name).is_some_and(|newest| newest.id == stop.id);
            newest && stop.message == format!("Stopping container {}", stop.name)
        };
        for stop in group.iter().filter(is_going) {
            let position = self
                .pod
                .spec
                .init_containers
                .iter()
                .position(|container| is_sidecar(container) && container.name == stop.name.as_str());
            let Some(position) = position else { continue };
            let earlier = &self.pod.spec.init_containers[..position];
            for live in self.observed.live_containers().filter(|live| live.id != stop.id) {
                let is_earlier = earlier.iter().any(|container| container.name == live.name.as_str());
                assert!(is_earlier, "{} stops before {}", stop.name, live.name);
            }
        }
    }

    fn stop_sandbox(&mut self, id: &SandboxId) {
        let inside: Vec<ContainerId> = self
            .observed
            .containers
            .iter()
            .filter(|record| record.sandbox == *id)
            .map(|record| record.id.clone())
            .collect();
        for id in &inside {
            self.end(id, 255);
        }
        for sandbox in self.observed.sandboxes.iter_mut().filter(|sandbox| sandbox.id == *id) {
            sandbox.ready = false;
        }
    }

    fn start(&mut self, start: &StartContainer) -> bool {
        assert!(self.context.terminating.is_none(), "nothing starts while terminating");
        let ready: Vec<&ObservedSandbox> =
            self.observed.sandboxes.iter().filter(|sandbox| sandbox.ready).collect();
        assert_eq!(ready.len(), 1);
        let sandbox = ready[0].id.clone();
        for other in self.observed.containers.iter().filter(|record| record.name == start.name) {
            assert!(
                !matches!(other.state, State::Running | State::Unknown),
                "two instances of {}",
                start.name
            );
            assert_ne!(other.attempt, start.attempt, "the runtime's name for {} is in use", start.name);
        }
        self.check_order(start, &sandbox);
        if start.kind == ContainerKind::Ephemeral {
            assert!(self.started.iter().all(|(name, _)| *name != start.name), "{} runs twice", start.name);
        }
        let mut runs = self.started.iter();
        let earlier = runs.find(|(name, attempt)| *name == start.name && *attempt >= start.attempt);
        assert_eq!(earlier, None, "attempt {} of {} has been", start.attempt, start.name);
        if let Some(back_off) = start.back_off {
            self.context.back_off.insert(start.name.clone(), back_off);
        }
        self.context.restart_counts.insert(start.name.clone(), start.attempt);
        let alive = !std::mem::take(&mut self.dies_before_start);
        let record = ObservedContainer {
            id: self.next_id().into(),
            name: start.name.clone(),
            sandbox,
            attempt: start.attempt,
            created_at: self.context.now,
            state: if alive { State::Running } else { State::Created },
            ..Default::default()
        };
        self.observed.containers.insert(0, record);
        if alive {
            self.started.push((start.name.clone(), start.attempt));
        }
        alive
    }

    /// Whatever comes before in `initContainers` has succeeded, or has been started if it is a sidecar;
    /// before its first run while the pod comes up, a sidecar right before has started by its own word.
    fn check_order(&self, start: &StartContainer, sandbox: &SandboxId) {
        if start.kind == ContainerKind::Ephemeral {
            return;
        }
        let before: Vec<_> = all_containers(&self.pod)
            .take_while(|(container, kind)| {
                container.name != start.name.as_str() && *kind != ContainerKind::Regular
            })
            .collect();
        let in_sandbox = |record: &&ObservedContainer| record.sandbox == *sandbox;
        let first_run =
            !self.observed.containers.iter().filter(in_sandbox).any(|record| record.name == start.name);
        for (position, (container, kind)) in before.iter().enumerate() {
            let must_be_up = first_run && !self.initialised && position + 1 == before.len();
            let mut records = self.observed.containers.iter().filter(in_sandbox);
            let fine = records.any(|record| {
                let sidecar = *kind == ContainerKind::Sidecar;
                let up = record.state == State::Running
                    && has_started(container, &record.id, &self.context.probes);
                let succeeded = record.state == State::Exited && record.exit_code == 0;
                let is_over = if sidecar { up || !must_be_up } else { succeeded };
                record.name.as_str() == container.name && is_over
            });
            assert!(fine, "{} starts before {} is done", start.name, container.name);
        }
    }

    /// One container ends, comes up or fails a probe, if one is to.
    fn one_event(&mut self) -> bool {
        let running: Vec<ObservedContainer> = self
            .observed
            .containers
            .iter()
            .filter(|record| record.state == State::Running)
            .cloned()
            .collect();
        self.pass(1);
        running.iter().any(|record| self.probe(record) || self.exit(record))
    }

    fn probe(&mut self, record: &ObservedContainer) -> bool {
        let container = find_container(&self.pod, &record.name).expect("of the spec").0;
        let probes = self.context.probes.entry(record.id.clone()).or_default();
        let left = self.failures.entry(record.name.clone()).or_default();
        let fails = *left > 0;
        let result = if fails { ProbeResult::Failure } else { ProbeResult::Success };
        let published = if container.startup_probe.is_some() && probes.startup.is_none() {
            &mut probes.startup
        } else if container.liveness_probe.is_some() && fails && probes.liveness.is_none() {
            &mut probes.liveness
        } else {
            return false;
        };
        *published = Some(result);
        *left -= u32::from(fails);
        true
    }

    fn exit(&mut self, record: &ObservedContainer) -> bool {
        let kind = find_container(&self.pod, &record.name).expect("of the spec").1;
        let script = self.scripts.entry(record.name.clone()).or_default();
        let Some(code) = script.pop_front().or((kind == ContainerKind::Init).then_some(0)) else {
            return false;
        };
        self.end(&record.id, code);
        true
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Reboot => {
                let all: Vec<SandboxId> =
                    self.observed.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
                for id in &all {
                    self.stop_sandbox(id);
                }
            }
            Fault::DieBeforeStart => self.dies_before_start = true,
            Fault::LoseState => {
                let running = self.observed.containers.iter_mut();
                for record in running.filter(|record| record.state == State::Running) {
                    record.state = State::Unknown;
                }
            }
            Fault::Wipe => self.observed = ObservedPod::default(),
        }
    }

    /// Plans and applies until there is nothing left to do.
    fn settle(&mut self, faults: &[(usize, Fault)]) {
        for step in 0..STEPS_MAX {
            let plan = self.look();
            let due: Vec<Fault> =
                faults.iter().filter(|(at, _)| *at == step).map(|(_, fault)| *fault).collect();
            if !due.is_empty() {
                for fault in due {
                    self.strike(fault);
                }
            } else if !plan.actions.is_empty() {
                let _alive = plan.actions.iter().all(|action| self.apply(action));
            } else if !self.one_event() {
                match plan.requeue_after {
                    Some(after) => self.context.now = self.context.now.saturating_add(after),
                    None if faults.iter().any(|(at, _)| *at > step) => {}
                    None => return,
                }
            }
        }
        panic!("no rest after {STEPS_MAX} steps; the last plan was:\n{}", self.plan());
    }

    fn live(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.observed.live_containers().map(|record| record.name.as_str()).collect();
        names.order_by(Ord::cmp);
        names
    }
}

fn all_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    all.chain(&status.ephemeral_container_statuses)
}

/// Which of the optional parts a pod has.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    init: bool,
    sidecar: bool,
    /// Something that comes after the sidecar and before the regular containers.
    second_init: bool,
    /// The sidecar has a startup probe, it and `a` have liveness probes.
    probes: bool,
    ephemeral: bool,
    /// An end of `b` or of the sidecar with code 2 restarts everything.
    restart_all: bool,
}

const NAMES: [&str; 6] = ["i", "s", "j", "a", "b", "d"];

fn model(policy: &str, parts: Parts, scripts: [Vec<i32>; 6], failures: [u32; 2]) -> Model {
    let probe = json!({"exec": {"command": ["x"]}});
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [2]}}]);
    let mut sidecar = json!({"name": "s", "restartPolicy": "Always"});
    let (mut a, mut b) = (json!({"name": "a"}), json!({"name": "b"}));
    if parts.probes {
        sidecar["startupProbe"] = probe.clone();
        sidecar["livenessProbe"] = probe.clone();
        a["livenessProbe"] = probe;
    }
    if parts.restart_all {
        sidecar["restartPolicyRules"] = rules.clone();
        b["restartPolicyRules"] = rules;
        b["restartPolicy"] = policy.into();
    }
    let init = [
        (parts.init, json!({"name": "i"})),
        (parts.sidecar, sidecar),
        (parts.second_init, json!({"name": "j"})),
    ];
    let init: Vec<_> =
        init.into_iter().filter(|(wanted, _)| *wanted).map(|(_, container)| container).collect();
    let guests = if parts.ephemeral { json!([{"name": "d"}]) } else { json!([]) };
    let spec = json!({
        "restartPolicy": policy, "initContainers": init, "containers": [a, b], "ephemeralContainers": guests,
    });
    let names = NAMES.map(ContainerName::from);
    Model {
        pod: pod(spec),
        observed: ObservedPod::default(),
        context: PlanContext { now: Timestamp::from_secs(1000), ..Default::default() },
        status: None,
        scripts: names.into_iter().zip(scripts.map(VecDeque::from)).collect(),
        failures: ["s", "a"].map(ContainerName::from).into_iter().zip(failures).collect(),
        ids: 0,
        dies_before_start: false,
        initialised: false,
        started: Vec::new(),
    }
}

fn faults() -> impl Strategy<Value = Vec<(usize, Fault)>> {
    let fault = prop_oneof![
        Just(Fault::Reboot),
        Just(Fault::DieBeforeStart),
        Just(Fault::LoseState),
        Just(Fault::Wipe),
    ];
    proptest::collection::vec((0..40_usize, fault), 0..5)
}

/// Exit codes: success, failure, and the one that may restart everything.
fn scripts() -> impl Strategy<Value = [Vec<i32>; 6]> {
    let codes = || proptest::collection::vec(0..3_i32, 0..4);
    [codes(), codes(), codes(), codes(), codes(), codes()]
}

fn parts() -> impl Strategy<Value = Parts> {
    any::<[bool; 6]>().prop_map(|[init, sidecar, second_init, probes, ephemeral, restart_all]| Parts {
        init,
        sidecar,
        second_init,
        probes,
        ephemeral,
        restart_all,
    })
}

proptest! {
    #[test]
    fn every_pod_comes_to_rest_and_goes_without_trace(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        parts in parts(),
        scripts in scripts(),
        failures in [0..3_u32, 0..3_u32],
        faults in faults(),
    ) {
        let mut model = model(policy, parts, scripts, failures);
        model.settle(&faults);
        prop_assert_eq!(model.plan(), PodPlan::default());
        if policy == "Always" {
            let mut live = model.live();
            live.retain(|name| *name != "d");
            let expected: &[&str] = if parts.sidecar { &["a", "b", "s"] } else { &["a", "b"] };
            prop_assert_eq!(live, expected);
        }
        if model.live().is_empty() {
            prop_assert!(model.observed.ready_sandbox().is_none(), "a pod that is over holds no sandbox");
        } else {
            prop_assert!(model.live().contains(&"a") || model.live().contains(&"b"), "guests keep no pod alive");
        }
        for (container, _) in all_containers(&model.pod) {
            let records = model.observed.containers.iter();
            let kept = records.filter(|record| record.name.as_str() == container.name).count();
            prop_assert!(kept <= 2, "{} keeps {kept} records", container.name);
        }
        // This bounds the sandboxes too: an ended one stays only as long as it holds a container's last
        // record.
        for sandbox in model.observed.sandboxes.iter().skip(1) {
            let mut records = model.observed.containers.iter();
            prop_assert!(records.any(|record| record.sandbox == sandbox.id), "{} is empty", sandbox.id);
        }

        model.context.terminating = Some(Terminating { grace_seconds: 30 });
        model.settle(&[]);
        prop_assert!(model.live().is_empty());
        for action in &compute_teardown(&model.observed).actions {
            model.apply(action);
        }
        prop_assert_eq!(&model.observed, &ObservedPod::default());
    }

    #[test]
    fn a_pod_that_never_restarts_runs_each_container_once(
        scripts in scripts(),
        reboot in 0..20_usize,
    ) {
        let mut model = model("Never", Parts { init: true, ..Parts::default() }, scripts, [0, 0]);
        model.settle(&[(reboot, Fault::Reboot)]);
        let mut started = model.started.clone();
        started.order_by(Ord::cmp);
        started.dedup_by(|one, other| one.0 == other.0);
        prop_assert_eq!(started.len(), model.started.len(), "{:?}", model.started);
    }

    #[test]
    fn what_restarts_everything_runs_everything_again(
        parts in parts(),
        rounds in 1..4_usize,
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
    ) {
        let parts = Parts { restart_all: true, probes: false, ..parts };
        let scripts = NAMES.map(|name| if name == "b" { vec![2; rounds] } else { Vec::new() });
        let mut model = model(policy, parts, scripts, [0, 0]);
        model.settle(&[]);
        let most = u32::try_from(rounds).unwrap();
        for (container, kind) in all_containers(&model.pod) {
            let attempts: Vec<u32> = model
                .started
                .iter()
                .filter(|(name, _)| name.as_str() == container.name)
                .map(|(_, attempt)| *attempt)
                .collect();
            prop_assert_eq!(attempts, (0..=most).collect::<Vec<_>>(), "{} {:?}", container.name, kind);
        }
        prop_assert_eq!(model.observed.sandboxes.len(), 1, "the sandbox is kept");
    }
}
