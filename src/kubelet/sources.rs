//! The sources of manifests, from the resolved configuration.
//!
//! Owns where each reads, for people. Must not know how.

use std::collections::BTreeMap;

use crate::config::Resolved;
use crate::http::shown_url;
use crate::ordered::Ordered as _;
use crate::pod_config::RollbackConfig;
use crate::types::PodSource;

/// Whose new sets are tried before they count, if the configuration wants that.
pub(super) fn rollback(resolved: &Resolved) -> Option<RollbackConfig> {
    let after = resolved.agent.manifest_url_rollback_after.to_std();
    let origin = origins(resolved).remove(&PodSource::Http)?;
    (!after.is_zero()).then_some(RollbackConfig { source: PodSource::Http, origin, after })
}

/// Where each source of manifests reads, those that are configured.
pub(super) fn origins(resolved: &Resolved) -> BTreeMap<PodSource, String> {
    let kubelet = &resolved.kubelet;
    let url =
        if kubelet.static_pod_url.is_empty() { String::new() } else { shown_url(&kubelet.static_pod_url) };
    [(PodSource::File, kubelet.static_pod_path.clone()), (PodSource::Http, url)]
        .into_iter()
        .filter(|(_, origin)| !origin.is_empty())
        .into_map()
}
