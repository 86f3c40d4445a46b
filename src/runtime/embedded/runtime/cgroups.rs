//! Where the cgroups of sandboxes and containers are.
//!
//! Owns their names. Effects are `cgroup::container`'s.

use std::path::PathBuf;

use super::Failure;
use super::record::SandboxRecord;
use crate::cgroup::container::{self, ContainerCgroup};
use crate::cgroup::{CgroupConfig, CgroupError};
use crate::runtime::SandboxConfig;
use crate::types::SandboxId;

/// Where sandboxes are that nobody gave a place: a client of ours that is no kubelet.
const NOBODYS: &str = "/agent-cri";

/// The cgroup that a sandbox's monitor and containers are below.
pub(super) fn parent_of(config: &SandboxConfig, id: &SandboxId) -> String {
    if config.cgroup_parent.is_empty() { own_parent(id) } else { config.cgroup_parent.clone() }
}

fn own_parent(id: &SandboxId) -> String {
    format!("{NOBODYS}/{id}")
}

/// The monitor's cgroup. Two sandboxes of one pod may be there at a time, and the older one goes without the newer.
fn monitor_name(id: &SandboxId) -> String {
    format!("monitor-{}", id.as_str().get(..12).unwrap_or(id.as_str()))
}

/// Makes the monitor's.
pub(super) fn make_leaf(
    config: &CgroupConfig,
    parent: &str,
    id: &SandboxId,
) -> Result<ContainerCgroup, Failure> {
    container::make_leaf(config, parent, &monitor_name(id))
        .map_err(|error| Failure::because("failed to create the cgroup of the pod's monitor", &error))
}

/// Moves a monitor into its cgroup, with what it has started until then.
pub(super) fn enter(dirs: &[PathBuf], pid: i32) -> Result<(), Failure> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for dir in dirs {
        let path = dir.join("cgroup.procs");
        for process in std::iter::once(pid.to_string()).chain(children.split_whitespace().map(str::to_owned))
        {
            std::fs::write(&path, &process).map_err(|error| {
                Failure::because(&format!("write {process} to {}", path.display()), &error)
            })?;
        }
    }
    Ok(())
}

/// Takes a sandbox's own cgroups away, with whatever is left in them.
pub(super) fn remove_sandbox(
    config: &CgroupConfig,
    record: &SandboxRecord,
    id: &SandboxId,
) -> Result<(), Failure> {
    let parent = parent_of(&record.config, id);
    clear(&container::find(config, &parent, &monitor_name(id)).unwrap_or_default())?;
    if record.config.cgroup_parent.is_empty() {
        let failed = crate::cgroup::remove(config, &own_parent(id));
        first(failed)?;
    }
    Ok(())
}

/// Kills what is in a cgroup and removes it. Processes need a moment to go, so whoever asks may have to ask again.
pub(super) fn clear(dirs: &[PathBuf]) -> Result<(), Failure> {
    if !container::is_empty(dirs) {
        let _ = container::kill_all(dirs);
    }
    first(container::remove(dirs))
}

fn first(errors: Vec<CgroupError>) -> Result<(), Failure> {
    match errors.into_iter().next() {
        None => Ok(()),
        Some(error) => Err(Failure::because("failed to remove a cgroup", &error)),
    }
}
