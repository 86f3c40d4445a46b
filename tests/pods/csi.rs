//! Volumes of a CSI driver on a node without a cluster, with kubectl: bound to claims, and inline.

use std::fs;

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::Api;
use crate::support::csi_driver::{CsiDriver, DRIVER, FILE};
use crate::support::kubectl::Kubectl;
use crate::support::runtime::on_both_runtimes;
use crate::support::wait::wait_for;

/// A volume, a claim of its class, the Secret to stage it, and what the driver says of itself.
fn objects() -> [Value; 4] {
    let capacity = json!({ "storage": "1Gi" });
    [
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "key" },
            "stringData": { "password": "secret" } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv-1" }, "spec": {
            "capacity": capacity, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "csi": { "driver": DRIVER, "volumeHandle": "h1", "volumeAttributes": { "pool": "fast" },
                "nodeStageSecretRef": { "name": "key", "namespace": "default" } },
        } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": capacity },
        } }),
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": { "name": DRIVER }, "spec": {
            "attachRequired": false, "podInfoOnMount": true, "tokenRequests": [{ "audience": "vault" }],
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        } }),
    ]
}

fn a_csi_driver_mounts_volumes_without_a_cluster() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    node.agent.start();
    api.wait(&mut node.agent);
    let directory = node.runtime.scratch().path().to_owned();
    let kubectl = Kubectl::of(&api, &node.agent, &directory, "admin", &[]);
    let apply = |documents: &[Value]| {
        let file = directory.join("list.json");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": documents });
        fs::write(&file, list.to_string()).expect("write");
        kubectl.out(&["apply", "-f", &file.to_string_lossy()]);
    };
    let reader = |node: &Node, name: &str, volume: Value| {
        let mut pod = node.pod(name, &format!("cat /data/{FILE} && echo && exec sleep 1000"));
        pod["spec"]["volumes"] = json!([volume]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
        pod
    };
    apply(&objects());
    let claimed = json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } });
    apply(&[reader(&node, "one-edge", claimed)]);
    wait_for("the event of the pod that waits", PATIENCE, || {
        let events = kubectl.out(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
        let why = "driver name csi.example.com not found in the list of registered CSI drivers";
        if events.contains(why) { Ok(()) } else { Err(events) }
    });
    let field = |of: &[&str], path: &str| {
        let path = format!("jsonpath={path}");
        kubectl.out(&[&["get"], of, &["-o", &path]].concat())
    };
    assert_eq!(field(&["pvc", "data"], "{.status.phase} {.spec.volumeName}"), "Bound pv-1");
    assert_eq!(field(&["pv", "pv-1"], "{.status.phase} {.spec.claimRef.name}"), "Bound data");

    let driver = CsiDriver::start(&node.agent.root_dir());
    let staged = driver.wait("NodeStageVolume");
    assert_eq!(staged["secrets"]["password"], "secret", "{staged}");
    assert_eq!(driver.wait("NodePublishVolume")["context"]["pool"], "fast");
    node.running("one");
    let logs = |pod: &str| {
        wait_for("the log", PATIENCE, || match kubectl.run(&["logs", pod]) {
            said if said.out.ends_with('\n') => Ok(said.out),
            said => Err(format!("{said:?}")),
        })
    };
    assert_eq!(logs("one-edge"), "h1\n");

    let attributes = json!({ "size": "1" });
    let inline = json!({ "name": "data", "csi": { "driver": DRIVER, "volumeAttributes": attributes } });
    apply(&[reader(&node, "inline-edge", inline)]);
    let published = driver.wait("NodePublishVolume");
    assert_eq!(published["context"]["csi.storage.k8s.io/pod.name"], "inline-edge");
    let tokens = published["context"]["csi.storage.k8s.io/serviceAccount.tokens"].as_str();
    assert!(tokens.is_some_and(|tokens| tokens.contains("\"vault\"")), "{published}");
    node.running("inline");
    assert!(logs("inline-edge").starts_with("csi-"));

    node.agent.kill9();
    node.agent.start();
    api.wait(&mut node.agent);
    node.running("one");
    kubectl.out(&["delete", "pod", "one-edge", "inline-edge"]);
    driver.wait("NodeUnstageVolume");
    let root = node.agent.root_dir().display().to_string();
    wait_for("the mounts to be gone", PATIENCE, || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
        let left = mounts.lines().filter(|line| line.contains(&root) && line.contains("/mount "));
        let left: Vec<&str> = left.collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    kubectl.out(&["delete", "pvc", "data"]);
    wait_for("the volume without its claim", PATIENCE, || match field(&["pv", "pv-1"], "{.status.phase}") {
        phase if phase == "Released" => Ok(()),
        phase => Err(phase),
    });
    kubectl.out(&["delete", "pv", "pv-1"]);
}

on_both_runtimes! {
    a_csi_driver_mounts_volumes_without_a_cluster,
}
