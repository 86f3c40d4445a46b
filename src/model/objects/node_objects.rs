//! The objects of both realms as one [`ObjectLookup`]: those of this node, and those of the cluster it has joined.
//!
//! A pod sees the objects of its own realm only: a manifest cannot read a Secret of the cluster, nor the other way
//! round.

use std::rc::Rc;

use serde_json::Value;

use super::{
    Absence, ClaimedVolume, ConfigMapData, LocalObjects, ObjectData, ObjectKey, ObjectLookup, Realm,
    RuntimeClassSpec, TokenRequest,
};

/// What a cluster knows beside stored objects. Restored from the store before the first pod starts.
pub(crate) trait ClusterFacts {
    fn absence(&self, key: &ObjectKey) -> Absence;
    /// # Errors
    /// There is no token to give.
    fn token(&self, request: &TokenRequest) -> Result<Rc<str>, Absence>;
    /// # Errors
    /// It is not there, or not read yet.
    fn trust_bundle(&self, source: &Value) -> Result<Vec<u8>, Absence>;
    /// # Errors
    /// The Services have never been read.
    fn service_variables(&self, namespace: &str, links: bool) -> Result<Vec<(String, String)>, Absence>;
    /// Changes whenever any of them changes.
    fn generation(&self) -> u64;
}

pub(crate) struct NodeObjects {
    node: Rc<LocalObjects>,
    cluster: ClusterObjects,
}

struct ClusterObjects {
    objects: Rc<LocalObjects>,
    /// `None`: this node has joined no cluster.
    facts: Option<Rc<dyn ClusterFacts>>,
}

impl NodeObjects {
    pub(crate) fn new(
        node: Rc<LocalObjects>,
        cluster: Rc<LocalObjects>,
        facts: Option<Rc<dyn ClusterFacts>>,
    ) -> Self {
        Self { node, cluster: ClusterObjects { objects: cluster, facts } }
    }
}

impl ObjectLookup for NodeObjects {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData> {
        self.node.config_map(namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        self.node.secret(namespace, name)
    }

    fn secret_uid(&self, namespace: &str, name: &str) -> Option<String> {
        self.node.secret_uid(namespace, name)
    }

    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        self.node.persistent_volume_claim(namespace, name)
    }

    fn runtime_classes(&self) -> Vec<(String, RuntimeClassSpec)> {
        self.node.runtime_classes()
    }

    fn generation(&self) -> u64 {
        self.node.generation().wrapping_add(self.cluster.generation())
    }

    fn of(&self, realm: Realm) -> &dyn ObjectLookup {
        match realm {
            Realm::Node => self.node.as_ref(),
            Realm::Cluster => &self.cluster,
        }
    }
}

impl ObjectLookup for ClusterObjects {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData> {
        self.objects.config_map(namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        self.objects.secret(namespace, name)
    }

    fn secret_uid(&self, namespace: &str, name: &str) -> Option<String> {
        self.objects.secret_uid(namespace, name)
    }

    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        self.objects.bound_volume(namespace, name)
    }

    fn runtime_classes(&self) -> Vec<(String, RuntimeClassSpec)> {
        self.objects.runtime_classes()
    }

    fn generation(&self) -> u64 {
        let facts = self.facts.as_ref().map_or(0, |facts| facts.generation());
        self.objects.generation().wrapping_add(facts)
    }

    fn of(&self, _realm: Realm) -> &dyn ObjectLookup {
        self
    }

    fn absence(&self, key: &ObjectKey) -> Absence {
        let absence = self.facts.as_ref().map_or(Absence::NotSynced, |facts| facts.absence(key));
        if matches!(absence, Absence::Refused(_)) || !self.objects.has(key) {
            return absence;
        }
        // A claim without its volume.
        Absence::Refused("PVC is not bound".to_owned())
    }

    fn token(&self, request: &TokenRequest) -> Result<Rc<str>, Absence> {
        self.facts.as_ref().map_or(Err(Absence::NotSynced), |facts| facts.token(request))
    }

    fn trust_bundle(&self, source: &Value) -> Result<Vec<u8>, Absence> {
        self.facts.as_ref().map_or(Err(Absence::NotSynced), |facts| facts.trust_bundle(source))
    }

    fn service_variables(&self, namespace: &str, links: bool) -> Result<Vec<(String, String)>, Absence> {
        self.facts.as_ref().map_or(Err(Absence::NotSynced), |facts| facts.service_variables(namespace, links))
    }
}
