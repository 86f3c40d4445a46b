//! `imagePullSecrets`: a pod's own credentials for a registry that lets nobody else in.

use std::rc::Rc;

use edge_agent::objects::{ObjectKind, wire};
use edge_agent::runtime::ImageAuth;
use edge_agent::runtime::fake::{FakeImage, RemoteImage};
use edge_agent::source::{SourceObject, SourcePod};
use edge_agent::types::PodSource;
use serde_json::json;

use super::{MINUTE, SECOND, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::parse_text;

const IMAGE: &str = "r.example/team/app:1";

fn pod() -> SourcePod {
    let text = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "app", "namespace": "default"}},
          "spec": {{"imagePullSecrets": [{{"name": "old"}}, {{"name": "login"}}],
            "containers": [{{"name": "c0", "image": "{IMAGE}", "imagePullPolicy": "IfNotPresent"}}]}}}}"#
    );
    parse_text("app", &text, PodSource::File)
}

/// The file source defines one more Secret of type `kubernetes.io/dockerconfigjson`.
fn define(node: &mut Node, namespace: &str, name: &str, config: &str) {
    let object = json!({"metadata": {"namespace": namespace, "name": name},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": config}});
    let object = Rc::new(wire::from_value(ObjectKind::Secret, object).expect("a good Secret"));
    let origin = format!("/manifests/{name}.yaml");
    node.defined.entry(PodSource::File).or_default().push(SourceObject { object, origin });
}

fn login(password: &str) -> String {
    format!(r#"{{"auths": {{"r.example/team": {{"username": "me", "password": "{password}"}}}}}}"#)
}

fn close_registry(node: &Node) {
    let auth = ImageAuth { username: "me".into(), password: "hush".into(), ..ImageAuth::default() };
    let remote = RemoteImage { image: FakeImage::named(IMAGE), pull_time: SECOND, auth: Some(auth) };
    node.fake.change(|world, _| world.registry.insert(IMAGE.to_owned(), remote));
}

#[test]
fn a_pods_secrets_open_its_registry_once_one_of_them_is_right() {
    simulate(async {
        let mut node = node().await;
        close_registry(&node);
        let app = pod();
        node.want(PodSource::File, std::slice::from_ref(&app));
        node.wait(5 * SECOND).await;
        let waiting = status(&node, &app).container_statuses[0].state.waiting.clone().expect("it waits");
        assert!(waiting.message.contains("no basic auth credentials"), "{}", waiting.message);
        assert!(
            ["ErrImagePull", "ImagePullBackOff"].contains(&waiting.reason.as_str()),
            "{}",
            waiting.reason
        );

        // Wrong for the registry: nobody is let in, and nothing of the password is told.
        define(&mut node, "default", "old", &login("guessed"));
        node.want(PodSource::File, std::slice::from_ref(&app));
        node.wait(10 * MINUTE).await;
        let waiting = status(&node, &app).container_statuses[0].state.waiting.clone().expect("it waits");
        assert!(!waiting.message.contains("guessed"), "{}", waiting.message);
        assert!(running(&node, "app").is_empty());

        // The second is right: the next try gets in.
        define(&mut node, "default", "login", &login("hush"));
        node.want(PodSource::File, std::slice::from_ref(&app));
        node.wait(10 * MINUTE).await;
        assert_eq!(running(&node, "app").len(), 1);
    });
}

#[test]
fn secrets_of_another_namespace_open_nothing() {
    simulate(async {
        let mut node = node().await;
        close_registry(&node);
        let text = r#"{"auths": {"r.example": {"username": "me", "password": "hush"}}}"#;
        define(&mut node, "other", "login", text);
        let app = pod();
        node.want(PodSource::File, std::slice::from_ref(&app));
        node.wait(10 * MINUTE).await;
        assert!(running(&node, "app").is_empty());
    });
}
