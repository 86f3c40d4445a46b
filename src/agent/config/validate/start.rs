//! Rules about what the agent itself serves and runs: who judges its clients, what TLS it speaks, its own runtime.
//!
//! Owns those that apply to a start alone. `agent cri` serves no API and has no other runtime.

use crate::agent::config::error::Findings;
use crate::agent::config::fields::KubeletConfiguration;
use crate::agent::config::resolve::EMBEDDED;
use crate::agent::kubelet::embedded::subnets;
use crate::serve::server::tls::TlsSettings;

/// What the API's TLS is configured to.
pub(in crate::agent) fn tls_settings(config: &KubeletConfiguration) -> TlsSettings {
    TlsSettings {
        min_version: config.tls_min_version.clone(),
        cipher_suites: config.tls_cipher_suites.clone(),
        curves: config.tls_curve_preferences.clone(),
    }
}

/// Checks what would prevent a start.
pub(in crate::agent::config) fn start(
    config: &KubeletConfiguration,
    is_joined: bool,
) -> Result<(), Findings> {
    let mut findings = Findings::default();
    if config.enable_server {
        let mut alone = |is_set: bool, field: &str, value: &str, instead: &str| {
            if is_set && !is_joined {
                let problem =
                    format!("{value} requires a cluster, which is named by --kubeconfig: set {instead}");
                findings.add(field, problem);
            }
        };
        let (tokens, mode) = (config.authentication_webhook_enabled, config.authorization_mode.as_str());
        alone(tokens, "authentication.webhook.enabled", "true", "it to false");
        alone(mode == "Webhook", "authorization.mode", mode, "Local");
        if let Err((field, problem)) = tls_settings(config).check() {
            findings.add(field, problem);
        }
    }
    if config.container_runtime_endpoint == EMBEDDED {
        if let Err(error) = subnets(&config.pod_cidr) {
            let text = error.to_string();
            findings.add("podCIDR", text.strip_prefix("podCIDR ").unwrap_or(&text));
        }
        let images = &config.image_service_endpoint;
        if !images.is_empty() {
            let problem = format!(
                "{images:?} cannot be used with the embedded runtime, which has its own images: remove it, or set \
                 containerRuntimeEndpoint, too"
            );
            findings.add("imageServiceEndpoint", problem);
        }
    }
    if findings.0.is_empty() { Ok(()) } else { Err(findings) }
}
