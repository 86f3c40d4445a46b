//! What the engine is asked to make for a sandbox or a container.
//!
//! Pure: from CRI's configuration to the bodies of `POST /containers/create`. What the engine cannot do is refused with the
//! name of what asks for it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::model::ordered::Ordered as _;
use crate::model::types::SandboxId;
use crate::runtime::{
    AppArmorChoice, ContainerConfig, LinuxResources, Mount, MountPropagation, NamespaceMode, SandboxConfig,
    SeccompChoice, SelinuxLabel, SupplementalGroupsPolicy,
};

/// The labels by which the containers of a kubelet are known on Docker, since Kubernetes 1.4.
pub(super) const KIND: &str = "io.kubernetes.docker.type";
pub(super) const SANDBOX: &str = "podsandbox";
pub(super) const CONTAINER: &str = "container";
pub(super) const SANDBOX_ID: &str = "io.kubernetes.sandbox.id";
pub(super) const LOG_PATH: &str = "io.kubernetes.container.logpath";
/// The engine has no annotations: they are labels with this before their names.
pub(super) const ANNOTATION: &str = "annotation.";
/// The image of sandboxes, which the agent makes itself.
pub(super) const PAUSE_IMAGE: &str = "agent.local/pause:1";
/// The program in it.
pub(super) const PAUSE_PROGRAM: &str = "pause";

/// The kubelet's value for sandboxes.
const SANDBOX_OOM_SCORE: i64 = -998;
const SANDBOX_CPU_SHARES: i64 = 2;
/// From this version on a read-only mount is recursive unless it is asked not to be.
const RECURSIVE_READ_ONLY: u32 = 44;
/// From this version on a container may have the node's cgroup namespace.
const CGROUP_NAMESPACE: u32 = 41;
/// The handler that stands for the engine's default.
const DEFAULT_HANDLER: &str = "docker";

/// What a request depends on besides its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineFacts {
    /// The minor number of the API's version.
    pub version: u32,
    /// Its cgroup driver is systemd's.
    pub systemd: bool,
    /// The lowest `oom_score_adj` that the engine may set; `None` for any.
    pub lowest_oom_score: Option<i64>,
    /// `max-size` and `max-file` of container logs; `None` leaves them to the engine.
    pub log: Option<(u64, usize)>,
}

impl EngineFacts {
    pub(super) fn has_recursive_read_only(&self) -> bool {
        self.version >= RECURSIVE_READ_ONLY
    }

    fn oom_score(&self, wanted: i64) -> i64 {
        self.lowest_oom_score.map_or(wanted, |lowest| wanted.max(lowest))
    }

    /// systemd's driver takes the name of a slice, the other one a path.
    fn cgroup_parent<'a>(&self, path: &'a str) -> &'a str {
        if self.systemd { path.rsplit('/').next().unwrap_or(path) } else { path }
    }
}

/// As the kubelet has always named them: `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`.
pub(super) fn sandbox_name(config: &SandboxConfig) -> String {
    let pod = &config.pod;
    format!("k8s_POD_{}_{}_{}_{}", pod.name, pod.namespace, pod.uid, config.attempt)
}

pub(super) fn container_name(config: &ContainerConfig, sandbox: &SandboxConfig) -> String {
    let pod = &sandbox.pod;
    format!("k8s_{}_{}_{}_{}_{}", config.name, pod.name, pod.namespace, pod.uid, config.attempt)
}

fn labels(
    kind: &str,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> Map<String, Value> {
    let annotations = annotations.iter().map(|(key, value)| (format!("{ANNOTATION}{key}"), value.clone()));
    let own = labels.iter().map(|(key, value)| (key.clone(), value.clone()));
    let mut all: Map<String, Value> =
        own.chain(annotations).map(|(key, value)| (key, Value::from(value))).collect();
    all.insert(KIND.to_owned(), kind.into());
    all
}

/// Sets a member unless the value is zero or empty.
fn put(object: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    put_value(object, name, value.into());
}

fn put_value(object: &mut Map<String, Value>, name: &str, value: Value) {
    let is_empty = match &value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(set) => !set,
        Value::Object(members) => members.is_empty(),
        Value::Null => true,
    };
    if !is_empty {
        object.insert(name.to_owned(), value);
    }
}

fn runtime(handler: &str) -> &str {
    if handler == DEFAULT_HANDLER { "" } else { handler }
}

/// The sandbox's container. The error is a message for the user.
pub(super) fn sandbox(config: &SandboxConfig, facts: &EngineFacts) -> Result<Value, String> {
    if config.user_namespace.is_some() {
        return Err(
            "hostUsers: false is not supported on Docker: set it to true, or use another runtime".to_owned()
        );
    }
    refuse_strict(config.supplemental_groups_policy)?;
    let on_node =
        |mode: NamespaceMode, own: &'static str| if mode == NamespaceMode::Node { "host" } else { own };
    let namespaces = config.namespaces;
    let mut host = Map::new();
    put(&mut host, "NetworkMode", on_node(namespaces.network, "none"));
    put(&mut host, "IpcMode", on_node(namespaces.ipc, "shareable"));
    put(&mut host, "PidMode", on_node(namespaces.pid, ""));
    put(&mut host, "UTSMode", on_node(namespaces.network, ""));
    put(&mut host, "CgroupParent", facts.cgroup_parent(&config.cgroup_parent));
    put(&mut host, "OomScoreAdj", facts.oom_score(SANDBOX_OOM_SCORE));
    put(&mut host, "CpuShares", SANDBOX_CPU_SHARES);
    put(&mut host, "ReadonlyRootfs", true);
    put(
        &mut host,
        "Sysctls",
        config
            .sysctls
            .iter()
            .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
            .collect::<Map<_, _>>(),
    );
    put(&mut host, "Runtime", runtime(&config.runtime_handler));
    let mut options = vec!["no-new-privileges".to_owned()];
    options.extend(config.selinux.iter().flat_map(selinux));
    put(&mut host, "SecurityOpt", options);
    host.insert("Init".to_owned(), false.into());
    host.insert("LogConfig".to_owned(), json!({ "Type": "none" }));
    let mut body = Map::new();
    put(&mut body, "Image", PAUSE_IMAGE);
    put(&mut body, "Entrypoint", vec![format!("/{PAUSE_PROGRAM}")]);
    put(&mut body, "Hostname", config.hostname.as_str());
    put(&mut body, "Labels", labels(SANDBOX, &config.labels, &config.annotations));
    put(&mut body, "HostConfig", host);
    Ok(body.into())
}

fn refuse_strict(policy: SupplementalGroupsPolicy) -> Result<(), String> {
    match policy {
        SupplementalGroupsPolicy::Merge => Ok(()),
        SupplementalGroupsPolicy::Strict => {
            Err("supplementalGroupsPolicy: Strict is not supported on Docker: use Merge".to_owned())
        }
    }
}

/// A container in a sandbox. `seccomp` is the text of a profile of the node. The error is a message for the user.
pub(super) fn container(
    sandbox: &SandboxId,
    config: &ContainerConfig,
    pod: &SandboxConfig,
    seccomp: Option<&str>,
    facts: &EngineFacts,
) -> Result<Value, String> {
    let security = &config.security;
    refuse_strict(security.supplemental_groups_policy)?;
    if !config.cdi_devices.is_empty() {
        return Err(format!("CDI devices are not available: {}", config.cdi_devices.join(", ")));
    }
    if let Some(device) =
        config.devices.iter().find(|it| it.file_mode.is_some() || it.uid.is_some() || it.gid.is_some())
    {
        let path = &device.container_path;
        return Err(format!(
            "device {path}: Docker cannot give a device another mode or owner than the node's"
        ));
    }
    let of_sandbox = format!("container:{sandbox}");
    let mut host = Map::new();
    put(&mut host, "NetworkMode", of_sandbox.as_str());
    let is_node = |mode| mode == NamespaceMode::Node;
    put(&mut host, "IpcMode", if is_node(security.namespaces.ipc) { "host" } else { &of_sandbox });
    put(&mut host, "UTSMode", if is_node(security.namespaces.network) { "host" } else { "" });
    let pid = match (security.namespaces.pid, &security.target) {
        (NamespaceMode::Node, _) => "host".to_owned(),
        (NamespaceMode::Pod, _) => of_sandbox.clone(),
        (NamespaceMode::Container, Some(target)) => format!("container:{target}"),
        (NamespaceMode::Container, None) => String::new(),
    };
    put(&mut host, "PidMode", pid);
    put(&mut host, "CgroupParent", facts.cgroup_parent(&pod.cgroup_parent));
    put(&mut host, "OomScoreAdj", facts.oom_score(config.resources.oom_score_adj));
    host.extend(resources(&config.resources));
    put(&mut host, "Runtime", runtime(&pod.runtime_handler));
    put(&mut host, "Privileged", security.privileged);
    let sees_tree = security.privileged && facts.version >= CGROUP_NAMESPACE;
    put(&mut host, "CgroupnsMode", if sees_tree { "host" } else { "" });
    host.insert("Init".to_owned(), false.into());
    put(&mut host, "ReadonlyRootfs", security.readonly_rootfs);
    put(&mut host, "CapAdd", security.add_capabilities.clone());
    put(&mut host, "CapDrop", security.drop_capabilities.clone());
    put(
        &mut host,
        "GroupAdd",
        security.supplemental_groups.iter().map(ToString::to_string).collect::<Vec<_>>(),
    );
    put(&mut host, "SecurityOpt", security_options(config, seccomp)?);
    if !security.privileged {
        // An empty list is procMount: Unmasked.
        host.insert("MaskedPaths".to_owned(), security.masked_paths.clone().into());
        host.insert("ReadonlyPaths".to_owned(), security.readonly_paths.clone().into());
    }
    let (labelled, plain): (Vec<&Mount>, Vec<&Mount>) =
        config.mounts.iter().partition(|mount| mount.selinux_relabel);
    let binds: Result<Vec<String>, String> = labelled.into_iter().map(bind).collect();
    put(&mut host, "Binds", binds?);
    let mounts: Result<Vec<Value>, String> = plain.into_iter().map(|it| mount(it, facts)).collect();
    put(&mut host, "Mounts", mounts?);
    let devices = config.devices.iter().map(|device| {
        json!({
            "PathOnHost": device.host_path, "PathInContainer": device.container_path,
            "CgroupPermissions": device.permissions,
        })
    });
    put(&mut host, "Devices", devices.collect::<Vec<_>>());
    let mut log = Map::new();
    if let Some((size, files)) = facts.log {
        log.insert("max-size".to_owned(), size.to_string().into());
        log.insert("max-file".to_owned(), files.to_string().into());
    }
    host.insert("LogConfig".to_owned(), json!({ "Type": "json-file", "Config": log }));
    let mut labels = labels(CONTAINER, &config.labels, &config.annotations);
    labels.insert(SANDBOX_ID.to_owned(), sandbox.to_string().into());
    if !pod.log_directory.is_empty() && !config.log_path.is_empty() {
        labels.insert(LOG_PATH.to_owned(), format!("{}/{}", pod.log_directory, config.log_path).into());
    }
    let mut body = Map::new();
    put(&mut body, "Image", config.image.as_str());
    put(&mut body, "Entrypoint", config.command.clone());
    put(&mut body, "Cmd", config.args.clone());
    put(&mut body, "WorkingDir", config.working_dir.as_str());
    let env = config.envs.iter().map(|(name, value)| format!("{name}={value}"));
    put(&mut body, "Env", env.collect::<Vec<_>>());
    put(&mut body, "User", user(config));
    put(&mut body, "Tty", config.tty);
    put(&mut body, "OpenStdin", config.stdin);
    put(&mut body, "StdinOnce", config.stdin && config.stdin_once);
    put(&mut body, "StopSignal", config.stop_signal.as_str());
    put(&mut body, "Labels", labels);
    // Probes are the kubelet's.
    body.insert("Healthcheck".to_owned(), json!({ "Test": ["NONE"] }));
    put(&mut body, "HostConfig", host);
    Ok(body.into())
}

fn user(config: &ContainerConfig) -> String {
    let security = &config.security;
    let user = security.run_as_user.map_or_else(|| security.run_as_username.clone(), |user| user.to_string());
    match security.run_as_group {
        Some(group) if !user.is_empty() => format!("{user}:{group}"),
        _ => user,
    }
}

/// Limits, for a new container and for one that runs. Memory and swap go together: the engine compares them.
pub(super) fn resources(resources: &LinuxResources) -> Map<String, Value> {
    let mut body = Map::new();
    put(&mut body, "CpuShares", resources.cpu_shares);
    put(&mut body, "CpuQuota", resources.cpu_quota);
    put(&mut body, "CpuPeriod", resources.cpu_period);
    put(&mut body, "Memory", resources.memory_limit_bytes);
    // Without a value the engine would allow as much swap again.
    let swap = match resources.memory_swap_limit_bytes {
        0 => resources.memory_limit_bytes,
        swap => swap,
    };
    put(&mut body, "MemorySwap", swap);
    put(&mut body, "CpusetCpus", resources.cpuset_cpus.as_str());
    put(&mut body, "CpusetMems", resources.cpuset_mems.as_str());
    body
}

fn selinux(label: &SelinuxLabel) -> Vec<String> {
    let parts =
        [("user", &label.user), ("role", &label.role), ("type", &label.type_), ("level", &label.level)];
    let set = parts.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(part, value)| format!("label={part}:{value}")).collect()
}

fn security_options(config: &ContainerConfig, seccomp: Option<&str>) -> Result<Vec<String>, String> {
    let security = &config.security;
    let mut options: Vec<String> = security.selinux.iter().flat_map(selinux).collect();
    if security.no_new_privs {
        options.push("no-new-privileges".to_owned());
    }
    match (&security.seccomp, seccomp) {
        _ if security.privileged => {}
        (SeccompChoice::Unconfined, _) => options.push("seccomp=unconfined".to_owned()),
        (SeccompChoice::RuntimeDefault, _) => {}
        (SeccompChoice::Localhost(_), Some(profile)) => options.push(format!("seccomp={profile}")),
        (SeccompChoice::Localhost(path), None) => {
            return Err(format!("cannot load seccomp profile {path:?}"));
        }
    }
    match &security.apparmor {
        Some(AppArmorChoice::Unconfined) => options.push("apparmor=unconfined".to_owned()),
        Some(AppArmorChoice::Localhost(name)) => options.push(format!("apparmor={name}")),
        Some(AppArmorChoice::RuntimeDefault) | None => {}
    }
    Ok(options)
}

fn propagation(mount: &Mount) -> &'static str {
    match mount.propagation {
        MountPropagation::Private => "rprivate",
        MountPropagation::HostToContainer => "rslave",
        MountPropagation::Bidirectional => "rshared",
    }
}

fn refuse_image(mount: &Mount) -> Result<(), String> {
    match &mount.image {
        None => Ok(()),
        Some(image) => {
            let (image, path) = (&image.user_specified_image, &mount.container_path);
            Err(format!("{path}: image volumes are not supported on Docker (image {image:?})"))
        }
    }
}

fn mount(mount: &Mount, facts: &EngineFacts) -> Result<Value, String> {
    refuse_image(mount)?;
    let mut options = json!({ "Propagation": propagation(mount) });
    if mount.readonly && facts.has_recursive_read_only() {
        let option =
            if mount.recursive_read_only { "ReadOnlyForceRecursive" } else { "ReadOnlyNonRecursive" };
        options[option] = true.into();
    } else if mount.recursive_read_only {
        let path = &mount.container_path;
        return Err(format!("{path}: recursiveReadOnly needs Docker Engine 25 or newer (API 1.44)"));
    }
    Ok(json!({
        "Type": "bind", "Source": mount.host_path, "Target": mount.container_path, "ReadOnly": mount.readonly,
        "BindOptions": options,
    }))
}

/// A mount in the older form, which alone can have a label.
fn bind(mount: &Mount) -> Result<String, String> {
    refuse_image(mount)?;
    let (from, to) = (&mount.host_path, &mount.container_path);
    if from.contains(':') || to.contains(':') {
        return Err(format!("{to}: Docker cannot relabel a mount with a colon in its path"));
    }
    let access = if mount.readonly { "ro" } else { "rw" };
    Ok(format!("{from}:{to}:{access},Z,{}", propagation(mount)))
}

/// The annotations among a container's labels.
pub(super) fn annotations(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let annotation =
        |(key, value): (&String, &String)| Some((key.strip_prefix(ANNOTATION)?.to_owned(), value.clone()));
    labels.iter().filter_map(annotation).into_map()
}

#[cfg(test)]
mod tests;
