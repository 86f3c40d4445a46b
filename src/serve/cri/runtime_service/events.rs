//! `GetContainerEvents`: changes of sandboxes and containers, with their state at that time.

use prost::Message;
use tokio::sync::broadcast::error::RecvError;

use super::super::{CriServer, messages};
use crate::platform::grpc::{self, GrpcReply};
use crate::platform::proto::runtime as cri;
use crate::runtime::embedded::runtime::EmbeddedRuntime;
use crate::runtime::embedded::runtime::api::{EventKind, RuntimeEvent};

impl CriServer {
    /// Sends events from now on, until the client disconnects. A slow client misses some, as CRI allows.
    pub(in super::super) fn container_events(&self) -> GrpcReply {
        let (sink, answer) = grpc::stream();
        let (mut events, runtime) = (self.runtime.events(), self.runtime.clone());
        crate::platform::rt::spawn("cri events", async move {
            loop {
                let event = tokio::select! {
                    biased;
                    () = sink.closed() => return,
                    event = events.recv() => event,
                };
                let event = match event {
                    Ok(event) => described(&runtime, &event),
                    Err(RecvError::Lagged(count)) => {
                        log::warn!(count = count; "Container event client is too slow, dropping events");
                        continue;
                    }
                    Err(RecvError::Closed) => return,
                };
                if sink.send(Ok(event.encode_to_vec())).await.is_err() {
                    return;
                }
            }
        });
        answer
    }
}

fn described(runtime: &EmbeddedRuntime, event: &RuntimeEvent) -> cri::ContainerEventResponse {
    let kind = match event.kind {
        EventKind::Created => cri::ContainerEventType::ContainerCreatedEvent,
        EventKind::Started => cri::ContainerEventType::ContainerStartedEvent,
        EventKind::Stopped => cri::ContainerEventType::ContainerStoppedEvent,
        EventKind::Deleted => cri::ContainerEventType::ContainerDeletedEvent,
    };
    let sandbox = runtime.sandbox(&event.sandbox).ok().or_else(|| event.last.as_deref().cloned());
    let mut containers = runtime.containers();
    containers.retain(|view| view.sandbox == event.sandbox);
    let id = event.container.as_ref().map_or(event.sandbox.as_str(), |container| container.as_str());
    cri::ContainerEventResponse {
        container_id: id.to_owned(),
        container_event_type: kind.into(),
        created_at: event.at.as_nanos(),
        pod_sandbox_status: sandbox.as_ref().map(messages::sandbox_status),
        containers_statuses: containers.iter().map(messages::container_status).collect(),
    }
}
