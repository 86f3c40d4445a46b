//! A container's first process, in two steps: the first joins what has to be joined before there is a child,
//! and exits; the second, a child of the monitor, becomes the program.
//!
//! Owns the order.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::error::{Doing, InitError};
use super::input::{pods_users, read_spec};
use super::process::{Destination, Ready, confine, prepare, use_terminal};
use super::report::Report;
use super::rootfs::{Rootfs, Users};
use super::{PodHandles, cgroups, devices, external};
use crate::platform::sys::clone::{self, CloneKind, Side};
use crate::platform::sys::container_root::{
    ContainerRoot, FileSystem, Procfs, clean, facts, file_system, point_at,
};
use crate::platform::sys::credentials::set_umask;
use crate::platform::sys::mount_tree::{Mount, NO_DEV, NO_EXEC, NO_SUID, NewFileSystem, change_root};
use crate::platform::sys::namespace::{self, Namespaces};
use crate::runtime::embedded::layout::ContainerDir;
use crate::runtime::embedded::spec::{Bundle, Namespace, Process};

/// Step 1: reads the bundle, joins namespaces, makes the container, and last of all the process that becomes
/// its program. That process is in the container's PID namespace, where others may trace it, whatever their
/// purpose: so by then it holds nothing that the program may not have. The first process of a new PID
/// namespace is alone in it and makes the container itself. Returns in both processes: in step 1 when its
/// work is done, in step 2 only when something failed.
pub(in crate::runtime) fn start(
    dir: &ContainerDir,
    pod: PodHandles,
    report: &OwnedFd,
) -> Result<(), InitError> {
    clone::hide().doing("hide", "the process")?;
    clone::die_with_parent().doing("tie", "the process to its monitor")?;
    let path = dir.bundle();
    let bundle: Bundle = read_spec(File::open(&path).doing("open", path.display())?, &path)?;
    if !bundle.external_runtime.is_empty() {
        return external::create(dir, &pod, &bundle, report.as_fd());
    }
    cgroups::enter(&bundle.cgroups)?;
    clone::allow_all_cpus();
    let namespaces = &bundle.oci.linux.namespaces;
    join_listed(namespaces)?;
    let report = report.as_fd();
    let (is_first, from_inside, procfs) = match find_pids(namespaces, &pod)? {
        Pids::Own => (true, true, None),
        Pids::Node => (false, false, None),
        Pids::Joined(procfs) => (false, procfs.is_none(), procfs),
    };
    if from_inside {
        return match second_step(is_first, "the container", report)? {
            Side::Parent(_) => Ok(()),
            Side::Child => Err(match enter_container(dir, pod, &bundle, None, is_first, report) {
                Ok(ready) => ready.run(report),
                Err(error) => error,
            }),
        };
    }
    let ready = enter_container(dir, pod, &bundle, procfs, false, report)?;
    match second_step(false, "the container", report)? {
        Side::Parent(_) => Ok(()),
        Side::Child => Err(ready.run(report)),
    }
}

/// Makes step 2, a child of the monitor, and reports its process id. Returns in both processes.
///
/// # Errors
/// No more processes; in the second step, that the monitor is gone.
pub(in crate::runtime) fn second_step(
    pid_namespace: bool,
    what: &str,
    report: BorrowedFd<'_>,
) -> Result<Side, InitError> {
    let (passed, held) = clone::pipe().doing("make", "a pipe")?;
    let side = clone::fork(CloneKind { sibling: true, pid_namespace }).doing("start", what)?;
    match side {
        Side::Parent(pid) => {
            Report::Pid(pid).send(report);
            File::from(held).write_all(&[0]).doing("continue", what)?;
        }
        Side::Child => {
            drop(held);
            // The monitor does not know a process whose parent was killed before it reported it.
            if !matches!(File::from(passed).read(&mut [0]), Ok(1)) {
                return Err(InitError::Orphaned);
            }
            clone::new_session().doing("make", "a session")?;
            clone::die_with_parent().doing("tie", "the process to its monitor")?;
            if !clone::is_connected(report) {
                return Err(InitError::Orphaned);
            }
        }
    }
    Ok(side)
}

/// Joins namespaces held by other processes. The monitor, and so this process, is already in the pod's own.
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
            namespace::unshare(kinds).doing("create namespace", name)?;
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

/// Whose process ids a container sees.
enum Pids {
    /// Its own: its process is the first of a new namespace.
    Own,
    Node,
    /// Those of processes that run already, with their procfs; `None` where only a process among them can
    /// make that.
    Joined(Option<Mount>),
}

/// Makes the next child start in the right PID namespace, unless that namespace is new.
fn find_pids(namespaces: &[Namespace], pod: &PodHandles) -> Result<Pids, InitError> {
    let Some(listed) = namespaces.iter().find(|namespace| namespace.kind == "pid") else {
        return Ok(Pids::Node);
    };
    if listed.path.is_empty() {
        return Ok(Pids::Own);
    }
    let is_pods = pod.init.is_some_and(|init| listed.path == format!("/proc/{init}/ns/pid"));
    let opened;
    let (pids, procfs) = match (&pod.pids, &pod.procfs) {
        (Some(pids), Some(procfs)) if is_pods => {
            (pids.as_fd(), Some(copy_of_root(procfs.as_fd()).doing("copy", "the pod's procfs")?))
        }
        _ => {
            opened = namespace::open(Path::new(&listed.path)).doing("open namespace", &listed.path)?;
            let procfs = procfs_of(&listed.path, opened.as_fd());
            // The masks of a procfs in a pod with a user namespace cannot be removed. But nothing in such a
            // pod may trace a process that has not joined its user namespace yet.
            let has_users = namespaces.iter().any(|namespace| namespace.kind == "user");
            (opened.as_fd(), if has_users { procfs.ok() } else { Some(procfs?) })
        }
    };
    let only = Namespaces { pid: true, ..Namespaces::default() };
    namespace::join(pids, only).doing("join namespace", &listed.path)?;
    Ok(Pids::Joined(procfs))
}

/// A procfs of the PID namespace that `path`, `/proc/<pid>/ns/pid`, stands for. Since Linux 6.17 it can be
/// made from outside; on earlier kernels the procfs that process `<pid>` sees at `/proc` is copied, without
/// the mounts that mask parts of it.
fn procfs_of(path: &str, pids: BorrowedFd<'_>) -> Result<Mount, InitError> {
    let made = NewFileSystem::open("proc").and_then(|new| {
        new.set_descriptor("pidns", pids)?;
        new.mount(NO_SUID | NO_DEV | NO_EXEC)
    });
    made.or_else(|_| copy_of_procfs(path))
}

/// A copy of what the process with this `/proc/<pid>/ns/pid` has at `/proc`.
pub(super) fn copy_of_procfs(path: &str) -> Result<Mount, InitError> {
    let mounts = path.strip_suffix("pid").map(|process| format!("{process}mnt")).unwrap_or_default();
    let mounts = namespace::open(Path::new(&mounts)).doing("open namespace", mounts)?;
    inside(mounts.as_fd(), || {
        let root = ContainerRoot::open(Path::new("/"))?;
        let found = root.point(Path::new("/proc"))?;
        let is_whole = file_system(found.as_fd())? == FileSystem::Proc && facts(found.as_fd())?.inode == 1;
        if !is_whole {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "the target has no procfs there",
            ));
        }
        Mount::copy_of_descriptor(found.as_fd(), false)
    })
    .doing("copy /proc of the process that", path)
}

/// A copy of what is mounted at the root of another mount namespace.
fn copy_of_root(mounts: BorrowedFd<'_>) -> std::io::Result<Mount> {
    inside(mounts, || Mount::copy_of(Path::new("/"), false))
}

/// Does something in another mount namespace and comes back.
fn inside<T>(mounts: BorrowedFd<'_>, work: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    let only = Namespaces { mount: true, ..Namespaces::default() };
    let here = namespace::open(Path::new("/proc/self/ns/mnt"))?;
    let root = point_at(Path::new("/"))?;
    namespace::join(mounts, only)?;
    let done = work();
    namespace::join(here.as_fd(), only)?;
    // This process's root was not the root of its namespace.
    change_root(root.as_fd())?;
    done
}

/// Makes the container and drops from this process everything that its program must not have.
fn enter_container(
    dir: &ContainerDir,
    pod: PodHandles,
    bundle: &Bundle,
    procfs: Option<Mount>,
    is_alone: bool,
    report: BorrowedFd<'_>,
) -> Result<Ready, InitError> {
    let spec = &bundle.oci;
    let (process, linux) = (&spec.process, &spec.linux);
    set_umask(0);
    let own_procfs = Procfs::open().doing("open", "/proc")?;
    let users = pods_users(&pod, &linux.namespaces, &linux.uid_mappings, &linux.gid_mappings)?;
    let only_mounts = Namespaces { mount: true, ..Namespaces::default() };
    namespace::unshare(only_mounts).doing("make", "a mount namespace")?;
    let rootfs = Rootfs::make(dir, bundle, users, procfs)?;
    if linux.namespaces.iter().any(|namespace| namespace.kind == "cgroup") {
        let only_cgroups = Namespaces { cgroup: true, ..Namespaces::default() };
        namespace::unshare(only_cgroups).doing("make", "a cgroup namespace")?;
    }
    devices::make(&rootfs, spec, users)?;
    make_working_directory(&rootfs, process, users)?;
    let filter = bundle.seccomp_filter.as_ref();
    let filter =
        filter.map(|path| File::open(path).doing("open seccomp filter", path.display())).transpose()?;
    let prepared = prepare(process, filter, own_procfs)?;
    if process.terminal {
        let console = devices::make_terminal(&rootfs)?;
        let owner = users.map_or(0, |users| users.root_uid).saturating_add(process.user.uid);
        use_terminal(&console, process, owner)?;
        Report::Terminal(console.master).send(report);
    }
    rootfs.restrict(&linux.masked_paths, &linux.readonly_paths)?;
    rootfs.enter(spec.root.readonly, &linux.rootfs_propagation)?;
    let destination =
        Destination { users: users.map(|users| users.namespace), own_mounts: users.is_some(), is_alone };
    let ready = confine(process, prepared, destination)?;
    // Nothing of the node's may be open in the next child.
    drop(pod);
    Ok(ready)
}

/// Makes a working directory that the image lacks the way runc does: component by component as written,
/// including those that a `..` leaves again.
fn make_working_directory(
    rootfs: &Rootfs,
    process: &Process,
    users: Option<Users<'_>>,
) -> Result<(), InitError> {
    let mut path = PathBuf::new();
    for part in Path::new(&process.cwd).components() {
        path.push(part);
        if rootfs.root.point(&path).is_ok() {
            continue;
        }
        // A dangling link counts as the path it names.
        let made =
            rootfs.root.make_dir(&path, 0o755).or_else(|_| rootfs.root.ensure_dir(&clean(&path), 0o755));
        // Where nothing can be made, the later change of directory reports the reason.
        let Ok(made) = made else { return Ok(()) };
        if let Some(users) = users {
            crate::platform::sys::container_root::set_owner(made.as_fd(), users.root_uid, users.root_gid)
                .doing("give", path.display())?;
        }
    }
    Ok(())
}
