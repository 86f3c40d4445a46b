//! The master side of a terminal, to read from and to write to.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::streams::resize_terminal;

/// A terminal's master; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Terminal(Rc<AsyncFd<File>>);

impl Terminal {
    /// Takes a master that is non-blocking. Needs a running tokio runtime.
    pub(crate) fn new(master: OwnedFd) -> io::Result<Self> {
        // SAFETY: the file owns its descriptor, which stays open and the same for as long as it is
        // registered: only shared references to it are handed out.
        let polled = unsafe { AsyncFd::register(File::from(master)) };
        Ok(Self(Rc::new(polled?)))
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        resize_terminal(self.0.get_ref().as_fd(), columns, rows)
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let read = guard.try_io(|file| file.get_ref().read(buffer.initialize_unfilled()));
            if let Ok(read) = read {
                return Poll::Ready(read.map(|count| buffer.advance(count)));
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            if let Ok(written) = guard.try_io(|file| file.get_ref().write(bytes)) {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal has no write half that could be closed: its user types the end-of-file character to end a
    /// program.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
