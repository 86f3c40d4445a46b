//! One worker per pod: observes, decides (through `pod::plan`), acts (through `executor`), and reports the
//! result.
//!
//! Owns which workers exist and which incarnation of a full name may run.

pub(super) mod failed_starts;

mod counts;
mod pressure;
mod resizing;
mod restarts;
mod sync_duration;
mod worker;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::devices::DeviceManager;
use crate::managers::ResourceManagers;
use crate::model::api::pod::{Pod, PodStatus, StringMap};
use crate::model::back_off::BackOffLimits;
use crate::model::node_changes::{NodeChanges, Taint};
use crate::model::ordered::Ordered as _;
use crate::model::types::{ContainerName, PodFullName, PodUid};
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::platform::rt::turns::Turns;
use crate::pod::admission::Admission;
use crate::pod::admission::rules::was_admitted;
use crate::pod::executor::Executor;
use crate::pod::lifecycle::{MIN_GRACE_SECONDS, NameQueue, PodWorkerEvent, remembered_grace};
use crate::pod::status::StatusManager;
use crate::pod::status::rules::add_client_conditions;
use crate::pod::volume::Volumes;
use crate::runtime::{Runtime, RuntimeStatus};
use crate::store::{StoreHandle, StoredContainerState};

use counts::{Counts, EarlierLife};
pub(crate) use pressure::PodPressure;

use crate::pod::inbox::Inbox;
use crate::pod::prober::Prober;

#[derive(Clone, Debug, Default)]
pub struct PodWorkerConfig {
    pub limits: BackOffLimits,
    pub dead: DeadLimits,
    /// Addresses of the node, primary first, for statuses.
    pub node_ips: Vec<String>,
}

/// How many records of dead containers are kept, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLimits {
    /// `maximum-dead-containers-per-container`.
    pub per_container: usize,
    /// `maximum-dead-containers`: of the node; `None` is no limit.
    pub of_node: Option<usize>,
    /// `minimum-container-ttl-duration`: a younger record stays.
    pub minimum_age: Duration,
}

impl Default for DeadLimits {
    fn default() -> Self {
        Self { per_container: 1, of_node: None, minimum_age: Duration::ZERO }
    }
}

pub struct PodWorkerDeps<R> {
    pub executor: Executor<R>,
    pub runtime: Rc<R>,
    /// Stores restart counts before a restart.
    pub store: StoreHandle,
    pub statuses: Rc<StatusManager>,
    pub clock: Clock,
    pub prober: Prober<R>,
    pub admission: Admission,
    pub config: Live<PodWorkerConfig>,
    /// The scheme of container ids: `containerd`. Empty until the runtime has reported its name; no pod is
    /// synced before.
    pub runtime_name: Rc<RefCell<String>>,
}

/// How long the restart counts of a removed pod are kept for one that comes back under its uid. The kubelet
/// finds them in the dead containers, which its garbage collection removes once a minute.
const EARLIER_LIFE: Duration = Duration::from_secs(60);

/// Restart counts and back-off of one pod's containers.
pub(super) type ContainerStates = BTreeMap<ContainerName, StoredContainerState>;

struct WorkerHandle {
    inbox: Rc<Inbox>,
    task: JoinHandle<()>,
}

pub struct PodWorkers<R> {
    shared: Rc<WorkersInner<R>>,
}

/// The state shared by workers: mailboxes and the queue of names.
struct WorkersInner<R> {
    deps: PodWorkerDeps<R>,
    workers: RefCell<BTreeMap<PodUid, WorkerHandle>>,
    names: RefCell<NameQueue>,
    remembered: RefCell<BTreeMap<PodUid, ContainerStates>>,
    /// The state of removed pods, and when they were removed.
    earlier: RefCell<Vec<(PodUid, Instant, EarlierLife)>>,
    /// The last generation that workers were notified of.
    objects_generation: Cell<u64>,
    /// By pod: containers with dead records, and these records.
    dead: RefCell<BTreeMap<PodUid, (usize, usize)>>,
    /// The node's disk is short of room: dead containers are removed as soon as another has replaced them.
    short_of_disk: Cell<bool>,
    /// For the first sync of each pod: of the many pods of a start, those that are under way go on between two others.
    first_syncs: Turns,
}

impl<R: Runtime> PodWorkers<R> {
    /// Starts without workers. `remembered` holds the stored restart counts and back-off.
    #[must_use]
    pub fn new(deps: PodWorkerDeps<R>, remembered: BTreeMap<PodUid, ContainerStates>) -> Self {
        let shared = WorkersInner {
            objects_generation: Cell::new(deps.executor.objects_generation()),
            deps,
            workers: RefCell::default(),
            names: RefCell::default(),
            remembered: RefCell::new(remembered),
            earlier: RefCell::default(),
            dead: RefCell::default(),
            short_of_disk: Cell::new(false),
            first_syncs: Turns::default(),
        };
        Self { shared: Rc::new(shared) }
    }

    /// Starts a worker for the pod, or passes the new version to its worker.
    pub(crate) fn update_pod(&self, pod: Rc<Pod>) {
        self.shared.deps.statuses.expect(&pod);
        self.inbox_of(&pod).update_pod(pod);
    }

    /// Continues the termination of a pod that an earlier process began, with the rest of its grace period.
    pub(crate) fn resume_termination(&self, pod: Rc<Pod>) {
        let inbox = self.inbox_of(&pod);
        // The pod's room is released when it has ended.
        self.shared.deps.admission.reserve(&pod);
        self.show_terminating(&pod, None);
        let grace_override = remembered_grace(&pod, self.shared.deps.clock.now());
        inbox.update_pod(pod);
        inbox.push_event(PodWorkerEvent::Removed { grace_override });
    }

    /// The pod is not wanted any more: its worker takes it down.
    pub(crate) fn remove(&self, pod: &Rc<Pod>, grace_override: Option<i64>) {
        if let Some(worker) = self.shared.workers.borrow().get(&pod.metadata.uid) {
            self.show_terminating(pod, grace_override);
            worker.inbox.push_event(PodWorkerEvent::Removed { grace_override });
        }
    }

    /// The pod was deleted and has finalizers: it is taken down, and its object stays in the given version.
    /// Also for a later version of such a pod.
    pub(crate) fn finalize(&self, pod: Rc<Pod>) {
        let mut pod = pod;
        let metadata = &pod.metadata;
        let known = self.shared.deps.statuses.find(&metadata.namespace, &metadata.name, Some(&metadata.uid));
        let grace_override = if self.shared.workers.borrow().contains_key(&metadata.uid) {
            metadata.deletion_grace_period_seconds
        } else {
            // An earlier process may have begun the termination.
            remembered_grace(&pod, self.shared.deps.clock.now())
        };
        if known.is_some_and(|known| has_only_object(&known)) {
            Rc::make_mut(&mut pod).metadata.deletion_grace_period_seconds = Some(0);
        }
        self.show_terminating(&pod, None);
        let inbox = self.inbox_of(&pod);
        inbox.update_pod(pod);
        inbox.push_event(PodWorkerEvent::Finalizing { grace_override });
    }

    /// Another version of a pod that is being taken down and has no finalizers: the shown object changes, its
    /// end does not.
    pub(crate) fn update_terminating(&self, pod: Rc<Pod>) {
        if let Some(worker) = self.shared.workers.borrow().get(&pod.metadata.uid) {
            self.shared.deps.statuses.update_terminating(&pod);
            worker.inbox.update_terminating(pod);
        }
    }

    /// Shows the pod as terminating before its worker syncs: run-once waits for what it shows.
    fn show_terminating(&self, pod: &Rc<Pod>, grace_override: Option<i64>) {
        let deps = &self.shared.deps;
        let mut pod = Rc::clone(pod);
        let grace = grace_override.unwrap_or_else(|| pod.termination_grace_period_seconds());
        let metadata = &mut Rc::make_mut(&mut pod).metadata;
        metadata.deletion_timestamp.get_or_insert(deps.clock.now());
        metadata.deletion_grace_period_seconds.get_or_insert(grace.max(MIN_GRACE_SECONDS));
        let mut status = deps.statuses.last(&pod.metadata.uid).unwrap_or_else(PodStatus::pending);
        add_client_conditions(&mut status, &pod);
        deps.statuses.update_terminating(&pod);
        deps.statuses.set(&pod, status);
    }

    /// At start: pods that held a place by their last status keep it, whichever worker syncs first.
    pub(crate) fn reserve_admitted(&self, pods: &[Rc<Pod>]) {
        let deps = &self.shared.deps;
        for pod in pods {
            if deps.statuses.last(&pod.metadata.uid).is_some_and(|status| was_admitted(&status)) {
                deps.admission.reserve(pod);
            }
        }
    }

    /// These pods changed in the runtime. Returns those without a worker.
    pub(crate) fn request_observation(&self, uids: impl IntoIterator<Item = PodUid>) -> BTreeSet<PodUid> {
        let workers = self.shared.workers.borrow();
        let mut unknown = BTreeSet::new();
        for uid in uids {
            match workers.get(&uid) {
                Some(worker) => worker.inbox.request_observation(),
                None => {
                    unknown.insert(uid);
                }
            }
        }
        unknown
    }

    pub(crate) fn restart(&self, uid: &PodUid, containers: Vec<ContainerName>) {
        if let Some(worker) = self.shared.workers.borrow().get(uid) {
            worker.inbox.restart(containers);
        }
    }

    /// Sets the changes that clients made to the Node: pods that were kept away may be admitted.
    pub(crate) fn set_node_changes(&self, changes: &NodeChanges) {
        self.shared.wake(self.shared.deps.admission.set_node_changes(changes));
    }

    /// Sets what the cluster says of the Node: pods that were kept away may be admitted.
    pub(crate) fn node_setter(&self) -> Rc<dyn Fn(StringMap, Vec<Taint>, bool)> {
        let shared = Rc::clone(&self.shared);
        Rc::new(move |labels, taints, unschedulable| {
            shared.wake(shared.deps.admission.set_node(labels, taints, unschedulable));
        })
    }

    /// Sets `allowedUnsafeSysctls`: pods that were kept away may be admitted.
    pub(crate) fn sysctl_setter(&self) -> Box<dyn Fn(Vec<String>)> {
        let shared = Rc::clone(&self.shared);
        Box::new(move |allowed| shared.wake(shared.deps.admission.set_unsafe_sysctls(allowed)))
    }

    /// Queries the runtime's features, and passes them to `hear`; pods that waited for them are checked
    /// again. If the runtime does not answer, the pods that need its features ask again.
    pub(crate) fn query_features(&self, hear: impl FnOnce(RuntimeStatus) + 'static) {
        let shared = Rc::clone(&self.shared);
        rt::spawn("runtime features", async move {
            if let Ok(status) = shared.deps.runtime.status().await {
                let known = shared.deps.executor.by_class_name(&status);
                shared.wake(shared.deps.admission.set_runtime_features(&known));
                hear(status);
            }
        });
    }

    /// All workers check the runtime, for example when it is back.
    pub(crate) fn observe_all(&self) {
        for worker in self.shared.workers.borrow().values() {
            worker.inbox.request_observation();
        }
    }

    /// To be called whenever objects may have changed. If they have, all workers check again, since any pod
    /// may wait for an object or have one mounted.
    pub(crate) fn observe_if_objects_changed(&self) {
        let generation = self.shared.deps.executor.objects_generation();
        if self.shared.objects_generation.replace(generation) != generation {
            self.observe_all();
        }
    }

    /// The runtime answers: creates the cgroups above the pods' once.
    pub(crate) fn ensure_node_cgroups(&self) {
        let shared = Rc::clone(&self.shared);
        rt::spawn("node cgroups", async move { shared.deps.executor.ensure_node_cgroups().await });
    }

    /// All wanted and running pods have a worker: removes the cgroups of other pods.
    pub(crate) fn sweep_cgroups(&self) {
        let shared = Rc::clone(&self.shared);
        rt::spawn("cgroup sweep", async move {
            let known = || shared.workers.borrow().keys().cloned().into_set();
            shared.deps.executor.sweep_cgroups(known).await;
            let known = shared.workers.borrow().keys().cloned().collect();
            shared.deps.executor.devices().retain(&known).await;
            shared.deps.executor.managers().retain(&known).await;
            shared.deps.executor.settle_cpus().await;
        });
    }

    /// The last call of a process that ends without leaving pods behind.
    pub(crate) fn final_cleanup(&self) -> impl Future<Output = ()> + use<R> {
        let shared = Rc::clone(&self.shared);
        async move { shared.deps.executor.remove_empty_cgroups().await }
    }

    /// Pods check their volumes when these change; runs as long as the process.
    pub(crate) fn follow_volumes(&self, mut changes: tokio::sync::watch::Receiver<u64>) {
        let workers = Self { shared: Rc::clone(&self.shared) };
        rt::spawn("volume changes", async move {
            // Cancel safe: the version stays changed until it is read.
            while changes.changed().await.is_ok() {
                workers.observe_if_objects_changed();
            }
        });
    }

    #[must_use]
    pub(crate) fn devices(&self) -> DeviceManager {
        self.shared.deps.executor.devices().clone()
    }

    #[must_use]
    pub(crate) fn managers(&self) -> ResourceManagers {
        self.shared.deps.executor.managers().clone()
    }

    /// Wakes pods that wait for devices when more become available; runs as long as the process.
    #[must_use]
    pub(crate) fn follow_devices(&self) -> JoinHandle<()> {
        let shared = Rc::clone(&self.shared);
        let mut changes = shared.deps.executor.devices().changes();
        rt::spawn("device changes", async move {
            // Cancel safe: the version stays changed until it is read.
            while changes.changed().await.is_ok() {
                let (_, healthy) = shared.deps.executor.devices().totals();
                shared.wake(shared.deps.admission.set_devices(healthy));
            }
        })
    }

    /// Writes the CPUs of containers that should have others, now and after each period; `None` when no policy
    /// chooses CPUs.
    #[must_use]
    pub(crate) fn follow_cpus(&self, period: Duration) -> Option<JoinHandle<()>> {
        let shared = Rc::clone(&self.shared);
        shared.deps.executor.managers().pins_cpus().then(|| {
            rt::spawn("CPUs of containers", async move {
                loop {
                    shared.deps.executor.settle_cpus().await;
                    tokio::time::sleep(period).await;
                }
            })
        })
    }

    #[must_use]
    pub(crate) fn statuses(&self) -> &Rc<StatusManager> {
        &self.shared.deps.statuses
    }

    #[must_use]
    pub(crate) fn uids(&self) -> BTreeSet<PodUid> {
        self.shared.workers.borrow().keys().cloned().into_set()
    }

    /// The volumes of all pods, those without a worker included.
    #[must_use]
    pub(crate) fn volumes(&self) -> Rc<Volumes> {
        Rc::clone(self.shared.deps.executor.volumes())
    }

    fn inbox_of(&self, pod: &Rc<Pod>) -> Rc<Inbox> {
        let uid = pod.metadata.uid.clone();
        if let Some(worker) = self.shared.workers.borrow().get(&uid) {
            return Rc::clone(&worker.inbox);
        }
        let inbox = Rc::new(Inbox::default());
        let states = self.shared.remembered.borrow_mut().remove(&uid).unwrap_or_default();
        let earlier = self.shared.previous_life(&uid);
        // Queued in the order of arrival, not in the order in which tasks happen to run first.
        self.shared.names.borrow_mut().request(&pod.pod_ref().full_name(), &uid);
        let worker = worker::Worker::new(
            Rc::clone(&self.shared),
            Rc::clone(&inbox),
            Rc::clone(pod),
            Counts::new(states, earlier),
        );
        let task = rt::spawn("pod worker", worker.run());
        let handle = WorkerHandle { inbox: Rc::clone(&inbox), task };
        self.shared.workers.borrow_mut().insert(uid, handle);
        inbox
    }
}

/// Only the object of a deleted pod is left: upstream's last deletion, with a grace period of zero.
#[must_use]
pub(crate) fn has_only_object(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

impl<R> Drop for PodWorkers<R> {
    /// The process ends: workers stop where they are, pods keep running.
    fn drop(&mut self) {
        for worker in self.shared.workers.borrow().values() {
            worker.task.abort();
        }
        // Workers hold `Shared` and `Shared` holds their handles: this breaks the cycle.
        self.shared.workers.borrow_mut().clear();
    }
}

impl<R> WorkersInner<R> {
    fn holds_name(&self, name: &PodFullName, uid: &PodUid) -> bool {
        self.names.borrow_mut().request(name, uid)
    }

    fn release_name(&self, name: &PodFullName, uid: &PodUid) {
        let next = self.names.borrow_mut().release(name, uid);
        if let Some(next) = next
            && let Some(worker) = self.workers.borrow().get(&next)
        {
            worker.inbox.push_event(PodWorkerEvent::NameFree);
        }
    }

    fn forget(&self, uid: &PodUid, life: EarlierLife) {
        self.workers.borrow_mut().remove(uid);
        self.dead.borrow_mut().remove(uid);
        let mut earlier = self.earlier.borrow_mut();
        earlier.retain(|(_, ended, _)| ended.elapsed() < EARLIER_LIFE);
        if !life.is_empty() {
            earlier.push((uid.clone(), Instant::now(), life));
        }
    }

    /// The state from which a pod that comes back under its uid continues: a static pod whose manifest was
    /// away.
    fn previous_life(&self, uid: &PodUid) -> EarlierLife {
        let mut earlier = self.earlier.borrow_mut();
        earlier.retain(|(_, ended, _)| ended.elapsed() < EARLIER_LIFE);
        let found = earlier.iter().position(|(gone, ..)| gone == uid);
        found.map(|position| earlier.swap_remove(position).2).unwrap_or_default()
    }

    /// Leaves the pod's room before it is cleaned up: pods that did not fit try again.
    fn vacate_room(&self, uid: &PodUid) {
        self.wake(self.deps.admission.vacate(uid));
    }

    /// Releases the pod's room: pods that did not fit try again.
    fn release_room(&self, uid: &PodUid) {
        self.wake(self.deps.admission.release(uid));
    }

    fn wake(&self, uids: BTreeSet<PodUid>) {
        for uid in uids {
            if let Some(worker) = self.workers.borrow().get(&uid) {
                worker.inbox.request_observation();
            }
        }
    }
}
