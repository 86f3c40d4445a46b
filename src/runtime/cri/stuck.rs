//! Workaround for a fault of containerd (1.6, 1.7): a start whose caller dies in the middle may leave a task
//! behind a container that CRI shows as ended. Stopping it is refused as already done, removing it as too
//! early, until containerd is restarted.
//!
//! Owns the fix: containerd's own task service on the same socket. Other runtimes have neither the fault nor
//! the service, and their refusals are passed on unchanged.

use std::time::Duration;

use tonic::Request;
use tonic::metadata::MetadataValue;

use super::call::bounded;
use crate::model::types::ContainerId;
use crate::platform::grpc::Channel;
use crate::platform::proto::containerd_tasks::tasks_client::TasksClient;
use crate::platform::proto::containerd_tasks::{DeleteTaskRequest, KillRequest};
use crate::runtime::RuntimeError;

/// containerd's error for a container whose task CRI has lost.
const LOST_TASK: &str = "cannot delete running task";
/// containerd's name for everything of CRI's.
const NAMESPACE: &str = "k8s.io";
const SIGKILL: u32 = 9;

/// The removal failed because of a task that CRI does not know of.
pub(super) fn is_stuck(error: &RuntimeError) -> bool {
    error.message.contains(LOST_TASK)
}

/// Kills the task and deletes it. The task may still be ending afterwards: the caller retries the removal of
/// the container.
pub(super) async fn end_task(channel: Channel, id: &ContainerId, limit: Duration) {
    let mut tasks = TasksClient::new(channel);
    let kill =
        KillRequest { container_id: id.to_string(), exec_id: String::new(), signal: SIGKILL, all: true };
    let killed = bounded("Tasks.Kill", limit, tasks.kill(of_cri(kill))).await;
    let deleted = bounded(
        "Tasks.Delete",
        limit,
        tasks.delete(of_cri(DeleteTaskRequest { container_id: id.to_string() })),
    )
    .await;
    log::warn!(container:% = id, killed = killed.is_ok(), deleted = deleted.is_ok(); "Killing task lost by \
         containerd's CRI plugin");
}

fn of_cri<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::ErrorKind;

    #[test]
    fn only_a_lost_task_is_a_reason_to_go_behind_the_runtimes_back() {
        let refused = |message: &str| RuntimeError::new("RemoveContainer", ErrorKind::Refused, message);
        let words =
            "failed to delete containerd container \"a\": cannot delete running task a: failed precondition";
        assert!(is_stuck(&refused(words)));
        assert!(!is_stuck(&refused("container \"a\" is still running")));
    }
}
