//! The objects of this API, derived from the agent's state.
//!
//! Owns the translation into Kubernetes' shapes.

use crate::model::ordered::Sortable as _;

use serde_json::{Value, json};

use super::resource::Store;
use super::{LocalApi, implied, text};
use crate::desired::pod_config::notes::Mirror;
use crate::model::api::pod::Pod;
use crate::model::objects::volumes::{Binding, ask_provisioner, show_binding};
use crate::model::objects::wire::{self, Values};
use crate::model::objects::{ObjectKey, ObjectKind, VersionedObject};
use crate::model::provenance::{
    CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_SOURCE_ANNOTATION, show_source,
};
use crate::model::types::PodUid;
use crate::node::object::{self, node_uid, uid};
use crate::pod::events;
use crate::pod::lifecycle::show_end;
use crate::pod::status::rules::hide_early_end;
use crate::service::slices::show_status;
use crate::store::StoredEvent;

/// All objects of a store, by namespace and name; pods and objects with the versions that their writers have
/// stamped. Metrics are not included: they have no versions.
pub(super) fn all(api: &LocalApi, store: Store) -> Vec<Value> {
    let node_name = api.node.name();
    let mut objects: Vec<Value> = match store {
        Store::Pods => api.node.pods().into_iter().map(|pod| shown_pod(api, pod)).collect(),
        Store::Objects(kind) => local(api, kind),
        Store::Events => {
            let own = api.cluster.events();
            let own = own.iter().map(|found| event(found, node_name));
            own.chain(api.client_events.all(api.clock.now())).collect()
        }
        Store::Namespaces => implied::namespaces(api),
        Store::Nodes => vec![object::node(&api.cluster.node())],
        Store::Leases => {
            let mut leases = local(api, ObjectKind::Lease);
            leases.push(object::lease(&api.cluster.node()));
            leases
        }
        Store::Definitions | Store::PodMetrics | Store::NodeMetrics | Store::Review => Vec::new(),
    };
    let place =
        |object: &Value| ["/metadata/namespace", "/metadata/name"].map(|part| text(object, part).to_owned());
    objects.order_by_key(place);
    objects
}

/// The object at this place (namespace and name), as in [`all`], of a store that [is stamped](Store::is_stamped).
pub(super) fn one(api: &LocalApi, store: Store, (namespace, name): (&str, &str)) -> Option<Value> {
    match store {
        Store::Objects(kind) => {
            let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
            let mut objects = api.cluster.object(&key).iter().map(|known| shown(api, known)).collect();
            implied::add(api, kind, Some((namespace, name)), &mut objects);
            objects.pop()
        }
        _ => api.node.pod(namespace, name, None).map(|found| shown_pod(api, found)),
    }
}

fn shown_pod(api: &LocalApi, mut found: Pod) -> Value {
    let mirror = api.cluster.mirror(&found.metadata.uid);
    found.metadata.resource_version = api.cluster.pod_version(&found.metadata.uid).to_string();
    pod(found, api.node.name(), mirror)
}

/// Puts what is observed of a pod of the API into its JSON in the stored form, as [`all`] shows it.
pub(super) fn complete(api: &LocalApi, mut found: Pod, object: &mut Value) {
    show_end(&mut found);
    hide_early_end(&mut found.status);
    let Pod { metadata, status, .. } = found;
    (object["apiVersion"], object["kind"]) = (json!("v1"), json!("Pod"));
    let shown = &mut object["metadata"];
    shown["resourceVersion"] = json!(api.cluster.pod_version(&metadata.uid).to_string());
    let created = metadata.creation_timestamp.or(status.start_time);
    for (field, time) in [("creationTimestamp", created), ("deletionTimestamp", metadata.deletion_timestamp)]
    {
        if let Some(time) = time {
            shown[field] = json!(time);
        }
    }
    object["status"] = json!(status);
}

/// A pod; a static one as the mirror pod that an API server would have.
#[must_use]
pub(crate) fn pod(mut pod: Pod, node_name: &str, mirror: Option<Mirror>) -> Value {
    show_end(&mut pod);
    show_source(&mut pod);
    hide_early_end(&mut pod.status);
    "v1".clone_into(&mut pod.api_version);
    "Pod".clone_into(&mut pod.kind);
    let annotations = &mut pod.metadata.annotations;
    let from = annotations.get(CONFIG_SOURCE_ANNOTATION).map(String::as_str);
    let hash = annotations.get(CONFIG_HASH_ANNOTATION).cloned();
    if let (Some("file" | "http"), Some(hash)) = (from, hash) {
        annotations.insert(CONFIG_MIRROR_ANNOTATION.to_owned(), hash);
        pod.metadata.owner_references = vec![json!({
            "apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid(node_name), "controller": true,
        })];
    }
    if pod.metadata.creation_timestamp.is_none() {
        pod.metadata.creation_timestamp = pod.status.start_time;
    }
    if let Some(mirror) = mirror {
        pod.metadata.uid = PodUid::from(mirror.uid);
        pod.metadata.creation_timestamp = Some(mirror.created);
    }
    // Stored by a release that did not set generations.
    pod.metadata.generation = pod.metadata.generation.max(1);
    render(&pod)
}

/// The JSON of a pod. Writes need two: of the old and of the new one.
pub(super) fn render(pod: &Pod) -> Value {
    #[cfg(test)]
    RENDERED.set(RENDERED.get() + 1);
    json!(pod)
}

#[cfg(test)]
std::thread_local! {
    pub(super) static RENDERED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn local(api: &LocalApi, kind: ObjectKind) -> Vec<Value> {
    let mut objects = api.cluster.objects_of(kind).iter().map(|known| shown(api, known)).collect();
    implied::add(api, kind, None, &mut objects);
    objects
}

/// An object with the version that it was stamped with, and with what the node adds to it.
fn shown(api: &LocalApi, known: &VersionedObject) -> Value {
    let mut object = wire::to_value(&known.object, Values::Shown);
    object["metadata"]["resourceVersion"] = json!(known.version.to_string());
    if known.object.key.kind == ObjectKind::PersistentVolumeClaim {
        let binding = api.cluster.binding(&known.object);
        show_binding(&mut object, &binding);
        ask_provisioner(&mut object, &binding, api.node.name());
    }
    if known.object.key.kind == ObjectKind::PersistentVolume && !object["spec"]["claimRef"].is_object() {
        show_claim(api, &known.object.key.name, &mut object);
    }
    if known.object.key.kind == ObjectKind::Service {
        show_status(&mut object, &api.cluster.node().addresses);
    }
    object
}

/// Puts into the JSON of a volume the claim that has it: that of a manifest is not written there.
fn show_claim(api: &LocalApi, volume: &str, object: &mut Value) {
    let claims = api.cluster.objects_of(ObjectKind::PersistentVolumeClaim);
    let has =
        |claim: &&VersionedObject| api.cluster.binding(&claim.object) == Binding::Volume(volume.to_owned());
    if let Some(claim) = claims.iter().find(has) {
        object["spec"]["claimRef"] = wire::claim_reference(&claim.object);
    }
}

#[must_use]
pub(crate) fn event(event: &StoredEvent, host: &str) -> Value {
    let mut object = events::object::event(event, host);
    let (namespace, name) = (text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
    object["metadata"]["uid"] = json!(uid(&format!("Event\0{namespace}\0{name}")));
    object["metadata"]["creationTimestamp"] = json!(event.first.to_rfc3339());
    object
}

/// The same event in the shape of `events.k8s.io`.
#[must_use]
pub(crate) fn new_event(old: &Value) -> Value {
    let mut event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event"});
    for (new, was) in [
        ("metadata", "metadata"),
        ("eventTime", "eventTime"),
        ("reportingController", "reportingComponent"),
        ("reportingInstance", "reportingInstance"),
        ("reason", "reason"),
        ("regarding", "involvedObject"),
        ("related", "related"),
        ("note", "message"),
        ("type", "type"),
        ("action", "action"),
        ("series", "series"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
    ] {
        if let Some(part) = old.get(was) {
            event[new] = part.clone();
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::Timestamp;
    use crate::store::{EventKey, EventType};

    #[test]
    fn only_a_manifest_pod_is_shown_as_a_mirror_pod() {
        let mut one = Pod::default();
        one.metadata.annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), "file".to_owned());
        one.metadata.annotations.insert(CONFIG_HASH_ANNOTATION.to_owned(), "abc".to_owned());
        let shown = pod(one.clone(), "box", None);
        assert_eq!(shown["metadata"]["generation"], 1);
        assert_eq!(shown["metadata"]["annotations"][CONFIG_MIRROR_ANNOTATION], "abc");
        let mirror = Mirror { uid: "later".to_owned(), created: Timestamp::from_secs(7) };
        let later = pod(one.clone(), "box", Some(mirror));
        assert_eq!(later["metadata"]["annotations"], shown["metadata"]["annotations"]);
        assert_eq!(
            (&later["metadata"]["uid"], &later["metadata"]["creationTimestamp"]),
            (&json!("later"), &json!("1970-01-01T00:00:07Z"))
        );
        assert_eq!(shown["metadata"]["ownerReferences"][0]["kind"], "Node");
        one.metadata.annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), "api".to_owned());
        let shown = pod(one, "box", None);
        assert_eq!(shown["metadata"]["annotations"].get(CONFIG_MIRROR_ANNOTATION), None);
        assert_eq!(shown["metadata"].get("ownerReferences"), None);
    }

    #[test]
    fn a_pod_that_is_to_end_runs_until_its_containers_do_not() {
        let raw = json!({"status": {"phase": "Failed", "reason": "DeadlineExceeded",
            "containerStatuses": [{"name": "c", "state": {"running": {}}}]}});
        let mut one: Pod = crate::model::api::decode::decode(raw).unwrap().object;
        assert_eq!(pod(one.clone(), "box", None)["status"]["phase"], "Running");
        one.status.container_statuses[0].state.running = None;
        assert_eq!(pod(one, "box", None)["status"]["phase"], "Failed");
    }

    #[test]
    fn event_name_is_stable_while_counted_and_in_both_groups() {
        let key = EventKey {
            kind: "Pod".into(),
            namespace: "a".into(),
            name: "web".into(),
            event_type: EventType::Warning,
            reason: "BackOff".into(),
            message: "m".into(),
            ..EventKey::default()
        };
        let at = Timestamp::from_secs;
        let once = StoredEvent { key, count: 1, first: at(1000), last: at(1000) };
        let (before, after) =
            (event(&once, "box"), event(&StoredEvent { count: 7, last: at(1010), ..once.clone() }, "box"));
        assert_eq!(before["metadata"], after["metadata"]);
        let mut other = once.clone();
        other.key.message = "n".into();
        assert_ne!(event(&other, "box")["metadata"]["name"], before["metadata"]["name"]);
        let new = new_event(&after);
        assert_eq!(
            (&new["note"], &new["deprecatedCount"], &new["regarding"]["name"]),
            (&json!("m"), &json!(7), &json!("web"))
        );
        assert_eq!(new["metadata"], after["metadata"]);
        let mut node = once;
        node.key.namespace = String::new();
        assert_eq!(event(&node, "box")["metadata"]["namespace"], "default");
    }
}
