//! Properties: plans are carried out on a small model of a runtime, with containers that end, a runtime whose sandboxes
//! die and an agent that dies between create and start.

use std::collections::VecDeque;

use proptest::prelude::*;
use serde_json::json;

use super::tests::pod;
use super::*;
use crate::observed::{ContainerStateKind as State, ObservedContainer, ObservedSandbox};
use crate::reconcile::containers::all_containers;
use crate::reconcile::termination::compute_teardown;

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
}

struct Model {
    pod: Pod,
    observed: ObservedPod,
    context: PlanContext,
    /// Exit codes of the coming runs of each container; then it runs for good (an init container succeeds).
    scripts: BTreeMap<ContainerName, VecDeque<i32>>,
    ids: u32,
    dies_before_start: bool,
    started: Vec<ContainerName>,
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
            Action::StopContainers { groups, .. } => {
                groups.iter().flatten().for_each(|stop| self.end(&stop.id, 137));
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
            self.started.push(start.name.clone());
        }
        alive
    }

    /// Whatever comes before in `initContainers` has succeeded, or has been started if it is a sidecar.
    fn check_order(&self, start: &StartContainer, sandbox: &SandboxId) {
        for (container, kind) in all_containers(&self.pod) {
            if container.name == start.name.as_str() || kind == ContainerKind::Regular {
                return;
            }
            let mut records = self.observed.containers.iter().filter(|record| record.sandbox == *sandbox);
            let fine = records.any(|record| {
                let succeeded = record.state == State::Exited && record.exit_code == 0;
                record.name.as_str() == container.name && (kind == ContainerKind::Sidecar || succeeded)
            });
            assert!(fine, "{} starts before {} is done", start.name, container.name);
        }
    }

    /// Ends one container that is to end.
    fn one_exit(&mut self) -> bool {
        let mut running = self.observed.containers.iter().filter(|record| record.state == State::Running);
        let due = running.find_map(|record| {
            let is_init = |(container, kind): (&crate::api::pod::Container, ContainerKind)| {
                container.name == record.name.as_str() && kind == ContainerKind::Init
            };
            let code = self.scripts.get(&record.name).and_then(|script| script.front().copied());
            let code = code.or(all_containers(&self.pod).any(is_init).then_some(0))?;
            Some((record.id.clone(), record.name.clone(), code))
        });
        let Some((id, name, code)) = due else { return false };
        self.scripts.entry(name).or_default().pop_front();
        self.pass(1);
        self.end(&id, code);
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
        }
    }

    /// Plans and applies until there is nothing left to do.
    fn settle(&mut self, faults: &[(usize, Fault)]) {
        for step in 0..STEPS_MAX {
            faults.iter().filter(|(at, _)| *at == step).for_each(|(_, fault)| self.strike(*fault));
            let plan = self.plan();
            if !plan.actions.is_empty() {
                let _alive = plan.actions.iter().all(|action| self.apply(action));
            } else if !self.one_exit() {
                match plan.requeue_after {
                    Some(after) => self.context.now = self.context.now.saturating_add(after),
                    None if faults.iter().any(|(at, _)| *at > step) => {}
                    None => return,
                }
            }
        }
        panic!("no rest after {STEPS_MAX} steps; the last plan was:\n{}", self.plan());
    }
}

fn model(policy: &str, init: bool, sidecar: bool, scripts: [Vec<i32>; 4]) -> Model {
    let mut init_containers = Vec::new();
    if init {
        init_containers.push(json!({"name": "i"}));
    }
    if sidecar {
        init_containers.push(json!({"name": "s", "restartPolicy": "Always"}));
    }
    let names = ["i", "s", "a", "b"];
    Model {
        pod: pod(json!({"restartPolicy": policy, "initContainers": init_containers})),
        observed: ObservedPod::default(),
        context: PlanContext { now: Timestamp::from_secs(1000), ..Default::default() },
        scripts: names.into_iter().map(ContainerName::from).zip(scripts.map(VecDeque::from)).collect(),
        ids: 0,
        dies_before_start: false,
        started: Vec::new(),
    }
}

fn faults() -> impl Strategy<Value = Vec<(usize, Fault)>> {
    let fault = prop_oneof![Just(Fault::Reboot), Just(Fault::DieBeforeStart), Just(Fault::LoseState)];
    proptest::collection::vec((0..30_usize, fault), 0..5)
}

fn scripts() -> impl Strategy<Value = [Vec<i32>; 4]> {
    let codes = || proptest::collection::vec(0..2_i32, 0..4);
    [codes(), codes(), codes(), codes()]
}

proptest! {
    #[test]
    fn every_pod_comes_to_rest_and_goes_without_trace(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        init in any::<bool>(),
        sidecar in any::<bool>(),
        scripts in scripts(),
        faults in faults(),
    ) {
        let mut model = model(policy, init, sidecar, scripts);
        model.settle(&faults);
        let live = |model: &Model| model.observed.live_containers().count();
        prop_assert_eq!(model.plan(), PodPlan::default());
        if policy == "Always" {
            prop_assert_eq!(live(&model), 2 + usize::from(sidecar));
        }
        if live(&model) == 0 {
            prop_assert!(model.observed.ready_sandbox().is_none(), "a pod that is over holds no sandbox");
        }
        for (container, _) in all_containers(&model.pod) {
            let records = model.observed.containers.iter();
            let kept = records.filter(|record| record.name.as_str() == container.name).count();
            prop_assert!(kept <= 2, "{} keeps {kept} records", container.name);
        }
        prop_assert!(model.observed.sandboxes.len() <= 3);

        model.context.terminating = Some(Terminating { grace_seconds: 30 });
        model.settle(&[]);
        prop_assert_eq!(live(&model), 0);
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
        let mut model = model("Never", true, false, scripts);
        model.settle(&[(reboot, Fault::Reboot)]);
        let mut started = model.started.clone();
        started.sort();
        started.dedup();
        prop_assert_eq!(started.len(), model.started.len(), "{:?}", model.started);
    }
}
