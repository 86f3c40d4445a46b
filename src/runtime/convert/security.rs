//! Security contexts of sandboxes and containers, as CRI messages.
//!
//! Owns the mapping of security contexts.

use crate::model::types::ContainerId;
use crate::platform::proto::runtime as cri;
use crate::platform::proto::runtime::security_profile::ProfileType;
use crate::runtime::{
    AppArmorChoice, ContainerSecurity, IdRange, NamespaceMode, NamespaceOptions, SandboxConfig,
    SeccompChoice, SelinuxLabel, SupplementalGroupsPolicy,
};

pub(super) fn of_sandbox(config: &SandboxConfig) -> cri::LinuxSandboxSecurityContext {
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(config.namespaces, config.user_namespace)),
        selinux_options: config.selinux.as_ref().map(selinux),
        run_as_user: int64(config.run_as_user),
        run_as_group: int64(config.run_as_group),
        supplemental_groups: config.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(config.supplemental_groups_policy).into(),
        privileged: config.privileged,
        // The sandbox's own process never needs more; containers choose for themselves.
        seccomp: Some(seccomp(&SeccompChoice::RuntimeDefault)),
        ..cri::LinuxSandboxSecurityContext::default()
    }
}

#[expect(deprecated, reason = "runtimes from before the field look for AppArmor's profile in the string")]
pub(super) fn of_container(security: &ContainerSecurity) -> cri::LinuxContainerSecurityContext {
    let capabilities = cri::Capability {
        add_capabilities: security.add_capabilities.clone(),
        drop_capabilities: security.drop_capabilities.clone(),
        add_ambient_capabilities: Vec::new(),
    };
    let namespaces = namespaces(security.namespaces, security.user_namespace);
    cri::LinuxContainerSecurityContext {
        capabilities: Some(capabilities),
        privileged: security.privileged,
        namespace_options: Some(joining(namespaces, security.target.as_ref())),
        selinux_options: security.selinux.as_ref().map(selinux),
        run_as_user: int64(security.run_as_user),
        run_as_group: int64(security.run_as_group),
        run_as_username: security.run_as_username.clone(),
        readonly_rootfs: security.readonly_rootfs,
        supplemental_groups: security.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(security.supplemental_groups_policy).into(),
        no_new_privs: security.no_new_privs,
        masked_paths: security.masked_paths.clone(),
        readonly_paths: security.readonly_paths.clone(),
        seccomp: Some(seccomp(&security.seccomp)),
        apparmor: security.apparmor.as_ref().map(apparmor),
        apparmor_profile: security.apparmor.as_ref().map(old_apparmor).unwrap_or_default(),
        ..cri::LinuxContainerSecurityContext::default()
    }
}

/// Both users and groups of a pod's range; none for the node's own.
pub(super) fn mappings(range: Option<IdRange>) -> Vec<cri::IdMapping> {
    let mapping =
        |range: IdRange| cri::IdMapping { host_id: range.host, container_id: 0, length: range.length };
    range.map(mapping).into_iter().collect()
}

fn namespaces(options: NamespaceOptions, users: Option<IdRange>) -> cri::NamespaceOption {
    // A pod that uses the node's users states it explicitly, as the kubelet does.
    let users_mode = if users.is_some() { cri::NamespaceMode::Pod } else { cri::NamespaceMode::Node };
    cri::NamespaceOption {
        network: namespace_mode(options.network).into(),
        pid: namespace_mode(options.pid).into(),
        ipc: namespace_mode(options.ipc).into(),
        target_id: String::new(),
        userns_options: Some(cri::UserNamespace {
            mode: users_mode.into(),
            uids: mappings(users),
            gids: mappings(users),
        }),
    }
}

/// A target matters where each container has its own PID namespace (upstream); where the namespace is shared
/// the target is visible anyway.
fn joining(options: cri::NamespaceOption, target: Option<&ContainerId>) -> cri::NamespaceOption {
    match target {
        Some(target) if options.pid() == cri::NamespaceMode::Container => cri::NamespaceOption {
            pid: cri::NamespaceMode::Target.into(),
            target_id: target.to_string(),
            ..options
        },
        _ => options,
    }
}

fn namespace_mode(mode: NamespaceMode) -> cri::NamespaceMode {
    match mode {
        NamespaceMode::Pod => cri::NamespaceMode::Pod,
        NamespaceMode::Container => cri::NamespaceMode::Container,
        NamespaceMode::Node => cri::NamespaceMode::Node,
    }
}

fn groups_policy(policy: SupplementalGroupsPolicy) -> cri::SupplementalGroupsPolicy {
    match policy {
        SupplementalGroupsPolicy::Merge => cri::SupplementalGroupsPolicy::Merge,
        SupplementalGroupsPolicy::Strict => cri::SupplementalGroupsPolicy::Strict,
    }
}

fn selinux(label: &SelinuxLabel) -> cri::SeLinuxOption {
    cri::SeLinuxOption {
        user: label.user.clone(),
        role: label.role.clone(),
        r#type: label.type_.clone(),
        level: label.level.clone(),
    }
}

fn seccomp(choice: &SeccompChoice) -> cri::SecurityProfile {
    match choice {
        SeccompChoice::Unconfined => profile(ProfileType::Unconfined, ""),
        SeccompChoice::RuntimeDefault => profile(ProfileType::RuntimeDefault, ""),
        SeccompChoice::Localhost(path) => profile(ProfileType::Localhost, path),
    }
}

fn apparmor(choice: &AppArmorChoice) -> cri::SecurityProfile {
    match choice {
        AppArmorChoice::Unconfined => profile(ProfileType::Unconfined, ""),
        AppArmorChoice::RuntimeDefault => profile(ProfileType::RuntimeDefault, ""),
        AppArmorChoice::Localhost(name) => profile(ProfileType::Localhost, name),
    }
}

fn old_apparmor(choice: &AppArmorChoice) -> String {
    match choice {
        AppArmorChoice::Unconfined => "unconfined".to_owned(),
        AppArmorChoice::RuntimeDefault => "runtime/default".to_owned(),
        AppArmorChoice::Localhost(name) => format!("localhost/{name}"),
    }
}

fn profile(profile_type: ProfileType, localhost_ref: &str) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: profile_type.into(), localhost_ref: localhost_ref.to_owned() }
}

fn int64(value: Option<i64>) -> Option<cri::Int64Value> {
    value.map(|value| cri::Int64Value { value })
}
