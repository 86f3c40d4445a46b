//! What a pod asks for that this version accepts and does not act on: said once per manifest, never refused, so that the
//! same manifest may serve a whole fleet.
//!
//! Owns the list; a feature that arrives takes its row out. Fields that are refused when a container starts are not here.

use crate::api::pod::{Container, EmptyDirVolumeSource, Pod};

/// One line per ignored field, with its path.
#[must_use]
pub fn ignored_fields(pod: &Pod) -> Vec<String> {
    let spec = &pod.spec;
    let security = spec.security_context.clone().unwrap_or_default();
    let of_pod = [
        (!spec.ephemeral_containers.is_empty(), "spec.ephemeralContainers"),
        (!spec.node_selector.is_empty(), "spec.nodeSelector"),
        (spec.affinity.is_some(), "spec.affinity"),
        (!spec.image_pull_secrets.is_empty(), "spec.imagePullSecrets"),
        (spec.runtime_class_name.is_some(), "spec.runtimeClassName"),
        (spec.host_users == Some(false), "spec.hostUsers"),
        (
            security.fs_group.is_some() && !spec.volumes.is_empty(),
            "spec.securityContext.fsGroup (ownership of volumes)",
        ),
        (security.se_linux_options.is_some(), "spec.securityContext.seLinuxOptions"),
        (security.app_armor_profile.is_some(), "spec.securityContext.appArmorProfile"),
    ];
    let mut paths: Vec<String> =
        of_pod.iter().filter(|(set, _)| *set).map(|(_, path)| (*path).to_owned()).collect();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let limited = |dir: &EmptyDirVolumeSource| dir.size_limit.is_some() && dir.medium.is_empty();
        if volume.empty_dir.as_ref().is_some_and(limited) {
            paths.push(format!("spec.volumes[{index}].emptyDir.sizeLimit (on disk)"));
        }
    }
    for (list, containers) in [("initContainers", &spec.init_containers), ("containers", &spec.containers)] {
        for (index, container) in containers.iter().enumerate() {
            paths.extend(of_container(container).map(|field| format!("spec.{list}[{index}].{field}")));
        }
    }
    paths
        .into_iter()
        .map(|path| format!("{path}: accepted, but this version does not act on it yet"))
        .collect()
}

fn of_container(container: &Container) -> impl Iterator<Item = &'static str> {
    let lifecycle = container.lifecycle.clone().unwrap_or_default();
    let security = container.security_context.clone().unwrap_or_default();
    [
        (container.liveness_probe.is_some(), "livenessProbe"),
        (container.readiness_probe.is_some(), "readinessProbe (the container counts as ready when it runs)"),
        (container.startup_probe.is_some(), "startupProbe"),
        (lifecycle.post_start.is_some(), "lifecycle.postStart"),
        (lifecycle.pre_stop.is_some(), "lifecycle.preStop"),
        (lifecycle.stop_signal.is_some(), "lifecycle.stopSignal"),
        (container.termination_message_policy == "FallbackToLogsOnError", "terminationMessagePolicy"),
        (security.se_linux_options.is_some(), "securityContext.seLinuxOptions"),
        (security.app_armor_profile.is_some(), "securityContext.appArmorProfile"),
    ]
    .into_iter()
    .filter(|(set, _)| *set)
    .map(|(_, field)| field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::decode::decode;
    use serde_json::json;

    fn ignored(spec: &serde_json::Value) -> Vec<String> {
        ignored_fields(&decode(json!({"spec": spec})).unwrap().object)
    }

    #[test]
    fn probes_and_hooks_are_named_by_path() {
        let lines = ignored(&json!({
            "hostUsers": false,
            "containers": [{"name": "a"}, {"name": "b", "livenessProbe": {}, "lifecycle": {"preStop": {}}}],
        }));
        let paths: Vec<&str> = lines.iter().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(
            paths,
            ["spec.hostUsers", "spec.containers[1].livenessProbe", "spec.containers[1].lifecycle.preStop"]
        );
        assert!(lines[0].ends_with("this version does not act on it yet"), "{}", lines[0]);
    }

    #[test]
    fn a_plain_pod_is_fully_acted_on() {
        assert!(
            ignored(&json!({"hostNetwork": true, "containers": [{"name": "a", "image": "b"}]})).is_empty()
        );
    }
}
