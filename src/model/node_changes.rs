//! Changes that clients of the API make to the Node: labels, annotations, taints, and `unschedulable`.
//!
//! Owns which changes are allowed, their effect on the Node, and which pods they keep away.

use crate::model::api::pod::{Pod, StringMap, Toleration};
use crate::model::api::record::record;
use crate::model::field_error::{FieldError, FieldErrorKind};
use crate::model::names::{label_value, qualified_name};
use crate::model::provenance::is_from_api;

/// Upstream's taint of a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";
const EFFECTS: [&str; 3] = [NO_SCHEDULE, "PreferNoSchedule", NO_EXECUTE];

record! {
    /// `v1.Taint`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Taint as camelCase {
        /// A qualified name.
        pub key: String,
        /// May be empty.
        #[serde(skip_serializing_if = "unset")]
        pub value: String,
        /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
        pub effect: String,
        /// When it was added, by the client.
        #[serde(skip_serializing_if = "unset")]
        pub time_added: Option<String>,
    }
}

/// The labels and taints of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeBase {
    /// Labels, well-known ones included. Clients cannot change them.
    pub labels: StringMap,
    /// `registerWithTaints`: in force until a client sets others.
    pub taints: Vec<Taint>,
}

record! {
    /// The changes that clients made.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct NodeChanges as camelCase {
        /// Labels in addition to those of the configuration.
        pub labels: StringMap,
        pub annotations: StringMap,
        /// `kubectl cordon`.
        pub unschedulable: bool,
        /// Taints that replace those of the configuration.
        pub taints: Option<Vec<Taint>>,
    }
}

/// The Node as a client wants it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeWish {
    /// `metadata.labels`.
    pub labels: StringMap,
    /// `metadata.annotations`.
    pub annotations: StringMap,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
}

impl NodeChanges {
    #[must_use]
    pub(crate) fn labels(&self, base: &NodeBase) -> StringMap {
        let mut labels = self.labels.clone();
        labels.extend(base.labels.clone());
        labels
    }

    /// The taints of the node, without the one of a cordoned node.
    #[must_use]
    pub(crate) fn taints<'a>(&'a self, base: &'a NodeBase) -> &'a [Taint] {
        self.taints.as_deref().unwrap_or(&base.taints)
    }

    /// The changes that turn the Node into the wanted one.
    pub(crate) fn apply_desired(&self, base: &NodeBase, wish: NodeWish) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        for (name, value) in &base.labels {
            if wish.labels.get(name) != Some(value) {
                let detail = format!(
                    "{name}={value} is set by the configuration of this node (--node-labels) or by its hardware"
                );
                errors.push(error(
                    FieldErrorKind::Forbidden,
                    &format!("metadata.labels[{name}]"),
                    "",
                    &detail,
                ));
            }
        }
        for (name, value) in wish.labels.iter().filter(|(name, _)| !base.labels.contains_key(*name)) {
            let path = format!("metadata.labels[{name}]");
            let mut complain =
                |text: &str, why: String| errors.push(error(FieldErrorKind::Invalid, &path, text, &why));
            for why in qualified_name(name) {
                complain(name, why);
            }
            for why in label_value(value) {
                complain(value, why);
            }
        }
        for name in wish.annotations.keys() {
            for why in qualified_name(&name.to_lowercase()) {
                errors.push(error(
                    FieldErrorKind::Invalid,
                    &format!("metadata.annotations[{name}]"),
                    name,
                    &why,
                ));
            }
        }
        let before = self.taints(base);
        for (index, taint) in wish.taints.iter().enumerate() {
            check_taint(taint, before, &wish.taints[..index], &format!("spec.taints[{index}]"), &mut errors);
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut labels = wish.labels;
        labels.retain(|name, _| !base.labels.contains_key(name));
        let taints = if wish.taints == before { self.taints.clone() } else { Some(wish.taints) };
        Ok(Self { labels, annotations: wish.annotations, unschedulable: wish.unschedulable, taints })
    }
}

fn error(kind: FieldErrorKind, path: &str, value: &str, detail: &str) -> FieldError {
    let value = if value.is_empty() { String::new() } else { format!("{value:?}") };
    FieldError { path: path.to_owned(), kind, value, detail: detail.to_owned() }
}

fn check_taint(taint: &Taint, before: &[Taint], earlier: &[Taint], at: &str, errors: &mut Vec<FieldError>) {
    let Taint { key, value, effect, .. } = taint;
    let mut complain = |field: &str, text: &str, why: &str| {
        errors.push(error(FieldErrorKind::Invalid, &format!("{at}.{field}"), text, why));
    };
    for why in qualified_name(key) {
        complain("key", key, &why);
    }
    for why in label_value(value) {
        complain("value", value, &why);
    }
    if !EFFECTS.contains(&effect.as_str()) {
        let detail = "supported values: \"NoExecute\", \"NoSchedule\", \"PreferNoSchedule\"";
        errors.push(error(FieldErrorKind::NotSupported, &format!("{at}.effect"), effect, detail));
    } else if effect == NO_EXECUTE && !before.contains(taint) {
        let detail = "NoExecute is not supported on this node: use NoSchedule, and kubectl drain";
        errors.push(error(FieldErrorKind::Forbidden, &format!("{at}.effect"), "", detail));
    }
    if earlier.iter().any(|other| other.key == *key && other.effect == *effect) {
        errors.push(error(
            FieldErrorKind::Duplicate,
            at,
            key,
            "taints must be unique by key and effect pair",
        ));
    }
}

/// Why a pod that has no place yet may not get one on this node, in a scheduler's words. Pods from manifests
/// are exempt.
#[must_use]
pub(crate) fn unschedulable_reason(pod: &Pod, unschedulable: bool, taints: &[Taint]) -> Option<String> {
    if !is_from_api(pod) {
        return None;
    }
    let cordon = Taint { key: UNSCHEDULABLE.to_owned(), effect: NO_SCHEDULE.to_owned(), ..Taint::default() };
    if unschedulable && !tolerates(pod, &cordon) {
        return Some("0/1 nodes are available: 1 node(s) were unschedulable.".to_owned());
    }
    let hard = |taint: &&Taint| matches!(taint.effect.as_str(), NO_SCHEDULE | NO_EXECUTE);
    let taint = taints.iter().filter(hard).find(|taint| !tolerates(pod, taint))?;
    Some(format!(
        "0/1 nodes are available: 1 node(s) had untolerated taint {{{}: {}}}.",
        taint.key, taint.value
    ))
}

/// The pod does not tolerate a `NoExecute` taint.
#[must_use]
pub(crate) fn is_evicted_by(pod: &Pod, taints: &[Taint]) -> bool {
    taints.iter().any(|taint| taint.effect == NO_EXECUTE && !tolerates(pod, taint))
}

fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    pod.spec.tolerations.iter().any(|toleration| {
        let Toleration { key, operator, value, effect, .. } = toleration;
        (effect.is_empty() || *effect == taint.effect)
            && (key.is_empty() || *key == taint.key)
            && (operator == "Exists" || !key.is_empty() && *value == taint.value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use serde_json::{Value, json};

    fn map(pairs: &[(&str, &str)]) -> StringMap {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.to_owned(), effect: effect.to_owned(), ..Taint::default() }
    }

    fn base() -> NodeBase {
        NodeBase { labels: map(&[("kubernetes.io/os", "linux")]), taints: vec![taint("own", NO_EXECUTE)] }
    }

    fn wish(labels: &[(&str, &str)], taints: &[Taint]) -> NodeWish {
        NodeWish { labels: map(labels), taints: taints.to_vec(), ..NodeWish::default() }
    }

    #[test]
    fn a_label_joins_those_of_the_configuration_which_stay() {
        let base = base();
        let labels = [("kubernetes.io/os", "linux"), ("disk", "ssd")];
        let changes = NodeChanges::default().apply_desired(&base, wish(&labels, &base.taints)).unwrap();
        assert_eq!(changes.labels, map(&[("disk", "ssd")]));
        assert_eq!((changes.labels(&base), &changes.taints), (map(&labels), &None));
        let refused = NodeChanges::default().apply_desired(&base, wish(&[("a b", "c")], &[])).unwrap_err();
        let paths: Vec<&str> = refused.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["metadata.labels[kubernetes.io/os]", "metadata.labels[a b]"]);
    }

    #[test]
    fn a_taint_is_kept_and_one_that_would_end_pods_is_refused() {
        let base = base();
        let labels = [("kubernetes.io/os", "linux")];
        let soft = taint("gpu", NO_SCHEDULE);
        let changes =
            NodeChanges::default().apply_desired(&base, wish(&labels, std::slice::from_ref(&soft))).unwrap();
        assert_eq!(changes.taints(&base), std::slice::from_ref(&soft));
        for (bad, said) in [
            (taint("gpu", NO_EXECUTE), "spec.taints[0].effect: Forbidden"),
            (taint("gpu", "Never"), "spec.taints[0].effect: Unsupported value"),
            (taint("g p u", NO_SCHEDULE), "spec.taints[0].key: Invalid value"),
        ] {
            let errors = NodeChanges::default().apply_desired(&base, wish(&labels, &[bad])).unwrap_err();
            assert!(errors[0].to_string().starts_with(said), "{errors:?}");
        }
        let twice =
            NodeChanges::default().apply_desired(&base, wish(&labels, &[soft.clone(), soft])).unwrap_err();
        assert_eq!((twice.len(), twice[0].path.as_str()), (1, "spec.taints[1]"));
    }

    fn pod(source: &str, tolerations: &Value) -> Pod {
        let pod = json!({"metadata": {"annotations": {"kubernetes.io/config.source": source}},
            "spec": {"tolerations": tolerations}});
        decode(pod).unwrap().object
    }

    #[test]
    fn pods_of_the_api_are_kept_away_unless_they_tolerate_it() {
        let taints = [taint("gpu", NO_SCHEDULE), taint("soft", "PreferNoSchedule")];
        let plain = pod("api", &json!([]));
        let said = unschedulable_reason(&plain, true, &[]).unwrap();
        assert_eq!(said, "0/1 nodes are available: 1 node(s) were unschedulable.");
        assert!(unschedulable_reason(&plain, false, &taints).unwrap().contains("untolerated taint {gpu: }"));
        assert_eq!(unschedulable_reason(&plain, false, &taints[1..]), None);
        assert_eq!(unschedulable_reason(&pod("file", &json!([])), true, &taints), None);
        for (tolerations, stays_away) in [
            (json!([{"operator": "Exists"}]), false),
            (json!([{"key": "gpu", "operator": "Exists"}]), true),
            (
                json!([{"key": "gpu", "operator": "Exists"}, {"key": UNSCHEDULABLE, "operator": "Exists"}]),
                false,
            ),
            (json!([{"key": "gpu", "effect": "NoExecute"}, {"key": UNSCHEDULABLE}]), true),
        ] {
            let found = unschedulable_reason(&pod("api", &tolerations), true, &taints);
            assert_eq!(found.is_some(), stays_away, "{tolerations}");
        }
    }
}
