//! The sources of manifests, from the resolved configuration.
//!
//! Owns what each source reads and the state it resumes from.

use std::collections::BTreeMap;

use crate::agent::config::Resolved;
use crate::desired::rollout::RolloutConfig;
use crate::desired::source::Remembered;
use crate::desired::source::url::UrlConfig;
use crate::model::ordered::Ordered as _;
use crate::model::source::SourceSet;
use crate::model::types::PodSource;
use crate::platform::http::shown_url;
use crate::store::{Loaded, meta};

/// The source whose new sets are rolled out, if configured.
pub(super) fn rollout(resolved: &Resolved) -> Option<RolloutConfig> {
    let after = resolved.agent.manifest_url_rollback_after.to_std();
    let origin = origins(resolved).remove(&PodSource::Http)?;
    (!after.is_zero()).then_some(RolloutConfig { source: PodSource::Http, origin, after })
}

/// The path or URL of each configured source of manifests.
pub(super) fn origins(resolved: &Resolved) -> BTreeMap<PodSource, String> {
    let kubelet = &resolved.kubelet;
    let url =
        if kubelet.static_pod_url.is_empty() { String::new() } else { shown_url(&kubelet.static_pod_url) };
    [(PodSource::File, kubelet.static_pod_path.clone()), (PodSource::Http, url)]
        .into_iter()
        .filter(|(_, origin)| !origin.is_empty())
        .into_map()
}

/// The stored state that a source resumes from.
pub(super) fn remembered(loaded: &Loaded, source: PodSource) -> Remembered {
    let found = loaded.desired.iter().find(|stored| stored.source == source);
    let (good, validator) = found
        .map(|stored| {
            let good = SourceSet { pods: stored.pods.clone(), objects: stored.objects.clone() };
            (good, stored.validator.clone())
        })
        .unwrap_or_default();
    Remembered { good, validator, signed: loaded.meta.get(meta::NEWEST_SIGNATURE).cloned() }
}

pub(super) fn url_config(resolved: &Resolved) -> UrlConfig {
    let (kubelet, agent) = (&resolved.kubelet, &resolved.agent);
    UrlConfig {
        url: kubelet.static_pod_url.clone(),
        headers: kubelet
            .static_pod_url_header
            .iter()
            .flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())))
            .collect(),
        check_frequency: kubelet.http_check_frequency.to_std(),
        ca_file: agent.manifest_url_ca_file.clone(),
        client: agent.manifest_url_client.clone(),
        token_file: agent.manifest_url_token_file.clone(),
        verify_key_file: agent.manifest_url_verify_key_file.clone(),
        node_name: resolved.node_name.clone(),
    }
}
