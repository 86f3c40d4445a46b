//! `--runonce`: start what should run, say how it went, leave it running.

use std::fs;
use std::path::PathBuf;

use edge_agent::platform::sys::mount::is_mount_point;
use serde_json::json;

use super::Node;
use crate::support::scratch::own_cgroups;

fn run_once_starts_all_pods_prints_a_table_and_exits_0() {
    let node = Node::new();
    node.apply(&node.pod("one", "sleep 1000"));
    node.apply(&node.pod("two", "sleep 1000"));

    let output = node.agent.run_once(&[]);

    let said = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{log}");
    for pod in ["one-edge", "two-edge"] {
        let line =
            said.lines().find(|line| line.contains(pod)).unwrap_or_else(|| panic!("no {pod} in: {said}"));
        assert!(line.contains("Running"), "{line}");
        assert_eq!(node.runtime.running(pod).len(), 1, "{:?}", node.runtime.instances());
    }
}

fn a_second_run_once_adopts_what_runs_and_starts_nothing() {
    let node = Node::new();
    node.apply(&node.pod("one", "sleep 1000"));
    assert_eq!(node.agent.run_once(&[]).status.code(), Some(0));
    let before = node.runtime.instances();

    assert_eq!(node.agent.run_once(&[]).status.code(), Some(0));

    assert_eq!(node.runtime.instances(), before);
}

fn run_once_ends_only_when_what_is_no_longer_wanted_is_gone() {
    let node = Node::new();
    node.apply(&node.pod("one", "sleep 1000"));
    assert_eq!(node.agent.run_once(&[]).status.code(), Some(0));
    assert!(node.runtime.instances().iter().any(|instance| instance.pid.is_some()));
    node.delete("one");

    assert_eq!(node.agent.run_once(&[]).status.code(), Some(0));

    let left: Vec<_> =
        node.runtime.instances().into_iter().filter(|instance| instance.pid.is_some()).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn run_once_fails_for_one_bad_pod_and_starts_the_others() {
    let node = Node::new();
    let mut broken = node.pod("broken", "sleep 1000");
    broken["spec"]["containers"][0]["image"] = json!("localhost/agent/none:1");
    node.apply(&broken);
    node.apply(&node.pod("good", "sleep 1000"));

    let output = node.agent.run_once(&["--runonce-timeout=8s"]);

    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let line = said.lines().find(|line| line.contains("broken-edge")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("ErrImageNeverPull"), "{line}");
    assert_eq!(node.runtime.running("good-edge").len(), 1);
}

fn run_once_waits_for_pods_that_end_and_counts_a_failed_one() {
    let node = Node::new();
    let mut job = node.pod("job", "sleep 1; echo done > /out/job");
    job["spec"]["restartPolicy"] = json!("Never");
    node.apply(&job);
    assert_eq!(node.agent.run_once(&["--runonce-wait=completed"]).status.code(), Some(0));
    assert_eq!(node.written("job"), "done\n");

    let mut failing = node.pod("failing", "exit 3");
    failing["spec"]["restartPolicy"] = json!("Never");
    node.apply(&failing);
    assert_eq!(node.agent.run_once(&["--runonce-wait=completed"]).status.code(), Some(1));
}

/// The cgroups of pods that are on the machine, and whether the root directory is mounted on itself.
fn left_behind(node: &Node) -> (Vec<PathBuf>, bool) {
    let own = own_cgroups(node.runtime.scratch().path());
    let entries = own.iter().flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
    let pods = entries.filter(|entry| entry.file_name().to_string_lossy().contains("kubepods"));
    let pods = pods.map(|entry| entry.path()).collect();
    (pods, is_mount_point(&node.agent.root_dir()).expect("the mounts"))
}

fn run_once_without_a_pod_left_leaves_the_machine_as_it_was() {
    let node = Node::new();
    node.apply(&node.pod("stays", "sleep 1000"));
    assert_eq!(node.agent.run_once(&[]).status.code(), Some(0));
    assert!(!left_behind(&node).0.is_empty(), "a pod runs");
    node.delete("stays");
    // A process of before has made them.
    assert_eq!(node.agent.run_once(&[]).status.code(), Some(0));
    assert_eq!(left_behind(&node), (vec![], false), "{}", node.agent.log_tail());
    let mut job = node.pod("job", "echo done > /out/job");
    job["spec"]["restartPolicy"] = json!("Never");
    node.apply(&job);
    assert_eq!(node.agent.run_once(&["--runonce-wait=completed"]).status.code(), Some(0));
    assert_eq!(node.written("job"), "done\n");
    assert_eq!(left_behind(&node), (vec![], false), "{}", node.agent.log_tail());
}

fn usage_errors_exit_with_code_2() {
    let node = Node::new();
    let output = node.agent.run_once(&["--runonce-wait=tomorrow"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("runonce-wait") && said.contains("tomorrow"), "{said}");
}

super::on_every_runtime! {
    run_once_starts_all_pods_prints_a_table_and_exits_0,
    a_second_run_once_adopts_what_runs_and_starts_nothing,
    run_once_ends_only_when_what_is_no_longer_wanted_is_gone,
    run_once_fails_for_one_bad_pod_and_starts_the_others,
    run_once_waits_for_pods_that_end_and_counts_a_failed_one,
    usage_errors_exit_with_code_2,
    run_once_without_a_pod_left_leaves_the_machine_as_it_was,
}
