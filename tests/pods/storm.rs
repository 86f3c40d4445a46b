//! The agent is killed again and again, at any moment. Nothing may come of it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::containerd::Instance;
use crate::support::wait::{pause, wait_for};

/// How often the agent is killed, unless `AGENT_STORM_KILLS` says otherwise.
const KILLS: u32 = 100;
/// Pods that nobody touches: their processes must live through everything.
const STABLE: u32 = 8;
/// Pods whose manifests change all the time: exactly the last version must run in the end.
const CHURNED: u32 = 2;
/// A life of the agent ends within this many milliseconds: from before it has read anything to well at rest.
const LONGEST_LIFE_MS: u32 = 450;

/// Numbers from a seed that a failure prints.
pub struct Dice(pub u32);

impl Dice {
    /// One below `limit`.
    pub fn roll(&mut self, limit: u32) -> u32 {
        // A linear congruence is random enough for moments; its high bits are the good ones.
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % limit
    }
}

/// A number from the environment.
pub fn number_from(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn hundreds_of_kills_neither_duplicate_nor_lose_containers() {
    let kills = number_from("AGENT_STORM_KILLS", KILLS);
    let seed = number_from("AGENT_STORM_SEED", std::process::id());
    let mut dice = Dice(seed);
    let mut node = Node::new();
    for number in 0..STABLE {
        node.apply(&node.pod(&format!("stable{number}"), "sleep 100000"));
    }
    for number in 0..CHURNED {
        churn(&node, number, 0);
    }
    node.agent.start();
    let before: Vec<Instance> = (0..STABLE).map(|number| node.running(&format!("stable{number}"))).collect();
    (0..CHURNED).for_each(|number| drop(node.running(&format!("churned{number}"))));
    let sandboxes = stable_sandboxes(&node);

    let mut version = 0;
    for round in 0..kills {
        if round % 7 == 0 {
            version += 1;
            churn(&node, dice.roll(CHURNED), version);
        }
        pause(Duration::from_millis(u64::from(dice.roll(LONGEST_LIFE_MS))));
        node.agent.kill9();
        if round % 10 == 0 {
            assert_none_doubled(&node, &format!("round {round}, AGENT_STORM_SEED={seed}"));
        }
        node.agent.start();
    }

    for number in 0..CHURNED {
        version += 1;
        churn(&node, number, version);
        let file = format!("version{number}");
        wait_for("the last version to run", PATIENCE, || match node.written(&file) {
            text if text == format!("{version}\n") => Ok(()),
            text => Err(format!("version {text}")),
        });
        node.running(&format!("churned{number}"));
    }
    for instance in &before {
        let now = node.runtime.running(&instance.pod);
        assert_eq!(now, std::slice::from_ref(instance), "AGENT_STORM_SEED={seed}: {}", node.agent.log_tail());
    }
    assert_eq!(stable_sandboxes(&node), sandboxes, "AGENT_STORM_SEED={seed}");
    assert_none_doubled(&node, &format!("at the end, AGENT_STORM_SEED={seed}"));
    node.agent.assert_alive();
}

/// Writes the next version of a pod, which says in a file that it runs.
fn churn(node: &Node, number: u32, version: u32) {
    let command = format!("echo {version} > /out/version{number}; sleep 100000");
    node.apply(&node.pod(&format!("churned{number}"), &command));
}

fn stable_sandboxes(node: &Node) -> Vec<Instance> {
    let instances = node.runtime.instances().into_iter();
    instances.filter(|instance| instance.is_sandbox() && instance.pod.starts_with("stable")).collect()
}

/// Never two live containers of one name in the pods of one name, nor two live sandboxes.
fn assert_none_doubled(node: &Node, when: &str) {
    let mut live: BTreeMap<(String, String), Vec<Instance>> = BTreeMap::new();
    for instance in node.runtime.instances().into_iter().filter(|instance| instance.pid.is_some()) {
        live.entry((instance.pod.clone(), instance.container.clone())).or_default().push(instance);
    }
    for ((pod, container), instances) in live {
        assert_eq!(instances.len(), 1, "{when}: {container} of {pod} runs more than once: {instances:?}");
    }
}

super::on_every_runtime! {
    hundreds_of_kills_neither_duplicate_nor_lose_containers,
}
