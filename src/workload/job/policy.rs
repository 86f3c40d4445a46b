//! What the end of a pod means for its Job: `podFailurePolicy` and `successPolicy`.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::Value;

use super::indexes::Indexes;
use crate::workload::fields::{at, list, text};
use crate::workload::pods::PodView;

/// What the policy says of a failed pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The failure does not count.
    pub is_ignored: bool,
    pub fails_index: bool,
    /// The Job fails, for this reason.
    pub fails_job: Option<String>,
}

/// Upstream: `matchPodFailurePolicy`. The first rule that matches decides.
pub(super) fn judge(policy: &Value, pod: &PodView) -> Verdict {
    for (position, rule) in list(policy, "/rules").iter().enumerate() {
        let action = text(rule, "/action");
        let exit = at(rule, "/onExitCodes");
        let found = if exit.is_object() {
            matching_exit(exit, pod).map(|(container, code)| {
                let (namespace, name) = (&pod.pod.metadata.namespace, pod.name());
                format!("Container {container} for pod {namespace}/{name} failed with exit code {code} matching {action} rule at index {position}")
            })
        } else {
            matching_condition(list(rule, "/onPodConditions"), pod).map(|kind| {
                let (namespace, name) = (&pod.pod.metadata.namespace, pod.name());
                format!(
                    "Pod {namespace}/{name} has condition {kind} matching {action} rule at index {position}"
                )
            })
        };
        let Some(message) = found else { continue };
        return match action {
            "Ignore" => Verdict { is_ignored: true, ..Verdict::default() },
            "FailIndex" => Verdict { fails_index: true, ..Verdict::default() },
            "FailJob" => Verdict { fails_job: Some(message), ..Verdict::default() },
            _ => Verdict::default(),
        };
    }
    Verdict::default()
}

fn matching_exit<'p>(wanted: &Value, pod: &'p PodView) -> Option<(&'p str, i32)> {
    let named = text(wanted, "/containerName");
    let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let codes = statuses.filter(|status| named.is_empty() || status.name == named).filter_map(|status| {
        let code = status.state.terminated.as_ref()?.exit_code;
        (code != 0).then_some((status.name.as_str(), code))
    });
    let is_in = text(wanted, "/operator") == "In";
    let mut codes =
        codes.filter(|(_, code)| list(wanted, "/values").iter().any(|value| value == code) == is_in);
    codes.next()
}

fn matching_condition<'p>(patterns: &[Value], pod: &'p PodView) -> Option<&'p str> {
    let holds = |pattern: &Value, kind: &str, status: &str| {
        let wanted = match text(pattern, "/status") {
            "" => "True",
            wanted => wanted,
        };
        text(pattern, "/type") == kind && wanted == status
    };
    let mut conditions = pod.status.conditions.iter();
    let found = conditions
        .find(|condition| patterns.iter().any(|pattern| holds(pattern, &condition.type_, &condition.status)));
    found.map(|condition| condition.type_.as_str())
}

/// Why the Job has succeeded before all its indexes have (upstream: `matchSuccessPolicy`).
pub(super) fn success(policy: &Value, completions: i64, succeeded: &Indexes) -> Option<String> {
    let matches = |rule: &Value| {
        let wanted = match text(rule, "/succeededIndexes") {
            "" => None,
            indexes => Some(Indexes::parse(indexes, completions)),
        };
        let found = wanted.as_ref().map_or_else(|| succeeded.total(), |wanted| wanted.shared(succeeded));
        match rule.get("succeededCount").and_then(Value::as_i64) {
            Some(count) => found >= count,
            None => wanted.is_some_and(|wanted| found == wanted.total()),
        }
    };
    let position = list(policy, "/rules").iter().position(matches)?;
    Some(format!("Matched rules at index {position}"))
}
