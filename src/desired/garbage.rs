//! Garbage collection: what goes with its owners (upstream: the garbage collector, 1.36).
//!
//! Owns the three ways of a deletion. An object whose owners are all gone is deleted; one that has others left loses
//! its references to those that are gone. An owner that is deleted in the foreground has a finalizer, and stays until
//! the objects that block it are gone. Owners that only block each other do not wait.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::desired::change::ApiChange;
use crate::desired::kinds::{CLEANUP, defined_kind, definition_key};
use crate::desired::stored::StoredObject;
use crate::model::objects::{ObjectKey, ObjectKind, OwnerReference};
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;

/// The finalizer of an owner that waits for its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an owner whose dependents are to stay.
pub(crate) const ORPHAN: &str = "orphan";

/// The desired state before a change.
pub(crate) trait Owners {
    /// Everything that came through the API.
    fn members(&self) -> Vec<StoredObject>;
    /// The uid of an object of any source.
    fn object_uid(&self, key: &ObjectKey) -> Option<&str>;
    /// The uid of a desired pod of any source.
    fn pod_uid(&self, namespace: &str, name: &str) -> Option<&str>;
    /// Whether a pod that is no longer desired and has not ended blocks the deletion of this owner.
    fn is_blocked_by_pod(&self, owner: &str) -> bool;
}

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// What depends on the change.
    Change,
    /// Everything: owners of other sources may be gone, or pods that blocked an owner have ended.
    All,
}

/// The change together with what it makes garbage.
#[must_use]
pub(crate) fn collect(config: &impl Owners, change: ApiChange, reach: Reach, now: Timestamp) -> ApiChange {
    let put: Vec<StoredObject> = put_members(&change).collect();
    let removes = !(change.remove_pods.is_empty() && change.remove_objects.is_empty());
    let mut world = Ownership::new(config, &put, now);
    let is_settled =
        |put: &StoredObject| !waits(put) && !is_emptied(put) && world.absent_owners(put).is_empty();
    if reach == Reach::Change && !removes && put.iter().all(is_settled) {
        return change;
    }
    let mut change = change;
    if reach == Reach::All {
        change.join(undefined(config, now));
    }
    let gone_pods = change.remove_pods.iter().map(|(pod, _)| pod.metadata.uid.to_string());
    let gone_objects =
        change.remove_objects.iter().filter_map(|key| config.object_uid(key).map(str::to_owned));
    world.gone = gone_pods.chain(gone_objects).into_set();
    world.load(put);
    world.run(reach);
    release(config, world.finish(change))
}

fn put_members(change: &ApiChange) -> impl Iterator<Item = StoredObject> {
    let pods = change.put_pods.iter().cloned().map(StoredObject::Pod);
    pods.chain(change.put_objects.iter().cloned().map(StoredObject::Object))
}

/// Objects of kinds whose definition is gone.
fn undefined(config: &impl Owners, now: Timestamp) -> ApiChange {
    let mut change = ApiChange::default();
    for member in config.members() {
        if let StoredObject::Object(object) = &member
            && object.key.kind.is_custom()
            && config.object_uid(&definition_key(object.key.kind)).is_none()
        {
            change.join(member.removal(None, now));
        }
    }
    change
}

/// A namespace or a definition that is deleted, and goes when nothing is left in it.
fn is_emptied(member: &StoredObject) -> bool {
    let StoredObject::Object(object) = member else { return false };
    matches!(object.key.kind, ObjectKind::Namespace | ObjectKind::CustomResourceDefinition)
        && object.deleted.is_some()
        && object.finalizers.iter().all(|one| one == CLEANUP)
}

/// Removes the namespaces and definitions that nothing is left in after the change.
fn release(config: &impl Owners, mut change: ApiChange) -> ApiChange {
    let put: Vec<StoredObject> = put_members(&change).collect();
    let is_new = |known: &StoredObject| put.iter().any(|new| new.uid() == known.uid());
    let goes = |known: &StoredObject| match known {
        StoredObject::Pod(pod) => {
            change.remove_pods.iter().any(|(gone, _)| gone.metadata.uid == pod.metadata.uid)
        }
        StoredObject::Object(object) => change.remove_objects.contains(&object.key),
    };
    let mut members = config.members();
    members.retain(|known| !is_new(known) && !goes(known));
    members.extend(put);
    let mut empty = Vec::new();
    for container in members.iter().filter(|member| is_emptied(member)) {
        let StoredObject::Object(object) = container else { continue };
        let kind = match object.key.kind {
            ObjectKind::Namespace => None,
            _ => defined_kind(&object.content.body()),
        };
        let is_in = |member: &StoredObject| match (kind, member) {
            (None, member) => member.place().0 == object.key.name,
            (kind, StoredObject::Object(other)) => kind == Some(other.key.kind),
            _ => false,
        };
        if !members.iter().any(is_in) {
            empty.push(container.clone());
        }
    }
    for container in empty {
        change.put_objects.retain(|object| object.uid != container.uid());
        change.join(container.removed(None));
    }
    change
}

fn waits(member: &StoredObject) -> bool {
    member.is_terminating() && member.finalizers().iter().any(|one| one == FOREGROUND)
}

struct Ownership<'a, O> {
    config: &'a O,
    now: Timestamp,
    /// Uids of what the change puts.
    put: BTreeSet<String>,
    /// Uids of what goes.
    gone: BTreeSet<String>,
    /// By uid: what has owners, and the owners that wait, after the change.
    members: BTreeMap<String, StoredObject>,
    /// Uids of the members that refer to an owner, by its uid.
    dependents: BTreeMap<String, Vec<String>>,
    /// What is different because of this collection; with `true` it goes.
    touched: BTreeMap<String, (StoredObject, bool)>,
}

impl<'a, O: Owners> Ownership<'a, O> {
    fn new(config: &'a O, put: &[StoredObject], now: Timestamp) -> Self {
        Self {
            config,
            now,
            put: put.iter().map(|member| member.uid().to_owned()).into_set(),
            gone: BTreeSet::new(),
            members: BTreeMap::new(),
            dependents: BTreeMap::new(),
            touched: BTreeMap::new(),
        }
    }

    fn load(&mut self, put: Vec<StoredObject>) {
        let known = self.config.members().into_iter().filter(|known| !self.put.contains(known.uid()));
        for member in known.chain(put).collect::<Vec<_>>() {
            if (!member.has_owners() && !waits(&member)) || self.gone.contains(member.uid()) {
                continue;
            }
            for owner in member.owners() {
                self.dependents.entry(owner.uid).or_default().push(member.uid().to_owned());
            }
            self.members.insert(member.uid().to_owned(), member);
        }
    }

    fn run(&mut self, reach: Reach) {
        let mut queue: Vec<String> = match reach {
            Reach::All => self.members.keys().cloned().collect(),
            Reach::Change => {
                let orphans = self.gone.iter().flat_map(|uid| self.dependents_of(uid));
                orphans.chain(self.put.iter().cloned()).collect()
            }
        };
        loop {
            while let Some(uid) = queue.pop() {
                self.check_owners(&uid, &mut queue);
            }
            self.delete_blocking(&mut queue);
            self.end_waiting(&mut queue);
            if queue.is_empty() {
                return;
            }
        }
    }

    fn dependents_of(&self, owner: &str) -> Vec<String> {
        self.dependents.get(owner).cloned().unwrap_or_default()
    }

    /// Whether the owner exists. One of a kind that is not known here cannot be looked up, and counts as there.
    fn exists(&self, owner: &OwnerReference, namespace: &str) -> bool {
        if self.gone.contains(&owner.uid) {
            return false;
        }
        if self.members.contains_key(&owner.uid) || self.put.contains(&owner.uid) {
            return true;
        }
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        if group.is_empty() && owner.kind == "Pod" {
            return self.config.pod_uid(namespace, &owner.name) == Some(&owner.uid);
        }
        let Some(kind) = ObjectKind::find(group, &owner.kind) else { return true };
        if kind == ObjectKind::Namespace || (kind.is_namespaced() && namespace.is_empty()) {
            return true;
        }
        let namespace = if kind.is_namespaced() { namespace } else { "" };
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: owner.name.clone() };
        self.config.object_uid(&key) == Some(&owner.uid)
    }

    fn absent_owners(&self, member: &StoredObject) -> Vec<String> {
        let (namespace, _) = member.place();
        let mut owners = member.owners();
        owners.retain(|owner| !self.exists(owner, namespace));
        owners.into_iter().map(|owner| owner.uid).collect()
    }

    fn check_owners(&mut self, uid: &str, queue: &mut Vec<String>) {
        let Some(member) = self.members.get(uid) else { return };
        let absent = self.absent_owners(member);
        if absent.is_empty() {
            return;
        }
        let member = member.clone();
        if absent.len() == member.owners().len() {
            self.delete(member, queue);
        } else {
            self.touch(member.disowned(|owner| absent.iter().any(|uid| uid == owner)));
        }
    }

    fn touch(&mut self, member: StoredObject) {
        let uid = member.uid().to_owned();
        self.touched.insert(uid.clone(), (member.clone(), false));
        self.members.insert(uid, member);
    }

    fn delete(&mut self, member: StoredObject, queue: &mut Vec<String>) {
        if member.finalizers().is_empty() {
            self.remove(member, queue);
        } else if !member.is_terminating() {
            self.touch(member.deleted(None, self.now));
        }
    }

    fn remove(&mut self, member: StoredObject, queue: &mut Vec<String>) {
        let uid = member.uid().to_owned();
        self.members.remove(&uid);
        queue.extend(self.dependents_of(&uid));
        self.gone.insert(uid.clone());
        self.touched.insert(uid, (member, true));
    }

    /// The owners that wait, and for each the members that block it.
    fn waiting(&self) -> Vec<(String, Vec<String>)> {
        let blocks = |uid: &String, owner: &str| {
            let owners = self.members.get(uid).map(StoredObject::owners).unwrap_or_default();
            owners.iter().any(|one| one.uid == owner && one.block_owner_deletion)
        };
        let waiting = self.members.iter().filter(|(_, member)| waits(member));
        waiting
            .map(|(owner, _)| {
                let mut blocking = self.dependents_of(owner);
                blocking.retain(|uid| blocks(uid, owner));
                (owner.clone(), blocking)
            })
            .collect()
    }

    /// Deletes what blocks an owner, in the foreground if it has dependents. What has another owner that stays is
    /// no longer this one's.
    fn delete_blocking(&mut self, queue: &mut Vec<String>) {
        for (_, blocking) in self.waiting() {
            for uid in blocking {
                let Some(member) = self.members.get(&uid).filter(|member| !member.is_terminating()) else {
                    continue;
                };
                let (namespace, _) = member.place();
                let stays = |owner: &OwnerReference| {
                    self.exists(owner, namespace) && !self.members.get(&owner.uid).is_some_and(waits)
                };
                let kept: BTreeSet<String> =
                    member.owners().into_iter().filter(stays).map(|owner| owner.uid).into_set();
                let member = member.clone();
                if !kept.is_empty() {
                    self.touch(member.disowned(|owner| !kept.contains(owner)));
                } else if self.dependents_of(&uid).iter().any(|uid| self.members.contains_key(uid)) {
                    let mut member = member.deleted(None, self.now);
                    member.finalizers_mut().push(FOREGROUND.to_owned());
                    self.touch(member);
                    queue.push(uid);
                } else {
                    self.delete(member, queue);
                }
            }
        }
    }

    /// Ends the waiting of owners that nothing blocks but each other.
    fn end_waiting(&mut self, queue: &mut Vec<String>) {
        let waiting: BTreeMap<String, Vec<String>> = self.waiting().into_iter().into_map();
        let is_hard = |uid: &String| match self.members.get(uid) {
            Some(member) => !waits(member) || member.finalizers().iter().any(|one| one != FOREGROUND),
            None => false,
        };
        let is_blocked = |(owner, blocking): &(&String, &Vec<String>)| {
            self.config.is_blocked_by_pod(owner) || self.ends_pod_of(owner) || blocking.iter().any(is_hard)
        };
        let mut stack: Vec<String> =
            waiting.iter().filter(is_blocked).map(|(owner, _)| owner.clone()).collect();
        let mut blocked = BTreeSet::new();
        while let Some(uid) = stack.pop() {
            if blocked.insert(uid.clone()) {
                let above = waiting.iter().filter(|(_, blocking)| blocking.contains(&uid));
                stack.extend(above.map(|(owner, _)| owner.clone()));
            }
        }
        for uid in waiting.into_keys().filter(|uid| !blocked.contains(uid)) {
            let Some(mut owner) = self.members.get(&uid).cloned() else { continue };
            owner.finalizers_mut().retain(|one| one != FOREGROUND);
            if owner.finalizers().is_empty() {
                self.remove(owner, queue);
            } else {
                self.touch(owner);
            }
        }
    }

    /// Whether a pod that blocks this owner goes with this collection: it has to end first.
    fn ends_pod_of(&self, owner: &str) -> bool {
        let blocks = |(member, goes): &(StoredObject, bool)| {
            let is_of = |one: &OwnerReference| one.uid == owner && one.block_owner_deletion;
            *goes && matches!(member, StoredObject::Pod(_)) && member.owners().iter().any(is_of)
        };
        self.touched.values().any(blocks)
    }

    fn finish(self, mut change: ApiChange) -> ApiChange {
        change.put_pods.retain(|pod| !self.touched.contains_key(pod.metadata.uid.as_str()));
        change.put_objects.retain(|object| !self.touched.contains_key(&object.uid));
        for (member, goes) in self.touched.into_values() {
            change.join(if goes { member.removed(None) } else { member.to_change() });
        }
        change
    }
}

/// The change that takes the references to an owner from all its dependents.
#[must_use]
pub(crate) fn orphans(config: &impl Owners, owner: &str) -> ApiChange {
    let mut change = ApiChange::default();
    for member in config.members() {
        if member.has_owners() && member.owners().iter().any(|one| one.uid == owner) {
            change.join(member.disowned(|uid| uid == owner).to_change());
        }
    }
    change
}

/// Whether something that came through the API blocks a deletion of this owner in the foreground.
#[must_use]
pub(crate) fn is_blocked(config: &impl Owners, owner: &str) -> bool {
    let blocks = |member: &StoredObject| {
        member.has_owners() && member.owners().iter().any(|one| one.uid == owner && one.block_owner_deletion)
    };
    config.is_blocked_by_pod(owner) || config.members().iter().any(blocks)
}

#[cfg(test)]
mod tests;
