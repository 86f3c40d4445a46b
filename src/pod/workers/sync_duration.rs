//! Metrics: how long the syncs of pod workers take.

use crate::platform::metrics::{self, Family};

static DURATION: Family = Family::seconds(
    "kubelet_pod_worker_duration_seconds",
    "Duration in seconds to sync a single pod",
    &["operation_type"],
);

/// Awaits a sync of a worker and records its duration under the operation's name, as upstream.
pub(super) async fn measured<T>(operation: &'static str, turn: impl Future<Output = T>) -> T {
    let began = tokio::time::Instant::now();
    let next = turn.await;
    metrics::observe(&DURATION, &[operation], began.elapsed());
    next
}
