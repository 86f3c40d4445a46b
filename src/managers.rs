//! The resource managers: which CPUs and which memory a container has to itself, aligned with its devices
//! (upstream: `cpumanager`, `memorymanager`, `topologymanager`).
//!
//! Owns all allocations and their record in the store. What is decided is in `ledger`, `cpus`, `memory` and `hints`;
//! the executor writes the CPUs of running containers.

mod checkpoint;
pub(crate) mod cpu_set;
pub(crate) mod cpus;
mod device_hints;
mod drawing;
pub(crate) mod hints;
pub(crate) mod ledger;
pub(crate) mod machine;
mod measures;
pub(crate) mod memory;
mod settings;
pub(crate) mod topology;

pub(crate) use ledger::{AdmissionRefusal, CpuChange};
pub(crate) use settings::ManagersConfig;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::devices::DeviceManager;
use crate::devices::plugins::OwnResources;
use crate::model::api::pod::{Container, Pod};
use crate::model::containers::is_sidecar;
use crate::model::types::{ContainerId, PodUid};
use crate::store::StoreHandle;
use checkpoint::{add_cpu_state, add_memory_state};
use cpu_set::{CpuSet, NodeMask};
use device_hints::device_hints;
use hints::{Hint, Policy, merge};
use ledger::{Ledger, ResourceRequest};
use memory::Block;

/// The key of our record in the store.
pub(crate) const RECORD: &str = "resource-managers";

/// A handle; clones share everything.
#[derive(Clone, Default)]
pub struct ResourceManagers(Rc<ManagersInner>);

#[derive(Default)]
struct ManagersInner {
    ledger: RefCell<Ledger>,
    policy: String,
    /// `DisableCPUQuotaWithExclusiveCPUs`.
    no_quota: bool,
    /// Containers of an earlier process may be on fewer CPUs than they should be.
    widens: bool,
    /// They are not any more.
    widened: Cell<bool>,
    store: Option<StoreHandle>,
    /// The record in the store.
    saved: RefCell<String>,
    /// One admission after another, where hints of devices count.
    admission: Mutex<()>,
    /// Containers have the CPUs that they should have.
    settled: Cell<bool>,
    /// What was written to running containers.
    written: RefCell<BTreeMap<ContainerId, CpuSet>>,
    /// Running pods without an allocation for which there is no room.
    hopeless: RefCell<BTreeSet<PodUid>>,
}

impl ResourceManagers {
    /// Reads the machine below `sys` and takes over what an earlier process, or a kubelet, had allocated. Blocks shortly.
    /// Also returns what became of allocations that do not fit any more.
    ///
    /// # Errors
    /// Why the configuration does not suit this machine, in upstream's words.
    pub(crate) fn open(
        config: &ManagersConfig<'_>,
        sys: &Path,
        record: Option<&str>,
        store: StoreHandle,
    ) -> Result<(Self, Vec<CpuChange>), String> {
        let (policy, mut entries) = match record {
            Some(record) => checkpoint::read(record),
            None => adopt(config.root_dir),
        };
        let is_active = config.is_active();
        let widens = !config.is_static() && policy == "static";
        let mut ledger = Ledger::default();
        let mut changes = Vec::new();
        if is_active || widens {
            ledger = config.ledger(machine::read(sys, config.memory))?;
            entries.retain(|_| is_active);
            changes = ledger.restore(entries);
        }
        let inner = ManagersInner {
            policy: config.cpu_policy.to_owned(),
            no_quota: config.no_quota,
            widens,
            settled: Cell::new(!config.is_static() && !widens),
            ledger: RefCell::new(ledger),
            store: Some(store),
            saved: RefCell::new(record.unwrap_or_default().to_owned()),
            ..ManagersInner::default()
        };
        measures::show(&inner.ledger.borrow());
        Ok((Self(Rc::new(inner)), changes))
    }

    /// Writes the record if it would say something else than the last one. A policy that is gone stays in it until all
    /// containers have got their CPUs back.
    pub(crate) async fn save(&self) {
        let Some(store) = &self.0.store else { return };
        let widens = self.0.widens && !self.0.widened.get();
        if !self.is_active() && (widens || self.0.saved.borrow().is_empty() && !self.0.widens) {
            return;
        }
        let policy = if widens { "static" } else { &self.0.policy };
        let record = checkpoint::write(policy, &self.0.ledger.borrow().entries);
        if *self.0.saved.borrow() == record {
            return;
        }
        match store.put_meta(RECORD, Some(&record)).await {
            Ok(()) => *self.0.saved.borrow_mut() = record,
            Err(error) => log::warn!(err:% = error; "Failed to save the allocations of CPUs and memory"),
        }
    }

    fn is_active(&self) -> bool {
        let ledger = self.0.ledger.borrow();
        ledger.cpu.is_some() || ledger.memory.is_some() || ledger.policy != Policy::None
    }

    /// Containers run on CPUs that the agent chooses.
    #[must_use]
    pub(crate) fn pins_cpus(&self) -> bool {
        self.0.widens || self.0.ledger.borrow().cpu.is_some()
    }

    /// Allocates CPUs, memory and devices for a pod that is about to run, on NUMA nodes that suit all of them. Idempotent.
    ///
    /// # Errors
    /// Upstream's reason and message. The pod has nothing then.
    pub(crate) async fn admit(
        &self,
        pod: &Pod,
        is_guaranteed: bool,
        devices: &DeviceManager,
    ) -> Result<(), AdmissionRefusal> {
        if !self.is_active() {
            let allocated = devices.allocate_until(pod, None, None).await;
            return allocated.map_err(|why| AdmissionRefusal::unexpected(&why));
        }
        let (began, mut changed) = (Instant::now(), false);
        let aligns = self.0.ledger.borrow().policy != Policy::None;
        let turn = if aligns { Some(self.0.admission.lock().await) } else { None };
        let admitted = self.admit_containers(pod, is_guaranteed, devices, &mut changed).await;
        drop(turn);
        if aligns {
            measures::admission(began.elapsed(), admitted.is_err());
        }
        if admitted.is_err() {
            self.release(&pod.metadata.uid).await;
        }
        if changed {
            self.changed().await;
        }
        admitted
    }

    async fn admit_containers(
        &self,
        pod: &Pod,
        is_guaranteed: bool,
        devices: &DeviceManager,
        changed: &mut bool,
    ) -> Result<(), AdmissionRefusal> {
        let (uid, requests) = (&pod.metadata.uid, requests(pod, is_guaranteed));
        *changed |= self.0.ledger.borrow_mut().release_changed(uid, &requests);
        let (policy, pod_scope) = {
            let ledger = self.0.ledger.borrow();
            (ledger.policy, ledger.pod_scope)
        };
        let scope = if pod_scope { "pod" } else { "container" };
        let single = policy == Policy::SingleNumaNode;
        let mut hint = Hint::default();
        for (at, request) in requests.iter().enumerate() {
            if policy != Policy::None && (at == 0 || !pod_scope) {
                let of = (!pod_scope).then_some(at);
                let admitted;
                (hint, admitted) = self.best_hint(pod, &requests, of, devices);
                if !admitted {
                    measures::aligned(scope, "numa_node", single, false);
                    return Err(AdmissionRefusal::affinity());
                }
            }
            let allocated = self.0.ledger.borrow_mut().allocate(uid, &requests, at, hint);
            if allocated != Ok(false) {
                measures::allocation(&self.0.ledger.borrow(), uid, request, allocated.as_ref().err());
            }
            *changed |= allocated?;
            let near = hint.nodes.map(|nodes| nodes.0);
            let given = devices.allocate_until(pod, Some(&request.container), near).await;
            given.map_err(|why| AdmissionRefusal::unexpected(&why))?;
            if !pod_scope {
                measures::aligned(scope, "numa_node", single, true);
            }
        }
        if pod_scope {
            measures::aligned(scope, "numa_node", single, true);
        }
        Ok(())
    }

    fn best_hint(
        &self,
        pod: &Pod,
        requests: &[ResourceRequest],
        at: Option<usize>,
        devices: &DeviceManager,
    ) -> (Hint, bool) {
        let ledger = self.0.ledger.borrow();
        let mut given = ledger.hints(&pod.metadata.uid, requests, at);
        let (allocated, resources) = devices.all();
        let name = at.and_then(|at| requests.get(at)).map(|request| request.container.as_str());
        given.extend(device_hints(pod, name, ledger.topology.node_mask(), &allocated, &resources));
        merge(ledger.policy, &ledger.topology, ledger.closest, &given)
    }

    /// A pod that ran before the policies were set gets what it asks for, if that is possible. The error is returned
    /// once.
    pub(crate) async fn keep(&self, pod: &Pod, is_guaranteed: bool) -> Result<(), AdmissionRefusal> {
        let uid = &pod.metadata.uid;
        if !self.is_active() || self.0.hopeless.borrow().contains(uid) {
            return Ok(());
        }
        let requests = requests(pod, is_guaranteed);
        let lacks = |request| self.0.ledger.borrow().lacks(uid, request) != [false, false];
        if !requests.iter().any(lacks) {
            return Ok(());
        }
        let mut outcome = Ok(());
        for at in 0..requests.len() {
            let allocated = self.0.ledger.borrow_mut().allocate(uid, &requests, at, Hint::default());
            outcome = outcome.and(allocated.map(drop));
        }
        if outcome.is_err() {
            self.0.hopeless.borrow_mut().insert(uid.clone());
        }
        self.changed().await;
        outcome
    }

    /// Releases everything of a pod.
    pub(crate) async fn release(&self, uid: &PodUid) {
        let held = self.0.ledger.borrow_mut().release(uid);
        self.0.hopeless.borrow_mut().remove(uid);
        if held {
            self.changed().await;
        }
    }

    /// Releases everything of all pods but these.
    pub(crate) async fn retain(&self, known: &BTreeSet<PodUid>) {
        let gone = |ledger: &Ledger| {
            let stray = ledger.entries.iter().find(|entry| !known.contains(&entry.pod));
            stray.map(|entry| entry.pod.clone())
        };
        loop {
            let Some(uid) = gone(&self.0.ledger.borrow()) else { return };
            self.release(&uid).await;
        }
    }

    async fn changed(&self) {
        self.0.settled.set(!self.pins_cpus());
        measures::show(&self.0.ledger.borrow());
        self.save().await;
    }

    /// The CPUs that a container should run on; empty when it does not matter.
    #[must_use]
    pub(crate) fn cpus(&self, uid: &PodUid, container: &str) -> CpuSet {
        let ledger = self.0.ledger.borrow();
        if ledger.cpu.is_none() {
            return if self.0.widens { ledger.topology.all() } else { CpuSet::default() };
        }
        let own = ledger.entry(uid, container).map(|entry| entry.cpus).unwrap_or_default();
        if own.is_empty() { ledger.shared() } else { own }
    }

    /// The CPUs that a container has to itself.
    #[must_use]
    pub(crate) fn exclusive(&self, uid: &PodUid, container: &str) -> CpuSet {
        let ledger = self.0.ledger.borrow();
        ledger.entry(uid, container).map(|entry| entry.cpus).unwrap_or_default()
    }

    /// The NUMA nodes that a container's memory comes from, in the kernel's list format.
    #[must_use]
    pub(crate) fn memory_nodes(&self, uid: &PodUid, container: &str) -> String {
        let ledger = self.0.ledger.borrow();
        let blocks = ledger.entry(uid, container).into_iter().flat_map(|entry| &entry.memory);
        blocks.fold(NodeMask::default(), |mask, block| mask.or(block.nodes)).to_string()
    }

    /// No CFS quota for this container, or, without a name, for the pod: its CPUs are its own.
    #[must_use]
    pub(crate) fn lifts_quota(&self, uid: &PodUid, container: Option<&str>) -> bool {
        let ledger = self.0.ledger.borrow();
        self.0.no_quota
            && ledger.entries.iter().any(|entry| {
                entry.pod == *uid
                    && container.is_none_or(|name| entry.container == name)
                    && !entry.cpus.is_empty()
            })
    }

    /// Lines for people: of CPUs, and of memory. `name` is a pod's.
    #[must_use]
    pub(crate) fn drawn(&self, name: &dyn Fn(&PodUid) -> String) -> (Vec<String>, Vec<String>) {
        let ledger = self.0.ledger.borrow();
        (drawing::cpus(&ledger, name), drawing::memory(&ledger, name))
    }

    /// The CPUs and the blocks of memory that a container has to itself; without one, what containers may have.
    #[must_use]
    pub(crate) fn owned(&self, of: Option<(&PodUid, &str)>) -> OwnResources {
        let ledger = self.0.ledger.borrow();
        let (cpus, memory) = if let Some((uid, container)) = of {
            let entry = ledger.entry(uid, container);
            entry.map(|entry| (entry.cpus, entry.memory.clone())).unwrap_or_default()
        } else {
            let cpus = if ledger.cpu.is_some() { ledger.allocatable() } else { CpuSet::default() };
            let reserved = ledger.memory.as_ref();
            let rows = reserved.map(|reserved| memory::allocatable(&ledger.topology, reserved));
            let block = |(node, kind, size)| Block { nodes: NodeMask::of(node), kind, size };
            (cpus, rows.into_iter().flatten().filter(|row| row.2 > 0).map(block).collect())
        };
        let nodes = |block: &Block| block.nodes.iter().map(i64::from).collect();
        let memory = memory.iter().map(|block| (block.kind.clone(), block.size, nodes(block))).collect();
        (cpus.iter().map(i64::from).collect(), memory)
    }

    /// `cpuManagerPolicy: static` and `memoryManagerPolicy: Static`.
    #[must_use]
    pub(crate) fn policies(&self) -> (bool, bool) {
        let ledger = self.0.ledger.borrow();
        (ledger.cpu.is_some(), ledger.memory.is_some())
    }

    /// All containers have their CPUs, as far as is known.
    #[must_use]
    pub(crate) fn is_settled(&self) -> bool {
        self.0.settled.get()
    }

    pub(crate) fn set_settled(&self, settled: bool) {
        self.0.settled.set(settled);
    }

    /// Every container was given its CPUs, unless that is unsettled again.
    pub(crate) async fn settled(&self) {
        if self.is_settled() {
            self.0.widened.set(true);
        }
        self.save().await;
    }

    /// The container was created with these CPUs, or they were written to it.
    pub(crate) fn note(&self, id: &ContainerId, cpus: CpuSet) {
        self.0.written.borrow_mut().insert(id.clone(), cpus);
    }

    /// Whether these CPUs were written to the container last.
    #[must_use]
    pub(crate) fn has(&self, id: &ContainerId, cpus: &CpuSet) -> bool {
        self.0.written.borrow().get(id) == Some(cpus)
    }

    /// Forgets what was written to other containers: they are gone.
    pub(crate) fn keep_notes(&self, known: impl Fn(&ContainerId) -> bool) {
        self.0.written.borrow_mut().retain(|id, _| known(id));
    }
}

/// The allocations of the kubelet that had this node before, and its policy.
fn adopt(root: &Path) -> (String, Vec<ledger::ExclusiveEntry>) {
    let mut entries = Vec::new();
    let mut policy = "none".to_owned();
    for name in ["cpu_manager_state", "memory_manager_state"] {
        let path = root.join(name);
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let read = if name == "cpu_manager_state" {
            add_cpu_state(&text, &mut entries).map(|found| policy = found)
        } else {
            add_memory_state(&text, &mut entries)
        };
        match read {
            Ok(()) => log::info!(path:% = path.display(); "Took over the allocations of a kubelet"),
            Err(why) => {
                log::warn!(path:% = path.display(), err = why; "Failed to read the state of a kubelet, continuing \
                     without");
            }
        }
    }
    (policy, entries)
}

/// What the pod's containers ask for, in the order in which they start. Pods with resources of their own, and those that
/// are not Guaranteed, share.
fn requests(pod: &Pod, is_guaranteed: bool) -> Vec<ResourceRequest> {
    let has_own = is_guaranteed && pod.spec.resources.is_none();
    let request = |container: &Container, is_init: bool| {
        let mut request = ResourceRequest {
            container: container.name.clone(),
            is_init,
            is_sidecar: is_init && is_sidecar(container),
            ..ResourceRequest::default()
        };
        let given = &container.resources;
        let amount = |name: &str| given.requests.get(name).or_else(|| given.limits.get(name));
        if let Some(cpus) = amount("cpu").filter(|cpus| has_own && cpus.milli_value() % 1000 == 0) {
            request.cpus = usize::try_from(cpus.value()).unwrap_or(0);
        }
        let mut names: BTreeSet<&String> = BTreeSet::new();
        names.extend(given.requests.keys().chain(given.limits.keys()));
        for name in
            names.into_iter().filter(|name| has_own && (*name == "memory" || name.starts_with("hugepages-")))
        {
            let size = amount(name).and_then(|size| u64::try_from(size.value()).ok()).unwrap_or(0);
            request.memory.push((name.clone(), size));
        }
        request
    };
    let init = pod.spec.init_containers.iter().map(|container| request(container, true));
    init.chain(pod.spec.containers.iter().map(|container| request(container, false))).collect()
}

#[cfg(test)]
mod tests;
