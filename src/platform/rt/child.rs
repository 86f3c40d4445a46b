//! A child process that reads and writes messages over a socket; dropping it kills the child and its descendants.
//!
//! Owns the child.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::UnixStream;

use crate::model::back_off::Retry;
use crate::platform::sys::kill::kill_group;

/// The pause between two checks whether a child that has closed its output has ended: most have.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// As above, for a child that takes longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The child. Its standard input and output are one end of a socket pair.
#[derive(Debug)]
pub(crate) struct TalkingChild {
    child: Option<Child>,
    socket: UnixStream,
}

impl TalkingChild {
    /// Starts the child, sends it `input`, and closes its input. Call it inside the runtime.
    pub(crate) fn start(command: &mut Command, input: &[u8]) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let input_end = OwnedFd::from(theirs);
        let output_end = input_end.try_clone()?;
        // From here on every failure must kill the child.
        let socket = UnixStream::from_std(ours.try_clone()?)?;
        // A group of its own, so that its descendants are killed with it.
        let command = command.process_group(0);
        let child = command.stdin(Stdio::from(input_end)).stdout(Stdio::from(output_end)).spawn()?;
        let started = Self { child: Some(child), socket };
        // The command keeps its descriptors until they are replaced, and the child's end would not be
        // noticed.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // A socket's buffer takes far more than any input; a child that is dead already is noticed by the
        // first read.
        let _ = (&ours).write_all(input);
        let _ = ours.shutdown(std::net::Shutdown::Write);
        Ok(started)
    }

    /// Waits for more of its output; 0 when it has ended or closed its output.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.socket.readable().await?;
            match self.socket.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A killed child's socket may also report its end as a reset.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
                other => return other,
            }
        }
    }

    /// Kills the child and waits until it is gone, with all its resources.
    pub(crate) async fn end(mut self) {
        let Some(mut child) = self.child.take() else { return };
        kill_group(&child);
        let _ = super::blocking("child-end", move || child.wait()).await;
    }

    /// Returns the exit status, once the child has closed its output. If the child keeps running, dropping
    /// the future kills it; until then no thread of the pool is blocked.
    pub(crate) async fn wait(mut self) -> String {
        let mut pauses = Retry::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        loop {
            let Some(child) = &mut self.child else { return String::new() };
            match child.try_wait() {
                Ok(Some(status)) => {
                    self.child = None;
                    return status.to_string();
                }
                Ok(None) => tokio::time::sleep(pauses.delay()).await,
                Err(error) => return error.to_string(),
            }
        }
    }
}

impl Drop for TalkingChild {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        kill_group(&child);
        // It may hang in the kernel's file system for a while, which must not block this thread.
        let _ = super::spawn_thread("child-reap", move || drop(child.wait()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_goes_on_in_silence_is_killed_by_giving_up() {
        let done = crate::platform::rt::run(async {
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$; exec sleep 1000 <&- >&-"]);
            let child = TalkingChild::start(&mut command, b"").unwrap();
            let (mut said, mut buffer) = (Vec::new(), [0; 64]);
            loop {
                match child.read(&mut buffer).await.unwrap() {
                    0 => break,
                    count => said.extend_from_slice(&buffer[..count]),
                }
            }
            let waited = tokio::time::timeout(Duration::from_millis(50), child.wait()).await;
            assert!(waited.is_err(), "{waited:?}");
            let pid = String::from_utf8(said).unwrap();
            let process = std::path::Path::new("/proc").join(pid.trim());
            let gone = async {
                while process.exists() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), gone).await.is_ok()
        });
        assert!(done.unwrap());
    }

    #[test]
    fn descendants_are_killed_with_the_child_and_after_it() {
        // The second script's child has ended, and its descendant keeps the output open.
        for script in ["sleep 1000 & echo $!; wait", "sleep 1000 & echo $!"] {
            let gone = crate::platform::rt::run(async {
                let child = TalkingChild::start(Command::new("sh").args(["-c", script]), b"").unwrap();
                let mut buffer = [0; 64];
                let count = child.read(&mut buffer).await.unwrap();
                let pid = String::from_utf8_lossy(&buffer[..count]).trim().to_owned();
                let silence = tokio::time::timeout(Duration::from_millis(200), child.read(&mut buffer));
                assert!(silence.await.is_err(), "the output is open");
                drop(child);
                let is_alive = || {
                    // A zombie of a container's first process is dead, too.
                    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
                };
                let end = async {
                    while is_alive() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(20), end).await.is_ok()
            });
            assert!(gone.unwrap(), "{script}");
        }
    }

    #[test]
    fn child_output_and_exit_status_are_read() {
        let how = crate::platform::rt::run(async {
            let mut command = Command::new("sh");
            command.args(["-c", "cat; exit 3"]);
            let child = TalkingChild::start(&mut command, b"hello").unwrap();
            let mut buffer = [0; 64];
            let count = child.read(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..count], b"hello");
            assert_eq!(child.read(&mut buffer).await.unwrap(), 0);
            child.wait().await
        });
        assert_eq!(how.unwrap(), "exit status: 3");
    }
}
