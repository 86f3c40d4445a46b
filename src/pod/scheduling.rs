//! The scheduler's fields on a node without a scheduler: a pod with scheduling gates waits for their removal,
//! and ignored fields are reported.
//!
//! Owns these rules and their messages ([ADR 0037](../../docs/adr/0037-scheduling-fields.md)).
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::Value;

use crate::model::api::pod::{Pod, PodCondition, PodSpec, PodStatus};
use crate::model::containers::is_terminal;
use crate::model::provenance::{first_seen, is_of_cluster};
use crate::model::types::Timestamp;
use crate::pod::resources::qos_class;

const SCHEDULED: &str = "PodScheduled";
const REASON: &str = "SchedulingGated";
const MESSAGE: &str = "Scheduling is blocked due to non-empty scheduling gates";
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// The pod waits until its scheduling gates are removed.
#[must_use]
pub(crate) fn is_gated(spec: &PodSpec) -> bool {
    !spec.scheduling_gates.is_empty()
}

/// Puts a pod of the API on this node, unless it waits for its gates.
pub(crate) fn place(spec: &mut PodSpec, node_name: &str) {
    if spec.node_name.is_empty() && !is_gated(spec) {
        node_name.clone_into(&mut spec.node_name);
    }
}

/// The status of a pod that waits for its gates: upstream's for a pod that no kubelet has seen.
#[must_use]
pub(super) fn gated_status(pod: &Pod, previous: Option<&PodStatus>, now: Timestamp) -> PodStatus {
    let before = previous.map(|previous| previous.conditions.as_slice()).unwrap_or_default();
    let is_this = |condition: &&PodCondition| condition.type_ == SCHEDULED && condition.status == "False";
    let since = before.iter().find(is_this).and_then(|condition| condition.last_transition_time);
    let scheduled = PodCondition {
        type_: SCHEDULED.to_owned(),
        status: "False".to_owned(),
        observed_generation: pod.metadata.generation,
        last_transition_time: since.or(Some(now)),
        reason: REASON.to_owned(),
        message: MESSAGE.to_owned(),
        ..PodCondition::default()
    };
    PodStatus {
        qos_class: qos_class(pod).as_str().to_owned(),
        conditions: vec![scheduled],
        ..PodStatus::pending()
    }
}

/// The status of a pod before the first sync of its worker: of a pod that its cluster calls ended, that end.
#[must_use]
pub(crate) fn first_status(pod: &Pod) -> PodStatus {
    if is_of_cluster(pod) && is_terminal(&pod.status) {
        pod.status.clone()
    } else if is_gated(&pod.spec) {
        gated_status(pod, None, first_seen(pod).unwrap_or_default())
    } else {
        PodStatus::pending()
    }
}

/// The reason in the status of a pod that waits for its gates.
#[must_use]
pub(crate) fn gated_reason(status: &PodStatus) -> Option<&str> {
    let is_this = |condition: &&PodCondition| condition.type_ == SCHEDULED && condition.reason == REASON;
    status.conditions.iter().find(is_this).map(|condition| condition.reason.as_str())
}

/// The scheduling fields of the pod that this node ignores.
#[must_use]
pub(crate) fn unscheduled(spec: &PodSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if !matches!(spec.scheduler_name.as_str(), "" | DEFAULT_SCHEDULER) {
        warnings.push(format!(
            "spec.schedulerName: {:?} has no effect: the agent runs the pod without a scheduler",
            spec.scheduler_name
        ));
    }
    for (field, words) in [
        ("podAffinity", "the pod runs whether or not a matching pod exists"),
        ("podAntiAffinity", "the pod runs alongside matching pods, because this is the only node"),
    ] {
        let pointer = format!("/{field}/requiredDuringSchedulingIgnoredDuringExecution");
        let terms = spec.affinity.as_ref().and_then(|affinity| affinity.pointer(&pointer));
        if terms.and_then(Value::as_array).is_some_and(|terms| !terms.is_empty()) {
            warnings.push(format!("spec.affinity.{field}: required terms have no effect: {words}"));
        }
    }
    let wants_more_nodes = |constraint: &Value| {
        constraint.get("minDomains").and_then(Value::as_i64).is_some_and(|domains| domains > 1)
    };
    if spec.topology_spread_constraints.iter().any(wants_more_nodes) {
        warnings.push(
            "spec.topologySpreadConstraints: minDomains has no effect: this node is the only domain"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use serde_json::json;

    fn pod(spec: &Value) -> Pod {
        decode(json!({"metadata": {"name": "p", "generation": 3}, "spec": spec})).unwrap().object
    }

    #[test]
    fn gated_pod_shows_what_upstream_shows() {
        let gated = pod(&json!({"schedulingGates": [{"name": "a"}], "containers": []}));
        let first = gated_status(&gated, None, Timestamp::from_secs(5));
        let expected = json!({
            "phase": "Pending", "qosClass": "BestEffort",
            "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "observedGeneration": 3,
                "message": "Scheduling is blocked due to non-empty scheduling gates", "lastTransitionTime": "1970-01-01T00:00:05Z",
            }],
        });
        assert_eq!(json!(first), expected);
        assert_eq!(gated_reason(&first), Some("SchedulingGated"));
        assert_eq!(gated_reason(&PodStatus::pending()), None);
        assert_eq!(gated_reason(&first_status(&gated)), Some("SchedulingGated"));
        assert_eq!(
            gated_status(&gated, Some(&first), Timestamp::from_secs(9)),
            first,
            "nothing changes with time"
        );
        let mut spec = gated.spec;
        place(&mut spec, "n");
        assert_eq!(spec.node_name, "");
        spec.scheduling_gates.clear();
        place(&mut spec, "n");
        assert_eq!(spec.node_name, "n");
    }

    #[test]
    fn a_pod_that_its_cluster_calls_ended_begins_with_that_end() {
        for (source, phase) in [("cluster", "Succeeded"), ("api", "Pending")] {
            let annotations = json!({"kubernetes.io/config.source": source});
            let status = json!({"phase": "Succeeded", "containerStatuses": [{"name": "c"}]});
            let pod = decode::<Pod>(json!({"metadata": {"annotations": annotations}, "status": status}));
            assert_eq!(first_status(&pod.unwrap().object).phase, phase);
        }
    }

    #[test]
    fn what_a_scheduler_would_do_is_said_where_it_is_missing() {
        let term = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}]);
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        for (spec, expected) in [
            (json!({"schedulerName": "default-scheduler"}), ""),
            (json!({"schedulerName": "mine"}), "spec.schedulerName: \"mine\" has no effect"),
            (json!({"affinity": {"podAffinity": {(required): []}}}), ""),
            (
                json!({"affinity": {"podAffinity": {(required): term}}}),
                "spec.affinity.podAffinity: required terms",
            ),
            (
                json!({"affinity": {"podAntiAffinity": {(required): term}}}),
                "spec.affinity.podAntiAffinity: required",
            ),
            (
                json!({"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}),
                "",
            ),
            (
                json!({"topologySpreadConstraints": [{"minDomains": 2}]}),
                "spec.topologySpreadConstraints: minDomains",
            ),
        ] {
            let warnings = unscheduled(&pod(&spec).spec);
            match expected {
                "" => assert_eq!(warnings, Vec::<String>::new(), "{spec}"),
                words => {
                    assert!(warnings.len() == 1 && warnings[0].starts_with(words), "{spec}: {warnings:?}");
                }
            }
        }
    }
}
