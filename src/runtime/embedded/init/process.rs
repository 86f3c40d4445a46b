//! The last steps: privileges are dropped one by one, then the process becomes the container's program.
//!
//! Guarantees: what the specification does not grant is dropped before the program's first instruction; no
//! descriptor but 0, 1 and 2 reaches it; after any failure it does not run.
//!
//! Owns the order.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::error::{Doing, InitError};
use super::{capabilities, lookup};
use crate::platform::sys::console::{Console, set_size, take_control};
use crate::platform::sys::container_root::{Procfs, change_directory, facts, is_refused, set_owner};
use crate::platform::sys::credentials::{
    bound_capabilities, bounding_capabilities, execute, keep_capabilities, new_keyring, raise_limit,
    set_capabilities, set_limit, set_no_new_privileges, set_umask, set_user,
};
use crate::platform::sys::namespace::{self, Namespaces};
use crate::platform::sys::{children, clone, seccomp};
use crate::runtime::embedded::spec::{Process, Rlimit};

/// The kernel accepts 4096 instructions of eight bytes.
const MAX_FILTER: u64 = 4096 * 8;

/// What has to be opened or read on the node before its files are out of reach.
#[derive(Debug)]
pub(in crate::runtime) struct Prepared {
    filter: Option<Vec<u8>>,
    /// Security labels and the files they are written to, as the last step. The kernel passes them on to
    /// child processes.
    labels: Vec<(File, String)>,
}

#[expect(clippy::needless_pass_by_value, reason = "nothing of the node's procfs is to stay open")]
/// Reads the filter, opens what labels are written to, and sets what only the node's procfs can set.
pub(in crate::runtime) fn prepare(
    process: &Process,
    filter: Option<File>,
    procfs: Procfs,
) -> Result<Prepared, InitError> {
    let filter = filter.map(|file| {
        let mut bytes = Vec::new();
        // One more byte than allowed: the kernel then refuses the filter as too long, instead of loading a
        // truncated one.
        file.take(MAX_FILTER + 1).read_to_end(&mut bytes).doing("read", "the seccomp filter")?;
        Ok(bytes)
    });
    if let Some(adjustment) = process.oom_score_adj {
        match procfs.write("self/oom_score_adj", &adjustment.to_string()) {
            // A lower value needs a capability that not every agent has: the agent's own value is the lowest
            // possible.
            Err(error) if is_refused(&error) => {}
            other => other.doing("write", "oom_score_adj")?,
        }
    }
    let mut labels = Vec::new();
    if !process.apparmor_profile.is_empty() && process.apparmor_profile != "unconfined" {
        let file = procfs
            .writer("thread-self/attr/apparmor/exec")
            .or_else(|_| procfs.writer("thread-self/attr/exec"))
            .doing("set AppArmor profile", &process.apparmor_profile)?;
        labels.push((file, format!("exec {}", process.apparmor_profile)));
    }
    if !process.selinux_label.is_empty() {
        let file =
            procfs.writer("thread-self/attr/exec").doing("set SELinux label", &process.selinux_label)?;
        labels.push((file, process.selinux_label.clone()));
    }
    Ok(Prepared { filter: filter.transpose()?, labels })
}

/// The target of a process in a pod with a user namespace.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct Destination<'a> {
    /// The pod's user namespace.
    pub users: Option<BorrowedFd<'a>>,
    /// Whether the user namespace has to own the mount namespace.
    pub own_mounts: bool,
    /// No other process of the container can see this one before it becomes the program.
    pub is_alone: bool,
}

/// Makes the terminal standard input, output and error.
pub(in crate::runtime) fn use_terminal(
    console: &Console,
    process: &Process,
    owner: u32,
) -> Result<(), InitError> {
    let terminal = console.terminal.as_fd();
    if let Some(size) = process.console_size {
        set_size(terminal, size.height, size.width).doing("set size of", "the terminal")?;
    }
    // The group stays as devpts set it.
    let group = facts(terminal).doing("stat", "the terminal")?.gid;
    set_owner(terminal, owner, group).doing("give", "the terminal")?;
    children::set_stdio(terminal, terminal, terminal).doing("use", "the terminal")
}

type Program = (String, Vec<CString>, Vec<CString>);

/// The remaining steps, which need no more privileges than the program has.
#[derive(Debug)]
pub(in crate::runtime) struct Ready {
    program: Program,
    /// As the specification names it.
    name: String,
    /// The seccomp filter, unless it is loaded already.
    filter: Option<Vec<u8>>,
    /// Standard input is a terminal, which becomes the session's.
    terminal: bool,
    /// The limit of processes of its user: the parent of this process must not run into it.
    processes: Option<Rlimit>,
}

impl Ready {
    /// Becomes the program.
    ///
    /// # Errors
    /// Returns only after a failure.
    pub(in crate::runtime) fn run(self, report: BorrowedFd<'_>) -> InitError {
        match self.last_steps(report) {
            Ok(()) => {
                let (program, arguments, environment) = &self.program;
                let error = execute(Path::new(program), arguments, environment);
                let problem = format!("exec {program}: {}", lookup::reason(&error));
                InitError::Program { program: self.name, problem }
            }
            Err(error) => error,
        }
    }

    fn last_steps(&self, report: BorrowedFd<'_>) -> Result<(), InitError> {
        if self.terminal {
            take_control(std::io::stdin().as_fd()).doing("take", "the terminal")?;
        }
        if let Some(limit) = &self.processes {
            set_limit(&limit.kind, limit.soft, limit.hard).doing("set limit", &limit.kind)?;
        }
        // The change of user reset both.
        clone::hide().doing("hide", "the process")?;
        clone::die_with_parent().doing("tie", "the process to its monitor")?;
        if !clone::is_connected(report) {
            return Err(InitError::Orphaned);
        }
        clone::close_on_exec_from(3).doing("close", "descriptors")?;
        load(self.filter.as_deref())
    }
}

fn load(filter: Option<&[u8]>) -> Result<(), InitError> {
    filter.map_or(Ok(()), |filter| seccomp::load(filter).doing("load", "the seccomp filter"))
}

/// Drops everything from this process that the specification does not grant. The root file system is already
/// the container's. Nothing that was opened for it stays open.
pub(in crate::runtime) fn confine(
    process: &Process,
    prepared: Prepared,
    destination: Destination<'_>,
) -> Result<Ready, InitError> {
    let (processes, limits): (Vec<_>, Vec<_>) =
        process.rlimits.iter().partition(|limit| limit.kind == "RLIMIT_NPROC");
    for limit in limits {
        set_limit(&limit.kind, limit.soft, limit.hard).doing("set limit", &limit.kind)?;
    }
    for limit in &processes {
        // Limits are raised here, where it is still permitted; the program's own process lowers this one.
        raise_limit(&limit.kind, limit.hard).doing("set limit", &limit.kind)?;
    }
    new_keyring().doing("join", "a new keyring")?;
    let sets = capabilities::sets(&process.capabilities, bounding_capabilities())?;
    if let Some(users) = destination.users {
        let only = |user: bool, mount: bool| Namespaces { mount, user, ..Namespaces::default() };
        namespace::join(users, only(true, false)).doing("join", "the pod's user namespace")?;
        if destination.own_mounts {
            // A copy owned by the pod's user namespace, in which the mounts made for the container cannot be
            // undone.
            namespace::unshare(only(false, true)).doing("make", "a mount namespace")?;
        }
        // Unmapped ids of the node mean nothing here; the pod's root may do the following steps.
        set_user(0, 0, &[]).doing("become", "the pod's root")?;
    }
    let user = &process.user;
    chown_streams(user.uid, user.gid)?;
    for (mut file, label) in prepared.labels {
        file.write_all(label.as_bytes()).doing("set label", label)?;
    }
    let filter = if process.no_new_privileges {
        set_no_new_privileges().doing("set", "no_new_privs")?;
        prepared.filter
    } else {
        // It would not be permitted later.
        load(prepared.filter.as_deref())?;
        None
    };
    bound_capabilities(sets.bounding).doing("drop", "capabilities")?;
    let directory = if process.cwd.is_empty() { "/" } else { &process.cwd };
    // As root first: as with runc, the working directory may be closed to the user.
    let moved = change_directory(Path::new(directory));
    keep_capabilities(true).doing("keep", "capabilities")?;
    set_user(user.uid, user.gid, &user.additional_gids)
        .doing("become user", format_args!("{}:{}", user.uid, user.gid))?;
    keep_capabilities(false).doing("drop", "capabilities")?;
    match moved {
        // As the user then: a network file system may give root fewer rights.
        Err(error) if is_refused(&error) => change_directory(Path::new(directory)),
        other => other,
    }
    .doing("change directory to", directory)?;
    set_capabilities(sets).doing("set", "capabilities")?;
    // The change of user reset both.
    clone::hide().doing("hide", "the process")?;
    clone::die_with_parent().doing("tie", "the process to its monitor")?;
    set_umask(0o022);
    let program = resolve_program(process)?;
    clone::reset_signals();
    // A process that traces the next child thereby gets no more of the kernel than the program has. A profile
    // that does not permit making that child is loaded later, as the last step before the program.
    let is_early = !destination.is_alone && filter.as_deref().is_some_and(seccomp::permits_start);
    let filter = if is_early {
        load(filter.as_deref())?;
        None
    } else {
        filter
    };
    Ok(Ready {
        program,
        name: process.args.first().cloned().unwrap_or_default(),
        filter,
        terminal: process.terminal,
        processes: processes.first().map(|limit| (*limit).clone()),
    })
}

fn resolve_program(process: &Process) -> Result<Program, InitError> {
    let (Some(name), mut environment) = (process.args.first(), process.env.clone()) else {
        return Err(InitError::Invalid { field: "process.args".to_owned(), problem: "no command specified" });
    };
    let variable = |environment: &[String], name: &str| {
        environment
            .iter()
            .rev()
            .find_map(|entry| entry.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    if variable(&environment, "HOME").is_none_or(|home| home.is_empty()) {
        environment.retain(|entry| !entry.starts_with("HOME="));
        environment.push(format!("HOME={}", lookup::home(process.user.uid)));
    }
    let path = variable(&environment, "PATH").unwrap_or_default();
    let directory = if process.cwd.is_empty() { "/" } else { &process.cwd };
    let program = lookup::program(name, &path, Path::new(directory))?;
    let strings = |field: &str, words: &[String]| {
        words
            .iter()
            .map(|word| {
                CString::new(word.as_str()).map_err(|_| InitError::Invalid {
                    field: format!("process.{field}: {word:?}"),
                    problem: "must not contain a zero byte",
                })
            })
            .collect::<Result<Vec<_>, _>>()
    };
    Ok((program.display().to_string(), strings("args", &process.args)?, strings("env", &environment)?))
}

/// A program opens `/dev/stdout` again as its own user: pipes have to belong to that user.
fn chown_streams(uid: u32, gid: u32) -> Result<(), InitError> {
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    for stream in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
        let Ok(facts) = facts(stream) else { continue };
        // Devices are shared: /dev/null, or a terminal that already has its owner.
        if facts.character_device.is_some() || facts.uid == uid || !facts.is_pipe_or_socket {
            continue;
        }
        match set_owner(stream, uid, gid) {
            // A pipe of another owner that this process may not chown works unless it is opened again.
            Err(error) if is_refused(&error) || error.kind() == std::io::ErrorKind::InvalidInput => {}
            other => other.doing("give", "a stream")?,
        }
    }
    Ok(())
}
