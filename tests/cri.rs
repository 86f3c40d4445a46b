//! The CRI client against a server that does what runtimes do on bad days.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use edge_agent::model::observed::ContainerStateKind;
use edge_agent::model::runtime_config::CgroupDriver;
use edge_agent::model::types::PodRef;
use edge_agent::runtime::cri::{CriConfig, CriRuntime};
use edge_agent::runtime::fake::{ExecScript, FakeImage, Program, RemoteImage};
use edge_agent::runtime::{
    ContainerConfig, ErrorKind, ExecOutput, ImageAuth, LinuxResources, Runtime, SandboxConfig, labels,
};
use tonic::Code;

use crate::support::fake_cri::{Events, FakeCri};

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn socket(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.sock", std::process::id()))
}

fn client_with(server: &FakeCri, request_timeout: Duration) -> CriRuntime {
    let config = CriConfig { endpoint: server.endpoint(), image_endpoint: String::new(), request_timeout };
    CriRuntime::connect(&config).expect("the endpoint is well formed")
}

fn client(server: &FakeCri) -> CriRuntime {
    client_with(server, PATIENCE)
}

fn sandbox_config(uid: &str) -> SandboxConfig {
    let pod = PodRef { namespace: "default".into(), name: "web".into(), uid: uid.into() };
    let labels = [(labels::POD_NAME, "web"), (labels::POD_NAMESPACE, "default"), (labels::POD_UID, uid)];
    SandboxConfig {
        pod,
        log_directory: "/var/log/pods/web".into(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..SandboxConfig::default()
    }
}

fn container_config(uid: &str) -> ContainerConfig {
    let mut labels = sandbox_config(uid).labels;
    labels.insert(labels::CONTAINER_NAME.into(), "app".into());
    ContainerConfig {
        name: "app".into(),
        image: "busybox".into(),
        user_specified_image: "busybox".into(),
        log_path: "app/0.log".into(),
        labels,
        annotations: [(labels::CONTAINER_HASH.to_owned(), "1f".to_owned())].into(),
        ..ContainerConfig::default()
    }
}

#[tokio::test]
async fn pod_lifecycle_over_cri_with_lists_filtered_by_pod() {
    let server = FakeCri::start(&socket("life"));
    server.add_image("busybox");
    server.script("app", Program::exits(Duration::from_millis(50), 3));
    let runtime = client(&server);
    assert_eq!(runtime.version().await.unwrap().name, "fake");
    assert_eq!(runtime.status().await.unwrap().network_ready, Ok(()));
    assert_eq!(runtime.cgroup_driver().await.unwrap(), Some(CgroupDriver::Cgroupfs));
    let config = sandbox_config("u1");
    let sandbox = runtime.run_sandbox(&config).await.unwrap();
    runtime.run_sandbox(&sandbox_config("u2")).await.unwrap();
    runtime.run_sandbox(&SandboxConfig::default()).await.unwrap();
    assert_eq!(runtime.run_sandbox(&config).await.unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(runtime.list_sandboxes(None).await.unwrap().len(), 2, "without labels it is not ours");
    assert_eq!(runtime.list_sandboxes(Some(&"u2".into())).await.unwrap().len(), 1);
    let container = runtime.create_container(&sandbox, &container_config("u1"), &config).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        tokio::time::timeout(PATIENCE, runtime.next_change()).await.unwrap().unwrap();
        let status = runtime.container_status(&container).await.unwrap();
        if status.state == ContainerStateKind::Exited || Instant::now() > deadline {
            break status;
        }
    };
    assert_eq!((status.exit_code, status.hash.as_str()), (3, "1f"));
    assert_eq!(status.sandbox, sandbox);
    assert_eq!(client(&server).container_status(&container).await.unwrap(), status, "also to a new client");
    assert_eq!(status.log_path, "/var/log/pods/web/app/0.log");
    let listed = runtime.list_containers(Some(&"u1".into())).await.unwrap();
    assert_eq!(
        (listed.len(), listed[0].sandbox.clone(), listed[0].pod.clone()),
        (1, sandbox.clone(), config.pod)
    );
    assert!(runtime.list_containers(Some(&"u2".into())).await.unwrap().is_empty());
    assert_eq!(runtime.sandbox_status(&sandbox).await.unwrap().ips.len(), 1);
    runtime.stop_sandbox(&sandbox).await.unwrap();
    assert!(!runtime.sandbox_status(&sandbox).await.unwrap().ready);
    runtime.remove_sandbox(&sandbox).await.unwrap();
    assert_eq!(runtime.sandbox_status(&sandbox).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn client_reconnects_after_a_runtime_restart_with_a_hint() {
    let server = FakeCri::start(&socket("restart"));
    server.close();
    let runtime = client(&server);
    let error = runtime.version().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("restart-") && error.message.contains("No such file"), "{error}");
    server.reopen();
    runtime.version().await.unwrap();
    all_hints_had(&runtime).await;
    server.close();
    // Let the connection notice; a call that is faster than that breaks with it, see below.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(runtime.list_sandboxes(None).await.unwrap_err().kind, ErrorKind::Unavailable);
    tokio::time::timeout(PATIENCE, runtime.next_change()).await.unwrap().expect("a hint of the loss");
    server.reopen();
    tokio::time::timeout(PATIENCE, runtime.next_change()).await.unwrap().expect("a hint of the return");
    runtime.version().await.unwrap();
}

#[tokio::test]
async fn calls_time_out_and_stops_get_their_grace_on_top() {
    let server = FakeCri::start(&socket("hang"));
    server.add_image("busybox");
    server.script("app", Program::stubborn());
    server.state().hang.insert("ListContainers");
    let runtime = client_with(&server, Duration::from_millis(300));
    let before = Instant::now();
    let error = runtime.list_containers(None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(before.elapsed() >= Duration::from_millis(300), "{:?}", before.elapsed());
    let config = sandbox_config("u1");
    let sandbox = runtime.run_sandbox(&config).await.unwrap();
    let container = runtime.create_container(&sandbox, &container_config("u1"), &config).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    let before = Instant::now();
    runtime.stop_container(&container, Duration::from_secs(1)).await.unwrap();
    assert!(before.elapsed() >= Duration::from_secs(1));
    assert_eq!(runtime.container_status(&container).await.unwrap().exit_code, 137);
}

#[tokio::test]
async fn broken_connection_leaves_a_calls_outcome_unknown() {
    let server = FakeCri::start(&socket("broken"));
    server.state().hang.insert("RunPodSandbox");
    let runtime = client(&server);
    let config = sandbox_config("u1");
    let (answer, ()) = tokio::join!(runtime.run_sandbox(&config), async {
        while !server.call_names().contains(&"RunPodSandbox") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.close();
    });
    assert_eq!(answer.unwrap_err().kind, ErrorKind::Timeout);
}

#[tokio::test]
async fn only_not_found_errors_count_as_stopped_or_removed() {
    let server = FakeCri::start(&socket("gone"));
    let runtime = client(&server);
    let calls = ["StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer"];
    for (code, forgiven) in [(Code::NotFound, true), (Code::Internal, false)] {
        for call in calls {
            server.state().fail.insert(call, (code, "no".into()));
        }
        assert_eq!(runtime.stop_sandbox(&"x".into()).await.is_ok(), forgiven);
        assert_eq!(runtime.remove_sandbox(&"x".into()).await.is_ok(), forgiven);
        assert_eq!(runtime.stop_container(&"x".into(), Duration::ZERO).await.is_ok(), forgiven);
        assert_eq!(runtime.remove_container(&"x".into()).await.is_ok(), forgiven);
    }
    assert_eq!(runtime.container_status(&"x".into()).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn hints_come_from_whichever_events_the_runtime_has() {
    for (events, asked) in [(Events::Cri, "GetContainerEvents"), (Events::Containerd, "Subscribe")] {
        let server = FakeCri::start(&socket(asked));
        server.state().events = events;
        let runtime = client(&server);
        all_hints_had(&runtime).await;
        server.change(|world, _| world.touch());
        tokio::time::timeout(PATIENCE, runtime.next_change()).await.unwrap().unwrap();
        assert_eq!(server.call_names().last(), Some(&asked));
    }
}

#[tokio::test]
async fn a_runtime_without_events_says_so_at_once_and_every_time() {
    let server = FakeCri::start(&socket("mute"));
    server.state().events = Events::None;
    server.state().world.cgroup_driver = None;
    let runtime = client(&server);
    for _ in 0..3 {
        let answer = tokio::time::timeout(PATIENCE, runtime.next_change()).await.unwrap();
        assert_eq!(answer.unwrap_err().kind, ErrorKind::Unimplemented);
    }
    assert_eq!(server.call_names(), ["GetContainerEvents", "Subscribe"], "asked once, not in a loop");
    assert_eq!(runtime.cgroup_driver().await.unwrap(), None);
}

#[tokio::test]
async fn pulls_carry_credentials_and_answer_with_the_reference_to_use() {
    let server = FakeCri::start(&socket("pull"));
    let auth = ImageAuth::of_user("me".into(), "secret".into());
    let remote = RemoteImage {
        image: FakeImage::named("closed"),
        pull_time: Duration::ZERO,
        auth: Some(auth.clone()),
    };
    server.change(|world, _| world.registry.insert("closed".into(), remote));
    let runtime = client(&server);
    let config = sandbox_config("u1");
    assert_eq!(runtime.image_status("closed").await.unwrap(), None);
    assert_eq!(runtime.pull_image("closed", None, &config).await.unwrap_err().kind, ErrorKind::Refused);
    let id = runtime.pull_image("closed", Some(&auth), &config).await.unwrap();
    assert_eq!(runtime.image_status("closed").await.unwrap().unwrap().id, id);
}

/// Until a stream has settled there are several hints, the last one some three seconds after it opened.
async fn all_hints_had(runtime: &CriRuntime) {
    while tokio::time::timeout(Duration::from_secs(4), runtime.next_change()).await.is_ok() {}
}

/// More calls than the runtime can serve in the time of one.
const CROWD: usize = 1_000;
/// What a call may take: far more than a machine that is busy with other tests holds one up...
const ONE_CALL: Duration = Duration::from_secs(5);
/// ...and far less than all calls take, one after another.
const SERVED_IN: Duration = Duration::from_millis(10);

#[tokio::test]
async fn queued_calls_do_not_time_out_on_a_busy_runtime() {
    let server = FakeCri::start(&socket("crowd"));
    server.state().busy = SERVED_IN;
    let runtime = Rc::new(client_with(&server, ONE_CALL));
    let before = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    let tasks = tokio::task::LocalSet::new();
    for number in 0..CROWD {
        let runtime = Rc::clone(&runtime);
        let uid = number.to_string();
        calls.spawn_local_on(async move { runtime.list_sandboxes(Some(&uid.as_str().into())).await }, &tasks);
    }
    let health = async {
        // Past the queue: whether the runtime is there is not to be waited for.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let asked = Instant::now();
        runtime.version().await.expect("an answer");
        asked.elapsed()
    };
    let answers = async { calls.join_all().await };
    let both = Box::pin(tasks.run_until(async { tokio::join!(answers, health) }));
    let (answers, health) = both.await;
    for answer in answers {
        assert_eq!(answer, Ok(Vec::new()));
    }
    assert!(before.elapsed() > ONE_CALL * 3 / 2, "no crowd: {:?}", before.elapsed());
    assert!(health < ONE_CALL, "{health:?}");
}

#[tokio::test]
async fn commands_run_in_containers_and_their_time_out_is_named() {
    let server = FakeCri::start(&socket("exec"));
    server.add_image("busybox");
    let runtime = client(&server);
    let config = sandbox_config("u1");
    let sandbox = runtime.run_sandbox(&config).await.unwrap();
    let container = runtime.create_container(&sandbox, &container_config("u1"), &config).await.unwrap();
    let command = ["check".to_owned(), "-v".to_owned()];
    let early = runtime.exec_sync(&container, &command, None).await.unwrap_err();
    assert_eq!(early.kind, ErrorKind::NotFound, "it does not run yet");
    runtime.start_container(&container).await.unwrap();
    let output = ExecOutput { exit_code: 3, output: b"said".to_vec() };
    let script = ExecScript { takes: Duration::from_millis(10), output: output.clone() };
    server.change(|world, _| world.set_exec("app", "check", script));
    assert_eq!(runtime.exec_sync(&container, &command, None).await, Ok(output.clone()));
    let script = ExecScript { takes: Duration::from_secs(60), output };
    server.change(|world, _| world.set_exec("app", "check", script));
    let before = Instant::now();
    let error = runtime.exec_sync(&container, &command, Some(Duration::from_millis(600))).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Timeout, "command \"check -v\" timed out"));
    assert!(before.elapsed() >= Duration::from_secs(1), "CRI counts seconds: {:?}", before.elapsed());
    let asked: Vec<i64> = server.state().commands.iter().map(|request| request.timeout).collect();
    assert_eq!(asked, [0, 0, 1]);
}

#[tokio::test]
async fn resources_of_a_running_container_change() {
    let server = FakeCri::start(&socket("update"));
    server.add_image("busybox");
    let runtime = client(&server);
    let config = sandbox_config("u1");
    let sandbox = runtime.run_sandbox(&config).await.unwrap();
    let container = runtime.create_container(&sandbox, &container_config("u1"), &config).await.unwrap();
    let resources = LinuxResources { cpu_shares: 512, cpuset_cpus: "0".into(), ..LinuxResources::default() };
    runtime.update_container_resources(&container, &resources).await.unwrap();
    let sent = server.state().updates[0].linux.clone().unwrap();
    assert_eq!((sent.cpu_shares, sent.cpuset_cpus.as_str(), sent.memory_limit_in_bytes), (512, "0", 0));
    let error = runtime.update_container_resources(&"gone".into(), &resources).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
}
