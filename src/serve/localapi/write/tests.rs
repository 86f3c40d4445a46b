//! Invalid options, field errors as clients read them, and what a patch costs.

use std::collections::BTreeMap;

use http_body_util::BodyExt;
use serde_json::json;

use super::body::PatchKind;
use super::*;
use crate::desired::api_pod;
use crate::desired::pod_config::notes::Mirror;
use crate::model::api::decode::decode;
use crate::model::node_changes::NodeBase;
use crate::model::objects::VersionedObject;
use crate::model::revisions::Revisions;
use crate::model::types::{PodSource, PodUid};
use crate::node::object::NodeState;
use crate::platform::clock::Clock;
use crate::platform::rt::changes::Changes;
use crate::pod::events::EventRecorder;
use crate::serve::localapi::Editor;
use crate::serve::localapi::local_node::LocalNode;
use crate::serve::localapi::objects::RENDERED;
use crate::serve::localapi::path::{self, ApiCall};
use crate::serve::server::AgentReport;
use crate::serve::server::node::testing::Shown;
use crate::store::{Mode, OpenOptions, StoreHandle, StoredEvent};

/// A node with nothing but its pods, all of one version.
struct PodsOnly;

impl LocalNode for PodsOnly {
    fn objects(&self) -> Vec<VersionedObject> {
        Vec::new()
    }

    fn events(&self) -> Vec<StoredEvent> {
        Vec::new()
    }

    fn namespaces(&self) -> Vec<Value> {
        Vec::new()
    }

    fn claim_directory(&self, _: &str, _: &str) -> String {
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
    LocalApi::new(Rc::new(Shown(report)), Rc::new(PodsOnly), Editor::channel().0, Clock::System, revisions)
}

async fn config_with(pod: &Rc<Pod>) -> PodConfig {
    let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() });
    let store = store.unwrap();
    let events = EventRecorder::new("n".to_owned(), Clock::System, store.clone(), Vec::new());
    let (registered, objects) = (vec![PodSource::Api], Rc::default());
    let mut config = PodConfig::new(registered, Vec::new(), objects, store, events, Clock::System);
    let change = ApiChange { put_pods: vec![Rc::clone(pod)], ..ApiChange::default() };
    config.edit(Box::new(|_| change)).await.unwrap();
    config
}

#[tokio::test]
async fn a_patch_renders_twice_and_answers_what_a_read_does() {
    let raw = json!({"metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = api_pod::create(decode(raw).unwrap().object, "n", PodUid::from("u"), Timestamp::from_secs(7));
    let pod = Rc::new(pod.unwrap());
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
            let Ok(ApiCall::Object(wanted)) = path::read("PATCH", path, "fieldManager=me") else {
                panic!("{path}")
            };
            let task = Task {
                api: Rc::clone(&api),
                wanted: RequestInfo::clone(&wanted),
                content: Content::Patch(kind, patch.clone()),
                api_version: "v1".to_owned(),
                duplicates: Vec::new(),
                manager: "me".to_owned(),
                now: Timestamp::from_secs(8),
                uid: String::new(),
                dry_run,
                schema: OnceCell::new(),
            };
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
    let Ok(ApiCall::Object(wanted)) = path::read(method, path, query) else { panic!("{method} {query}") };
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
