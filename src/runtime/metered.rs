//! How often runtimes are called, how long calls take and how often they fail.
//!
//! Owns the metric families.

use tokio::time::Instant;

use crate::platform::metrics::{self, Family};

static OPERATIONS: Family = Family::counter(
    "kubelet_runtime_operations_total",
    "Cumulative number of runtime operations",
    &["operation_type"],
);
static ERRORS: Family = Family::counter(
    "kubelet_runtime_operations_errors_total",
    "Cumulative number of runtime operation errors",
    &["operation_type"],
);
static DURATION: Family = Family::seconds(
    "kubelet_runtime_operations_duration_seconds",
    "Duration in seconds of runtime operations",
    &["operation_type"],
)
.with_buckets(&BUCKETS);

/// Upstream's buckets, from 5 ms to 12 minutes.
const BUCKETS: [f64; 14] = [
    0.005,
    0.0125,
    0.031_25,
    0.078_125,
    0.195_312_5,
    0.488_281_25,
    1.220_703_125,
    3.051_757_812_5,
    7.629_394_531_25,
    19.073_486_328_125,
    47.683_715_820_312_5,
    119.209_289_550_781,
    298.023_223_876_953,
    745.058_059_692_383,
];

/// A call that is under way. A cancelled call is not counted.
pub(crate) struct Operation {
    call: &'static str,
    began: Instant,
}

impl Operation {
    /// Begins a call, by CRI's name.
    #[must_use]
    pub(crate) fn begin(call: &'static str) -> Self {
        Self { call, began: Instant::now() }
    }

    /// Counts the call as answered.
    pub(crate) fn end(self, has_failed: bool) {
        let name = operation_type(self.call);
        metrics::count(&OPERATIONS, &[&name]);
        metrics::observe(&DURATION, &[&name], self.began.elapsed());
        if has_failed {
            metrics::count(&ERRORS, &[&name]);
        }
    }
}

/// Upstream's label for a call: `run_podsandbox` for `RunPodSandbox`.
fn operation_type(call: &str) -> String {
    if call == "UpdateContainerResources" {
        return "update_container".to_owned();
    }
    let mut name = String::new();
    for letter in call.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name.replace("pod_sandbox", "podsandbox")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::metrics::{Text, write_recorded};

    #[test]
    fn operations_have_upstreams_names_and_failures_count_twice() {
        assert_eq!(operation_type("RunPodSandbox"), "run_podsandbox");
        assert_eq!(operation_type("ListPodSandbox"), "list_podsandbox");
        assert_eq!(operation_type("ExecSync"), "exec_sync");
        assert_eq!(operation_type("UpdateContainerResources"), "update_container");
        Operation::begin("Version").end(false);
        Operation::begin("Version").end(true);
        let mut text = Text::default();
        write_recorded(&mut text, &["kubelet_runtime_operations_"]);
        let text = text.finish();
        assert!(text.contains("kubelet_runtime_operations_total{operation_type=\"version\"} 2\n"), "{text}");
        assert!(
            text.contains("kubelet_runtime_operations_errors_total{operation_type=\"version\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("_duration_seconds_count{operation_type=\"version\"} 2\n"), "{text}");
    }
}
