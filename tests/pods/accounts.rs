//! Programs in pods that use the API of the node, on the agent's own bridge.

use std::process::Command;

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::{Api, Person};
use crate::support::runtime::{Kind, on};
use crate::support::wait::wait_for;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

/// A machine beside the node, which sends packets for the pods' network to it.
struct Neighbour(String);

impl Neighbour {
    fn new(number: u16) -> Self {
        let name = format!("nb{number}");
        let neighbour = Self(name.clone());
        let link = format!("{name}v");
        for line in [
            format!("ip netns add {name}"),
            format!("ip link add {link} type veth peer name inner netns {name}"),
            format!("ip addr add 198.51.100.1/30 dev {link}"),
            format!("ip link set {link} up"),
            format!("ip -n {name} addr add 198.51.100.2/30 dev inner"),
            format!("ip -n {name} link set inner up"),
            format!("ip -n {name} route add default via 198.51.100.1"),
        ] {
            let mut words = line.split(' ');
            let status = Command::new(words.next().expect("a program")).args(words).status();
            assert!(status.expect("run ip").success(), "{line}");
        }
        neighbour
    }

    /// How curl ends, and the status it saw.
    fn curl(&self, url: &str) -> (Option<i32>, String) {
        let curl = ["curl", "-sk", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", url];
        let output = Command::new("ip").args(["netns", "exec", &self.0]).args(curl).output().expect("run ip");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // The link goes with the namespace.
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn create(api: &Api, admin: &Person, path: &str, object: &Value) {
    let body = object.to_string();
    let (code, text) = api.curl(
        Some(admin),
        path,
        &["-X", "POST", "-H", "Content-Type: application/json", "--data-binary", &body],
    );
    assert_eq!(code, 201, "{path}: {text}");
}

fn a_pod_uses_its_token_against_the_api_of_its_node() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    node.agent.start();
    api.wait(&mut node.agent);
    let admin = api.person(&node.agent, "admin", &[]);
    let gateway = format!("{}.1", node.runtime.scratch().net());
    let at = format!("{gateway}:{}", api.port);
    let from_host = |url: &str| {
        let curl = ["-sk", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", url];
        let output = Command::new("curl").args(curl).output().expect("run curl");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // A pod without credentials opens nothing.
    let mut plain = node.pod("plain", "sleep 1000");
    plain["spec"]["hostNetwork"] = json!(false);
    plain["spec"]["automountServiceAccountToken"] = json!(false);
    create(&api, &admin, "/api/v1/namespaces/default/pods", &plain);
    wait_for("the pod to have its address", PATIENCE, || {
        let pod = api.curl(Some(&admin), "/api/v1/namespaces/default/pods/plain", &[]).1;
        if pod.contains("\"phase\":\"Running\"") {
            Ok(())
        } else {
            Err(format!("{pod} {}", node.agent.log_tail()))
        }
    });
    assert_eq!(from_host(&format!("https://{at}/version")), "000", "nothing listens");

    create(
        &api,
        &admin,
        "/api/v1/namespaces/default/serviceaccounts",
        &json!({"metadata": {"name": "robot"}}),
    );
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]);
    create(&api, &admin, &format!("{RBAC}/roles"), &json!({"metadata": {"name": "pods"}, "rules": rules}));
    let binding = json!({"metadata": {"name": "pods"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]});
    create(&api, &admin, &format!("{RBAC}/rolebindings"), &binding);
    let out = node.runtime.scratch().dir("out");
    let (out, name) = (out.display(), "kubernetes.default.svc");
    let ask = |url: &str| {
        format!(
            "chroot /host curl -sS --max-time 20 --cacert {out}/ca.crt -H \"Authorization: Bearer $(cat $D/token)\" \
             --resolve {name}:{}:{gateway} {url}",
            api.port
        )
    };
    let url = |host: &str, path: &str| format!("https://{host}:{}{path}", api.port);
    let script = format!(
        "D=/var/run/secrets/kubernetes.io/serviceaccount; cp $D/ca.crt /out/ca.crt; \
         until {by_name} > /out/pods; do sleep 0.2; done; {by_address} > /out/secrets; \
         {whole} > /out/version; echo; echo done > /out/done; sleep 1000",
        by_name = ask(&url(name, "/api/v1/namespaces/default/pods")),
        by_address = ask(&url(&gateway, "/api/v1/namespaces/default/secrets")),
        whole = ask(&url(name, "/version")),
    );
    let mut client = node.pod("client", &script);
    client["spec"]["hostNetwork"] = json!(false);
    client["spec"]["serviceAccountName"] = json!("robot");
    let mut add = |place: &str, item: Value| {
        client.pointer_mut(place).and_then(Value::as_array_mut).expect("a list").push(item);
    };
    add("/spec/volumes", json!({"name": "host", "hostPath": {"path": "/"}}));
    add("/spec/containers/0/volumeMounts", json!({"name": "host", "mountPath": "/host"}));
    create(&api, &admin, "/api/v1/namespaces/default/pods", &client);
    node.wait_written("done", "done\n");
    let answer = |file: &str| {
        let text = std::fs::read_to_string(node.out(file)).expect("read");
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{file}: {error}: {text}"))
    };
    assert_eq!(answer("pods")["kind"], "PodList");
    let refused = answer("secrets");
    let said = "User \"system:serviceaccount:default:robot\" cannot list resource \"secrets\"";
    assert!(refused["message"].as_str().is_some_and(|message| message.contains(said)), "{refused}");
    assert_eq!(answer("version")["minor"], "36");

    // The node itself is answered, and asked for credentials; a neighbour is not even greeted.
    let version = format!("https://{at}/version");
    assert_eq!(from_host(&version), "401");
    let neighbour = Neighbour::new(api.port);
    let (ended, code) = neighbour.curl(&version);
    assert!(ended.is_some_and(|code| matches!(code, 35 | 56)) && code == "000", "{ended:?} {code}");
    let own = neighbour.curl(&format!("https://198.51.100.1:{}/version", api.port));
    assert_eq!(own, (Some(7), "000".to_owned()), "the API's own address is loopback");
}

#[test]
fn a_token_opens_the_api_on_the_bridge_to_pods_alone() {
    on(Kind::Embedded, a_pod_uses_its_token_against_the_api_of_its_node);
}
