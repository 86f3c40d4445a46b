//! Image pulling, from the resolved configuration.

use std::path::PathBuf;

use crate::agent::config::Resolved;
use crate::pod::image::pull_records::Verification;
use crate::pod::image::{CredentialsConfig, ImageConfig};

/// Limits and credentials.
pub(super) fn image_config(resolved: &Resolved) -> ImageConfig {
    let kubelet = &resolved.kubelet;
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    ImageConfig {
        serialize: kubelet.serialize_image_pulls,
        max_parallel: kubelet.max_parallel_image_pulls.and_then(|most| usize::try_from(most).ok()),
        qps: count(kubelet.registry_pull_qps),
        burst: count(kubelet.registry_burst),
        verification: Verification::from_words(
            &kubelet.image_pull_credentials_verification_policy,
            &kubelet.preloaded_images_verification_allowlist,
        ),
        records_root: Some(resolved.flags.root_dir.clone()),
        credentials: CredentialsConfig {
            root_dir: Some(resolved.flags.root_dir.clone()),
            provider_config: Some(PathBuf::from(&resolved.flags.image_credential_provider_config))
                .filter(|path| !path.as_os_str().is_empty()),
            provider_bin_dir: PathBuf::from(&resolved.flags.image_credential_provider_bin_dir),
        },
    }
}
