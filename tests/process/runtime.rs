//! A runtime that is absent, slow, gone for a while, or not there at all.

use std::time::Duration;

use edge_agent::model::runtime_config::CgroupDriver;
use serde_json::Value;

use super::node::{Node, pod};
use crate::support::agent::PATIENCE;
use crate::support::wait::wait_for;

/// Waits until `agent status` shows the runtime so.
fn runtime(node: &mut Node, ready: bool) -> Value {
    wait_for(&format!("the runtime to be shown as ready={ready}"), PATIENCE, || {
        node.agent.assert_alive();
        let runtime = node.agent.status_json()?["runtime"].clone();
        let why = runtime["message"].as_str().unwrap_or_default();
        if runtime["ready"] == ready && (ready || !why.is_empty()) {
            Ok(runtime)
        } else {
            Err(runtime.to_string())
        }
    })
}

#[test]
fn an_absent_runtime_is_named_and_pods_start_when_it_appears() {
    let mut node = Node::new();
    node.cri.close();
    node.apply(&pod("web"));
    node.agent.start();
    let shown = runtime(&mut node, false);
    assert!(shown["message"].as_str().is_some_and(|text| text.contains("cri.sock")), "{shown}");
    node.cri.reopen();
    node.running("web");
    let shown = runtime(&mut node, true);
    assert_eq!(shown["name"], "fake");
    assert_eq!(node.log_lines(&["Container runtime is down"]).len(), 1, "{}", node.agent.log());
    assert_eq!(node.log_lines(&["Container runtime is up"]).len(), 1, "{}", node.agent.log());
}

#[test]
fn a_runtime_that_restarts_finds_everything_as_it_was() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    runtime(&mut node, true);
    node.cri.close();
    runtime(&mut node, false);
    node.cri.reopen();
    runtime(&mut node, true);
    node.agent.wait_for_phase("neighbour", "Running");
    node.keeps_running("neighbour", &neighbour);
    assert_eq!((node.calls("RunPodSandbox"), node.calls("CreateContainer")), (1, 1));
}

#[test]
fn one_call_without_answer_holds_up_its_own_pod_only() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.cri.state().hang.insert("RunPodSandbox");
    node.apply(&pod("slow"));
    wait_for("the call that hangs", PATIENCE, || {
        if node.calls("RunPodSandbox") >= 2 { Ok(()) } else { Err(String::new()) }
    });
    node.cri.state().hang.clear();
    node.apply(&pod("quick"));
    node.running("quick");
    node.keeps_running("neighbour", &neighbour);
    // After its time-out the slow one is tried again.
    node.running("slow");
    node.logged(&["slow-edge", "FailedCreatePodSandBox"]);
}

#[test]
fn a_runtime_that_hangs_is_shown_and_does_not_hold_up_the_end() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    runtime(&mut node, true);
    node.cri.state().hang.extend(["ListPodSandbox", "ListContainers"]);
    node.cri.change(|world, _| world.touch());
    let shown = runtime(&mut node, false);
    assert!(shown["message"].as_str().is_some_and(|text| !text.is_empty()), "{shown}");
    let status = node.agent.cli(&["status"]).expect_err("something is wrong");
    assert!(!status.contains("All is well"), "{status}");
    let before = std::time::Instant::now();
    assert_eq!(node.agent.terminate().code(), Some(0));
    assert!(before.elapsed() < Duration::from_secs(30), "{:?}", before.elapsed());
    node.cri.state().hang.clear();
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn an_endpoint_that_makes_no_sense_is_refused_at_start() {
    for endpoint in ["tcp://127.0.0.1:1", "http://x"] {
        let mut node = Node::new();
        node.agent.argument(format!("--container-runtime-endpoint={endpoint}"));
        node.agent.start();
        assert_eq!(node.agent.wait_for_end().code(), Some(1), "{endpoint}");
        let log = node.agent.log();
        assert!(log.lines().any(|line| line.starts_with("error: ") && line.contains("unix://")), "{log}");
    }
}

#[test]
fn the_runtimes_cgroup_driver_overrides_the_configured_one() {
    let mut node = Node::new();
    node.cri.change(|world, _| world.cgroup_driver = Some(CgroupDriver::Systemd));
    node.with_cgroups();
    node.apply(&pod("web"));
    node.agent.start();
    node.running("web");
    let parents: Vec<String> = node
        .cri
        .state()
        .sandbox_configs
        .values()
        .filter_map(|config| Some(config.linux.as_ref()?.cgroup_parent.clone()))
        .collect();
    assert_eq!(parents.len(), 1);
    let name = parents[0].strip_suffix(".slice");
    assert!(name.is_some_and(|name| name.contains("-kubepods-besteffort-pod")), "{parents:?}");
}
