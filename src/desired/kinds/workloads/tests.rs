use serde_json::json;

use super::*;
use crate::desired::local_objects::{accept, refused_change};
use crate::model::objects::{LocalObject, ObjectKind, wire};

fn template(labels: &Value, restart: &str) -> Value {
    json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": "a:1"}]}})
}

fn object(kind: &str, spec: &Value) -> Result<LocalObject, String> {
    let document = json!({"metadata": {"name": "x", "namespace": "default"}, "spec": spec});
    let kind = ObjectKind::from_name(kind).unwrap();
    let (decoded, _) = wire::decode_object(kind, document).unwrap();
    accept(decoded)
        .map_err(|invalid| invalid.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// A valid spec with other values at these pointers; null removes.
fn spec_with(kind: &str, changes: &Value) -> Value {
    let labels = json!({"app": "x"});
    let mut spec = match kind {
        "Job" => json!({"template": template(&json!({}), "Never")}),
        "CronJob" => {
            json!({"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": template(&json!({}), "Never")}}})
        }
        _ => json!({"selector": {"matchLabels": labels}, "template": template(&labels, "Always")}),
    };
    for (pointer, value) in changes.as_object().into_iter().flatten() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { &mut spec } else { spec.pointer_mut(parent).unwrap() };
        match value {
            Value::Null => drop(parent.as_object_mut().unwrap().remove(field)),
            value => parent[field] = value.clone(),
        }
    }
    spec
}

#[test]
fn defaults_are_those_of_the_api_server() {
    for (kind, expected) in [
        (
            "Deployment",
            json!({"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}}),
        ),
        ("ReplicaSet", json!({"replicas": 1})),
        (
            "DaemonSet",
            json!({"revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}}),
        ),
        (
            "StatefulSet",
            json!({"replicas": 1, "revisionHistoryLimit": 10, "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"}}),
        ),
        (
            "Job",
            json!({"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed",
            "suspend": false, "manualSelector": false, "podReplacementPolicy": "TerminatingOrFailed"}),
        ),
        (
            "CronJob",
            json!({"concurrencyPolicy": "Allow", "suspend": false, "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}),
        ),
    ] {
        let spec = object(kind, &spec_with(kind, &json!({}))).unwrap().content.body()["spec"].clone();
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(spec[field], *value, "{kind} {field}");
        }
        let pointer = if kind == "CronJob" { "/jobTemplate/spec/template" } else { "/template" };
        let template = spec.pointer(pointer).unwrap();
        assert_eq!(template["spec"]["terminationGracePeriodSeconds"], 30, "{kind}");
        assert_eq!(template["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
        assert_eq!(template["spec"].get("enableServiceLinks"), None, "a default of the pod");
        // Once more changes nothing.
        let again = object(kind, &spec).unwrap().content.body()["spec"].clone();
        assert_eq!(again, spec, "{kind}");
    }
    let queue = object("Job", &spec_with("Job", &json!({"/parallelism": 3}))).unwrap().content.body();
    assert_eq!(queue["spec"].get("completions"), None, "a work queue");
    let limits = json!({"limits": {"memory": "10Mi"}});
    let spec = spec_with(
        "Deployment",
        &json!({"/template/spec/containers": [{"name": "c", "image": "a:1", "resources": limits}]}),
    );
    let spec = object("Deployment", &spec).unwrap().content.body()["spec"].clone();
    assert_eq!(spec["template"]["spec"]["containers"][0]["resources"], limits, "requests follow in the pod");
}

#[test]
fn host_ports_of_the_hosts_network_follow_in_the_pod() {
    let of_port = |port: Value| {
        let container = json!({"name": "c", "image": "a:1", "ports": [port]});
        let changes = json!({"/template/spec/hostNetwork": true, "/template/spec/containers": [container]});
        object("DaemonSet", &spec_with("DaemonSet", &changes))
    };
    let set = of_port(json!({"containerPort": 9100})).unwrap().content.body();
    assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["ports"][0].get("hostPort"), None);
    let said = of_port(json!({"containerPort": 9100, "hostPort": 9101})).unwrap_err();
    let expected =
        "spec.template.spec.containers[0].ports[0].containerPort: Invalid value: 9100: must match `hostPort`";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn containers_mount_what_a_stateful_set_claims() {
    let mounts = |name: &str| {
        let container =
            json!({"name": "c", "image": "a:1", "volumeMounts": [{"name": name, "mountPath": "/data"}]});
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let changes = json!({"/template/spec/containers": [container], "/volumeClaimTemplates": [claim]});
        object("StatefulSet", &spec_with("StatefulSet", &changes))
    };
    assert!(mounts("data").is_ok());
    let said = mounts("other").unwrap_err();
    assert!(
        said.contains("spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"other\""),
        "{said}"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn mistakes_are_told_in_upstreams_words() {
    for (kind, changes, expected) in [
        ("Deployment", json!({"/selector": null}), "spec.selector: Required value"),
        (
            "Deployment",
            json!({"/selector": {}}),
            "spec.selector: Invalid value: {}: empty selector is invalid for deployment",
        ),
        (
            "Deployment",
            json!({"/selector": {"matchLabels": {"app": "y"}}}),
            "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`",
        ),
        (
            "Deployment",
            json!({"/template/spec/restartPolicy": "Never"}),
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ),
        (
            "Deployment",
            json!({"/template/spec/activeDeadlineSeconds": 5}),
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
        ),
        (
            "Deployment",
            json!({"/replicas": -1}),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            "Deployment",
            json!({"/strategy": {"type": "Sideways"}}),
            "spec.strategy.type: Unsupported value: \"Sideways\": supported values: \"Recreate\", \"RollingUpdate\"",
        ),
        (
            "Deployment",
            json!({"/strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ),
        (
            "Deployment",
            json!({"/strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        (
            "Deployment",
            json!({"/strategy": {"rollingUpdate": {"maxUnavailable": "120%"}}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"120%\": must not be greater than 100%",
        ),
        (
            "Deployment",
            json!({"/minReadySeconds": 600}),
            "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
        ),
        (
            "Deployment",
            json!({"/template/spec/containers": []}),
            "spec.template.spec.containers: Required value",
        ),
        (
            "DaemonSet",
            json!({"/updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
        ),
        (
            "StatefulSet",
            json!({"/podManagementPolicy": "Random"}),
            "spec.podManagementPolicy: Unsupported value: \"Random\": supported values: \"OrderedReady\", \"Parallel\"",
        ),
        (
            "Job",
            json!({"/template/spec/restartPolicy": "Always"}),
            "spec.template.spec.restartPolicy: Unsupported value: \"Always\": supported values: \"Never\", \"OnFailure\"",
        ),
        (
            "Job",
            json!({"/selector": {"matchLabels": {"a": "b"}}}),
            "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: `selector` not auto-generated",
        ),
        (
            "Job",
            json!({"/completionMode": "Indexed", "/completions": null, "/parallelism": 1}),
            "spec.completions: Required value: when completion mode is Indexed",
        ),
        (
            "Job",
            json!({"/backoffLimitPerIndex": 1}),
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
        ),
        (
            "Job",
            json!({"/podFailurePolicy": {"rules": [{"action": "Ignore"}]}}),
            "spec.podFailurePolicy.rules[0]: Invalid value: {\"action\":\"Ignore\"}: specifying one of OnExitCodes and OnPodConditions is required",
        ),
        (
            "Job",
            json!({"/podFailurePolicy": {"rules": [{"action": "Count", "onExitCodes": {"operator": "In", "values": [0]}}]}}),
            "spec.podFailurePolicy.rules[0].onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
        ),
        (
            "Job",
            json!({"/podFailurePolicy": {"rules": []}, "/template/spec/restartPolicy": "OnFailure"}),
            "spec.template.spec.restartPolicy: Invalid value: \"OnFailure\": only \"Never\" is supported when podFailurePolicy is specified",
        ),
        ("CronJob", json!({"/schedule": ""}), "spec.schedule: Required value"),
        (
            "CronJob",
            json!({"/schedule": "61 * * * *"}),
            "spec.schedule: Invalid value: \"61 * * * *\": end of range (61) above maximum (59): 61",
        ),
        (
            "CronJob",
            json!({"/schedule": "TZ=UTC 0 * * * *"}),
            "spec.schedule: Invalid value: \"TZ=UTC 0 * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        ),
        (
            "CronJob",
            json!({"/timeZone": "../../etc/passwd"}),
            "spec.timeZone: Invalid value: \"../../etc/passwd\": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        ),
        (
            "CronJob",
            json!({"/concurrencyPolicy": "Maybe"}),
            "spec.concurrencyPolicy: Unsupported value: \"Maybe\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
        ),
        (
            "CronJob",
            json!({"/jobTemplate/spec/template/spec/restartPolicy": "Always"}),
            "spec.jobTemplate.spec.template.spec.restartPolicy: Unsupported value: \"Always\": supported values: \"Never\", \"OnFailure\"",
        ),
    ] {
        let errors = object(kind, &spec_with(kind, &changes)).expect_err(&format!("{kind} {changes}"));
        assert!(
            errors.lines().any(|error| error == expected),
            "{kind} {changes}\n{errors}\nexpected {expected}"
        );
    }
    let metadata = json!({"name": "a".repeat(53), "namespace": "default"});
    let document = json!({"metadata": metadata, "spec": spec_with("CronJob", &json!({}))});
    let (decoded, _) = wire::decode_object(ObjectKind::CronJob, document).unwrap();
    assert!(accept(decoded).unwrap_err().to_string().ends_with("must be no more than 52 characters"));
}

#[test]
fn immutable_fields_stay_as_they_are() {
    for (kind, changes, expected) in [
        (
            "Deployment",
            json!({"/replicas": 5, "/template/spec/containers": [{"name": "c", "image": "a:2"}]}),
            "",
        ),
        (
            "Deployment",
            json!({"/selector": {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}}),
            "spec.selector: Invalid value: {\"matchExpressions\":[{\"key\":\"app\",\"operator\":\"Exists\"}],\"matchLabels\":{\"app\":\"x\"}}: field is immutable",
        ),
        ("StatefulSet", json!({"/replicas": 5, "/minReadySeconds": 3}), ""),
        (
            "StatefulSet",
            json!({"/serviceName": "other"}),
            "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ),
        ("Job", json!({"/completions": 1, "/parallelism": 4, "/backoffLimit": 1, "/suspend": true}), ""),
        ("Job", json!({"/completions": 4}), "spec.completions: Invalid value: 4: field is immutable"),
        (
            "Job",
            json!({"/completionMode": "Indexed"}),
            "spec.completionMode: Invalid value: \"Indexed\": field is immutable",
        ),
        ("CronJob", json!({"/schedule": "@daily", "/suspend": true}), ""),
    ] {
        let old = object(kind, &spec_with(kind, &json!({}))).unwrap();
        let new = object(kind, &spec_with(kind, &changes)).unwrap();
        let errors: Vec<String> = refused_change(&old, &new).iter().map(ToString::to_string).collect();
        assert_eq!(errors.join("\n"), expected, "{kind} {changes}");
    }
    let image = json!({"/template/spec/containers": [{"name": "c", "image": "a:2"}]});
    let old = object("Job", &spec_with("Job", &json!({}))).unwrap();
    let new = object("Job", &spec_with("Job", &image)).unwrap();
    let refused = refused_change(&old, &new)[0].to_string();
    assert!(
        refused.starts_with("spec.template: Invalid value: {") && refused.ends_with(": field is immutable"),
        "{refused}"
    );
    // One that has not begun may be moved and given other resources.
    let waiting = object("Job", &spec_with("Job", &json!({"/suspend": true}))).unwrap();
    let moved = json!({"/suspend": true, "/template/spec/nodeSelector": {"disk": "ssd"},
        "/template/spec/containers": [{"name": "c", "image": "a:1", "resources": {"limits": {"cpu": "1"}}}]});
    assert!(refused_change(&waiting, &object("Job", &spec_with("Job", &moved)).unwrap()).is_empty());
}
