//! Pods with a network of their own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::json;

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::free_port;
use crate::support::wait::wait_for;

fn a_pod_on_the_bridge_has_an_address_and_serves_pages() {
    let mut node = Node::new();
    let mut pod =
        node.pod("page", "mkdir /tmp/www; echo welcome > /tmp/www/index.html; httpd -f -p 80 -h /tmp/www");
    pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
    node.apply(&pod);
    node.agent.start();

    let ip = node.agent.wait_for_pod("page", "addressed", |pod| {
        pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty()).map(str::to_owned)
    });
    let net = format!("{}.", node.runtime.scratch().net());
    assert!(ip.starts_with(&net), "{ip} is not in {net}0/24");

    let answer = wait_for("the page", PATIENCE, || get(&ip).map_err(|error| error.to_string()));
    assert!(answer.starts_with("HTTP/1.") && answer.ends_with("welcome\n"), "{answer}");

    let container = node.running("page");
    let hosts = node.runtime.exec(&container, &["cat", "/etc/hosts"]);
    assert!(hosts.contains(&format!("{ip}\tpage-edge\n")), "{hosts}");
    assert_eq!(node.runtime.exec(&container, &["hostname"]), "page-edge\n");
}

/// The port of a process is taken over with a warning that names it, the agent's own is not given away.
fn a_host_port_that_is_in_use_is_said_or_refused() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
    let (taken, own) = (socket.local_addr().expect("an address").port(), free_port());
    let mut node = Node::new();
    node.agent.argument(format!("--healthz-port={own}"));
    for (name, port) in [("taker", taken), ("thief", own)] {
        let mut pod = node.pod(name, "sleep 1000");
        pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
        pod["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": port }]);
        node.apply(&pod);
    }
    node.agent.start();
    let message = node.agent.wait_for_pod("thief", "rejected", |pod| {
        let status = &pod["status"];
        (status["reason"] == "NodePorts").then(|| status["message"].as_str().unwrap_or_default().to_owned())
    });
    assert!(
        message.contains(&format!("host port {own}/TCP is used by the agent (healthzPort)")),
        "{message}"
    );
    node.running("taker");
    let said = wait_for("a warning", PATIENCE, || {
        let said = node.agent.status_json()?["events"].to_string();
        if said.contains("HostPortConflict") { Ok(said) } else { Err(said) }
    });
    let expected = format!("host port {taken}/TCP is now forwarded to this pod");
    assert!(
        said.contains(&expected) && said.contains(&format!("(process {})", std::process::id())),
        "{said}"
    );
    let problem = |node: &Node| {
        let report = node.agent.status_json().expect("a report");
        let problems = report["problems"].as_array().expect("a list").clone();
        problems.into_iter().find(|problem| problem["subject"] == "pod default/taker-edge")
    };
    // The event comes with the sandbox, the problem with the pod's address.
    let shown = wait_for("a problem of the node", PATIENCE, || problem(&node).ok_or("none yet".to_owned()));
    assert!(shown["message"].to_string().contains(&format!("HostPortConflict: {expected}")), "{shown}");
    drop(socket);
    assert_eq!(problem(&node), None, "nothing listens any more");
}

/// One page over plain HTTP.
fn get(ip: &str) -> std::io::Result<String> {
    let limit = Duration::from_secs(10);
    let address = format!("{ip}:80").parse().map_err(std::io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

super::on_every_runtime! {
    a_pod_on_the_bridge_has_an_address_and_serves_pages,
    a_host_port_that_is_in_use_is_said_or_refused,
}
