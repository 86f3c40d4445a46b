//! Deaths in a row: the agent and monitors are killed at places and moments that a die chooses. `AGENT_FAULT_ROUNDS` says how
//! many, `AGENT_FAULT_SEED` which.

use super::faults::{MAKING, REMOVING, die_at, node};
use super::*;
use crate::support::agent::pod_name;

/// As many as continuous integration has time for.
const ROUNDS: u64 = 20;
/// Longest that a random moment waits for: a pod is made and taken away in less.
const MOMENT_MILLIS: u64 = 250;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Marsaglia's xorshift.
struct Die(u64);

impl Die {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn one_of<'a>(&mut self, places: &[&'a str]) -> &'a str {
        places[usize::try_from(self.below(places.len() as u64)).expect("few")]
    }

    /// Lets a random moment pass.
    fn moment(&mut self) {
        pause(Duration::from_millis(self.below(MOMENT_MILLIS)));
    }
}

/// What a round ends with besides its pod.
struct Round<'a> {
    node: &'a mut Node,
    name: String,
    port: u64,
}

impl Round<'_> {
    fn file(&self) -> String {
        format!("{}.yaml", self.name)
    }

    fn manifest(&self) -> Value {
        let mut manifest = pod(&self.name);
        manifest["spec"]["terminationGracePeriodSeconds"] = json!(0);
        manifest["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": self.port}]);
        manifest
    }

    /// Processes of this round's pod, sandboxes or containers.
    fn live(&self, sandboxes: bool) -> Vec<Instance> {
        let (name, all) = (pod_name(&self.name), self.node.runtime.instances().into_iter());
        all.filter(|one| one.pod == name && one.pid.is_some() && one.is_sandbox() == sandboxes).collect()
    }

    fn wait_until_it_runs_once(&self) {
        wait_for("the round's pod to run once", PATIENCE, || {
            let seen = (self.live(true).len(), self.live(false).len());
            if seen == (1, 1) {
                Ok(())
            } else {
                Err(format!("{seen:?}; agent: {}", self.node.agent.log_tail()))
            }
        });
    }

    fn carry_out(&mut self, die: &mut Die) -> String {
        match die.below(6) {
            0 | 1 => {
                let place = die.one_of(&MAKING);
                self.node.apply(&self.manifest());
                die_at(self.node, place);
                place.to_owned()
            }
            2 => {
                let place = die.one_of(&REMOVING);
                self.node.apply(&self.manifest());
                self.node.agent.start();
                self.wait_until_it_runs_once();
                self.node.agent.wait_for_phase(&self.name, "Running");
                self.node.agent.terminate();
                self.node.agent.remove_manifest(&self.file());
                die_at(self.node, place);
                place.to_owned()
            }
            3 => {
                self.node.apply(&self.manifest());
                self.node.agent.start();
                die.moment();
                self.node.agent.kill9();
                "agent killed while making".to_owned()
            }
            4 => {
                self.node.apply(&self.manifest());
                self.node.agent.start();
                die.moment();
                for monitor in self.live(true) {
                    // It may have gone by itself in between.
                    let pid = i32::try_from(monitor.pid.expect("it is live")).expect("process ids are small");
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                if die.below(2) == 0 {
                    self.node.agent.kill9();
                } else {
                    self.node.agent.terminate();
                }
                "monitor killed, then the agent".to_owned()
            }
            _ => {
                self.node.apply(&self.manifest());
                self.node.agent.start();
                self.wait_until_it_runs_once();
                self.node.agent.remove_manifest(&self.file());
                die.moment();
                self.node.agent.kill9();
                "agent killed while removing".to_owned()
            }
        }
    }

    /// The next agent puts it right: what is wanted runs once, and is gone without a trace when it is not.
    fn put_right(&mut self) {
        self.node.agent.start();
        if self.node.agent.manifest_dir().join(self.file()).exists() {
            self.wait_until_it_runs_once();
            self.node.agent.remove_manifest(&self.file());
        }
        wait_for("the round's pod to be gone", PATIENCE, || {
            let left = self.left();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}; agent: {}", self.node.agent.log_tail()))
            }
        });
    }

    /// Everything but what belongs to the one pod that stays.
    fn left(&self) -> Vec<String> {
        let state = self.node.runtime.state_dir();
        let bridge = self.node.runtime.scratch().bridge();
        let mut left = Vec::new();
        let mut count = |what: &str, found: usize| {
            if found != 1 {
                left.push(format!("{found} {what}"));
            }
        };
        count("monitors", monitors_of(&state).len());
        count("sandboxes", entries(&state.join("sandboxes")).len());
        let records = entries(&state.join("network")).into_iter();
        count("addresses", records.filter(|path| path.extension().is_some_and(|end| end == "json")).count());
        count("writable layers", entries(&self.node.layers()).len());
        count("links", entries(&Path::new("/sys/class/net").join(&bridge).join("brif")).len());
        let rules = std::process::Command::new("nft").args(["list", "table", "ip", &bridge]).output();
        let rules = rules.expect("run nft");
        if String::from_utf8_lossy(&rules.stdout).contains(&format!(" {} ", self.port)) {
            left.push(format!("rules of port {}", self.port));
        }
        let shm = state.join("sandboxes");
        let mounts = mounts_below(&shm).into_iter().filter(|path| path.ends_with("shm")).count();
        if mounts != 1 {
            left.push(format!("{mounts} mounts of shm"));
        }
        left
    }
}

#[test]
fn random_deaths_neither_duplicate_nor_leak_pods() {
    let (rounds, seed) = (variable("AGENT_FAULT_ROUNDS", ROUNDS), variable("AGENT_FAULT_SEED", 1));
    let mut die = Die(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut node = node();
    node.apply(&pod("steady"));
    node.agent.start();
    node.agent.wait_for_phase("steady", "Running");
    let steady = node.one_running_other_than("");
    node.agent.terminate();
    for number in 0..rounds {
        let (name, port) = (format!("round-{number}"), 21_000 + number % 10_000);
        let mut round = Round { node: &mut node, name, port };
        let what = round.carry_out(&mut die);
        round.put_right();
        assert_eq!(node.running(), std::slice::from_ref(&steady), "seed {seed}, round {number}: {what}");
        if die.below(2) == 0 {
            node.agent.kill9();
        } else {
            node.agent.terminate();
        }
    }
    node.agent.start();
    node.agent.wait_for_phase("steady", "Running");
    assert_eq!(node.running(), [steady], "seed {seed}");
    node.agent.remove_manifest("steady.yaml");
    node.nothing_is_left();
    println!("{rounds} rounds, seed {seed}");
}
