//! Servers that answer badly: each gets one clear message, what ran keeps running, and files are not disturbed.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::node::{Node, Running, pod};
use crate::support::agent::PATIENCE;
use crate::support::http_server::{Answer, HttpServer};
use crate::support::wait::wait_until;

/// A node with a pod from a file and a pod from the server, both running.
fn node_with(server: &HttpServer) -> (Node, Running, Running) {
    let mut node = Node::new();
    node.agent.argument(format!("--manifest-url={}", server.url("/pods.yaml")));
    let neighbour = node.start_with_neighbour();
    let web = node.running("web");
    (node, neighbour, web)
}

fn good() -> Answer {
    Answer::manifest(&pod("web").to_string())
}

/// The answer is complained about with these words, once, and touches nothing.
fn complains(node: &mut Node, server: &HttpServer, answer: Answer, words: &[&str]) {
    let before = server.requests();
    server.answer(answer);
    let problem = node.problem(words);
    assert!(problem.starts_with(&server.url("/pods.yaml")), "{problem}");
    assert_eq!(problem.matches("/pods.yaml: ").count(), 1, "the URL is named once: {problem}");
    wait_until("the server to be asked again", PATIENCE, || server.requests() > before + 3);
    let lines = node.log_lines(&["Problem", words[0]]);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    server.answer(good());
    node.no_problems();
}

#[test]
fn bad_answers_are_named_once_and_remove_nothing() {
    let server = HttpServer::start(good());
    let (mut node, neighbour, web) = node_with(&server);
    let page = "<!DOCTYPE html>\n<html><head><title>Log in</title></head><body>Welcome</body></html>\n";
    for (answer, words) in [
        (Answer::text("404 Not Found", "text/plain", "no"), &["404 Not Found"][..]),
        (Answer::text("500 Internal Server Error", "text/plain", "oops"), &["500 Internal Server Error"]),
        (Answer::text("200 OK", "text/html", page), &["web page", "text/html"]),
        (Answer::manifest(""), &["zero-length data", "PodList"]),
        (
            Answer::manifest("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {}\n"),
            &["spec.containers"],
        ),
        (Answer::Circle, &["10 redirects", "loop"]),
        (Answer::Endless, &["longer than the limit of 10485760 bytes"]),
        (
            Answer::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\napiVersion: v1\n".to_vec()),
            &["closed before the answer was complete"],
        ),
        (Answer::Raw(b"\x00\x01 what is this\r\n\r\n".to_vec()), &["not a valid HTTP response"]),
    ] {
        complains(&mut node, &server, answer, words);
    }
    node.keeps_running("web", &web);
    node.keeps_running("neighbour", &neighbour);
    assert_eq!(node.calls("RunPodSandbox"), 2);

    // An empty list is an answer: now nothing is wanted from there.
    server.answer(Answer::manifest("apiVersion: v1\nkind: PodList\nitems: []\n"));
    node.stopped("web");
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn slow_manifest_server_does_not_delay_other_pods() {
    let server = HttpServer::start(Answer::Drip);
    let mut node = Node::new();
    node.agent.argument(format!("--manifest-url={}", server.url("/pods.yaml")));
    let neighbour = node.start_with_neighbour();
    node.problem(&["/pods.yaml", "no complete response within 10 s"]);
    node.keeps_running("neighbour", &neighbour);
    server.answer(good());
    node.running("web");
    node.no_problems();
}

#[test]
fn a_url_that_never_answered_starts_nothing_and_says_why() {
    // Nobody listens there: the port was free a moment ago.
    let gone = HttpServer::start(good()).url("/pods.yaml");
    let plain = HttpServer::start(good());
    for (url, words) in [
        (gone, &["connection refused", "is the server running"][..]),
        (plain.url("/x").replace("http:", "https:"), &["TLS", "http://"]),
        ("http://no-such-host.invalid/pods".to_owned(), &["no-such-host.invalid", "host name"]),
        ("ftp://127.0.0.1/pods".to_owned(), &["http or https"]),
        ("file://pods.yaml".to_owned(), &["file:///absolute/path"]),
    ] {
        let mut node = Node::new();
        node.agent.argument(format!("--manifest-url={url}"));
        let neighbour = node.start_with_neighbour();
        node.problem(words);
        node.keeps_running("neighbour", &neighbour);
        let status = node.agent.cli(&["status"]).expect_err("something is wrong");
        assert!(!status.contains("All is well"), "{status}");
        assert_eq!(node.log_lines(&["Problem", words[0]]).len(), 1, "{}", node.agent.log());
    }
}

#[test]
fn unknown_certificate_authority_is_refused_until_trusted() {
    let mut node = Node::new();
    let directory = node.scratch.dir("tls");
    let make = |constraints: &str| {
        let arguments = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test -days 2 -addext \
             subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,{constraints} -keyout key.pem -out cert.pem"
        );
        let made =
            Command::new("openssl").args(arguments.split_whitespace()).current_dir(&directory).output();
        assert!(made.expect("run openssl").status.success());
    };
    std::fs::write(directory.join("pods.yaml"), pod("web").to_string()).expect("write the manifest");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("a free port").port();
    let arguments = format!("s_server -accept 127.0.0.1:{port} -cert cert.pem -key key.pem -WWW -quiet");
    let serve = || {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Killed(command.spawn().expect("serve with openssl"))
    };
    let url = format!("https://127.0.0.1:{port}/pods.yaml");
    node.agent.argument(format!("--manifest-url={url}"));
    make("CA:TRUE");
    let server = serve();
    let neighbour = node.start_with_neighbour();
    node.problem(&[&url, "CA:FALSE"]);
    drop(server);
    make("CA:FALSE");
    let _server = serve();
    node.problem(&[&url, "unknown authority"]);
    node.agent.terminate();
    node.agent.argument(format!("--manifest-url-ca-file={}", directory.join("cert.pem").display()));
    node.agent.start();
    node.running("web");
    node.keeps_running("neighbour", &neighbour);
}

/// A process that ends with the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn after_a_restart_a_failing_url_keeps_what_it_said_before() {
    let server = HttpServer::start(good());
    let (mut node, neighbour, web) = node_with(&server);
    node.agent.terminate();
    server.answer(Answer::text("500 Internal Server Error", "text/plain", "oops"));
    node.agent.start();
    node.problem(&["500 Internal Server Error"]);
    node.keeps_running("web", &web);
    node.keeps_running("neighbour", &neighbour);
    node.agent.wait_for_phase("web", "Running");
    assert_eq!(node.calls("RunPodSandbox"), 2);
}

#[test]
fn polling_an_unchanged_manifest_logs_nothing() {
    let server = HttpServer::start(good());
    let (node, ..) = node_with(&server);
    // That it runs is seen a little earlier than it is told.
    wait_until("both starts to be told", PATIENCE, || node.log_lines(&["Container started"]).len() == 2);
    let (before, lines) = (server.requests(), node.agent.log().lines().count());
    wait_until("five more requests", Duration::from_secs(20), || server.requests() > before + 5);
    assert_eq!(node.agent.log().lines().count(), lines, "{}", node.agent.log());
}
