//! Objects that somebody put there, in memory; their contents may change at any time.
//!
//! Owns the objects and the generation. Must not know where they come from.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::{ClaimedVolume, ConfigMapData, ObjectData, ObjectLookup};

/// Objects of one kind by namespace and name.
type Kind<T> = RefCell<BTreeMap<(String, String), T>>;

/// Objects in memory. Deliberately without `Debug`: secrets are in here.
#[derive(Default)]
pub struct MemoryObjects {
    config_maps: Kind<ConfigMapData>,
    secrets: Kind<ObjectData>,
    claims: Kind<ClaimedVolume>,
    generation: Cell<u64>,
}

impl MemoryObjects {
    /// Puts a ConfigMap there, or takes it away with `None`.
    pub fn set_config_map(&self, namespace: &str, name: &str, content: Option<ConfigMapData>) {
        self.set(&self.config_maps, namespace, name, content);
    }

    /// Puts a Secret there, or takes it away with `None`.
    pub fn set_secret(&self, namespace: &str, name: &str, content: Option<ObjectData>) {
        self.set(&self.secrets, namespace, name, content);
    }

    /// Puts a bound claim there, or takes it away with `None`.
    pub fn set_persistent_volume_claim(&self, namespace: &str, name: &str, volume: Option<ClaimedVolume>) {
        self.set(&self.claims, namespace, name, volume);
    }

    fn set<T: PartialEq>(&self, kind: &Kind<T>, namespace: &str, name: &str, content: Option<T>) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut objects = kind.borrow_mut();
        if objects.get(&key) == content.as_ref() {
            return;
        }
        match content {
            Some(content) => objects.insert(key, content),
            None => objects.remove(&key),
        };
        self.generation.set(self.generation.get() + 1);
    }
}

fn get<T: Clone>(kind: &Kind<T>, namespace: &str, name: &str) -> Option<T> {
    kind.borrow().get(&(namespace.to_owned(), name.to_owned())).cloned()
}

impl ObjectLookup for MemoryObjects {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData> {
        get(&self.config_maps, namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        get(&self.secrets, namespace, name)
    }

    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        get(&self.claims, namespace, name)
    }

    fn generation(&self) -> u64 {
        self.generation.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_moves_with_every_change_and_only_then() {
        let objects = MemoryObjects::default();
        let data = ObjectData::from([("k".to_owned(), b"v".to_vec())]);
        objects.set_secret("ns", "s", Some(data.clone()));
        let first = objects.generation();
        objects.set_secret("ns", "s", Some(data.clone()));
        objects.set_config_map("ns", "never", None);
        assert_eq!(objects.generation(), first);
        assert_eq!(objects.secret("ns", "s"), Some(data));
        assert!(objects.secret("other", "s").is_none());
        objects.set_secret("ns", "s", None);
        assert_ne!(objects.generation(), first);
        assert!(objects.secret("ns", "s").is_none());
    }
}
