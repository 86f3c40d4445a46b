//! A minimal D-Bus client for systemd and logind: connect, call a method, wait for a signal, take a
//! descriptor. Blocking: for the pool of `rt::blocking`, or a dedicated thread.
//!
//! Owns the wire format.

mod message;

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use message::{Body, Message, Value};

use crate::platform::sys::packets::{self, Descriptors};

/// systemd answers in milliseconds; a longer delay means a different problem.
const PATIENCE: Duration = Duration::from_secs(5);
/// Larger than any message of systemd, which may carry a unit's whole description.
const MAX_MESSAGE: usize = 1 << 20;
/// Unrelated units' signals that are skipped while waiting. Beyond this the awaited signal is taken as lost.
const MAX_SKIPPED: usize = 10_000;
const BUS: Peer<'static> = Peer {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};

/// The receiver of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer<'a> {
    /// Bus name; ignored on a direct connection.
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DbusError {
    /// Nothing listens, or the peer stopped answering.
    #[error("communicate with {socket:?}")]
    Io {
        socket: String,
        #[source]
        source: std::io::Error,
    },
    #[error("authenticate with {socket:?}: {answer:?}")]
    Refused { socket: String, answer: String },
    #[error("malformed message from {socket:?}")]
    Malformed { socket: String },
    #[error("{method}: {message} ({name})")]
    Answer {
        method: String,
        /// For example `org.freedesktop.systemd1.UnitExists`.
        name: String,
        message: String,
    },
}

impl DbusError {
    /// True when the peer could not be reached, as opposed to an error in its answer.
    #[must_use]
    pub(super) fn is_unreachable(&self) -> bool {
        !matches!(self, Self::Answer { .. })
    }
}

#[derive(Debug)]
pub(super) struct DbusConnection {
    stream: UnixStream,
    socket: String,
    serial: u32,
    /// Signals that arrived during another wait.
    signals: VecDeque<Message>,
    /// Whether it is a bus, with names on it.
    bus: bool,
    /// The first descriptor of the last message.
    descriptor: Option<OwnedFd>,
}

impl DbusConnection {
    /// Connects to a service's own socket, without a bus in between, as `user_id`.
    pub(super) fn direct(socket: &Path, user_id: u32) -> Result<Self, DbusError> {
        Self::open(socket, user_id, false)
    }

    fn open(socket: &Path, user_id: u32, descriptors: bool) -> Result<Self, DbusError> {
        let name = socket.display().to_string();
        let io = |source| DbusError::Io { socket: name.clone(), source };
        let stream = UnixStream::connect(socket).map_err(io)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
        let mut connection =
            Self { stream, socket: name, serial: 0, signals: VecDeque::new(), bus: false, descriptor: None };
        connection.authenticate(user_id, descriptors)?;
        Ok(connection)
    }

    /// Connects to a message bus.
    pub(super) fn bus(socket: &Path, user_id: u32) -> Result<Self, DbusError> {
        let mut connection = Self { bus: true, ..Self::direct(socket, user_id)? };
        connection.call(BUS, "Hello", &Body::default())?;
        Ok(connection)
    }

    /// Connects to a message bus for answers that carry descriptors, and waits up to `patience` for each.
    pub(super) fn bus_with_descriptors(
        socket: &Path,
        user_id: u32,
        patience: Duration,
    ) -> Result<Self, DbusError> {
        let mut connection = Self { bus: true, ..Self::open(socket, user_id, true)? };
        connection.stream.set_read_timeout(Some(patience)).map_err(|source| connection.io(source))?;
        connection.call(BUS, "Hello", &Body::default())?;
        Ok(connection)
    }

    /// The descriptor of the last answer.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    /// The next signal of any kind; `None` when there is none within `patience`. Without `patience` there is
    /// no timeout.
    pub(super) fn next_signal(&mut self, patience: Option<Duration>) -> Result<Option<Message>, DbusError> {
        loop {
            if let Some(message) = self.signals.pop_front() {
                return Ok(Some(message));
            }
            let has_come = packets::wait_up_to(self.stream.as_fd(), patience);
            if !has_come.map_err(|source| self.io(source))? {
                return Ok(None);
            }
            let message = self.receive()?;
            self.queue_signal(message);
        }
    }

    /// Subscribes to signals on a bus; a direct connection gets them all.
    pub(super) fn listen(&mut self, rule: &str) -> Result<(), DbusError> {
        if self.bus {
            self.call(BUS, "AddMatch", &Body::default().text(rule))?;
        }
        Ok(())
    }

    pub(super) fn call(&mut self, peer: Peer<'_>, method: &str, body: &Body) -> Result<Message, DbusError> {
        self.serial += 1;
        let peer = if self.bus { peer } else { Peer { destination: "", ..peer } };
        let bytes = message::call(self.serial, peer, method, body);
        self.stream.write_all(&bytes).map_err(|source| self.io(source))?;
        for _ in 0..MAX_SKIPPED {
            let message = self.receive()?;
            if message.reply_serial == Some(self.serial) {
                return match message.error.clone() {
                    None => Ok(message),
                    Some(name) => {
                        let text = message.texts().into_iter().next().unwrap_or_default();
                        Err(DbusError::Answer { method: method.to_owned(), name, message: text })
                    }
                };
            }
            self.queue_signal(message);
        }
        Err(self.io(std::io::ErrorKind::TimedOut.into()))
    }

    /// Waits for a signal of this name for which `is_it` holds.
    pub(super) fn wait_for_signal(
        &mut self,
        member: &str,
        is_it: impl Fn(&Message) -> bool,
    ) -> Result<Message, DbusError> {
        for _ in 0..MAX_SKIPPED {
            let message = match self.signals.pop_front() {
                Some(message) => message,
                None => self.receive()?,
            };
            if message.is_signal && message.member == member && is_it(&message) {
                return Ok(message);
            }
        }
        Err(self.io(std::io::ErrorKind::TimedOut.into()))
    }

    /// Waits for `time`; signals that arrive meanwhile are kept.
    pub(super) fn pause(&mut self, time: Duration) -> Result<(), DbusError> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let has_come = packets::wait_up_to(self.stream.as_fd(), Some(left));
            if !has_come.map_err(|source| self.io(source))? {
                return Ok(());
            }
            let message = self.receive()?;
            self.queue_signal(message);
        }
    }

    fn queue_signal(&mut self, message: Message) {
        if message.is_signal && self.signals.len() < MAX_SKIPPED {
            self.signals.push_back(message);
        }
    }

    fn authenticate(&mut self, user_id: u32, descriptors: bool) -> Result<(), DbusError> {
        // In hexadecimal the character `7` is 37.
        let id: String = user_id.to_string().chars().flat_map(|digit| ['3', digit]).collect();
        // All in one write, as systemd's own client: a call that reaches systemd together with a later BEGIN
        // stays unanswered until more data arrives.
        let negotiation = if descriptors { "NEGOTIATE_UNIX_FD\r\n" } else { "" };
        let hello = format!("\0AUTH EXTERNAL {id}\r\n{negotiation}BEGIN\r\n");
        self.stream.write_all(hello.as_bytes()).map_err(|source| self.io(source))?;
        let answer = self.read_line()?;
        if !answer.starts_with("OK ") {
            return Err(DbusError::Refused { socket: self.socket.clone(), answer });
        }
        if descriptors {
            let answer = self.read_line()?;
            if !answer.starts_with("AGREE_UNIX_FD") {
                return Err(DbusError::Refused { socket: self.socket.clone(), answer });
            }
        }
        Ok(())
    }

    /// A line of the authentication, which is short.
    fn read_line(&mut self) -> Result<String, DbusError> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 1024 {
            let mut byte = [0];
            self.read(&mut byte)?;
            line.extend(byte);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    fn receive(&mut self) -> Result<Message, DbusError> {
        let mut head = [0; message::FIXED];
        self.descriptor = None;
        self.read(&mut head)?;
        let socket = self.socket.clone();
        let malformed = || DbusError::Malformed { socket };
        let Some(rest) = message::remaining_length(&head).filter(|length| *length <= MAX_MESSAGE) else {
            return Err(malformed());
        };
        let mut bytes = head.to_vec();
        bytes.resize(message::FIXED + rest, 0);
        self.read(&mut bytes[message::FIXED..])?;
        message::parse(&bytes).ok_or_else(malformed)
    }

    /// Fills `bytes`, and keeps a descriptor that arrives with them.
    fn read(&mut self, mut bytes: &mut [u8]) -> Result<(), DbusError> {
        while !bytes.is_empty() {
            let mut descriptors = Descriptors::default();
            match packets::read(self.stream.as_fd(), bytes, &mut descriptors) {
                Ok(0) => return Err(self.io(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(length) => bytes = &mut bytes[length..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.io(error)),
            }
            let [first, ..] = descriptors;
            self.descriptor = first.or(self.descriptor.take());
        }
        Ok(())
    }

    fn io(&self, source: std::io::Error) -> DbusError {
        DbusError::Io { socket: self.socket.clone(), source }
    }
}

#[cfg(test)]
mod tests;
