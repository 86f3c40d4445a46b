//! Pods of every shape come, change, fail and go in random order while the agent is killed: the right ones run in the end, and
//! when they are all taken away nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Node;
use super::storm::{Dice, number_from};
use crate::support::agent::cgroup_root;
use crate::support::containerd::Instance;
use crate::support::wait::{pause, wait_for};

/// Pods, unless `AGENT_STORM_PODS` says otherwise (`just storm` takes 100).
const PODS: u32 = 12;
/// Things that happen, unless `AGENT_STORM_ROUNDS` says otherwise.
const ROUNDS: u32 = 60;
/// How long the end may take for each pod, on a machine that is busy.
const PATIENCE_PER_POD: Duration = Duration::from_secs(6);

fn random_changes_and_faults_converge_without_remains() {
    let pods = number_from("AGENT_STORM_PODS", PODS);
    let rounds = number_from("AGENT_STORM_ROUNDS", ROUNDS);
    let seed = number_from("AGENT_STORM_SEED", std::process::id());
    let mut dice = Dice(seed);
    let mut node = Node::new();
    node.agent.start();

    let mut wanted: BTreeMap<u32, u32> = BTreeMap::new();
    for round in 1..=rounds.max(pods) {
        let number = if round <= pods { round - 1 } else { dice.roll(pods) };
        match dice.roll(if round <= pods { 6 } else { 10 }) {
            0..6 => {
                node.apply(&shaped(&node, number, round));
                wanted.insert(number, round);
            }
            6 | 7 => {
                if wanted.remove(&number).is_some() {
                    node.delete(&name(number));
                }
            }
            8 => hurt_somebody(&node, &mut dice),
            _ => {
                node.agent.kill9();
                node.agent.start();
            }
        }
        pause(Duration::from_millis(u64::from(dice.roll(300))));
    }

    let patience = PATIENCE_PER_POD * pods;
    wait_for(&format!("exactly the last versions to run, AGENT_STORM_SEED={seed}"), patience, || {
        node.agent.assert_alive();
        differences(&node, &wanted)
    });
    for number in wanted.keys() {
        node.delete(&name(*number));
    }
    wait_for(&format!("nothing to be left, AGENT_STORM_SEED={seed}"), patience, || left_behind(&node));
}

fn name(number: u32) -> String {
    format!("shape{number}")
}

/// A pod whose shape follows from its number, and whose main container says its version.
fn shaped(node: &Node, number: u32, version: u32) -> Value {
    let main = format!(
        "echo {version} > /out/v{number}.part; mv /out/v{number}.part /out/v{number}; trap 'exit 0' TERM; while :; do sleep 0.2; done"
    );
    let mut pod = node.pod(&name(number), &main);
    pod["metadata"]["labels"] = json!({ "version": version.to_string() });
    let add = |pod: &mut Value, volume: Value, mount: Value| {
        pod["spec"]["volumes"].as_array_mut().expect("a list").push(volume);
        pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().expect("a list").push(mount);
    };
    match number % 6 {
        0 => {
            let mut sidecar = node.container("side", "trap 'exit 0' TERM; while :; do sleep 0.2; done");
            sidecar["restartPolicy"] = json!("Always");
            pod["spec"]["initContainers"] = json!([node.container("init", "true"), sidecar]);
        }
        1 => add(
            &mut pod,
            json!({ "name": "ram", "emptyDir": { "medium": "Memory" } }),
            json!({ "name": "ram", "mountPath": "/ram" }),
        ),
        2 => {
            let labels = json!({ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } });
            add(
                &mut pod,
                json!({ "name": "self", "downwardAPI": { "items": [labels] } }),
                json!({ "name": "self", "mountPath": "/self" }),
            );
        }
        3 => {
            let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
            pod["spec"]["containers"][0]["livenessProbe"] = probe.clone();
            pod["spec"]["containers"][0]["readinessProbe"] = probe;
            pod["spec"]["containers"][0]["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 1 } } });
            pod["spec"]["terminationGracePeriodSeconds"] = json!(3);
        }
        4 => {
            pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
            pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "32Mi" } });
        }
        _ => {
            add(
                &mut pod,
                json!({ "name": "disk", "emptyDir": {} }),
                json!({ "name": "disk", "mountPath": "/part", "subPath": "deep/part" }),
            );
            pod["spec"]["securityContext"] = json!({ "fsGroup": 4242 });
        }
    }
    pod
}

/// Kills the first process of a container or sandbox.
fn hurt_somebody(node: &Node, dice: &mut Dice) {
    let live: Vec<Instance> =
        node.runtime.instances().into_iter().filter(|instance| instance.pid.is_some()).collect();
    if !live.is_empty() {
        let chosen = dice.roll(u32::try_from(live.len()).expect("few")) as usize;
        // It may have ended since it was listed.
        let pid = i32::try_from(live[chosen].pid.expect("filtered above")).expect("process ids are small");
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// `Ok` when each wanted pod's main container runs once in its last version, and no other pod's does.
fn differences(node: &Node, wanted: &BTreeMap<u32, u32>) -> Result<(), String> {
    let running: Vec<Instance> = node
        .runtime
        .instances()
        .into_iter()
        .filter(|instance| instance.pid.is_some() && instance.container == "main")
        .collect();
    let mut names: Vec<String> = running.iter().map(|instance| instance.pod.clone()).collect();
    let mut expected: Vec<String> =
        wanted.keys().map(|number| crate::support::agent::pod_name(&name(*number))).collect();
    names.sort();
    expected.sort();
    if names != expected {
        return Err(format!("{names:?} run, not {expected:?}; agent: {}", node.agent.log_tail()));
    }
    for (number, version) in wanted {
        let said = fs::read_to_string(node.out(&format!("v{number}"))).unwrap_or_default();
        if said != format!("{version}\n") {
            return Err(format!("{} says {said:?}, not {version}", name(*number)));
        }
    }
    Ok(())
}

/// Everything that a pod could leave on the node.
fn left_behind(node: &Node) -> Result<(), String> {
    let scratch = node.runtime.scratch().path();
    let mut left = Vec::new();
    let instances = node.runtime.instances();
    left.extend(instances.iter().map(|instance| format!("runtime: {instance:?}")));
    let mounts = fs::read_to_string("/proc/self/mounts").expect("read the mount table");
    let ours = node.agent.root_dir();
    let pods = ours.join("pods");
    let state = scratch.join("state/sandboxes");
    left.extend(
        mounts
            .lines()
            .filter(|line| {
                line.contains(&*pods.to_string_lossy()) || line.contains(&*state.to_string_lossy())
            })
            .map(|line| format!("mount: {line}")),
    );
    for directory in [pods, node.agent.pod_logs_dir()].into_iter().chain(node.runtime.places()) {
        left.extend(entries(&directory).map(|path| format!("file: {}", path.display())));
    }
    let links = node.agent.pod_logs_dir().parent().expect("it has one").join("containers");
    left.extend(entries(&links).map(|path| format!("link: {}", path.display())));
    let root = cgroup_root(scratch);
    for hierarchy in entries(Path::new("/sys/fs/cgroup")) {
        pod_cgroups(&hierarchy.join(root.trim_start_matches('/')), &mut left);
    }
    if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}; agent: {}", node.agent.log_tail())) }
}

/// What is in a directory; files that name nobody's lease (host-local's two, the network's two hidden ones) do not count.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    found.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name != "lock" && !name.starts_with("last_reserved_ip") && !name.starts_with('.')
    })
}

fn pod_cgroups(directory: &Path, left: &mut Vec<String>) {
    for path in entries(directory).filter(|path| path.is_dir()) {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pod")) {
            left.push(format!("cgroup: {}", path.display()));
        } else {
            pod_cgroups(&path, left);
        }
    }
}

super::on_every_runtime! {
    random_changes_and_faults_converge_without_remains,
}
