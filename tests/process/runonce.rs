//! `--runonce`: what it prints, with which status it ends, and that what it started stays.

use std::fs;
use std::time::{Duration, Instant};

use edge_agent::runtime::fake::Program;

use super::node::{Node, job, pod, said};
use crate::support::agent::PATIENCE;
use crate::support::http_server::{Answer, HttpServer};

#[test]
fn without_manifests_it_says_so_and_ends_well() {
    let node = Node::new();
    let output = node.agent.run_once(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "No pods to run.\n");
}

#[test]
fn a_broken_manifest_fails_the_run_but_other_pods_start() {
    let node = Node::new();
    node.apply(&pod("good"));
    node.apply(&pod("fine"));
    let broken = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: c}]}\n";
    node.agent.write_manifest("bad.yaml", broken);
    let output = node.agent.run_once(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let errors: Vec<String> =
        said(&output).lines().filter(|line| line.starts_with("error: ")).map(str::to_owned).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("bad.yaml: pod bad: invalid pod: spec.containers[0].image"), "{errors:?}");
    assert_eq!(node.all_running().keys().collect::<Vec<_>>(), ["fine-edge", "good-edge"]);
}

#[test]
fn a_missing_directory_fails_the_run_and_is_named() {
    let node = Node::new();
    fs::remove_dir(node.agent.manifest_dir()).expect("remove the directory");
    let output = node.agent.run_once(&["--runonce-timeout=2s"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("agent/manifests: does not exist; create it"), "{}", said(&output));
}

#[test]
fn timeout_reports_the_pod_and_its_waiting_reason() {
    let node = Node::new();
    node.apply(&pod("good"));
    node.apply(&job("crash", "crash", "Always"));
    node.cri.script("crash", Program::exits(Duration::ZERO, 7));
    let before = Instant::now();
    let output = node.agent.run_once(&["--runonce-timeout=3s"]);
    assert!(before.elapsed() < PATIENCE, "{:?}", before.elapsed());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let error =
        text.lines().find(|line| line.starts_with("error: pod default/crash-edge")).expect("an error");
    assert!(
        error.contains("after 3s") && (error.contains("CrashLoopBackOff") || error.contains("exit code 7")),
        "{error}"
    );
    assert!(node.all_running().contains_key("good-edge"));
}

#[test]
fn waiting_for_completion_respects_the_restart_policy() {
    let node = Node::new();
    for (name, policy, code) in [("done", "Never", 0), ("again", "OnFailure", 0)] {
        node.apply(&job(name, name, policy));
        node.cri.script(name, Program::exits(Duration::from_millis(100), code));
    }
    node.apply(&pod("service"));
    let output = node.agent.run_once(&["--runonce-wait=completed", "--runonce-timeout=30s"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for (name, status) in
        [("done-edge", "Completed"), ("again-edge", "Completed"), ("service-edge", "Running")]
    {
        let line = table.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{table}"));
        assert!(line.contains(status), "{line}");
    }

    node.apply(&job("failing", "failing", "Never"));
    node.cri.script("failing", Program::exits(Duration::ZERO, 3));
    let output = node.agent.run_once(&["--runonce-wait=completed", "--runonce-timeout=30s"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: pod default/failing-edge: container failing exited with code 3"), "{text}");
}

#[test]
fn pods_of_a_url_are_run_and_a_failing_url_is_named() {
    let server = HttpServer::start(Answer::manifest(&pod("web").to_string()));
    let node = Node::new();
    let url = format!("--manifest-url={}", server.url("/pods"));
    let output = node.agent.run_once(&[&url]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(node.all_running().contains_key("web-edge"));
    server.answer(Answer::text("404 Not Found", "text/plain", "no"));
    let output = node.agent.run_once(&[&url, "--runonce-timeout=2s"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("/pods: 404 Not Found"), "{}", said(&output));
    assert!(node.all_running().contains_key("web-edge"), "silence removes nothing");
}

#[test]
fn an_absent_runtime_is_the_first_thing_named() {
    let node = Node::new();
    node.apply(&pod("web"));
    node.cri.close();
    let output = node.agent.run_once(&["--runonce-timeout=2s"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let first = text.lines().find(|line| line.starts_with("error: ")).expect("an error");
    assert!(first.contains("container runtime is down") && first.contains("cri.sock"), "{first}");
}
