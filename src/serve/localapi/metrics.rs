//! `metrics.k8s.io`: the usage of nodes and pods, measured on request.
//!
//! Owns the shapes.

use serde_json::{Value, json};

use super::LocalApi;
use super::resource::Store;
use super::status::Failure;
use crate::model::api::pod::Pod;
use crate::node::stats::Ask;
use crate::node::usage::{PodUse, Summary, Usage};

/// Metrics of all pods, or of the node, by namespace and name. Pods that have just started are not included
/// yet.
///
/// # Errors
/// 503 when nothing can be measured.
pub(super) async fn all(api: &LocalApi, store: Store) -> Result<Vec<Value>, Failure> {
    let summary = api.node.stats(Ask::CPU_AND_MEMORY).await.map_err(|why| {
        let message = format!("the server is currently unable to handle the request: {why}");
        Failure::new(503, "ServiceUnavailable", message)
    })?;
    Ok(match store {
        Store::NodeMetrics => {
            let labels = json!(api.cluster.node().labels);
            node(&summary, &labels).into_iter().collect()
        }
        _ => pods(&summary, &api.node.pods()),
    })
}

/// CPU as billionths of a core, memory as the working set.
fn usage(usage: &Usage) -> Option<Value> {
    let (cores, memory) = (usage.nano_cores?, usage.counted.working_set?);
    Some(json!({"cpu": format!("{cores}n"), "memory": format!("{}Ki", memory / 1024)}))
}

fn object(kind: &str, metadata: &Value, at: &Usage) -> Value {
    let mut object = json!({
        "kind": kind,
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": metadata,
        "timestamp": at.at.to_rfc3339(),
        // The minimum; otherwise the time since the previous request, if that is recent.
        "window": "1s",
    });
    object["metadata"]["creationTimestamp"] = json!(at.at.to_rfc3339());
    object
}

fn node(summary: &Summary, labels: &Value) -> Option<Value> {
    let node = &summary.node;
    let mut found = object("NodeMetrics", &json!({"name": node.name, "labels": labels}), &node.usage);
    found["usage"] = usage(&node.usage)?;
    Some(found)
}

fn pods(summary: &Summary, known: &[Pod]) -> Vec<Value> {
    let one = |used: &PodUse| {
        let containers: Vec<Value> = used
            .containers
            .iter()
            .filter_map(|container| Some(json!({"name": container.name, "usage": usage(&container.usage)?})))
            .collect();
        let pod = known.iter().find(|pod| pod.metadata.uid == used.pod.uid);
        let mut metadata = json!({"name": used.pod.name, "namespace": used.pod.namespace});
        if let Some(labels) = pod.map(|pod| &pod.metadata.labels).filter(|labels| !labels.is_empty()) {
            metadata["labels"] = json!(labels);
        }
        let mut found = object("PodMetrics", &metadata, &used.usage);
        found["containers"] = json!(containers);
        (!containers.is_empty()).then_some(found)
    };
    summary.pods.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::PodRef;
    use crate::node::usage::ContainerUse;
    use crate::platform::cgroup::usage::ContainerStats;

    #[test]
    fn usage_is_shown_once_it_is_known() {
        let used = |nano_cores| Usage {
            counted: ContainerStats { working_set: Some(4096), ..ContainerStats::default() },
            nano_cores,
            ..Usage::default()
        };
        let container = |name: &str, cores| ContainerUse {
            name: name.into(),
            usage: used(cores),
            ..ContainerUse::default()
        };
        let pod = |name: &str, containers| PodUse {
            pod: PodRef { namespace: "a".into(), name: name.into(), uid: name.into() },
            containers,
            ..PodUse::default()
        };
        let mut known = Pod::default();
        known.metadata.uid = "web".into();
        known.metadata.labels.insert("app".into(), "web".into());
        let measured = vec![
            pod("web", vec![container("main", Some(7)), container("new", None)]),
            pod("young", vec![container("x", None)]),
        ];
        let mut summary = Summary { pods: measured, ..Summary::default() };
        let shown = pods(&summary, &[known]);
        assert_eq!(shown.len(), 1);
        assert_eq!(
            shown[0]["containers"],
            json!([{"name": "main", "usage": {"cpu": "7n", "memory": "4Ki"}}])
        );
        assert_eq!(shown[0]["metadata"]["labels"]["app"], "web");
        assert_eq!(node(&summary, &json!({})), None);
        summary.node.usage = used(Some(9));
        assert_eq!(node(&summary, &json!({})).unwrap()["usage"]["cpu"], "9n");
    }
}
