//! The rules of kinds that no controller of this node acts on, and of PriorityClasses.
//!
//! Owns them. Pure.

use serde_json::{Value, json};

use super::KindRules;
use crate::model::field_error::{Errors, Path};
use crate::model::objects::{LocalObject, ObjectKind};

/// Values above are for the classes of Kubernetes itself.
const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";

/// What does not happen with objects of a kind that nothing acts on.
pub(super) fn unacted(kind: ObjectKind) -> Option<&'static str> {
    Some(match kind {
        ObjectKind::APIService => {
            "APIService is stored and has no effect: this node forwards no API groups to other servers"
        }
        ObjectKind::VolumeAttachment => {
            "VolumeAttachment is stored and has no effect: this node attaches no volumes"
        }
        ObjectKind::FlowSchema | ObjectKind::PriorityLevelConfiguration => {
            "API priority and fairness is stored and has no effect: the limits of this node's API are fixed"
        }
        ObjectKind::HorizontalPodAutoscaler => {
            "HorizontalPodAutoscaler is stored and has no effect: this node does not scale by load; use kubectl scale"
        }
        ObjectKind::Ingress | ObjectKind::IngressClass => {
            "Ingress is stored and has no effect by itself: this node has no ingress controller; run one as a pod, or use a Service of type NodePort or LoadBalancer"
        }
        ObjectKind::LimitRange => {
            "LimitRange is stored and has no effect: this node sets no default requests and limits, and enforces no ranges"
        }
        ObjectKind::MutatingWebhookConfiguration | ObjectKind::ValidatingWebhookConfiguration => {
            "webhook configurations are stored and have no effect: this node calls no admission webhooks"
        }
        ObjectKind::NetworkPolicy => {
            "NetworkPolicy is stored and not enforced: this node does not filter traffic between pods"
        }
        ObjectKind::PodDisruptionBudget => {
            "PodDisruptionBudget is stored and has no effect: evictions on this node do not wait for it"
        }
        ObjectKind::ResourceQuota => {
            "ResourceQuota is stored and not enforced: this node limits no namespaces"
        }
        ObjectKind::ValidatingAdmissionPolicy | ObjectKind::ValidatingAdmissionPolicyBinding => {
            "admission policies are stored and have no effect: this node does not evaluate them"
        }
        _ => return None,
    })
}

/// Upstream: `ValidatePriorityClass`, `ValidatePriorityClassUpdate`.
pub(super) const PRIORITY_CLASS: KindRules = KindRules {
    defaults: |body| {
        if let Some(members) = body.as_object_mut() {
            members.entry("preemptionPolicy").or_insert_with(|| json!("PreemptLowerPriority"));
            members.entry("value").or_insert_with(|| json!(0));
        }
    },
    validate: priority_class,
    validate_update: |old, new, errors| {
        for field in ["value", "preemptionPolicy"] {
            if old[field] != new[field] {
                let why =
                    if field == "value" { "may not be changed in an update." } else { "field is immutable" };
                match new[field].as_str() {
                    None => errors.forbidden(&Path::Root(field), why),
                    Some(policy) => errors.invalid(&Path::Root(field), policy, why),
                }
            }
        }
    },
};

fn priority_class(object: &LocalObject, body: &Value, errors: &mut Errors) {
    let metadata = Path::Root("metadata");
    if object.key.name.starts_with(SYSTEM_PREFIX) {
        let why = "priority class names with 'system-' prefix are reserved for system use only. error: name is not known as a system priority class";
        errors.forbidden(&metadata.child("name"), why);
    }
    if body["value"].as_i64().is_some_and(|value| value > HIGHEST_USER_PRIORITY) {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}");
        errors.forbidden(&Path::Root("value"), &why);
    }
    let policy = body["preemptionPolicy"].as_str().unwrap_or_default();
    errors.one_of(&Path::Root("preemptionPolicy"), policy, &["Never", "PreemptLowerPriority"]);
}
