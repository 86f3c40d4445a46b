//! The records of sandboxes and containers: one small file each, on the tmpfs of the state directory.
//!
//! Owns types, reading and writing. A file appears whole or not at all; it is not synced, because it
//! describes processes of this boot.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::layout::{ContainerDir, SandboxDir};
use super::super::protocol::{self, Exited, Started};
use crate::model::api::decode::decode;
use crate::model::api::record;
use crate::model::observed::ObservedUser;
use crate::model::types::{ContainerId, SandboxId};
use crate::platform::sys::durable::replace_private;
use crate::runtime::{ContainerConfig, SandboxConfig};

/// Records hold a configuration each, which has its own bounds; a larger file is no record.
const MAX_RECORD: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) enum SandboxStage {
    /// Parts of it may exist. A later agent that finds it in this stage removes it.
    #[default]
    Making,
    /// Its monitor runs and its network is attached.
    Ready,
    /// It was stopped, or its monitor is gone.
    NotReady,
}

record! {
    /// `sandbox.json`.
    pub(in crate::runtime) struct SandboxRecord {
        pub id: SandboxId,
        /// Nanoseconds since the epoch.
        pub created_at: i64,
        pub stage: SandboxStage,
        /// Addresses, primary first.
        pub ips: Vec<String>,
        /// Path, below the root of every hierarchy, of the cgroup that contains those of the monitor and the
        /// containers; empty before there is a monitor. It is recorded because the cgroup driver may have changed
        /// since.
        pub cgroup: String,
        /// The monitor's cgroup, a directory per hierarchy.
        pub cgroups: Vec<PathBuf>,
        /// Version of [`super::super::protocol`] that its monitor speaks; 0 in records of releases that did not
        /// record it, meaning 1.
        pub monitor_protocol: u8,
        /// Init process of a PID namespace that the pod's containers share; 0 without one.
        pub pod_init: i32,
        pub config: SandboxConfig,
    }

    /// `container.json`.
    pub(in crate::runtime) struct ContainerRecord {
        pub id: ContainerId,
        pub sandbox: SandboxId,
        /// Nanoseconds since the epoch.
        pub created_at: i64,
        /// Everything that it needs exists. A later agent that finds it unset removes the container.
        pub is_made: bool,
        pub image: String,
        /// Digest reference of the image, else its id.
        pub image_ref: String,
        pub image_id: String,
        /// Who the first process is at its start.
        pub user: Option<RecordedUser>,
        pub stop_signal: i32,
        /// Its cgroup, a directory per hierarchy.
        pub cgroups: Vec<PathBuf>,
        /// Absolute path of its log; empty for none.
        pub log_path: PathBuf,
        /// How it ended, once the agent knows.
        pub end: Option<ContainerEnd>,
        pub config: ContainerConfig,
    }

    #[derive(Eq)]
    pub(in crate::runtime) struct RecordedUser {
        pub uid: u32,
        /// Primary group id.
        pub gid: u32,
        /// Supplementary group ids.
        pub groups: Vec<u32>,
    }
}

impl RecordedUser {
    /// The user in the form that statuses report.
    #[must_use]
    pub(in crate::runtime) fn observed(&self) -> ObservedUser {
        ObservedUser {
            uid: i64::from(self.uid),
            gid: i64::from(self.gid),
            supplemental_groups: self.groups.iter().copied().map(i64::from).collect(),
        }
    }
}

record! {
    #[derive(Eq)]
    pub(in crate::runtime) struct ContainerEnd {
        pub code: i32,
        /// Nanoseconds since the epoch.
        pub at: i64,
        pub reason: String,
        pub message: String,
    }
}

/// A record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(in crate::runtime) enum RecordError {
    #[error("{what} {path:?}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the configuration is {bytes} bytes, more than the limit of {MAX_RECORD}: shorten annotations, \
         labels, variables or mounts"
    )]
    TooLarge {
        /// Of the record.
        bytes: usize,
    },
    #[error("{path:?} is not a valid record: {why}")]
    Damaged { path: PathBuf, why: String },
}

impl RecordError {
    #[must_use]
    pub(in crate::runtime) fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl SandboxRecord {
    /// Whether its monitor speaks a supported protocol version.
    #[must_use]
    pub(in crate::runtime) fn is_understood(&self) -> bool {
        (protocol::OLDEST..=protocol::VERSION).contains(&self.monitor_protocol.max(1))
    }

    pub(in crate::runtime) fn write(&self, dir: &SandboxDir) -> Result<(), RecordError> {
        write_json(&dir.record(), self)
    }

    pub(in crate::runtime) fn read(dir: &SandboxDir) -> Result<Self, RecordError> {
        read_json(&dir.record())
    }
}

impl ContainerRecord {
    pub(in crate::runtime) fn write(&self, dir: &ContainerDir) -> Result<(), RecordError> {
        write_json(&dir.record(), self)
    }

    pub(in crate::runtime) fn read(dir: &ContainerDir) -> Result<Self, RecordError> {
        read_json(&dir.record())
    }
}

/// The monitor's report of a container's start; `None` if it has not started.
#[must_use]
pub(crate) fn started(dir: &ContainerDir) -> Option<Started> {
    Started::from_line(&read_text(&dir.started()).ok()?).ok()
}

/// The monitor's report of a container's exit; `None` if it has not ended.
#[must_use]
pub(crate) fn exited(dir: &ContainerDir) -> Option<Exited> {
    Exited::from_line(&read_text(&dir.exited()).ok()?).ok()
}

/// Writes a value as JSON; the file appears whole.
pub(in crate::runtime) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), RecordError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| RecordError::Damaged { path: path.to_owned(), why: error.to_string() })?;
    if bytes.len() as u64 > MAX_RECORD {
        return Err(RecordError::TooLarge { bytes: bytes.len() });
    }
    write_whole(path, &bytes)
}

/// Writes a file atomically, readable by the agent alone.
pub(in crate::runtime) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let failed = |source| RecordError::Io { what: "write", path: path.to_owned(), source };
    replace_private(path, bytes).map_err(failed)
}

pub(in crate::runtime) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    let text =
        read_text(path).map_err(|source| RecordError::Io { what: "read", path: path.to_owned(), source })?;
    let damaged = |why| RecordError::Damaged { path: path.to_owned(), why };
    let value = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    decode(value).map(|decoded| decoded.object).map_err(|error| damaged(error.to_string()))
}

fn read_text(path: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_RECORD).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips_and_a_truncated_one_is_damaged() {
        let root = std::env::temp_dir().join(format!("edge-agent-record-{}", std::process::id()));
        let dir = SandboxDir(root.clone());
        std::fs::create_dir_all(&root).unwrap();
        let mut record = SandboxRecord { created_at: 1_700_000_000_123_456_789, ..SandboxRecord::default() };
        record.config.labels.insert("app".to_owned(), "web".to_owned());
        record.config.pod.uid = "u-1".into();
        record.stage = SandboxStage::Ready;
        record.write(&dir).unwrap();
        assert_eq!(SandboxRecord::read(&dir).unwrap(), record);
        let whole = std::fs::read(dir.record()).unwrap();
        std::fs::write(dir.record(), &whole[..whole.len() / 2]).unwrap();
        let error = SandboxRecord::read(&dir).unwrap_err();
        assert!(matches!(error, RecordError::Damaged { .. }), "{error}");
        std::fs::remove_file(dir.record()).unwrap();
        assert!(SandboxRecord::read(&dir).unwrap_err().is_missing());
        record.config.annotations.insert("long".to_owned(), "x".repeat(5 << 20));
        let error = record.write(&dir).unwrap_err();
        assert!(matches!(error, RecordError::TooLarge { .. }) && !dir.record().exists(), "{error}");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
