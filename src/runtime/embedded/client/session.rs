//! Connections that last: a watch, an exec, an attach.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::super::protocol::{Exited, Reply, Started};
use super::{MonitorConnection, MonitorError, refusal};

/// A program's standard streams, as far as they are wanted.
#[derive(Debug, Default)]
pub struct Streams {
    /// Read by the program, or by the monitor for a container.
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

impl Streams {
    /// The streams that are present, in the order of the protocol.
    pub(super) fn present(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten().map(OwnedFd::as_fd)
    }
}

/// A monitor's reports on its containers.
pub struct Watch(MonitorConnection);

impl Watch {
    pub(super) fn new(connection: MonitorConnection) -> Self {
        Self(connection)
    }

    /// The next message: first all containers as they are, then [`Reply::Done`], then every exit. `None` when
    /// the monitor is gone, and its containers with it, or when this side did not read for too long: a new
    /// watch shows which.
    pub async fn next(&mut self) -> Option<Reply> {
        match self.0.receive().await {
            Ok((reply, _)) => Some(reply),
            Err(error) => {
                if !matches!(error, MonitorError::Gone { .. }) {
                    log::warn!(err:% = crate::platform::logging::chain(&error); "Pod monitor watch ended");
                }
                None
            }
        }
    }
}

/// A program that runs in a container. Dropping it before [`ExecSession::wait`] has returned kills the
/// program.
pub struct ExecSession {
    connection: MonitorConnection,
    started: Started,
    terminal: Option<OwnedFd>,
}

impl ExecSession {
    pub(super) async fn begin(connection: MonitorConnection) -> Result<Self, MonitorError> {
        match connection.receive().await? {
            (Reply::Running { started, .. }, terminal) => Ok(Self { connection, started, terminal }),
            (other, _) => Err(refusal(other)),
        }
    }

    /// Its process, and when it began.
    #[must_use]
    pub fn started(&self) -> Started {
        self.started
    }

    /// The master of its terminal, once; non-blocking. `None` without a terminal.
    pub fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.terminal.take()
    }

    /// Waits for its end, as long as it takes.
    ///
    /// # Errors
    /// The monitor is gone, and the program with it.
    pub async fn wait(&mut self) -> Result<Exited, MonitorError> {
        match self.connection.receive().await? {
            (Reply::Exited { exited, .. }, _) => Ok(exited),
            (other, _) => Err(refusal(other)),
        }
    }
}

/// Descriptors coupled with a container's streams; dropping it uncouples them.
pub struct AttachSession(MonitorConnection);

impl AttachSession {
    pub(super) async fn begin(connection: MonitorConnection) -> Result<Self, MonitorError> {
        match connection.receive().await? {
            (Reply::Done, _) => Ok(Self(connection)),
            (other, _) => Err(refusal(other)),
        }
    }

    /// Waits for the container's end, as long as it takes; its output has been passed on by then.
    ///
    /// # Errors
    /// The monitor is gone, and the container with it.
    pub async fn wait(&mut self) -> Result<Exited, MonitorError> {
        match self.0.receive().await? {
            (Reply::Exited { exited, .. }, _) => Ok(exited),
            (other, _) => Err(refusal(other)),
        }
    }
}
