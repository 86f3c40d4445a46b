//! A pod's namespaces, made by its monitor for itself, and the process that holds a shared PID namespace
//! together.
//!
//! Owns the order.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use super::PodHandles;
use super::error::{Doing, InitError};
use crate::model::runtime_config::IdRange;
use crate::platform::sys::clone::{self, CloneKind, Side};
use crate::platform::sys::container_root::Procfs;
use crate::platform::sys::credentials::{
    CapabilitySets, bound_capabilities, set_capabilities, set_no_new_privileges, set_user,
};
use crate::platform::sys::mount_tree::{
    Mount, NO_DEV, NO_EXEC, NO_SUID, NewFileSystem, Propagation, READ_ONLY, enter_root, set_propagation,
};
use crate::platform::sys::namespace::{self, Namespaces};
use crate::platform::sys::packets;
use crate::runtime::embedded::spec::PodSpec;

/// The user of the pod's init process, unless the pod sets one: as in pause images.
const NOBODY: u32 = 65_535;

/// Makes the namespaces that `spec` asks for; this process is in them afterwards.
pub(in crate::runtime) fn make(spec: &PodSpec) -> Result<PodHandles, InitError> {
    let sysctls = spec.sysctls.iter().map(|(name, value)| Ok((sysctl_path(name, spec)?, value.as_str())));
    let sysctls = sysctls.collect::<Result<Vec<_>, InitError>>()?;
    let own = Namespaces {
        network: spec.own_network,
        ipc: spec.own_ipc,
        uts: spec.own_uts,
        ..Namespaces::default()
    };
    let helper = spec.users.map(|users| make_users(users, own)).transpose()?;
    match &helper {
        None => namespace::unshare(own).doing("make", "the pod's namespaces")?,
        Some(helper) => enter_helpers(helper.pid, own)?,
    }
    if spec.own_network {
        namespace::loopback_up().doing("enable", "the loopback interface")?;
    }
    if spec.own_uts && !spec.hostname.is_empty() {
        namespace::set_hostname(&spec.hostname).doing("set host name", &spec.hostname)?;
    }
    let procfs = Procfs::open().doing("open", "/proc")?;
    for (path, value) in sysctls {
        procfs.write(&path, value).doing("set sysctl", &path)?;
    }
    let users = helper.map(Helper::finish).transpose()?;
    let shared = if spec.shared_pid { start_init()?.1 } else { PodHandles::default() };
    Ok(PodHandles { users, ..shared })
}

/// The file of a sysctl below `/proc`, if the sysctl belongs to a namespace of the pod's own.
fn sysctl_path(name: &str, spec: &PodSpec) -> Result<String, InitError> {
    let invalid = |problem| InitError::Invalid { field: format!("sysctls: {name:?}"), problem };
    // As sysctl(8): the first of both separators that occurs separates, the other one is part of names.
    let separated: String = if name.find(['.', '/']).is_some_and(|at| name.as_bytes()[at] == b'.') {
        let swap = |letter| match letter {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        name.chars().map(swap).collect()
    } else {
        name.to_owned()
    };
    if separated.split('/').any(|part| matches!(part, "" | "." | "..")) || separated.contains('\0') {
        return Err(invalid("not a name of a sysctl"));
    }
    let is_ipc =
        ["kernel/shm", "kernel/msg", "fs/mqueue/"].iter().any(|prefix| separated.starts_with(prefix))
            || separated == "kernel/sem";
    let is_network = separated.starts_with("net/");
    if !is_ipc && !is_network {
        return Err(invalid(
            "not a namespaced sysctl: pods may only set net.*, kernel.shm*, kernel.msg*, kernel.sem, \
             fs.mqueue.*",
        ));
    }
    if is_network && !spec.own_network {
        return Err(invalid("the pod uses the host's network namespace"));
    }
    if is_ipc && !spec.own_ipc {
        return Err(invalid("the pod uses the host's IPC namespace"));
    }
    Ok(format!("sys/{separated}"))
}

/// A short-lived child that is in the pod's namespaces until the monitor holds them.
struct Helper {
    pid: i32,
    users: OwnedFd,
    /// When this end is closed, the helper ends.
    hold: OwnedFd,
}

impl Helper {
    fn finish(self) -> Result<OwnedFd, InitError> {
        let Self { pid, users, hold } = self;
        drop(hold);
        clone::wait(pid).doing("wait for", "the helper")?;
        Ok(users)
    }
}

/// A child that unshares the user namespace. This process writes its maps; then the child makes the other
/// namespaces, which that one owns.
fn make_users(range: IdRange, own: Namespaces) -> Result<Helper, InitError> {
    let (words, answers) = clone::pipe().doing("make", "a pipe")?;
    let (go, hold) = clone::pipe().doing("make", "a pipe")?;
    let pid = match clone::fork(CloneKind::default()).doing("start", "a helper")? {
        Side::Child => {
            drop((words, hold));
            help(own, File::from(answers), File::from(go))
        }
        Side::Parent(pid) => pid,
    };
    drop((answers, go));
    let mut words = File::from(words);
    let mut hold = File::from(hold);
    let mut expect = |what: &'static str| {
        let mut word = [0_u8];
        match words.read(&mut word) {
            Ok(1) if word[0] == 0 => Ok(()),
            Ok(1) => Err(std::io::Error::from_raw_os_error(i32::from(word[0]))).doing("make", what),
            Ok(_) => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)).doing("make", what),
            Err(error) => Err(error).doing("make", what),
        }
    };
    let made = (|| {
        expect("a user namespace")?;
        let map = format!("0 {} {}", range.host, range.length);
        for kind in ["uid_map", "gid_map"] {
            let path = format!("/proc/{pid}/{kind}");
            let file = File::options().write(true).open(&path);
            file.and_then(|mut file| file.write_all(map.as_bytes())).doing("write", &path)?;
        }
        hold.write_all(&[0]).doing("tell", "the helper")?;
        expect("user namespaces of the pod")?;
        let path = format!("/proc/{pid}/ns/user");
        namespace::open(Path::new(&path)).doing("open namespace", &path)
    })();
    match made {
        Ok(users) => Ok(Helper { pid, users, hold: hold.into() }),
        Err(error) => {
            drop(hold);
            // It ends by itself now that the other end is closed.
            clone::wait(pid).doing("wait for", "the helper")?;
            Err(error)
        }
    }
}

fn help(own: Namespaces, mut answers: File, mut go: File) -> ! {
    let mut tell = |outcome: std::io::Result<()>| {
        // Error numbers are small; 255 stands for errors without one.
        let code = outcome.err().map_or(0, |error| error.raw_os_error().unwrap_or(255));
        let told = answers.write_all(&[u8::try_from(code).unwrap_or(255)]);
        if code != 0 || told.is_err() {
            clone::exit(1);
        }
    };
    tell(
        clone::die_with_parent()
            .and_then(|()| namespace::unshare(Namespaces { user: true, ..Namespaces::default() })),
    );
    let mut word = [0];
    if !matches!(go.read(&mut word), Ok(1)) {
        clone::exit(1);
    }
    tell(set_user(0, 0, &[]).and_then(|()| namespace::unshare(own)));
    // Until the monitor has what it needs, or has ended.
    let _ = go.read(&mut word);
    clone::exit(0)
}

fn enter_helpers(pid: i32, own: Namespaces) -> Result<(), InitError> {
    for (name, wanted, kinds) in [
        ("net", own.network, Namespaces { network: true, ..Namespaces::default() }),
        ("ipc", own.ipc, Namespaces { ipc: true, ..Namespaces::default() }),
        ("uts", own.uts, Namespaces { uts: true, ..Namespaces::default() }),
    ] {
        if wanted {
            let path = format!("/proc/{pid}/ns/{name}");
            let namespace = namespace::open(Path::new(&path)).doing("open namespace", &path)?;
            namespace::join(namespace.as_fd(), kinds).doing("join namespace", &path)?;
        }
    }
    Ok(())
}

/// The first process of the pod's shared PID namespace: it reaps, has no privileges and no open files, and
/// dies with the monitor. Before that it makes the namespace's procfs, which only a process in the namespace
/// can: no privileged process enters the namespace once containers are in it. Returns its process id and the
/// handles on the namespace.
pub(super) fn start_init() -> Result<(i32, PodHandles), InitError> {
    let (ready, told) = packets::pair().doing("make", "a socket pair")?;
    let pid = match clone::fork(CloneKind { sibling: false, pid_namespace: true })
        .doing("start", "the pod's init")?
    {
        Side::Child => {
            // This process must not keep what the monitor holds of running containers.
            clone::continue_as([Some(told)], 0_i32, |[told], _| {
                let Some(told) = told else { return 1 };
                let outcome = isolate();
                let code = outcome.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(255));
                let procfs: Vec<_> = outcome.iter().map(AsFd::as_fd).collect();
                let sent = packets::send(told.as_fd(), &[u8::try_from(code).unwrap_or(255)], &procfs);
                if code != 0 || sent.is_err() {
                    return 1;
                }
                clone::reap_forever()
            })
        }
        Side::Parent(pid) => pid,
    };
    drop(told);
    let (mut word, mut descriptors) = ([255_u8], packets::Descriptors::default());
    packets::wait(ready.as_fd()).doing("wait for", "the pod's init")?;
    let heard = packets::receive(ready.as_fd(), &mut word, &mut descriptors);
    let [procfs, ..] = descriptors;
    match (heard, word[0]) {
        (Ok(1), 0) => {}
        (_, code) => {
            clone::wait(pid).doing("wait for", "the pod's init")?;
            return Err(std::io::Error::from_raw_os_error(i32::from(code))).doing("start", "the pod's init");
        }
    }
    let path = format!("/proc/{pid}/ns/pid");
    let pids = namespace::open(Path::new(&path)).doing("open namespace", &path)?;
    Ok((pid, PodHandles { init: Some(pid), pids: Some(pids), procfs, users: None }))
}

/// Containers of the pod see this process: it holds nothing of the node's that they could reach through it.
/// Nor does it hold the procfs, which stays in a mount namespace of its own, where nothing is masked; that
/// namespace is returned.
fn isolate() -> std::io::Result<OwnedFd> {
    clone::hide()?;
    clone::die_with_parent()?;
    clone::set_name(c"pod-init");
    clone::new_session()?;
    clone::reset_signals();
    let only_mounts = Namespaces { mount: true, ..Namespaces::default() };
    namespace::unshare(only_mounts)?;
    set_propagation(Path::new("/"), Propagation::Private, true)?;
    let procfs = NewFileSystem::open("proc")?.mount(NO_SUID | NO_DEV | NO_EXEC)?;
    become_root(&procfs, "/proc")?;
    let procfs = namespace::open(Path::new("/self/ns/mnt"))?;
    namespace::unshare(only_mounts)?;
    let new = NewFileSystem::open("tmpfs")?;
    new.set("nr_inodes", b"1")?;
    become_root(&new.mount(READ_ONLY | NO_SUID | NO_DEV | NO_EXEC)?, "/")?;
    set_no_new_privileges()?;
    bound_capabilities(0)?;
    set_user(NOBODY, NOBODY, &[])?;
    set_capabilities(CapabilitySets::default())?;
    clone::hide()?;
    clone::die_with_parent()?;
    Ok(procfs)
}

/// Makes `mount` the only mount. Only an attached mount can become the root; everything that it covers is
/// unmounted with the old root.
fn become_root(mount: &Mount, at: &str) -> std::io::Result<()> {
    mount.attach(crate::platform::sys::container_root::point_at(Path::new(at))?.as_fd())?;
    enter_root(mount.as_fd())
}
