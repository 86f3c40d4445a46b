//! The task behind one pod: a loop of observe, plan, act. It is cancel safe at every await: the next worker
//! starts from the store's desired state and an observation of its own.

mod admission;
mod eviction;
mod execution;
mod next_sync;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::back_off::Retry;
use crate::model::containers::{all_with_ephemeral, is_terminal};
use crate::model::objects::Realm;
use crate::model::observed::ObservedPod;
use crate::model::ordered::Ordered as _;
use crate::model::provenance::realm;
use crate::model::types::{ContainerName, PodFullName, PodUid};
use crate::pod::admission::rules::{failed_before_start, has_never_run};
use crate::pod::executor::Patience;
use crate::pod::inbox::{Inbox, Updates};
use crate::pod::lifecycle::{EndCause, PodWorkerEffect, PodWorkerEvent, PodWorkerState, transition};
use crate::pod::observe::observe_pod;
use crate::pod::plan::termination::compute_teardown;
use crate::pod::plan::{Action, PlanContext, PodPlan, Terminating, compute_pod_plan};
use crate::pod::status::rules::{
    DEADLINE_EXCEEDED, StatusContext, compute_pod_status, deleted_status, final_status, has_ended,
    newly_backing_off,
};
use crate::pod::workers::WorkersInner;
use crate::pod::workers::counts::Counts;
use crate::pod::workers::failed_starts::FailedStarts;
use crate::pod::workers::resizing::Resizing;
use crate::pod::workers::restarts::Restarts;
use crate::pod::workers::sync_duration::measured;
use crate::runtime::{Runtime, RuntimeError};

/// First wait after the runtime did not answer; doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Upstream's worker back-off.
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// The same plan twice in a row means that the runtime did not do what it reported: no third time at once.
const REPEATED_PLAN_PAUSE: Duration = Duration::from_secs(1);

enum Next {
    Now,
    /// After this long, or earlier when an update arrives.
    After(Duration),
    OnUpdate,
    /// Never: the worker is done.
    Never,
}

pub(super) struct Worker<R> {
    shared: Rc<WorkersInner<R>>,
    inbox: Rc<Inbox>,
    pod: Rc<Pod>,
    uid: PodUid,
    name: PodFullName,
    state: PodWorkerState,
    counts: Counts,
    failed_starts: FailedStarts,
    resizing: Resizing,
    restarts: Restarts,
    /// The generation of objects at the last sync.
    objects_generation: u64,
    /// Set while the last attempt failed as a whole.
    retry: Retry,
    last_actions: Vec<Action>,
    cleanup_records: bool,
    /// The last updates contained a request to check the runtime.
    observation_requested: bool,
    /// The event that the pod takes too long to end was recorded.
    is_late: bool,
    /// Notifies, by its drop, the caller of an eviction that the pod has ended.
    evicted: Option<oneshot::Sender<()>>,
    /// Notifies, by its drop, the shutdown of the machine that nothing of the pod runs any more.
    ending: Option<oneshot::Sender<()>>,
    over: bool,
    /// By its stored status the pod held a place when this process began.
    had_place: bool,
    was_synced: bool,
}

impl<R: Runtime> Worker<R> {
    pub(super) fn new(shared: Rc<WorkersInner<R>>, inbox: Rc<Inbox>, pod: Rc<Pod>, counts: Counts) -> Self {
        Self {
            uid: pod.metadata.uid.clone(),
            name: pod.pod_ref().full_name(),
            shared,
            inbox,
            pod,
            state: PodWorkerState::WaitingForName,
            counts,
            failed_starts: FailedStarts::default(),
            resizing: Resizing::default(),
            restarts: Restarts::default(),
            objects_generation: 0,
            retry: Retry::new(FIRST_RETRY, LONGEST_RETRY),
            last_actions: Vec::new(),
            cleanup_records: false,
            observation_requested: false,
            is_late: false,
            evicted: None,
            ending: None,
            over: false,
            had_place: false,
            was_synced: false,
        }
    }

    pub(super) async fn run(mut self) {
        let mut next = Next::OnUpdate;
        loop {
            match next {
                Next::Now => {}
                Next::OnUpdate => self.inbox.arrived().await,
                Next::After(pause) => {
                    // Both arms are cancel safe: updates stay in the mailbox, the pause is recomputed.
                    tokio::select! {
                        biased;
                        () = self.inbox.arrived() => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
                Next::Never => return,
            }
            // Boxed: a step needs kilobytes, a worker that waits for one should not.
            next = Box::pin(self.step()).await;
        }
    }

    async fn step(&mut self) -> Next {
        let updates = self.inbox.take();
        self.observation_requested = updates.observe;
        self.read(updates).await;
        match self.state {
            PodWorkerState::WaitingForName => self.wait_for_name().await,
            PodWorkerState::Syncing => measured("sync", self.sync()).await,
            PodWorkerState::Terminating { .. } => measured("kill", self.terminate()).await,
            PodWorkerState::Terminated { .. } => self.clean_up().await,
            PodWorkerState::Finished { .. } if self.over => Next::Never,
            PodWorkerState::Finished { .. } => Next::OnUpdate,
        }
    }

    async fn read(&mut self, updates: Updates) {
        if let Some(pod) = updates.pod {
            if *pod != *self.pod {
                self.failed_starts.clear();
            }
            self.pod = pod;
        }
        if updates.device {
            self.failed_starts.device_appeared();
        }
        if !updates.restart.is_empty() {
            self.failed_starts.clear();
            self.restarts.request(updates.restart);
        }
        for event in updates.events {
            self.on_event(event).await;
        }
        if let Some(eviction) = updates.eviction {
            self.evict(eviction).await;
        }
    }

    async fn on_event(&mut self, event: PodWorkerEvent) {
        let now = self.shared.deps.clock.now();
        let grace = self.pod.termination_grace_period_seconds();
        let (state, effects) = transition(self.state, event, now, grace);
        if state != self.state {
            log::debug!(pod:% = self.pod.pod_ref(), from:? = self.state, to:? = state, event:?; "Pod worker \
                 state changed");
            self.retry.reset();
            self.last_actions.clear();
            if event == PodWorkerEvent::Resumed {
                self.cancel_shutdown();
            }
        }
        self.state = state;
        for effect in effects {
            match effect {
                PodWorkerEffect::Sync | PodWorkerEffect::Terminate { .. } => {}
                PodWorkerEffect::CleanUp { records } => self.cleanup_records |= records,
                PodWorkerEffect::ReleaseName => self.shared.release_name(&self.name, &self.uid),
                PodWorkerEffect::Forget => self.forget().await,
                PodWorkerEffect::StartOver => self.start_over().await,
            }
        }
    }

    async fn wait_for_name(&mut self) -> Next {
        if self.shared.holds_name(&self.name, &self.uid) {
            self.on_event(PodWorkerEvent::NameFree).await;
            return Next::Now;
        }
        let mut status = self.last_status();
        if !is_terminal(&status) {
            "waiting for a previous pod of the same name to terminate".clone_into(&mut status.message);
        }
        self.shared.deps.statuses.set(&self.pod, status);
        Next::OnUpdate
    }

    async fn sync(&mut self) -> Next {
        // Without the runtime's name this sync does nothing, and the next one is the first.
        if !self.was_synced && !self.shared.deps.runtime_name.borrow().is_empty() {
            self.was_synced = true;
            self.shared.first_syncs.next().await;
            if self.inbox.has_pod_update() {
                if self.observation_requested {
                    self.inbox.request_observation();
                }
                return Next::Now;
            }
        }
        if let Some(event) = self.has_ended_before() {
            self.on_event(event).await;
            return Next::Now;
        }
        let observed = match self.observe().await {
            Ok(observed) => observed,
            Err(next) => return next,
        };
        self.probe(&observed);
        self.counts.restore_counts(&self.pod, &observed, &self.shared.deps.executor).await;
        if let Some(next) = self.wait_for_admission(&observed).await {
            return next;
        }
        let allocated = self.resizing.allocated(&self.pod);
        let context =
            PlanContext { restart: self.restarts.due(&observed), ..self.plan_context(&observed, None) };
        let plan = compute_pod_plan(&allocated, &observed, &context);
        self.failed_starts.retain_planned(&plan);
        self.check_objects();
        let status = self.status(&observed, &plan);
        let ended = is_terminal(&status);
        self.record_resize(&status, &allocated);
        self.report(&status);
        self.publish(status).await;
        if ended {
            self.on_event(PodWorkerEvent::PodTerminal).await;
            return Next::Now;
        }
        let plan = self.failed_starts.hold_back(plan, self.shared.deps.clock.now());
        if plan.actions.is_empty() {
            self.retry.reset();
            self.last_actions.clear();
            self.keep_cgroup(&allocated, &observed).await;
            self.shared.deps.executor.refresh_volumes(&self.pod).await;
            return self.next_sync(plan.requeue_after);
        }
        if self.is_repeated(&plan) {
            return Next::After(REPEATED_PLAN_PAUSE);
        }
        log::debug!(pod:% = self.pod.pod_ref(), plan:%; "Executing plan");
        self.counts.remember(&self.pod, &plan, &self.shared.deps.store).await;
        if plan.actions.iter().any(|action| matches!(action, Action::ResizeContainer(_))) {
            self.keep_cgroup(&allocated, &observed).await;
        }
        self.act(&allocated, &observed, &plan).await;
        Next::Now
    }

    /// A scheduler takes the place of a pod that it sees as ended: its room and its devices are free by then.
    async fn publish(&mut self, status: PodStatus) {
        if has_ended(&status) {
            self.shared.deps.executor.release_devices(&self.uid).await;
            self.shared.vacate_room(&self.uid);
        }
        self.shared.deps.statuses.set(&self.pod, status);
    }

    /// Whether the same actions were just executed. A change of the requeue time does not make another plan.
    fn is_repeated(&mut self, plan: &PodPlan) -> bool {
        let is_repeated = self.last_actions == plan.actions;
        self.last_actions = if is_repeated { Vec::new() } else { plan.actions.clone() };
        is_repeated
    }

    /// Records events for status changes that no action caused.
    fn report(&self, status: &PodStatus) {
        let deps = &self.shared.deps;
        for name in newly_backing_off(status, deps.statuses.last(&self.uid).as_ref()) {
            deps.executor.report_back_off(&self.pod, &name);
        }
        if status.reason == DEADLINE_EXCEEDED {
            deps.executor.report_deadline(&self.pod, &status.message);
        }
    }

    fn check_objects(&mut self) {
        let generation = self.shared.deps.executor.objects_generation();
        if generation != self.objects_generation {
            self.objects_generation = generation;
            self.failed_starts.objects_changed();
        }
    }

    fn probe(&self, observed: &ObservedPod) {
        let deps = &self.shared.deps;
        let remembered = deps.statuses.last(&self.uid);
        deps.prober.observe(&self.pod, observed, remembered.as_ref(), &self.inbox);
    }

    /// Observes the pod, or returns when to try again. Without the runtime's name no status can be published,
    /// and a pod that has ended is reported only once: the first observation waits for the main loop, which
    /// wakes all workers when the runtime has reported its name or does not answer.
    async fn observe(&mut self) -> Result<ObservedPod, Next> {
        let is_unknown = |worker: &Self| worker.shared.deps.runtime_name.borrow().is_empty();
        if is_unknown(self) && !self.observation_requested {
            return Err(Next::OnUpdate);
        }
        match observe_pod(&*self.shared.deps.runtime, &self.uid).await {
            Ok(_) if is_unknown(self) => Err(Next::OnUpdate),
            Ok(observed) => Ok(observed),
            Err(error) => Err(self.runtime_trouble(&error)),
        }
    }

    async fn terminate(&mut self) -> Next {
        self.mark_removal().await;
        let observed = match self.observe().await {
            Ok(observed) => observed,
            Err(next) => return next,
        };
        self.probe(&observed);
        self.shared.deps.prober.keep_only_readiness(&self.uid);
        let left = self.state.grace_left(self.shared.deps.clock.now());
        let plan = compute_pod_plan(&self.pod, &observed, &self.plan_context(&observed, left));
        let status = self.status(&observed, &plan);
        self.publish(status).await;
        if plan.actions.is_empty() {
            self.on_event(PodWorkerEvent::NoLiveContainers).await;
            self.ended_with_machine();
            return Next::Now;
        }
        if self.is_repeated(&plan) {
            return Next::After(REPEATED_PLAN_PAUSE);
        }
        let execution = self.execute_termination(&observed, &plan).await;
        if execution.pod.is_some() { self.wait_and_retry() } else { Next::Now }
    }

    /// Sets the deletion timestamp of a pod that is being removed, as on a cluster: `agent get pods` shows it
    /// as Terminating. The stored copy lets the next agent continue with the rest of the grace period.
    async fn mark_removal(&mut self) {
        let PodWorkerState::Terminating { since, grace_seconds, cause } = self.state else { return };
        let metadata = &self.pod.metadata;
        let marked = (metadata.deletion_timestamp, metadata.deletion_grace_period_seconds);
        let wanted = (Some(since), Some(grace_seconds));
        if matches!(cause, EndCause::Completed | EndCause::Evicted | EndCause::Shutdown) || marked == wanted {
            return;
        }
        let metadata = &mut Rc::make_mut(&mut self.pod).metadata;
        (metadata.deletion_timestamp, metadata.deletion_grace_period_seconds) = wanted;
        if let Err(error) = self.shared.deps.store.put_terminating(&self.pod).await {
            log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to store end of pod grace period");
        }
    }

    async fn clean_up(&mut self) -> Next {
        let observed = if self.cleanup_records {
            match self.observe().await {
                Ok(observed) => Some(observed),
                Err(next) => return next,
            }
        } else {
            None
        };
        let deps = &self.shared.deps;
        if let Some(observed) = observed {
            if observed.live_containers().next().is_some() {
                // Started after the last observation: by a create call of a process that has died.
                let plan = compute_pod_plan(&self.pod, &observed, &self.plan_context(&observed, Some(1)));
                deps.executor.execute(&self.pod, &observed, &plan, &Patience::as_planned()).await;
                return Next::After(REPEATED_PLAN_PAUSE);
            }
            self.counts.remember_ended(&observed);
            let plan = compute_teardown(&observed);
            if deps.executor.execute(&self.pod, &observed, &plan, &Patience::as_planned()).await.pod.is_some()
            {
                return self.wait_and_retry();
            }
        }
        if !deps.executor.remove_leftovers(&self.pod, self.cleanup_records).await {
            return self.wait_and_retry();
        }
        self.cleanup_records = false;
        self.shared.deps.prober.remove(&self.uid);
        self.shared.release_room(&self.uid);
        if self.inbox.has_pod_update() {
            // The pod may be wanted again: a worker that ends here would never take the update.
            return Next::Now;
        }
        let stays = self.state == PodWorkerState::Terminated { cause: EndCause::Finalizing };
        if stays {
            Rc::make_mut(&mut self.pod).metadata.deletion_grace_period_seconds = Some(0);
        }
        if let Some(status) = self.shared.deps.statuses.last(&self.uid) {
            let is_static = realm(&self.pod) == Realm::Node;
            let status = if stays {
                deleted_status(&self.pod, status)
            } else {
                final_status(&self.pod, status, is_static)
            };
            self.shared.deps.statuses.set(&self.pod, status);
        }
        self.on_event(PodWorkerEvent::CleanupDone).await;
        self.evicted = None;
        Next::Now
    }

    async fn forget(&mut self) {
        let deps = &self.shared.deps;
        deps.statuses.remove(&self.uid);
        deps.executor.forget_pod(&self.uid);
        // Before the next await: if the pod is wanted from now on, it gets a new worker.
        self.shared.forget(&self.uid, self.counts.take_life());
        if let Err(error) = deps.store.forget_pod(&self.uid).await {
            log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to delete pod from the store");
        }
        self.over = true;
    }

    /// The pod was wanted again under the same uid while it was ending: a new life, behind any other pod in
    /// the queue for the name. Only restart counts and back-off continue. Nothing of the old life stays on
    /// disk, or the next process would continue it.
    async fn start_over(&mut self) {
        self.counts.begin_next_life();
        if let Err(error) = self.shared.deps.store.forget_pod(&self.uid).await {
            log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to delete previous pod state from \
                 the store");
        }
        self.shared.deps.statuses.remove(&self.uid);
        self.failed_starts.clear();
        let metadata = &mut Rc::make_mut(&mut self.pod).metadata;
        (metadata.deletion_timestamp, metadata.deletion_grace_period_seconds) = (None, None);
        self.is_late = false;
        self.state = PodWorkerState::WaitingForName;
        self.shared.holds_name(&self.name, &self.uid);
    }

    fn plan_context(&self, observed: &ObservedPod, terminating_grace: Option<i64>) -> PlanContext {
        let deps = &self.shared.deps;
        PlanContext {
            now: deps.clock.now(),
            back_off: self.counts.back_off(),
            restart_counts: self.counts.stored(),
            earlier: self.counts.ended(),
            shown_counts: self.counts.shown(deps.statuses.last(&self.uid).as_ref()),
            limits: deps.config.get().limits,
            terminating: terminating_grace.map(|grace_seconds| Terminating { grace_seconds }),
            max_dead_per_container: self.shared.dead_to_keep(&self.uid, observed),
            minimum_dead_age: deps.config.get().dead.minimum_age,
            sandbox_status_read: true,
            probes: deps.prober.results(&self.uid),
            actuated: self.resizing.actuated.clone(),
            ..PlanContext::default()
        }
    }

    fn status(&self, observed: &ObservedPod, plan: &PodPlan) -> PodStatus {
        let deps = &self.shared.deps;
        let mut waiting: BTreeMap<_, _> = self
            .failed_starts
            .containers
            .iter()
            .map(|(name, held)| (name.clone(), (held.reason.to_owned(), held.message.clone())))
            .into_map();
        if let Some(held) = &self.failed_starts.pod {
            for (container, _) in all_with_ephemeral(&self.pod) {
                let name = ContainerName::from(container.name.as_str());
                waiting.entry(name).or_insert(("ContainerCreating".to_owned(), held.message.clone()));
            }
        }
        // The reason and message of a transient problem are set again if it still holds; those of an ended
        // pod stay.
        let previous = deps.statuses.last(&self.uid).map(|status| {
            let is_said = is_terminal(&status);
            let said = |words: &String| if is_said { words.clone() } else { String::new() };
            let (reason, message) = (said(&status.reason), said(&status.message));
            let start_time = status.start_time.filter(|_| !has_never_run(&status));
            PodStatus { message, reason, start_time, ..status }
        });
        let runtime_name = deps.runtime_name.borrow();
        let config = deps.config.get();
        let context = StatusContext {
            now: deps.clock.now(),
            up: deps.clock.since_boot(),
            previous: previous.as_ref(),
            earlier_counts: &self.counts.earlier(),
            waiting: &waiting,
            blocked: &plan.blocked,
            node_ips: &config.node_ips,
            terminal: matches!(
                self.state,
                PodWorkerState::Terminated { .. } | PodWorkerState::Finished { .. }
            ),
            runtime_name: &runtime_name,
            is_static: realm(&self.pod) == Realm::Node,
            probes: &deps.prober.results(&self.uid),
        };
        let mut status = compute_pod_status(&self.pod, observed, &context);
        if observed.containers.is_empty() && previous.as_ref().is_some_and(failed_before_start) {
            status.container_statuses.clear();
            status.init_container_statuses.clear();
        }
        let error = self.failed_starts.resize.as_ref().map(|held| held.message.as_str());
        self.resizing.show(&mut status, &self.pod, observed, (error, previous.as_ref(), context.now));
        if let Some(held) = &self.failed_starts.pod {
            status.message.clone_from(&held.message);
            held.reason.clone_into(&mut status.reason);
        }
        status
    }

    fn runtime_trouble(&mut self, error: &RuntimeError) -> Next {
        let mut status = self.last_status();
        // The reason of an ended pod stays: no later status would restore it.
        if !is_terminal(&status) {
            "ContainerRuntimeDown".clone_into(&mut status.reason);
            status.message = format!("container runtime is down: {error}");
        }
        self.shared.deps.statuses.set(&self.pod, status);
        self.wait_and_retry()
    }

    /// The status without an observation: the last one. An empty observation would show running containers as
    /// ended.
    fn last_status(&self) -> PodStatus {
        let last = self.shared.deps.statuses.last(&self.uid);
        last.unwrap_or_else(|| self.status(&ObservedPod::default(), &PodPlan::default()))
    }

    fn wait_and_retry(&mut self) -> Next {
        self.last_actions.clear();
        Next::After(self.retry.delay())
    }
}
