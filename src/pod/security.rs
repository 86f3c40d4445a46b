//! Users and privileges of a container: container over pod, with upstream's defaults.
//!
//! Owns the choices.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::model::api::pod::{
    Container, Pod, PodSecurityContext, SeLinuxOptions, SeccompProfile, SecurityContext,
};
use crate::model::containers::all_with_ephemeral;
use crate::model::objects::RuntimeClassSpec;
use crate::model::observed::ObservedPod;
use crate::model::runtime_config::{
    AppArmorChoice, ContainerSecurity, IdRange, ImageStatus, NamespaceMode, NamespaceOptions, RuntimeHandler,
    SeccompChoice, SelinuxLabel, SupplementalGroupsPolicy,
};
use crate::model::types::{ContainerId, ContainerName};
use crate::pod::runtime_class::handler;

#[cfg(test)]
mod tests;

/// Hidden unless `procMount: Unmasked`.
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Not writable unless `procMount: Unmasked`.
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Prefix of the annotations that chose profiles before the field existed; a static pod may still use them. A
/// container's name follows.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Configuration that security choices depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SecurityDefaults {
    /// `seccompDefault`: pods without a profile get the runtime's.
    pub seccomp_default: bool,
    /// The directory of `localhostProfile` paths, `<root>/seccomp`.
    pub seccomp_root: String,
}

/// The inputs for a pod's security that are not in its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SecurityIds {
    /// The pod's id range, when it has a user namespace.
    pub user_namespace: Option<IdRange>,
    /// The container whose processes are visible, see [`ephemeral_target`].
    pub target: Option<ContainerId>,
}

/// The pod must not run as root, and it would, or its user is unknown: `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RunAsNonRootError {
    /// The manifest itself sets user 0.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsUser {
        /// `name_namespace(uid)`.
        pod: String,
        container: String,
    },
    /// The image sets user 0 or no user.
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    ImageRunsAsRoot {
        /// `name_namespace(uid)`.
        pod: String,
        container: String,
    },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root \
         (pod: {pod:?}, container: {container})"
    )]
    ImageUserNotNumeric {
        user: String,
        /// `name_namespace(uid)`.
        pod: String,
        container: String,
    },
}

fn of_container<T>(container: &Container, pick: impl FnOnce(&SecurityContext) -> Option<T>) -> Option<T> {
    container.security_context.as_ref().and_then(pick)
}

fn of_pod<'a, T>(pod: &'a Pod, pick: impl FnOnce(&'a PodSecurityContext) -> Option<T>) -> Option<T> {
    pod.spec.security_context.as_ref().and_then(pick)
}

/// The user that all containers of the pod run as, by their specs; `None` if one names none, or another (upstream:
/// `FsUserFrom`).
#[must_use]
pub(super) fn common_user(pod: &Pod) -> Option<i64> {
    let mut users = all_with_ephemeral(pod).map(|(container, _)| run_as_user(pod, container));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

fn run_as_user(pod: &Pod, container: &Container) -> Option<i64> {
    of_container(container, |own| own.run_as_user).or_else(|| of_pod(pod, |shared| shared.run_as_user))
}

/// Refuses a container that must not run as root and would.
pub(super) fn check_run_as_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageStatus,
) -> Result<(), RunAsNonRootError> {
    let demanded = of_container(container, |own| own.run_as_non_root)
        .or_else(|| of_pod(pod, |shared| shared.run_as_non_root));
    if demanded != Some(true) {
        return Ok(());
    }
    let (pod_name, container_name) = (pod.pod_ref().to_string(), container.name.clone());
    match (run_as_user(pod, container), image.uid) {
        (Some(0), _) => Err(RunAsNonRootError::RunAsUser { pod: pod_name, container: container_name }),
        (Some(_), _) | (None, Some(1..)) => Ok(()),
        (None, None) if !image.username.is_empty() => Err(RunAsNonRootError::ImageUserNotNumeric {
            user: image.username.clone(),
            pod: pod_name,
            container: container_name,
        }),
        // An image without a user runs as root.
        (None, None | Some(_)) => {
            Err(RunAsNonRootError::ImageRunsAsRoot { pod: pod_name, container: container_name })
        }
    }
}

/// The security settings of one container. `volume_groups` are those of the pod's volumes.
#[must_use]
pub(crate) fn container_security(
    pod: &Pod,
    container: &Container,
    image: &ImageStatus,
    volume_groups: &[i64],
    defaults: &SecurityDefaults,
    ids: SecurityIds,
) -> ContainerSecurity {
    let chosen_user = run_as_user(pod, container);
    let by_image = image.uid.or_else(|| image.username.is_empty().then_some(0));
    let unmasked = of_container(container, |own| own.proc_mount.clone()).as_deref() == Some("Unmasked");
    let paths = |paths: &[&str]| {
        if unmasked { Vec::new() } else { paths.iter().map(|path| (*path).to_owned()).collect() }
    };
    let capabilities = of_container(container, |own| own.capabilities.clone()).unwrap_or_default();
    ContainerSecurity {
        privileged: is_privileged(container),
        add_capabilities: capabilities.add,
        drop_capabilities: capabilities.drop,
        run_as_user: chosen_user.or(by_image),
        run_as_group: of_container(container, |own| own.run_as_group)
            .or_else(|| of_pod(pod, |shared| shared.run_as_group)),
        run_as_username: match (chosen_user, image.uid) {
            (None, None) => image.username.clone(),
            _ => String::new(),
        },
        readonly_rootfs: of_container(container, |own| own.read_only_root_filesystem) == Some(true),
        no_new_privs: of_container(container, |own| own.allow_privilege_escalation) == Some(false),
        supplemental_groups: supplemental_groups(pod, volume_groups),
        namespaces: namespaces(pod),
        seccomp: seccomp(pod, container, defaults),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        supplemental_groups_policy: supplemental_groups_policy(pod),
        selinux: of_container(container, |own| own.se_linux_options.as_ref().map(label))
            .or_else(|| pod_selinux(pod)),
        apparmor: apparmor(pod, container),
        user_namespace: ids.user_namespace,
        target: ids.target,
    }
}

/// The container that an ephemeral one targets; `None` when it names none.
///
/// # Errors
/// The named container has no record, in upstream's words: `CreateContainerConfigError`.
pub(super) fn ephemeral_target(
    container: &Container,
    observed: &ObservedPod,
) -> Result<Option<ContainerId>, String> {
    if container.target_container_name.is_empty() {
        return Ok(None);
    }
    let name = ContainerName::from(container.target_container_name.as_str());
    match observed.container(&name) {
        Some(found) => Ok(Some(found.id.clone())),
        None => Err(format!("unable to find target container {name}")),
    }
}

/// The pod uses a feature that only some runtimes support.
#[must_use]
pub(super) fn needs_runtime_support(pod: &Pod) -> bool {
    pod.spec.runtime_class_name.is_some()
        || pod.spec.host_users == Some(false)
        || supplemental_groups_policy(pod) == SupplementalGroupsPolicy::Strict
}

/// Whether the runtime supports what the pod requests. `class` is the object that it names; `handlers` are
/// the runtime's, empty if it does not report them; `groups_policy` is true if it can ignore the image's
/// groups.
///
/// # Errors
/// The missing feature. A runtime that does not report its handlers is passed any handler, and returns its
/// own error.
pub(super) fn check_runtime(
    pod: &Pod,
    class: Option<&RuntimeClassSpec>,
    handlers: &[RuntimeHandler],
    groups_policy: Option<bool>,
) -> Result<(), String> {
    let name = handler(pod, class);
    let found = handlers.iter().find(|handler| handler.name == name);
    if found.is_none() && !handlers.is_empty() && !name.is_empty() {
        return Err(unknown_handler(class, name, handlers));
    }
    if pod.spec.host_users == Some(false) && !found.is_some_and(|handler| handler.user_namespaces) {
        let who =
            if name.is_empty() { "runtime".to_owned() } else { format!("RuntimeClass handler {name:?}") };
        let unknown = if handlers.is_empty() { ": runtime handlers are not set" } else { "" };
        return Err(format!(
            "can't set `spec.hostUsers: false`, {who} does not support user namespaces{unknown}"
        ));
    }
    if supplemental_groups_policy(pod) == SupplementalGroupsPolicy::Strict && groups_policy != Some(true) {
        return Err("SupplementalGroupsPolicy=Strict is not supported in this node".to_owned());
    }
    Ok(())
}

fn unknown_handler(class: Option<&RuntimeClassSpec>, name: &str, handlers: &[RuntimeHandler]) -> String {
    let named = handlers.iter().map(|handler| handler.name.as_str()).filter(|known| !known.is_empty());
    let known: Vec<String> = named.map(|known| format!("{known:?}")).collect();
    let known = if known.is_empty() { "only the default".to_owned() } else { known.join(", ") };
    let what = match class {
        Some(_) => format!("handler {name:?} of its RuntimeClass is"),
        None => format!("RuntimeClass {name:?} not found, and the name is"),
    };
    format!("{what} not a handler of the container runtime, which supports {known}")
}

/// The field of the container, then the annotation from before the fields, then the field of the pod.
fn apparmor(pod: &Pod, container: &Container) -> Option<AppArmorChoice> {
    let annotation = pod.metadata.annotations.get(&format!("{APPARMOR_ANNOTATION}{}", container.name));
    of_container(container, |own| own.app_armor_profile.as_ref().and_then(apparmor_of_field))
        .or_else(|| annotation.and_then(|text| apparmor_of_annotation(text)))
        .or_else(|| of_pod(pod, |shared| shared.app_armor_profile.as_ref().and_then(apparmor_of_field)))
}

fn apparmor_of_field(profile: &SeccompProfile) -> Option<AppArmorChoice> {
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("RuntimeDefault", _) => Some(AppArmorChoice::RuntimeDefault),
        ("Unconfined", _) => Some(AppArmorChoice::Unconfined),
        ("Localhost", Some(name)) => Some(AppArmorChoice::Localhost(name.clone())),
        _ => None,
    }
}

fn apparmor_of_annotation(text: &str) -> Option<AppArmorChoice> {
    match text {
        "runtime/default" => Some(AppArmorChoice::RuntimeDefault),
        "unconfined" => Some(AppArmorChoice::Unconfined),
        _ => text.strip_prefix("localhost/").map(|name| AppArmorChoice::Localhost(name.to_owned())),
    }
}

/// The SELinux label of the pod itself. A container's own replaces it as a whole.
#[must_use]
pub(super) fn pod_selinux(pod: &Pod) -> Option<SelinuxLabel> {
    of_pod(pod, |shared| shared.se_linux_options.as_ref().map(label))
}

fn label(options: &SeLinuxOptions) -> SelinuxLabel {
    SelinuxLabel {
        user: options.user.clone(),
        role: options.role.clone(),
        type_: options.type_.clone(),
        level: options.level.clone(),
    }
}

/// Whether groups that the image gives the user count.
#[must_use]
pub(crate) fn supplemental_groups_policy(pod: &Pod) -> SupplementalGroupsPolicy {
    match of_pod(pod, |shared| shared.supplemental_groups_policy.as_deref()) {
        Some("Strict") => SupplementalGroupsPolicy::Strict,
        _ => SupplementalGroupsPolicy::Merge,
    }
}

fn seccomp(pod: &Pod, container: &Container, defaults: &SecurityDefaults) -> SeccompChoice {
    let own = of_container(container, |own| own.seccomp_profile.as_ref().map(|own| choice(own, defaults)));
    let shared = of_pod(pod, |shared| shared.seccomp_profile.as_ref().map(|shared| choice(shared, defaults)));
    own.or(shared).unwrap_or(if defaults.seccomp_default {
        SeccompChoice::RuntimeDefault
    } else {
        SeccompChoice::Unconfined
    })
}

fn choice(profile: &SeccompProfile, defaults: &SecurityDefaults) -> SeccompChoice {
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("RuntimeDefault", _) => SeccompChoice::RuntimeDefault,
        ("Localhost", Some(path)) => {
            SeccompChoice::Localhost(format!("{}/{path}", defaults.seccomp_root.trim_end_matches('/')))
        }
        _ => SeccompChoice::Unconfined,
    }
}

#[must_use]
pub(crate) fn is_privileged(container: &Container) -> bool {
    of_container(container, |own| own.privileged) == Some(true)
}

/// Whether the sandbox must be: some container of the pod is.
#[must_use]
pub(super) fn pod_is_privileged(pod: &Pod) -> bool {
    let spec = &pod.spec;
    let all = spec.init_containers.iter().chain(&spec.containers).chain(&spec.ephemeral_containers);
    all.into_iter().any(is_privileged)
}

/// fsGroup, then those that come with volumes, then the listed groups.
#[must_use]
pub(crate) fn supplemental_groups(pod: &Pod, volume_groups: &[i64]) -> Vec<i64> {
    let shared = pod.spec.security_context.as_ref();
    let fs_group = shared.and_then(|shared| shared.fs_group);
    let listed = shared.map(|shared| shared.supplemental_groups.as_slice()).unwrap_or_default();
    fs_group.into_iter().chain(volume_groups.iter().copied()).chain(listed.iter().copied()).collect()
}

#[must_use]
pub(crate) fn namespaces(pod: &Pod) -> NamespaceOptions {
    let spec = &pod.spec;
    NamespaceOptions {
        network: if spec.host_network { NamespaceMode::Node } else { NamespaceMode::Pod },
        pid: if spec.host_pid {
            NamespaceMode::Node
        } else if spec.share_process_namespace == Some(true) {
            NamespaceMode::Pod
        } else {
            NamespaceMode::Container
        },
        ipc: if spec.host_ipc { NamespaceMode::Node } else { NamespaceMode::Pod },
    }
}
