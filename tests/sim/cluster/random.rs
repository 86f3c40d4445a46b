//! Random scripts: users, a link that comes and goes, agents that die.

use std::collections::BTreeMap;
use std::time::Duration;

use edge_agent::cluster::fake::Removal;
use edge_agent::store::WriteMoment;

use super::{MINUTE, SECOND, cluster, recorded, running, unjoined};
use crate::sim::dice::Dice;
use crate::sim::node::{Node, simulate};
use crate::sim::pods::Act;

/// What its user wants of a pod.
#[derive(Clone, Debug, Default)]
struct Wish {
    is_job: bool,
    is_deleted: bool,
    /// The container that runs: it may not change without a reason.
    container: Option<String>,
    has_ended: bool,
}

struct Script {
    node: Node,
    dice: Dice,
    wishes: BTreeMap<String, Wish>,
}

impl Script {
    async fn step(&mut self) {
        let names: Vec<String> = self.wishes.keys().cloned().collect();
        let number = names.len();
        let all = cluster(&self.node);
        match self.dice.below(14) {
            0..=2 if number < 8 => {
                let (name, is_job) = (format!("p{number}"), self.dice.one_in(2));
                let (policy, act) = if is_job { ("Never", Act::Done) } else { ("Always", Act::Forever) };
                all.bind(&name, policy, act);
                self.wishes.insert(name, Wish { is_job, ..Wish::default() });
            }
            kind @ 3..=5 if number > 0 => {
                let name = self.dice.pick(&names).clone();
                all.remove(&name, if kind == 3 { Removal::Force } else { Removal::Graceful(30) });
                self.wishes.entry(name).or_default().is_deleted = true;
            }
            6 => all.cut(true),
            7 | 8 => {
                all.cut(false);
                all.server.faults().lose_answers = false;
            }
            9 => all.server.compact(),
            10 => {
                all.server.faults().lose_answers = true;
                all.server.faults().repeat_events = true;
            }
            11 => self.node.crash(),
            12 => {
                let moment = *self.dice.pick(&[WriteMoment::Before, WriteMoment::After]);
                self.node.writes.crash_at(1 + self.dice.below(5), moment);
            }
            _ => {
                self.node.crash();
                self.node.fake.reboot();
                self.wishes.values_mut().for_each(|wish| wish.container = None);
            }
        }
        let pause = self.dice.up_to(40 * SECOND);
        self.pass(pause).await;
        if self.node.agent.is_none() {
            self.node.start().await;
        }
    }

    async fn pass(&mut self, time: Duration) {
        for _ in 0..=time.as_secs() {
            self.node.wait(SECOND).await;
            for (name, wish) in &mut self.wishes {
                let live = running(&self.node, name);
                assert!(live.len() < 2, "{name} runs twice: {live:?}");
                wish.has_ended |= cluster(&self.node).phase(name) == "Succeeded";
                assert!(live.is_empty() || !wish.has_ended || !wish.is_job, "{name} runs after its end");
                if wish.is_deleted || wish.is_job {
                    continue;
                }
                if let Some(before) = &wish.container {
                    assert_eq!(live, std::slice::from_ref(before), "{name} was ended without a word");
                }
                wish.container = live.into_iter().next();
            }
        }
    }

    async fn check(&mut self) {
        cluster(&self.node).cut(false);
        cluster(&self.node).server.faults().lose_answers = false;
        self.node.writes.spare();
        self.pass(5 * MINUTE).await;
        for (name, wish) in &self.wishes {
            let all = cluster(&self.node);
            if wish.is_deleted {
                assert_eq!((all.pod(name), recorded(&self.node, name)), (None, 0), "{name}");
            } else if wish.is_job {
                assert_eq!(all.phase(name), "Succeeded", "{name}");
            } else {
                assert_eq!(
                    (all.phase(name).as_str(), running(&self.node, name).len()),
                    ("Running", 1),
                    "{name}"
                );
            }
        }
        let of_pods = |node: &Node| {
            cluster(node).server.writes().iter().filter(|call| call.path.contains("/pods/")).count()
        };
        let before = of_pods(&self.node);
        self.pass(5 * MINUTE).await;
        assert_eq!(of_pods(&self.node), before, "an idle node sends no status");
    }
}

#[test]
fn random_lives_of_a_joined_node_come_out_right() {
    for seed in 0..12 {
        simulate(async {
            let mut node = unjoined(seed);
            node.start().await;
            let mut script = Script { node, dice: Dice::new(seed), wishes: BTreeMap::new() };
            for _ in 0..25 {
                script.step().await;
            }
            script.check().await;
        });
    }
}
