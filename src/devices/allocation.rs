//! Which of a plugin's devices a container gets, and how that is stored: upstream's choices, words and file.
//!
//! Owns the decision and the checkpoint's format.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::codec::base64;
use crate::model::api::pod::{Container, Pod, ResourceList};
use crate::model::api::quantity::Quantity;
use crate::model::containers::is_sidecar;
use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;

/// A device that is near no NUMA node in particular.
const NO_NODE: i64 = -1;

/// A device, as its plugin reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PluginDevice {
    pub healthy: bool,
    /// NUMA nodes it is near to.
    pub nodes: Vec<i64>,
}

/// Devices by id.
pub(crate) type Devices = BTreeMap<String, PluginDevice>;
/// Devices by resource: `vendor.com/thing`.
pub(crate) type Resources = BTreeMap<String, Devices>;

/// The devices of one resource that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub pod: PodUid,
    pub container: String,
    /// `vendor.com/thing`.
    pub resource: String,
    /// Ids by NUMA node; -1 for none.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// The plugin's `ContainerAllocateResponse`; `None` until it answers.
    pub response: Option<Vec<u8>>,
}

impl Allocation {
    /// Ids of all NUMA nodes. One that is near to several nodes appears once for each.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.devices.values().flatten().map(String::as_str)
    }
}

/// The next allocation for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub container: String,
    pub resource: String,
    pub count: usize,
    /// Devices of earlier init containers that no other container uses; these are taken first.
    pub reusable: BTreeSet<String>,
    /// NUMA nodes, a bit each: devices near them are taken before others.
    pub near: Option<u64>,
}

/// The candidates for an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Always part of the allocation.
    pub taken: Vec<String>,
    /// The rest is chosen from these.
    pub available: Vec<String>,
}

/// A resource that is not Kubernetes' own: it needs a device plugin.
#[must_use]
pub(crate) fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| {
        domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io") && !domain.starts_with("requests.")
    })
}

/// The first request of a container that has no allocation yet, in the order in which containers start.
#[must_use]
pub(super) fn next_need(pod: &Pod, allocated: &[Allocation]) -> Option<Need> {
    let uid = &pod.metadata.uid;
    let has = |container: &Container, resource: &str| {
        allocated.iter().find(|allocation| {
            allocation.pod == *uid
                && allocation.container == container.name
                && allocation.resource == resource
        })
    };
    for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
        for (resource, amount) in &container.resources.limits {
            let count = usize::try_from(amount.value()).unwrap_or(0);
            if count == 0 || !is_extended(resource) || has(container, resource).is_some() {
                continue;
            }
            return Some(Need {
                container: container.name.clone(),
                resource: resource.clone(),
                count,
                reusable: reusable(pod, &container.name, resource, allocated),
                near: None,
            });
        }
    }
    None
}

/// Devices of init containers before this one that no other container uses.
#[must_use]
pub(crate) fn reusable(
    pod: &Pod,
    container: &str,
    resource: &str,
    allocated: &[Allocation],
) -> BTreeSet<String> {
    let mut reusable = BTreeSet::new();
    let all = pod.spec.init_containers.iter().map(|container| (container, !is_sidecar(container)));
    let all = all.chain(pod.spec.containers.iter().map(|container| (container, false)));
    for (earlier, lends) in all.take_while(|(earlier, _)| earlier.name != container) {
        let is_its = |each: &&Allocation| {
            each.pod == pod.metadata.uid && each.container == earlier.name && each.resource == resource
        };
        for id in allocated.iter().filter(is_its).flat_map(Allocation::ids) {
            if lends {
                reusable.insert(id.to_owned());
            } else {
                reusable.remove(id);
            }
        }
    }
    reusable
}

/// The candidates for a need. Texts are upstream's.
pub(crate) fn choice(need: &Need, resources: &Resources, allocated: &[Allocation]) -> Result<Choice, String> {
    let resource = &need.resource;
    let Some(devices) = resources.get(resource) else {
        return Err(format!("cannot allocate unregistered device {resource}"));
    };
    let is_healthy = |id: &&String| devices.get(*id).is_some_and(|device| device.healthy);
    let taken: Vec<String> = need.reusable.iter().filter(is_healthy).take(need.count).cloned().collect();
    let of_resource = allocated.iter().filter(|allocation| allocation.resource == *resource);
    let in_use: BTreeSet<&str> = of_resource.flat_map(Allocation::ids).into_set();
    if taken.len() < need.count && !devices.values().any(|device| device.healthy) {
        return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
    }
    let available: Vec<String> =
        devices.keys().filter(is_healthy).filter(|id| !in_use.contains(id.as_str())).cloned().collect();
    if available.len() < need.count - taken.len() {
        return Err(format!(
            "requested number of devices unavailable for {resource}. Requested: {}, Available: {}",
            need.count - taken.len(),
            available.len()
        ));
    }
    Ok(Choice { available: nearest(available, need.count - taken.len(), need.near, devices), taken })
}

/// A bit for each NUMA node that the device is near to.
#[must_use]
pub(crate) fn node_bits(device: &PluginDevice) -> u64 {
    let bit = |node: &i64| u32::try_from(*node).ok().and_then(|node| 1_u64.checked_shl(node));
    device.nodes.iter().filter_map(bit).fold(0, |bits, bit| bits | bit)
}

/// Devices near the nodes alone if they suffice; else those, then others, then devices that are near to none.
fn nearest(available: Vec<String>, count: usize, near: Option<u64>, devices: &Devices) -> Vec<String> {
    let Some(near) = near else { return available };
    let mut groups = [Vec::new(), Vec::new(), Vec::new()];
    for id in available {
        let bits = devices.get(&id).map(node_bits).unwrap_or_default();
        let group = if bits == 0 { 2 } else { usize::from(bits & near == 0) };
        groups[group].push(id);
    }
    let [aligned, others, anywhere] = groups;
    if aligned.len() >= count { aligned } else { [aligned, others, anywhere].concat() }
}

/// The final choice: the plugin's preferred devices first, as far as they are available.
#[must_use]
pub(crate) fn choose_devices(choice: &Choice, need: &Need, preferred: &[String]) -> Vec<String> {
    // Plugins that share memory report a device for each megabyte: without sets this takes seconds.
    let available: BTreeSet<&String> = choice.available.iter().into_set();
    let mut chosen: BTreeSet<&String> = choice.taken.iter().into_set();
    let mut ids = choice.taken.clone();
    let may = preferred.iter().filter(|id| available.contains(id));
    for id in may.chain(&choice.available) {
        if ids.len() >= need.count {
            break;
        }
        if chosen.insert(id) {
            ids.push(id.clone());
        }
    }
    ids
}

/// Ids by the NUMA nodes they are near to.
#[must_use]
pub(super) fn by_node(ids: &[String], devices: &Devices) -> BTreeMap<i64, Vec<String>> {
    let mut all: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for id in ids {
        let nodes = devices.get(id).map(|device| device.nodes.as_slice()).unwrap_or_default();
        for node in if nodes.is_empty() { &[NO_NODE] } else { nodes } {
            all.entry(*node).or_default().push(id.clone());
        }
    }
    all
}

/// `status.capacity` and `status.allocatable` of the node: all devices, and the healthy ones.
#[must_use]
pub(crate) fn totals(resources: &Resources) -> (ResourceList, ResourceList) {
    let (mut capacity, mut allocatable) = (ResourceList::new(), ResourceList::new());
    for (name, devices) in resources {
        let count = |number: usize| Quantity::from_units(i64::try_from(number).unwrap_or(i64::MAX));
        capacity.insert(name.clone(), count(devices.len()));
        let healthy = devices.values().filter(|device| device.healthy).count();
        allocatable.insert(name.clone(), count(healthy));
    }
    (capacity, allocatable)
}

/// The content of `kubelet_internal_checkpoint`, its checksum included: a kubelet takes it over.
#[must_use]
pub(super) fn checkpoint(allocated: &[Allocation], resources: &Resources) -> String {
    let done: Vec<(&Allocation, &Vec<u8>)> =
        allocated.iter().filter_map(|allocation| Some((allocation, allocation.response.as_ref()?))).collect();
    let mut entries = Vec::new();
    for (allocation, response) in &done {
        let mut devices = serde_json::Map::new();
        for (node, ids) in &allocation.devices {
            devices.insert(node.to_string(), json!(ids));
        }
        entries.push(json!({
            "PodUID": allocation.pod.as_str(),
            "ContainerName": allocation.container,
            "ResourceName": allocation.resource,
            "DeviceIDs": devices,
            "AllocResp": base64::encode(response),
        }));
    }
    let entries = if entries.is_empty() { Value::Null } else { Value::Array(entries) };
    let mut registered = serde_json::Map::new();
    for (name, devices) in resources {
        registered.insert(name.clone(), devices.keys().map(String::as_str).collect());
    }
    json!({
        "Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered},
        "Checksum": checksum(&done, resources),
    })
    .to_string()
}

/// FNV-1a (32 bit) over Go's print of the data, bit for bit the kubelet's.
fn checksum(allocated: &[(&Allocation, &Vec<u8>)], resources: &Resources) -> u32 {
    let mut entries = Vec::new();
    for (allocation, response) in allocated {
        let devices: Vec<String> =
            allocation.devices.iter().map(|(node, ids)| format!("{node}:[{}]", ids.join(" "))).collect();
        entries.push(format!(
            "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
             DeviceIDs:(checkpoint.DevicesPerNUMA)map[{}] AllocResp:([]uint8)[{}]}}",
            allocation.pod,
            allocation.container,
            allocation.resource,
            devices.join(" "),
            numbers(response)
        ));
    }
    let entries = if entries.is_empty() { "<nil>".to_owned() } else { format!("[{}]", entries.join(" ")) };
    let mut registered = Vec::new();
    for (name, devices) in resources {
        let ids: Vec<&str> = devices.keys().map(String::as_str).collect();
        registered.push(format!("{name}:[{}]", ids.join(" ")));
    }
    let printed = format!(
        "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} \
         RegisteredDevices:(map[string][]string)map[{}]}}",
        registered.join(" ")
    );
    printed.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Bytes as Go prints them, in one string: a plugin's response may have megabytes.
fn numbers(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().saturating_mul(4));
    for byte in bytes {
        if !text.is_empty() {
            text.push(' ');
        }
        // Writing to a text does not fail.
        let _ = write!(text, "{byte}");
    }
    text
}

/// Allocations recorded by an earlier process or by a kubelet, and resources of which only the names are
/// known. The checksum is not verified: a truncated file does not parse as JSON.
pub(super) fn from_checkpoint(text: &str) -> Result<(Vec<Allocation>, Resources), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut allocated = Vec::new();
    for entry in value["Data"]["PodDeviceEntries"].as_array().into_iter().flatten() {
        let text = |field: &str| {
            entry[field]
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| format!("PodDeviceEntries: {field}: Required value"))
        };
        let mut devices: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for (node, ids) in entry["DeviceIDs"].as_object().into_iter().flatten() {
            let node = node.parse().map_err(|_| format!("DeviceIDs: {node:?} is not a number"))?;
            let ids = ids.as_array().into_iter().flatten().filter_map(Value::as_str);
            devices.insert(node, ids.map(str::to_owned).collect());
        }
        let response = base64::decode(&text("AllocResp")?).ok_or("AllocResp: not base64")?;
        allocated.push(Allocation {
            pod: PodUid::from(text("PodUID")?.as_str()),
            container: text("ContainerName")?,
            resource: text("ResourceName")?,
            devices,
            response: Some(response),
        });
    }
    let mut resources = Resources::new();
    for name in value["Data"]["RegisteredDevices"].as_object().into_iter().flatten().map(|(name, _)| name) {
        resources.insert(name.clone(), Devices::new());
    }
    Ok((allocated, resources))
}

#[cfg(test)]
mod tests;
