//! How a monitor is started, and how its exit is collected.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::super::layout::SandboxDir;
use super::super::protocol::Fork;
use super::{MonitorError, within};
use crate::platform::rt;
use crate::platform::sys::children;
use crate::platform::sys::packets::{self, Descriptors, set_nonblocking};
use crate::platform::sys::reactor::Polled;

/// How long making namespaces may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a monitor writes when it is ready.
pub(in crate::runtime::embedded) const READY: &[u8] = b"ok";
/// No more of its output is read.
const MAX_SAID: usize = 4096;

/// A monitor that is a child of this process. The owner calls [`Spawned::reap`] in a task of its own:
/// otherwise a zombie stays when the monitor ends.
#[derive(Debug)]
pub struct Spawned {
    pub pid: i32,
}

impl Spawned {
    /// Waits for the monitor's exit and reaps it.
    pub async fn reap(self) -> Option<ExitStatus> {
        let ended = match children::pidfd_open(self.pid).and_then(Polled::readable) {
            Ok(process) => process.wait().await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            // Without a pidfd the only way to wait is the blocking call.
            log::warn!(pid = self.pid, err:% = error; "Failed to register monitor with the reactor");
            return rt::blocking("reap monitor", move || children::wait(self.pid).ok()).await;
        }
        children::wait(self.pid).ok()
    }
}

/// Starts monitors. They are forked from one process, `program fork-server`, which is started when the first one is
/// needed and ends when none was needed for a while.
pub struct ForkServer {
    /// A path; `/proc/self/fd/N` of [`crate::platform::sys::own_program::read_only_exe`] where the kernel can.
    program: PathBuf,
    /// How long the process stays for the next monitor.
    idle: Duration,
    /// Its socket. Taken while a request is under way: without its reply the next one would be mistaken for it.
    socket: Mutex<Option<Polled>>,
    used_at: Cell<Instant>,
}

impl ForkServer {
    #[must_use]
    pub fn new(program: PathBuf, idle: Duration) -> Rc<Self> {
        let used_at = Cell::new(Instant::now());
        Rc::new(Self { program, idle, socket: Mutex::default(), used_at })
    }

    /// Starts the process, unless it is there, for a monitor that will be needed in a moment. If that fails, so will
    /// [`Self::spawn`], which says why.
    pub async fn prepare(self: Rc<Self>, directory: SandboxDir) {
        let mut socket = self.socket.lock().await;
        if socket.is_none() {
            *socket = self.start(&directory).await.ok();
        }
    }

    /// Starts the monitor of a sandbox and waits until the pod's namespaces exist and the monitor's socket answers. With
    /// a cgroup of version 2 it is in that from its start, where the kernel can.
    ///
    /// # Errors
    /// What the monitor reports that it could not do; nothing of it is left then.
    pub async fn spawn(
        self: &Rc<Self>,
        directory: &SandboxDir,
        cgroup: Option<PathBuf>,
    ) -> Result<Spawned, MonitorError> {
        let io = |action, source| MonitorError::Io { action, path: directory.0.clone(), source };
        let errors = errors_file(&directory.0.join("monitor.err"))
            .map_err(|source| io("create monitor.err in", source))?;
        let (said, says) =
            std::io::pipe().map_err(|source| io("create a pipe for the monitor of", source))?;
        let pid = self.fork(directory, cgroup, [says.as_fd(), errors.as_fd()]).await?;
        drop(says);
        let said = within(directory.0.clone(), PATIENCE, async {
            readiness(said.into()).await.map_err(|source| io("wait for the monitor of", source))
        });
        let failure = match said.await {
            Ok(said) if said == READY => return Ok(Spawned { pid }),
            Ok(said) if said.is_empty() => {
                MonitorError::Refused("the pod's monitor exited before it was ready".to_owned())
            }
            Ok(said) => MonitorError::Refused(String::from_utf8_lossy(&said).into_owned()),
            Err(error) => error,
        };
        // A child of this process and not reaped yet: the id is still its own.
        children::kill_by_id(pid);
        // It has ended or was killed. A process that the kernel cannot end holds no thread and no lock.
        let reaped = rt::spawn("reap monitor", Spawned { pid }.reap());
        let _ = tokio::time::timeout(PATIENCE, reaped).await;
        Err(failure)
    }

    /// Returns the process id of a new monitor.
    async fn fork(
        self: &Rc<Self>,
        directory: &SandboxDir,
        cgroup: Option<PathBuf>,
        streams: [BorrowedFd<'_>; 2],
    ) -> Result<i32, MonitorError> {
        let mut kept = self.socket.lock().await;
        let request = Fork { directory: directory.0.clone(), cgroup }.encode();
        let io =
            |source| MonitorError::Io { action: "fork the monitor of", path: directory.0.clone(), source };
        let asked = async |server: &Polled| {
            within(directory.0.clone(), PATIENCE, async { ask(server, &request, streams).await.map_err(io) })
                .await
        };
        let mut server = kept.take();
        let mut answer = match &server {
            Some(server) => asked(server).await?,
            None => None,
        };
        if answer.is_none() {
            // There was none, or it was killed since and has forked nothing: a monitor would have answered.
            answer = asked(server.insert(self.start(directory).await?)).await?;
        }
        let Some(pid) = answer else {
            return Err(MonitorError::Refused("agent fork-server exited".to_owned()));
        };
        *kept = server;
        self.used_at.set(Instant::now());
        if pid > 0 {
            return Ok(pid);
        }
        Err(io(io::Error::from_raw_os_error(pid.saturating_neg())))
    }

    /// Starts the process. Its command line has room for that of the monitor of a sandbox in such a directory.
    async fn start(self: &Rc<Self>, directory: &SandboxDir) -> Result<Polled, MonitorError> {
        let io = |source| MonitorError::Io { action: "run", path: self.program.clone(), source };
        let (socket, stdin) = packets::pair().map_err(io)?;
        let (path, room) = (self.program.clone(), " ".repeat(directory.0.as_os_str().len()));
        let started = rt::blocking("start fork server", move || {
            let null = File::options().read(true).write(true).open("/dev/null")?;
            let words = ["agent", "fork-server", &room].map(OsStr::new);
            children::spawn(&path, &words, [stdin.as_fd(), null.as_fd(), null.as_fd()])
        });
        let pid = started.await.map_err(io)?;
        rt::spawn("reap fork server", Spawned { pid }.reap());
        self.used_at.set(Instant::now());
        rt::spawn("end fork server", Rc::clone(self).end_when_unused());
        Polled::readable(socket).map_err(io)
    }

    async fn end_when_unused(self: Rc<Self>) {
        loop {
            sleep_until(self.used_at.get() + self.idle).await;
            let mut socket = self.socket.lock().await;
            if self.used_at.get() + self.idle <= Instant::now() {
                *socket = None;
                return;
            }
        }
    }
}

/// The answer of the server or of the monitor: a process id or a negative errno; `None` when both are gone.
async fn ask(socket: &Polled, request: &[u8], streams: [BorrowedFd<'_>; 2]) -> io::Result<Option<i32>> {
    let (mut answer, mut none) = ([0; 4], Descriptors::default());
    match packets::send(socket.as_fd(), request, &streams) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
        sent => sent?,
    }
    match socket.read_with(|socket| packets::receive(socket, &mut answer, &mut none)).await {
        Ok(0) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        received => received.map(|_| Some(i32::from_ne_bytes(answer))),
    }
}

/// The monitor's warnings are for the owner of the node.
fn errors_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// All it writes until it closes the pipe.
async fn readiness(stdout: OwnedFd) -> io::Result<Vec<u8>> {
    set_nonblocking(stdout.as_fd())?;
    let file = File::from(stdout.try_clone()?);
    let polled = Polled::readable(stdout)?;
    let mut said = Vec::new();
    loop {
        let mut bytes = [0; 512];
        let count = polled.read_with(|_| (&file).read(&mut bytes)).await?;
        if count == 0 || said.len() > MAX_SAID {
            return Ok(said);
        }
        said.extend_from_slice(&bytes[..count]);
    }
}
