//! The directories and files of a setup, with their modes and contents: all as data, before anything is
//! written.
//!
//! Owns the texts. Must not write.

use std::path::{Path, PathBuf};

pub(super) const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// kubeadm's path of the administrator's kubeconfig.
pub(super) const ADMIN_CONF: &str = "/etc/kubernetes/admin.conf";
pub(super) const EXAMPLE_FILE: &str = "/etc/kubernetes/manifests/hello.yaml";
/// The unit of an administrator; those of packages are in [`PACKAGED_UNITS`].
pub(super) const UNIT: &str = "/etc/systemd/system/agent.service";
/// The units of packages.
pub(super) const PACKAGED_UNITS: [&str; 2] =
    ["/usr/lib/systemd/system/agent.service", "/lib/systemd/system/agent.service"];
/// The symlink that `systemctl enable` creates.
pub(super) const WANTS: &str = "/etc/systemd/system/multi-user.target.wants/agent.service";
/// The kernel modules that are loaded at boot: written by `init`, and the package's. systemd and OpenRC read both.
pub(super) const MODULES: &str = "/etc/modules-load.d/agent.conf";
pub(super) const PACKAGED_MODULES: &str = "/usr/lib/modules-load.d/agent.conf";
/// OpenRC's script, and the symlink that `rc-update add` creates.
pub(super) const SCRIPT: &str = "/etc/init.d/agent";
pub(super) const RUNLEVEL: &str = "/etc/runlevels/default/agent";

/// The same file as in the packages.
const TMPFILES: &str = include_str!("../../../packaging/tmpfiles.conf");
pub(super) const MODULES_TEXT: &str = include_str!("../../../packaging/modules-load.conf");
const UNIT_TEXT: &str = include_str!("../../../systemd/agent.service");
const SCRIPT_TEXT: &str = include_str!("../../../packaging/openrc/agent");
/// The program's path in both.
const PACKAGED_PROGRAM: &str = "/usr/bin/agent";
/// The first line of the service's flags as `init` writes them. Edits by the user keep it.
pub(super) const DEFAULTS_HEADER: &str = "# Written by agent init.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cmd) struct File {
    pub(in crate::cmd) path: PathBuf,
    pub(in crate::cmd) mode: u32,
    pub(in crate::cmd) content: String,
}

impl File {
    pub(super) fn new(path: impl Into<PathBuf>, mode: u32, content: impl Into<String>) -> Self {
        Self { path: path.into(), mode, content: content.into() }
    }
}

/// The directories that exist before the first pod, with their modes. Those that are recreated at boot are in
/// the packages' tmpfiles.
pub(super) fn directories() -> Vec<(PathBuf, u32)> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (kind, path, mode) = (fields.next()?, fields.next()?, fields.next()?);
        Some((PathBuf::from(path), u32::from_str_radix(mode, 8).ok()?)).filter(|_| kind == "d")
    };
    let once = [Path::new(MANIFESTS).parent().unwrap_or(Path::new("/")), Path::new(MANIFESTS)];
    let once = once.map(|path| (path.to_owned(), 0o755));
    once.into_iter().chain(TMPFILES.lines().filter_map(line)).collect()
}

/// How the configuration begins that `init` writes.
pub(super) const CONFIGURATION_HEADER: &str = "# Configuration of this node:";

pub(super) fn configuration(endpoint: Option<&str>) -> String {
    let runtime = match endpoint {
        Some(endpoint) => format!("containerRuntimeEndpoint: {endpoint}\n"),
        None => "#containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n".to_owned(),
    };
    format!(
        "\
{CONFIGURATION_HEADER} a KubeletConfiguration, read when the agent starts.
# \"agent config --explain --config {file}\" shows all effective settings. Commented lines are defaults.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

# Directory of static pod manifests; a URL can be configured in addition.
staticPodPath: {MANIFESTS}
#staticPodURL: https://fleet.example.com/box-1.yaml

# Address of the API (kubectl). 0.0.0.0 makes it reachable from other machines; clients always need a certificate.
address: 127.0.0.1
#port: 10250
#healthzPort: 10248

# Container runtime: embedded, or the socket of a CRI runtime.
{runtime}
# Default seccomp profile RuntimeDefault. Without a profile, root in a container can raise its CPU and process limits.
seccompDefault: true

# Swap and cgroup v1 are accepted.
#failSwapOn: false
#failCgroupV1: false

# Resources reserved for the system and the agent.
#systemReserved: {{cpu: 100m, memory: 64Mi}}

# Container logs.
#containerLogMaxSize: 10Mi
#containerLogMaxFiles: 5

#maxPods: 110
#clusterDNS: []
",
        file = super::CONFIG_FILE,
    )
}

pub(super) const EXAMPLE: &str = "\
# Written by agent init --example: a web server on port 8080 of this machine. The agent picks up changes to this file.
apiVersion: v1
kind: Pod
metadata:
  name: hello
spec:
  containers:
  - name: web
    image: docker.io/library/busybox:1.36
    command: [sh, -c, 'echo hello from agent > /tmp/index.html && exec httpd -f -p 80 -h /tmp']
    ports:
    - containerPort: 80
      hostPort: 8080
    readinessProbe:
      httpGet: {path: /, port: 80}
    resources:
      limits: {memory: 32Mi}
";

/// The systemd unit, for the program's path on this system.
pub(super) fn unit(program: &Path) -> String {
    UNIT_TEXT.replace(PACKAGED_PROGRAM, &program.display().to_string())
}

/// The same for OpenRC.
pub(super) fn script(program: &Path) -> String {
    SCRIPT_TEXT.replace(PACKAGED_PROGRAM, &program.display().to_string())
}

/// The service's flags.
pub(super) fn defaults(flags: &[String]) -> String {
    format!(
        "{DEFAULTS_HEADER} Flags of the agent, in addition to --config.\nAGENT_ARGS=\"{}\"\n",
        flags.join(" ")
    )
}

/// The flags in such a file, which may have been edited: those of `AGENT_ARGS`, split at blanks as systemd
/// does it.
pub(super) fn service_flags(text: &str) -> Vec<String> {
    let value = text.lines().filter_map(|line| line.trim().strip_prefix("AGENT_ARGS=")).next_back();
    let value = value.unwrap_or_default().trim().trim_matches(['"', '\'']);
    value.split_whitespace().map(str::to_owned).collect()
}

/// The command that starts the agent manually.
pub(super) fn command(flags: &[String]) -> String {
    format!("agent --config={} {}", super::CONFIG_FILE, flags.join(" ")).trim_end().to_owned()
}

/// The closing message, with the next steps.
pub(super) fn next_steps(port: i32, is_started: bool, flags: &[String]) -> String {
    let start = if is_started {
        String::new()
    } else {
        format!("The agent is not running yet. Start it, as root:\n\n  {}\n\n", command(flags))
    };
    format!(
        "\nThis machine is set up.\n\n{start}\
         Show what runs and what is wrong:\n\n  agent status\n\n\
         Run a pod: put its manifest into {MANIFESTS}, and check it:\n\n  agent get pods\n\n\
         With kubectl, as root (port {port}):\n\n  export KUBECONFIG={ADMIN_CONF}\n  kubectl get nodes,pods -A\n\n\
         To undo all this:\n\n  agent reset\n"
    )
}

/// The closing message for an offline system.
pub(super) fn next_steps_elsewhere(rootfs: &Path) -> String {
    let there = rootfs.display();
    format!(
        "\nThe system in {there} is set up: the agent starts at boot and generates its certificates at the first one.\n\n\
         To run pods from the first boot, put their manifests into {there}{MANIFESTS}\n\
         and archives of their images into {there}/var/lib/kubelet/images\n\n\
         Once it is running, as root there:\n\n  agent status\n  agent init phase kubeconfig\n\n\
         To undo all this:\n\n  agent reset --rootfs {there}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::config::{Environment, Invocation, parse};

    #[test]
    fn generated_configuration_parses_and_comments_show_defaults() {
        let directory = std::env::temp_dir().join(format!("edge-agent-install-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let read = |text: &str| {
            let path = directory.join("config.yaml");
            std::fs::write(&path, text).unwrap();
            let environment = Environment { hostname: "edge".to_owned() };
            let argument = format!("--config={}", path.display());
            match parse(&[argument.into()], &environment).unwrap() {
                Invocation::Run(resolved) => resolved,
                other => panic!("{other:?}"),
            }
        };
        let plain = read(&configuration(None));
        assert_eq!(plain.kubelet.static_pod_path, MANIFESTS);
        assert_eq!(plain.kubelet.address, "127.0.0.1");
        assert_eq!(plain.kubelet.container_runtime_endpoint, "embedded");
        assert!(plain.seccomp_default());
        let other = read(&configuration(Some("unix:///run/crio/crio.sock")));
        assert_eq!(other.kubelet.container_runtime_endpoint, "unix:///run/crio/crio.sock");
        let examples = ["staticPodURL", "containerRuntimeEndpoint", "systemReserved"];
        let uncommented: String = configuration(None)
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest)
                    if !rest.starts_with(' ') && !examples.iter().any(|name| rest.starts_with(name)) =>
                {
                    rest
                }
                _ => line,
            })
            .map(|line| [line, "\n"].concat())
            .collect();
        assert_eq!(read(&uncommented).to_yaml(), plain.to_yaml());
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn directories_match_the_package_and_unit_names_the_program() {
        let directories = directories();
        assert!(directories.contains(&(PathBuf::from("/var/lib/kubelet"), 0o750)), "{directories:?}");
        assert!(directories.contains(&(PathBuf::from(MANIFESTS), 0o755)));
        assert!(!TMPFILES.lines().any(|line| line.starts_with("d /etc")), "a boot does not make it again");
        let unit = unit(Path::new("/usr/local/bin/agent"));
        assert!(unit.contains(
            "\nExecStart=/usr/local/bin/agent --config=/var/lib/kubelet/config.yaml $AGENT_ARGS\n"
        ));
        let script = script(Path::new("/opt/agent"));
        assert!(script.contains("command=\"/opt/agent\"") && !script.contains(PACKAGED_PROGRAM), "{script}");
    }

    #[test]
    fn the_services_flags_are_read_as_they_are_written() {
        let flags = ["--root-dir=/data".to_owned(), "--v=4".to_owned()];
        assert_eq!(service_flags(&defaults(&flags)), flags);
        assert_eq!(service_flags("# AGENT_ARGS=\"--x\"\nAGENT_ARGS=--v=2\n"), ["--v=2"]);
        assert_eq!(service_flags(""), Vec::<String>::new());
    }
}
