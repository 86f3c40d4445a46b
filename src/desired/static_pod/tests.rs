use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;

fn manifest() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "c", "image": "x:1"}]}})
}

fn file(path: &str) -> ManifestOrigin {
    ManifestOrigin { source: PodSource::File, location: path.to_owned() }
}

fn url(url: &str) -> ManifestOrigin {
    ManifestOrigin { source: PodSource::Http, location: url.to_owned() }
}

fn try_prepare(manifest: Value, origin: &ManifestOrigin, node: &str) -> Result<Pod, StaticPodError> {
    prepare(decode::<Pod>(manifest).unwrap().object, origin, node)
}

fn uid(manifest: Value, origin: &ManifestOrigin, node: &str) -> String {
    try_prepare(manifest, origin, node).unwrap().metadata.uid.to_string()
}

#[test]
fn static_pod_gets_name_namespace_node_uid_and_tolerations() {
    let pod = try_prepare(manifest(), &file("/m/web.yaml"), "edge-1").unwrap();
    assert_eq!(pod.metadata.name, "web-edge-1");
    assert_eq!(pod.metadata.namespace, "default");
    assert_eq!(pod.spec.node_name, "edge-1");
    assert_eq!(pod.status.phase, "Pending");
    assert_eq!(pod.metadata.annotations[CONFIG_HASH_ANNOTATION], pod.metadata.uid.to_string());
    assert!(pod.metadata.uid.as_str().len() == 32);
    assert!(
        pod.metadata.uid.as_str().bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    );
    assert_eq!(
        serde_json::to_value(&pod.spec.tolerations).unwrap(),
        json!([{"operator": "Exists", "effect": "NoExecute"}])
    );
    let named = try_prepare(
        json!({"metadata": {"name": "web-edge-1", "namespace": "tools"}, "spec": manifest()["spec"]}),
        &file("/m"),
        "edge-1",
    );
    let named = named.unwrap();
    assert_eq!(
        (named.metadata.name.as_str(), named.metadata.namespace.as_str()),
        ("web-edge-1-edge-1", "tools")
    );
}

#[test]
fn only_pods_from_files_tolerate_every_taint_and_only_once() {
    assert!(try_prepare(manifest(), &url("http://x/"), "n").unwrap().spec.tolerations.is_empty());
    let mut written = manifest();
    written["spec"]["tolerations"] = json!([{"operator": "Exists", "effect": "NoExecute"}]);
    assert_eq!(try_prepare(written, &file("/m"), "n").unwrap().spec.tolerations.len(), 1);
}

#[test]
fn a_given_uid_is_kept() {
    let mut written = manifest();
    written["metadata"]["uid"] = json!("my-own");
    let pod = try_prepare(written, &file("/m"), "n").unwrap();
    assert_eq!(pod.metadata.uid.as_str(), "my-own");
    assert_eq!(pod.metadata.annotations[CONFIG_HASH_ANNOTATION], "my-own");
}

#[test]
fn uid_ignores_explicit_defaults_and_changes_with_all_else() {
    let (origin, node) = (file("/m/web.yaml"), "n");
    let first = uid(manifest(), &origin, node);
    let mut spelled = manifest();
    spelled["spec"]["restartPolicy"] = json!("Always");
    spelled["metadata"]["creationTimestamp"] = Value::Null;
    assert_eq!(uid(spelled, &origin, node), first);
    let mut seen = BTreeSet::from([first]);
    for (pointer, value) in [
        ("/metadata/name", json!("web2")),
        ("/metadata/namespace", json!("default")),
        ("/metadata/labels", json!({"a": "b"})),
        ("/metadata/annotations", json!({"a": "b"})),
        ("/spec/hostNetwork", json!(true)),
        ("/spec/affinity", json!({"nodeAffinity": {}})),
        ("/spec/containers", json!([{"name": "c", "image": "x:2"}])),
        ("/spec/terminationGracePeriodSeconds", json!(31)),
    ] {
        let mut changed = manifest();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        assert!(seen.insert(uid(changed, &origin, node)), "{pointer}");
    }
    assert!(seen.insert(uid(manifest(), &file("/m/web2.yaml"), node)));
    assert!(seen.insert(uid(manifest(), &url("/m/web.yaml"), node)));
    assert!(seen.insert(uid(manifest(), &origin, "n2")));
    assert_ne!(
        uid(manifest(), &file("file/m"), "x"),
        uid(manifest(), &file("/m"), "xfile"),
        "parts must not run into each other"
    );
}

#[test]
fn nameless_or_invalid_pod_is_refused_like_upstream() {
    let mut nameless = manifest();
    nameless["metadata"] = json!({});
    let error = try_prepare(nameless, &file("/m"), "n").unwrap_err();
    assert_eq!(error.to_string(), "invalid pod: name is needed for the pod");
    let mut broken = manifest();
    broken["spec"] = json!({"restartPolicy": "Sometimes", "containers": [{"name": "c"}]});
    let error = try_prepare(broken, &file("/m"), "n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid pod: [spec.containers[0].image: Required value, spec.restartPolicy: Unsupported value: \"Sometimes\": \
         supported values: \"Always\", \"Never\", \"OnFailure\"]"
    );
}

#[test]
fn static_pod_may_reference_only_local_objects() {
    let with = |spec: Value| {
        let mut pod = manifest();
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        try_prepare(pod, &file("/m"), "n").map_err(|error| error.to_string())
    };
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        with(json!({"volumes": [volume]}))
    };
    for allowed in [
        json!({"secret": {"secretName": "s"}}),
        json!({"configMap": {"name": "c"}}),
        json!({"persistentVolumeClaim": {"claimName": "p"}}),
        json!({"csi": {"driver": "d"}}),
        json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}}}),
        json!({"projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "c"}}]}}),
    ] {
        volume(allowed).unwrap();
    }
    with(json!({"imagePullSecrets": [{"name": "s"}]})).unwrap();
    for field in ["serviceAccountName", "serviceAccount"] {
        let refused = with(json!({field: "s"})).unwrap_err();
        assert_eq!(refused, "static pods may not reference serviceaccounts");
    }
    let refused = with(json!({"resourceClaims": [{"name": "r"}]})).unwrap_err();
    assert_eq!(refused, "static pods may not reference resourceclaims");
    for (source, resource) in [
        (json!({"glusterfs": {"endpoints": "e", "path": "p"}}), "endpoints (via glusterFS volumes)"),
        (json!({"azureFile": {"secretName": "s", "shareName": "h"}}), "secrets (via azureFile volumes)"),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            "serviceaccounts (via projected volumes)",
        ),
        (json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "t"}}]}}), "clustertrustbundles"),
        (json!({"projected": {"sources": [{"podCertificate": {}}]}}), "podcertificates"),
    ] {
        let refused = volume(source).unwrap_err();
        assert_eq!(refused, format!("static pods may not reference {resource}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_uid_depends_on_every_argument_and_on_nothing_else(
        label in "[a-z]{0,4}", path in "[a-z/]{1,6}", node in "[a-z]{1,6}",
        label2 in "[a-z]{0,4}", path2 in "[a-z/]{1,6}", node2 in "[a-z]{1,6}",
    ) {
        let of = |label: &str, path: &str, node: &str| {
            let mut pod = manifest();
            pod["metadata"]["labels"] = json!({"l": label});
            uid(pod, &file(path), node)
        };
        let same = (&label, &path, &node) == (&label2, &path2, &node2);
        prop_assert_eq!(of(&label, &path, &node) == of(&label2, &path2, &node2), same);
        prop_assert_eq!(of(&label, &path, &node), of(&label, &path, &node));
    }
}

#[test]
fn a_message_names_many_errors_but_not_all_of_thousands() {
    let containers: Vec<Value> = (0..1000).map(|n| json!({"name": format!("c{n}")})).collect();
    let error =
        try_prepare(json!({"metadata": {"name": "a"}, "spec": {"containers": containers}}), &file("/m"), "n");
    let message = error.unwrap_err().to_string();
    assert!(message.ends_with("spec.containers[24].image: Required value, and 975 more]"), "{message}");
}

/// A uid that changes with an upgrade of the agent restarts every pod of the node. Change this value only for
/// that purpose.
#[test]
fn the_uid_of_a_known_manifest_is_what_it_has_always_been() {
    assert_eq!(
        uid(manifest(), &file("/etc/kubernetes/manifests/web.yaml"), "edge-1"),
        "faaae3c803e5c9a9d28329dcfca6b4c4"
    );
}
