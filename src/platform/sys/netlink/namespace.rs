//! Network namespaces: work inside one, without leaving a thread there.

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(test)]
use nix::sched::unshare;
use nix::sched::{CloneFlags, setns};

/// Runs `body` on a thread of its own inside the network namespace that `namespace` is open on. The thread
/// ends with it, so no thread is ever left in another network.
pub(crate) fn inside<T: Send>(namespace: &File, body: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_a_thread(|| {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(body())
    })
}

/// Opens a namespace by its path, for example `/proc/<pid>/ns/net`.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// A new network namespace, which lives as long as the file is open or a process is in it.
#[cfg(test)]
pub(crate) fn create() -> io::Result<File> {
    on_a_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    })
}

fn on_a_thread<T: Send>(body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).stack_size(256 * 1024);
        match thread.spawn_scoped(scope, body)?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn work_happens_in_the_namespace_and_the_caller_stays_out() {
        let inode = || std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        let (before, namespace) = (inode(), create().unwrap());
        let inside_it = inside(&namespace, inode).unwrap();
        assert_eq!(inside_it, namespace.metadata().unwrap().ino());
        assert_ne!(inside_it, before);
        assert_eq!(inode(), before);
        assert!(inside(&File::open("/proc/self/ns/uts").unwrap(), || ()).is_err(), "it is no network");
    }
}
