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
use crate::desired::service_account;
use crate::desired::stored::StoredObject;
use crate::model::objects::{ObjectKey, ObjectKind, OwnerReference, ROOT_CA};
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;

/// The finalizer of an owner that waits for its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an owner whose dependents are to stay.
pub(crate) const ORPHAN: &str = "orphan";
/// The namespace of the node's own Lease.
const NODE_LEASES: &str = "kube-node-lease";

/// The desired state before a change.
pub(crate) trait Owners {
    /// Everything that came through the API.
    fn members(&self) -> Vec<StoredObject>;
    /// The uid of the effective object.
    fn object_uid(&self, key: &ObjectKey) -> Option<&str>;
    /// The uid of the object that came through the API, though a manifest may shadow it.
    fn member_uid(&self, key: &ObjectKey) -> Option<&str>;
    /// Whether a desired pod of any source is shown with this uid.
    fn has_pod(&self, namespace: &str, name: &str, uid: &str) -> bool;
    /// Whether the pod of this uid is no longer desired and has not ended.
    fn is_ending(&self, uid: &str) -> bool;
    /// Whether such a pod is in the namespace.
    fn has_ending(&self, namespace: &str) -> bool;
    /// Whether such a pod blocks the deletion of this owner.
    fn is_blocked_by_pod(&self, owner: &str) -> bool;
    /// Whether an owner that is not found does not exist. If not, only what goes with the change is absent.
    fn is_complete(&self) -> bool;
}

/// How much is searched for garbage.
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
    if reach == Reach::All && config.is_complete() {
        change.join(undefined(config, now));
    }
    // What is shown without having been stored is there again at once.
    let gone = change.remove_objects.iter().filter(|key| !is_implied(key));
    world.gone = gone.filter_map(|key| config.member_uid(key).map(str::to_owned)).into_set();
    world.load(put, removed_pods(&change));
    world.run(reach);
    release(config, world.finish(change))
}

fn removed_pods(change: &ApiChange) -> BTreeSet<String> {
    change.remove_pods.iter().map(|(pod, _)| pod.metadata.uid.to_string()).into_set()
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

/// What a change is about.
struct Changed {
    /// Uids of all that it puts, and of the pods that it removes.
    uids: BTreeSet<String>,
    removed: BTreeSet<ObjectKey>,
}

impl Changed {
    fn of(change: &ApiChange) -> Self {
        let put = put_members(change).map(|member| member.uid().to_owned());
        Self {
            uids: put.chain(removed_pods(change)).into_set(),
            removed: change.remove_objects.iter().cloned().into_set(),
        }
    }

    fn has(&self, known: &StoredObject) -> bool {
        let is_removed = matches!(known, StoredObject::Object(object) if self.removed.contains(&object.key));
        is_removed || self.uids.contains(known.uid())
    }
}

/// Removes the namespaces and definitions that nothing is left in after the change. What is left of a pod is the pod
/// until it has ended.
fn release(config: &impl Owners, mut change: ApiChange) -> ApiChange {
    let (changed, removed) = (Changed::of(&change), removed_pods(&change));
    let mut members = config.members();
    members.retain(|known| removed.contains(known.uid()) || !changed.has(known));
    members.extend(put_members(&change));
    let empty = empty_containers(config, &members);
    for container in &empty {
        change.put_objects.retain(|object| object.uid != container.uid());
        change.join(container.removed(None));
    }
    change
}

fn empty_containers(config: &impl Owners, members: &[StoredObject]) -> Vec<StoredObject> {
    if !members.iter().any(is_emptied) {
        return Vec::new();
    }
    let namespaces: BTreeSet<&str> = members.iter().map(|member| member.place().0).into_set();
    let kind_of = |member: &StoredObject| match member {
        StoredObject::Object(object) => Some(object.key.kind),
        StoredObject::Pod(_) => None,
    };
    let kinds: BTreeSet<ObjectKind> = members.iter().filter_map(kind_of).into_set();
    let is_empty = |container: &&StoredObject| match container {
        StoredObject::Object(object) if object.key.kind == ObjectKind::Namespace => {
            let name = object.key.name.as_str();
            !namespaces.contains(name) && !config.has_ending(name)
        }
        StoredObject::Object(object) => {
            defined_kind(&object.content.body()).is_none_or(|kind| !kinds.contains(&kind))
        }
        StoredObject::Pod(_) => false,
    };
    members.iter().filter(|member| is_emptied(member)).filter(is_empty).cloned().collect()
}

/// Whether the API shows an object of this name in every namespace, or in none, though none is stored.
fn is_implied(key: &ObjectKey) -> bool {
    let name = key.name.as_str();
    match key.kind {
        ObjectKind::ServiceAccount => name == service_account::DEFAULT,
        ObjectKind::ConfigMap => name == ROOT_CA,
        // Upstream's names of the roles that every API server has.
        ObjectKind::ClusterRole | ObjectKind::ClusterRoleBinding => {
            name.starts_with("system:") || ["cluster-admin", "admin", "edit", "view"].contains(&name)
        }
        _ => false,
    }
}

/// Whether the API may show an object at this place that is in no source. To keep an orphan is safer than to delete
/// what has an owner.
fn may_be_shown(key: &ObjectKey) -> bool {
    match key.kind {
        ObjectKind::Lease => key.namespace == NODE_LEASES,
        // Generated for Services.
        ObjectKind::Endpoints | ObjectKind::EndpointSlice => true,
        _ => is_implied(key),
    }
}

fn waits(member: &StoredObject) -> bool {
    member.is_terminating() && member.finalizers().iter().any(|one| one == FOREGROUND)
}

struct Ownership<'a, O> {
    config: &'a O,
    now: Timestamp,
    /// Uids of what the change puts.
    put: BTreeSet<String>,
    /// Uids of what goes. A pod that runs is there until it has ended.
    gone: BTreeSet<String>,
    /// Uids of the desired pods that came through the API.
    pods: BTreeSet<String>,
    /// Uids of owners that block until pods which go have ended.
    ending: BTreeSet<String>,
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
            pods: BTreeSet::new(),
            ending: BTreeSet::new(),
            members: BTreeMap::new(),
            dependents: BTreeMap::new(),
            touched: BTreeMap::new(),
        }
    }

    fn load(&mut self, put: Vec<StoredObject>, removed_pods: BTreeSet<String>) {
        let known = self.config.members();
        let pods = known.iter().filter(|known| matches!(known, StoredObject::Pod(_)));
        self.pods = pods.map(|pod| pod.uid().to_owned()).into_set();
        for pod in known.iter().filter(|known| removed_pods.contains(known.uid())) {
            self.ending.extend(blocked_by_end(pod, &self.pods));
        }
        let known = known.into_iter().filter(|known| !self.put.contains(known.uid()));
        for member in known.chain(put).collect::<Vec<_>>() {
            let goes = self.gone.contains(member.uid()) || removed_pods.contains(member.uid());
            if goes || (!member.has_owners() && !waits(&member)) {
                continue;
            }
            for owner in member.owners() {
                self.dependents.entry(owner.uid).or_default().push(member.uid().to_owned());
            }
            self.members.insert(member.uid().to_owned(), member);
        }
        let (pods, config) = (&self.pods, self.config);
        let has_run = |uid: &String| pods.contains(uid) || config.is_ending(uid);
        self.gone.extend(removed_pods.into_iter().filter(|uid| !has_run(uid)));
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

    /// Whether the owner exists. One that cannot be looked up counts as there.
    fn exists(&self, owner: &OwnerReference, namespace: &str) -> bool {
        if self.gone.contains(&owner.uid) {
            return false;
        }
        let is_there = self.members.contains_key(&owner.uid) || self.put.contains(&owner.uid);
        if is_there || !self.config.is_complete() {
            return true;
        }
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        if group.is_empty() && owner.kind == "Pod" {
            return self.config.has_pod(namespace, &owner.name, &owner.uid)
                || self.config.is_ending(&owner.uid);
        }
        let Some(kind) = ObjectKind::find(group, &owner.kind) else { return true };
        if kind == ObjectKind::Namespace || (kind.is_namespaced() && namespace.is_empty()) {
            return true;
        }
        let namespace = if kind.is_namespaced() { namespace } else { "" };
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: owner.name.clone() };
        match self.config.object_uid(&key) {
            Some(uid) => uid == owner.uid || self.config.member_uid(&key) == Some(&owner.uid),
            None => may_be_shown(&key),
        }
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
        if self.pods.contains(&uid) {
            self.ending.extend(blocked_by_end(&member, &self.pods));
        } else {
            queue.extend(self.dependents_of(&uid));
            self.gone.insert(uid.clone());
        }
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
            self.config.is_blocked_by_pod(owner)
                || self.ending.contains(*owner)
                || blocking.iter().any(is_hard)
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

    fn finish(self, mut change: ApiChange) -> ApiChange {
        change.put_pods.retain(|pod| !self.touched.contains_key(pod.metadata.uid.as_str()));
        change.put_objects.retain(|object| !self.touched.contains_key(&object.uid));
        for (member, goes) in self.touched.into_values() {
            change.join(if goes { member.removed(None) } else { member.to_change() });
        }
        change
    }
}

/// The owners that wait for the end of this member once it goes: those that a desired pod blocks. A pod that was not
/// desired before does not run, or is known to be ending.
fn blocked_by_end(gone: &StoredObject, pods: &BTreeSet<String>) -> impl Iterator<Item = String> {
    let owners = if pods.contains(gone.uid()) { gone.owners() } else { Vec::new() };
    owners.into_iter().filter(|owner| owner.block_owner_deletion).map(|owner| owner.uid)
}

/// The change, with the references to these owners taken from all dependents that stay after it.
#[must_use]
pub(crate) fn orphans(config: &impl Owners, owners: &BTreeSet<String>, mut change: ApiChange) -> ApiChange {
    if owners.is_empty() {
        return change;
    }
    let changed = Changed::of(&change);
    let put: Vec<StoredObject> = put_members(&change).collect();
    change.put_pods.clear();
    change.put_objects.clear();
    let refers = |member: &StoredObject| member.owners().iter().any(|owner| owners.contains(&owner.uid));
    let others = config.members().into_iter();
    let others = others.filter(|member| member.has_owners() && !changed.has(member) && refers(member));
    for member in put.into_iter().chain(others) {
        change.join(member.disowned(|uid| owners.contains(uid)).to_change());
    }
    change
}

/// Those of these owners of which something that came through the API blocks a deletion in the foreground.
#[must_use]
pub(crate) fn blocked(config: &impl Owners, owners: &BTreeSet<String>) -> BTreeSet<String> {
    if owners.is_empty() {
        return BTreeSet::new();
    }
    let mut blocked: BTreeSet<String> =
        owners.iter().filter(|owner| config.is_blocked_by_pod(owner)).cloned().into_set();
    for member in config.members().iter().filter(|member| member.has_owners()) {
        let blocks = |owner: &OwnerReference| owner.block_owner_deletion && owners.contains(&owner.uid);
        blocked.extend(member.owners().into_iter().filter(blocks).map(|owner| owner.uid));
    }
    blocked
}

#[cfg(test)]
mod tests;
