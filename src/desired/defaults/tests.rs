use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;

#[expect(clippy::needless_pass_by_value, reason = "reads better at every call")]
fn defaulted(spec: Value) -> Value {
    let pod = decode::<Pod>(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap().object;
    let once = default_pod(pod);
    assert_eq!(default_pod(once.clone()), once, "defaulting twice must change nothing");
    serde_json::to_value(once).unwrap()["spec"].take()
}

#[test]
fn an_empty_spec_gets_every_default_of_a_pod() {
    let expected = json!({
        "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30, "securityContext": {}, "enableServiceLinks": true,
    });
    assert_eq!(defaulted(json!({})), expected);
}

#[test]
fn what_is_written_stays() {
    let written = json!({
        "restartPolicy": "Never", "dnsPolicy": "Default", "schedulerName": "mine", "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 1}, "enableServiceLinks": false,
        "volumes": [{"name": "v", "hostPath": {"path": "/x", "type": "File"}}],
        "containers": [{
            "name": "c", "image": "x:latest", "imagePullPolicy": "Never", "terminationMessagePath": "/m",
            "terminationMessagePolicy": "FallbackToLogsOnError", "ports": [{"containerPort": 53, "protocol": "UDP"}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
            "livenessProbe": {"exec": {"command": ["x"]}, "timeoutSeconds": 2, "periodSeconds": 3,
                "successThreshold": 4, "failureThreshold": 5},
        }],
    });
    assert_eq!(defaulted(written.clone()), written);
}

#[test]
fn the_pull_policy_follows_the_tag() {
    for (image, policy) in [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("localhost:5000/busybox", "Always"),
        ("localhost:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:00", "IfNotPresent"),
        ("busybox:latest@sha256:00", "Always"),
    ] {
        assert_eq!(default_pull_policy(image), policy, "{image}");
    }
}

#[test]
fn containers_of_every_kind_get_their_defaults() {
    let spec = defaulted(json!({
        "containers": [{"name": "a", "image": "x:1", "ports": [{"containerPort": 80}]}],
        "initContainers": [{"name": "b", "image": "x:1"}],
        "ephemeralContainers": [{"name": "d", "image": "x"}],
    }));
    for (list, policy) in [
        ("containers", "IfNotPresent"),
        ("initContainers", "IfNotPresent"),
        ("ephemeralContainers", "Always"),
    ] {
        let container = &spec[list][0];
        assert_eq!(container["imagePullPolicy"], policy);
        assert_eq!(container["terminationMessagePath"], "/dev/termination-log");
        assert_eq!(container["terminationMessagePolicy"], "File");
    }
    assert_eq!(spec["containers"][0]["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));
}

#[test]
fn host_network_publishes_every_port_under_its_own_number() {
    let spec = defaulted(json!({
        "hostNetwork": true,
        "containers": [{"name": "a", "image": "x:1", "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}],
    }));
    assert_eq!(spec["containers"][0]["ports"][0]["hostPort"], 80);
    assert_eq!(spec["containers"][0]["ports"][1]["hostPort"], 81);
}

#[test]
fn probes_and_handlers_get_their_defaults() {
    let spec = defaulted(json!({"containers": [{
        "name": "a", "image": "x:1",
        "livenessProbe": {"httpGet": {"port": 80}},
        "startupProbe": {"grpc": {"port": 9}},
        "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
    }]}));
    let container = &spec["containers"][0];
    let times =
        json!({"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
    for (name, value) in times.as_object().unwrap() {
        assert_eq!(container["livenessProbe"][name], *value);
        assert_eq!(container["startupProbe"][name], *value);
    }
    let get = json!({"port": 80, "path": "/", "scheme": "HTTP"});
    assert_eq!(container["livenessProbe"]["httpGet"], get);
    assert_eq!(container["lifecycle"]["preStop"]["httpGet"], get);
    assert_eq!(container["startupProbe"]["grpc"], json!({"port": 9, "service": ""}));
}

#[test]
fn volumes_get_their_defaults() {
    let field = json!([{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let spec = defaulted(json!({"volumes": [
        {"name": "none"},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "conf", "configMap": {"name": "c"}},
        {"name": "down", "downwardAPI": {"items": field}},
        {"name": "proj", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {"items": field}}]}},
        {"name": "img", "image": {"reference": "x"}},
        {"name": "iscsi", "iscsi": {"iqn": "i"}},
    ]}));
    let volumes = &spec["volumes"];
    assert_eq!(volumes[0]["emptyDir"], json!({}));
    assert_eq!(volumes[1]["secret"]["defaultMode"], 420);
    assert_eq!(volumes[2]["configMap"]["defaultMode"], 420);
    assert_eq!(volumes[3]["downwardAPI"]["defaultMode"], 420);
    assert_eq!(volumes[3]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"], "v1");
    assert_eq!(volumes[4]["projected"]["defaultMode"], 420);
    assert_eq!(volumes[4]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3600);
    assert_eq!(
        volumes[4]["projected"]["sources"][1]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"],
        "v1"
    );
    assert_eq!(volumes[5]["image"]["pullPolicy"], "Always");
    assert_eq!(volumes[6]["iscsi"]["iscsiInterface"], "default");
}

#[test]
fn request_defaults_to_the_limit_and_rounds_up_to_milli() {
    let spec = defaulted(json!({
        "containers": [{"name": "a", "image": "x:1", "resources": {
            "limits": {"cpu": "2", "memory": "64Mi"}, "requests": {"cpu": "0.0001"}}}],
        "initContainers": [{"name": "b", "image": "x:1", "resources": {"limits": {"memory": "1Mi"}}}],
        "overhead": {"cpu": "0.0011"},
    }));
    assert_eq!(spec["containers"][0]["resources"]["requests"], json!({"cpu": "1m", "memory": "64Mi"}));
    assert_eq!(spec["initContainers"][0]["resources"]["requests"], json!({"memory": "1Mi"}));
    assert_eq!(spec["overhead"], json!({"cpu": "2m"}));
}

#[test]
fn pod_resources_default_from_containers_then_from_limits() {
    let spec = defaulted(json!({
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
        "initContainers": [
            {"name": "side", "image": "x:1", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"name": "big", "image": "x:1", "resources": {"requests": {"cpu": "900m"}}},
        ],
        "containers": [
            {"name": "a", "image": "x:1", "resources": {"requests": {"cpu": "200m", "example.com/d": "1"},
                "limits": {"hugepages-2Mi": "4Mi", "example.com/d": "1"}}},
            {"name": "b", "image": "x:1", "resources": {"requests": {"cpu": "300m"}, "limits": {"hugepages-2Mi": "2Mi"}}},
        ],
    }));
    let expected = json!({
        "limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "6Mi"},
        "requests": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "6Mi"},
    });
    assert_eq!(spec["resources"], expected);
    assert!(defaulted(json!({"containers": [{"name": "a", "image": "x:1"}]})).get("resources").is_none());
}

#[test]
fn the_older_name_of_the_service_account_is_an_alias() {
    assert_eq!(defaulted(json!({"serviceAccount": "old"}))["serviceAccountName"], "old");
    assert_eq!(
        defaulted(json!({"serviceAccount": "old", "serviceAccountName": "new"}))["serviceAccount"],
        "new"
    );
}
