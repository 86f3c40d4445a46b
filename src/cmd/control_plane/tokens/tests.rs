use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::cluster::fake::FakeApiserver;
use crate::cmd::control_plane::api::client;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;

#[test]
fn random_tokens_are_tokens_and_differ() {
    let (one, two) = (random().unwrap(), random().unwrap());
    assert_ne!(one, two);
    let record = split(&one);
    assert_eq!(record.text(), one);
    assert_eq!(record::id_of(&one).unwrap(), record.id);
}

#[tokio::test(start_paused = true)]
async fn rules_of_an_upgrade_leave_what_cluster_info_says() {
    let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
    let say = |_: &str| {};
    let api =
        Api::new(Some(client(server.transport("admin"))), &say, Instant::now() + Duration::from_secs(60));
    all_rules(&api).await.unwrap();
    let at = |namespace: &str, kind: &str, name: &str| {
        format!("/apis/rbac.authorization.k8s.io/v1{namespace}/{kind}/{}", name.replace(':', "%3A"))
    };
    let role = at("/namespaces/kube-public", "roles", "kubeadm:bootstrap-signer-clusterinfo");
    assert!(server.object(&role).is_some());
    assert!(server.object(&at("", "clusterrolebindings", "kubeadm:get-nodes")).is_some());
    assert!(server.object("/api/v1/namespaces/kube-public/configmaps/cluster-info").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_lets_machines_with_the_token_join() {
    let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let limit = Instant::now() + Duration::from_secs(60);
    let api = Api::new(Some(client(server.transport("admin"))), &say, limit);
    let records = [split("abcdef.0123456789abcdef")];
    let info = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
    bootstrap(&api, &records, ("https://edge:6443", "Q0E="), true).await.unwrap();
    let text = said.take();
    assert!(text.starts_with("[bootstrap-token] Using token: abcdef.0123456789abcdef\n"), "{text}");
    assert_eq!(text.lines().count(), 8, "{text}");
    let mut signed = server.object(info).unwrap();
    assert!(signed["data"]["kubeconfig"].as_str().unwrap().contains("https://edge:6443"));
    // The controller's signature is still there after a second run, which prints no token.
    signed["data"]["jws-kubeconfig-abcdef"] = "a..b".into();
    server.put(signed);
    bootstrap(&api, &records, ("https://edge:6443", "Q0E="), false).await.unwrap();
    assert!(!said.take().contains("abcdef"));
    assert_eq!(server.object(info).unwrap()["data"]["jws-kubeconfig-abcdef"], "a..b");
    let secret = server.object("/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef").unwrap();
    assert!(Record::from_secret(&secret).unwrap() == records[0]);
    for role in
        ["kubeadm:get-nodes", "kubeadm:kubelet-bootstrap", "kubeadm:node-autoapprove-certificate-rotation"]
    {
        let path =
            format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{}", role.replace(':', "%3A"));
        assert!(server.object(&path).is_some(), "{role}");
    }
}
