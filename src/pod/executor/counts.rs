//! How many pods and containers were started, and how many could not be.
//!
//! Owns the families.

use tokio::time::Instant;

use crate::model::containers::ContainerKind;
use crate::platform::metrics::{self, Family};
use crate::runtime::RuntimeError;

static STARTED_PODS: Family =
    Family::counter("kubelet_started_pods_total", "Cumulative number of pods started", &[]);
static POD_ERRORS: Family = Family::counter(
    "kubelet_started_pods_errors_total",
    "Cumulative number of errors when starting pods",
    &[],
);
static SANDBOX_DURATION: Family = Family::seconds(
    "kubelet_run_podsandbox_duration_seconds",
    "Duration in seconds of the run_podsandbox operations",
    &["runtime_handler"],
);
static SANDBOX_ERRORS: Family = Family::counter(
    "kubelet_run_podsandbox_errors_total",
    "Cumulative number of run_podsandbox operation errors",
    &["runtime_handler"],
);
static STARTED_CONTAINERS: Family = Family::counter(
    "kubelet_started_containers_total",
    "Cumulative number of containers started",
    &["container_type"],
);
static CONTAINER_ERRORS: Family = Family::counter(
    "kubelet_started_containers_errors_total",
    "Cumulative number of errors when starting containers",
    &["container_type", "code"],
);

/// A sandbox that is being started.
pub(super) struct Began {
    handler: String,
    at: Instant,
}

impl Began {
    pub(super) fn sandbox(handler: &str) -> Self {
        Self { handler: handler.to_owned(), at: Instant::now() }
    }

    pub(super) fn end(self, error: Option<&RuntimeError>) {
        metrics::count(&STARTED_PODS, &[]);
        metrics::count(&STARTED_CONTAINERS, &["podSandbox"]);
        metrics::observe(&SANDBOX_DURATION, &[&self.handler], self.at.elapsed());
        if error.is_some() {
            metrics::count(&POD_ERRORS, &[]);
            metrics::count(&SANDBOX_ERRORS, &[&self.handler]);
            metrics::count(&CONTAINER_ERRORS, &["podSandbox", "FailedCreatePodSandBox"]);
        }
    }
}

/// A container was started, or could not be for this reason.
pub(super) fn started(kind: ContainerKind, failure: Option<&str>) {
    let kind = match kind {
        ContainerKind::Init => "init_container",
        _ => "container",
    };
    metrics::count(&STARTED_CONTAINERS, &[kind]);
    if let Some(reason) = failure {
        metrics::count(&CONTAINER_ERRORS, &[kind, reason]);
    }
}
