//! CRI messages into the simulator's types and back: the server's side of the mapping.

use edge_agent::model::observed::{ContainerStateKind, ObservedContainer, ObservedSandbox};
use edge_agent::model::types::PodRef;
use edge_agent::platform::proto::runtime as cri;
use edge_agent::runtime::{
    ContainerConfig, ContainerSecurity, DnsConfig, IdRange, LinuxResources, Mount, NamespaceMode,
    NamespaceOptions, RuntimeHandler, SandboxConfig,
};

/// What the simulator needs of a sandbox's configuration.
pub fn sandbox_config(config: &cri::PodSandboxConfig, runtime_handler: String) -> SandboxConfig {
    let metadata = config.metadata.clone().unwrap_or_default();
    let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = security.and_then(|security| security.namespace_options.as_ref());
    let host_network = options.is_some_and(|options| options.network() == cri::NamespaceMode::Node);
    let network = if host_network { NamespaceMode::Node } else { NamespaceMode::Pod };
    SandboxConfig {
        pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid.into() },
        attempt: metadata.attempt,
        hostname: config.hostname.clone(),
        log_directory: config.log_directory.clone(),
        dns: config.dns_config.clone().map(|dns| DnsConfig {
            servers: dns.servers,
            searches: dns.searches,
            options: dns.options,
        }),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        namespaces: NamespaceOptions { network, ..NamespaceOptions::default() },
        user_namespace: user_namespace(options),
        runtime_handler,
        ..SandboxConfig::default()
    }
}

fn user_namespace(options: Option<&cri::NamespaceOption>) -> Option<IdRange> {
    let mapping = options?.userns_options.as_ref()?.uids.first()?;
    Some(IdRange { host: mapping.host_id, length: mapping.length })
}

pub fn runtime_handler(handler: RuntimeHandler) -> cri::RuntimeHandler {
    let RuntimeHandler { name, recursive_read_only_mounts, user_namespaces } = handler;
    let features = cri::RuntimeHandlerFeatures { recursive_read_only_mounts, user_namespaces };
    cri::RuntimeHandler { name, features: Some(features) }
}

/// What the simulator needs of a container's cgroup values.
pub fn resources(linux: Option<&cri::LinuxContainerResources>) -> LinuxResources {
    let linux = linux.cloned().unwrap_or_default();
    LinuxResources {
        cpu_period: linux.cpu_period,
        cpu_quota: linux.cpu_quota,
        cpu_shares: linux.cpu_shares,
        memory_limit_bytes: linux.memory_limit_in_bytes,
        memory_swap_limit_bytes: linux.memory_swap_limit_in_bytes,
        oom_score_adj: linux.oom_score_adj,
        unified: linux.unified,
        cpuset_cpus: linux.cpuset_cpus,
        cpuset_mems: linux.cpuset_mems,
        ..LinuxResources::default()
    }
}

/// What the simulator needs of a container's configuration.
pub fn container_config(config: &cri::ContainerConfig) -> ContainerConfig {
    let metadata = config.metadata.clone().unwrap_or_default();
    let image = config.image.clone().unwrap_or_default();
    let linux = config.linux.as_ref();
    let options = linux
        .and_then(|linux| linux.security_context.as_ref())
        .and_then(|security| security.namespace_options.as_ref());
    let target = options.filter(|options| options.pid() == cri::NamespaceMode::Target);
    let mount = |mount: &cri::Mount| Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        ..Mount::default()
    };
    ContainerConfig {
        name: metadata.name,
        attempt: metadata.attempt,
        user_specified_image: if image.user_specified_image.is_empty() {
            image.image.clone()
        } else {
            image.user_specified_image
        },
        image: image.image,
        command: config.command.clone(),
        args: config.args.clone(),
        mounts: config.mounts.iter().map(mount).collect(),
        log_path: config.log_path.clone(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        resources: resources(linux.and_then(|linux| linux.resources.as_ref())),
        security: ContainerSecurity {
            user_namespace: user_namespace(options),
            target: target.map(|options| options.target_id.as_str().into()),
            ..ContainerSecurity::default()
        },
        ..ContainerConfig::default()
    }
}

pub fn sandbox_metadata(sandbox: &ObservedSandbox, config: &SandboxConfig) -> cri::PodSandboxMetadata {
    cri::PodSandboxMetadata {
        name: config.pod.name.clone(),
        uid: config.pod.uid.to_string(),
        namespace: config.pod.namespace.clone(),
        attempt: sandbox.attempt,
    }
}

pub fn sandbox_state(ready: bool) -> i32 {
    let state =
        if ready { cri::PodSandboxState::SandboxReady } else { cri::PodSandboxState::SandboxNotready };
    state.into()
}

pub fn sandbox_item(sandbox: &ObservedSandbox, config: &SandboxConfig) -> cri::PodSandbox {
    cri::PodSandbox {
        id: sandbox.id.to_string(),
        metadata: Some(sandbox_metadata(sandbox, config)),
        state: sandbox_state(sandbox.ready),
        created_at: sandbox.created_at.as_nanos(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        runtime_handler: config.runtime_handler.clone(),
    }
}

pub fn sandbox_status(sandbox: &ObservedSandbox, config: &SandboxConfig) -> cri::PodSandboxStatus {
    let mut addresses = sandbox.ips.iter().cloned();
    let network = cri::PodSandboxNetworkStatus {
        ip: addresses.next().unwrap_or_default(),
        additional_ips: addresses.map(|ip| cri::PodIp { ip }).collect(),
    };
    let mode = if sandbox.host_network { cri::NamespaceMode::Node } else { cri::NamespaceMode::Pod };
    let options = cri::NamespaceOption { network: mode.into(), ..cri::NamespaceOption::default() };
    cri::PodSandboxStatus {
        id: sandbox.id.to_string(),
        metadata: Some(sandbox_metadata(sandbox, config)),
        state: sandbox_state(sandbox.ready),
        created_at: sandbox.created_at.as_nanos(),
        network: Some(network),
        linux: Some(cri::LinuxPodSandboxStatus {
            namespaces: Some(cri::Namespace { options: Some(options) }),
        }),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        runtime_handler: config.runtime_handler.clone(),
    }
}

fn container_state(state: ContainerStateKind) -> i32 {
    let state = match state {
        ContainerStateKind::Created => cri::ContainerState::ContainerCreated,
        ContainerStateKind::Running => cri::ContainerState::ContainerRunning,
        ContainerStateKind::Exited => cri::ContainerState::ContainerExited,
        ContainerStateKind::Unknown => cri::ContainerState::ContainerUnknown,
    };
    state.into()
}

fn container_metadata(container: &ObservedContainer, config: &ContainerConfig) -> cri::ContainerMetadata {
    cri::ContainerMetadata { name: config.name.clone(), attempt: container.attempt }
}

fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec { image: image.to_owned(), ..cri::ImageSpec::default() }
}

pub fn container_item(container: &ObservedContainer, config: &ContainerConfig) -> cri::Container {
    cri::Container {
        id: container.id.to_string(),
        pod_sandbox_id: container.sandbox.to_string(),
        metadata: Some(container_metadata(container, config)),
        image: Some(image_spec(&container.image)),
        image_ref: container.image_id.clone(),
        state: container_state(container.state),
        created_at: container.created_at.as_nanos(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        image_id: container.image_id.clone(),
    }
}

pub fn container_status(container: &ObservedContainer, config: &ContainerConfig) -> cri::ContainerStatus {
    let mount = |mount: &Mount| cri::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        ..cri::Mount::default()
    };
    cri::ContainerStatus {
        id: container.id.to_string(),
        metadata: Some(container_metadata(container, config)),
        state: container_state(container.state),
        created_at: container.created_at.as_nanos(),
        started_at: container.started_at.as_nanos(),
        finished_at: container.finished_at.as_nanos(),
        exit_code: container.exit_code,
        image: Some(image_spec(&container.image)),
        image_ref: container.image_id.clone(),
        reason: container.reason.clone(),
        message: container.message.clone(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        mounts: config.mounts.iter().map(mount).collect(),
        log_path: container.log_path.clone(),
        image_id: container.image_id.clone(),
        ..cri::ContainerStatus::default()
    }
}
