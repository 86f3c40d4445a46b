//! PersistentVolumeClaims of the cluster: from a claim and its PersistentVolume to what this node mounts.
//!
//! Pure: what the server has in, the volume or upstream's message out. The reader of the message puts `error processing
//! PVC <namespace>/<name>: ` before it.

use serde_json::Value;

use crate::model::api::pod::{Pod, StringMap};
use crate::model::containers::all_with_ephemeral;
use crate::model::objects::ClaimedVolume;
use crate::model::objects::volumes::{GROUP, MOUNT_OPTIONS, texts, volume_of};
use crate::model::ordered::Ordered as _;
use crate::pod::admission::rules::affinity::matches_node;
use crate::pod::volume::rules::claim_of;

/// Keeps a claim until no pod uses it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The name of the PersistentVolume that a claim is bound to, to be read next.
///
/// # Errors
/// The pod must not use the claim, or not yet.
pub(crate) fn volume_name<'a>(claim: &'a Value, pod: &Pod) -> Result<&'a str, String> {
    let metadata = &claim["metadata"];
    let is_protected = || has(&metadata["finalizers"], PROTECTION);
    if !metadata["deletionTimestamp"].is_null() && !is_protected() {
        return Err("PVC is being deleted".to_owned());
    }
    if claim["status"]["phase"] != "Bound" {
        return Err("PVC is not bound".to_owned());
    }
    let name = text(&claim["spec"]["volumeName"]);
    if name.is_empty() {
        return Err("PVC has empty pvc.Spec.VolumeName".to_owned());
    }
    if is_ephemeral(claim, pod) && owner(claim) != Some(pod.metadata.uid.as_str()) {
        let (namespace, claim) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let of_pod = &pod.metadata;
        return Err(format!(
            "PVC {namespace}/{claim} was not created for pod {}/{} (pod is not owner)",
            of_pod.namespace, of_pod.name
        ));
    }
    Ok(name)
}

/// The volume behind a claim, as this node mounts it for the pod. `node` is the Node's name, `labels` its labels.
///
/// # Errors
/// Why the pod cannot use it here.
pub(crate) fn bind(
    claim: &Value,
    volume: &Value,
    pod: &Pod,
    node: &str,
    labels: &StringMap,
) -> Result<ClaimedVolume, String> {
    let wanted = volume_name(claim, pod)?;
    let (metadata, spec) = (&volume["metadata"], &volume["spec"]);
    let name = text(&metadata["name"]);
    if name != wanted {
        return Err(format!("failed to fetch PV {wanted} from API server: the answer is {name:?}"));
    }
    if !spec["claimRef"].is_object() {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    }
    let (bound, own) = (text(&spec["claimRef"]["uid"]), text(&claim["metadata"]["uid"]));
    if bound != own {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {bound} does not point to claim.UID {own}"
        ));
    }
    check_mode(claim, volume, pod)?;
    let required = &spec["nodeAffinity"]["required"];
    if required.is_object() && !matches_node(required, node, labels) {
        return Err(format!(
            "MountVolume.NodeAffinity check failed for volume {name:?} : no matching NodeSelectorTerms"
        ));
    }
    let annotation = |key: &str| Some((key.to_owned(), metadata["annotations"][key].as_str()?.to_owned()));
    let annotations: StringMap = [GROUP, MOUNT_OPTIONS].into_iter().filter_map(annotation).into_map();
    let found = volume_of(name, &annotations, spec)?;
    Ok(ClaimedVolume { owner: owner(claim).unwrap_or_default().to_owned(), ..found })
}

/// Devices are not mounted, and files are not devices.
fn check_mode(claim: &Value, volume: &Value, pod: &Pod) -> Result<(), String> {
    let mode = volume["spec"]["volumeMode"].as_str().unwrap_or("Filesystem");
    let claim = text(&claim["metadata"]["name"]);
    let of_claim = |name: &str| {
        let mut volumes = pod.spec.volumes.iter();
        volumes.any(|volume| {
            volume.name == name && claim_of(pod, volume).is_some_and(|(named, _)| named == claim)
        })
    };
    for (container, _) in all_with_ephemeral(pod) {
        let mount = container.volume_mounts.iter().find(|mount| of_claim(&mount.name));
        if let (Some(mount), true) = (mount, mode != "Filesystem") {
            let name = &mount.name;
            return Err(format!("volume {name} has volumeMode {mode}, but is specified in volumeMounts"));
        }
        let device = container.volume_devices.iter().find(|device| of_claim(&device.name));
        if let (Some(device), true) = (device, mode != "Block") {
            let name = &device.name;
            return Err(format!("volume {name} has volumeMode {mode}, but is specified in volumeDevices"));
        }
    }
    if mode == "Filesystem" {
        return Ok(());
    }
    let name = text(&volume["metadata"]["name"]);
    Err(format!("PV {name} has volumeMode {mode}, which this node does not support"))
}

/// The claim is that of an ephemeral volume of the pod.
fn is_ephemeral(claim: &Value, pod: &Pod) -> bool {
    let name = text(&claim["metadata"]["name"]);
    let mut volumes = pod.spec.volumes.iter().filter(|volume| volume.ephemeral.is_some());
    volumes.any(|volume| claim_of(pod, volume).is_some_and(|(named, _)| named == name))
}

/// Uid of the controller.
fn owner(claim: &Value) -> Option<&str> {
    let mut owners = claim["metadata"]["ownerReferences"].as_array()?.iter();
    owners.find(|owner| owner["controller"] == true)?["uid"].as_str()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn has(list: &Value, wanted: &str) -> bool {
    texts(list).any(|text| text == wanted)
}

#[cfg(test)]
mod tests;
