//! What probes came to, for `/metrics/probes`.
//!
//! Owns the families. A pod's numbers go with it.

use super::run::{Answer, Ended};
use crate::metrics::{self, Family};
use crate::reconcile::probe::{ProbeKind, ProbeResult};
use crate::types::PodRef;

static PROBES: Family = Family::counter(
    "prober_probe_total",
    "Probes by what they came to",
    &["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
);
static DURATION: Family = Family::seconds(
    "prober_probe_duration_seconds",
    "How long probes took",
    &["probe_type", "container", "pod", "namespace"],
);

/// One more.
pub(super) fn count(pod: &PodRef, ended: &Ended) {
    let kind = match ended.place.kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    };
    let container = ended.place.container.as_str();
    let PodRef { namespace, name, uid } = pod;
    let values = [kind, result(&ended.answer), container, name, namespace, uid.as_str()];
    metrics::count(&PROBES, &values);
    metrics::observe(&DURATION, &[kind, container, name, namespace], ended.took);
}

fn result(answer: &Answer) -> &'static str {
    match answer.result() {
        Some(ProbeResult::Success) => "successful",
        Some(ProbeResult::Failure) => "failed",
        None => "unknown",
    }
}

/// The pod is gone.
pub(super) fn forget(pod: &PodRef) {
    metrics::forget(&PROBES, |values| values[5] == pod.uid.as_str());
    metrics::forget(&DURATION, |values| values[2] == pod.name && values[3] == pod.namespace);
}
