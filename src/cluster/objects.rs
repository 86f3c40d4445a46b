//! The objects of the cluster that the pods of this node refer to.
//!
//! Owns what is known of them. The task `cluster objects` watches each object as long as a pod refers to it, the task
//! `cluster tokens` asks for tokens; both write to [`Facts`] what is no object. A node without the watches needs
//! nothing and misses nothing.

mod feeds;
pub(crate) mod references;
pub(crate) mod volumes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use crate::cluster::client::Client;
use crate::cluster::client::transport::Transport;
use crate::cluster::facts::{FactChange, Facts};
use crate::cluster::objects::references::Needs;
use crate::cluster::tokens::{self, TokenUsers};
use crate::model::api::pod::Pod;
use crate::model::objects::{
    Absence, ClaimSpec, ClusterFacts as _, LocalObject, ObjectContent, ObjectKey, ObjectKind, TokenRequest,
};
use crate::model::ordered::Ordered as _;
use crate::model::source::{SourceObject, SourceProblem};
use crate::model::types::PodUid;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;

/// `configMapAndSecretChangeDetectionStrategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detection {
    /// A GET for each new pod, and then every minute.
    Get,
    /// A GET for each new pod, and then when the Node's annotation says so.
    Cache,
    Watch,
    /// A GET for each new pod, and then every five minutes: a link that is paid by the byte.
    Seldom,
}

impl Detection {
    /// Of the setting's value.
    pub(crate) fn of(text: &str) -> Self {
        match text {
            "Get" => Self::Get,
            "Cache" => Self::Cache,
            _ => Self::Watch,
        }
    }
}

/// Takes into the claim of a pod what it is bound to, or says why it is not: claim, volume (`null` while the claim has
/// none), the pod.
pub(crate) type BindClaim = Rc<dyn Fn(&Value, &Value, &Pod, &mut ClaimSpec) -> Result<(), String>>;

pub(crate) struct ObjectsParts<T> {
    pub client: Rc<Client<T>>,
    pub clock: Clock,
    pub dice: Dice,
    pub facts: Rc<Facts>,
    /// The objects of the store.
    pub restored: Vec<SourceObject>,
    /// The server's address, as of the pods.
    pub origin: String,
    pub detection: Detection,
    /// The Node's annotation `node.alpha.kubernetes.io/ttl`.
    pub node_ttl: Rc<dyn Fn() -> Option<Duration>>,
    pub bind: BindClaim,
    /// A fact has changed that is stored.
    pub on_row: Rc<dyn Fn(FactChange)>,
}

pub(crate) struct Objects {
    facts: Rc<Facts>,
    state: RefCell<ObjectState>,
    /// `None` without the watches.
    detection: Option<Detection>,
    /// Changes with what pods need.
    needed: watch::Sender<u64>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct ObjectState {
    needs: BTreeMap<PodUid, Needs>,
    objects: BTreeMap<ObjectKey, SourceObject>,
    /// A new pod needs a new answer, whatever is known.
    asked: BTreeSet<ObjectKey>,
    problems: BTreeMap<ObjectKey, SourceProblem>,
}

impl TokenUsers for Objects {
    fn wanted(&self) -> BTreeSet<TokenRequest> {
        self.needed(|all| all.values().flat_map(|needs| needs.tokens.clone()).into_set())
    }

    fn publish(&self) {
        Self::publish(self);
    }
}

impl Objects {
    /// Without the watches.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::of(Facts::restored(&[]), Vec::new(), None)
    }

    fn of(facts: Rc<Facts>, restored: Vec<SourceObject>, detection: Option<Detection>) -> Self {
        let objects = restored.into_iter().map(|object| (object.object.key.clone(), object)).into_map();
        let state = RefCell::new(ObjectState { objects, ..ObjectState::default() });
        let (needed, version) = (watch::Sender::new(0), watch::Sender::new(0));
        Self { facts, state, detection, needed, version }
    }

    /// Starts the tasks `cluster objects` and `cluster tokens`. They begin with the first call of
    /// [`retain`](Self::retain) and end with the returned handle.
    pub(crate) fn start<T: Transport>(mut parts: ObjectsParts<T>) -> Rc<Self> {
        let restored = std::mem::take(&mut parts.restored);
        let objects = Rc::new(Self::of(Rc::clone(&parts.facts), restored, Some(parts.detection)));
        let tokens = tokens::TokensParts {
            client: Rc::clone(&parts.client),
            clock: parts.clock.clone(),
            dice: parts.dice.clone(),
            facts: Rc::clone(&parts.facts),
            on_row: Rc::clone(&parts.on_row),
        };
        let needed = objects.needed.subscribe();
        let users: Weak<dyn TokenUsers> = {
            let objects: Rc<dyn TokenUsers> = Rc::<Self>::clone(&objects);
            Rc::downgrade(&objects)
        };
        drop(rt::spawn("cluster tokens", tokens::run(tokens, users, needed.clone())));
        drop(rt::spawn("cluster objects", feeds::run(parts, Rc::downgrade(&objects), needed)));
        objects
    }

    /// What the pods of the set need, by pod; anything else is no longer watched.
    pub(crate) fn retain(&self, needs: BTreeMap<PodUid, Needs>) {
        let state = &mut *self.state.borrow_mut();
        if self.detection.is_none() || (state.needs == needs && *self.needed.borrow() > 0) {
            return;
        }
        let new = needs.iter().filter(|(uid, _)| !state.needs.contains_key(*uid));
        let is_fixed =
            |key: &ObjectKey| state.objects.get(key).is_some_and(|known| is_immutable(&known.object));
        let asked = new.flat_map(|(_, needs)| needs.keys());
        state.asked.extend(asked.filter(|key| self.is_read_once(key.kind) && !is_fixed(key)));
        let keys = needs.values().flat_map(Needs::keys).into_set();
        state.objects.retain(|key, _| keys.contains(key));
        state.problems.retain(|key, _| keys.contains(key));
        state.asked.retain(|key| keys.contains(key));
        self.facts.retain_absences(&keys);
        state.needs = needs;
        self.needed.send_modify(|version| *version += 1);
    }

    /// All objects that are known, for the set of the source.
    pub(crate) fn current(&self) -> Vec<SourceObject> {
        self.state.borrow().objects.values().cloned().collect()
    }

    /// An answer about some of these objects is still to come.
    pub(crate) fn missing(&self, of: &Needs) -> bool {
        if self.detection.is_none() {
            return false;
        }
        let state = self.state.borrow();
        let lacks = |key: &ObjectKey| {
            let is_known = state.objects.contains_key(key) || self.facts.absence(key) != Absence::NotSynced;
            state.asked.contains(key) || !is_known
        };
        of.keys().any(|key| lacks(&key))
            || of.tokens.iter().any(|request| self.facts.token(request) == Err(Absence::NotSynced))
            || !self.facts.has_services(&of.namespace, true)
            || (!of.bundles.is_empty() && self.facts.bundles().is_none())
    }

    /// Objects of the server that cannot be read; those that are known keep their last version.
    pub(crate) fn problems(&self) -> Vec<SourceProblem> {
        self.state.borrow().problems.values().cloned().collect()
    }

    /// Changes whenever an object changes, or an answer about one has come.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The link is back: what waits to be asked again is asked now.
    pub(crate) fn retry_now(&self) {
        self.needed.send_modify(|version| *version += 1);
    }

    pub(super) fn publish(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// What pods need, as one value.
    pub(super) fn needed<R>(&self, read: impl FnOnce(&BTreeMap<PodUid, Needs>) -> R) -> R {
        read(&self.state.borrow().needs)
    }

    /// No watch follows the object.
    fn is_read_once(&self, kind: ObjectKind) -> bool {
        match kind {
            // The Node authorizer allows no watch.
            ObjectKind::PersistentVolumeClaim => true,
            ObjectKind::ConfigMap | ObjectKind::Secret => self.detection != Some(Detection::Watch),
            _ => false,
        }
    }

    /// Takes an object of the server; whether readers see a change.
    fn put(&self, object: LocalObject, origin: &str) -> bool {
        let state = &mut *self.state.borrow_mut();
        let key = object.key.clone();
        let is_same = state.objects.get(&key).is_some_and(|known| *known.object == object);
        let was_asked = state.asked.remove(&key);
        let was_bad = state.problems.remove(&key).is_some();
        let was_absent = self.facts.set_absence(&key, None);
        if !is_same {
            state.objects.insert(key, SourceObject { object: Rc::new(object), origin: origin.to_owned() });
        }
        !is_same || was_asked || was_bad || was_absent
    }

    /// An answer that is no object, or none; whether readers see a change. An object that is known stays: as upstream,
    /// volumes keep their content.
    fn lack(&self, key: &ObjectKey, why: Option<Absence>) -> bool {
        let was_asked = self.state.borrow_mut().asked.remove(key);
        let is_other = why.is_some() && self.facts.set_absence(key, why);
        was_asked || is_other
    }

    fn add_problem(&self, key: &ObjectKey, problem: SourceProblem) -> bool {
        let problems = &mut self.state.borrow_mut().problems;
        let is_known = problems.get(key).is_some_and(|known| known.message == problem.message);
        if !is_known {
            let err = problem.message.as_str();
            log::warn!(object = key.to_string(), err = err; "Object of the cluster cannot be read");
            problems.insert(key.clone(), problem);
        }
        !is_known
    }
}

fn is_immutable(object: &LocalObject) -> bool {
    match &object.content {
        ObjectContent::ConfigMap { immutable, .. } | ObjectContent::Secret { immutable, .. } => *immutable,
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod tests;
