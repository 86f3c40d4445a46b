//! The task behind one pod: a loop of look, plan, act. Losing it at any await is safe: the next worker starts from the
//! store's desired state and a fresh look.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::api::pod::{Pod, PodStatus};
use crate::executor::Execution;
use crate::image::StartFailure;
use crate::mailbox::Mailbox;
use crate::observe::observe_pod;
use crate::observed::ObservedPod;
use crate::pod_worker::held::{Held, HeldStarts};
use crate::pod_worker::{ContainerStates, Shared};
use crate::reconcile::containers::all_containers;
use crate::reconcile::lifecycle::{EndCause, PodWorkerEffect, PodWorkerEvent, PodWorkerState, transition};
use crate::reconcile::plan::{Action, PlanContext, PodPlan, Terminating, compute_pod_plan};
use crate::reconcile::status::{StatusContext, compute_pod_status, deadline_left, final_status, is_terminal};
use crate::reconcile::termination::compute_teardown;
use crate::runtime::{Runtime, RuntimeError};
use crate::store::StoredContainerState;
use crate::types::{ContainerName, PodFullName, PodUid, Timestamp};

/// First wait after the runtime did not answer; doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Upstream's worker back-off.
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// The same plan twice in a row means the runtime did not do what it said: not a third time at once.
const REPEATED_PLAN_PAUSE: Duration = Duration::from_secs(1);

/// When to take the next step.
enum Next {
    /// At once.
    Now,
    /// After this long, or earlier when a letter arrives.
    After(Duration),
    /// When a letter arrives.
    OnLetter,
    /// Never: the worker is done.
    Never,
}

pub(super) struct Worker<R> {
    shared: Rc<Shared<R>>,
    mailbox: Rc<Mailbox>,
    pod: Rc<Pod>,
    uid: PodUid,
    name: PodFullName,
    state: PodWorkerState,
    containers: ContainerStates,
    held: HeldStarts,
    /// Set while the last attempt to do something failed as a whole.
    retry: Option<Duration>,
    last_plan: Option<PodPlan>,
    cleanup_records: bool,
    /// The last letters asked for a look at the runtime.
    told_to_look: bool,
    over: bool,
}

impl<R: Runtime> Worker<R> {
    pub(super) fn new(
        shared: Rc<Shared<R>>,
        mailbox: Rc<Mailbox>,
        pod: Rc<Pod>,
        containers: ContainerStates,
    ) -> Self {
        Self {
            uid: pod.metadata.uid.clone(),
            name: pod.pod_ref().full_name(),
            shared,
            mailbox,
            pod,
            state: PodWorkerState::WaitingForName,
            containers,
            held: HeldStarts::default(),
            retry: None,
            last_plan: None,
            cleanup_records: false,
            told_to_look: false,
            over: false,
        }
    }

    pub(super) async fn run(mut self) {
        let mut next = Next::OnLetter;
        loop {
            match next {
                Next::Now => {}
                Next::OnLetter => self.mailbox.arrived().await,
                Next::After(pause) => {
                    // Losing either arm is safe: letters stay in the mailbox, the pause is recomputed.
                    tokio::select! {
                        biased;
                        () = self.mailbox.arrived() => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
                Next::Never => return,
            }
            next = self.step().await;
        }
    }

    async fn step(&mut self) -> Next {
        let letters = self.mailbox.take();
        self.told_to_look = letters.look;
        if let Some(pod) = letters.pod {
            if *pod != *self.pod {
                self.held.clear();
            }
            self.pod = pod;
        }
        for event in letters.events {
            self.on_event(event).await;
        }
        match self.state {
            PodWorkerState::WaitingForName => self.wait_for_name().await,
            PodWorkerState::Syncing => self.sync().await,
            PodWorkerState::Terminating { since, grace_seconds, cause } => {
                self.terminate(since, grace_seconds, cause).await
            }
            PodWorkerState::Terminated { .. } => self.clean_up().await,
            PodWorkerState::Finished { .. } if self.over => Next::Never,
            PodWorkerState::Finished { .. } => Next::OnLetter,
        }
    }

    async fn on_event(&mut self, event: PodWorkerEvent) {
        let now = self.shared.deps.clock.now();
        let grace = self.pod.termination_grace_period_seconds();
        let (state, effects) = transition(self.state, event, now, grace);
        if state != self.state {
            log::debug!(pod:% = self.pod.pod_ref(), from:? = self.state, to:? = state, event:?; "Pod worker moved");
            self.retry = None;
            self.last_plan = None;
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
            "waiting for an earlier pod of the same name to end".clone_into(&mut status.message);
        }
        self.shared.deps.statuses.set(&self.pod, status);
        Next::OnLetter
    }

    async fn sync(&mut self) -> Next {
        if self.has_ended_before() {
            self.on_event(PodWorkerEvent::PodTerminal).await;
            return Next::Now;
        }
        let observed = match self.look().await {
            Ok(observed) => observed,
            Err(next) => return next,
        };
        let plan = compute_pod_plan(&self.pod, &observed, &self.plan_context(None));
        self.held.keep_wanted(&plan);
        let status = self.status(&observed, &plan);
        let ended = is_terminal(&status);
        self.shared.deps.statuses.set(&self.pod, status);
        if ended {
            self.on_event(PodWorkerEvent::PodTerminal).await;
            return Next::Now;
        }
        let plan = self.held.hold_back(plan, self.shared.deps.clock.now());
        if plan.actions.is_empty() {
            self.retry = None;
            self.last_plan = None;
            return self.next_look(plan.requeue_after);
        }
        if self.last_plan.as_ref() == Some(&plan) {
            self.last_plan = None;
            return Next::After(REPEATED_PLAN_PAUSE);
        }
        log::debug!(pod:% = self.pod.pod_ref(), plan:%; "Carrying out plan");
        self.remember_restarts(&plan).await;
        self.act(&observed, &plan).await;
        self.last_plan = Some(plan);
        Next::Now
    }

    /// Nothing to do now: by the plan's clock or the pod's own deadline, whichever is first.
    fn next_look(&self, requeue_after: Option<Duration>) -> Next {
        let deps = &self.shared.deps;
        let started = deps.statuses.last(&self.uid).and_then(|status| status.start_time);
        let deadline = started.and_then(|started| deadline_left(&self.pod, started, deps.clock.now()));
        match (requeue_after, deadline) {
            (Some(after), Some(deadline)) => Next::After(after.min(deadline)),
            (Some(after), None) | (None, Some(after)) => Next::After(after),
            (None, None) => Next::OnLetter,
        }
    }

    /// A fresh look, or when to try again. Without the runtime's name no status can be told, and a pod that has ended is
    /// told of only once: the first look waits for the loop, which wakes everybody when the runtime has said its name or
    /// does not answer.
    async fn look(&mut self) -> Result<ObservedPod, Next> {
        let is_unknown = |worker: &Self| worker.shared.deps.runtime_name.borrow().is_empty();
        if is_unknown(self) && !self.told_to_look {
            return Err(Next::OnLetter);
        }
        match observe_pod(&*self.shared.deps.runtime, &self.uid).await {
            Ok(_) if is_unknown(self) => Err(Next::OnLetter),
            Ok(observed) => Ok(observed),
            Err(error) => Err(self.runtime_trouble(&error)),
        }
    }

    /// Carries out a plan; a removal that arrives meanwhile gives up what can be given up (pulls), so that a pod whose
    /// image is on its way can be taken down.
    async fn act(&mut self, observed: &ObservedPod, plan: &PodPlan) {
        let executor = &self.shared.deps.executor;
        let execution = executor.execute(&self.pod, observed, plan, &self.mailbox).await;
        self.note_failures(execution, plan);
    }

    fn note_failures(&mut self, execution: Execution, plan: &PodPlan) {
        let now = self.shared.deps.clock.now();
        for action in &plan.actions {
            match action {
                Action::StartContainer(start) => {
                    self.held.containers.remove(&start.name);
                }
                Action::CreateSandbox { .. } => self.held.pod = None,
                _ => {}
            }
        }
        let held = |failure: StartFailure| Held {
            reason: failure.reason,
            message: failure.message,
            until: failure.retry_after.map(|after| now.saturating_add(after)),
        };
        for (name, failure) in execution.containers {
            self.held.containers.insert(name, held(failure));
        }
        if let Some(failure) = execution.pod {
            self.held.pod = Some(held(failure));
        }
    }

    async fn terminate(&mut self, since: Timestamp, grace_seconds: i64, cause: EndCause) -> Next {
        let now = self.shared.deps.clock.now();
        let passed = i64::try_from(now.saturating_since(since).as_secs()).unwrap_or(i64::MAX);
        let left = grace_seconds.saturating_sub(passed).max(1);
        let observed = match self.look().await {
            Ok(observed) => observed,
            Err(next) => return next,
        };
        self.mark_removal(cause);
        let plan = compute_pod_plan(&self.pod, &observed, &self.plan_context(Some(left)));
        let status = self.status(&observed, &plan);
        self.shared.deps.statuses.set(&self.pod, status);
        if plan.actions.is_empty() {
            self.on_event(PodWorkerEvent::NoLiveContainers).await;
            return Next::Now;
        }
        if self.last_plan.replace(plan.clone()).as_ref() == Some(&plan) {
            self.last_plan = None;
            return Next::After(REPEATED_PLAN_PAUSE);
        }
        let execution = self.shared.deps.executor.execute(&self.pod, &observed, &plan, &self.mailbox).await;
        if execution.pod.is_some() { self.wait_and_retry() } else { Next::Now }
    }

    /// A pod that is being removed says so, as on a cluster: `agent get pods` shows it as Terminating.
    fn mark_removal(&mut self, cause: EndCause) {
        if cause != EndCause::Completed && self.pod.metadata.deletion_timestamp.is_none() {
            let now = self.shared.deps.clock.now();
            Rc::make_mut(&mut self.pod).metadata.deletion_timestamp = Some(now);
        }
    }

    async fn clean_up(&mut self) -> Next {
        let observed = if self.cleanup_records {
            match self.look().await {
                Ok(observed) => Some(observed),
                Err(next) => return next,
            }
        } else {
            None
        };
        let deps = &self.shared.deps;
        if let Some(observed) = observed {
            if observed.live_containers().next().is_some() {
                // Came to life after the last look: a create call of a process that has died.
                let plan = compute_pod_plan(&self.pod, &observed, &self.plan_context(Some(1)));
                deps.executor.execute(&self.pod, &observed, &plan, &self.mailbox).await;
                return Next::After(REPEATED_PLAN_PAUSE);
            }
            let plan = compute_teardown(&observed);
            if deps.executor.execute(&self.pod, &observed, &plan, &self.mailbox).await.pod.is_some() {
                return self.wait_and_retry();
            }
        }
        if !deps.executor.remove_leftovers(&self.pod, self.cleanup_records).await {
            return self.wait_and_retry();
        }
        self.cleanup_records = false;
        if self.mailbox.has_word() {
            // The pod may be wanted again: a worker that ends here would never hear of it.
            return Next::Now;
        }
        if let Some(status) = self.shared.deps.statuses.last(&self.uid) {
            self.shared.deps.statuses.set(&self.pod, final_status(&self.pod, status, true));
        }
        self.on_event(PodWorkerEvent::CleanupDone).await;
        Next::Now
    }

    async fn forget(&mut self) {
        let deps = &self.shared.deps;
        deps.statuses.remove(&self.uid);
        deps.executor.forget_pod(&self.uid);
        // Before anything else can happen: whoever wants the pod from now on gets a new worker.
        self.shared.forget(&self.uid);
        if let Err(error) = deps.store.forget_pod(&self.uid).await {
            log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to forget pod in the store");
        }
        self.over = true;
    }

    /// Wanted again under the same uid while it was going: a new life, behind whoever waits for the name. Nothing of the old
    /// one stays on disk, or the next process would go on with it.
    async fn start_over(&mut self) {
        self.containers.clear();
        if let Err(error) = self.shared.deps.store.forget_pod(&self.uid).await {
            log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to forget the pod's earlier life in the store");
        }
        self.shared.deps.statuses.remove(&self.uid);
        self.held.clear();
        Rc::make_mut(&mut self.pod).metadata.deletion_timestamp = None;
        self.state = PodWorkerState::WaitingForName;
        self.shared.holds_name(&self.name, &self.uid);
    }

    /// Restart counts and back-off are on disk before the restart happens, so that no crash makes a busy loop of a crash
    /// loop. First starts have nothing to remember and write nothing.
    async fn remember_restarts(&mut self, plan: &PodPlan) {
        for action in &plan.actions {
            let Action::StartContainer(start) = action else { continue };
            let state = StoredContainerState { restart_count: start.attempt, back_off: start.back_off };
            let known = self.containers.get(&start.name).copied().unwrap_or_default();
            if known == state {
                continue;
            }
            let written = self.shared.deps.store.put_container_state(&self.uid, &start.name, state).await;
            if let Err(error) = written {
                // A full or read-only disk must not stop what should run: memory remembers until it can be written.
                log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to remember restart count");
            }
            self.containers.insert(start.name.clone(), state);
        }
    }

    fn plan_context(&self, terminating_grace: Option<i64>) -> PlanContext {
        let deps = &self.shared.deps;
        let states = &self.containers;
        PlanContext {
            now: deps.clock.now(),
            back_off: states
                .iter()
                .filter_map(|(name, state)| Some((name.clone(), state.back_off?)))
                .collect(),
            restart_counts: states.iter().map(|(name, state)| (name.clone(), state.restart_count)).collect(),
            limits: deps.config.limits,
            terminating: terminating_grace.map(|grace_seconds| Terminating { grace_seconds }),
            max_dead_per_container: deps.config.max_dead_per_container,
            sandbox_status_read: true,
        }
    }

    fn status(&self, observed: &ObservedPod, plan: &PodPlan) -> PodStatus {
        let deps = &self.shared.deps;
        let mut waiting: BTreeMap<_, _> = self
            .held
            .containers
            .iter()
            .map(|(name, held)| (name.clone(), (held.reason.to_owned(), held.message.clone())))
            .collect();
        if let Some(held) = &self.held.pod {
            for (container, _) in all_containers(&self.pod) {
                let name = ContainerName::from(container.name.as_str());
                waiting.entry(name).or_insert(("ContainerCreating".to_owned(), held.message.clone()));
            }
        }
        // What was said about trouble of that moment is said anew if it still holds.
        let previous = deps.statuses.last(&self.uid).map(|status| {
            let said =
                if is_terminal(&status) { (status.reason, status.message) } else { Default::default() };
            PodStatus { reason: said.0, message: said.1, ..status }
        });
        let runtime_name = deps.runtime_name.borrow();
        let context = StatusContext {
            now: deps.clock.now(),
            previous: previous.as_ref(),
            waiting: &waiting,
            blocked: &plan.blocked,
            node_ips: &deps.config.node_ips,
            terminal: matches!(
                self.state,
                PodWorkerState::Terminated { .. } | PodWorkerState::Finished { .. }
            ),
            runtime_name: &runtime_name,
            is_static: true,
            ready: &BTreeMap::new(),
            rejected: None,
        };
        let mut status = compute_pod_status(&self.pod, observed, &context);
        if let Some(held) = &self.held.pod {
            status.message.clone_from(&held.message);
            held.reason.clone_into(&mut status.reason);
        }
        status
    }

    /// The pod ended in an earlier life of the agent and the runtime may have forgotten it since: it is not run again.
    fn has_ended_before(&self) -> bool {
        self.shared.deps.statuses.last(&self.uid).is_some_and(|status| is_terminal(&status))
    }

    fn runtime_trouble(&mut self, error: &RuntimeError) -> Next {
        let mut status = self.last_status();
        // How a pod ended stays true, and nobody would say it again afterwards.
        if !is_terminal(&status) {
            "ContainerRuntimeDown".clone_into(&mut status.reason);
            status.message = format!("container runtime is down: {error}");
        }
        self.shared.deps.statuses.set(&self.pod, status);
        self.wait_and_retry()
    }

    /// What can be said without a look: what was said last. An empty look would make ended containers of those that ran.
    fn last_status(&self) -> PodStatus {
        let last = self.shared.deps.statuses.last(&self.uid);
        last.unwrap_or_else(|| self.status(&ObservedPod::default(), &PodPlan::default()))
    }

    fn wait_and_retry(&mut self) -> Next {
        let pause = self.retry.map_or(FIRST_RETRY, |last| (last * 2).min(LONGEST_RETRY));
        self.retry = Some(pause);
        self.last_plan = None;
        Next::After(pause)
    }
}
