//! A node of a cluster: credentials, the link, who may use the node's own server, and what a start without a link does.

use edge_agent::runtime::ImageAuth;
use edge_agent::runtime::fake::{FakeImage, RemoteImage, World};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use edge_agent::cluster::fake::ApiFaults;
use serde_json::{Value, json};

use super::node::{A_WHILE, Node, Running, pod};
use crate::support::agent::{NODE, PATIENCE};
use crate::support::api::Api;
use crate::support::apiserver::{Apiserver, NODE_USER};
use crate::support::wait::{stays, wait_for, wait_until};

const NODE_PATH: &str = "/api/v1/nodes/edge";

/// A node and its cluster. The agent ends first.
struct Joined {
    node: Node,
    server: Apiserver,
}

impl Joined {
    /// Not started yet, and without a kubeconfig.
    fn new() -> Self {
        let node = Node::new();
        let server = Apiserver::start(node.scratch.path());
        Self { node, server }
    }

    /// With the node's certificate, and running.
    fn start() -> Self {
        let mut joined = Self::new();
        let user = joined.server.node_certificate();
        joined.start_as(&user);
        joined
    }

    /// As this `user` of a kubeconfig.
    fn start_as(&mut self, user: &Value) {
        let kubeconfig = self.server.kubeconfig(user);
        self.node.agent.argument(format!("--kubeconfig={}", kubeconfig.display()));
        self.node.agent.start();
    }

    fn wait_until_ready(&mut self) -> Value {
        wait_for("the Node to be ready", PATIENCE, || {
            self.node.agent.assert_alive();
            let found = self.server.object(NODE_PATH).unwrap_or_default();
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            if conditions.iter().any(is_ready) { Ok(found) } else { Err(format!("{conditions:?}")) }
        })
    }

    /// Waits until the link is in this state for a reason with these words, and returns the report.
    fn wait_for_link(&mut self, state: &str, words: &[&str]) -> Value {
        wait_for(&format!("the link to be {state} {words:?}"), PATIENCE, || {
            self.node.agent.assert_alive();
            let report = self.node.agent.status_json()?["cluster"].take();
            let (link, text) = (report["link"]["state"].clone(), report.to_string());
            if link == state && words.iter().all(|word| text.contains(word)) {
                Ok(report)
            } else {
                Err(format!("{text}; agent: {}", self.node.agent.log_tail()))
            }
        })
    }

    /// Waits until one container of a pod of the cluster runs.
    fn running(&self, name: &str) -> Running {
        wait_for(&format!("a container of {name} to run"), PATIENCE, || {
            match self.node.all_running().remove(name).as_deref() {
                Some([one]) => Ok(one.clone()),
                other => Err(format!("{other:?}; agent: {}", self.node.agent.log_tail())),
            }
        })
    }

    fn keeps_running(&self, name: &str, container: &Running) {
        stays(&format!("the container of {name}"), A_WHILE, || {
            let running = self.node.all_running().remove(name).unwrap_or_default();
            if running == [container.clone()] { Ok(()) } else { Err(format!("{running:?}")) }
        });
    }

    /// The places of the first range of pod addresses and of the first sandbox among the calls of the runtime, from this
    /// one on.
    fn wait_for_pod_cidr(&self, from: usize) -> (usize, usize) {
        wait_for("the range of the cluster", PATIENCE, || {
            let state = self.node.cri.state();
            let calls = &state.calls[from..];
            let range = calls.iter().position(|call| call.subject == "10.244.7.0/24");
            let sandbox = calls.iter().position(|call| call.name == "RunPodSandbox");
            let names = || format!("{:?}", calls.iter().map(|call| call.name).collect::<Vec<_>>());
            Ok((range.ok_or_else(names)?, sandbox.unwrap_or(calls.len())))
        })
    }

    /// The node's own API shows the range of the cluster.
    fn wait_for_shown_cidr(&self) {
        wait_for("the range of the cluster to be shown", PATIENCE, || {
            let text = self.node.agent.cli(&["get", "node", "edge", "-o", "json"])?;
            let node: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let (spec, wanted) = (&node["spec"], json!("10.244.7.0/24"));
            let is_shown = spec["podCIDR"] == wanted && spec["podCIDRs"] == json!([wanted]);
            if is_shown { Ok(()) } else { Err(spec.to_string()) }
        });
    }

    /// Requests that the server has answered, as this user.
    fn requests_of(&self, user: &str) -> usize {
        self.server.calls().iter().filter(|call| call.user == user).count()
    }
}

fn cluster_pod(name: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["namespace"] = json!("default");
    pod
}

#[test]
fn a_node_with_a_kubeconfig_registers_and_runs_pods() {
    let mut joined = Joined::start();
    let found = joined.wait_until_ready();
    assert_eq!(found["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    joined.server.bind(cluster_pod("web"));
    joined.running("web");
    wait_for("the pod to be shown as running", PATIENCE, || {
        let pod = joined.server.object("/api/v1/namespaces/default/pods/web").unwrap_or_default();
        let phase = &pod["status"]["phase"];
        if phase == "Running" { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    let lease = joined.server.object("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge");
    assert!(lease.is_some(), "no lease");
    joined.wait_for_link("online", &[&joined.server.url()]);
    let text = joined.node.agent.cli(&["status"]).expect("all is well");
    assert!(text.contains("online") && text.contains("All is well."), "{text}");
}

#[test]
fn a_pod_deleted_at_the_server_ends_and_goes() {
    let mut joined = Joined::start();
    joined.wait_until_ready();
    joined.server.bind(cluster_pod("web"));
    joined.running("web");
    let path = "/api/v1/namespaces/default/pods/web";
    joined.server.with(|api| api.remove(path, edge_agent::cluster::fake::Removal::Graceful(1)));
    wait_until("the object to go", PATIENCE, || joined.server.object(path).is_none());
    assert_eq!(joined.node.all_running().get("web"), None);
}

#[test]
fn without_a_kubeconfig_nothing_of_a_cluster_runs() {
    let mut joined = Joined::new();
    let user = joined.server.node_certificate();
    let kubeconfig = joined.server.kubeconfig(&user);
    // That is kubectl's.
    joined.node.agent.variable("KUBECONFIG", &kubeconfig.display().to_string());
    let certificates = joined.node.scratch.path().join("certificates");
    joined.node.agent.argument(format!("--cert-dir={}", certificates.display()));
    let neighbour = joined.node.start_with_neighbour();
    joined.node.keeps_running("neighbour", &neighbour);
    let process = format!("/proc/{}", joined.node.agent.pid());
    let tasks = fs::read_dir(format!("{process}/task")).expect("list threads").flatten();
    let names: Vec<String> =
        tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).collect();
    assert!(!names.iter().any(|name| name.trim() == "resolve"), "{names:?}");
    assert_eq!(tcp_sockets(&process), 0);
    assert_eq!(joined.server.connections(), 0);
    assert!(!certificates.exists(), "there are no certificates without a cluster");
    let status = joined.node.agent.status_json().expect("the status");
    assert!(status["cluster"].is_null(), "{}", status["cluster"]);
}

/// How many sockets of TCP a process has.
fn tcp_sockets(process: &str) -> usize {
    let inodes: BTreeSet<String> = ["tcp", "tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(format!("{process}/net/{table}")).ok())
        .flat_map(|text| {
            let rows = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9));
            rows.map(|inode| format!("socket:[{inode}]")).collect::<Vec<_>>()
        })
        .collect();
    let files = fs::read_dir(format!("{process}/fd")).expect("list files").flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    targets.filter(|target| inodes.contains(&*target.to_string_lossy())).count()
}

#[test]
fn invalid_answers_end_no_pod_and_status_says_why() {
    let mut joined = Joined::start();
    joined.wait_until_ready();
    joined.server.bind(cluster_pod("web"));
    let web = joined.running("web");
    joined.wait_for_link("online", &[]);
    let cases = [
        ("refused", ApiFaults { status: Some(401), ..ApiFaults::default() }, "simulated fault"),
        ("refused", ApiFaults { status: Some(403), ..ApiFaults::default() }, "simulated fault"),
        ("refused", ApiFaults { html: true, ..ApiFaults::default() }, "not a Kubernetes API server's"),
    ];
    for (state, faults, reason) in cases {
        joined.server.with(move |api| *api.faults() = faults);
        joined.server.kill();
        joined.server.start_again();
        joined.wait_for_link(state, &[reason]);
        joined.keeps_running("web", &web);
        joined.server.with(|api| *api.faults() = ApiFaults::default());
        joined.wait_for_link("online", &[]);
    }
    wait_for("all to be well again", PATIENCE, || joined.node.agent.cli(&["status"]));
}

#[test]
fn credentials_that_fail_end_no_pod_and_status_says_why() {
    let mut joined = Joined::start();
    joined.wait_until_ready();
    joined.server.bind(cluster_pod("web"));
    let web = joined.running("web");
    let good = joined.server.node_certificate();
    let expired = joined.server.certificate(true);
    let other = json!({"certificate-authority": joined.server.other_authority()});
    for (user, cluster, words) in [
        (&expired, &json!({}), ["refused", "expired"]),
        (&good, &other, ["refused", "certificate"]),
        (&json!({"token": "unknown"}), &json!({}), ["refused", "Unauthorized"]),
    ] {
        joined.node.agent.kill9();
        joined.server.kubeconfig_with(user, cluster);
        joined.node.agent.start();
        joined.wait_for_link(words[0], &words[1..]);
        joined.keeps_running("web", &web);
        joined.node.agent.cli(&["status"]).expect_err("not all is well");
    }
}

#[test]
fn tokens_and_exec_plugins_log_the_node_in() {
    let mut joined = Joined::new();
    let directory = joined.node.scratch.dir("credentials");
    for token in ["plain", "filed", "printed"] {
        joined.server.allow_token(token, NODE_USER, &["system:nodes"]);
    }
    let file = directory.join("token");
    fs::write(&file, "filed\n").expect("write a token");
    let plugin = directory.join("plugin");
    let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": "printed"}});
    fs::write(&plugin, format!("#!/bin/sh\necho '{credential}'\n")).expect("write a plugin");
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("make it a program");
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": plugin,
        "interactiveMode": "Never"}});
    let mut is_first = true;
    for user in [json!({"token": "plain"}), json!({"tokenFile": file}), exec] {
        let before = joined.requests_of(NODE_USER);
        if is_first {
            joined.start_as(&user);
        } else {
            joined.server.kubeconfig(&user);
            joined.node.agent.start();
        }
        is_first = false;
        joined.wait_for_link("online", &[]);
        assert!(joined.requests_of(NODE_USER) > before);
        joined.node.agent.kill9();
    }
    // A token that was replaced in its file.
    joined.server.kubeconfig(&json!({"tokenFile": file}));
    joined.node.agent.start();
    joined.wait_for_link("online", &[]);
    joined.server.with(|api| api.reviews().tokens.clear());
    joined.server.allow_token("renewed", NODE_USER, &["system:nodes"]);
    joined.server.kill();
    joined.server.start_again();
    joined.wait_for_link("refused", &["Unauthorized"]);
    fs::write(&file, "renewed\n").expect("write a token");
    joined.wait_for_link("online", &[]);
}

#[test]
fn a_proxy_carries_the_link() {
    let mut joined = Joined::new();
    let (port, tunnels) = proxy();
    let user = joined.server.node_certificate();
    let more = json!({"proxy-url": format!("http://127.0.0.1:{port}")});
    let kubeconfig = joined.server.kubeconfig_with(&user, &more);
    joined.node.agent.argument(format!("--kubeconfig={}", kubeconfig.display()));
    joined.node.agent.start();
    joined.wait_until_ready();
    let (tunnels, connections) = (tunnels.load(Ordering::SeqCst), joined.server.connections());
    assert!(tunnels > 0 && u64::try_from(tunnels).expect("small") >= connections, "{tunnels} {connections}");
}

/// A proxy that opens tunnels, on a port of the loopback; and how many so far. It lasts as long as the process.
fn proxy() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("it is bound").port();
    let tunnels = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tunnels);
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.into()).spawn(work).expect("start a thread")
    };
    spawn(
        "proxy",
        Box::new(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Some(far) = connected(&near) else { continue };
                counted.fetch_add(1, Ordering::SeqCst);
                for (mut from, mut to) in
                    [(near.try_clone().expect("a handle"), far.try_clone().expect("a handle")), (far, near)]
                {
                    spawn(
                        "tunnel",
                        Box::new(move || {
                            let _ = std::io::copy(&mut from, &mut to);
                            let _ = to.shutdown(std::net::Shutdown::Both);
                        }),
                    );
                }
            }
        }),
    );
    (port, tunnels)
}

/// Where a `CONNECT` leads; it is answered.
fn connected(mut near: &TcpStream) -> Option<TcpStream> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        near.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let far = TcpStream::connect(head.strip_prefix("CONNECT ")?.split(' ').next()?).ok()?;
    near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
    Some(far)
}

#[test]
fn the_cluster_judges_its_users_at_the_nodes_server() {
    let mut joined = Joined::new();
    let api = Api::of(&mut joined.node.agent, joined.node.scratch.path());
    joined.server.allow_token("of-alice", "alice", &["people"]);
    joined.server.allow_token("of-bob", "bob", &["system:masters"]);
    joined.server.with(|api| {
        api.reviews().allowed.insert(("alice".to_owned(), "get".to_owned(), "nodes/proxy".to_owned()))
    });
    joined.node.agent.configure(
        "authentication: {webhook: {enabled: true, cacheTTL: 1s}}\n\
         authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 1s, cacheUnauthorizedTTL: 1s}}\n",
    );
    let user = joined.server.node_certificate();
    joined.start_as(&user);
    joined.wait_until_ready();
    api.wait(&mut joined.node.agent);
    let get = |token: &str| {
        let header = format!("Authorization: Bearer {token}");
        api.curl(None, "/pods", &["-H", &header]).0
    };
    assert_eq!((get("of-alice"), get("of-bob"), get("guessed")), (200, 403, 401));
    assert_eq!(api.curl(None, "/pods", &[]).0, 401);
    // The node's own users need no cluster.
    let admin = api.person(&joined.node.agent, "admin", &[]);
    joined.server.kill();
    assert_eq!(api.curl(Some(&admin), "/pods", &[]).0, 200);
    wait_until("the cached answers to end", PATIENCE, || get("of-alice") == 401);
    joined.server.start_again();
    wait_until("the cluster to judge again", PATIENCE, || get("of-alice") == 200);
    assert_eq!(get("of-bob"), 403);
}

/// A credential provider that notes what it is asked and knows `me`; for pods with a service account.
fn make_provider(joined: &mut Joined) -> PathBuf {
    let directory = joined.node.scratch.dir("provider");
    let api = "credentialprovider.kubelet.k8s.io/v1";
    let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": api, "cacheKeyType": "Registry",
        "cacheDuration": "1h", "auth": {"r.example": {"username": "me", "password": "hush"}}});
    let asked = directory.join("asked");
    let program = directory.join("provider");
    fs::write(&program, format!("#!/bin/sh\ncat >>{}\necho '{answer}'\n", asked.display()))
        .expect("write it");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it a program");
    let attributes = json!({"serviceAccountTokenAudience": "reg", "cacheType": "ServiceAccount",
        "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": ["a.example/role"]});
    let config = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [
        {"name": "provider", "matchImages": ["r.example"], "defaultCacheDuration": "1h", "apiVersion": api,
         "tokenAttributes": attributes}]});
    let file = directory.join("providers.yaml");
    fs::write(&file, config.to_string()).expect("write its configuration");
    joined.node.agent.argument(format!("--image-credential-provider-config={}", file.display()));
    joined.node.agent.argument(format!("--image-credential-provider-bin-dir={}", directory.display()));
    asked
}

#[test]
fn a_credential_provider_gets_a_token_of_the_pods_account() {
    const IMAGE: &str = "r.example/shop/app:v1";
    let mut joined = Joined::new();
    let asked = make_provider(&mut joined);
    joined.node.cri.change(|world, _| {
        let auth = Some(ImageAuth::of_user("me".to_owned(), "hush".to_owned()));
        let remote = RemoteImage { image: FakeImage::named(IMAGE), pull_time: Duration::ZERO, auth };
        world.registry.insert(IMAGE.to_owned(), remote);
    });
    for name in ["puller", "other"] {
        joined
            .server
            .put(json!({"kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default",
            "annotations": {"a.example/role": name}}}));
    }
    let user = joined.server.node_certificate();
    joined.start_as(&user);
    joined.wait_until_ready();
    let requests = || {
        let text = fs::read_to_string(&asked).unwrap_or_default();
        let requests = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        requests.map(|request| request.expect("JSON")).collect::<Vec<_>>()
    };
    // The third finds the image there, and may use it as the first one's account may.
    for (name, account, count) in [("a", "puller", 1), ("b", "other", 2), ("c", "puller", 2)] {
        let mut pod = cluster_pod(name);
        pod["spec"]["serviceAccountName"] = json!(account);
        pod["spec"]["containers"][0]["image"] = json!(IMAGE);
        joined.server.bind(pod);
        joined.running(name);
        let requests = requests();
        assert_eq!(requests.len(), count, "{name}: {requests:?}");
        let last = &requests[count - 1];
        let whose = if count == 1 { "puller" } else { "other" };
        assert_eq!(last["serviceAccountAnnotations"], json!({"a.example/role": whose}), "{last}");
        let token = last["serviceAccountToken"].as_str().expect("a token");
        assert!(token.ends_with(&format!("default:{whose}-reg")), "{token}");
    }
    let records = fs::read_dir(joined.node.agent.root_dir().join("image_manager/pulled")).expect("records");
    let texts = records.flatten().map(|file| fs::read_to_string(file.path()).expect("a record"));
    let text: String = texts.collect();
    assert!(text.contains(r#""name":"puller""#) && text.contains(r#""name":"other""#), "{text}");
    assert!(!text.contains("nodePodsAccessible"), "{text}");
    assert!(!joined.node.agent.log().contains("hush"), "passwords are in no log");

    // After a boot without a link the account cannot be asked for; its pods start all the same.
    joined.server.kill();
    joined.node.agent.kill9();
    joined.node.cri.change(World::reboot);
    joined.node.agent.start();
    for name in ["a", "b", "c"] {
        joined.running(name);
    }
    assert_eq!(requests().len(), 2);
}

#[test]
fn a_start_without_a_link_runs_the_stored_pods() {
    let mut joined = Joined::start();
    joined.wait_until_ready();
    let mut web = cluster_pod("web");
    web["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    joined.server.put(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": "default"}, "data": {"COLOUR": "green"}}));
    joined.server.bind(web);
    joined.running("web");
    let mut node = joined.server.object(NODE_PATH).expect("it has registered");
    node["spec"]["podCIDRs"] = json!(["10.244.7.0/24"]);
    joined.server.put(node);
    joined.wait_for_pod_cidr(0);
    joined.wait_for_shown_cidr();
    joined.server.kill();
    joined.node.agent.kill9();
    // As after a reboot: nothing of it runs any more.
    joined.node.cri.change(World::reboot);
    let calls = joined.node.cri.state().calls.len();
    joined.node.agent.start();
    let again = joined.running("web");
    let (range, sandbox) = joined.wait_for_pod_cidr(calls);
    assert!(range < sandbox, "the range of the cluster comes before the first pod: {range} {sandbox}");
    let offline = joined.wait_for_link("offline", &["refused"]);
    joined.wait_for_shown_cidr();
    assert_eq!(offline["waiting"]["pods"], 1, "{offline}");
    joined.keeps_running("web", &again);
    joined.server.start_again();
    joined.wait_for_link("online", &[]);
    joined.keeps_running("web", &again);
    wait_for("the server to hear of the new container", PATIENCE, || {
        let pod = joined.server.object("/api/v1/namespaces/default/pods/web").unwrap_or_default();
        let status = &pod["status"]["containerStatuses"][0];
        let id = status["containerID"].as_str().unwrap_or_default();
        if id.ends_with(&again.0) { Ok(()) } else { Err(status.to_string()) }
    });
}
