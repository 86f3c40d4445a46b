//! A pod's monitor with containers made of busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use edge_agent::codec::cri_log;
use edge_agent::platform::rt;
use edge_agent::runtime::embedded::client::{ForkServer, Monitor, Spawned, Watch, write_bundle};
use edge_agent::runtime::embedded::layout::SandboxDir;
use edge_agent::runtime::embedded::protocol::{Exited, Reply};
use edge_agent::runtime::embedded::spec::{
    Bundle, Capabilities, ExecSpec, Linux, Namespace, OciMount, OciSpec, Overlay, PodSpec, Process, Root,
};

use crate::support::agent::binary;
use crate::support::scratch::Scratch;

/// For everything that should happen soon, on a machine that is busy compiling.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A monitor and its directory; nothing of it outlives the test.
pub struct Pod {
    pub directory: SandboxDir,
    pub monitor: Monitor,
    pub pid: i32,
    pub spawned: Option<Spawned>,
    pub scratch: Scratch,
}

/// Runs a test on the agent's own kind of runtime.
pub fn run(test: impl Future<Output = ()>) {
    rt::run(async {
        tokio::time::timeout(Duration::from_secs(300), test).await.expect("the test to end in five minutes");
    })
    .expect("a runtime");
}

impl Pod {
    /// A pod whose monitor runs.
    pub async fn new() -> Self {
        Self::with(&PodSpec::default(), &binary()).await
    }

    /// The same with a specification and a program of the test's own.
    pub async fn with(spec: &PodSpec, program: &Path) -> Self {
        Self::forked_from(&ForkServer::new(program.to_owned(), Duration::from_secs(1)), spec).await
    }

    /// The same with a fork server of the test's own.
    pub async fn forked_from(server: &Rc<ForkServer>, spec: &PodSpec) -> Self {
        let scratch = Scratch::new();
        // As deep as a real one, whose socket's path does not fit into an address.
        let directory = SandboxDir(scratch.dir("state/sandboxes").join("5".repeat(64)));
        fs::create_dir_all(directory.containers()).unwrap();
        fs::write(directory.pod_spec(), serde_json::to_vec(spec).unwrap()).unwrap();
        let spawned = server.spawn(&directory, None).await.expect("the monitor to start");
        let monitor = Monitor::new(&directory);
        Self { directory, monitor, pid: spawned.pid, spawned: Some(spawned), scratch }
    }

    /// Where containers' logs go.
    pub fn log(&self, id: &str) -> PathBuf {
        self.scratch.dir("logs").join(format!("{id}.log"))
    }

    /// What a shell script as a container is.
    pub fn bundle(&self, id: &str, script: &str) -> Bundle {
        let lower = self.root_file_system();
        let work = self.scratch.dir("layers").join(id);
        for name in ["upper", "work"] {
            fs::create_dir_all(work.join(name)).unwrap();
        }
        let rootfs = self.directory.container(id).rootfs();
        fs::create_dir_all(&rootfs).unwrap();
        let mount = |destination: &str, kind: &str, options: &[&str]| OciMount {
            destination: destination.into(),
            kind: kind.into(),
            source: kind.into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        let namespace = |kind: &str| Namespace { kind: kind.into(), path: String::new() };
        Bundle {
            oci: OciSpec {
                oci_version: "1.1.0".into(),
                process: shell(script),
                root: Root { path: rootfs, readonly: false },
                mounts: vec![
                    mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
                    mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
                    mount(
                        "/dev/pts",
                        "devpts",
                        &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
                    ),
                ],
                linux: Linux {
                    namespaces: ["pid", "mount", "ipc", "uts"].map(namespace).to_vec(),
                    ..Linux::default()
                },
                ..OciSpec::default()
            },
            overlay: Overlay { lower: vec![lower], upper: work.join("upper"), work: work.join("work") },
            log_path: self.log(id),
            ..Bundle::default()
        }
    }

    fn root_file_system(&self) -> PathBuf {
        let root = self.scratch.path().join("image");
        if !root.exists() {
            for directory in ["bin", "proc", "dev", "tmp", "etc", "sys"] {
                fs::create_dir_all(root.join(directory)).unwrap();
            }
            fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static is installed");
            symlink("busybox", root.join("bin/sh")).unwrap();
        }
        root
    }

    /// Writes a bundle and starts it.
    pub async fn start_bundle(&self, id: &str, bundle: &Bundle) -> i32 {
        write_bundle(&self.directory.container(id), bundle).unwrap();
        self.monitor.start(id).await.expect("the container to start").pid
    }

    /// Starts a shell script.
    pub async fn start(&self, id: &str, script: &str) -> i32 {
        self.start_bundle(id, &self.bundle(id, script)).await
    }

    /// A watch past its first messages.
    pub async fn watch(&self) -> Watch {
        let mut watch = self.monitor.watch().await.expect("a watch");
        while watch.next().await.expect("the monitor lives") != Reply::Done {}
        watch
    }

    /// Waits for a container's end, however long it has been over.
    pub async fn exited(&self, id: &str) -> Exited {
        let mut watch = self.monitor.watch().await.expect("a watch");
        loop {
            let next = tokio::time::timeout(PATIENCE, watch.next()).await.expect("an end in time");
            match next.expect("the monitor lives") {
                Reply::Exited { container, exited } if container == id => return exited,
                _ => {}
            }
        }
    }

    /// Runs a script to its end.
    pub async fn run(&self, id: &str, script: &str) -> Exited {
        self.start(id, script).await;
        self.exited(id).await
    }
}

/// Entries of a log: stream, tag and text. Fails for a line of another form.
pub fn entries(log: &Path) -> Vec<(String, String, Vec<u8>)> {
    let bytes = fs::read(log).expect("a log");
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    assert_eq!(lines.pop(), Some(&b""[..]), "a log ends with a line break");
    lines
        .into_iter()
        .map(|line| {
            let Some(parsed) = cri_log::parse(line) else { panic!("no entry: {line:?}") };
            let time = std::str::from_utf8(&parsed.time).expect("a time");
            assert!(time.len() == 30 && time.ends_with('Z'), "{time}");
            let stream = if parsed.is_stderr { "stderr" } else { "stdout" };
            let tag = if parsed.is_partial { "P" } else { "F" };
            (stream.to_owned(), tag.to_owned(), parsed.text.to_vec())
        })
        .collect()
}

/// `sh -c script` of busybox.
pub fn shell(script: &str) -> Process {
    // Programs of busybox by their names, without links for them in the image.
    let applets = ["sleep", "cat", "dd", "tr", "stty", "seq", "mkdir", "ps", "sync"];
    let functions: Vec<String> =
        applets.iter().map(|name| format!("{name}() {{ /bin/busybox {name} \"$@\"; }}; ")).collect();
    let functions = functions.concat();
    let capabilities = vec!["CAP_KILL".to_owned(), "CAP_CHOWN".to_owned(), "CAP_DAC_OVERRIDE".to_owned()];
    Process {
        args: vec!["/bin/busybox".into(), "sh".into(), "-c".into(), format!("{functions}{script}")],
        env: vec!["PATH=/bin".into()],
        cwd: "/".into(),
        capabilities: Capabilities {
            bounding: capabilities.clone(),
            effective: capabilities.clone(),
            permitted: capabilities,
            ..Capabilities::default()
        },
        ..Process::default()
    }
}

/// A script as an exec.
pub fn exec_spec(script: &str) -> ExecSpec {
    ExecSpec { process: shell(script), ..ExecSpec::default() }
}

/// The words of a process's command line.
pub fn command_line(pid: i32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.trim_end_matches(['\0', ' ']).split('\0').map(str::to_owned).collect()
}

/// Children of a process and the state letters they are in.
pub fn children_of(parent: i32) -> Vec<(i32, char)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_whitespace();
        let state = fields.next().and_then(|state| state.chars().next()).unwrap_or('?');
        if fields.next().and_then(|parent| parent.parse().ok()) == Some(parent) {
            found.push((pid, state));
        }
    }
    found
}

/// Waits without blocking the test's runtime.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
