//! Sandboxes and containers from their making to their removal, and what is shown of them meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use edge_agent::platform::proto::runtime as cri;
use tonic::Code;

use super::served::Served;
use crate::support::wait::wait_until;

fn running(status: &cri::ContainerStatus) -> bool {
    status.state() == cri::ContainerState::ContainerRunning
}

async fn containers(served: &mut Served, filter: cri::ContainerFilter) -> Vec<String> {
    let request = cri::ListContainersRequest { filter: Some(filter) };
    let listed = served.runtime.list_containers(request).await.expect("it answers").into_inner().containers;
    listed.into_iter().map(|container| container.id).collect()
}

async fn sandboxes(served: &mut Served, filter: cri::PodSandboxFilter) -> Vec<String> {
    let request = cri::ListPodSandboxRequest { filter: Some(filter) };
    let listed = served.runtime.list_pod_sandbox(request).await.expect("it answers").into_inner().items;
    listed.into_iter().map(|sandbox| sandbox.id).collect()
}

fn label(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

#[tokio::test]
async fn pod_survives_a_server_restart_and_is_then_removed() {
    let mut served = Served::start().await;
    let mut events =
        served.runtime.get_container_events(cri::GetEventsRequest {}).await.expect("it answers").into_inner();
    let sandbox = served.sandbox("web").await;
    let other = served.sandbox("db").await;
    let script = "echo one; echo two >&2; trap 'exit 7' TERM; while :; do sleep 0.1; done";
    let container = served.container("web", &sandbox, &["sh", "-c", script], |_| {}).await;
    let mut seen = Vec::new();
    while seen.last() != Some(&(container.clone(), cri::ContainerEventType::ContainerStartedEvent)) {
        let event = tokio::time::timeout(super::served::PATIENCE, events.message()).await.expect("in time");
        let event = event.expect("the stream goes on").expect("an event");
        let kind = event.container_event_type();
        seen.push((event.container_id, kind));
    }
    assert!(seen.contains(&(container.clone(), cri::ContainerEventType::ContainerCreatedEvent)), "{seen:?}");

    // What is shown of them.
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox[..12].to_owned(), verbose: true };
    let answer = served.runtime.pod_sandbox_status(request).await.expect("it is there").into_inner();
    let status = answer.status.expect("a status");
    assert_eq!((status.id.as_str(), status.state()), (sandbox.as_str(), cri::PodSandboxState::SandboxReady));
    let metadata = status.metadata.expect("metadata");
    assert_eq!(
        (metadata.uid.as_str(), metadata.namespace.as_str(), metadata.attempt),
        ("uid-web", "default", 1)
    );
    assert_eq!((&status.labels, &status.annotations), (&label("app", "web"), &label("note", "kept")));
    assert!(status.network.expect("a network").ip.starts_with(&served.scratch.net()));
    let info: serde_json::Value = serde_json::from_str(&answer.info["info"]).expect("JSON");
    assert!(info["pid"].as_i64().is_some_and(|pid| pid > 1));
    let status = served.status(&container[..12]).await;
    assert!(running(&status) && status.started_at >= status.created_at && status.created_at > 0);
    assert_eq!(status.metadata.expect("metadata").attempt, 2);
    assert_eq!((&status.labels, &status.annotations), (&label("tier", "front"), &label("hash", "5")));
    assert!(status.log_path.ends_with("/logs-web/app.log"), "{}", status.log_path);

    // Lists and their filters.
    let all = containers(&mut served, cri::ContainerFilter::default()).await;
    assert_eq!(all, [container.clone()]);
    let state = |state: cri::ContainerState| cri::ContainerFilter {
        state: Some(cri::ContainerStateValue { state: state.into() }),
        ..cri::ContainerFilter::default()
    };
    assert_eq!(containers(&mut served, state(cri::ContainerState::ContainerRunning)).await.len(), 1);
    assert_eq!(containers(&mut served, state(cri::ContainerState::ContainerExited)).await.len(), 0);
    let filter = cri::ContainerFilter { pod_sandbox_id: other.clone(), ..Default::default() };
    assert_eq!(containers(&mut served, filter).await.len(), 0);
    let filter = cri::ContainerFilter { label_selector: label("tier", "back"), ..Default::default() };
    assert_eq!(containers(&mut served, filter).await.len(), 0);
    let filter = cri::PodSandboxFilter { label_selector: label("app", "db"), ..Default::default() };
    assert_eq!(sandboxes(&mut served, filter).await, [other.clone()]);
    let filter = cri::PodSandboxFilter { id: sandbox[..10].to_owned(), ..Default::default() };
    assert_eq!(sandboxes(&mut served, filter).await, [sandbox.clone()]);
    let mut stream = served
        .runtime
        .stream_pod_sandboxes(cri::StreamPodSandboxesRequest::default())
        .await
        .expect("it answers")
        .into_inner();
    let batch = stream.message().await.expect("the stream goes on").expect("a batch").pod_sandboxes;
    assert_eq!(batch.len(), 2);
    assert!(stream.message().await.expect("a good end").is_none());

    // Programs.
    let exec = |script: &str, timeout| cri::ExecSyncRequest {
        container_id: container.clone(),
        cmd: ["sh", "-c", script].map(str::to_owned).into(),
        timeout,
    };
    let said = served
        .runtime
        .exec_sync(exec("echo out; echo err >&2; exit 3", 20))
        .await
        .expect("it runs")
        .into_inner();
    assert_eq!((&said.stdout[..], &said.stderr[..], said.exit_code), (&b"out\n"[..], &b"err\n"[..], 3));
    let late = served.runtime.exec_sync(exec("sleep 100", 1)).await.expect_err("it is cut off");
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert!(late.message().contains("timeout 1s exceeded"), "{late}");

    // The log, before and after a rotation.
    let log = served.scratch.path().join("logs-web/app.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("both lines are logged", Duration::from_secs(20), || read().lines().count() == 2);
    assert!(read().contains(" stdout F one\n") && read().contains(" stderr F two\n"), "{}", read());
    std::fs::rename(&log, log.with_extension("1")).expect("rotate it");
    let request = cri::ReopenContainerLogRequest { container_id: container.clone() };
    served.runtime.reopen_container_log(request).await.expect("it is opened anew");
    assert!(log.exists());

    // Statistics.
    let request = cri::ContainerStatsRequest { container_id: container.clone() };
    let stats = served.runtime.container_stats(request).await.expect("it answers").into_inner().stats;
    let stats = stats.expect("statistics");
    assert!(stats.cpu.expect("cpu").usage_core_nano_seconds.expect("a number").value > 0);
    assert!(stats.memory.expect("memory").working_set_bytes.expect("a number").value > 0);
    let request = cri::ListPodSandboxStatsRequest::default();
    let stats = served.runtime.list_pod_sandbox_stats(request).await.expect("it answers").into_inner().stats;
    assert_eq!(stats.len(), 2);
    let processes: Vec<u64> = stats
        .iter()
        .filter_map(|stats| stats.linux.as_ref()?.process.as_ref()?.process_count.map(|count| count.value))
        .collect();
    assert!(processes.iter().any(|count| *count > 0), "{processes:?}");
    let request = cri::ListPodSandboxMetricsRequest {};
    let metrics = served.runtime.list_pod_sandbox_metrics(request).await.expect_err("a part would be worse");
    let request = cri::ListMetricDescriptorsRequest {};
    let described = served.runtime.list_metric_descriptors(request).await.expect_err("as above");
    assert_eq!([metrics.code(), described.code()], [Code::Unimplemented; 2]);

    // Another server finds them as they were.
    let before = served.status(&container).await;
    served.restart().await;
    assert_eq!(served.status(&container).await, before);
    assert_eq!(sandboxes(&mut served, cri::PodSandboxFilter::default()).await.len(), 2);

    // The end.
    let stop = cri::StopContainerRequest { container_id: container.clone(), timeout: 20 };
    served.runtime.stop_container(stop.clone()).await.expect("it stops");
    served.runtime.stop_container(stop).await.expect("it may be repeated");
    let status = served.status(&container).await;
    assert_eq!((status.state(), status.exit_code), (cri::ContainerState::ContainerExited, 7), "{status:?}");
    assert!(status.finished_at >= status.started_at && status.reason == "Error");
    let request = cri::StartContainerRequest { container_id: container.clone() };
    let again = served.runtime.start_container(request).await.expect_err("it has ended");
    assert_eq!(again.code(), Code::Unknown, "as with containerd");
    let remove = cri::RemoveContainerRequest { container_id: container.clone() };
    served.runtime.remove_container(remove.clone()).await.expect("it goes");
    served.runtime.remove_container(remove).await.expect("it may be repeated");
    for sandbox in [&sandbox, &other] {
        let stop = cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() };
        served.runtime.stop_pod_sandbox(stop.clone()).await.expect("it stops");
        served.runtime.stop_pod_sandbox(stop).await.expect("it may be repeated");
        let not_ready = cri::PodSandboxStateValue { state: cri::PodSandboxState::SandboxNotready.into() };
        let filter = cri::PodSandboxFilter { state: Some(not_ready), ..Default::default() };
        assert_eq!(sandboxes(&mut served, filter).await, [sandbox.clone()]);
        let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox.clone() };
        served.runtime.remove_pod_sandbox(remove.clone()).await.expect("it goes");
        served.runtime.remove_pod_sandbox(remove).await.expect("it may be repeated");
    }
    assert!(sandboxes(&mut served, cri::PodSandboxFilter::default()).await.is_empty());
}

#[tokio::test]
async fn a_sandbox_is_removed_with_what_runs_in_it() {
    let mut served = Served::start().await;
    let sandbox = served.sandbox("gone").await;
    let container = served.container("gone", &sandbox, &["sleep", "1000"], |_| {}).await;
    let request =
        cri::RunPodSandboxRequest { config: Some(served.sandbox_config("gone")), ..Default::default() };
    let twice = served.runtime.run_pod_sandbox(request).await.expect_err("its name is taken");
    assert_eq!(twice.code(), Code::AlreadyExists, "{twice}");
    let request = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox };
    served.runtime.remove_pod_sandbox(request).await.expect("it goes");
    let request = cri::ContainerStatusRequest { container_id: container, verbose: false };
    let status = served.runtime.container_status(request).await.expect_err("it went along");
    assert_eq!(status.code(), Code::NotFound);
}
