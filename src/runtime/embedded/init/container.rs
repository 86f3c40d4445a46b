//! A container's first process, in two steps: the first joins what has to be joined before there is a child, and leaves; the
//! second, a child of the monitor, makes the rest from inside.
//!
//! Owns the order. Must not know the monitor's side.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::error::{Doing, InitError};
use super::input::{pods_users, read_spec};
use super::process::{Destination, become_program, prepare, use_terminal};
use super::report::Report;
use super::rootfs::{Rootfs, Users};
use super::{PodHandles, cgroups, devices, external};
use crate::runtime::embedded::layout::ContainerDir;
use crate::runtime::embedded::spec::{Bundle, Namespace, Process};
use crate::sys::clone::{self, Kind, Side};
use crate::sys::container_root::{Procfs, clean};
use crate::sys::credentials::set_umask;
use crate::sys::namespace::{self, Namespaces};

/// Step 1: reads the bundle, joins, and makes step 2. Returns in both processes: in step 1 when its work is done, in step 2
/// only when something failed.
///
/// # Errors
/// What could not be done, in either.
pub fn start(dir: &ContainerDir, pod: &PodHandles, report: &OwnedFd) -> Result<(), InitError> {
    clone::hide().doing("hide", "the process")?;
    clone::die_with_parent().doing("tie", "the process to its monitor")?;
    clone::close_on_exec_from(3).doing("close", "descriptors")?;
    let path = dir.bundle();
    let bundle: Bundle = read_spec(File::open(&path).doing("open", path.display())?, &path)?;
    if !bundle.external_runtime.is_empty() {
        return external::create(dir, pod, &bundle, report.as_fd());
    }
    cgroups::enter(&bundle.cgroups)?;
    let namespaces = &bundle.oci.linux.namespaces;
    join_listed(namespaces)?;
    let is_first = enter_pids(namespaces, pod)?;
    match second_step(is_first, "the container", report.as_fd())? {
        Side::Parent(_) => Ok(()),
        Side::Child => Err(become_container(dir, pod, &bundle, report.as_fd())),
    }
}

/// Makes the second step, a child of the monitor's, and tells who it is. Returns in both.
///
/// # Errors
/// No more processes; in the second step, that the monitor is gone.
pub fn second_step(pid_namespace: bool, what: &str, report: BorrowedFd<'_>) -> Result<Side, InitError> {
    let (passed, held) = clone::pipe().doing("make", "a pipe")?;
    let side = clone::fork(Kind { sibling: true, pid_namespace }).doing("start", what)?;
    match side {
        Side::Parent(pid) => Report::Pid(pid).send(report),
        Side::Child => {
            drop(held);
            begin(report, passed)?;
        }
    }
    Ok(side)
}

/// The beginning of every second step: tied to the monitor, and not before the first has told who it is.
///
/// # Errors
/// When the monitor is gone.
pub fn begin(report: BorrowedFd<'_>, gate: OwnedFd) -> Result<(), InitError> {
    clone::die_with_parent().doing("tie", "the process to its monitor")?;
    // The first step leaves when it has told; that closes the other end.
    let _ = File::from(gate).read(&mut [0]);
    if !clone::is_connected(report) {
        return Err(InitError::Orphaned);
    }
    set_umask(0);
    clone::new_session().doing("make", "a session")
}

/// Namespaces that others hold. The pod's own are where the monitor, and so this process, is already.
fn join_listed(namespaces: &[Namespace]) -> Result<(), InitError> {
    for namespace in namespaces {
        let (name, kinds) = match namespace.kind.as_str() {
            "network" => ("net", Namespaces { network: true, ..Namespaces::default() }),
            "ipc" => ("ipc", Namespaces { ipc: true, ..Namespaces::default() }),
            "uts" => ("uts", Namespaces { uts: true, ..Namespaces::default() }),
            "pid" | "mount" | "cgroup" | "user" => continue,
            _ => {
                return Err(InitError::Invalid {
                    field: format!("linux.namespaces: {:?}", namespace.kind),
                    problem: "the kinds are pid, network, ipc, uts, mount, cgroup, user",
                });
            }
        };
        if namespace.path.is_empty() {
            namespace::unshare(kinds).doing("make namespace", name)?;
            continue;
        }
        let wanted = namespace::open(Path::new(&namespace.path)).doing("open namespace", &namespace.path)?;
        let own = format!("/proc/self/ns/{name}");
        let own = namespace::open(Path::new(&own)).doing("open namespace", own)?;
        if !namespace::is_same(wanted.as_fd(), own.as_fd()).doing("compare namespace", name)? {
            namespace::join(wanted.as_fd(), kinds).doing("join namespace", &namespace.path)?;
        }
    }
    Ok(())
}

/// Sees to it that the next child is in the right PID namespace; true when it is to be the first of a new one.
fn enter_pids(namespaces: &[Namespace], pod: &PodHandles) -> Result<bool, InitError> {
    let Some(listed) = namespaces.iter().find(|namespace| namespace.kind == "pid") else { return Ok(false) };
    if listed.path.is_empty() {
        return Ok(true);
    }
    let only = Namespaces { pid: true, ..Namespaces::default() };
    let is_pods = pod.init.is_some_and(|init| listed.path == format!("/proc/{init}/ns/pid"));
    match pod.pids.as_ref().filter(|_| is_pods) {
        Some(pids) => namespace::join(pids.as_fd(), only),
        None => namespace::open(Path::new(&listed.path)).and_then(|fd| namespace::join(fd.as_fd(), only)),
    }
    .doing("join namespace", &listed.path)?;
    Ok(false)
}

fn become_container(
    dir: &ContainerDir,
    pod: &PodHandles,
    bundle: &Bundle,
    report: BorrowedFd<'_>,
) -> InitError {
    match enter_container(dir, pod, bundle, report) {
        Ok((prepared, users)) => {
            let destination = Destination { users, own_mounts: users.is_some(), report };
            become_program(&bundle.oci.process, prepared, destination)
        }
        Err(error) => error,
    }
}

fn enter_container<'a>(
    dir: &ContainerDir,
    pod: &'a PodHandles,
    bundle: &Bundle,
    report: BorrowedFd<'_>,
) -> Result<(super::process::Prepared, Option<BorrowedFd<'a>>), InitError> {
    let spec = &bundle.oci;
    let (process, linux) = (&spec.process, &spec.linux);
    let procfs = Procfs::open().doing("open", "/proc")?;
    let users = pods_users(pod, &linux.namespaces, &linux.uid_mappings, &linux.gid_mappings)?;
    let only_mounts = Namespaces { mount: true, ..Namespaces::default() };
    namespace::unshare(only_mounts).doing("make", "a mount namespace")?;
    let rootfs = Rootfs::make(dir, bundle, users)?;
    if linux.namespaces.iter().any(|namespace| namespace.kind == "cgroup") {
        let only_cgroups = Namespaces { cgroup: true, ..Namespaces::default() };
        namespace::unshare(only_cgroups).doing("make", "a cgroup namespace")?;
    }
    devices::make(&rootfs, spec, users)?;
    make_working_directory(&rootfs, process, users)?;
    let filter = bundle.seccomp_filter.as_ref();
    let filter =
        filter.map(|path| File::open(path).doing("open seccomp filter", path.display())).transpose()?;
    let prepared = prepare(process, filter, &procfs)?;
    if process.terminal {
        let console = devices::make_terminal(&rootfs)?;
        let owner = users.map_or(0, |users| users.root_uid).saturating_add(process.user.uid);
        use_terminal(&console, process, owner)?;
        Report::Terminal(console.master).send(report);
    }
    rootfs.restrict(&linux.masked_paths, &linux.readonly_paths)?;
    rootfs.enter(spec.root.readonly, &linux.rootfs_propagation)?;
    Ok((prepared, users.map(|users| users.namespace)))
}

/// A working directory that the image does not have is made, as runc does.
fn make_working_directory(
    rootfs: &Rootfs,
    process: &Process,
    users: Option<Users<'_>>,
) -> Result<(), InitError> {
    let path = clean(Path::new(&process.cwd));
    if rootfs.root.point(&path).is_ok() {
        return Ok(());
    }
    match rootfs.root.ensure_dir(&path, 0o755) {
        Ok(made) => match users {
            Some(users) => {
                crate::sys::container_root::set_owner(made.as_fd(), users.root_uid, users.root_gid)
                    .doing("give", path.display())
            }
            None => Ok(()),
        },
        // Where nothing can be made, going there says what is wrong.
        Err(_) => Ok(()),
    }
}
