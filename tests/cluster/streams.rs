//! kubectl through the cluster's API server to a pod, and the pod's own way to the API server.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::control_plane::{Options, program, said};
use super::{Cluster, container, pod, spec};
use crate::support::agent::NODE;

#[test]
fn kubectl_reads_logs_enters_copies_and_forwards() {
    let cluster = Cluster::new();
    let plane = &cluster.control_plane;
    let web = "mkdir /www; echo welcome > /www/index.html; echo started; exec httpd -f -p 80 -h /www";
    let mut listener = spec("echo ready; while read line; do echo got $line; done; sleep 1000");
    listener["containers"][0]["stdin"] = json!(true);
    plane.apply(&[pod("web", &spec(web)), pod("listener", &listener)]);
    cluster.ready_pods("app=web", 1);
    cluster.ready_pods("app=listener", 1);

    plane.wait("the log", || match plane.kubectl(&["logs", "web"]) {
        text if text == "started\n" => Ok(()),
        other => Err(other),
    });
    let exec = ["exec", "web", "--", "sh", "-c", "cat /www/index.html; exit 3"];
    let output = plane.kubectl_command(&exec).output().expect("run kubectl");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "welcome\n");

    let (sent, back) =
        (cluster.path("sent").display().to_string(), cluster.path("back").display().to_string());
    fs::write(&sent, "word\nend\n").expect("write");
    plane.kubectl(&["cp", &sent, "web:/www/copied"]);
    plane.kubectl(&["cp", "web:/www/copied", &back]);
    assert_eq!(fs::read_to_string(&back).expect("it came back"), "word\nend\n");
    let fed = |arguments: &[&str]| {
        let mut command = plane.kubectl_command(arguments);
        said(command.stdin(File::open(&sent).expect("open")))
    };
    assert_eq!(fed(&["exec", "-i", "web", "--", "wc", "-l"]).expect("it ends").trim(), "2");
    plane.wait("the program that is attached to answer", || {
        // It goes on after its input has ended, so kubectl is stopped from outside.
        let mut command = Command::new("timeout");
        command.arg("5").arg(program("kubectl")).args(["--kubeconfig", &plane.conf("super-admin")]);
        let attach = command.args(["attach", "-i", "listener"]).stdin(File::open(&sent).expect("open"));
        let text = String::from_utf8_lossy(&attach.output().expect("run kubectl").stdout).into_owned();
        if text.contains("got word\n") && text.contains("got end\n") { Ok(()) } else { Err(text) }
    });

    let mut command = plane.kubectl_command(&["port-forward", "pod/web", ":80"]);
    let mut forward = command.stdout(Stdio::piped()).spawn().expect("start kubectl");
    let mut line = String::new();
    // It writes a line for every connection, too: the pipe stays.
    let mut out = BufReader::new(forward.stdout.take().expect("its output"));
    out.read_line(&mut line).expect("read");
    let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
    let page =
        said(Command::new("curl").args(["-sS", "--max-time", "20", &format!("http://127.0.0.1:{port}/")]));
    let _ = forward.kill();
    let _ = forward.wait();
    assert_eq!(page.as_deref(), Ok("welcome\n"), "{line}");
    figures_go_through_the_api_server(&cluster);
    cluster.finish();
}

/// What a metrics server reads for `kubectl top`.
fn figures_go_through_the_api_server(cluster: &Cluster) {
    let plane = &cluster.control_plane;
    let proxied =
        |path: &str| plane.try_kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy{path}")]);
    plane.wait("the pod's figures", || {
        let summary: Value =
            serde_json::from_str(&proxied("/stats/summary")?).map_err(|error| error.to_string())?;
        let mut pods = summary["pods"].as_array().into_iter().flatten();
        let web = pods.find(|pod| pod["podRef"]["name"] == "web").ok_or_else(|| summary.to_string())?;
        if web["memory"]["workingSetBytes"].as_u64() > Some(0) { Ok(()) } else { Err(web.to_string()) }
    });
    let metrics = proxied("/metrics/resource").expect("metrics of resources");
    let of_web = "container_memory_working_set_bytes{container=\"main\",namespace=\"default\",pod=\"web\"}";
    assert!(metrics.contains(of_web), "{metrics}");
    assert!(proxied("/metrics").expect("the node's metrics").contains("kubelet_running_pods"));
}

/// What the busybox in pods speaks, beside what the agent and kubectl need.
const CIPHERS: &str =
    "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_GCM_SHA256";

/// The token, the authority and the variables of the service lead a program in a pod to the API server, with its account's rights.
#[test]
fn a_pod_uses_its_token_against_the_api_server() {
    let cluster = Cluster::with(&Options { apiserver: &[CIPHERS], ..Options::default() }, "");
    let plane = &cluster.control_plane;
    let mut spec = spec("exec sleep 1000");
    spec["serviceAccountName"] = json!("reader");
    let meta = json!({ "name": "reader", "namespace": "default" });
    plane.apply(&[
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta }),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
            "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": "default" }] }),
    ]);
    // Sidecars of the same pod have the same account.
    spec["containers"].as_array_mut().expect("a list").push({
        let mut second = container("exec sleep 1000");
        second["name"] = json!("second");
        second
    });
    plane.apply(&[pod("client", &spec)]);
    cluster.ready_pods("app=client", 1);
    let files = "/var/run/secrets/kubernetes.io/serviceaccount";
    let inside =
        |script: &str| plane.try_kubectl(&["exec", "client", "-c", "second", "--", "sh", "-c", script]);
    let authority = inside(&format!("cat {files}/ca.crt")).expect("it has the authority");
    assert_eq!(authority, fs::read_to_string(plane.pki("ca.crt")).expect("read"));
    assert_eq!(inside(&format!("cat {files}/namespace")).as_deref(), Ok("default"));
    let ask = |path: &str| {
        inside(&format!(
            "wget -qO- --no-check-certificate --header \"Authorization: Bearer $(cat {files}/token)\" \
             https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT{path}"
        ))
    };
    let answer = plane.wait("an answer with the token", || ask("/api/v1/namespaces/default/pods/client"));
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["metadata"]["name"], "client");
    // The account may not read secrets, and another namespace is not its own.
    for path in ["/api/v1/namespaces/default/secrets", "/api/v1/namespaces/kube-system/pods"] {
        assert!(ask(path).is_err_and(|error| error.contains("403")), "{path}");
    }
    cluster.finish();
}
