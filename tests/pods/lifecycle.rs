//! Containers of every kind: sidecars, init containers, rules of restarting, termination messages, readiness gates.

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::containerd::Instance;
use crate::support::wait::wait_for;

/// Says its name when it starts and when it is asked to end.
fn announces(name: &str) -> String {
    format!(
        "trap 'echo {name}-end >> /out/order; exit 0' TERM; echo {name} >> /out/order; while :; do sleep 0.05; done"
    )
}

fn sidecars_start_first_in_order_and_stop_last_in_reverse() {
    let mut node = Node::new();
    let mut pod = node.pod("order", &announces("main"));
    let sidecar = |name: &str, startup: Value| {
        let mut container = node.container(name, &announces(name));
        container["restartPolicy"] = json!("Always");
        container["startupProbe"] = startup;
        container
    };
    let slow = json!({ "exec": { "command": ["test", "-f", "/out/up"] }, "periodSeconds": 1, "failureThreshold": 60 });
    let step = node.container("step", "echo step >> /out/order");
    pod["spec"]["initContainers"] = json!([sidecar("first", slow), step, sidecar("second", Value::Null)]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(20);
    node.apply(&pod);
    node.agent.start();

    node.agent.wait_for_pod("order", "held back by its first sidecar", |pod| {
        let status = &pod["status"]["initContainerStatuses"][0];
        (status["state"]["running"].is_object() && status["started"] == false).then_some(())
    });
    assert_eq!(node.written("order"), "first\n", "what comes after a sidecar waits for its startup probe");
    std::fs::write(node.out("up"), "").expect("let the startup probe succeed");
    node.agent.wait_for_phase("order", "Running");
    node.wait_written("order", "first\nstep\nsecond\nmain\n");

    node.delete("order");
    node.gone("order");
    node.wait_written("order", "first\nstep\nsecond\nmain\nmain-end\nsecond-end\nfirst-end\n");
}

fn pod_succeeds_when_only_its_sidecar_is_left_running() {
    let mut node = Node::new();
    let mut pod = node.pod("job", "sleep 0.5; exit 0");
    let mut sidecar = node.container("side", &announces("side"));
    sidecar["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([sidecar]);
    pod["spec"]["restartPolicy"] = json!("Never");
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_phase("job", "Succeeded");
    node.wait_written("order", "side\nside-end\n");
}

fn a_containers_own_rule_restarts_it_for_its_exit_code_only() {
    let mut node = Node::new();
    let mut pod =
        node.pod("ruled", "echo run >> /out/runs; [ $(wc -l < /out/runs) -ge 2 ] && exit 5; exit 42");
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["restartPolicyRules"] =
        json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    node.apply(&pod);
    node.agent.start();
    let pod = node.agent.wait_for_phase("ruled", "Failed");
    let status = &pod["status"]["containerStatuses"][0];
    assert_eq!(
        (&status["restartCount"], &status["state"]["terminated"]["exitCode"]),
        (&json!(1), &json!(5)),
        "{pod}"
    );
    assert_eq!(node.written("runs"), "run\nrun\n");
}

fn restart_all_containers_rule_keeps_the_sandbox() {
    let mut node = Node::new();
    let mut pod = node.pod(
        "whole",
        "echo main >> /out/order; [ -f /out/again ] && sleep 1000; touch /out/again; sleep 0.5; exit 88",
    );
    pod["spec"]["initContainers"] = json!([node.container("init", "echo init >> /out/order")]);
    let neighbour = node.container("neighbour", "echo neighbour >> /out/neighbours; sleep 1000");
    pod["spec"]["containers"].as_array_mut().expect("a list").push(neighbour);
    pod["spec"]["containers"][0]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["restartPolicyRules"] =
        json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [88] } }]);
    node.apply(&pod);
    node.agent.start();
    node.wait_written("order", "init\nmain\ninit\nmain\n");
    node.wait_written("neighbours", "neighbour\nneighbour\n");
    let sandboxes = node.runtime.instances().into_iter().filter(Instance::is_sandbox).count();
    assert_eq!(sandboxes, 1, "the sandbox stays");
    node.agent.wait_for_phase("whole", "Running");
}

fn termination_message_comes_from_the_file_or_the_log() {
    let mut node = Node::new();
    let mut by_file = node.pod("by-file", "echo out of paper > /dev/termination-log; exit 3");
    by_file["spec"]["restartPolicy"] = json!("Never");
    let mut by_log = node.pod("by-log", "echo starting; echo no such printer >&2; exit 4");
    by_log["spec"]["restartPolicy"] = json!("Never");
    by_log["spec"]["containers"][0]["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    node.apply(&by_file);
    node.apply(&by_log);
    node.agent.start();
    let message =
        |pod: Value| pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"].clone();
    assert_eq!(message(node.agent.wait_for_phase("by-file", "Failed")), "out of paper\n");
    let said = message(node.agent.wait_for_phase("by-log", "Failed"));
    let said = said.as_str().expect("a message");
    assert!(
        said.contains("starting\n") && said.contains("no such printer\n") && !said.contains("stdout"),
        "{said}"
    );
}

fn unset_readiness_gate_keeps_the_pod_unready() {
    let mut node = Node::new();
    let mut pod = node.pod("gated", "sleep 1000");
    pod["spec"]["readinessGates"] = json!([{ "conditionType": "example.com/lit" }]);
    node.apply(&pod);
    node.agent.start();
    let pod = node.agent.wait_for_phase("gated", "Running");
    let condition = |name: &str| {
        let conditions = pod["status"]["conditions"].as_array().expect("a list");
        conditions.iter().find(|condition| condition["type"] == name).expect("every pod has it").clone()
    };
    assert_eq!(condition("ContainersReady")["status"], "True");
    let ready = condition("Ready");
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("ReadinessGatesNotReady")));
}

fn a_pod_over_its_active_deadline_fails_and_is_stopped() {
    let mut node = Node::new();
    let mut pod = node.pod("late", "sleep 1000");
    pod["spec"]["activeDeadlineSeconds"] = json!(2);
    node.apply(&pod);
    node.agent.start();
    let pod = node.agent.wait_for_phase("late", "Failed");
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded", "{pod}");
    wait_for("its container to be stopped", PATIENCE, || {
        let running = node.runtime.running("late-edge");
        if running.is_empty() { Ok(()) } else { Err(format!("{running:?}")) }
    });
}

super::on_every_runtime! {
    sidecars_start_first_in_order_and_stop_last_in_reverse,
    pod_succeeds_when_only_its_sidecar_is_left_running,
    a_containers_own_rule_restarts_it_for_its_exit_code_only,
    restart_all_containers_rule_keeps_the_sandbox,
    termination_message_comes_from_the_file_or_the_log,
    unset_readiness_gate_keeps_the_pod_unready,
    a_pod_over_its_active_deadline_fails_and_is_stopped,
}
