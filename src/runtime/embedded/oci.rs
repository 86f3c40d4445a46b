//! What a container is to be: from the CRI request, the image and the node's facts to a bundle. Pure.
//!
//! The result is what containerd's CRI plugin would pass to runc: a pod must not notice which runtime it is
//! on. Owns these decisions; must not access the machine or files.

mod limits;
mod mounts;
mod users;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub(crate) use limits::cgroup_rules;
pub use users::{ResolvedUser, UserError, resolve};

use super::images::ImageDefaults;
use super::layout::SandboxDir;
use super::spec::{
    Bundle, Device, ExecSpec, IdMapping, Linux, Namespace, OciSpec, Overlay, PodSpec, Process, Rlimit, Root,
    User,
};
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::{
    AppArmorChoice, ContainerConfig, ContainerSecurity, NamespaceMode, SandboxConfig, SelinuxLabel,
};
use crate::model::types::{ContainerId, SandboxId};

/// The labels of a container and of its files, where the policy has them.
pub(in crate::runtime) const SELINUX_LABELS: [&str; 2] =
    ["system_u:system_r:container_t:s0", "system_u:object_r:container_file_t:s0"];

/// What the machine supports, measured once.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFacts {
    pub cgroup_v2: bool,
    pub apparmor: bool,
    /// The profile of containers that ask for the runtime's own; empty when none is loaded.
    pub apparmor_default: String,
    pub selinux: bool,
    /// Its policy has the default types of containers and their files: [`SELINUX_LABELS`].
    pub selinux_containers: bool,
    /// Mounts can be made read-only with those below them (Linux 5.12).
    pub recursive_read_only: bool,
    /// Names (`CAP_…`) of all capabilities that can be granted: those of the kernel that this process has.
    pub capabilities: Vec<String>,
    /// Nodes below `/dev`, for privileged containers.
    pub host_devices: Vec<Device>,
    /// Nodes that the container asks for, at their paths in the container, each with its access letters.
    pub requested_devices: Vec<(Device, String)>,
    /// Limits that every container gets; empty for the agent's own.
    pub rlimits: Vec<Rlimit>,
    /// For containers on the node's network, whose pods have no hostname of their own.
    pub hostname: String,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub sandbox: &'a SandboxConfig,
    pub sandbox_id: &'a SandboxId,
    pub container: &'a ContainerConfig,
    pub id: &'a ContainerId,
    pub image: &'a ImageDefaults,
    /// The image's layers, topmost first.
    pub layers: &'a [PathBuf],
    pub sandbox_dir: &'a SandboxDir,
    /// The directory of its writable layer; `upper` and `work` are in it.
    pub writable_layer: &'a Path,
    /// Directories for the image's volumes that must be mounts (with a read-only root): path in the
    /// container, and source.
    pub image_volumes: &'a [(String, PathBuf)],
    /// The pod's namespaces are those of this process.
    pub monitor_pid: i32,
    /// The init process of a shared PID namespace.
    pub pod_init: Option<i32>,
    /// A process of the container whose PID namespace this one joins.
    pub target_pid: Option<i32>,
    pub user: &'a ResolvedUser,
    pub node: &'a NodeFacts,
    /// Path of the parent of the container's cgroup.
    pub cgroup_parent: &'a str,
    /// Directories of its cgroup in every hierarchy.
    pub cgroups: &'a [PathBuf],
    /// The compiled filter, unless unconfined.
    pub seccomp_filter: Option<&'a Path>,
    /// The same profile in the specification's form, for an external runtime.
    pub seccomp_profile: Option<&'a Value>,
    /// Program and arguments of an external runtime; empty for our own.
    pub external_runtime: &'a [String],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OciError {
    /// Neither the pod nor the image says what to run.
    #[error("no command specified")]
    NoCommand,
    /// A text with a zero byte, which the kernel cannot take.
    #[error("{0} contains a zero byte")]
    Zero(&'static str),
    #[error("working_dir: {0:?} is not an absolute path")]
    WorkingDir(String),
    #[error("mount {path:?}: {why}")]
    Mount {
        /// In the container.
        path: String,
        why: &'static str,
    },
    /// The sandbox was not made for privileged containers.
    #[error("no privileged container allowed in sandbox")]
    Privileged,
    #[error("apparmor is not supported on this node, profile {0:?} cannot be applied")]
    AppArmor(String),
    #[error("apparmor profile RuntimeDefault is asked for and cannot be loaded: {0}")]
    NoDefaultProfile(String),
    /// It would be parsed as something else where labels are written.
    #[error(
        "selinux_options.{field}: {value:?} is no part of an SELinux label: letters, digits and the characters {allowed}"
    )]
    Selinux {
        field: &'static str,
        /// As asked for.
        value: String,
        /// Characters allowed beside letters and digits.
        allowed: &'static str,
    },
    /// The container's user namespace must be the pod's.
    #[error("user namespace config for sandbox is different from container")]
    Users,
    #[error("{0} is not running, its PID namespace cannot be joined")]
    NoPidNamespace(&'static str),
}

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the pod's monitor makes.
#[must_use]
pub(crate) fn pod_spec(sandbox: &SandboxConfig, cgroups: &[PathBuf]) -> PodSpec {
    let own_network = sandbox.namespaces.network != NamespaceMode::Node;
    PodSpec {
        own_network,
        own_ipc: sandbox.namespaces.ipc != NamespaceMode::Node,
        // A pod on the node's network has the node's hostname.
        own_uts: own_network,
        shared_pid: sandbox.namespaces.pid == NamespaceMode::Pod,
        users: sandbox.user_namespace,
        hostname: if own_network { sandbox.hostname.clone() } else { String::new() },
        sysctls: sandbox.sysctls.clone(),
        oom_score_adj: SANDBOX_OOM_SCORE,
        cgroups: cgroups.to_vec(),
    }
}

/// The same as for other runtimes' pause containers.
const SANDBOX_OOM_SCORE: i32 = -998;

/// The bundle of a container.
pub(crate) fn bundle(input: &Input<'_>) -> Result<Bundle, OciError> {
    let security = &input.container.security;
    if security.privileged && !input.sandbox.privileged {
        return Err(OciError::Privileged);
    }
    if security.user_namespace != input.sandbox.user_namespace {
        return Err(OciError::Users);
    }
    let container_dir = input.sandbox_dir.container(input.id.as_str());
    let (mounts, rootfs_propagation) = mounts::mounts(input)?;
    let unconfined = security.privileged;
    let (selinux_label, mount_label) = selinux(input)?;
    let paths = |paths: &[String]| if unconfined { Vec::new() } else { paths.to_vec() };
    let (masked_paths, readonly_paths) = (paths(&security.masked_paths), paths(&security.readonly_paths));
    let mappings: Vec<IdMapping> = security
        .user_namespace
        .iter()
        .map(|range| IdMapping { container_id: 0, host_id: range.host, size: range.length })
        .collect();
    let oci = OciSpec {
        oci_version: "1.1.0".to_owned(),
        process: process(input, selinux_label)?,
        root: Root { path: container_dir.rootfs(), readonly: security.readonly_rootfs },
        hostname: String::new(),
        mounts,
        annotations: annotations(input),
        linux: Linux {
            namespaces: namespaces(input)?,
            uid_mappings: mappings.clone(),
            gid_mappings: mappings,
            devices: limits::devices(input),
            cgroups_path: cgroups_path(input),
            resources: limits::resources(input),
            seccomp: input.seccomp_profile.filter(|_| !unconfined).cloned(),
            rootfs_propagation,
            masked_paths,
            readonly_paths,
            mount_label,
        },
    };
    Ok(Bundle {
        oci,
        overlay: Overlay {
            lower: input.layers.to_vec(),
            upper: input.writable_layer.join("upper"),
            work: input.writable_layer.join("work"),
        },
        seccomp_filter: input.seccomp_filter.filter(|_| !unconfined).map(Path::to_owned),
        cgroups: input.cgroups.to_vec(),
        stdin: input.container.stdin,
        stdin_once: input.container.stdin_once,
        log_path: log_path(input),
        external_runtime: input.external_runtime.to_vec(),
    })
}

/// An exec: the container's own process with another command, so that no exec gets more than the container
/// has.
#[must_use]
pub(crate) fn exec_spec(bundle: &Bundle, command: &[String], tty: bool) -> ExecSpec {
    let mut process = bundle.oci.process.clone();
    process.terminal = tty;
    process.console_size = None;
    process.args = command.to_vec();
    if tty {
        set(&mut process.env, "TERM=xterm");
    }
    ExecSpec {
        process,
        seccomp_filter: bundle.seccomp_filter.clone(),
        cgroups: bundle.cgroups.clone(),
        external_runtime: bundle.external_runtime.clone(),
        // The container's directory: the root is mounted in it.
        directory: bundle.oci.root.path.parent().map(Path::to_owned).unwrap_or_default(),
    }
}

/// Names of the capabilities a container has, for the choice of its seccomp profile.
#[must_use]
pub(crate) fn capabilities(input: &Input<'_>) -> Vec<String> {
    limits::effective(input, &input.node.capabilities)
}

fn process(input: &Input<'_>, selinux_label: String) -> Result<Process, OciError> {
    let (container, security) = (input.container, &input.container.security);
    let cwd = [&container.working_dir, &input.image.working_dir].into_iter().find(|dir| !dir.is_empty());
    let cwd = cwd.map_or("/", String::as_str);
    if !cwd.starts_with('/') {
        return Err(OciError::WorkingDir(cwd.to_owned()));
    }
    let process = Process {
        terminal: container.tty,
        console_size: None,
        user: User {
            uid: input.user.uid,
            gid: input.user.gid,
            additional_gids: input.user.additional_gids.clone(),
        },
        args: args(container, input.image)?,
        env: env(input),
        cwd: cwd.to_owned(),
        capabilities: limits::capabilities(input),
        rlimits: input.node.rlimits.clone(),
        no_new_privileges: security.no_new_privs,
        apparmor_profile: apparmor(input)?,
        oom_score_adj: Some(i32::try_from(container.resources.oom_score_adj.clamp(-1000, 1000)).unwrap_or(0)),
        selinux_label,
    };
    for (what, texts) in [("command", &process.args), ("environment", &process.env)] {
        if texts.iter().any(|text| text.contains('\0')) {
            return Err(OciError::Zero(what));
        }
    }
    if cwd.contains('\0') {
        return Err(OciError::Zero("working directory"));
    }
    Ok(process)
}

/// The pod's command replaces both entrypoint and command of the image; its arguments replace the image's
/// command alone.
fn args(container: &ContainerConfig, image: &ImageDefaults) -> Result<Vec<String>, OciError> {
    let mut all = container.command.clone();
    if all.is_empty() {
        // An image's way to unset its entrypoint.
        let is_void = image.entrypoint.len() == 1 && image.entrypoint[0].is_empty();
        if !is_void {
            all.clone_from(&image.entrypoint);
        }
        all.extend(if container.args.is_empty() { &image.cmd } else { &container.args }.iter().cloned());
    } else {
        all.extend(container.args.iter().cloned());
    }
    if all.is_empty() { Err(OciError::NoCommand) } else { Ok(all) }
}

/// Defaults first, then the image's, then the pod's: the last value of a name wins and keeps the place of the
/// first.
fn env(input: &Input<'_>) -> Vec<String> {
    let mut all = vec![DEFAULT_PATH.to_owned()];
    if input.container.tty {
        all.push("TERM=xterm".to_owned());
    }
    let hostname = match input.sandbox.hostname.as_str() {
        "" => &input.node.hostname,
        name => name,
    };
    all.push(format!("HOSTNAME={hostname}"));
    for variable in &input.image.env {
        set(&mut all, variable);
    }
    for (name, value) in &input.container.envs {
        set(&mut all, &format!("{name}={value}"));
    }
    // Runtimes find it in the image's own `/etc/passwd`.
    if !all.iter().any(|variable| variable.starts_with("HOME=")) {
        let home = if input.user.home.is_empty() { "/" } else { &input.user.home };
        all.push(format!("HOME={home}"));
    }
    all
}

/// A variable without `=` removes the variable of that name.
fn set(all: &mut Vec<String>, variable: &str) {
    let (name, has_value) = variable.split_once('=').map_or((variable, false), |(name, _)| (name, true));
    let is_it = |other: &String| other.split_once('=').is_some_and(|(other, _)| other == name);
    match (all.iter().position(is_it), has_value) {
        (Some(at), true) => variable.clone_into(&mut all[at]),
        (None, true) => all.push(variable.to_owned()),
        (Some(at), false) => {
            all.remove(at);
        }
        (None, false) => {}
    }
}

fn namespaces(input: &Input<'_>) -> Result<Vec<Namespace>, OciError> {
    let options = input.container.security.namespaces;
    let new = |kind: &str| Namespace { kind: kind.to_owned(), path: String::new() };
    let of = |pid: i32, kind: &str, file: &str| Namespace {
        kind: kind.to_owned(),
        path: format!("/proc/{pid}/ns/{file}"),
    };
    let monitor = input.monitor_pid;
    let mut all = Vec::new();
    if input.container.security.user_namespace.is_some() {
        all.push(of(monitor, "user", "user"));
    }
    match (options.pid, input.target_pid, input.pod_init) {
        (_, Some(target), _) => all.push(of(target, "pid", "pid")),
        _ if input.container.security.target.is_some() => {
            return Err(OciError::NoPidNamespace("the target container"));
        }
        (NamespaceMode::Node, ..) => {}
        (NamespaceMode::Container, ..) => all.push(new("pid")),
        (NamespaceMode::Pod, _, Some(init)) => all.push(of(init, "pid", "pid")),
        // The pod's PID namespace is the node's, as with containerd.
        (NamespaceMode::Pod, ..) if input.sandbox.namespaces.pid == NamespaceMode::Node => {}
        (NamespaceMode::Pod, ..) => return Err(OciError::NoPidNamespace("the pod's init process")),
    }
    if options.ipc != NamespaceMode::Node {
        all.push(of(monitor, "ipc", "ipc"));
    }
    if options.network != NamespaceMode::Node {
        all.extend([of(monitor, "uts", "uts"), of(monitor, "network", "net")]);
    }
    all.push(new("mount"));
    // With cgroup v1 it would hide nothing, and privileged containers see the whole tree.
    if input.node.cgroup_v2 && !input.container.security.privileged {
        all.push(new("cgroup"));
    }
    Ok(all)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum AppArmorProfile<'a> {
    /// No profile, or the machine has no `AppArmor`.
    None,
    /// The runtime's own.
    Default,
    /// A named profile of the machine.
    Named(&'a str),
    /// A named profile, on a machine without `AppArmor`.
    Impossible(&'a str),
}

/// As containerd: a container without a setting gets the default profile, a privileged one gets none.
#[must_use]
pub(in crate::runtime) fn apparmor_profile(
    security: &ContainerSecurity,
    enabled: bool,
) -> AppArmorProfile<'_> {
    match &security.apparmor {
        Some(AppArmorChoice::Localhost(name)) if enabled => AppArmorProfile::Named(name),
        Some(AppArmorChoice::Localhost(name)) => AppArmorProfile::Impossible(name),
        Some(AppArmorChoice::RuntimeDefault) | None if enabled && !security.privileged => {
            AppArmorProfile::Default
        }
        Some(AppArmorChoice::Unconfined | AppArmorChoice::RuntimeDefault) | None => AppArmorProfile::None,
    }
}

/// When the default profile cannot be loaded: a container without a setting runs without it, one that asks
/// for it is refused.
pub(in crate::runtime) fn may_lack_default_profile(
    security: &ContainerSecurity,
    why: &str,
) -> Result<(), OciError> {
    match security.apparmor {
        Some(AppArmorChoice::RuntimeDefault) => Err(OciError::NoDefaultProfile(why.to_owned())),
        _ => Ok(()),
    }
}

fn apparmor(input: &Input<'_>) -> Result<String, OciError> {
    match apparmor_profile(&input.container.security, input.node.apparmor) {
        AppArmorProfile::None => Ok(String::new()),
        AppArmorProfile::Default => Ok(input.node.apparmor_default.clone()),
        AppArmorProfile::Named(name) => Ok(name.to_owned()),
        AppArmorProfile::Impossible(name) => Err(OciError::AppArmor(name.to_owned())),
    }
}

/// Labels of the process and of its files. Parts that a pod leaves out are the policy's defaults for
/// containers; where the policy has none, a pod that asks for no label gets none.
fn selinux(input: &Input<'_>) -> Result<(String, String), OciError> {
    let security = &input.container.security;
    if !input.node.selinux || security.privileged {
        return Ok((String::new(), String::new()));
    }
    let none = SelinuxLabel::default();
    let asked = security.selinux.as_ref().or(input.sandbox.selinux.as_ref());
    let label = asked.unwrap_or(&none);
    if *label == none && !input.node.selinux_containers {
        return Ok((String::new(), String::new()));
    }
    let part = |field, own: &str, usual: &str, allowed: &'static str| {
        let is_odd = |letter: char| !letter.is_ascii_alphanumeric() && !allowed.contains(letter);
        if own.contains(is_odd) {
            return Err(OciError::Selinux { field, value: own.chars().take(64).collect(), allowed });
        }
        Ok(if own.is_empty() { usual.to_owned() } else { own.to_owned() })
    };
    let user = part("user", &label.user, "system_u", "_.-")?;
    let role = part("role", &label.role, "system_r", "_.-")?;
    let kind = part("type", &label.type_, "container_t", "_.-")?;
    // Ranges and categories: s0-s0:c0.c1023,c7.
    let level = part("level", &label.level, "s0", "_.-:,")?;
    let files = if input.node.selinux_containers {
        format!("{user}:object_r:container_file_t:{level}")
    } else {
        String::new()
    };
    Ok((format!("{user}:{role}:{kind}:{level}"), files))
}

fn annotations(input: &Input<'_>) -> BTreeMap<String, String> {
    let (pod, container) = (&input.sandbox.pod, input.container);
    let image = match container.user_specified_image.as_str() {
        "" => &container.image,
        image => image,
    };
    [
        ("sandbox-id", input.sandbox_id.as_str()),
        ("sandbox-namespace", &pod.namespace),
        ("sandbox-uid", pod.uid.as_str()),
        ("sandbox-name", &pod.name),
        ("container-name", &container.name),
        ("image-name", image),
        ("container-type", "container"),
    ]
    .into_iter()
    .map(|(name, value)| (format!("io.kubernetes.cri.{name}"), value.to_owned()))
    .into_map()
}

/// A path with every cgroup driver: the pod's systemd scope is delegated to the agent, so systemd is not
/// involved below it.
fn cgroups_path(input: &Input<'_>) -> String {
    format!("{}/{}", input.cgroup_parent.trim_end_matches('/'), input.id)
}

fn log_path(input: &Input<'_>) -> PathBuf {
    match (input.sandbox.log_directory.as_str(), input.container.log_path.as_str()) {
        ("", _) | (_, "") => PathBuf::new(),
        (directory, file) => Path::new(directory).join(file),
    }
}

#[cfg(test)]
mod tests;
