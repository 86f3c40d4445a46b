//! PriorityClasses: the priority of a pod by the name of its class (upstream: the admission plugin `Priority`).
//!
//! Owns the resolution. Pure.

use crate::model::api::pod::PodSpec;
use crate::model::objects::PlainBody;

/// A class: its value, and whether its pods may end others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PriorityClass {
    pub name: String,
    pub value: i32,
    pub preemption_policy: String,
    is_default: bool,
}

/// Kubernetes' own classes, which need no object.
const BUILT_IN: [(&str, i32); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

impl PriorityClass {
    #[must_use]
    pub(crate) fn of(name: &str, body: &PlainBody) -> Self {
        let body = body.parse();
        Self {
            name: name.to_owned(),
            value: body["value"].as_i64().and_then(|value| i32::try_from(value).ok()).unwrap_or_default(),
            preemption_policy: body["preemptionPolicy"].as_str().unwrap_or(PREEMPTS).to_owned(),
            is_default: body["globalDefault"] == true,
        }
    }
}

const PREEMPTS: &str = "PreemptLowerPriority";

/// Fills in priority and preemption policy by the pod's class.
///
/// # Errors
/// Why the pod may not have them, in upstream's words; the pod is as it was.
pub(crate) fn admit(spec: &mut PodSpec, classes: &[PriorityClass]) -> Result<(), String> {
    let name = spec.priority_class_name.as_str();
    let built_in = BUILT_IN.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value);
    let class = match (name, built_in) {
        ("", _) => classes.iter().filter(|class| class.is_default).min_by_key(|class| class.value),
        (_, Some(_)) => None,
        _ => {
            let found = classes.iter().find(|class| class.name == name);
            Some(found.ok_or_else(|| format!("no PriorityClass with name {name} was found"))?)
        }
    };
    let value = built_in.or(class.map(|class| class.value)).unwrap_or_default();
    let policy = class.map_or(PREEMPTS, |class| &class.preemption_policy);
    if let Some(given) = spec.priority.filter(|given| *given != value) {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        ));
    }
    if let Some(given) = spec.preemption_policy.as_ref().filter(|given| *given != policy) {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    spec.priority = Some(value);
    spec.preemption_policy = Some(policy.to_owned());
    if let Some(class) = class {
        spec.priority_class_name.clone_from(&class.name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str, value: i64, is_default: bool) -> PriorityClass {
        PriorityClass::of(
            name,
            &PlainBody::new(
                &json!({"value": value, "globalDefault": is_default, "preemptionPolicy": "Never"}),
            ),
        )
    }

    #[test]
    fn a_pod_gets_the_priority_of_its_class() {
        let classes = [class("high", 1000, false), class("usual", 5, true), class("other", 7, true)];
        for (name, given, expected) in [
            ("high", None, Ok((1000, "Never", "high"))),
            ("", None, Ok((5, "Never", "usual"))),
            ("system-node-critical", None, Ok((2_000_001_000, PREEMPTS, "system-node-critical"))),
            ("none", None, Err("no PriorityClass with name none was found")),
            ("high", Some(1000), Ok((1000, "Never", "high"))),
            (
                "high",
                Some(1),
                Err(
                    "the integer value of priority (1) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name",
                ),
            ),
        ] {
            let mut spec =
                PodSpec { priority_class_name: name.to_owned(), priority: given, ..PodSpec::default() };
            let result = admit(&mut spec, &classes);
            let found = result.map(|()| {
                (
                    spec.priority.unwrap(),
                    spec.preemption_policy.clone().unwrap(),
                    spec.priority_class_name.clone(),
                )
            });
            let expected = expected
                .map(|(value, policy, class)| (value, policy.to_owned(), class.to_owned()))
                .map_err(str::to_owned);
            assert_eq!(found, expected, "{name} {given:?}");
        }
        let mut spec = PodSpec::default();
        assert_eq!(admit(&mut spec, &[]), Ok(()));
        assert_eq!((spec.priority, spec.preemption_policy.as_deref()), (Some(0), Some(PREEMPTS)));
    }
}
