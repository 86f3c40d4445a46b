//! What the agent remembers over its death, and what becomes of it when the disk does not.

use std::fs;

use super::node::{Node, pod};
use crate::support::agent::PATIENCE;
use crate::support::wait::wait_for;

#[test]
fn damaged_store_is_moved_aside_and_pods_keep_running() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.agent.wait_for_phase("neighbour", "Running");
    node.agent.kill9();
    let root = node.agent.root_dir();
    for name in ["agent.db-wal", "agent.db-shm"] {
        let _ = fs::remove_file(root.join(name));
    }
    fs::write(root.join("agent.db"), vec![0x5a; 8192]).expect("damage the store");
    node.agent.start();
    node.agent.wait_for_phase("neighbour", "Running");
    node.keeps_running("neighbour", &neighbour);
    assert_eq!(node.calls("RunPodSandbox"), 1);
    let line = node.logged(&["Store was damaged", "moved aside", "keptAs"]);
    let kept = fs::read_dir(&root).expect("list").flatten();
    let kept = kept.filter(|entry| line.contains(&*entry.file_name().to_string_lossy())).count();
    assert!(kept >= 1, "{line}");
}

#[test]
fn a_manifest_removed_while_the_agent_was_dead_ends_its_pod() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.apply(&pod("web"));
    node.running("web");
    node.agent.kill9();
    node.agent.remove_manifest("web.yaml");
    node.agent.start();
    node.stopped("web");
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn a_dead_agent_is_read_from_its_store() {
    let mut node = Node::new();
    node.start_with_neighbour();
    node.agent.wait_for_phase("neighbour", "Running");
    node.agent.terminate();
    let table = node.agent.cli(&["get", "pods"]).expect("the list without the agent");
    assert!(table.contains("neighbour-edge"), "{table}");
    let json =
        node.agent.cli(&["status", "-o", "json", "--exit-zero"]).expect("the status without the agent");
    let status: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(status["mode"], "notRunning");
    assert_eq!(status["pods"][0]["status"]["phase"], "Running");
    let error = node.agent.cli(&["status"]).expect_err("not running is not well");
    assert!(error.contains("agent is not running; showing the last known state"), "{error}");
}

#[test]
fn after_kill_9_the_store_still_says_what_was_wanted() {
    let mut node = Node::new();
    node.start_with_neighbour();
    node.agent.kill9();
    wait_for("the list without the agent", PATIENCE, || {
        let table = node.agent.cli(&["get", "pods", "-o", "name"])?;
        if table == "pod/neighbour-edge\n" { Ok(()) } else { Err(table) }
    });
}
