//! Leaving the cluster: its pods are evicted, so that they run elsewhere and end here as pods that the cluster deletes.
//!
//! Owns one round of that. Each round asks for what is still to do, so that a client may stop asking at any time.
//! Deleting its own Node is not among a node's rights (`system:node`).

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::ClusterState;
use crate::cluster::client::Client;
use crate::cluster::client::error::ApiErrorKind;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::model::api::pod::Pod;
use crate::model::containers::is_terminal;
use crate::model::provenance::is_of_cluster;
use crate::node::Pending;

/// Longest time of a round; the client waits for its answer.
const ROUND: Duration = Duration::from_secs(5);

/// Cordons the node and evicts these pods; returns what has to be waited for.
pub(super) type Drain = Rc<dyn Fn(Vec<Pod>) -> Pending<Result<Vec<String>, String>>>;

/// The pods that run elsewhere once they have ended here. A DaemonSet would make its pod again at once; it ends with the
/// node, as others that have nothing more to do.
fn is_evicted(pod: &Pod) -> bool {
    let is_of_daemon_set = |owner: &Value| owner["kind"] == "DaemonSet";
    is_of_cluster(pod)
        && (!is_terminal(&pod.status) || pod.metadata.deletion_timestamp.is_some())
        && !pod.metadata.owner_references.iter().any(is_of_daemon_set)
}

pub(super) fn drain<T: Transport>(client: Rc<Client<T>>, node: &str) -> Drain {
    let node = ResourcePath::whole("", "nodes", node);
    Rc::new(move |pods| {
        let (client, node) = (Rc::clone(&client), node.clone());
        Box::pin(async move {
            let cordon = json!({"spec": {"unschedulable": true}});
            let patched =
                client.patch(Lane::Heartbeat, &node, Content::MergePatch, &cordon, Accept::Metadata).await;
            patched.map_err(|error| format!("cannot cordon the node: {error}"))?;
            let (mut waits, begun) = (Vec::new(), Instant::now());
            for pod in pods.iter().filter(|pod| is_evicted(pod)) {
                let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
                let is_asked = pod.metadata.deletion_timestamp.is_some() || begun.elapsed() > ROUND;
                match if is_asked { Ok(true) } else { evict(&client, pod).await } {
                    Ok(true) => waits.push(name),
                    Ok(false) => {}
                    Err(why) => waits.push(format!("{name} ({why})")),
                }
            }
            Ok(waits)
        })
    })
}

/// False when the server does not have the pod any more.
async fn evict<T: Transport>(client: &Client<T>, pod: &Pod) -> Result<bool, String> {
    let metadata = &pod.metadata;
    let of = ResourcePath::namespaced("", "pods", &metadata.namespace, &metadata.name).with_part("eviction");
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"namespace": metadata.namespace, "name": metadata.name},
        "deleteOptions": {"preconditions": {"uid": metadata.uid}},
    });
    // Not repeated on this lane: a disruption budget is asked again with the next round.
    match client.create(Lane::Heartbeat, &of, &body).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind == ApiErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

impl ClusterState {
    /// One round; empty when the cluster's pods are gone and the server has heard of all that ended.
    pub(crate) async fn drain(&self, pods: &[Pod]) -> Result<Vec<String>, String> {
        let drain = self.drain.borrow().clone().ok_or("there is no connection to the API server yet")?;
        let mut waits = drain(pods.to_vec()).await?;
        let unsent = self.waiting.get();
        if waits.is_empty() && unsent > 0 {
            waits.push(format!("{unsent} statuses to be sent"));
        }
        Ok(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::provenance::CONFIG_SOURCE_ANNOTATION;
    use crate::model::types::Timestamp;

    fn pod(source: &str, owner: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), source.to_owned());
        pod.metadata.owner_references.push(json!({"kind": owner}));
        pod
    }

    #[test]
    fn only_pods_that_run_elsewhere_then_are_evicted() {
        assert!(is_evicted(&pod("cluster", "ReplicaSet")));
        assert!(!is_evicted(&pod("cluster", "DaemonSet")));
        assert!(!is_evicted(&pod("file", "Node")) && !is_evicted(&pod("api", "ReplicaSet")));
        let mut done = pod("cluster", "Job");
        done.status.phase = "Succeeded".to_owned();
        assert!(!is_evicted(&done));
        done.metadata.deletion_timestamp = Some(Timestamp::default());
        assert!(is_evicted(&done), "its object is still to go");
    }
}
