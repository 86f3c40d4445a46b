//! inotify as typed events on tokio's reactor.
//!
//! Owns the descriptor and the kernel's flags. Events are hints: the kernel drops them when its queue is
//! full, and reports the overflow.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::unix::AsyncFd;

/// The events of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Names that appear in and vanish from a directory.
    Names,
    /// Names, and also writing to the files behind them.
    Contents,
    /// Names, and files whose writer has closed them.
    Closing,
    /// Opening or deletion of the file itself.
    Opening,
}

impl Interest {
    fn flags(self) -> AddWatchFlags {
        if self == Self::Opening {
            return AddWatchFlags::IN_OPEN | AddWatchFlags::IN_DELETE_SELF;
        }
        let names = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        match self {
            Self::Names | Self::Opening => names,
            Self::Closing => names | AddWatchFlags::IN_CLOSE_WRITE,
            Self::Contents => {
                names | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB
            }
        }
    }
}

/// A watched directory. The same directory (inode) has the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatchId(WatchDescriptor);

/// What happened to a name in a watched directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was created, and may still be empty.
    Created,
    /// It was written to and may be written to further.
    Modified,
    /// Its writer closed it.
    Written,
    /// It was renamed into the directory: complete.
    MovedIn,
    /// It was deleted or renamed away.
    Gone,
    /// Its owner, mode, links or times changed.
    Attributes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InotifyEvent {
    /// Something happened to a name in a directory.
    Entry { watch: WatchId, name: OsString, change: Change },
    /// The directory itself changed its attributes, moved, or was deleted or unmounted.
    Directory { watch: WatchId, ended: bool },
    /// The kernel dropped events: a full rescan is needed.
    Overflow,
}

#[derive(Debug, thiserror::Error)]
pub enum InotifyError {
    /// `fs.inotify.max_user_instances` reached, or no inotify in this kernel.
    #[error("create an inotify instance (see fs.inotify.max_user_instances)")]
    Init(#[source] io::Error),
    /// Missing directory, or `fs.inotify.max_user_watches` reached.
    #[error("watch {}", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("read inotify events")]
    Read(#[source] io::Error),
}

#[derive(Debug)]
pub(crate) struct Watcher {
    fd: AsyncFd<Descriptor>,
}

#[derive(Debug)]
struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Watcher {
    /// Needs a running tokio runtime with I/O enabled.
    pub(crate) fn new() -> Result<Self, InotifyError> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .map_err(|errno| InotifyError::Init(errno.into()))?;
        // SAFETY: the descriptor is owned by the registered value, always the same, and closed only when that
        // is dropped, which AsyncFd does after it has removed it from the reactor.
        let fd =
            unsafe { AsyncFd::register_with_interest(Descriptor(inotify), tokio::io::Interest::READABLE) }
                .map_err(|error| InotifyError::Init(error.into()))?;
        Ok(Self { fd })
    }

    /// Watches a directory, following symlinks. Watching it again changes only the interest.
    pub(crate) fn watch(&self, directory: &Path, interest: Interest) -> Result<WatchId, InotifyError> {
        let added = self.fd.get_ref().0.add_watch(directory, interest.flags());
        match added {
            Ok(descriptor) => Ok(WatchId(descriptor)),
            Err(errno) => Err(InotifyError::Watch { path: directory.to_owned(), source: errno.into() }),
        }
    }

    /// Ends a watch. One that has ended by itself is no error.
    pub(crate) fn unwatch(&self, watch: WatchId) {
        if let Err(errno) = self.fd.get_ref().0.rm_watch(watch.0) {
            log::trace!(err:% = errno; "Watch was already removed");
        }
    }

    /// Appends what has happened; waits until there is something.
    pub(crate) async fn read(&self, events: &mut Vec<InotifyEvent>) -> Result<(), InotifyError> {
        loop {
            let mut ready = self.fd.readable().await.map_err(InotifyError::Read)?;
            if self.drain(events)? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }

    /// Appends what has happened so far; false when that was nothing.
    pub(crate) fn drain(&self, events: &mut Vec<InotifyEvent>) -> Result<bool, InotifyError> {
        match self.fd.get_ref().0.read_events() {
            Ok(raw) => {
                events
                    .extend(raw.into_iter().filter_map(|event| translate(event.wd, event.mask, event.name)));
                Ok(true)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(errno) => Err(InotifyError::Read(errno.into())),
        }
    }
}

fn translate(
    descriptor: WatchDescriptor,
    mask: AddWatchFlags,
    name: Option<OsString>,
) -> Option<InotifyEvent> {
    if mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
        return Some(InotifyEvent::Overflow);
    }
    let watch = WatchId(descriptor);
    let Some(name) = name else {
        let ended = mask.contains(AddWatchFlags::IN_IGNORED);
        return Some(InotifyEvent::Directory { watch, ended });
    };
    let change = if mask.contains(AddWatchFlags::IN_CLOSE_WRITE) {
        Change::Written
    } else if mask.contains(AddWatchFlags::IN_MOVED_TO) {
        Change::MovedIn
    } else if mask.intersects(AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM) {
        Change::Gone
    } else if mask.contains(AddWatchFlags::IN_CREATE) {
        Change::Created
    } else if mask.contains(AddWatchFlags::IN_MODIFY) {
        Change::Modified
    } else if mask.contains(AddWatchFlags::IN_ATTRIB) {
        Change::Attributes
    } else {
        return None;
    };
    Some(InotifyEvent::Entry { watch, name, change })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("inotify-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[tokio::test]
    async fn write_rename_and_removal_arrive_as_ordered_inotify_events() {
        let path = directory("typed");
        let watcher = Watcher::new().unwrap();
        let watch = watcher.watch(&path, Interest::Contents).unwrap();
        assert_eq!(watcher.watch(&path, Interest::Contents).unwrap(), watch);
        std::fs::write(path.join("a"), "x").unwrap();
        std::fs::rename(path.join("a"), path.join("b")).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        let mut events = Vec::new();
        while !events.contains(&InotifyEvent::Directory { watch, ended: true }) {
            watcher.read(&mut events).await.unwrap();
        }
        assert!(!watcher.drain(&mut events).unwrap());
        let seen: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                InotifyEvent::Entry { name, change, .. } => Some((name.to_str().unwrap(), *change)),
                _ => None,
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("a", Change::Created),
                ("a", Change::Modified),
                ("a", Change::Written),
                ("a", Change::Gone),
                ("b", Change::MovedIn),
                ("b", Change::Gone),
            ]
        );
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_watched_is_named() {
        let path = directory("missing").join("none");
        let error = Watcher::new().unwrap().watch(&path, Interest::Names).unwrap_err();
        assert_eq!(error.to_string(), format!("watch {}", path.display()));
    }

    #[tokio::test]
    async fn an_ended_watch_is_silent() {
        let path = directory("ended");
        let watcher = Watcher::new().unwrap();
        let watch = watcher.watch(&path, Interest::Names).unwrap();
        watcher.unwatch(watch);
        watcher.unwatch(watch);
        std::fs::write(path.join("a"), "x").unwrap();
        let mut events = Vec::new();
        watcher.drain(&mut events).unwrap();
        assert_eq!(events, [InotifyEvent::Directory { watch, ended: true }]);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[tokio::test]
    async fn a_full_queue_is_an_overflow_event() {
        let path = directory("full");
        let watcher = Watcher::new().unwrap();
        watcher.watch(&path, Interest::Names).unwrap();
        let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        // Two events each; a machine with a longer queue than usual does not overflow.
        let files = limit.trim().parse::<u32>().unwrap() / 2 + 10;
        if files > 20_000 {
            return;
        }
        let (one, two) = (path.join("a"), path.join("b"));
        std::fs::write(&one, "x").unwrap();
        for number in 0..files {
            let (from, to) = if number % 2 == 0 { (&one, &two) } else { (&two, &one) };
            std::fs::rename(from, to).unwrap();
        }
        let mut events = Vec::new();
        while watcher.drain(&mut events).unwrap() {}
        assert_eq!(events.last(), Some(&InotifyEvent::Overflow));
        std::fs::remove_dir_all(&path).unwrap();
    }
}
