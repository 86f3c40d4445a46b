//! Thousands of manifests: more than any node runs, and still the agent comes up, small and answering.

use std::fs;
use std::time::{Duration, Instant};

use super::node::{Node, pod, pss_kb};
use crate::support::wait::wait_for;

/// `AGENT_MANIFESTS=5000` for more than a busy machine does in minutes.
const MANY: usize = 2_000;
/// Of a debug build; the release budget is measured in tests/budget.
const MOST_PSS_KB: u64 = 500_000;

#[test]
fn thousands_of_manifests_are_taken_in_with_bounded_memory() {
    let many = std::env::var("AGENT_MANIFESTS").map_or(MANY, |many| many.parse().expect("a number"));
    let mut node = Node::new();
    node.agent.argument("--file-check-frequency=20s");
    // All calls together take longer than one may, on most machines; tests/cri.rs has a runtime that makes sure of it.
    node.agent.argument("--runtime-request-timeout=10s");
    node.agent.configure(&format!("maxPods: {many}\n"));
    for number in 0..many {
        let name = format!("p{number}");
        fs::write(node.manifest(&format!("{name}.yaml")), pod(&name).to_string()).expect("write a manifest");
    }
    let before = Instant::now();
    node.agent.start();
    let sandboxes = wait_for("a sandbox for each pod", Duration::from_secs(120), || {
        node.agent.assert_alive();
        let calls = node.cri.state().sandbox_configs.len();
        if calls >= many { Ok(calls) } else { Err(format!("{calls} so far")) }
    });
    let took = before.elapsed();
    // A list of everything may be late while this thread reads thousands of manifests; no call for a pod may.
    let mut late = node.log_lines(&["no response within"]);
    late.retain(|line| !line.contains("Container runtime is down"));
    assert!(late.is_empty(), "{} calls ran out of their ten seconds, as {:?}", late.len(), late.first());
    let pss = pss_kb(node.agent.pid());
    eprintln!("{many} manifests: {sandboxes} sandboxes after {took:?}, agent PSS {pss} kB");
    assert!(pss < MOST_PSS_KB, "{pss} kB");
    let status = wait_for("an answer", Duration::from_secs(60), || node.agent.status_json());
    eprintln!("agent status answered after {:?}", before.elapsed());
    assert_eq!(status["sources"][0]["pods"], many);
    node.agent.assert_alive();
    node.agent.kill9();
    eprintln!("ended after {:?}", before.elapsed());
}
