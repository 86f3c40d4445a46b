//! The directories of a cgroup in every hierarchy, whatever their version.
//!
//! Owns making, listing and removing. The files in them are known to `v1` and `v2` only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fmt, io};

use super::file::{ValueFile, write_file};
use super::{CgroupConfig, CgroupError, MOUNT_POINT, Skipped, v1, v2};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::runtime_config::CgroupValues;
use crate::platform::sys::kill::kill_process;

/// The controllers that pods' cgroups use.
pub(super) const CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb"];

/// A path below a hierarchy's root that cannot leave it.
#[derive(Clone, Debug)]
pub(super) struct Relative(PathBuf);

impl Relative {
    pub(super) fn new(path: &str) -> Result<Self, CgroupError> {
        let relative = path.trim_matches('/');
        // An empty or upward path would reach the hierarchy's root.
        if relative.is_empty() || relative.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(CgroupError::Path { path: path.to_owned() });
        }
        Ok(Self(PathBuf::from(relative)))
    }

    /// The directory below a hierarchy's root.
    pub(super) fn below(&self, root: &Path) -> PathBuf {
        root.join(&self.0)
    }

    /// The name of the last component; with systemd, the unit.
    pub(super) fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl fmt::Display for Relative {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "/{}", self.0.display())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) root: PathBuf,
    /// Those of [`CONTROLLERS`] it has.
    pub(super) controllers: Vec<String>,
}

/// What happens to the parent of a new cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Above {
    /// It delegates its controllers to its children, and so cannot hold processes.
    Delegates,
    /// Only the cgroups above it delegate theirs.
    Unchanged,
}

/// Makes the cgroup and those above it.
pub(super) fn make(config: &CgroupConfig, path: &Relative) -> Result<Vec<Skipped>, CgroupError> {
    let mut skipped = Vec::new();
    for hierarchy in hierarchies(config) {
        if !config.v2 && hierarchy.controllers.is_empty() {
            continue;
        }
        match make_in(config, &hierarchy, path, Above::Delegates) {
            Ok(more) => skipped.extend(more),
            Err(CgroupError::Create { path, source }) if is_unavailable(&source) => {
                let what = format!("cgroup hierarchy {}", hierarchy.root.display());
                skipped.push(Skipped { what, why: format!("create {}: {source}", path.display()) });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(skipped)
}

pub(super) fn make_in(
    config: &CgroupConfig,
    hierarchy: &Hierarchy,
    path: &Relative,
    above: Above,
) -> Result<Vec<Skipped>, CgroupError> {
    let mut skipped = Vec::new();
    let inherits = !config.v2 && hierarchy.controllers.iter().any(|controller| controller == "cpuset");
    let whole = path.below(&hierarchy.root);
    // Usually those above it are there.
    if !config.v2 && std::fs::create_dir(&whole).is_ok() && (!inherits || v1::inherit_cpuset(&whole).is_ok())
    {
        return Ok(skipped);
    }
    let mut current = hierarchy.root.clone();
    let mut parts = path.0.iter().peekable();
    while let Some(part) = parts.next() {
        if config.v2 && (above == Above::Delegates || parts.peek().is_some()) {
            skipped.extend(v2::enable_controllers(&current, &hierarchy.controllers));
        }
        current.push(part);
        match std::fs::create_dir(&current) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CgroupError::Create { path: current, source: error });
            }
            _ => {}
        }
        if inherits {
            v1::inherit_cpuset(&current)
                .map_err(|source| CgroupError::Create { path: current.clone(), source })?;
        }
    }
    Ok(skipped)
}

/// Gives existing cgroups of version 2 the controllers of those above them.
pub(super) fn delegate_controllers(config: &CgroupConfig, dirs: &[PathBuf]) -> Vec<Skipped> {
    let hierarchies = hierarchies(config);
    let give = |directory: &PathBuf| {
        let hierarchy = hierarchies.iter().find(|one| directory.starts_with(&one.root))?;
        directory.parent().map(|above| v2::enable_controllers(above, &hierarchy.controllers))
    };
    dirs.iter().filter_map(give).flatten().collect()
}

/// Writes the values to the hierarchies that have their controllers.
pub(super) fn write_values(
    config: &CgroupConfig,
    path: &Relative,
    values: &CgroupValues,
) -> Result<Vec<Skipped>, CgroupError> {
    let files = if config.v2 { v2::files(values) } else { v1::files(values) };
    let mut skipped = Vec::new();
    for hierarchy in hierarchies(config) {
        let directory = hierarchy.root.join(&path.0);
        if !directory.is_dir() {
            continue;
        }
        let has = |file: &&ValueFile| hierarchy.controllers.iter().any(|name| name == file.controller);
        for file in files.iter().filter(has) {
            match write_file(&directory.join(&file.file), &file.value) {
                Ok(()) => {}
                Err(source) if is_unavailable(&source) => {
                    skipped.push(Skipped { what: file.file.clone(), why: source.to_string() });
                }
                Err(source) => {
                    let path = directory.join(&file.file);
                    return Err(CgroupError::Write { path, value: file.value.clone(), source });
                }
            }
        }
    }
    Ok(skipped)
}

/// The agent runs in a container, or the kernel lacks the controller: a retry changes nothing.
pub(super) fn is_unavailable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

pub(super) fn exists(config: &CgroupConfig, path: &Relative) -> bool {
    hierarchies(config).iter().any(|hierarchy| hierarchy.root.join(&path.0).is_dir())
}

pub(super) fn is_populated(config: &CgroupConfig, path: &Relative) -> bool {
    hierarchies(config).iter().any(|hierarchy| !pids_below(&path.below(&hierarchy.root)).is_empty())
}

/// Paths of the cgroups directly below, each once.
pub(super) fn children(config: &CgroupConfig, path: &Relative) -> Vec<String> {
    let names: BTreeSet<String> = hierarchies(config)
        .iter()
        .flat_map(|hierarchy| directories(&hierarchy.root.join(&path.0)))
        .filter_map(|child| Some(child.file_name()?.to_str()?.to_owned()))
        .into_set();
    names.iter().map(|name| format!("{path}/{name}")).collect()
}

pub(super) fn kill_all(config: &CgroupConfig, path: &Relative) -> usize {
    let pids: BTreeSet<i32> =
        hierarchies(config).iter().flat_map(|hierarchy| pids_below(&hierarchy.root.join(&path.0))).into_set();
    for pid in &pids {
        if let Err(error) = kill_process(*pid) {
            log::debug!(pid = pid, err:% = error; "Failed to kill leftover process in cgroup");
        }
    }
    pids.len()
}

pub(super) fn pids_below(directory: &Path) -> BTreeSet<i32> {
    let listed = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    // 0 stands for a process of a PID namespace that is not visible here.
    let mut pids: BTreeSet<i32> =
        listed.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).into_set();
    for child in directories(directory) {
        pids.extend(pids_below(&child));
    }
    pids
}

pub(super) fn remove(config: &CgroupConfig, path: &Relative) -> Vec<CgroupError> {
    hierarchies(config)
        .iter()
        .map(|hierarchy| hierarchy.root.join(&path.0))
        .filter(|path| path.is_dir())
        .filter_map(|path| remove_tree(&path).err().map(|source| CgroupError::Remove { path, source }))
        .collect()
}

/// cgroupfs refuses unlink of its files; removing the directories bottom-up is enough.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    for child in directories(path) {
        remove_tree(&child)?;
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Directories in a directory, sorted; empty when it cannot be read. Links are not followed: v1 has `cpu` for
/// `cpu,cpuacct`.
pub(super) fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    found.order_by(Ord::cmp);
    found
}

/// All hierarchies, including those whose controllers the agent does not use (`systemd`, `freezer`): runtimes
/// use them, too. Those of the machine's version 1 are looked for once: they are mounted before the agent starts.
pub(super) fn hierarchies(config: &CgroupConfig) -> Vec<Hierarchy> {
    static OF_MACHINE: OnceLock<Vec<Hierarchy>> = OnceLock::new();
    if !config.v2 && config.mount == Path::new(MOUNT_POINT) {
        return OF_MACHINE.get_or_init(|| find_hierarchies(config)).clone();
    }
    find_hierarchies(config)
}

/// A directory that is not a mount point (`OpenRC` leaves it there) is none.
fn find_hierarchies(config: &CgroupConfig) -> Vec<Hierarchy> {
    let known = |names: &str, separator: char| -> Vec<String> {
        names
            .split(separator)
            .map(str::trim)
            .filter(|name| CONTROLLERS.contains(name))
            .map(str::to_owned)
            .collect()
    };
    if config.v2 {
        let listed = std::fs::read_to_string(config.mount.join("cgroup.controllers")).unwrap_or_default();
        return vec![Hierarchy { root: config.mount.clone(), controllers: known(&listed, ' ') }];
    }
    directories(&config.mount)
        .into_iter()
        .filter(|root| root.join("cgroup.procs").exists())
        .map(|root| {
            let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Hierarchy { controllers: known(&name, ','), root }
        })
        .collect()
}
