//! Runs the probes of running containers and publishes their results.
//!
//! Owns which instance is probed and when.
//!
//! One task sleeps until the next probe is due and starts its run; a run is a task of its own for as long as
//! its timeout allows. Without probes there is no task. Nothing is stored: results live as long as the
//! process, and the next process starts from those in the last status of each instance.

pub mod rules;

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::observed::ObservedPod;
use crate::model::types::{PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::platform::{metrics, rt};
use crate::pod::events::{EventRecorder, EventType, container_path};
use crate::pod::inbox::Inbox;
use crate::pod::network::pod_address;
use crate::pod::prober::rules::{ProbeResults, probed_containers};
use crate::runtime::Runtime;

mod counts;
mod instance;
mod place;
mod run;
mod schedule;
#[cfg(test)]
mod tests;

use place::Sight;
use run::Ended;
use schedule::Schedule;

#[derive(Clone, Debug, Default)]
pub struct ProberConfig {
    /// The node's addresses, primary first, at which host-network pods are probed.
    pub node_ips: Vec<String>,
}

/// All probes of all pods.
pub struct Prober<R> {
    shared: Rc<ProberInner<R>>,
    config: ProberConfig,
    /// Containers that started earlier were started by an earlier process.
    since: Timestamp,
    task: RefCell<Option<JoinHandle<()>>>,
}

/// The state shared with the task.
struct ProberInner<R> {
    runtime: Rc<R>,
    clock: Clock,
    events: EventRecorder,
    schedule: RefCell<Schedule>,
    changed: Notify,
}

impl<R: Runtime> Prober<R> {
    #[must_use]
    pub fn new(runtime: Rc<R>, clock: Clock, events: EventRecorder, config: ProberConfig) -> Self {
        let since = clock.now();
        let schedule = RefCell::default();
        let shared = Rc::new(ProberInner { runtime, clock, events, schedule, changed: Notify::new() });
        let shown = Rc::downgrade(&shared);
        metrics::show("prober_", move |text| {
            if let Some(shared) = shown.upgrade() {
                shared.schedule.borrow().show(text);
            }
        });
        Self { shared, config, since, task: RefCell::default() }
    }

    /// Updates the probes from an observation of a pod that is to run: probes of new instances start, those
    /// of removed instances end. Results in `remembered` for the same instance hold until the first run.
    /// `wake` is notified when a published result changes.
    pub(crate) fn observe(
        &self,
        pod: &Rc<Pod>,
        observed: &ObservedPod,
        remembered: Option<&PodStatus>,
        wake: &Rc<Inbox>,
    ) {
        if probed_containers(pod).next().is_none() {
            return self.remove(&pod.metadata.uid);
        }
        let sight = Sight {
            pod,
            observed,
            remembered,
            wake,
            pod_ip: &self.pod_ip(pod, observed),
            now: Instant::now(),
            wall: self.shared.clock.now(),
            agent_since: self.since,
        };
        if self.shared.schedule.borrow_mut().observe(&sight) {
            self.shared.changed.notify_one();
            self.ensure_task();
        }
    }

    /// The published results of a pod's instances.
    #[must_use]
    pub(super) fn results(&self, uid: &PodUid) -> ProbeResults {
        self.shared.schedule.borrow().results(uid)
    }

    /// The pod is being taken down: stops liveness and startup probes; readiness probes continue.
    pub(super) fn keep_only_readiness(&self, uid: &PodUid) {
        if self.shared.schedule.borrow_mut().keep_only_readiness(uid, Instant::now()) {
            self.shared.changed.notify_one();
        }
    }

    pub(crate) fn remove(&self, uid: &PodUid) {
        self.shared.schedule.borrow_mut().remove(uid);
    }

    /// The pod's address; empty while it is unknown, which means this machine.
    fn pod_ip(&self, pod: &Pod, observed: &ObservedPod) -> String {
        let of_sandbox = observed.ready_sandbox().map_or(&[][..], |sandbox| &sandbox.ips);
        pod_address(pod.spec.host_network, of_sandbox, &self.config.node_ips).unwrap_or_default()
    }

    fn ensure_task(&self) {
        let shared = &self.shared;
        self.task.borrow_mut().get_or_insert_with(|| rt::spawn("prober", run_probes(Rc::clone(shared))));
    }
}

impl<R> Drop for Prober<R> {
    /// Running probes end with the task that owns them.
    fn drop(&mut self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
    }
}

/// Starts due probes, records the results of ended ones, sleeps.
async fn run_probes<R: Runtime>(shared: Rc<ProberInner<R>>) {
    let mut runs = JoinSet::new();
    loop {
        let (jobs, next) = shared.schedule.borrow_mut().begin_due(Instant::now());
        for job in jobs {
            runs.spawn_local(run::run(Rc::clone(&shared.runtime), job));
        }
        // Every arm is cancel safe: ended runs stay in the set, a change leaves its permit, the deadline is
        // recomputed.
        tokio::select! {
            biased;
            Some(ended) = runs.join_next() => shared.record(ended),
            () = shared.changed.notified() => {}
            () = wait_until(next) => {}
        }
    }
}

async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

impl<R> ProberInner<R> {
    fn record(&self, ended: Result<Ended, JoinError>) {
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return,
        };
        let news = self.schedule.borrow_mut().finish(&ended, Instant::now());
        if let Some(complaint) = news.complaint {
            let path = container_path(complaint.list, ended.place.container.as_str());
            let pod = complaint.pod.pod_ref();
            self.events.event(&pod, Some(path), EventType::Warning, complaint.reason, &complaint.text);
        }
        if let Some(worker) = news.wake {
            worker.request_observation();
        }
    }
}
