//! Tables for what happens while a pod lives: failed probes, sidecars that come up, ephemeral containers,
//! restarts of the whole.

use super::*;
use crate::pod::prober::rules::{InstanceProbes, ProbeKind, ProbeResult};

fn failed(id: &str, kind: ProbeKind) -> PlanContext {
    let mut probes = InstanceProbes::default();
    match kind {
        ProbeKind::Startup => probes.startup = Some(ProbeResult::Failure),
        ProbeKind::Readiness => probes.readiness = Some(ProbeResult::Failure),
        ProbeKind::Liveness => probes.liveness = Some(ProbeResult::Failure),
    }
    PlanContext { probes: [(id.into(), probes)].into(), ..context() }
}

fn probed(policy: &str, kinds: &[&str]) -> Value {
    let mut a = json!({"name": "a", "image": "ia"});
    for kind in kinds {
        a[*kind] = json!({"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 4});
    }
    json!({"restartPolicy": policy, "containers": [a, {"name": "b", "image": "ib"}]})
}

#[test]
fn a_failed_probe_kills_and_the_policy_decides_about_the_rest() {
    let running = "s0 a:running b:running";
    let restart = "start Regular container a, attempt 1, next back-off 10s";
    let liveness = failed("a-0", ProbeKind::Liveness);
    let killed = "stop within 30s: a (a-0: Container a failed liveness probe, will be restarted)";
    check_in(&liveness, probed("Always", &["livenessProbe"]), running, &[killed, restart]);
    check_in(&liveness, probed("OnFailure", &["livenessProbe"]), running, &[killed, restart]);
    let startup = failed("a-0", ProbeKind::Startup);
    let killed = "stop within 30s: a (a-0: Container a failed startup probe, will be restarted)";
    check_in(&startup, probed("Always", &["startupProbe"]), running, &[killed, restart]);
    let killed = "stop within 30s: a (a-0: Container a failed liveness probe)";
    check_in(&liveness, probed("Never", &["livenessProbe"]), running, &[killed]);
    check_in(&liveness, probed("Never", &["livenessProbe"]), "s0 a:running b:exited", &[killed]);
    // Without the probe in the spec, or for another kind or instance, nothing happens.
    check_in(&liveness, probed("Always", &["startupProbe"]), running, &[]);
    check_in(&failed("a-0", ProbeKind::Readiness), probed("Always", &["readinessProbe"]), running, &[]);
    check_in(&liveness, probed("Always", &["livenessProbe"]), "s0 a#1:running b:running", &[]);
}

#[test]
fn requested_restart_ignores_policy_and_back_off() {
    let asked =
        |ids: &[&str]| PlanContext { restart: ids.iter().map(|id| (*id).into()).collect(), ..context() };
    let stop = "stop within 30s: a (a-0: Container a will be restarted, as requested)";
    let start = "start Regular container a, attempt 1";
    for policy in ["Always", "OnFailure", "Never"] {
        check_in(
            &asked(&["a-0"]),
            json!({"restartPolicy": policy}),
            "s0 a:running b:running",
            &[stop, start],
        );
        check_in(&asked(&["a-0"]), json!({"restartPolicy": policy}), "s0 a:exited b:running", &[start]);
    }
    // An earlier instance is none of its business.
    check_in(&asked(&["a-0"]), json!({}), "s0 a#1:running b:running", &[]);
    let mut waits = asked(&["a-4"]);
    let entry = BackOff { delay: Duration::from_secs(80), updated: Timestamp::from_secs(NOW - 20) };
    waits.back_off.insert("a".into(), entry);
    let start = "start Regular container a, attempt 5, next back-off 80s";
    check_in(&waits, json!({}), "s0 a#4:exited:1 b:running", &[start]);
}

#[test]
fn the_grace_of_a_failed_probe_is_its_own() {
    let pod = pod(probed("Always", &["livenessProbe"]));
    let observed = seen(&pod, "s0 a:running b:running");
    let plan = compute_pod_plan(&pod, &observed, &failed("a-0", ProbeKind::Liveness));
    let Action::StopContainers { groups, .. } = &plan.actions[0] else { panic!("{plan}") };
    assert_eq!(groups[0][0].grace_seconds, Some(4));
}

#[test]
fn a_killed_instance_counts_once_whatever_it_says_of_itself() {
    let mut context = failed("a-0", ProbeKind::Liveness);
    let entry =
        |delay, ago| BackOff { delay: Duration::from_secs(delay), updated: Timestamp::from_secs(NOW - ago) };
    // It ran for less than the delay in force: killed now, started when its time has come.
    context.back_off.insert("a".into(), entry(40, 60));
    let wait = "blocked a: CrashLoopBackOff: back-off 40s restarting failed container=a pod=p_ns(u)";
    check_in(
        &context,
        probed("OnFailure", &["livenessProbe"]),
        "s0 a:running b:running",
        &[
            "stop within 30s: a (a-0: Container a failed liveness probe, will be restarted)",
            wait,
            "resync after 40s",
        ],
    );
    // Its exit code of 0 is no success.
    check_in(
        &context,
        probed("OnFailure", &["livenessProbe"]),
        "s0 a:exited b:running",
        &[wait, "resync after 35s"],
    );
    // The start was decided on, charged and written down with the kill, and then failed.
    context.back_off.insert("a".into(), entry(80, 6));
    context.restart_counts.insert("a".into(), 1);
    check_in(
        &context,
        probed("OnFailure", &["livenessProbe"]),
        "s0 a:exited b:running",
        &["start Regular container a, attempt 1, next back-off 80s"],
    );
}

#[test]
fn a_sidecar_with_a_startup_probe_holds_back_what_comes_after() {
    let probe = json!({"exec": {"command": ["x"]}});
    let spec = || {
        json!({"initContainers": [
            {"name": "s", "image": "x", "restartPolicy": "Always", "startupProbe": probe, "livenessProbe": probe},
            {"name": "i", "image": "x"},
        ]})
    };
    check(spec(), "s0 s:running", &[]);
    let started = InstanceProbes { startup: Some(ProbeResult::Success), ..Default::default() };
    let up = PlanContext { probes: [("s-0".into(), started)].into(), ..context() };
    check_in(&up, spec(), "s0 s:running", &["start Init container i, attempt 0"]);
    // Once initialised, a sidecar that comes up again holds nothing back.
    check(
        spec(),
        "s0 i:exited s#1:running a:running b:exited",
        &["start Regular container b, attempt 1, next back-off 10s"],
    );
    for (kind, name) in [(ProbeKind::Startup, "startup"), (ProbeKind::Liveness, "liveness")] {
        let killed = format!("stop within 30s: s (s-0: Init container s failed {name} probe)");
        let lines = [killed.as_str(), "start Sidecar container s, attempt 1, next back-off 10s"];
        check_in(&failed("s-0", kind), spec(), "s0 s:running", &lines);
        check_in(&failed("s-0", kind), spec(), "s0 i:exited s:running a:running b:running", &lines);
    }
}

#[test]
fn completed_pod_does_not_wait_for_a_sidecar_startup_probe() {
    let probe = json!({"exec": {"command": ["x"]}});
    let sidecar = json!({"name": "s", "image": "x", "restartPolicy": "Always", "startupProbe": probe});
    check(
        json!({"restartPolicy": "Never", "initContainers": [sidecar]}),
        "s0 s:running a:exited b:exited:1",
        &["stop within 30s: s (s-0: Stopping container s)", "stop sandbox s0"],
    );
}

#[test]
fn ephemeral_containers_run_once_and_keep_no_pod_alive() {
    let spec = |policy: &str| {
        json!({
            "restartPolicy": policy,
            "initContainers": [{"name": "i", "image": "x"}],
            "ephemeralContainers": [{"name": "d", "image": "x"}],
        })
    };
    let start = "start Ephemeral container d, attempt 0";
    check(spec("Always"), "", &["create sandbox, attempt 0", "start Init container i, attempt 0"]);
    check(spec("Always"), "s0 i:running", &[start]);
    check(spec("Always"), "s0 i:exited a:running b:running", &[start]);
    for state in ["running", "exited:1", "created", "unknown"] {
        check(spec("Always"), &format!("s0 i:exited a:running b:running d:{state}"), &[]);
    }
    check(
        spec("Never"),
        "s0 i:exited a:exited b:exited d:running",
        &["stop within 30s: d (d-0: Stopping container d)", "stop sandbox s0"],
    );
    // Its record was lost with the runtime's, but the last status shows that it ran.
    let shown = PlanContext { shown_counts: [("d".into(), 1)].into(), ..context() };
    check_in(&shown, spec("Always"), "s0 i:exited a:running b:running", &[]);
}

#[test]
fn one_end_restarts_everything_in_place() {
    let spec = || {
        json!({
            "restartPolicy": "Never",
            "initContainers": [
                {"name": "i", "image": "x"},
                {"name": "s", "image": "x", "restartPolicy": "Always", "restartPolicyRules": [
                    {"action": "Restart", "exitCodes": {"operator": "In", "values": [7]}},
                    {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [7, 88]}},
                ]},
            ],
            "ephemeralContainers": [{"name": "d", "image": "x"}],
        })
    };
    let running = "i:exited a:running b:exited d:running";
    check(
        spec(),
        &format!("s0 s#1:exited:88 {running}"),
        &[
            "stop within 0s: d (d-0: Stopping container d) and a (a-0: Stopping container a)",
            "remove container a (a-0) except its log",
            "remove container b (b-0) except its log",
            "remove container i (i-0) except its log",
            "remove container s (s-1) except its log",
        ],
    );
    // The agent died in between; the next one continues.
    check(spec(), "s0 s#1:exited:88 d:exited", &["remove container s (s-1) except its log"]);
    // The first rule that fits counts.
    check(
        spec(),
        &format!("s0 s#1:exited:7 {running}"),
        &["start Sidecar container s, attempt 2, next back-off 10s"],
    );
    // Then everything starts from the beginning, counting on from what was shown.
    let mut context = context();
    context.shown_counts =
        [("i", 1), ("s", 2), ("a", 1), ("b", 1), ("d", 1)].map(|(name, count)| (name.into(), count)).into();
    check_in(&context, spec(), "s0 d:exited", &["start Init container i, attempt 1"]);
    let sidecar = "start Sidecar container s, attempt 2, next back-off 10s";
    check_in(&context, spec(), "s0 d:exited i#1:exited", &[sidecar]);
}

#[test]
fn restarting_everything_again_and_again_is_a_crash_loop() {
    let rules =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}]);
    let trigger = json!({"name": "a", "image": "ia", "restartPolicy": "Never", "restartPolicyRules": rules});
    let spec = || json!({"containers": [trigger, {"name": "b", "image": "ib"}]});
    let mut context = context();
    let entry = |ago| BackOff { delay: Duration::from_secs(40), updated: Timestamp::from_secs(NOW - ago) };
    context.back_off.insert("a".into(), entry(10));
    check_in(
        &context,
        spec(),
        "s0 a:exited:1 b:running",
        &[
            "blocked a: CrashLoopBackOff: back-off 40s restarting failed container=a pod=p_ns(u)",
            "resync after 35s",
        ],
    );
    // The wait is over and everything has been removed: the entry grows with the start, and is forgotten like
    // any other.
    context.shown_counts = [("a".into(), 3), ("b".into(), 3)].into();
    context.restart_counts = [("a".into(), 2)].into();
    let b = "start Regular container b, attempt 3";
    for (ago, delay) in [(45, 80), (700, 10)] {
        context.back_off.insert("a".into(), entry(ago));
        let a = format!("start Regular container a, attempt 3, next back-off {delay}s");
        check_in(&context, spec(), "s0", &[&a, b]);
    }
}

#[test]
fn an_instance_whose_record_vanished_while_it_ran_counts() {
    let mut context = context();
    context.restart_counts = [("a".into(), 2)].into();
    context.shown_counts = [("a".into(), 3), ("b".into(), 1)].into();
    let entry = BackOff { delay: Duration::from_secs(80), updated: Timestamp::from_secs(NOW - 20) };
    context.back_off.insert("a".into(), entry);
    check_in(
        &context,
        json!({}),
        "",
        &[
            "create sandbox, attempt 0",
            "start Regular container a, attempt 3, next back-off 80s",
            "start Regular container b, attempt 1",
        ],
    );
}

#[test]
fn container_restart_rules_override_the_pod_policy() {
    let rules = |code: i32| json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [code]}}]);
    let spec = |pod: &str| {
        json!({
            "restartPolicy": pod,
            "initContainers": [
                {"name": "i", "image": "x", "restartPolicy": "OnFailure"},
                {"name": "j", "image": "x", "restartPolicy": "Never", "restartPolicyRules": rules(42)},
            ],
            "containers": [
                {"name": "a", "image": "ia", "restartPolicy": "Never", "restartPolicyRules": rules(42)},
                {"name": "b", "image": "ib", "restartPolicy": "Always"},
            ],
        })
    };
    let again =
        |kind: &str, name: &str| format!("start {kind} container {name}, attempt 1, next back-off 10s");
    for pod in ["Always", "OnFailure", "Never"] {
        check(spec(pod), "s0 i:exited:1", &[&again("Init", "i")]);
        check(spec(pod), "s0 i:exited j:exited:42", &[&again("Init", "j")]);
        check(spec(pod), "s0 i:exited j:exited:1", &["stop sandbox s0"]);
        let up = "s0 i:exited j:exited";
        check(spec(pod), &format!("{up} a:exited:42 b:running"), &[&again("Regular", "a")]);
        check(spec(pod), &format!("{up} a:exited:1 b:exited"), &[&again("Regular", "b")]);
        check(spec(pod), &format!("{up} a:exited b:running"), &[]);
    }
}

#[test]
fn a_pod_that_starts_over_gets_a_new_sandbox_if_it_must() {
    // Only the ephemeral container has left a record.
    let spec = json!({"restartPolicy": "Never", "ephemeralContainers": [{"name": "d", "image": "x"}]});
    check(
        spec,
        "s0! d:exited",
        &[
            "stop sandbox s0",
            "create sandbox, attempt 1",
            "start Regular container a, attempt 0",
            "start Regular container b, attempt 0",
        ],
    );
}
