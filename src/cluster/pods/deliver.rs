//! Sends the server what it has to hear of the pods: statuses, the last deletion of an ended pod, mirror pods.
//!
//! Owns what was sent and not yet echoed, and when a failed call is made again. One call at a time for each pod, so
//! that its statuses arrive in their order; pods take turns in the order of their changes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::cluster::pods::mirrors::{NodeIdentity, mirrors};
use crate::cluster::pods::outbox::{Delivery, SeenPod, Sent, accepted, next_delivery, settled};
use crate::cluster::pods::seen::SeenPods;
use crate::model::api::pod::Pod;
use crate::model::back_off::Retry;
use crate::model::ordered::Sortable as _;
use crate::model::provenance::is_of_cluster;
use crate::model::types::PodRef;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::pod::status::StatusManager;
use crate::store::StoreHandle;

/// Calls at once: the apiserver's fair queueing gives one node no more.
const CALLS: usize = 8;
/// Delays between failed calls of one pod.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// While something is not accepted, everything is looked through this often (upstream).
const TICK: Duration = Duration::from_secs(10);
/// Seconds between attempts for one mirror: a static pod's sync period upstream.
const MIRROR_PAUSE: (u32, u32) = (60, 90);

pub(crate) struct DeliveryParts<T> {
    pub client: Rc<Client<T>>,
    pub statuses: Rc<StatusManager>,
    pub store: StoreHandle,
    pub seen: Rc<SeenPods>,
    pub clock: Clock,
    pub dice: Dice,
    /// The static pods, for mirrors; none without mirrors.
    pub local_pods: Rc<dyn Fn() -> Vec<Rc<Pod>>>,
    pub node: Rc<dyn Fn() -> NodeIdentity>,
    /// Set to the number of pods and mirror pods about which the server is still to hear.
    pub waiting: Rc<Cell<usize>>,
}

/// What is known of the calls for one pod, or for one mirror.
struct Calls {
    sent: Option<Sent>,
    is_busy: bool,
    retry: Retry,
    /// No call before this time.
    due: Option<Instant>,
    /// The versions of status and seen pod for which there was nothing to do.
    settled: Option<(u64, u64)>,
    /// A failure was logged; the next success ends that.
    is_failing: bool,
}

impl Default for Calls {
    fn default() -> Self {
        let retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
        Self { sent: None, is_busy: false, retry, due: None, settled: None, is_failing: false }
    }
}

/// A call that has ended.
struct Outcome {
    key: String,
    delivery: Delivery,
    result: Result<(), ApiError>,
}

/// The task `cluster delivery`. It ends with the process.
pub(crate) async fn run<T: Transport>(parts: DeliveryParts<T>) {
    let (done, mut ended) = mpsc::channel(CALLS);
    let (mut statuses, mut seen) = (parts.statuses.watch(), parts.seen.watch());
    let mut deliverer = Deliverer { parts: Rc::new(parts), calls: BTreeMap::new(), busy: 0, done };
    loop {
        let due = deliverer.start_calls();
        deliverer.count_waiting();
        let due = due.unwrap_or_else(|| Instant::now() + TICK);
        let is_waiting = deliverer.is_waiting();
        tokio::select! {
            biased;
            // Cancel safe: an outcome is taken or still in the channel. The task holds a sender itself.
            outcome = ended.recv() => if let Some(outcome) = outcome { deliverer.finish(outcome) },
            // Cancel safe, both: versions stay changed until they are read. Without their senders the process ends.
            changed = seen.changed() => if changed.is_err() { return },
            changed = statuses.changed() => if changed.is_err() { return },
            // The next round computes it again.
            () = sleep_until(due), if is_waiting => {}
        }
    }
}

struct Deliverer<T> {
    parts: Rc<DeliveryParts<T>>,
    /// By the uid of the pod, or the name of the mirror.
    calls: BTreeMap<String, Calls>,
    busy: usize,
    done: mpsc::Sender<Outcome>,
}

impl<T: Transport> Deliverer<T> {
    /// Something is left to do, now or later.
    fn is_waiting(&self) -> bool {
        self.parts.seen.is_live() && self.calls.values().any(|calls| calls.settled.is_none())
    }

    fn count_waiting(&self) {
        let parts = &self.parts;
        let is_settled = |(seen_at, seen): &(u64, SeenPod)| {
            let local = seen.mirror_of.as_ref().unwrap_or(&seen.reference.uid);
            let versions = (parts.statuses.resource_version(local), *seen_at);
            self.calls.get(seen.reference.uid.as_str()).is_some_and(|calls| calls.settled == Some(versions))
        };
        if !parts.seen.is_live() && parts.seen.all().is_empty() {
            // Not listed since the start: what the server knows of these pods is not known here.
            let pods = parts.statuses.all_pods();
            parts.waiting.set(pods.iter().filter(|pod| is_of_cluster(pod)).count());
            return;
        }
        let mirrors = self.calls.keys().filter(|key| key.contains('/')).count();
        let pods = parts.seen.all().iter().filter(|pod| !is_settled(pod)).count();
        parts.waiting.set(pods + mirrors);
    }

    /// Starts what may be started. Returns when to look again.
    fn start_calls(&mut self) -> Option<Instant> {
        if !self.parts.seen.is_live() {
            return None;
        }
        let all = self.parts.seen.all();
        let mut wanted: Vec<(u64, u64, SeenPod)> = Vec::new();
        for (seen_at, seen) in &all {
            let local = seen.mirror_of.as_ref().unwrap_or(&seen.reference.uid);
            wanted.push((self.parts.statuses.resource_version(local), *seen_at, seen.clone()));
        }
        // Those whose pods changed first come first.
        wanted.order_by_key(|(status_at, ..)| *status_at);
        let is_mirror = |key: &String| key.contains('/');
        self.calls.retain(|key, calls| {
            calls.is_busy || is_mirror(key) || all.iter().any(|(_, seen)| seen.reference.uid.as_str() == key)
        });
        let mut next = None;
        for (status_at, seen_at, seen) in wanted {
            earliest(&mut next, self.deliver(status_at, seen_at, &seen));
        }
        let seen: Vec<&SeenPod> = all.iter().map(|(_, seen)| seen).collect();
        earliest(&mut next, self.deliver_mirrors(&seen));
        next
    }

    /// One pod. Returns when to look at it again.
    fn deliver(&mut self, status_at: u64, seen_at: u64, seen: &SeenPod) -> Option<Instant> {
        let parts = Rc::clone(&self.parts);
        let key = seen.reference.uid.to_string();
        let calls = self.calls.entry(key.clone()).or_default();
        let versions = Some((status_at, seen_at));
        if calls.is_busy || (calls.settled == versions && status_at > 0) {
            return None;
        }
        if let Some(due) = calls.due.filter(|due| *due > Instant::now()) {
            return Some(due);
        }
        let PodRef { namespace, name, .. } = &seen.reference;
        let local = seen.mirror_of.as_ref().unwrap_or(&seen.reference.uid);
        let pod = parts.statuses.find(namespace, name, Some(local));
        let now = parts.clock.now();
        let delivery =
            pod.map_or(Delivery::Nothing, |pod| next_delivery(&pod, Some(seen), calls.sent.as_ref(), now));
        match delivery {
            Delivery::Nothing => {
                (calls.settled, calls.due) = (versions, None);
                None
            }
            Delivery::After(at) => Some(Instant::now() + at.saturating_since(now)),
            delivery if self.busy < CALLS => {
                self.start(key, delivery);
                None
            }
            _ => None,
        }
    }

    fn deliver_mirrors(&mut self, seen: &[&SeenPod]) -> Option<Instant> {
        let parts = Rc::clone(&self.parts);
        let statics = (parts.local_pods)();
        let is_mirror = |seen: &&&SeenPod| seen.mirror_of.is_some();
        if statics.is_empty() && !seen.iter().any(|seen| is_mirror(&seen)) {
            return None;
        }
        let mut next = None;
        let deliveries = mirrors(&statics, seen, &(parts.node)());
        let keys: Vec<String> = deliveries.iter().map(mirror_key).collect();
        self.calls.retain(|key, calls| calls.is_busy || !key.contains('/') || keys.contains(key));
        for (key, delivery) in keys.into_iter().zip(deliveries) {
            let calls = self.calls.entry(key.clone()).or_default();
            match calls.due.filter(|due| *due > Instant::now()) {
                _ if calls.is_busy => {}
                Some(due) => earliest(&mut next, Some(due)),
                None if self.busy < CALLS => self.start(key, delivery),
                None => {}
            }
        }
        next
    }

    fn start(&mut self, key: String, delivery: Delivery) {
        let (parts, done) = (Rc::clone(&self.parts), self.done.clone());
        let calls = self.calls.entry(key.clone()).or_default();
        (calls.is_busy, calls.settled) = (true, None);
        self.busy += 1;
        rt::spawn("cluster call", async move {
            let result = call(&parts, &delivery).await;
            // The task ends with the process only.
            let _ = done.send(Outcome { key, delivery, result }).await;
        });
    }

    fn finish(&mut self, Outcome { key, delivery, result }: Outcome) {
        self.busy -= 1;
        let (low, high) = MIRROR_PAUSE;
        let mirror_pause = Duration::from_secs(u64::from(self.parts.dice.between(low, high)));
        let unit = self.parts.dice.unit();
        let now = self.parts.clock.now();
        let calls = self.calls.entry(key.clone()).or_default();
        calls.is_busy = false;
        calls.due = key.contains('/').then(|| Instant::now() + mirror_pause);
        let Err(error) = result else {
            calls.sent = Some(accepted(calls.sent.as_ref(), &delivery, now));
            calls.retry.reset();
            calls.is_failing = false;
            return;
        };
        match error.kind {
            // The object is gone, or another one has its name: the watch says so, too.
            ApiErrorKind::NotFound | ApiErrorKind::Conflict => {
                calls.sent = Some(settled(calls.sent.as_ref(), &delivery, now));
                return;
            }
            // The server will never accept this status.
            ApiErrorKind::Invalid => calls.sent = Some(settled(calls.sent.as_ref(), &delivery, now)),
            _ if calls.due.is_none() => calls.due = Some(Instant::now() + calls.retry.delay_with(unit)),
            _ => {}
        }
        let is_known = std::mem::replace(&mut calls.is_failing, true);
        if !is_known && !error.is_offline() {
            log::warn!(pod = key.as_str(), err:% = error; "Failed to update pod in the cluster");
        }
    }
}

fn earliest(next: &mut Option<Instant>, other: Option<Instant>) {
    *next = match (*next, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
}

/// Names have no slash, uids neither.
fn mirror_key(delivery: &Delivery) -> String {
    match delivery {
        Delivery::CreateMirror { body } => {
            let text = |field: &str| body["metadata"][field].as_str().unwrap_or_default();
            format!("{}/{}", text("namespace"), text("name"))
        }
        Delivery::Delete { to, .. } | Delivery::Patch { to, .. } => {
            format!("{}/{}/{}", to.namespace, to.name, to.uid)
        }
        Delivery::Nothing | Delivery::After(_) => String::new(),
    }
}

fn path_of(namespace: &str, name: &str) -> ResourcePath {
    ResourcePath::namespaced("", "pods", namespace, name)
}

async fn call<T: Transport>(parts: &DeliveryParts<T>, delivery: &Delivery) -> Result<(), ApiError> {
    match delivery {
        Delivery::Patch { to, body, is_end, .. } => {
            if *is_end {
                // A power cut must not run a pod again that the server calls ended. A disk that takes no writes is
                // reported by the store, and the status is sent all the same.
                let _ = parts.store.flush().await;
            }
            let path = path_of(&to.namespace, &to.name).with_part("status");
            let kind = Content::StrategicMerge;
            parts.client.patch(Lane::Main, &path, kind, body, Accept::Metadata).await.map(drop)
        }
        Delivery::Delete { to, grace } => {
            let path = path_of(&to.namespace, &to.name);
            parts.client.delete(Lane::Main, &path, Some(*grace), to.uid.as_str()).await
        }
        Delivery::CreateMirror { body } => {
            let path = path_of(body["metadata"]["namespace"].as_str().unwrap_or_default(), "");
            parts.client.create(Lane::Main, &path, body).await.map(drop)
        }
        Delivery::Nothing | Delivery::After(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
