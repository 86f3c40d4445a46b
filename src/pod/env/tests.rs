//! Tables for expansion and sources of variables.

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{ClaimedVolume, ConfigMapData, FixedFacts, LocalObjects, NodeObjects};
use serde_json::{Value, json};

struct Objects;

impl ObjectLookup for Objects {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData> {
        let data = ObjectData::from([("A".into(), b"1".to_vec()), ("b".into(), b"two".to_vec())]);
        (namespace == "ns" && name == "cm").then_some(ConfigMapData { data, ..ConfigMapData::default() })
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        (namespace == "ns" && name == "s").then(|| ObjectData::from([("token".into(), b"xyz".to_vec())]))
    }

    fn persistent_volume_claim(&self, _: &str, _: &str) -> Option<ClaimedVolume> {
        None
    }

    crate::model::objects::plain_lookup!();
}

fn environment(container: &Value) -> Result<Vec<(String, String)>, EnvError> {
    let pod = decode::<Pod>(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u", "labels": {"app": "x"}},
        "spec": {"serviceAccountName": "sa", "containers": [container]},
    }));
    let pod = pod.unwrap().object;
    let capacity = NodeCapacity { cpu_milli: 4000, memory_bytes: 1 << 30, ..Default::default() };
    let file = |text: &str| Some(text.as_bytes().to_vec());
    let files = EnvFiles::from([
        (("run".into(), "app.env".into()), file("# of init\nADDRESS='db:1'\nEMPTY=''\n")),
        (("run".into(), "bad.env".into()), file("ADDRESS=db\n")),
        (("run".into(), "none.env".into()), None),
    ]);
    let context = EnvContext {
        node_name: "node",
        host_ips: &["10.0.0.1".to_owned(), "fd00::1".to_owned()],
        pod_ips: &["10.1.0.2".to_owned()],
        allocatable: &capacity,
        objects: &Objects,
        files: &files,
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
fn missing_env_sources_are_reported_like_upstream() {
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

fn from_file(volume: &str, path: &str, key: &str, optional: bool) -> Value {
    json!({"name": "c", "env": [{"name": "V", "valueFrom": {
        "fileKeyRef": {"volumeName": volume, "path": path, "key": key, "optional": optional}}}]})
}

#[test]
fn a_variable_may_come_from_a_file_of_the_pod() {
    let found = environment(&from_file("run", "app.env", "ADDRESS", false)).unwrap();
    assert_eq!(found, [("V".to_owned(), "db:1".to_owned())]);
    for key in ["NOPE", "EMPTY"] {
        assert_eq!(environment(&from_file("run", "app.env", key, true)), Ok(Vec::new()));
        assert_eq!(
            environment(&from_file("run", "app.env", key, false)).unwrap_err().to_string(),
            format!("environment variable key {key:?} not found in file \"app.env\"")
        );
    }
    for path in ["bad.env", "none.env"] {
        let error = environment(&from_file("run", path, "ADDRESS", true)).unwrap_err();
        assert_eq!(error.to_string(), "couldn't parse env file");
    }
    assert_eq!(
        environment(&from_file("other", "app.env", "A", true)).unwrap_err().to_string(),
        "cannot find the volume \"other\" referenced by FileKeyRef"
    );
}

#[test]
fn only_files_of_empty_dirs_are_asked_for() {
    let variable = |volume: &str| json!({"name": "V", "valueFrom": {"fileKeyRef": {"volumeName": volume, "path": "a", "key": "K"}}});
    let pod = decode::<Pod>(json!({"spec": {
        "volumes": [{"name": "run", "emptyDir": {}}, {"name": "etc", "hostPath": {"path": "/etc"}}],
        "containers": [{"name": "c", "env": [variable("run"), variable("etc"), variable("no"), {"name": "X"}]}],
    }}));
    let pod = pod.unwrap().object;
    let expected = [("run".to_owned(), "a".to_owned())];
    assert_eq!(env_files(&pod, &pod.spec.containers[0]), expected.into());
}

#[test]
fn maps_become_lines_quoted_as_in_go() {
    let annotations =
        json!({"b": "two\nlines \"q\" \\", "a": "ä\u{301}\u{7}\u{1}\u{7f}\u{a0}\u{200b}\u{e0001}'"});
    let pod = decode::<Pod>(json!({"metadata": {"name": "web", "annotations": annotations}})).unwrap().object;
    assert_eq!(
        metadata_field(&pod, "metadata.annotations").unwrap(),
        "a=\"ä\u{301}\\a\\x01\\x7f\\u00a0\\u200b\\U000e0001'\"\nb=\"two\\nlines \\\"q\\\" \\\\\""
    );
    assert_eq!(metadata_field(&pod, "metadata.labels").unwrap(), "");
    assert!(metadata_field(&pod, "status.podIP").is_err(), "volumes cannot have it");
}

/// The variables of a container of a pod of the cluster.
fn of_cluster(container: &Value, facts: FixedFacts) -> Result<Vec<(String, String)>, String> {
    let pod = decode::<Pod>(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u",
            "annotations": {"kubernetes.io/config.source": "cluster"}},
        "spec": {"containers": [container]},
    }));
    let pod = pod.unwrap().object;
    let (node, cluster) = (LocalObjects::default(), LocalObjects::default());
    let data = |value: &str| ObjectData::from([("K".to_owned(), value.as_bytes().to_vec())]);
    node.set_secret("ns", "of-node", Some(data("node")));
    cluster.set_secret("ns", "s", Some(data("cluster")));
    let context = EnvContext {
        node_name: "node",
        host_ips: &[],
        pod_ips: &[],
        allocatable: &NodeCapacity::default(),
        objects: &NodeObjects::joined(node, cluster, facts),
        files: &EnvFiles::new(),
    };
    make_environment(&pod, &pod.spec.containers[0], &context).map_err(|error| error.to_string())
}

#[test]
fn services_come_last_and_replace_nothing() {
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let services = pairs(&[("DB_SERVICE_HOST", "10.0.0.9"), ("DB_SERVICE_PORT", "5432"), ("K", "service")]);
    let container = json!({"name": "c",
        "envFrom": [{"secretRef": {"name": "s"}}],
        "env": [{"name": "URL", "value": "$(DB_SERVICE_HOST):$(DB_SERVICE_PORT) $(K)"},
            {"name": "DB_SERVICE_PORT", "value": "1"}]});
    let found = of_cluster(&container, FixedFacts { services: Ok(services), ..FixedFacts::default() });
    let wanted = pairs(&[
        ("K", "cluster"),
        ("URL", "10.0.0.9:5432 cluster"),
        ("DB_SERVICE_PORT", "1"),
        ("DB_SERVICE_HOST", "10.0.0.9"),
    ]);
    assert_eq!(found, Ok(wanted));
    let unread = FixedFacts { services: Err(Absence::NotSynced), ..FixedFacts::default() };
    assert_eq!(
        of_cluster(&container, unread).unwrap_err(),
        "services have not yet been read at least once, cannot construct envvars"
    );
}

#[test]
fn an_unread_object_is_not_a_missing_one() {
    let from = |kind: &str, optional: bool| json!({"name": "c", "envFrom": [{kind: {"name": "of-node", "optional": optional}}]});
    let key = |kind: &str| {
        let from = json!({kind: {"name": "of-node", "key": "K", "optional": true}});
        json!({"name": "c", "env": [{"name": "K", "valueFrom": from}]})
    };
    let with = |absence: Absence| FixedFacts { absence, ..FixedFacts::default() };
    let missing = of_cluster(&from("secretRef", false), with(Absence::NotFound));
    assert_eq!(missing.unwrap_err(), "secret \"of-node\" not found", "the node's is another one");
    assert_eq!(of_cluster(&from("secretRef", true), with(Absence::NotFound)), Ok(Vec::new()));
    for (container, kind) in [
        (from("secretRef", true), "secret"),
        (from("configMapRef", true), "configmap"),
        (key("secretKeyRef"), "secret"),
        (key("configMapKeyRef"), "configmap"),
    ] {
        assert_eq!(
            of_cluster(&container, with(Absence::NotSynced)).unwrap_err(),
            format!("failed to sync {kind} cache: timed out waiting for the condition")
        );
        let refused = Absence::Refused("secrets is forbidden".to_owned());
        assert_eq!(of_cluster(&container, with(refused)).unwrap_err(), "secrets is forbidden");
    }
}
