//! EndpointSlices, Endpoints and the status of Services as clients see them.
//!
//! Owns their names, labels and members.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::spec::{Endpoint, Protocol, SERVICE_NAME, ServiceSpec, Slice, SlicePort, family_name, family_of};
use crate::model::objects::{LocalObject, ObjectKey, ObjectKind, OwnerReference, PlainBody, wire};
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::platform::sys::netlink::nftables::Family;

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
const MIRROR_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const ENDPOINTS_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// The characters of generated names (upstream).
const NAME_CHARACTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Endpoints are cut off after so many addresses (upstream).
const MAX_ADDRESSES: usize = 1_000;

/// Who writes the slices of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Selector,
    /// From Endpoints that a user wrote.
    Mirror,
    /// The agent's own.
    Agent,
}

/// The EndpointSlices of a Service.
#[must_use]
pub(crate) fn slice_objects(
    service: &ServiceSpec,
    slices: &[Slice],
    writer: Writer,
    node: &str,
) -> BTreeMap<ObjectKey, Rc<LocalObject>> {
    let mut objects = BTreeMap::new();
    for slice in slices {
        let mut number = 0;
        let key = loop {
            let name = slice_name(service, slice, number);
            let key =
                ObjectKey { kind: ObjectKind::EndpointSlice, namespace: service.namespace.clone(), name };
            if !objects.contains_key(&key) {
                break key;
            }
            number += 1;
        };
        let mut labels = service.labels.clone();
        labels.insert(SERVICE_NAME.to_owned(), service.name.clone());
        let manager = match writer {
            Writer::Selector => Some(SLICE_CONTROLLER),
            Writer::Mirror => Some(MIRROR_CONTROLLER),
            Writer::Agent => None,
        };
        labels.extend(manager.map(|manager| (MANAGED_BY.to_owned(), manager.to_owned())));
        if service.is_headless() {
            labels.insert(HEADLESS.to_owned(), String::new());
        }
        let endpoints = slice.endpoints.iter().map(|endpoint| slice_endpoint(service, endpoint, node));
        let body = json!({
            "addressType": family_name(slice.family),
            "endpoints": endpoints.collect::<Vec<_>>(),
            "ports": slice.ports.iter().map(|port| shown_port(port, true)).collect::<Vec<_>>(),
        });
        let owner = (writer != Writer::Agent).then(|| owner(service));
        objects.insert(key.clone(), object(service, key, labels, owner, &body));
    }
    objects
}

/// Stable for a family and its ports, so that a slice is changed and not replaced when its endpoints change.
fn slice_name(service: &ServiceSpec, slice: &Slice, number: u32) -> String {
    let ports: Vec<String> = slice
        .ports
        .iter()
        .map(|port| format!("{}/{}/{}", port.name, port.protocol.as_str(), port.port))
        .collect();
    let digest =
        Sha256::digest(format!("{}\0{:?}\0{}\0{number}", service.uid, slice.family, ports.join(",")));
    let character = |byte: &u8| char::from(NAME_CHARACTERS[usize::from(*byte) % NAME_CHARACTERS.len()]);
    let suffix: String = digest.iter().take(5).map(character).collect();
    format!("{}-{suffix}", service.name)
}

fn slice_endpoint(service: &ServiceSpec, endpoint: &Endpoint, node: &str) -> Value {
    let mut shown = json!({
        "addresses": [endpoint.address.to_string()],
        "conditions": {
            "ready": endpoint.ready, "serving": endpoint.serving, "terminating": endpoint.terminating,
        },
    });
    add_pod(&mut shown, service, endpoint, node);
    shown
}

fn add_pod(shown: &mut Value, service: &ServiceSpec, endpoint: &Endpoint, node: &str) {
    if let Some(hostname) = &endpoint.hostname {
        shown["hostname"] = json!(hostname);
    }
    if let Some((name, uid)) = &endpoint.pod {
        shown["nodeName"] = json!(node);
        shown["targetRef"] = json!({"kind": "Pod", "namespace": service.namespace, "name": name, "uid": uid});
    }
}

fn shown_port(port: &SlicePort, with_empty_name: bool) -> Value {
    let mut shown = Map::new();
    if with_empty_name || !port.name.is_empty() {
        shown.insert("name".to_owned(), json!(port.name));
    }
    shown.insert("port".to_owned(), json!(port.port));
    shown.insert("protocol".to_owned(), json!(port.protocol.as_str()));
    if let Some(protocol) = &port.app_protocol {
        shown.insert("appProtocol".to_owned(), json!(protocol));
    }
    Value::Object(shown)
}

/// The Endpoints of a Service: those of its first family.
#[must_use]
pub(crate) fn endpoints_object(
    service: &ServiceSpec,
    slices: &[Slice],
    node: &str,
) -> (ObjectKey, Rc<LocalObject>) {
    let key = ObjectKey {
        kind: ObjectKind::Endpoints,
        namespace: service.namespace.clone(),
        name: service.name.clone(),
    };
    let mut labels = service.labels.clone();
    labels.insert(ENDPOINTS_MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    if service.is_headless() {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let first = service.families.first();
    let mut subsets: Vec<(BTreeSet<&SlicePort>, [Vec<Value>; 2])> = Vec::new();
    let mut room = MAX_ADDRESSES;
    for slice in slices.iter().filter(|slice| Some(&slice.family) == first && !slice.endpoints.is_empty()) {
        let ports: BTreeSet<&SlicePort> = slice.ports.iter().into_set();
        let at = subsets.iter().position(|(known, _)| *known == ports).unwrap_or_else(|| {
            subsets.push((ports, [Vec::new(), Vec::new()]));
            subsets.len() - 1
        });
        let known = slice.endpoints.iter().filter(|endpoint| endpoint.ready || !endpoint.terminating);
        for endpoint in known.take(room) {
            let mut shown = json!({"ip": endpoint.address.to_string()});
            add_pod(&mut shown, service, endpoint, node);
            subsets[at].1[usize::from(!endpoint.ready)].push(shown);
            room -= 1;
        }
    }
    subsets.retain(|(_, [ready, other])| !ready.is_empty() || !other.is_empty());
    let shown = |(ports, [ready, other]): (BTreeSet<&SlicePort>, [Vec<Value>; 2])| {
        let mut subset = Map::new();
        for (name, list) in [
            ("addresses", ready),
            ("notReadyAddresses", other),
            ("ports", ports.into_iter().map(|port| shown_port(port, false)).collect()),
        ] {
            if !list.is_empty() {
                subset.insert(name.to_owned(), Value::Array(list));
            }
        }
        Value::Object(subset)
    };
    let subsets: Vec<Value> = subsets.into_iter().map(shown).collect();
    let body = if subsets.is_empty() { json!({}) } else { json!({"subsets": subsets}) };
    (key.clone(), object(service, key, labels, None, &body))
}

fn owner(service: &ServiceSpec) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: service.name.clone(),
        uid: service.uid.clone(),
        controller: true,
        block_owner_deletion: true,
    }
}

fn object(
    service: &ServiceSpec,
    key: ObjectKey,
    labels: BTreeMap<String, String>,
    owner: Option<OwnerReference>,
    body: &Value,
) -> Rc<LocalObject> {
    let mut object = wire::plain_object(key, PlainBody::new(body));
    object.labels = labels;
    object.created = service.created;
    object.owner_references.extend(owner);
    Rc::new(object)
}

/// Puts its status into the JSON of a Service: one of type `LoadBalancer` is reached at the node's addresses.
pub(crate) fn show_status(service: &mut Value, node_ips: &[String]) {
    let spec = &service["spec"];
    let families: Vec<&str> =
        spec["ipFamilies"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_balanced = spec["type"] == "LoadBalancer" && !spec["loadBalancerClass"].is_string();
    let is_served = |ip: &&String| families.contains(&if ip.contains(':') { "IPv6" } else { "IPv4" });
    let ingress: Vec<Value> = node_ips
        .iter()
        .filter(|ip| is_balanced && is_served(ip))
        .map(|ip| json!({"ip": ip, "ipMode": "VIP"}))
        .collect();
    if !ingress.is_empty() {
        service["status"] = json!({"loadBalancer": {"ingress": ingress}});
    } else if service["status"].is_null() {
        service["status"] = json!({"loadBalancer": {}});
    }
}

/// A Service of the agent itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnService {
    pub namespace: &'static str,
    pub name: &'static str,
    pub labels: &'static [(&'static str, &'static str)],
    pub addresses: Vec<std::net::IpAddr>,
    /// Since when the agent has it.
    pub created: Timestamp,
    /// Name, protocol, port.
    pub ports: Vec<(&'static str, Protocol, u16)>,
}

/// The object of such a Service.
#[must_use]
pub(crate) fn own_service(own: &OwnService) -> LocalObject {
    let key = ObjectKey {
        kind: ObjectKind::Service,
        namespace: own.namespace.to_owned(),
        name: own.name.to_owned(),
    };
    let addresses: Vec<String> = own.addresses.iter().map(ToString::to_string).collect();
    let families: Vec<&str> = own.addresses.iter().map(|ip| family_name(family_of(*ip))).collect();
    let policy = if families.len() > 1 { "PreferDualStack" } else { "SingleStack" };
    let port = |(name, protocol, port): &(&str, Protocol, u16)| json!({"name": name, "port": port, "protocol": protocol.as_str(), "targetPort": port});
    let body = json!({"spec": {
        "clusterIP": addresses.first(),
        "clusterIPs": addresses,
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": families,
        "ipFamilyPolicy": policy,
        "ports": own.ports.iter().map(port).collect::<Vec<_>>(),
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }, "status": {"loadBalancer": {}}});
    let mut object = wire::plain_object(key, PlainBody::new(&body));
    object.created = own.created;
    object.labels =
        own.labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    object
}

/// What is behind one of the agent's own Services.
pub(crate) fn own_slices(own: &OwnService, service: &ServiceSpec, targets: &[SocketAddr]) -> Vec<Slice> {
    let ports = own.ports.iter().filter_map(|(name, protocol, _)| {
        let (name, port) = ((*name).to_owned(), targets.first()?.port());
        Some(SlicePort { name, protocol: *protocol, port, app_protocol: None })
    });
    let ports: Vec<SlicePort> = ports.collect();
    let of = |family: &Family| {
        let own = targets.iter().filter(|target| family_of(target.ip()) == *family);
        own.map(|target| Endpoint::ready(target.ip(), true)).collect()
    };
    let slice = |family: &Family| Slice { family: *family, ports: ports.clone(), endpoints: of(family) };
    service.families.iter().map(slice).collect()
}

#[cfg(test)]
mod tests;
