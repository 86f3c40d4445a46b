//! The extended interface for `agent cri`: full sandboxes and containers, streams, statistics, events.
//!
//! Owns no state.

use tokio::sync::broadcast;

use super::super::pod_network::port_stream;
use super::api::{AttachSession, ContainerView, ExecSession, RuntimeEvent, SandboxView, Streams};
use super::{EmbeddedRuntime, Failure, container, exec, no_sandbox, view};
use crate::model::ordered::Sortable as _;
use crate::model::types::{ContainerId, SandboxId};
use crate::platform::rt;
use crate::runtime::{ContainerFigures, DiskFigures, ErrorKind, RuntimeError, RuntimeUse};

/// How many events a slow receiver may lag behind.
const EVENT_QUEUE: usize = 256;

impl EmbeddedRuntime {
    /// All sandboxes in full, those without a pod's labels too.
    #[must_use]
    pub(crate) fn sandboxes(&self) -> Vec<SandboxView> {
        let ids: Vec<SandboxId> = self.shared.state.borrow().sandboxes.keys().cloned().collect();
        ids.iter().filter_map(|id| self.sandbox(id).ok()).collect()
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> Result<SandboxView, RuntimeError> {
        view::sandbox(&self.shared, id).map_err(|failure| failure.of("PodSandboxStatus"))
    }

    /// All containers in full, those without a pod's labels too.
    #[must_use]
    pub(crate) fn containers(&self) -> Vec<ContainerView> {
        let ids: Vec<ContainerId> = self.shared.state.borrow().containers.keys().cloned().collect();
        ids.iter().filter_map(|id| self.container(id).ok()).collect()
    }

    pub(crate) fn container(&self, id: &ContainerId) -> Result<ContainerView, RuntimeError> {
        let viewed = view::view(&self.shared, id);
        viewed.map(|(view, _)| view).map_err(|failure| failure.of("ContainerStatus"))
    }

    /// Runs a program in a running container; see [`ExecSession`]. It is killed when the session is dropped.
    pub(crate) async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        tty: bool,
        streams: Streams,
    ) -> Result<ExecSession, RuntimeError> {
        exec::begin(&self.shared, id, command, tty, streams).await.map_err(|failure| failure.of("Exec"))
    }

    /// Couples streams with those of a running container until the session is dropped or the container ends.
    pub(crate) async fn attach(
        &self,
        id: &ContainerId,
        streams: Streams,
    ) -> Result<AttachSession, RuntimeError> {
        exec::attach(&self.shared, id, streams).await.map_err(|failure| failure.of("Attach"))
    }

    /// Sets the size of a container's own terminal.
    pub(crate) async fn resize(&self, id: &ContainerId, width: u16, height: u16) -> Result<(), RuntimeError> {
        let resized = exec::resize(&self.shared, id, width, height).await;
        resized.map_err(|failure| failure.of("Attach"))
    }

    /// Reopens the container's log after a rotation.
    pub(crate) async fn reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let reopened = exec::reopen_log(&self.shared, id).await;
        reopened.map_err(|failure| failure.of("ReopenContainerLog"))
    }

    /// A connection to a port of the pod, made from inside its network: to `127.0.0.1`, else to `::1`.
    pub(crate) async fn port_stream(
        &self,
        id: &SandboxId,
        port: u16,
    ) -> Result<tokio::net::TcpStream, RuntimeError> {
        let call = "PortForward";
        let (pid, host_network) = {
            let state = self.shared.state.borrow();
            let sandbox = state.sandboxes.get(id).ok_or_else(|| no_sandbox(id).of(call))?;
            (sandbox.monitor, sandbox.host_network)
        };
        let not_running = || {
            let message = format!("sandbox container \"{id}\" is not running");
            RuntimeError::new(call, ErrorKind::Refused, message)
        };
        let pid = pid.ok_or_else(not_running)?;
        let connected = port_stream((!host_network).then_some(pid), port).await;
        connected.map_err(|message| RuntimeError::new(call, ErrorKind::Refused, message))
    }

    /// A container's current resource usage.
    pub(crate) async fn stats(&self, id: &ContainerId) -> Result<ContainerFigures, RuntimeError> {
        container::stats(&self.shared, id).await.map_err(|failure| failure.of("ContainerStats"))
    }

    /// Usage of these containers, from their records; with `disks` also where writable layers are and how
    /// much images use.
    pub(crate) async fn usage(&self, disks: bool, ids: &[ContainerId]) -> RuntimeUse {
        let layout = &self.shared.config.layout;
        let mut found =
            RuntimeUse { containers: container::figures(&self.shared, ids).await, ..RuntimeUse::default() };
        if disks {
            found.layers = Some(layout.writable_layers());
            found.images = self.image_usage().await.ok();
        }
        found
    }

    /// Events from now on. A receiver that is too slow misses the oldest.
    #[must_use]
    pub(crate) fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        let mut events = self.shared.events.borrow_mut();
        events.get_or_insert_with(|| broadcast::channel(EVENT_QUEUE).0).subscribe()
    }

    pub(crate) async fn image_usage(&self) -> Result<DiskFigures, RuntimeError> {
        let images = self.shared.images.clone();
        let usage = rt::blocking("image usage", move || images.usage()).await;
        usage.map_err(|error| Failure::because("image usage", &error).of("ImageFsInfo"))
    }

    /// Ids of images that containers were made from or have mounted, running or not.
    #[must_use]
    pub(crate) fn images_in_use(&self) -> Vec<String> {
        let of = |container: ContainerView| {
            let mounted = container.config.mounts.into_iter().filter_map(|mount| mount.image);
            mounted.map(|image| image.image).chain([container.image_id]).collect::<Vec<_>>()
        };
        let mut ids: Vec<String> = self.containers().into_iter().flat_map(of).collect();
        ids.order_by(Ord::cmp);
        ids.dedup();
        ids
    }
}
