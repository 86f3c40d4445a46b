//! The history of a DaemonSet or StatefulSet: one ControllerRevision for each template that it had.
//!
//! Owns their names, numbers, and how many are kept.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::{Value, json};

use super::item::Item;
use super::names::hash;
use super::template::same_meaning;
use super::world::World;
use crate::model::objects::{ObjectKey, ObjectKind};
use crate::model::ordered::Sortable as _;

pub(super) const HASH: &str = "controller-revision-hash";
const DATA: &str = "/data/spec/template";

#[derive(Clone, Debug)]
pub(super) struct Revision {
    pub key: ObjectKey,
    pub hash: String,
    pub template: Value,
    number: i64,
}

impl Revision {
    pub(super) fn name(&self) -> &str {
        &self.key.name
    }
}

/// All revisions, the newest last; that one has the current template. `None`: it cannot be created.
pub(super) fn ensure(world: &mut World<'_>, owner: &Item, collisions: &mut i64) -> Option<Vec<Revision>> {
    let mut history = history(world, owner);
    let mut template = owner.at("/spec/template").clone();
    template["$patch"] = json!("replace");
    let next = history.last().map_or(1, |last| last.number + 1);
    let find = |is_it: fn(&Value, &Value) -> bool| {
        history.iter().rposition(|known| is_it(&known.template, &template))
    };
    let known = find(Value::eq).or_else(|| find(same_meaning));
    if let Some(at) = known {
        if at + 1 < history.len() {
            // An earlier template is back.
            let mut revision = history.remove(at);
            revision.number = next;
            world.change(&revision.key, |item| item.set("revision", json!(next)));
            history.push(revision);
        }
        return Some(history);
    }
    let namespace = &owner.object.key.namespace;
    let (name, hash) = loop {
        let hash = hash(&template, *collisions);
        let name = format!("{}-{hash}", owner.name());
        if world.get(ObjectKind::ControllerRevision, namespace, &name).is_none() {
            break (name, hash);
        }
        *collisions += 1;
    };
    let mut annotations = owner.object.annotations.clone();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    let mut labels = owner.at("/spec/template/metadata/labels").clone();
    labels[HASH] = json!(hash);
    let metadata = json!({"labels": labels, "annotations": annotations});
    let body = json!({"data": {"spec": {"template": template}}, "revision": next});
    let created = world.create(owner, ObjectKind::ControllerRevision, name, &metadata, body);
    let warn = |why: &String| {
        world.warn(owner, "FailedCreate", format!("create ControllerRevision failed error: {why}"));
    };
    let key = created.inspect_err(warn).ok()?;
    history.push(Revision { key, hash, template, number: next });
    Some(history)
}

fn history(world: &World<'_>, owner: &Item) -> Vec<Revision> {
    let keys = world.owned(ObjectKind::ControllerRevision, owner);
    let items = keys.iter().filter_map(|key| world.item(key));
    let mut history: Vec<Revision> = items
        .map(|item| Revision {
            key: item.object.key.clone(),
            hash: item.object.labels.get(HASH).cloned().unwrap_or_default(),
            template: item.at(DATA).clone(),
            number: item.int("/revision", 0),
        })
        .collect();
    history.order_by_key(|revision| revision.number);
    history
}

/// Removes the oldest revisions beyond those that are kept. Those in use stay, and do not count.
pub(super) fn truncate(
    world: &mut World<'_>,
    owner: &Item,
    history: &[Revision],
    is_live: impl Fn(&Revision) -> bool,
) {
    let limit = usize::try_from(owner.int("/spec/revisionHistoryLimit", 10)).unwrap_or_default();
    let old: Vec<&Revision> = history.iter().filter(|revision| !is_live(revision)).collect();
    let beyond = old.len().saturating_sub(limit);
    for revision in &old[..beyond] {
        world.remove(&revision.key);
    }
}
