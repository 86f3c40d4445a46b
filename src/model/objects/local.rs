//! The objects of this node in memory, as an [`ObjectLookup`].
//!
//! Owns the set, the resource version of each object, and the set's generation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

#[cfg(test)]
use crate::model::api::managed_fields::ManagedFields;
use crate::model::ordered::Ordered as _;
use crate::model::revisions::Revisions;

use super::{
    ClaimedSource, ClaimedVolume, ConfigMapData, LocalObject, ObjectContent, ObjectData, ObjectKey,
    ObjectKind, ObjectLookup, Realm, RuntimeClassSpec, wire,
};

#[derive(Clone, Debug)]
pub struct VersionedObject {
    pub object: Rc<LocalObject>,
    pub version: u64,
}

/// Objects by kind, namespace and name. Deliberately without `Debug`: secrets are in here.
pub struct LocalObjects {
    /// The parent directory of all claims.
    volumes_dir: PathBuf,
    objects: RefCell<BTreeMap<ObjectKey, VersionedObject>>,
    generation: Cell<u64>,
    revisions: Revisions,
}

impl LocalObjects {
    /// An empty set. `volumes_dir` is the parent directory of all claims.
    #[must_use]
    pub fn new(volumes_dir: PathBuf, revisions: Revisions) -> Self {
        Self { volumes_dir, objects: RefCell::default(), generation: Cell::new(0), revisions }
    }

    /// Replaces all objects. Those that are as before keep their version.
    pub(crate) fn replace(&self, objects: BTreeMap<ObjectKey, Rc<LocalObject>>) {
        let mut known = self.objects.borrow_mut();
        let before = self.revisions.newest();
        let stamped = |(key, object): (ObjectKey, Rc<LocalObject>)| {
            let same = known.get(&key).filter(|known| known.object == object).map(|known| known.version);
            let version = same.unwrap_or_else(|| self.revisions.next());
            (key, VersionedObject { object, version })
        };
        let objects = objects.into_iter().map(stamped).into_map();
        if self.revisions.newest() != before || objects.len() != known.len() {
            *known = objects;
            self.generation.set(self.generation.get() + 1);
        }
    }

    #[must_use]
    pub(crate) fn all(&self) -> Vec<VersionedObject> {
        self.objects.borrow().values().cloned().collect()
    }

    /// The volume that a claim of the cluster is bound to.
    pub(super) fn bound_volume(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        match &self.get(ObjectKind::PersistentVolumeClaim, namespace, name)?.content {
            ObjectContent::Claim(claim) => claim.volume.as_deref().cloned(),
            _ => None,
        }
    }

    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.objects.borrow().contains_key(key)
    }

    fn get(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Rc<LocalObject>> {
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
        let path = self.volumes_dir.join(namespace).join(name).to_string_lossy().into_owned();
        Some(ClaimedVolume {
            name: wire::volume_name(&claim.key),
            source: ClaimedSource::Directory { path },
            mount_options: Vec::new(),
            supplemental_group: None,
            read_only: false,
            single_pod: is_for_one_pod(&claim.content),
            owner: String::new(),
        })
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

    fn of(&self, _realm: Realm) -> &dyn ObjectLookup {
        self
    }
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
        self.set(ObjectKind::ConfigMap, namespace, name, content);
    }

    /// Sets a Secret, or removes it with `None`.
    pub(crate) fn set_secret(&self, namespace: &str, name: &str, data: Option<ObjectData>) {
        let secret_type = super::OPAQUE.to_owned();
        let content = data.map(|data| ObjectContent::Secret { secret_type, data, immutable: false });
        self.set(ObjectKind::Secret, namespace, name, content);
    }

    fn set(&self, kind: ObjectKind, namespace: &str, name: &str, content: Option<ObjectContent>) {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let mut objects =
            self.all().into_iter().map(|known| (known.object.key.clone(), known.object)).into_map();
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
                    deleted: None,
                    content,
                };
                objects.insert(key, Rc::new(object));
            }
            None => drop(objects.remove(&key)),
        }
        self.replace(objects);
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
