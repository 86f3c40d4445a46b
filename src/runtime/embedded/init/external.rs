//! Containers of another OCI runtime (runc, crun, Kata...): it gets the same specification and the overlay,
//! and is driven by its command line.
//!
//! Expected flow: `create` and `start`; the process they leave behind becomes the monitor's child, because
//! the monitor adopts orphans. `delete` when it has ended.
//!
//! Caveats: the kernel does not kill such a container with its monitor; the agent kills its cgroup when it
//! notices the monitor's end.
//!
//! Owns the command lines and files in the container's directory.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use super::PodHandles;
use super::error::{Doing, InitError};
use super::input::{pods_users, read_spec};
use super::report::Report;
use super::rootfs::mount_root;
use crate::platform::sys::container_root::set_owner;
use crate::platform::sys::durable::write_private;
use crate::platform::sys::mount_tree::{Propagation, set_propagation};
use crate::platform::sys::namespace::{self, Namespaces};
use crate::platform::sys::{clone, packets};
use crate::runtime::embedded::layout::ContainerDir;
use crate::runtime::embedded::spec::{Bundle, ExecSpec, Process};

const CONFIG: &str = "config.json";
const CONSOLE: &str = "console.sock";
const LOG: &str = "oci.log";
const PID: &str = "oci.pid";
const PROCESS: &str = "process.json";
const STATE: &str = "oci";

/// Only this much of a runtime's log is read.
const MAX_LOG: u64 = 64 << 10;

/// A runtime's command line, run in the container's directory with short relative names: names of sockets are
/// limited.
struct Runtime<'a> {
    command: &'a [String],
    /// The container's name.
    id: String,
    log: String,
}

impl<'a> Runtime<'a> {
    fn new(command: &'a [String], directory: &Path, log: String) -> Result<Self, InitError> {
        std::env::set_current_dir(directory).doing("enter", directory.display())?;
        let id = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { command, id, log })
    }

    /// Runs one verb to its end.
    fn run(&self, verb: &'static str, arguments: &[&str]) -> Result<(), InitError> {
        let Some((program, first)) = self.command.split_first() else {
            return Err(InitError::Invalid { field: "external_runtime".to_owned(), problem: "no program" });
        };
        let mut command = Command::new(program);
        command.args(first).args(["--root", STATE, "--log", &self.log, "--log-format", "json", verb]);
        command.args(arguments).arg(&self.id);
        let failed = |output| InitError::External { program: program.clone(), verb, output };
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(failed(self.reason().unwrap_or_else(|| status.to_string()))),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// The last error in its log.
    fn reason(&self) -> Option<String> {
        let mut log = String::new();
        File::open(&self.log).ok()?.take(MAX_LOG).read_to_string(&mut log).ok()?;
        let message = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let is_error = matches!(line.get("level")?.as_str()?, "error" | "fatal");
            line.get("msg").filter(|_| is_error)?.as_str().map(str::to_owned)
        };
        log.lines().rev().find_map(message)
    }
}

fn write_json(name: &str, value: &impl serde::Serialize) -> Result<(), InitError> {
    let bytes =
        serde_json::to_vec(value).map_err(|source| InitError::Syntax { path: name.into(), source })?;
    write_private(Path::new(name), &bytes).doing("write", name)
}

fn read_pid(name: &str) -> Result<i32, InitError> {
    let text = std::fs::read_to_string(name).doing("read", name)?;
    text.trim()
        .parse()
        .map_err(|_| InitError::Invalid { field: name.to_owned(), problem: "not a process id" })
}

fn remove(name: &str) -> Result<(), InitError> {
    match std::fs::remove_file(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).doing("remove", name),
        _ => Ok(()),
    }
}

/// Runs a verb that leaves a process behind, and reports that process and its terminal.
fn leave_process(
    runtime: &Runtime<'_>,
    verb: &'static str,
    arguments: &[&str],
    process: &Process,
    pid: &str,
    console: &str,
    report: BorrowedFd<'_>,
) -> Result<(), InitError> {
    remove(pid)?;
    remove(console)?;
    let mut arguments = arguments.to_vec();
    arguments.extend(["--pid-file", pid]);
    let listener =
        process.terminal.then(|| UnixListener::bind(console)).transpose().doing("bind", console)?;
    if let Some(listener) = &listener {
        // The runtime has sent it by its exit, so there is no need to wait.
        listener.set_nonblocking(true).doing("listen on", console)?;
        arguments.extend(["--console-socket", console]);
    }
    runtime.run(verb, &arguments)?;
    Report::Pid(read_pid(pid)?).send(report);
    if let Some(listener) = listener {
        let (connection, _) = listener.accept().doing("take", "the terminal")?;
        let mut sent = packets::Descriptors::default();
        packets::receive(connection.as_fd(), &mut [0; 256], &mut sent).doing("take", "the terminal")?;
        if let [Some(master), ..] = sent {
            Report::Terminal(master).send(report);
        }
        remove(console)?;
    }
    remove(pid)
}

/// Makes and starts a container. If the start fails, the container is deleted again.
pub(in crate::runtime) fn create(
    dir: &ContainerDir,
    pod: &PodHandles,
    bundle: &Bundle,
    report: BorrowedFd<'_>,
) -> Result<(), InitError> {
    let linux = &bundle.oci.linux;
    let users = pods_users(pod, &linux.namespaces, &linux.uid_mappings, &linux.gid_mappings)?;
    namespace::unshare(Namespaces { mount: true, ..Namespaces::default() })
        .doing("make", "a mount namespace")?;
    set_propagation(Path::new("/"), Propagation::Slave, true).doing("detach", "mounts of the node")?;
    let root = mount_root(&dir.rootfs(), &bundle.overlay, &bundle.oci.linux.mount_label, users)?;
    if let Some(users) = users {
        set_owner(root.as_fd(), users.root_uid, users.root_gid).doing("give", "the root")?;
    }
    clone::reset_signals();
    let runtime = Runtime::new(&bundle.external_runtime, &dir.0, LOG.to_owned())?;
    write_json(CONFIG, &bundle.oci)?;
    let process = &bundle.oci.process;
    let created = leave_process(&runtime, "create", &["--bundle", "."], process, PID, CONSOLE, report)
        .and_then(|()| runtime.run("start", &[]));
    if created.is_err() {
        // The reason is in the error already.
        let _ = runtime.run("delete", &["--force"]);
    }
    created
}

/// Runs another program in its container.
pub(in crate::runtime) fn exec(spec: &ExecSpec, report: BorrowedFd<'_>) -> Result<(), InitError> {
    if spec.directory.as_os_str().is_empty() {
        return Err(InitError::Invalid { field: "directory".to_owned(), problem: "the target of the exec" });
    }
    clone::reset_signals();
    // Several may run at once.
    let own = |name: &str| format!("{}-{name}", clone::process_id());
    let runtime = Runtime::new(&spec.external_runtime, &spec.directory, own(LOG))?;
    write_json(&own(PROCESS), &spec.process)?;
    let (pid, console, process) = (own(PID), own(CONSOLE), own(PROCESS));
    let arguments = ["--detach", "--process", &process];
    let left = leave_process(&runtime, "exec", &arguments, &spec.process, &pid, &console, report);
    for name in [&process, &runtime.log] {
        remove(name)?;
    }
    left
}

/// Runs the runtime's `delete` for a container that has ended.
pub(in crate::runtime) fn delete(dir: &ContainerDir) -> Result<(), InitError> {
    let path = dir.bundle();
    let bundle: Bundle = read_spec(File::open(&path).doing("open", path.display())?, &path)?;
    clone::reset_signals();
    let runtime = Runtime::new(&bundle.external_runtime, &dir.0, LOG.to_owned())?;
    runtime.run("delete", &["--force"])
}
