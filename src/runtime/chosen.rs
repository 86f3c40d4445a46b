//! The runtime of this process: the embedded one, or the one behind a socket.
//!
//! What is generic over [`Runtime`] is compiled once for this type in the program; tests use the fake one. ADR 0047.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::model::observed::{ObservedContainer, ObservedSandbox};
use crate::model::types::{ContainerId, PodUid, SandboxId};
use crate::runtime::cri::{CriConfig, EndpointError};
use crate::runtime::docker::DockerConfig;
use crate::runtime::embedded::runtime::EmbeddedRuntime;
use crate::runtime::socket::{FoundRuntime, SocketRuntime};
use crate::runtime::{
    CgroupDriver, ContainerConfig, DiskPlaces, ExecOutput, ImageAuth, ImageStatus, LinuxResources, Runtime,
    RuntimeError, RuntimeImage, RuntimeStatus, RuntimeVersion, SandboxConfig,
};

/// Deliberately not generic: see the file's comment.
#[derive(Clone)]
pub(crate) enum NodeRuntime {
    Embedded(Rc<EmbeddedRuntime>),
    Socket(Rc<SocketRuntime>),
}

impl NodeRuntime {
    /// The runtime behind a socket, which need not be there yet.
    ///
    /// # Errors
    /// An endpoint that is no Unix socket.
    pub(crate) fn connect(config: CriConfig, docker: DockerConfig) -> Result<Self, EndpointError> {
        SocketRuntime::new(config, docker).map(|runtime| Self::Socket(Rc::new(runtime)))
    }

    /// Whether a Docker Engine has answered.
    pub(crate) async fn is_docker(&self) -> bool {
        matches!(self, Self::Socket(runtime) if matches!(runtime.found().await, Ok(FoundRuntime::Docker(_))))
    }

    /// Whether a Docker Engine leaves containers running when it is restarted. `None` for other runtimes.
    pub(crate) async fn keeps_containers(&self) -> Option<bool> {
        let Self::Socket(runtime) = self else { return None };
        match runtime.found().await.ok()? {
            FoundRuntime::Docker(runtime) => runtime.keeps_containers().await,
            FoundRuntime::Cri(_) => None,
        }
    }
}

/// A call of the one that is there. Boxed: callers hold the future of each.
macro_rules! call {
    ($self:ident, $method:ident $(, $argument:ident)*) => {
        match $self {
            NodeRuntime::Embedded(runtime) => Box::pin(runtime.$method($($argument),*)).await,
            NodeRuntime::Socket(runtime) => match runtime.found().await? {
                FoundRuntime::Cri(runtime) => Box::pin(runtime.$method($($argument),*)).await,
                FoundRuntime::Docker(runtime) => Box::pin(runtime.$method($($argument),*)).await,
            },
        }
    };
}

impl Runtime for NodeRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        call!(self, version)
    }

    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        call!(self, status)
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError> {
        call!(self, cgroup_driver)
    }

    async fn list_sandboxes(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedSandbox>, RuntimeError> {
        call!(self, list_sandboxes, pod)
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError> {
        call!(self, sandbox_status, id)
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, RuntimeError> {
        call!(self, run_sandbox, config)
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        call!(self, stop_sandbox, id)
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        call!(self, remove_sandbox, id)
    }

    async fn list_containers(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedContainer>, RuntimeError> {
        call!(self, list_containers, pod)
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError> {
        call!(self, container_status, id)
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError> {
        call!(self, create_container, sandbox, config, sandbox_config)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        call!(self, start_container, id)
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        call!(self, stop_container, id, grace)
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        call!(self, remove_container, id)
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        call!(self, reopen_container_log, id)
    }

    async fn checkpoint_container(
        &self,
        id: &ContainerId,
        location: &Path,
        timeout: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        call!(self, checkpoint_container, id, location, timeout)
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        call!(self, update_container_resources, id, resources)
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, RuntimeError> {
        call!(self, exec_sync, id, command, timeout)
    }

    async fn image_status(&self, image: &str) -> Result<Option<ImageStatus>, RuntimeError> {
        call!(self, image_status, image)
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&ImageAuth>,
        sandbox: &SandboxConfig,
    ) -> Result<String, RuntimeError> {
        call!(self, pull_image, image, auth, sandbox)
    }

    async fn list_images(&self) -> Result<Vec<RuntimeImage>, RuntimeError> {
        call!(self, list_images)
    }

    async fn remove_image(&self, id: &str) -> Result<Option<u64>, RuntimeError> {
        call!(self, remove_image, id)
    }

    async fn disk_places(&self) -> Result<DiskPlaces, RuntimeError> {
        call!(self, disk_places)
    }

    async fn set_pod_cidrs(&self, cidrs: &[String]) -> Result<(), RuntimeError> {
        call!(self, set_pod_cidrs, cidrs)
    }

    async fn next_change(&self) -> Result<(), RuntimeError> {
        call!(self, next_change)
    }
}
