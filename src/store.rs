//! The agent's persistent state: one SQLite file with one writer.
//!
//! Owns the handle, the owner thread and the queue of pending writes.
//!
//! Guarantees: see `store/db.rs` for when data is on the disk. Statuses and events are queued by
//! [`StoreHandle`], latest value per pod, and written by [`StoreHandle::write_behind`] about a second later
//! in one transaction.
//!
//! Assumptions: handles stay on the agent's one thread; the shell spawns `write_behind` once and calls
//! `shutdown` last.

mod cluster;
mod db;
mod decode;
mod error;
mod load;
mod objects;
mod open;
mod pending;
mod read_only;
mod records;
pub mod rollout;
mod rows;
mod schema;
mod seal;
pub mod upgrade;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};

pub(crate) use cluster::{CSI, LEFT, TOKEN};
pub use cluster::{ClusterKey, ClusterRow};
pub use db::{Commit, MAX_EVENT_AGE, MAX_EVENTS};
pub(crate) use error::StoreError;
pub use open::{DamagedFile, OpenReport};
pub(crate) use read_only::ReadOnlyStore;
pub use records::{EventKey, EventType, Loaded, StoredContainerState, StoredEvent, StoredSource, meta};
pub use rows::UnreadableRow;
pub(crate) use seal::{BadKey, SealingKey, StoreKey};

use crate::model::api::pod::Pod;
use crate::model::api::pod::PodStatus;
use crate::model::objects::{ObjectContent, ObjectData, ObjectKey, wire};
use crate::model::source::{SourceObject, SourcePod, SourceProblem};
use crate::model::types::{ContainerName, PodSource, PodUid, Timestamp};
use crate::platform::logging::chain;
use crate::store::rollout::RolloutPhase;
use db::{Batch, Db, RolloutChange, SetRows};
use load::PodRow;
use objects::ObjectRow;
use pending::Pending;

/// The file's name under the root directory.
pub(crate) const FILE_NAME: &str = "agent.db";

/// Jobs that wait for the owner thread. Callers await their answer, so this is about the number of pods at
/// most.
const QUEUE_LENGTH: usize = 64;
/// SQLite needs well under 100 kB; objects are encoded and decoded by the caller.
const STACK_BYTES: usize = 256 * 1024;
/// How long statuses and events are collected.
const WRITE_BEHIND: Duration = Duration::from_secs(1);
/// How long to wait after a failed write: a full disk rarely has space again within a second.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Where SQLite runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// On its own thread, so that a slow disk delays only callers that wait for it.
    #[default]
    Threaded,
    /// In the caller, for simulations and tests.
    Inline,
}

#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub mode: Mode,
    /// Names a damaged file that is set aside.
    pub now: Timestamp,
    /// For the values of Secrets. With one, values that are still stored in the clear are encrypted at once.
    pub key: StoreKey,
}

/// The two moments of a write at which a simulated agent may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMoment {
    /// Nothing of it is on the disk.
    Before,
    /// All of it is, and the caller has no answer yet.
    After,
}

/// Called at both moments of each write; false: the agent is dead, and the write's caller waits forever.
pub(crate) type WriteGate = Box<dyn Fn(WriteMoment) -> bool>;

/// The schema of the file: the newest that this program knows, and the oldest whose programs can read what it
/// writes.
#[must_use]
pub(crate) fn schema_versions() -> (i64, i64) {
    (schema::newest_version(), schema::READABLE_BY)
}

/// Pods and objects to write and to remove, each with the source whose set it is in.
#[derive(Default)]
pub(crate) struct SetChange<'a> {
    pub pods: Vec<(PodSource, &'a SourcePod)>,
    pub gone_pods: Vec<(PodSource, &'a PodUid)>,
    pub objects: Vec<(PodSource, &'a SourceObject)>,
    pub gone_objects: Vec<(PodSource, &'a ObjectKey)>,
}

impl SetChange<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.is_empty()
            && self.gone_pods.is_empty()
            && self.objects.is_empty()
            && self.gone_objects.is_empty()
    }
}

type Job = Box<dyn FnOnce(&mut Db) + Send>;

/// Client side of the store. Clones share it. A write that fails has changed nothing on the disk.
#[derive(Clone)]
pub struct StoreHandle {
    shared: Rc<StoreInner>,
}

struct StoreInner {
    owner: Owner,
    pending: RefCell<Pending>,
    /// Wakes `write_behind`.
    work: Notify,
    /// The last error of each kind of write; a success of the same kind clears it.
    troubles: RefCell<BTreeMap<&'static str, String>>,
    /// Of a simulation.
    gate: OnceCell<WriteGate>,
}

enum Owner {
    Thread(mpsc::Sender<Job>),
    Inline(RefCell<Db>),
}

impl StoreHandle {
    /// Opens the file, or creates it; its directory must exist. A damaged file is set aside and reported.
    ///
    /// Blocks: meant for the start of the program.
    pub fn open(path: &Path, options: OpenOptions) -> Result<(Self, OpenReport), StoreError> {
        let (db, report) = open::open(path, options.now, options.key)?;
        Ok((Self::new(db, options.mode)?, report))
    }

    /// As [`Self::load`]. A store that cannot be read as a whole is set aside, as a damaged file is by
    /// [`Self::open`]: the start goes on with a new one.
    pub(crate) async fn load_or_set_aside(
        self,
        path: &Path,
        options: OpenOptions,
        report: &mut OpenReport,
    ) -> Result<(Self, Loaded), StoreError> {
        match self.load().await {
            Err(error) if error.is_damage() => {
                // It is closed whatever the answer.
                let _ = self.shutdown().await;
                report.damaged = Some(open::set_aside_because(path, options.now, &error)?);
                let (store, _) = Self::open(path, options)?;
                let loaded = store.load().await?;
                Ok((store, loaded))
            }
            loaded => Ok((self, loaded?)),
        }
    }

    /// A store in memory, which is lost at the end of the process.
    #[cfg(test)]
    pub(crate) fn open_in_memory(options: OpenOptions) -> Result<Self, StoreError> {
        Self::new(open::open_in_memory(options.key)?, options.mode)
    }

    fn new(db: Db, mode: Mode) -> Result<Self, StoreError> {
        let owner = match mode {
            Mode::Inline => Owner::Inline(RefCell::new(db)),
            Mode::Threaded => Owner::Thread(spawn_owner(db)?),
        };
        let shared = StoreInner {
            owner,
            pending: RefCell::default(),
            work: Notify::new(),
            troubles: RefCell::default(),
            gate: OnceCell::new(),
        };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// For simulations of crashes: `gate` is called from now on. The first one stays.
    pub fn set_write_gate(&self, gate: WriteGate) {
        let _ = self.shared.gate.set(gate);
    }

    async fn pass(&self, moment: WriteMoment) {
        if self.shared.gate.get().is_some_and(|gate| !gate(moment)) {
            pending::<()>().await;
        }
    }

    /// Everything remembered. Rows that do not decode are listed and skipped.
    pub async fn load(&self) -> Result<Loaded, StoreError> {
        let raw = self.run(Db::load).await??;
        Ok(decode::loaded(raw))
    }

    /// Makes a change of some pods and objects of the sources' sets, durably, in one transaction. The others stay as they
    /// are. Pods that are removed are terminating until [`Self::forget_pod`]. Queued statuses are written with it: a change
    /// that was decided from a pod's status is never on the disk without it.
    pub(crate) async fn commit_change(&self, change: &SetChange<'_>) -> Result<(), StoreError> {
        let row = |(source, pod): &(PodSource, &SourcePod)| Ok((*source, pod_row(pod)?));
        let rows = SetRows {
            pods: change.pods.iter().map(row).collect::<Result<Vec<_>, _>>()?,
            gone_pods: change.gone_pods.iter().map(|(source, uid)| (*source, uid.to_string())).collect(),
            objects: change.objects.iter().map(|(source, object)| (*source, object_row(object))).collect(),
            gone_objects: change
                .gone_objects
                .iter()
                .map(|(source, ObjectKey { kind, namespace, name })| {
                    (*source, kind.stored_name(), namespace.clone(), name.clone())
                })
                .collect(),
        };
        let batch = self.shared.pending.borrow_mut().take().unwrap_or_default();
        let job = move |db: &mut Db| {
            let result = db.commit_rows(&rows, &batch);
            (result, batch)
        };
        self.pass(WriteMoment::Before).await;
        let (result, batch) = self.run(job).await?;
        self.pass(WriteMoment::After).await;
        self.record_trouble("desired pods", &result);
        self.settle(batch, result)
    }

    /// After the write of a batch: what failed is queued again.
    fn settle(&self, batch: Batch, result: Result<Vec<String>, StoreError>) -> Result<(), StoreError> {
        if result.is_ok() && !batch.container_states.is_empty() {
            self.shared.troubles.borrow_mut().remove("container state");
        }
        let mut pending = self.shared.pending.borrow_mut();
        match result {
            Ok(strangers) => {
                for uid in strangers {
                    pending.was_dropped(&PodUid::from(uid));
                }
                Ok(())
            }
            Err(error) => {
                pending.requeue(batch);
                Err(error)
            }
        }
    }

    /// Makes `pods` and `objects` the whole desired set of a source, durably and at once. Pods that leave it
    /// are terminating until [`Self::forget_pod`], even if they reappear under the same uid meanwhile: a
    /// termination that has begun is completed, no matter which worker completes it, and the pod starts over
    /// then. The phase of the source's rollout is written in the same transaction. Writes nothing if nothing
    /// changed.
    pub(crate) async fn commit_rollout(
        &self,
        source: PodSource,
        pods: &[SourcePod],
        objects: &[SourceObject],
        validator: Option<&str>,
        phase: &RolloutPhase,
    ) -> Result<Commit, StoreError> {
        let rollout = RolloutChange::To(rollout::encode(source, phase)?);
        self.commit(source, pods, objects, validator, rollout).await
    }

    async fn commit(
        &self,
        source: PodSource,
        pods: &[SourcePod],
        objects: &[SourceObject],
        validator: Option<&str>,
        rollout: RolloutChange,
    ) -> Result<Commit, StoreError> {
        let rows = pods.iter().map(pod_row).collect::<Result<Vec<_>, _>>()?;
        let objects: Vec<_> = objects.iter().map(object_row).collect();
        let validator = validator.map(str::to_owned);
        self.write("desired pods", move |db| {
            db.commit_source(source, &rows, &objects, validator.as_deref(), &rollout)
        })
        .await
    }

    /// As [`Self::commit_rollout`]; the rollout stays as it is.
    #[cfg(test)]
    pub(crate) async fn commit_source(
        &self,
        source: PodSource,
        pods: &[SourcePod],
        objects: &[SourceObject],
        validator: Option<&str>,
    ) -> Result<Commit, StoreError> {
        self.commit(source, pods, objects, validator, RolloutChange::Keep).await
    }

    /// Stores, durably, the phase of a source's rollout, if it changed.
    pub(crate) async fn put_rollout(
        &self,
        source: PodSource,
        phase: &RolloutPhase,
    ) -> Result<(), StoreError> {
        let row = rollout::encode(source, phase)?;
        self.write("trials", move |db| db.put_rollout(source, row.as_ref())).await
    }

    /// Stores, durably, since when a terminating pod terminates and with what grace: its `deletionTimestamp`
    /// and `deletionGracePeriodSeconds`. Writes nothing for a pod that is not terminating.
    pub(crate) async fn put_terminating(&self, pod: &Pod) -> Result<(), StoreError> {
        let uid = pod.metadata.uid.to_string();
        let json = pod_json(pod)?;
        self.write("terminating pods", move |db| db.put_terminating(&uid, &json)).await
    }

    /// Removes a pod that has ended: terminating row, container state and status. The desired set stays.
    pub(crate) async fn forget_pod(&self, uid: &PodUid) -> Result<(), StoreError> {
        self.shared.pending.borrow_mut().forget(uid);
        let uid = uid.to_string();
        self.write("ended pods", move |db| db.forget_pod(&uid)).await
    }

    /// Stores restart count and back-off, durably, if they changed.
    ///
    /// # Errors
    /// Nothing was changed on the disk; the write-behind task retries it.
    pub(crate) async fn put_container_state(
        &self,
        uid: &PodUid,
        name: &ContainerName,
        state: StoredContainerState,
    ) -> Result<(), StoreError> {
        let (pod, container) = (uid.to_string(), name.to_string());
        let job = move |db: &mut Db| db.put_container_state(&pod, &container, state);
        let result = self.write("container state", job).await;
        let mut pending = self.shared.pending.borrow_mut();
        if result.is_ok() {
            pending.forget_refused(uid, name);
        } else {
            pending.put_refused(uid.clone(), name.clone(), state);
            self.shared.work.notify_one();
        }
        result
    }

    /// Replaces the list of a source's problems, if it changed.
    pub(crate) async fn put_problems(
        &self,
        source: PodSource,
        problems: &[SourceProblem],
    ) -> Result<(), StoreError> {
        let problems = problems.to_vec();
        self.write("source problems", move |db| db.put_problems(source, &problems)).await
    }

    /// Stores, durably, rows of the cluster, and removes others. Rows that are as they were are not written.
    pub(crate) async fn put_cluster(
        &self,
        rows: Vec<ClusterRow>,
        gone: Vec<ClusterKey>,
    ) -> Result<(), StoreError> {
        self.write("cluster", move |db| db.put_cluster(&rows, &gone)).await
    }

    /// Forgets, durably, what the cluster has shown. Its pods are not wanted from the next start on, unless the node joins
    /// again.
    pub(crate) async fn forget_cluster(&self) -> Result<(), StoreError> {
        self.write("cluster", Db::forget_cluster).await
    }

    /// Stores a small fact (keys in [`meta`]); `None` deletes it.
    pub(crate) async fn put_meta(&self, key: &str, value: Option<&str>) -> Result<(), StoreError> {
        let (key, value) = (key.to_owned(), value.map(str::to_owned));
        self.write("facts", move |db| db.put_meta(&key, value.as_deref())).await
    }

    /// Queues a status to be written behind, unless it means the same as the last one.
    pub(crate) fn put_status(&self, uid: &PodUid, status: &PodStatus) {
        if self.shared.pending.borrow_mut().put_status(uid, status) {
            self.shared.work.notify_one();
        }
    }

    /// Queues events to be written behind. Repetitions of a queued event are added up.
    pub(crate) fn put_event(&self, event: StoredEvent) {
        self.shared.pending.borrow_mut().put_event(event);
        self.shared.work.notify_one();
    }

    /// The ring of events, oldest first, those still queued not among them.
    pub async fn events(&self) -> Result<Vec<StoredEvent>, StoreError> {
        self.run(Db::events).await?
    }

    /// Writes what is queued now. After a failure it stays queued.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let Some(batch) = self.shared.pending.borrow_mut().take() else {
            // What another call has taken is written before this returns.
            return self.run(|_| ()).await;
        };
        self.pass(WriteMoment::Before).await;
        let (result, batch) = self
            .run(move |db| {
                let result = db.write_batch(&batch);
                (result, batch)
            })
            .await?;
        self.pass(WriteMoment::After).await;
        self.record_trouble("statuses and events", &result);
        self.settle(batch, result)
    }

    /// Writes queued statuses and events until the future is dropped. Sleeps while there are none.
    pub async fn write_behind(self) {
        let mut failing = false;
        loop {
            self.shared.work.notified().await;
            tokio::time::sleep(WRITE_BEHIND).await;
            while let Err(error) = self.flush().await {
                if !failing {
                    log::warn!(err:% = chain(&error); "Failed to write to the store, keeping changes in \
                         memory");
                }
                failing = true;
                if matches!(error, StoreError::Closed) {
                    return;
                }
                tokio::time::sleep(RETRY_AFTER).await;
            }
            if failing {
                log::info!("Writing to the store succeeded again");
            }
            failing = false;
        }
    }

    /// Writes what is queued and closes the file. Later calls on any clone answer [`StoreError::Closed`].
    ///
    /// # Errors
    /// The queue could not be written (the file is closed all the same), or closing failed.
    pub async fn shutdown(&self) -> Result<(), StoreError> {
        let flushed = self.flush().await;
        self.run(Db::close).await??;
        flushed
    }

    /// Why the last write of some kind did not reach the disk; `None` while all do.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn trouble(&self) -> Option<String> {
        self.shared.troubles.borrow().values().next().cloned()
    }

    async fn write<T: Send + 'static>(
        &self,
        kind: &'static str,
        job: impl FnOnce(&mut Db) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.pass(WriteMoment::Before).await;
        let result = self.run(job).await?;
        self.pass(WriteMoment::After).await;
        self.record_trouble(kind, &result);
        result
    }

    fn record_trouble<T>(&self, kind: &'static str, result: &Result<T, StoreError>) {
        let mut troubles = self.shared.troubles.borrow_mut();
        match result {
            Ok(_) => drop(troubles.remove(kind)),
            Err(error) => drop(troubles.insert(kind, chain(error))),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Db) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.shared.owner {
            Owner::Inline(db) => Ok(job(&mut db.borrow_mut())),
            Owner::Thread(queue) => {
                let (reply, answer) = oneshot::channel();
                let job: Job = Box::new(move |db| {
                    // The caller has stopped waiting: the work was still wanted.
                    let _ = reply.send(job(db));
                });
                queue.send(job).await.map_err(|_| StoreError::Closed)?;
                answer.await.map_err(|_| StoreError::Closed)
            }
        }
    }
}

/// The thread ends when the last handle is dropped.
fn spawn_owner(mut db: Db) -> Result<mpsc::Sender<Job>, StoreError> {
    let (queue, mut jobs) = mpsc::channel::<Job>(QUEUE_LENGTH);
    std::thread::Builder::new()
        .name("store".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            while let Some(job) = jobs.blocking_recv() {
                job(&mut db);
            }
        })
        .map_err(|source| StoreError::Thread { source })?;
    Ok(queue)
}

fn pod_row(pod: &SourcePod) -> Result<PodRow, StoreError> {
    let metadata = &pod.pod.metadata;
    let json = pod_json(&pod.pod)?;
    Ok(PodRow {
        uid: metadata.uid.to_string(),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        origin: pod.origin.clone(),
        json,
    })
}

fn object_row(object: &SourceObject) -> ObjectRow {
    let (key, content) = (&object.object.key, &object.object.content);
    ObjectRow {
        kind: key.kind.stored_name(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        origin: object.origin.clone(),
        json: wire::to_value(&object.object, wire::Values::LeftOut).to_string(),
        values: match content {
            ObjectContent::Secret { data, .. } => {
                let mut values = data.clone();
                if let Some(copy) = object.object.annotations.get(wire::LAST_APPLIED) {
                    values.insert(objects::LAST_APPLIED.to_owned(), copy.clone().into_bytes());
                }
                values
            }
            _ => ObjectData::new(),
        },
    }
}

fn pod_json(pod: &Pod) -> Result<String, StoreError> {
    serde_json::to_string(pod)
        .map_err(|source| StoreError::Encode { what: format!("pod {}", pod.pod_ref()), source })
}

#[cfg(test)]
mod tests;
