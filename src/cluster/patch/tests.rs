//! What a status patch says, and what counts as the same status.

use super::*;
use crate::model::api::decode::decode;

fn pod(status: &Value) -> Pod {
    let spec = json!({"containers": [{"name": "b"}, {"name": "a"}], "initContainers": [{"name": "z"}, {"name": "i"}]});
    decode(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec, "status": status})).unwrap().object
}

fn condition(type_: &str, status: &str) -> Value {
    json!({"type": type_, "status": status, "lastTransitionTime": "2026-11-20T16:00:00Z"})
}

#[test]
fn a_status_patch_names_our_fields_only() {
    let status = json!({
        "phase": "Running", "qosClass": "BestEffort", "observedGeneration": 2, "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}], "nominatedNodeName": "n", "resourceClaimStatuses": [{"name": "c"}],
        "conditions": [
            condition("Ready", "True"), condition("example.com/gate", "True"), condition("DisruptionTarget", "True"),
        ],
        "containerStatuses": [{"name": "b"}, {"name": "a"}],
    });
    let body = pod_status(&"u".into(), &outgoing(&pod(&status)));
    assert_eq!(body["metadata"], json!({"uid": "u"}));
    let said = &body["status"];
    let fields: Vec<&String> = said.as_object().unwrap().keys().collect();
    assert_eq!(fields.len(), FIELDS.len() + 1, "{fields:?}");
    assert_eq!(said["podIPs"], json!([{"$patch": "replace"}, {"ip": "10.0.0.1"}]));
    assert_eq!(said["hostIPs"], json!([{"$patch": "replace"}]));
    assert_eq!((&said["reason"], &said["initContainerStatuses"]), (&Value::Null, &Value::Null));
    assert_eq!(said["containerStatuses"][0]["name"], "a");
    let conditions = said["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 4, "{conditions:?}");
    assert_eq!(conditions[0]["type"], "Ready");
    assert_eq!((&conditions[0]["reason"], &conditions[0]["lastProbeTime"]), (&Value::Null, &Value::Null));
    assert_eq!(conditions[1], json!({"$patch": "delete", "type": "PodResizePending"}));
}

#[test]
fn a_terminal_phase_waits_for_the_last_container() {
    let running = json!({"running": {"startedAt": "2026-11-20T16:00:00Z"}});
    let disrupted = json!({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"});
    let status = |state: &Value| {
        json!({
            "phase": "Failed", "reason": "Evicted", "conditions": [condition("Ready", "True"), disrupted],
            "containerStatuses": [{"name": "a", "state": state}],
        })
    };
    let early = outgoing(&pod(&status(&running)));
    assert_eq!((early.phase.as_str(), early.reason.as_str()), ("Running", ""));
    assert!(
        early.conditions.iter().all(|condition| condition.type_ == "Ready" && condition.status == "True")
    );
    let ended = outgoing(&pod(&status(&json!({"terminated": {"exitCode": 137}}))));
    assert_eq!((ended.phase.as_str(), ended.reason.as_str()), ("Failed", "Evicted"));
    let conditions: Vec<_> = ended
        .conditions
        .iter()
        .map(|each| (each.type_.as_str(), each.status.as_str(), each.reason.as_str()))
        .collect();
    assert_eq!(
        conditions,
        [("DisruptionTarget", "True", "TerminationByKubelet"), ("Ready", "False", "PodFailed")]
    );
}

#[test]
fn equal_statuses_have_one_digest() {
    let base = json!({
        "phase": "Running", "startTime": "2026-11-20T16:00:00Z",
        "conditions": [condition("Ready", "True"), condition("Initialized", "True")],
        "containerStatuses": [{"name": "a"}, {"name": "b"}], "initContainerStatuses": [{"name": "z"}, {"name": "i"}],
    });
    let of = |status: &Value| digest(&shown(&pod(status)));
    let with = |changes: &[(&str, Value)]| {
        let mut status = base.clone();
        for (field, value) in changes {
            status[*field] = value.clone();
        }
        of(&status)
    };
    for (why, other) in [
        ("another zone, and nanoseconds", with(&[("startTime", json!("2026-11-20T17:00:00.5+01:00"))])),
        ("another order", with(&[("containerStatuses", json!([{"name": "b"}, {"name": "a"}]))])),
        ("absent and null", with(&[("message", Value::Null)])),
        ("the server's own fields", with(&[("qosClass", json!("Burstable")), ("unknownField", json!(1))])),
        (
            "a foreign condition",
            with(&[(
                "conditions",
                json!([
                    condition("Initialized", "True"),
                    condition("x/y", "True"),
                    condition("Ready", "True")
                ]),
            )]),
        ),
        (
            "a disruption that the control plane announced",
            with(&[(
                "conditions",
                json!([
                    condition("Ready", "True"),
                    condition("Initialized", "True"),
                    condition("DisruptionTarget", "True")
                ]),
            )]),
        ),
    ] {
        assert_eq!(other, of(&base), "{why}");
    }
    assert_ne!(with(&[("phase", json!("Pending"))]), of(&base));
    assert_ne!(with(&[("conditions", json!([condition("Ready", "False")]))]), of(&base));
}

#[test]
fn messages_of_all_containers_share_12_kib() {
    let long = "ä".repeat(5000);
    let status = json!({"phase": "Failed", "containerStatuses": [
        {"name": "a", "state": {"terminated": {"exitCode": 1, "message": long}}},
    ]});
    let sent = outgoing(&pod(&status));
    let message = &sent.container_statuses[0].state.terminated.as_ref().unwrap().message;
    assert_eq!(message.len(), 12 * 1024 / 4);
    assert_eq!(digest(&sent), digest(&shown(&Pod { status: sent.clone(), ..pod(&status) })));
}
