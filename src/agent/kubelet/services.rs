//! Services of the lone box: what the configuration says of them, and the task that keeps them.
//!
//! Owns the wiring; decides nothing.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tokio::task::JoinHandle;

use crate::agent::config::Resolved;
use crate::agent::kubelet::embedded::subnets;
use crate::agent::kubelet::joined;
use crate::agent::kubelet::report::LoopView;
use crate::agent::kubelet::serving::address;
use crate::desired::kinds::addresses::{ServiceRanges, cidrs, port_range};
use crate::model::cidr::Cidr;
use crate::model::objects::LocalObjects;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::pod::events::EventRecorder;
use crate::pod::executor::PodSettings;
use crate::pod::status::StatusManager;
use crate::serve::accounts::CLUSTER_DOMAIN;
use crate::service::driver::{Driver, ServiceConfig, ServiceParts, remove_if_present};
use crate::service::kernel::KernelNames;
use crate::store::Loaded;

/// What Services may have; `None` where there are none: in a cluster they are the cluster's, and after a run-once
/// no process is left that answers names.
pub(super) fn ranges(resolved: &Resolved, loaded: &Loaded) -> Option<ServiceRanges> {
    let (ranges, ports) = (&resolved.flags.service_cidr, &resolved.flags.service_node_port_range);
    let is_alone = !resolved.kubelet.run_once && !joined::is_joined(resolved) && !joined::has_rows(loaded);
    let parsed = is_alone.then(|| Some((cidrs(ranges).ok()?, port_range(ports).ok()?)))?;
    parsed
        .filter(|(cidrs, _)| !cidrs.is_empty())
        .map(|(cidrs, node_ports)| ServiceRanges { cidrs, node_ports })
}

/// Pods get the DNS server, unless the user has named one.
pub(super) fn name_servers(servers: &mut Vec<String>, resolved: &Resolved, ranges: Option<&ServiceRanges>) {
    let Some(ranges) = ranges else { return };
    if servers.is_empty() {
        let pods = pod_ranges(resolved);
        // Pods of another network have addresses of any family.
        let is_reached = |ip: &IpAddr| {
            pods.is_empty() || pods.iter().any(|range| range.network().is_ipv4() == ip.is_ipv4())
        };
        let own = ServiceConfig::dns_addresses(&ranges.cidrs).into_iter().filter(is_reached);
        *servers = own.map(|ip| ip.to_string()).collect();
    }
}

/// `clusterDomain`, or the one of the node's own DNS.
pub(super) fn cluster_domain(resolved: &Resolved, ranges: Option<&ServiceRanges>) -> String {
    let set = &resolved.kubelet.cluster_domain;
    if set.is_empty() && ranges.is_some() { CLUSTER_DOMAIN.to_owned() } else { set.clone() }
}

/// Of the built-in network.
fn pod_ranges(resolved: &Resolved) -> Vec<Cidr> {
    let subnets = subnets(&resolved.kubelet.pod_cidr).unwrap_or_default();
    let ranges = subnets.iter().filter(|_| resolved.owns_pod_network());
    ranges.filter_map(|subnet| subnet.to_string().parse().ok()).collect()
}

/// Where pods reach this node's API: at the bridge's address, or at the API's own.
fn api_address(resolved: &Resolved, node_ips: &[String]) -> Option<SocketAddr> {
    let kubelet = &resolved.kubelet;
    if !kubelet.enable_server || kubelet.port <= 0 {
        return None;
    }
    let own = address(&kubelet.address, kubelet.port);
    let gateway = subnets(&kubelet.pod_cidr).ok().and_then(|subnets| subnets.first().map(|it| it.gateway()));
    let ip = match (gateway.filter(|_| resolved.owns_pod_network()), own.ip()) {
        (Some(gateway), _) => gateway,
        (None, ip) if ip.is_unspecified() => node_ips.first()?.parse().ok()?,
        (None, ip) if ip.is_loopback() => return None,
        (None, ip) => ip,
    };
    Some(SocketAddr::new(ip, own.port()))
}

/// The parts of the agent that Services need.
pub(super) struct ServiceNeeds<'a> {
    pub objects: &'a Rc<LocalObjects>,
    pub statuses: &'a Rc<StatusManager>,
    pub events: &'a EventRecorder,
    pub clock: &'a Clock,
    pub view: &'a Rc<LoopView>,
    pub pods: &'a Live<PodSettings>,
    pub node_ips: &'a [String],
    /// Pods will be started.
    pub has_pods: bool,
}

/// Puts the rules into force and keeps them. Without ranges, removes what an earlier process has left.
pub(super) async fn start(
    resolved: &Resolved,
    ranges: Option<&ServiceRanges>,
    needs: ServiceNeeds<'_>,
) -> Option<JoinHandle<()>> {
    let names = KernelNames::of(&resolved.flags.bridge_name);
    let Some(ranges) = ranges else {
        if let Err(error) = rt::blocking("remove Services", move || remove_if_present(&names)).await {
            log::debug!(err = error.as_str(); "Failed to remove what is left of Services");
        }
        return None;
    };
    let kubelet = &resolved.kubelet;
    let own_ports = [kubelet.port, kubelet.read_only_port, kubelet.healthz_port];
    let config = ServiceConfig {
        names,
        ranges: ranges.cidrs.clone(),
        domain: match kubelet.cluster_domain.as_str() {
            "" => CLUSTER_DOMAIN.to_owned(),
            domain => domain.trim_end_matches('.').to_owned(),
        },
        node_name: resolved.node_name.clone(),
        api: api_address(resolved, needs.node_ips),
        pod_ranges: pod_ranges(resolved),
        pods: needs.pods.clone(),
        own_ports: own_ports
            .iter()
            .filter_map(|port| u16::try_from(*port).ok())
            .filter(|port| *port > 0)
            .collect(),
    };
    let (notify, report) = (Rc::clone(needs.view), Rc::clone(needs.view));
    let parts = ServiceParts {
        objects: Rc::clone(needs.objects),
        statuses: Rc::clone(needs.statuses),
        events: needs.events.clone(),
        clock: needs.clock.clone(),
        changed: needs.view.watch(),
        notify: Rc::new(move || notify.changed()),
        report: Rc::new(move |trouble| report.set_serving_trouble("Services", trouble)),
    };
    let mut driver = Driver::new(config, parts);
    driver.prepare(needs.has_pods).await;
    let view = Rc::clone(needs.view);
    Some(rt::spawn("Services", driver.run(async move { view.wait_until_restored().await })))
}
