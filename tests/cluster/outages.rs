//! The way to the API server is lost while pods go on, and comes back. `AGENT_CLUSTER_OUTAGE` is its length in seconds.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, said};
use super::{Cluster, condition, number_from, pod, spec};
use crate::support::agent::{NODE, PATIENCE, binary};
use crate::support::containerd::Instance;
use crate::support::wait::{stays, wait_for, wait_until};

/// Long enough for the cluster to call the node lost.
const SECONDS: u64 = 60;

/// A container's script that waits for a file in the test's directory.
const WAIT: &str = "wait() { until [ -e /signals/$1 ]; do sleep 0.1; done; }; ";

/// A pod's spec whose script sees the test's signals.
fn signalled(cluster: &Cluster, script: &str) -> Value {
    let mut spec = spec(&format!("{WAIT}{script}"));
    let directory = cluster.runtime.scratch().dir("signals");
    spec["volumes"] = json!([{ "name": "signals", "hostPath": { "path": directory } }]);
    spec["containers"][0]["volumeMounts"] = json!([{ "name": "signals", "mountPath": "/signals" }]);
    spec
}

fn signal(cluster: &Cluster, name: &str) {
    fs::write(cluster.path("signals").join(name), "").expect("write a signal");
}

/// A Job of one pod, which is not tried again.
fn job(name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["restartPolicy"] = json!("Never");
    let template = json!({ "metadata": { "labels": { "app": name } }, "spec": spec });
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name },
        "spec": { "backoffLimit": 0, "template": template } })
}

/// The containers of a pod that run.
fn running(cluster: &Cluster, pod: &str) -> Vec<Instance> {
    let all = cluster.runtime.instances().into_iter();
    all.filter(|one| one.pod.starts_with(pod) && !one.is_sandbox() && one.pid.is_some()).collect()
}

fn wait_for_link(cluster: &Cluster, state: &str) {
    wait_for(&format!("the link to be {state}"), PATIENCE, || {
        let status = cluster.agent.status_json()?;
        let link = status["cluster"]["link"]["state"].as_str().unwrap_or_default();
        if link == state { Ok(()) } else { Err(status["cluster"].to_string()) }
    });
}

/// Pods that crash, end and are deleted while `lose` has taken the API server away, until `restore` brings it back.
fn pods_go_on(lose: fn(&mut ControlPlane), restore: fn(&mut ControlPlane)) {
    let mut cluster = Cluster::new();
    let crasher = signalled(&cluster, "wait crash; rm /signals/crash; exit 7");
    let batch = signalled(&cluster, "wait finish; echo run >> /signals/runs; exit 0");
    let failing = signalled(&cluster, "wait finish; exit 5");
    let mut doomed = signalled(&cluster, "trap 'wait leave; exit 0' TERM; while :; do sleep 0.1; done");
    doomed["terminationGracePeriodSeconds"] = json!(3000);
    cluster.control_plane.apply(&[
        pod("stable", &spec("exec sleep 100000")),
        pod("crasher", &crasher),
        pod("doomed", &doomed),
        job("batch", &batch),
        job("failing", &failing),
    ]);
    for name in ["stable", "crasher", "doomed", "batch", "failing"] {
        cluster.ready_pods(&format!("app={name}"), 1);
    }
    let stable = cluster.ready_pods("app=stable", 1);
    let instances = running(&cluster, "stable");
    cluster.control_plane.kubectl(&["delete", "pod", "doomed", "--wait=false"]);
    wait_until("the deletion to be known", PATIENCE, || {
        cluster
            .agent
            .cli(&["get", "pods", "doomed", "-o", "json"])
            .is_ok_and(|text| text.contains("deletionTimestamp"))
    });

    lose(&mut cluster.control_plane);
    for crash in 1..=2 {
        let before = running(&cluster, "crasher");
        signal(&cluster, "crash");
        wait_until(&format!("crash {crash} to be answered with a restart"), PATIENCE, || {
            let after = running(&cluster, "crasher");
            after.len() == 1 && after != before
        });
    }
    signal(&cluster, "finish");
    signal(&cluster, "leave");
    wait_until("the others to have ended", PATIENCE, || {
        ["doomed", "batch", "failing"].iter().all(|name| running(&cluster, name).is_empty())
    });
    wait_for_link(&cluster, "offline");
    stays("what runs", Duration::from_secs(number_from("AGENT_CLUSTER_OUTAGE", SECONDS)), || {
        let now = running(&cluster, "stable");
        let ended = ["doomed", "batch", "failing"].iter().all(|name| running(&cluster, name).is_empty());
        if now == instances && ended { Ok(()) } else { Err(format!("{:?}", cluster.runtime.instances())) }
    });

    restore(&mut cluster.control_plane);
    cluster.control_plane.wait_until_ready();
    wait_for_link(&cluster, "online");
    everything_is_reported(&cluster, &stable);
    cluster.wait_until_ready();
    cluster.control_plane.apply(&[pod("later", &spec("exec sleep 1000"))]);
    cluster.ready_pods("app=later", 1);
    cluster.finish();
}

fn everything_is_reported(cluster: &Cluster, stable: &[Value]) {
    let plane = &cluster.control_plane;
    plane.wait("the deletion to be over", || match plane.pods("default", "app=doomed")? {
        pods if pods.is_empty() => Ok(()),
        pods => Err(format!("{pods:?}")),
    });
    for (name, end) in [("batch", "Complete"), ("failing", "Failed")] {
        plane.wait(&format!("the job {name} to be {end}"), || {
            let job = plane.get(&format!("/apis/batch/v1/namespaces/default/jobs/{name}"))?;
            if condition(&job, end) == "True" { Ok(()) } else { Err(job["status"].to_string()) }
        });
    }
    assert_eq!(fs::read_to_string(cluster.path("signals/runs")).expect("it ran"), "run\n");
    let failing = plane.pods("default", "app=failing").expect("a list");
    assert_eq!(failing.len(), 1, "{failing:?}");
    assert_eq!(failing[0]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 5);
    plane.wait("the restarts to be told", || {
        let pods = plane.pods("default", "app=crasher")?;
        let status = &pods[0]["status"]["containerStatuses"][0];
        let is_told = status["restartCount"] == 2
            && status["lastState"]["terminated"]["exitCode"] == 7
            && status["state"]["running"].is_object();
        if is_told { Ok(()) } else { Err(status.to_string()) }
    });
    let now = cluster.ready_pods("app=stable", 1);
    assert_eq!(now[0]["metadata"]["uid"], stable[0]["metadata"]["uid"]);
    let containers = |pod: &Value| pod["status"]["containerStatuses"].clone();
    assert_eq!(containers(&now[0]), containers(&stable[0]), "it is the same container");
}

#[test]
fn pods_go_on_while_the_api_server_is_dead() {
    pods_go_on(|plane| plane.kill("kube-apiserver"), |plane| plane.start_program("kube-apiserver"));
}

/// Its connections stay open and say nothing.
#[test]
fn pods_go_on_while_the_api_server_is_frozen() {
    pods_go_on(
        |plane| plane.signal("kube-apiserver", Signal::SIGSTOP),
        |plane| plane.signal("kube-apiserver", Signal::SIGCONT),
    );
}

/// The cluster goes on without the node, and the agent is killed meanwhile: what others have changed is done afterwards.
#[test]
fn what_others_changed_is_done_when_the_link_is_back() {
    let mut cluster = Cluster::new();
    let mut reader = spec("exec sleep 100000");
    reader["volumes"] = json!([{ "name": "words", "configMap": { "name": "words" } }]);
    reader["containers"][0]["volumeMounts"] = json!([{ "name": "words", "mountPath": "/words" }]);
    let words = |text: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "words" }, "data": { "word": text } });
    let plain = spec("exec sleep 100000");
    cluster.control_plane.apply(&[
        words("one"),
        pod("reader", &reader),
        pod("doomed", &plain),
        pod("forced", &plain),
    ]);
    for name in ["reader", "doomed", "forced"] {
        cluster.ready_pods(&format!("app={name}"), 1);
    }

    cluster.control_plane.cut(true);
    wait_for_link(&cluster, "offline");
    let plane = &cluster.control_plane;
    let mut late = plain.clone();
    late["nodeName"] = json!(NODE);
    plane.apply(&[words("two"), pod("late", &late)]);
    plane.kubectl(&["delete", "pod", "doomed", "--wait=false"]);
    plane.kubectl(&["delete", "pod", "forced", "--force", "--grace-period=0"]);
    // The same name once more: another pod.
    plane.apply(&[pod("forced", &late)]);
    let second = plane.pods("default", "app=forced").expect("a list")[0]["metadata"]["uid"].clone();
    let before: Vec<_> = ["reader", "doomed", "forced"].map(|name| running(&cluster, name)).concat();
    assert_eq!(before.len(), 3, "{before:?}");
    cluster.agent.kill9();
    cluster.agent.start();
    stays("what the node has", Duration::from_secs(5), || {
        let now: Vec<_> = ["reader", "doomed", "forced"].map(|name| running(&cluster, name)).concat();
        if now == before { Ok(()) } else { Err(format!("{now:?}")) }
    });

    cluster.control_plane.cut(false);
    wait_for_link(&cluster, "online");
    let plane = &cluster.control_plane;
    cluster.ready_pods("app=late", 1);
    let forced = cluster.ready_pods("app=forced", 1);
    assert_eq!(forced[0]["metadata"]["uid"], second);
    plane.wait("the deletion to be over", || match plane.pods("default", "app=doomed")? {
        pods if pods.is_empty() => Ok(()),
        pods => Err(format!("{pods:?}")),
    });
    plane.wait("the file to change", || {
        match plane.try_kubectl(&["exec", "reader", "--", "cat", "/words/word"])?.as_str() {
            "two" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    wait_until("only the second pod of the name to run", PATIENCE, || {
        let now = running(&cluster, "forced");
        now.len() == 1 && second == now[0].uid && running(&cluster, "doomed").is_empty()
    });
    assert_eq!(running(&cluster, "reader"), before[..1]);
    cluster.finish();
}

/// A backup of the cluster does not know the newest pods: they stay until someone says that it is right.
#[test]
fn an_older_backup_of_the_cluster_does_not_empty_the_node() {
    let mut cluster = Cluster::new();
    let plain = spec("exec sleep 100000");
    cluster.control_plane.apply(&[pod("older", &plain)]);
    cluster.ready_pods("app=older", 1);
    cluster.control_plane.snapshot("backup", false);
    cluster.wait_until_ready();
    // What the backup is older than: the agent has seen a later version, too.
    cluster.control_plane.apply(&[pod("newer", &plain)]);
    cluster.ready_pods("app=newer", 1);
    let before = [running(&cluster, "older"), running(&cluster, "newer")].concat();
    assert_eq!(before.len(), 2, "{before:?}");

    cluster.control_plane.snapshot("backup", true);
    wait_for("the guard to hold", PATIENCE, || match cluster.agent.problems() {
        Ok(text) if text.contains("ClusterReplaced") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    stays("what the node has", Duration::from_secs(5), || {
        let now = [running(&cluster, "older"), running(&cluster, "newer")].concat();
        if now == before { Ok(()) } else { Err(format!("{now:?}")) }
    });
    let mut accept = Command::new(binary());
    accept.args(["source", "accept", "cluster", "--socket"]).arg(cluster.agent.socket());
    said(&mut accept).expect("the guard waits for that");
    wait_until("the pod that the cluster does not know to end", PATIENCE, || {
        running(&cluster, "newer").is_empty()
    });
    assert_eq!(running(&cluster, "older"), before[..1]);
    cluster.wait_until_ready();
    cluster.control_plane.apply(&[pod("latest", &plain)]);
    cluster.ready_pods("app=latest", 1);
    cluster.finish();
}
