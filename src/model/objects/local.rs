//! The objects of this node in memory, as an [`ObjectLookup`].
//!
//! Owns the set, the resource version of each object, and the set's generation.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

#[cfg(test)]
use crate::model::api::managed_fields::ManagedFields;
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::revisions::Revisions;

use super::service_variables::{ServiceFacts, is_visible, variables};
use super::volumes::{Binding, NamedVolume, binding, volume_of};
use super::{
    Absence, ClaimedSource, ClaimedVolume, ConfigMapData, EPHEMERAL_DIR, LocalObject, ObjectContent,
    ObjectData, ObjectKey, ObjectKind, ObjectLookup, Realm, RuntimeClassSpec, SourceObject, wire,
};

/// The origin of generated objects.
const GENERATED: &str = "the agent";

#[derive(Clone, Debug)]
pub struct VersionedObject {
    pub object: Rc<LocalObject>,
    pub version: u64,
    /// The file or URL that defines it, or the API.
    pub origin: Rc<str>,
}

/// Objects by kind, namespace and name. Deliberately without `Debug`: secrets are in here.
pub struct LocalObjects {
    /// The parent directory of all claims.
    volumes_dir: PathBuf,
    objects: RefCell<BTreeMap<ObjectKey, VersionedObject>>,
    /// Shown beside them and not stored: what follows from other objects. Hidden by an object of the same key.
    generated: RefCell<BTreeMap<ObjectKey, VersionedObject>>,
    /// Of the objects that pods read.
    generation: Cell<u64>,
    /// Changes of anything.
    changes: Cell<u64>,
    revisions: Revisions,
}

impl LocalObjects {
    /// An empty set. `volumes_dir` is the parent directory of all claims.
    #[must_use]
    pub fn new(volumes_dir: PathBuf, revisions: Revisions) -> Self {
        let (objects, generated) = (RefCell::default(), RefCell::default());
        Self { volumes_dir, objects, generated, generation: Cell::new(0), changes: Cell::new(0), revisions }
    }

    /// Replaces all objects. Those that are as before keep their version.
    pub(crate) fn replace<'a>(&self, objects: impl Iterator<Item = &'a SourceObject>) {
        let mut gone: BTreeSet<ObjectKey> = self.objects.borrow().keys().cloned().into_set();
        for new in objects {
            gone.remove(&new.object.key);
            self.set(&new.object.key, Some(new));
        }
        for key in &gone {
            self.set(key, None);
        }
    }

    /// Puts or removes one object. One that is as before keeps its version.
    pub(crate) fn set(&self, key: &ObjectKey, new: Option<&SourceObject>) {
        let mut objects = self.objects.borrow_mut();
        let Some(SourceObject { object, origin }) = new else {
            if objects.remove(key).is_some() {
                self.count(key.kind);
            }
            return;
        };
        let origin = |known: Option<&VersionedObject>| match known {
            Some(known) if *known.origin == **origin => Rc::clone(&known.origin),
            _ => Rc::from(origin.as_str()),
        };
        match objects.get_mut(key) {
            Some(known) if Rc::ptr_eq(&known.object, object) || known.object == *object => {
                known.origin = origin(Some(known));
            }
            known => {
                let origin = origin(known.as_deref());
                let new =
                    VersionedObject { object: Rc::clone(object), version: self.revisions.next(), origin };
                objects.insert(key.clone(), new);
                self.count(key.kind);
            }
        }
    }

    fn count(&self, kind: ObjectKind) {
        self.changes.set(self.changes.get() + 1);
        if kind.is_read_by_pods() {
            self.generation.set(self.generation.get() + 1);
        }
    }

    /// Replaces all generated objects. Those that are as before keep their version.
    pub(crate) fn set_generated(&self, objects: BTreeMap<ObjectKey, Rc<LocalObject>>) {
        let mut known = self.generated.borrow_mut();
        let origin: Rc<str> = Rc::from(GENERATED);
        let stamped = |(key, object): (ObjectKey, Rc<LocalObject>)| {
            let same = known.get(&key).filter(|known| known.object == object).map(|known| known.version);
            let version = same.unwrap_or_else(|| self.revisions.next());
            (key, VersionedObject { object, version, origin: Rc::clone(&origin) })
        };
        *known = objects.into_iter().map(stamped).into_map();
    }

    /// Of one kind, or all.
    fn shown(&self, kind: Option<ObjectKind>) -> Vec<VersionedObject> {
        let (objects, generated) = (self.objects.borrow(), self.generated.borrow());
        let is_wanted = |(key, _): &(&ObjectKey, &VersionedObject)| kind.is_none_or(|kind| key.kind == kind);
        let first = kind.map(|kind| ObjectKey { kind, namespace: String::new(), name: String::new() });
        let of = |map: &BTreeMap<ObjectKey, VersionedObject>| -> Vec<VersionedObject> {
            let range = match &first {
                Some(first) => map.range(first.clone()..),
                None => map.range::<ObjectKey, _>(..),
            };
            range.take_while(is_wanted).map(|(_, known)| known.clone()).collect()
        };
        let mut found = of(&objects);
        let more: Vec<_> =
            of(&generated).into_iter().filter(|known| !objects.contains_key(&known.object.key)).collect();
        if !more.is_empty() {
            found.extend(more);
            found.order_by(|one, other| one.object.key.cmp(&other.object.key));
        }
        found
    }

    #[must_use]
    pub(crate) fn all(&self) -> Vec<VersionedObject> {
        self.shown(None)
    }

    /// The objects of a kind, by namespace and name.
    #[must_use]
    pub(crate) fn of_kind(&self, kind: ObjectKind) -> Vec<VersionedObject> {
        self.shown(Some(kind))
    }

    /// The same without generated ones.
    #[must_use]
    pub(crate) fn written(&self, kind: ObjectKind) -> Vec<VersionedObject> {
        let objects = self.objects.borrow();
        objects.values().filter(|known| known.object.key.kind == kind).cloned().collect()
    }

    #[must_use]
    pub(crate) fn find(&self, key: &ObjectKey) -> Option<VersionedObject> {
        let found = self.objects.borrow().get(key).cloned();
        found.or_else(|| self.generated.borrow().get(key).cloned())
    }

    /// The namespaces with objects.
    #[must_use]
    pub(crate) fn namespaces(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for key in self.objects.borrow().keys() {
            if !key.namespace.is_empty() && !found.contains(&key.namespace) {
                found.insert(key.namespace.clone());
            }
        }
        found
    }

    /// Calls `visit` with each object and its version, in their order: nothing is copied.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Rc<LocalObject>, u64)) {
        self.objects.borrow().values().for_each(|known| visit(&known.object, known.version));
    }

    /// The volume that a claim of the cluster is bound to.
    pub(super) fn bound_volume(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        match &self.get(ObjectKind::PersistentVolumeClaim, namespace, name)?.content {
            ObjectContent::Claim(claim) => claim.volume.as_deref().cloned(),
            _ => None,
        }
    }

    /// What a claim of this node has.
    pub(crate) fn binding(&self, claim: &LocalObject) -> Binding {
        let spec = |known: &VersionedObject| -> NamedVolume {
            (known.object.key.name.clone(), known.object.content.body()["spec"].take())
        };
        let volumes: Vec<NamedVolume> = self.written(ObjectKind::PersistentVolume).iter().map(spec).collect();
        let mut claims = Vec::new();
        if !volumes.is_empty() {
            claims = self.written(ObjectKind::PersistentVolumeClaim);
            claims.order_by(|one, other| one.object.created.cmp(&other.object.created));
        }
        let claims: Vec<&LocalObject> = claims.iter().map(|known| &*known.object).collect();
        let class = super::volumes::claim_spec(claim).and_then(|spec| spec.storage_class.as_deref());
        let class = class.and_then(|name| self.get(ObjectKind::StorageClass, "", name));
        let class = class.map(|class| class.content.body());
        let provisioner = class.as_ref().and_then(|body| body["provisioner"].as_str());
        binding(claim, (&volumes, &claims), provisioner, || self.has_directory(claim))
    }

    /// The directory of a claim, which is made for its first pod, is there.
    pub(crate) fn has_directory(&self, claim: &LocalObject) -> bool {
        claim.claim_directory(&self.volumes_dir).is_dir()
    }

    /// A PersistentVolume as pods use it.
    fn volume(&self, name: &str) -> Option<Result<ClaimedVolume, String>> {
        let object = self.get(ObjectKind::PersistentVolume, "", name)?;
        Some(volume_of(name, &object.annotations, &object.content.body()["spec"]))
    }

    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.objects.borrow().contains_key(key)
    }

    /// Changes whenever any object does.
    #[must_use]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    pub(crate) fn get(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Rc<LocalObject>> {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        self.objects.borrow().get(&key).map(|known| Rc::clone(&known.object))
    }
}

impl ObjectLookup for LocalObjects {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData> {
        match &self.get(ObjectKind::ConfigMap, namespace, name)?.content {
            ObjectContent::ConfigMap { data, .. } => Some(data.clone()),
            _ => None,
        }
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        match &self.get(ObjectKind::Secret, namespace, name)?.content {
            ObjectContent::Secret { data, .. } => Some(data.clone()),
            _ => None,
        }
    }

    fn secret_uid(&self, namespace: &str, name: &str) -> Option<String> {
        let secret = self.get(ObjectKind::Secret, namespace, name)?;
        // A derived uid is the same for a recreated Secret of that name, so the creation time is added.
        Some(format!("{}.{}", secret.uid, secret.created.to_rfc3339()))
    }

    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        let claim = self.get(ObjectKind::PersistentVolumeClaim, namespace, name)?;
        match self.binding(&claim) {
            Binding::Directory => {}
            Binding::Volume(name) => {
                let found = self.volume(&name)?.ok()?;
                return Some(ClaimedVolume { owner: owner_of(&claim), ..found });
            }
            Binding::Pending(_) | Binding::Awaited(_) => return None,
        }
        let path = claim.claim_directory(&self.volumes_dir).to_string_lossy().into_owned();
        Some(ClaimedVolume {
            name: wire::volume_name(&claim.key),
            source: ClaimedSource::Directory { path, bytes: size_of(&claim.content), uid: claim.uid.clone() },
            mount_options: Vec::new(),
            supplemental_group: None,
            read_only: false,
            single_pod: is_for_one_pod(&claim.content),
            owner: owner_of(&claim),
        })
    }

    fn ephemeral_claims(&self) -> Option<(PathBuf, BTreeSet<String>)> {
        let objects = self.objects.borrow();
        let uids = objects.values().filter(|known| known.object.is_ephemeral_claim());
        let uids = uids.map(|known| known.object.uid.clone()).into_set();
        Some((self.volumes_dir.join(EPHEMERAL_DIR), uids))
    }

    fn absence(&self, key: &ObjectKey) -> Absence {
        let claim = self.get(key.kind, &key.namespace, &key.name);
        let Some(binding) = claim.map(|claim| self.binding(&claim)) else { return Absence::NotFound };
        if let Some(why) = binding.problem() {
            return Absence::Refused(format!("PVC is not bound: {why}"));
        }
        match binding {
            Binding::Volume(name) => match self.volume(&name) {
                Some(Err(why)) => Absence::Refused(why),
                _ => Absence::NotFound,
            },
            _ => Absence::NotFound,
        }
    }

    fn runtime_classes(&self) -> Vec<(String, RuntimeClassSpec)> {
        let objects = self.objects.borrow();
        let class = |known: &VersionedObject| match &known.object.content {
            ObjectContent::RuntimeClass(class) => Some((known.object.key.name.clone(), class.clone())),
            _ => None,
        };
        objects.values().filter_map(class).collect()
    }

    fn generation(&self) -> u64 {
        self.generation.get()
    }

    fn service_variables(&self, namespace: &str, links: bool) -> Result<Vec<(String, String)>, Absence> {
        let services = self.of_kind(ObjectKind::Service);
        let facts = services.iter().filter_map(|found| {
            let key = &found.object.key;
            is_visible(&key.namespace, &key.name, namespace, links)
                .then(|| ServiceFacts::of(key, &found.object.content.body()))?
        });
        Ok(variables(&facts.collect::<Vec<_>>(), namespace, links))
    }

    fn of(&self, _realm: Realm) -> &dyn ObjectLookup {
        self
    }
}

/// How much a claim asks for.
fn size_of(claim: &ObjectContent) -> u64 {
    match claim {
        ObjectContent::Claim(claim) => u64::try_from(claim.storage.value()).unwrap_or_default(),
        _ => 0,
    }
}

/// The uid of the pod that a claim was made for; empty of any other.
fn owner_of(claim: &LocalObject) -> String {
    let owner = claim.owner_references.iter().find(|owner| owner.controller);
    owner.map(|owner| owner.uid.clone()).unwrap_or_default()
}

/// Upstream's rule: next to other modes it is unknown which mode a pod uses.
fn is_for_one_pod(claim: &ObjectContent) -> bool {
    matches!(claim, ObjectContent::Claim(claim) if claim.access_modes == ["ReadWriteOncePod"])
}

/// Sets objects one at a time, for tests of their readers.
#[cfg(test)]
impl LocalObjects {
    /// Sets a ConfigMap, or removes it with `None`.
    pub(crate) fn set_config_map(&self, namespace: &str, name: &str, data: Option<ConfigMapData>) {
        let content = data.map(|data| ObjectContent::ConfigMap { data, immutable: false });
        self.set_content(ObjectKind::ConfigMap, namespace, name, content);
    }

    /// Sets a Secret, or removes it with `None`.
    pub(crate) fn set_secret(&self, namespace: &str, name: &str, data: Option<ObjectData>) {
        let secret_type = super::OPAQUE.to_owned();
        let content = data.map(|data| ObjectContent::Secret { secret_type, data, immutable: false });
        self.set_content(ObjectKind::Secret, namespace, name, content);
    }

    fn set_content(&self, kind: ObjectKind, namespace: &str, name: &str, content: Option<ObjectContent>) {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        match content {
            Some(content) => {
                let (labels, annotations) = (BTreeMap::new(), BTreeMap::new());
                let created = crate::model::types::Timestamp::default();
                let object = LocalObject {
                    uid: wire::derived_uid(&key),
                    key: key.clone(),
                    labels,
                    annotations,
                    created,
                    managed_fields: ManagedFields::default(),
                    finalizers: Vec::new(),
                    owner_references: Vec::new(),
                    generation: 0,
                    deleted: None,
                    content,
                };
                self.set(&key, Some(&SourceObject { object: Rc::new(object), origin: String::new() }));
            }
            None => self.set(&key, None),
        }
    }
}

#[cfg(test)]
impl Default for LocalObjects {
    fn default() -> Self {
        Self::new(PathBuf::from("/volumes"), Revisions::since(crate::model::types::Timestamp::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_moves_with_every_change_and_only_then() {
        let objects = LocalObjects::default();
        let data = ObjectData::from([("k".to_owned(), b"v".to_vec())]);
        objects.set_secret("ns", "s", Some(data.clone()));
        let first = objects.generation();
        objects.set_secret("ns", "s", Some(data.clone()));
        objects.set_config_map("ns", "never", None);
        assert_eq!(objects.generation(), first);
        assert_eq!(objects.secret("ns", "s"), Some(data));
        assert!(objects.secret("other", "s").is_none() && objects.config_map("ns", "s").is_none());
        objects.set_secret("ns", "s", None);
        assert_ne!(objects.generation(), first);
        assert!(objects.secret("ns", "s").is_none());
    }

    #[test]
    fn only_changed_objects_get_another_version() {
        let objects = LocalObjects::default();
        let versions = || objects.all().iter().map(|known| known.version).collect::<Vec<_>>();
        objects.set_secret("ns", "a", Some(ObjectData::new()));
        objects.set_secret("ns", "b", Some(ObjectData::new()));
        let before = versions();
        assert!(before[0] < before[1]);
        objects.set_secret("ns", "a", Some(ObjectData::from([("k".to_owned(), b"v".to_vec())])));
        let after = versions();
        assert!(after[0] > before[1] && after[1] == before[1], "{before:?} {after:?}");
    }

    #[test]
    fn nothing_of_a_secret_is_in_its_debug_text() {
        let objects = LocalObjects::default();
        let data = ObjectData::from([("key".to_owned(), b"hunter2".to_vec())]);
        objects.set_secret("ns", "s", Some(data));
        let text = format!("{:?}", objects.objects.borrow());
        let bytes = format!("{:?}", b"hunter2");
        assert!(text.contains("key") && !text.contains("hunter2") && !text.contains(&bytes), "{text}");
    }
}
