//! epoll for a process without tokio: one thread that waits for many descriptors and uses no memory for it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::libc;

/// The readiness to wait for. Hang-ups are reported in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Something to read, or the end of it.
    Read,
    /// Room to write.
    Write,
    /// Only that the peer has closed.
    HangUp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The value given to [`Epoll::add`].
    pub token: u64,
    /// Reading will not block: there is something, or the end.
    pub readable: bool,
    /// Writing will not block, or fails.
    pub writable: bool,
}

#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

/// Events taken at a time.
const BATCH: usize = 32;

/// The buffer of [`Epoll::wait`].
pub(crate) type Batch = [Ready; BATCH];

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: takes a flag and returns a descriptor that is new and owned here.
        match unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: see above.
            fd => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>, wanted: Readiness, token: u64) -> io::Result<()> {
        let flags = match wanted {
            Readiness::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Readiness::Write => libc::EPOLLOUT,
            Readiness::HangUp => 0,
        };
        let mut event = libc::epoll_event { events: flags.cast_unsigned(), u64: token };
        // SAFETY: both descriptors are open; the kernel copies the event.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for a descriptor from now on, until it is removed or its last duplicate closed.
    ///
    /// # Errors
    /// `EPERM` for a regular file, which is always ready.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, wanted: Readiness, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, wanted, token)
    }

    #[cfg(test)]
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, wanted: Readiness, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, wanted, token)
    }

    /// Removes a descriptor. One that was not added is no error.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, Readiness::HangUp, 0);
    }

    /// Waits for events, up to `timeout` (`None`: without a limit); returns how many arrived.
    ///
    /// # Errors
    /// Never for a signal, which counts as no event.
    pub(crate) fn wait(&self, batch: &mut Batch, timeout: Option<Duration>) -> io::Result<usize> {
        // Rounded up: a wait of half a millisecond must not become a busy loop.
        let milliseconds = timeout
            .map_or(-1, |timeout| i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let room = i32::try_from(BATCH).unwrap_or(1);
        // SAFETY: the kernel writes at most `room` events into an array of that many.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, milliseconds) };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) };
        };
        for (ready, event) in batch.iter_mut().zip(&events[..count]) {
            let flags = event.events.cast_signed();
            let over = flags & (libc::EPOLLHUP | libc::EPOLLERR) != 0;
            *ready = Ready {
                token: event.u64,
                readable: over || flags & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0,
                writable: over || flags & libc::EPOLLOUT != 0,
            };
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn it_tells_whose_turn_it_is() {
        let epoll = Epoll::new().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut batch = Batch::default();
        epoll.add(reader.as_fd(), Readiness::Read, 7).unwrap();
        assert_eq!(epoll.wait(&mut batch, Some(Duration::ZERO)).unwrap(), 0);
        writer.write_all(b"x").unwrap();
        assert_eq!(epoll.wait(&mut batch, None).unwrap(), 1);
        assert_eq!(batch[0], Ready { token: 7, readable: true, writable: false });
        epoll.change(reader.as_fd(), Readiness::HangUp, 8).unwrap();
        assert_eq!(epoll.wait(&mut batch, Some(Duration::from_nanos(1))).unwrap(), 0);
        drop(writer);
        assert_eq!(epoll.wait(&mut batch, None).unwrap(), 1);
        assert!(batch[0].token == 8 && batch[0].readable);
        epoll.remove(reader.as_fd());
        epoll.remove(reader.as_fd());
        assert_eq!(epoll.wait(&mut batch, Some(Duration::ZERO)).unwrap(), 0);
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = epoll.add(file.as_fd(), Readiness::Read, 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
