//! The server over real sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::model::api::pod::Pod;
use crate::platform::testing::TempDir;
use crate::serve::server::node::testing::Shown;
use serde_json::{Value, json};

struct ServerDirectory(TempDir);

impl ServerDirectory {
    fn new() -> Self {
        Self(TempDir::new())
    }

    fn socket(&self) -> PathBuf {
        self.0.join("run/agent.sock")
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

fn report() -> AgentReport {
    let mut pod = Pod { api_version: "v1".into(), kind: "Pod".into(), ..Pod::default() };
    pod.metadata.name = "web".into();
    pod.status.phase = "Running".into();
    AgentReport { version: "1.2.3".into(), pods: vec![pod], ..AgentReport::default() }
}

async fn start(path: &Path) -> tokio::task::JoinHandle<()> {
    let listener = bind(path).await.unwrap();
    tokio::task::spawn_local(serve(listener, Rc::new(Shown(report())), None, Clock::System))
}

/// Sends bytes and reads to the end of the connection.
async fn send(path: &Path, request: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    (code, body)
}

async fn get(path: &Path, resource: &str) -> (u16, String) {
    send(path, &format!("GET {resource} HTTP/1.1\r\nHost: agent\r\n\r\n")).await
}

#[test]
fn the_routes_answer_and_everything_else_is_a_status_object() {
    run(async {
        let directory = ServerDirectory::new();
        let path = directory.socket();
        let server = start(&path).await;
        assert_eq!(get(&path, "/healthz").await, (200, "ok".into()));
        for resource in ["/pods", "/pods?limit=5"] {
            let (code, body) = get(&path, resource).await;
            let list: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((code, &list["kind"], &list["apiVersion"]), (200, &json!("PodList"), &json!("v1")));
            assert_eq!(list["items"], json!([{"metadata": {"name": "web"}, "status": {"phase": "Running"}}]));
        }
        let (code, body) = get(&path, "/agent/v1/status").await;
        let value: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((code, &value["version"]), (200, &json!("1.2.3")));
        assert_eq!(crate::model::api::decode::decode::<AgentReport>(value).unwrap().object, report());

        let (code, body) = get(&path, "/nothing").await;
        let status: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((code, &status["kind"], &status["reason"]), (404, &json!("Status"), &json!("NotFound")));
        let (code, body) = send(&path, "DELETE /pods HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let status: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (code, &status["reason"], &status["code"]),
            (405, &json!("MethodNotAllowed"), &json!(405))
        );
        let (code, _) = send(&path, "GET /pods HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!(code, 413);
        let (code, body) = send(&path, "HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!((code, &*body), (200, ""));
        server.abort();
    });
}

#[test]
fn oversized_and_malformed_requests_do_not_stop_the_server() {
    run(async {
        let directory = ServerDirectory::new();
        let path = directory.socket();
        let server = start(&path).await;
        let long = format!("GET /pods HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(20_000));
        assert_eq!(send(&path, &long).await.0, 431);
        let many = "X: 1\r\n".repeat(40);
        assert_eq!(send(&path, &format!("GET /pods HTTP/1.1\r\n{many}\r\n")).await.0, 431);
        assert_eq!(send(&path, "\0\0\0\0\r\n\r\n").await.0, 400);
        assert_eq!(get(&path, "/healthz").await.0, 200);
        server.abort();
    });
}

#[test]
fn idle_clients_are_sent_away_and_their_places_taken() {
    run(async {
        let directory = ServerDirectory::new();
        let path = directory.socket();
        let server = start(&path).await;
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(UnixStream::connect(&path).await.unwrap());
        }
        let late = get(&path, "/healthz");
        tokio::pin!(late);
        let early = tokio::time::timeout(Duration::from_millis(500), &mut late).await;
        assert!(early.is_err(), "the server is full");
        let patient = LOCAL.header_timeout + Duration::from_secs(60);
        assert_eq!(tokio::time::timeout(patient, late).await.unwrap().0, 200);
        server.abort();
    });
}

#[test]
fn the_socket_is_for_root_alone_and_a_stale_one_is_replaced() {
    run(async {
        let directory = ServerDirectory::new();
        let path = directory.socket();
        drop(bind(&path).await.unwrap());
        assert!(path.exists(), "left behind, as by a crash");
        let server = start(&path).await;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no left-overs");
        assert_eq!(get(&path, "/healthz").await.0, 200);

        let refused = bind(&path).await.unwrap_err();
        assert!(matches!(refused, BindError::InUse { .. }), "{refused:?}");
        assert_eq!(get(&path, "/healthz").await.0, 200, "the living one is left alone");
        server.abort();

        let file = directory.0.join("file");
        fs::write(&file, "precious").unwrap();
        assert!(matches!(bind(&file).await, Err(BindError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    });
}
