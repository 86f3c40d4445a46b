//! The set of pods that the source hands on: what the server has, what this node knows, and what is held back.
//!
//! Owns these rules. Invariants: nothing is removed before a complete list was believed, and an object that cannot be
//! read keeps its last version.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::cluster::client::error::ApiError;
use crate::cluster::pods::convert::{Converted, from_server};
use crate::cluster::pods::guard::{FirstAnswer, Guard, GuardReason, NodeSeen, Verdict, judge};
use crate::cluster::pods::hold::{Hold, ready};
use crate::cluster::pods::seen::SeenPods;
use crate::cluster::watch::WatchOutput;
use crate::cluster::watch::frames::{ItemKey, WatchItem};
use crate::model::api::pod::Pod;
use crate::model::ordered::Ordered as _;
use crate::model::source::{SourceAnswer, SourceObject, SourcePod, SourceProblem, SourceUpdate};
use crate::model::types::{PodSource, PodUid, Timestamp};

/// Reasons of problems.
const UNREACHABLE: &str = "ClusterUnreachable";
pub(crate) const REPLACED: &str = "ClusterReplaced";
const UNDECODABLE: &str = "FailedValidation";

/// What does not change while the set lives.
pub(crate) struct SetConfig {
    pub node: String,
    /// The server's address, for messages.
    pub origin: String,
    /// `--cluster-reset-grace`.
    pub guard_grace: Duration,
}

/// A pod of the server that the node is to run.
struct ServerPod {
    pod: Rc<Pod>,
    /// When the watch first showed it.
    since: Timestamp,
}

/// How far the server is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// No complete list since the start.
    Unlisted,
    /// No answer, after a complete list.
    Lost,
    /// A complete list waits for its judgement.
    Unjudged,
    Believed,
}

pub(crate) struct PodSet {
    config: SetConfig,
    seen: Rc<SeenPods>,
    /// As handed on last; at the start those of the store.
    known: BTreeMap<PodUid, Rc<Pod>>,
    server: BTreeMap<PodUid, ServerPod>,
    trust: Trust,
    guard: Guard,
    /// Of a list that is not believed yet.
    version_went_back: bool,
    /// By the key of the object.
    undecodable: BTreeMap<ItemKey, SourceProblem>,
    /// Of objects that pods refer to.
    object_problems: Vec<SourceProblem>,
    /// Why there is no valid answer.
    trouble: Option<SourceProblem>,
    /// What was handed on last, beside the pods.
    last: Option<(bool, Vec<SourceObject>, Vec<SourceProblem>)>,
}

/// What the task does next.
#[derive(Default)]
pub(crate) struct NextUpdate {
    pub update: Option<SourceUpdate>,
    /// When to ask again, at the latest.
    pub due: Option<Timestamp>,
    /// The Node object is not there: register, then ask again.
    pub registers: bool,
}

impl PodSet {
    pub(crate) fn new(config: SetConfig, seen: Rc<SeenPods>, restored: Vec<SourcePod>, guard: Guard) -> Self {
        let known = restored.into_iter().map(|pod| (pod.pod.metadata.uid.clone(), pod.pod)).into_map();
        Self {
            config,
            seen,
            known,
            server: BTreeMap::new(),
            trust: Trust::Unlisted,
            guard,
            version_went_back: false,
            undecodable: BTreeMap::new(),
            object_problems: Vec::new(),
            trouble: None,
            last: None,
        }
    }

    /// The state of the guard, which is stored when it changes.
    pub(crate) fn guard(&self) -> Guard {
        self.guard
    }

    /// Every pod of the server that the node is to run, and while the server is not believed those that keep running.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Rc<Pod>> {
        let is_kept = |uid: &PodUid| self.trust != Trust::Believed && !self.server.contains_key(uid);
        let kept = self.known.iter().filter(move |(uid, _)| is_kept(uid)).map(|(_, pod)| pod);
        self.server.values().map(|held| &held.pod).chain(kept)
    }

    /// All problems of objects that pods refer to, for the next update.
    pub(crate) fn set_object_problems(&mut self, problems: Vec<SourceProblem>) {
        self.object_problems = problems;
    }

    /// Takes what the watch shows.
    pub(crate) fn apply(&mut self, output: WatchOutput, now: Timestamp) {
        match output {
            WatchOutput::Set { items, went_back } => self.replace(items, went_back, now),
            WatchOutput::Put(item) => self.put(item, now),
            WatchOutput::Gone(key) => self.remove(&key),
            WatchOutput::Current if self.trust == Trust::Lost => {
                // The watch goes on where it was: nothing was missed, so there is no list to judge.
                self.trust = Trust::Believed;
                self.trouble = None;
            }
            WatchOutput::Lost(error) => self.lose(&error, now),
            _ => {}
        }
    }

    fn replace(&mut self, items: Vec<WatchItem>, went_back: bool, now: Timestamp) {
        self.version_went_back |= went_back;
        self.undecodable.clear();
        let uids: Vec<PodUid> = items.iter().map(|item| PodUid::from(item.key.uid.as_str())).collect();
        self.server.retain(|uid, _| uids.contains(uid));
        self.seen.retain(|seen| uids.contains(&seen.reference.uid));
        for item in items {
            self.put(item, now);
        }
        if self.trust != Trust::Believed || self.version_went_back {
            self.trust = Trust::Unjudged;
        }
    }

    fn put(&mut self, item: WatchItem, now: Timestamp) {
        let uid = PodUid::from(item.key.uid.as_str());
        let known = self.server.get(&uid).map(|held| &held.pod).or_else(|| self.known.get(&uid)).cloned();
        match from_server(item.value, &self.config.node, known.as_ref(), now) {
            Ok(Converted { seen, pod }) => {
                self.undecodable.remove(&item.key);
                self.seen.put(seen);
                let Some(pod) = pod else { return };
                let since = self.server.get(&uid).map_or(now, |held| held.since);
                self.server.insert(uid, ServerPod { pod, since });
            }
            Err(why) => {
                let name = format!("{}/{}", item.key.namespace, item.key.name);
                let message = match &known {
                    Some(_) => format!("pod {name} cannot be read, keeping its last version: {why}"),
                    None => format!("pod {name} cannot be run: {why}"),
                };
                if let Some(pod) = known {
                    self.server.entry(uid).or_insert(ServerPod { pod, since: now });
                }
                let problem = self.problem(UNDECODABLE, message, now);
                self.undecodable.insert(item.key, problem);
            }
        }
    }

    fn remove(&mut self, key: &ItemKey) {
        let uid = PodUid::from(key.uid.as_str());
        self.server.remove(&uid);
        self.undecodable.remove(key);
        self.seen.retain(|seen| seen.reference.uid != uid);
    }

    fn lose(&mut self, error: &ApiError, now: Timestamp) {
        if self.trust == Trust::Believed {
            self.trust = Trust::Lost;
        }
        self.seen.set_live(false);
        let is_new = self.trouble.as_ref().is_none_or(|trouble| trouble.reason != UNREACHABLE);
        if is_new {
            self.trouble = Some(self.problem(UNREACHABLE, error.to_string(), now));
        }
    }

    fn problem(&self, reason: &str, message: String, since: Timestamp) -> SourceProblem {
        let (origin, reason) = (self.config.origin.clone(), reason.to_owned());
        SourceProblem { origin, reason, message, since, pod: String::new() }
    }

    /// Whether the answers of the server are believed; judges a list that is not judged yet.
    fn is_believed(&mut self, node: NodeSeen, accepted: bool, now: Timestamp, next: &mut NextUpdate) -> bool {
        if self.trust != Trust::Unjudged {
            return self.trust == Trust::Believed;
        }
        let answer = FirstAnswer {
            known: self.known.len(),
            missing: self.known.keys().filter(|uid| !self.server.contains_key(*uid)).count(),
            node,
            version_went_back: self.version_went_back,
        };
        let (guard, verdict) = judge(&self.guard, &answer, accepted, now, self.config.guard_grace);
        self.guard = guard;
        match (verdict, guard) {
            (Verdict::Believe, _) => {
                self.trust = Trust::Believed;
                (self.version_went_back, self.trouble) = (false, None);
                return true;
            }
            (Verdict::Hold, Guard::Holding { since, why }) => {
                next.due = Some(since.saturating_add(self.config.guard_grace));
                let what = match why {
                    GuardReason::AnotherNode => "the cluster does not know this node any more and lacks",
                    GuardReason::VersionWentBack => {
                        "the cluster has gone back to an earlier state, as from a backup of etcd, and lacks"
                    }
                };
                let message = format!(
                    "{what} {} of its {} pods; they keep running until the grace period ends; \
                     confirm the cluster with: agent source accept cluster",
                    answer.missing, answer.known
                );
                self.trouble = Some(self.problem(REPLACED, message, since));
            }
            _ => next.registers = true,
        }
        false
    }

    /// What to hand on now. `lacks` says whether a pod's objects are still to come.
    pub(crate) fn update(
        &mut self,
        objects: Vec<SourceObject>,
        lacks: impl Fn(&Pod) -> bool,
        node: NodeSeen,
        accepted: bool,
        now: Timestamp,
    ) -> NextUpdate {
        let mut next = NextUpdate::default();
        let is_believed = self.is_believed(node, accepted, now, &mut next);
        self.seen.set_live(is_believed);
        if !is_believed {
            let problems: Vec<SourceProblem> = self.trouble.iter().cloned().collect();
            let state = (false, Vec::new(), problems.clone());
            if !problems.is_empty() && self.last.as_ref() != Some(&state) {
                self.last = Some(state);
                next.update = Some(message(SourceAnswer::Unknown, Vec::new(), problems));
            }
            return next;
        }
        let mut wanted = BTreeMap::new();
        for (uid, held) in &self.server {
            match ready(&held.pod, self.known.contains_key(uid), lacks(&held.pod), now, held.since) {
                Hold::Ready => {
                    wanted.insert(uid.clone(), Rc::clone(&held.pod));
                }
                Hold::Until(until) => next.due = Some(next.due.map_or(until, |due| due.min(until))),
            }
        }
        let mut problems: Vec<SourceProblem> = self.undecodable.values().cloned().collect();
        problems.extend(self.object_problems.iter().cloned());
        let state = (true, objects.clone(), problems.clone());
        if self.last.as_ref() == Some(&state) && is_same(&self.known, &wanted) {
            return next;
        }
        self.last = Some(state);
        let origin = &self.config.origin;
        let pods = wanted.values().map(|pod| SourcePod { pod: Rc::clone(pod), origin: origin.clone() });
        let pods = SourceAnswer::Pods(pods.collect());
        self.known = wanted;
        next.update = Some(message(pods, objects, problems));
        next
    }
}

fn message(answer: SourceAnswer, objects: Vec<SourceObject>, problems: Vec<SourceProblem>) -> SourceUpdate {
    SourceUpdate { source: PodSource::Cluster, answer, objects, problems, validator: None, signed: None }
}

/// A pod that has not changed is the same `Rc`.
fn is_same(known: &BTreeMap<PodUid, Rc<Pod>>, wanted: &BTreeMap<PodUid, Rc<Pod>>) -> bool {
    known.len() == wanted.len()
        && known.iter().all(|(uid, pod)| wanted.get(uid).is_some_and(|other| Rc::ptr_eq(pod, other)))
}
