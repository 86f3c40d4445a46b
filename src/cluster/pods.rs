//! The source `cluster`: the pods that the server has bound to this node, as whole sets.
//!
//! The task `cluster pods` reads the watch of pods and sends [`SourceUpdate`]s to the main loop; the task
//! `cluster delivery` sends back what becomes of them. Between them is [`SeenPods`], what the server shows. Decisions are in
//! the pure files.
//!
//! [`SourceUpdate`]: crate::model::source::SourceUpdate

pub(crate) mod convert;
pub(crate) mod deliver;
pub(crate) mod fence;
pub(crate) mod guard;
pub(crate) mod hold;
pub(crate) mod identity;
pub(crate) mod mirrors;
pub(crate) mod outbox;
pub(crate) mod seen;
pub(crate) mod set;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::cluster::objects::Objects;
use crate::cluster::objects::references::references;
use crate::cluster::pods::guard::{Guard, NodeSeen};
use crate::cluster::pods::seen::SeenPods;
use crate::cluster::pods::set::{NextUpdate, PodSet, SetConfig};
use crate::cluster::watch::{Outputs, WatchOutput};
use crate::model::api::pod::Pod;
use crate::model::ordered::Ordered as _;
use crate::model::source::{SourcePod, SourceUpdate};
use crate::platform::clock::Clock;

/// Rounds in which the watch may go on to read what has arrived, before its events are handed on: a burst of pods is
/// one update and one commit.
const ROUNDS: usize = 64;

pub(crate) struct PodsParts {
    pub config: SetConfig,
    /// The watch of the pods with `spec.nodeName` of this node.
    pub shown: Outputs,
    pub updates: mpsc::Sender<SourceUpdate>,
    pub objects: Rc<Objects>,
    pub seen: Rc<SeenPods>,
    pub clock: Clock,
    /// The pods of the store.
    pub restored: Vec<SourcePod>,
    pub guard: Guard,
    /// The Node object at the server, beside the remembered one.
    pub node: Rc<dyn Fn() -> NodeSeen>,
    /// Changes with the Node object.
    pub node_changed: watch::Receiver<u64>,
    /// An administrator has confirmed the cluster.
    pub accept: mpsc::Receiver<()>,
    /// The guard has changed: it is stored.
    pub on_guard: Rc<dyn Fn(Guard)>,
    /// The server lacks the Node object: the node registers.
    pub register: Rc<dyn Fn()>,
    /// Of every output of the watch, for the state of the link.
    pub on_output: Rc<dyn Fn(&WatchOutput)>,
}

/// The task `cluster pods`. It ends with its watch.
pub(crate) async fn run(mut parts: PodsParts) {
    let restored = std::mem::take(&mut parts.restored);
    let mut set = PodSet::new(parts.config, Rc::clone(&parts.seen), restored, parts.guard);
    let mut objects_changed = parts.objects.changed();
    let mut is_accepted = false;
    let mut guard = parts.guard;
    loop {
        let needs = set.pods().map(|pod| (pod.metadata.uid.clone(), references(pod))).into_map();
        parts.objects.retain(needs);
        set.set_object_problems(parts.objects.problems());
        let (objects, now) = (parts.objects.current(), parts.clock.now());
        let lacks = |pod: &Pod| parts.objects.missing(&references(pod));
        let NextUpdate { update, due, registers } =
            set.update(objects, lacks, (parts.node)(), is_accepted, now);
        if set.guard() != guard {
            guard = set.guard();
            (parts.on_guard)(guard);
        }
        is_accepted &= guard != Guard::Open;
        if let Some(update) = update
            && parts.updates.send(update).await.is_err()
        {
            return;
        }
        if registers {
            (parts.register)();
        }
        let due = due.map(|due| Instant::now() + due.saturating_since(now));
        tokio::select! {
            biased;
            // Cancel safe, all: what has arrived stays where it is until it is taken.
            output = parts.shown.recv() => {
                let Some(output) = output else { return };
                (parts.on_output)(&output);
                set.apply(*output, parts.clock.now());
                take_all(&mut parts.shown, &mut set, &*parts.on_output, &parts.clock).await;
            }
            accepted = parts.accept.recv() => match accepted {
                Some(()) => is_accepted = true,
                None => return,
            },
            changed = parts.node_changed.changed() => if changed.is_err() { return },
            changed = objects_changed.changed() => if changed.is_err() { return },
            // The next round computes it again.
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

/// Takes what the watch has read already, and lets it read on.
async fn take_all(shown: &mut Outputs, set: &mut PodSet, on_output: &dyn Fn(&WatchOutput), clock: &Clock) {
    for _ in 0..ROUNDS {
        let mut has_more = false;
        while let Ok(output) = shown.try_recv() {
            on_output(&output);
            set.apply(*output, clock.now());
            has_more = true;
        }
        if !has_more {
            return;
        }
        tokio::task::yield_now().await;
    }
}
