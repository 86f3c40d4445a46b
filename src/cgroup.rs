//! The pod level of the cgroup tree. The runtime makes it on the way to its containers' cgroups; it is taken away here when
//! the pod is gone.
//!
//! Owns removal below the kubepods root, nothing else. Values are computed in `reconcile/resources`; containers' cgroups
//! belong to the runtime.

use std::path::{Path, PathBuf};

use crate::runtime::CgroupDriver;

/// Where the tree is and who writes it.
#[derive(Clone, Debug)]
pub struct CgroupConfig {
    /// `/sys/fs/cgroup`, or a fake tree in tests.
    pub mount: PathBuf,
    /// Unified hierarchy.
    pub v2: bool,
    /// systemd removes its empty slices itself.
    pub driver: CgroupDriver,
}

/// A pod's cgroup could not be removed; usually a process is still in it.
#[derive(Debug, thiserror::Error)]
#[error("remove cgroup {path:?}")]
pub struct CgroupError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// Removes the pod's cgroup (`/kubepods/burstable/pod<uid>`) from every hierarchy, empty children included. Fine when it
/// is gone.
///
/// # Errors
/// One per hierarchy that still has it; the others are done all the same.
pub fn remove_pod_cgroup(config: &CgroupConfig, cgroup_parent: &str) -> Vec<CgroupError> {
    if config.driver == CgroupDriver::Systemd {
        return Vec::new();
    }
    let relative = cgroup_parent.trim_start_matches('/');
    // An empty or upward path would reach the hierarchy's root.
    if relative.is_empty() || Path::new(relative).components().any(|part| part.as_os_str() == "..") {
        return Vec::new();
    }
    roots(config)
        .into_iter()
        .map(|root| root.join(relative))
        .filter(|path| path.is_dir())
        .filter_map(|path| remove_tree(&path).err().map(|source| CgroupError { path, source }))
        .collect()
}

fn roots(config: &CgroupConfig) -> Vec<PathBuf> {
    if config.v2 {
        return vec![config.mount.clone()];
    }
    let Ok(entries) = std::fs::read_dir(&config.mount) else { return Vec::new() };
    let mut roots: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_dir() && !path.is_symlink())
        .collect();
    roots.sort();
    roots
}

/// cgroupfs refuses unlink of its files; removing the directories bottom-up is enough.
fn remove_tree(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("edge-agent-cgroup-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_pods_cgroup_goes_from_every_v1_hierarchy_and_its_neighbours_stay() {
        let mount = scratch("v1");
        for path in [
            "cpu/kubepods/besteffort/podA/c1",
            "memory/kubepods/besteffort/podA",
            "cpu/kubepods/besteffort/podB",
        ] {
            std::fs::create_dir_all(mount.join(path)).unwrap();
        }
        let config = CgroupConfig { mount: mount.clone(), v2: false, driver: CgroupDriver::Cgroupfs };
        assert!(remove_pod_cgroup(&config, "/kubepods/besteffort/podA").is_empty());
        assert!(!mount.join("cpu/kubepods/besteffort/podA").exists());
        assert!(!mount.join("memory/kubepods/besteffort/podA").exists());
        assert!(mount.join("cpu/kubepods/besteffort/podB").exists());
        std::fs::remove_dir_all(mount).unwrap();
    }

    #[test]
    fn v2_has_one_hierarchy_and_no_path_reaches_its_root() {
        let mount = scratch("v2");
        std::fs::create_dir_all(mount.join("kubepods/podA")).unwrap();
        let config = CgroupConfig { mount: mount.clone(), v2: true, driver: CgroupDriver::Cgroupfs };
        for nothing in ["", "/", "/kubepods/..", "../kubepods"] {
            assert!(remove_pod_cgroup(&config, nothing).is_empty());
        }
        assert!(mount.join("kubepods/podA").exists());
        assert!(remove_pod_cgroup(&config, "/kubepods/podA").is_empty());
        assert!(!mount.join("kubepods/podA").exists() && mount.join("kubepods").exists());
        std::fs::remove_dir_all(mount).unwrap();
    }
}
