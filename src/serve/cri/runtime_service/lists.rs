//! Lists, in one answer or as a stream, and statistics.
//!
//! Owns which objects match a filter.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::body::Bytes;
use prost::Message;

use super::super::select::matches_filter;
use super::super::{CriServer, failed, messages, stats};
use crate::model::observed::ContainerStateKind;
use crate::platform::grpc::{self, GrpcReply, Status};
use crate::platform::proto::runtime as cri;
use crate::runtime::ContainerFigures;
use crate::runtime::embedded::runtime::api::{ContainerView, SandboxView};

/// Entries in one message of a stream, well below the message size limit.
const BATCH: usize = 100;

/// A list as a stream of messages of some entries each.
fn batches<T: Clone + 'static, M: Message>(
    entries: Vec<T>,
    message: impl Fn(Vec<T>) -> M + 'static,
) -> GrpcReply {
    let (sink, answer) = grpc::stream();
    crate::platform::rt::spawn("cri list", async move {
        for batch in entries.chunks(BATCH) {
            if sink.send(Ok(message(batch.to_vec()).encode_to_vec())).await.is_err() {
                // The client has disconnected.
                return;
            }
        }
    });
    answer
}

impl CriServer {
    fn matching_sandboxes(&self, filter: Option<cri::PodSandboxFilter>) -> Vec<SandboxView> {
        let filter = filter.unwrap_or_default();
        let state = filter.state.map(|value| value.state());
        let mut all = self.runtime.sandboxes();
        all.retain(|view| {
            matches_filter(view.id.as_str(), &view.config.labels, &filter.id, &filter.label_selector)
                && state.is_none_or(|state| state == messages::sandbox_state(view))
        });
        all
    }

    fn matching_containers(
        &self,
        id: &str,
        sandbox: &str,
        selector: &BTreeMap<String, String>,
        state: Option<cri::ContainerState>,
    ) -> Vec<ContainerView> {
        let mut all = self.runtime.containers();
        all.retain(|view| {
            matches_filter(view.id.as_str(), &view.config.labels, id, selector)
                && view.sandbox.as_str().starts_with(sandbox)
                && state.is_none_or(|state| state == messages::container_state(view))
        });
        all
    }

    fn sandbox_items(&self, filter: Option<cri::PodSandboxFilter>) -> Vec<cri::PodSandbox> {
        self.matching_sandboxes(filter).iter().map(messages::sandbox_item).collect()
    }

    fn container_items(&self, filter: Option<cri::ContainerFilter>) -> Vec<cri::Container> {
        let filter = filter.unwrap_or_default();
        let state = filter.state.map(|value| value.state());
        let found =
            self.matching_containers(&filter.id, &filter.pod_sandbox_id, &filter.label_selector, state);
        found.iter().map(messages::container_item).collect()
    }

    pub(in super::super) async fn list_pod_sandbox(
        &self,
        request: cri::ListPodSandboxRequest,
    ) -> Result<cri::ListPodSandboxResponse, Status> {
        Ok(cri::ListPodSandboxResponse { items: self.sandbox_items(request.filter) })
    }

    pub(in super::super) fn stream_pod_sandboxes(&self, message: Bytes) -> Result<GrpcReply, Status> {
        let request: cri::StreamPodSandboxesRequest = grpc::decoded(message)?;
        let items = self.sandbox_items(request.filter);
        Ok(batches(items, |pod_sandboxes| cri::StreamPodSandboxesResponse { pod_sandboxes }))
    }

    pub(in super::super) async fn list_containers(
        &self,
        request: cri::ListContainersRequest,
    ) -> Result<cri::ListContainersResponse, Status> {
        Ok(cri::ListContainersResponse { containers: self.container_items(request.filter) })
    }

    pub(in super::super) fn stream_containers(&self, message: Bytes) -> Result<GrpcReply, Status> {
        let request: cri::StreamContainersRequest = grpc::decoded(message)?;
        let items = self.container_items(request.filter);
        Ok(batches(items, |containers| cri::StreamContainersResponse { containers }))
    }

    fn layers(&self) -> PathBuf {
        self.runtime.config().layout.writable_layers()
    }

    /// With the usage of each. A container that is removed meanwhile is left out.
    async fn measured(&self, containers: Vec<ContainerView>) -> Vec<(ContainerView, ContainerFigures)> {
        let mut measured = Vec::new();
        for view in containers {
            if let Ok(stats) = self.runtime.stats(&view.id).await {
                measured.push((view, stats));
            }
        }
        measured
    }

    pub(in super::super) async fn container_stats(
        &self,
        request: cri::ContainerStatsRequest,
    ) -> Result<cri::ContainerStatsResponse, Status> {
        let view = self.container(&request.container_id)?;
        let used = self.runtime.stats(&view.id).await.map_err(failed)?;
        Ok(cri::ContainerStatsResponse { stats: Some(stats::container(&view, &used, &self.layers())) })
    }

    async fn container_stats_items(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Vec<cri::ContainerStats> {
        let filter = filter.unwrap_or_default();
        let running = Some(cri::ContainerState::ContainerRunning);
        let views =
            self.matching_containers(&filter.id, &filter.pod_sandbox_id, &filter.label_selector, running);
        let (measured, layers) = (self.measured(views).await, self.layers());
        measured.iter().map(|(view, used)| stats::container(view, used, &layers)).collect()
    }

    pub(in super::super) async fn list_container_stats(
        &self,
        request: cri::ListContainerStatsRequest,
    ) -> Result<cri::ListContainerStatsResponse, Status> {
        Ok(cri::ListContainerStatsResponse { stats: self.container_stats_items(request.filter).await })
    }

    pub(in super::super) async fn stream_container_stats(&self, message: Bytes) -> Result<GrpcReply, Status> {
        let request: cri::StreamContainerStatsRequest = grpc::decoded(message)?;
        let items = self.container_stats_items(request.filter).await;
        Ok(batches(items, |container_stats| cri::StreamContainerStatsResponse { container_stats }))
    }

    async fn containers_of(&self, sandbox: &SandboxView) -> Vec<(ContainerView, ContainerFigures)> {
        let mut views = self.runtime.containers();
        views.retain(|view| view.sandbox == sandbox.id && view.state == ContainerStateKind::Running);
        self.measured(views).await
    }

    pub(in super::super) async fn pod_sandbox_stats(
        &self,
        request: cri::PodSandboxStatsRequest,
    ) -> Result<cri::PodSandboxStatsResponse, Status> {
        let view = self.sandbox(&request.pod_sandbox_id)?;
        let measured = self.containers_of(&view).await;
        Ok(cri::PodSandboxStatsResponse { stats: Some(stats::sandbox(&view, &measured, &self.layers())) })
    }

    async fn sandbox_stats_items(
        &self,
        filter: Option<cri::PodSandboxStatsFilter>,
    ) -> Vec<cri::PodSandboxStats> {
        let filter = filter.unwrap_or_default();
        let ready = cri::PodSandboxStateValue { state: cri::PodSandboxState::SandboxReady.into() };
        let filter = cri::PodSandboxFilter {
            id: filter.id,
            state: Some(ready),
            label_selector: filter.label_selector,
        };
        let mut items = Vec::new();
        for view in self.matching_sandboxes(Some(filter)) {
            let measured = self.containers_of(&view).await;
            items.push(stats::sandbox(&view, &measured, &self.layers()));
        }
        items
    }

    pub(in super::super) async fn list_pod_sandbox_stats(
        &self,
        request: cri::ListPodSandboxStatsRequest,
    ) -> Result<cri::ListPodSandboxStatsResponse, Status> {
        Ok(cri::ListPodSandboxStatsResponse { stats: self.sandbox_stats_items(request.filter).await })
    }

    pub(in super::super) async fn stream_pod_sandbox_stats(
        &self,
        message: Bytes,
    ) -> Result<GrpcReply, Status> {
        let request: cri::StreamPodSandboxStatsRequest = grpc::decoded(message)?;
        let items = self.sandbox_stats_items(request.filter).await;
        Ok(batches(items, |pod_sandbox_stats| cri::StreamPodSandboxStatsResponse { pod_sandbox_stats }))
    }
}
