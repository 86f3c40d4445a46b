//! The cgroups above the containers': the node's, the QoS classes', the pods'. Creates them, writes their
//! values, and removes them with the processes left in them.
//!
//! Owns files and slices below the kubepods root, and the limits of cgroups that callers name. Values are
//! computed in `pod::resources`; containers' cgroups belong to the runtime. Everything here blocks: for the
//! pool of `rt::blocking`.

pub mod claim;
pub mod container;
pub mod devices;
mod file;
mod systemd;
mod tree;
pub mod usage;
mod v1;
mod v2;

use std::io;
use std::path::{Path, PathBuf};

use crate::model::runtime_config::{CgroupDriver, CgroupValues};
use crate::platform::dbus::DbusError;

/// Where every distribution mounts cgroups.
pub(crate) const MOUNT_POINT: &str = "/sys/fs/cgroup";

/// Where the tree is and which driver writes it.
#[derive(Clone, Debug)]
pub struct CgroupConfig {
    /// `/sys/fs/cgroup`, or a fake tree in tests.
    pub mount: PathBuf,
    pub v2: bool,
    /// With systemd, cgroups are slices, made and removed through it.
    pub driver: CgroupDriver,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    #[error("create cgroup {path:?}")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("write {value:?} to {path:?}")]
    Write {
        path: PathBuf,
        value: String,
        #[source]
        source: io::Error,
    },
    /// The kernel refused the device rules, and a container must not run without them.
    #[error("set device rules of cgroup {path:?}")]
    Devices {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A directory could not be removed; usually a process is still in it.
    #[error("remove cgroup {path:?}")]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("request unit {unit:?} from systemd")]
    Systemd {
        unit: String,
        #[source]
        source: DbusError,
    },
    /// A cgroup that the agent does not create itself.
    #[error("{path:?} cgroup does not exist")]
    Missing { path: String },
    #[error("{path:?} is not a cgroup path")]
    Path { path: String },
}

/// An operation that this machine does not permit, and that pods can run without.
#[derive(Debug)]
pub(crate) struct Skipped {
    /// The controller, file or service.
    pub what: String,
    pub why: String,
}

/// Makes a cgroup (`/kubepods/burstable/pod<uid>`) in every hierarchy, with what is above it, and writes its
/// values. An existing cgroup is fine. Returns what had to be left out.
///
/// # Errors
/// The first failure other than a missing permission or controller.
pub(crate) fn ensure(
    config: &CgroupConfig,
    path: &str,
    values: &CgroupValues,
) -> Result<Vec<Skipped>, CgroupError> {
    let path = tree::Relative::new(path)?;
    let mut skipped = Vec::new();
    if config.driver == CgroupDriver::Systemd {
        skipped.extend(systemd::ensure_slice(config, &path, values)?);
        if !skipped.is_empty() && !tree::exists(config, &path) {
            // Not without systemd's knowledge: the runtime creates it in its own way.
            return Ok(skipped);
        }
    }
    skipped.extend(tree::make(config, &path)?);
    skipped.extend(tree::write_values(config, &path, values)?);
    Ok(skipped)
}

/// Writes values of an existing cgroup.
///
/// # Errors
/// As [`ensure`], and when it is in no hierarchy.
pub(crate) fn update(
    config: &CgroupConfig,
    path: &str,
    values: &CgroupValues,
) -> Result<Vec<Skipped>, CgroupError> {
    let relative = tree::Relative::new(path)?;
    if !tree::exists(config, &relative) {
        return Err(CgroupError::Missing { path: path.to_owned() });
    }
    let mut skipped = Vec::new();
    if config.driver == CgroupDriver::Systemd {
        skipped.extend(systemd::ensure_slice(config, &relative, values)?);
    }
    skipped.extend(tree::write_values(config, &relative, values)?);
    Ok(skipped)
}

/// Whether a process is in a cgroup or below it, in any hierarchy.
#[must_use]
pub(crate) fn is_populated(config: &CgroupConfig, path: &str) -> bool {
    tree::Relative::new(path).is_ok_and(|path| tree::is_populated(config, &path))
}

/// Whether a cgroup is in any hierarchy.
#[must_use]
pub(crate) fn exists(config: &CgroupConfig, path: &str) -> bool {
    tree::Relative::new(path).is_ok_and(|path| tree::exists(config, &path))
}

/// Sends SIGKILL to everything in a cgroup and below it. Returns how many processes there were; they take a
/// moment to exit.
#[must_use]
pub(crate) fn kill_all(config: &CgroupConfig, path: &str) -> usize {
    tree::Relative::new(path).map_or(0, |path| tree::kill_all(config, &path))
}

/// Removes a cgroup from every hierarchy, empty children included. A missing cgroup is fine. With systemd,
/// its processes are ended: stopping a slice stops the scopes in it.
///
/// # Errors
/// One per hierarchy that still has it; the others are removed all the same.
pub(crate) fn remove(config: &CgroupConfig, path: &str) -> Vec<CgroupError> {
    let Ok(path) = tree::Relative::new(path) else { return Vec::new() };
    if config.driver == CgroupDriver::Systemd && tree::exists(config, &path) {
        // Whatever systemd answers, the directories decide: it may be down, or not know slices a runtime has
        // made.
        if let Err(error) = systemd::stop(&path.name()) {
            log::debug!(cgroup:% = path, err:% = crate::platform::logging::chain(&error); "Failed to stop systemd slice");
        }
    }
    tree::remove(config, &path)
}

/// Cgroups directly below one, in any hierarchy, as paths.
#[must_use]
pub(crate) fn children(config: &CgroupConfig, path: &str) -> Vec<String> {
    tree::Relative::new(path).map_or_else(|_| Vec::new(), |path| tree::children(config, &path))
}

/// The directories of a cgroup that count something: CPU time, memory, processes, disks. Empty when it does
/// not exist.
#[must_use]
pub(crate) fn counting_dirs(config: &CgroupConfig, path: &str) -> Vec<PathBuf> {
    let Ok(path) = tree::Relative::new(path) else { return Vec::new() };
    let counts = |root: &Path| {
        let name = root.file_name().unwrap_or_default().to_string_lossy();
        config.v2
            || name.split(',').any(|name| matches!(name, "cpu" | "cpuacct" | "memory" | "pids" | "blkio"))
    };
    let roots = tree::hierarchies(config).into_iter().map(|hierarchy| hierarchy.root);
    roots.filter(|root| counts(root)).map(|root| path.below(&root)).filter(|path| path.is_dir()).collect()
}

/// How far below a pod's cgroup its containers' are: at most one scope is between.
const CONTAINER_DEPTH: usize = 2;

/// Finds the cgroups of containers below these directories of their pod's, by the id that is in their name:
/// `<id>`, `cri-containerd-<id>.scope`, `crio-<id>.scope`. Returns them in the order of `ids`.
#[must_use]
pub(crate) fn find_by_ids(pod_dirs: &[PathBuf], ids: &[&str]) -> Vec<Vec<PathBuf>> {
    let mut found = vec![Vec::new(); ids.len()];
    for directory in pod_dirs {
        find_below(directory, CONTAINER_DEPTH, ids, &mut found);
    }
    found
}

fn find_below(directory: &Path, depth: usize, ids: &[&str], found: &mut [Vec<PathBuf>]) {
    for child in tree::directories(directory) {
        let name = child.file_name().unwrap_or_default().to_string_lossy();
        let plain = name.strip_suffix(".scope").unwrap_or(&name);
        let is_of = |id: &str| {
            let before = plain.strip_suffix(id).unwrap_or("?");
            // CRI-O puts the container's monitor (conmon) in a cgroup beside it.
            !id.is_empty() && (before.is_empty() || before.ends_with('-')) && !before.contains("conmon")
        };
        match ids.iter().position(|id| is_of(id)) {
            Some(index) => found[index].push(child),
            None if depth > 1 => find_below(&child, depth - 1, ids, found),
            None => {}
        }
    }
}

/// Runtimes that shorten a sandbox's id in the name of a cgroup keep this many characters.
const SHORT_ID: usize = 12;

/// A process of a pod that is in the pod's own namespaces: the sandbox's, else the pod's oldest.
#[must_use]
pub(crate) fn sandbox_process(pod_dirs: &[PathBuf], sandbox: &str) -> Option<i32> {
    let directory = pod_dirs.first()?;
    let short = sandbox.get(..SHORT_ID).filter(|short| !short.is_empty());
    let is_sandboxs = |child: &PathBuf| {
        let name = child.file_name().unwrap_or_default().to_string_lossy();
        short.is_some_and(|short| name.contains(short)) && !name.contains("conmon")
    };
    let own = tree::directories(directory).into_iter().find(is_sandboxs);
    let first = |directory: &Path| tree::pids_below(directory).into_iter().next();
    own.and_then(|own| first(&own)).or_else(|| first(directory))
}

#[cfg(test)]
mod tests;
