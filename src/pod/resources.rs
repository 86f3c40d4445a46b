//! From requests and limits to cgroup values: QoS class, sums over a pod, container and pod cgroups, cgroup
//! names.
//!
//! Owns the arithmetic.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;

use crate::model::api::pod::{Container, Pod, ResourceList};
use crate::model::api::quantity::Quantity;
use crate::model::containers::{all_containers, is_sidecar};
use crate::model::runtime_config::{CgroupDriver, CgroupValues, LinuxResources};
use crate::model::types::{PodSource, PodUid};

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA: i64 = 1000;
const PAGE: i64 = 4096;
/// A file of cgroup v2.
pub(super) const MEMORY_HIGH: &str = "memory.high";
const PROTECTED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;
/// Upstream's `SystemCriticalPriority`.
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QosClass {
    /// The requests of every container equal its limits.
    Guaranteed,
    /// At least one request or limit is set.
    Burstable,
    BestEffort,
}

impl QosClass {
    /// `status.qosClass`.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The node's capacity, as far as cgroup values depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCapacity {
    /// Thousandths of a CPU.
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub swap_bytes: i64,
    /// Huge page sizes of the kernel, bytes.
    pub page_sizes: Vec<u64>,
    /// Bytes set aside as huge pages, by page size.
    pub huge_page_bytes: BTreeMap<u64, i64>,
    /// Size of the file system pods write to, bytes; 0 when local storage is not managed.
    pub ephemeral_bytes: i64,
    pub cgroup_v2: bool,
    /// The kernel accounts swap per cgroup; without that, writing a swap limit fails.
    pub swap_accounting: bool,
}

/// Configuration that cgroup values depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceFlags {
    /// `cpuCFSQuota`.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`, microseconds.
    pub cpu_cfs_quota_period: i64,
    /// `singleProcessOOMKill`.
    pub single_process_oom_kill: bool,
    /// `memorySwap.swapBehavior: LimitedSwap`.
    pub limited_swap: bool,
    /// `podPidsLimit`; `None` for no limit.
    pub pod_pids_limit: Option<i64>,
    /// Feature gate `MemoryQoS`: `memoryThrottlingFactor` in millionths, and the memory that pods have in all.
    pub memory_qos: Option<(i64, i64)>,
}

impl Default for ResourceFlags {
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: 100_000,
            single_process_oom_kill: false,
            limited_swap: false,
            pod_pids_limit: None,
            memory_qos: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLayout {
    pub driver: CgroupDriver,
    /// `cgroupRoot`, `/` by default.
    pub root: String,
    /// `cgroupsPerQOS`.
    pub per_qos: bool,
}

fn positive<'a>(list: &'a ResourceList, name: &str) -> Option<&'a Quantity> {
    list.get(name).filter(|amount| !amount.is_zero() && !amount.is_negative())
}

/// The QoS class, from cpu and memory alone. If pod-level resources are set, only they count.
#[must_use]
pub(crate) fn qos_class(pod: &Pod) -> QosClass {
    let pairs: Vec<(&ResourceList, &ResourceList)> = match &pod.spec.resources {
        Some(resources) => vec![(&resources.requests, &resources.limits)],
        None => all_containers(pod)
            .map(|(container, _)| (&container.resources.requests, &container.resources.limits))
            .collect(),
    };
    let mut requests = ResourceList::new();
    let mut limits = ResourceList::new();
    let mut all_limited = true;
    for (request, limit) in pairs {
        for name in ["cpu", "memory"] {
            add(&mut requests, name, positive(request, name));
            add(&mut limits, name, positive(limit, name));
            all_limited &= positive(limit, name).is_some();
        }
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && (requests.is_empty() || requests == limits) {
        // Limits without any request: API defaulting would have copied the limits.
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

fn add(sums: &mut ResourceList, name: &str, amount: Option<&Quantity>) {
    if let Some(amount) = amount {
        let sum = sums.get(name).map_or(*amount, |sum| sum.saturating_add(*amount));
        sums.insert(name.to_owned(), sum);
    }
}

fn add_all(sums: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        add(sums, name, Some(amount));
    }
}

fn raise_to(sums: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        if sums.get(name).is_none_or(|sum| sum < amount) {
            sums.insert(name.clone(), *amount);
        }
    }
}

/// Requests of a container, a missing one taken from its limit as API defaulting does.
fn effective_requests(container: &Container) -> ResourceList {
    let mut requests = container.resources.limits.clone();
    requests.extend(container.resources.requests.clone());
    requests
}

/// The sum over regular containers and sidecars, or the peak of initialisation if that is larger.
fn sum_over(pod: &Pod, list: impl Fn(&Container) -> ResourceList) -> ResourceList {
    let mut sum = ResourceList::new();
    for container in &pod.spec.containers {
        add_all(&mut sum, &list(container));
    }
    let mut sidecars = ResourceList::new();
    let mut peak = ResourceList::new();
    for container in &pod.spec.init_containers {
        let mut during = sidecars.clone();
        add_all(&mut during, &list(container));
        raise_to(&mut peak, &during);
        if is_sidecar(container) {
            sidecars = during;
        }
    }
    add_all(&mut sum, &sidecars);
    raise_to(&mut sum, &peak);
    sum
}

/// The requests of the pod, including overhead.
#[must_use]
pub(crate) fn pod_requests(pod: &Pod) -> ResourceList {
    let mut sum = requests_without_overhead(pod);
    add_all(&mut sum, &pod.spec.overhead);
    sum
}

fn requests_without_overhead(pod: &Pod) -> ResourceList {
    let mut sum = sum_over(pod, effective_requests);
    if let Some(resources) = &pod.spec.resources {
        sum.extend(resources.requests.clone());
    }
    sum
}

/// The limits of the pod; overhead is added where there is a limit.
#[must_use]
pub(crate) fn pod_limits(pod: &Pod) -> ResourceList {
    let mut sum = limits_without_overhead(pod);
    for (name, amount) in &pod.spec.overhead {
        if sum.contains_key(name) {
            add(&mut sum, name, Some(amount));
        }
    }
    sum
}

fn limits_without_overhead(pod: &Pod) -> ResourceList {
    let mut sum = sum_over(pod, |container| container.resources.limits.clone());
    if let Some(resources) = &pod.spec.resources {
        sum.extend(resources.limits.clone());
    }
    sum
}

fn milli(list: &ResourceList, name: &str) -> i64 {
    list.get(name).map_or(0, |amount| amount.milli_value())
}

fn units(list: &ResourceList, name: &str) -> i64 {
    list.get(name).map_or(0, |amount| amount.value())
}

/// `cpu.shares` for so many thousandths of a CPU.
#[must_use]
pub(crate) fn cpu_shares(cpu_milli: i64) -> i64 {
    (cpu_milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// `cpu.cfs_quota_us` for so many thousandths of a CPU; 0 for no limit.
#[must_use]
pub(crate) fn cpu_quota(cpu_milli: i64, period: i64) -> i64 {
    if cpu_milli == 0 { 0 } else { (cpu_milli.saturating_mul(period) / 1000).max(MIN_QUOTA) }
}

/// cgroup values of one container.
#[must_use]
pub(super) fn container_resources(
    pod: &Pod,
    container: &Container,
    node: &NodeCapacity,
    flags: &ResourceFlags,
) -> LinuxResources {
    let requests = effective_requests(container);
    let mut resources = basic_resources(&requests, &container.resources.limits, flags);
    resources.oom_score_adj = oom_score_adj(pod, container, node.memory_bytes);
    resources.hugepage_limits = node
        .page_sizes
        .iter()
        .map(|size| (page_size_name(*size), hugepage_limit(&container.resources.limits, *size)))
        .collect();
    if node.cgroup_v2 && !flags.single_process_oom_kill {
        resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    if let Some(high) = memory_high(&requests, resources.memory_limit_bytes, flags).filter(|_| node.cgroup_v2)
    {
        resources.unified.insert(MEMORY_HIGH.to_owned(), high.to_string());
    }
    if node.swap_accounting {
        set_swap(&mut resources, pod, container, node, flags);
    }
    resources
}

fn basic_resources(requests: &ResourceList, limits: &ResourceList, flags: &ResourceFlags) -> LinuxResources {
    let mut resources = LinuxResources {
        cpu_shares: cpu_shares(milli(requests, "cpu")),
        memory_limit_bytes: units(limits, "memory"),
        ..LinuxResources::default()
    };
    if flags.cpu_cfs_quota {
        resources.cpu_period = flags.cpu_cfs_quota_period;
        resources.cpu_quota = cpu_quota(milli(limits, "cpu"), flags.cpu_cfs_quota_period);
    }
    resources
}

/// Above this much memory a container is slowed down: between its request and its limit, whole pages (upstream).
fn memory_high(requests: &ResourceList, limit: i64, flags: &ResourceFlags) -> Option<i64> {
    let (factor, allocatable) = flags.memory_qos?;
    let request = units(requests, "memory");
    let most = if limit == 0 { allocatable } else { limit };
    if request == limit || most == 0 {
        return None;
    }
    let share = i128::from(most - request) * i128::from(factor) / 1_000_000;
    let high = (request + i64::try_from(share).ok()?) / PAGE * PAGE;
    (high > request).then_some(high)
}

fn set_swap(
    resources: &mut LinuxResources,
    pod: &Pod,
    container: &Container,
    node: &NodeCapacity,
    flags: &ResourceFlags,
) {
    let request = units(&effective_requests(container), "memory");
    let limit = resources.memory_limit_bytes;
    let may_swap = flags.limited_swap
        && node.cgroup_v2
        && qos_class(pod) == QosClass::Burstable
        && !is_critical(pod)
        && request != limit
        && request != 0
        && node.memory_bytes > 0;
    let swap = if may_swap {
        let share = i128::from(request) * i128::from(node.swap_bytes) / i128::from(node.memory_bytes);
        i64::try_from(share).unwrap_or(i64::MAX)
    } else {
        0
    };
    if limit != 0 {
        resources.memory_swap_limit_bytes = limit.saturating_add(swap);
    } else if node.cgroup_v2 {
        // Without a memory limit CRI's sum of both cannot express a swap limit.
        resources.unified.insert("memory.swap.max".to_owned(), swap.to_string());
    }
}

/// Values for the sandbox config: sums without overhead.
#[must_use]
pub(super) fn sandbox_resources(pod: &Pod, flags: &ResourceFlags) -> LinuxResources {
    basic_resources(&requests_without_overhead(pod), &limits_without_overhead(pod), flags)
}

/// Values for the sandbox config: the overhead as both request and limit.
#[must_use]
pub(super) fn overhead_resources(pod: &Pod, flags: &ResourceFlags) -> LinuxResources {
    if pod.spec.overhead.is_empty() {
        return LinuxResources::default();
    }
    basic_resources(&pod.spec.overhead, &pod.spec.overhead, flags)
}

/// Values of the pod's own cgroup, by QoS class.
#[must_use]
pub(crate) fn pod_resources(pod: &Pod, node: &NodeCapacity, flags: &ResourceFlags) -> CgroupValues {
    let limits = pod_limits(pod);
    let declared = |name: &str| {
        let by_pod = pod.spec.resources.as_ref().is_some_and(|own| positive(&own.limits, name).is_some());
        by_pod || all_containers(pod).all(|(each, _)| positive(&each.resources.limits, name).is_some())
    };
    let class = qos_class(pod);
    let limited = |name: &str| match class {
        QosClass::Guaranteed => true,
        QosClass::Burstable => declared(name),
        QosClass::BestEffort => false,
    };
    let quota = limited("cpu").then(|| {
        if flags.cpu_cfs_quota { cpu_quota(milli(&limits, "cpu"), flags.cpu_cfs_quota_period) } else { -1 }
    });
    let huge_pages = node.page_sizes.iter();
    CgroupValues {
        cpu_shares: Some(match class {
            QosClass::BestEffort => MIN_SHARES,
            QosClass::Guaranteed | QosClass::Burstable => cpu_shares(milli(&pod_requests(pod), "cpu")),
        }),
        cpu_period: quota.map(|_| flags.cpu_cfs_quota_period),
        cpu_quota: quota,
        memory_bytes: limited("memory").then(|| units(&limits, "memory")),
        pids: flags.pod_pids_limit,
        huge_pages: huge_pages
            .map(|size| (page_size_name(*size), Some(hugepage_limit(&limits, *size))))
            .collect(),
    }
}

/// Values of the cgroup of a QoS class. Best-effort pods get the minimum weight; burstable ones together the
/// sum of their requests (`burstable_cpu_milli`). Huge pages are limited above and below, not here.
#[must_use]
pub(super) fn qos_values(class: QosClass, burstable_cpu_milli: i64, node: &NodeCapacity) -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(match class {
            QosClass::BestEffort => MIN_SHARES,
            QosClass::Burstable | QosClass::Guaranteed => cpu_shares(burstable_cpu_milli),
        }),
        huge_pages: node.page_sizes.iter().map(|size| (page_size_name(*size), None)).collect(),
        ..CgroupValues::default()
    }
}

/// The pod's part of the weight of the burstable class, in thousandths of a CPU.
#[must_use]
pub(super) fn burstable_cpu_milli(pod: &Pod) -> i64 {
    if qos_class(pod) == QosClass::Burstable { milli(&pod_requests(pod), "cpu") } else { 0 }
}

/// The pod's priority. Without an apiserver, priority classes are not resolved, except for the two built-in
/// ones.
#[must_use]
pub(crate) fn priority(pod: &Pod) -> i32 {
    let built_in = || match pod.spec.priority_class_name.as_str() {
        "system-node-critical" => 2_000_001_000,
        "system-cluster-critical" => 2_000_000_000,
        _ => 0,
    };
    pod.spec.priority.unwrap_or_else(built_in)
}

/// The pod comes from a file or a URL.
#[must_use]
pub(crate) fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.get("kubernetes.io/config.source");
    let source = source.and_then(|name| PodSource::from_name(name));
    matches!(source, Some(PodSource::File | PodSource::Http))
}

/// A pod that must not be evicted: static, or of system priority. The class name counts too, since classes
/// are not resolved to numbers here.
#[must_use]
pub(crate) fn is_critical(pod: &Pod) -> bool {
    is_static(pod) || priority(pod) >= SYSTEM_CRITICAL_PRIORITY
}

#[must_use]
pub(crate) fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    if is_critical(pod) && pod.spec.priority_class_name == "system-node-critical" {
        return PROTECTED_OOM_SCORE;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => PROTECTED_OOM_SCORE,
        QosClass::BestEffort => BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => {
            let own = burstable_oom_score(pod, container, memory_capacity);
            let sidecar =
                pod.spec.init_containers.iter().any(|init| init.name == container.name && is_sidecar(init));
            let regular =
                pod.spec.containers.iter().map(|each| burstable_oom_score(pod, each, memory_capacity));
            // A sidecar must not die before the containers that need it.
            regular.min().filter(|_| sidecar).map_or(own, |lowest| lowest.min(own))
        }
    }
}

fn burstable_oom_score(pod: &Pod, container: &Container, capacity: i64) -> i64 {
    let mut request = i128::from(units(&effective_requests(container), "memory"));
    let by_pod = pod.spec.resources.as_ref().and_then(|own| positive(&own.requests, "memory"));
    if let Some(by_pod) = by_pod {
        let claimed: i128 =
            all_containers(pod).map(|(each, _)| i128::from(units(&effective_requests(each), "memory"))).sum();
        let sharers = i128::try_from(all_containers(pod).count().max(1)).unwrap_or(1);
        request += (i128::from(by_pod.value()) - claimed).max(0) / sharers;
    }
    let used = 1000 * request / i128::from(capacity.max(1));
    let score = i64::try_from(1000 - used).unwrap_or(0);
    score.clamp(1000 + PROTECTED_OOM_SCORE, BEST_EFFORT_OOM_SCORE - 1)
}

/// The name by which the kernel's cgroup files know a page size: `64KB`, `2MB`, `1GB`.
#[must_use]
pub(crate) fn page_size_name(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes, 0);
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    while size >= 1024 && size % 1024 == 0 && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", units[unit])
}

fn hugepage_limit(limits: &ResourceList, size: u64) -> u64 {
    let named = limits.iter().find(|(name, _)| {
        let text = name.strip_prefix("hugepages-");
        let parsed = text.and_then(|text| Quantity::parse(text).ok());
        parsed.is_some_and(|parsed| u64::try_from(parsed.value()) == Ok(size))
    });
    named.and_then(|(_, amount)| u64::try_from(amount.value()).ok()).unwrap_or(0)
}

/// Path components, below the cgroup root, of the cgroup that holds a class's pods. Guaranteed pods have none
/// of their own.
fn class_components(class: QosClass) -> Vec<String> {
    let mut components = vec!["kubepods".to_owned()];
    match class {
        QosClass::Guaranteed => {}
        QosClass::Burstable => components.push("burstable".to_owned()),
        QosClass::BestEffort => components.push("besteffort".to_owned()),
    }
    components
}

/// Path components of the pod's cgroup below the cgroup root.
#[must_use]
pub(super) fn pod_components(uid: &PodUid, class: QosClass) -> Vec<String> {
    let mut components = class_components(class);
    components.push(format!("pod{uid}"));
    components
}

/// The cgroup that holds a class's pods, as a path in the cgroup file system; `Guaranteed` gives that of all
/// pods.
#[must_use]
pub(crate) fn class_cgroup_path(class: QosClass, layout: &CgroupLayout) -> String {
    cgroup_path(&class_components(class), layout)
}

/// What the sandbox config carries as `cgroup_parent`.
#[must_use]
pub(super) fn pod_cgroup_parent(uid: &PodUid, class: QosClass, layout: &CgroupLayout) -> String {
    if !layout.per_qos {
        return layout.root.clone();
    }
    let path = pod_cgroup_path(uid, class, layout);
    match layout.driver {
        CgroupDriver::Cgroupfs => path,
        CgroupDriver::Systemd => path.rsplit('/').next().unwrap_or_default().to_owned(),
    }
}

/// The pod's cgroup as a path in the cgroup file system, for example
/// `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podA_B.slice`.
#[must_use]
pub(crate) fn pod_cgroup_path(uid: &PodUid, class: QosClass, layout: &CgroupLayout) -> String {
    cgroup_path(&pod_components(uid, class), layout)
}

/// The path of a cgroup given by its components below the cgroup root (`["kubepods", "burstable"]`).
#[must_use]
pub(crate) fn cgroup_path(components: &[String], layout: &CgroupLayout) -> String {
    let root = layout.root.split('/').filter(|part| !part.is_empty()).map(str::to_owned);
    let all: Vec<String> = root.chain(components.iter().cloned()).collect();
    match layout.driver {
        CgroupDriver::Cgroupfs => format!("/{}", all.join("/")),
        CgroupDriver::Systemd => {
            // A dash is systemd's path separator; each slice carries the names of all its parents.
            let parts: Vec<String> = all.iter().map(|part| part.replace('-', "_")).collect();
            let slices = (1..=parts.len()).map(|depth| format!("/{}.slice", parts[..depth].join("-")));
            slices.collect()
        }
    }
}

/// The path of a cgroup that the configuration names: with systemd by its slice, `kube` for `/kube.slice`
/// (upstream).
#[must_use]
pub(super) fn named_cgroup_path(name: &str, driver: CgroupDriver) -> String {
    let components: Vec<String> = match driver {
        CgroupDriver::Cgroupfs => name.split('/').map(str::to_owned).collect(),
        CgroupDriver::Systemd => {
            let unit = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            unit.trim_end_matches(".slice").split('-').map(str::to_owned).collect()
        }
    };
    let components: Vec<String> = components.into_iter().filter(|part| !part.is_empty()).collect();
    cgroup_path(&components, &CgroupLayout { driver, root: "/".to_owned(), per_qos: true })
}

/// `resourceFieldRef` amounts of a container: name to amount, limits falling back to the pod's and then to
/// the node's.
#[must_use]
pub(super) fn effective_limits(
    pod: &Pod,
    container: &Container,
    node: &NodeCapacity,
) -> BTreeMap<String, Quantity> {
    let mut limits = ResourceList::from([
        ("cpu".to_owned(), Quantity::from_milli(node.cpu_milli)),
        ("memory".to_owned(), Quantity::from_bytes(node.memory_bytes)),
    ]);
    if node.ephemeral_bytes > 0 {
        limits.insert("ephemeral-storage".to_owned(), Quantity::from_bytes(node.ephemeral_bytes));
    }
    if let Some(own) = &pod.spec.resources {
        limits.extend(own.limits.clone());
    }
    let given = container.resources.limits.iter().filter(|(_, amount)| !amount.is_zero());
    limits.extend(given.map(|(name, amount)| (name.clone(), *amount)));
    limits
}

#[cfg(test)]
mod tests;
