//! The JSON documents of images, with the members that are used, from OCI and Docker alike.
//!
//! Owns wire shapes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::platform::Platform;
use super::{ImageDefaults, ImageError};
use crate::model::api::record::{Member, record};

record! {
    /// An image index or a manifest: both have these members or none of them.
    #[derive(Clone, Debug, Default)]
    pub(in crate::runtime) struct ManifestDocument as camelCase {
        pub media_type: String,
        /// An index has these.
        pub manifests: Vec<Descriptor>,
        /// A manifest has one.
        pub config: Descriptor,
        pub layers: Vec<Descriptor>,
    }

    /// A reference to a document or layer.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Descriptor as camelCase {
        pub media_type: String,
        /// `sha256:…`.
        pub digest: String,
        pub size: u64,
        /// The platform, in an index.
        pub platform: Option<Platform>,
        pub annotations: BTreeMap<String, String>,
    }
}

record! {
    /// An image's configuration.
    #[derive(Clone, Debug, Default)]
    pub(in crate::runtime) struct ConfigDocument as snake_case {
        os: String,
        architecture: String,
        variant: String,
        /// What containers inherit.
        pub config: ContainerConfig,
        pub rootfs: RootFs,
    }

    #[derive(Clone, Debug, Default)]
    pub(crate) struct ContainerConfig as PascalCase {
        user: String,
        env: Vec<String>,
        entrypoint: Vec<String>,
        cmd: Vec<String>,
        working_dir: String,
        stop_signal: String,
        labels: BTreeMap<String, String>,
        volumes: BTreeMap<String, Value>,
    }

    /// `rootfs`.
    #[derive(Clone, Debug, Default)]
    pub(in crate::runtime) struct RootFs as snake_case {
        /// Digests of the archives without compression, bottom first.
        pub diff_ids: Vec<String>,
    }
}

impl ConfigDocument {
    #[must_use]
    pub fn platform(&self) -> Platform {
        let [os, architecture, variant] = [&self.os, &self.architecture, &self.variant].map(String::clone);
        Platform { os, architecture, variant }
    }
}

impl ContainerConfig {
    /// The defaults in the form that the runtime uses.
    #[must_use]
    pub(in crate::runtime) fn into_defaults(self) -> ImageDefaults {
        ImageDefaults {
            user: self.user,
            env: self.env,
            entrypoint: self.entrypoint,
            cmd: self.cmd,
            working_dir: self.working_dir,
            stop_signal: self.stop_signal,
            labels: self.labels,
            volumes: self.volumes.into_keys().collect(),
        }
    }
}

/// Decodes a document.
///
/// # Errors
/// When it is invalid JSON or a member has the wrong type; `what` names the document.
pub(crate) fn decode<T: Member + Default>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    let broken = |problem: String| ImageError::Document { what: what.to_owned(), problem };
    let value = serde_json::from_slice(bytes).map_err(|error| broken(error.to_string()))?;
    match crate::model::api::decode::decode(value) {
        Ok(decoded) => Ok(decoded.object),
        Err(error) => Err(broken(error.to_string())),
    }
}

/// Whether it is `sha256:` and 64 hex digits: what may become a file name.
#[must_use]
pub(in crate::runtime) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}
