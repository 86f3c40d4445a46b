//! Pods with a network of their own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Node;
use crate::support::agent::PATIENCE;
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

super::on_both_runtimes! {
    a_pod_on_the_bridge_has_an_address_and_serves_pages,
}
