//! Pods on a disk that fails: those that run are never touched, what cannot be done is said, and all is well when the disk is;
//! what the store has said to know it knows after any power cut.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use edge_agent::store::{Mode, OpenOptions, StoreHandle};
use serde_json::{Value, json};

use super::cut::{Names, Remains};
use super::disk::{ALL, Disk, EIO, Fault, KINDS, SYNC};
use super::log::Record;
use super::{Die, program, rounds, seed};
use crate::support::agent::{AgentProcess, PATIENCE, pod_name};
use crate::support::containerd::Instance;
use crate::support::embedded::Embedded;
use crate::support::image::BUSYBOX;
use crate::support::wait::wait_for;

/// An agent with its root directory on a disk that fails.
pub struct FaultyNode {
    // Before the directories: the agent is gone first.
    pub agent: AgentProcess,
    pub disk: Disk,
    pub runtime: Embedded,
}

impl FaultyNode {
    /// Nothing runs yet.
    pub fn new() -> Self {
        let runtime = Embedded::new();
        let mut agent = AgentProcess::new(runtime.scratch().path(), "embedded").with_program(&program());
        runtime.configure(&mut agent);
        let disk = Disk::mount(runtime.scratch(), &agent.root_dir());
        for (name, value) in disk.environment() {
            agent.variable(name, &value);
        }
        Self { agent, disk, runtime }
    }

    pub fn apply(&self, name: &str) {
        self.agent.write_manifest(&format!("{name}.yaml"), &pod(name, "sleep 100000").to_string());
    }

    fn containers(&self, name: &str) -> Vec<Instance> {
        let (name, all) = (pod_name(name), self.runtime.instances().into_iter());
        all.filter(|one| one.pod == name && !one.is_sandbox() && one.pid.is_some()).collect()
    }

    fn sees(&self) -> String {
        format!("{:?}; agent: {}", self.runtime.instances(), self.agent.log_tail())
    }

    pub fn wait_until_it_runs(&self, name: &str) -> Instance {
        wait_for(&format!("{name} to run"), 2 * PATIENCE, || match &self.containers(name)[..] {
            [only] => Ok(only.clone()),
            _ => Err(self.sees()),
        })
    }

    pub fn wait_until_it_is_gone(&self, name: &str) {
        let full = pod_name(name);
        wait_for(&format!("{name} to be gone"), 2 * PATIENCE, || {
            let left = self.runtime.instances().into_iter().any(|one| one.pod == full);
            if left { Err(self.sees()) } else { Ok(()) }
        });
    }
}

/// A pod on the node's network that ends at once when it is told to.
fn pod(name: &str, command: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", command],
                "volumeMounts": [{"name": "settings", "mountPath": "/settings"}],
            }],
            "volumes": [{"name": "settings", "downwardAPI": {"items": [
                {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            ]}}],
        },
    })
}

/// Each way that disks fail, at a random call of an agent at work: beside a pod that runs one comes and one goes.
#[test]
fn a_disk_that_fails_under_an_agent_harms_no_pod_and_heals() {
    let (mut node, rounds, seed) = (FaultyNode::new(), rounds() / 4, seed());
    let mut die = Die::new(seed, 3);
    node.disk.stop_recording();
    node.apply("steady");
    node.agent.start();
    let steady = node.wait_until_it_runs("steady");
    wait_for("all to be well", PATIENCE, || node.agent.cli(&["status"]));
    let (mut fell, mut said) = (0, 0);
    for round in 0..rounds {
        let (kind, classes, error) = KINDS[usize::try_from(round).expect("few") % KINDS.len()];
        let (name, last) = (format!("round-{round}"), format!("round-{}", round.wrapping_sub(1)));
        let starts = die.below(3) == 0;
        let from = 1 + die.below(if classes == ALL { 60 } else { 6 });
        let lasts = [1, 1 + die.below(20), u64::MAX / 2][die.between(0, 2)];
        let context = format!("seed {seed}, round {round}: {kind} at {from} for {lasts}, starts {starts}");
        if starts {
            node.agent.kill9();
        }
        node.disk.arm(Fault { classes, from, until: from + lasts, error });
        node.apply(&name);
        if round > 0 {
            node.agent.remove_manifest(&format!("{last}.yaml"));
        }
        if starts {
            node.agent.start();
        }
        // Either it can be done all the same, or somebody says why not.
        let outcome = wait_for(&context, 2 * PATIENCE, || {
            if node.containers(&name).len() == 1 {
                return Ok("done");
            }
            if node.disk.failed() == 0 {
                return Err(node.sees());
            }
            match node.agent.ended() {
                Some(status) if starts && status.code() == Some(1) => return Ok("ended"),
                Some(status) => panic!("{context}: the agent ended: {status}: {}", node.agent.log_tail()),
                None => {}
            }
            let status = node.agent.cli(&["status", "--exit-zero"])?;
            if status.contains("What is wrong:") {
                Ok("said")
            } else {
                Err(format!("{status}; {}", node.sees()))
            }
        });
        fell += u64::from(node.disk.failed() > 0);
        said += u64::from(outcome != "done");
        assert_eq!(node.containers("steady"), std::slice::from_ref(&steady), "{context}: {}", node.sees());
        node.disk.mend();
        wait_for(&format!("{context}, {outcome}: it to run"), 2 * PATIENCE, || {
            // One that could not start says so, and whoever looks after services starts it again.
            if starts && let Some(status) = node.agent.ended() {
                let said = node.agent.log_tail();
                assert!(status.code() == Some(1) && said.contains("error: "), "{context}: {status}: {said}");
                node.agent.wait_for_end();
                node.agent.start();
            }
            if node.containers(&name).len() == 1 { Ok(()) } else { Err(node.sees()) }
        });
        if round > 0 {
            node.wait_until_it_is_gone(&last);
        }
        wait_for(&format!("{context}: all to be well again"), 2 * PATIENCE, || {
            node.agent.cli(&["status"]).map_err(|error| format!("{error}; {}", node.sees()))
        });
        wait_for("the store to know", 2 * PATIENCE, || node.agent.stored_pod(&name));
        assert_eq!(node.containers("steady"), std::slice::from_ref(&steady), "{context}");
    }
    assert!(fell * 3 > rounds, "only {fell} of {rounds} rounds had a fault");
    println!("{rounds} rounds, {fell} with faults, {said} of them seen in the status, seed {seed}");
}

/// Pods come and go and crash, syncs fail, the agent dies; then the power is cut at every kind of moment.
#[test]
fn what_the_store_has_said_to_know_it_knows_after_any_power_cut() {
    let (mut node, rounds, seed) = (FaultyNode::new(), rounds() * 5, seed());
    let mut die = Die::new(seed, 4);
    node.agent.start();
    wait_for("the images to be there", PATIENCE, || match node.agent.image_cli(&["ls"]) {
        Ok(text) if text.contains("busybox") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    node.agent.write_manifest("crashing.yaml", &pod("crashing", "sleep 1; exit 1").to_string());
    for life in 0..10 {
        let name = format!("life-{life}");
        // A sync that fails loses what it was to write, also of commits that nobody had synced before.
        let fails = life % 4 == 2;
        if fails {
            // The first one: what a pod's start syncs after that may be nothing.
            node.disk.mark("trouble begins");
            node.disk.arm(Fault { classes: SYNC, from: 1, until: 2, error: EIO });
        }
        node.apply(&name);
        node.wait_until_it_runs(&name);
        if fails {
            wait_for("the store to be well", PATIENCE, || node.agent.cli(&["status"]));
            assert!(node.disk.failed() > 0, "nothing was synced for a pod");
            node.disk.mend();
            node.disk.mark("trouble ends");
        }
        node.disk.mark(&format!("wanted {name}"));
        if life >= 3 {
            let gone = format!("life-{}", life - 3);
            node.disk.mark(&format!("free {gone}"));
            node.agent.remove_manifest(&format!("{gone}.yaml"));
            node.wait_until_it_is_gone(&gone);
            node.disk.mark(&format!("unwanted {gone}"));
        }
        if let Ok(pod) = node.agent.pod("crashing") {
            let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
            node.disk.mark(&format!("restarts {}", restarts.unwrap_or_default()));
        }
        if die.below(4) == 0 {
            node.agent.kill9();
            node.agent.start();
        }
    }
    let records = node.disk.records();
    let root = fs::metadata(node.disk.root()).expect("look at the disk").ino();
    let place = node.runtime.scratch().path().join("after");
    for round in 0..rounds {
        let names = die.one_of(&[Names::InOrder, Names::ByDirectory]);
        let moment = die.between(1, records.len());
        fs::create_dir(&place).expect("make a directory");
        Remains::of_cut(&records[..moment], root, names, &mut die).write_to(&place);
        let context =
            format!("seed {seed}, round {round}, {names:?}, cut after {moment} of {}", records.len());
        let known = Known::after(&records[..moment]);
        if known.in_trouble {
            fs::remove_dir_all(&place).expect("remove a directory");
            continue;
        }
        known.check(&place).unwrap_or_else(|wrong| panic!("{wrong}; {context}"));
        fs::remove_dir_all(&place).expect("remove a directory");
    }
    println!("{rounds} cuts in {} changes, seed {seed}", records.len());
}

/// What the agent has shown to know by a moment.
#[derive(Default)]
struct Known {
    wanted: BTreeSet<String>,
    unwanted: BTreeSet<String>,
    restarts: u32,
    /// The disk has just lied; that it loses its power on top before anybody could do something about it is not survived.
    in_trouble: bool,
}

impl Known {
    fn after(records: &[Record]) -> Self {
        let mut known = Self::default();
        for record in records {
            let Record::Mark(text) = record else { continue };
            let (word, what) = text.split_once(' ').expect("marks have two words");
            match word {
                "wanted" => drop(known.wanted.insert(pod_name(what))),
                "free" => drop(known.wanted.remove(&pod_name(what))),
                "unwanted" => drop(known.unwanted.insert(pod_name(what))),
                "trouble" => known.in_trouble = what == "begins",
                "restarts" => known.restarts = what.parse().expect("a number"),
                other => panic!("{other}"),
            }
        }
        known
    }

    fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.unwanted.is_empty() && self.restarts == 0
    }

    fn check(&self, root: &Path) -> Result<(), String> {
        let options = OpenOptions { mode: Mode::Inline, ..OpenOptions::default() };
        let (store, report) =
            StoreHandle::open(&root.join("agent.db"), options).map_err(|error| format!("{error}"))?;
        if let Some(damaged) = report.damaged {
            // A store that was never finished is begun again; nothing was said to be in it.
            return if self.is_empty() { Ok(()) } else { Err(format!("damaged: {damaged:?}")) };
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("start tokio");
        let loaded = runtime.block_on(store.load()).map_err(|error| format!("{error}"))?;
        runtime.block_on(store.shutdown()).map_err(|error| format!("{error}"))?;
        if !loaded.unreadable.is_empty() {
            return Err(format!("unreadable: {:?}", loaded.unreadable));
        }
        let pods = loaded.desired.iter().flat_map(|source| &source.pods);
        let names: BTreeSet<String> = pods.map(|pod| pod.pod.metadata.name.clone()).collect();
        let missing: Vec<_> = self.wanted.difference(&names).collect();
        let extra: Vec<_> = self.unwanted.intersection(&names).collect();
        if !missing.is_empty() || !extra.is_empty() {
            return Err(format!("missing {missing:?}, too many {extra:?}: {names:?}"));
        }
        let counts = loaded.container_state.values().flat_map(|containers| containers.values());
        let restarts = counts.map(|state| state.restart_count).max().unwrap_or_default();
        if restarts < self.restarts {
            return Err(format!("{restarts} restarts instead of {}", self.restarts));
        }
        Ok(())
    }
}
