use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::cluster::fake::{FakeApiserver, FakeTransport};
use crate::cmd::control_plane::api::client;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;

fn server() -> FakeApiserver {
    FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1)
}

fn api<'a>(server: &FakeApiserver, say: &'a dyn Fn(&str)) -> Api<'a, FakeTransport> {
    Api::new(Some(client(server.transport("admin"))), say, Instant::now() + Duration::from_secs(60))
}

#[tokio::test(start_paused = true)]
async fn what_the_user_has_made_of_coredns_stays() {
    let (server, say) = (server(), |_: &str| {});
    let api = api(&server, &say);
    let run = |image| coredns(&api, ("cluster.local", image, "10.96.0.10"), &Ok);
    run("coredns:v1").await.unwrap();
    let config = "/api/v1/namespaces/kube-system/configmaps/coredns";
    let deployment = "/apis/apps/v1/namespaces/kube-system/deployments/coredns";
    let mut changed = server.object(config).unwrap();
    changed["data"]["Corefile"] = "mine".into();
    server.put(changed);
    let mut changed = server.object(deployment).unwrap();
    assert_eq!(changed["spec"]["replicas"], 2);
    changed["spec"]["replicas"] = 1.into();
    server.put(changed);
    run("coredns:v2").await.unwrap();
    assert_eq!(server.object(config).unwrap()["data"]["Corefile"], "mine");
    let now = server.object(deployment).unwrap();
    assert_eq!(now["spec"]["replicas"], 1);
    assert_eq!(now["spec"]["template"]["spec"]["containers"][0]["image"], "coredns:v2");
    let service = server.object("/api/v1/namespaces/kube-system/services/kube-dns").unwrap();
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.10");
}

#[tokio::test(start_paused = true)]
async fn the_deployment_of_coredns_can_be_patched() {
    let (server, say) = (server(), |_: &str| {});
    let api = api(&server, &say);
    let patch = |mut object: Value| {
        object["spec"]["template"]["spec"]["priorityClassName"] = "mine".into();
        Ok(object)
    };
    coredns(&api, ("cluster.local", "i", "10.96.0.10"), &patch).await.unwrap();
    let there = server.object("/apis/apps/v1/namespaces/kube-system/deployments/coredns").unwrap();
    assert_eq!(there["spec"]["template"]["spec"]["priorityClassName"], "mine");
    let refused = |_| Err("a bad patch".to_owned());
    let why = coredns(&api, ("cluster.local", "i", "10.96.0.10"), &refused).await.unwrap_err().to_string();
    assert_eq!(why, "a bad patch");
}

#[test]
fn kube_proxy_gets_its_configuration_and_the_machines_proxies() {
    let config = json!({"mode": "nftables"});
    let proxies = [("HTTPS_PROXY".to_owned(), "http://p:1".to_owned())];
    let objects = kube_proxy_objects((&config, false), "https://edge:6443", "kube-proxy:v1", &proxies);
    assert_eq!(objects[0]["data"]["config.conf"], "mode: nftables");
    let kubeconfig = objects[0]["data"]["kubeconfig.conf"].as_str().unwrap();
    assert!(
        kubeconfig.contains("\n    server: https://edge:6443\n") && !kubeconfig.ends_with('\n'),
        "{kubeconfig}"
    );
    assert!(objects[0]["metadata"]["annotations"].is_object());
    let env = &objects[1]["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(env[0]["name"], "NODE_NAME");
    assert_eq!(env[1], json!({"name": "HTTPS_PROXY", "value": "http://p:1"}));
    let objects = kube_proxy_objects((&config, true), "https://edge:6443", "kube-proxy:v1", &[]);
    assert!(objects[0]["metadata"]["annotations"].is_null());
}
