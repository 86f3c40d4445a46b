//! Containers' cgroups, below their pod's: made, limited, emptied and removed by the agent where no other
//! runtime does it.
//!
//! Owns directories below a pod's cgroup, in every hierarchy, so that nothing a container does escapes
//! accounting. Where systemd rules the tree, it also owns their scope: systemd takes controllers away from
//! unknown cgroups below a slice, and leaves a delegated scope to its requester. Everything here blocks: for
//! the pool of `rt::blocking`.

use std::fs::read_to_string;
use std::io;
use std::path::{Path, PathBuf};

use super::devices::{self, DeviceRule};
use super::file::{ValueFile, write_file};
use super::tree::{self, Above, Relative};
use super::{CgroupConfig, CgroupError, Skipped, systemd, v2};
use crate::model::runtime_config::{CgroupDriver, LinuxResources};
use crate::platform::sys::kill::kill_process;

#[derive(Debug, Default)]
pub(crate) struct ContainerCgroup {
    /// Its directory in every hierarchy; a process has to enter all.
    pub dirs: Vec<PathBuf>,
    pub skipped: Vec<Skipped>,
}

/// The default period in microseconds.
const DEFAULT_PERIOD: i64 = 100_000;

/// Gives a container's cgroup, which [`make_leaf`] made in `dirs`, its limits and its device rules.
///
/// # Errors
/// The first failure other than a missing permission or controller. Device rules are never left out where
/// there are device cgroups.
pub(crate) fn limit(
    config: &CgroupConfig,
    dirs: &[PathBuf],
    resources: &LinuxResources,
    rules: &[DeviceRule],
) -> Result<Vec<Skipped>, CgroupError> {
    let mut skipped = if config.v2 { tree::delegate_controllers(config, dirs) } else { Vec::new() };
    skipped.extend(update(dirs, resources)?);
    skipped.extend(devices::allow(dirs, config.v2, rules)?);
    Ok(skipped)
}

/// Makes a cgroup without limits below a pod's, for the pod's monitor: with version 2 a cgroup whose children
/// have controllers must not hold processes itself. It gets no controllers, for its processes may still be in
/// the cgroup above.
pub(crate) fn make_leaf(
    config: &CgroupConfig,
    parent: &str,
    name: &str,
) -> Result<ContainerCgroup, CgroupError> {
    let path = leaf(config, parent, name)?;
    let mut cgroup = ContainerCgroup::default();
    for hierarchy in tree::hierarchies(config) {
        match tree::make_in(config, &hierarchy, &path, Above::Unchanged) {
            Ok(skipped) => {
                cgroup.skipped.extend(skipped);
                cgroup.dirs.push(path.below(&hierarchy.root));
            }
            Err(CgroupError::Create { path, source }) if tree::is_unavailable(&source) => {
                let what = format!("cgroup hierarchy {}", hierarchy.root.display());
                cgroup.skipped.push(Skipped { what, why: format!("create {}: {source}", path.display()) });
            }
            Err(error) => return Err(error),
        }
    }
    if cgroup.dirs.is_empty() {
        return Err(CgroupError::Missing { path: path.to_string() });
    }
    Ok(cgroup)
}

/// The existing directories of a container's cgroup, for finding it again after a restart.
pub(crate) fn find(config: &CgroupConfig, parent: &str, name: &str) -> Result<Vec<PathBuf>, CgroupError> {
    let path = leaf(config, parent, name)?;
    let all = tree::hierarchies(config).into_iter().map(|hierarchy| path.below(&hierarchy.root));
    Ok(all.filter(|directory| directory.is_dir()).collect())
}

fn leaf(config: &CgroupConfig, parent: &str, name: &str) -> Result<Relative, CgroupError> {
    if name.is_empty() || name.contains('/') {
        return Err(CgroupError::Path { path: name.to_owned() });
    }
    Relative::new(&format!("{}/{name}", place(config, parent).trim_end_matches('/')))
}

/// systemd's path of a slice: `kubepods-burstable.slice` is `kubepods.slice/kubepods-burstable.slice`. Whole
/// paths stay.
fn expand_slice(parent: &str) -> String {
    let Some(name) = parent.strip_suffix(".slice").filter(|name| !name.contains('/')) else {
        return parent.to_owned();
    };
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.fold(String::new(), |path, end| format!("{path}/{}.slice", &name[..end]))
}

/// Where cgroups below this one are: with systemd a slice's name becomes its path.
#[must_use]
pub(crate) fn place(config: &CgroupConfig, parent: &str) -> String {
    match config.driver {
        CgroupDriver::Cgroupfs => parent.to_owned(),
        CgroupDriver::Systemd => expand_slice(parent),
    }
}

/// The path of the scope of this name in a slice, whether or not it exists.
#[must_use]
pub(crate) fn scope_place(slice: &str, scope: &str) -> String {
    format!("{}/{scope}", expand_slice(slice).trim_end_matches('/'))
}

/// Has systemd make a scope in a slice, with these processes as its first. The agent owns everything below
/// it: systemd enables all its controllers for it and then leaves it alone, until the last process exits.
/// `false` when systemd does not answer.
pub(crate) fn start_scope(slice: &str, scope: &str, processes: &[u32]) -> Result<bool, CgroupError> {
    let slice = slice.rsplit('/').next().unwrap_or(slice);
    match systemd::start_scope(scope, slice, processes) {
        Ok(()) => Ok(true),
        Err(error) if error.is_unreachable() => {
            log::debug!(scope = scope, err = crate::platform::logging::chain(&error); "Failed to create systemd \
                 scope, systemd is not running");
            Ok(false)
        }
        Err(source) => Err(CgroupError::Systemd { unit: scope.to_owned(), source }),
    }
}

/// Ends an empty scope, and removes the rest of it. A missing scope is fine, and usual: systemd removes it
/// with its last process.
pub(crate) fn remove_scope(config: &CgroupConfig, place: &str) -> Vec<CgroupError> {
    let Ok(path) = Relative::new(place) else { return Vec::new() };
    if tree::exists(config, &path)
        && let Err(error) = systemd::stop(&path.name())
    {
        log::debug!(scope = place, err = crate::platform::logging::chain(&error); "Failed to stop systemd scope");
    }
    tree::remove(config, &path)
}

/// Writes the limits of an existing container. Zero, `None` and empty texts leave a value alone.
///
/// # Errors
/// The first value that the kernel refuses other than for a missing permission or controller.
pub(crate) fn update(dirs: &[PathBuf], resources: &LinuxResources) -> Result<Vec<Skipped>, CgroupError> {
    let (mut skipped, mut has_huge_pages) = (Vec::new(), false);
    let mut left: Vec<&String> = resources.unified.keys().collect();
    for directory in dirs {
        // Version 2 is recognised by its files: these exist in every cgroup of version 2 but the root.
        let unified = directory.join("cgroup.type").exists() || directory.join("cgroup.events").exists();
        let mut files = if unified { v2_files(resources)? } else { v1_files(resources) };
        let listed =
            unified.then(|| read_to_string(directory.join("cgroup.controllers")).unwrap_or_default());
        let mut sizes = files.iter().filter(|file| file.controller == "hugetlb");
        let takes_huge_pages = sizes.any(|file| directory.join(&file.file).exists());
        files.retain(|file| match &listed {
            Some(listed) => listed.split_whitespace().any(|name| name == file.controller),
            // A size that the machine lacks is reported when it is written.
            None if file.controller == "hugetlb" => takes_huge_pages,
            None => is_of_v1(directory, file.controller),
        });
        if unified {
            left.retain(|name| !files.iter().any(|file| file.file == **name));
        }
        has_huge_pages |= files.iter().any(|file| file.controller == "hugetlb");
        write_all(directory, &files, &mut skipped)?;
    }
    if !resources.hugepage_limits.is_empty() && !has_huge_pages {
        let why = "no cgroup hierarchy has the controller \"hugetlb\"".to_owned();
        skipped.push(Skipped { what: "huge page limits".to_owned(), why });
    }
    for name in left {
        skipped.push(Skipped { what: name.clone(), why: "no cgroup v2 hierarchy is mounted".to_owned() });
    }
    Ok(skipped)
}

/// Whether a directory is in the hierarchy of a controller. Version 1 does not list controllers; a file that every cgroup of the
/// controller has proves it.
fn is_of_v1(directory: &Path, controller: &str) -> bool {
    let witness = match controller {
        "cpu" => "cpu.shares",
        "memory" => "memory.limit_in_bytes",
        "pids" => "pids.max",
        "cpuset" => "cpuset.cpus",
        _ => return false,
    };
    directory.join(witness).exists()
}

fn write_all(directory: &Path, files: &[ValueFile], skipped: &mut Vec<Skipped>) -> Result<(), CgroupError> {
    let mut again = Vec::new();
    for file in files {
        match write_file(&directory.join(&file.file), &file.value) {
            Ok(()) => {}
            // Pairs that bound each other (memory and memory with swap, quota and period) succeed in one of
            // the two orders.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => again.push(file),
            Err(source) => note_skipped(directory, file, source, skipped)?,
        }
    }
    for file in again {
        if let Err(source) = write_file(&directory.join(&file.file), &file.value) {
            note_skipped(directory, file, source, skipped)?;
        }
    }
    Ok(())
}

fn note_skipped(
    directory: &Path,
    file: &ValueFile,
    source: io::Error,
    skipped: &mut Vec<Skipped>,
) -> Result<(), CgroupError> {
    if tree::is_unavailable(&source) {
        skipped.push(Skipped { what: file.file.clone(), why: source.to_string() });
        return Ok(());
    }
    Err(CgroupError::Write { path: directory.join(&file.file), value: file.value.clone(), source })
}

fn v1_files(resources: &LinuxResources) -> Vec<ValueFile> {
    let mut files = Vec::new();
    let mut add = |controller, file: &str, value: String| {
        files.push(ValueFile { controller, file: file.to_owned(), value });
    };
    let mut number = |controller, file: &str, value: i64| {
        if value != 0 {
            add(controller, file, value.to_string());
        }
    };
    number("cpu", "cpu.shares", resources.cpu_shares);
    number("cpu", "cpu.cfs_period_us", resources.cpu_period);
    number("cpu", "cpu.cfs_quota_us", resources.cpu_quota);
    number("memory", "memory.limit_in_bytes", resources.memory_limit_bytes);
    number("memory", "memory.memsw.limit_in_bytes", swap_limit(resources));
    for (file, value) in [("cpuset.cpus", &resources.cpuset_cpus), ("cpuset.mems", &resources.cpuset_mems)] {
        if !value.is_empty() {
            add("cpuset", file, value.clone());
        }
    }
    for (size, bytes) in &resources.hugepage_limits {
        add("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), huge_bytes(*bytes));
    }
    files
}

/// Memory and swap together. As other runtimes: a container with a memory limit does not swap unless
/// configured.
fn swap_limit(resources: &LinuxResources) -> i64 {
    match resources.memory_swap_limit_bytes {
        0 => resources.memory_limit_bytes,
        limit => limit,
    }
}

/// A value beyond the kernel's counter means no limit.
fn huge_bytes(bytes: u64) -> String {
    i64::try_from(bytes).map_or_else(|_| "-1".to_owned(), |bytes| bytes.to_string())
}

fn v2_files(resources: &LinuxResources) -> Result<Vec<ValueFile>, CgroupError> {
    let mut files: Vec<ValueFile> = Vec::new();
    let mut add = |controller, file: &str, value: String| {
        files.push(ValueFile { controller, file: file.to_owned(), value });
    };
    if resources.cpu_shares != 0 {
        add("cpu", "cpu.weight", v2::cpu_weight(resources.cpu_shares).to_string());
    }
    if resources.cpu_quota != 0 || resources.cpu_period != 0 {
        let period = if resources.cpu_period == 0 { DEFAULT_PERIOD } else { resources.cpu_period };
        // A period alone limits nothing.
        let quota = if resources.cpu_quota == 0 { -1 } else { resources.cpu_quota };
        add("cpu", "cpu.max", format!("{} {period}", v2::or_max(quota)));
    }
    let limit = resources.memory_limit_bytes;
    if limit != 0 {
        add("memory", "memory.max", v2::or_max(limit));
    }
    let both = swap_limit(resources);
    if both != 0 {
        // Version 2 counts swap alone.
        let swap = if both < 0 || limit < 0 { -1 } else { both.saturating_sub(limit).max(0) };
        add("memory", "memory.swap.max", v2::or_max(swap));
    }
    for (file, value) in [("cpuset.cpus", &resources.cpuset_cpus), ("cpuset.mems", &resources.cpuset_mems)] {
        if !value.is_empty() {
            add("cpuset", file, value.clone());
        }
    }
    for (size, bytes) in &resources.hugepage_limits {
        let value = i64::try_from(*bytes).map_or_else(|_| "max".to_owned(), |bytes| bytes.to_string());
        add("hugetlb", &format!("hugetlb.{size}.max"), value);
    }
    for (file, value) in &resources.unified {
        // A name with a slash would write to another cgroup.
        let known = tree::CONTROLLERS.into_iter().chain(["io", "misc", "rdma"]);
        let mut owners =
            known.filter(|name| file.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
        let (Some(controller), false) = (owners.next(), file.contains('/')) else {
            return Err(CgroupError::Path { path: file.clone() });
        };
        files.retain(|earlier| earlier.file != *file);
        files.push(ValueFile { controller, file: file.clone(), value: value.clone() });
    }
    Ok(files)
}

/// Sends SIGKILL to everything in the cgroup and below it. Returns how many processes were found; they take a
/// moment to exit.
///
/// Where the kernel can kill all at once (`cgroup.kill`), no fork escapes it; version 1 is frozen meanwhile.
#[must_use]
pub(crate) fn kill_all(dirs: &[PathBuf]) -> usize {
    let mut pids = std::collections::BTreeSet::new();
    let freezers: Vec<PathBuf> =
        dirs.iter().map(|directory| directory.join("freezer.state")).filter(|file| file.exists()).collect();
    for freezer in &freezers {
        let _ = write_file(freezer, "FROZEN");
    }
    for directory in dirs {
        pids.extend(tree::pids_below(directory));
        let _ = write_file(&directory.join("cgroup.kill"), "1");
    }
    for pid in &pids {
        if let Err(error) = kill_process(*pid) {
            log::debug!(pid = pid, err:% = error; "Failed to kill container process");
        }
    }
    for freezer in &freezers {
        let _ = write_file(freezer, "THAWED");
    }
    pids.len()
}

/// Whether no process is in the cgroup or below it.
#[must_use]
pub(crate) fn is_empty(dirs: &[PathBuf]) -> bool {
    dirs.iter().all(|directory| tree::pids_below(directory).is_empty())
}

/// Removes the cgroup and what is below it from every hierarchy. A missing one is fine.
///
/// # Errors
/// One per hierarchy that still has it; the others are removed all the same.
pub(crate) fn remove(dirs: &[PathBuf]) -> Vec<CgroupError> {
    let there = dirs.iter().filter(|path| path.is_dir());
    there
        .filter_map(|path| {
            let source = tree::remove_tree(path).err()?;
            Some(CgroupError::Remove { path: path.clone(), source })
        })
        .collect()
}

#[cfg(test)]
mod tests;
