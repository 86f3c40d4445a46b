//! What the cluster says, as settings and lists.

use super::*;
use crate::cmd::control_plane::config::Etcd;
use crate::cmd::control_plane::upgrade::args::ClusterUpgradeOptions;
use crate::platform::testing::TempDir;

pub(in crate::cmd::control_plane::upgrade) fn host() -> HostFacts {
    HostFacts {
        hostname: "other".to_owned(),
        addresses: Vec::new(),
        token: "abcdef.0123456789abcdef".to_owned(),
        version: "v1.36.0".to_owned(),
        cri_socket: "unix:///x".to_owned(),
    }
}

pub(in crate::cmd::control_plane::upgrade) fn pod(component: &str, node: &str, image: &str) -> Value {
    json!({
        "metadata": { "labels": { "component": component, "tier": "control-plane" } },
        "spec": { "nodeName": node, "containers": [{ "name": component, "image": image }] },
    })
}

pub(in crate::cmd::control_plane::upgrade) fn node(name: &str, version: &str, is_ready: bool) -> Value {
    let ready = if is_ready { "True" } else { "False" };
    json!({
        "metadata": { "name": name, "labels": { CONTROL_PLANE: "" } },
        "status": {
            "nodeInfo": { "kubeletVersion": version },
            "conditions": [{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": ready }],
        },
    })
}

/// A cluster that kubeadm has made.
pub(in crate::cmd::control_plane::upgrade) fn view() -> ClusterView {
    let mut view = ClusterView {
        node: json!({ "metadata": { "name": "a" }, "spec": { "taints": [{ "key": "k", "effect": "NoSchedule" }] } }),
        nodes: vec![node("a", "v1.36.1", true), node("b", "v1.35.0", true)],
        pods: vec![
            pod("kube-apiserver", "a", "r/kube-apiserver:v1.36.1"),
            pod("kube-apiserver", "b", "r/kube-apiserver:v1.35.0"),
            pod("etcd", "a", "r/etcd:3.6.8-0"),
            json!({ "metadata": { "labels": { "component": "kube-apiserver" } }, "spec": { "containers": [] } }),
        ],
        dns: "v1.13.1".to_owned(),
        ..ClusterView::default()
    };
    view.documents.cluster = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "kubernetesVersion": "v1.36.1",
        "encryptionAlgorithm": "RSA-2048", "featureGates": { "PublicKeysECDSA": false, "Gone": true }, "networking": { "podSubnet": "10.244.0.0/16" },
        "etcd": { "local": { "dataDir": "/var/lib/etcd" } },
    });
    let kind = |version: &str, kind: &str| json!({ "apiVersion": version, "kind": kind });
    view.documents.kubelet = kind("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");
    view.documents.kube_proxy = kind("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration");
    view
}

pub(in crate::cmd::control_plane::upgrade) fn settings(view: &ClusterView, version: &str) -> InitSettings {
    let words = ["apply".to_owned(), "--patches=/p".to_owned()];
    let options = ClusterUpgradeOptions::parse(&words).unwrap();
    let wishes = UpgradeWishes::of(&options, &Value::Null).unwrap();
    let endpoint = Some("192.0.2.1:6444".parse().unwrap());
    let directory = TempDir::new();
    directory.put("instance-config.yaml", "containerRuntimeEndpoint: unix:///run/c.sock\n");
    let paths = Paths { kubelet: directory.path().to_owned(), ..Paths::system() };
    view.settings(&wishes, ("a", version), endpoint, &host(), &paths).unwrap().0
}

#[test]
fn settings_are_the_clusters_with_another_version() {
    let mut view = view();
    let settings = settings(&view, "v1.36.2");
    assert_eq!(settings.cluster.image("kube-apiserver"), "registry.k8s.io/kube-apiserver:v1.36.2");
    // What is uploaded again says what it said.
    let document = settings.cluster.document();
    assert_eq!(
        (&document["encryptionAlgorithm"], &document["kubernetesVersion"]),
        (&json!("RSA-2048"), &json!("v1.36.2"))
    );
    assert_eq!(document["featureGates"], json!({ "PublicKeysECDSA": false, "Gone": true }));
    assert_eq!(document["networking"]["podSubnet"], "10.244.0.0/16");
    assert!(matches!(settings.cluster.etcd, Etcd::Local(_)));
    assert_eq!(settings.endpoint.authority(), "192.0.2.1:6444");
    assert_eq!((settings.node.name.as_str(), settings.node.cri_socket.as_str()), ("a", "unix:///run/c.sock"));
    assert_eq!(settings.node.taints, [json!({ "key": "k", "effect": "NoSchedule" })]);
    assert_eq!(settings.patches.to_str(), Some("/p"));
    assert!(settings.given_kubelet.is_none() && settings.given_kube_proxy.is_none());
    view.has_own_kubelet = true;
    view.node["metadata"]["annotations"][CRI_SOCKET] = "unix:///noted".into();
    let settings = self::settings(&view, "v1.36.2");
    assert!(settings.given_kubelet.is_some() && settings.given_kube_proxy.is_none());
    assert!(view.has_noted_socket());
    assert_eq!(settings.node.cri_socket, "unix:///noted");
}

#[test]
fn versions_and_states_are_read_from_pods_and_nodes() {
    let mut view = view();
    assert_eq!(view.version(), "v1.36.1");
    assert_eq!(view.versions("etcd"), BTreeMap::from([("3.6.8-0".to_owned(), vec!["a".to_owned()])]));
    assert_eq!(view.kubelets().into_keys().collect::<Vec<_>>(), ["v1.35.0", "v1.36.1"]);
    assert!(view.not_ready().is_empty());
    view.nodes.push(node("c", "v1.36.1", false));
    let mut worker = node("d", "v1.36.1", false);
    worker["metadata"]["labels"] = json!({});
    view.nodes.push(worker);
    assert_eq!(view.not_ready(), ["c"]);
    view.pods.pop();
    assert_eq!(view.not_upgraded("a"), ["b"]);
    view.pods.remove(1);
    assert!(view.not_upgraded("a").is_empty());
    view.pods.clear();
    view.documents.cluster["kubernetesVersion"] = "v1.36.9".into();
    assert_eq!(view.version(), "v1.36.9");
}

#[test]
fn the_endpoint_of_a_node_is_in_its_manifest() {
    let path = Path::new("/etc/kubernetes/manifests/kube-apiserver.yaml");
    let manifest = |value: &str| format!("metadata: {{annotations: {{{ENDPOINT}: '{value}'}}}}\n");
    assert_eq!(endpoint(path, &manifest("[fd00::1]:6443")).unwrap().to_string(), "[fd00::1]:6443");
    for text in [manifest("x"), "metadata: {}\n".to_owned(), "[".to_owned()] {
        let why = endpoint(path, &text).unwrap_err().to_string();
        assert!(why.starts_with("/etc/kubernetes/manifests/kube-apiserver.yaml: "), "{why}");
    }
}

#[test]
fn a_node_is_named_by_its_kubelets_certificate() {
    use crate::agent::control_plane::sign::{Leaf, Signer, Terms};
    use crate::model::duration::GoDuration;
    use crate::model::types::Timestamp;
    let now = Timestamp::from_secs(1_795_305_600);
    let terms = || Terms { algorithm: "ECDSA-P256", validity: GoDuration::from_secs(3600), now };
    let (signer, _) = Signer::create("ca", terms()).unwrap();
    let directory = TempDir::new();
    let conf = directory.path().join("kubelet.conf");
    for (user, expected) in [("system:node:box", Some("box")), ("kubernetes-admin", None)] {
        let leaf = Leaf { common_name: user.to_owned(), is_client: true, ..Leaf::default() };
        let pair = signer.sign(&leaf, terms()).unwrap();
        directory.put("client.pem", &[pair.certificate.as_str(), &pair.key].concat());
        let text = "{clusters: [{name: c, cluster: {server: 'https://a:1', insecure-skip-tls-verify: true}}], users: [{name: u, \
                    user: {client-certificate: client.pem, client-key: client.pem}}], contexts: [{name: x, context: {cluster: \
                    c, user: u}}], current-context: x}";
        directory.put("kubelet.conf", text);
        match (node_name(&conf), expected) {
            (Ok(name), Some(expected)) => assert_eq!(name, expected),
            (Err(error), None) => assert!(error.to_string().contains("is not that of a node"), "{error}"),
            (other, _) => panic!("{user}: {other:?}"),
        }
    }
    assert!(node_name(&directory.path().join("none.conf")).unwrap_err().to_string().contains("none.conf"));
}

#[tokio::test(start_paused = true)]
async fn a_clusters_configuration_is_read_from_its_config_maps() {
    use crate::cluster::fake::FakeApiserver;
    use crate::cmd::control_plane::upload;
    use crate::model::types::Timestamp;
    use crate::platform::clock::Clock;
    let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
    let say = |_: &str| {};
    let limit = Duration::from_secs(60);
    let api = Api::new(Some(api::client(server.transport("admin"))), &say, Instant::now() + limit);
    let why = read(&api, "a", false).await.err().unwrap().to_string();
    assert!(why.contains("ConfigMap \"kubeadm-config\"") && why.contains("was not found"), "{why}");
    let made = view();
    upload::kubeadm_config(&api, &made.documents.cluster).await.unwrap();
    upload::kubelet_config(&api, &made.documents.kubelet, false).await.unwrap();
    server.put(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a" } }));
    let found = read(&api, "a", false).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.documents.cluster, made.documents.cluster);
    assert_eq!(found.documents.kubelet["kind"], "KubeletConfiguration");
    assert!(!found.has_own_kubelet && found.documents.kube_proxy == json!({}));
    assert_eq!((found.nodes.len(), &found.node["metadata"]["name"]), (1, &json!("a")));
    // What a user has changed is theirs.
    let path = "/api/v1/namespaces/kube-system/configmaps/kubelet-config";
    let mut config = server.object(path).unwrap();
    config["data"]["kubelet"] = "kind: KubeletConfiguration\nmaxPods: 20\n".into();
    server.put(config.clone());
    let found = read(&api, "a", true).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(found.has_own_kubelet && found.nodes.is_empty());
    assert_eq!(found.documents.kubelet["maxPods"], 20);
    config["data"] = json!({});
    server.put(config);
    let why = read(&api, "a", true).await.err().unwrap().to_string();
    assert!(why.contains("kubelet-config") && why.contains("is missing"), "{why}");
}
