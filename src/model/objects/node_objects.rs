//! The objects of both realms as one [`ObjectLookup`]: those of this node, and those of the cluster it has joined.
//!
//! A pod sees the objects of its own realm only: a manifest cannot read a Secret of the cluster, nor the other way
//! round.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

use serde_json::Value;

use super::{
    Absence, ClaimedVolume, ConfigMapData, LocalObjects, ObjectData, ObjectKey, ObjectLookup, ROOT_CA, Realm,
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

/// What a node of no cluster knows beside stored objects.
pub(crate) trait NodeFacts {
    /// # Errors
    /// There is no token to give.
    fn token(&self, request: &TokenRequest) -> Result<Rc<str>, Absence>;
    /// The ConfigMap [`ROOT_CA`] of every namespace.
    fn root_ca(&self) -> Option<ConfigMapData>;
    /// Changes whenever any of them changes.
    fn generation(&self) -> u64;
}

pub(crate) struct NodeObjects {
    node: OwnObjects,
    cluster: ClusterObjects,
}

struct OwnObjects {
    objects: Rc<LocalObjects>,
    /// `None`: this node has joined a cluster.
    facts: Option<Rc<dyn NodeFacts>>,
}

struct ClusterObjects {
    objects: Rc<LocalObjects>,
    /// `None`: this node has joined no cluster.
    facts: Option<Rc<dyn ClusterFacts>>,
}

impl NodeObjects {
    pub(crate) fn new(
        (node, node_facts): (Rc<LocalObjects>, Option<Rc<dyn NodeFacts>>),
        (cluster, facts): (Rc<LocalObjects>, Option<Rc<dyn ClusterFacts>>),
    ) -> Self {
        let node = OwnObjects { objects: node, facts: node_facts };
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

    fn ephemeral_claims(&self) -> Option<(PathBuf, BTreeSet<String>)> {
        self.node.ephemeral_claims()
    }

    fn runtime_classes(&self) -> Vec<(String, RuntimeClassSpec)> {
        self.node.runtime_classes()
    }

    fn generation(&self) -> u64 {
        self.node.generation().wrapping_add(self.cluster.generation())
    }

    fn of(&self, realm: Realm) -> &dyn ObjectLookup {
        match realm {
            Realm::Node => &self.node,
            Realm::Cluster => &self.cluster,
        }
    }

    fn service_variables(&self, namespace: &str, links: bool) -> Result<Vec<(String, String)>, Absence> {
        self.node.service_variables(namespace, links)
    }
}

impl ObjectLookup for OwnObjects {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData> {
        match self.facts.as_ref().filter(|_| name == ROOT_CA) {
            // Whatever a client has stored under that name.
            Some(facts) => facts.root_ca(),
            None => self.objects.config_map(namespace, name),
        }
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData> {
        self.objects.secret(namespace, name)
    }

    fn secret_uid(&self, namespace: &str, name: &str) -> Option<String> {
        self.objects.secret_uid(namespace, name)
    }

    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        self.objects.persistent_volume_claim(namespace, name)
    }

    fn ephemeral_claims(&self) -> Option<(PathBuf, BTreeSet<String>)> {
        self.objects.ephemeral_claims()
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
        self.objects.absence(key)
    }

    fn token(&self, request: &TokenRequest) -> Result<Rc<str>, Absence> {
        let none = || Absence::Refused("failed to fetch token: a node of a cluster issues none".to_owned());
        self.facts.as_ref().ok_or_else(none)?.token(request)
    }

    fn service_variables(&self, namespace: &str, links: bool) -> Result<Vec<(String, String)>, Absence> {
        self.objects.service_variables(namespace, links)
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

/// For tests: facts that do not depend on the question.
#[cfg(test)]
pub(crate) struct FixedFacts {
    pub(crate) absence: Absence,
    pub(crate) token: std::cell::RefCell<Result<Rc<str>, Absence>>,
    pub(crate) bundle: Result<Vec<u8>, Absence>,
    pub(crate) services: Result<Vec<(String, String)>, Absence>,
    pub(crate) generation: std::cell::Cell<u64>,
}

#[cfg(test)]
impl Default for FixedFacts {
    fn default() -> Self {
        Self {
            absence: Absence::NotFound,
            token: Err(Absence::NotFound).into(),
            bundle: Err(Absence::NotFound),
            services: Ok(Vec::new()),
            generation: std::cell::Cell::new(0),
        }
    }
}

#[cfg(test)]
impl ClusterFacts for FixedFacts {
    fn absence(&self, _key: &ObjectKey) -> Absence {
        self.absence.clone()
    }

    fn token(&self, _request: &TokenRequest) -> Result<Rc<str>, Absence> {
        self.token.borrow().clone()
    }

    fn trust_bundle(&self, _source: &Value) -> Result<Vec<u8>, Absence> {
        self.bundle.clone()
    }

    fn service_variables(&self, _namespace: &str, _links: bool) -> Result<Vec<(String, String)>, Absence> {
        self.services.clone()
    }

    fn generation(&self) -> u64 {
        self.generation.get()
    }
}

#[cfg(test)]
impl NodeObjects {
    /// The objects of a node that has joined a cluster.
    pub(crate) fn joined(node: LocalObjects, cluster: LocalObjects, facts: FixedFacts) -> Self {
        Self::new((Rc::new(node), None), (Rc::new(cluster), Some(Rc::new(facts))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::{ObjectKind, SourceObject, wire};
    use serde_json::json;

    fn secret(owner: &str) -> ObjectData {
        ObjectData::from([("owner".to_owned(), owner.as_bytes().to_vec())])
    }

    #[test]
    fn realms_do_not_see_each_other() {
        let (node, cluster) = (LocalObjects::default(), LocalObjects::default());
        node.set_secret("ns", "both", Some(secret("node")));
        node.set_secret("ns", "node", Some(secret("node")));
        cluster.set_secret("ns", "both", Some(secret("cluster")));
        cluster.set_secret("ns", "cluster", Some(secret("cluster")));
        let objects = NodeObjects::joined(node, cluster, FixedFacts::default());
        for (realm, own, other) in [(Realm::Node, "node", "cluster"), (Realm::Cluster, "cluster", "node")] {
            let view = objects.of(realm);
            assert_eq!(view.secret("ns", "both"), Some(secret(own)), "{realm:?}");
            assert_eq!(view.secret("ns", own), Some(secret(own)), "{realm:?}");
            assert_eq!(view.secret("ns", other), None, "{realm:?}");
            assert_eq!(view.secret_uid("ns", other), None, "{realm:?}");
        }
        assert_eq!(objects.secret("ns", "cluster"), None, "without a realm it is the node's");
    }

    #[test]
    fn a_claim_of_the_cluster_is_never_a_directory_here() {
        let (node, cluster) = (LocalObjects::default(), LocalObjects::default());
        let key = ObjectKey {
            kind: ObjectKind::PersistentVolumeClaim,
            namespace: "ns".to_owned(),
            name: "data".to_owned(),
        };
        let claim = json!({"metadata": {"namespace": "ns", "name": "data"}});
        let claim = Rc::new(wire::from_value(key.kind, claim).unwrap());
        let claim = SourceObject { object: claim, origin: String::new() };
        node.set(&key, Some(&claim));
        cluster.set(&key, Some(&claim));
        let objects = NodeObjects::joined(node, cluster, FixedFacts::default());
        assert!(objects.of(Realm::Node).persistent_volume_claim("ns", "data").is_some());
        let view = objects.of(Realm::Cluster);
        assert_eq!(view.persistent_volume_claim("ns", "data"), None);
        assert_eq!(view.absence(&key), Absence::Refused("PVC is not bound".to_owned()));
        let other = ObjectKey { name: "other".to_owned(), ..key };
        assert_eq!(view.absence(&other), Absence::NotFound);
    }

    #[test]
    fn facts_of_the_cluster_are_part_of_the_generation() {
        let facts = Rc::new(FixedFacts::default());
        let known: Rc<dyn ClusterFacts> = Rc::clone(&facts) as Rc<dyn ClusterFacts>;
        let objects = NodeObjects::new((Rc::default(), None), (Rc::default(), Some(known)));
        let generations = || [Realm::Node, Realm::Cluster].map(|realm| objects.of(realm).generation());
        let (all, before) = (objects.generation(), generations());
        facts.generation.set(1);
        assert_eq!(generations(), [before[0], before[1] + 1]);
        assert_eq!(objects.generation(), all + 1);
    }
}
