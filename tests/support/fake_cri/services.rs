//! The calls the agent makes; all others are unimplemented, as in an old runtime.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use edge_agent::model::runtime_config::CgroupDriver;
use edge_agent::model::types::{ContainerId, SandboxId};
use edge_agent::platform::clock::Clock;
use edge_agent::platform::proto::containerd_events::events_server::Events as ContainerdEvents;
use edge_agent::platform::proto::containerd_events::{Envelope, SubscribeRequest};
use edge_agent::platform::proto::runtime as cri;
use edge_agent::platform::proto::runtime::image_service_server::ImageService;
use edge_agent::platform::proto::runtime::runtime_service_server::RuntimeService;
use edge_agent::runtime::{ImageAuth, RuntimeError};
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};

use super::{Events, Shared, messages};

/// Events that wait for a slow reader.
const EVENT_QUEUE: usize = 64;

/// A handle to the server's state.
#[derive(Clone)]
pub struct Services {
    shared: Arc<Shared>,
}

/// Has all labels of a selector.
fn selected(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

type Answer<T> = Result<Response<T>, Status>;

impl Services {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// An event for every change of the world while this kind of event is on.
    fn stream<T: Send + 'static>(
        &self,
        kind: Events,
        event: impl Fn() -> T + Send + 'static,
    ) -> Answer<BoxStream<T>> {
        if self.shared.lock().events != kind {
            return Err(Status::unimplemented("unknown method"));
        }
        let shared = Arc::clone(&self.shared);
        let (sender, receiver) = tokio::sync::mpsc::channel(EVENT_QUEUE);
        let mut seen = shared.lock().world.changes();
        tokio::spawn(async move {
            loop {
                let mut wake = std::pin::pin!(shared.changed.notified());
                wake.as_mut().enable();
                let (changes, due, on) = {
                    let state = shared.lock();
                    (state.world.changes(), state.world.next_due(), state.events == kind)
                };
                if !on {
                    return;
                }
                if changes != seen {
                    seen = changes;
                    if sender.send(Ok(event())).await.is_err() {
                        return;
                    }
                    continue;
                }
                let wait = due.map_or(Duration::MAX, |due| due.saturating_since(Clock::System.now()));
                tokio::select! {
                    () = sender.closed() => return,
                    _ = tokio::time::timeout(wait, wake) => {}
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

#[async_trait]
impl RuntimeService for Services {
    async fn version(&self, _: Request<cri::VersionRequest>) -> Answer<cri::VersionResponse> {
        self.shared.arrive("Version", "").await?;
        Ok(Response::new(cri::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "fake".into(),
            runtime_version: "1.0.0".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Answer<cri::UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        self.shared.arrive("UpdateRuntimeConfig", &network.unwrap_or_default().pod_cidr).await?;
        Ok(Response::new(cri::UpdateRuntimeConfigResponse {}))
    }

    async fn status(&self, _: Request<cri::StatusRequest>) -> Answer<cri::StatusResponse> {
        let status = self.shared.call("Status", "", |state, _| Ok(state.world.status.clone())).await?;
        let condition = |kind: &str, met: Result<(), String>| cri::RuntimeCondition {
            r#type: kind.into(),
            status: met.is_ok(),
            reason: if met.is_ok() { String::new() } else { "Simulated".into() },
            message: met.err().unwrap_or_default(),
        };
        let conditions = vec![
            condition("RuntimeReady", status.runtime_ready),
            condition("NetworkReady", status.network_ready),
        ];
        Ok(Response::new(cri::StatusResponse {
            status: Some(cri::RuntimeStatus { conditions }),
            runtime_handlers: status.handlers.into_iter().map(messages::runtime_handler).collect(),
            features: status.supplemental_groups_policy.map(|supplemental_groups_policy| {
                cri::RuntimeFeatures { supplemental_groups_policy, ..cri::RuntimeFeatures::default() }
            }),
            ..cri::StatusResponse::default()
        }))
    }

    async fn runtime_config(
        &self,
        _: Request<cri::RuntimeConfigRequest>,
    ) -> Answer<cri::RuntimeConfigResponse> {
        let driver = self.shared.call("RuntimeConfig", "", |state, _| Ok(state.world.cgroup_driver)).await?;
        let cgroup_driver = match driver {
            Some(CgroupDriver::Cgroupfs) => cri::CgroupDriver::Cgroupfs,
            Some(CgroupDriver::Systemd) => cri::CgroupDriver::Systemd,
            None => return Err(Status::unimplemented("unknown method RuntimeConfig")),
        };
        let linux = Some(cri::LinuxRuntimeConfiguration { cgroup_driver: cgroup_driver.into() });
        Ok(Response::new(cri::RuntimeConfigResponse { linux }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Answer<cri::RunPodSandboxResponse> {
        let request = request.into_inner();
        let raw = request.config.unwrap_or_default();
        let config = messages::sandbox_config(&raw, request.runtime_handler);
        let subject = format!("{}/{}", config.pod.namespace, config.pod.name);
        let effect = |state: &mut super::State, now| {
            let id = state.world.run_sandbox(&config, now)?;
            state.sandbox_configs.insert(id.to_string(), raw);
            state.runtime_handlers.insert(id.to_string(), config.runtime_handler.clone());
            Ok(id)
        };
        let id = self.shared.call("RunPodSandbox", &subject, effect).await?;
        Ok(Response::new(cri::RunPodSandboxResponse { pod_sandbox_id: id.to_string() }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Answer<cri::StopPodSandboxResponse> {
        let id = SandboxId::from(request.into_inner().pod_sandbox_id);
        let effect = |state: &mut super::State, now| {
            state.world.stop_sandbox(&id, now);
            Ok(())
        };
        self.shared.call("StopPodSandbox", id.as_str(), effect).await?;
        Ok(Response::new(cri::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        let id = SandboxId::from(request.into_inner().pod_sandbox_id);
        let effect = |state: &mut super::State, now| {
            state.world.remove_sandbox(&id, now);
            Ok(())
        };
        self.shared.call("RemovePodSandbox", id.as_str(), effect).await?;
        Ok(Response::new(cri::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        let id = SandboxId::from(request.into_inner().pod_sandbox_id);
        let effect = |state: &mut super::State, _| {
            let observed = state.world.sandbox_status(&id)?;
            Ok(messages::sandbox_status(&observed, &state.world.sandboxes[&id].config))
        };
        let status = self.shared.call("PodSandboxStatus", id.as_str(), effect).await?;
        let answer = cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() };
        Ok(Response::new(answer))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Answer<cri::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let effect = |state: &mut super::State, _| {
            // A message of each of thousands to filter would take the time of a real runtime's whole answer.
            let sandboxes = state.world.sandboxes.values();
            let sandboxes =
                sandboxes.filter(|sandbox| selected(&sandbox.config.labels, &filter.label_selector));
            let items = sandboxes.map(|sandbox| messages::sandbox_item(&sandbox.observed, &sandbox.config));
            Ok(items
                .filter(|item| filter.id.is_empty() || filter.id == item.id)
                .filter(|item| filter.state.is_none_or(|state| state.state == item.state))
                .collect())
        };
        let items = self.shared.call("ListPodSandbox", "", effect).await?;
        Ok(Response::new(cri::ListPodSandboxResponse { items }))
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Answer<cri::CreateContainerResponse> {
        let request = request.into_inner();
        if request.sandbox_config.is_none() {
            return Err(Status::invalid_argument("sandbox config is nil"));
        }
        let sandbox = SandboxId::from(request.pod_sandbox_id);
        let raw = request.config.unwrap_or_default();
        let config = messages::container_config(&raw);
        let effect = |state: &mut super::State, now| {
            let id = state.world.create_container(&sandbox, &config, now)?;
            state.container_configs.insert(id.to_string(), raw);
            Ok(id)
        };
        let id = self.shared.call("CreateContainer", &config.name, effect).await?;
        Ok(Response::new(cri::CreateContainerResponse { container_id: id.to_string() }))
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Answer<cri::StartContainerResponse> {
        let id = ContainerId::from(request.into_inner().container_id);
        let effect = |state: &mut super::State, now| state.world.start_container(&id, now);
        self.shared.call("StartContainer", id.as_str(), effect).await?;
        Ok(Response::new(cri::StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Answer<cri::StopContainerResponse> {
        let request = request.into_inner();
        let id = ContainerId::from(request.container_id);
        let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or_default());
        let effect = |state: &mut super::State, now| {
            state.world.begin_stop(&id, grace, now);
            Ok(())
        };
        self.shared.call("StopContainer", id.as_str(), effect).await?;
        loop {
            let until = self.shared.lock().world.stopping_until(&id);
            let Some(until) = until else { break };
            tokio::time::sleep(until.saturating_since(Clock::System.now())).await;
        }
        self.shared.changed.notify_waiters();
        Ok(Response::new(cri::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Answer<cri::RemoveContainerResponse> {
        let id = ContainerId::from(request.into_inner().container_id);
        let effect = |state: &mut super::State, now| {
            state.world.remove_container(&id, now);
            Ok(())
        };
        self.shared.call("RemoveContainer", id.as_str(), effect).await?;
        Ok(Response::new(cri::RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Answer<cri::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let effect = |state: &mut super::State, _| {
            let containers = state.world.containers.values();
            let containers =
                containers.filter(|container| selected(&container.config.labels, &filter.label_selector));
            let items =
                containers.map(|container| messages::container_item(&container.observed, &container.config));
            Ok(items
                .filter(|item| filter.id.is_empty() || filter.id == item.id)
                .filter(|item| filter.state.is_none_or(|state| state.state == item.state))
                .filter(|item| {
                    filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == item.pod_sandbox_id
                })
                .collect())
        };
        let containers = self.shared.call("ListContainers", "", effect).await?;
        Ok(Response::new(cri::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Answer<cri::ContainerStatusResponse> {
        let id = ContainerId::from(request.into_inner().container_id);
        let effect = |state: &mut super::State, _| {
            let observed = state.world.container_status(&id)?;
            Ok(messages::container_status(&observed, &state.world.containers[&id].config))
        };
        let status = self.shared.call("ContainerStatus", id.as_str(), effect).await?;
        Ok(Response::new(cri::ContainerStatusResponse { status: Some(status), ..Default::default() }))
    }

    /// The subject is the container and the limit in seconds; the archive has one word.
    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> Answer<cri::CheckpointContainerResponse> {
        let cri::CheckpointContainerRequest { container_id, location, timeout } = request.into_inner();
        let id = ContainerId::from(container_id);
        let effect = |state: &mut super::State, _| {
            state.world.container_status(&id)?;
            std::fs::write(&location, "state").expect("the directory is there");
            Ok(())
        };
        self.shared.call("CheckpointContainer", &format!("{id} {timeout}"), effect).await?;
        Ok(Response::new(cri::CheckpointContainerResponse {}))
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Answer<cri::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let id = ContainerId::from(request.container_id.clone());
        let resources = messages::resources(request.linux.as_ref());
        let effect = |state: &mut super::State, _| {
            state.updates.push(request);
            state.world.update_resources(&id, &resources)
        };
        self.shared.call("UpdateContainerResources", id.as_str(), effect).await?;
        Ok(Response::new(cri::UpdateContainerResourcesResponse {}))
    }

    /// The subject is the container and the command.
    async fn exec_sync(&self, request: Request<cri::ExecSyncRequest>) -> Answer<cri::ExecSyncResponse> {
        let request = request.into_inner();
        let id = ContainerId::from(request.container_id.clone());
        let subject = format!("{id} {}", request.cmd.join(" "));
        let timeout = u64::try_from(request.timeout).ok().filter(|seconds| *seconds > 0);
        let effect = |state: &mut super::State, now| {
            let timeout = timeout.map(Duration::from_secs);
            let begun = state.world.exec(&id, &request.cmd, timeout, now);
            state.commands.push(request);
            begun
        };
        let begun = self.shared.call("ExecSync", &subject, effect).await?;
        tokio::time::sleep(begun.takes).await;
        let output = begun.outcome.map_err(|error| super::status_of(&error))?;
        Ok(Response::new(cri::ExecSyncResponse {
            stdout: output.output,
            stderr: Vec::new(),
            exit_code: output.exit_code,
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> Answer<BoxStream<cri::ContainerEventResponse>> {
        self.shared.arrive("GetContainerEvents", "").await?;
        self.stream(Events::Cri, cri::ContainerEventResponse::default)
    }
}

#[async_trait]
impl ImageService for Services {
    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Answer<cri::ImageStatusResponse> {
        let image = request.into_inner().image.unwrap_or_default().image;
        let effect = |state: &mut super::State, _| Ok(state.world.image_status(&image));
        let status = self.shared.call("ImageStatus", &image, effect).await?;
        let image = status.map(|status| cri::Image {
            id: status.id,
            size: status.size_bytes,
            uid: status.uid.map(|value| cri::Int64Value { value }),
            username: status.username,
            ..cri::Image::default()
        });
        Ok(Response::new(cri::ImageStatusResponse { image, ..Default::default() }))
    }

    async fn pull_image(&self, request: Request<cri::PullImageRequest>) -> Answer<cri::PullImageResponse> {
        let request = request.into_inner();
        let image = request.image.unwrap_or_default().image;
        let auth = request.auth.map(|auth| ImageAuth::of_user(auth.username, auth.password));
        let effect = |state: &mut super::State, _| state.world.resolve_remote(&image, auth.as_ref());
        let remote = self.shared.call("PullImage", &image, effect).await?;
        tokio::time::sleep(remote.pull_time).await;
        let image_ref = remote.image.id.clone();
        self.shared.lock().world.images.insert(image, remote.image);
        Ok(Response::new(cri::PullImageResponse { image_ref }))
    }

    async fn list_images(&self, _: Request<cri::ListImagesRequest>) -> Answer<cri::ListImagesResponse> {
        let effect = |state: &mut super::State, _| -> Result<_, RuntimeError> {
            let image = |(tag, image): (&String, &edge_agent::runtime::fake::FakeImage)| cri::Image {
                id: image.id.clone(),
                repo_tags: vec![tag.clone()],
                size: image.size_bytes,
                ..cri::Image::default()
            };
            Ok(state.world.images.iter().map(image).collect())
        };
        let images = self.shared.call("ListImages", "", effect).await?;
        Ok(Response::new(cri::ListImagesResponse { images }))
    }
}

#[async_trait]
impl ContainerdEvents for Services {
    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Answer<BoxStream<Envelope>> {
        self.shared.arrive("Subscribe", &request.into_inner().filters.join(" ")).await?;
        self.stream(Events::Containerd, || Envelope {
            namespace: "k8s.io".into(),
            topic: "/tasks/exit".into(),
            event: None,
        })
    }
}
