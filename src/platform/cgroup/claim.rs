//! Ownership of the pods' cgroups below a cgroup root: one agent at a time.
//!
//! Owns the lock and finding its holder. Two agents on one root would each remove the other's empty pod
//! cgroups as leftovers, and set the weights of the QoS classes without the other's pods.
//!
//! The lock is one byte of the hierarchy's `cgroup.procs`. Only processes that may change the tree can open
//! that file, it exists before the agent creates any cgroup, and every process that sees this tree sees it,
//! whatever its own `/run` is. The byte's offset is derived from the root's name. The kernel releases the
//! lock when the process ends.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{CgroupConfig, tree};
use crate::platform::sys::lock::{ByteLock, try_acquire_byte};

/// FNV-1a, 32 bits.
const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// Another agent's pods are there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another agent uses cgroup root {root:?}{}: stop it, or set another --cgroup-root for this one",
    holder.as_ref().map(Holder::shown).unwrap_or_default()
)]
pub struct HeldError {
    /// The cgroup root as configured.
    root: String,
    /// `None` when it is hidden in another container.
    holder: Option<Holder>,
}

/// The process that holds the lock.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// The holder's store; `None` while it has not been opened.
    root_dir: Option<PathBuf>,
}

impl Holder {
    fn shown(&self) -> String {
        let root_dir = self.root_dir.as_ref().map(|path| format!(", --root-dir {}", path.display()));
        format!(" (pid {}{})", self.pid, root_dir.unwrap_or_default())
    }
}

/// Takes the root for this process, for as long as the returned lock lives; `None` where this process lacks
/// the rights to make cgroups.
pub(crate) fn claim(config: &CgroupConfig, root: &str) -> Result<Option<ByteLock>, HeldError> {
    let mut hierarchies = tree::hierarchies(config).into_iter();
    let Some(hierarchy) = hierarchies.find(|hierarchy| config.v2 || !hierarchy.controllers.is_empty()) else {
        return Ok(None);
    };
    let (path, byte) = (hierarchy.root.join("cgroup.procs"), byte_of(root));
    match try_acquire_byte(&path, byte) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(HeldError { root: root.to_owned(), holder: holder(&path, byte) }),
        Err(error) => {
            log::debug!(err:% = crate::platform::logging::chain(&error); "Failed to claim the cgroup root, continuing \
                 without");
            Ok(None)
        }
    }
}

/// The same for all spellings of one root.
fn byte_of(root: &str) -> i32 {
    let parts = root.split('/').filter(|part| !part.is_empty());
    let bytes = parts.flat_map(|part| part.bytes().chain([b'/']));
    let hash = bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME));
    // Offsets are signed, and 32 bits wide on some machines.
    i32::try_from(hash >> 1).unwrap_or_default()
}

/// The process that holds the lock, as found in `/proc`: the kernel names no process for locks of this kind.
fn holder(path: &Path, byte: i32) -> Option<Holder> {
    let lock = format!(":{} {byte} {byte}\n", fs::metadata(path).ok()?.ino());
    let pids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id()).find_map(|pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let (mut holds, mut root_dir) = (false, None);
        for file in files.flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default();
            let number = file.file_name();
            if target.ends_with("cgroup.procs") {
                let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(number);
                holds |= fs::read_to_string(info).is_ok_and(|info| info.contains(&lock));
            } else if target.ends_with("agent.db") {
                root_dir = target.parent().map(Path::to_owned);
            }
        }
        holds.then_some(Holder { pid, root_dir })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::runtime_config::CgroupDriver;

    fn config(name: &str, v2: bool) -> CgroupConfig {
        let mount = std::env::temp_dir().join(format!("agent-cgroup-claim-{name}-{}", std::process::id()));
        fs::create_dir_all(mount.join("cpu")).unwrap();
        for path in ["cgroup.procs", "cgroup.controllers", "cpu/cgroup.procs"] {
            fs::write(mount.join(path), "").unwrap();
        }
        CgroupConfig { mount, v2, driver: CgroupDriver::Cgroupfs }
    }

    #[test]
    fn cgroup_root_claim_is_exclusive_in_any_spelling() {
        for v2 in [false, true] {
            let config = config(if v2 { "two" } else { "one" }, v2);
            let held = claim(&config, "/").unwrap().expect("a claim");
            let other = claim(&config, "/other").unwrap().expect("another root is another's");
            assert!(claim(&config, "").is_err() && claim(&config, "//other/").is_err());
            drop(held);
            assert!(claim(&config, "").unwrap().is_some());
            assert!(claim(&config, "other").is_err(), "that one is held still");
            drop(other);
            fs::remove_dir_all(&config.mount).unwrap();
            assert!(claim(&config, "/").unwrap().is_none(), "no tree, no cgroups of anybody");
        }
    }

    #[test]
    fn the_refusal_names_the_root_and_what_is_known_of_its_holder() {
        let said = |holder| HeldError { root: "/edge".to_owned(), holder }.to_string();
        let fix = ": stop it, or set another --cgroup-root for this one";
        assert_eq!(said(None), format!("another agent uses cgroup root \"/edge\"{fix}"));
        let holder = |root_dir| Some(Holder { pid: 7, root_dir });
        assert!(said(holder(None)).contains("\"/edge\" (pid 7): "));
        assert!(
            said(holder(Some("/var/lib/kubelet".into()))).contains(" (pid 7, --root-dir /var/lib/kubelet): ")
        );
    }
}
