use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::cluster::fake::{FakeApiserver, FakeTransport};
use crate::cmd::control_plane::api::client;
use crate::codec::base64;
use crate::platform::clock::Clock;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn server() -> FakeApiserver {
    FakeApiserver::new(Clock::manual(NOW), 1)
}

fn api<'a>(server: &FakeApiserver, say: &'a dyn Fn(&str)) -> Api<'a, FakeTransport> {
    Api::new(Some(client(server.transport("admin"))), say, Instant::now() + Duration::from_secs(60))
}

fn object(server: &FakeApiserver, path: &str) -> Value {
    server.object(&format!("/api/v1/namespaces/kube-system/{path}")).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn configurations_are_stored_and_a_second_time_change_nothing() {
    let (server, say) = (server(), |_: &str| {});
    let api = api(&server, &say);
    let (cluster, kubelet) =
        (json!({"kind": "ClusterConfiguration"}), json!({"containerRuntimeEndpoint": "unix:///x"}));
    for _ in 0..2 {
        kubeadm_config(&api, &cluster).await.unwrap();
        kubelet_config(&api, &kubelet, false).await.unwrap();
    }
    assert_eq!(
        object(&server, "configmaps/kubeadm-config")["data"]["ClusterConfiguration"],
        "kind: ClusterConfiguration\n"
    );
    let kubelet_config_map = object(&server, "configmaps/kubelet-config");
    assert_eq!(kubelet_config_map["data"]["kubelet"], "containerRuntimeEndpoint: \"\"\n");
    let hash =
        kubelet_config_map["metadata"]["annotations"]["kubeadm.kubernetes.io/component-config.hash"].clone();
    assert!(hash.as_str().is_some_and(|hash| hash.starts_with("sha256:")), "{hash}");
    assert_eq!(
        kubelet_config_map["metadata"]["resourceVersion"], "104",
        "it was written again: {kubelet_config_map}"
    );
    // What the user has written is not marked as kubeadm's.
    super::kubelet_config(&api, &kubelet, true).await.unwrap();
    assert!(object(&server, "configmaps/kubelet-config")["metadata"]["annotations"].is_null());
}

#[tokio::test(start_paused = true)]
async fn certificates_are_sealed_and_end_with_their_token() {
    let (server, say) = (server(), |_: &str| {});
    let key = certificate_key().unwrap();
    let files = [("ca.crt", b"authority".to_vec()), ("ca.key", Vec::new())];
    certificates(&api(&server, &say), &key, &files, NOW).await.unwrap();
    let secret = object(&server, "secrets/kubeadm-certs");
    let data = |name: &str| base64::decode(secret["data"][name].as_str().unwrap()).unwrap();
    assert_eq!(objects::open(&key, &data("ca.crt")).unwrap(), b"authority");
    assert_eq!(data("ca.key"), b"");
    let owner = &secret["metadata"]["ownerReferences"][0];
    let token = object(&server, &format!("secrets/{}", owner["name"].as_str().unwrap()));
    assert_eq!(token["metadata"]["uid"], owner["uid"]);
    assert_eq!(owner["controller"], true);
    let record = record::Record::from_secret(&token).unwrap();
    assert_eq!(record.expires, Some(NOW.saturating_add(Duration::from_secs(7200))));
    assert!(record.usages.is_empty() && record.groups.is_empty(), "it lets no machine join");
    // Two uploads never use a nonce twice.
    let before = data("ca.crt");
    certificates(&api(&server, &say), &key, &files, NOW).await.unwrap();
    let secret = object(&server, "secrets/kubeadm-certs");
    assert_ne!(base64::decode(secret["data"]["ca.crt"].as_str().unwrap()).unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn what_was_uploaded_is_downloaded_with_its_key() {
    let (server, say) = (server(), |_: &str| {});
    let api = api(&server, &say);
    let given = json!({ "certificatesDir": "/pki" });
    let field = crate::cmd::control_plane::config::fields::DocumentField::of(&given);
    let cluster = crate::cmd::control_plane::config::read::cluster(&field, "v1.36.0").unwrap();
    let key = certificate_key().unwrap();
    let said = |result: Result<Vec<_>, ApiPhaseError>| result.unwrap_err().to_string();
    let why = said(download(&api, &key, &cluster).await);
    assert!(why.contains("might have expired") && why.contains("upload-certs --upload-certs"), "{why}");
    // An authority whose key is elsewhere.
    let is_there = |name: &str| name != "front-proxy-ca.key";
    let content = |name: &str| if is_there(name) { format!("{name} as text") } else { String::new() };
    let files: Vec<_> =
        shared(&cluster).into_iter().map(|(name, _)| (name, content(name).into_bytes())).collect();
    certificates(&api, &key, &files, NOW).await.unwrap();
    let found = download(&api, &key, &cluster).await.unwrap();
    assert_eq!(found.len(), 7);
    assert!(found.contains(&("/pki/etcd/ca.key".into(), "etcd-ca.key as text".to_owned())), "{found:?}");
    assert!(!found.iter().any(|(path, _)| path.ends_with("front-proxy-ca.key")));
    let why = said(download(&api, &[7; 32], &cluster).await);
    assert!(why.contains("ca.crt was not encrypted with it"), "{why}");
    certificates(&api, &key, &files[..4], NOW).await.unwrap();
    let why = said(download(&api, &key, &cluster).await);
    assert!(why.contains("couldn't find required certificate or key \"sa.pub\""), "{why}");
}
