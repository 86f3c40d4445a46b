//! The runtime behind a CRI v1 socket: containerd 1.6 or newer, or CRI-O.
//!
//! Owns the connections, the time limits and the mapping of gRPC errors. A connection is made when a call
//! needs one, so the agent starts without its runtime. Every call tries to connect again: connecting to a
//! local socket costs less than waiting out a back-off. Only the stream of events backs off.

mod call_limits;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use tonic::{Response, Status};

use crate::model::observed::{ObservedContainer, ObservedSandbox};
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, PodUid, SandboxId};
use crate::platform::grpc::Channel;
use crate::platform::proto::runtime as cri;
use crate::platform::proto::runtime::image_service_client::ImageServiceClient;
use crate::platform::proto::runtime::runtime_service_client::RuntimeServiceClient;
use crate::runtime::metered::Operation;
use crate::runtime::{
    ContainerConfig, DiskPlaces, ErrorKind, ExecOutput, ImageAuth, ImageStatus, LinuxResources, Runtime,
    RuntimeError, RuntimeImage, RuntimeStatus, RuntimeVersion, SandboxConfig, convert,
};

mod call;
mod endpoint;
mod events;
mod streaming;
mod stuck;
mod usage;

pub(crate) use endpoint::{EndpointError, socket_path};

use crate::runtime::cri::call_limits::{CallKind, CallLimits};
use call::{answered, bounded, command_answer, forgive_not_found, unbounded};
use events::ChangeHints;

/// Largest message either way, the kubelet's limit.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The version that both sides send in the `Version` call.
const API_VERSION: &str = "0.1.0";

/// The runtime's endpoints and time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriConfig {
    /// `containerRuntimeEndpoint`: `unix:///path` or an absolute path.
    pub endpoint: String,
    /// `imageServiceEndpoint`; empty for the same as `endpoint`.
    pub image_endpoint: String,
    /// `runtimeRequestTimeout`.
    pub request_timeout: Duration,
}

/// A client of a CRI runtime. Calls with large requests are boxed, so that tasks that may make them stay
/// small.
pub struct CriRuntime {
    channel: Channel,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    request_timeout: Duration,
    hints: ChangeHints,
    limits: CallLimits,
    /// CRI's container status does not name the sandbox, which never changes. Refreshed by every full list.
    sandboxes: RefCell<BTreeMap<ContainerId, SandboxId>>,
}

impl CriRuntime {
    /// Prepares a client; call it inside the tokio runtime. Nothing is connected yet, so the runtime may be
    /// absent.
    pub fn connect(config: &CriConfig) -> Result<Self, EndpointError> {
        let channel = endpoint::channel("containerRuntimeEndpoint", &config.endpoint)?;
        let image_channel = match config.image_endpoint.as_str() {
            "" => channel.clone(),
            same if same == config.endpoint => channel.clone(),
            other => endpoint::channel("imageServiceEndpoint", other)?,
        };
        Ok(Self {
            hints: ChangeHints::new(channel.clone()),
            channel: channel.clone(),
            runtime: RuntimeServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            images: ImageServiceClient::new(image_channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            request_timeout: config.request_timeout,
            limits: CallLimits::new(),
            sandboxes: RefCell::default(),
        })
    }

    /// The generated clients are handles; calls need one of their own.
    fn runtime(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    /// Makes one call when its turn comes. The time limit begins with the call: time spent waiting for other
    /// calls is not the runtime's fault.
    async fn call_limited<T>(
        &self,
        lane: CallKind,
        call: &'static str,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        let _turn = self.limits.acquire(lane).await;
        let operation = Operation::begin(call);
        let answer = bounded(call, limit, answer).await;
        operation.end(answer.is_err());
        answer
    }

    async fn query<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        self.call_limited(CallKind::Queries, call, self.request_timeout, answer).await
    }

    async fn change<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RuntimeError> {
        self.call_limited(CallKind::Changes, call, self.request_timeout, answer).await
    }

    async fn containers(&self, filter: cri::ContainerFilter) -> Result<Vec<ObservedContainer>, RuntimeError> {
        let request = cri::ListContainersRequest { filter: Some(filter) };
        let mut client = self.runtime();
        let answer = self.query("ListContainers", client.list_containers(request)).await?;
        Ok(answer.containers.into_iter().filter_map(convert::container_from_list).collect())
    }

    async fn sandbox_of(&self, id: &ContainerId) -> Result<SandboxId, RuntimeError> {
        if let Some(sandbox) = self.sandboxes.borrow().get(id) {
            return Ok(sandbox.clone());
        }
        let filter = cri::ContainerFilter { id: id.to_string(), ..cri::ContainerFilter::default() };
        let found = self.containers(filter).await?;
        Ok(found
            .into_iter()
            .find(|container| container.id == *id)
            .map(|container| container.sandbox)
            .unwrap_or_default())
    }
}

impl Runtime for CriRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        let call = "Version";
        let request = cri::VersionRequest { version: API_VERSION.to_owned() };
        let answer = self
            .call_limited(CallKind::Health, call, self.request_timeout, self.runtime().version(request))
            .await?;
        if answer.version != API_VERSION {
            let message =
                format!("unsupported runtime API version {:?}, expected {API_VERSION:?}", answer.version);
            return Err(RuntimeError::new(call, ErrorKind::Refused, message));
        }
        Ok(RuntimeVersion {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api_version: answer.runtime_api_version,
        })
    }

    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        let request = cri::StatusRequest { verbose: false };
        let answer = self.query("Status", self.runtime().status(request)).await?;
        Ok(convert::status_from_message(answer))
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError> {
        let request = cri::RuntimeConfigRequest {};
        match self.query("RuntimeConfig", self.runtime().runtime_config(request)).await {
            Ok(answer) => Ok(convert::cgroup_driver_from_message(answer)),
            Err(error) if error.kind == ErrorKind::Unimplemented => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list_sandboxes(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedSandbox>, RuntimeError> {
        let filter = cri::PodSandboxFilter {
            label_selector: convert::pod_selector(pod),
            ..cri::PodSandboxFilter::default()
        };
        let request = cri::ListPodSandboxRequest { filter: Some(filter) };
        let mut client = self.runtime();
        let answer = self.query("ListPodSandbox", client.list_pod_sandbox(request)).await?;
        Ok(answer.items.into_iter().filter_map(convert::sandbox_from_list).collect())
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError> {
        let call = "PodSandboxStatus";
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose: false };
        let answer = self.query(call, self.runtime().pod_sandbox_status(request)).await?;
        Ok(convert::sandbox_from_status(answered(call, answer.status)?))
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, RuntimeError> {
        let call = "RunPodSandbox";
        let request = cri::RunPodSandboxRequest {
            config: Some(convert::sandbox_config(config)),
            runtime_handler: config.runtime_handler.clone(),
        };
        // The network may take its time; upstream allows twice the usual.
        let limit = self.request_timeout.saturating_mul(2);
        let mut client = self.runtime();
        let made = Box::pin(client.run_pod_sandbox(request));
        let answer = self.call_limited(CallKind::Changes, call, limit, made).await?;
        answered(call, Some(answer.pod_sandbox_id).filter(|id| !id.is_empty())).map(SandboxId::from)
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        let mut client = self.runtime();
        forgive_not_found(self.change("StopPodSandbox", client.stop_pod_sandbox(request)).await)
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        let mut client = self.runtime();
        let answer = self.change("RemovePodSandbox", client.remove_pod_sandbox(request)).await;
        forgive_not_found(answer)
    }

    async fn list_containers(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedContainer>, RuntimeError> {
        let selector = convert::pod_selector(pod);
        let filter = cri::ContainerFilter { label_selector: selector, ..cri::ContainerFilter::default() };
        let containers = self.containers(filter).await?;
        let known = containers.iter().map(|container| (container.id.clone(), container.sandbox.clone()));
        let mut sandboxes = self.sandboxes.borrow_mut();
        if pod.is_none() {
            sandboxes.clear();
        }
        sandboxes.extend(known);
        Ok(containers)
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError> {
        let call = "ContainerStatus";
        let request = cri::ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let answer = self.query(call, self.runtime().container_status(request)).await?;
        let status = answered(call, answer.status)?;
        Ok(convert::container_from_status(status, self.sandbox_of(id).await?))
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let call = "CreateContainer";
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(convert::container_config(config)),
            sandbox_config: Some(convert::sandbox_config(sandbox_config)),
        };
        let mut client = self.runtime();
        let answer = self.change(call, Box::pin(client.create_container(request))).await?;
        let id =
            answered(call, Some(answer.container_id).filter(|id| !id.is_empty())).map(ContainerId::from)?;
        self.sandboxes.borrow_mut().insert(id.clone(), sandbox.clone());
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = cri::StartContainerRequest { container_id: id.to_string() };
        self.change("StartContainer", self.runtime().start_container(request)).await?;
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let timeout = convert::grace_seconds(grace);
        let request = cri::StopContainerRequest { container_id: id.to_string(), timeout };
        let limit = self.request_timeout.saturating_add(grace);
        forgive_not_found(bounded("StopContainer", limit, self.runtime().stop_container(request)).await)
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = cri::RemoveContainerRequest { container_id: id.to_string() };
        let mut client = self.runtime();
        let answer = self.change("RemoveContainer", client.remove_container(request)).await;
        if answer.as_ref().is_err_and(stuck::is_stuck) {
            stuck::end_task(self.channel.clone(), id, self.request_timeout).await;
        }
        forgive_not_found(answer)?;
        self.sandboxes.borrow_mut().remove(id);
        Ok(())
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = cri::ReopenContainerLogRequest { container_id: id.to_string() };
        let mut client = self.runtime();
        self.change("ReopenContainerLog", client.reopen_container_log(request)).await?;
        Ok(())
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(convert::resources(resources)),
            ..cri::UpdateContainerResourcesRequest::default()
        };
        let mut client = self.runtime();
        let call = Box::pin(client.update_container_resources(request));
        self.change("UpdateContainerResources", call).await?;
        Ok(())
    }

    async fn set_pod_cidrs(&self, cidrs: &[String]) -> Result<(), RuntimeError> {
        let network_config = Some(cri::NetworkConfig { pod_cidr: cidrs.join(",") });
        let runtime_config = Some(cri::RuntimeConfig { network_config });
        let request = cri::UpdateRuntimeConfigRequest { runtime_config };
        let mut client = self.runtime();
        let call = Box::pin(client.update_runtime_config(request));
        self.change("UpdateRuntimeConfig", call).await?;
        Ok(())
    }

    async fn checkpoint_container(
        &self,
        id: &ContainerId,
        location: &Path,
        timeout: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        let request = cri::CheckpointContainerRequest {
            container_id: id.to_string(),
            location: location.display().to_string(),
            timeout: timeout.map_or(0, convert::grace_seconds),
        };
        let mut client = self.runtime();
        let limit = self.request_timeout.saturating_add(timeout.unwrap_or_default());
        let written = client.checkpoint_container(request);
        self.call_limited(CallKind::Commands, "CheckpointContainer", limit, written).await?;
        Ok(())
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, RuntimeError> {
        let request = cri::ExecSyncRequest {
            container_id: id.to_string(),
            cmd: command.to_vec(),
            timeout: timeout.map_or(0, convert::grace_seconds),
        };
        let operation = Operation::begin("ExecSync");
        let mut client = self.runtime();
        let running = client.exec_sync(request);
        let outcome = match timeout {
            Some(timeout) => {
                let limit = self.request_timeout.saturating_add(timeout);
                let _turn = self.limits.acquire(CallKind::Commands).await;
                tokio::time::timeout(limit, running).await
            }
            None => Ok(running.await),
        };
        let answer = command_answer(command, outcome);
        operation.end(answer.is_err());
        let answer = answer?;
        let mut output = answer.stdout;
        output.extend_from_slice(&answer.stderr);
        Ok(ExecOutput { exit_code: answer.exit_code, output })
    }

    async fn image_status(&self, image: &str) -> Result<Option<ImageStatus>, RuntimeError> {
        let request = cri::ImageStatusRequest { image: Some(convert::image_spec(image)), verbose: false };
        let mut client = self.images.clone();
        let answer = self.query("ImageStatus", client.image_status(request)).await?;
        Ok(answer.image.map(convert::image_from_message))
    }

    /// As upstream, a pull has no time limit: dropping the future cancels it, and a runtime that does not
    /// even answer the connection's keep-alive ends it.
    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&ImageAuth>,
        sandbox: &SandboxConfig,
    ) -> Result<String, RuntimeError> {
        let call = "PullImage";
        let request = cri::PullImageRequest {
            image: Some(convert::image_spec(image)),
            auth: auth.map(convert::auth_config),
            sandbox_config: Some(convert::sandbox_config(sandbox)),
        };
        let operation = Operation::begin(call);
        let answer = unbounded(call, Box::pin(self.images.clone().pull_image(request))).await;
        operation.end(answer.is_err());
        let answer = answer?;
        answered(call, Some(answer.image_ref).filter(|reference| !reference.is_empty()))
    }

    async fn list_images(&self) -> Result<Vec<RuntimeImage>, RuntimeError> {
        let request = cri::ListImagesRequest::default();
        let mut client = self.images.clone();
        let answer = self.query("ListImages", client.list_images(request)).await?;
        Ok(answer.images.into_iter().map(convert::listed_image).collect())
    }

    async fn remove_image(&self, id: &str) -> Result<Option<u64>, RuntimeError> {
        let request = cri::RemoveImageRequest { image: Some(convert::image_spec(id)) };
        let mut client = self.images.clone();
        forgive_not_found(self.change("RemoveImage", client.remove_image(request)).await)?;
        Ok(None)
    }

    async fn disk_places(&self) -> Result<DiskPlaces, RuntimeError> {
        let mut client = self.images.clone();
        let answer = self.query("ImageFsInfo", client.image_fs_info(cri::ImageFsInfoRequest {})).await?;
        let first = |all: Vec<cri::FilesystemUsage>| {
            all.into_iter().next().map(|usage| convert::disk_from_message(usage).place)
        };
        Ok(DiskPlaces {
            images: first(answer.image_filesystems),
            layers: first(answer.container_filesystems),
        })
    }

    async fn next_change(&self) -> Result<(), RuntimeError> {
        self.hints.next().await
    }
}
