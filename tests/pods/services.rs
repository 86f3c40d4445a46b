//! Services from manifests: names, addresses, ports of the node, with the agent and without it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::Api;
use crate::support::containerd::Instance;
use crate::support::kubectl::Kubectl;
use crate::support::runtime::{TestRuntime, on_every_runtime};
use crate::support::wait::wait_for;

mod everywhere;

/// A page of this text, by a pod with the label `app: web`, and its Service.
const PAGE: &str = "mkdir /tmp/www; echo welcome > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";

fn pod(node: &Node, name: &str, script: &str) -> Value {
    let mut pod = node.pod(name, script);
    pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
    pod["metadata"]["labels"] = json!({"app": name});
    pod
}

#[expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]
fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn node() -> Node {
    let mut node = Node::new();
    let range = node.runtime.scratch().service_range();
    node.agent.argument(format!("--service-cidr={range}"));
    if matches!(node.runtime, TestRuntime::Containerd(_)) {
        // The table and the link of Services are named after it, and go with the test's directory.
        node.agent.argument(format!("--bridge-name={}", node.runtime.scratch().bridge()));
    }
    node
}

fn in_pod(node: &Node, instance: &Instance, script: &str) -> Result<String, String> {
    let script = format!("{{ {script}; }} 2>&1 && echo OK");
    let said = node.runtime.exec(instance, &["sh", "-c", &format!("{script} || true")]);
    said.strip_suffix("OK\n").map(str::to_owned).ok_or(said)
}

/// Runs a program of the machine in a pod's network with the pod's resolv.conf.
fn with_names_of(instance: &Instance, command: &[&str]) -> String {
    let pid = instance.pid.expect("it runs").to_string();
    let names = Path::new("/proc").join(&pid).join("root").join("etc/resolv.conf");
    // A copy: `mount` resolves the path, and would mount the machine's own file.
    let copy = std::env::temp_dir().join(format!("resolv.conf-{pid}"));
    std::fs::copy(names, &copy).expect("copy the pod's resolv.conf");
    let script = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", copy.display());
    let output = Command::new("nsenter")
        .args(["--target", &pid, "--net", "--", "unshare", "--mount", "sh", "-c", &script, "sh"])
        .args(command)
        .output()
        .expect("run nsenter");
    std::fs::remove_file(&copy).expect("remove the copy");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Asks the resolver of its own C library for the names in its arguments.
const RESOLVE: &str = r#"
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int at = 1; at < count; at++) {
        struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
        char text[64];
        int failed = getaddrinfo(names[at], "80", &hints, &found);
        if (failed) { printf("%s: %s\n", names[at], gai_strerror(failed)); continue; }
        for (; found; found = found->ai_next)
            printf("%s: %s\n", names[at], inet_ntop(AF_INET, &((struct sockaddr_in *)found->ai_addr)->sin_addr, text, 64));
    }
}
"#;

/// The names of the C libraries' resolvers that pods have, and of `dig`.
fn names_are_found_by_every_resolver() {
    let mut node = node();
    let directory = node.runtime.scratch().dir("resolve");
    let source = directory.join("resolve.c");
    std::fs::write(&source, RESOLVE).expect("write");
    let web = service("web", json!({"selector": {"app": "none"}, "ports": [{"name": "http", "port": 80}]}));
    node.agent.write_manifest("web-service.yaml", &web.to_string());
    let outside =
        service("outside", json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}));
    node.agent.write_manifest("outside-service.yaml", &outside.to_string());
    node.apply(&pod(&node, "client", "sleep 1000"));
    node.agent.start();
    let client = node.running("client");
    let address = wait_for("an address", PATIENCE, || node.agent.ask(&["resolve", "web"]));
    let address = address.trim();
    for compiler in ["gcc", "musl-gcc"] {
        let program = directory.join(compiler);
        let made = Command::new(compiler).arg("-o").args([&program, &source]).status();
        assert!(made.expect("scripts/setup installs it").success(), "{compiler}");
        let names = ["web", "web.default", "web.default.svc.cluster.local", "outside", "nothing"];
        let said = with_names_of(&client, &[&[program.to_str().expect("a path")][..], &names].concat());
        let lines: Vec<String> = names[..4].iter().map(|name| format!("{name}: {address}\n")).collect();
        let expected = lines.concat();
        assert!(said.starts_with(&expected) && said.contains("nothing: "), "{compiler}: {said}");
    }
    let dig = |arguments: &str| {
        let arguments: Vec<&str> = ["dig", "+short"].into_iter().chain(arguments.split(' ')).collect();
        with_names_of(&client, &arguments)
    };
    assert_eq!(dig("+search web"), format!("{address}\n"));
    assert_eq!(dig("+tcp web.default.svc.cluster.local"), format!("{address}\n"));
    assert_eq!(dig(&format!("-x {address}")), "web.default.svc.cluster.local.\n");
    assert_eq!(
        dig("SRV _http._tcp.web.default.svc.cluster.local"),
        "0 100 80 web.default.svc.cluster.local.\n"
    );
    assert_eq!(dig("AAAA web.default.svc.cluster.local"), "");
}

/// From a pod, by the names that it knows. A static busybox looks up no names for `wget`.
fn fetched_by(instance: &Instance, urls: &[&str]) -> String {
    with_names_of(instance, &[&["curl", "-sS", "--max-time", "5"], urls].concat())
}

fn fetched(url: &str) -> Result<String, String> {
    let output = Command::new("curl").args(["-sS", "--max-time", "5", url]).output().expect("run curl");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn a_service_is_found_by_name_and_outlives_the_agent() {
    let mut node = node();
    let port = 31_000 + u16::try_from(std::process::id() % 1_700).expect("it fits");
    let web = service(
        "web",
        json!({"type": "NodePort", "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 8080, "nodePort": port}]}),
    );
    node.agent.write_manifest("web-service.yaml", &web.to_string());
    node.apply(&pod(&node, "web", PAGE));
    node.apply(&pod(&node, "client", "sleep 1000"));
    node.agent.start();
    let (web, client) = (node.running("web"), node.running("client"));
    let names = node.runtime.exec(&client, &["cat", "/etc/resolv.conf"]);
    assert!(names.contains("search default.svc.cluster.local svc.cluster.local cluster.local"), "{names}");
    assert!(names.contains("options ndots:5"), "{names}");
    wait_for("the page by its name", PATIENCE, || {
        match fetched_by(&client, &["http://web/", "http://web.default.svc/"]).as_str() {
            "welcome\nwelcome\n" => Ok(()),
            other => Err(format!("{other}; {}", node.agent.log_tail())),
        }
    });
    // The pod itself through its Service.
    assert_eq!(fetched_by(&web, &["http://web/"]), "welcome\n");
    let missing = in_pod(&node, &client, "nslookup nothing.default.svc.cluster.local");
    assert!(missing.is_err(), "{missing:?}");
    let address = node.agent.ask(&["resolve", "web"]).expect("the node asks, too").trim().to_owned();
    // Pods of another network take nothing from 127.0.0.1: there it is the bridge's address.
    let own = match &node.runtime {
        TestRuntime::Embedded(_) | TestRuntime::Docker(_) => "127.0.0.1".to_owned(),
        TestRuntime::Containerd(_) => format!("{}.1", node.runtime.scratch().net()),
    };
    for url in [format!("http://{address}/"), format!("http://{own}:{port}/")] {
        assert_eq!(fetched(&url).as_deref(), Ok("welcome\n"), "{url}");
    }
    // A later pod has the variables.
    node.apply(&pod(&node, "later", "sleep 1000"));
    let later = node.running("later");
    let environment = std::fs::read(format!("/proc/{}/environ", later.pid.expect("it runs"))).expect("read");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let variables: Vec<&str> = environment.split('\0').collect();
    for expected in [
        format!("WEB_SERVICE_HOST={address}"),
        "WEB_SERVICE_PORT=80".to_owned(),
        "KUBERNETES_SERVICE_PORT=443".to_owned(),
    ] {
        assert!(variables.contains(&expected.as_str()), "{expected}: {variables:?}");
    }

    node.agent.kill9();
    assert_eq!(fetched(&format!("http://{address}/")).as_deref(), Ok("welcome\n"), "without the agent");
    assert_eq!(fetched_by(&client, &[&format!("http://{address}/")]), "welcome\n");
    node.agent.start();
    wait_for("names after the restart", PATIENCE, || match fetched_by(&client, &["http://web/"]).as_str() {
        "welcome\n" => Ok(()),
        other => Err(other.to_owned()),
    });
    assert_eq!(node.agent.ask(&["resolve", "web"]).map(|said| said.trim().to_owned()), Ok(address.clone()));

    node.delete("web");
    wait_for("connections to be refused", PATIENCE, || {
        let started = Instant::now();
        match fetched(&format!("http://{address}/")) {
            Err(error) if error.contains("curl: (7)") && started.elapsed() < Duration::from_secs(2) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// `kubectl delete svc --all` as people run it: the agent's own Services stay, and it does not fail over them.
fn all_services_can_be_deleted() {
    let mut node = node();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    node.agent.start();
    api.wait(&mut node.agent);
    let kubectl = Kubectl::of(&api, &node.agent, node.runtime.scratch().path(), "admin", &[]);
    for kubectl in kubectl.with_each() {
        let made = kubectl.run(&["create", "service", "clusterip", "web", "--tcp=80"]);
        assert!(made.ok, "{made:?}");
        let said = kubectl.run(&["delete", "services", "--all", "--timeout=20s"]);
        assert!(said.ok && said.out.contains(r#"service "web" deleted"#), "{said:?}");
        assert!(said.err.contains(r#"services "kubernetes" was not deleted"#), "{said:?}");
        let left = kubectl.run(&["get", "services", "-o", "name"]);
        assert_eq!(left.out, "service/kubernetes\n", "{left:?}");
    }
}

fn pods_of_a_headless_service_have_names() {
    let mut node = node();
    let db =
        service("db", json!({"clusterIP": "None", "selector": {"tier": "db"}, "ports": [{"port": 5432}]}));
    node.agent.write_manifest("db-service.yaml", &db.to_string());
    for name in ["db-0", "db-1"] {
        let mut pod = pod(&node, name, "sleep 1000");
        pod["metadata"]["labels"] = json!({"tier": "db"});
        pod["spec"]["hostname"] = json!(name);
        pod["spec"]["subdomain"] = json!("db");
        node.apply(&pod);
    }
    node.agent.start();
    let (first, _) = (node.running("db-0"), node.running("db-1"));
    let addresses = ["db-0", "db-1"].map(|name| {
        node.agent.wait_for_pod(name, "addressed", |pod| {
            pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty()).map(str::to_owned)
        })
    });
    wait_for("both names", PATIENCE, || {
        for (name, address) in ["db-0", "db-1"].iter().zip(&addresses) {
            let said = in_pod(&node, &first, &format!("nslookup {name}.db.default.svc.cluster.local"))?;
            if !said.contains(address) {
                return Err(said);
            }
        }
        Ok(())
    });
    let all = node.agent.ask(&["resolve", "db"]).expect("all of them");
    assert!(addresses.iter().all(|address| all.contains(address.as_str())), "{all}");
}

on_every_runtime! {
    a_service_is_found_by_name_and_outlives_the_agent,
    all_services_can_be_deleted,
    names_are_found_by_every_resolver,
    pods_of_a_headless_service_have_names,
}
