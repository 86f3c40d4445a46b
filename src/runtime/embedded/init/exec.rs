//! Another program in a container that runs.
//!
//! Owns the order.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::container::second_step;
use super::error::{Doing, InitError};
use super::input::read_spec;
use super::process::{Destination, Ready, confine, prepare, use_terminal};
use super::report::Report;
use super::{cgroups, external};
use crate::platform::sys::children;
use crate::platform::sys::clone::{self, Side};
use crate::platform::sys::console::make_console;
use crate::platform::sys::container_root::{ContainerRoot, Procfs};
use crate::platform::sys::credentials::set_umask;
use crate::platform::sys::namespace::{self, Namespaces};
use crate::runtime::embedded::spec::ExecSpec;

/// Step 1: joins the container's namespaces, sets up this process as the program needs it, and makes step 2
/// in its PID namespace. Returns as [`super::container::start`].
pub(in crate::runtime) fn start(
    spec: File,
    target: i32,
    users: Option<OwnedFd>,
    report: &OwnedFd,
) -> Result<(), InitError> {
    clone::hide().doing("hide", "the process")?;
    clone::die_with_parent().doing("tie", "the process to its monitor")?;
    let spec: ExecSpec = read_spec(spec, Path::new("the exec's specification"))?;
    let report = report.as_fd();
    if !spec.external_runtime.is_empty() {
        return external::exec(&spec, report);
    }
    let ready = enter(&spec, target, users.as_ref(), report)?;
    // Nothing of the node's may be open in the next child.
    drop(users);
    match second_step(false, "the program", report)? {
        Side::Parent(_) => Ok(()),
        Side::Child => Err(ready.run(report)),
    }
}

/// Enters the container; in the end this process has nothing that its program must not have.
fn enter(
    spec: &ExecSpec,
    target: i32,
    users: Option<&OwnedFd>,
    report: BorrowedFd<'_>,
) -> Result<Ready, InitError> {
    let process = &spec.process;
    cgroups::enter(&spec.cgroups)?;
    clone::allow_all_cpus();
    set_umask(0);
    let procfs = Procfs::open().doing("open", "/proc")?;
    // The monitor has not reaped it, so the number still means the container's first process.
    let pidfd = children::pidfd_open(target).doing("find process", target)?;
    let root_uid = pods_root(target, users)?;
    let filter =
        spec.seccomp_filter.as_ref().map(File::open).transpose().doing("open", "the seccomp filter")?;
    let prepared = prepare(process, filter, procfs)?;
    let kinds =
        Namespaces { mount: true, pid: true, network: true, ipc: true, uts: true, cgroup: true, user: false };
    namespace::join(pidfd.as_fd(), kinds).doing("join", "the container's namespaces")?;
    drop(pidfd);
    if process.terminal {
        let root = ContainerRoot::open(Path::new("/")).doing("open", "/")?;
        let console = make_console(&root).doing("make", "a terminal")?;
        use_terminal(&console, process, root_uid.unwrap_or(0).saturating_add(process.user.uid))?;
        Report::Terminal(console.master).send(report);
    }
    let own = users.filter(|_| root_uid.is_some()).map(AsFd::as_fd);
    confine(process, prepared, Destination { users: own, own_mounts: false, is_alone: false })
}

/// The node's id of the container's root, when the container is in the pod's user namespace.
fn pods_root(target: i32, users: Option<&OwnedFd>) -> Result<Option<u32>, InitError> {
    let Some(users) = users else { return Ok(None) };
    let path = format!("/proc/{target}/ns/user");
    let own = namespace::open(Path::new(&path)).doing("open namespace", &path)?;
    if !namespace::is_same(own.as_fd(), users.as_fd()).doing("compare namespace", &path)? {
        return Ok(None);
    }
    let path = format!("/proc/{target}/uid_map");
    let map = std::fs::read_to_string(&path).doing("read", &path)?;
    // Lines of: first id inside, first id outside, count.
    let root = map.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "0").then(|| words.next()?.parse().ok()).flatten()
    });
    match root {
        Some(root) => Ok(Some(root)),
        None => Err(InitError::Invalid {
            field: path,
            problem: "root of the pod must be mapped to a user of the host",
        }),
    }
}
