//! Rules about `KubeletConfiguration`.

use crate::config::error::Findings;
use crate::config::gates::FeatureGates;
use crate::config::schema::KubeletConfiguration;

/// Checks the whole configuration.
pub(in crate::config) fn configuration(
    config: &KubeletConfiguration,
    _gates: &FeatureGates,
) -> Result<(), Findings> {
    let mut findings = Findings::default();
    if config.container_runtime_endpoint.is_empty() {
        findings.add("containerRuntimeEndpoint", "must not be empty");
    }
    if findings.0.is_empty() { Ok(()) } else { Err(findings) }
}

/// What is dubious but no mistake.
pub(in crate::config) fn soft_warnings(config: &KubeletConfiguration) -> Vec<String> {
    let (own, reserved) = (&config.kubelet_cgroups, &config.kube_reserved_cgroup);
    if own.is_empty() || reserved.is_empty() || own.starts_with(reserved.as_str()) {
        return Vec::new();
    }
    vec![format!("kubeletCgroups {own:?} is not below kubeReservedCgroup {reserved:?}")]
}
