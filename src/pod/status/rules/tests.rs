//! Tables for phases, container states and conditions.
#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;
use crate::model::api::raw::RawJson;
use crate::model::observed::{
    ContainerStateKind, ObservedContainer, ObservedMount, ObservedSandbox, ObservedUser,
};
use crate::pod::prober::rules::{InstanceProbes, ProbeResult};
use crate::pod::restart::counts_after;

const NOW: i64 = 1_700_000_000;

fn pod(more: Value) -> Pod {
    let mut spec = json!({"containers": [{"name": "b", "image": "ib"}, {"name": "a", "image": "ia"}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
    decode::<Pod>(pod).unwrap().object
}

/// `a:running`, `a:exited:1`, `a#2:created`; newest last, in one ready sandbox.
fn seen(words: &str) -> ObservedPod {
    let sandbox =
        ObservedSandbox { id: "s".into(), ready: true, ips: vec!["10.1.0.2".into()], ..Default::default() };
    let mut observed = ObservedPod { sandboxes: vec![sandbox], ..Default::default() };
    for (at, word) in words.split_whitespace().enumerate() {
        let parts: Vec<&str> = word.split(':').collect();
        let (name, attempt) = parts[0].split_once('#').unwrap_or((parts[0], "0"));
        observed.containers.push(ObservedContainer {
            id: format!("{name}-{attempt}").into(),
            name: name.into(),
            attempt: attempt.parse().unwrap(),
            created_at: Timestamp::from_secs(100 + i64::try_from(at).unwrap()),
            started_at: Timestamp::from_nanos(NOW * 1_000_000_000 + 5),
            exit_code: parts.get(2).map_or(0, |code| code.parse().unwrap()),
            state: match parts[1] {
                "created" => ContainerStateKind::Created,
                "running" => ContainerStateKind::Running,
                "exited" => ContainerStateKind::Exited,
                _ => ContainerStateKind::Unknown,
            },
            ..Default::default()
        });
    }
    observed.sort();
    observed
}

struct Case {
    previous: Option<PodStatus>,
    earlier_counts: BTreeMap<ContainerName, u32>,
    waiting: BTreeMap<ContainerName, (String, String)>,
    blocked: Vec<Blocked>,
    probes: ProbeResults,
    terminal: bool,
    is_static: bool,
    now: i64,
    up: Duration,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            previous: None,
            earlier_counts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            blocked: Vec::new(),
            probes: ProbeResults::new(),
            terminal: false,
            is_static: true,
            now: NOW,
            up: Duration::MAX,
        }
    }
}

impl Case {
    fn status(&self, more: Value, words: &str) -> PodStatus {
        self.of(more, &seen(words))
    }

    fn of(&self, more: Value, observed: &ObservedPod) -> PodStatus {
        let context = StatusContext {
            now: Timestamp::from_secs(self.now),
            up: self.up,
            previous: self.previous.as_ref(),
            earlier_counts: &self.earlier_counts,
            waiting: &self.waiting,
            blocked: &self.blocked,
            node_ips: &["10.0.0.1".to_owned()],
            terminal: self.terminal,
            runtime_name: "containerd",
            is_static: self.is_static,
            probes: &self.probes,
        };
        compute_pod_status(&pod(more), observed, &context)
    }
}

/// `a=Running`, `a=Waiting(reason)`, `a=Terminated(reason,code)`, then ` <last ...` and ` xN` restarts.
fn states(status: &PodStatus) -> Vec<String> {
    let state = |state: &ContainerState| match (&state.waiting, &state.running, &state.terminated) {
        (Some(waiting), ..) => format!("Waiting({})", waiting.reason),
        (_, Some(_), _) => "Running".to_owned(),
        (.., Some(ended)) => format!("Terminated({},{})", ended.reason, ended.exit_code),
        (None, None, None) => String::new(),
    };
    let shown = |container: &ContainerStatus| {
        let last = state(&container.last_state);
        let last = if last.is_empty() { last } else { format!(" <{last}") };
        let restarts = container.restart_count;
        let restarts = if restarts == 0 { String::new() } else { format!(" x{restarts}") };
        format!("{}={}{last}{restarts}", container.name, state(&container.state))
    };
    status.init_container_statuses.iter().chain(&status.container_statuses).map(shown).collect()
}

fn conditions(status: &PodStatus) -> Vec<String> {
    let shown = |condition: &crate::model::api::pod::PodCondition| {
        format!("{}={} {} {}", condition.type_, condition.status, condition.reason, condition.message)
            .trim_end()
            .to_owned()
    };
    status.conditions.iter().map(shown).collect()
}

#[test]
fn client_conditions_come_from_the_spec_and_satisfy_gates() {
    let condition = |type_: &str, status: &str| json!({"type": type_, "status": status});
    let status = |said: Value, previous: Value| {
        let mut wanted = pod(json!({"readinessGates": [{"conditionType": "gate"}]}));
        wanted.status.conditions = decode(said).unwrap().object;
        let previous = PodStatus { conditions: decode(previous).unwrap().object, ..PodStatus::default() };
        let context = StatusContext {
            now: Timestamp::from_secs(NOW),
            up: Duration::MAX,
            previous: Some(&previous),
            earlier_counts: &BTreeMap::new(),
            waiting: &BTreeMap::new(),
            blocked: &[],
            node_ips: &[],
            terminal: false,
            runtime_name: "containerd",
            is_static: true,
            probes: &ProbeResults::new(),
        };
        let status = compute_pod_status(&wanted, &seen("a:running b:running"), &context);
        let of = |wanted: &str| {
            let found = status.conditions.iter().find(|condition| condition.type_ == wanted);
            found.map(|condition| condition.status.clone()).unwrap_or_default()
        };
        ["gate", "DisruptionTarget", "Ready"].map(of)
    };
    let carried = || json!([condition("gate", "True"), condition("DisruptionTarget", "True")]);
    assert_eq!(status(json!([condition("gate", "True")]), json!([])), ["True", "", "True"]);
    assert_eq!(status(json!([condition("gate", "False")]), carried()), ["False", "True", "False"]);
    assert_eq!(status(json!([]), carried()), ["", "True", "False"], "taken away");
    let lies = json!([condition("Ready", "True"), condition("DisruptionTarget", "True")]);
    assert_eq!(status(lies, json!([])), ["", "", "False"]);
}

#[test]
fn the_phase_follows_from_the_containers() {
    let case = Case::default();
    let phase = |policy: &str, words: &str| case.status(json!({"restartPolicy": policy}), words).phase;
    let cases = [
        ("Always", "", "Pending"),
        ("Always", "a:running", "Pending"),
        ("Always", "a:running b:running", "Running"),
        ("Always", "a:exited b:exited:1", "Running"),
        ("OnFailure", "a:exited b:exited:1", "Running"),
        ("OnFailure", "a:exited b:exited", "Succeeded"),
        ("Never", "a:exited b:running", "Running"),
        ("Never", "a:exited b:exited", "Succeeded"),
        ("Never", "a:exited b:exited:1", "Failed"),
        ("Never", "a:exited b:created", "Pending"),
    ];
    for (policy, words, expected) in cases {
        assert_eq!(phase(policy, words), expected, "{policy} {words}");
    }
    let terminal = Case { terminal: true, is_static: false, ..Case::default() };
    assert_eq!(terminal.status(json!({}), "a:exited b:exited:1").phase, "Failed");
    let of_static = Case { terminal: true, ..Case::default() };
    assert_eq!(of_static.status(json!({}), "a:exited b:exited:1").phase, "Running");
}

#[test]
fn init_containers_keep_a_pod_pending_and_can_fail_it() {
    let spec =
        |policy: &str| json!({"restartPolicy": policy, "initContainers": [{"name": "i", "image": "x"}]});
    let case = Case::default();
    let status = case.status(spec("Always"), "i:running");
    assert_eq!(status.phase, "Pending");
    assert_eq!(states(&status), ["i=Running", "a=Waiting(PodInitializing)", "b=Waiting(PodInitializing)"]);
    assert_eq!(
        conditions(&status)[1],
        "Initialized=False ContainersNotInitialized containers with incomplete status: [i]"
    );
    assert_eq!(case.status(spec("Always"), "i:exited:1").phase, "Pending");
    assert_eq!(case.status(spec("Never"), "i:exited:1").phase, "Failed");
    let status = case.status(spec("Never"), "a:running b:running");
    assert_eq!(states(&status)[0], "i=Terminated(Completed,0)");
    assert_eq!(status.phase, "Running");
}

#[test]
fn container_states_tell_restarts_and_obstacles() {
    let mut case = Case::default();
    let of = |case: &Case, words: &str| states(&case.status(json!({}), words));
    assert_eq!(of(&case, ""), ["a=Waiting(ContainerCreating)", "b=Waiting(ContainerCreating)"]);
    assert_eq!(
        of(&case, "a:exited:2 b:running a#1:running"),
        ["a=Running <Terminated(Error,2) x1", "b=Running"]
    );
    assert_eq!(of(&case, "a:exited:2 b:created")[0], "a=Terminated(Error,2)");
    case.waiting.insert("b".into(), ("ErrImagePull".into(), "no".into()));
    case.blocked.push(Blocked { name: "a".into(), reason: "CrashLoopBackOff", message: "back-off".into() });
    assert_eq!(
        of(&case, "a#1:exited:2"),
        ["a=Waiting(CrashLoopBackOff) <Terminated(Error,2) x1", "b=Waiting(ErrImagePull)"]
    );
    assert_eq!(of(&case, "a:running b:running"), ["a=Running", "b=Running"]);
}

#[test]
fn what_was_known_of_a_vanished_container_is_kept() {
    let first = Case::default().status(json!({}), "a:running b:exited:3");
    let case = Case { previous: Some(first), ..Case::default() };
    assert_eq!(
        states(&case.status(json!({}), "")),
        ["a=Waiting(ContainerCreating) <Terminated(ContainerStatusUnknown,137) x1", "b=Terminated(Error,3)"]
    );
    let restarted = case.status(json!({}), "a:running b#1:running");
    assert_eq!(states(&restarted)[1], "b=Running <Terminated(Error,3) x1");
    let later = Case { previous: Some(restarted), ..Case::default() };
    assert_eq!(
        states(&later.status(json!({}), "a:running b#1:running"))[1],
        "b=Running <Terminated(Error,3) x1"
    );
}

#[test]
fn a_container_lost_while_it_waits_keeps_its_end() {
    let running = Case::default().status(json!({}), "a:exited:0 a#1:running b:running");
    let mut case = Case { previous: Some(running), ..Case::default() };
    case.blocked.push(Blocked { name: "a".into(), reason: "CrashLoopBackOff", message: "back-off".into() });
    for look in 0..3 {
        let status = case.status(json!({}), "a:exited:0 a#1:unknown b:running");
        let expected = "a=Waiting(CrashLoopBackOff) <Terminated(ContainerStatusUnknown,137) x1";
        assert_eq!(states(&status)[0], expected, "look {look}");
        assert_eq!(counts_after(Some(&status))[&ContainerName::from("a")], 2, "look {look}");
        case.previous = Some(status);
    }
}

#[test]
fn a_restart_count_that_was_shown_never_falls() {
    let made = Case::default().status(json!({}), "b:running a:exited:1 a#1:created");
    assert_eq!(made.container_statuses[0].restart_count, 1);
    // The instance that was never started is replaced under its own attempt: for a moment there is none.
    let replaced = Case { previous: Some(made), ..Case::default() }.status(json!({}), "b:running a:exited:1");
    assert_eq!(replaced.container_statuses[0].restart_count, 1);
}

#[test]
fn fields_of_a_running_pod_are_filled() {
    let case = Case::default();
    let status = case.status(json!({}), "a:running b:running");
    assert_eq!((status.host_ip.as_str(), status.pod_ip.as_str()), ("10.0.0.1", "10.1.0.2"));
    assert_eq!(status.qos_class, "BestEffort");
    assert_eq!(status.start_time, Some(Timestamp::from_secs(NOW)));
    let names: Vec<&str> = status.container_statuses.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a", "b"], "sorted by name");
    let a = &status.container_statuses[0];
    assert_eq!((a.ready, a.started, a.container_id.as_str()), (true, Some(true), "containerd://a-0"));
    assert_eq!(a.state.running.as_ref().unwrap().started_at, Some(Timestamp::from_secs(NOW)));
    assert_eq!(
        conditions(&status),
        [
            "PodReadyToStartContainers=True",
            "Initialized=True",
            "Ready=True",
            "ContainersReady=True",
            "PodScheduled=True"
        ]
    );
    assert_eq!(case.status(json!({"hostNetwork": true}), "").pod_ip, "10.0.0.1");
    let probed =
        json!({"containers": [{"name": "b", "readinessProbe": {"exec": {"command": ["x"]}}}, {"name": "a"}]});
    let unready = case.status(probed, "a:running b:running");
    assert_eq!(conditions(&unready)[2], "Ready=False ContainersNotReady containers with unready status: [b]");
}

#[test]
fn transition_time_moves_only_when_a_condition_changes() {
    let first = Case::default().status(json!({}), "a:running b:running");
    let later = Case { previous: Some(first.clone()), now: NOW + 60, ..Case::default() };
    let second = later.status(json!({}), "a:running b:running");
    assert!(same_meaning(&first, &second));
    assert_eq!(first, second);
    let third = later.status(json!({}), "a:running b:exited");
    assert!(!same_meaning(&first, &third));
    let changed: Vec<&str> = third
        .conditions
        .iter()
        .filter(|condition| condition.last_transition_time == Some(Timestamp::from_secs(NOW + 60)))
        .map(|condition| condition.type_.as_str())
        .collect();
    assert_eq!(changed, ["Ready", "ContainersReady"]);
}

#[test]
fn a_finished_pod_stays_finished_and_its_conditions_say_so() {
    let never = || json!({"restartPolicy": "Never"});
    let first = Case::default().status(never(), "a:exited b:exited");
    assert_eq!(
        conditions(&first)[1..4],
        ["Initialized=True PodCompleted", "Ready=False PodCompleted", "ContainersReady=False PodCompleted"]
    );
    let case = Case { previous: Some(first), ..Case::default() };
    assert_eq!(case.status(never(), "a:exited b:running").phase, "Succeeded");
}

#[test]
fn a_pod_past_its_deadline_has_failed() {
    let spec = || json!({"activeDeadlineSeconds": 60});
    let first = Case::default().status(spec(), "a:running b:running");
    assert_eq!(first.phase, "Running");
    let late = Case { previous: Some(first), now: NOW + 60, ..Case::default() };
    let status = late.status(spec(), "a:running b:running");
    assert_eq!((status.phase.as_str(), status.reason.as_str()), ("Failed", "DeadlineExceeded"));
    let again = Case { previous: Some(status.clone()), now: NOW + 90, ..Case::default() };
    assert_eq!(again.status(spec(), "a:running b:running").message, status.message);
}

#[test]
fn a_clock_that_jumps_ends_no_pod_before_its_time() {
    let spec = || json!({"activeDeadlineSeconds": 60});
    let booted = Case { now: 20, up: Duration::from_secs(20), ..Case::default() };
    let first = booted.status(spec(), "a:running b:running");
    let phase = |now, up| {
        let up = Duration::from_secs(up);
        Case { previous: Some(first.clone()), now, up, ..Case::default() }
            .status(spec(), "a:running b:running")
            .phase
    };
    assert_eq!(phase(NOW, 50), "Running", "from 1970 to now, half a minute later");
    assert_eq!(phase(NOW + 31, 81), "Failed", "no machine that is up for less can have run it for longer");
    assert_eq!(phase(-7, 50), "Running", "set back");
}

#[test]
fn final_status_has_no_running_containers() {
    let running = Case::default().status(json!({}), "a:running b:exited");
    let last = final_status(&pod(json!({})), running.clone(), false);
    assert_eq!(states(&last), ["a=Terminated(ContainerStatusUnknown,137)", "b=Terminated(Completed,0)"]);
    assert_eq!(last.phase, "Failed");
    assert_eq!(final_status(&pod(json!({})), running, true).phase, "Running");
}

#[test]
fn termination_messages_share_a_budget() {
    let mut observed = seen("a:exited b:exited");
    observed.containers.iter_mut().for_each(|record| record.message = "é".repeat(5000));
    let empty = (BTreeMap::new(), BTreeMap::new());
    let context = StatusContext {
        now: Timestamp::from_secs(NOW),
        up: Duration::MAX,
        previous: None,
        earlier_counts: &BTreeMap::new(),
        waiting: &empty.0,
        blocked: &[],
        node_ips: &[],
        terminal: false,
        runtime_name: "x",
        is_static: true,
        probes: &empty.1,
    };
    let status = compute_pod_status(&pod(json!({"restartPolicy": "Never"})), &observed, &context);
    let length = |at: usize| {
        let container: &ContainerStatus = &status.container_statuses[at];
        container.state.terminated.as_ref().unwrap().message.len()
    };
    assert_eq!((length(0), length(1)), (4096, 4096));
}

#[test]
fn a_container_has_started_and_is_ready_when_its_probes_say_so() {
    let probe = json!({"exec": {"command": ["x"]}});
    let spec = || {
        json!({
            "initContainers": [{"name": "s", "image": "is", "restartPolicy": "Always", "startupProbe": probe}],
            "containers": [{"name": "a", "image": "ia", "startupProbe": probe, "readinessProbe": probe}],
        })
    };
    let mut case = Case::default();
    let sidecar = |status: &PodStatus| status.init_container_statuses[0].clone();
    let status = case.status(spec(), "s:running");
    assert_eq!((sidecar(&status).started, sidecar(&status).ready), (Some(false), false));
    assert_eq!(
        conditions(&status)[1],
        "Initialized=False ContainersNotInitialized containers with incomplete status: [s]"
    );
    assert_eq!(status.phase, "Pending");
    let success = Some(ProbeResult::Success);
    let mut probes = InstanceProbes { startup: success, ..Default::default() };
    case.probes.insert("s-0".into(), probes);
    assert_eq!(sidecar(&case.status(spec(), "s:running")).started, Some(true));
    let regular = |case: &Case| {
        let one = case.status(spec(), "s:running a:running").container_statuses[0].clone();
        (one.started, one.ready)
    };
    probes.readiness = success;
    let unstarted = InstanceProbes { startup: None, ..probes };
    case.probes.insert("a-0".into(), unstarted);
    assert_eq!(regular(&case), (Some(false), false), "readiness counts once it has started");
    case.probes.insert("a-0".into(), probes);
    assert_eq!(regular(&case), (Some(true), true));
    case.probes.insert("a-0".into(), InstanceProbes { readiness: Some(ProbeResult::Failure), ..probes });
    assert_eq!(regular(&case), (Some(true), false));
    // A sidecar that comes up again does not undo that the pod is initialised, but it is not ready.
    case.probes.remove(&"s-0".into());
    let again = case.status(spec(), "s:running a:running");
    assert_eq!(conditions(&again)[1], "Initialized=True");
    assert_eq!(
        conditions(&again)[3],
        "ContainersReady=False ContainersNotReady containers with unready status: [s a]"
    );
}

#[test]
fn ephemeral_containers_are_shown_and_count_for_nothing() {
    let spec = || {
        json!({
            "restartPolicy": "Never",
            "ephemeralContainers": [{"name": "e", "image": "x"}, {"name": "d", "image": "x"}],
        })
    };
    let shown = |status: &PodStatus| {
        let statuses = status.ephemeral_container_statuses.clone();
        states(&PodStatus { container_statuses: statuses, ..PodStatus::default() })
    };
    let mut case = Case::default();
    case.waiting.insert("e".into(), ("ErrImagePull".into(), "no".into()));
    let status = case.status(spec(), "a:running b:running d:running");
    assert_eq!(shown(&status), ["d=Running", "e=Waiting(ErrImagePull)"]);
    assert_eq!((status.phase.as_str(), status.ephemeral_container_statuses[0].started), ("Running", None));
    assert_eq!(conditions(&status)[2], "Ready=True");
    assert_eq!(case.status(spec(), "a:exited b:exited d:running").phase, "Succeeded");
    assert_eq!(case.status(spec(), "a:exited b:exited d:exited:1").phase, "Succeeded");
    let case = Case { previous: Some(status), ..Case::default() };
    let gone = case.status(spec(), "a:running b:running");
    assert_eq!(shown(&gone), ["d=Terminated(ContainerStatusUnknown,137)", "e=Waiting(ContainerCreating)"]);
    let last = final_status(&pod(spec()), case.previous.unwrap(), true);
    assert_eq!(shown(&last)[0], "d=Terminated(ContainerStatusUnknown,137)");
}

#[test]
fn in_place_restart_sets_a_condition_and_keeps_the_pod_alive() {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]);
    let spec = || {
        json!({
            "restartPolicy": "Never",
            "initContainers": [{"name": "i", "image": "x"}],
            "containers": [
                {"name": "a", "image": "ia", "restartPolicy": "Never", "restartPolicyRules": rules},
                {"name": "b", "image": "ib"},
            ],
        })
    };
    let condition = |status: &PodStatus| conditions(status).last().unwrap().clone();
    let before = Case::default().status(spec(), "i:exited a#1:exited:88 b:exited");
    assert_eq!(before.phase, "Running");
    assert_eq!(
        condition(&before),
        "AllContainersRestarting=True RestartAllContainersStarted container exited with restart policy rule"
    );
    let case = Case { previous: Some(before), ..Case::default() };
    let emptied = case.status(spec(), "");
    let last = "Waiting(RestartingAllContainers) <Terminated(RestartingAllContainers,137)";
    assert_eq!(states(&emptied), [format!("i={last} x1"), format!("a={last} x2"), format!("b={last} x1")]);
    assert_eq!(
        (emptied.phase.as_str(), condition(&emptied).as_str()),
        ("Pending", "AllContainersRestarting=False")
    );
    let counts = crate::pod::restart::counts_after(Some(&emptied));
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [2, 1, 1]);
    let case = Case { previous: Some(emptied), ..Case::default() };
    assert_eq!(case.status(spec(), "i#1:running").phase, "Pending");
    let initialised = case.status(spec(), "i#1:exited");
    assert_eq!(initialised.phase, "Running", "what waits to start over has not failed");
    let case = Case { previous: Some(initialised), ..Case::default() };
    let up = case.status(spec(), "i#1:exited a#2:running b#1:running");
    assert_eq!(states(&up)[1], "a=Running <Terminated(RestartingAllContainers,137) x2");
    assert_eq!(case.status(spec(), "i#1:exited a#2:exited b#1:exited:1").phase, "Failed");
    assert_eq!(
        condition(&case.status(spec(), "i#1:exited a#2:exited b#1:exited")),
        "AllContainersRestarting=False PodCompleted"
    );
}

#[test]
fn container_status_shows_user_and_volume_mounts() {
    let mounts = json!([
        {"name": "v", "mountPath": "/v"},
        {"name": "w", "mountPath": "/w", "readOnly": true, "recursiveReadOnly": "IfPossible"},
        {"name": "x", "mountPath": "x", "readOnly": true, "recursiveReadOnly": "IfPossible"},
    ]);
    let mut observed = seen("a:running b:running");
    let groups = vec![7, 8];
    observed.containers[0].user = Some(ObservedUser { uid: 5, gid: 6, supplemental_groups: groups });
    let mount = |path: &str, recursive_read_only| {
        let (container_path, host_path) = (path.to_owned(), String::new());
        ObservedMount { container_path, host_path, recursive_read_only }
    };
    observed.containers[0].mounts = vec![mount("/w", false), mount("/x", true)];
    let case = Case::default();
    let spec = json!({"containers": [{"name": "b", "image": "ib", "volumeMounts": mounts}]});
    let status = case.of(spec, &observed);
    let b = &status.container_statuses[0];
    let user = b.user.as_ref().map(RawJson::value);
    assert_eq!(user, Some(json!({"linux": {"uid": 5, "gid": 6, "supplementalGroups": [7, 8]}})));
    let shown = json!([
        {"name": "v", "mountPath": "/v"},
        {"name": "w", "mountPath": "/w", "readOnly": true, "recursiveReadOnly": "Disabled"},
        {"name": "x", "mountPath": "x", "readOnly": true, "recursiveReadOnly": "Enabled"},
    ]);
    assert_eq!(json!(b.volume_mounts), shown);
}

#[test]
fn a_container_begins_to_wait_for_its_next_run_once() {
    let blocked =
        |name: &str| Blocked { name: name.into(), reason: "CrashLoopBackOff", message: String::new() };
    let waits = |blocked: Vec<Blocked>| {
        Case { blocked, ..Case::default() }.status(json!({}), "a:exited:1 b:exited:1")
    };
    let (one, both) = (waits(vec![blocked("a")]), waits(vec![blocked("a"), blocked("b")]));
    let names = |now: &PodStatus, last: Option<&PodStatus>| -> Vec<String> {
        newly_backing_off(now, last).map(|name| name.to_string()).collect()
    };
    assert_eq!(names(&both, None), ["a", "b"]);
    assert_eq!(names(&both, Some(&one)), ["b"]);
    assert_eq!(names(&both, Some(&both)), Vec::<String>::new());
    // One that still runs while it is being killed does not wait yet.
    let killed =
        Case { blocked: vec![blocked("a")], ..Case::default() }.status(json!({}), "a:running b:running");
    assert_eq!(names(&killed, None), Vec::<String>::new());
}

#[test]
fn clients_see_the_end_of_a_pod_when_nothing_of_it_runs() {
    let status = |init: serde_json::Value, regular: serde_json::Value| -> PodStatus {
        let raw = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "m",
            "conditions": [{"type": "Ready", "status": "False"}, {"type": "DisruptionTarget", "status": "True"}],
            "initContainerStatuses": init, "containerStatuses": regular});
        decode(raw).unwrap().object
    };
    let (running, ended) = (json!({"running": {}}), json!({"terminated": {"exitCode": 1}}));
    let container = |state: &serde_json::Value| json!([{"name": "c", "state": state}]);
    let waiting = json!({"waiting": {"reason": "PodInitializing"}});
    let cases = [
        (json!([]), container(&running), "Running", "", 1),
        (container(&running), container(&waiting), "Pending", "", 1),
        (container(&running), container(&ended), "Running", "", 1),
        (json!([]), container(&ended), "Failed", "DeadlineExceeded", 2),
        (json!([]), json!([]), "Failed", "DeadlineExceeded", 2),
    ];
    for (init, regular, phase, reason, conditions) in cases {
        let case = format!("{init} {regular}");
        let mut shown = status(init, regular);
        hide_early_end(&mut shown);
        let found = (shown.phase.as_str(), shown.reason.as_str(), shown.conditions.len());
        assert_eq!(found, (phase, reason, conditions), "{case}");
    }
}
