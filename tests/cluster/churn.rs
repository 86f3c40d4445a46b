//! Many pods, and deaths while they come and go. `AGENT_CLUSTER_KILLS` is the number of deaths, `AGENT_CLUSTER_SEED` what they follow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Cluster, condition, number_from, pod, spec};
use crate::support::wait::{pause, wait_for};

const MANY: usize = 100;
const KILLS: u64 = 30;
/// Jobs that are not complete, at most: schedulers and controllers need seconds after each death of an API server.
const MOST_OPEN_JOBS: usize = 20;
const MOST_COMPLETE_JOBS: usize = 40;
/// Longest between two deaths.
const MOMENT_MILLIS: u64 = 1500;

/// Pods at the API server beside what runs on the machine: each has its one container, and nothing else runs.
fn all_agree(cluster: &Cluster) -> Result<usize, String> {
    let pods = cluster.control_plane.pods("default", "")?;
    let name = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let mut wanted: Vec<String> =
        pods.iter().filter(|pod| condition(pod, "Ready") == "True").map(name).collect();
    let instances = cluster.runtime.instances();
    let containers = instances.iter().filter(|one| !one.is_sandbox() && one.pid.is_some());
    let mut running: Vec<String> = containers.map(|one| one.uid.clone()).collect();
    wanted.sort();
    running.sort();
    if wanted == running {
        Ok(running.len())
    } else {
        Err(format!("ready: {wanted:?}; running: {running:?}"))
    }
}

fn scaled(plain: &Value, replicas: usize, version: u64) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": {
        "replicas": replicas,
        "selector": { "matchLabels": { "app": "web" } },
        "template": {
            "metadata": { "labels": { "app": "web" }, "annotations": { "version": version.to_string() } },
            "spec": plain,
        },
    } })
}

#[test]
fn a_hundred_pods_start_and_leave() {
    let cluster = Cluster::new();
    let plane = &cluster.control_plane;
    let plain = spec("exec sleep 100000");
    let began = Instant::now();
    plane.apply(&[scaled(&plain, MANY, 1)]);
    let ready = |count: usize| {
        let web = plane.get("/apis/apps/v1/namespaces/default/deployments/web")?;
        let now = web["status"]["readyReplicas"].as_u64().unwrap_or(0);
        if now == count as u64 { Ok(()) } else { Err(format!("{now} are ready")) }
    };
    wait_for("a hundred pods", Duration::from_secs(120), || {
        ready(MANY).inspect_err(|_| pause(Duration::from_millis(200)))
    });
    println!("{MANY} pods ready after {:.1} s", began.elapsed().as_secs_f64());
    plane.wait("the machine to agree", || match all_agree(&cluster)? {
        MANY => Ok(()),
        other => Err(format!("{other} run")),
    });
    let began = Instant::now();
    plane.apply(&[scaled(&plain, 0, 1)]);
    wait_for("all to be gone", Duration::from_secs(120), || {
        let left = plane.pods("default", "")?.len() + cluster.runtime.instances().len();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
            .inspect_err(|_| pause(Duration::from_millis(200)))
    });
    println!("{MANY} pods gone after {:.1} s", began.elapsed().as_secs_f64());
    cluster.finish();
}

/// Steele, Lea and Flood's SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % most
    }
}

/// A Job whose pod writes its name once.
fn job(number: u64, signals: &std::path::Path) -> Value {
    let mut spec = spec("hostname >> /signals/runs");
    spec["restartPolicy"] = json!("Never");
    spec["volumes"] = json!([{ "name": "signals", "hostPath": { "path": signals } }]);
    spec["containers"][0]["volumeMounts"] = json!([{ "name": "signals", "mountPath": "/signals" }]);
    let template = json!({ "metadata": { "labels": { "app": "job" } }, "spec": spec });
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": format!("job{number}") },
        "spec": { "backoffLimit": 0, "template": template } })
}

/// What is known of a Job that has failed: each has but one pod.
fn failure(cluster: &Cluster, job: &Value) -> String {
    let name = job["metadata"]["name"].as_str().unwrap_or_default();
    let pods = cluster.control_plane.pods("default", &format!("job-name%3D{name}"));
    let log = cluster.agent.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&format!("{name}-"))).collect();
    format!("{pods:?}\nnode: {:?}\n{lines:#?}", cluster.node())
}

/// Waits until at most `most` Jobs are not complete, and returns the names of those that are. When they are many they are
/// deleted.
fn take_complete(cluster: &Cluster, most: usize) -> Vec<String> {
    let plane = &cluster.control_plane;
    let mut names = Vec::new();
    wait_for("the Jobs to be complete", Duration::from_secs(180), || {
        let mut look = || {
            let jobs = plane.get("/apis/batch/v1/namespaces/default/jobs")?;
            let jobs = jobs["items"].as_array().expect("a list");
            if let Some(failed) = jobs.iter().find(|job| condition(job, "Failed") == "True") {
                panic!("a Job has failed: {failed}\n{}", failure(cluster, failed));
            }
            let is_kept = |job: &&Value| job["metadata"]["deletionTimestamp"].is_null();
            let (complete, open): (Vec<&Value>, Vec<&Value>) =
                jobs.iter().filter(is_kept).partition(|job| condition(job, "Complete") == "True");
            let complete: Vec<&str> =
                complete.iter().filter_map(|job| job["metadata"]["name"].as_str()).collect();
            names.extend(complete.iter().map(|name| (*name).to_owned()));
            if complete.len() > MOST_COMPLETE_JOBS || (most == 0 && !complete.is_empty()) {
                let mut words = vec!["delete", "jobs", "--wait=false", "--ignore-not-found"];
                words.extend(&complete);
                plane.try_kubectl(&words)?;
            }
            if open.len() <= most { Ok(()) } else { Err(format!("{} are not: {}", open.len(), open[0])) }
        };
        look().inspect_err(|_| pause(Duration::from_millis(200)))
    });
    names
}

/// The agent and the API server die at random moments while a Deployment changes and Jobs run.
#[test]
fn kills_under_churn_lose_and_double_nothing() {
    let kills = number_from("AGENT_CLUSTER_KILLS", KILLS);
    let seed = number_from("AGENT_CLUSTER_SEED", u64::from(std::process::id()));
    println!("AGENT_CLUSTER_SEED={seed}");
    let mut dice = Dice(seed);
    let mut cluster = Cluster::new();
    let signals = cluster.runtime.scratch().dir("signals");
    let plain = spec("exec sleep 100000");
    cluster.control_plane.apply(&[scaled(&plain, 5, 0), pod("stable", &plain)]);
    let stable = cluster.ready_pods("app=stable", 1);
    let mut complete = BTreeSet::new();
    for kill in 0..kills {
        let replicas = 2 + usize::try_from(dice.below(6)).expect("few");
        cluster.control_plane.apply(&[scaled(&plain, replicas, kill / 3), job(kill, &signals)]);
        pause(Duration::from_millis(dice.below(MOMENT_MILLIS)));
        // The API server takes seconds to come back: it dies less often.
        if dice.below(8) == 0 {
            cluster.control_plane.kill("kube-apiserver");
            pause(Duration::from_millis(dice.below(MOMENT_MILLIS)));
            cluster.control_plane.start_program("kube-apiserver");
            cluster.control_plane.wait_until_ready();
        } else {
            cluster.agent.kill9();
            cluster.agent.start();
        }
        complete.extend(take_complete(&cluster, MOST_OPEN_JOBS));
    }

    cluster.control_plane.apply(&[scaled(&plain, 4, kills)]);
    let plane = &cluster.control_plane;
    complete.extend(take_complete(&cluster, 0));
    assert_eq!(complete.len() as u64, kills);
    let text = fs::read_to_string(signals.join("runs")).expect("they ran");
    let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        *runs.entry(line).or_default() += 1;
    }
    assert_eq!(runs.len() as u64, kills, "{runs:?}");
    assert!(runs.values().all(|count| *count == 1), "doubled: {runs:?}");
    cluster.ready_pods("app=web", 4);
    plane.wait("the pods of the Jobs to be gone", || match plane.pods("default", "app=job")?.len() {
        0 => Ok(()),
        left => Err(format!("{left} are left")),
    });
    plane.wait("the machine and the API server to agree on five", || match all_agree(&cluster)? {
        5 => Ok(()),
        other => Err(format!("{other} run")),
    });
    let now = cluster.ready_pods("app=stable", 1);
    assert_eq!(now[0]["metadata"]["uid"], stable[0]["metadata"]["uid"]);
    let containers = |pod: &Value| pod["status"]["containerStatuses"].clone();
    assert_eq!(containers(&now[0]), containers(&stable[0]), "it is the same container");
    cluster.finish();
}
