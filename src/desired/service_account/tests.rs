#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use serde_json::json;

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{ObjectKind, wire};

const UID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn pod(spec: Value) -> Pod {
    decode(json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec})).unwrap().object
}

fn account(body: Value) -> PodAccount {
    let mut object = json!({"metadata": {"name": "robot", "namespace": "ns"}});
    object.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    PodAccount::of(&wire::from_value(ObjectKind::ServiceAccount, object).unwrap())
}

fn admitted(spec: Value, of: Value) -> Value {
    let mut pod = pod(spec);
    admit(&mut pod, &account(of), UID);
    json!(pod.spec)
}

#[test]
fn a_pod_gets_token_certificate_and_namespace() {
    let spec = admitted(
        json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}),
        json!({"imagePullSecrets": [{"name": "pull"}]}),
    );
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    let volume = &spec["volumes"][0];
    let name = volume["name"].as_str().unwrap();
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    let wanted = json!({"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]});
    assert_eq!(volume["projected"], wanted);
    for container in [&spec["containers"][0], &spec["initContainers"][0]] {
        let mount = &container["volumeMounts"][0];
        assert_eq!((&mount["name"], &mount["mountPath"]), (&json!(name), &json!(MOUNT_PATH)));
        assert_eq!(mount["readOnly"], true);
    }
    let other = suffix("0f8fad5b-d9cb-469f-a165-70867728951e");
    assert_ne!(other, suffix(UID));
}

#[test]
fn pod_then_account_say_whether_credentials_are_mounted() {
    let no = json!({"automountServiceAccountToken": false});
    let yes = json!({"automountServiceAccountToken": true});
    for (of_pod, of_account, is_mounted) in [
        (json!({}), json!({}), true),
        (no.clone(), json!({}), false),
        (json!({}), no.clone(), false),
        (yes.clone(), no.clone(), true),
        (no, yes, false),
    ] {
        let mut spec = json!({"containers": [{"name": "a"}], "serviceAccountName": "robot"});
        spec.as_object_mut().unwrap().extend(of_pod.as_object().unwrap().clone());
        let spec = admitted(spec, of_account.clone());
        assert_eq!(spec["serviceAccountName"], "robot");
        assert_eq!(spec.get("volumes").is_some(), is_mounted, "{of_pod} {of_account}");
    }
}

#[test]
fn what_a_pod_mounts_itself_stays() {
    let own = json!([{"name": "own", "mountPath": MOUNT_PATH}]);
    let spec = admitted(
        json!({"containers": [{"name": "a", "volumeMounts": own}, {"name": "b"}],
            "volumes": [{"name": "own", "emptyDir": {}}], "imagePullSecrets": [{"name": "mine"}]}),
        json!({"imagePullSecrets": [{"name": "pull"}]}),
    );
    assert_eq!(spec["containers"][0]["volumeMounts"].as_array().unwrap().len(), 1);
    assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
    assert_eq!(
        (spec["volumes"].as_array().unwrap().len(), &spec["imagePullSecrets"]),
        (2, &json!([{"name": "mine"}]))
    );
    let all = admitted(
        json!({"containers": [{"name": "a", "volumeMounts": own}], "volumes": [{"name": "own", "emptyDir": {}}]}),
        json!({}),
    );
    assert_eq!(all["volumes"].as_array().unwrap().len(), 1, "no container needs it");
    // A pod that was written out by another cluster.
    let again = admitted(
        json!({"containers": [{"name": "a"}], "volumes": [{"name": "kube-api-access-old", "emptyDir": {}}]}),
        json!({}),
    );
    assert_eq!(again["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(again["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-old");
}

#[test]
fn an_unknown_account_is_named_in_upstreams_words() {
    let of = |spec: Value| not_found(&pod(spec));
    let said = "error looking up service account ns/robot: serviceaccount \"robot\" not found";
    assert_eq!(of(json!({"serviceAccountName": "robot"})), said);
    assert_eq!(of(json!({"serviceAccount": "robot"})), said);
}
