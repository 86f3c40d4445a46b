//! The shell: one loop that connects sources, pod workers and the runtime's changes, and makes no decision
//! itself (upstream: `syncLoop`).
//!
//! Owns the loop and the view of it that the rest of the process reads. After a restart the same loop runs
//! from the store's desired set and a new observation of the runtime; there is no special recovery path.

mod node_manager;
pub(super) mod node_service;
mod open_store;

mod cgroup_root;
pub mod embedded;
mod joined;
mod local_node;
mod managers;
mod plugins;
pub mod previous_runtimes;
mod reload;
pub mod report;
mod resources;
pub mod run_once;
mod services;
pub(crate) mod serving;
pub mod setup;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::agent::kubelet::report::LoopView;
use crate::desired::merge::{PodChange, PodOp};
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::{Edit, Edited};
use crate::model::api::pod::{Container, ObjectMeta, Pod, PodSpec};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::provenance::first_seen;
use crate::model::source::SourceUpdate;
use crate::model::types::{PodFullName, PodSource, PodUid};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt::notify::Notifier;
use crate::platform::rt::shutdown::Shutdown;
use crate::platform::{rt, sys};
use crate::pod::pleg::PlegUpdate;
use crate::pod::pleg::rules::{OrphanPod, PlegSnapshot, orphans};
use crate::pod::workers::PodWorkers;
use crate::runtime::{Runtime, RuntimeError, RuntimeVersion};

/// The interval of retrying failed writes. Nothing happens while there are none.
const RETRY_WRITES: Duration = Duration::from_secs(30);

/// After this long without an event a burst (the start of many pods) is over, and its memory is returned to
/// the system.
const QUIET: Duration = Duration::from_secs(5);

/// The pause between attempts to remove orphaned directories that are busy; then the next snapshot triggers
/// an attempt.
const SWEEP_PAUSE: Duration = Duration::from_secs(60);

pub struct Kubelet<R> {
    pub pod_config: PodConfig,
    pub workers: PodWorkers<R>,
    /// Pods that an earlier process was terminating.
    pub terminating: Vec<Pod>,
    pub updates: mpsc::Receiver<SourceUpdate>,
    /// Edits through the node's own API.
    pub edits: mpsc::Receiver<Edit>,
    /// Changes in the runtime.
    pub pleg: mpsc::Receiver<PlegUpdate>,
    pub view: Rc<LoopView>,
    pub clock: Clock,
    /// The systemd notifier, with its watchdog interval.
    pub notifier: Rc<Notifier>,
    /// Half the watchdog's period.
    pub watchdog: Option<Duration>,
}

enum LoopEvent {
    Shutdown,
    Source(SourceUpdate),
    Edit(Edit),
    Pleg(PlegUpdate),
    /// Statuses have changed that a rollout or a deletion waits for.
    Statuses,
    /// Time to check the rollout.
    Rollout,
    RetryWrites,
    Watchdog,
    Quiet,
    Served,
}

impl<R: Runtime> Kubelet<R> {
    /// Runs until shutdown is requested. Pods keep running.
    pub async fn run(mut self, shutdown: Shutdown) {
        // Before the terminations continue, so that none that ends meanwhile is missed.
        let mut statuses = self.workers.statuses().watch();
        self.restore_state().await;
        self.notifier.ready();
        // The latest PLEG snapshot that has not yet been compared with the desired pods.
        let mut new_look: Option<Rc<PlegSnapshot>> = None;
        let mut swept = false;
        let mut write_timer = tokio::time::interval(RETRY_WRITES);
        write_timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut watchdog = self.watchdog.map(tokio::time::interval);
        let mut sweep: Option<(tokio::time::Instant, JoinHandle<()>)> = None;
        let mut quiet_at = Some(tokio::time::Instant::now() + QUIET);
        loop {
            let (rolling_out, next_deadline) =
                (self.pod_config.is_rolling_out(), self.pod_config.next_deadline());
            self.view.set_busy(false);
            let has_unwritten = self.pod_config.store_trouble().is_some() || self.pod_config.has_garbage();
            let is_waiting = rolling_out || self.pod_config.has_ending();
            let event = tokio::select! {
                biased;
                // Dropping it is safe: the flag stays set.
                () = shutdown.requested() => LoopEvent::Shutdown,
                // Dropping these is safe: a message stays in its channel until it is received.
                Some(update) = self.updates.recv() => LoopEvent::Source(update),
                Some(edit) = self.edits.recv() => LoopEvent::Edit(edit),
                Some(update) = self.pleg.recv() => LoopEvent::Pleg(update),
                // Dropping these futures is safe: the version stays changed until it is read, and the
                // deadline stays the same.
                Ok(()) = statuses.changed(), if is_waiting => LoopEvent::Statuses,
                () = wait_until(next_deadline) => LoopEvent::Rollout,
                // Dropping these is safe: the timers keep their deadline.
                _ = write_timer.tick(), if has_unwritten => LoopEvent::RetryWrites,
                () = tick(watchdog.as_mut()) => LoopEvent::Watchdog,
                () = wait_until(quiet_at) => LoopEvent::Quiet,
                // Dropping it is safe: the next client notifies again.
                () = self.view.served() => LoopEvent::Served,
            };
            self.view.set_busy(true);
            if matches!(
                event,
                LoopEvent::Source(_) | LoopEvent::Edit(_) | LoopEvent::Pleg(_) | LoopEvent::Served
            ) {
                quiet_at = Some(tokio::time::Instant::now() + QUIET);
            }
            match event {
                LoopEvent::Shutdown => break,
                LoopEvent::Source(update) => self.on_source(update).await,
                LoopEvent::Edit(edit) => self.on_edit(edit).await,
                LoopEvent::Pleg(PlegUpdate::Relisted { changed, snapshot, version }) => {
                    self.on_relist(changed, version);
                    new_look = Some(snapshot);
                }
                LoopEvent::Pleg(PlegUpdate::RuntimeDown(error)) => self.on_runtime_down(&error),
                LoopEvent::Statuses => {
                    self.on_rollout().await;
                    let workers = self.workers.uids();
                    if self.pod_config.forget_ended(|uid| workers.contains(uid)) {
                        self.collect_garbage().await;
                    }
                }
                LoopEvent::Rollout => self.on_rollout().await,
                LoopEvent::RetryWrites => {
                    self.pod_config.retry_writes().await;
                    if self.pod_config.has_garbage() {
                        self.collect_garbage().await;
                    }
                    self.view.set_store_trouble(self.pod_config.store_trouble());
                }
                LoopEvent::Watchdog => self.notifier.alive(),
                // The memory of a client, such as TLS buffers, is returned to the system once it is quiet.
                LoopEvent::Served => {}
                LoopEvent::Quiet => {
                    quiet_at = None;
                    sys::memory::release_memory();
                }
            }
            // A snapshot is used once: it is stale as soon as one of its pods has been terminated.
            if self.pod_config.seen_all_sources()
                && let Some(snapshot) = new_look.take()
            {
                self.adopt_orphans(&snapshot);
                if !std::mem::replace(&mut swept, true) {
                    self.workers.sweep_cgroups();
                }
                let is_due = |(at, task): &(tokio::time::Instant, JoinHandle<()>)| {
                    task.is_finished() && at.elapsed() >= SWEEP_PAUSE
                };
                if self.workers.volumes().may_have_orphans() && sweep.as_ref().is_none_or(is_due) {
                    let task = self.clean_orphaned_directories(&snapshot);
                    sweep = Some((tokio::time::Instant::now(), task));
                }
            }
        }
        self.notifier.stopping();
    }

    /// Restores the state from the store: the last desired pods stay desired until their source answers, and
    /// terminations that were in progress continue.
    async fn restore_state(&mut self) {
        for pod in std::mem::take(&mut self.terminating) {
            log::info!(pod:% = pod.pod_ref(); "Resuming removal of pod");
            self.workers.resume_termination(Rc::new(pod));
        }
        self.pod_config.resume_rollout().await;
        let changes = self.pod_config.drop_unregistered().await;
        for change in changes {
            if change.op == PodOp::Remove {
                self.workers.resume_termination(change.pod.pod);
            }
        }
        let mut wanted: Vec<Rc<Pod>> = self.pod_config.pods().map(|pod| Rc::clone(&pod.pod)).collect();
        // Of two pods with the same name the one observed first has precedence, as before.
        wanted.order_by_key(|pod| first_seen(pod));
        if !wanted.is_empty() {
            log::info!(pods = wanted.len(); "Restored pods from the store");
        }
        self.view.mark_source_reported(PodSource::Api);
        self.apply_node_changes();
        self.workers.reserve_admitted(&wanted);
        // What a source has read already. A new pod does not wait until all pods that may be running have been compared; one
        // that replaces another does, and so does one that was removed meanwhile: its changes stay in their order.
        let (mut reported, mut changes) = (Vec::new(), Vec::new());
        while let Ok(update) = self.updates.try_recv() {
            reported.push(update.source);
            changes.extend(self.pod_config.apply(update).await);
        }
        let removed = changes.iter().filter(|change| change.op == PodOp::Remove);
        let names: BTreeSet<PodFullName> = wanted
            .iter()
            .map(|pod| pod.pod_ref().full_name())
            .chain(removed.map(|change| change.pod.pod.pod_ref().full_name()))
            .into_set();
        let is_new = |change: &PodChange| {
            change.op == PodOp::Add && !names.contains(&change.pod.pod.pod_ref().full_name())
        };
        let (new, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_new);
        for change in new {
            self.dispatch(change);
        }
        for pod in wanted {
            self.update_pod(pod);
        }
        for change in changes {
            self.dispatch(change);
        }
        self.workers.observe_if_objects_changed();
        for source in reported {
            self.view.mark_source_reported(source);
        }
        self.publish_sources();
        if self.pod_config.has_garbage() {
            self.collect_garbage().await;
        }
    }

    async fn on_source(&mut self, update: SourceUpdate) {
        let source = update.source;
        for change in self.pod_config.apply(update).await {
            self.dispatch(change);
        }
        self.workers.observe_if_objects_changed();
        self.view.mark_source_reported(source);
        self.publish_sources();
        if self.pod_config.has_garbage() {
            self.collect_garbage().await;
        }
    }

    /// Deletes what came through the API and has lost its owners. What cannot be stored is tried again with the writes.
    async fn collect_garbage(&mut self) {
        if let Ok(edited) = self.pod_config.collect_garbage().await {
            self.on_edited(edited);
            let volumes = self.workers.volumes();
            rt::spawn("data of ephemeral volumes", async move { volumes.clean_unclaimed().await });
        }
    }

    /// Answers the caller once the change is visible to readers.
    async fn on_edit(&mut self, edit: Edit) {
        let edited = self.pod_config.edit(edit.decide).await;
        let result = edited.map(|edited| self.on_edited(edited));
        // The caller may have stopped waiting; the change stays in effect.
        let _ = edit.done.send(result);
    }

    fn on_edited(&self, mut edited: Edited) {
        for change in std::mem::take(&mut edited.changes) {
            match change.op {
                PodOp::Remove => {
                    let grace = edited.take_grace(&change.pod.pod.metadata.uid);
                    self.workers.remove(&change.pod.pod, grace);
                }
                _ => self.dispatch(change),
            }
        }
        // These are terminating already, and may get a shorter grace period.
        for (pod, grace) in edited.graces {
            self.workers.remove(&pod, grace);
        }
        if let Some((pod, containers)) = edited.restart {
            self.workers.restart(&pod, containers);
        }
        for pod in edited.terminating {
            self.workers.update_terminating(pod);
        }
        if edited.notes {
            self.apply_node_changes();
        }
        self.workers.observe_if_objects_changed();
        self.publish_sources();
    }

    /// Changes of the node and deleted mirror pods take effect from now on.
    fn apply_node_changes(&self) {
        let notes = self.pod_config.notes();
        self.workers.set_node_changes(&notes.node);
        let before = self.view.notes().mirrors;
        self.view.set_notes(notes.clone());
        for (uid, _) in notes.mirrors.iter().filter(|(uid, mirror)| before.get(*uid) != Some(*mirror)) {
            self.workers.statuses().set_mirror(uid);
        }
    }

    async fn on_rollout(&mut self) {
        let statuses = Rc::clone(self.workers.statuses());
        let was_rolling_out = self.pod_config.is_rolling_out();
        let changes =
            self.pod_config.check_rollout(self.view.runtime_is_up(), |uid| statuses.last(uid)).await;
        if was_rolling_out == self.pod_config.is_rolling_out() {
            return;
        }
        for change in changes {
            self.dispatch(change);
        }
        self.workers.observe_if_objects_changed();
        self.publish_sources();
    }

    fn dispatch(&self, change: PodChange) {
        let pod = change.pod.pod;
        match change.op {
            PodOp::Add | PodOp::Update | PodOp::Reconcile | PodOp::Delete => self.update_pod(pod),
            PodOp::Remove => self.workers.remove(&pod, None),
        }
    }

    /// Starts or updates a pod; terminates it if it was deleted and finalizers keep its object.
    fn update_pod(&self, pod: Rc<Pod>) {
        if pod.metadata.deletion_timestamp.is_some() {
            self.workers.finalize(pod);
        } else {
            self.workers.update_pod(pod);
        }
    }

    fn on_relist(&self, changed: BTreeSet<PodUid>, version: Option<RuntimeVersion>) {
        if let Some(version) = version {
            log::info!(runtime = version.name, version = version.version; "Container runtime is up");
            self.view.set_runtime_up(&version, self.clock.now());
            self.workers.ensure_node_cgroups();
            self.workers.observe_all();
            let view = Rc::clone(&self.view);
            self.workers.query_features(move |status| view.set_features(status));
        }
        self.workers.request_observation(changed);
    }

    fn on_runtime_down(&self, error: &RuntimeError) {
        if self.view.set_runtime_down(error, self.clock.now()) {
            log::warn!(err:% = error; "Container runtime is down");
            self.workers.observe_all();
        }
    }

    /// Terminates pods that carry our labels in the runtime and are not desired, but only once every source
    /// has answered: a silent source removes nothing.
    fn adopt_orphans(&self, snapshot: &PlegSnapshot) {
        let known = self.workers.uids();
        for orphan in orphans(&known, snapshot) {
            log::info!(pod:% = orphan.pod; "Removing orphaned pod");
            self.workers.resume_termination(Rc::new(pod_of_orphan(orphan)));
        }
    }

    /// Removes directories of pods without a worker and without anything in the runtime, in the background: a
    /// disk may be slow.
    fn clean_orphaned_directories(&self, snapshot: &PlegSnapshot) -> JoinHandle<()> {
        let known: BTreeSet<PodUid> =
            self.workers.uids().into_iter().chain(snapshot.uids().cloned()).into_set();
        let volumes = self.workers.volumes();
        rt::spawn("orphaned pod directories", async move {
            let (removed, errors) = volumes.clean_orphans(&known).await;
            if removed > 0 {
                log::info!(directories = removed; "Cleaned up orphaned pod directories");
            }
            for error in errors {
                log::warn!(err:% = chain(&error); "Failed to remove orphaned pod directory");
            }
        })
    }

    fn publish_sources(&self) {
        self.view.set_sources(self.pod_config.views());
        self.view.set_store_trouble(self.pod_config.store_trouble());
    }
}

/// The fields of a pod that its termination needs.
fn pod_of_orphan(orphan: OrphanPod) -> Pod {
    let names: BTreeSet<String> = orphan.containers.iter().map(|(_, name)| name.to_string()).into_set();
    Pod {
        metadata: ObjectMeta {
            name: orphan.pod.name,
            namespace: orphan.pod.namespace,
            uid: orphan.pod.uid,
            ..ObjectMeta::default()
        },
        spec: PodSpec {
            containers: names.into_iter().map(|name| Container { name, ..Container::default() }).collect(),
            termination_grace_period_seconds: Some(orphan.grace_seconds),
            ..PodSpec::default()
        },
        ..Pod::default()
    }
}

async fn wait_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn tick(timer: Option<&mut tokio::time::Interval>) {
    match timer {
        Some(timer) => {
            timer.tick().await;
        }
        None => std::future::pending().await,
    }
}
