//! Mounts that travel between the node and containers (`mountPropagation`): they need the agent's directory
//! on a shared mount.
//!
//! Owns the messages for a node without one.

use std::fs;
use std::path::Path;

use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::mount::{self, Sharing};
use crate::platform::sys::node;

/// In the root directory: the boot in which the agent bind-mounted it on itself. Mounts of a user or of the
/// system have no such file.
pub(crate) const MARK: &str = ".mounted-by-agent";

/// Makes `root` a shared mount if it is on none. Where that is not possible pods run all the same, and only
/// volumes below `root` with `mountPropagation` are affected: logged once.
pub(crate) async fn share_mounts_below(root: &Path) {
    let owned = root.to_owned();
    let path = root.display();
    match rt::blocking("share mounts", move || share(&owned)).await {
        Ok(Sharing::AlreadyShared) => {}
        Ok(Sharing::MadeShared) => {
            log::info!(path:%; "Bind-mounted the root directory with shared mount propagation");
        }
        Ok(Sharing::InUse(point)) => {
            log::warn!(path:%, mounted:% = point.display(); "Root directory is not on a shared mount and \
                 has mounts below it, mount propagation starts after the next boot");
        }
        Err(error) => {
            log::warn!(path:%, err:% = error; "Failed to make the root directory a shared mount, continuing \
                 without mount propagation");
        }
    }
}

fn share(root: &Path) -> std::io::Result<Sharing> {
    let root = root.canonicalize()?;
    // An existing mount, such as a disk, is only made shared.
    let is_mounted = mount::is_mount_point(&root)?;
    let sharing = mount::ensure_shared(&root)?;
    if !is_mounted
        && sharing == Sharing::MadeShared
        && let Err(error) = fs::write(root.join(MARK), node::boot_id())
    {
        log::warn!(path:% = root.join(MARK).display(), err:% = error; "Failed to remember the mount of the root directory, run-once will leave it");
    }
    Ok(sharing)
}

/// Removes the mount that [`share_mounts_below`] made in this boot, unless something is mounted below it. A
/// mount of a user or of the system stays.
pub(crate) async fn unshare_mounts_below(root: &Path) {
    let owned = root.to_owned();
    if let Err(error) = rt::blocking("unshare mounts", move || unshare(&owned)).await {
        log::warn!(path:% = root.display(), err:% = chain(&error); "Failed to unmount the root directory from itself, leaving it");
    }
}

fn unshare(root: &Path) -> std::io::Result<()> {
    let mark = root.join(MARK);
    if !fs::read_to_string(&mark).is_ok_and(|boot| boot == node::boot_id()) {
        return Ok(());
    }
    let (root, points) = (root.canonicalize()?, mount::mount_points()?);
    if points.iter().any(|point| *point != root && point.starts_with(&root)) {
        return Ok(());
    }
    if points.contains(&root) {
        mount::unmount(&root)?;
        log::info!(path:% = root.display(); "Unmounted the root directory from itself, as no pod is left");
    }
    fs::remove_file(&mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn the_mount_goes_when_it_is_the_agents_and_empty() {
        let directory = TempDir::new();
        let root = directory.path().canonicalize().unwrap();
        mount::bind(&root, &root).unwrap();
        share(&root).unwrap();
        unshare(&root).unwrap();
        assert!(mount::is_mount_point(&root).unwrap(), "it is not the agent's");
        fs::write(root.join(MARK), "another boot").unwrap();
        unshare(&root).unwrap();
        assert!(mount::is_mount_point(&root).unwrap(), "of another boot");
        fs::write(root.join(MARK), node::boot_id()).unwrap();
        let below = root.join("below");
        fs::create_dir(&below).unwrap();
        mount::bind(&below, &below).unwrap();
        unshare(&root).unwrap();
        assert!(mount::is_mount_point(&root).unwrap(), "in use");
        mount::unmount(&below).unwrap();
        unshare(&root).unwrap();
        assert!(!mount::is_mount_point(&root).unwrap() && !root.join(MARK).exists());
        unshare(&root).unwrap();
    }
}
