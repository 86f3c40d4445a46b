//! The claims of generic ephemeral volumes (upstream: the ephemeral volume controller, 1.36): each such volume of a pod
//! gets a claim of its own, which the pod owns.
//!
//! Owns what such a claim is made of.
//!
//! Pure: what it returns depends on its arguments alone.

use std::rc::Rc;

use serde_json::json;

use crate::desired::change::ApiChange;
use crate::desired::local_objects::accept;
use crate::model::api::pod::{Pod, Volume};
use crate::model::objects::{EPHEMERAL_UID, LocalObject, ObjectKey, ObjectKind, OwnerReference, wire};
use crate::model::types::Timestamp;
use crate::pod::volume::rules::claim_of;

/// Whether the pod has claims that are made for it.
#[must_use]
pub(crate) fn has_claims(pod: &Pod) -> bool {
    pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some())
}

/// Adds the claims that these pods lack. One of that name which exists is left as it is; if it is not the pod's own,
/// the pod cannot use it.
pub(crate) fn add_claims(
    change: &mut ApiChange,
    pods: &[Rc<Pod>],
    exists: impl Fn(&ObjectKey) -> bool,
    now: Timestamp,
) {
    for pod in pods {
        let goes = |(gone, _): &(Rc<Pod>, _)| gone.metadata.uid == pod.metadata.uid;
        if pod.metadata.deletion_timestamp.is_some() || change.remove_pods.iter().any(goes) {
            continue;
        }
        for claim in pod.spec.volumes.iter().filter_map(|volume| claim(pod, volume, now)) {
            let key = &claim.key;
            let is_gone = change.remove_objects.contains(key);
            let is_put = change.put_objects.iter().any(|put| put.key == *key);
            if is_put || (exists(key) && !is_gone) {
                continue;
            }
            // The new one takes the place of that of an earlier pod.
            change.remove_objects.retain(|gone| gone != key);
            change.put_objects.push(Rc::new(claim));
        }
    }
}

/// The claim of a volume; `None` if it is not ephemeral. Its template has been validated with the pod.
fn claim(pod: &Pod, volume: &Volume, now: Timestamp) -> Option<LocalObject> {
    let template = &volume.ephemeral.as_ref()?["volumeClaimTemplate"];
    let (name, _) = claim_of(pod, volume)?;
    let of_pod = &pod.metadata;
    let mut value =
        json!({"metadata": {"name": name, "namespace": of_pod.namespace}, "spec": template["spec"]});
    for field in ["labels", "annotations"] {
        if template["metadata"][field].is_object() {
            value["metadata"][field] = template["metadata"][field].clone();
        }
    }
    let kind = ObjectKind::PersistentVolumeClaim;
    let (decoded, _) = wire::decode_object(kind, value).ok()?;
    let claim = accept(decoded).ok()?;
    // Of a pod that comes again, it is another claim.
    let seed = ObjectKey {
        kind,
        namespace: format!("{}\0{}", of_pod.namespace, of_pod.uid),
        name: format!("{name}\0{}", now.as_nanos()),
    };
    let digits = wire::derived_uid(&seed);
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: of_pod.name.clone(),
        uid: of_pod.uid.to_string(),
        controller: true,
        block_owner_deletion: true,
    };
    Some(LocalObject {
        uid: format!("{EPHEMERAL_UID}{}", &digits[EPHEMERAL_UID.len()..]),
        created: now,
        owner_references: vec![owner],
        ..claim
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;

    fn pod(uid: &str) -> Rc<Pod> {
        let template = json!({
            "metadata": {"labels": {"tier": "scratch"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        let volumes = json!([
            {"name": "data", "ephemeral": {"volumeClaimTemplate": template}},
            {"name": "other", "emptyDir": {}},
        ]);
        let metadata = json!({"name": "web", "namespace": "shop", "uid": uid});
        Rc::new(decode::<Pod>(json!({"metadata": metadata, "spec": {"volumes": volumes}})).unwrap().object)
    }

    fn added(change: &mut ApiChange, uid: &str, exists: bool, seconds: i64) {
        add_claims(change, &[pod(uid)], |_| exists, Timestamp::from_secs(seconds));
    }

    #[test]
    fn an_ephemeral_volume_gets_a_claim_that_the_pod_owns() {
        let mut change = ApiChange::default();
        added(&mut change, "u1", false, 5);
        let [claim] = change.put_objects.as_slice() else { panic!("{:?}", change.put_objects) };
        assert_eq!(claim.key.to_string(), "PersistentVolumeClaim shop/web-data");
        assert_eq!(claim.labels["tier"], "scratch");
        let owner = &claim.owner_references[0];
        assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("Pod", "web", "u1"));
        assert!(owner.controller && owner.block_owner_deletion && claim.is_ephemeral_claim());
        let value = wire::to_value(claim, wire::Values::Shown);
        assert_eq!(value["spec"]["resources"]["requests"]["storage"], "1Gi");
        added(&mut change, "u1", false, 6);
        assert_eq!(change.put_objects.len(), 1, "it is made once");
    }

    #[test]
    fn a_claim_that_exists_is_left_as_it_is() {
        let mut change = ApiChange::default();
        added(&mut change, "u1", true, 5);
        assert!(change.put_objects.is_empty());
    }

    #[test]
    fn a_pod_of_that_name_that_comes_again_gets_another_claim() {
        let mut first = ApiChange::default();
        added(&mut first, "u1", false, 5);
        let key = first.put_objects[0].key.clone();
        let mut next = ApiChange { remove_objects: vec![key], ..ApiChange::default() };
        added(&mut next, "u1", true, 6);
        assert!(next.remove_objects.is_empty(), "it is replaced");
        assert_ne!(next.put_objects[0].uid, first.put_objects[0].uid);
    }

    #[test]
    fn a_pod_that_goes_gets_no_claim() {
        let mut change = ApiChange { remove_pods: vec![(pod("u1"), None)], ..ApiChange::default() };
        added(&mut change, "u1", false, 5);
        assert!(change.put_objects.is_empty());
    }
}
