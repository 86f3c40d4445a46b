//! Real containers: a root file system with one static program, observed from inside. Needs root.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::{PodHandles, Report, container, exec};
use crate::platform::sys::clone::{self, CloneKind, Side};
use crate::platform::sys::{children, packets};
use crate::runtime::embedded::layout::ContainerDir;
use crate::runtime::embedded::spec::{
    Bundle, Capabilities, ExecSpec, Linux, Namespace, OciMount, OciSpec, Overlay, Process, Root,
};

mod basics;
mod external;
mod hostile;
mod mounts;
mod pods;
mod security;
mod timing;

/// A container on disk, removed on drop.
struct Sample {
    base: PathBuf,
    bundle: Bundle,
}

/// The outcome of a container.
#[derive(Debug, Default)]
struct Outcome {
    output: String,
    code: i32,
    failed: Option<String>,
}

/// A container that runs.
struct Running {
    pid: i32,
    report: OwnedFd,
    output: File,
    failed: Option<String>,
    terminal: Option<OwnedFd>,
}

impl Running {
    fn end(mut self) -> Outcome {
        let mut bytes = Vec::new();
        self.output.read_to_end(&mut bytes).unwrap();
        let code = if self.pid > 0 { clone::wait(self.pid).unwrap() } else { -1 };
        Outcome { output: String::from_utf8_lossy(&bytes).into_owned(), code, failed: self.failed }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn mount(kind: &str, destination: &str, source: &str, options: &[&str]) -> OciMount {
    OciMount {
        kind: kind.to_owned(),
        destination: destination.to_owned(),
        source: source.to_owned(),
        options: words(options),
    }
}

/// What containerd mounts into every container.
fn default_mounts() -> Vec<OciMount> {
    vec![
        mount("proc", "/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("tmpfs", "/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "devpts",
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("mqueue", "/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("sysfs", "/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        mount("cgroup", "/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
    ]
}

const DEFAULT_CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

fn default_process(script: &str) -> Process {
    let set = words(&DEFAULT_CAPABILITIES);
    Process {
        args: words(&["sh", "-c", script]),
        env: words(&["PATH=/bin:/usr/bin"]),
        cwd: "/".to_owned(),
        capabilities: Capabilities {
            bounding: set.clone(),
            effective: set.clone(),
            permitted: set,
            ..Capabilities::default()
        },
        no_new_privileges: true,
        ..Process::default()
    }
}

fn own_namespaces(kinds: &[&str]) -> Vec<Namespace> {
    kinds.iter().map(|kind| Namespace { kind: (*kind).to_owned(), path: String::new() }).collect()
}

fn busybox() -> &'static str {
    ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("busybox-static")
}

impl Sample {
    fn new(name: &str, script: &str) -> Self {
        let base = std::env::temp_dir().join(format!("edge-agent-init-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        let layer = base.join("layer");
        for dir in ["bin", "tmp", "etc"] {
            std::fs::create_dir_all(layer.join(dir)).unwrap();
        }
        std::fs::create_dir_all(base.join("container")).unwrap();
        std::fs::copy(busybox(), layer.join("bin/busybox")).unwrap();
        for applet in [
            "sh", "cat", "ls", "id", "grep", "mount", "sleep", "readlink", "stat", "touch", "tty", "ps", "ln",
        ] {
            std::os::unix::fs::symlink("busybox", layer.join("bin").join(applet)).unwrap();
        }
        let oci = OciSpec {
            oci_version: "1.1.0".to_owned(),
            process: default_process(script),
            root: Root { path: base.join("container/rootfs"), readonly: false },
            mounts: default_mounts(),
            linux: Linux {
                namespaces: own_namespaces(&["pid", "ipc", "uts", "mount", "network"]),
                masked_paths: words(&[
                    "/proc/kcore",
                    "/proc/acpi",
                    "/proc/keys",
                    "/sys/firmware",
                    "/proc/none",
                ]),
                readonly_paths: words(&[
                    "/proc/bus",
                    "/proc/fs",
                    "/proc/irq",
                    "/proc/sys",
                    "/proc/sysrq-trigger",
                ]),
                ..Linux::default()
            },
            ..OciSpec::default()
        };
        let overlay = Overlay { lower: vec![layer], upper: base.join("upper"), work: base.join("work") };
        Self { bundle: Bundle { oci, overlay, ..Bundle::default() }, base }
    }

    fn layer(&self) -> PathBuf {
        self.base.join("layer")
    }

    fn start(&self) -> Running {
        self.start_in(&PodHandles::default())
    }

    fn start_in(&self, pod: &PodHandles) -> Running {
        let dir = ContainerDir(self.base.join("container"));
        std::fs::write(dir.bundle(), serde_json::to_vec(&self.bundle).unwrap()).unwrap();
        launch(|report| container(&dir, pod, report))
    }

    fn run(&self) -> Outcome {
        self.start().end()
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// As the monitor does it: streams, a report, a fork.
fn launch(become_it: impl FnOnce(OwnedFd)) -> Running {
    let (output, written) = clone::pipe().unwrap();
    let (here, there) = packets::pair().unwrap();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let step = match clone::fork(CloneKind::default()).unwrap() {
        Side::Parent(pid) => pid,
        Side::Child => {
            children::set_stdio(null.as_fd(), written.as_fd(), written.as_fd()).unwrap();
            become_it(there);
            clone::exit(99)
        }
    };
    drop((written, there));
    let mut running = Running { pid: 0, report: here, output: output.into(), failed: None, terminal: None };
    loop {
        packets::wait(running.report.as_fd()).unwrap();
        let Some(report) = Report::receive(running.report.as_fd()).unwrap() else { break };
        match report {
            Report::Pid(pid) => running.pid = pid,
            Report::Terminal(master) => running.terminal = Some(master),
            Report::Failed(reason) => running.failed = Some(reason),
        }
    }
    clone::wait(step).unwrap();
    running
}

/// Runs `work` in a process of its own, whose children have it as their parent.
fn in_monitor(work: impl FnOnce()) {
    let code = match clone::fork(CloneKind::default()).unwrap() {
        Side::Parent(pid) => clone::wait(pid).unwrap(),
        Side::Child => {
            clone::adopt_orphans().unwrap();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            clone::exit(i32::from(outcome.is_err()))
        }
    };
    assert_eq!(code, 0, "see above for what failed in the monitor");
}

/// Runs a process in a running container, to its end.
fn run_exec(target: &Running, pod: &PodHandles, process: Process) -> Outcome {
    start_exec(target, pod, process).end()
}

fn start_exec(target: &Running, pod: &PodHandles, process: Process) -> Running {
    launch_exec(&ExecSpec { process, ..ExecSpec::default() }, target.pid, pod)
}

fn launch_exec(spec: &ExecSpec, target: i32, pod: &PodHandles) -> Running {
    let path = std::env::temp_dir().join(format!("edge-agent-exec-{}-{target}", std::process::id()));
    let mut file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    file.write_all(&serde_json::to_vec(spec).unwrap()).unwrap();
    file.rewind().unwrap();
    std::fs::remove_file(&path).unwrap();
    launch(|report| exec(file, target, pod, report))
}
