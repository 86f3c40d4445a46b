//! A claim that waits for a provisioner, as the provisioner sees it through the API.

use serde_json::{Value, json};

use super::api_writes::{JSON, Served};
use crate::support::agent::PATIENCE;
use crate::support::kubectl::Kubectl;
use crate::support::wait::wait_for;

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";

#[test]
fn a_provisioner_is_asked_and_its_volume_is_bound() {
    let mut served = Served::new();
    served.create(
        "/apis/storage.k8s.io/v1/storageclasses",
        &json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disk"},
            "provisioner": "disk.example.com", "volumeBindingMode": "WaitForFirstConsumer"}),
    );
    let claim = served.create(
        CLAIMS,
        &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
            "storageClassName": "disk", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}),
    );
    let kubectl = Kubectl::of(&served.api, &served.node.agent, served.node.scratch.path(), "admin", &[]);
    let replaced = kubectl.run(&["label", "pvc", "data", "tier=edge"]);
    assert!(replaced.ok && replaced.err.is_empty(), "its class is here: {replaced:?}");
    let one = format!("{CLAIMS}/data");
    let (_, waiting) = served.get(&one);
    assert_eq!(
        (&waiting["status"]["phase"], &waiting["spec"]["volumeName"]),
        (&json!("Pending"), &Value::Null)
    );
    let (_, node) = served.get("/api/v1/nodes");
    let asked = &waiting["metadata"]["annotations"];
    assert_eq!(asked["volume.kubernetes.io/storage-provisioner"], "disk.example.com", "{waiting}");
    assert_eq!(
        asked["volume.kubernetes.io/selected-node"], node["items"][0]["metadata"]["name"],
        "{waiting}"
    );

    served.create(
        VOLUMES,
        &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-1",
            "annotations": {"pv.kubernetes.io/provisioned-by": "disk.example.com"}}, "spec": {
            "storageClassName": "disk", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data",
                "uid": claim["metadata"]["uid"]},
            "csi": {"driver": "disk.example.com", "volumeHandle": "h"}}}),
    );
    let phase = |path: &str, wanted: &str| {
        wait_for(wanted, PATIENCE, || match served.get(path).1 {
            found if found["status"]["phase"] == wanted => Ok(found),
            other => Err(other.to_string()),
        })
    };
    let bound = phase(&one, "Bound");
    assert_eq!(bound["spec"]["volumeName"], "pvc-1");
    assert_eq!(bound["metadata"]["annotations"], json!({"pv.kubernetes.io/bind-completed": "yes"}));
    let volume = format!("{VOLUMES}/pvc-1");
    phase(&volume, "Bound");
    served.ask("DELETE", &one, JSON, &json!({}));
    phase(&volume, "Released");
    served.node.agent.assert_alive();
}

#[test]
fn a_claim_grows_as_its_class_and_its_volume_allow() {
    let mut served = Served::new();
    let classes = [("fixed", "agent.edge/directory", false), ("wide", "agent.edge/directory", true)];
    for (name, provisioner, allows) in [&classes[..], &[("disk", "disk.example.com", true)]].concat() {
        served.create(
            "/apis/storage.k8s.io/v1/storageclasses",
            &json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                "provisioner": provisioner, "allowVolumeExpansion": allows}),
        );
    }
    for (name, class) in [
        ("plain", Value::Null),
        ("unknown", json!("local-path")),
        ("fixed", json!("fixed")),
        ("wide", json!("wide")),
        ("waits", json!("disk")),
    ] {
        served.create(
            CLAIMS,
            &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}),
        );
    }
    let resize = |name: &str, size: &str| {
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let answer = served.ask("PATCH", &format!("{CLAIMS}/{name}"), "application/merge-patch+json", &patch);
        (answer.0, answer.1["status"]["capacity"]["storage"].clone(), answer.1["message"].to_string())
    };
    for name in ["plain", "unknown", "wide"] {
        let (code, capacity, message) = resize(name, "2Gi");
        assert_eq!((code, capacity), (200, json!("2Gi")), "{name}: {message}");
    }
    let (code, _, message) = resize("plain", "1Gi");
    assert_eq!(code, 422);
    assert!(message.contains("storage: Forbidden: field can not be less than status.capacity"), "{message}");
    let dynamic = "only dynamically provisioned pvc can be resized";
    for (name, why) in [("fixed", dynamic), ("waits", "Only bound persistent volume claims can be expanded")]
    {
        let (code, _, message) = resize(name, "2Gi");
        assert_eq!(code, 403, "{message}");
        assert!(message.contains(why), "{name}: {message}");
        assert_eq!(resize(name, "1Gi").0, 200, "nothing changes");
    }
    served.create(
        VOLUMES,
        &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {
            "storageClassName": "disk", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "waits"},
            "hostPath": {"path": "/srv/pv"}}}),
    );
    let one = format!("{CLAIMS}/waits");
    wait_for("Bound", PATIENCE, || match served.get(&one).1 {
        found if found["status"]["phase"] == "Bound" => Ok(()),
        other => Err(other.to_string()),
    });
    let patch = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let (code, answer) = served.ask("PATCH", &one, "application/merge-patch+json", &patch);
    assert!(code == 403 && answer["message"].to_string().contains(dynamic), "{answer}");
    served.node.agent.assert_alive();
}
