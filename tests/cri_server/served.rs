//! The program serving CRI, with everything of one test's own, and a client's requests.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use edge_agent::platform::grpc::Channel;
use edge_agent::platform::proto::runtime as cri;
use edge_agent::platform::proto::runtime::image_service_client::ImageServiceClient;
use edge_agent::platform::proto::runtime::runtime_service_client::RuntimeServiceClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::agent::{binary, cgroup_root};
use crate::support::containerd::tail;
use crate::support::image;
use crate::support::scratch::Scratch;

/// How long anything may take on a machine that is busy compiling.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server and a client of it.
pub struct Served {
    pub runtime: RuntimeServiceClient<Channel>,
    pub images: ImageServiceClient<Channel>,
    child: Child,
    pub scratch: Scratch,
}

fn spawn(scratch: &Scratch) -> Child {
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let log = std::fs::OpenOptions::new().create(true).append(true).open(path("log")).expect("open the log");
    Command::new(binary())
        .arg("cri")
        .arg(format!("--listen=unix://{}", path("cri.sock")))
        .arg(format!("--root-dir={}", path("root")))
        .arg(format!("--runtime-state-dir={}", path("state")))
        .arg(format!("--images-dir={}", path("images")))
        .arg(format!("--cni-conf-dir={}", path("no-cni")))
        .arg(format!("--cni-bin-dir={}", path("cni-bin")))
        .arg(format!("--bridge-name={}", scratch.bridge()))
        .arg(format!("--pod-cidr={}.0/24", scratch.net()))
        .arg("-v=4")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("start the agent")
}

impl Served {
    /// Starts one with the tests' images.
    pub async fn start() -> Self {
        let scratch = Scratch::new();
        let images = scratch.dir("images");
        for archive in image::archives() {
            let name = archive.file_name().expect("archives are files");
            std::os::unix::fs::symlink(&archive, images.join(name)).expect("offer an image");
        }
        let child = spawn(&scratch);
        let channel = connect(&scratch).await;
        Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(16 << 20),
            images: ImageServiceClient::new(channel),
            child,
            scratch,
        }
    }

    /// Somebody else with a connection of its own.
    pub async fn another_client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(connect(&self.scratch).await)
    }

    /// Ends the server and starts another one. Pods stay.
    pub async fn restart(&mut self) {
        self.end();
        self.child = spawn(&self.scratch);
        let channel = connect(&self.scratch).await;
        self.runtime = RuntimeServiceClient::new(channel.clone());
        self.images = ImageServiceClient::new(channel);
    }

    fn end(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("it runs");
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success(), "{ended}: {}", tail(&self.scratch.path().join("log")));
        assert!(!self.scratch.path().join("cri.sock").exists(), "the socket goes with it");
    }

    /// A request for a sandbox.
    pub fn sandbox_config(&self, name: &str) -> cri::PodSandboxConfig {
        let logs = self.scratch.dir(&format!("logs-{name}"));
        cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
                attempt: 1,
            }),
            hostname: name.to_owned(),
            log_directory: logs.display().to_string(),
            labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
            annotations: BTreeMap::from([("note".to_owned(), "kept".to_owned())]),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/{name}", cgroup_root(self.scratch.path())),
                ..cri::LinuxPodSandboxConfig::default()
            }),
            ..cri::PodSandboxConfig::default()
        }
    }

    /// Runs a sandbox.
    pub async fn sandbox(&mut self, name: &str) -> String {
        let request = cri::RunPodSandboxRequest {
            config: Some(self.sandbox_config(name)),
            runtime_handler: String::new(),
        };
        let answer = self.runtime.run_pod_sandbox(request).await;
        match answer {
            Ok(answer) => answer.into_inner().pod_sandbox_id,
            Err(status) => panic!("{status}: {}", tail(&self.scratch.path().join("log"))),
        }
    }

    /// Makes a container, changed by `change`, and starts it.
    pub async fn container(
        &mut self,
        pod: &str,
        sandbox: &str,
        command: &[&str],
        change: impl FnOnce(&mut cri::ContainerConfig),
    ) -> String {
        let mut config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata { name: "app".to_owned(), attempt: 2 }),
            image: Some(cri::ImageSpec { image: image::BUSYBOX.to_owned(), ..cri::ImageSpec::default() }),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            labels: BTreeMap::from([("tier".to_owned(), "front".to_owned())]),
            annotations: BTreeMap::from([("hash".to_owned(), "5".to_owned())]),
            log_path: "app.log".to_owned(),
            ..cri::ContainerConfig::default()
        };
        change(&mut config);
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(self.sandbox_config(pod)),
        };
        let created = self.runtime.create_container(request).await;
        let container_id = match created {
            Ok(answer) => answer.into_inner().container_id,
            Err(status) => panic!("{status}: {}", tail(&self.scratch.path().join("log"))),
        };
        let request = cri::StartContainerRequest { container_id: container_id.clone() };
        if let Err(status) = self.runtime.start_container(request).await {
            panic!("{status}: {}", tail(&self.scratch.path().join("log")));
        }
        container_id
    }

    /// `ContainerStatus`.
    pub async fn status(&mut self, container: &str) -> cri::ContainerStatus {
        let request = cri::ContainerStatusRequest { container_id: container.to_owned(), verbose: false };
        let answer = self.runtime.container_status(request).await.expect("it is there");
        answer.into_inner().status.expect("a status")
    }

    /// Waits until a container's status is as wanted.
    pub async fn wait_for(
        &mut self,
        container: &str,
        wanted: impl Fn(&cri::ContainerStatus) -> bool,
    ) -> cri::ContainerStatus {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let status = self.status(container).await;
            if wanted(&status) {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "{status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", tail(&self.scratch.path().join("log")));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for family in ["ip", "ip6"] {
            let table = ["delete", "table", family, &self.scratch.bridge()];
            let _ = Command::new("nft").args(table).stderr(Stdio::null()).status();
        }
    }
}

async fn connect(scratch: &Scratch) -> Channel {
    let socket = scratch.path().join("cri.sock");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while UnixStream::connect(&socket).is_err() {
        let log = || tail(&scratch.path().join("log"));
        assert!(tokio::time::Instant::now() < deadline, "it does not listen: {}", log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Channel::unix(socket)
}
