//! The CRI client on a real runtime: that the contract is what containerd 1.6 and newer make of it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use edge_agent::model::observed::{ContainerStateKind, ObservedContainer};
use edge_agent::model::types::{ContainerId, PodRef};
use edge_agent::runtime::cri::{CriConfig, CriRuntime};
use edge_agent::runtime::{
    ContainerConfig, ContainerSecurity, ErrorKind, Mount, NamespaceMode, NamespaceOptions, Runtime,
    SandboxConfig, SeccompChoice, labels,
};
use tokio::time::timeout;

use crate::support::agent::PATIENCE;
use crate::support::containerd::Containerd;
use crate::support::image::BUSYBOX;

fn client(containerd: &Containerd) -> CriRuntime {
    let config = CriConfig {
        endpoint: containerd.endpoint(),
        image_endpoint: String::new(),
        request_timeout: PATIENCE,
    };
    CriRuntime::connect(&config).expect("the endpoint is well formed")
}

fn sandbox_config(directory: &Path) -> SandboxConfig {
    let uid = format!("uid{}", std::process::id());
    let pod = PodRef { namespace: "default".into(), name: "web".into(), uid: uid.as_str().into() };
    let labels = [(labels::POD_NAME, "web"), (labels::POD_NAMESPACE, "default"), (labels::POD_UID, &uid)];
    SandboxConfig {
        pod,
        hostname: "web".into(),
        log_directory: directory.join("logs").to_string_lossy().into_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        annotations: [("kubernetes.io/config.source".to_owned(), "file".to_owned())].into(),
        cgroup_parent: format!("/{}", directory.file_name().expect("it has a name").display()),
        namespaces: NamespaceOptions { pid: NamespaceMode::Container, ..NamespaceOptions::default() },
        ..SandboxConfig::default()
    }
}

fn container_config(
    sandbox: &SandboxConfig,
    directory: &Path,
    image: &str,
    command: &str,
) -> ContainerConfig {
    let mut labels = sandbox.labels.clone();
    labels.insert(labels::CONTAINER_NAME.to_owned(), "app".to_owned());
    ContainerConfig {
        name: "app".into(),
        attempt: 2,
        image: image.to_owned(),
        user_specified_image: BUSYBOX.into(),
        command: ["sh", "-c", command].map(str::to_owned).into(),
        envs: vec![("GREETING".to_owned(), "good day".to_owned())],
        mounts: vec![Mount {
            container_path: "/out".into(),
            host_path: directory.to_string_lossy().into_owned(),
            ..Mount::default()
        }],
        log_path: "app/2.log".into(),
        labels,
        annotations: [(labels::CONTAINER_HASH.to_owned(), "1f".to_owned())].into(),
        security: ContainerSecurity {
            namespaces: sandbox.namespaces,
            seccomp: SeccompChoice::RuntimeDefault,
            ..ContainerSecurity::default()
        },
        ..ContainerConfig::default()
    }
}

/// Looks at a container after every hint, until its state is this one.
async fn reaches(runtime: &CriRuntime, id: &ContainerId, state: ContainerStateKind) -> ObservedContainer {
    let look = async {
        loop {
            let status = runtime.container_status(id).await.expect("the runtime answers");
            if status.state == state {
                return status;
            }
            runtime.next_change().await.expect("containerd has events");
        }
    };
    timeout(PATIENCE, look).await.expect("hints come until the state is reached")
}

#[tokio::test]
async fn pod_lifecycle_on_containerd_with_change_hints() {
    let containerd = Containerd::start();
    let runtime = client(&containerd);
    assert_eq!(runtime.version().await.unwrap().name, "containerd");
    let out = containerd.scratch().dir("out");
    let config = sandbox_config(containerd.scratch().path());
    fs::create_dir_all(Path::new(&config.log_directory).join("app")).unwrap();

    let image = runtime.image_status(BUSYBOX).await.unwrap().expect("the fixture has it");
    assert_eq!(runtime.image_status("localhost/agent/none:1").await.unwrap(), None);
    let sandbox = runtime.run_sandbox(&config).await.unwrap();
    let again = runtime.run_sandbox(&config).await.unwrap_err();
    assert_eq!(again.kind, ErrorKind::AlreadyExists, "{again}");
    let status = runtime.sandbox_status(&sandbox).await.unwrap();
    assert!(status.ready && !status.host_network, "{status:?}");
    let net = format!("{}.", containerd.scratch().net());
    assert!(status.ips.len() == 1 && status.ips[0].starts_with(&net), "{status:?}");

    let command =
        "echo $GREETING; echo $GREETING > /out/said; until [ -e /out/end ]; do sleep 0.05; done; exit 3";
    let container = container_config(&config, &out, &image.id, command);
    let id = runtime.create_container(&sandbox, &container, &config).await.unwrap();
    let created = runtime.container_status(&id).await.unwrap();
    assert_eq!(
        (created.state, created.attempt, created.hash.as_str()),
        (ContainerStateKind::Created, 2, "1f")
    );
    runtime.start_container(&id).await.unwrap();
    let running = reaches(&runtime, &id, ContainerStateKind::Running).await;
    assert!(!running.started_at.is_zero() && running.finished_at.is_zero(), "{running:?}");
    assert_eq!(running.pod, config.pod);
    assert_eq!(running.sandbox, sandbox);
    fs::write(out.join("end"), "").unwrap();
    let exited = reaches(&runtime, &id, ContainerStateKind::Exited).await;
    assert_eq!((exited.exit_code, exited.reason.as_str()), (3, "Error"), "{exited:?}");
    assert!(exited.finished_at >= exited.started_at, "{exited:?}");
    assert_eq!(fs::read_to_string(out.join("said")).unwrap(), "good day\n");
    let log = fs::read_to_string(&exited.log_path).unwrap();
    assert!(log.ends_with(" stdout F good day\n"), "{log}");

    let listed = runtime.list_containers(Some(&config.pod.uid)).await.unwrap();
    assert_eq!(listed.iter().map(|container| &container.id).collect::<Vec<_>>(), [&id]);
    runtime.remove_container(&id).await.unwrap();
    runtime.remove_container(&id).await.unwrap();
    assert_eq!(runtime.container_status(&id).await.unwrap_err().kind, ErrorKind::NotFound);
    runtime.stop_sandbox(&sandbox).await.unwrap();
    assert!(!runtime.sandbox_status(&sandbox).await.unwrap().ready);
    runtime.remove_sandbox(&sandbox).await.unwrap();
    runtime.remove_sandbox(&sandbox).await.unwrap();
    assert!(containerd.instances().is_empty(), "{:?}", containerd.instances());
}

#[tokio::test]
async fn stop_waits_for_sigterm_and_outside_kills_are_noticed() {
    let containerd = Containerd::start();
    let runtime = client(&containerd);
    let out = containerd.scratch().dir("out");
    let config = sandbox_config(containerd.scratch().path());
    let image = runtime.image_status(BUSYBOX).await.unwrap().expect("the fixture has it");
    let sandbox = runtime.run_sandbox(&config).await.unwrap();

    let polite = "trap 'echo ended > /out/ended; exit 0' TERM; echo > /out/up; while :; do sleep 0.05; done";
    let container = container_config(&config, &out, &image.id, polite);
    let id = runtime.create_container(&sandbox, &container, &config).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let up = async {
        while !out.join("up").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, up).await.expect("the container comes up");
    runtime.stop_container(&id, Duration::from_secs(20)).await.unwrap();
    let stopped = runtime.container_status(&id).await.unwrap();
    assert_eq!((stopped.state, stopped.exit_code), (ContainerStateKind::Exited, 0), "{stopped:?}");
    assert_eq!(fs::read_to_string(out.join("ended")).unwrap(), "ended\n");

    let container =
        ContainerConfig { attempt: 3, ..container_config(&config, &out, &image.id, "sleep 1000") };
    let id = runtime.create_container(&sandbox, &container, &config).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    reaches(&runtime, &id, ContainerStateKind::Running).await;
    super::restarts::kill_instance(&containerd.running("web")[0]);
    let killed = reaches(&runtime, &id, ContainerStateKind::Exited).await;
    assert_eq!(killed.exit_code, 137, "{killed:?}");
}
