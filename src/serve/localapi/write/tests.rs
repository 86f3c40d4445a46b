//! Invalid options, field errors as clients read them, and what a patch costs.

use std::collections::{BTreeMap, BTreeSet};

use http_body_util::BodyExt;
use serde_json::json;

use super::body::PatchKind;
use super::*;
use crate::desired::api_pod;
use crate::desired::pod_config::notes::Mirror;
use crate::model::api::decode::decode;
use crate::model::node_changes::NodeBase;
use crate::model::objects::{LocalObject, ObjectKey, ObjectKind, VersionedObject};
use crate::model::provenance::mark_first_seen;
use crate::model::revisions::Revisions;
use crate::model::source::{SourceAnswer, SourcePod, SourceUpdate};
use crate::model::types::{PodSource, PodUid};
use crate::node::object::NodeState;
use crate::platform::clock::Clock;
use crate::platform::rt::changes::Changes;
use crate::pod::events::EventRecorder;
use crate::serve::localapi::ApiOptions;
use crate::serve::localapi::Editor;
use crate::serve::localapi::local_node::LocalNode;
use crate::serve::localapi::objects::RENDERED;
use crate::serve::localapi::path::{self, ApiCall};
use crate::serve::localapi::resource::Catalog;
use crate::serve::roles::Roles;
use crate::serve::server::AgentReport;
use crate::serve::server::node::testing::Shown;
use crate::store::{Mode, OpenOptions, StoreHandle, StoredEvent};

/// A node with nothing but its pods, all of one version.
struct PodsOnly;

impl LocalNode for PodsOnly {
    fn objects_of(&self, _: ObjectKind) -> Vec<VersionedObject> {
        Vec::new()
    }

    fn object(&self, _: &ObjectKey) -> Option<VersionedObject> {
        None
    }

    fn namespaces_in_use(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn events(&self) -> Vec<StoredEvent> {
        Vec::new()
    }

    fn claim_directory(&self, _: &LocalObject) -> String {
        String::new()
    }

    fn node(&self) -> NodeState {
        NodeState::default()
    }

    fn node_base(&self) -> NodeBase {
        NodeBase::default()
    }

    fn mirror(&self, _: &PodUid) -> Option<Mirror> {
        None
    }

    fn pod_version(&self, _: &PodUid) -> u64 {
        1002
    }

    fn deleted_namespaces(&self) -> BTreeMap<String, Timestamp> {
        BTreeMap::new()
    }

    fn changes(&self, _: Store) -> Changes {
        Changes(Vec::new())
    }
}

/// The API of a node that shows this pod, running.
fn api_with(pod: &Pod) -> Rc<LocalApi> {
    let mut pod = pod.clone();
    "Running".clone_into(&mut pod.status.phase);
    let report = AgentReport { node_name: "n".to_owned(), pods: vec![pod], ..AgentReport::default() };
    let revisions = Revisions::since(Timestamp::from_secs(1));
    let (editor, cluster) = (Editor::channel().0, Rc::new(PodsOnly));
    let (options, roles) = (ApiOptions::default(), (None, Rc::new(Roles::new(None))));
    LocalApi::new(Rc::new(Shown(report)), cluster, editor, Clock::System, revisions, options, roles)
}

async fn config_with(pod: &Rc<Pod>) -> PodConfig {
    let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() });
    let store = store.unwrap();
    let events = EventRecorder::new("n".to_owned(), Clock::System, store.clone(), Vec::new());
    let (registered, objects) = (vec![PodSource::Api, PodSource::Cluster], Rc::default());
    let mut config = PodConfig::new(registered, Vec::new(), objects, store, events, Clock::System);
    let change = ApiChange { put_pods: vec![Rc::clone(pod)], ..ApiChange::default() };
    config.edit(Box::new(|_| change)).await.unwrap();
    config
}

fn task(api: &Rc<LocalApi>, wanted: &RequestInfo, content: Content) -> Task {
    Task {
        api: Rc::clone(api),
        wanted: wanted.clone(),
        content,
        api_version: "v1".to_owned(),
        duplicates: Vec::new(),
        manager: "me".to_owned(),
        now: Timestamp::from_secs(8),
        uid: "new".to_owned(),
        user: crate::serve::server::access::User::of_node("jane".to_owned(), Vec::new()),
        policy: crate::serve::server::access::Policy::AlwaysAllow,
        dry_run: false,
        schema: OnceCell::new(),
        definition: None,
    }
}

fn pod() -> Pod {
    let raw = json!({"metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    api_pod::create(decode(raw).unwrap().object, "n", PodUid::from("u"), Timestamp::from_secs(7)).unwrap()
}

/// How every write of a pod of the cluster ends, desired or already terminating.
#[tokio::test]
async fn no_write_changes_a_pod_of_the_cluster() {
    let mut of_cluster = pod();
    mark_first_seen(&mut of_cluster, PodSource::Cluster, Timestamp::from_secs(7));
    let of_cluster = Rc::new(of_cluster);
    let api = api_with(&of_cluster);
    let mut other = pod();
    "other".clone_into(&mut other.metadata.namespace);
    let other = Rc::new(other);
    let (mut desired, terminating) = (config_with(&other).await, config_with(&other).await);
    let set = SourcePod { pod: Rc::clone(&of_cluster), origin: "https://c".to_owned() };
    desired
        .apply(SourceUpdate {
            source: PodSource::Cluster,
            answer: SourceAnswer::Pods(vec![set]),
            objects: Vec::new(),
            problems: Vec::new(),
            validator: None,
            signed: None,
        })
        .await;
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "other"}]}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let change = || Content::Patch(PatchKind::Merge, json!({"metadata": {"labels": {"a": "b"}}}));
    let (theirs, ends) = ("belongs to the cluster", "the pod is the cluster's, which is deleting it");
    for (method, part, content, (while_desired, while_terminating)) in [
        ("POST", "", Content::Object(object.clone()), (theirs, "object is being deleted")),
        ("PUT", "/p", Content::Object(object.clone()), (theirs, ends)),
        ("PATCH", "/p", change(), (theirs, ends)),
        ("PUT", "/p/status", Content::Object(object.clone()), (theirs, ends)),
        ("PATCH", "/p/status", change(), (theirs, ends)),
        ("PUT", "/p/resize", Content::Object(object.clone()), (theirs, ends)),
        ("PATCH", "/p/resize", change(), (theirs, ends)),
        ("PATCH", "/p/ephemeralcontainers", change(), (theirs, ends)),
        ("DELETE", "/p", Content::Object(json!({})), (theirs, ends)),
        ("DELETE", "/p", Content::Object(json!({"gracePeriodSeconds": 0})), (theirs, ends)),
        ("POST", "/p/eviction", Content::Object(eviction), (theirs, ends)),
    ] {
        let path = format!("/api/v1/namespaces/default/pods{part}");
        let Ok(ApiCall::Object(wanted)) = path::read(&Catalog::default(), method, &path, "") else {
            panic!("{method} {path}")
        };
        let part = wanted.subresource.map_or("", |part| part.name);
        let decide = decision(wanted.verb, part, Store::Pods).unwrap();
        for (config, expected) in [(&desired, while_desired), (&terminating, while_terminating)] {
            let failure = decide(&task(&api, &wanted, content.clone()), config).map(|_| ()).unwrap_err();
            let message = &failure.message;
            assert!(
                message.contains(expected) && [403, 409].contains(&failure.code),
                "{method} {path}: {message}"
            );
        }
    }
    let Ok(ApiCall::Object(all)) =
        path::read(&Catalog::default(), "DELETE", "/api/v1/namespaces/default/pods", "")
    else {
        panic!()
    };
    let decided = delete::many(&task(&api, &all, Content::Object(json!({}))), &desired);
    let (change, _) = decided.map_err(|failure| failure.message).unwrap();
    assert!(change.remove_pods.is_empty() && change.put_pods.is_empty(), "of the node's own API only");
    for part in ["/p/binding", "/p/scale"] {
        let path = format!("/api/v1/namespaces/default/pods{part}");
        assert!(path::read(&Catalog::default(), "POST", &path, "").is_err(), "{path}");
    }
}

#[tokio::test]
async fn a_patch_renders_twice_and_answers_what_a_read_does() {
    let pod = Rc::new(pod());
    let (api, config) = (api_with(&pod), config_with(&pod).await);
    let change = json!({"metadata": {"name": "p", "labels": {"a": "b"}}});
    let mut applied = change.clone();
    (applied["apiVersion"], applied["kind"]) = (json!("v1"), json!("Pod"));
    let json_patch = json!([{"op": "test", "path": "/status/phase", "value": "Running"},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    for (kind, patch) in [
        (PatchKind::Json, &json_patch),
        (PatchKind::Merge, &change),
        (PatchKind::Strategic, &change),
        (PatchKind::Apply, &applied),
    ] {
        for dry_run in [false, true] {
            let path = "/api/v1/namespaces/default/pods/p";
            let Ok(ApiCall::Object(wanted)) =
                path::read(&Catalog::default(), "PATCH", path, "fieldManager=me")
            else {
                panic!("{path}")
            };
            let task = Task { dry_run, ..task(&api, &wanted, Content::Patch(kind, patch.clone())) };
            RENDERED.set(0);
            let (change, done) = change::change(&task, &config).map_err(|failure| failure.message).unwrap();
            let after = api_with(&change.put_pods[0]);
            let answer = respond(&after, &wanted, done).into_body().collect().await.unwrap().to_bytes();
            assert_eq!(RENDERED.get(), 2, "{kind:?}");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(
                (&answer["metadata"]["labels"]["a"], &answer["status"]["phase"]),
                (&json!("b"), &json!("Running"))
            );
            assert_eq!(after.find(Store::Pods, "default", "p"), Some(answer), "{kind:?}");
        }
    }
}

fn refused(method: &str, query: &str) -> Option<String> {
    let path = match method {
        "POST" => "/api/v1/namespaces/default/pods",
        _ => "/api/v1/namespaces/default/pods/p",
    };
    let Ok(ApiCall::Object(wanted)) = path::read(&Catalog::default(), method, path, query) else {
        panic!("{method} {query}")
    };
    check_options(&wanted).err().map(|failure| format!("{} {}", failure.code, failure.message))
}

#[test]
fn invalid_write_options_are_refused_like_upstream() {
    assert_eq!(refused("POST", "dryRun=All&fieldValidation=Strict&fieldManager=me"), None);
    for (method, query, said) in [
        (
            "POST",
            "dryRun=Some",
            "422 CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"Some\": supported values: \"All\"",
        ),
        (
            "PATCH",
            "fieldValidation=Loud",
            "422 PatchOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Loud\": supported values: \"Ignore\", \"Strict\", \"Warn\"",
        ),
        (
            "DELETE",
            "propagationPolicy=Up",
            "422 DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Up\": supported values: \"Background\", \"Foreground\", \"Orphan\"",
        ),
    ] {
        assert_eq!(refused(method, query).as_deref(), Some(said));
    }
    let long = format!("fieldManager={}", "x".repeat(129));
    assert!(refused("PUT", &long).is_some_and(|said| said.contains("fieldManager: Too long")));
}

#[test]
fn a_field_error_is_a_cause_without_its_path() {
    let error = FieldError {
        path: "spec.nodeName".to_owned(),
        kind: FieldErrorKind::Invalid,
        value: "\"x\"".to_owned(),
        detail: "why".to_owned(),
    };
    let expected = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: "Invalid value: \"x\": why".to_owned(),
        field: "spec.nodeName".to_owned(),
    };
    assert_eq!(causes(&[error]), [expected]);
}
