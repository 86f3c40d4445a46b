//! The agent dies between any two effects of making a pod and of taking it away: the next one puts it right.

use super::*;

/// Between effects of making a pod.
pub const MAKING: [&str; 14] = [
    "sandbox:record",
    "sandbox:shm",
    "sandbox:files",
    "sandbox:leaf",
    "sandbox:monitor",
    "sandbox:cgroup",
    "sandbox:network",
    "sandbox:ready",
    "create:record",
    "create:layer",
    "create:cgroup",
    "create:bundle",
    "start:before",
    "start:after",
];
/// Between effects of taking one away.
pub const REMOVING: [&str; 7] = [
    "stop:network",
    "stop:monitor",
    "forget",
    "remove:cgroup",
    "remove:layer",
    "remove:containers",
    "remove:cgroups",
];

/// A program for production has no such places: the one that was built with the tests, whatever `AGENT_BIN` says.
pub fn node() -> Node {
    Node::of(Path::new(env!("CARGO_BIN_EXE_agent")))
}

#[test]
fn agent_death_during_pod_creation_yields_one_pod() {
    let mut node = node();
    for place in MAKING {
        node.apply(&pod("half"));
        die_at(&mut node, place);
        node.agent.start();
        let made = node.one_running_other_than("");
        node.agent.wait_for_phase("half", "Running");
        let live = node.runtime.instances().into_iter().filter(|instance| instance.pid.is_some()).count();
        assert_eq!(live, 2, "{place}: one sandbox and one container: {:?}", node.runtime.instances());
        assert_eq!(node.running(), [made], "{place}");
        assert_eq!(monitors_of(&node.runtime.state_dir()).len(), 1, "{place}");
        node.agent.remove_manifest("half.yaml");
        node.nothing_is_left();
        node.agent.terminate();
    }
}

#[test]
fn agent_death_during_pod_removal_leaves_nothing() {
    let mut node = node();
    for (number, place) in REMOVING.iter().enumerate() {
        // Each time another one: the last may still be going in the agent's own books.
        let name = format!("going-{number}");
        node.agent.variable("AGENT_FAULT", "");
        node.apply(&pod(&name));
        node.agent.start();
        node.agent.wait_for_phase(&name, "Running");
        node.agent.terminate();
        node.agent.remove_manifest(&format!("{name}.yaml"));
        die_at(&mut node, place);
        node.agent.start();
        node.nothing_is_left();
        node.agent.terminate();
    }
}

/// Starts an agent that dies at `place`, and takes the fault away again.
pub fn die_at(node: &mut Node, place: &str) {
    node.agent.variable("AGENT_FAULT", place);
    node.agent.start();
    let status = node.agent.wait_for_end();
    assert!(!status.success() && status.code().is_none(), "{place}: {status}: {}", node.agent.log_tail());
    node.agent.variable("AGENT_FAULT", "");
}
