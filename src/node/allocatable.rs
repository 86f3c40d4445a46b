//! The node's capacity, the part of it that is allocatable to pods, and the values of the cgroup all pods are
//! in.
//!
//! Owns that arithmetic (upstream: `cm/node_container_manager`).
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;

use crate::model::api::pod::ResourceList;
use crate::model::api::quantity::Quantity;
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::CgroupValues;
use crate::pod::resources::{NodeCapacity, cpu_shares, page_size_name};

/// Resources of the node that are reserved, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// `systemReserved`.
    pub system: ResourceList,
    /// `kubeReserved`.
    pub kube: ResourceList,
    /// What hard eviction thresholds keep free: memory and ephemeral-storage.
    pub eviction: ResourceList,
}

/// Which limits of a reservation are set on a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enforce {
    /// CPU, memory and processes.
    All,
    Compressible,
}

/// `status.capacity` of the node: cpu, memory, pods, huge pages per size, and ephemeral-storage when there is
/// any. `pods_per_core` 0 leaves `max_pods` as the only bound; `ephemeral_bytes` 0 means that local storage
/// is not managed.
#[must_use]
pub(crate) fn capacity(
    node: &NodeCapacity,
    max_pods: i64,
    pods_per_core: i64,
    ephemeral_bytes: i64,
) -> ResourceList {
    let pods = match pods_per_core {
        ..=0 => max_pods,
        _ => max_pods.min(pods_per_core.saturating_mul(node.cpu_milli / 1000)),
    };
    let mut capacity = ResourceList::from([
        ("cpu".to_owned(), Quantity::from_milli(node.cpu_milli)),
        ("memory".to_owned(), Quantity::from_bytes(node.memory_bytes)),
        ("pods".to_owned(), Quantity::from_units(pods)),
    ]);
    if ephemeral_bytes > 0 {
        capacity.insert("ephemeral-storage".to_owned(), Quantity::from_bytes(ephemeral_bytes));
    }
    for size in &node.page_sizes {
        let bytes = node.huge_page_bytes.get(size).copied().unwrap_or(0);
        capacity.insert(huge_pages_name(*size), Quantity::from_bytes(bytes));
    }
    capacity
}

fn huge_pages_name(size: u64) -> String {
    format!("hugepages-{}", Quantity::from_bytes(i64::try_from(size).unwrap_or(i64::MAX)))
}

/// `status.allocatable`: capacity less every reservation, never below zero; memory also less all huge pages.
#[must_use]
pub(crate) fn allocatable(capacity: &ResourceList, reserved: &Reserved) -> ResourceList {
    let mut left = subtract(capacity, &[&reserved.system, &reserved.kube, &reserved.eviction]);
    let huge: i64 = left
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
        .fold(0, |sum, (_, amount)| sum.saturating_add(amount.value()));
    if huge > 0
        && let Some(memory) = left.get_mut("memory")
    {
        *memory = Quantity::from_bytes(memory.value().saturating_sub(huge).max(0));
    }
    left
}

/// The node as its pods see it: `allocatable` in the form from which cgroup values and the downward API are
/// computed.
#[must_use]
pub(crate) fn as_seen_by_pods(node: &NodeCapacity, allocatable: &ResourceList) -> NodeCapacity {
    let value = |name: &str| allocatable.get(name).map_or(0, |amount| amount.value());
    NodeCapacity {
        cpu_milli: allocatable.get("cpu").map_or(0, |amount| amount.milli_value()),
        memory_bytes: value("memory"),
        ephemeral_bytes: value("ephemeral-storage"),
        ..node.clone()
    }
}

/// Memory less reservations, but not less eviction thresholds and huge pages (upstream: `GetNodeAllocatableAbsolute`).
#[must_use]
pub(crate) fn memory_of_pods(node: &NodeCapacity, reserved: &Reserved) -> i64 {
    let value = |list: &ResourceList| list.get("memory").map_or(0, |amount| amount.value());
    (node.memory_bytes - value(&reserved.system) - value(&reserved.kube)).max(0)
}

/// How much of the node's memory is reserved, `left` being what its pods see: huge pages are not.
#[must_use]
pub(crate) fn memory_reservation(node: &NodeCapacity, left: &NodeCapacity) -> i64 {
    let pages: i64 = node.huge_page_bytes.values().sum();
    (node.memory_bytes - left.memory_bytes - pages).max(0)
}

/// Values of the cgroup all pods are in. With `enforce` (`pods` in `enforceNodeAllocatable`): capacity less
/// reservations, but not less eviction thresholds, because eviction has to act before the kernel does.
/// Otherwise the whole node. `max_pids` is the kernel's limit.
#[must_use]
pub(crate) fn node_values(
    capacity: &ResourceList,
    max_pids: Option<i64>,
    reserved: &Reserved,
    enforce: bool,
) -> CgroupValues {
    let mut all = capacity.clone();
    if let Some(pids) = max_pids {
        all.insert("pid".to_owned(), Quantity::from_units(pids));
    }
    if enforce {
        all = subtract(&all, &[&reserved.system, &reserved.kube]);
    }
    values_of(&all, Enforce::All)
}

/// Values of the cgroups of other processes (`systemReservedCgroup`, `kubeReservedCgroup`).
#[must_use]
pub(crate) fn reserved_values(reservation: &ResourceList, enforce: Enforce) -> CgroupValues {
    values_of(reservation, enforce)
}

fn values_of(list: &ResourceList, enforce: Enforce) -> CgroupValues {
    let value = |name: &str| list.get(name).map(|amount| amount.value());
    let mut values = CgroupValues {
        cpu_shares: list.get("cpu").map(|amount| cpu_shares(amount.milli_value())),
        ..CgroupValues::default()
    };
    if enforce == Enforce::All {
        values.memory_bytes = value("memory");
        values.pids = value("pid");
        values.huge_pages = list
            .iter()
            .filter_map(|(name, amount)| {
                let size = Quantity::parse(name.strip_prefix("hugepages-")?).ok()?.value();
                Some((page_size_name(u64::try_from(size).ok()?), u64::try_from(amount.value()).ok()))
            })
            .collect();
    }
    values
}

/// What hard thresholds (`evictionHard`: signal to quantity or percentage) keep free of memory and ephemeral
/// storage.
#[must_use]
pub(crate) fn eviction_reserve(
    thresholds: &BTreeMap<String, String>,
    capacity: &ResourceList,
) -> ResourceList {
    [("memory.available", "memory"), ("nodefs.available", "ephemeral-storage")]
        .into_iter()
        .filter_map(|(signal, resource)| {
            let whole = capacity.get(resource)?;
            let amount = threshold(thresholds.get(signal)?, whole.value())?;
            Some((resource.to_owned(), Quantity::from_bytes(amount)))
        })
        .into_map()
}

/// A threshold in bytes. `0%` and `100%` switch a signal off.
fn threshold(text: &str, whole: i64) -> Option<i64> {
    let Some(percentage) = text.strip_suffix('%') else {
        return Quantity::parse(text).ok().map(Quantity::value);
    };
    // Hundredths of a percent in whole numbers: finer fractions do not occur, and floats would need casts.
    let share = Quantity::parse(percentage).ok()?.milli_value();
    if share <= 0 || share >= 100_000 {
        return None;
    }
    i64::try_from(i128::from(whole) * i128::from(share) / 100_000).ok()
}

/// One line for each resource whose reservations exceed the capacity. Texts are upstream's.
#[must_use]
pub(crate) fn excessive_reservations(capacity: &ResourceList, reserved: &Reserved) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, amount) in capacity {
        let sum = [&reserved.kube, &reserved.system, &reserved.eviction]
            .iter()
            .filter_map(|list| list.get(name))
            .fold(Quantity::default(), |sum, part| part.saturating_add(sum));
        if sum > *amount {
            lines.push(format!(
                "Resource {name:?} has a reservation of {sum} but capacity of {amount}. Expected capacity >= reservation."
            ));
        }
    }
    lines
}

fn subtract(list: &ResourceList, reservations: &[&ResourceList]) -> ResourceList {
    list.iter()
        .map(|(name, amount)| {
            let taken: Vec<&Quantity> = reservations.iter().filter_map(|list| list.get(name)).collect();
            (name.clone(), if taken.is_empty() { *amount } else { remaining(name, *amount, &taken) })
        })
        .into_map()
}

fn remaining(name: &str, amount: Quantity, taken: &[&Quantity]) -> Quantity {
    let minus = |from: i64, measure: fn(Quantity) -> i64| {
        taken.iter().fold(from, |left, part| left.saturating_sub(measure(**part))).max(0)
    };
    match name {
        "cpu" => Quantity::from_milli(minus(amount.milli_value(), Quantity::milli_value)),
        "pods" | "pid" => Quantity::from_units(minus(amount.value(), Quantity::value)),
        _ => Quantity::from_bytes(minus(amount.value(), Quantity::value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), Quantity::parse(text).unwrap())).collect()
    }

    fn node() -> NodeCapacity {
        NodeCapacity {
            cpu_milli: 4000,
            memory_bytes: 8 << 30,
            page_sizes: vec![2 << 20, 1 << 30],
            huge_page_bytes: BTreeMap::from([(2 << 20, 64 << 20)]),
            ..NodeCapacity::default()
        }
    }

    fn shown(list: &ResourceList) -> Vec<String> {
        list.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
    }

    #[test]
    fn capacity_lists_node_resources_and_caps_pods_per_core() {
        assert_eq!(
            shown(&capacity(&node(), 110, 0, 10 << 30)),
            [
                "cpu=4",
                "ephemeral-storage=10Gi",
                "hugepages-1Gi=0",
                "hugepages-2Mi=64Mi",
                "memory=8Gi",
                "pods=110"
            ]
        );
        for (max_pods, per_core, expected) in [(110, 10, "40"), (30, 10, "30"), (110, 0, "110")] {
            let pods = capacity(&node(), max_pods, per_core, 0)["pods"];
            assert_eq!(pods.to_string(), expected);
        }
        assert!(!capacity(&node(), 110, 0, 0).contains_key("ephemeral-storage"));
    }

    #[test]
    fn allocatable_subtracts_reservations_and_is_never_negative() {
        let capacity = capacity(&node(), 110, 0, 10 << 30);
        let reserved = Reserved {
            system: list(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "100")]),
            kube: list(&[("cpu", "250m"), ("ephemeral-storage", "20Gi")]),
            eviction: list(&[("memory", "100Mi")]),
        };
        assert_eq!(
            shown(&allocatable(&capacity, &reserved)),
            [
                "cpu=3250m",
                "ephemeral-storage=0",
                "hugepages-1Gi=0",
                "hugepages-2Mi=64Mi",
                "memory=7004Mi",
                "pods=110"
            ]
        );
        let left = as_seen_by_pods(&node(), &allocatable(&capacity, &reserved));
        assert_eq!(memory_reservation(&node(), &left), (1 << 30) + (100 << 20), "pages are not reserved");
        assert_eq!(memory_of_pods(&node(), &reserved), 7 << 30, "neither thresholds nor pages");
        let free = Reserved::default();
        let without_pages = NodeCapacity { huge_page_bytes: BTreeMap::new(), ..node() };
        let plain = self::capacity(&without_pages, 110, 0, 0);
        assert_eq!(allocatable(&plain, &free), plain);
    }

    #[test]
    fn kubepods_limits_subtract_reservations_not_thresholds() {
        let capacity = capacity(&node(), 110, 0, 0);
        let reserved = Reserved {
            system: list(&[("cpu", "1"), ("memory", "1Gi"), ("pid", "1000")]),
            kube: ResourceList::new(),
            eviction: list(&[("memory", "100Mi")]),
        };
        let pages = vec![("1GB".to_owned(), Some(0)), ("2MB".to_owned(), Some(64 << 20))];
        let expected = |cpu_shares, memory_bytes, pids| CgroupValues {
            cpu_shares: Some(cpu_shares),
            memory_bytes: Some(memory_bytes),
            pids: Some(pids),
            huge_pages: pages.clone(),
            ..CgroupValues::default()
        };
        assert_eq!(node_values(&capacity, Some(32768), &reserved, true), expected(3072, 7 << 30, 31768));
        assert_eq!(node_values(&capacity, Some(32768), &reserved, false), expected(4096, 8 << 30, 32768));
        let own = list(&[("cpu", "500m"), ("memory", "64Mi")]);
        let compressible = reserved_values(&own, Enforce::Compressible);
        assert_eq!(compressible, CgroupValues { cpu_shares: Some(512), ..CgroupValues::default() });
        assert_eq!(reserved_values(&own, Enforce::All).memory_bytes, Some(64 << 20));
    }

    #[test]
    fn thresholds_are_amounts_or_shares_of_the_capacity() {
        let capacity = capacity(&node(), 110, 0, 10 << 30);
        let reserve = |memory: &str, disk: &str| {
            let thresholds =
                [("memory.available", memory), ("nodefs.available", disk), ("pid.available", "5%")];
            let thresholds = thresholds.map(|(signal, text)| (signal.to_owned(), text.to_owned())).into();
            shown(&eviction_reserve(&thresholds, &capacity))
        };
        assert_eq!(reserve("100Mi", "10%"), ["ephemeral-storage=1Gi", "memory=100Mi"]);
        assert_eq!(reserve("12.5%", "0%"), ["memory=1Gi"]);
        assert_eq!(reserve("100%", "100%"), Vec::<String>::new());
    }

    #[test]
    fn reservation_above_capacity_is_reported_like_upstream() {
        let capacity = capacity(&node(), 110, 0, 0);
        let reserved = Reserved {
            system: list(&[("memory", "6Gi"), ("cpu", "1")]),
            kube: list(&[("memory", "3Gi")]),
            ..Reserved::default()
        };
        assert_eq!(
            excessive_reservations(&capacity, &reserved),
            [
                "Resource \"memory\" has a reservation of 9Gi but capacity of 8Gi. Expected capacity >= reservation."
            ]
        );
    }
}
