//! Counts of probe results, for `/metrics/probes`.
//!
//! Owns the families. One row per probe, numbers only: there may be hundreds of probes, each every second.
//! The rows of a pod are removed with it.

use std::rc::Rc;

use super::place::ProbeAddress;
use super::run::Ended;
use crate::model::api::pod::Pod;
use crate::platform::metrics::MetricKind::{Counter, Histogram};
use crate::platform::metrics::{SECONDS, Text};
use crate::pod::prober::rules::{ProbeKind, ProbeResult};

/// The counts of one probe of a container, over all its instances.
pub(super) struct Counts {
    place: Rc<ProbeAddress>,
    /// Successful, failed, unknown.
    results: [u32; 3],
    /// Durations, by the bounds of [`SECONDS`].
    took: [u32; SECONDS.len() + 1],
    seconds: f64,
}

/// In the order of [`Counts::results`].
const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

impl Counts {
    pub(super) fn add(all: &mut Vec<Self>, ended: &Ended) {
        let (kind, container) = (ended.place.kind, &ended.place.container);
        let is_it = |one: &Self| one.place.kind == kind && one.place.container == *container;
        let index = all.iter().position(is_it).unwrap_or_else(|| {
            let place = Rc::clone(&ended.place);
            // As many as there are, and no more: a pod has few.
            all.reserve_exact(1);
            all.push(Self { place, results: [0; 3], took: [0; SECONDS.len() + 1], seconds: 0.0 });
            all.len() - 1
        });
        let one = &mut all[index];
        let result = match ended.answer.result() {
            Some(ProbeResult::Success) => 0,
            Some(ProbeResult::Failure) => 1,
            None => 2,
        };
        let seconds = ended.took.as_secs_f64();
        let bucket = SECONDS.partition_point(|bound| *bound < seconds);
        one.results[result] = one.results[result].saturating_add(1);
        one.took[bucket] = one.took[bucket].saturating_add(1);
        one.seconds += seconds;
    }

    fn kind(&self) -> &'static str {
        match self.place.kind {
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Startup => "Startup",
        }
    }
}

/// Writes the counts of all probes, labelled with their pods.
pub(super) fn show(text: &mut Text, all: &[(&Pod, &Counts)]) {
    text.family(Histogram, "prober_probe_duration_seconds", "Duration in seconds for a probe response");
    for (pod, one) in all {
        let labels = [
            ("probe_type", one.kind()),
            ("container", one.place.container.as_str()),
            ("pod", &pod.metadata.name),
            ("namespace", &pod.metadata.namespace),
        ];
        text.histogram(&labels, &SECONDS, &one.took.map(u64::from), one.seconds);
    }
    text.family(Counter, "prober_probe_total", "Cumulative number of probes, by result");
    for (pod, one) in all {
        for (result, number) in RESULTS.into_iter().zip(one.results).filter(|(_, number)| *number > 0) {
            let labels = [
                ("probe_type", one.kind()),
                ("result", result),
                ("container", one.place.container.as_str()),
                ("pod", &pod.metadata.name),
                ("namespace", &pod.metadata.namespace),
                ("pod_uid", pod.metadata.uid.as_str()),
            ];
            text.sample(&labels, &number);
        }
    }
}
