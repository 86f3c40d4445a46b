//! Who has a port of the node that both a Service of type `LoadBalancer` and a pod want: the first of them.
//!
//! Owns that rule, and the event for the pod that comes second.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::spec::{Protocol, ServiceSpec, ServiceType};
use super::table::Claim;
use crate::model::api::pod::{Pod, PodStatus};
use crate::model::types::Timestamp;

/// Ports of Services that others had before, and those of the agent itself.
#[must_use]
pub(super) fn claimed(
    services: &[Rc<ServiceSpec>],
    pods: &[(&Pod, &PodStatus)],
    own: &[u16],
) -> BTreeSet<Claim> {
    let mut claimed = BTreeSet::new();
    for (service, protocol, port) in balanced(services) {
        let is_own = protocol == Protocol::Tcp && own.contains(&port);
        let was_first =
            holders(pods, protocol, port).any(|(pod, status)| since(pod, status) < service.created);
        if is_own || was_first {
            claimed.insert((service.uid.clone(), protocol, port));
        }
    }
    claimed
}

/// The pods whose host port leads to a Service that had it before: each with protocol, port and the Service.
#[must_use]
pub(super) fn late_pods<'p>(
    services: &[Rc<ServiceSpec>],
    pods: &[(&'p Pod, &'p PodStatus)],
) -> Vec<(&'p Pod, Protocol, u16, String)> {
    let mut late = Vec::new();
    for (service, protocol, port) in balanced(services) {
        let later =
            holders(pods, protocol, port).filter(|(pod, status)| since(pod, status) >= service.created);
        late.extend(
            later.map(|(pod, _)| (pod, protocol, port, format!("{}/{}", service.namespace, service.name))),
        );
    }
    late
}

fn balanced(services: &[Rc<ServiceSpec>]) -> impl Iterator<Item = (&ServiceSpec, Protocol, u16)> {
    let balancers = services.iter().filter(|service| service.kind == ServiceType::LoadBalancer);
    balancers.flat_map(|service| service.ports.iter().map(|port| (&**service, port.protocol, port.port)))
}

fn holders<'a, 'p>(
    pods: &'a [(&'p Pod, &'p PodStatus)],
    protocol: Protocol,
    port: u16,
) -> impl Iterator<Item = (&'p Pod, &'p PodStatus)> + use<'a, 'p> {
    let has = move |pod: &Pod| {
        pod.spec
            .containers
            .iter()
            .flat_map(|container| &container.ports)
            .any(|it| it.host_port == i32::from(port) && Protocol::from_text(&it.protocol) == protocol)
    };
    let is_over = |status: &PodStatus| matches!(status.phase.as_str(), "Succeeded" | "Failed");
    pods.iter().copied().filter(move |(pod, status)| !is_over(status) && has(pod))
}

fn since(pod: &Pod, status: &PodStatus) -> Timestamp {
    pod.metadata.creation_timestamp.or(status.start_time).unwrap_or_default()
}
