//! What this node can do, measured once at the start; devices when they are asked for.
//!
//! Owns the measuring. What follows from it is `oci`'s.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::super::oci::NodeFacts;
use super::super::spec::{CAPABILITY_NAMES, Device};
use crate::cgroup::CgroupConfig;
use crate::sys::node;

/// Directories of `/dev` that every container has of its own.
const OWN: [&str; 5] = ["pts", "shm", "mqueue", "fd", ".lxc"];
/// How deep devices are looked for.
const DEEPEST: usize = 8;
/// Devices a container gets at most.
const MOST_DEVICES: usize = 4096;

/// The node's abilities.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    node: NodeFacts,
    user_namespaces: bool,
}

impl Facts {
    /// Measures.
    pub(super) fn measure(cgroup: &CgroupConfig) -> Self {
        let kernel = node::kernel_version();
        let node = NodeFacts {
            cgroup_v2: cgroup.v2,
            apparmor: node::apparmor_enabled(),
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            recursive_read_only: kernel >= (5, 12),
            capabilities: own_capabilities(),
            hostname: node::hostname().unwrap_or_default(),
            ..NodeFacts::default()
        };
        Self {
            node,
            // Layers of an overlay can be seen with other owners since then.
            user_namespaces: kernel >= (5, 19) && may_make_user_namespaces(),
        }
    }

    /// With the devices of the node for one that gets them all.
    pub(super) fn for_container(&self, privileged: bool) -> NodeFacts {
        let mut node = self.node.clone();
        if privileged {
            node.host_devices = devices();
        }
        node
    }

    pub(super) fn recursive_read_only_mounts(&self) -> bool {
        self.node.recursive_read_only
    }

    pub(super) fn user_namespaces(&self) -> bool {
        self.user_namespaces
    }
}

fn may_make_user_namespaces() -> bool {
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    Path::new("/proc/self/ns/user").exists() && limit.trim().parse::<u64>().is_ok_and(|limit| limit > 0)
}

/// Those this process may hand on.
fn own_capabilities() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    let named = CAPABILITY_NAMES.iter().enumerate().filter(|(number, _)| bits & (1 << number) != 0);
    named.map(|(_, name)| format!("CAP_{name}")).collect()
}

/// Every device node of the node.
fn devices() -> Vec<Device> {
    let mut found = Vec::new();
    collect(Path::new("/dev"), 0, &mut found);
    found.sort_by(|one: &Device, other: &Device| one.path.cmp(&other.path));
    found
}

fn collect(directory: &Path, depth: usize, found: &mut Vec<Device>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
        let kind = metadata.file_type();
        if kind.is_dir() {
            let is_own = depth == 0 && entry.file_name().to_str().is_some_and(|name| OWN.contains(&name));
            if !is_own && depth < DEEPEST {
                collect(&path, depth + 1, found);
            }
            continue;
        }
        let letter = match (kind.is_char_device(), kind.is_block_device()) {
            (true, _) => "c",
            (_, true) => "b",
            _ => continue,
        };
        let Some(path) = path.to_str() else { continue };
        if path == "/dev/console" || path == "/dev/ptmx" || found.len() >= MOST_DEVICES {
            continue;
        }
        let (major, minor) = numbers(metadata.rdev());
        found.push(Device {
            kind: letter.to_owned(),
            path: path.to_owned(),
            major,
            minor,
            file_mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
        });
    }
}

/// glibc's way of putting both numbers into one.
fn numbers(device: u64) -> (u32, u32) {
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & 0xffff_f000);
    let minor = (device & 0xff) | ((device >> 12) & 0xffff_ff00);
    (u32::try_from(major).unwrap_or(u32::MAX), u32::try_from(minor).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_devices_are_found_with_their_numbers_and_without_what_containers_have_of_their_own() {
        let found = devices();
        let null = found.iter().find(|device| device.path == "/dev/null").unwrap();
        assert_eq!((null.kind.as_str(), null.major, null.minor), ("c", 1, 3));
        assert!(found.iter().all(|device| !device.path.starts_with("/dev/pts/")), "{found:?}");
        assert_eq!(numbers(0x10_3001), (0x30, 0x101));
    }

    #[test]
    fn capabilities_are_those_of_the_process_by_their_names() {
        let names = own_capabilities();
        assert!(names.contains(&"CAP_CHOWN".to_owned()), "{names:?}");
        assert!(names.len() <= CAPABILITY_NAMES.len());
    }
}
