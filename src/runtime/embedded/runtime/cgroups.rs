//! Where the cgroups of sandboxes and containers are.
//!
//! Owns their names. `cgroup::container` makes changes.

use std::borrow::Cow;
use std::path::PathBuf;

use super::Failure;
use super::record::SandboxRecord;
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::SandboxId;
use crate::platform::cgroup::{CgroupConfig, CgroupError, Skipped, container};

/// The parent of sandboxes' cgroups when the client sets none, for example a client that is not a kubelet.
const NOBODYS: &str = "/agent-cri";
const NOBODYS_SLICE: &str = "agentcri.slice";

fn scope_name(id: &SandboxId) -> String {
    format!("agent-{id}.scope")
}

fn own_parent(id: &SandboxId) -> String {
    format!("{NOBODYS}/{id}")
}

/// The monitor's cgroup. Two sandboxes of one pod may exist at a time, and the older one is removed without
/// the newer.
fn monitor_name(id: &SandboxId) -> String {
    format!("monitor-{}", id.as_str().get(..12).unwrap_or(id.as_str()))
}

/// Where the cgroups of a new sandbox are going to be, unless systemd makes them.
pub(super) fn choose(config: &CgroupConfig, record: &mut SandboxRecord) {
    if config.driver == CgroupDriver::Cgroupfs {
        let parent = &record.config.cgroup_parent;
        record.cgroup = if parent.is_empty() { own_parent(&record.id) } else { parent.clone() };
    }
}

/// The cgroup of a sandbox's monitor: the one above it, and its name. With version 1 it is the sandbox's, which saves a directory
/// in each of a dozen hierarchies, unless systemd made that; with version 2 a cgroup whose children have controllers holds no
/// processes.
fn monitors_place<'a>(config: &CgroupConfig, record: &'a SandboxRecord) -> (&'a str, Cow<'a, str>) {
    match record.cgroup.rsplit_once('/') {
        Some((above, name)) if !config.v2 && config.driver == CgroupDriver::Cgroupfs && !name.is_empty() => {
            (above, name.into())
        }
        _ => (&record.cgroup, monitor_name(&record.id).into()),
    }
}

/// Makes the cgroup that the sandbox's monitor enters as its first step. The path of its parent has to be in the stored record
/// before. Does nothing with the systemd driver, which needs the process first.
pub(super) fn prepare(config: &CgroupConfig, record: &mut SandboxRecord) -> Result<Vec<Skipped>, Failure> {
    if record.cgroup.is_empty() {
        return Ok(Vec::new());
    }
    let (above, name) = monitors_place(config, record);
    let leaf = container::make_leaf(config, above, &name)
        .map_err(|error| Failure::because("failed to create the cgroup of the pod's monitor", &error))?;
    record.cgroups = leaf.dirs;
    Ok(leaf.skipped)
}

/// With the systemd driver: puts a sandbox's monitor, with the processes that it has started until then, into a scope of the
/// sandbox's own, which contains all its cgroups, so that they belong to no systemd service. The path is written to the record
/// before the cgroup is made.
pub(super) fn place(
    config: &CgroupConfig,
    record: &mut SandboxRecord,
    pid: i32,
    remember: impl Fn(&SandboxRecord) -> Result<(), Failure>,
) -> Result<Vec<Skipped>, Failure> {
    let processes = processes_of(pid);
    let mut skipped = Vec::new();
    let parent = &record.config.cgroup_parent;
    let slice = if parent.is_empty() { NOBODYS_SLICE.to_owned() } else { parent.clone() };
    let scope = scope_name(&record.id);
    record.cgroup = container::scope_place(&slice, &scope);
    remember(record)?;
    let started = container::start_scope(&slice, &scope, &processes)
        .map_err(|error| Failure::because("failed to make the pod's scope", &error))?;
    if !started {
        record.cgroup = container::place(config, &slice);
        let why =
            "systemd does not respond; their limits hold until systemd changes something in their slices";
        skipped.push(Skipped { what: "scopes of pods by systemd".to_owned(), why: why.to_owned() });
        remember(record)?;
    }
    skipped.extend(prepare(config, record)?);
    move_processes(&record.cgroups, &processes)?;
    Ok(skipped)
}

/// A monitor and the processes it has started.
fn processes_of(pid: i32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    u32::try_from(pid).into_iter().chain(children).collect()
}

fn move_processes(dirs: &[PathBuf], processes: &[u32]) -> Result<(), Failure> {
    for dir in dirs {
        let path = dir.join("cgroup.procs");
        for process in processes {
            std::fs::write(&path, process.to_string()).map_err(|error| {
                Failure::because(&format!("write {process} to {}", path.display()), &error)
            })?;
        }
    }
    Ok(())
}

/// Removes a sandbox's own cgroups, and kills what is left in them.
pub(super) fn remove_sandbox(config: &CgroupConfig, record: &SandboxRecord) -> Result<(), Failure> {
    if record.cgroup.is_empty() {
        return Ok(());
    }
    clear(&container::find(config, &record.cgroup, &monitor_name(&record.id)).unwrap_or_default())?;
    if record.cgroup.ends_with(&scope_name(&record.id)) {
        first(container::remove_scope(config, &record.cgroup))?;
    } else if record.cgroup == own_parent(&record.id) {
        clear(&container::find(config, NOBODYS, record.id.as_str()).unwrap_or_default())?;
    }
    Ok(())
}

/// Kills the processes in a cgroup and removes it. Processes need a moment to end, so the caller may have to
/// retry.
pub(super) fn clear(dirs: &[PathBuf]) -> Result<(), Failure> {
    if !container::is_empty(dirs) {
        let _ = container::kill_all(dirs);
    }
    first(container::remove(dirs))
}

fn first(errors: Vec<CgroupError>) -> Result<(), Failure> {
    match errors.into_iter().next() {
        None => Ok(()),
        Some(error) => Err(Failure::because("failed to remove cgroup", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn monitor_of_version_1_is_in_its_sandboxes_cgroup() {
        let tree = TempDir::new();
        std::fs::create_dir_all(tree.join("pids/pods/a")).unwrap();
        std::fs::write(tree.join("pids/cgroup.procs"), "").unwrap();
        std::fs::write(tree.join("cgroup.controllers"), "pids").unwrap();
        let config = |v2, driver| CgroupConfig { mount: tree.0.clone(), v2, driver };
        let place = |config: CgroupConfig, parent: &str| {
            let id = SandboxId::from("0123456789abcdef");
            let mut record = SandboxRecord { id, ..SandboxRecord::default() };
            record.config.cgroup_parent = parent.to_owned();
            choose(&config, &mut record);
            prepare(&config, &mut record).unwrap();
            assert!(record.cgroups.iter().all(|directory| directory.is_dir()));
            remove_sandbox(&config, &record).unwrap();
            let left = record.cgroups.iter().all(|directory| directory.is_dir());
            let relative = |path: &PathBuf| path.strip_prefix(&tree.0).unwrap().display().to_string();
            (record.cgroups.iter().map(relative).collect::<Vec<_>>(), left)
        };
        let v1 = |parent| place(config(false, CgroupDriver::Cgroupfs), parent);
        assert_eq!(v1("/pods/a"), (vec!["pids/pods/a".to_owned()], true), "the pod's is not the sandbox's");
        assert_eq!(v1("/b"), (vec!["pids/b".to_owned()], true));
        assert_eq!(v1(""), (vec!["pids/agent-cri/0123456789abcdef".to_owned()], false));
        let v2 = place(config(true, CgroupDriver::Cgroupfs), "/pods/a");
        assert_eq!(v2, (vec!["pods/a/monitor-0123456789ab".to_owned()], false));
    }
}
