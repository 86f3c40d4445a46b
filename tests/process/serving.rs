//! The API over TLS: who gets in, who may do what, and how it is spoken.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::node::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::{Api, free_port};
use crate::support::wait::{wait_for, wait_until};

fn served(more: &[&str]) -> (Node, Api) {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.scratch.path());
    for argument in more {
        node.agent.argument(*argument);
    }
    node.start_with_neighbour();
    api.wait(&mut node.agent);
    (node, api)
}

#[test]
fn requests_need_a_certificate_and_groups_limit_access() {
    let (mut node, api) = served(&[]);
    for path in ["/pods", "/healthz", "/nothing", "/exec/default/neighbour-edge/main?command=id&output=1"] {
        assert_eq!(api.curl(None, path, &[]), (401, "Unauthorized\n".to_owned()), "{path}");
    }
    assert_eq!(api.curl(None, "/pods", &["-H", "Authorization: Bearer guessed"]).0, 401);
    let admin = api.person(&node.agent, "admin", &[]);
    let viewer = api.person(&node.agent, "jane", &["--view"]);
    let expired = api.person(&node.agent, "late", &["--duration", "1ms"]);
    for (path, may_view) in [
        ("/pods", true),
        ("/runningpods/", true),
        ("/healthz", true),
        ("/statusz", true),
        ("/configz", false),
        ("/flagz", false),
    ] {
        let (code, body) = api.curl(Some(&admin), path, &[]);
        assert_eq!(code, 200, "{path}: {body}");
        assert_eq!(api.curl(Some(&viewer), path, &[]).0, if may_view { 200 } else { 403 }, "{path}");
    }
    let exec = "/exec/default/neighbour-edge/main?command=id&output=1";
    let (code, body) = api.curl(Some(&viewer), exec, &[]);
    let said = "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[proxy], node=edge)\n";
    assert_eq!((code, body.as_str()), (403, said));
    wait_until("a certificate to end", PATIENCE, || api.curl(Some(&expired), "/pods", &[]).0 == 401);
    // Another node's authority.
    let mut other = Node::new();
    let elsewhere = Api::of(&mut other.agent, other.scratch.path());
    let directory = elsewhere.authority().parent().expect("a directory").to_owned();
    edge_agent::serve::server::pki::Authority::open(&directory, "other").expect("an authority");
    let stranger = elsewhere.person(&other.agent, "stranger", &[]);
    assert_eq!(api.curl(Some(&stranger), "/pods", &[]).0, 401);
    assert_eq!(api.curl(Some(&admin), "/agent/v1/status", &[]).0, 404, "that is the local socket's");
    let (code, body) = api.curl(Some(&admin), "/containerLogs/default/neighbour-edge/none", &[]);
    assert_eq!((code, body.as_str()), (404, "container \"none\" not found in pod \"neighbour-edge\"\n"));
    let (code, body) = api.curl(Some(&admin), "/containerLogs/default/nobody/none", &[]);
    assert_eq!((code, body.as_str()), (404, "pod \"nobody\" not found in namespace \"default\"\n"));
    let (_, pods) = api.curl(Some(&viewer), "/pods", &[]);
    assert!(pods.contains("\"kind\":\"PodList\"") && pods.contains("neighbour-edge"), "{pods}");
    node.agent.assert_alive();
}

#[test]
fn a_checkpoint_is_made_by_the_runtime() {
    let (node, api) = served(&[]);
    let admin = api.person(&node.agent, "admin", &[]);
    let viewer = api.person(&node.agent, "jane", &["--view"]);
    let post = |path: &str| api.curl(Some(&admin), path, &["-X", "POST"]);
    let path = "/checkpoint/default/neighbour-edge/main";
    assert_eq!(api.curl(Some(&viewer), path, &["-X", "POST"]).0, 403);
    let (code, body) = post(&format!("{path}?timeout=7"));
    let made: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {code} {body}"));
    let archive = Path::new(made["items"][0].as_str().expect("a path"));
    let name = archive.file_name().and_then(|name| name.to_str()).expect("a name");
    assert_eq!(archive.parent(), Some(node.agent.root_dir().join("checkpoints").as_path()));
    let named = name.starts_with("checkpoint-neighbour-edge_default-main-20");
    assert!(named && archive.extension().is_some_and(|end| end == "tar"), "{name}");
    assert_eq!(fs::read_to_string(archive).expect("the archive is written"), "state");
    let call = node.cri.state().calls.iter().find(|call| call.name == "CheckpointContainer").cloned();
    assert!(call.as_ref().is_some_and(|call| call.subject.ends_with(" 7")), "{call:?}");

    let (code, body) = post("/checkpoint/default/neighbour-edge/none");
    assert_eq!((code, body.as_str()), (404, "container \"none\" not found in pod \"neighbour-edge\"\n"));
    let (code, body) = post(&format!("{path}?timeout=soon"));
    assert!(code == 404 && body.contains("cannot parse value of timeout parameter"), "{code} {body}");
    let unable = (tonic::Code::Unimplemented, "no CRIU here".to_owned());
    node.cri.state().fail.insert("CheckpointContainer", unable);
    let (code, body) = post(path);
    assert!(
        code == 500
            && body.starts_with("checkpointing of default/neighbour-edge/main failed (")
            && body.contains("no CRIU here"),
        "{code} {body}"
    );
}

#[test]
fn tokens_anonymous_access_and_plain_ports_can_be_enabled() {
    let tokens = std::env::temp_dir().join(format!("tokens-{}", std::process::id()));
    fs::write(&tokens, "seen,joe,1,\"agent:viewers\"\nhidden,jim,2\n").expect("write");
    let (health, reading) = (free_port(), free_port());
    let (node, api) = served(&[
        &format!("--token-auth-file={}", tokens.display()),
        "--anonymous-auth=true",
        &format!("--healthz-port={health}"),
        &format!("--read-only-port={reading}"),
        "--enable-debugging-handlers=false",
    ]);
    let with =
        |token: &str, path: &str| api.curl(None, path, &["-H", &format!("Authorization: Bearer {token}")]).0;
    assert_eq!((with("seen", "/pods"), with("hidden", "/pods"), with("wrong", "/pods")), (200, 403, 401));
    fs::write(&tokens, "seen,joe,1,\"agent:viewers\"\nlater,jack,3,\"agent:viewers\"\n").expect("write");
    wait_until("the new token to count", PATIENCE, || with("later", "/pods") == 200);
    assert_eq!((with("seen", "/pods"), with("hidden", "/pods")), (200, 401), "who was taken out is out");
    let (code, body) = api.curl(None, "/pods", &[]);
    assert!(code == 403 && body.contains("user=system:anonymous"), "{code} {body}");
    let admin = api.person(&node.agent, "admin", &[]);
    assert_eq!(api.curl(Some(&admin), "/configz", &[]), (405, "Debug endpoints are disabled.\n".to_owned()));
    let plain = |port: u16, path: &str| {
        let url = format!("http://127.0.0.1:{port}{path}");
        let output =
            Command::new("curl").args(["-sS", "-w", "\n%{http_code}", &url]).output().expect("run curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').expect("a status");
        (code.parse::<u16>().expect("a number"), body.to_owned())
    };
    assert_eq!(plain(health, "/healthz"), (200, "ok".to_owned()));
    assert_eq!(plain(health, "/pods").0, 404);
    assert_eq!(plain(reading, "/pods").0, 200);
    assert_eq!(plain(reading, "/configz").0, 405);
    assert_eq!(plain(reading, "/agent/v1/status").0, 404);
    let _ = fs::remove_file(tokens);
}

/// What `openssl s_client` makes of the port.
fn handshake(port: u16, options: &[&str]) -> bool {
    let status = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}")])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.expect("run openssl").success()
}

/// As kubectl, Prometheus and client libraries ask; terminals and ports need upgrades, and their clients name HTTP/1.1.
#[test]
fn clients_that_name_http2_get_it_and_others_what_they_name() {
    let (node, api) = served(&[]);
    let admin = api.person(&node.agent, "admin", &[]);
    let spoken = |who, path: &str, more: &[&str]| {
        let asked = [&["-w", "\\n%{http_version}\\n%{http_code}"], more].concat();
        let (code, text) = api.curl(who, path, &asked);
        format!("{} {code}", text.rsplit('\n').next().unwrap_or_default())
    };
    for (path, code) in
        [("/healthz", 200), ("/pods", 200), ("/nothing", 404), ("/api/v1/namespaces/default/pods", 200)]
    {
        assert_eq!(spoken(Some(&admin), path, &["--http2"]), format!("2 {code}"), "{path}");
        assert_eq!(spoken(Some(&admin), path, &["--http1.1"]), format!("1.1 {code}"), "{path}");
    }
    assert_eq!(spoken(None, "/pods", &["--http2"]), "2 401");
    let created = api.curl(
        Some(&admin),
        "/api/v1/namespaces/default/configmaps",
        &[
            "--http2",
            "-H",
            "Content-Type: application/json",
            "-d",
            "{\"metadata\": {\"name\": \"over-http2\"}}",
        ],
    );
    assert_eq!(created.0, 201, "{}", created.1);
    // Refused before anybody has read the body: curl 7.88 sees no answer that comes before all of it has gone.
    let viewer = api.person(&node.agent, "viewer", &["--view"]);
    let body = node.scratch.path().join("body.json");
    let (maps, file) = ("/api/v1/namespaces/default/configmaps", format!("@{}", body.display()));
    for length in [1_000, 60_000] {
        fs::write(&body, format!("{{\"data\": {{\"a\": \"{}\"}}}}", "x".repeat(length))).expect("write");
        let sent = ["--http2", "-H", "Content-Type: application/json", "--data-binary", &file];
        assert_eq!(spoken(None, maps, &sent), "2 401");
        assert_eq!(spoken(Some(&viewer), maps, &sent), "2 403");
        assert_eq!(spoken(Some(&admin), "/pods", &sent), "2 405");
        let unread = ["--http2", "-H", "Content-Type: text/csv", "--data-binary", &file];
        assert_eq!(spoken(Some(&admin), maps, &unread), "2 415");
    }
    fs::write(&body, vec![b'x'; 3 * 1024 * 1024 + 1000]).expect("write");
    let large = ["--http2", "-H", "Content-Type: application/json", "--data-binary", &file];
    assert_eq!(spoken(Some(&admin), maps, &large), "2 413");
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio.block_on(async {
        // One connection, a hundred streams, all of them open at once.
        let mut client = api.http2(&admin, 65_535).await;
        let mut open = Vec::new();
        for _ in 0..100 {
            let request = hyper::Request::builder().uri("https://localhost/api/v1/pods?watch=true");
            let request = request.body(http_body_util::Empty::new()).expect("a request");
            open.push(client.send_request(request).await.expect("an answer"));
        }
        assert!(open.iter().all(|watch| watch.status() == 200));
    });
    assert_eq!(api.curl(Some(&admin), "/pods", &[]).0, 200);
}

#[test]
fn old_protocols_are_refused_and_the_settings_count() {
    let (_node, api) = served(&[]);
    assert!(handshake(api.port, &["-tls1_3"]) && handshake(api.port, &["-tls1_2"]));
    assert!(!handshake(api.port, &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]));
    let one = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    let (_node, api) = served(&[&format!("--tls-cipher-suites={one}")]);
    assert!(handshake(api.port, &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"]));
    assert!(!handshake(api.port, &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"]));
    let (_node, api) = served(&["--tls-min-version=VersionTLS13"]);
    assert!(handshake(api.port, &["-tls1_3"]) && !handshake(api.port, &["-tls1_2"]));
}

#[test]
fn unsupported_server_settings_fail_the_start() {
    let refused = |argument: &str| {
        let mut node = Node::new();
        let _api = Api::of(&mut node.agent, node.scratch.path());
        node.agent.argument(argument);
        node.agent.start();
        assert_eq!(node.agent.wait_for_end().code(), Some(1));
        node.log_lines(&["error: "]).join("\n")
    };
    let said = refused("--authorization-mode=Webhook");
    assert!(
        said.contains(
            "authorization.mode: Webhook requires a cluster, which is named by --kubeconfig: set Local"
        ),
        "{said}"
    );
    let said = refused("--authentication-token-webhook=true");
    assert!(
        said.contains("authentication.webhook.enabled: true") && said.contains("set it to false"),
        "{said}"
    );
    let said = refused("--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA");
    assert!(said.contains("tlsCipherSuites: none of TLS_RSA_WITH_AES_128_CBC_SHA is supported"), "{said}");
}

/// A disk that comes late, another program on the port: nothing that a pod has to wait for.
#[test]
fn api_server_start_is_retried_while_pods_run() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = taken.local_addr().expect("an address").port();
    let mut node = Node::new();
    let mut api = Api::of(&mut node.agent, node.scratch.path());
    api.port = port;
    let late = node.scratch.path().join("late.pem");
    node.agent.argument(format!("--port={port}"));
    node.agent.argument(format!("--tls-cert-file={}", late.display()));
    node.agent.argument(format!("--tls-private-key-file={}", late.display()));
    node.start_with_neighbour();
    let status = |node: &Node| {
        let output = node.agent.command_of("status").arg("--socket").arg(node.agent.socket()).output();
        String::from_utf8_lossy(&output.expect("run it").stdout).into_owned()
    };
    let says = |node: &Node, expected: &str| {
        wait_for("the status to say why", PATIENCE, || {
            let said = status(node);
            if said.contains(expected) { Ok(()) } else { Err(said) }
        });
    };
    says(&node, &format!("API server: tlsCertFile {}", late.display()));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-batch"])
        .args(["-subj", "/CN=edge", "-keyout"])
        .arg(&late)
        .output()
        .expect("run openssl");
    assert!(made.status.success(), "{made:?}");
    let pair = [fs::read(&late).expect("the key"), made.stdout].concat();
    fs::write(&late, pair).expect("write");
    says(&node, &format!("API server: listen on 127.0.0.1:{port} (address, port)"));
    drop(taken);
    api.wait(&mut node.agent);
    wait_until("the API to speak", PATIENCE, || handshake(port, &["-tls1_3"]));
    let said = status(&node);
    assert!(said.contains("neighbour-edge") && !said.contains("API server"), "{said}");
}

#[test]
fn silent_clients_do_not_block_other_requests() {
    let (node, api) = served(&[]);
    let admin = api.person(&node.agent, "admin", &[]);
    let silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(("127.0.0.1", api.port)).expect("it listens")).collect();
    let mut garbage = TcpStream::connect(("127.0.0.1", api.port)).expect("it listens");
    garbage.write_all(b"GET /pods HTTP/1.1\r\n\r\n").expect("sent");
    garbage.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut answer = Vec::new();
    let _ = garbage.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "no TLS, no answer");
    assert_eq!(api.curl(Some(&admin), "/pods", &[]).0, 200);
    drop(silent);
}

#[test]
fn certificate_survives_a_restart_and_is_reissued_if_deleted() {
    let (mut node, api) = served(&[]);
    let pki = api.authority().with_file_name("kubelet.crt");
    let first = fs::read(&pki).expect("it is there");
    let admin = api.person(&node.agent, "admin", &[]);
    node.agent.kill9();
    node.agent.start();
    api.wait(&mut node.agent);
    assert_eq!(fs::read(&pki).expect("it is there"), first);
    assert_eq!(api.curl(Some(&admin), "/pods", &[]).0, 200, "and who was let in still is");
    // As a tool puts a new one into place; it is looked at every ten seconds.
    fs::remove_file(&pki).expect("remove it");
    let fresh = wait_for("another certificate", PATIENCE, || {
        let _ = api.curl(Some(&admin), "/healthz", &[]);
        fs::read(&pki).map_err(|error| error.to_string())
    });
    assert_ne!(fresh, first);
}

/// The oldest of a crowd that shows no certificate make room for the newest connection.
#[test]
fn a_crowd_of_silent_connections_leaves_room_for_a_certificate() {
    let (mut node, api) = served(&[]);
    let admin = api.person(&node.agent, "admin", &[]);
    let crowd: Vec<TcpStream> =
        (0..700).map(|_| TcpStream::connect(("127.0.0.1", api.port)).expect("connect")).collect();
    for _ in 0..6 {
        assert_eq!(api.curl(Some(&admin), "/healthz", &[]), (200, "ok".to_owned()));
    }
    let open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        stream.read(&mut [0]).is_err()
    };
    assert!(!open(&crowd[0]), "the oldest is closed");
    assert!(open(&crowd[699]), "the newest is not");
    assert!(crowd.iter().filter(|stream| open(stream)).count() <= 32, "as many as one address may have");
    node.agent.assert_alive();
}

#[test]
fn kubeconfigs_are_those_of_the_agent_that_runs() {
    let (mut node, api) = served(&[]);
    let made = |node: &Node, options: &[&str]| {
        node.agent.command_of("kubeconfig").args(options).output().expect("run it")
    };
    let socket = format!("--socket={}", node.agent.socket().display());
    let output = made(&node, &[&socket]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("https://127.0.0.1:{}", api.port)), "{text}");
    let authority = fs::read(api.authority()).expect("read");
    assert!(text.contains(&edge_agent::codec::base64::encode(&authority)), "{text}");
    let empty = node.scratch.path().join("empty");
    let output = made(&node, &[&socket, &format!("--cert-dir={}", empty.display())]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("agent-ca.crt: not found"), "{said}");
    assert!(!empty.exists(), "nothing was made");
    node.agent.assert_alive();
}

fn resident_megabytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

/// Each of its own would be 240 MB of texts alone, and as much again while they were read.
#[test]
fn watches_of_a_large_object_share_it_and_a_user_has_a_bound() {
    let (mut node, api) = served(&[]);
    let viewer = api.person(&node.agent, "jane", &["--view"]);
    let data = "x".repeat(240_000);
    let object = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: big}}\ndata: {{a: {data}}}\n");
    node.agent.write_manifest("big.yaml", &object);
    let maps = "/api/v1/namespaces/default/configmaps";
    wait_until("the object", PATIENCE, || api.curl(Some(&viewer), &format!("{maps}/big"), &[]).0 == 200);
    let before = resident_megabytes(node.agent.pid());
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio.block_on(async {
        let (mut clients, mut unread, mut refused) = (Vec::new(), Vec::new(), 0);
        for _ in 0..6 {
            clients.push(api.http2(&viewer, 65_535).await);
        }
        for number in 0..1200 {
            let request = hyper::Request::builder().uri(format!("https://localhost{maps}?watch=true"));
            let request = request.body(http_body_util::Empty::new()).expect("a request");
            let answer = clients[number % 6].send_request(request).await.expect("an answer");
            match answer.status().as_u16() {
                200 => unread.push(answer),
                429 => refused += 1,
                other => panic!("{other}"),
            }
        }
        assert_eq!((unread.len(), refused), (1000, 200), "a user has a thousand");
        let grown = resident_megabytes(node.agent.pid()).saturating_sub(before);
        assert!(grown < 120, "{grown} MB more for a thousand watches of a quarter of a megabyte");
    });
    node.agent.assert_alive();
}
