//! From a decoded manifest to a pod that is ready to run: defaults, the fields that a source sets, validation
//! and the check of references to objects of an API server.
//!
//! Owns the uid of static pods.
//!
//! Pure: what it returns depends on its arguments alone.

mod references;

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::desired::defaults::default_pod;
use crate::desired::validation::{validate_placement, validate_pod};
use crate::model::api::pod::{Pod, Toleration};
use crate::model::field_error::FieldError;
use crate::model::provenance::CONFIG_HASH_ANNOTATION;
use crate::model::source::ManifestOrigin;
use crate::model::types::{PodSource, PodUid};

/// Why a manifest is not a valid static pod. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StaticPodError {
    #[error("invalid pod: name is needed for the pod")]
    NameMissing,
    #[error("invalid pod: {}", list(.0))]
    Invalid(Vec<FieldError>),
    /// It refers to an object that only an API server has.
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
}

/// Field errors in one message; the next ones appear once these are fixed.
const ERRORS_SHOWN: usize = 25;

fn list(errors: &[FieldError]) -> String {
    if let [only] = errors {
        return only.to_string();
    }
    let mut texts: Vec<String> = errors.iter().take(ERRORS_SHOWN).map(ToString::to_string).collect();
    if errors.len() > ERRORS_SHOWN {
        texts.push(format!("and {} more", errors.len() - ERRORS_SHOWN));
    }
    format!("[{}]", texts.join(", "))
}

/// The name that a pod of a manifest gets on this node.
pub(crate) fn static_pod_name(name: &str, node_name: &str) -> String {
    format!("{name}-{}", node_name.to_lowercase())
}

/// Prepares a decoded pod to run on `node_name`.
pub fn prepare(pod: Pod, origin: &ManifestOrigin, node_name: &str) -> Result<Pod, StaticPodError> {
    let mut pod = default_pod(pod);
    if pod.metadata.name.is_empty() {
        return Err(StaticPodError::NameMissing);
    }
    if pod.metadata.uid.is_empty() {
        pod.metadata.uid = content_uid(&pod, origin, node_name);
    }
    pod.metadata.name = static_pod_name(&pod.metadata.name, node_name);
    if pod.metadata.namespace.is_empty() {
        "default".clone_into(&mut pod.metadata.namespace);
    }
    let misplaced = validate_placement(&pod);
    node_name.clone_into(&mut pod.spec.node_name);
    // The desired set counts generations, as an API server does.
    pod.metadata.generation = 0;
    let hash = pod.metadata.uid.to_string();
    pod.metadata.annotations.insert(CONFIG_HASH_ANNOTATION.to_owned(), hash);
    if origin.source == PodSource::File {
        tolerate_no_execute(&mut pod.spec.tolerations);
    }
    "Pending".clone_into(&mut pod.status.phase);
    let mut errors = misplaced;
    errors.extend(validate_pod(&pod));
    if !errors.is_empty() {
        return Err(StaticPodError::Invalid(errors));
    }
    references::check(&pod.spec).map_err(StaticPodError::Reference)?;
    Ok(pod)
}

/// The kind of object that a pod of the node's own API refers to and only a cluster's API server has, in
/// upstream's words.
#[must_use]
pub(super) fn refused_reference(pod: &Pod) -> Option<&'static str> {
    references::check_of_api(&pod.spec).err()
}

/// 128 bits over the defaulted pod, the node and the origin, as 32 hex digits. The pod is hashed as canonical
/// JSON (fields in the type's order, maps sorted, defaults omitted), so that comments, key order and explicit
/// defaults do not matter while any change of meaning does.
fn content_uid(pod: &Pod, origin: &ManifestOrigin, node_name: &str) -> PodUid {
    let canonical =
        serde_json::to_vec(pod).expect("a pod has string keys only, and writing to memory cannot fail");
    let kind = if origin.source == PodSource::File { "file" } else { "url" };
    let mut hasher = Sha256::new();
    // Each part is preceded by its length, so that different triples never give the same bytes.
    for part in [&canonical[..], node_name.as_bytes(), kind.as_bytes(), origin.location.as_bytes()] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let mut uid = String::with_capacity(32);
    for byte in &digest[..16] {
        let _ = write!(uid, "{byte:02x}");
    }
    PodUid::from(uid)
}

/// A static pod from a file tolerates every taint of the node.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let tolerate_all =
        Toleration { operator: "Exists".to_owned(), effect: "NoExecute".to_owned(), ..Toleration::default() };
    if !tolerations.contains(&tolerate_all) {
        tolerations.push(tolerate_all);
    }
}

#[cfg(test)]
mod tests;
