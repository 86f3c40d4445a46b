//! Tables for expansion and sources of variables.

use super::*;
use crate::api::decode::decode;
use serde_json::{Value, json};

struct Objects;

impl ObjectLookup for Objects {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        let data = ObjectData::from([("A".into(), b"1".to_vec()), ("b".into(), b"two".to_vec())]);
        (namespace == "ns" && name == "cm").then_some(data)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        (namespace == "ns" && name == "s").then(|| ObjectData::from([("token".into(), b"xyz".to_vec())]))
    }
}

fn environment(container: &Value) -> Result<Vec<(String, String)>, EnvError> {
    let pod = decode::<Pod>(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u", "labels": {"app": "x"}},
        "spec": {"serviceAccountName": "sa", "containers": [container]},
    }));
    let pod = pod.unwrap().object;
    let capacity = NodeCapacity { cpu_milli: 4000, memory_bytes: 1 << 30, ..Default::default() };
    let context = EnvContext {
        node_name: "node",
        host_ips: &["10.0.0.1".to_owned(), "fd00::1".to_owned()],
        pod_ips: &["10.1.0.2".to_owned()],
        allocatable: &capacity,
        objects: &Objects,
    };
    make_environment(&pod, &pod.spec.containers[0], &context)
}

#[test]
fn expansion_knows_variables_escapes_and_leaves_the_rest() {
    let lookup = |name: &str| match name {
        "A" => Some("1"),
        "EMPTY" => Some(""),
        "NEST" => Some("$(A)"),
        _ => None,
    };
    let cases = [
        ("$(A)", "1"),
        ("x$(A)y$(EMPTY)z", "x1yz"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(B)", "$(B)"),
        ("$(NEST)", "$(A)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("ä$(A)ö", "ä1ö"),
    ];
    for (input, expected) in cases {
        assert_eq!(expand(input, lookup), expected, "{input}");
    }
}

#[test]
fn later_definitions_replace_earlier_ones_and_see_them() {
    let container = json!({"name": "c",
    "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "s"}},
        {"configMapRef": {"name": "absent", "optional": true}}],
    "env": [
        {"name": "X", "value": "$(P_A)-$(LATER)"},
        {"name": "P_A", "value": "over"},
        {"name": "LATER", "value": "$(P_A)"},
        {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "no", "optional": true}}},
    ]});
    let found = environment(&container).unwrap();
    let shown: Vec<String> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(shown, ["P_A=over", "P_b=two", "token=xyz", "X=1-$(LATER)", "LATER=over"]);
}

#[test]
fn fields_and_resources_become_values() {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let resource =
        |name: &str, divisor: &str| json!({"resourceFieldRef": {"resource": name, "divisor": divisor}});
    let cases = [
        (field("metadata.name"), "web"),
        (field("metadata.labels['app']"), "x"),
        (field("metadata.annotations['none']"), ""),
        (field("spec.nodeName"), "node"),
        (field("status.hostIPs"), "10.0.0.1,fd00::1"),
        (field("status.podIP"), "10.1.0.2"),
        (resource("limits.cpu", "0"), "4"),
        (resource("requests.cpu", "1"), "1"),
        (resource("requests.cpu", "1m"), "250"),
        (resource("limits.memory", "1Mi"), "64"),
    ];
    for (source, expected) in cases {
        let container = json!({"name": "c",
            "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}},
            "env": [{"name": "V", "valueFrom": source}]});
        assert_eq!(environment(&container).unwrap()[0].1, expected, "{source}");
    }
}

#[test]
fn what_is_missing_is_named_in_upstreams_words() {
    let cases = [
        (json!({"configMapKeyRef": {"name": "x", "key": "k"}}), "configmap \"x\" not found"),
        (json!({"secretKeyRef": {"name": "x", "key": "k"}}), "secret \"x\" not found"),
        (json!({"configMapKeyRef": {"name": "cm", "key": "k"}}), "couldn't find key k in ConfigMap ns/cm"),
        (json!({"secretKeyRef": {"name": "s", "key": "k"}}), "couldn't find key k in Secret ns/s"),
        (json!({"fieldRef": {"fieldPath": "spec.x"}}), "unsupported fieldPath: spec.x"),
    ];
    for (source, expected) in cases {
        let container = json!({"name": "c", "env": [{"name": "V", "valueFrom": source}]});
        assert_eq!(environment(&container).unwrap_err().to_string(), expected);
    }
    let container = json!({"name": "c", "envFrom": [{"secretRef": {"name": "gone"}}]});
    assert_eq!(environment(&container).unwrap_err(), EnvError::SecretNotFound("gone".into()));
}
