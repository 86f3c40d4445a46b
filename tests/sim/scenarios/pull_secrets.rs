//! `imagePullSecrets`: a pod's own credentials for a registry that lets nobody else in.

use std::rc::Rc;

use edge_agent::model::objects::{ObjectKind, wire};
use edge_agent::model::source::{SourceObject, SourcePod};
use edge_agent::model::types::PodSource;
use edge_agent::runtime::ImageAuth;
use edge_agent::runtime::fake::{FakeImage, RemoteImage};
use serde_json::json;

use super::{MINUTE, SECOND, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::parse_text;

const IMAGE: &str = "r.example/team/app:1";

fn pod() -> SourcePod {
    pod_with("app", "IfNotPresent", r#"[{"name": "old"}, {"name": "login"}]"#)
}

fn pod_with(name: &str, policy: &str, secrets: &str) -> SourcePod {
    let text = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}", "namespace": "default"}},
          "spec": {{"imagePullSecrets": {secrets},
            "containers": [{{"name": "c0", "image": "{IMAGE}", "imagePullPolicy": "{policy}"}}]}}}}"#
    );
    parse_text(name, &text, PodSource::File)
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
    let auth = ImageAuth::of_user("me".into(), "hush".into());
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

/// What a pod's only container waits for.
fn reason(node: &Node, pod: &SourcePod) -> String {
    let waiting = status(node, pod).container_statuses[0].state.waiting.clone();
    waiting.map(|waiting| waiting.reason).unwrap_or_default()
}

#[test]
fn an_image_that_a_secret_pulled_is_for_pods_that_could_pull_it() {
    simulate(async {
        let mut node = node().await;
        close_registry(&node);
        define(&mut node, "default", "login", &login("hush"));
        define(&mut node, "default", "copy", &login("hush"));
        define(&mut node, "default", "wrong", &login("guessed"));
        let app = pod();
        node.want(PodSource::File, std::slice::from_ref(&app));
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "app").len(), 1);

        let bare = pod_with("bare", "IfNotPresent", "[]");
        let never = pod_with("never", "Never", r#"[{"name": "wrong"}]"#);
        let wrong = pod_with("wrong", "IfNotPresent", r#"[{"name": "wrong"}]"#);
        let copy = pod_with("copy", "Never", r#"[{"name": "copy"}]"#);
        let all = [app, bare.clone(), never.clone(), wrong.clone(), copy];
        node.want(PodSource::File, &all);
        node.wait(10 * MINUTE).await;
        let refused = |node: &Node| {
            for (pod, expected) in [(&bare, "PullBackOff"), (&wrong, "PullBackOff"), (&never, "NeverPull")] {
                let words = if reason(node, pod) == "ErrImagePull" {
                    "PullBackOff".to_owned()
                } else {
                    reason(node, pod)
                };
                assert!(words.ends_with(expected), "{words}");
            }
        };
        refused(&node);
        assert_eq!((running(&node, "app").len(), running(&node, "copy").len()), (1, 1));

        // Without the registry and after a new start: who could pull it still may, the others still may not.
        node.fake.change(|world, _| world.registry.clear());
        node.crash();
        node.start().await;
        let late = pod_with("late", "IfNotPresent", r#"[{"name": "login"}]"#);
        node.want(PodSource::File, &[all.as_slice(), &[late]].concat());
        node.wait(10 * MINUTE).await;
        refused(&node);
        assert_eq!((running(&node, "app").len(), running(&node, "late").len()), (1, 1));
    });
}

#[test]
fn an_image_that_was_there_before_is_for_every_pod() {
    simulate(async {
        let mut node = node().await;
        node.fake.change(|world, _| world.images.insert(IMAGE.to_owned(), FakeImage::named(IMAGE)));
        node.want(PodSource::File, &[pod_with("bare", "IfNotPresent", "[]")]);
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "bare").len(), 1);
    });
}
