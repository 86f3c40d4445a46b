//! The task of the controllers: it waits for changes and deadlines, and takes the steps that are due within one edit.
//!
//! Owns when steps are taken, and how often statuses are written.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::item::{Item, controller};
use super::node::{InPass, Node, each_used_claim};
use super::pods::{PodView, owner_uid};
use super::steps;
use super::world::{CONTROLLERS, Rest, World, WorldEvent};
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::{ApiChange, EditError, Editor};
use crate::model::api::pod::StringMap;
use crate::model::objects::{LocalObjects, ObjectKey, ObjectKind, ObjectLookup as _};
use crate::model::provenance::is_from_api;
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::pod::admission::Admission;
use crate::pod::events::EventRecorder;
use crate::pod::scheduling::first_status;
use crate::pod::status::StatusManager;

/// Writes of nothing but statuses are so far apart: a status that changes back and forth is one write.
const BETWEEN_STATUSES: Duration = Duration::from_secs(1);
/// After a write that the disk refused.
const RETRY: Duration = Duration::from_secs(30);

/// What the task needs.
pub struct WorkloadParts {
    pub node_name: String,
    pub clock: Clock,
    pub editor: Editor,
    pub objects: Rc<LocalObjects>,
    pub statuses: Rc<StatusManager>,
    pub events: EventRecorder,
    pub admission: Admission,
    /// Changes whenever the desired state does.
    pub desired: watch::Receiver<u64>,
    /// The names of the runtime's handlers.
    pub handlers: Rc<dyn Fn() -> Vec<String>>,
    /// Where names and uids come from.
    pub dice: Dice,
}

struct Driver {
    editor: Editor,
    objects: Rc<LocalObjects>,
    statuses: Rc<StatusManager>,
    events: EventRecorder,
    node: Rc<Node>,
    /// What each controller's step was last taken over.
    known: BTreeMap<ObjectKey, u64>,
    rests: BTreeMap<ObjectKey, Rest>,
    /// When statuses alone were last written.
    shown: Option<Instant>,
    /// Statuses wait to be written.
    held: Option<Held>,
    /// The disk refuses writes: no pass before.
    retry: Option<Instant>,
    dice: Dice,
    /// There was no pass: an earlier process may have left something.
    is_new: bool,
}

/// Statuses that were not written, because others were a moment ago.
struct Held {
    until: Instant,
    /// What the pass was taken over, and which steps were due: while nothing else changes, there is no other.
    prints: BTreeMap<ObjectKey, u64>,
    due: Vec<ObjectKey>,
}

/// What one pass has left.
#[derive(Default)]
struct Pass {
    rests: BTreeMap<ObjectKey, Rest>,
    events: Vec<WorldEvent>,
    /// Only statuses were written.
    is_status_only: bool,
    /// They were not, because that was done a moment ago.
    is_held: bool,
    is_restless: bool,
}

/// Runs the controllers for as long as the process.
pub async fn run(parts: WorkloadParts) {
    let WorkloadParts { mut desired, clock, statuses, objects, handlers, .. } = parts;
    let (name, admission) = (parts.node_name, parts.admission);
    let node = Rc::new(Node::new(name, clock.clone(), admission, Rc::clone(&objects), handlers));
    let mut of_pods = statuses.watch();
    let alarm = clock.alarm();
    let mut driver = Driver {
        editor: parts.editor,
        objects,
        statuses,
        events: parts.events,
        node,
        known: BTreeMap::new(),
        rests: BTreeMap::new(),
        shown: None,
        held: None,
        retry: None,
        dice: parts.dice,
        is_new: true,
    };
    loop {
        desired.borrow_and_update();
        of_pods.borrow_and_update();
        if driver.check().await.is_err() {
            return;
        }
        let is_used = !driver.known.is_empty();
        let pause = driver.held.as_ref().map(|held| held.until).into_iter().chain(driver.retry).min();
        // Losing an arm is safe: versions stay changed until they are read, and deadlines are kept.
        tokio::select! {
            biased;
            changed = desired.changed() => if changed.is_err() { return },
            Ok(()) = of_pods.changed(), if is_used => {}
            () = alarm.wait_until(driver.deadline()), if is_used && pause.is_none() => {}
            () = wait_for(pause) => {}
        }
    }
}

pub(super) async fn wait_for(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Driver {
    fn deadline(&self) -> Option<Timestamp> {
        self.rests.values().filter_map(|rest| rest.wake).min()
    }

    /// Takes the steps of everything that differs or is due.
    async fn check(&mut self) -> Result<(), EditError> {
        if self.retry.is_some_and(|retry| retry > Instant::now()) {
            return Ok(());
        }
        self.retry = None;
        self.node.check_clock();
        let prints = self.prints();
        let now = self.node.clock.now();
        let due: Vec<ObjectKey> = prints
            .keys()
            .filter(|key| self.rests.get(key).and_then(|rest| rest.wake).is_some_and(|wake| wake <= now))
            .cloned()
            .collect();
        let dirty: Vec<ObjectKey> = prints
            .iter()
            .filter(|(key, print)| self.known.get(key) != Some(print))
            .map(|(key, _)| key.clone())
            .collect();
        let has_lost = self.known.keys().any(|key| !prints.contains_key(key));
        if due.is_empty() && dirty.is_empty() && !has_lost && !self.is_new {
            return Ok(());
        }
        let waits = |held: &Held| held.until > Instant::now() && held.prints == prints && held.due == due;
        if self.held.as_ref().is_some_and(waits) {
            return Ok(());
        }
        self.rests.retain(|key, _| prints.contains_key(key));
        let is_held = self.shown.is_some_and(|shown| shown.elapsed() < BETWEEN_STATUSES);
        loop {
            let pass = self.pass(&dirty, &due, is_held).await;
            let pass = match pass {
                Ok(pass) => pass,
                Err(EditError::Ending) => return Err(EditError::Ending),
                Err(error) => {
                    log::warn!(err:% = error; "Failed to store what the controllers decided, trying again later");
                    self.retry = Some(Instant::now() + RETRY);
                    return Ok(());
                }
            };
            if pass.is_restless {
                log::error!("The controllers do not come to rest, continuing with the next change");
            }
            for event in pass.events {
                self.record(&event);
            }
            if pass.is_held {
                self.held = self.shown.map(|shown| Held { until: shown + BETWEEN_STATUSES, prints, due });
                return Ok(());
            }
            if pass.is_status_only {
                self.shown = Some(Instant::now());
            }
            self.rests = pass.rests;
            if !self.node.read_zones().await {
                break;
            }
        }
        self.held = None;
        self.is_new = false;
        self.known = prints;
        Ok(())
    }

    fn record(&self, event: &WorldEvent) {
        let WorldEvent { key, uid, event_type, reason, message } = event;
        self.events.object_event(key, uid, *event_type, reason, message);
    }

    async fn pass(&self, dirty: &[ObjectKey], due: &[ObjectKey], is_held: bool) -> Result<Pass, EditError> {
        let (node, objects, statuses) =
            (Rc::clone(&self.node), Rc::clone(&self.objects), Rc::clone(&self.statuses));
        let (dirty, due, rests) = (dirty.to_vec(), due.to_vec(), self.rests.clone());
        let seed = self.dice.word();
        self.editor
            .edit(move |config| {
                let environment = InPass { node: &node, config, statuses: &statuses };
                let now = node.clock.now();
                let items = items(config, &objects);
                let pods = pods(config, &statuses);
                let mut world = World::new(now, &environment, seed, items, pods);
                world.remember(rests);
                for key in &dirty {
                    world.mark(key);
                }
                for key in &due {
                    world.mark_due(key);
                }
                let mut is_restless = !world.settle(steps::take);
                world.release_orphans();
                world.trim_ended();
                is_restless |= !world.settle(steps::take);
                let rests = world.rests().clone();
                let changes = world.finish();
                if changes.is_status_only && is_held && !changes.put_objects.is_empty() {
                    return (ApiChange::default(), Pass { is_held: true, ..Pass::default() });
                }
                let is_status_only = changes.is_status_only && !changes.put_objects.is_empty();
                let change = ApiChange {
                    put_objects: changes.put_objects,
                    remove_objects: changes.remove_objects,
                    put_pods: changes.put_pods,
                    remove_pods: changes.remove_pods.into_iter().map(|pod| (pod, None)).collect(),
                    ..ApiChange::default()
                };
                let pass =
                    Pass { rests, events: changes.events, is_status_only, is_held: false, is_restless };
                (change, pass)
            })
            .await
    }

    /// For each controller a number that changes whenever anything does that its step reads.
    fn prints(&self) -> BTreeMap<ObjectKey, u64> {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        let mut unowned: BTreeMap<String, u64> = BTreeMap::new();
        let mut claims: BTreeMap<String, u64> = BTreeMap::new();
        // Those of priorities: the generation does not count them.
        let mut classes = 0_u64;
        let mut found: Vec<(ObjectKey, String)> = Vec::new();
        self.objects.each(|object, version| {
            let key = &object.key;
            if key.kind == ObjectKind::PersistentVolumeClaim {
                mix(claims.entry(key.namespace.clone()).or_default(), version);
                return;
            }
            if key.kind == ObjectKind::PriorityClass {
                mix(&mut classes, version);
                return;
            }
            let acts = CONTROLLERS.contains(&key.kind);
            if !acts && key.kind != ObjectKind::ControllerRevision {
                return;
            }
            if acts {
                mix(sums.entry(object.uid.clone()).or_default(), version);
                found.push((key.clone(), object.uid.clone()));
            }
            match controller(object) {
                Some(owner) => mix(sums.entry(owner.uid.clone()).or_default(), version),
                None if key.kind == ObjectKind::ReplicaSet => {
                    mix(unowned.entry(key.namespace.clone()).or_default(), version);
                }
                None => {}
            }
        });
        if found.is_empty() {
            return BTreeMap::new();
        }
        // Of those that are there, whatever their state.
        let mut present = 0_u64;
        self.statuses.each(|pod, _, version| {
            if !is_from_api(pod) {
                return;
            }
            present = present.wrapping_add(hash(&pod.metadata.uid));
            if let Some(uid) = owner_uid(pod) {
                mix(sums.entry(uid.to_owned()).or_default(), version);
            } else {
                let own =
                    (&pod.metadata.uid, &pod.metadata.labels, pod.metadata.deletion_timestamp.is_some());
                mix(unowned.entry(pod.metadata.namespace.clone()).or_default(), hash(&own));
            }
        });
        let node = hash(&placement(&self.node.admission));
        let mut all_claims = hash(&claims);
        if found.iter().any(|(key, _)| key.kind == ObjectKind::PersistentVolume) {
            let mut used = BTreeSet::new();
            each_used_claim(&self.statuses, |pod, claim| {
                used.insert((pod.metadata.uid.clone(), claim));
            });
            mix(&mut all_claims, hash(&used));
        }
        let is_failing = self.rests.values().any(|rest| rest.is_failing);
        let handlers = if is_failing { (self.node.handlers)() } else { Vec::new() };
        let others = hash(&(self.objects.generation(), classes, present, handlers));
        let print = |(key, uid): (ObjectKey, String)| {
            let mut print = sums.get(&uid).copied().unwrap_or_default();
            let of_namespace =
                |sums: &BTreeMap<String, u64>| sums.get(&key.namespace).copied().unwrap_or_default();
            if !matches!(key.kind, ObjectKind::Job | ObjectKind::CronJob) {
                mix(&mut print, of_namespace(&unowned));
            }
            match key.kind {
                ObjectKind::StatefulSet => mix(&mut print, of_namespace(&claims)),
                ObjectKind::DaemonSet => mix(&mut print, node),
                ObjectKind::PersistentVolume => mix(&mut print, all_claims),
                _ => {}
            }
            if self.rests.get(&key).is_some_and(|rest| rest.is_failing) {
                mix(&mut print, others);
            }
            (key, print)
        };
        found.into_iter().map(print).collect()
    }
}

/// What decides whether a daemon runs on this node.
fn placement(admission: &Admission) -> (StringMap, Vec<[String; 3]>, bool) {
    let node = admission.node();
    let taints = node.taints.into_iter().map(|taint| [taint.key, taint.value, taint.effect]).collect();
    (node.labels, taints, node.unschedulable)
}

fn mix(sum: &mut u64, number: u64) {
    *sum = (sum.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The objects that steps read.
pub(super) fn items(config: &PodConfig, objects: &LocalObjects) -> Vec<Item> {
    let mut items = Vec::new();
    objects.each(|object, _| {
        let kind = object.key.kind;
        let is_read = CONTROLLERS.contains(&kind)
            || matches!(kind, ObjectKind::ControllerRevision | ObjectKind::PersistentVolumeClaim);
        if is_read {
            let source = config.find_object(&object.key).map(|(source, _)| source);
            items.push(Item::new(Rc::clone(object), source != Some(PodSource::Api)));
        }
    });
    items
}

/// The pods of the API with their statuses: those that are desired, and those that still run.
pub(super) fn pods(config: &PodConfig, statuses: &StatusManager) -> Vec<PodView> {
    let mut pods: BTreeMap<PodUid, PodView> = BTreeMap::new();
    statuses.each(|pod, status, _| {
        if is_from_api(pod) {
            let view = PodView::removed(Rc::clone(pod), Rc::new(status.clone()));
            pods.insert(pod.metadata.uid.clone(), view);
        }
    });
    for (_, desired) in config.pods_by_source().filter(|(source, _)| *source == PodSource::Api) {
        let pod = Rc::clone(&desired.pod);
        let uid = pod.metadata.uid.clone();
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        let known = pods.remove(&uid).map(|view| view.status);
        let status = known.unwrap_or_else(|| {
            let last = statuses.last(&uid);
            Rc::new(last.unwrap_or_else(|| first_status(&pod)))
        });
        pods.insert(uid, PodView { pod, status, is_deleted });
    }
    pods.into_values().collect()
}
