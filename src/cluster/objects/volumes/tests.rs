//! Claims and volumes as a server writes them.

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::ClaimedSource;
use serde_json::json;

fn pod(volume: &Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "pod-uid",
            "annotations": {"kubernetes.io/config.source": "cluster"}},
        "spec": {"volumes": [volume],
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
    });
    decode::<Pod>(pod).unwrap().object
}

fn claiming() -> Pod {
    pod(&json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}))
}

fn claim() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "data", "uid": "claim-uid", "managedFields": [{"manager": "x"}]},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pv-1",
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    })
}

fn volume(spec: &Value) -> Value {
    let mut volume = json!({
        "metadata": {"name": "pv-1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "claimRef": {"uid": "claim-uid"}},
    });
    volume["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    volume
}

fn changed(mut value: Value, path: &str, new: Value) -> Value {
    let (parent, field) = path.rsplit_once('/').unwrap();
    value.pointer_mut(parent).unwrap()[field] = new;
    value
}

fn bound(claim: &Value, volume: &Value) -> Result<ClaimedVolume, String> {
    let labels = StringMap::from([("kubernetes.io/hostname".to_owned(), "box".to_owned())]);
    bind(claim, volume, &claiming(), "box", &labels)
}

#[test]
fn a_claim_follows_its_volume() {
    let affinity = |host: &str| {
        let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [host]});
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}})
    };
    let local = volume(&json!({"local": {"path": "/disk"}, "nodeAffinity": affinity("box"),
        "accessModes": ["ReadWriteOncePod"]}));
    let found = bound(&claim(), &local).unwrap();
    assert_eq!(found.source, ClaimedSource::Local { path: "/disk".to_owned(), fs_type: String::new() });
    assert_eq!((found.name.as_str(), found.single_pod, found.read_only), ("pv-1", true, false));
    assert_eq!(
        bound(&claim(), &changed(local, "/spec/nodeAffinity", affinity("other"))).unwrap_err(),
        "MountVolume.NodeAffinity check failed for volume \"pv-1\" : no matching NodeSelectorTerms"
    );
    let host = bound(&claim(), &volume(&json!({"hostPath": {"path": "/srv", "type": "Directory"}}))).unwrap();
    let source = ClaimedSource::HostPath { path: "/srv".to_owned(), type_: "Directory".to_owned() };
    assert_eq!((host.source, host.single_pod), (source, false));
    let nfs =
        json!({"nfs": {"server": "nas", "path": "/e", "readOnly": true}, "mountOptions": ["nolock", "soft"]});
    let nfs = volume(&nfs);
    let annotated = json!({GROUP: "1234", MOUNT_OPTIONS: "hard,vers=3"});
    let annotated = bound(&claim(), &changed(nfs.clone(), "/metadata/annotations", annotated)).unwrap();
    let nfs = bound(&claim(), &nfs).unwrap();
    assert_eq!(nfs.source, ClaimedSource::Nfs { server: "nas".to_owned(), path: "/e".to_owned() });
    assert_eq!((nfs.mount_options, nfs.read_only), (vec!["nolock".to_owned(), "soft".to_owned()], true));
    assert_eq!(annotated.mount_options, ["hard", "vers=3"]);
    assert_eq!((annotated.supplemental_group, nfs.supplemental_group), (Some(1234), None));
    for kind in ["iscsi", "fc"] {
        let source = json!({"lun": 1, "readOnly": true});
        let disk = bound(&claim(), &volume(&json!({kind: source}))).unwrap();
        assert_eq!((disk.source, disk.read_only), (ClaimedSource::Disk { kind, source }, true));
    }
}

#[test]
fn what_cannot_be_bound_says_why() {
    let host = || volume(&json!({"hostPath": {"path": "/srv"}}));
    let deleted = changed(claim(), "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    let protected = changed(deleted.clone(), "/metadata/finalizers", json!([PROTECTION]));
    assert!(bound(&protected, &host()).is_ok(), "as long as pods use it");
    for (claim, volume, message) in [
        (deleted, host(), "PVC is being deleted"),
        (changed(claim(), "/status/phase", json!("Pending")), host(), "PVC is not bound"),
        (changed(claim(), "/spec/volumeName", json!("")), host(), "PVC has empty pvc.Spec.VolumeName"),
        (
            claim(),
            changed(host(), "/metadata/name", json!("pv-2")),
            "failed to fetch PV pv-1 from API server: the answer is \"pv-2\"",
        ),
        (
            claim(),
            changed(host(), "/spec/claimRef", Value::Null),
            "found PV object pv-1 but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
        ),
        (
            claim(),
            changed(host(), "/spec/claimRef/uid", json!("other")),
            "found PV object pv-1 but its pv.Spec.ClaimRef.UID other does not point to claim.UID claim-uid",
        ),
        (
            claim(),
            changed(host(), "/spec/volumeMode", json!("Block")),
            "volume v has volumeMode Block, but is specified in volumeMounts",
        ),
        (
            claim(),
            volume(&json!({"rbd": {"image": "d"}})),
            "failed to get Plugin from volumeSpec for volume \"pv-1\" err=no volume plugin matched; use the CSI driver rbd.csi.ceph.com",
        ),
        (
            claim(),
            volume(&json!({"new": {}})),
            "PV pv-1 is of an unknown kind; this node mounts csi, fc, hostPath, iscsi, local and nfs",
        ),
    ] {
        assert_eq!(bound(&claim, &volume).unwrap_err(), message);
    }
}

#[test]
fn an_ephemeral_claim_belongs_to_its_pod() {
    let pod = pod(&json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}));
    let claim = changed(claim(), "/metadata/name", json!("web-v"));
    assert_eq!(
        volume_name(&claim, &pod).unwrap_err(),
        "PVC ns/web-v was not created for pod ns/web (pod is not owner)"
    );
    let owner = json!([{"kind": "Pod", "uid": "pod-uid", "controller": true}]);
    assert_eq!(volume_name(&changed(claim, "/metadata/ownerReferences", owner), &pod), Ok("pv-1"));
}
