//! A machine that joins a cluster or becomes one: its own `/etc`, `/var` and `/run`, a service manager of a few lines, and the
//! programs of the packages. It is the test's thread, in namespaces that end with it.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::control_plane::{ControlPlane, Options, PATIENCE, SERVER, TOKEN, program, said};
use crate::support::agent::{binary, cgroup_root};
use crate::support::embedded::Embedded;
use crate::support::scratch::{is_gone, unmount_below};
use crate::support::wait::{pause, wait_for};

/// Its name, which becomes the node's.
pub const NAME: &str = "machine";

const SYSTEMCTL: &str = include_str!("../fixtures/systemctl");
const UNITS: [(&str, &str); 4] = [
    ("kubelet.service", include_str!("../../packaging/kubelet/kubelet.service")),
    ("kubelet.service.d/10-kubeadm.conf", include_str!("../../packaging/kubelet/10-kubeadm.conf")),
    ("agent-cri.socket", include_str!("../../packaging/kubelet/agent-cri.socket")),
    ("agent-cri.service", include_str!("../../packaging/kubelet/agent-cri.service")),
];

/// The machine.
pub struct Host {
    runtime: Embedded,
}

/// A machine beside a control plane.
pub struct Machine {
    // Before the host: what runs in its directories is gone first.
    pub plane: ControlPlane,
    host: Host,
}

impl Deref for Machine {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Machine {
    /// With the agent installed and not set up.
    pub fn new() -> Self {
        let runtime = Embedded::new();
        let plane = ControlPlane::start(runtime.scratch().path(), &Options::default());
        Self { plane, host: Host::of(runtime) }
    }

    /// `agent join` or `kubeadm join`, with the line that kubeadm prints.
    pub fn join(&self, program: &str, more: &[&str]) -> Result<String, String> {
        let hash = "openssl x509 -pubkey -noout -in \"$0\" | openssl pkey -pubin -outform DER | sha256sum";
        let hash = said(Command::new("sh").args(["-c", hash, &self.plane.pki("ca.crt")]))?;
        let pin = format!("sha256:{}", hash.split(' ').next().unwrap_or_default());
        let line = ["join", SERVER, "--token", TOKEN, "--discovery-token-ca-cert-hash", &pin];
        self.run(program, &[&line, more].concat())
    }
}

impl Host {
    /// One with the agent installed and not set up. The thread is in a network of its own already.
    pub fn of(runtime: Embedded) -> Self {
        let this = Self { runtime };
        this.make_namespaces();
        let bin = this.path("bin");
        symlink(binary(), bin.join("agent")).expect("install the agent");
        symlink(binary(), bin.join("kubelet")).expect("install the agent as the kubelet");
        for name in ["kubeadm", "kubectl"] {
            symlink(program(name), bin.join(name)).expect("install a program of Kubernetes");
        }
        write(&bin.join("systemctl"), SYSTEMCTL);
        said(Command::new("chmod").arg("+x").arg(bin.join("systemctl"))).expect("make it a program");
        let bin = bin.display().to_string();
        for (name, text) in UNITS {
            write(&this.path("systemd/units").join(name), &text.replace("/usr/bin", &bin));
        }
        let own = |name: &str| this.path(name).display().to_string();
        let flags = format!(
            "--cgroup-root={} --images-dir={} --runtime-state-dir={} --cni-conf-dir={}",
            cgroup_root(this.runtime.scratch().path()),
            own("images"),
            this.runtime.state_dir().display(),
            own("no-cni"),
        );
        write(Path::new("/etc/default/agent"), &format!("AGENT_ARGS=\"{flags}\"\n"));
        write(Path::new("/etc/default/kubelet"), &format!("KUBELET_EXTRA_ARGS=\"{flags}\"\n"));
        write(Path::new("/etc/hosts"), &format!("127.0.0.1 localhost {NAME}\n"));
        fs::create_dir_all("/etc/kubernetes/manifests").expect("make the manifest directory");
        this
    }

    /// A file of the test beside those of the machine.
    pub fn path(&self, name: &str) -> PathBuf {
        self.runtime.scratch().path().join(name)
    }

    /// Mounts of other agents of the real machine are not to be seen.
    fn make_namespaces(&self) {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS).expect("make namespaces");
        let dir = |name: &str| self.runtime.scratch().dir(name).display().to_string();
        let overlay = |name: &str| {
            let (upper, work) = (dir(&format!("{name}-upper")), dir(&format!("{name}-work")));
            format!("mount -t overlay overlay -o lowerdir=/{name},upperdir={upper},workdir={work} /{name}")
        };
        let kubelet = dir("kubelet");
        for name in ["bin", "systemd/units"] {
            dir(name);
        }
        for line in [
            "mount --make-rprivate /".to_owned(),
            overlay("etc"),
            overlay("var"),
            "mount -t tmpfs run /run".to_owned(),
            "mkdir -p /run/systemd/system /run/agent /var/lib/kubelet".to_owned(),
            format!("mount --bind {kubelet} /var/lib/kubelet"),
            format!("hostname {NAME}"),
        ] {
            let mut words = line.split(' ');
            let mut command = Command::new(words.next().expect("a program"));
            said(command.args(words)).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// A program of the machine, not started.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let own = self.path("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        // The program itself, or the service manager, finds the others by it.
        let mut command = Command::new(own.join(program));
        command.args(arguments).env("PATH", format!("{}:{path}", own.display()));
        command.env("SYSTEMD", self.path("systemd")).env("HOME", self.path("systemd"));
        command.stdin(Stdio::null());
        command
    }

    /// What a program prints, or how it failed.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        said(&mut self.command(program, arguments))
    }

    /// What the agent said as a service.
    pub fn log(&self, service: &str) -> String {
        fs::read_to_string(self.path("systemd").join(format!("{service}.log"))).unwrap_or_default()
    }

    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the failure")]
    pub fn show_logs(&self) {
        for service in ["agent", "kubelet", "agent-cri"] {
            eprintln!("--- {service}\n{}", self.log(service));
        }
    }

    /// The report of the running agent.
    pub fn status(&self) -> Result<Value, String> {
        let text = self.run("agent", &["status", "--exit-zero", "-o", "json"])?;
        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
    }

    /// Pods whose containers run on this machine, by the runtime's records.
    pub fn running(&self) -> Vec<(String, u32)> {
        let instances = self.runtime.instances().into_iter().filter(|it| !it.container.is_empty());
        instances.filter_map(|it| Some((it.pod, it.pid?))).collect()
    }

    /// Ends every process of the agent and of its pods at once, and forgets what was in memory.
    pub fn cut_power(&self) {
        let agent = fs::read_to_string(self.path("systemd/agent.pid")).expect("the agent's process");
        let mut processes: Vec<i32> = vec![agent.trim().parse().expect("a process")];
        let pids = self.runtime.instances().into_iter().filter_map(|it| it.pid);
        // Monitors first, which would note the ends of the others.
        processes.extend(pids.filter_map(|pid| i32::try_from(pid).ok()));
        for pid in &processes {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        for pid in processes {
            wait(&format!("the end of process {pid}"), || {
                if is_gone(pid) { Ok(()) } else { Err(String::new()) }
            });
        }
        unmount_below(&self.runtime.state_dir());
        fs::remove_dir_all(self.runtime.state_dir()).expect("forget what ran");
    }

    /// Waits until containers of exactly these pods run; returns the last one's process.
    pub fn wait_for_pods(&self, prefixes: &[&str]) -> u32 {
        wait(&format!("containers of {prefixes:?}"), || {
            let running = self.running();
            let are_all = running.len() == prefixes.len()
                && prefixes.iter().all(|prefix| running.iter().any(|(pod, _)| pod.starts_with(prefix)));
            let last = running.iter().find(|(pod, _)| pod.starts_with(prefixes.last().unwrap_or(&"")));
            if are_all { Ok(last.map_or(0, |(_, pid)| *pid)) } else { Err(format!("{running:?}")) }
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
    }
}

/// Asks a few times a second until the answer is right.
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    wait_for(what, PATIENCE, || look().inspect_err(|_| pause(Duration::from_millis(200))))
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("make a directory");
    fs::write(path, text).expect("write a file of the machine");
}
