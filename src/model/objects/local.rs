//! The objects of this node in memory, as an [`ObjectLookup`].
//!
//! Owns the set and its generation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

#[cfg(test)]
use crate::model::api::managed_fields::ManagedFields;

use super::{
    ClaimedSource, ClaimedVolume, ConfigMapData, LocalObject, ObjectContent, ObjectData, ObjectKey,
    ObjectKind, ObjectLookup, RuntimeClassSpec, wire,
};

/// Objects by kind, namespace and name. Deliberately without `Debug`: secrets are in here.
pub struct LocalObjects {
    /// The parent directory of all claims.
    volumes_dir: PathBuf,
    objects: RefCell<BTreeMap<ObjectKey, Rc<LocalObject>>>,
    generation: Cell<u64>,
}

impl LocalObjects {
    /// An empty set. `volumes_dir` is the parent directory of all claims.
    #[must_use]
    pub fn new(volumes_dir: PathBuf) -> Self {
        Self { volumes_dir, objects: RefCell::default(), generation: Cell::new(0) }
    }

    /// Replaces all objects.
    pub fn replace(&self, objects: BTreeMap<ObjectKey, Rc<LocalObject>>) {
        let mut known = self.objects.borrow_mut();
        if *known != objects {
            *known = objects;
            self.generation.set(self.generation.get() + 1);
        }
    }

    fn get(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Rc<LocalObject>> {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        self.objects.borrow().get(&key).cloned()
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
        })
    }

    fn runtime_classes(&self) -> Vec<(String, RuntimeClassSpec)> {
        let objects = self.objects.borrow();
        let class = |object: &Rc<LocalObject>| match &object.content {
            ObjectContent::RuntimeClass(class) => Some((object.key.name.clone(), class.clone())),
            _ => None,
        };
        objects.values().filter_map(class).collect()
    }

    fn generation(&self) -> u64 {
        self.generation.get()
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
    pub fn set_config_map(&self, namespace: &str, name: &str, data: Option<ConfigMapData>) {
        let content = data.map(|data| ObjectContent::ConfigMap { data, immutable: false });
        self.set(ObjectKind::ConfigMap, namespace, name, content);
    }

    /// Sets a Secret, or removes it with `None`.
    pub fn set_secret(&self, namespace: &str, name: &str, data: Option<ObjectData>) {
        let secret_type = super::OPAQUE.to_owned();
        let content = data.map(|data| ObjectContent::Secret { secret_type, data, immutable: false });
        self.set(ObjectKind::Secret, namespace, name, content);
    }

    fn set(&self, kind: ObjectKind, namespace: &str, name: &str, content: Option<ObjectContent>) {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let mut objects = self.objects.borrow().clone();
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
        Self::new(PathBuf::from("/volumes"))
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
    fn nothing_of_a_secret_is_in_its_debug_text() {
        let objects = LocalObjects::default();
        let data = ObjectData::from([("key".to_owned(), b"hunter2".to_vec())]);
        objects.set_secret("ns", "s", Some(data));
        let text = format!("{:?}", objects.objects.borrow());
        let bytes = format!("{:?}", b"hunter2");
        assert!(text.contains("key") && !text.contains("hunter2") && !text.contains(&bytes), "{text}");
    }
}
