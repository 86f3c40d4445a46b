//! The endpoints of Services: from selectors and pods.
//!
//! Owns upstream's rules for which pods count, when they are ready, and which ports they have.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::spec::{
    Endpoint, Protocol, ServicePort, ServiceSpec, ServiceType, Slice, SlicePort, Target, family_of,
};
use crate::model::api::pod::{Container, Pod, PodStatus};
use crate::model::containers::is_sidecar;
use crate::platform::sys::netlink::nftables::Family;

/// Endpoints of one EndpointSlice (upstream's default).
const PER_SLICE: usize = 100;

/// The slices of a Service with a selector, each with at most a hundred endpoints. Without endpoints there is one for
/// each family, as upstream has it.
#[must_use]
pub(crate) fn slices(service: &ServiceSpec, pods: &[(&Pod, &PodStatus)]) -> Vec<Slice> {
    let mut slices = Vec::new();
    if service.kind == ServiceType::ExternalName {
        return slices;
    }
    for family in &service.families {
        let mut groups: BTreeMap<Vec<SlicePort>, Vec<Endpoint>> = BTreeMap::new();
        for (pod, status) in pods.iter().filter(|(pod, _)| is_selected(service, pod)) {
            if let Some(endpoint) = endpoint(service, pod, status, *family) {
                groups.entry(ports(service, pod)).or_default().push(endpoint);
            }
        }
        let before = slices.len();
        for (ports, endpoints) in groups {
            slices.extend(endpoints.chunks(PER_SLICE).map(|endpoints| Slice {
                family: *family,
                ports: ports.clone(),
                endpoints: endpoints.to_vec(),
            }));
        }
        if slices.len() == before {
            slices.push(Slice { family: *family, ports: Vec::new(), endpoints: Vec::new() });
        }
    }
    slices
}

fn is_selected(service: &ServiceSpec, pod: &Pod) -> bool {
    let labels = &pod.metadata.labels;
    pod.metadata.namespace == service.namespace
        && service.selector.as_ref().is_some_and(|selector| {
            selector.iter().all(|(key, value)| labels.get(key).is_some_and(|label| label == value))
        })
}

/// `None`: the pod has ended, or has no address of that family.
fn endpoint(service: &ServiceSpec, pod: &Pod, status: &PodStatus, family: Family) -> Option<Endpoint> {
    if matches!(status.phase.as_str(), "Succeeded" | "Failed") {
        return None;
    }
    let addresses = status.pod_ips.iter().map(|ip| &ip.ip).chain([&status.pod_ip]);
    let mut addresses = addresses.filter_map(|ip| ip.parse::<IpAddr>().ok());
    let address = addresses.find(|ip| family_of(*ip) == family)?;
    let serving = status.conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let is_named = !pod.spec.hostname.is_empty() && pod.spec.subdomain == service.name;
    Some(Endpoint {
        address,
        ready: service.publishes_not_ready || (serving && !terminating),
        serving,
        terminating,
        hostname: is_named.then(|| pod.spec.hostname.clone()),
        is_local: true,
        pod: Some((pod.metadata.name.clone(), pod.metadata.uid.to_string())),
    })
}

/// The ports of a pod; one whose name the pod does not have is left out.
fn ports(service: &ServiceSpec, pod: &Pod) -> Vec<SlicePort> {
    let slice_port = |port: &ServicePort| {
        let number = match &port.target {
            Target::Number(number) => *number,
            Target::Name(name) => named_port(pod, name, port.protocol)?,
        };
        Some(SlicePort {
            name: port.name.clone(),
            protocol: port.protocol,
            port: number,
            app_protocol: port.app_protocol.clone(),
        })
    };
    service.ports.iter().filter_map(slice_port).collect()
}

fn named_port(pod: &Pod, name: &str, protocol: Protocol) -> Option<u16> {
    let sidecars = pod.spec.init_containers.iter().filter(|container| is_sidecar(container));
    let find = |container: &Container| {
        let port = container
            .ports
            .iter()
            .find(|port| port.name == name && Protocol::from_text(&port.protocol) == protocol)?;
        u16::try_from(port.container_port).ok()
    };
    pod.spec.containers.iter().chain(sidecars).find_map(find)
}

#[cfg(test)]
mod tests;
