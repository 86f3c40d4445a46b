//! The files of a simulated node.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::scratch::unmount_below;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory; in memory where there is such a place, because a simulation syncs a lot. It goes with the value, and the
/// mounts of volumes below it.
pub struct Disk(pub PathBuf);

impl Disk {
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let disk = Self(parent.join(format!("agent-sim-{}-{number}", std::process::id())));
        // Of an earlier process of this number, which was killed.
        disk.clear();
        std::fs::create_dir_all(&disk.0).expect("make the simulated node's directory");
        disk
    }

    fn clear(&self) {
        unmount_below(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.clear();
    }
}

#[test]
fn mounts_go_with_the_files_of_a_node() {
    let disk = Disk::new();
    let path = disk.0.clone();
    let volume = path.join("volume");
    std::fs::create_dir(&volume).expect("create a directory");
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&path), &volume, None::<&str>, bind, None::<&str>).expect("mount: as root");
    drop(disk);
    assert!(!path.exists());
}
