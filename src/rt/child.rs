//! A child process that is told something through a socket and answers through it; dropped, it is killed.
//!
//! Owns the child. Must not know what is said.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::process::{Child, Command, Stdio};

use tokio::net::UnixStream;

/// The child, whose standard input and output are a socket of ours.
#[derive(Debug)]
pub struct TalkingChild {
    child: Option<Child>,
    socket: UnixStream,
}

impl TalkingChild {
    /// Starts it and tells it this, and that there is no more to come. Call it inside the runtime.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command, input: &[u8]) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let input_end = OwnedFd::from(theirs);
        let output_end = input_end.try_clone()?;
        // From here on nothing may fail without the child's being killed.
        let socket = UnixStream::from_std(ours.try_clone()?)?;
        let child = command.stdin(Stdio::from(input_end)).stdout(Stdio::from(output_end)).spawn()?;
        let started = Self { child: Some(child), socket };
        // The command keeps its descriptors until they are replaced, and the end of the child would not be heard.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // A socket's buffer takes far more than is ever said; a child that is dead already is noticed when it is heard.
        let _ = (&ours).write_all(input);
        let _ = ours.shutdown(std::net::Shutdown::Write);
        Ok(started)
    }

    /// Waits for more of what it says; 0 when it has ended or closed its output.
    ///
    /// # Errors
    /// When the runtime cannot listen.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.socket.readable().await?;
            match self.socket.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A killed child's socket may say so in this way, too.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(0),
                other => return other,
            }
        }
    }

    /// Kills it and waits until it is gone, with all that it held.
    pub async fn end(mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        let _ = super::blocking("child-end", move || child.wait()).await;
    }

    /// How it ended, once it has closed its output. One that goes on nevertheless is killed by dropping this.
    pub async fn wait(mut self) -> String {
        let Some(mut child) = self.child.take() else { return String::new() };
        match super::blocking("child-wait", move || child.wait()).await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for TalkingChild {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        // It may hang in the kernel's file system for a while: not our thread's business.
        let _ = super::spawn_thread("child-reap", move || drop(child.wait()));
    }
}
