//! How a monitor is started, and how its exit is collected.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::super::layout::SandboxDir;
use super::{MonitorError, within};
use crate::platform::rt;
use crate::platform::sys::children;
use crate::platform::sys::packets::set_nonblocking;
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

/// Runs `program monitor DIR` and waits until the pod's namespaces exist and the monitor's socket answers.
/// `program` is a path; `/proc/self/fd/N` of [`crate::platform::sys::own_program::read_only_exe`] where the
/// kernel can. With a cgroup of version 2 it is in that from its start, where the kernel can.
///
/// # Errors
/// What the monitor reports that it could not do; nothing of it is left then.
pub async fn spawn_monitor(
    program: &Path,
    directory: &SandboxDir,
    cgroup: Option<PathBuf>,
) -> Result<Spawned, MonitorError> {
    let io = |action, source| MonitorError::Io { action, path: directory.0.clone(), source };
    let errors = errors_file(&directory.0.join("monitor.err"))
        .map_err(|source| io("create monitor.err in", source))?;
    let (said, says) = std::io::pipe().map_err(|source| io("create a pipe for the monitor of", source))?;
    let (path, argument) = (program.to_owned(), directory.0.clone());
    let spawned = rt::blocking("spawn monitor", move || {
        let null = File::open("/dev/null")?;
        let words = ["agent".as_ref(), "monitor".as_ref(), argument.as_os_str()];
        children::spawn(&path, &words, [null.as_fd(), says.as_fd(), errors.as_fd()], cgroup.as_deref())
    });
    let pid = spawned.await.map_err(|source| MonitorError::Io {
        action: "run",
        path: program.to_owned(),
        source,
    })?;
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
    // It has ended or was killed: this takes as long as the kernel does.
    rt::blocking("reap monitor", move || children::wait(pid).ok()).await;
    Err(failure)
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
