use super::*;
use crate::model::types::Timestamp;
use crate::node::object::Condition;

fn map(pairs: &[(&str, &str)]) -> StringMap {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn state() -> NodeState {
    NodeState {
        name: "n1".to_owned(),
        uid: "made-up".to_owned(),
        labels: map(&[("kubernetes.io/hostname", "n1"), ("kubernetes.io/os", "linux"), ("disk", "ssd")]),
        taints: vec![Taint { key: "of-the-box".to_owned(), ..Taint::default() }],
        pod_cidrs: vec!["10.0.0.0/24".to_owned()],
        annotations: map(&[("of-the-box", "a")]),
        unschedulable: true,
        addresses: vec!["10.0.0.1".to_owned()],
        hostname: "n1".to_owned(),
        info: vec![("bootID", "b".to_owned())],
        conditions: vec![Condition { kind: "Ready", holds: true, ..Condition::default() }],
        provider_id: "cloud://1".to_owned(),
        now: Timestamp::from_secs(1000),
        ..NodeState::default()
    }
}

fn config() -> RegisterConfig {
    let taint = Taint { key: "edge".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    RegisterConfig {
        creates: true,
        taints: vec![taint],
        controller_attaches: true,
        ..RegisterConfig::default()
    }
}

#[test]
fn taints_are_sent_at_creation_only() {
    let node = initial_node(&state(), &config());
    assert_eq!(
        node["spec"],
        json!({"taints": [{"key": "edge", "effect": "NoSchedule"}], "providerID": "cloud://1"})
    );
    assert_eq!(
        node["metadata"],
        json!({"name": "n1", "labels": state().labels, "annotations": {CONTROLLER_ATTACHES: "true"}}),
        "what belongs to the API of the box alone is not sent"
    );
    assert_eq!(node["status"]["conditions"][0]["lastHeartbeatTime"], "1970-01-01T00:16:40Z");
    assert_eq!(reconcile(&node, &state(), &config()), None);
    let mut untainted = node.clone();
    untainted["spec"]["taints"] = json!([]);
    assert_eq!(reconcile(&untainted, &state(), &config()), None);
}

#[test]
fn a_cloud_controller_initializes_the_node() {
    let cloud = RegisterConfig { has_cloud: true, ..config() };
    let node = initial_node(&state(), &cloud);
    assert_eq!(node["spec"]["taints"][1]["key"], CLOUD_UNINITIALIZED);
    assert_eq!(node["status"]["addresses"], json!([{"type": "Hostname", "address": "n1"}]));
    let given = initial_node(&state(), &RegisterConfig { node_ip: "10.0.0.1".to_owned(), ..cloud });
    assert_eq!(given["status"]["addresses"][0]["address"], "10.0.0.1");
    assert_eq!(given["metadata"]["annotations"][PROVIDED_NODE_IP], "10.0.0.1");
    let patch = reconcile(&given, &state(), &config()).unwrap();
    assert_eq!(patch, json!({"metadata": {"annotations": {PROVIDED_NODE_IP: null}}}), "the cloud is gone");
}

#[test]
fn an_unspecified_node_ip_is_not_provided_to_the_cloud() {
    for node_ip in ["0.0.0.0", "::"] {
        let cloud = RegisterConfig { has_cloud: true, node_ip: node_ip.to_owned(), ..config() };
        let node = initial_node(&state(), &cloud);
        assert_eq!(node["metadata"]["annotations"], json!({CONTROLLER_ATTACHES: "true"}));
        assert_eq!(node["status"]["addresses"][0]["address"], "10.0.0.1");
        let mut stale = node.clone();
        stale["metadata"]["annotations"][PROVIDED_NODE_IP] = json!("0.0.0.0");
        let patch = reconcile(&stale, &state(), &cloud).unwrap();
        assert_eq!(patch, json!({"metadata": {"annotations": {PROVIDED_NODE_IP: null}}}));
    }
}

#[test]
fn labels_of_others_are_left_alone() {
    let mut node = initial_node(&state(), &config());
    node["metadata"]["labels"] = json!({"kubernetes.io/hostname": "n1", "kubernetes.io/os": "plan9",
        "node-role.kubernetes.io/edge": ""});
    node["metadata"]["annotations"] = json!({"flannel": "x"});
    let patch = reconcile(&node, &state(), &config()).unwrap();
    assert_eq!(
        patch,
        json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}, "annotations": {CONTROLLER_ATTACHES: "true"}}})
    );
    let detached = RegisterConfig { controller_attaches: false, ..config() };
    let node = initial_node(&state(), &config());
    let patch = reconcile(&node, &state(), &detached).unwrap();
    assert_eq!(patch, json!({"metadata": {"annotations": {CONTROLLER_ATTACHES: null}}}));
}

#[test]
fn resources_that_are_gone_are_removed_at_registration() {
    let mut node = initial_node(&state(), &config());
    let resources = json!({"cpu": "4", "hugepages-2Mi": "0", "example.org/gpu": "2", "example.org/none": "0",
        "requests.kubernetes.io/x": "1"});
    node["status"]["capacity"] = resources.clone();
    let patch = reconcile(&node, &state(), &config()).unwrap();
    assert_eq!(
        patch,
        json!({"status": {"capacity": {"hugepages-2Mi": null}}}),
        "the owner of others is unknown"
    );
    node["status"]["allocatable"] = resources;
    let patch = reconcile(&node, &NodeState { has_new_devices: true, ..state() }, &config()).unwrap();
    let gone = json!({"hugepages-2Mi": null, "example.org/gpu": "0"});
    assert_eq!(patch, json!({"status": {"capacity": gone, "allocatable": gone}}));
}

#[test]
fn refused_node_labels_are_a_config_error() {
    let allowed = map(&[
        ("disk", "ssd"),
        ("example.org/a", "b"),
        ("kubernetes.io/hostname", "n1"),
        ("topology.kubernetes.io/zone", "z"),
        ("node.kubernetes.io/exclude", "a"),
        ("gpu.node.kubernetes.io/model", "a"),
        ("kubelet.kubernetes.io/a", "b"),
        ("notkubernetes.io/a", "b"),
    ]);
    let nothing: [&str; 0] = [];
    assert_eq!(refused_labels(&allowed), nothing);
    let mut refused = map(&[
        ("a.k8s.io/b", ""),
        ("kubernetes.io/role", "edge"),
        ("mynode.kubernetes.io/a", "b"),
        ("node-restriction.kubernetes.io/a", "b"),
        ("node-role.kubernetes.io/edge", ""),
    ]);
    let keys: Vec<String> = refused.keys().cloned().collect();
    assert_eq!(refused_labels(&refused), keys);
    refused.extend(allowed.clone());
    let node = initial_node(&NodeState { labels: refused, ..state() }, &config());
    assert_eq!(node["metadata"]["labels"], json!(allowed), "one refused label would refuse the Node");
}

#[test]
fn what_the_server_knows_of_the_node_is_read() {
    let node = json!({
        "metadata": {"uid": "u", "labels": {"a": "b"}, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "spec": {"podCIDR": "10.1.0.0/24", "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "t"}],
            "unschedulable": true},
        "status": {"volumesAttached": [{"name": "v", "devicePath": "/dev/x"}]},
    });
    let seen = NodeFromServer::of(&node);
    assert_eq!((seen.uid.as_str(), seen.labels), ("u", map(&[("a", "b")])));
    assert_eq!((seen.pod_cidrs, seen.unschedulable), (vec!["10.1.0.0/24".to_owned()], true));
    assert_eq!((seen.taints[0].key.as_str(), seen.taints[0].time_added.as_deref()), ("k", Some("t")));
    assert_eq!(seen.volumes_attached, [("v".to_owned(), "/dev/x".to_owned())]);
    assert_eq!(NodeFromServer::of(&json!({})), NodeFromServer::default());
}

#[test]
fn a_boot_since_the_last_report_is_an_event() {
    let node = |id: &str| json!({"status": {"nodeInfo": {"bootID": id}}});
    assert_eq!(rebooted(&node("b"), &state()), None);
    assert_eq!(rebooted(&node(""), &state()), None, "never reported");
    assert_eq!(rebooted(&node("a"), &state()).unwrap(), "Node n1 has been rebooted, boot id: b");
}
