//! Mounts that travel between the node and containers (`mountPropagation`): they need the agent's directory on a shared mount.
//!
//! Owns what is said when there is none. Must not know containers.

use std::path::Path;

use crate::platform::rt;
use crate::platform::sys::mount::{self, Sharing};

/// Makes `root` a shared mount if it is on none. Where that is not possible pods run all the same, and only volumes below
/// `root` that are mounted with `mountPropagation` miss something: said once, in the log.
pub async fn share_mounts_below(root: &Path) {
    let owned = root.to_owned();
    let path = root.display();
    match rt::blocking("share mounts", move || mount::ensure_shared(&owned)).await {
        Ok(Sharing::AlreadyShared) => {}
        Ok(Sharing::MadeShared) => {
            log::info!(path:%; "Bind-mounted the root directory with shared mount propagation");
        }
        Ok(Sharing::InUse(point)) => {
            log::warn!(path:%, mounted:% = point.display(); "The root directory is on no shared mount, and something is mounted below: mount propagation begins after the next boot");
        }
        Err(error) => {
            log::warn!(path:%, err:% = error; "Failed to make the root directory a shared mount, going on without mount propagation");
        }
    }
}
