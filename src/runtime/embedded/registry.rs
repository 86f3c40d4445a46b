//! Pulls from registries (OCI distribution and Docker's registry v2), in a short-lived child: its memory is
//! freed when it is done, and a hostile registry or image can harm only a small process.
//!
//! Owns requests to registries and the messages between the agent and the child.
//!
//! | module | what it is |
//! |---|---|
//! | `hosts`, `toml` | which servers stand for a registry |
//! | `session`, `auth` | requests with credentials, redirects, retries |
//! | `manifest` | documents and the choice of a platform (pure) |
//! | `policy`, `signature` | whose signature an image needs, and the check of it |
//! | `blob` | a verified stream that resumes after a broken connection |
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
use crate::runtime::ImageAuth;

pub use error::{PullError, PullErrorKind};
pub use fetch::pull;
pub use helper::{digest_in_child, helper_main, pull_in_child, pull_until};
pub(crate) use policy::policy_file;

/// The search path for directories in containerd's `certs.d` layout.
pub(crate) const DEFAULT_HOSTS_DIRS: &str = "/etc/agent/certs.d:/etc/containerd/certs.d";
/// Layers pulled in parallel, as in containerd.
const DEFAULT_PARALLEL_LAYERS: usize = 3;
/// More would only cost memory.
const MAX_PARALLEL_LAYERS: usize = 16;
/// A request to a server that sends nothing for this long is repeated.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection with a lower average over [`RATE_WINDOW`] is given up: a layer must complete eventually, and
/// a dial-up modem is ten times as fast.
const LEAST_BYTES_PER_SECOND: u64 = 512;
/// Long enough for the pauses of a radio link.
const RATE_WINDOW: Duration = Duration::from_secs(60);
/// Without progress for this long, the pull fails (upstream's `image-pull-progress-deadline`).
const PROGRESS_DEADLINE: Duration = Duration::from_secs(60);

impl ImageAuth {
    /// Whether this server may get them.
    fn is_for(&self, authority: &str) -> bool {
        let address =
            self.server_address.split_once("://").map_or(self.server_address.as_str(), |(_, rest)| rest);
        let host = address.split('/').next().unwrap_or_default();
        // Docker Hub has several names.
        let hub = ["docker.io", "index.docker.io", "registry-1.docker.io"];
        host.is_empty() || host == authority || (hub.contains(&host) && hub.contains(&authority))
    }
}

/// What to pull. It is sent to the child over a socket, so that no secret is ever on a command line or in an
/// environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PullRequest {
    /// As in a pod: `busybox`, `r.example:5000/a/b:tag`, `…@sha256:…`.
    pub image: String,
    /// `None` for an anonymous pull.
    pub auth: Option<ImageAuth>,
    /// Which image of an index, `linux/arm/v7`; this machine's own platform when empty.
    pub platform: String,
    /// Directories in containerd's `certs.d` layout; the first that knows the registry is used.
    pub hosts_dirs: Vec<PathBuf>,
    pub store: PathBuf,
    /// Layers pulled in parallel; 0 is the default.
    pub max_parallel_layers: usize,
    /// A connection that is silent for this many milliseconds is replaced; 0 is the default.
    pub stall_timeout_ms: u64,
    /// The window for the minimum rate, in milliseconds; 0 is the default.
    pub rate_window_ms: u64,
    /// The signature policy, see `policy_file`; without one every image may be pulled.
    pub policy: Option<PathBuf>,
    /// Free space to keep on the store's disk, written as an eviction threshold; when empty, only the store's
    /// own reserve is kept.
    pub keep_free: String,
    /// A pull without progress for this many milliseconds fails; 0 is the default.
    pub progress_deadline_ms: u64,
    /// Only the digest of the reference is asked for. Nothing is stored.
    pub only_digest: bool,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerState {
    Waiting,
    Exists,
    /// Bytes arrive, and are unpacked as they arrive.
    Downloading,
    /// All bytes have arrived; the rest is writing to disk.
    Extracting,
    Done,
}

/// The progress of a pull: each is one JSON line from the child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Progress {
    Resolved {
        reference: String,
        /// Digest of the manifest or index that the reference names.
        digest: String,
    },
    /// Something that does not end the pull.
    Warning {
        reference: String,
        /// What may be wrong with the image.
        message: String,
    },
    Layer {
        /// Of the compressed layer.
        digest: String,
        /// Compressed bytes so far.
        done: u64,
        /// Compressed bytes in all.
        total: u64,
        state: LayerState,
    },
    Done {
        /// Of its configuration.
        image_id: String,
        /// The requested reference, normalised.
        reference: String,
        /// `repository@digest`.
        repo_digest: String,
    },
    Failed {
        kind: PullErrorKind,
        /// For people, without secrets.
        message: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Digest of its configuration: CRI's image id.
    pub image_id: String,
    /// The requested reference, normalised.
    pub reference: String,
    /// `repository@digest` of what the reference resolved to.
    pub repo_digest: String,
}

#[cfg(test)]
mod tests;
