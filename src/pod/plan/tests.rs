//! Upstream's cases of computePodActions, and further ones: a pod and its observation -> the printed plan.
#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;
use crate::model::containers::{container_hash, find_container};
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedSandbox};
use crate::pod::plan::termination::compute_teardown;

mod life;

const NOW: i64 = 10_000;

/// A pod with containers `a`, `b` and the given additions to its spec.
pub(super) fn pod(more: Value) -> Pod {
    let mut spec = json!({"containers": [{"name": "a", "image": "ia"}, {"name": "b", "image": "ib"}]});
    let members = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(members);
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
    decode::<Pod>(pod).unwrap().object
}

/// An observation of a pod, written as words: `s0` a ready sandbox of attempt 0, `s1!` one that is not ready,
/// `a:running`, `a:exited:1`, `a#2:created` (attempt 2), `a:running@s1` in sandbox s1. Newest last.
fn seen(pod: &Pod, words: &str) -> ObservedPod {
    let mut observed = ObservedPod::default();
    let mut sandbox = String::new();
    for (at, word) in words.split_whitespace().enumerate() {
        let created_at = Timestamp::from_secs(100 + i64::try_from(at).unwrap());
        if let Some((name, state)) = word.split_once(':') {
            let (state, place) = state.split_once('@').unwrap_or((state, &sandbox));
            let (name, attempt) = name.split_once('#').unwrap_or((name, "0"));
            let (state, code) = state.split_once(':').unwrap_or((state, "0"));
            let container = find_container(pod, &name.into()).unwrap().0;
            observed.containers.push(ObservedContainer {
                id: format!("{name}-{attempt}").into(),
                name: name.into(),
                sandbox: place.into(),
                attempt: attempt.parse().unwrap(),
                hash: if code == "changed" { "0".into() } else { container_hash(container) },
                created_at,
                exit_code: code.parse().unwrap_or_default(),
                finished_at: Timestamp::from_secs(NOW - 5),
                state: match state {
                    "created" => ContainerStateKind::Created,
                    "running" => ContainerStateKind::Running,
                    "exited" => ContainerStateKind::Exited,
                    _ => ContainerStateKind::Unknown,
                },
                ..Default::default()
            });
        } else {
            sandbox = word.trim_end_matches('!').to_owned();
            observed.sandboxes.push(ObservedSandbox {
                id: sandbox.as_str().into(),
                ready: !word.ends_with('!'),
                attempt: sandbox[1..].parse().unwrap(),
                created_at,
                ips: vec!["10.0.0.2".into()],
                ..Default::default()
            });
        }
    }
    observed.sort();
    observed
}

fn context() -> PlanContext {
    PlanContext { now: Timestamp::from_secs(NOW), ..Default::default() }
}

/// The plan, one action per line, without the messages of events.
fn check(more: Value, words: &str, expected: &[&str]) {
    check_in(&context(), more, words, expected);
}

fn check_in(context: &PlanContext, more: Value, words: &str, expected: &[&str]) {
    let pod = pod(more);
    let plan = compute_pod_plan(&pod, &seen(&pod, words), context).to_string();
    let lines: Vec<&str> = plan.lines().collect();
    assert_eq!(lines, expected, "seen: {words}");
}

#[test]
fn a_new_pod_gets_a_sandbox_and_its_containers() {
    check(
        json!({}),
        "",
        &[
            "create sandbox, attempt 0",
            "start Regular container a, attempt 0",
            "start Regular container b, attempt 0",
        ],
    );
}

#[test]
fn a_settled_pod_plans_nothing() {
    check(json!({}), "s0 a:running b:running", &[]);
    check(json!({}), "s0 a:exited:1 b:running a#1:running", &[]);
    check(json!({"restartPolicy": "OnFailure"}), "s0 a:exited b:running", &[]);
    check(json!({"restartPolicy": "Never"}), "s0! a:exited b:exited:1", &[]);
    check(json!({"restartPolicy": "OnFailure"}), "s0! a:exited b:exited", &[]);
}

#[test]
fn an_ended_container_restarts_as_its_policy_says() {
    let first = "start Regular container a, attempt 1, next back-off 10s";
    check(json!({"restartPolicy": "Always"}), "s0 a:exited b:running", &[first]);
    check(json!({"restartPolicy": "OnFailure"}), "s0 a:exited:1 b:running", &[first]);
    check(json!({"restartPolicy": "Never"}), "s0 a:exited:1 b:running", &[]);
}

#[test]
fn a_finished_pod_keeps_its_records_and_loses_its_sandbox() {
    check(json!({"restartPolicy": "Never"}), "s0 a:exited b:exited:1", &["stop sandbox s0"]);
    check(json!({"restartPolicy": "OnFailure"}), "s0 a:exited b:exited", &["stop sandbox s0"]);
}

#[test]
fn never_started_instance_is_replaced_under_the_same_attempt() {
    check(
        json!({}),
        "s0 a#3:created b:running",
        &["remove container a (a-3)", "start Regular container a, attempt 3"],
    );
}

#[test]
fn stale_lower_attempt_is_removed_without_counting_back() {
    check(json!({}), "s0 a#2:running b:running a#1:created", &["remove container a (a-1)"]);
}

#[test]
fn what_has_not_run_again_keeps_its_crash_loop_entry() {
    let mut context = context();
    let entry = BackOff { delay: Duration::from_secs(40), updated: Timestamp::from_secs(NOW - 30) };
    context.back_off.insert("a".into(), entry);
    let kept = "start Regular container a, attempt 3, next back-off 40s";
    check_in(&context, json!({}), "s0 a#3:created b:running", &["remove container a (a-3)", kept]);
    context.restart_counts.insert("a".into(), 3);
    check_in(&context, json!({}), "s0 b:running", &[kept]);
}

#[test]
fn an_instance_in_unknown_state_is_stopped_before_the_next_one() {
    check(
        json!({}),
        "s0 a:unknown b:running",
        &[
            "stop within 30s: a (a-0: Container a is in unknown state, try killing it before restart)",
            "start Regular container a, attempt 1",
        ],
    );
}

#[test]
fn changed_definition_restarts_and_an_unknown_hash_does_not() {
    check(
        json!({"restartPolicy": "Never"}),
        "s0 a:running:changed b:running",
        &[
            "stop within 30s: a (a-0: Container a definition changed, will be restarted)",
            "start Regular container a, attempt 1",
        ],
    );
    let pod = pod(json!({}));
    let mut observed = seen(&pod, "s0 a:running:changed b:running");
    observed.containers.iter_mut().for_each(|record| record.hash.clear());
    assert_eq!(compute_pod_plan(&pod, &observed, &context()), PodPlan::default());
}

#[test]
fn a_crash_loop_waits_and_says_how_long() {
    let mut context = context();
    let entry = BackOff { delay: Duration::from_secs(80), updated: Timestamp::from_secs(NOW - 20) };
    context.back_off.insert("a".into(), entry);
    check_in(
        &context,
        json!({}),
        "s0 a#4:exited:1 b:running",
        &[
            "blocked a: CrashLoopBackOff: back-off 1m20s restarting failed container=a pod=p_ns(u)",
            "resync after 75s",
        ],
    );
    context.now = Timestamp::from_secs(NOW + 75);
    check_in(
        &context,
        json!({}),
        "s0 a#4:exited:1 b:running",
        &["start Regular container a, attempt 5, next back-off 160s"],
    );
}

#[test]
fn a_corrected_container_leaves_the_crash_loop_of_the_old_one() {
    let mut context = context();
    let entry = BackOff { delay: Duration::from_secs(300), updated: Timestamp::from_secs(NOW - 20) };
    context.back_off.insert("a".into(), entry);
    context.restart_counts.insert("a".into(), 6);
    // Another image, between two runs and during one.
    let first = "start Regular container a, attempt 7, next back-off 10s";
    check_in(&context, json!({}), "s0 a#6:exited:changed b:running", &[first]);
    check_in(
        &context,
        json!({"restartPolicy": "OnFailure"}),
        "s0 a#5:exited:1 b:running a#6:running:changed",
        &["stop within 30s: a (a-6: Container a definition changed, will be restarted)", first],
    );
    // The start was decided on, and failed for want of the image: its entry is its own.
    context.restart_counts.insert("a".into(), 7);
    let entry = BackOff { delay: Duration::from_secs(10), updated: Timestamp::from_secs(NOW - 20) };
    context.back_off.insert("a".into(), entry);
    check_in(&context, json!({}), "s0 a#6:exited:changed b:running", &[first]);
}

#[test]
fn other_resources_end_a_crash_loop_and_the_same_do_not() {
    let mut context = context();
    let entry = BackOff { delay: Duration::from_secs(300), updated: Timestamp::from_secs(NOW - 20) };
    context.back_off.insert("a".into(), entry);
    let with_limit = |memory: &str| {
        pod(
            json!({"containers": [{"name": "a", "image": "ia", "resources": {"limits": {"memory": memory}}}]}),
        )
    };
    let (small, large) = (with_limit("64Mi"), with_limit("128Mi"));
    let mut observed = seen(&small, "s0 a#6:exited:137");
    let made_with = resize::annotation(&small.spec.containers[0]);
    observed.containers[0]
        .annotations
        .insert(crate::model::labels::CONTAINER_RESOURCES.to_owned(), made_with);
    let plan = |pod: &Pod| compute_pod_plan(pod, &observed, &context);
    assert!(plan(&small).actions.is_empty() && plan(&small).blocked.len() == 1);
    assert_eq!(plan(&large).to_string(), "start Regular container a, attempt 7, next back-off 10s\n");
}

#[test]
fn stored_restart_count_is_a_floor_and_a_retry_keeps_it() {
    let mut context = context();
    context.restart_counts.insert("a".into(), 1);
    check_in(
        &context,
        json!({}),
        "s0 a:exited b:running",
        &["start Regular container a, attempt 1, next back-off 10s"],
    );
    context.restart_counts.insert("a".into(), 7);
    check_in(&context, json!({}), "s0 b:running", &["start Regular container a, attempt 7"]);
}

#[test]
fn a_dead_sandbox_is_replaced_with_everything_in_it() {
    check(
        json!({}),
        "s0! a:running b:exited",
        &[
            "stop within 30s: a (a-0: Stopping container a)",
            "stop sandbox s0",
            "create sandbox, attempt 1",
            "start Regular container a, attempt 1",
            "start Regular container b, attempt 1, next back-off 10s",
        ],
    );
    check(
        json!({"restartPolicy": "OnFailure"}),
        "s0! a:exited b:exited:255",
        &[
            "stop sandbox s0",
            "create sandbox, attempt 1",
            "start Regular container b, attempt 1, next back-off 10s",
        ],
    );
}

#[test]
fn a_pod_that_never_restarts_does_not_outlive_its_sandbox() {
    check(
        json!({"restartPolicy": "Never"}),
        "s0! a:exited:255 b:running",
        &["stop within 30s: b (b-0: Stopping container b)"],
    );
    check(
        json!({"restartPolicy": "Never"}),
        "s0!",
        &[
            "stop sandbox s0",
            "create sandbox, attempt 1",
            "start Regular container a, attempt 0",
            "start Regular container b, attempt 0",
            "remove sandbox s0",
        ],
    );
}

#[test]
fn two_ready_sandboxes_are_one_too_many() {
    check(
        json!({"containers": [{"name": "a", "image": "ia"}]}),
        "s0 s1 a:running",
        &[
            "stop within 30s: a (a-0: Stopping container a)",
            "stop sandbox s1",
            "stop sandbox s0",
            "create sandbox, attempt 2",
            "start Regular container a, attempt 1",
        ],
    );
}

#[test]
fn sandbox_network_mismatch_counts_only_after_a_status_read() {
    let lines = [
        "stop within 30s: b (b-0: Stopping container b) and a (a-0: Stopping container a)",
        "stop sandbox s0",
        "create sandbox, attempt 1",
        "start Regular container a, attempt 1",
        "start Regular container b, attempt 1",
    ];
    let toggled = json!({"hostNetwork": true});
    check(toggled.clone(), "s0 a:running b:running", &[]);
    let read = PlanContext { sandbox_status_read: true, ..context() };
    check_in(&read, toggled, "s0 a:running b:running", &lines);
    check_in(&read, json!({}), "s0 a:running b:running", &[]);
    let pod = pod(json!({}));
    let mut observed = seen(&pod, "s0 a:running b:running");
    observed.sandboxes[0].ips.clear();
    assert_eq!(compute_pod_plan(&pod, &observed, &read).to_string().lines().collect::<Vec<_>>(), lines);
}

#[test]
fn init_containers_run_one_after_another_before_the_others() {
    let init = || json!({"initContainers": [{"name": "i", "image": "x"}, {"name": "j", "image": "x"}]});
    let start_regular = ["start Regular container a, attempt 0", "start Regular container b, attempt 0"];
    check(init(), "", &["create sandbox, attempt 0", "start Init container i, attempt 0"]);
    check(init(), "s0", &["start Init container i, attempt 0"]);
    check(init(), "s0 i:running", &[]);
    check(init(), "s0 i:exited", &["start Init container j, attempt 0"]);
    check(init(), "s0 i:exited j:exited:2", &["start Init container j, attempt 1, next back-off 10s"]);
    check(init(), "s0 i:exited j:exited", &start_regular);
    // The records of finished init containers may have been removed.
    check(init(), "s0 a:running b:running", &[]);
    check(init(), "s0 j:exited", &start_regular);
    let mut never = init();
    never["restartPolicy"] = "Never".into();
    check(never, "s0 i:exited:3", &["stop sandbox s0"]);
}

#[test]
fn a_new_sandbox_initialises_again() {
    let init = || json!({"initContainers": [{"name": "i", "image": "x"}, {"name": "j", "image": "x"}]});
    check(
        init(),
        "s0! i:exited j:exited a:exited b:exited",
        &["stop sandbox s0", "create sandbox, attempt 1", "start Init container i, attempt 1"],
    );
    let before = "s0! i:exited j:exited a:exited b:exited s1";
    check(init(), before, &["start Init container i, attempt 1"]);
    check(
        init(),
        &format!("{before} i#1:exited"),
        &["start Init container j, attempt 1", "remove container i (i-0)"],
    );
}

#[test]
fn sidecars_start_in_order_and_are_kept_running() {
    let spec = || {
        json!({"initContainers": [
            {"name": "s", "image": "x", "restartPolicy": "Always"},
            {"name": "i", "image": "x"},
            {"name": "t", "image": "x", "restartPolicy": "Always"},
        ]})
    };
    let start_regular = ["start Regular container a, attempt 0", "start Regular container b, attempt 0"];
    check(spec(), "s0 s:running", &["start Init container i, attempt 0"]);
    check(spec(), "s0 s:exited i:running", &["start Sidecar container s, attempt 1, next back-off 10s"]);
    check(spec(), "s0 s:running i:exited", &["start Sidecar container t, attempt 0"]);
    check(spec(), "s0 s:running i:exited t:running", &start_regular);
    check(
        spec(),
        "s0 s:running i:exited t:exited:1 a:running b:running",
        &["start Sidecar container t, attempt 1, next back-off 10s"],
    );
    check(spec(), "s0 i:exited t:running a:running b:running", &["start Sidecar container s, attempt 0"]);
    let mut never = spec();
    never["restartPolicy"] = "Never".into();
    check(
        never,
        "s0 s:running i:exited t:running a:exited b:exited",
        &[
            "stop within 30s: t (t-0: Stopping container t), then s (s-0: Stopping container s)",
            "stop sandbox s0",
        ],
    );
}

/// The agent died between making it and starting it, and the sidecar before it is lost meanwhile.
#[test]
fn created_init_container_waits_for_its_preceding_sidecar() {
    let spec = || {
        let sidecar = json!({"name": "s", "image": "x", "restartPolicy": "Always"});
        json!({"initContainers": [sidecar, {"name": "j", "image": "x"}]})
    };
    let plan = |words: &str| {
        let pod = pod(spec());
        compute_pod_plan(&pod, &seen(&pod, words), &context()).to_string()
    };
    for lost in ["s:unknown", "s:exited:1"] {
        let plan = plan(&format!("s0 {lost} j:created"));
        assert!(plan.contains("start Sidecar container s") && !plan.contains("container j,"), "{plan}");
    }
    let plan = plan("s0 s:running j:created");
    assert!(plan.contains("start Init container j"), "{plan}");
}

#[test]
fn dead_records_do_not_pile_up() {
    check(
        json!({}),
        "s0! a:exited:1 s1 a#1:exited:1 a#2:exited:1 a#3:running b:running",
        &["remove container a (a-1)", "remove container a (a-0)", "remove sandbox s0"],
    );
}

#[test]
fn an_older_instance_that_still_lives_is_stopped() {
    check(
        json!({}),
        "s0 a:running b:running a#1:running",
        &["stop within 30s: a (a-0: Stopping container a)"],
    );
}

#[test]
fn a_pod_being_taken_down_stops_in_order_and_starts_nothing() {
    let terminating = PlanContext { terminating: Some(Terminating { grace_seconds: 7 }), ..context() };
    let spec = json!({"initContainers": [
        {"name": "s", "image": "x", "restartPolicy": "Always"},
        {"name": "t", "image": "x", "restartPolicy": "Always"},
    ]});
    check_in(
        &terminating,
        spec,
        "s0 s:running t:running a:running b:unknown",
        &[
            "stop within 7s: b (b-0: Stopping container b) and a (a-0: Stopping container a), \
         then t (t-0: Stopping container t), then s (s-0: Stopping container s)",
            "stop sandbox s0",
        ],
    );
    check_in(&terminating, json!({}), "s0! a:exited b:created", &[]);
}

#[test]
fn teardown_removes_containers_before_sandboxes_once_stopped() {
    let pod = pod(json!({}));
    let plan = compute_teardown(&seen(&pod, "s0! a:exited b:created")).to_string();
    let expected =
        ["remove container b (b-0)", "remove container a (a-0)", "stop sandbox s0", "remove sandbox s0"];
    assert_eq!(plan.lines().collect::<Vec<_>>(), expected);
    assert_eq!(compute_teardown(&seen(&pod, "s0 a:running")), PodPlan::default());
}
