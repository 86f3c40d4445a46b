use serde_json::json;

use super::*;
use crate::model::api::decode::decode;
use crate::model::ordered::Ordered as _;

fn pod(spec: &Value) -> Pod {
    let metadata = json!({ "namespace": "shop", "name": "web", "uid": "u1" });
    decode(json!({ "metadata": metadata, "spec": spec })).unwrap().object
}

fn shown(needs: &Needs) -> Vec<String> {
    needs.objects.iter().map(ToString::to_string).collect()
}

#[test]
fn everything_a_pod_refers_to_is_needed_once() {
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } });
    let found = references(&pod(&json!({
        "serviceAccountName": "web",
        "imagePullSecrets": [{ "name": "registry" }, { "name": "" }],
        "initContainers": [{ "name": "a", "envFrom": [{ "configMapRef": { "name": "init" } }] }],
        "containers": [{
            "name": "b",
            "envFrom": [{ "secretRef": { "name": "all", "optional": true } }],
            "env": [
                { "name": "A", "valueFrom": { "configMapKeyRef": { "name": "init", "key": "k" } } },
                { "name": "B", "valueFrom": { "secretKeyRef": { "name": "one", "key": "k" } } },
                { "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            ],
        }],
        "ephemeralContainers": [{ "name": "c", "envFrom": [{ "secretRef": { "name": "debug" } }] }],
        "volumes": [
            { "name": "v1", "configMap": { "name": "files" } },
            { "name": "v2", "secret": { "secretName": "tls" } },
            { "name": "v3", "projected": { "sources": [
                token, token,
                { "serviceAccountToken": { "path": "vault", "audience": "vault" } },
                { "configMap": { "name": "kube-root-ca.crt" } },
                { "secret": { "name": "extra" } },
                { "clusterTrustBundle": { "name": "trust", "path": "ca" } },
                { "clusterTrustBundle": { "name": "trust", "path": "ca" } },
            ] } },
            { "name": "v4", "persistentVolumeClaim": { "claimName": "data" } },
            { "name": "v5", "ephemeral": { "volumeClaimTemplate": {} } },
            { "name": "v6", "csi": { "driver": "d", "nodePublishSecretRef": { "name": "csi" } } },
            { "name": "v7", "azureFile": { "secretName": "azure" } },
            { "name": "v8", "iscsi": { "secretRef": { "name": "chap" } } },
        ],
    })));
    let named = |kind: &str, names: &[&str]| -> Vec<String> {
        let names = names.iter().map(|name| format!("{kind} shop/{name}")).into_set();
        names.into_iter().collect()
    };
    let wanted = [
        named("ConfigMap", &["files", "init", "kube-root-ca.crt"]),
        named("Secret", &["all", "azure", "chap", "csi", "debug", "extra", "one", "registry", "tls"]),
    ];
    assert_eq!(shown(&found), wanted.concat());
    let tokens: Vec<_> = found.tokens.iter().map(|token| (token.audience.as_str(), token.seconds)).collect();
    assert_eq!(tokens, [("", 3607), ("vault", 3600)]);
    assert!(found.tokens.iter().all(|token| token.account == "web" && token.pod.uid.as_str() == "u1"));
    let claim = |name: &str| ("shop".to_owned(), name.to_owned());
    assert_eq!(found.claims, [claim("data"), claim("web-v5")]);
    assert_eq!(found.bundles, [json!({ "name": "trust", "path": "ca" })]);
    assert_eq!(found.namespace, "shop");
}

#[test]
fn a_pod_without_references_needs_its_namespace_only() {
    let found = references(&pod(&json!({ "containers": [{ "name": "a" }] })));
    assert_eq!(found, Needs { namespace: "shop".into(), ..Needs::default() });
}
