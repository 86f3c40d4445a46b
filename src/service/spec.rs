//! What the rules and the names of a Service need of its object.
//!
//! Owns the reading of Services and of EndpointSlices and Endpoints that users write.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use crate::model::cidr::Cidr;
use crate::model::objects::LocalObject;
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::platform::sys::netlink::nftables::Family;

/// The label that names a slice's Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// `sessionAffinityConfig.clientIP.timeoutSeconds` when it is not set.
const AFFINITY_SECONDS: u32 = 10_800;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServiceType {
    #[default]
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// A Service. Its object has been validated; what cannot be read of it is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServiceSpec {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub created: Timestamp,
    /// Labels of the object: its EndpointSlices have them, too.
    pub labels: BTreeMap<String, String>,
    pub kind: ServiceType,
    /// Empty when it is headless.
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    pub external_name: String,
    /// `None`: its endpoints are written by users.
    pub selector: Option<BTreeMap<String, String>>,
    pub ports: Vec<ServicePort>,
    pub families: Vec<Family>,
    /// Seconds for which a client keeps its endpoint.
    pub affinity: Option<u32>,
    /// `internalTrafficPolicy: Local`.
    pub is_internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    pub is_external_local: bool,
    /// `loadBalancerSourceRanges`; empty for all.
    pub source_ranges: Vec<Cidr>,
    pub publishes_not_ready: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServicePort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub target: Target,
    /// Zero without one.
    pub node_port: u16,
    pub app_protocol: Option<String>,
}

/// The port of the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Number(u16),
    /// Of a container's port.
    Name(String),
}

impl Default for Target {
    fn default() -> Self {
        Self::Number(0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    #[must_use]
    pub(crate) fn from_text(text: &str) -> Self {
        match text {
            "UDP" => Self::Udp,
            "SCTP" => Self::Sctp,
            _ => Self::Tcp,
        }
    }

    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// As in packets.
    #[must_use]
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl ServiceSpec {
    #[must_use]
    pub(crate) fn read(object: &LocalObject) -> Self {
        let body = object.content.body();
        let spec = &body["spec"];
        let kind = match text(&spec["type"]) {
            "NodePort" => ServiceType::NodePort,
            // With a class it is for another program, which gets the node ports.
            "LoadBalancer" if spec["loadBalancerClass"].is_string() => ServiceType::NodePort,
            "LoadBalancer" => ServiceType::LoadBalancer,
            "ExternalName" => ServiceType::ExternalName,
            _ => ServiceType::ClusterIp,
        };
        let is_local = |field: &str| text(&spec[field]) == "Local";
        let timeout = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].as_u64();
        let timeout = timeout.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(AFFINITY_SECONDS);
        let selector = spec["selector"].as_object().filter(|selector| !selector.is_empty());
        Self {
            namespace: object.key.namespace.clone(),
            name: object.key.name.clone(),
            uid: object.uid.clone(),
            created: object.created,
            labels: object.labels.clone(),
            kind,
            cluster_ips: parsed(&spec["clusterIPs"]),
            external_ips: parsed(&spec["externalIPs"]),
            external_name: text(&spec["externalName"]).to_owned(),
            selector: selector.map(|labels| {
                labels.iter().map(|(key, value)| (key.clone(), text(value).to_owned())).into_map()
            }),
            ports: items(&spec["ports"]).map(ServicePort::read).collect(),
            families: items(&spec["ipFamilies"]).filter_map(|name| family(text(name))).collect(),
            affinity: (text(&spec["sessionAffinity"]) == "ClientIP").then_some(timeout),
            is_internal_local: is_local("internalTrafficPolicy"),
            is_external_local: is_local("externalTrafficPolicy"),
            source_ranges: source_ranges(&spec["loadBalancerSourceRanges"]),
            publishes_not_ready: spec["publishNotReadyAddresses"] == true,
        }
    }

    /// It has endpoints and no address of its own.
    #[must_use]
    pub(crate) fn is_headless(&self) -> bool {
        self.cluster_ips.is_empty() && self.kind != ServiceType::ExternalName
    }
}

impl ServicePort {
    fn read(port: &Value) -> Self {
        let number = port_number(&port["port"]);
        let target = match &port["targetPort"] {
            Value::String(name) => Target::Name(name.clone()),
            Value::Number(_) if port_number(&port["targetPort"]) != 0 => {
                Target::Number(port_number(&port["targetPort"]))
            }
            _ => Target::Number(number),
        };
        Self {
            name: text(&port["name"]).to_owned(),
            protocol: Protocol::from_text(text(&port["protocol"])),
            port: number,
            target,
            node_port: port_number(&port["nodePort"]),
            app_protocol: port["appProtocol"].as_str().map(str::to_owned),
        }
    }
}

/// Endpoints of one family that have the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub family: Family,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlicePort {
    /// That of the Service's port.
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub app_protocol: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub address: IpAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub hostname: Option<String>,
    /// This node or one of its pods: replies come back through this node.
    pub is_local: bool,
    /// Name and uid of the pod.
    pub pod: Option<(String, String)>,
}

impl Endpoint {
    /// An address that takes connections.
    #[must_use]
    pub(crate) fn ready(address: IpAddr, is_local: bool) -> Self {
        Self { address, ready: true, serving: true, terminating: false, hostname: None, is_local, pod: None }
    }
}

/// An EndpointSlice that a user wrote, with the name of its Service; `None` when it names none, or has names instead of
/// addresses.
#[must_use]
pub(crate) fn written_slice(object: &LocalObject) -> Option<(String, Slice)> {
    let service = object.labels.get(SERVICE_NAME)?;
    let body = object.content.body();
    let family = family(text(&body["addressType"]))?;
    let endpoints = items(&body["endpoints"]).filter_map(|endpoint| {
        // Consumers use the first address only (upstream).
        let address = items(&endpoint["addresses"]).find_map(|address| text(address).parse().ok())?;
        let condition = |name: &str| endpoint["conditions"][name].as_bool();
        let ready = condition("ready").unwrap_or(true);
        Some(Endpoint {
            ready,
            serving: condition("serving").unwrap_or(ready),
            terminating: condition("terminating").unwrap_or(false),
            hostname: endpoint["hostname"].as_str().map(str::to_owned),
            ..Endpoint::ready(address, false)
        })
    });
    let slice = Slice { family, ports: ports(&body["ports"]), endpoints: endpoints.collect() };
    Some((service.clone(), slice))
}

/// The slices of Endpoints that a user wrote for the Service of that name.
#[must_use]
pub(crate) fn mirrored(endpoints: &Value) -> Vec<Slice> {
    let mut slices = Vec::new();
    for subset in items(&endpoints["subsets"]) {
        for family in [Family::Ipv4, Family::Ipv6] {
            let read = |is_ready: bool| {
                let list = if is_ready { "addresses" } else { "notReadyAddresses" };
                items(&subset[list]).filter_map(move |entry| {
                    let address: IpAddr = text(&entry["ip"]).parse().ok()?;
                    (family_of(address) == family).then(|| Endpoint {
                        ready: is_ready,
                        serving: is_ready,
                        hostname: entry["hostname"].as_str().map(str::to_owned),
                        ..Endpoint::ready(address, false)
                    })
                })
            };
            let endpoints: Vec<Endpoint> = read(true).chain(read(false)).collect();
            if !endpoints.is_empty() {
                slices.push(Slice { family, ports: ports(&subset["ports"]), endpoints });
            }
        }
    }
    slices
}

fn ports(list: &Value) -> Vec<SlicePort> {
    let read = |port: &Value| SlicePort {
        name: text(&port["name"]).to_owned(),
        protocol: Protocol::from_text(text(&port["protocol"])),
        port: port_number(&port["port"]),
        app_protocol: port["appProtocol"].as_str().map(str::to_owned),
    };
    items(list).map(read).filter(|port| port.port != 0).collect()
}

/// The family of a name in `ipFamilies` and `addressType`.
#[must_use]
pub(crate) fn family(name: &str) -> Option<Family> {
    match name {
        "IPv4" => Some(Family::Ipv4),
        "IPv6" => Some(Family::Ipv6),
        _ => None,
    }
}

#[must_use]
pub(crate) fn family_of(ip: IpAddr) -> Family {
    if ip.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
}

/// As in `ipFamilies` and `addressType`.
#[must_use]
pub(crate) fn family_name(family: Family) -> &'static str {
    if family == Family::Ipv4 { "IPv4" } else { "IPv6" }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn parsed<T: std::str::FromStr>(list: &Value) -> Vec<T> {
    items(list).filter_map(|item| text(item).trim().parse().ok()).collect()
}

/// A list without a valid range admits no client, while an empty list admits all of them.
fn source_ranges(list: &Value) -> Vec<Cidr> {
    let ranges: Vec<Cidr> = parsed(list);
    if ranges.is_empty() && items(list).next().is_some() {
        // No client has these addresses.
        return vec![Cidr::single(Ipv4Addr::UNSPECIFIED.into()), Cidr::single(Ipv6Addr::UNSPECIFIED.into())];
    }
    ranges
}

/// Zero for what is no port.
fn port_number(value: &Value) -> u16 {
    value.as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn source_ranges_never_open_a_port_by_mistake() {
        let shown =
            |list: &Value| -> Vec<String> { source_ranges(list).iter().map(ToString::to_string).collect() };
        assert_eq!(shown(&json!([" 192.0.2.0/24 ", "2001:db8::/32\n"])), ["192.0.2.0/24", "2001:db8::/32"]);
        assert_eq!(shown(&json!(["192.0.2.0/24", "nonsense"])), ["192.0.2.0/24"]);
        assert_eq!(shown(&json!(["nonsense", 7])), ["0.0.0.0/32", "::/128"], "no client");
        assert_eq!(shown(&json!([])), [] as [&str; 0], "all clients");
        assert_eq!(shown(&Value::Null), [] as [&str; 0], "all clients");
    }
}
