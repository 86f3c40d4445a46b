//! Changes of manifests as the runtime sees them: order, replacement, and that silence removes nothing.

use edge_agent::runtime::fake::{OnStop, Program, Run};
use serde_json::json;
use std::time::Duration;

use super::node::{Node, job, pod};
use crate::support::wait::wait_until;

#[test]
fn a_replacement_of_the_same_name_waits_until_the_old_one_is_gone() {
    let mut node = Node::new();
    let slow =
        Program { run: Run::Forever, on_stop: OnStop::Exits { after: Duration::from_millis(800), code: 0 } };
    node.cri.script("slow", slow);
    let mut web = job("web", "slow", "Always");
    web["spec"]["terminationGracePeriodSeconds"] = json!(10);
    node.apply(&web);
    node.start_with_neighbour();
    let old = node.running("web");
    web["spec"]["containers"][0]["args"] = json!(["new"]);
    node.apply(&web);
    // The old one has its grace, and the new sandbox is only asked for afterwards.
    let new = node.running_other_than("web", Some(&old));
    assert_ne!(new, old);
    let calls = node.cri.call_names();
    let stop = calls.iter().rposition(|call| *call == "StopPodSandbox").expect("the old one was stopped");
    let run = calls.iter().rposition(|call| *call == "RunPodSandbox").expect("the new one was made");
    assert!(stop < run, "{calls:?}");
    assert_eq!(node.calls("RunPodSandbox"), 3);
}

#[test]
fn a_single_file_may_be_the_manifest_path() {
    let mut node = Node::new();
    let file = node.scratch.path().join("pods.yaml");
    std::fs::write(&file, pod("only").to_string()).expect("write the file");
    node.agent.argument(format!("--pod-manifest-path={}", file.display()));
    node.agent.start();
    let only = node.running("only");
    std::fs::remove_file(&file).expect("remove the file");
    node.problem(&["pods.yaml", "does not exist"]);
    node.keeps_running("only", &only);
}

#[test]
fn a_source_that_is_not_configured_any_more_takes_its_pods_with_it() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.agent.terminate();
    node.agent.argument("--manifest-dir=");
    node.agent.start();
    node.stopped("neighbour");
    assert!(!node.log_lines(&["not configured any more"]).is_empty(), "{}", node.agent.log());
    wait_until("the old container to be gone", Duration::from_secs(20), || {
        !node.all_running().values().flatten().any(|id| *id == neighbour)
    });
}
