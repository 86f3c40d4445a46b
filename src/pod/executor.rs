//! Executes plans, action by action, against the runtime and the pod's files. It makes no decisions.
//!
//! Owns the order of effects within one action and the messages of their events.

mod cgroups;
mod config;
mod counts;
mod cpus;
mod device_waits;
mod devices;
mod files;
mod hooks;
mod image_volumes;
mod mounts;
pub(crate) mod port_conflicts;
mod resize;
mod stop;
#[cfg(test)]
mod testing;
mod users;

pub(crate) use stop::Patience;

use cgroups::PodCgroups;
pub use cgroups::{NodeCgroups, ReservedCgroup};
use device_waits::DeviceWaits;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::devices::DeviceManager;
use crate::managers::ResourceManagers;
use crate::model::api::pod::{Container, Pod, ResourceRequirements};
use crate::model::containers::{ContainerKind, find_container};
use crate::model::objects::ObjectLookup;
use crate::model::observed::{ObservedPod, ObservedSandbox};
use crate::platform::cgroup::CgroupConfig;
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt::live::Live;
use crate::pod::events::{EventRecorder, EventType, container_path};
use crate::pod::executor::hooks::HookRunner;
use crate::pod::image::{ImagePuller, ImageRequest, StartFailure as Failure};
use crate::pod::network::DnsProblem;
use crate::pod::plan::{Action, PodPlan, StartContainer};
use crate::pod::resources::{CgroupLayout, NodeCapacity, ResourceFlags};
use crate::pod::security::{check_runtime, needs_runtime_support};
use crate::pod::users::NodeIds;

use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, ContainerName, PodUid, SandboxId};
use crate::pod::status::rules::DEADLINE_EXCEEDED;
use crate::pod::volume::{MountedVolumes, VolumeConfig, Volumes};
use crate::runtime::{ErrorKind, Runtime, RuntimeError, SandboxConfig};

pub(crate) use users::{ShareError, node_ids};

use users::UserNamespaces;

/// Retry delay after a failed step (upstream's worker back-off).
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Retry delay while a call of an earlier process still holds the name.
const RETRY_NAME_AFTER: Duration = Duration::from_millis(500);
/// The pod network may come up any moment (upstream's time for this).
const RETRY_NETWORK_AFTER: Duration = Duration::from_secs(1);
/// The runtime did not answer; it may be restarting.
const RETRY_RUNTIME_AFTER: Duration = Duration::from_secs(1);

/// Settings of pods and containers that start from now on.
#[derive(Clone, Debug, Default)]
pub struct PodSettings {
    pub cluster_dns: Vec<String>,
    /// `resolvConf`; `None` when explicitly empty.
    pub resolv_conf: Option<PathBuf>,
    pub seccomp_default: bool,
}

/// The configuration and the facts about the node that starting containers needs.
#[derive(Clone)]
pub struct ExecutorConfig {
    pub volumes: VolumeConfig,
    pub pod_logs_dir: PathBuf,
    /// `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    /// `<root-dir>/seccomp`.
    pub seccomp_dir: PathBuf,
    pub node_name: String,
    /// The node's addresses, primary first.
    pub node_ips: Vec<String>,
    pub capacity: NodeCapacity,
    /// The share for pods; unlimited containers see it as their limit.
    pub allocatable: NodeCapacity,
    /// How resources become cgroup values.
    pub resources: ResourceFlags,
    /// How pod cgroups are named.
    pub layout: CgroupLayout,
    pub cgroup: CgroupConfig,
    /// Values of the cgroups above them.
    pub node_cgroups: NodeCgroups,
    pub cluster_domain: String,
    /// What may change while pods run.
    pub pods: Live<PodSettings>,
    /// The share of ids for pods with users of their own, see [`node_ids`].
    pub user_ids: NodeIds,
    pub objects: Rc<dyn ObjectLookup>,
    pub devices: DeviceManager,
    pub managers: ResourceManagers,
    /// Directories of CDI specifications; none for a runtime that reads them itself.
    pub cdi_directories: Vec<PathBuf>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Execution {
    /// Containers that could not be started.
    pub containers: BTreeMap<ContainerName, Failure>,
    /// The step that ended the execution: sandbox, volumes, a stop.
    pub pod: Option<Failure>,
    /// The new resources of resized containers.
    pub resized: Vec<(ContainerId, ResourceRequirements)>,
    /// The first resize that failed; later ones were not tried.
    pub resize: Option<Failure>,
}

pub struct Executor<R> {
    runtime: Rc<R>,
    images: ImagePuller<R>,
    events: EventRecorder,
    config: ExecutorConfig,
    cgroup_driver: OnceCell<CgroupDriver>,
    cgroups: PodCgroups,
    /// Held while the CPUs of running containers are written.
    settling: tokio::sync::Mutex<()>,
    volumes: Rc<Volumes>,
    users: UserNamespaces,
    hooks: Rc<HookRunner<R>>,
    device_waits: DeviceWaits,
}

/// The state shared by the actions of one plan.
struct Run<'a> {
    pod: &'a Pod,
    observed: &'a ObservedPod,
    sandbox_config: SandboxConfig,
    dns_problems: Vec<DnsProblem>,
    sandbox: Option<ObservedSandbox>,
    volumes: Option<MountedVolumes>,
    patience: &'a Patience,
    /// An ordinary init container failed to start: later containers wait.
    init_failed: bool,
}

impl<R: Runtime> Executor<R> {
    #[must_use]
    pub fn new(
        runtime: Rc<R>,
        images: ImagePuller<R>,
        events: EventRecorder,
        clock: Clock,
        config: ExecutorConfig,
    ) -> Self {
        let volumes = Rc::new(Volumes::new(config.volumes.clone(), Rc::clone(&config.objects), clock));
        volumes.set_events(events.clone());
        let users = UserNamespaces::new(config.volumes.pods_dir.clone(), config.user_ids);
        let hooks = Rc::new(HookRunner::new(Rc::clone(&runtime), events.clone()));
        Self {
            runtime,
            images,
            events,
            config,
            cgroup_driver: OnceCell::new(),
            cgroups: PodCgroups::default(),
            settling: tokio::sync::Mutex::default(),
            volumes,
            users,
            hooks,
            device_waits: DeviceWaits::default(),
        }
    }

    /// Executes the plan's actions in order. A failed container start skips what depends on it; any other
    /// failure ends the execution. So does the pod's removal when the plan was to run it.
    pub(crate) async fn execute(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        plan: &PodPlan,
        patience: &Patience,
    ) -> Execution {
        let mut execution = Execution::default();
        let attempt = observed.sandboxes.first().map_or(0, |sandbox| sandbox.attempt);
        let starts =
            |action: &Action| matches!(action, Action::CreateSandbox { .. } | Action::StartContainer(_));
        let (sandbox_config, dns_problems) = if plan.actions.iter().any(starts) {
            match self.make_sandbox_config(pod, attempt).await {
                Ok(made) => made,
                Err((message, after)) => {
                    execution.pod = Some(self.sandbox_failure(pod, "FailedCreatePodSandBox", message, after));
                    return execution;
                }
            }
        } else {
            Default::default()
        };
        let mut run = Run {
            pod,
            observed,
            sandbox_config,
            dns_problems,
            sandbox: observed.ready_sandbox().cloned(),
            volumes: None,
            patience,
            init_failed: false,
        };
        for action in &plan.actions {
            if patience.is_over() {
                break;
            }
            if let Err(failure) = self.carry_out(&mut run, action, &mut execution).await {
                execution.pod = Some(failure);
                break;
            }
        }
        execution
    }

    /// The sandbox configuration of the pod, or why there is none, and when to try again.
    async fn make_sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
    ) -> Result<(SandboxConfig, Vec<DnsProblem>), (String, Duration)> {
        self.detect_cgroup_driver().await.map_err(|error| (error.to_string(), retry_after(&error)))?;
        let failed = |message: String| (format!("Failed to create pod sandbox: {message}"), RETRY_AFTER);
        let users = self.users.range_of(pod).await.map_err(|error| failed(chain(&error)))?;
        self.sandbox_config(pod, attempt, users).await.map_err(failed)
    }

    /// The cgroup driver that the runtime reports overrides the configured one (upstream); a runtime that
    /// does not report it leaves the configured one. Queried once, before the first sandbox.
    async fn detect_cgroup_driver(&self) -> Result<(), RuntimeError> {
        let ask = || async {
            let configured = self.config.layout.driver;
            let driver = self.runtime.cgroup_driver().await?.unwrap_or(configured);
            if driver != configured {
                log::info!(configured:? = configured, runtime:? = driver; "Using the cgroup driver of the container runtime");
            }
            Ok(driver)
        };
        self.cgroup_driver.get_or_try_init(ask).await.map(|_| ())
    }

    /// How pod cgroups are named. Until the runtime has reported its cgroup driver, the configured one is
    /// used.
    fn cgroup_layout(&self) -> CgroupLayout {
        let driver = self.cgroup_driver.get().copied().unwrap_or(self.config.layout.driver);
        CgroupLayout { driver, ..self.config.layout.clone() }
    }

    async fn carry_out(
        &self,
        run: &mut Run<'_>,
        action: &Action,
        execution: &mut Execution,
    ) -> Result<(), Failure> {
        match action {
            Action::StopContainers { groups, grace_seconds } => {
                self.stop_containers(run, groups, *grace_seconds).await
            }
            Action::StopSandbox { id } => {
                let stopped = self.runtime.stop_sandbox(id).await;
                if run.sandbox.as_ref().is_some_and(|sandbox| sandbox.id == *id) {
                    run.sandbox = None;
                }
                self.killing(run.pod, stopped)
            }
            Action::RemoveSandbox { id } => self.killing(run.pod, self.runtime.remove_sandbox(id).await),
            Action::RemoveContainer { id, keep_log, .. } => {
                self.killing(run.pod, self.runtime.remove_container(id).await)?;
                if let Some(container) = run.observed.containers.iter().find(|seen| seen.id == *id) {
                    self.remove_container_files(run.pod, container, *keep_log).await;
                }
                Ok(())
            }
            Action::CreateSandbox { attempt } => self.create_sandbox(run, *attempt).await,
            Action::ResizeContainer(_) if execution.resize.is_some() => Ok(()),
            Action::ResizeContainer(resize) => {
                match self.resize_container(run.pod, resize).await {
                    Ok(()) => execution.resized.push((resize.id.clone(), resize.resources.clone())),
                    Err(failure) => execution.resize = Some(failure),
                }
                Ok(())
            }
            Action::StartContainer(start) => {
                if run.init_failed {
                    return Ok(());
                }
                if let Err(failure) = self.start_container(run, start).await {
                    run.init_failed = start.kind == ContainerKind::Init;
                    execution.containers.insert(start.name.clone(), failure);
                }
                Ok(())
            }
        }
    }

    fn killing(&self, pod: &Pod, result: Result<(), RuntimeError>) -> Result<(), Failure> {
        result.map_err(|error| {
            let message = format!("error killing pod: {error}");
            self.pod_event(pod, EventType::Warning, "FailedKillPod", &message);
            Failure { reason: "FailedKillPod", message, retry_after: Some(retry_after(&error)) }
        })
    }

    async fn create_sandbox(&self, run: &mut Run<'_>, attempt: u32) -> Result<(), Failure> {
        let pod = run.pod;
        if attempt > 0 {
            let text = "Pod sandbox changed, it will be killed and re-created.";
            self.pod_event(pod, EventType::Normal, "SandboxChanged", text);
        }
        if !pod.spec.resource_claims.is_empty() {
            let message = "Failed to prepare dynamic resources: this node has no dynamic resource allocation"
                .to_owned();
            let after = Duration::default();
            let failure = self.sandbox_failure(pod, "FailedPrepareDynamicResources", message, after);
            // The claims of a pod do not change.
            return Err(Failure { retry_after: None, ..failure });
        }
        self.check_runtime(pod).await?;
        self.ensure_pod_cgroup(pod).await?;
        self.ensure_volumes(run).await?;
        self.make_log_dir(&run.sandbox_config.log_directory).await.map_err(|error| {
            let message = format!(
                "error making pod data directories: create {:?}: {error}",
                run.sandbox_config.log_directory
            );
            self.pod_event(pod, EventType::Warning, "Failed", &message);
            Failure { reason: "Failed", message, retry_after: Some(RETRY_AFTER) }
        })?;
        run.sandbox_config.attempt = attempt;
        self.report_dns(pod, &run.dns_problems);
        let failed = |reason: &'static str, what: &str, error: &RuntimeError| {
            self.sandbox_failure(pod, reason, format!("{what}: {}", error.message), retry_after(error))
        };
        let began = counts::Began::sandbox(&run.sandbox_config.runtime_handler);
        let made = self.runtime.run_sandbox(&run.sandbox_config).await;
        began.end(made.as_ref().err());
        let id =
            made.map_err(|error| failed("FailedCreatePodSandBox", "Failed to create pod sandbox", &error))?;
        let status =
            self.runtime.sandbox_status(&id).await.map_err(|error| {
                failed("FailedPodSandBoxStatus", "Unable to get pod sandbox status", &error)
            })?;
        self.report_port_conflicts(pod, &run.sandbox_config.port_mappings).await;
        run.sandbox = Some(status);
        Ok(())
    }

    /// Waits for the pod network with the runtime's own message; a pod on the host's network does not wait.
    /// Features that this runtime lacks are reported before the sandbox is requested.
    async fn check_runtime(&self, pod: &Pod) -> Result<(), Failure> {
        if pod.spec.host_network && !needs_runtime_support(pod) {
            return Ok(());
        }
        let status = self.runtime.status().await.map_err(|error| {
            let message = format!("container runtime is not responding: {}", error.message);
            self.sandbox_failure(pod, "FailedCreatePodSandBox", message, retry_after(&error))
        })?;
        if let (false, Err(why)) = (pod.spec.host_network, status.network_ready) {
            let message = format!("network is not ready: container runtime network not ready: {why}");
            return Err(self.sandbox_failure(pod, "NetworkNotReady", message, RETRY_NETWORK_AFTER));
        }
        let refused = |why: String| {
            let message = format!("Failed to create pod sandbox: {why}");
            self.sandbox_failure(pod, "FailedCreatePodSandBox", message, RETRY_AFTER)
        };
        let class = self.class(pod).map_err(refused)?;
        check_runtime(pod, class.as_ref(), &status.handlers, status.supplemental_groups_policy)
            .map_err(|why| refused(why.clone()))
    }

    fn sandbox_failure(&self, pod: &Pod, reason: &'static str, message: String, after: Duration) -> Failure {
        self.pod_event(pod, EventType::Warning, reason, &message);
        Failure { reason, message, retry_after: Some(after) }
    }

    async fn ensure_volumes(&self, run: &mut Run<'_>) -> Result<(), Failure> {
        if run.volumes.is_some() {
            return Ok(());
        }
        self.find_volume_devices(run).await?;
        let volumes = self.volumes.ensure(run.pod).await.map_err(|error| {
            let message = chain(&error);
            self.pod_event(run.pod, EventType::Warning, "FailedMount", &message);
            Failure {
                reason: "FailedMount",
                message,
                retry_after: (!error.is_permanent()).then_some(RETRY_AFTER),
            }
        })?;
        run.volumes = Some(volumes);
        Ok(())
    }

    async fn start_container(&self, run: &mut Run<'_>, start: &StartContainer) -> Result<(), Failure> {
        let Some((container, _)) = find_container(run.pod, &start.name) else { return Ok(()) };
        let Some(sandbox) = run.sandbox.clone() else {
            let message = "the pod has no ready sandbox".to_owned();
            return Err(Failure {
                reason: "CreateContainerError",
                message,
                retry_after: Some(RETRY_RUNTIME_AFTER),
            });
        };
        let field_path = field_path(&start.name, start.kind);
        let pod_ref = run.pod.pod_ref();
        let request = ImageRequest {
            pod: &pod_ref,
            field_path: &field_path,
            image: &container.image,
            policy: &container.image_pull_policy,
            sandbox: &run.sandbox_config,
            secrets: &[],
            account: "",
        };
        let image = self.pull(run, request).await.inspect_err(|failure| {
            let message = format!("Error: {}", failure.reason);
            self.event(run.pod, &field_path, EventType::Warning, "Failed", &message);
        })?;
        self.ensure_volumes(run).await?;
        self.ensure_image_volumes(run, container, &field_path).await.inspect_err(|failure| {
            let message = format!("Error: {}", failure.reason);
            self.event(run.pod, &field_path, EventType::Warning, "Failed", &message);
        })?;
        let config =
            self.prepare_container(run, container, start, &sandbox, &image).await.inspect_err(|failure| {
                let message = format!("Error: {}", failure.message);
                self.event(run.pod, &field_path, EventType::Warning, "Failed", &message);
            })?;
        let started = self.create_and_start(run, container, &field_path, &sandbox.id, &config).await;
        counts::started(start.kind, started.as_ref().err().map(|failure| failure.reason));
        started
    }

    async fn create_and_start(
        &self,
        run: &Run<'_>,
        container: &Container,
        field_path: &str,
        sandbox: &SandboxId,
        config: &crate::runtime::ContainerConfig,
    ) -> Result<(), Failure> {
        let failed = |reason: &'static str, error: &RuntimeError| {
            let message = format!("Error: {}", error.message);
            self.event(run.pod, field_path, EventType::Warning, "Failed", &message);
            Failure { reason, message: error.message.clone(), retry_after: Some(retry_after(error)) }
        };
        let id = self.runtime.create_container(sandbox, config, &run.sandbox_config).await.map_err(
            |mut error| {
                error.message = image_volumes::refusal(&error.message, config);
                failed("CreateContainerError", &error)
            },
        )?;
        self.event(run.pod, field_path, EventType::Normal, "Created", "Container created");
        self.settle_before_start(run.pod, container, &id, &config.resources.cpuset_cpus).await;
        self.runtime.start_container(&id).await.map_err(|error| failed("RunContainerError", &error))?;
        self.event(run.pod, field_path, EventType::Normal, "Started", "Container started");
        self.make_log_link(
            run.pod,
            &container.name,
            &id,
            &run.sandbox_config.log_directory,
            &config.log_path,
        )
        .await;
        self.run_post_start(run, container, field_path, &id).await
    }

    /// Updates volumes rendered from objects. A volume that fails keeps its content, and an event is
    /// recorded.
    pub(super) async fn refresh_volumes(&self, pod: &Pod) {
        if let Err(error) = self.volumes.refresh(pod).await {
            let message = chain(&error);
            self.pod_event(pod, EventType::Warning, "FailedMount", &message);
        }
    }

    /// Changes when a pod that waits for an object may try again, and when mounted volumes may need an
    /// update.
    #[must_use]
    pub(super) fn objects_generation(&self) -> u64 {
        self.volumes.objects_generation()
    }

    /// Removes what an ended pod leaves on the node: volumes and cgroup; with `records`, its logs too. False
    /// when something cannot be removed yet and the call must be repeated.
    pub(super) async fn remove_leftovers(&self, pod: &Pod, records: bool) -> bool {
        // First: a process left in the cgroup would continue to write into the volumes.
        if !self.remove_pod_cgroup(pod).await {
            return false;
        }
        if let Err(error) = self.volumes.tear_down(&pod.metadata.uid).await {
            let message = format!("error cleaning up pod directories: {}", chain(&error));
            self.pod_event(pod, EventType::Warning, "FailedKillPod", &message);
            return false;
        }
        self.release_devices(&pod.metadata.uid).await;
        // Last: a process left in the cgroup would share its user ids with the next pod.
        self.users.release(&pod.metadata.uid).await;
        if records {
            self.remove_logs(pod).await;
        }
        true
    }

    /// Records that a container began to wait for its next run.
    pub(super) fn report_back_off(&self, pod: &Pod, name: &ContainerName) {
        let kind = find_container(pod, name).map_or(ContainerKind::Regular, |(_, kind)| kind);
        let message = format!("Back-off restarting failed container {name} in pod {}", pod.pod_ref());
        self.event(pod, &field_path(name, kind), EventType::Warning, "BackOff", &message);
    }

    pub(super) fn report_deadline(&self, pod: &Pod, message: &str) {
        self.pod_event(pod, EventType::Normal, DEADLINE_EXCEEDED, message);
    }

    pub(super) fn report_eviction(&self, pod: &Pod, reason: &str, message: &str) {
        self.pod_event(pod, EventType::Warning, reason, message);
    }

    #[must_use]
    pub(crate) fn devices(&self) -> &DeviceManager {
        &self.config.devices
    }

    #[must_use]
    pub(crate) fn volumes(&self) -> &Rc<Volumes> {
        &self.volumes
    }

    /// Forgets what is kept in memory about a pod.
    pub(crate) fn forget_pod(&self, uid: &PodUid) {
        self.images.forget_pod(uid);
    }

    /// Records that containers of the pod still run after its grace period.
    pub(super) fn report_late_end(&self, pod: &Pod) {
        let message = "Container runtime did not kill the pod within specified grace period.";
        self.pod_event(pod, EventType::Warning, "ExceededGracePeriod", message);
    }

    fn pod_event(&self, pod: &Pod, kind: EventType, reason: &str, message: &str) {
        self.events.event(&pod.pod_ref(), None, kind, reason, message);
    }

    fn event(&self, pod: &Pod, field_path: &str, kind: EventType, reason: &str, message: &str) {
        self.events.event(&pod.pod_ref(), Some(field_path.to_owned()), kind, reason, message);
    }
}

/// The path of a container in the spec, for events.
fn field_path(name: &ContainerName, kind: ContainerKind) -> String {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => container_path("initContainers", name.as_str()),
        ContainerKind::Regular => container_path("containers", name.as_str()),
        ContainerKind::Ephemeral => container_path("ephemeralContainers", name.as_str()),
    }
}

fn retry_after(error: &RuntimeError) -> Duration {
    match error.kind {
        ErrorKind::AlreadyExists | ErrorKind::NotFound => RETRY_NAME_AFTER,
        ErrorKind::Unavailable | ErrorKind::Timeout => RETRY_RUNTIME_AFTER,
        ErrorKind::Unimplemented | ErrorKind::Refused => RETRY_AFTER,
    }
}
