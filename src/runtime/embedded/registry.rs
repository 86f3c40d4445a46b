//! Pulls from registries (OCI distribution and Docker's registry v2), in a short-lived child: its memory goes
//! back when it is done, and what a hostile registry or image does, it does to a small process.
//!
//! Owns requests to registries and the words between the agent and the child.
//!
//! | module | what it is |
//! |---|---|
//! | `hosts`, `toml` | which servers stand for a registry |
//! | `session`, `auth` | requests with credentials, redirects, retries |
//! | `manifest` | documents and the choice of a platform (pure) |
//! | `policy`, `signature` | whose signature an image needs, and whether it has it |
//! | `blob` | a verified stream that goes on after a cut |
//! | `fetch` | a whole pull, blocking |
//! | `helper` | both ends of the child |

mod auth;
mod blob;
mod error;
mod fetch;
mod helper;
mod hosts;
mod manifest;
mod policy;
mod session;
mod signature;
mod toml;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::platform::http::stream::LeastRate;

pub use error::{PullError, PullErrorKind};
pub use fetch::pull;
pub use helper::{helper_main, pull_in_child, pull_until};
pub use policy::policy_file;

/// Where directories in containerd's `certs.d` layout are looked for, as a search path.
pub const DEFAULT_HOSTS_DIRS: &str = "/etc/agent/certs.d:/etc/containerd/certs.d";
/// Layers at the same time, as containerd.
const DEFAULT_PARALLEL_LAYERS: usize = 3;
/// More would only cost memory.
const MAX_PARALLEL_LAYERS: usize = 16;
/// A server that sends nothing for so long is asked anew.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that brings less on the average of [`RATE_WINDOW`] is given up: a layer must end some day,
/// and a modem of the last century is ten times as fast.
const LEAST_BYTES_PER_SECOND: u64 = 512;
/// Long enough for the pauses of a radio link.
const RATE_WINDOW: Duration = Duration::from_secs(60);
/// When nothing moves for so long, the pull is given up (upstream's `image-pull-progress-deadline`).
const PROGRESS_DEADLINE: Duration = Duration::from_secs(60);

/// What somebody may know about a registry. Never printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Auth {
    pub username: String,
    /// Password or token.
    pub password: String,
    /// A refresh token to exchange at the registry's token server.
    pub identity_token: String,
    /// A bearer token to send as it is.
    pub registry_token: String,
    /// The one server that may see all this, as URL or `host[:port]`; every server that is asked (mirrors,
    /// too) when empty, as containerd has it.
    pub server_address: String,
}

impl Auth {
    /// Whether this server may see it.
    fn is_for(&self, authority: &str) -> bool {
        let address =
            self.server_address.split_once("://").map_or(self.server_address.as_str(), |(_, rest)| rest);
        let host = address.split('/').next().unwrap_or_default();
        // Docker Hub is called by any of its names.
        let hub = ["docker.io", "index.docker.io", "registry-1.docker.io"];
        host.is_empty() || host == authority || (hub.contains(&host) && hub.contains(&authority))
    }
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Auth").field("username", &self.username).finish_non_exhaustive()
    }
}

/// What to pull; it travels to the child over a socket, so that no secret is ever on a command line or in an
/// environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PullRequest {
    /// As in a pod: `busybox`, `r.example:5000/a/b:tag`, `…@sha256:…`.
    pub image: String,
    /// Nothing for an anonymous pull.
    pub auth: Option<Auth>,
    /// Which image of an index, `linux/arm/v7`; this machine's own when empty.
    pub platform: String,
    /// Directories in containerd's `certs.d` layout; the first that knows the registry counts.
    pub hosts_dirs: Vec<PathBuf>,
    /// The image store's directory.
    pub store: PathBuf,
    /// Layers at the same time; 0 is the default.
    pub max_parallel_layers: usize,
    /// A connection that is silent for so many milliseconds is made anew; 0 is the default.
    pub stall_timeout_ms: u64,
    /// The window in which the least rate is measured, in milliseconds; 0 is the default.
    pub rate_window_ms: u64,
    /// The policy of signatures, see `policy_file`; without one every image may be pulled.
    pub policy: Option<PathBuf>,
    /// What has to stay free of the store's disk, as a threshold of eviction is written; nothing beyond the
    /// store's own reserve when empty.
    pub keep_free: String,
    /// A pull in which nothing moves for so many milliseconds is given up; 0 is the default.
    pub progress_deadline_ms: u64,
}

impl PullRequest {
    fn stall_timeout(&self) -> Duration {
        or_default(self.stall_timeout_ms, STALL_TIMEOUT)
    }

    fn least_rate(&self) -> LeastRate {
        let window = or_default(self.rate_window_ms, RATE_WINDOW);
        LeastRate { bytes_per_second: LEAST_BYTES_PER_SECOND, window }
    }

    fn progress_deadline(&self) -> Duration {
        or_default(self.progress_deadline_ms, PROGRESS_DEADLINE)
    }

    fn parallel_layers(&self) -> usize {
        if self.max_parallel_layers == 0 {
            DEFAULT_PARALLEL_LAYERS
        } else {
            self.max_parallel_layers.min(MAX_PARALLEL_LAYERS)
        }
    }
}

fn or_default(millis: u64, default: Duration) -> Duration {
    if millis == 0 { default } else { Duration::from_millis(millis) }
}

/// Where a layer is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerState {
    /// Its turn comes.
    Waiting,
    /// It was there already.
    Exists,
    /// Bytes come, and are unpacked as they come.
    Downloading,
    /// All bytes came; the rest is the disk's work.
    Extracting,
    /// It is there.
    Done,
}

/// How a pull gets on: a JSON line of the child each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Progress {
    /// The reference means this.
    Resolved {
        reference: String,
        /// Of the manifest or index that it names.
        digest: String,
    },
    /// A layer moved.
    Layer {
        /// Of the compressed layer.
        digest: String,
        /// Compressed bytes so far.
        done: u64,
        /// Compressed bytes in all.
        total: u64,
        /// Where it is.
        state: LayerState,
    },
    /// The image is there.
    Done {
        /// Of its configuration.
        image_id: String,
        /// What was asked for, normalised.
        reference: String,
        /// `repository@digest`.
        repo_digest: String,
    },
    /// It is not.
    Failed {
        kind: PullErrorKind,
        /// For people, without secrets.
        message: String,
    },
}

/// A pulled image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Digest of its configuration: CRI's image id.
    pub image_id: String,
    /// What was asked for, normalised.
    pub reference: String,
    /// `repository@digest` of what the reference named.
    pub repo_digest: String,
}

#[cfg(test)]
mod tests;
