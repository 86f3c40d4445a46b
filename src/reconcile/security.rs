//! Who a container may be and what it may do: container over pod, with upstream's defaults.
//!
//! Owns the choices. Must not know how a runtime enforces them.

use crate::api::pod::{Container, Pod, SeccompProfile, SecurityContext};
use crate::runtime_config::{ContainerSecurity, ImageStatus, NamespaceMode, NamespaceOptions, SeccompChoice};

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

/// Configuration that security choices depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityDefaults {
    /// `seccompDefault`: pods that say nothing get the runtime's profile.
    pub seccomp_default: bool,
    /// Where `localhostProfile` paths begin, `<root>/seccomp`.
    pub seccomp_root: String,
}

/// The pod must not run as root, and it would, or that cannot be told: `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunAsNonRootError {
    /// The manifest itself says user 0.
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsUser {
        /// `name_namespace(uid)`.
        pod: String,
        /// Its name.
        container: String,
    },
    /// The image says user 0 or nothing.
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    ImageRunsAsRoot {
        /// `name_namespace(uid)`.
        pod: String,
        /// Its name.
        container: String,
    },
    /// The image names its user.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root \
         (pod: {pod:?}, container: {container})"
    )]
    ImageUserNotNumeric {
        /// The image's user.
        user: String,
        /// `name_namespace(uid)`.
        pod: String,
        /// Its name.
        container: String,
    },
}

fn of_container<T>(container: &Container, pick: impl FnOnce(&SecurityContext) -> Option<T>) -> Option<T> {
    container.security_context.as_ref().and_then(pick)
}

fn run_as_user(pod: &Pod, container: &Container) -> Option<i64> {
    of_container(container, |own| own.run_as_user)
        .or_else(|| pod.spec.security_context.as_ref().and_then(|shared| shared.run_as_user))
}

/// Refuses a container that must not run as root and would.
///
/// # Errors
/// With upstream's words.
pub fn check_run_as_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageStatus,
) -> Result<(), RunAsNonRootError> {
    let shared = pod.spec.security_context.as_ref();
    let demanded = of_container(container, |own| own.run_as_non_root)
        .or_else(|| shared.and_then(|shared| shared.run_as_non_root));
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
        // An image that says nothing runs as root.
        (None, None | Some(_)) => {
            Err(RunAsNonRootError::ImageRunsAsRoot { pod: pod_name, container: container_name })
        }
    }
}

/// The security choices of one container.
#[must_use]
pub fn container_security(
    pod: &Pod,
    container: &Container,
    image: &ImageStatus,
    defaults: &SecurityDefaults,
) -> ContainerSecurity {
    let shared = pod.spec.security_context.as_ref();
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
            .or_else(|| shared.and_then(|shared| shared.run_as_group)),
        run_as_username: match (chosen_user, image.uid) {
            (None, None) => image.username.clone(),
            _ => String::new(),
        },
        readonly_rootfs: of_container(container, |own| own.read_only_root_filesystem) == Some(true),
        no_new_privs: of_container(container, |own| own.allow_privilege_escalation) == Some(false),
        supplemental_groups: supplemental_groups(pod),
        namespaces: namespaces(pod),
        seccomp: seccomp(pod, container, defaults),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
    }
}

fn seccomp(pod: &Pod, container: &Container, defaults: &SecurityDefaults) -> SeccompChoice {
    let own = of_container(container, |own| own.seccomp_profile.as_ref().map(|own| choice(own, defaults)));
    let shared = pod.spec.security_context.as_ref().and_then(|shared| shared.seccomp_profile.as_ref());
    own.or_else(|| shared.map(|shared| choice(shared, defaults))).unwrap_or(if defaults.seccomp_default {
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

/// Whether a container is privileged.
#[must_use]
pub fn is_privileged(container: &Container) -> bool {
    of_container(container, |own| own.privileged) == Some(true)
}

/// Whether the sandbox must be: some container of the pod is.
#[must_use]
pub fn pod_is_privileged(pod: &Pod) -> bool {
    let spec = &pod.spec;
    let all = spec.init_containers.iter().chain(&spec.containers).chain(&spec.ephemeral_containers);
    all.into_iter().any(is_privileged)
}

/// fsGroup, then the listed groups.
#[must_use]
pub fn supplemental_groups(pod: &Pod) -> Vec<i64> {
    let shared = pod.spec.security_context.as_ref();
    let groups = shared.map(|shared| shared.fs_group.into_iter().chain(shared.supplemental_groups.clone()));
    groups.into_iter().flatten().collect()
}

/// Which namespaces the pod's containers share.
#[must_use]
pub fn namespaces(pod: &Pod) -> NamespaceOptions {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::decode::decode;
    use serde_json::{Value, json};

    fn pod(shared: &Value, own: &Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"securityContext": shared, "containers": [{"name": "c", "securityContext": own}]},
        });
        decode::<Pod>(pod).unwrap().object
    }

    fn security(shared: &Value, own: &Value, image: &ImageStatus) -> ContainerSecurity {
        let pod = pod(shared, own);
        let defaults = SecurityDefaults { seccomp_default: true, seccomp_root: "/r/seccomp".into() };
        container_security(&pod, &pod.spec.containers[0], image, &defaults)
    }

    #[test]
    fn the_containers_choice_comes_before_the_pods_and_the_images() {
        let image = ImageStatus { uid: Some(7), ..Default::default() };
        let none = json!({});
        let shared = json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 9, "supplementalGroups": [3],
            "seccompProfile": {"type": "Unconfined"}});
        let own = json!({"runAsUser": 5, "allowPrivilegeEscalation": false,
            "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}});
        let both = security(&shared, &own, &image);
        assert_eq!((both.run_as_user, both.run_as_group), (Some(5), Some(2)));
        assert_eq!(both.supplemental_groups, [9, 3]);
        assert_eq!(both.seccomp, SeccompChoice::Localhost("/r/seccomp/p.json".into()));
        assert!(both.no_new_privs);
        let by_pod = security(&shared, &none, &image);
        assert_eq!((by_pod.run_as_user, by_pod.seccomp), (Some(1), SeccompChoice::Unconfined));
        let by_image = security(&none, &none, &image);
        assert_eq!((by_image.run_as_user, by_image.seccomp), (Some(7), SeccompChoice::RuntimeDefault));
        let named = ImageStatus { username: "www".into(), ..Default::default() };
        let by_name = security(&none, &none, &named);
        assert_eq!((by_name.run_as_user, by_name.run_as_username.as_str()), (None, "www"));
        assert!(by_name.masked_paths.contains(&"/proc/kcore".to_owned()));
        assert!(security(&none, &json!({"procMount": "Unmasked"}), &named).masked_paths.is_empty());
    }

    #[test]
    fn run_as_non_root_refuses_root_in_upstreams_words() {
        let check = |own: Value, uid: Option<i64>, username: &str| {
            let pod = pod(&json!({"runAsNonRoot": true}), &own);
            let image = ImageStatus { uid, username: username.into(), ..Default::default() };
            let checked = check_run_as_non_root(&pod, &pod.spec.containers[0], &image);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(check(json!({"runAsUser": 5}), Some(0), ""), Ok(()));
        assert_eq!(check(json!({"runAsNonRoot": false}), Some(0), ""), Ok(()));
        assert_eq!(check(json!({}), Some(33), ""), Ok(()));
        let end = "(pod: \"web_ns(u)\", container: c)";
        let refused = |words: &str| Err(format!("{words} {end}"));
        assert_eq!(
            check(json!({"runAsUser": 0}), Some(33), ""),
            refused("container's runAsUser breaks non-root policy")
        );
        for uid in [Some(0), None] {
            assert_eq!(
                check(json!({}), uid, ""),
                refused("container has runAsNonRoot and image will run as root")
            );
        }
        assert_eq!(
            check(json!({}), None, "www"),
            refused(
                "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root"
            )
        );
    }
}
