//! The simulator follows the rules of real runtimes.

use std::time::Duration;

use super::*;
use crate::model::observed::ContainerStateKind;
use crate::model::types::PodRef;
use crate::runtime::{IdRange, RuntimeHandler, labels};

const SECOND: Duration = Duration::from_secs(1);

fn pod() -> PodRef {
    PodRef { namespace: "default".into(), name: "web".into(), uid: "uid-1".into() }
}

fn sandbox_config(attempt: u32) -> SandboxConfig {
    let pod = pod();
    let labels = [
        (labels::POD_NAME, pod.name.clone()),
        (labels::POD_NAMESPACE, pod.namespace.clone()),
        (labels::POD_UID, pod.uid.to_string()),
    ];
    SandboxConfig {
        pod,
        attempt,
        log_directory: "/var/log/pods/web".into(),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        ..SandboxConfig::default()
    }
}

fn container_config(name: &str, attempt: u32) -> ContainerConfig {
    let mut labels = sandbox_config(0).labels;
    labels.insert(labels::CONTAINER_NAME.into(), name.into());
    ContainerConfig {
        name: name.into(),
        attempt,
        image: "busybox".into(),
        user_specified_image: "busybox".into(),
        log_path: format!("{name}/{attempt}.log"),
        labels,
        ..ContainerConfig::default()
    }
}

fn fake() -> FakeRuntime {
    let fake = FakeRuntime::new(Clock::manual(Timestamp::from_secs(1_000_000)), 1);
    fake.add_image("busybox");
    fake
}

async fn started(fake: &FakeRuntime, name: &str) -> (SandboxId, ContainerId) {
    let sandbox = fake.run_sandbox(&sandbox_config(0)).await.unwrap();
    let container =
        fake.create_container(&sandbox, &container_config(name, 0), &sandbox_config(0)).await.unwrap();
    fake.start_container(&container).await.unwrap();
    (sandbox, container)
}

#[tokio::test(start_paused = true)]
async fn names_stay_reserved_until_the_record_is_removed() {
    let fake = fake();
    let (sandbox, container) = started(&fake, "app").await;
    let again = fake.run_sandbox(&sandbox_config(0)).await.unwrap_err();
    assert_eq!(again.kind, ErrorKind::AlreadyExists);
    assert!(again.message.contains("is reserved for"), "{again}");
    let again = fake.create_container(&sandbox, &container_config("app", 0), &sandbox_config(0)).await;
    assert_eq!(again.unwrap_err().kind, ErrorKind::AlreadyExists);
    fake.stop_container(&container, Duration::ZERO).await.unwrap();
    fake.remove_container(&container).await.unwrap();
    fake.create_container(&sandbox, &container_config("app", 0), &sandbox_config(0)).await.unwrap();
    fake.remove_sandbox(&sandbox).await.unwrap();
    fake.remove_sandbox(&sandbox).await.unwrap();
    assert!(fake.list_containers(None).await.unwrap().is_empty());
    fake.run_sandbox(&sandbox_config(0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_script_ends_in_time_with_code_reason_and_a_hint() {
    let fake = fake();
    fake.script("app", Program::exits(5 * SECOND, 3));
    let (_, container) = started(&fake, "app").await;
    fake.next_change().await.unwrap();
    let before = tokio::time::Instant::now();
    fake.next_change().await.unwrap();
    assert!((5 * SECOND..6 * SECOND).contains(&before.elapsed()), "{:?}", before.elapsed());
    let status = fake.container_status(&container).await.unwrap();
    assert_eq!((status.state, status.exit_code), (ContainerStateKind::Exited, 3));
    assert_eq!(status.reason, "Error");
    assert_eq!(status.finished_at.saturating_since(status.started_at), 5 * SECOND);
    assert_eq!(status.log_path, "/var/log/pods/web/app/0.log");
}

#[tokio::test(start_paused = true)]
async fn stop_takes_the_grace_period_only_if_the_signal_is_ignored() {
    for (program, wanted, code) in
        [(Program::stubborn(), 30 * SECOND, 137), (Program::forever(), Duration::ZERO, 143)]
    {
        let fake = fake();
        fake.script("busybox", program);
        let (_, container) = started(&fake, "app").await;
        let before = tokio::time::Instant::now();
        fake.stop_container(&container, 30 * SECOND).await.unwrap();
        assert_eq!(before.elapsed().as_secs(), wanted.as_secs());
        assert_eq!(fake.container_status(&container).await.unwrap().exit_code, code);
        fake.stop_container(&"gone".into(), SECOND).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn failed_start_leaves_an_exited_container() {
    let fake = fake();
    fake.change(|world, _| {
        world.set_programs("app", vec![Program::fails_to_start("exec: not found"), Program::forever()]);
    });
    let sandbox = fake.run_sandbox(&sandbox_config(0)).await.unwrap();
    let first =
        fake.create_container(&sandbox, &container_config("app", 0), &sandbox_config(0)).await.unwrap();
    let error = fake.start_container(&first).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Refused, "exec: not found"));
    let status = fake.container_status(&first).await.unwrap();
    assert_eq!(
        (status.state, status.exit_code, status.reason.as_str()),
        (ContainerStateKind::Exited, 128, "StartError")
    );
    let second =
        fake.create_container(&sandbox, &container_config("app", 1), &sandbox_config(0)).await.unwrap();
    fake.start_container(&second).await.unwrap();
    assert_eq!(fake.container_status(&second).await.unwrap().state, ContainerStateKind::Running);
}

#[tokio::test(start_paused = true)]
async fn images_must_be_pulled_and_pulls_need_the_right_password() {
    let fake = fake();
    let auth = ImageAuth::of_user("me".into(), "secret".into());
    fake.add_remote_image("open", 2 * SECOND);
    fake.change(|world, _| {
        let image = FakeImage::named("closed");
        let remote = RemoteImage { image, pull_time: SECOND, auth: Some(auth.clone()) };
        world.registry.insert("closed".into(), remote);
    });
    let config = sandbox_config(0);
    assert_eq!(fake.image_status("open").await.unwrap(), None);
    let id = fake.pull_image("open", None, &config).await.unwrap();
    assert_eq!(fake.image_status("open").await.unwrap().unwrap().id, id);
    assert_eq!(fake.pull_image("closed", None, &config).await.unwrap_err().kind, ErrorKind::Refused);
    assert!(fake.pull_image("closed", Some(&auth), &config).await.is_ok());
    assert_eq!(fake.pull_image("nowhere", None, &config).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_dead_incarnation_gets_no_answers_and_the_world_lives_on() {
    for (after_effect, sandboxes) in [(false, 0), (true, 1)] {
        let fake = fake();
        fake.version().await.unwrap();
        fake.crash_at(CrashPoint { call: 2, after_effect });
        let config = sandbox_config(0);
        tokio::select! {
            biased;
            _ = fake.run_sandbox(&config) => panic!("the dead got an answer"),
            () = fake.crashed() => {}
        }
        let late = tokio::time::timeout(3600 * SECOND, fake.version()).await;
        assert!(late.is_err(), "the dead got an answer");
        let next = fake.reincarnate();
        assert_eq!(next.list_sandboxes(None).await.unwrap().len(), sandboxes);
        next.next_change().await.unwrap();
        assert_eq!(next.calls().last().unwrap().incarnation, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn faults_come_as_switched() {
    let fake = fake();
    fake.faults().unavailable = true;
    assert_eq!(fake.version().await.unwrap_err().kind, ErrorKind::Unavailable);
    fake.faults().unavailable = false;
    fake.faults().hang.insert("Status");
    let before = tokio::time::Instant::now();
    assert_eq!(fake.status().await.unwrap_err().kind, ErrorKind::Timeout);
    assert_eq!(before.elapsed(), 120 * SECOND);
    fake.version().await.unwrap();
    fake.set_hints(false);
    assert_eq!(fake.next_change().await.unwrap_err().kind, ErrorKind::Unimplemented);
    let outcomes: Vec<_> = fake.calls().into_iter().map(|record| record.outcome).collect();
    let (down, late) = (Some(Err(ErrorKind::Unavailable)), Some(Err(ErrorKind::Timeout)));
    assert_eq!(outcomes, [down, late, Some(Ok(()))]);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "two live containers app")]
async fn two_live_instances_of_a_container_panic() {
    let fake = fake();
    let (sandbox, _) = started(&fake, "app").await;
    let second =
        fake.create_container(&sandbox, &container_config("app", 1), &sandbox_config(0)).await.unwrap();
    fake.start_container(&second).await.unwrap();
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "two ready sandboxes")]
async fn containers_at_work_in_two_ready_sandboxes_of_a_pod_panic() {
    let fake = fake();
    started(&fake, "app").await;
    let second = fake.run_sandbox(&sandbox_config(1)).await.unwrap();
    let other =
        fake.create_container(&second, &container_config("other", 0), &sandbox_config(1)).await.unwrap();
    fake.start_container(&other).await.unwrap();
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the agent itself had stopped")]
async fn a_start_in_a_sandbox_the_agent_stopped_panics() {
    let fake = fake();
    let sandbox = fake.run_sandbox(&sandbox_config(0)).await.unwrap();
    let made =
        fake.create_container(&sandbox, &container_config("app", 0), &sandbox_config(0)).await.unwrap();
    fake.stop_sandbox(&sandbox).await.unwrap();
    let _ = fake.start_container(&made).await;
}

#[tokio::test(start_paused = true)]
async fn a_reboot_leaves_records_and_nothing_alive() {
    let fake = fake();
    let (sandbox, container) = started(&fake, "app").await;
    fake.change(World::reboot);
    assert!(!fake.sandbox_status(&sandbox).await.unwrap().ready);
    assert_eq!(fake.container_status(&container).await.unwrap().exit_code, 255);
}

#[tokio::test(start_paused = true)]
async fn abandoned_call_takes_effect_later_when_enabled() {
    for on in [false, true] {
        let fake = fake();
        fake.set_late_effects(on);
        *fake.faults() = FakeFaults { slow_rate: 1.0, slow_max: 10 * SECOND, ..FakeFaults::default() };
        let config = sandbox_config(0);
        let given_up = tokio::time::timeout(Duration::from_millis(1), fake.run_sandbox(&config)).await;
        assert!(given_up.is_err());
        assert!(fake.world().sandboxes.is_empty());
        let next = fake.reincarnate();
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(next.world().sandboxes.len(), usize::from(on));
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

fn script(fake: &FakeRuntime, takes: Duration, exit_code: i32) {
    let output = ExecOutput { exit_code, output: b"said".to_vec() };
    fake.change(|world, _| world.set_exec("app", "check", ExecScript { takes, output }));
}

#[tokio::test(start_paused = true)]
async fn exec_ends_as_scripted_times_out_or_dies_with_its_container() {
    let fake = fake();
    fake.script("app", Program::exits(60 * SECOND, 0));
    let (_, container) = started(&fake, "app").await;
    let exec = |command: &str, timeout| {
        let (fake, container, command) = (fake.clone(), container.clone(), words(command));
        async move { fake.exec_sync(&container, &command, timeout).await }
    };
    assert_eq!(exec("true", None).await, Ok(ExecOutput::default()), "what has no script is content at once");
    script(&fake, 5 * SECOND, 3);
    let before = tokio::time::Instant::now();
    assert_eq!(exec("check -v", Some(5 * SECOND)).await.unwrap().exit_code, 3);
    assert_eq!(before.elapsed().as_secs(), 5);
    let error = exec("check -v", Some(SECOND)).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Timeout, "command \"check -v\" timed out"));
    assert_eq!(before.elapsed().as_secs(), 6);
    script(&fake, 3600 * SECOND, 0);
    assert_eq!(exec("check", None).await.unwrap().exit_code, 137, "killed with its container");
    assert_eq!(before.elapsed().as_secs(), 60);
    assert_eq!(exec("check", None).await.unwrap_err().kind, ErrorKind::NotFound, "it does not run any more");
    let begun: Vec<String> = fake.world().commands.iter().map(|begun| begun.words.join(" ")).collect();
    assert_eq!(begun, ["true", "check -v", "check -v", "check"]);
}

#[tokio::test(start_paused = true)]
async fn abandoned_exec_starts_later_when_enabled() {
    for on in [false, true] {
        let fake = fake();
        let (_, container) = started(&fake, "app").await;
        fake.set_late_effects(on);
        *fake.faults() = FakeFaults { slow_rate: 1.0, slow_max: 10 * SECOND, ..FakeFaults::default() };
        let command = words("check");
        let given_up =
            tokio::time::timeout(Duration::from_millis(1), fake.exec_sync(&container, &command, None)).await;
        assert!(given_up.is_err());
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(fake.world().commands.len(), usize::from(on));
    }
}

#[tokio::test(start_paused = true)]
async fn resources_change_where_something_is_said() {
    let fake = fake();
    let (_, container) = started(&fake, "app").await;
    let first = LinuxResources { cpu_shares: 100, memory_limit_bytes: 5, ..LinuxResources::default() };
    fake.update_container_resources(&container, &first).await.unwrap();
    let then = LinuxResources { cpu_shares: 200, cpuset_cpus: "0".into(), ..LinuxResources::default() };
    fake.update_container_resources(&container, &then).await.unwrap();
    let both = LinuxResources { memory_limit_bytes: 5, ..then };
    assert_eq!(fake.world().containers[&container].config.resources, both);
    let gone = fake.update_container_resources(&"gone".into(), &both).await;
    assert_eq!(gone.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_second_start_is_refused() {
    let fake = fake();
    let (_, container) = started(&fake, "app").await;
    let error = fake.start_container(&container).await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Refused, "container is in Running state"));
}

#[tokio::test(start_paused = true)]
async fn a_target_runs_in_the_same_sandbox() {
    let fake = fake();
    fake.script("app", Program::exits(SECOND, 0));
    let (sandbox, target) = started(&fake, "app").await;
    let other = fake.run_sandbox(&SandboxConfig::default()).await.unwrap();
    let debugger = |attempt, target: &ContainerId| {
        let mut config = container_config("debugger", attempt);
        config.security.target = Some(target.clone());
        config
    };
    let create = |sandbox: &SandboxId, config: ContainerConfig| {
        let (fake, sandbox) = (fake.clone(), sandbox.clone());
        async move { fake.create_container(&sandbox, &config, &sandbox_config(0)).await }
    };
    create(&sandbox, debugger(0, &target)).await.unwrap();
    let gone = create(&sandbox, debugger(1, &"gone".into())).await.unwrap_err();
    assert_eq!(gone.message, "invalid target container: container \"gone\" does not exist");
    let elsewhere = create(&other, debugger(1, &target)).await.unwrap_err();
    assert!(elsewhere.message.contains("does not belong to sandbox"), "{elsewhere}");
    tokio::time::sleep(2 * SECOND).await;
    let ended = create(&sandbox, debugger(1, &target)).await.unwrap_err();
    assert!(ended.message.ends_with("is not running - in state Exited"), "{ended}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_must_be_there() {
    let fake = fake();
    let config = SandboxConfig { runtime_handler: "kata".into(), ..sandbox_config(0) };
    let error = fake.run_sandbox(&config).await.unwrap_err();
    assert_eq!(error.message, "failed to get sandbox runtime: no runtime for \"kata\" is configured");
    let kata = RuntimeHandler { name: "kata".into(), ..RuntimeHandler::default() };
    fake.change(|world, _| world.status.handlers = vec![kata]);
    fake.run_sandbox(&config).await.unwrap();
}

fn with_users(fake: &FakeRuntime, uid: &str, host: u32) -> SandboxConfig {
    let able = RuntimeHandler { user_namespaces: true, ..RuntimeHandler::default() };
    fake.change(|world, _| world.status.handlers = vec![able]);
    let users = IdRange { host, length: 65_536 };
    let pod = PodRef { uid: uid.into(), ..pod() };
    SandboxConfig { pod, user_namespace: Some(users), ..sandbox_config(0) }
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "share users")]
async fn two_pods_with_the_same_users_panic() {
    let fake = fake();
    fake.run_sandbox(&with_users(&fake, "a", 65_536)).await.unwrap();
    fake.run_sandbox(&with_users(&fake, "b", 131_072)).await.unwrap();
    let _ = fake.run_sandbox(&with_users(&fake, "c", 65_536)).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "has other users than its sandbox")]
async fn a_container_with_other_users_than_its_sandbox_panics() {
    let fake = fake();
    let config = with_users(&fake, "uid-1", 65_536);
    let sandbox = fake.run_sandbox(&config).await.unwrap();
    let _ = fake.create_container(&sandbox, &container_config("app", 0), &config).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "from a handler that cannot")]
async fn users_of_its_own_at_an_old_runtime_panic() {
    let fake = fake();
    let config = with_users(&fake, "a", 65_536);
    fake.change(|world, _| world.status.handlers.clear());
    let _ = fake.run_sandbox(&config).await;
}
