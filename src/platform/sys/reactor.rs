//! Any descriptor that can be polled, on tokio's reactor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor with a stable identity: it is owned, always the same, and closed after it has left the
/// reactor.
#[derive(Debug)]
struct Owned(OwnedFd);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A non-blocking descriptor on tokio's reactor.
#[derive(Debug)]
pub struct Polled(AsyncFd<Owned>);

impl Polled {
    /// Waits for urgent data only, such as the events of `/proc/pressure`; needs a running tokio runtime.
    pub(in crate::platform) fn urgent(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: `Owned` keeps the descriptor open and the same for as long as it is registered.
        let polled = unsafe { AsyncFd::register_with_interest(Owned(fd), Interest::PRIORITY) };
        polled.map(Self).map_err(Into::into)
    }

    /// Waits for the next urgent event.
    pub(in crate::platform) async fn wait_urgent(&self) -> io::Result<()> {
        self.0.ready(Interest::PRIORITY).await?.clear_ready();
        Ok(())
    }

    /// Waits for reading only; needs a running tokio runtime. The descriptor must be non-blocking.
    pub fn readable(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: `Owned` keeps the descriptor open and the same for as long as it is registered.
        let polled = unsafe { AsyncFd::register_with_interest(Owned(fd), Interest::READABLE) };
        polled.map(Self).map_err(Into::into)
    }

    /// Calls `call` whenever there may be something to read, until it returns anything but `WouldBlock`.
    pub async fn read_with<T>(&self, mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        loop {
            let mut ready = self.0.readable().await?;
            match call(self.0.get_ref().0.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                done => return done,
            }
        }
    }

    /// Waits until there is something to read. For descriptors that are never read, such as pidfds.
    pub(crate) async fn wait(&self) -> io::Result<()> {
        self.0.readable().await.map(|_| ())
    }
}

impl AsFd for Polled {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().0.as_fd()
    }
}
