//! One row per rule: a document and its exact errors.

use serde_json::{Value, json};

use super::*;
use crate::model::objects::{ObjectKey, ObjectKind, wire};

fn errors_of(kind: &str, mut value: Value) -> Vec<String> {
    if value.get("metadata").is_none() {
        value["metadata"] = json!({"name": "x"});
    }
    let (written, _) = wire::decode_object(ObjectKind::from_name(kind).unwrap(), value).unwrap();
    let (object, bad) = wire::local(written.clone());
    validate_object(&written, &object, &bad).iter().map(ToString::to_string).collect()
}

/// Rows of (document, errors). A text that ends in `…` is a prefix.
fn table(kind: &str, rows: Vec<(Value, &[&str])>) {
    for (value, expected) in rows {
        let shown = value.to_string();
        let errors = errors_of(kind, value);
        let fits = |(error, expected): (&String, &&str)| match expected.strip_suffix('…') {
            Some(start) => error.starts_with(start),
            None => error == expected,
        };
        let good = errors.len() == expected.len() && errors.iter().zip(expected).all(fits);
        assert!(good, "{shown}\n expected {expected:#?}\n got {errors:#?}");
    }
}

#[test]
fn config_maps() {
    let long = "k".repeat(254);
    table(
        "ConfigMap",
        vec![
            (json!({"data": {"a.b-C_1": "x"}, "binaryData": {"b": "AP8="}}), &[]),
            (json!({}), &[]),
            (json!({"metadata": {}}), &["metadata.name: Required value: name or generateName is required"]),
            (json!({"metadata": {"name": "A"}}), &["metadata.name: Invalid value: \"A\": …"]),
            (
                json!({"data": {"a/b": "x"}}),
                &["data[a/b]: Invalid value: \"a/b\": a valid config key must consist of…"],
            ),
            (json!({"data": {"..x": ""}}), &["data[..x]: Invalid value: \"..x\": must not start with '..'"]),
            (json!({"data": {long.clone(): ""}}), &["data[kkk…"]),
            (
                json!({"data": {"k": "x"}, "binaryData": {"k": "AA=="}}),
                &[
                    "data[k]: Invalid value: \"k\": duplicate of key present in binaryData",
                    "binaryData[k]: Invalid value: \"k\": duplicate of key present in data",
                ],
            ),
            (
                json!({"binaryData": {"k": "%"}}),
                &["binaryData[k]: Invalid value: \"<secret contents redacted>\": illegal base64 data…"],
            ),
            (json!({"data": {"a": "x".repeat(1024 * 1024)}}), &[]),
            (
                json!({"data": {"a": "x".repeat(1024 * 1024), "b": "y"}}),
                &["data: Too long: may not be more than 1048576 bytes"],
            ),
        ],
    );
}

#[test]
fn secrets_and_their_types() {
    let of = |kind: &str, data: Value| json!({"type": format!("kubernetes.io/{kind}"), "stringData": data});
    table(
        "Secret",
        vec![
            (json!({"data": {"k": "aHVudGVyMg=="}}), &[]),
            (json!({"type": "example.com/own", "stringData": {"k": "v"}}), &[]),
            (
                json!({"data": {"password": "hunter2!"}}),
                &["data[password]: Invalid value: \"<secret contents redacted>\": illegal base64 data…"],
            ),
            (json!({"stringData": {"": "v"}}), &["data[]: Invalid value: \"\": a valid config key…"]),
            (of("dockerconfigjson", json!({".dockerconfigjson": "{}"})), &[]),
            (of("dockerconfigjson", json!({"x": ""})), &["data[.dockerconfigjson]: Required value"]),
            (
                of("dockerconfigjson", json!({".dockerconfigjson": "{\"auths\": hunter2"})),
                &["data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": expected…"],
            ),
            (
                of("dockercfg", json!({".dockercfg": "\"hunter2\""})),
                &["data[.dockercfg]: Invalid value: \"<secret contents redacted>\": must be a JSON object"],
            ),
            (of("basic-auth", json!({"password": ""})), &[]),
            (
                of("basic-auth", json!({})),
                &["data[username]: Required value", "data[password]: Required value"],
            ),
            (of("ssh-auth", json!({"ssh-privatekey": ""})), &["data[ssh-privatekey]: Required value"]),
            (of("tls", json!({"tls.crt": ""})), &["data[tls.key]: Required value"]),
            (
                of("service-account-token", json!({})),
                &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            ),
        ],
    );
}

#[test]
fn claims() {
    let claim = |change: Value| {
        let mut spec =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        for (field, value) in change.as_object().unwrap() {
            spec[field] = value.clone();
        }
        json!({"spec": spec})
    };
    let own = wire::volume_name(&ObjectKey {
        kind: ObjectKind::PersistentVolumeClaim,
        namespace: "default".to_owned(),
        name: "x".to_owned(),
    });
    table(
        "PersistentVolumeClaim",
        vec![
            (claim(json!({"storageClassName": "", "volumeMode": "Filesystem", "volumeName": own})), &[]),
            (
                claim(json!({"accessModes": []})),
                &["spec.accessModes: Required value: at least 1 access mode is required"],
            ),
            (
                claim(json!({"accessModes": ["RWO"]})),
                &["spec.accessModes: Unsupported value: \"RWO\": supported values: …"],
            ),
            (
                claim(json!({"accessModes": ["ReadWriteOncePod", "ReadOnlyMany"]})),
                &["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
            ),
            (claim(json!({"resources": {}})), &["spec.resources[storage]: Required value"]),
            (
                claim(json!({"resources": {"requests": {"storage": "0"}}})),
                &["spec.resources[storage]: Invalid value: \"0\": must be greater than zero"],
            ),
            (claim(json!({"volumeMode": "Block"})), &["spec.volumeMode: Unsupported value: \"Block\"…"]),
            (claim(json!({"volumeName": "pv-1"})), &[]),
            (claim(json!({"volumeName": "PV"})), &["spec.volumeName: Invalid value: \"PV\"…"]),
            (claim(json!({"selector": {}})), &["spec.selector: Forbidden…"]),
            (claim(json!({"dataSource": {"name": "s"}})), &["spec.dataSource: Forbidden…"]),
        ],
    );
}

fn object(kind: crate::model::objects::ObjectKind, value: Value) -> ObjectContent {
    wire::from_value(kind, value).unwrap().content
}

#[test]
fn what_may_not_change() {
    use crate::model::objects::ObjectKind::{ConfigMap, PersistentVolumeClaim, Secret};
    let frozen = "Forbidden: field is immutable when `immutable` is set";
    let size = |size: &str| json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
    let rows = [
        (ConfigMap, json!({"data": {"a": "1"}}), json!({"data": {"a": "2"}}), vec![]),
        (ConfigMap, json!({"immutable": true, "data": {"a": "1"}}), json!({"immutable": true, "data": {"a": "1"}}), vec![]),
        (
            ConfigMap,
            json!({"immutable": true, "data": {"a": "1"}}),
            json!({"data": {"a": "2"}, "binaryData": {"b": ""}}),
            vec![format!("immutable: {frozen}"), format!("data: {frozen}"), format!("binaryData: {frozen}")],
        ),
        (Secret, json!({"immutable": true}), json!({"immutable": true, "stringData": {"a": ""}}), vec![format!("data: {frozen}")]),
        (Secret, json!({}), json!({"type": "x/y"}), vec!["type: Invalid value: \"x/y\": field is immutable".to_owned()]),
        (PersistentVolumeClaim, size("1Gi"), size("2Gi"), vec![]),
        (
            PersistentVolumeClaim,
            size("2Gi"),
            size("1Gi"),
            vec!["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity".to_owned()],
        ),
        (
            PersistentVolumeClaim,
            size("1Gi"),
            json!({"spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}),
            vec!["spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims".to_owned()],
        ),
    ];
    for (kind, old, new, expected) in rows {
        let errors = refused_change(&object(kind, old.clone()), &object(kind, new.clone()));
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, expected, "{old} -> {new}");
    }
}

#[test]
fn runtime_classes() {
    let with = |more: Value| {
        let mut class = json!({"handler": "kata"});
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        class
    };
    table(
        "RuntimeClass",
        vec![
            (json!({"handler": "kata", "metadata": {"name": "a.b"}}), &[]),
            (with(json!({"overhead": {"podFixed": {"cpu": "250m", "memory": "1Gi"}}})), &[]),
            (
                with(json!({"scheduling": {"nodeSelector": {"a": "b"},
                    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]}})),
                &[],
            ),
            (json!({}), &["handler: Invalid value: \"\": a lowercase RFC 1123 label must consist of…"]),
            (
                json!({"handler": "Kata.x"}),
                &["handler: Invalid value: \"Kata.x\": a lowercase RFC 1123 label…"],
            ),
            (json!({"handler": "k", "metadata": {"name": "A"}}), &["metadata.name: Invalid value: \"A\": …"]),
            (
                with(json!({"overhead": {"podFixed": {"cpu": "-1", "disks": "1"}}})),
                &[
                    "overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                    "overhead.limits[disks]: Invalid value: \"disks\": must be a standard resource for containers",
                ],
            ),
            (
                with(
                    json!({"scheduling": {"nodeSelector": {"a": "b c"}, "tolerations": [{"operator": "Equal"}]}}),
                ),
                &[
                    "scheduling.nodeSelector: Invalid value: \"b c\": …",
                    "scheduling.tolerations[0].operator: Invalid value: …",
                ],
            ),
        ],
    );
    let content = |handler: &str| {
        ObjectContent::RuntimeClass(RuntimeClassSpec {
            handler: handler.to_owned(),
            ..RuntimeClassSpec::default()
        })
    };
    let said = refused_change(&content("kata"), &content("runc"));
    assert_eq!(said[0].to_string(), "handler: Invalid value: \"runc\": field is immutable");
}
