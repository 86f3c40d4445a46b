//! The machine goes down: pods end first, in order, and are back afterwards.

use std::fs;
use std::time::Duration;

use edge_agent::model::observed::ContainerStateKind;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::node::{A_WHILE, Node, pod};
use crate::support::agent::{PATIENCE, pod_name};
use crate::support::fake_bus::FakeBus;
use crate::support::wait::{stays, wait_for};

const GRACE: &str = "shutdownGracePeriod: 50s\nshutdownGracePeriodCriticalPods: 20s\n";

fn critical(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["priorityClassName"] = json!("system-node-critical");
    pod
}

/// A node with an ordinary and a critical pod, and a bus.
fn node(configuration: &str) -> (Node, FakeBus) {
    let mut node = Node::new();
    let bus = FakeBus::start(node.scratch.path());
    node.agent.variable("DBUS_SYSTEM_BUS_ADDRESS", &bus.address());
    node.agent.configure(configuration);
    node.apply(&critical("vital"));
    node.start_with_neighbour();
    for name in ["neighbour", "vital"] {
        node.agent.wait_for_phase(name, "Running");
    }
    (node, bus)
}

/// Waits until a pod runs again, and has counted that.
fn back(node: &mut Node, name: &str) {
    node.agent.wait_for_pod(name, "to have run again", |pod| {
        let status = &pod["status"];
        let is_back = status["phase"] == "Running" && status["containerStatuses"][0]["restartCount"] == 1;
        (is_back && status["reason"].is_null()).then_some(())
    });
}

/// When the last container of a pod has ended, in nanoseconds.
fn ended(node: &Node, name: &str) -> i64 {
    let state = node.cri.state();
    let all = state.world.containers.values().map(|container| &container.observed);
    let ended =
        all.filter(|found| *found.pod.name == *pod_name(name) && found.state == ContainerStateKind::Exited);
    ended.map(|found| found.finished_at.as_nanos()).max().expect("a container has ended")
}

fn ready_condition(node: &Node) -> Result<Value, String> {
    let text = node.agent.cli(&["get", "node", "edge", "-o", "json"])?;
    let node: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "Ready").ok_or(text)
}

#[test]
fn logind_shutdown_stops_pods_in_order_until_cancelled() {
    let (mut node, mut bus) = node(GRACE);
    let lock = bus.lock();
    assert_eq!(lock.words[..2], ["shutdown", "kubelet"]);
    assert_eq!(lock.words[3], "delay");
    let first = [node.running("neighbour"), node.running("vital")];
    for name in ["neighbour", "vital"] {
        wait_for("the store to know that it runs", PATIENCE, || match node.agent.stored_pod(name) {
            Ok(pod) if pod["status"]["phase"] == "Running" => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    bus.prepare_for_shutdown(true);
    lock.released();
    node.stopped("neighbour");
    node.stopped("vital");
    assert!(ended(&node, "neighbour") <= ended(&node, "vital"), "critical pods last");
    for name in ["neighbour", "vital"] {
        let status = &node.agent.pod(name).expect("it is shown")["status"];
        assert_eq!(
            (status["phase"].as_str(), status["reason"].as_str()),
            (Some("Failed"), Some("Terminated"))
        );
        assert_eq!(status["message"], "Pod was terminated in response to imminent node shutdown.");
        let conditions = status["conditions"].as_array().expect("it has some");
        assert!(conditions.iter().any(|condition| condition["type"] == "DisruptionTarget"), "{status}");
        let stored = node.agent.stored_pod(name).expect("it is remembered");
        assert_eq!(stored["status"]["phase"], "Running", "an end with the machine is not remembered");
    }
    let ready = ready_condition(&node).expect("the node is shown");
    assert_eq!(
        (ready["status"].as_str(), ready["message"].as_str()),
        (Some("False"), Some("node is shutting down"))
    );

    node.apply(&pod("late"));
    node.agent.wait_for_pod("late", "to be turned away", |pod| {
        (pod["status"]["reason"] == "NodeShutdown").then_some(())
    });
    stays("nothing runs", A_WHILE, || {
        let running = node.all_running();
        if running.is_empty() { Ok(()) } else { Err(format!("{running:?}")) }
    });

    bus.prepare_for_shutdown(false);
    let lock = bus.lock();
    for (name, first) in ["neighbour", "vital"].iter().zip(&first) {
        node.running_other_than(name, Some(first));
        back(&mut node, name);
    }
    node.running("late");
    assert_eq!(ready_condition(&node).expect("the node is shown")["status"], "True");

    // A logind that starts anew knows of no lock, and a bus that was lost is found again.
    bus.logind_starts_anew();
    let next = bus.lock();
    lock.released();
    bus.hang_up();
    let last = bus.lock();
    next.released();
    node.agent.kill9();
    last.released();
}

#[test]
fn systemd_shutdown_stops_pods_without_configuration() {
    let (mut node, bus) = node("");
    let first = [node.running("neighbour"), node.running("vital")];
    bus.set_going_down(true);
    node.agent.signal(Signal::SIGTERM);
    assert_eq!(node.agent.wait_for_end().code(), Some(0), "{}", node.agent.log());
    assert!(node.all_running().is_empty(), "{}", node.agent.log());
    assert!(ended(&node, "neighbour") <= ended(&node, "vital"), "critical pods last");
    assert_eq!(node.calls("StopContainer"), 2);

    // After the boot everything is as it was.
    bus.set_going_down(false);
    node.agent.start();
    let second = [("neighbour", &first[0]), ("vital", &first[1])].map(|(name, first)| {
        let container = node.running_other_than(name, Some(first));
        back(&mut node, name);
        container
    });

    // The service alone is stopped.
    node.agent.signal(Signal::SIGTERM);
    assert_eq!(node.agent.wait_for_end().code(), Some(0), "{}", node.agent.log());
    node.keeps_running("neighbour", &second[0]);
    node.keeps_running("vital", &second[1]);
}

#[test]
fn openrc_stops_pods_only_when_the_machine_shuts_down() {
    let mut node = Node::new();
    let state = node.scratch.dir("openrc");
    node.agent.variable("RC_SVCDIR", &state.display().to_string());
    node.agent.variable("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus");
    node.apply(&critical("vital"));
    node.start_with_neighbour();
    let mut first = [node.running("neighbour"), node.running("vital")];
    let runlevel = |name: &str| fs::write(state.join("softlevel"), name).expect("set the runlevel");
    let stop = |node: &mut Node| {
        node.agent.signal(Signal::SIGTERM);
        assert_eq!(node.agent.wait_for_end().code(), Some(0), "{}", node.agent.log());
    };
    for name in ["default", "single"] {
        runlevel(name);
        stop(&mut node);
        node.keeps_running("neighbour", &first[0]);
        node.keeps_running("vital", &first[1]);
        node.agent.start();
        // Its commands would read the store: a signal before it handles signals ends it without a code.
        wait_for("the agent to answer", PATIENCE, || node.agent.status_json());
        node.agent.wait_for_phase("vital", "Running");
        node.agent.wait_for_phase("neighbour", "Running");
    }

    // A reboot, as OpenRC calls it, and one of Debian's, which the service's script has marked.
    let mark = state.join("options/agent/goes_down");
    for is_debian in [false, true] {
        if is_debian {
            fs::create_dir_all(mark.parent().expect("it has one")).expect("make the service's options");
            fs::write(&mark, "yes").expect("mark");
        } else {
            runlevel("shutdown");
        }
        stop(&mut node);
        assert!(node.all_running().is_empty(), "{}", node.agent.log());
        assert!(ended(&node, "neighbour") <= ended(&node, "vital"), "critical pods last");
        runlevel("default");
        node.agent.start();
        first = [("neighbour", &first[0]), ("vital", &first[1])]
            .map(|(name, before)| node.running_other_than(name, Some(before)));
    }
}

#[test]
fn without_a_bus_that_is_said_once_and_everything_goes_on() {
    let mut node = Node::new();
    node.agent.variable("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus");
    node.agent.configure(GRACE);
    let neighbour = node.start_with_neighbour();
    let said = || node.log_lines(&["Failed to connect to logind"]).len();
    wait_for("it to be said", PATIENCE, || if said() == 1 { Ok(()) } else { Err(node.agent.log_tail()) });
    stays("it is said once", Duration::from_secs(2), || {
        if said() == 1 { Ok(()) } else { Err(node.agent.log_tail()) }
    });
    node.keeps_running("neighbour", &neighbour);
}
