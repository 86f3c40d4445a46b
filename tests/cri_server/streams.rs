//! Programs and ports of containers, reached by the URLs that CRI answers.

use edge_agent::platform::proto::runtime as cri;
use edge_agent::serve::streaming::spdy::dictionary::dictionary;
use serde_json::Value;

use super::client::{Spdy, WebSocket};
use super::served::Served;

async fn exec_url(served: &mut Served, container: &str, script: &str, tty: bool) -> String {
    let request = cri::ExecRequest {
        container_id: container.to_owned(),
        cmd: ["sh", "-c", script].map(str::to_owned).into(),
        tty,
        stdin: true,
        stdout: true,
        stderr: !tty,
    };
    served.runtime.exec(request).await.expect("it is announced").into_inner().url
}

async fn connect(url: &str) -> Spdy {
    Spdy::connect(url, &["v4.channel.k8s.io"], &dictionary()).await.expect("it is accepted")
}

async fn open(client: &mut Spdy, kinds: &[&str]) -> Vec<u32> {
    let mut ids = Vec::new();
    for kind in kinds {
        ids.push(client.open(&[("streamtype", kind)]).await);
    }
    ids
}

fn exit_code(status: &[u8]) -> String {
    let status: Value = serde_json::from_slice(status).expect("a status");
    status["details"]["causes"][0]["message"].as_str().unwrap_or("0").to_owned()
}

#[tokio::test]
async fn programs_are_spoken_with_over_spdy_and_websocket() {
    let mut served = Served::start().await;
    let sandbox = served.sandbox("talk").await;
    let container = served.container("talk", &sandbox, &["sleep", "1000"], |_| {}).await;

    let url = exec_url(&mut served, &container, "cat; echo done >&2; exit 3", false).await;
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    let mut client = connect(&url).await;
    let ids = open(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
    let sent = "0123456789".repeat(20_000);
    client.send(ids[1], sent.as_bytes(), true).await;
    client.until(|client| client.finished.contains(&ids[0])).await;
    assert_eq!(client.text(ids[2]).len(), sent.len());
    assert_eq!((client.text(ids[2]) == sent, client.text(ids[3]).as_str()), (true, "done\n"));
    assert_eq!(exit_code(&client.data[&ids[0]]), "3");

    let url = exec_url(&mut served, &container, "cat; exit 4", false).await;
    let mut client = WebSocket::connect(&url, "v5.channel.k8s.io").await.expect("it is accepted");
    client.send(2, b"\0over there").await;
    client.until(|client| client.channel(1) == b"over there").await;
    client.send(2, &[255, 0]).await;
    client.until(|client| client.closed).await;
    assert_eq!(exit_code(&client.channel(3)), "4");

    // A terminal follows the client's size: its program asks for it after the change.
    let url = exec_url(&mut served, &container, "read line; stty size", true).await;
    let mut client = connect(&url).await;
    let ids = open(&mut client, &["error", "stdin", "stdout", "resize"]).await;
    client.send(ids[3], br#"{"Width":111,"Height":33}"#, false).await;
    client.send(ids[1], b"go\n", false).await;
    client.until(|client| client.finished.contains(&ids[0])).await;
    assert!(client.text(ids[2]).contains("33 111"), "{}", client.text(ids[2]));

    let url = exec_url(&mut served, &container, "true", false).await;
    let request = cri::StopContainerRequest { container_id: container.clone(), timeout: 0 };
    served.runtime.stop_container(request).await.expect("it stops");
    let mut client = connect(&url).await;
    let ids = open(&mut client, &["error", "stdin", "stdout", "stderr"]).await;
    client.until(|client| client.finished.contains(&ids[0])).await;
    assert!(client.text(ids[0]).contains("InternalError"), "{}", client.text(ids[0]));
}

#[tokio::test]
async fn a_containers_own_terminal_is_attached_to() {
    let mut served = Served::start().await;
    let sandbox = served.sandbox("shell").await;
    let script = "while read line; do echo \"heard $line\"; stty size; done";
    let container = served
        .container("shell", &sandbox, &["sh", "-c", script], |config| {
            config.stdin = true;
            config.tty = true;
        })
        .await;
    let request =
        cri::AttachRequest { container_id: container, stdin: true, tty: true, stdout: true, stderr: false };
    let url = served.runtime.attach(request).await.expect("it is announced").into_inner().url;
    let mut client = connect(&url).await;
    let ids = open(&mut client, &["error", "stdin", "stdout", "resize"]).await;
    client.send(ids[1], b"hello\n", false).await;
    client.until(|client| client.text(ids[2]).contains("heard hello")).await;
    client.send(ids[3], br#"{"Width":90,"Height":20}"#, false).await;
    // The size goes another way than the letters: ask until it has arrived.
    for _ in 0..100 {
        let heard = client.text(ids[2]).matches("heard again").count();
        client.send(ids[1], b"again\n", false).await;
        client.until(|client| client.text(ids[2]).matches("heard again").count() > heard).await;
        if client.text(ids[2]).contains("20 90") {
            return;
        }
    }
    panic!("{}", client.text(ids[2]));
}

#[tokio::test]
async fn a_pods_port_is_forwarded() {
    let mut served = Served::start().await;
    let sandbox = served.sandbox("port").await;
    let serve = "while :; do echo from inside | nc -l -p 8080; done";
    served.container("port", &sandbox, &["sh", "-c", serve], |_| {}).await;
    let deadline = tokio::time::Instant::now() + super::served::PATIENCE;
    loop {
        let request = cri::PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![8080] };
        let url = served.runtime.port_forward(request).await.expect("it is announced").into_inner().url;
        let mut client =
            Spdy::connect(&url, &["portforward.k8s.io"], &dictionary()).await.expect("it is accepted");
        let headers = |kind| [("streamtype", kind), ("port", "8080"), ("requestid", "0")];
        let error = client.open(&headers("error")).await;
        let data = client.open(&headers("data")).await;
        client.send(data, b"", true).await;
        client.until(|client| client.finished.contains(&data) && client.finished.contains(&error)).await;
        if client.text(data) == "from inside\n" {
            return;
        }
        // The program may not listen yet.
        let why = client.text(error);
        assert!(tokio::time::Instant::now() < deadline, "{why}");
        assert!(why.is_empty() || why.contains("refused"), "{why}");
    }
}
