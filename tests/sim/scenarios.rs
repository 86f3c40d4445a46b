//! Named scenarios of the whole agent: one thing that went or could go wrong, each.

mod admission;
mod cgroups;
mod clock;
mod crashes;
mod disk;
mod hooks;
mod lives;
mod objects;
mod pressure;
mod probes;
mod pull_secrets;
mod removal;
mod resize;
mod rollout;
mod runtime;
mod sources;
mod volumes;
mod workloads;

use std::time::Duration;

use edge_agent::model::api::pod::PodStatus;
use edge_agent::model::observed::ContainerStateKind;
use edge_agent::model::source::SourcePod;
use edge_agent::model::types::{ContainerId, PodSource};

use super::node::Node;
use super::pods::{Manifest, script_images};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A node with an agent that has just started, fed by manifest files.
async fn node() -> Node {
    node_with(&[PodSource::File]).await
}

async fn node_with(sources: &[PodSource]) -> Node {
    let mut node = Node::new(1, sources);
    script_images(&node.fake);
    node.start().await;
    node
}

/// What the file source says.
fn files(manifests: &[&Manifest]) -> Vec<SourcePod> {
    manifests.iter().map(|manifest| manifest.parse(PodSource::File)).collect()
}

/// Running containers of pods of this name, whichever version.
fn running(node: &Node, name: &str) -> Vec<ContainerId> {
    let world = node.fake.world();
    let records = world.containers.values().map(|container| &container.observed);
    records
        .filter(|record| {
            record.pod.name == format!("{name}-node1") && record.state == ContainerStateKind::Running
        })
        .map(|record| record.id.clone())
        .collect()
}

/// Nothing of any pod is left in the runtime.
fn is_empty(node: &Node) -> bool {
    let world = node.fake.world();
    world.sandboxes.is_empty() && world.containers.is_empty()
}

/// The status the agent shows of a pod.
fn status(node: &Node, pod: &SourcePod) -> PodStatus {
    let agent = node.agent.as_ref().expect("the agent runs");
    agent.statuses.last(&pod.pod.metadata.uid).expect("the pod has a status")
}
