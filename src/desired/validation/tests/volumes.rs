//! Volumes and mounts.

use serde_json::{Value, json};

use super::table;

#[test]
fn mount_rules() {
    let mount = |more: Value, expected: &'static str| {
        let mut mount = json!({"name": "v", "mountPath": "/v"});
        mount.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("volumeMounts", json!([mount]), expected)
    };
    table(
        "/containers/0",
        vec![
            mount(json!({"name": "w"}), "spec.containers[0].volumeMounts[0].name: Not found: \"w\""),
            mount(json!({"name": ""}), "spec.containers[0].volumeMounts[0].name: Required value"),
            mount(json!({"mountPath": ""}), "spec.containers[0].volumeMounts[0].mountPath: Required value"),
            mount(
                json!({"subPath": "a/../b"}),
                "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"a/../b\": must not contain '..'",
            ),
            mount(json!({"subPath": "a..b/..c"}), ""),
            mount(
                json!({"subPathExpr": "/a"}),
                "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"/a\": must be a relative path",
            ),
            mount(
                json!({"subPath": "a", "subPathExpr": "b"}),
                "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"b\": subPathExpr and subPath are mutually exclusive",
            ),
            mount(
                json!({"mountPropagation": "Bidirectional"}),
                "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
            ),
            mount(
                json!({"mountPropagation": "Sideways"}),
                "spec.containers[0].volumeMounts[0].mountPropagation: Unsupported value: \"Sideways\": …",
            ),
            mount(
                json!({"recursiveReadOnly": "Enabled"}),
                "spec.containers[0].volumeMounts[0].recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
            ),
            mount(json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}), ""),
            (
                "volumeMounts",
                json!([{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]),
                "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique",
            ),
            (
                "volumeDevices",
                json!([{"name": "v", "devicePath": "/d"}]),
                "spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": can only use volume source type of…",
            ),
        ],
    );
}

#[test]
fn volume_rules() {
    let volume = |source: Value, expected: &'static str| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        ("volumes", json!([volume]), expected)
    };
    table(
        "",
        vec![
            (
                "volumes",
                json!([{"name": "v"}, {"name": "v"}]),
                "spec.volumes[1].name: Duplicate value: \"v\"",
            ),
            ("volumes", json!([{"name": "v"}, {}]), "spec.volumes[1].name: Required value"),
            volume(json!({}), ""),
            volume(
                json!({"emptyDir": {}, "hostPath": {"path": "/x"}}),
                "spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type",
            ),
            volume(json!({"hostPath": {}}), "spec.volumes[0].hostPath.path: Required value"),
            volume(
                json!({"hostPath": {"path": "/a/../b"}}),
                "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            ),
            volume(
                json!({"hostPath": {"path": "/a", "type": "Pipe"}}),
                "spec.volumes[0].hostPath.type: Unsupported value: \"Pipe\": …",
            ),
            volume(
                json!({"emptyDir": {"medium": "Disk"}}),
                "spec.volumes[0].emptyDir.medium: Unsupported value: \"Disk\": …",
            ),
            volume(
                json!({"emptyDir": {"sizeLimit": "-1"}}),
                "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            ),
            volume(json!({"secret": {}}), "spec.volumes[0].secret.secretName: Required value"),
            volume(
                json!({"secret": {"secretName": "s", "defaultMode": 512}}),
                "spec.volumes[0].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            ),
            volume(json!({"configMap": {}}), "spec.volumes[0].configMap.name: Required value"),
            volume(
                json!({"configMap": {"name": "c", "items": [{"path": "p"}]}}),
                "spec.volumes[0].configMap.items[0].key: Required value",
            ),
            volume(
                json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "..data"}]}}),
                "spec.volumes[0].configMap.items[0].path: Invalid value: \"..data\": must not start with '..'",
            ),
            volume(
                json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "/p", "mode": 1}]}}),
                "spec.volumes[0].configMap.items[0].path: Invalid value: \"/p\": must be a relative path",
            ),
            volume(
                json!({"configMap": {"name": "c", "items": [{"key": "a", "path": "p"}, {"key": "b", "path": "p"}]}}),
                "",
            ),
            volume(
                json!({"downwardAPI": {"items": [{"path": "p"}]}}),
                "spec.volumes[0].downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required",
            ),
            volume(
                json!({"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
                "spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: \"status.podIP\": …",
            ),
            volume(
                json!({"downwardAPI": {"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
                "spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName: Required value",
            ),
            volume(
                json!({"projected": {"sources": [{}]}}),
                "spec.volumes[0].projected.sources[0]: Required value: must specify a volume type",
            ),
            volume(
                json!({"projected": {"sources": [{"secret": {"name": "s", "items": [{"key": "a", "path": "p"}]}}, {"configMap": {"name": "c", "items": [{"key": "a", "path": "p"}]}}]}}),
                "spec.volumes[0].projected.sources[1].configMap.items[0].path: Invalid value: \"p\": conflicting duplicate paths",
            ),
            volume(
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}),
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
            ),
            volume(
                json!({"persistentVolumeClaim": {}}),
                "spec.volumes[0].persistentVolumeClaim.claimName: Required value",
            ),
            volume(
                json!({"nfs": {"server": "s", "path": "p"}}),
                "spec.volumes[0].nfs.path: Invalid value: \"p\": must be an absolute path",
            ),
            volume(json!({"image": {}}), "spec.volumes[0].image.reference: Required value"),
        ],
    );
}

#[test]
fn retired_volume_kinds_have_the_api_servers_rules() {
    let row = |source: Value, expected: &'static str| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        ("volumes", json!([volume]), expected)
    };
    let disk = |kind: &str, uri: &str| json!({"azureDisk": {"diskName": "d", "diskURI": uri, "kind": kind}});
    table(
        "",
        vec![
            row(json!({"gitRepo": {}}), "spec.volumes[0].gitRepo.repository: Required value"),
            row(
                json!({"gitRepo": {"repository": "r", "directory": "/d"}}),
                "spec.volumes[0].gitRepo.directory: Invalid value: \"/d\": must be a relative path",
            ),
            row(json!({"gitRepo": {"repository": "r"}}), ""),
            row(
                json!({"rbd": {"monitors": [], "image": "i"}}),
                "spec.volumes[0].rbd.monitors: Required value",
            ),
            row(json!({"cephfs": {"monitors": ["m"]}}), ""),
            row(
                json!({"awsElasticBlockStore": {"volumeID": "v", "partition": 256}}),
                "spec.volumes[0].awsElasticBlockStore.partition: Invalid value: 256: must be between 1 and 255, inclusive",
            ),
            row(
                json!({"cinder": {"volumeID": "v", "secretRef": {}}}),
                "spec.volumes[0].cinder.secretRef.name: Required value",
            ),
            row(
                json!({"flocker": {}}),
                "spec.volumes[0].flocker: Required value: one of datasetName and datasetUUID is required",
            ),
            row(
                json!({"flexVolume": {"driver": "d/e", "options": {"x.K8s.io/y": "z"}}}),
                "spec.volumes[0].flexVolume.options[x.K8s.io/y]: Invalid value: \"x.K8s.io/y\": …",
            ),
            row(json!({"quobyte": {"registry": "a:1,[::1]:2", "volume": "v"}}), ""),
            row(
                json!({"quobyte": {"registry": "a:1,b", "volume": "v"}}),
                "spec.volumes[0].quobyte.registry: Invalid value: \"a:1,b\": …",
            ),
            row(
                json!({"storageos": {"volumeName": "A_b"}}),
                "spec.volumes[0].storageos.volumeName: Invalid value: \"A_b\": …",
            ),
            row(disk("Managed", "/subscriptions/s"), ""),
            row(
                disk("Managed", "https://x"),
                "spec.volumes[0].azureDisk.diskURI: Unsupported value: \"https://x\": …",
            ),
            row(
                disk("Large", "https://x"),
                "spec.volumes[0].azureDisk.kind: Unsupported value: \"Large\": …",
            ),
        ],
    );
}

#[test]
fn the_claim_of_an_ephemeral_volume_has_the_rules_of_claims() {
    let row = |template: Value, expected: &'static str| {
        let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": template}});
        ("volumes", json!([volume]), expected)
    };
    let spec = |more: Value| {
        let mut spec =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": spec})
    };
    table(
        "",
        vec![
            row(spec(json!({})), ""),
            (
                "volumes",
                json!([{"name": "v", "ephemeral": {}}]),
                "spec.volumes[0].ephemeral.volumeClaimTemplate…",
            ),
            row(
                spec(json!({"accessModes": []})),
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes: Required value: …",
            ),
            row(
                spec(json!({"resources": {}})),
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
            ),
            row(
                spec(json!({"volumeName": "p v"})),
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.volumeName: Invalid value: \"p v\": …",
            ),
        ],
    );
    let long = json!([{"name": "a".repeat(63), "ephemeral": {"volumeClaimTemplate": spec(json!({}))}}]);
    let mut pod = super::base();
    pod["metadata"]["name"] = json!("b".repeat(200));
    pod["spec"]["volumes"].as_array_mut().unwrap().extend(long.as_array().unwrap().clone());
    let errors = super::errors_of(pod);
    assert!(errors.len() == 1 && errors[0].contains("PVC name"), "{errors:?}");
}
