//! The node's abilities, measured once at the start; devices when they are needed.
//!
//! Owns the measuring. `oci` decides what follows from it.

use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::super::oci::{NodeFacts, SELINUX_LABELS};
use super::super::spec::{CAPABILITY_NAMES, Device};
use super::Failure;
use crate::model::ordered::Sortable as _;
use crate::platform::cgroup::CgroupConfig;
use crate::platform::sys::node;
use crate::runtime::Device as WantedDevice;

/// Directories in `/dev` that every container has for itself.
const OWN: [&str; 5] = ["pts", "shm", "mqueue", "fd", ".lxc"];
/// How deep to search for devices.
const DEEPEST: usize = 8;
const MOST_DEVICES: usize = 4096;

#[derive(Clone, Debug)]
pub(super) struct NodeAbilities {
    node: NodeFacts,
    user_namespaces: bool,
}

impl NodeAbilities {
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
            // Since this version, layers of an overlay can be idmapped.
            user_namespaces: kernel >= (5, 19) && may_make_user_namespaces(),
        }
    }

    /// Adds the node's devices for a privileged container.
    pub(super) fn for_container(&self, privileged: bool) -> NodeFacts {
        let mut node = self.node.clone();
        // Checked on every call: a policy may be loaded at any time.
        node.selinux_containers = node.selinux && SELINUX_LABELS.iter().all(|label| is_in_policy(label));
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

/// Whether the kernel accepts a label, which it does if its policy has it.
fn is_in_policy(label: &str) -> bool {
    let file = std::fs::OpenOptions::new().write(true).open("/sys/fs/selinux/context");
    file.and_then(|mut file| file.write_all(&[label.as_bytes(), b"\0"].concat())).is_ok()
}

fn may_make_user_namespaces() -> bool {
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    Path::new("/proc/self/ns/user").exists() && limit.trim().parse::<u64>().is_ok_and(|limit| limit > 0)
}

/// The capabilities that this process may pass on.
fn own_capabilities() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    let named = CAPABILITY_NAMES.iter().enumerate().filter(|(number, _)| bits & (1 << number) != 0);
    named.map(|(_, name)| format!("CAP_{name}")).collect()
}

fn devices() -> Vec<Device> {
    let mut found = Vec::new();
    collect(Path::new("/dev"), 0, &mut found);
    found.order_by(|one: &Device, other: &Device| one.path.cmp(&other.path));
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
        let Some(path) = path.to_str() else { continue };
        if path == "/dev/console" || path == "/dev/ptmx" || found.len() >= MOST_DEVICES {
            continue;
        }
        found.extend(node_at(path, &metadata));
    }
}

/// `None` when the file is not a device.
fn node_at(path: &str, metadata: &Metadata) -> Option<Device> {
    let kind = metadata.file_type();
    let letter = match (kind.is_char_device(), kind.is_block_device()) {
        (true, _) => "c",
        (_, true) => "b",
        _ => return None,
    };
    let (major, minor) = numbers(metadata.rdev());
    Some(Device {
        kind: letter.to_owned(),
        path: path.to_owned(),
        major,
        minor,
        file_mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        host_path: String::new(),
    })
}

/// The device nodes that the wanted paths stand for, each with its access letters. Links are followed; a
/// directory stands for the nodes below it.
pub(super) fn resolve_devices(devices: &[WantedDevice]) -> Result<Vec<(Device, String)>, Failure> {
    let mut all = Vec::new();
    for wanted in devices {
        let path = &wanted.host_path;
        let failed = |why: &str| Failure::refused(format!("device {path:?}: {why}"));
        let real = std::fs::canonicalize(path).map_err(|error| failed(&error.to_string()))?;
        let metadata = std::fs::metadata(&real).map_err(|error| failed(&error.to_string()))?;
        let real = real.to_str().ok_or_else(|| failed("its path is not UTF-8"))?;
        let mut found = Vec::new();
        if metadata.is_dir() {
            collect(Path::new(real), 1, &mut found);
        } else {
            found.extend(node_at(real, &metadata));
        }
        if found.is_empty() {
            return Err(failed("not a device or a directory of devices"));
        }
        for node in found {
            let place = format!("{}{}", wanted.container_path, &node.path[real.len()..]);
            let node = Device {
                host_path: node.path,
                path: place,
                file_mode: wanted.file_mode.unwrap_or(node.file_mode),
                uid: wanted.uid.unwrap_or(node.uid),
                gid: wanted.gid.unwrap_or(node.gid),
                ..node
            };
            all.push((node, wanted.permissions.clone()));
        }
    }
    Ok(all)
}

/// glibc's encoding of both numbers in one.
fn numbers(device: u64) -> (u32, u32) {
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & 0xffff_f000);
    let minor = (device & 0xff) | ((device >> 12) & 0xffff_ff00);
    (u32::try_from(major).unwrap_or(u32::MAX), u32::try_from(minor).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_devices_are_found_with_numbers_and_without_devpts() {
        let found = devices();
        let null = found.iter().find(|device| device.path == "/dev/null").unwrap();
        assert_eq!((null.kind.as_str(), null.major, null.minor), ("c", 1, 3));
        assert!(found.iter().all(|device| !device.path.starts_with("/dev/pts/")), "{found:?}");
        assert_eq!(numbers(0x10_3001), (0x30, 0x101));
    }

    #[test]
    fn a_link_and_a_directory_stand_for_the_nodes_they_lead_to() {
        let directory = std::env::temp_dir().join(format!("edge-agent-given-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let link = directory.join("sensor");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let of = |host: &str, gid: Option<u32>| {
            let wanted = WantedDevice {
                host_path: host.to_owned(),
                container_path: "/dev/x".to_owned(),
                permissions: "r".to_owned(),
                gid,
                ..WantedDevice::default()
            };
            resolve_devices(&[wanted]).map_err(|failure| failure.message)
        };
        let found = of(link.to_str().unwrap(), Some(7)).unwrap();
        let nothing = of(directory.to_str().unwrap(), None);
        std::fs::remove_dir_all(&directory).unwrap();
        let (node, letters) = &found[0];
        assert_eq!((node.path.as_str(), node.host_path.as_str(), node.minor), ("/dev/x", "/dev/null", 3));
        assert_eq!((node.gid, letters.as_str()), (7, "r"));
        assert!(nothing.unwrap_err().ends_with("not a device or a directory of devices"));
        assert!(of("/dev/none", None).unwrap_err().contains("device \"/dev/none\": No such file"));
        let all = of("/dev", None).unwrap();
        assert!(all.iter().any(|(node, _)| node.path == "/dev/x/null" && node.host_path == "/dev/null"));
    }

    #[test]
    fn capabilities_are_those_of_the_process_by_their_names() {
        let names = own_capabilities();
        assert!(names.contains(&"CAP_CHOWN".to_owned()), "{names:?}");
        assert!(names.len() <= CAPABILITY_NAMES.len());
    }
}
