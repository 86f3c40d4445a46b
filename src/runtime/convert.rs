//! Our types into CRI messages and back: the only place where the two vocabularies meet.
//!
//! Owns the mapping. Must not know connections, nor why a value was chosen. What a runtime says is not trusted: unknown
//! enum values become `Unknown` or the safe default, missing sub-messages become empty.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::proto::runtime as cri;
use crate::runtime::{
    ContainerConfig, ContainerSecurity, DnsConfig, ImageAuth, LinuxResources, Mount, MountPropagation,
    NamespaceMode, NamespaceOptions, PortMapping, SandboxConfig, SeccompChoice, labels,
};
use crate::types::PodUid;

mod observed;
#[cfg(test)]
mod tests;

pub use observed::{
    cgroup_driver_from_message, container_from_list, container_from_status, image_from_message,
    sandbox_from_list, sandbox_from_status, status_from_message,
};

/// `PodSandboxConfig`.
#[must_use]
pub fn sandbox_config(config: &SandboxConfig) -> cri::PodSandboxConfig {
    let security = cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(config.namespaces)),
        run_as_user: int64(config.run_as_user),
        run_as_group: int64(config.run_as_group),
        supplemental_groups: config.supplemental_groups.clone(),
        privileged: config.privileged,
        // The sandbox's own process never needs more; containers choose for themselves.
        seccomp: Some(seccomp(&SeccompChoice::RuntimeDefault)),
        ..cri::LinuxSandboxSecurityContext::default()
    };
    let linux = cri::LinuxPodSandboxConfig {
        cgroup_parent: config.cgroup_parent.clone(),
        security_context: Some(security),
        sysctls: config.sysctls.clone(),
        overhead: None,
        resources: Some(resources(&config.resources)),
    };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: config.pod.name.clone(),
            uid: config.pod.uid.to_string(),
            namespace: config.pod.namespace.clone(),
            attempt: config.attempt,
        }),
        hostname: config.hostname.clone(),
        log_directory: config.log_directory.clone(),
        dns_config: config.dns.as_ref().map(dns),
        port_mappings: config.port_mappings.iter().map(port_mapping).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        linux: Some(linux),
        windows: None,
    }
}

/// `ContainerConfig`.
#[must_use]
pub fn container_config(config: &ContainerConfig) -> cri::ContainerConfig {
    let linux = cri::LinuxContainerConfig {
        resources: Some(resources(&config.resources)),
        security_context: Some(container_security(&config.security)),
    };
    let env = |(key, value): &(String, String)| cri::KeyValue { key: key.clone(), value: value.clone() };
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: config.name.clone(), attempt: config.attempt }),
        image: Some(cri::ImageSpec {
            image: config.image.clone(),
            user_specified_image: config.user_specified_image.clone(),
            ..cri::ImageSpec::default()
        }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_dir.clone(),
        envs: config.envs.iter().map(env).collect(),
        mounts: config.mounts.iter().map(mount).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        log_path: config.log_path.clone(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(linux),
        ..cri::ContainerConfig::default()
    }
}

/// `ImageSpec` of a reference.
#[must_use]
pub fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: image.to_owned(),
        user_specified_image: image.to_owned(),
        ..cri::ImageSpec::default()
    }
}

/// `AuthConfig`.
#[must_use]
pub fn auth_config(auth: &ImageAuth) -> cri::AuthConfig {
    cri::AuthConfig {
        username: auth.username.clone(),
        password: auth.password.clone(),
        ..cri::AuthConfig::default()
    }
}

/// The label filter that picks one pod; empty for all.
#[must_use]
pub fn pod_selector(pod: Option<&PodUid>) -> BTreeMap<String, String> {
    pod.map(|uid| (labels::POD_UID.to_owned(), uid.to_string())).into_iter().collect()
}

/// Whole seconds, rounded up: a grace period of half a second is not none.
#[must_use]
pub fn grace_seconds(grace: Duration) -> i64 {
    let seconds = grace.as_secs().saturating_add(u64::from(grace.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn container_security(security: &ContainerSecurity) -> cri::LinuxContainerSecurityContext {
    let capabilities = cri::Capability {
        add_capabilities: security.add_capabilities.clone(),
        drop_capabilities: security.drop_capabilities.clone(),
        add_ambient_capabilities: Vec::new(),
    };
    cri::LinuxContainerSecurityContext {
        capabilities: Some(capabilities),
        privileged: security.privileged,
        namespace_options: Some(namespaces(security.namespaces)),
        run_as_user: int64(security.run_as_user),
        run_as_group: int64(security.run_as_group),
        run_as_username: security.run_as_username.clone(),
        readonly_rootfs: security.readonly_rootfs,
        supplemental_groups: security.supplemental_groups.clone(),
        no_new_privs: security.no_new_privs,
        masked_paths: security.masked_paths.clone(),
        readonly_paths: security.readonly_paths.clone(),
        seccomp: Some(seccomp(&security.seccomp)),
        ..cri::LinuxContainerSecurityContext::default()
    }
}

fn namespaces(options: NamespaceOptions) -> cri::NamespaceOption {
    cri::NamespaceOption {
        network: namespace_mode(options.network).into(),
        pid: namespace_mode(options.pid).into(),
        ipc: namespace_mode(options.ipc).into(),
        target_id: String::new(),
        // Pods here use the node's users, and say so, as the kubelet does.
        userns_options: Some(cri::UserNamespace {
            mode: cri::NamespaceMode::Node.into(),
            uids: Vec::new(),
            gids: Vec::new(),
        }),
    }
}

fn namespace_mode(mode: NamespaceMode) -> cri::NamespaceMode {
    match mode {
        NamespaceMode::Pod => cri::NamespaceMode::Pod,
        NamespaceMode::Container => cri::NamespaceMode::Container,
        NamespaceMode::Node => cri::NamespaceMode::Node,
    }
}

fn seccomp(choice: &SeccompChoice) -> cri::SecurityProfile {
    use cri::security_profile::ProfileType;
    let (profile_type, localhost_ref) = match choice {
        SeccompChoice::Unconfined => (ProfileType::Unconfined, String::new()),
        SeccompChoice::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        SeccompChoice::Localhost(path) => (ProfileType::Localhost, path.clone()),
    };
    cri::SecurityProfile { profile_type: profile_type.into(), localhost_ref }
}

fn resources(resources: &LinuxResources) -> cri::LinuxContainerResources {
    let hugepages = |(page_size, limit): &(String, u64)| cri::HugepageLimit {
        page_size: page_size.clone(),
        limit: *limit,
    };
    cri::LinuxContainerResources {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_shares: resources.cpu_shares,
        memory_limit_in_bytes: resources.memory_limit_bytes,
        memory_swap_limit_in_bytes: resources.memory_swap_limit_bytes,
        oom_score_adj: resources.oom_score_adj,
        hugepage_limits: resources.hugepage_limits.iter().map(hugepages).collect(),
        unified: resources.unified.clone(),
        cpuset_cpus: String::new(),
        cpuset_mems: String::new(),
    }
}

fn dns(dns: &DnsConfig) -> cri::DnsConfig {
    cri::DnsConfig {
        servers: dns.servers.clone(),
        searches: dns.searches.clone(),
        options: dns.options.clone(),
    }
}

/// A protocol that is none of the three counts as TCP, Kubernetes' default.
fn port_mapping(mapping: &PortMapping) -> cri::PortMapping {
    let protocol = match mapping.protocol.as_str() {
        "UDP" => cri::Protocol::Udp,
        "SCTP" => cri::Protocol::Sctp,
        _ => cri::Protocol::Tcp,
    };
    cri::PortMapping {
        protocol: protocol.into(),
        container_port: mapping.container_port,
        host_port: mapping.host_port,
        host_ip: mapping.host_ip.clone(),
    }
}

fn mount(mount: &Mount) -> cri::Mount {
    let propagation = match mount.propagation {
        MountPropagation::Private => cri::MountPropagation::PropagationPrivate,
        MountPropagation::HostToContainer => cri::MountPropagation::PropagationHostToContainer,
        MountPropagation::Bidirectional => cri::MountPropagation::PropagationBidirectional,
    };
    cri::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation.into(),
        ..cri::Mount::default()
    }
}

fn int64(value: Option<i64>) -> Option<cri::Int64Value> {
    value.map(|value| cri::Int64Value { value })
}
