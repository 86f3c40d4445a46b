//! The agent's end of the monitor's socket.
//!
//! Every call is a connection of its own with a deadline: a hanging monitor costs the caller that time and
//! nothing else. Owns connections.

mod session;
mod spawn;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

pub use session::{AttachSession, ExecSession, Streams, Watch};
pub(super) use spawn::READY;
pub use spawn::{ForkServer, Spawned};

use super::facts::ContainerFacts;
use super::layout::{ContainerDir, SandboxDir};
use super::protocol::{MAX_MESSAGE, ProtocolError, Reply, Request, Started};
use super::spec::{Bundle, ExecSpec};
use crate::model::api::decode;
use crate::platform::sys::durable::replace_private;
use crate::platform::sys::packets::{self, Descriptors};
use crate::platform::sys::reactor::Polled;
use crate::platform::sys::streams;

/// For requests that a monitor answers at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the start of a program; the monitor itself times out after a minute.
const START_PATIENCE: Duration = Duration::from_secs(70);
/// For the end of all containers after SIGKILL, which only a process that hangs in the kernel delays.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(30);
/// Between attempts to connect to a monitor whose queue of connections is full.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// No such socket, or no process behind it: the monitor has ended.
    #[error("the pod's monitor at {path:?} has exited")]
    Gone { path: PathBuf },
    #[error("the pod's monitor at {path:?} did not respond within {} s", after.as_secs())]
    Timeout {
        /// Its socket or directory.
        path: PathBuf,
        after: Duration,
    },
    #[error("{0}")]
    Refused(String),
    #[error("unexpected response from the pod's monitor: {0:?}")]
    Unexpected(Box<Reply>),
    /// The reply cannot be decoded: the monitor is of another version.
    #[error("the pod's monitor at {path:?} uses an unsupported protocol version")]
    Protocol {
        path: PathBuf,
        #[source]
        source: ProtocolError,
    },
    #[error("{action} {path:?}")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Writes what a container is to be into its directory: the bundle, and the facts of it that the monitor
/// needs.
pub fn write_bundle(directory: &ContainerDir, bundle: &Bundle) -> Result<(), MonitorError> {
    let path = directory.bundle();
    let io = |source| MonitorError::Io { action: "write", path: path.clone(), source };
    let text = serde_json::to_vec(bundle).map_err(|error| io(error.into()))?;
    replace_private(&path, &text).map_err(io)?;
    ContainerFacts::of(bundle).write(directory).map_err(|source| MonitorError::Io {
        action: "write",
        path: directory.facts(),
        source,
    })
}

/// A handle on one monitor; costs nothing until it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    directory: SandboxDir,
}

struct MonitorConnection {
    socket: Polled,
    path: PathBuf,
}

impl Monitor {
    /// The monitor of the sandbox in this directory, whether or not it is alive.
    #[must_use]
    pub fn new(directory: &SandboxDir) -> Self {
        Self { directory: directory.clone() }
    }

    /// All containers as they are, and from then on their ends.
    pub async fn watch(&self) -> Result<Watch, MonitorError> {
        within(self.socket(), PATIENCE, async { Ok(Watch::new(self.send(&Request::Watch, &[]).await?)) })
            .await
    }

    /// Starts the container whose bundle is in its directory.
    ///
    /// # Errors
    /// [`MonitorError::Refused`] with the reason when it cannot be started; no process of it runs then.
    pub async fn start(&self, container: &str) -> Result<Started, MonitorError> {
        let directory = self.directory.container(container);
        if !directory.facts().exists() {
            Self::write_facts(&directory)?;
        }
        let request = Request::Start { container: container.to_owned() };
        within(self.socket(), START_PATIENCE, async {
            match self.send(&request, &[]).await?.receive().await? {
                (Reply::Running { started, .. }, _) => Ok(started),
                (other, _) => Err(refusal(other)),
            }
        })
        .await
    }

    /// For a bundle that [`write_bundle`] did not write.
    fn write_facts(directory: &ContainerDir) -> Result<(), MonitorError> {
        let path = directory.bundle();
        let io = |source| MonitorError::Io { action: "read", path: path.clone(), source };
        let text = std::fs::read(&path).map_err(io)?;
        let value = serde_json::from_slice(&text).map_err(|error| io(error.into()))?;
        let bundle = decode::decode::<Bundle>(value)
            .map_err(|error| io(io::Error::new(io::ErrorKind::InvalidData, error)))?;
        let facts = ContainerFacts::of(&bundle.object);
        facts.write(directory).map_err(|source| MonitorError::Io {
            action: "write",
            path: directory.facts(),
            source,
        })
    }

    /// Sends a signal to the container's first process, or, with `all`, kills everything in it. Succeeds when
    /// it has ended.
    pub async fn signal(&self, container: &str, signal: i32, all: bool) -> Result<(), MonitorError> {
        self.done(&Request::Signal { container: container.to_owned(), signal, all }, PATIENCE).await
    }

    /// Sets the size of a container's terminal.
    pub async fn resize(&self, container: &str, width: u16, height: u16) -> Result<(), MonitorError> {
        self.done(&Request::Resize { container: container.to_owned(), width, height }, PATIENCE).await
    }

    /// Reopens the container's log after it was renamed.
    ///
    /// # Errors
    /// The file cannot be opened (logging continues to the old one), or the monitor is gone or hangs.
    pub async fn reopen_log(&self, container: &str) -> Result<(), MonitorError> {
        self.done(&Request::ReopenLog { container: container.to_owned() }, PATIENCE).await
    }

    /// Forgets a container that has ended. Succeeds when the monitor never knew it.
    pub async fn forget(&self, container: &str) -> Result<(), MonitorError> {
        self.done(&Request::Forget { container: container.to_owned() }, PATIENCE).await
    }

    /// Makes the pod's PID namespace for containers to share, unless it exists. Returns the process id of its
    /// first process.
    pub(in crate::runtime) async fn share_pids(&self) -> Result<i32, MonitorError> {
        within(self.socket(), PATIENCE, async {
            match self.send(&Request::SharePids, &[]).await?.receive().await? {
                (Reply::Running { started, .. }, _) => Ok(started.pid),
                (other, _) => Err(refusal(other)),
            }
        })
        .await
    }

    /// Kills every container and ends the monitor. Succeeds when the monitor is already gone.
    ///
    /// # Errors
    /// A process cannot be killed because it hangs in the kernel.
    pub async fn shutdown(&self) -> Result<(), MonitorError> {
        match self.done(&Request::Shutdown, SHUTDOWN_PATIENCE).await {
            Err(MonitorError::Gone { .. }) => Ok(()),
            other => other,
        }
    }

    /// Runs another program in a container. Its streams are the descriptors given; one that is not given is
    /// `/dev/null`. With a terminal (`spec.process.terminal`) none may be given:
    /// [`ExecSession::take_terminal`] is all three.
    ///
    /// # Errors
    /// [`MonitorError::Refused`] with the reason when it cannot be started.
    pub async fn exec(
        &self,
        container: &str,
        spec: &ExecSpec,
        streams: Streams,
    ) -> Result<ExecSession, MonitorError> {
        let specification = self.in_memory(spec)?;
        let terminal = spec.process.terminal;
        let streams = if terminal { Streams::default() } else { streams };
        let request = Request::Exec {
            container: container.to_owned(),
            stdin: streams.stdin.is_some(),
            stdout: streams.stdout.is_some(),
            stderr: streams.stderr.is_some(),
            terminal,
        };
        let descriptors: Vec<BorrowedFd<'_>> =
            std::iter::once(specification.as_fd()).chain(streams.present()).collect();
        within(self.socket(), START_PATIENCE, async {
            let connection = self.send(&request, &descriptors).await?;
            ExecSession::begin(connection).await
        })
        .await
    }

    fn in_memory(&self, spec: &ExecSpec) -> Result<std::fs::File, MonitorError> {
        let io = |source| MonitorError::Io {
            action: "write the exec specification for",
            path: self.directory.0.clone(),
            source,
        };
        let text = serde_json::to_vec(spec).map_err(|error| io(error.into()))?;
        let mut file = streams::memory_file(c"exec.json").map_err(io)?;
        io::Write::write_all(&mut file, &text).map_err(io)?;
        io::Seek::rewind(&mut file).map_err(io)?;
        Ok(file)
    }

    /// Couples descriptors with a running container's streams: `stdin` is read from, the others are written
    /// to, all of them made non-blocking. They must be pipes, sockets or terminals.
    ///
    /// # Errors
    /// [`MonitorError::Refused`] when the container does not run or has no such stream.
    pub async fn attach(&self, container: &str, streams: Streams) -> Result<AttachSession, MonitorError> {
        let request = Request::Attach {
            container: container.to_owned(),
            stdin: streams.stdin.is_some(),
            stdout: streams.stdout.is_some(),
            stderr: streams.stderr.is_some(),
        };
        let descriptors: Vec<BorrowedFd<'_>> = streams.present().collect();
        within(self.socket(), PATIENCE, async {
            let connection = self.send(&request, &descriptors).await?;
            AttachSession::begin(connection).await
        })
        .await
    }

    fn socket(&self) -> PathBuf {
        self.directory.socket()
    }

    async fn done(&self, request: &Request, patience: Duration) -> Result<(), MonitorError> {
        within(self.socket(), patience, async {
            match self.send(request, &[]).await?.receive().await? {
                (Reply::Done, _) => Ok(()),
                (other, _) => Err(refusal(other)),
            }
        })
        .await
    }

    /// A connection on which `request` was sent. Without a deadline: the caller has one.
    async fn send(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<MonitorConnection, MonitorError> {
        let path = self.socket();
        let socket = loop {
            match packets::connect(&path) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(RETRY).await,
                other => break other.map_err(|source| connection_error(&path, source))?,
            }
        };
        // The first packet on a new connection always finds room.
        packets::send(socket.as_fd(), &request.encode(), descriptors)
            .map_err(|source| connection_error(&path, source))?;
        let socket = Polled::readable(socket).map_err(|source| connection_error(&path, source))?;
        Ok(MonitorConnection { socket, path })
    }
}

impl MonitorConnection {
    /// The next message; the end is [`MonitorError::Gone`].
    async fn receive(&self) -> Result<(Reply, Option<OwnedFd>), MonitorError> {
        let mut bytes = [0; MAX_MESSAGE];
        let mut descriptors = Descriptors::default();
        let received =
            self.socket.read_with(|socket| packets::receive(socket, &mut bytes, &mut descriptors)).await;
        let length = received.map_err(|source| connection_error(&self.path, source))?;
        if length == 0 {
            return Err(MonitorError::Gone { path: self.path.clone() });
        }
        let reply = Reply::decode(&bytes[..length])
            .map_err(|source| MonitorError::Protocol { path: self.path.clone(), source })?;
        let [first, ..] = descriptors;
        Ok((reply, first))
    }
}

fn connection_error(path: &std::path::Path, source: io::Error) -> MonitorError {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    let path = path.to_owned();
    match source.kind() {
        NotFound | ConnectionRefused | ConnectionReset | BrokenPipe => MonitorError::Gone { path },
        _ => MonitorError::Io { action: "communicate with the pod's monitor at", path, source },
    }
}

/// The error for any reply but the expected one.
fn refusal(reply: Reply) -> MonitorError {
    match reply {
        Reply::Failed { message } => MonitorError::Refused(message),
        other => MonitorError::Unexpected(Box::new(other)),
    }
}

async fn within<T>(
    path: PathBuf,
    after: Duration,
    call: impl Future<Output = Result<T, MonitorError>>,
) -> Result<T, MonitorError> {
    match tokio::time::timeout(after, call).await {
        Ok(result) => result,
        Err(_) => Err(MonitorError::Timeout { path, after }),
    }
}
