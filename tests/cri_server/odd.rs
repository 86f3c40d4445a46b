//! Requests that are hostile, too large or odd: each is answered, done or refused by name, and leaves nothing behind.

use std::process::Command;
use std::time::Duration;

use edge_agent::platform::proto::runtime as cri;
use serde_json::Value;
use tonic::{Code, Status};

use super::served::{PATIENCE, Served};
use crate::support::image;

const MEGABYTE: usize = 1 << 20;

/// Makes a container in the sandbox and says how that failed, or its id.
async fn create(
    served: &mut Served,
    sandbox: &str,
    change: impl FnOnce(&mut cri::ContainerConfig),
) -> Result<String, Status> {
    let mut config = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "odd".to_owned(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: image::BUSYBOX.to_owned(), ..cri::ImageSpec::default() }),
        command: ["sleep", "1000"].map(str::to_owned).into(),
        ..cri::ContainerConfig::default()
    };
    change(&mut config);
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: sandbox.to_owned(),
        config: Some(config),
        sandbox_config: None,
    };
    served.runtime.create_container(request).await.map(|answer| answer.into_inner().container_id)
}

async fn remove(served: &mut Served, id: String) {
    let request = cri::RemoveContainerRequest { container_id: id };
    served.runtime.remove_container(request).await.expect("it goes");
}

async fn run(served: &mut Served, config: cri::PodSandboxConfig) -> Result<String, Status> {
    let request = cri::RunPodSandboxRequest { config: Some(config), ..Default::default() };
    served.runtime.run_pod_sandbox(request).await.map(|answer| answer.into_inner().pod_sandbox_id)
}

fn sandbox_dirs(served: &Served) -> usize {
    std::fs::read_dir(served.scratch.path().join("state/sandboxes")).expect("it is there").count()
}

#[tokio::test]
async fn what_is_too_long_is_refused_and_leaves_nothing() {
    let mut served = Served::start().await;
    let long = "x".repeat(MEGABYTE);
    let mut config = served.sandbox_config("big");
    config.annotations.insert("note".to_owned(), "x".repeat(5 * MEGABYTE));
    let status = run(&mut served, config).await.expect_err("no record can hold it");
    assert!(status.message().contains("annotations"), "{status}");
    let fields: [fn(&mut cri::PodSandboxMetadata) -> &mut String; 3] =
        [|of| &mut of.name, |of| &mut of.namespace, |of| &mut of.uid];
    for field in fields {
        let mut config = served.sandbox_config("big");
        long.clone_into(field(config.metadata.as_mut().expect("it has some")));
        let status = run(&mut served, config).await.expect_err("no name is so long");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains("config.metadata."), "{status}");
    }
    assert_eq!(sandbox_dirs(&served), 0);

    let sandbox = served.sandbox("web").await;
    let name = long.clone();
    let named =
        create(&mut served, &sandbox, |config| config.metadata.as_mut().expect("it has some").name = name);
    assert_eq!(named.await.expect_err("no name is so long").code(), Code::InvalidArgument);
    let words = long.clone();
    let many = create(&mut served, &sandbox, |config| config.command = vec![words; 5]).await;
    assert!(many.expect_err("no record can hold it").message().contains("record"));
    // The words of an error are cut, or no client could read them.
    for id in [long.as_str(), "../../../etc", "..", "/", "%00", ""] {
        let request = cri::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let status = served.runtime.container_status(request).await.expect_err("there is none");
        assert_eq!(status.code(), Code::NotFound, "{} bytes", id.len());
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        served.runtime.remove_pod_sandbox(request).await.expect("fine on what is not there");
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        served.runtime.stop_pod_sandbox(request).await.expect("fine on what is not there");
    }
    let listed =
        served.runtime.list_containers(cri::ListContainersRequest::default()).await.expect("it answers");
    assert!(listed.into_inner().containers.is_empty());
    assert_eq!(sandbox_dirs(&served), 1, "the one that runs");
}

#[tokio::test]
async fn odd_containers_are_as_with_containerd_or_refused_by_field() {
    let mut served = Served::start().await;
    let sandbox = served.sandbox("web").await;
    let mount = |host: &str, container: &str| cri::Mount {
        host_path: host.to_owned(),
        container_path: container.to_owned(),
        ..cri::Mount::default()
    };
    let spec = cri::ImageSpec { image: image::BUSYBOX.to_owned(), ..Default::default() };
    let of_image = cri::Mount { image: Some(spec), ..mount("", "/image") };
    for (field, wrong) in [
        ("config.mounts.container_path", mount("/tmp", "relative")),
        ("config.mounts.readonly", of_image.clone()),
    ] {
        let refused = create(&mut served, &sandbox, |config| config.mounts = vec![wrong]).await;
        let status = refused.expect_err("it is wrong");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(field), "{status}");
    }
    let refused = create(&mut served, &sandbox, |config| config.log_path = "../../log".to_owned()).await;
    assert!(refused.expect_err("it leads out").message().starts_with("config.log_path"));
    let refused = create(&mut served, &sandbox, |config| config.working_dir = "tmp".to_owned()).await;
    assert!(refused.expect_err("it is relative").message().contains("working_dir"));
    let shared = |config: &mut cri::ContainerConfig, pid: cri::NamespaceMode| {
        let options = cri::NamespaceOption { pid: pid.into(), ..Default::default() };
        let security =
            cri::LinuxContainerSecurityContext { namespace_options: Some(options), ..Default::default() };
        config.linux =
            Some(cri::LinuxContainerConfig { security_context: Some(security), ..Default::default() });
    };
    let mut alone = served.sandbox_config("alone");
    let options = cri::NamespaceOption { pid: cri::NamespaceMode::Container.into(), ..Default::default() };
    let security =
        cri::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
    alone.linux.as_mut().expect("it has some").security_context = Some(security);
    let alone = run(&mut served, alone).await.expect("it runs");
    // They share what containerd's pause container would have.
    let mut seen = Vec::new();
    for name in ["first", "second"] {
        let made = create(&mut served, &alone, |config| {
            config.metadata = Some(cri::ContainerMetadata { name: name.to_owned(), attempt: 0 });
            shared(config, cri::NamespaceMode::Pod);
            config.command = vec!["sleep".to_owned(), "1000".to_owned()];
        });
        let id = made.await.expect("it is made");
        let request = cri::StartContainerRequest { container_id: id.clone() };
        served.runtime.start_container(request).await.expect("it starts");
        let request = cri::ExecSyncRequest {
            container_id: id,
            cmd: vec![
                "sh".to_owned(),
                "-c".to_owned(),
                "readlink /proc/self/ns/pid; cat /proc/1/comm".to_owned(),
            ],
            timeout: 10,
        };
        let answer = served.runtime.exec_sync(request).await.expect("it runs").into_inner();
        seen.push(String::from_utf8_lossy(&answer.stdout).into_owned());
    }
    assert!(seen[0] == seen[1] && seen[0].ends_with("\npod-init\n"), "{seen:?}");

    let tiny = create(&mut served, &sandbox, |config| {
        config.metadata = Some(cri::ContainerMetadata { name: "tiny".to_owned(), attempt: 0 });
        let resources = cri::LinuxContainerResources { memory_limit_in_bytes: 100_000, ..Default::default() };
        config.linux = Some(cri::LinuxContainerConfig { resources: Some(resources), ..Default::default() });
    });
    let request = cri::StartContainerRequest { container_id: tiny.await.expect("it is made") };
    let refused = served.runtime.start_container(request).await;
    let status = refused.expect_err("nothing fits into so little");
    assert!(status.message().contains("memory_limit_in_bytes is too small"), "{status}");

    // What containerd makes is made: a path of the node, a working directory by a way back.
    let missing = served.scratch.path().join("made/for/it");
    let writes = mount(&missing.display().to_string(), "/made");
    let readable = cri::Mount { readonly: true, ..of_image };
    let script = "pwd > /made/where; ls /image/bin/sh >> /made/where; sleep 1000";
    let id = create(&mut served, &sandbox, |config| {
        config.mounts = vec![writes, readable];
        config.command = ["sh", "-c", script].map(str::to_owned).into();
        config.working_dir = "/bin/../made".to_owned();
        shared(config, cri::NamespaceMode::Container);
        let linux = config.linux.as_mut().expect("set above");
        let limits = cri::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() };
        linux.resources = Some(limits);
    });
    let id = id.await.expect("it is made");
    let request = cri::StartContainerRequest { container_id: id.clone() };
    served.runtime.start_container(request).await.expect("it starts");
    let read = || std::fs::read_to_string(missing.join("where")).unwrap_or_default();
    crate::support::wait::wait_until("it has looked", PATIENCE, || read().lines().count() == 2);
    assert_eq!(read(), "/made\n/image/bin/sh\n");
    let resources = served.status(&id).await.resources.expect("resources").linux.expect("of Linux");
    assert_eq!(resources.memory_swap_limit_in_bytes, 64 << 20, "what counts where nothing is asked for");

    // More than a message holds is cut at upstream's cap.
    let zeros = "head -c 20000000 /dev/zero";
    let request = cri::ExecSyncRequest {
        container_id: id.clone(),
        cmd: ["sh", "-c", zeros].map(str::to_owned).into(),
        timeout: 120,
    };
    let said = served.runtime.exec_sync(request).await.expect("it is answered").into_inner();
    assert_eq!((said.stdout.len(), said.exit_code), ((16 << 20) - 1024, 0));
    remove(&mut served, id).await;

    let unknown = create(&mut served, &sandbox, |config| {
        let add_capabilities = vec!["NO_SUCH_THING".to_owned()];
        let capabilities = Some(cri::Capability { add_capabilities, ..Default::default() });
        let security = cri::LinuxContainerSecurityContext { capabilities, ..Default::default() };
        let linux = cri::LinuxContainerConfig { security_context: Some(security), ..Default::default() };
        config.linux = Some(linux);
    });
    let id = unknown.await.expect("it is made");
    let request = cri::StartContainerRequest { container_id: id.clone() };
    let status = served.runtime.start_container(request).await.expect_err("there is no such thing");
    assert!(status.message().contains("process.capabilities: CAP_NO_SUCH_THING"), "{status}");
    remove(&mut served, id).await;
}

#[tokio::test]
async fn a_sandboxs_events_carry_its_status_to_the_end() {
    let mut served = Served::start().await;
    let mut events =
        served.runtime.get_container_events(cri::GetEventsRequest {}).await.expect("it answers").into_inner();
    let sandbox = served.sandbox("web").await;
    let stop = cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() };
    served.runtime.stop_pod_sandbox(stop).await.expect("it stops");
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
    let status = served.runtime.pod_sandbox_status(request).await.expect("it is there").into_inner().status;
    assert_eq!(status.expect("a status").network.expect("a network").ip, "", "it was given back");
    let remove = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox.clone() };
    served.runtime.remove_pod_sandbox(remove).await.expect("it goes");
    let mut seen = Vec::new();
    while seen.last() != Some(&cri::ContainerEventType::ContainerDeletedEvent) {
        let event = tokio::time::timeout(PATIENCE, events.message()).await.expect("in time");
        let event = event.expect("the stream goes on").expect("an event");
        assert_eq!(event.container_id, sandbox);
        let status = event.pod_sandbox_status.as_ref().map(|status| status.id.as_str());
        assert_eq!(status, Some(sandbox.as_str()), "{event:?}");
        seen.push(event.container_event_type());
    }
    let expected = [
        cri::ContainerEventType::ContainerCreatedEvent,
        cri::ContainerEventType::ContainerStartedEvent,
        cri::ContainerEventType::ContainerStoppedEvent,
        cri::ContainerEventType::ContainerDeletedEvent,
    ];
    assert_eq!(seen, expected);
}

/// The tests' busybox with volumes: one that is in no layer, one that is.
fn with_volumes(served: &Served) {
    let parts = served.scratch.dir("parts");
    let archive = image::archives().into_iter().find(|path| path.to_string_lossy().contains("busybox"));
    let tar = |arguments: &[&str]| {
        let ended = Command::new("tar").args(arguments).status().expect("start tar");
        assert!(ended.success(), "tar {arguments:?}");
    };
    let directory = parts.display().to_string();
    tar(&["-xf", &archive.expect("there is one").display().to_string(), "-C", &directory]);
    let json = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(parts.join(name)).expect("it is there")).expect("it is JSON")
    };
    let mut listed = json("manifest.json");
    let name = listed[0]["Config"].as_str().expect("a name").to_owned();
    let mut config = json(&name);
    config["config"]["Volumes"] = serde_json::json!({"/fresh/deep": {}, "/etc": {}});
    std::fs::write(parts.join(&name), config.to_string()).expect("write it");
    listed[0]["RepoTags"] = serde_json::json!(["edge.test/volumes:1"]);
    std::fs::write(parts.join("manifest.json"), listed.to_string()).expect("write it");
    let target = served.scratch.path().join("images/volumes.tar");
    let young = target.with_extension("tmp");
    tar(&["-cf", &young.display().to_string(), "-C", &directory, "."]);
    std::fs::rename(young, target).expect("offer it");
}

#[tokio::test]
async fn an_images_volume_that_is_in_no_layer_is_made() {
    let mut served = Served::start().await;
    with_volumes(&served);
    let spec = || Some(cri::ImageSpec { image: "edge.test/volumes:1".to_owned(), ..Default::default() });
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let request = cri::ImageStatusRequest { image: spec(), verbose: false };
        let answer = served.images.image_status(request).await.expect("it answers").into_inner();
        if answer.image.is_some() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it is not imported");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let sandbox = served.sandbox("web").await;
    for readonly in [false, true] {
        let script = "echo x > /fresh/deep/file && ls /etc/passwd && sleep 1000";
        let id = create(&mut served, &sandbox, |config| {
            config.image = spec();
            config.command = ["sh", "-c", script].map(str::to_owned).into();
            let security =
                cri::LinuxContainerSecurityContext { readonly_rootfs: readonly, ..Default::default() };
            let linux = cri::LinuxContainerConfig { security_context: Some(security), ..Default::default() };
            config.linux = Some(linux);
        });
        let id = id.await.expect("it is made");
        let request = cri::StartContainerRequest { container_id: id.clone() };
        served.runtime.start_container(request).await.expect("it starts");
        let request = cri::ExecSyncRequest {
            container_id: id.clone(),
            cmd: ["sh", "-c", "until cat /fresh/deep/file; do sleep 0.1; done"].map(str::to_owned).into(),
            timeout: 60,
        };
        let said = served.runtime.exec_sync(request).await.expect("it is answered").into_inner();
        assert_eq!(said.stdout, b"x\n", "read-only {readonly}");
        remove(&mut served, id).await;
    }
}

/// Clients that start, stop and remove the same things at once: each call is answered, and nothing is left.
#[tokio::test]
async fn calls_about_the_same_container_at_once_leave_nothing() {
    let mut served = Served::start().await;
    for round in 0..8 {
        let sandbox = served.sandbox(&format!("race-{round}")).await;
        let id = create(&mut served, &sandbox, |_| {}).await.expect("it is made");
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..12 {
            let mut client = served.another_client().await;
            let (id, sandbox) = (id.clone(), sandbox.clone());
            calls.spawn(async move {
                let answer = match (number + round) % 6 {
                    0 => client
                        .start_container(cri::StartContainerRequest { container_id: id })
                        .await
                        .map(drop),
                    1 => client
                        .remove_container(cri::RemoveContainerRequest { container_id: id })
                        .await
                        .map(drop),
                    2 => client
                        .stop_container(cri::StopContainerRequest { container_id: id, timeout: 0 })
                        .await
                        .map(drop),
                    3 => client
                        .exec_sync(cri::ExecSyncRequest {
                            container_id: id,
                            cmd: vec!["true".to_owned()],
                            timeout: 5,
                        })
                        .await
                        .map(drop),
                    4 => client
                        .remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })
                        .await
                        .map(drop),
                    _ => client
                        .stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox })
                        .await
                        .map(drop),
                };
                answer.err()
            });
        }
        while let Some(answer) = tokio::time::timeout(PATIENCE, calls.join_next()).await.expect("in time") {
            if let Some(status) = answer.expect("no panic") {
                assert_ne!(status.code(), Code::Internal, "{status}");
            }
        }
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox };
        served.runtime.remove_pod_sandbox(request).await.expect("what is left goes");
    }
    assert_eq!(sandbox_dirs(&served), 0);
    let listed = served.runtime.list_containers(cri::ListContainersRequest::default()).await;
    assert_eq!(listed.expect("it answers").into_inner().containers, []);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the kernel's list");
    let root = served.scratch.path().display().to_string();
    let left: Vec<&str> = mounts.lines().filter(|line| line.contains(&root)).collect();
    assert!(left.iter().all(|line| !line.contains("/sandboxes/")), "{left:#?}");
}
