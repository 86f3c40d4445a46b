//! The cgroups of pods: created before the first sandbox, updated to the pods' requests, and removed with
//! them.
//!
//! Owns the set of known pod cgroups, and the weight of the burstable class, which is the sum over them.
//! Values come from `pod::resources`, effects from `cgroup`. What this machine does not support is logged
//! once, and pods run without it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::{Mutex, OnceCell};

use crate::model::api::pod::Pod;
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::{CgroupDriver, CgroupValues};
use crate::model::types::PodUid;
use crate::platform::cgroup::{self, CgroupConfig, CgroupError, Skipped};
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::executor::{Executor, RETRY_AFTER};
use crate::pod::image::StartFailure as Failure;
use crate::pod::resources::{
    CgroupLayout, NodeCapacity, QosClass, burstable_cpu_milli, class_cgroup_path, named_cgroup_path,
    pod_cgroup_path, pod_components, pod_resources, qos_class, qos_values,
};
use crate::runtime::Runtime;

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
/// Upstream's pause before node limits are tried again.
const RETRY_NODE_LIMITS: Duration = Duration::from_secs(60);
/// How often processes left in a pod's cgroup are killed before it counts as stuck (upstream).
const KILL_ATTEMPTS: usize = 5;
/// A killed process needs a moment to leave.
const KILL_PAUSE: Duration = Duration::from_millis(20);

/// Values of the cgroups above the pods'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCgroups {
    /// Of the one all pods are in.
    pub pods: CgroupValues,
    /// Of the cgroups for reserved resources.
    pub reserved: Vec<ReservedCgroup>,
}

/// `systemReservedCgroup` or `kubeReservedCgroup`: created by the administrator; the agent sets its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// `System` or `Kube`, as events have it.
    pub title: &'static str,
    /// Its name as configured.
    pub cgroup: String,
    pub values: CgroupValues,
}

/// What is known of the tree.
#[derive(Default)]
pub(super) struct PodCgroups {
    begun: OnceCell<()>,
    /// Locked while the tree is changed; the current weight of the burstable class, in thousandths of a CPU.
    burstable: Mutex<Option<i64>>,
    pods: RefCell<BTreeMap<PodUid, PodCgroup>>,
    warned: RefCell<BTreeSet<String>>,
}

/// The values last written for one pod.
struct PodCgroup {
    values: CgroupValues,
    burstable_cpu_milli: i64,
}

impl<R: Runtime> Executor<R> {
    /// Creates the cgroups of the node and of the QoS classes, once the runtime has reported its cgroup
    /// driver. Idempotent.
    pub(crate) async fn ensure_node_cgroups(&self) {
        if !self.config.layout.per_qos || self.detect_cgroup_driver().await.is_err() {
            return;
        }
        let begin = || async {
            let (tree, layout) = (self.cgroup_tree(), self.cgroup_layout());
            let capacity = self.config.capacity.clone();
            let pods = self.config.node_cgroups.pods.clone();
            let made = rt::blocking("create node cgroups", move || {
                make_node_cgroups(&tree, &layout, &capacity, &pods)
            });
            let limits = NodeLimits {
                tree: self.cgroup_tree(),
                layout: self.cgroup_layout(),
                cgroups: self.config.node_cgroups.clone(),
                events: self.events.clone(),
            };
            let made = made.await;
            self.warn_skipped(made.skipped);
            if let Some(rest) = limits.enforce(made.limited).await {
                rt::spawn("node limits", rest.enforce_until_done());
            }
        };
        self.cgroups.begun.get_or_init(begin).await;
    }

    /// Creates the pod's cgroup, before the runtime puts anything into it.
    pub(super) async fn ensure_pod_cgroup(&self, pod: &Pod) -> Result<(), Failure> {
        if !self.config.layout.per_qos {
            return Ok(());
        }
        self.ensure_node_cgroups().await;
        let mut weight = self.cgroups.burstable.lock().await;
        let path = self.pod_cgroup_path(pod);
        let values = self.remember_pod_cgroup(pod);
        self.set_burstable_weight(&mut weight).await;
        let tree = self.cgroup_tree();
        let made = rt::blocking("create pod cgroup", move || cgroup::ensure(&tree, &path, &values)).await;
        match made {
            Ok(skipped) => {
                self.warn_skipped(skipped);
                Ok(())
            }
            Err(error) => {
                self.cgroups.pods.borrow_mut().remove(&pod.metadata.uid);
                let name = pod_components(&pod.metadata.uid, qos_class(pod)).join(" ");
                let message = format!(
                    "unable to ensure pod container exists: failed to create container for [{name}] : {}",
                    chain(&error)
                );
                Err(self.sandbox_failure(pod, "FailedCreatePodContainer", message, RETRY_AFTER))
            }
        }
    }

    /// Updates the cgroup of a running pod to its current requests. Writes nothing when they are unchanged.
    pub(in crate::pod) async fn keep_pod_cgroup(&self, pod: &Pod) {
        if !self.config.layout.per_qos || self.has_values(pod) {
            return;
        }
        self.ensure_node_cgroups().await;
        let mut weight = self.cgroups.burstable.lock().await;
        let path = self.pod_cgroup_path(pod);
        let values = self.remember_pod_cgroup(pod);
        self.set_burstable_weight(&mut weight).await;
        let tree = self.cgroup_tree();
        match rt::blocking("update pod cgroup", move || cgroup::update(&tree, &path, &values)).await {
            Ok(skipped) => self.warn_skipped(skipped),
            // The containers run in another cgroup (another cgroup root before), and must not be stopped for
            // this.
            Err(error @ CgroupError::Missing { .. }) => {
                log::debug!(pod:% = pod.pod_ref(), err:% = error; "Running pod is not in its cgroup");
            }
            Err(error) => {
                log::warn!(pod:% = pod.pod_ref(), err:% = chain(&error); "Failed to update cgroup of \
                     running pod");
            }
        }
    }

    /// Removes the pod's cgroup and kills the processes left in it. False when it still exists.
    pub(super) async fn remove_pod_cgroup(&self, pod: &Pod) -> bool {
        if !self.config.layout.per_qos {
            return true;
        }
        // The path depends on the driver. Without an answer of the runtime the configured driver is used.
        let _ = self.detect_cgroup_driver().await;
        // The spec of an orphan is lost, and with it its QoS class: the cgroup can be in any of the three.
        let layout = self.cgroup_layout();
        let uid = &pod.metadata.uid;
        if let Err(error) =
            self.kill_and_remove(CLASSES.map(|class| pod_cgroup_path(uid, class, &layout))).await
        {
            log::warn!(pod:% = pod.pod_ref(), err:% = chain(&error); "Failed to remove pod cgroup");
            return false;
        }
        let known = self.cgroups.pods.borrow_mut().remove(uid);
        if known.is_some() {
            self.set_burstable_weight(&mut *self.cgroups.burstable.lock().await).await;
        }
        true
    }

    async fn kill_and_remove(&self, paths: [String; 3]) -> Result<(), CgroupError> {
        let mut outcome = Ok(());
        for attempt in 0..KILL_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(KILL_PAUSE).await;
            }
            let (tree, paths) = (self.cgroup_tree(), paths.clone());
            let job = move || paths.iter().try_for_each(|path| kill_and_remove(&tree, path));
            outcome = rt::blocking("remove pod cgroup", job).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Removes empty cgroups of unknown pods, left by an agent that died. One with processes is kept and
    /// logged: the pods that the runtime knows were adopted before, so the processes are not the agent's.
    pub(crate) async fn sweep_cgroups(&self, known: impl FnOnce() -> BTreeSet<PodUid>) {
        if !self.config.layout.per_qos || self.detect_cgroup_driver().await.is_err() {
            return;
        }
        let _held = self.cgroups.burstable.lock().await;
        let layout = self.cgroup_layout();
        let kept = known_cgroup_paths(&layout, &known());
        let tree = self.cgroup_tree();
        let job = move || {
            for path in orphans(&tree, &layout, &kept) {
                match remove_if_empty(&tree, &path) {
                    Ok(()) => log::info!(cgroup = path; "Removed orphaned pod cgroup"),
                    Err(why) => {
                        log::warn!(cgroup = path, err = why; "Orphaned pod cgroup is in use, keeping it");
                    }
                }
            }
        };
        rt::blocking("sweep cgroups", job).await;
    }

    /// Removes the cgroups above the pods' unless they contain something.
    pub(in crate::pod) async fn remove_empty_cgroups(&self) {
        if !self.config.layout.per_qos || self.detect_cgroup_driver().await.is_err() {
            return;
        }
        // Their creation may be in progress.
        self.ensure_node_cgroups().await;
        let _held = self.cgroups.burstable.lock().await;
        let layout = self.cgroup_layout();
        let tree = self.cgroup_tree();
        let job = move || {
            // The other classes are below that of guaranteed pods.
            for class in [QosClass::Burstable, QosClass::BestEffort, QosClass::Guaranteed] {
                let path = class_cgroup_path(class, &layout);
                if !cgroup::exists(&tree, &path) || !cgroup::children(&tree, &path).is_empty() {
                    continue;
                }
                match remove_if_empty(&tree, &path) {
                    Ok(()) => log::info!(cgroup = path; "Removed a cgroup, as no pod is left"),
                    Err(why) => log::warn!(cgroup = path, err = why; "Failed to remove a cgroup, leaving it"),
                }
            }
        };
        rt::blocking("remove empty cgroups", job).await;
    }

    fn has_values(&self, pod: &Pod) -> bool {
        let known = self.cgroups.pods.borrow();
        known.get(&pod.metadata.uid).is_some_and(|cgroup| cgroup.values == self.pod_values(pod))
    }

    fn pod_values(&self, pod: &Pod) -> CgroupValues {
        pod_resources(pod, &self.config.capacity, &self.flags_for(&pod.metadata.uid, None))
    }

    fn remember_pod_cgroup(&self, pod: &Pod) -> CgroupValues {
        let values = self.pod_values(pod);
        let cgroup = PodCgroup { values: values.clone(), burstable_cpu_milli: burstable_cpu_milli(pod) };
        self.cgroups.pods.borrow_mut().insert(pod.metadata.uid.clone(), cgroup);
        values
    }

    /// Sets the weight of the burstable class to the sum of its pods, if that has changed.
    async fn set_burstable_weight(&self, weight: &mut Option<i64>) {
        let sum = self
            .cgroups
            .pods
            .borrow()
            .values()
            .fold(0_i64, |sum, pod| sum.saturating_add(pod.burstable_cpu_milli));
        if *weight == Some(sum) {
            return;
        }
        let tree = self.cgroup_tree();
        let path = class_cgroup_path(QosClass::Burstable, &self.cgroup_layout());
        let values = qos_values(QosClass::Burstable, sum, &self.config.capacity);
        let update = move || cgroup::update(&tree, &path, &values);
        match rt::blocking("set CPU weight of burstable pods", update).await {
            Ok(skipped) => {
                self.warn_skipped(skipped);
                *weight = Some(sum);
            }
            // The agent cannot create it on this machine; the runtime does for the first pod.
            Err(CgroupError::Missing { .. }) => {}
            Err(error) => log::warn!(err:% = chain(&error); "Failed to update QoS cgroups"),
        }
    }

    fn pod_cgroup_path(&self, pod: &Pod) -> String {
        pod_cgroup_path(&pod.metadata.uid, qos_class(pod), &self.cgroup_layout())
    }

    fn cgroup_tree(&self) -> CgroupConfig {
        CgroupConfig { driver: self.cgroup_layout().driver, ..self.config.cgroup.clone() }
    }

    fn warn_skipped(&self, skipped: Vec<Skipped>) {
        for each in skipped {
            if self.cgroups.warned.borrow_mut().insert(each.what.clone()) {
                log::warn!(what = each.what, err = each.why; "Failed to apply a cgroup setting on this \
                     node, continuing without");
            }
        }
    }
}

/// The result of creating the cgroups above the pods'.
struct NodeMade {
    /// The limit of all pods together: how many values were skipped.
    limited: Result<usize, CgroupError>,
    skipped: Vec<Skipped>,
}

fn make_node_cgroups(
    tree: &CgroupConfig,
    layout: &CgroupLayout,
    capacity: &NodeCapacity,
    pods: &CgroupValues,
) -> NodeMade {
    let mut skipped = Vec::new();
    let limited = cgroup::ensure(tree, &class_cgroup_path(QosClass::Guaranteed, layout), pods);
    let limited = limited.map(|more| {
        let count = more.len();
        skipped.extend(more);
        count
    });
    for class in [QosClass::BestEffort, QosClass::Burstable] {
        let path = class_cgroup_path(class, layout);
        let mut values = qos_values(class, 0, capacity);
        if class == QosClass::Burstable && cgroup::exists(tree, &path) {
            // Pods run already; the class keeps its weight until they are known.
            values.cpu_shares = None;
        }
        match cgroup::ensure(tree, &path, &values) {
            Ok(more) => skipped.extend(more),
            // Each pod of the class fails for the same reason, and reports it.
            Err(error) => log::warn!(cgroup = path, err:% = chain(&error); "Failed to create QoS cgroup"),
        }
    }
    NodeMade { limited, skipped }
}

/// The limits above the pods, and where their results are reported.
struct NodeLimits {
    tree: CgroupConfig,
    layout: CgroupLayout,
    cgroups: NodeCgroups,
    events: EventRecorder,
}

impl NodeLimits {
    /// Usage may be above a limit until pods have ended: retries until all limits are in force.
    async fn enforce_until_done(self) {
        let mut rest = self;
        loop {
            tokio::time::sleep(RETRY_NODE_LIMITS).await;
            let (tree, layout) = (rest.tree.clone(), rest.layout.clone());
            let pods = rest.cgroups.pods.clone();
            let update =
                move || cgroup::ensure(&tree, &class_cgroup_path(QosClass::Guaranteed, &layout), &pods);
            let limited = rt::blocking("limit all pods", update).await.map(|skipped| skipped.len());
            match rest.enforce(limited).await {
                Some(again) => rest = again,
                None => return,
            }
        }
    }

    /// Reports the result of limiting all pods, then limits the reserved cgroups. Returns what must be
    /// retried.
    async fn enforce(mut self, limited: Result<usize, CgroupError>) -> Option<Self> {
        match &limited {
            Ok(0) => self.enforced("Updated Node Allocatable limit across pods"),
            // The skipped values are logged already.
            Ok(_) => {}
            Err(error) => {
                let path = class_cgroup_path(QosClass::Guaranteed, &self.layout);
                self.failed(&format!("Failed to update Node Allocatable Limits {path:?}: {}", chain(error)));
            }
        }
        let mut left = Vec::new();
        for reserved in std::mem::take(&mut self.cgroups.reserved) {
            if !self.limit(&reserved).await {
                left.push(reserved);
            }
        }
        self.cgroups.reserved = left;
        (limited.is_err() || !self.cgroups.reserved.is_empty()).then_some(self)
    }

    async fn limit(&self, reserved: &ReservedCgroup) -> bool {
        let tree = self.tree.clone();
        let path = named_cgroup_path(&reserved.cgroup, self.layout.driver);
        let values = reserved.values.clone();
        let (name, title) = (&reserved.cgroup, reserved.title);
        match rt::blocking("limit reserved cgroup", move || cgroup::update(&tree, &path, &values)).await {
            Ok(_) => {
                let title = title.to_lowercase();
                self.enforced(&format!("Updated limits on {title} reserved cgroup {name}"));
                true
            }
            Err(error) => {
                self.failed(&format!(
                    "Failed to enforce {title} Reserved Cgroup Limits on {name:?}: {}",
                    chain(&error)
                ));
                false
            }
        }
    }

    fn enforced(&self, message: &str) {
        self.events.node_event(EventType::Normal, "NodeAllocatableEnforced", message);
    }

    fn failed(&self, message: &str) {
        self.events.node_event(EventType::Warning, "FailedNodeAllocatableEnforcement", message);
    }
}

fn kill_and_remove(tree: &CgroupConfig, path: &str) -> Result<(), CgroupError> {
    if !cgroup::exists(tree, path) {
        return Ok(());
    }
    let killed = cgroup::kill_all(tree, path);
    if killed > 0 {
        log::info!(cgroup = path, processes = killed; "Killed leftover processes in pod cgroup");
    }
    cgroup::remove(tree, path).into_iter().next().map_or(Ok(()), Err)
}

/// Checks for processes first: stopping a slice makes systemd kill them, and they may not be the agent's.
fn remove_if_empty(tree: &CgroupConfig, path: &str) -> Result<(), String> {
    if cgroup::is_populated(tree, path) {
        return Err("it contains processes".to_owned());
    }
    cgroup::remove(tree, path).first().map_or(Ok(()), |error| Err(chain(error)))
}

fn known_cgroup_paths(layout: &CgroupLayout, known: &BTreeSet<PodUid>) -> BTreeSet<String> {
    known.iter().flat_map(|uid| CLASSES.map(|class| pod_cgroup_path(uid, class, layout))).into_set()
}

/// Pod cgroups that exist and are not in `kept`.
fn orphans(tree: &CgroupConfig, layout: &CgroupLayout, kept: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for class in CLASSES {
        // The name for an empty uid is the prefix of all pod cgroups.
        let path = pod_cgroup_path(&PodUid::default(), class, layout);
        let prefix = match layout.driver {
            CgroupDriver::Cgroupfs => path.as_str(),
            CgroupDriver::Systemd => path.trim_end_matches(".slice"),
        };
        let children = cgroup::children(tree, &class_cgroup_path(class, layout));
        found.extend(children.into_iter().filter(|child| child.starts_with(prefix) && !kept.contains(child)));
    }
    found
}

#[cfg(test)]
mod tests;
