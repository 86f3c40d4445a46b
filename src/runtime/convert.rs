//! This crate's types to CRI messages and back: the only place where both vocabularies are used.
//!
//! Owns the mapping. What a runtime sends is not trusted: unknown enum values become `Unknown` or the safe
//! default, missing sub-messages become empty.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;
use crate::platform::proto::runtime as cri;
use crate::runtime::{
    ContainerConfig, Device, DnsConfig, IdRange, ImageAuth, ImageMount, LinuxResources, Mount,
    MountPropagation, PortMapping, SandboxConfig, labels,
};

mod observed;
mod requested;
mod security;
#[cfg(test)]
mod tests;
mod usage;

pub(in crate::runtime) use observed::may_name_files;
pub(crate) use observed::{
    cgroup_driver_from_message, container_from_list, container_from_status, image_from_message, listed_image,
    pod_from_labels, sandbox_from_list, sandbox_from_status, status_from_message,
};
pub(crate) use requested::{RequestError, requested_container, requested_resources, requested_sandbox};
pub(crate) use usage::{disk_from_message, figures_from_message};

#[must_use]
pub(crate) fn sandbox_config(config: &SandboxConfig) -> cri::PodSandboxConfig {
    let linux = cri::LinuxPodSandboxConfig {
        cgroup_parent: config.cgroup_parent.clone(),
        security_context: Some(security::of_sandbox(config)),
        sysctls: config.sysctls.clone(),
        overhead: Some(resources(&config.overhead)),
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

#[must_use]
pub(crate) fn container_config(config: &ContainerConfig) -> cri::ContainerConfig {
    let linux = cri::LinuxContainerConfig {
        resources: Some(resources(&config.resources)),
        security_context: Some(security::of_container(&config.security)),
    };
    let users = config.security.user_namespace;
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
        mounts: config.mounts.iter().map(|each| mount(each, users)).collect(),
        devices: config.devices.iter().map(device).collect(),
        cdi_devices: config.cdi_devices.iter().map(|name| cri::CdiDevice { name: name.clone() }).collect(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        log_path: config.log_path.clone(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        tty: config.tty,
        linux: Some(linux),
        stop_signal: signal(&config.stop_signal).into(),
        ..cri::ContainerConfig::default()
    }
}

fn device(device: &Device) -> cri::Device {
    cri::Device {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        permissions: device.permissions.clone(),
    }
}

/// `ImageSpec` of a reference.
#[must_use]
pub(crate) fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: image.to_owned(),
        user_specified_image: image.to_owned(),
        ..cri::ImageSpec::default()
    }
}

#[must_use]
pub(super) fn auth_config(auth: &ImageAuth) -> cri::AuthConfig {
    cri::AuthConfig {
        username: auth.username.clone(),
        password: auth.password.clone(),
        server_address: auth.server_address.clone(),
        identity_token: auth.identity_token.clone(),
        registry_token: auth.registry_token.clone(),
        ..cri::AuthConfig::default()
    }
}

/// The label filter that picks one pod; empty for all.
#[must_use]
pub(super) fn pod_selector(pod: Option<&PodUid>) -> BTreeMap<String, String> {
    pod.map(|uid| (labels::POD_UID.to_owned(), uid.to_string())).into_iter().into_map()
}

/// Whole seconds, rounded up: a grace period of half a second is not none.
#[must_use]
pub(crate) fn grace_seconds(grace: Duration) -> i64 {
    let seconds = grace.as_secs().saturating_add(u64::from(grace.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[must_use]
pub(crate) fn resources(resources: &LinuxResources) -> cri::LinuxContainerResources {
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
        cpuset_cpus: resources.cpuset_cpus.clone(),
        cpuset_mems: resources.cpuset_mems.clone(),
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

/// With the pod's user namespace, so that files belong to the same user inside and out.
fn mount(mount: &Mount, users: Option<IdRange>) -> cri::Mount {
    let propagation = match mount.propagation {
        MountPropagation::Private => cri::MountPropagation::PropagationPrivate,
        MountPropagation::HostToContainer => cri::MountPropagation::PropagationHostToContainer,
        MountPropagation::Bidirectional => cri::MountPropagation::PropagationBidirectional,
    };
    let image = |image: &ImageMount| cri::ImageSpec {
        image: image.image.clone(),
        user_specified_image: image.user_specified_image.clone(),
        ..cri::ImageSpec::default()
    };
    cri::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        selinux_relabel: mount.selinux_relabel,
        propagation: propagation.into(),
        uid_mappings: security::mappings(users),
        gid_mappings: security::mappings(users),
        recursive_read_only: mount.recursive_read_only,
        image: mount.image.as_ref().map(image),
        image_sub_path: mount.image.as_ref().map(|image| image.sub_path.clone()).unwrap_or_default(),
    }
}

/// Kubernetes' name of a signal, such as `SIGRTMIN+3`; one CRI does not have leaves the choice to the image.
fn signal(name: &str) -> cri::Signal {
    let name = name.replace('+', "PLUS").replace('-', "MINUS");
    cri::Signal::from_str_name(&name).unwrap_or(cri::Signal::RuntimeDefault)
}
