//! The ReplicaSet of the current template, the numbers of revisions, and how many old ones are kept.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::{Value, json};

use super::{
    DESIRED, DeploymentStep, HASH, MAX, NONE, PROGRESSING, REVISION, REVISION_HISTORY, Set, UPDATED,
};
use super::{revision, template_of, without_hash};
use crate::model::api::pod::StringMap;
use crate::model::objects::{ObjectKey, ObjectKind};
use crate::model::ordered::Sortable as _;
use crate::workload::fields::Said;
use crate::workload::image_update::{DIGESTS, SEEN, follows};
use crate::workload::names::hash;
use crate::workload::template::same_meaning;

/// Annotations that a ReplicaSet does not take from its Deployment.
const OWN: [&str; 8] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
    DIGESTS,
    SEEN,
];
/// Upstream's bound of the history in an annotation.
const MAX_HISTORY_CHARS: usize = 2000;
/// Sets that are kept without a `revisionHistoryLimit`.
const KEPT: i64 = 10;

impl DeploymentStep<'_, '_> {
    /// The oldest set with the current template.
    pub(super) fn find_new(&mut self) {
        let template = without_hash(template_of(self.item));
        let find = |is_it: fn(&Value, &Value) -> bool| {
            self.sets.iter().position(|set| {
                let set = self.world.item(&set.key);
                set.is_some_and(|set| is_it(&without_hash(template_of(set)), &template))
            })
        };
        self.new = find(Value::eq).or_else(|| find(same_meaning));
    }

    /// The set of the current template, made if there is none.
    pub(super) fn ensure_new(&mut self) {
        if self.new.is_some() {
            self.note_new();
        } else {
            self.create_new();
        }
    }

    fn newest_old(&self) -> i64 {
        self.old().map(|at| self.sets[at].revision).max().unwrap_or_default()
    }

    /// The revision and the Deployment's annotations, on the set that is there and on the Deployment.
    pub(super) fn note_new(&mut self) {
        let Some(new) = self.new else { return };
        let (next, key) = (self.newest_old() + 1, self.sets[new].key.clone());
        let copied: StringMap = self.copied_annotations();
        let min_ready = self.wanted.min_ready;
        let changes = self.world.item(&key).is_some_and(|set| {
            revision(set) < next
                || copied.iter().any(|(name, value)| set.annotation(name) != Some(value))
                || set.int("/spec/minReadySeconds", 0) != min_ready
        });
        if changes {
            self.world.change(&key, |set| {
                for (name, value) in &copied {
                    set.annotate(name, Some(value));
                }
                let known = revision(set);
                if known < next {
                    set.annotate(REVISION, Some(&next.to_string()));
                    if known > 0 {
                        let history = with_history(set.annotation(REVISION_HISTORY), known);
                        set.annotate(REVISION_HISTORY, Some(&history));
                    }
                }
                if set.int("/spec/minReadySeconds", 0) != min_ready {
                    set.set_spec("minReadySeconds", json!(min_ready));
                }
            });
            self.sets[new].revision = self.sets[new].revision.max(next);
        }
        let revision = self.sets[new].revision.to_string();
        self.item.annotate(REVISION, Some(&revision));
        if self.wanted.deadline.is_some() && self.conditions.get(PROGRESSING).is_none() {
            let message = format!("Found new replica set {:?}", key.name);
            let said =
                Said { kind: PROGRESSING, status: "True", reason: "FoundNewReplicaSet", message: &message };
            self.conditions.set(said, UPDATED, self.world.now);
        }
    }

    fn copied_annotations(&self) -> StringMap {
        let mut annotations = self.item.object.annotations.clone();
        annotations.retain(|name, _| !OWN.contains(&name.as_str()));
        annotations
    }

    fn create_new(&mut self) {
        let mut template = without_hash(template_of(self.item));
        let namespace = self.item.object.key.namespace.clone();
        let (name, hash) = loop {
            let hash = hash(&template, self.collisions);
            let name = format!("{}-{hash}", self.item.name());
            if self.world.get(ObjectKind::ReplicaSet, &namespace, &name).is_none() {
                break (name, hash);
            }
            // Another template, or another object, has this name.
            self.collisions += 1;
        };
        template["metadata"]["labels"][HASH] = json!(hash);
        let mut selector = self.item.at("/spec/selector").clone();
        selector["matchLabels"][HASH] = json!(hash);
        let replicas = self.new_replicas(0);
        let next = self.newest_old() + 1;
        let mut annotations = self.copied_annotations();
        for (name, value) in [
            (REVISION, next),
            (DESIRED, self.wanted.replicas),
            (MAX, self.wanted.replicas + self.wanted.surge),
        ] {
            annotations.insert(name.to_owned(), value.to_string());
        }
        if let Some(digests) = self.digests_before(&template) {
            annotations.insert(DIGESTS.to_owned(), digests);
        }
        let metadata = json!({"labels": template["metadata"]["labels"], "annotations": annotations});
        let mut spec = json!({"replicas": replicas, "selector": selector, "template": template});
        if self.wanted.min_ready > 0 {
            spec["minReadySeconds"] = json!(self.wanted.min_ready);
        }
        let body = json!({"spec": spec, "status": {"replicas": 0}});
        let (reason, message) =
            match self.world.create(self.item, ObjectKind::ReplicaSet, name.clone(), &metadata, body) {
                Ok(key) => {
                    self.item.annotate(REVISION, Some(&next.to_string()));
                    self.new = Some(self.sets.len());
                    self.sets.extend(self.world.item(&key).map(Set::of));
                    if replicas > 0 {
                        let message = format!("Scaled up replica set {name} from 0 to {replicas}");
                        self.world.normal(self.item, "ScalingReplicaSet", message);
                    }
                    ("NewReplicaSetCreated", format!("Created new replica set {name:?}"))
                }
                Err(why) => {
                    ("ReplicaSetCreateError", format!("Failed to create new replica set {name:?}: {why}"))
                }
            };
        if self.wanted.deadline.is_some() {
            let status = if self.new.is_some() { "True" } else { "False" };
            let said = Said { kind: PROGRESSING, status, reason, message: &message };
            self.conditions.set(said, UPDATED, self.world.now);
        }
    }

    /// The digests of the set before, for a template that has none: another variable is no other image.
    fn digests_before(&self, template: &Value) -> Option<String> {
        let has_own = template["metadata"]["annotations"][DIGESTS].is_string();
        if has_own || !follows(self.item) {
            return None;
        }
        let newest = self.old().max_by_key(|at| self.sets[*at].revision)?;
        self.world.item(&self.sets[newest].key)?.annotation(DIGESTS).map(str::to_owned)
    }

    /// Removes old sets without pods beyond those that are kept for a rollback.
    pub(super) fn clean_up(&mut self) {
        let limit = self.item.int("/spec/revisionHistoryLimit", KEPT);
        if limit == NONE {
            return;
        }
        let mut old: Vec<Set> =
            self.old().map(|at| self.sets[at].clone()).filter(|set| !set.is_deleted).collect();
        let beyond = old.len().saturating_sub(usize::try_from(limit).unwrap_or_default());
        old.order_by_key(|set| set.revision);
        for set in old.into_iter().take(beyond) {
            if set.actual == 0 && set.replicas == 0 && set.is_observed {
                self.world.remove(&set.key);
                self.forget(&set.key);
            }
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        let Some(at) = self.sets.iter().position(|set| set.key == *key) else { return };
        self.sets.remove(at);
        self.new = self.new.map(|new| if new > at { new - 1 } else { new });
    }

    /// The set to go back to: the newest one before the current that was not left in the same way.
    pub(super) fn previous(&self, left: &[&str]) -> Option<(String, i64, Value)> {
        let candidates =
            self.old().map(|at| &self.sets[at]).filter(|set| !left.contains(&set.key.name.as_str()));
        let best = candidates.max_by_key(|set| set.revision)?;
        let template = without_hash(template_of(self.world.item(&best.key)?));
        Some((best.key.name.clone(), best.revision, template))
    }
}

/// Upstream's list of the numbers that the set had before, bounded.
fn with_history(known: Option<&str>, revision: i64) -> String {
    let revision = revision.to_string();
    let Some(known) = known.filter(|known| !known.is_empty()) else { return revision };
    let mut history = format!("{known},{revision}");
    while history.len() > MAX_HISTORY_CHARS {
        match history.split_once(',') {
            Some((_, rest)) => history = rest.to_owned(),
            None => break,
        }
    }
    history
}
