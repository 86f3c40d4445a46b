//! From a Pod as the server shows it to the desired pod of this node.
//!
//! Owns what of a server's pod is kept. Invariant: what the node itself reports makes no difference to the desired
//! pod, so a heartbeat of a status changes nothing and writes nothing.
//!
//! Pure: what it returns depends on its arguments alone.

use std::rc::Rc;

use serde_json::Value;

use crate::cluster::patch::{digest, shown};
use crate::cluster::pods::outbox::SeenPod;
use crate::desired::api_pod::stored_status;
use crate::model::api::decode::decode;
use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::pod::Pod;
use crate::model::containers::is_terminal;
use crate::model::names::{dns_label, dns_subdomain};
use crate::model::provenance::{
    CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_SEEN_ANNOTATION, CONFIG_SOURCE_ANNOTATION,
};
use crate::model::types::{PodRef, PodSource, PodUid, Timestamp};
use crate::pod::lifecycle::restore_start;

/// A pod of the server.
#[derive(Clone, Debug)]
pub(crate) struct Converted {
    pub seen: SeenPod,
    /// What the node is to run; `known` itself when nothing has changed. `None` for a mirror, which is not run.
    pub pod: Option<Rc<Pod>>,
}

/// Reads a pod that the server has bound to `node`. The server has defaulted and validated it; `known` is the
/// desired pod of its uid.
///
/// # Errors
/// Why the pod is not run: it does not decode, or a correct server would not have sent it.
pub(crate) fn from_server(
    value: Value,
    node: &str,
    known: Option<&Rc<Pod>>,
    now: Timestamp,
) -> Result<Converted, String> {
    let mut pod: Pod = decode(value).map_err(|error| error.to_string())?.object;
    check(&pod, node)?;
    let annotations = &mut pod.metadata.annotations;
    let mirror = annotations.get(CONFIG_MIRROR_ANNOTATION).cloned();
    let hash = annotations.get(CONFIG_HASH_ANNOTATION).cloned();
    let mut seen = SeenPod {
        reference: PodRef::default(),
        is_terminal: is_terminal(&pod.status),
        is_deleting: pod.metadata.deletion_timestamp.is_some(),
        shown: digest(&shown(&pod)),
        mirror_of: None,
        hash: String::new(),
    };
    seen.reference = pod.pod_ref();
    if let Some(mirror) = mirror {
        seen.mirror_of = Some(PodUid::from(hash.unwrap_or_else(|| mirror.clone())));
        seen.hash = mirror;
        return Ok(Converted { seen, pod: None });
    }
    let pod = desired(pod, known, now);
    let pod = match known {
        Some(known) if **known == pod => Rc::clone(known),
        _ => Rc::new(pod),
    };
    Ok(Converted { seen, pod: Some(pod) })
}

/// The names become parts of paths.
fn check(pod: &Pod, node: &str) -> Result<(), String> {
    let metadata = &pod.metadata;
    if pod.spec.node_name != node {
        return Err(format!(
            "spec.nodeName: the pod is bound to node {:?}, not to {node:?}",
            pod.spec.node_name
        ));
    }
    if !metadata.uid.is_safe() {
        return Err(format!("metadata.uid: {:?} cannot name a directory", metadata.uid.as_str()));
    }
    let bad = dns_subdomain(&metadata.name).into_iter().chain(dns_label(&metadata.namespace)).next();
    bad.map_or(Ok(()), |why| Err(format!("metadata: {why}")))
}

fn desired(mut pod: Pod, known: Option<&Rc<Pod>>, now: Timestamp) -> Pod {
    // An item of a list has neither.
    "v1".clone_into(&mut pod.api_version);
    "Pod".clone_into(&mut pod.kind);
    if !is_terminal(&pod.status) {
        pod.status = stored_status(&pod);
    }
    let metadata = &mut pod.metadata;
    metadata.managed_fields = ManagedFields::default();
    metadata.self_link.clear();
    metadata.resource_version.clear();
    if metadata.deletion_grace_period_seconds == Some(0) {
        // A forced deletion that finalizers hold up. Here, zero means that nothing of the pod runs any more.
        metadata.deletion_grace_period_seconds = Some(1);
    }
    let annotations = &mut metadata.annotations;
    annotations.remove(CONFIG_HASH_ANNOTATION);
    let seen = known.and_then(|known| known.metadata.annotations.get(CONFIG_SEEN_ANNOTATION).cloned());
    annotations.insert(CONFIG_SEEN_ANNOTATION.to_owned(), seen.unwrap_or_else(|| now.to_rfc3339_nano()));
    annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), PodSource::Cluster.as_str().to_owned());
    restore_start(&mut pod);
    pod
}
