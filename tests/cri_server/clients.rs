//! What stock clients and validation suites do that a kubelet does not.

use std::os::unix::net::UnixStream;

use edge_agent::platform::proto::runtime as cri;
use tokio::time::timeout;

use super::served::{PATIENCE, Served};
use crate::support::wait::wait_until;

/// More than a suite of a hundred cases leaves behind.
const LEFT_OPEN: usize = 250;

#[tokio::test]
async fn idle_connections_do_not_lock_out_other_clients() {
    let served = Served::start().await;
    let socket = served.scratch.path().join("cri.sock");
    let left: Vec<UnixStream> =
        (0..LEFT_OPEN).map(|_| UnixStream::connect(&socket).expect("it listens")).collect();
    let mut other = served.another_client().await;
    let answer = timeout(PATIENCE, other.version(cri::VersionRequest::default())).await;
    assert_eq!(answer.expect("in time").expect("it answers").into_inner().runtime_name, "agent");
    drop(left);
}

#[tokio::test]
async fn missing_log_directory_is_created_at_container_start() {
    let mut served = Served::start().await;
    let sandbox = served.sandbox("logged").await;
    let logs = served.scratch.path().join("logs-logged");
    let container = served.container("logged", &sandbox, &["sh", "-c", "echo here; sleep 1000"], |config| {
        config.log_path = "deep/down/app.log".to_owned();
    });
    container.await;
    let read = || std::fs::read_to_string(logs.join("deep/down/app.log")).unwrap_or_default();
    wait_until("the line is logged", PATIENCE, || read().contains(" stdout F here\n"));
}
