//! The messages between the agent and a pod's monitor over the monitor's socket, and the two small files that
//! the monitor leaves.
//!
//! `SOCK_SEQPACKET`, one message per packet, one request per connection. Large data is not sent in messages:
//! containers' bundles are files, an exec's specification and all streams are descriptors. So the monitor
//! needs neither a parser nor growing buffers.
//!
//! Owns the encoding. All input may be from an agent or monitor of another version, or garbage.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::model::types::Timestamp;

/// First byte of every request; both sides refuse a different one. Monitors live as long as their pods,
/// across upgrades of the agent: a release that changes it must also support the previous version
/// ([`OLDEST`]), or running pods are recreated.
pub const VERSION: u8 = 1;
/// The oldest version that this release supports.
pub(crate) const OLDEST: u8 = 1;
/// No message is longer.
pub(crate) const MAX_MESSAGE: usize = 4096;

/// The agent's requests. Container ids are chosen by the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All containers as they are ([`Reply::Running`], [`Reply::Exited`] each), then [`Reply::Done`]; then,
    /// while the connection stays open, [`Reply::Exited`] for each that ends. End of file means that the
    /// monitor is gone.
    Watch,
    /// Starts the container whose bundle lies in its directory: [`Reply::Running`] or [`Reply::Failed`].
    Start { container: String },
    /// Sends a signal to the container's first process, or kills everything in the container:
    /// [`Reply::Done`], also when it has ended or was never there.
    Signal {
        container: String,
        signal: i32,
        /// Everything in its cgroup, not just the first process; only with SIGKILL.
        all: bool,
    },
    /// Runs another program in a container. Descriptors sent with it: the specification (a memfd with an
    /// [`super::spec::ExecSpec`] in JSON), then, as flagged, stdin, stdout, stderr. [`Reply::Running`] with,
    /// for a terminal, its master as a descriptor; then [`Reply::Exited`]. The program is killed when the
    /// connection is closed before.
    Exec {
        container: String,
        /// A descriptor for stdin is sent; otherwise `/dev/null`. With a terminal none is sent.
        stdin: bool,
        /// One for stdout.
        stdout: bool,
        /// One for stderr.
        stderr: bool,
        /// The specification asks for a terminal.
        terminal: bool,
    },
    /// Couples descriptors with a running container's streams ([`Reply::Done`]) until the connection is
    /// closed or the container ends ([`Reply::Exited`]): the monitor reads stdin (if flagged) and writes to
    /// stdout and stderr. What a slow reader does not take is dropped for that reader, never for the log.
    Attach {
        container: String,
        /// See [`Request::Exec`].
        stdin: bool,
        /// See [`Request::Exec`].
        stdout: bool,
        /// See [`Request::Exec`].
        stderr: bool,
    },
    /// Sets the size of the container's terminal: [`Reply::Done`].
    Resize { container: String, width: u16, height: u16 },
    /// Reopens the container's log file after a rotation: [`Reply::Done`].
    ReopenLog { container: String },
    /// Forgets an ended container: [`Reply::Done`].
    Forget { container: String },
    /// Kills every container and ends: [`Reply::Done`] when all are gone.
    Shutdown,
    /// Makes a PID namespace for containers to share, unless there is one: [`Reply::Running`], with its first
    /// process. Earlier monitors do not know it.
    SharePids,
}

/// The agent's request to its fork server, which is the same program: a monitor of the sandbox in a directory.
/// Descriptors sent with it: its standard output and error. The reply is an `i32`, the process id or, negative, the number
/// of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fork {
    pub(crate) directory: PathBuf,
    /// Of version 2, in which the monitor starts.
    pub(crate) cgroup: Option<PathBuf>,
}

impl Fork {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let paths = [Some(&self.directory), self.cgroup.as_ref()].into_iter().flatten();
        paths.map(|path| path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&0)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut paths = bytes.split(|byte| *byte == 0).map(|path| PathBuf::from(OsStr::from_bytes(path)));
        Self { directory: paths.next().unwrap_or_default(), cgroup: paths.next() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The request was carried out.
    Done,
    /// The container, or the exec of this connection, runs.
    Running {
        /// Of the container; empty for an exec.
        container: String,
        started: Started,
    },
    /// The container, or the exec of this connection, has ended.
    Exited {
        /// Of the container; empty for an exec.
        container: String,
        exited: Exited,
    },
    /// The request failed, and why; nothing was left behind.
    Failed { message: String },
}

/// How a container started. Its text form is one line of words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// First process, as the node sees it.
    pub pid: i32,
    pub at: Timestamp,
}

/// How a process ended. Its text form is one line of words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exited {
    /// Exit code, 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal that ended it, 0 for none.
    pub signal: i32,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("message of {0} bytes is truncated")]
    Short(usize),
    #[error("unsupported monitor protocol version {0}, expected {VERSION}")]
    Version(u8),
    #[error("unknown message {0}")]
    Kind(u8),
    #[error("name is not UTF-8")]
    Text,
    #[error("unreadable record {0:?}")]
    Record(String),
}

/// Every message: version, kind, flags, three numbers, text to the end of the packet.
struct Frame<'a> {
    kind: u8,
    flags: u8,
    first: i32,
    second: i32,
    at: i64,
    text: &'a str,
}

const HEADER: usize = 3 + 4 + 4 + 8;

const STDIN: u8 = 1;
const STDOUT: u8 = 2;
const STDERR: u8 = 4;
const TERMINAL: u8 = 8;
const ALL: u8 = 16;

impl Frame<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.text.len());
        bytes.extend([VERSION, self.kind, self.flags]);
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(self.second.to_le_bytes());
        bytes.extend(self.at.to_le_bytes());
        bytes.extend(self.text.as_bytes());
        bytes.truncate(MAX_MESSAGE);
        bytes
    }
}

fn frame(bytes: &[u8]) -> Result<Frame<'_>, ProtocolError> {
    let short = || ProtocolError::Short(bytes.len());
    let (head, text) = bytes.split_at_checked(HEADER).ok_or_else(short)?;
    let number = |from: usize| head.get(from..from + 4)?.try_into().ok().map(i32::from_le_bytes);
    let wide = head.get(11..19).and_then(|bytes| bytes.try_into().ok()).map(i64::from_le_bytes);
    if head[0] != VERSION {
        return Err(ProtocolError::Version(head[0]));
    }
    Ok(Frame {
        kind: head[1],
        flags: head[2],
        first: number(3).ok_or_else(short)?,
        second: number(7).ok_or_else(short)?,
        at: wide.ok_or_else(short)?,
        // An error message may have been cut inside a character.
        text: match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(&text[..error.valid_up_to()]).map_err(|_| ProtocolError::Text)?
            }
            Err(_) => return Err(ProtocolError::Text),
        },
    })
}

fn streams(stdin: bool, stdout: bool, stderr: bool) -> u8 {
    (u8::from(stdin) * STDIN) | (u8::from(stdout) * STDOUT) | (u8::from(stderr) * STDERR)
}

impl Request {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, flags, first, second, text) = match self {
            Self::Watch => (1, 0, 0, 0, ""),
            Self::Start { container } => (2, 0, 0, 0, container.as_str()),
            Self::Signal { container, signal, all } => {
                (3, u8::from(*all) * ALL, *signal, 0, container.as_str())
            }
            Self::Exec { container, stdin, stdout, stderr, terminal } => {
                let flags = streams(*stdin, *stdout, *stderr) | (u8::from(*terminal) * TERMINAL);
                (4, flags, 0, 0, container.as_str())
            }
            Self::Attach { container, stdin, stdout, stderr } => {
                (5, streams(*stdin, *stdout, *stderr), 0, 0, container.as_str())
            }
            Self::Resize { container, width, height } => {
                (6, 0, i32::from(*width), i32::from(*height), container.as_str())
            }
            Self::ReopenLog { container } => (7, 0, 0, 0, container.as_str()),
            Self::Forget { container } => (8, 0, 0, 0, container.as_str()),
            Self::Shutdown => (9, 0, 0, 0, ""),
            Self::SharePids => (10, 0, 0, 0, ""),
        };
        Frame { kind, flags, first, second, at: 0, text }.encode()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let frame = frame(bytes)?;
        let has = |flag: u8| frame.flags & flag != 0;
        let size = |number: i32| u16::try_from(number).unwrap_or(u16::MAX);
        let container = frame.text.to_owned();
        Ok(match frame.kind {
            1 => Self::Watch,
            2 => Self::Start { container },
            3 => Self::Signal { container, signal: frame.first, all: has(ALL) },
            4 => Self::Exec {
                container,
                stdin: has(STDIN),
                stdout: has(STDOUT),
                stderr: has(STDERR),
                terminal: has(TERMINAL),
            },
            5 => Self::Attach { container, stdin: has(STDIN), stdout: has(STDOUT), stderr: has(STDERR) },
            6 => Self::Resize { container, width: size(frame.first), height: size(frame.second) },
            7 => Self::ReopenLog { container },
            8 => Self::Forget { container },
            9 => Self::Shutdown,
            10 => Self::SharePids,
            other => return Err(ProtocolError::Kind(other)),
        })
    }
}

impl Reply {
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done => Frame { kind: 1, flags: 0, first: 0, second: 0, at: 0, text: "" },
            Self::Running { container, started } => Frame {
                kind: 2,
                flags: 0,
                first: started.pid,
                second: 0,
                at: started.at.as_nanos(),
                text: container,
            },
            Self::Exited { container, exited } => Frame {
                kind: 3,
                flags: 0,
                first: exited.code,
                second: exited.signal,
                at: exited.at.as_nanos(),
                text: container,
            },
            Self::Failed { message } => {
                Frame { kind: 4, flags: 0, first: 0, second: 0, at: 0, text: message }
            }
        }
        .encode()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let frame = frame(bytes)?;
        let (text, at) = (frame.text.to_owned(), Timestamp::from_nanos(frame.at));
        Ok(match frame.kind {
            1 => Self::Done,
            2 => Self::Running { container: text, started: Started { pid: frame.first, at } },
            3 => Self::Exited {
                container: text,
                exited: Exited { code: frame.first, signal: frame.second, at },
            },
            4 => Self::Failed { message: text },
            other => return Err(ProtocolError::Kind(other)),
        })
    }
}

impl Started {
    #[must_use]
    pub(crate) fn to_line(self) -> String {
        format!("{} {}\n", self.pid, self.at.as_nanos())
    }

    /// From the line of its file.
    pub fn from_line(line: &str) -> Result<Self, ProtocolError> {
        match numbers(line)[..] {
            [pid, at] => Ok(Self { pid: small(pid, line)?, at: Timestamp::from_nanos(at) }),
            _ => Err(ProtocolError::Record(line.to_owned())),
        }
    }
}

impl Exited {
    #[must_use]
    pub(crate) fn to_line(self) -> String {
        format!("{} {} {}\n", self.code, self.signal, self.at.as_nanos())
    }

    /// From the line of its file.
    pub fn from_line(line: &str) -> Result<Self, ProtocolError> {
        match numbers(line)[..] {
            [code, signal, at] => Ok(Self {
                code: small(code, line)?,
                signal: small(signal, line)?,
                at: Timestamp::from_nanos(at),
            }),
            _ => Err(ProtocolError::Record(line.to_owned())),
        }
    }
}

/// All words as numbers; fewer when a word is no number.
fn numbers(line: &str) -> Vec<i64> {
    line.split_whitespace().map_while(|word| word.parse().ok()).collect()
}

fn small(number: i64, line: &str) -> Result<i32, ProtocolError> {
    i32::try_from(number).map_err(|_| ProtocolError::Record(line.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = String> {
        "[a-z0-9]{0,64}"
    }

    fn requests() -> impl Strategy<Value = Request> {
        prop_oneof![
            Just(Request::Watch),
            Just(Request::Shutdown),
            Just(Request::SharePids),
            name().prop_map(|container| Request::Start { container }),
            name().prop_map(|container| Request::ReopenLog { container }),
            name().prop_map(|container| Request::Forget { container }),
            (name(), 0..65_i32, any::<bool>()).prop_map(|(container, signal, all)| Request::Signal {
                container,
                signal,
                all
            }),
            (name(), any::<[bool; 4]>()).prop_map(|(container, [stdin, stdout, stderr, terminal])| {
                Request::Exec { container, stdin, stdout, stderr, terminal }
            }),
            (name(), any::<[bool; 3]>()).prop_map(|(container, [stdin, stdout, stderr])| Request::Attach {
                container,
                stdin,
                stdout,
                stderr
            }),
            (name(), any::<u16>(), any::<u16>()).prop_map(|(container, width, height)| Request::Resize {
                container,
                width,
                height
            }),
        ]
    }

    proptest! {
        #[test]
        fn requests_arrive_as_they_were_sent(request in requests()) {
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn replies_arrive_as_they_were_sent(container in name(), code in any::<i32>(), signal in 0..65_i32, at in any::<i64>()) {
            let at = Timestamp::from_nanos(at);
            let exited = Exited { code, signal, at };
            let started = Started { pid: code, at };
            prop_assert_eq!(Exited::from_line(&exited.to_line()), Ok(exited));
            prop_assert_eq!(Started::from_line(&started.to_line()), Ok(started));
            for reply in [
                Reply::Done,
                Reply::Failed { message: container.clone() },
                Reply::Running { container: container.clone(), started },
                Reply::Exited { container, exited },
            ] {
                prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
            }
        }

        #[test]
        fn nothing_that_arrives_is_too_much(bytes in proptest::collection::vec(any::<u8>(), 0..200), line in ".{0,60}") {
            let _ = Request::decode(&bytes);
            let _ = Reply::decode(&bytes);
            let _ = Exited::from_line(&line);
            let _ = Started::from_line(&line);
        }
    }

    #[test]
    fn a_long_error_is_cut_to_a_packet_and_still_understood() {
        let sent = Reply::Failed { message: "ä".repeat(MAX_MESSAGE) };
        assert_eq!(sent.encode().len(), MAX_MESSAGE);
        let Ok(Reply::Failed { message }) = Reply::decode(&sent.encode()) else { panic!("it is an error") };
        assert!(message.chars().all(|letter| letter == 'ä') && message.len() > MAX_MESSAGE - 30);
    }

    #[test]
    fn another_version_is_refused() {
        let mut packet = Request::Watch.encode();
        packet[0] = VERSION + 1;
        assert_eq!(Request::decode(&packet), Err(ProtocolError::Version(VERSION + 1)));
    }

    #[test]
    fn a_fork_is_read_as_it_was_written() {
        for cgroup in [None, Some(PathBuf::from("/sys/fs/cgroup/pod1"))] {
            let fork = Fork { directory: PathBuf::from("/run/agent/sandboxes/1"), cgroup };
            assert_eq!(Fork::decode(&fork.encode()), fork);
        }
    }
}
