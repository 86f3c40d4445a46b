//! What many clients of the API cost at a time, and what they leave behind.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{
    PATIENCE, SETTLE, Table, finish, first_instructions, pss_megabytes, release_binary, usual_pss_megabytes,
};
use crate::support::api::Api;
use crate::support::runtime::{Kind, TestRuntime, on};
use crate::support::wait::pause;

const FOLLOWERS: usize = 200;
const WATCHES: usize = 300;

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

/// Five hundred connections, which is about as many as there may be, over TLS.
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
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let busy = tokio.block_on(async {
            let port = api.plain_port(&admin).await;
            let mut clients = Vec::new();
            for number in 0..FOLLOWERS {
                let path =
                    format!("/containerLogs/default/pod{}-edge/main?follow=true", number % names.len());
                clients.push(asked(port, &path).await);
            }
            let followed = pss_megabytes(agent.pid());
            for _ in 0..WATCHES {
                clients.push(asked(port, "/api/v1/pods?watch=true").await);
            }
            // One more is served beside them.
            drop(asked(port, "/healthz").await);
            (followed, pss_megabytes(agent.pid()))
        });
        drop(tokio);
        table.hard("... with 200 followers of logs over TLS", busy.0, 30.0, "MB");
        table.hard("... and 300 watches of all pods", busy.1, 60.0, "MB");
        pause(SETTLE + Duration::from_secs(5));
        // The heap is in pieces after so many at once; after fifty, one after the other, it is back below ten.
        table.hard("... when they are gone", usual_pss_megabytes(agent.pid()), 20.0, "MB");
        agent.assert_alive();
        finish(&table);
    });
}
