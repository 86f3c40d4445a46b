//! What simulated containers do: scripts for processes and images.
//!
//! Owns types.

use std::time::Duration;

use crate::model::types::{ContainerId, Timestamp};
use crate::runtime::{ExecOutput, ImageAuth, RuntimeError};

/// What a container's process does once started. The default runs forever and exits at once with 143 when
/// asked to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    pub run: Run,
    pub on_stop: OnStop,
}

/// How a process ends when it is not stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Run {
    #[default]
    Forever,
    Exits {
        /// Since the start.
        after: Duration,
        code: i32,
    },
    /// Is killed for lack of memory: code 137, reason `OOMKilled`.
    OutOfMemory {
        /// Since the start.
        after: Duration,
    },
    /// `StartContainer` fails with this message; the container is exited with 128 and `StartError` after it.
    FailsToStart {
        /// The runtime's message.
        message: String,
    },
    /// `CreateContainer` fails with this message and leaves nothing.
    FailsToCreate {
        /// The runtime's message.
        message: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// Ends, if the grace period allows.
    Exits {
        /// Since the signal.
        after: Duration,
        code: i32,
    },
    Ignores,
}

/// The result of a command in a simulated container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecScript {
    /// Until it ends.
    pub takes: Duration,
    pub output: ExecOutput,
}

/// A command under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// Until it ends or its timeout expires.
    pub takes: Duration,
    /// How it will end, if its container does not end before.
    pub outcome: Result<ExecOutput, RuntimeError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub at: Timestamp,
    pub container: ContainerId,
    pub words: Vec<String>,
}

impl Default for OnStop {
    fn default() -> Self {
        Self::Exits { after: Duration::ZERO, code: 143 }
    }
}

impl Program {
    #[must_use]
    pub fn forever() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn exits(after: Duration, code: i32) -> Self {
        Self { run: Run::Exits { after, code }, ..Self::default() }
    }

    #[must_use]
    pub fn fails_to_start(message: &str) -> Self {
        Self { run: Run::FailsToStart { message: message.to_owned() }, ..Self::default() }
    }

    /// Runs forever and has to be killed.
    #[must_use]
    pub fn stubborn() -> Self {
        Self { run: Run::Forever, on_stop: OnStop::Ignores }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FakeImage {
    /// The id that references resolve to.
    pub id: String,
    /// Numeric user, if the image has one.
    pub uid: Option<i64>,
    /// User name, if the image has one.
    pub username: String,
    pub size_bytes: u64,
}

impl FakeImage {
    /// An image of one megabyte whose id is derived from its name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { id: format!("sha256:{name}"), size_bytes: 1 << 20, ..Self::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteImage {
    pub image: FakeImage,
    pub pull_time: Duration,
    /// The credentials it requires; `None` for none.
    pub auth: Option<ImageAuth>,
}
