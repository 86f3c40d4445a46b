//! What many clients of the API cost at a time, and what they leave behind.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{
    PATIENCE, SETTLE, Table, finish, first_instructions, private_megabytes, pss_megabytes, release_binary,
    usual_pss_megabytes,
};
use crate::support::api::{Api, Http2};
use crate::support::runtime::{Kind, TestRuntime, on};
use crate::support::wait::pause;

const FOLLOWERS: usize = 200;
const WATCHES: usize = 1000;
/// As a client library shares them between its watches.
const CONNECTIONS: usize = 5;
/// Of a client that does not read: as many as a connection may have.
const UNREAD: usize = 250;
/// The pod that everybody who watches hears of.
const NEWS: &str = "news-edge";

/// Asks, and waits for the first piece of an answer that has no end.
async fn asked(port: u16, path: &str) -> TcpStream {
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(request.as_bytes()).await.expect("it is sent");
    let mut piece = [0; 512];
    let read = tokio::time::timeout(PATIENCE, client.read(&mut piece)).await.expect("it answers in time");
    let text = String::from_utf8_lossy(&piece[..read.expect("an answer")]).into_owned();
    assert!(text.starts_with("HTTP/1.1 200 "), "{path}: {text}");
    client
}

/// Asks, and waits for the head of the answer.
async fn begun(client: &mut Http2, path: &str) -> Response<Incoming> {
    let request = Request::builder().uri(format!("https://localhost{path}"));
    let sent = client.send_request(request.body(Empty::new()).expect("a request"));
    let response =
        tokio::time::timeout(PATIENCE, sent).await.expect("it answers in time").expect("an answer");
    assert_eq!(response.status(), 200, "{path}");
    response
}

/// Reads a watch until the pod is there, and gives it back.
async fn heard(mut watch: Response<Incoming>) -> Response<Incoming> {
    let mut text = String::new();
    while !text.contains(NEWS) {
        let next = tokio::time::timeout(PATIENCE, watch.frame()).await.expect("it is told in time");
        let data = next.expect("it goes on").expect("it is whole").into_data().expect("no trailers");
        text += &String::from_utf8_lossy(&data);
    }
    watch
}

/// Two hundred connections and a thousand watches over TLS, all served at once; then one who asks for much and reads nothing.
#[test]
fn many_clients_cost_little_and_leave_little() {
    on(Kind::Embedded, || {
        let mut table = Table::default();
        let runtime = TestRuntime::start();
        let out = runtime.scratch().dir("out");
        let mut agent = runtime.agent().with_program(&release_binary());
        let api = Api::of(&mut agent, runtime.scratch().path());
        agent.start();
        super::monitors::wait_for_images(&agent);
        let names: Vec<String> = (0..5).map(|number| format!("pod{number}")).collect();
        first_instructions(&agent, &out, &names);
        api.wait(&mut agent);
        let admin = api.person(&agent, "admin", &[]);
        pause(SETTLE);
        table.time("agent PSS with 5 pods", usual_pss_megabytes(agent.pid()), None, "MB");
        let private = private_megabytes(agent.pid());
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let pss = || pss_megabytes(agent.pid());
        let (followed, watched, unread) = tokio.block_on(async {
            let port = api.plain_port(&admin).await;
            let mut clients = Vec::new();
            for number in 0..FOLLOWERS {
                let path =
                    format!("/containerLogs/default/pod{}-edge/main?follow=true", number % names.len());
                clients.push(asked(port, &path).await);
            }
            let followed = pss();
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                connections.push(api.http2(&admin, 65_535).await);
            }
            let mut open = Vec::new();
            for number in 0..WATCHES {
                let client = &mut connections[number % CONNECTIONS];
                open.push(begun(client, "/api/v1/pods?watch=true").await);
            }
            first_instructions(&agent, &out, &["news".to_owned()]);
            let mut hearing: JoinSet<_> = open.into_iter().map(heard).collect();
            let mut open = Vec::new();
            while let Some(watch) = hearing.join_next().await {
                open.push(watch.expect("it hears"));
            }
            let watched = pss();
            let mut client = api.http2(&admin, 1024).await;
            let mut unread = Vec::new();
            for number in 0..UNREAD {
                let log = format!("/containerLogs/default/pod{}-edge/main?follow=true", number % names.len());
                let path = if number % 2 == 0 { "/api/v1/pods" } else { &log };
                unread.push(begun(&mut client, path).await);
            }
            // One more is served beside them.
            drop(asked(port, "/healthz").await);
            assert_eq!((open.len(), unread.len()), (WATCHES, UNREAD));
            (followed, watched, pss())
        });
        drop(tokio);
        table.hard("... with 200 followers of logs over TLS", followed, 30.0, "MB");
        table.hard("... and 1000 watches of all pods", watched, 45.0, "MB");
        table.hard("... and 250 answers that nobody reads", unread, 60.0, "MB");
        pause(SETTLE + Duration::from_secs(5));
        table.hard("... when they are gone", usual_pss_megabytes(agent.pid()), 10.0, "MB");
        // Of the heap alone, whatever of the program is in use.
        table.hard("... and left in the heap", private_megabytes(agent.pid()) - private, 3.0, "MB");
        agent.assert_alive();
        finish(&table);
    });
}
