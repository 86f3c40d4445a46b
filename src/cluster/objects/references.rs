//! What a pod needs of the API server beside itself: ConfigMaps, Secrets, claims, tokens, bundles.
//!
//! Pure: a pod in, the keys of its objects out.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::Value;

use crate::model::api::pod::{Container, Pod, Volume, VolumeProjection};
use crate::model::containers::all_with_ephemeral;
use crate::model::objects::{ObjectKey, ObjectKind, TokenRequest};

/// What a pod refers to. Optional objects are among it: that they are absent has to be known, too.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Needs {
    /// ConfigMaps, Secrets, the RuntimeClass.
    pub objects: BTreeSet<ObjectKey>,
    /// One for each projected token; equal ones once.
    pub tokens: Vec<TokenRequest>,
    /// Claims, as namespace and name.
    pub claims: Vec<(String, String)>,
    /// `clusterTrustBundle` of each projection that has one.
    pub bundles: Vec<Value>,
    /// The pod's, whose Services become variables.
    pub namespace: String,
    /// Of a pod with claims: whether it may have them is the pod's matter.
    pub pod: Option<Rc<Pod>>,
}

/// The references of a pod: upstream's `VisitPodConfigmapNames` and `VisitPodSecretNames`, and what volumes
/// ask for beside.
#[must_use]
pub(crate) fn references(pod: &Pod) -> Needs {
    let mut needs = Needs { namespace: pod.metadata.namespace.clone(), ..Needs::default() };
    for secret in &pod.spec.image_pull_secrets {
        needs.add(ObjectKind::Secret, &secret.name);
    }
    for (container, _) in all_with_ephemeral(pod) {
        needs.add_of_container(container);
    }
    for volume in &pod.spec.volumes {
        needs.add_of_volume(pod, volume);
    }
    if let Some(name) = pod.spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) {
        let (kind, name) = (ObjectKind::RuntimeClass, name.to_owned());
        needs.objects.insert(ObjectKey { kind, namespace: String::new(), name });
    }
    // As long as the pod lives: a push makes room for four.
    needs.tokens.shrink_to_fit();
    if !needs.claims.is_empty() {
        needs.pod = Some(Rc::new(pod.clone()));
    }
    needs
}

impl Needs {
    /// All objects, claims among them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        let claim = |(namespace, name): &(String, String)| ObjectKey {
            kind: ObjectKind::PersistentVolumeClaim,
            namespace: namespace.clone(),
            name: name.clone(),
        };
        self.objects.iter().cloned().chain(self.claims.iter().map(claim))
    }

    fn add(&mut self, kind: ObjectKind, name: &str) {
        if !name.is_empty() {
            let (namespace, name) = (self.namespace.clone(), name.to_owned());
            self.objects.insert(ObjectKey { kind, namespace, name });
        }
    }

    fn add_of_container(&mut self, container: &Container) {
        for source in &container.env_from {
            if let Some(reference) = &source.config_map_ref {
                self.add(ObjectKind::ConfigMap, &reference.name);
            }
            if let Some(reference) = &source.secret_ref {
                self.add(ObjectKind::Secret, &reference.name);
            }
        }
        for source in container.env.iter().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(selector) = &source.config_map_key_ref {
                self.add(ObjectKind::ConfigMap, &selector.name);
            }
            if let Some(selector) = &source.secret_key_ref {
                self.add(ObjectKind::Secret, &selector.name);
            }
        }
    }

    fn add_of_volume(&mut self, pod: &Pod, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            self.add(ObjectKind::ConfigMap, &source.name);
        }
        if let Some(source) = &volume.secret {
            self.add(ObjectKind::Secret, &source.secret_name);
        }
        for projection in volume.projected.iter().flat_map(|projected| &projected.sources) {
            self.add_of_projection(pod, projection);
        }
        if let Some(source) = &volume.persistent_volume_claim {
            self.claims.push((self.namespace.clone(), source.claim_name.clone()));
        }
        if volume.ephemeral.is_some() {
            let claim = format!("{}-{}", pod.metadata.name, volume.name);
            self.claims.push((self.namespace.clone(), claim));
        }
        let with_secret = [
            (&volume.csi, "/nodePublishSecretRef/name"),
            (&volume.iscsi, "/secretRef/name"),
            (&volume.flex_volume, "/secretRef/name"),
            (&volume.cephfs, "/secretRef/name"),
            (&volume.rbd, "/secretRef/name"),
            (&volume.cinder, "/secretRef/name"),
            (&volume.scale_io, "/secretRef/name"),
            (&volume.storageos, "/secretRef/name"),
            (&volume.azure_file, "/secretName"),
        ];
        for (source, path) in with_secret {
            if let Some(name) = source.as_ref().and_then(|source| source.pointer(path)?.as_str()) {
                self.add(ObjectKind::Secret, name);
            }
        }
    }

    fn add_of_projection(&mut self, pod: &Pod, projection: &VolumeProjection) {
        if let Some(source) = &projection.config_map {
            self.add(ObjectKind::ConfigMap, &source.name);
        }
        if let Some(source) = &projection.secret {
            self.add(ObjectKind::Secret, &source.name);
        }
        if let Some(source) = &projection.service_account_token {
            let request = TokenRequest::of(pod, source);
            if !self.tokens.contains(&request) {
                self.tokens.push(request);
            }
        }
        if let Some(bundle) = &projection.cluster_trust_bundle
            && !self.bundles.contains(bundle)
        {
            self.bundles.push(bundle.clone());
        }
    }
}

#[cfg(test)]
mod tests;
