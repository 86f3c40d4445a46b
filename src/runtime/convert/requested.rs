//! What a CRI client requests, in this crate's types: the opposite direction of the requests sent to a
//! runtime.
//!
//! Owns the mapping for CRI servers. A request that cannot be honoured is refused with the field's name,
//! never dropped silently.

use crate::model::types::{ContainerId, PodRef};
use crate::platform::proto::runtime as cri;
use crate::platform::proto::runtime::security_profile::ProfileType;
use crate::runtime::{
    AppArmorChoice, ContainerConfig, ContainerSecurity, Device, DnsConfig, IdRange, ImageMount,
    LinuxResources, Mount, MountPropagation, NamespaceMode, NamespaceOptions, PortMapping, SandboxConfig,
    SeccompChoice, SelinuxLabel, SupplementalGroupsPolicy,
};

/// A request that cannot be carried out as written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub(crate) struct RequestError {
    /// CRI's path of the field.
    pub field: &'static str,
    pub message: String,
}

/// Longest text that names something. Kubernetes' names have at most 253 bytes; much longer ones do not fit
/// into an error message.
const MAX_NAME: usize = 1024;

fn refuse<T>(field: &'static str, message: impl Into<String>) -> Result<T, RequestError> {
    Err(RequestError { field, message: message.into() })
}

/// From `PodSandboxConfig` and the runtime handler beside it.
pub(crate) fn requested_sandbox(
    message: cri::PodSandboxConfig,
    runtime_handler: &str,
) -> Result<SandboxConfig, RequestError> {
    let Some(metadata) = message.metadata else {
        return refuse("config.metadata", "missing");
    };
    if metadata.name.is_empty() || metadata.namespace.is_empty() {
        return refuse("config.metadata", "name and namespace are required");
    }
    bounded("config.metadata.name", &metadata.name)?;
    bounded("config.metadata.namespace", &metadata.namespace)?;
    bounded("config.metadata.uid", &metadata.uid)?;
    bounded("runtime_handler", runtime_handler)?;
    let linux = message.linux.unwrap_or_default();
    let security = linux.security_context.unwrap_or_default();
    let options = security.namespace_options.clone().unwrap_or_default();
    Ok(SandboxConfig {
        pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid.into() },
        attempt: metadata.attempt,
        hostname: message.hostname,
        log_directory: message.log_directory,
        dns: message.dns_config.map(dns),
        port_mappings: message.port_mappings.into_iter().map(port_mapping).collect(),
        labels: message.labels,
        annotations: message.annotations,
        cgroup_parent: linux.cgroup_parent,
        sysctls: linux.sysctls,
        user_namespace: user_namespace(options.userns_options.as_ref())?,
        namespaces: namespaces(&options),
        privileged: security.privileged,
        run_as_user: security.run_as_user.map(|user| user.value),
        run_as_group: security.run_as_group.map(|group| group.value),
        supplemental_groups_policy: groups_policy(security.supplemental_groups_policy()),
        supplemental_groups: security.supplemental_groups,
        resources: requested_resources(linux.resources.unwrap_or_default()),
        selinux: security.selinux_options.map(selinux),
        overhead: requested_resources(linux.overhead.unwrap_or_default()),
        runtime_handler: runtime_handler.to_owned(),
    })
}

/// From `ContainerConfig`.
pub(crate) fn requested_container(message: cri::ContainerConfig) -> Result<ContainerConfig, RequestError> {
    let stop_signal = signal_name(message.stop_signal());
    let Some(metadata) = message.metadata else {
        return refuse("config.metadata", "missing");
    };
    if metadata.name.is_empty() {
        return refuse("config.metadata.name", "missing");
    }
    bounded("config.metadata.name", &metadata.name)?;
    let image = message.image.unwrap_or_default();
    if image.image.is_empty() {
        return refuse("config.image", "missing");
    }
    bounded("config.image", &image.image)?;
    if message.log_path.split('/').any(|part| part == "..") || message.log_path.starts_with('/') {
        return refuse("config.log_path", "must be a path below the sandbox's log_directory");
    }
    let linux = message.linux.unwrap_or_default();
    Ok(ContainerConfig {
        name: metadata.name,
        attempt: metadata.attempt,
        image: image.image,
        user_specified_image: image.user_specified_image,
        command: message.command,
        args: message.args,
        working_dir: message.working_dir,
        envs: message.envs.into_iter().map(|env| (env.key, env.value)).collect(),
        mounts: message.mounts.into_iter().map(mount).collect::<Result<_, _>>()?,
        devices: message.devices.into_iter().map(device).collect::<Result<_, _>>()?,
        cdi_devices: message.cdi_devices.into_iter().map(|device| device.name).collect(),
        log_path: message.log_path,
        stdin: message.stdin,
        stdin_once: message.stdin_once,
        tty: message.tty,
        labels: message.labels,
        annotations: message.annotations,
        resources: requested_resources(linux.resources.unwrap_or_default()),
        security: security(linux.security_context.unwrap_or_default())?,
        stop_signal,
    })
}

fn bounded(field: &'static str, text: &str) -> Result<(), RequestError> {
    if text.len() <= MAX_NAME {
        return Ok(());
    }
    refuse(field, format!("{} bytes; at most {MAX_NAME} are accepted", text.len()))
}

/// From `LinuxContainerResources`.
#[must_use]
pub(crate) fn requested_resources(message: cri::LinuxContainerResources) -> LinuxResources {
    LinuxResources {
        cpu_period: message.cpu_period,
        cpu_quota: message.cpu_quota,
        cpu_shares: message.cpu_shares,
        memory_limit_bytes: message.memory_limit_in_bytes,
        memory_swap_limit_bytes: message.memory_swap_limit_in_bytes,
        oom_score_adj: message.oom_score_adj,
        hugepage_limits: message
            .hugepage_limits
            .into_iter()
            .map(|limit| (limit.page_size, limit.limit))
            .collect(),
        unified: message.unified,
        cpuset_cpus: message.cpuset_cpus,
        cpuset_mems: message.cpuset_mems,
    }
}

fn dns(message: cri::DnsConfig) -> DnsConfig {
    DnsConfig { servers: message.servers, searches: message.searches, options: message.options }
}

fn port_mapping(message: cri::PortMapping) -> PortMapping {
    PortMapping {
        protocol: message.protocol().as_str_name().to_owned(),
        container_port: message.container_port,
        host_port: message.host_port,
        host_ip: message.host_ip,
    }
}

fn mount(message: cri::Mount) -> Result<Mount, RequestError> {
    let propagation = match message.propagation() {
        cri::MountPropagation::PropagationPrivate => MountPropagation::Private,
        cri::MountPropagation::PropagationHostToContainer => MountPropagation::HostToContainer,
        cri::MountPropagation::PropagationBidirectional => MountPropagation::Bidirectional,
    };
    if message.container_path.is_empty() {
        return refuse("config.mounts.container_path", "missing");
    }
    if !message.container_path.starts_with('/') {
        let path = message.container_path.chars().take(MAX_NAME).collect::<String>();
        return refuse("config.mounts.container_path", format!("{path:?} is not an absolute path"));
    }
    if message.image.is_some() && !message.readonly {
        return refuse("config.mounts.readonly", "an image can only be mounted read-only: set it to true");
    }
    if message.host_path.is_empty() == message.image.is_none() {
        return refuse("config.mounts", "exactly one of host_path and image must be set");
    }
    let sub_path = message.image_sub_path;
    let image = |image: cri::ImageSpec| ImageMount {
        image: image.image,
        user_specified_image: image.user_specified_image,
        sub_path,
    };
    Ok(Mount {
        container_path: message.container_path,
        host_path: message.host_path,
        readonly: message.readonly,
        propagation,
        selinux_relabel: message.selinux_relabel,
        recursive_read_only: message.recursive_read_only,
        image: message.image.map(image),
    })
}

fn device(message: cri::Device) -> Result<Device, RequestError> {
    let permissions = if message.permissions.is_empty() { "rwm".to_owned() } else { message.permissions };
    if !permissions.chars().all(|letter| "rwm".contains(letter)) {
        return refuse("config.devices.permissions", "must consist of the letters rwm");
    }
    for (field, path) in [
        ("config.devices.host_path", &message.host_path),
        ("config.devices.container_path", &message.container_path),
    ] {
        if !path.starts_with('/') {
            return refuse(field, "must be an absolute path");
        }
    }
    let (host_path, container_path) = (message.host_path, message.container_path);
    Ok(Device { host_path, container_path, permissions, ..Device::default() })
}

fn security(message: cri::LinuxContainerSecurityContext) -> Result<ContainerSecurity, RequestError> {
    let options = message.namespace_options.clone().unwrap_or_default();
    let capabilities = message.capabilities.clone().unwrap_or_default();
    if !capabilities.add_ambient_capabilities.is_empty() {
        return refuse(
            "config.linux.security_context.capabilities.add_ambient_capabilities",
            "not supported",
        );
    }
    let target = match options.pid() {
        cri::NamespaceMode::Target if options.target_id.is_empty() => {
            return refuse("config.linux.security_context.namespace_options.target_id", "missing");
        }
        cri::NamespaceMode::Target => Some(ContainerId::from(options.target_id.clone())),
        _ => None,
    };
    Ok(ContainerSecurity {
        privileged: message.privileged,
        add_capabilities: capabilities.add_capabilities,
        drop_capabilities: capabilities.drop_capabilities,
        run_as_user: message.run_as_user.map(|user| user.value),
        run_as_group: message.run_as_group.map(|group| group.value),
        readonly_rootfs: message.readonly_rootfs,
        no_new_privs: message.no_new_privs,
        namespaces: namespaces(&options),
        seccomp: seccomp(&message)?,
        apparmor: apparmor(&message)?,
        supplemental_groups_policy: groups_policy(message.supplemental_groups_policy()),
        selinux: message.selinux_options.map(selinux),
        user_namespace: user_namespace(options.userns_options.as_ref())?,
        run_as_username: message.run_as_username,
        supplemental_groups: message.supplemental_groups,
        masked_paths: message.masked_paths,
        readonly_paths: message.readonly_paths,
        target,
    })
}

/// A target only matters for a container that otherwise would have a PID namespace of its own.
fn namespaces(options: &cri::NamespaceOption) -> NamespaceOptions {
    let mode = |mode: cri::NamespaceMode| match mode {
        cri::NamespaceMode::Pod => NamespaceMode::Pod,
        cri::NamespaceMode::Container | cri::NamespaceMode::Target => NamespaceMode::Container,
        cri::NamespaceMode::Node => NamespaceMode::Node,
    };
    NamespaceOptions { network: mode(options.network()), pid: mode(options.pid()), ipc: mode(options.ipc()) }
}

fn user_namespace(message: Option<&cri::UserNamespace>) -> Result<Option<IdRange>, RequestError> {
    let field = "config.linux.security_context.namespace_options.userns_options";
    let Some(message) = message else { return Ok(None) };
    match message.mode() {
        cri::NamespaceMode::Node if message.uids.is_empty() && message.gids.is_empty() => Ok(None),
        cri::NamespaceMode::Pod => match (&message.uids[..], &message.gids[..]) {
            ([users], [groups]) if users == groups && users.container_id == 0 && users.length > 0 => {
                Ok(Some(IdRange { host: users.host_id, length: users.length }))
            }
            _ => refuse(field, "must be one range from 0, identical for users and groups"),
        },
        mode => refuse(field, format!("mode {} with these mappings is not supported", mode.as_str_name())),
    }
}

fn groups_policy(policy: cri::SupplementalGroupsPolicy) -> SupplementalGroupsPolicy {
    match policy {
        cri::SupplementalGroupsPolicy::Merge => SupplementalGroupsPolicy::Merge,
        cri::SupplementalGroupsPolicy::Strict => SupplementalGroupsPolicy::Strict,
    }
}

fn selinux(message: cri::SeLinuxOption) -> SelinuxLabel {
    SelinuxLabel { user: message.user, role: message.role, type_: message.r#type, level: message.level }
}

#[expect(deprecated, reason = "older clients send the string alone")]
fn seccomp(message: &cri::LinuxContainerSecurityContext) -> Result<SeccompChoice, RequestError> {
    if let Some(profile) = &message.seccomp {
        return Ok(match profile.profile_type() {
            ProfileType::Unconfined => SeccompChoice::Unconfined,
            ProfileType::RuntimeDefault => SeccompChoice::RuntimeDefault,
            ProfileType::Localhost => SeccompChoice::Localhost(profile.localhost_ref.clone()),
        });
    }
    match message.seccomp_profile_path.as_str() {
        "" | "unconfined" => Ok(SeccompChoice::Unconfined),
        "runtime/default" | "docker/default" => Ok(SeccompChoice::RuntimeDefault),
        path => match path.strip_prefix("localhost/") {
            Some(path) => Ok(SeccompChoice::Localhost(path.to_owned())),
            None => refuse("config.linux.security_context.seccomp_profile_path", format!("unknown {path:?}")),
        },
    }
}

#[expect(deprecated, reason = "older clients send the string alone")]
fn apparmor(message: &cri::LinuxContainerSecurityContext) -> Result<Option<AppArmorChoice>, RequestError> {
    if let Some(profile) = &message.apparmor {
        return Ok(Some(match profile.profile_type() {
            ProfileType::Unconfined => AppArmorChoice::Unconfined,
            ProfileType::RuntimeDefault => AppArmorChoice::RuntimeDefault,
            ProfileType::Localhost => AppArmorChoice::Localhost(profile.localhost_ref.clone()),
        }));
    }
    match message.apparmor_profile.as_str() {
        "" => Ok(None),
        "unconfined" => Ok(Some(AppArmorChoice::Unconfined)),
        "runtime/default" => Ok(Some(AppArmorChoice::RuntimeDefault)),
        name => match name.strip_prefix("localhost/") {
            Some(name) => Ok(Some(AppArmorChoice::Localhost(name.to_owned()))),
            None => refuse("config.linux.security_context.apparmor_profile", format!("unknown {name:?}")),
        },
    }
}

/// Kubernetes' name; empty leaves it to the image.
fn signal_name(signal: cri::Signal) -> String {
    match signal {
        cri::Signal::RuntimeDefault => String::new(),
        signal => signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-"),
    }
}

#[cfg(test)]
mod tests;
