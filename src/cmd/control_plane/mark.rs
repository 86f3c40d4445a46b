//! The phase `mark-control-plane`: labels and taints of the node.

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::api::{AGAIN, Api, ApiPhaseError};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::Transport;

const LABELS: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node.kubernetes.io/exclude-from-external-load-balancers"];

/// The change of a Node; `None` if it has all already, or has not been registered completely. It names the version that was read:
/// taints are a list, and others add to it.
fn change(node: &Value, taints: &[Value]) -> Option<Value> {
    node["metadata"]["labels"]["kubernetes.io/hostname"].as_str()?;
    let there = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let wanted = taints.iter().chain(there.iter().filter(|taint| !taints.contains(taint)));
    let wanted: Vec<_> = wanted.cloned().collect();
    let is_labelled = LABELS.iter().all(|label| node["metadata"]["labels"][label] == "");
    let is_tainted = taints.iter().all(|taint| there.contains(taint));
    (!is_labelled || !is_tainted).then(|| {
        json!({
            "metadata": {
                "resourceVersion": node["metadata"]["resourceVersion"],
                "labels": {LABELS[0]: "", LABELS[1]: ""},
            },
            "spec": {"taints": wanted},
        })
    })
}

/// Waits until the node is registered, which it does itself.
pub(crate) async fn run<T: Transport>(
    api: &Api<'_, T>,
    name: &str,
    taints: &[Value],
) -> Result<(), ApiPhaseError> {
    let labels = LABELS.join(" ");
    (api.say)(&format!(
        "[mark-control-plane] Marking the node {name} as control-plane by adding the labels: [{labels}]\n"
    ));
    if !taints.is_empty() {
        let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
        let shown = |taint: &Value| match text(&taint["value"]) {
            value if value.is_empty() => [text(&taint["key"]), text(&taint["effect"])].join(":"),
            value => format!("{}={value}:{}", text(&taint["key"]), text(&taint["effect"])),
        };
        let shown: Vec<_> = taints.iter().map(shown).collect();
        let shown = shown.join(" ");
        (api.say)(&format!(
            "[mark-control-plane] Marking the node {name} as control-plane by adding the taints [{shown}]\n"
        ));
    }
    let of = ResourcePath::whole("", "nodes", name);
    let hostname = json!({"kubernetes.io/hostname": name});
    let mut why = "it is not registered";
    loop {
        let node = match api.get(&of).await? {
            None if api.is_dry() => json!({"metadata": {"labels": hostname}}),
            None => Value::Null,
            Some(node) => node,
        };
        let is_registered = !node["metadata"]["labels"]["kubernetes.io/hostname"].is_null();
        match change(&node, taints) {
            Some(mut patch) => {
                patch["apiVersion"] = "v1".into();
                patch["kind"] = "Node".into();
                match api.patch(&of, &patch).await {
                    // Another has changed the node since.
                    Err(error) if error.is_conflict() => why = "it is changed by others all the time",
                    other => return other.map(drop),
                }
            }
            None if is_registered => return Ok(()),
            None if !node.is_null() => why = "it has no label kubernetes.io/hostname",
            None => {}
        }
        if Instant::now() + AGAIN > api.deadline {
            return Err(ApiPhaseError::Broken(format!(
                "could not label and taint the node {name:?}: {why} (see the agent's log: journalctl -u agent)"
            )));
        }
        sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests;
