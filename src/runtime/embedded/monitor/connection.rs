//! The monitor's side of one connection.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::super::protocol::Reply;
use crate::platform::sys::packets;

/// Bytes of standard input in transit; more waits in the client's pipe.
const PUMP: usize = 4096;

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) socket: OwnedFd,
    pub(super) serial: u32,
    pub(super) role: Role,
}

#[derive(Debug)]
pub(super) enum Role {
    /// It has made no request yet.
    Idle,
    /// Gets a message for every exit.
    Watch,
    /// Becomes [`Self::Watch`] when no container is being started.
    WaitingWatch,
    /// Waits until the container with this serial number runs.
    Start(u32),
    /// Belongs to the exec with this serial number.
    Exec(u32),
    /// Is coupled with a container.
    Attach(Attach),
    /// Waits until everything has ended.
    Shutdown,
}

/// Descriptors coupled with a container's streams.
#[derive(Debug)]
pub(super) struct Attach {
    /// Serial number of the container.
    pub(super) container: u32,
    pub(super) stdin: Option<Pump>,
    /// The request carried a standard input, which may have ended since.
    pub(super) had_stdin: bool,
    pub(super) stdout: Option<File>,
    pub(super) stderr: Option<File>,
}

/// From an attached standard input to the container's.
#[derive(Debug)]
pub(super) struct Pump {
    pub(super) source: File,
    /// Serial number, for events of `source`.
    pub(super) serial: u32,
    buffer: Box<[u8; PUMP]>,
    from: usize,
    to: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Nothing to read now.
    WaitsForSource,
    /// The container does not read.
    WaitsForTarget,
    /// The source has ended; all of it was passed on.
    SourceEnded,
    /// The container has closed its standard input.
    TargetGone,
}

impl Pump {
    pub(super) fn new(source: File, serial: u32) -> Self {
        Self { source, serial, buffer: Box::new([0; PUMP]), from: 0, to: 0 }
    }

    /// Copies what is available, a bounded amount at a time.
    pub(super) fn copy_available(&mut self, mut target: &File) -> Pumped {
        // A source that always has data gets its next turn after all others.
        for _ in 0..16 {
            while self.from < self.to {
                match target.write(&self.buffer[self.from..self.to]) {
                    Ok(count) => self.from += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Pumped::WaitsForTarget,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return Pumped::TargetGone,
                }
            }
            match self.source.read(&mut self.buffer[..]) {
                Ok(0) => return Pumped::SourceEnded,
                Ok(count) => (self.from, self.to) = (0, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Pumped::WaitsForSource,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Pumped::SourceEnded,
            }
        }
        if self.from < self.to { Pumped::WaitsForTarget } else { Pumped::WaitsForSource }
    }
}

impl Attach {
    /// Sends a chunk to the client; what does not fit is dropped for that client.
    pub(super) fn output(&mut self, stderr: bool, chunk: &[u8]) {
        let target = if stderr { &mut self.stderr } else { &mut self.stdout };
        let Some(file) = target else { return };
        let mut rest = chunk;
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    *target = None;
                    return;
                }
            }
        }
    }
}

impl ClientConnection {
    /// Sends a reply without waiting. False when the other side does not read: the connection is to be
    /// dropped then.
    pub(super) fn reply(&self, reply: &Reply) -> bool {
        self.reply_with(reply, &[])
    }

    /// The same with descriptors.
    pub(super) fn reply_with(&self, reply: &Reply, descriptors: &[BorrowedFd<'_>]) -> bool {
        packets::send(self.socket.as_fd(), &reply.encode(), descriptors).is_ok()
    }
}
