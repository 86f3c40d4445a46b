//! Manifests come, change, break, are mended, and go.

use std::time::Duration;

use serde_json::json;

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::wait::{stays, wait_for};

fn manifest_changes_replace_the_pod_and_removal_stops_it() {
    let mut node = Node::with_pods(&[]);
    node.apply(&node.pod("web", "sleep 1000"));
    let first = node.running("web");
    node.agent.wait_for_phase("web", "Running");

    node.apply(&node.pod("web", "sleep 2000"));
    let second = node.running_other_than("web", &first.id);
    assert_ne!(second.uid, first.uid, "a changed static pod is a new pod");

    node.delete("web");
    node.gone("web");
    wait_for("the pod to leave the list", PATIENCE, || match node.agent.pod("web") {
        Ok(pod) => Err(pod["status"].to_string()),
        Err(_) => Ok(()),
    });
    let left = node.agent.root_dir().join("pods").join(&second.uid);
    wait_for("the pod's directory to go", PATIENCE, || {
        if left.exists() { Err(left.display().to_string()) } else { Ok(()) }
    });
    node.agent.assert_alive();
}

fn rewriting_a_manifest_with_the_same_content_restarts_nothing() {
    let node = Node::with_pods(&[]);
    let pod = node.pod("web", "sleep 1000");
    node.apply(&pod);
    let before = node.running("web");
    node.apply(&pod);
    stays("the container", Duration::from_secs(3), || {
        let running = node.runtime.running("web-edge");
        if running == [before.clone()] { Ok(()) } else { Err(format!("{running:?}")) }
    });
}

fn broken_manifest_is_reported_until_it_is_fixed() {
    let mut node = Node::new();
    node.apply(&node.pod("good", "sleep 1000"));
    node.agent.write_manifest("bad.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: [\n");
    node.agent.start();
    node.running("good");
    wait_for("the problem to be shown", PATIENCE, || {
        let problems = node.agent.problems()?;
        if problems.contains("bad.yaml") { Ok(()) } else { Err(problems) }
    });

    node.agent.write_manifest("bad.yaml", &node.pod("bad", "sleep 1000").to_string());
    node.running("bad");
    wait_for("the problem to clear", PATIENCE, || {
        let problems = node.agent.problems()?;
        if problems.contains("bad.yaml") { Err(problems) } else { Ok(()) }
    });
}

fn last_good_version_runs_on_when_the_manifest_breaks() {
    let node = Node::with_pods(&[]);
    node.apply(&node.pod("web", "sleep 1000"));
    let before = node.running("web");

    node.agent.write_manifest("web.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: 7}\n");
    wait_for("the problem to be shown", PATIENCE, || {
        let problems = node.agent.problems()?;
        if problems.contains("web.yaml") { Ok(()) } else { Err(problems) }
    });
    stays("the last good version", Duration::from_secs(2), || {
        let running = node.runtime.running("web-edge");
        if running == [before.clone()] { Ok(()) } else { Err(format!("{running:?}")) }
    });
}

fn a_pod_that_needs_longer_to_stop_gets_its_grace_and_no_more() {
    let node = Node::with_pods(&[]);
    let mut polite = node.pod(
        "polite",
        "trap 'sleep 2; echo ended > /out/polite; exit 0' TERM; echo up > /out/polite-up; while :; do sleep 0.1; done",
    );
    polite["spec"]["terminationGracePeriodSeconds"] = json!(20);
    let mut deaf = node.pod("deaf", "trap '' TERM; echo up > /out/deaf-up; while :; do sleep 0.1; done");
    deaf["spec"]["terminationGracePeriodSeconds"] = json!(4);
    node.apply(&polite);
    node.apply(&deaf);
    node.written("polite-up");
    node.written("deaf-up");
    node.running("polite");
    let deaf_container = node.running("deaf");

    node.delete("polite");
    node.delete("deaf");
    stays("the deaf pod's grace", Duration::from_secs(3), || {
        let running = node.runtime.running("deaf-edge");
        if running == [deaf_container.clone()] { Ok(()) } else { Err(format!("{running:?}")) }
    });
    node.gone("polite");
    assert_eq!(node.written("polite"), "ended\n");
    node.gone("deaf");
}

super::on_every_runtime! {
    manifest_changes_replace_the_pod_and_removal_stops_it,
    rewriting_a_manifest_with_the_same_content_restarts_nothing,
    broken_manifest_is_reported_until_it_is_fixed,
    last_good_version_runs_on_when_the_manifest_breaks,
    a_pod_that_needs_longer_to_stop_gets_its_grace_and_no_more,
}
