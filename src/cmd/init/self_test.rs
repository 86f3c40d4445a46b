//! A real container, before the first pod: the embedded runtime creates, runs and removes one, in directories
//! and a cgroup of its own. This tests what the kernel, the file systems and the cgroup hierarchy really
//! allow, instead of reading versions.
//!
//! Owns a temporary directory beside the root directory (the same file system: overlayfs must work there),
//! one for sockets and records on `/run`, and a cgroup; all are removed afterwards. The container shares the
//! node's network: creating a bridge would change the node. The runtime is asked whether pods can have a
//! network.
//!
//! The image is one file: a program of a few dozen bytes that writes a word and exits with a number, so that
//! the test needs nothing of the machine, and works whether or not the agent itself is a static program.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use serde_json::{Value, json};
use tokio::time::timeout;

use super::preflight::PreflightFinding;
use crate::codec::cri_log;
use crate::codec::tiny_program::archive;
use crate::model::labels;
use crate::model::observed::ContainerStateKind;
use crate::model::runtime_config::{CgroupDriver, CgroupValues};
use crate::model::types::PodRef;
use crate::platform::cgroup::{self, CgroupConfig};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::clone::process_id;
use crate::platform::sys::{dir, mount};
use crate::runtime::chosen::NodeRuntime;
use crate::runtime::cri::CriConfig;
use crate::runtime::docker::DockerConfig;
use crate::runtime::embedded::images::digest_of;
use crate::runtime::embedded::layout::Layout;
use crate::runtime::embedded::network::NetworkConfig;
use crate::runtime::embedded::network::subnet::SubnetError;
use crate::runtime::embedded::runtime::{EmbeddedConfig, EmbeddedRuntime};
use crate::runtime::{
    ContainerConfig, ContainerSecurity, NamespaceMode, NamespaceOptions, Runtime, SandboxConfig,
    SeccompChoice,
};

mod program;

/// The check's name: upstream's for a runtime that has to answer.
const NAME: &str = "CRI";
const IMAGE: &str = "localhost/preflight:1";
const UID: &str = "00000000-0000-0000-0000-000000000000";
/// A slow SD card takes a second; a machine that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to check whether killed processes are gone.
const LOOKS: usize = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// kubeadm's timeout for a runtime's socket.
const CONNECT: Duration = Duration::from_secs(5);

#[must_use]
pub(super) fn run(
    endpoint: &str,
    root_dir: &Path,
    embedded: Result<EmbeddedConfig, SubnetError>,
) -> Vec<PreflightFinding> {
    if endpoint != "embedded" {
        return external(endpoint, embedded.ok().map(|embedded| embedded.network));
    }
    let Some(program) = program::bytes() else {
        return vec![PreflightFinding::skipped(NAME, "no test program for this architecture")];
    };
    let began = Clock::System.now();
    let place = Workspace::new(root_dir);
    let embedded = embedded.map_err(|error| format!("podCIDR: {}", chain(&error)));
    let tested = embedded.and_then(|config| {
        place.make()?;
        let cgroup = config.cgroup.clone();
        let main = async { timeout(PATIENCE, Box::pin(test(config, &place, &program))).await };
        let outcome = rt::run(main).map_err(|error| format!("start the async runtime: {error}"));
        let tested = outcome.and_then(|outcome| {
            outcome.unwrap_or_else(|_| Err(format!("no response within {} s", PATIENCE.as_secs())))
        });
        if tested.is_err() {
            place.end(&cgroup);
        }
        tested
    });
    place.remove();
    let took = Clock::System.now().as_nanos().saturating_sub(began.as_nanos()) / 1_000_000;
    match tested {
        Err(why) => vec![
            PreflightFinding::error(
                NAME,
                "the test container failed",
                format!("container runtime is not running: {why}"),
            )
            .required("a running container")
            .fix("see the checks above for what is missing, and the kernel log")
            .command("dmesg | tail"),
        ],
        Ok(network) => {
            let ran = PreflightFinding::ok(
                NAME,
                format!("the embedded runtime ran and removed a test container in {took} ms"),
            );
            let version = runtime_version("embedded", Ok(Some(CgroupDriver::Cgroupfs)));
            vec![ran, version, pod_network(network)]
        }
    }
}

fn pod_network(status: Result<(), String>) -> PreflightFinding {
    match status {
        Ok(()) => PreflightFinding::ok("PodNetwork", "the kernel supports the pod network"),
        Err(why) => PreflightFinding::warning("PodNetwork", "not ready", why)
            .required("kernel support for bridges and nf_tables with NAT, or a CNI configuration")
            .fix(
                "install the kernel modules or another kernel; pods with hostNetwork: true do not need them",
            ),
    }
}

/// As in kubeadm: the socket answers, and the runtime reports that it is ready. The network is for Docker Engine.
fn external(endpoint: &str, network: Option<NetworkConfig>) -> Vec<PreflightFinding> {
    let ask = async {
        let config = CriConfig {
            endpoint: endpoint.to_owned(),
            image_endpoint: String::new(),
            request_timeout: CONNECT,
        };
        let docker = DockerConfig { network, ..DockerConfig::default() };
        let runtime = NodeRuntime::connect(config, docker).map_err(|error| chain(&error))?;
        let version = runtime.version().await.map_err(|error| chain(&error))?;
        let status = runtime.status().await.map_err(|error| chain(&error))?;
        let driver = runtime.cgroup_driver().await.map_err(|error| chain(&error));
        let restore = runtime.keeps_containers().await;
        let network = runtime.is_docker().await.then_some(status.network_ready);
        status
            .runtime_ready
            .map(|()| (format!("{} {}", version.name, version.version), driver, restore, network))
    };
    let answer = rt::run(async { timeout(CONNECT, ask).await });
    let said = match answer {
        Ok(Ok(said)) => said,
        Ok(Err(_)) => Err(format!("{endpoint} does not respond")),
        Err(error) => Err(error.to_string()),
    };
    match said {
        Ok((version, driver, restore, network)) => {
            let found = PreflightFinding::ok(NAME, format!("{version} at {endpoint}"));
            let stops = (restore == Some(false)).then(live_restore);
            let network = network.map(pod_network);
            [found, runtime_version(&version, driver)].into_iter().chain(stops).chain(network).collect()
        }
        Err(why) => {
            let message = format!("could not connect to the container runtime: {why}");
            vec![
                PreflightFinding::error(NAME, endpoint, message)
                    .required("a ready CRI v1 runtime or Docker Engine")
                    .fix(
                        "start it, and check that its CRI plugin is enabled (Docker's containerd has \
                          disabled_plugins = [\"cri\"]; or use Docker's own socket)",
                    )
                    .command("systemctl status containerd crio docker"),
            ]
        }
    }
}

fn live_restore() -> PreflightFinding {
    let message = "Docker stops all containers when it is restarted or upgraded";
    PreflightFinding::warning("DockerLiveRestore", "off", message)
        .required("live-restore")
        .fix("add \"live-restore\": true to /etc/docker/daemon.json, then reload Docker")
        .command("systemctl reload docker")
}

/// kubeadm's check: whether the runtime says which driver of cgroups it uses.
fn runtime_version(version: &str, driver: Result<Option<CgroupDriver>, String>) -> PreflightFinding {
    const NAME: &str = "ContainerRuntimeVersion";
    match driver {
        Ok(Some(_)) => PreflightFinding::ok(NAME, version),
        Ok(None) => {
            let message = "You must update your container runtime to a version that supports the CRI method \
                           RuntimeConfig. Falling back to using cgroupDriver from kubelet config";
            PreflightFinding::warning(NAME, version, message)
                .required("the CRI method RuntimeConfig")
                .fix("update it: containerd 2.0, CRI-O 1.28")
        }
        Err(why) => PreflightFinding::error(NAME, version, why)
            .required("the CRI method RuntimeConfig")
            .fix("see the log of the runtime"),
    }
}

struct Workspace {
    /// Beside the root directory.
    data: PathBuf,
    /// On a tmpfs.
    state: PathBuf,
    /// Name of the cgroup below the top.
    cgroup: String,
}

impl Workspace {
    fn new(root_dir: &Path) -> Self {
        let name = format!("agent-preflight-{}", process_id());
        let beside = root_dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
        let run = Path::new("/run");
        let state = if run.is_dir() { run } else { beside };
        Self {
            data: beside.join(format!(".{name}")),
            state: state.join(format!(".{name}.run")),
            cgroup: format!("agentpreflight{}", process_id()),
        }
    }

    fn make(&self) -> Result<(), String> {
        for path in [&self.data, &self.state] {
            dir::make_dir(path, 0o711).map_err(|error| format!("create {}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Kills everything that still runs after a failure.
    fn end(&self, cgroup: &CgroupConfig) {
        let path = self.cgroup_path(cgroup);
        let gone = async {
            for _ in 0..LOOKS {
                let killed = cgroup::kill_all(cgroup, &path);
                if killed == 0 && cgroup::remove(cgroup, &path).is_empty() {
                    break;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let _ = rt::run(gone);
    }

    fn remove(&self) {
        for point in mount::mount_points().unwrap_or_default().iter().rev() {
            if point.starts_with(&self.data) || point.starts_with(&self.state) {
                let _ = mount::unmount(point);
            }
        }
        for path in [&self.data, &self.state] {
            let _ = dir::remove_contents(path);
            let _ = fs::remove_dir(path);
        }
    }

    /// The path in the cgroup file system.
    fn cgroup_path(&self, cgroup: &CgroupConfig) -> String {
        match cgroup.driver {
            CgroupDriver::Cgroupfs => format!("/{}", self.cgroup),
            CgroupDriver::Systemd => format!("/{}.slice", self.cgroup),
        }
    }

    /// The cgroup parent in the runtime's notation.
    fn cgroup_parent(&self, cgroup: &CgroupConfig) -> String {
        let path = self.cgroup_path(cgroup);
        match cgroup.driver {
            CgroupDriver::Cgroupfs => path,
            CgroupDriver::Systemd => path.trim_start_matches('/').to_owned(),
        }
    }
}

/// Whether pods can have a network, after a container was created, run and removed.
async fn test(
    mut config: EmbeddedConfig,
    place: &Workspace,
    program: &[u8],
) -> Result<Result<(), String>, String> {
    config.layout = Layout::new(&place.data, &place.state);
    config.network.state = config.layout.network();
    let cgroup = config.cgroup.clone();
    let path = place.cgroup_path(&cgroup);
    let runtime =
        Box::pin(EmbeddedRuntime::open(config, Clock::System)).await.map_err(|error| chain(&error))?;
    let said = |error: &dyn std::error::Error| chain(error);
    cgroup::ensure(&cgroup, &path, &CgroupValues::default()).map_err(|error| said(&error))?;
    let ran = Box::pin(in_runtime(&runtime, place, &cgroup, program)).await;
    let network = runtime.status().await.map(|status| status.network_ready);
    drop(runtime);
    let left = cgroup::remove(&cgroup, &path);
    ran?;
    if let Some(error) = left.first() {
        return Err(format!("remove the test cgroup: {}", said(error)));
    }
    network.map_err(|error| said(&error))
}

async fn in_runtime(
    runtime: &EmbeddedRuntime,
    place: &Workspace,
    cgroup: &CgroupConfig,
    program: &[u8],
) -> Result<(), String> {
    let image = place.data.join("image");
    write_image(&image, program).map_err(|error| format!("write {}: {error}", image.display()))?;
    let store = runtime.images().clone();
    let imported = rt::blocking("import", move || store.import(&image).map(drop)).await;
    imported.map_err(|error| chain(&error))?;
    let pod = sandbox_config(place, cgroup);
    let sandbox = runtime.run_sandbox(&pod).await.map_err(|error| chain(&error))?;
    let ran = Box::pin(in_sandbox(runtime, place, &sandbox, &pod)).await;
    let stopped = runtime.stop_sandbox(&sandbox).await;
    let removed = runtime.remove_sandbox(&sandbox).await;
    ran?;
    stopped.and(removed).map_err(|error| chain(&error))
}

async fn in_sandbox(
    runtime: &EmbeddedRuntime,
    place: &Workspace,
    sandbox: &crate::model::types::SandboxId,
    pod: &SandboxConfig,
) -> Result<(), String> {
    let config = container_config();
    let said = |error: crate::runtime::RuntimeError| chain(&error);
    let id = runtime.create_container(sandbox, &config, pod).await.map_err(said)?;
    runtime.start_container(&id).await.map_err(said)?;
    let ended = loop {
        let status = runtime.container_status(&id).await.map_err(said)?;
        if status.state == ContainerStateKind::Exited {
            break status;
        }
        runtime.next_change().await.map_err(said)?;
    };
    runtime.remove_container(&id).await.map_err(said)?;
    if ended.exit_code != program::EXIT_CODE {
        let (code, reason, message) = (ended.exit_code, ended.reason, ended.message);
        return Err(format!("the test container exited with code {code} {reason} {message}"));
    }
    let log = fs::read(place.data.join("log/test.log")).unwrap_or_default();
    let mut lines = log.split(|byte| *byte == b'\n').filter_map(cri_log::parse);
    let has_line = lines.any(|line| !line.is_stderr && *line.text == *program::SAYS.as_bytes());
    if has_line { Ok(()) } else { Err("the output of the test container is missing in its log".to_owned()) }
}

fn pod_labels() -> std::collections::BTreeMap<String, String> {
    [(labels::POD_NAME, "preflight"), (labels::POD_NAMESPACE, "default"), (labels::POD_UID, UID)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn namespaces() -> NamespaceOptions {
    NamespaceOptions { network: NamespaceMode::Node, pid: NamespaceMode::Container, ipc: NamespaceMode::Pod }
}

fn sandbox_config(place: &Workspace, cgroup: &CgroupConfig) -> SandboxConfig {
    SandboxConfig {
        pod: PodRef { namespace: "default".to_owned(), name: "preflight".to_owned(), uid: UID.into() },
        log_directory: place.data.join("log").display().to_string(),
        labels: pod_labels(),
        cgroup_parent: place.cgroup_parent(cgroup),
        namespaces: namespaces(),
        ..SandboxConfig::default()
    }
}

fn container_config() -> ContainerConfig {
    let mut labels = pod_labels();
    labels.insert(labels::CONTAINER_NAME.to_owned(), "test".to_owned());
    let mut config = ContainerConfig {
        name: "test".to_owned(),
        image: IMAGE.to_owned(),
        user_specified_image: IMAGE.to_owned(),
        command: vec!["/test".to_owned()],
        log_path: "test.log".to_owned(),
        labels,
        security: ContainerSecurity {
            drop_capabilities: vec!["ALL".to_owned()],
            no_new_privs: true,
            namespaces: namespaces(),
            seccomp: SeccompChoice::RuntimeDefault,
            ..ContainerSecurity::default()
        },
        ..ContainerConfig::default()
    };
    config.resources.memory_limit_bytes = 32 << 20;
    config
}

/// An OCI image layout with one layer of one file.
fn write_image(at: &Path, program: &[u8]) -> io::Result<()> {
    let blobs = at.join("blobs/sha256");
    dir::make_dir(&blobs, 0o700)?;
    let blob = |kind: &str, bytes: &[u8]| -> io::Result<Value> {
        let digest = digest_of(bytes);
        fs::write(blobs.join(digest.trim_start_matches("sha256:")), bytes)?;
        Ok(json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": bytes.len(),
        }))
    };
    let layer = archive("test", program);
    let described = blob("layer.v1.tar", &layer)?;
    let architecture = program::ARCHITECTURE;
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [digest_of(&layer)] },
    });
    let manifest = json!({
        "schemaVersion": 2, "config": blob("config.v1+json", config.to_string().as_bytes())?, "layers": [described],
    });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes())?;
    manifest["annotations"] = json!({ "io.containerd.image.name": IMAGE });
    fs::write(at.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())?;
    fs::write(at.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_test_works_beside_the_root_directory_and_cleans_up() {
        let root = std::env::temp_dir().join(format!("edge-agent-self-test-{}", process_id()));
        fs::create_dir_all(&root).unwrap();
        let place = Workspace::new(&root.join("var/lib/kubelet"));
        assert!(place.data.starts_with(&root), "on the file system of the root directory");
        place.make().unwrap();
        write_image(&place.data.join("image"), &program::bytes().unwrap()).unwrap();
        let store = crate::runtime::embedded::images::ImageStore::open(&place.data.join("images")).unwrap();
        let images = store.import(&place.data.join("image")).unwrap();
        assert_eq!(images.len(), 1, "the image is one that the store takes");
        assert!(store.resolve(IMAGE).unwrap().is_some());
        place.remove();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn docker_that_stops_containers_is_a_warning() {
        use crate::runtime::docker::testing::{response, socket};
        let said = |answer: fn(&str) -> String| {
            let path = socket(answer);
            let found = external(&format!("unix://{}", path.display()), None);
            std::fs::remove_file(path).unwrap();
            found.iter().map(PreflightFinding::text).collect::<Vec<_>>().join("\n")
        };
        let off = said(|request| match request {
            asked if asked.contains("/containers/json") => response("1.41", "[]"),
            _ => response(
                "1.41",
                r#"{"ApiVersion":"1.41","Version":"20.10","CgroupDriver":"cgroupfs","LiveRestoreEnabled":false}"#,
            ),
        });
        assert!(off.contains("docker 20.10 at unix://") && off.contains("live-restore"), "{off}");
        let on = said(|request| match request {
            asked if asked.contains("/containers/json") => response("1.41", "[]"),
            _ => response(
                "1.41",
                r#"{"ApiVersion":"1.41","Version":"20.10","CgroupDriver":"cgroupfs","LiveRestoreEnabled":true}"#,
            ),
        });
        assert!(!on.contains("live-restore"), "{on}");
    }

    #[test]
    fn a_runtime_must_know_its_cgroup_driver() {
        let said = |driver| runtime_version("containerd 1.7", driver).text();
        assert!(
            said(Ok(Some(CgroupDriver::Systemd))).starts_with("\t[ContainerRuntimeVersion]: containerd 1.7")
        );
        assert!(
            said(Ok(None)).starts_with("\t[WARNING ContainerRuntimeVersion]: You must update your container")
        );
        assert!(said(Err("broken".to_owned())).starts_with("\t[ERROR ContainerRuntimeVersion]: broken"));
    }
}
