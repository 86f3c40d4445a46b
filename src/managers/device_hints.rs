//! Where the devices of a container could come from, for the merge of hints.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeSet;

use super::cpu_set::NodeMask;
use super::hints::{Hints, hints};
use super::ledger::peak;
use crate::devices::allocation::{Allocation, Devices, Resources, node_bits, reusable};
use crate::model::api::pod::{Container, Pod};
use crate::model::containers::is_sidecar;
use crate::model::ordered::Ordered as _;

/// One list for each resource of plugins that the container asks for, or, without a name, the pod.
#[must_use]
pub(super) fn device_hints(
    pod: &Pod,
    container: Option<&str>,
    nodes: NodeMask,
    allocated: &[Allocation],
    resources: &Resources,
) -> Vec<Hints> {
    let mut all = Vec::new();
    for (resource, devices) in resources {
        let requested = requested(pod, container, resource);
        if requested > 0 {
            all.push(of_resource(pod, container, (resource, devices, requested), nodes, allocated));
        }
    }
    all
}

fn count(container: &Container, resource: &str) -> usize {
    let limit = container.resources.limits.get(resource);
    limit.and_then(|amount| usize::try_from(amount.value()).ok()).unwrap_or(0)
}

fn requested(pod: &Pod, container: Option<&str>, resource: &str) -> usize {
    let spec = &pod.spec;
    if let Some(name) = container {
        let mut all = spec.init_containers.iter().chain(&spec.containers);
        return all.find(|own| own.name == name).map_or(0, |own| count(own, resource));
    }
    let part = |own: &Container, is_init| (is_init, is_init && is_sidecar(own), count(own, resource) as u64);
    let init = spec.init_containers.iter().map(|own| part(own, true));
    let peak = peak(&mut init.chain(spec.containers.iter().map(|own| part(own, false))));
    usize::try_from(peak).unwrap_or(usize::MAX)
}

fn of_resource(
    pod: &Pod,
    container: Option<&str>,
    (resource, devices, requested): (&str, &Devices, usize),
    nodes: NodeMask,
    allocated: &[Allocation],
) -> Hints {
    if devices.values().all(|device| device.nodes.is_empty()) {
        return None;
    }
    let of_resource = || allocated.iter().filter(|each| each.resource == resource);
    let is_own = |each: &&Allocation| {
        each.pod == pod.metadata.uid && container.is_none_or(|name| each.container == name)
    };
    let own: BTreeSet<&str> = of_resource().filter(is_own).flat_map(Allocation::ids).into_set();
    let in_use: BTreeSet<&str> = of_resource().flat_map(Allocation::ids).into_set();
    let given = container.map(|name| reusable(pod, name, resource, allocated)).unwrap_or_default();
    let free = devices
        .iter()
        .filter(|(id, device)| device.healthy && !in_use.contains(id.as_str()) && !given.contains(*id));
    let mut available: Vec<u64> = free.map(|(_, device)| node_bits(device)).collect();
    let bits_of = |id: &str| devices.get(id).map(node_bits).unwrap_or_default();
    let mut kept: Vec<u64> = given.iter().map(|id| bits_of(id)).filter(|bits| *bits != 0).collect();
    if !own.is_empty() {
        if own.len() != requested {
            return Some(Vec::new());
        }
        available = own.iter().map(|id| bits_of(id)).collect();
        kept = Vec::new();
    } else if available.len() + given.len() < requested {
        return Some(Vec::new());
    }
    let within = |all: &[u64], mask: NodeMask| all.iter().filter(|bits| **bits & mask.0 != 0).count();
    let every: Vec<u64> = devices.values().map(node_bits).collect();
    let fits = |mask| within(&every, mask) >= requested;
    let may = |mask| within(&kept, mask) == kept.len() && kept.len() + within(&available, mask) >= requested;
    Some(hints(nodes, fits, may).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::allocation::PluginDevice;
    use crate::managers::hints::Hint;
    use crate::model::api::decode::decode;
    use serde_json::json;

    const R: &str = "vendor.com/card";

    fn shown(hints: &[Hints]) -> String {
        let one = |hint: &Hint| format!("{}{}", hint.nodes.unwrap(), if hint.preferred { "" } else { "?" });
        let list = |hints: &Hints| {
            hints
                .as_ref()
                .map_or("any".to_owned(), |hints| hints.iter().map(one).collect::<Vec<_>>().join(" "))
        };
        hints.iter().map(list).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn hints_are_of_nodes_with_enough_free_devices() {
        let container = |name: &str, count: u32| json!({"name": name, "resources": {"limits": {R: count}}});
        let raw = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {
            "initContainers": [container("i", 1)],
            "containers": [container("one", 1), container("two", 2), container("three", 3), {"name": "none"}]}});
        let pod = decode::<Pod>(raw).unwrap().object;
        let device = |node: i64| PluginDevice { healthy: true, nodes: vec![node] };
        let all = [("a", device(0)), ("b", device(0)), ("c", device(1))];
        let devices: Devices = all.into_iter().map(|(id, device)| (id.to_owned(), device)).collect();
        let resources = Resources::from([(R.to_owned(), devices)]);
        let hints = |container, allocated: &[Allocation]| {
            shown(&device_hints(&pod, container, NodeMask(0b11), allocated, &resources))
        };
        let has = |pod: &str, container: &str, node: i64, id: &str| Allocation {
            pod: pod.into(),
            container: container.to_owned(),
            resource: R.to_owned(),
            devices: [(node, vec![id.to_owned()])].into(),
            response: None,
        };
        assert_eq!(hints(Some("one"), &[]), "0 1 0-1?");
        assert_eq!(hints(Some("two"), &[]), "0 0-1?");
        assert_eq!(hints(Some("three"), &[]), "0-1");
        assert_eq!(
            (hints(Some("none"), &[]), hints(None, &[])),
            (String::new(), String::new()),
            "too many for the pod"
        );
        assert_eq!(hints(Some("one"), &[has("v", "x", 0, "a")]), "0 1 0-1?");
        assert_eq!(hints(Some("two"), &[has("v", "x", 0, "a")]), "0-1?");
        assert_eq!(hints(Some("three"), &[has("v", "x", 0, "a")]), "");
        assert_eq!(hints(Some("one"), &[has("u", "one", 1, "c")]), "1 0-1?", "what it has is the hint again");
        assert_eq!(hints(Some("one"), &[has("u", "i", 1, "c")]), "1 0-1?", "what the init container leaves");
        let devices = Devices::from([("a".to_owned(), device(0))]);
        let resources = Resources::from([(R.to_owned(), devices)]);
        let hints = shown(&device_hints(&pod, Some("one"), NodeMask(0b11), &[], &resources));
        assert_eq!(hints, "0 0-1?", "other resources may come from nodes without a device");
        let anywhere = PluginDevice { healthy: true, nodes: Vec::new() };
        let resources = Resources::from([(R.to_owned(), Devices::from([("a".to_owned(), anywhere)]))]);
        assert_eq!(shown(&device_hints(&pod, Some("one"), NodeMask(3), &[], &resources)), "any");
    }
}
