//! Another program in a container that runs.
//!
//! Owns the order. Must not know the monitor's side.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::container::second_step;
use super::error::{Doing, InitError};
use super::input::read_spec;
use super::process::{Destination, Prepared, become_program, prepare, use_terminal};
use super::report::Report;
use super::{PodHandles, cgroups, external};
use crate::runtime::embedded::spec::{ExecSpec, Process};
use crate::sys::children;
use crate::sys::clone::{self, Side};
use crate::sys::console::make_console;
use crate::sys::container_root::{ContainerRoot, Procfs};
use crate::sys::namespace::{self, Namespaces};

/// Step 1: joins the container's namespaces and makes step 2 in its PID namespace. Returns as [`super::container::start`].
///
/// # Errors
/// What could not be done, in either process.
pub fn start(spec: File, target: i32, pod: &PodHandles, report: &OwnedFd) -> Result<(), InitError> {
    clone::hide().doing("hide", "the process")?;
    clone::die_with_parent().doing("tie", "the process to its monitor")?;
    clone::close_on_exec_from(3).doing("close", "descriptors")?;
    let spec: ExecSpec = read_spec(spec, Path::new("the exec's specification"))?;
    if !spec.external_runtime.is_empty() {
        return external::exec(&spec, report.as_fd());
    }
    cgroups::enter(&spec.cgroups)?;
    let procfs = Procfs::open().doing("open", "/proc")?;
    // The monitor has not reaped it, so the number means the container's first process.
    let pidfd = children::pidfd_open(target).doing("find process", target)?;
    let root_uid = pods_root(target, pod)?;
    // The node's procfs stays open: files for labels are the second step's own.
    let kinds =
        Namespaces { mount: true, pid: true, network: true, ipc: true, uts: true, cgroup: true, user: false };
    let filter =
        spec.seccomp_filter.as_ref().map(File::open).transpose().doing("open", "the seccomp filter")?;
    namespace::join(pidfd.as_fd(), kinds).doing("join", "the container's namespaces")?;
    match second_step(false, "the program", report.as_fd())? {
        Side::Parent(_) => Ok(()),
        Side::Child => {
            let users = pod.users.as_ref().filter(|_| root_uid.is_some()).map(AsFd::as_fd);
            let owner = root_uid.unwrap_or(0).saturating_add(spec.process.user.uid);
            let prepared = ready(&spec.process, filter, &procfs, owner, report.as_fd())?;
            drop((procfs, pidfd));
            let destination = Destination { users, own_mounts: false, report: report.as_fd() };
            Err(become_program(&spec.process, prepared, destination))
        }
    }
}

fn ready(
    process: &Process,
    filter: Option<File>,
    procfs: &Procfs,
    owner: u32,
    report: BorrowedFd<'_>,
) -> Result<Prepared, InitError> {
    let prepared = prepare(process, filter, procfs)?;
    if process.terminal {
        let root = ContainerRoot::open(Path::new("/")).doing("open", "/")?;
        let console = make_console(&root).doing("make", "a terminal")?;
        use_terminal(&console, process, owner)?;
        Report::Terminal(console.master).send(report);
    }
    Ok(prepared)
}

/// Who root of the container is on the node, when the container has the pod's users.
fn pods_root(target: i32, pod: &PodHandles) -> Result<Option<u32>, InitError> {
    let Some(users) = &pod.users else { return Ok(None) };
    let path = format!("/proc/{target}/ns/user");
    let own = namespace::open(Path::new(&path)).doing("open namespace", &path)?;
    if !namespace::is_same(own.as_fd(), users.as_fd()).doing("compare namespace", &path)? {
        return Ok(None);
    }
    let path = format!("/proc/{target}/uid_map");
    let map = std::fs::read_to_string(&path).doing("read", &path)?;
    // Lines of: first id inside, first id outside, how many.
    let root = map.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "0").then(|| words.next()?.parse().ok()).flatten()
    });
    match root {
        Some(root) => Ok(Some(root)),
        None => {
            Err(InitError::Invalid { field: path, problem: "root of the pod has to be somebody on the node" })
        }
    }
}
