//! Stopping containers: groups one after another, members of a group at the same time, one grace budget for all.

use std::rc::Rc;
use std::time::Duration;

use crate::api::pod::Pod;
use crate::events::EventType;
use crate::executor::{Executor, retry_after};
use crate::image::StartFailure as Failure;
use crate::reconcile::containers::find_container;
use crate::reconcile::plan::{ContainerKind, StopContainer};
use crate::runtime::Runtime;
use crate::types::Timestamp;

/// The shortest grace a runtime is asked for (upstream).
const MIN_STOP_GRACE: Duration = Duration::from_secs(2);

impl<R: Runtime> Executor<R> {
    /// Stops the groups in order. Every member is tried; the first failure is reported.
    pub(super) async fn stop_containers(
        &self,
        pod: &Pod,
        groups: &[Vec<StopContainer>],
        grace_seconds: i64,
    ) -> Result<(), Failure> {
        let budget = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let started = self.clock.now();
        let mut failure = None;
        for group in groups {
            if let Err(error) = self.stop_group(pod, group, budget, started).await {
                failure = failure.or(Some(error));
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn stop_group(
        &self,
        pod: &Pod,
        group: &[StopContainer],
        budget: Duration,
        started: Timestamp,
    ) -> Result<(), Failure> {
        let left = budget.saturating_sub(self.clock.now().saturating_since(started)).max(MIN_STOP_GRACE);
        let mut stops = tokio::task::JoinSet::new();
        for stop in group {
            let kind = find_container(pod, &stop.name).map_or(ContainerKind::Regular, |(_, kind)| kind);
            let path = super::field_path(&stop.name, kind);
            self.event(pod, &path, EventType::Normal, "Killing", &stop.message);
            let (runtime, id) = (Rc::clone(&self.runtime), stop.id.clone());
            stops.spawn_local(async move { runtime.stop_container(&id, left).await });
        }
        let mut failure = None;
        while let Some(ended) = stops.join_next().await {
            if let Ok(Err(error)) = ended {
                let message = format!("error killing pod: {error}");
                self.pod_event(pod, EventType::Warning, "FailedKillPod", &message);
                failure = Some(Failure {
                    reason: "FailedKillPod",
                    message,
                    retry_after: Some(retry_after(&error)),
                });
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
