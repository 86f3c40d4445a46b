//! API v1 defaulting of a pod: the values that an API server fills in on create.
//!
//! Owns the default values.
//!
//! Pure: what it returns depends on its arguments alone.

mod resources;

pub(crate) use resources::is_pod_level;

use serde_json::Value;

use crate::model::api::pod::{
    Container, ContainerPort, DownwardApiVolumeFile, EmptyDirVolumeSource, HttpGetAction,
    ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, Probe, Volume, VolumeProjection,
};

pub(crate) const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";
pub(super) const TERMINATION_GRACE_PERIOD_SECONDS: i64 = 30;
/// The default mode of projected files.
pub(crate) const FILE_MODE: i32 = 0o644;
const TOKEN_EXPIRATION_SECONDS: i64 = 3600;

/// Sets every default of `core/v1` that matters to a node. Idempotent.
#[must_use]
pub(super) fn default_pod(mut pod: Pod) -> Pod {
    default_spec(&mut pod.spec);
    resources::default_pod_level(&mut pod.spec);
    if pod.spec.enable_service_links.is_none() {
        pod.spec.enable_service_links = Some(true);
    }
    "v1".clone_into(&mut pod.api_version);
    "Pod".clone_into(&mut pod.kind);
    pod
}

/// Sets the defaults of a pod's spec within a template. What depends on the pod as a whole waits for the pod.
pub(super) fn default_template_spec(spec: &mut PodSpec) {
    default_parts(spec, false);
}

fn default_spec(spec: &mut PodSpec) {
    default_parts(spec, true);
}

/// `is_pod`: also the requests that follow from limits, and the ports of the host network, as upstream.
fn default_parts(spec: &mut PodSpec, is_pod: bool) {
    set_if_empty(&mut spec.restart_policy, "Always");
    set_if_empty(&mut spec.dns_policy, "ClusterFirst");
    set_if_empty(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds.get_or_insert(TERMINATION_GRACE_PERIOD_SECONDS);
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    // The deprecated field is an alias: whichever is set fills the other; the newer one has precedence.
    if spec.service_account_name.is_empty() {
        spec.service_account_name.clone_from(&spec.deprecated_service_account);
    } else {
        spec.deprecated_service_account.clone_from(&spec.service_account_name);
    }
    for volume in &mut spec.volumes {
        default_volume(volume);
    }
    for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
        default_container(container);
        if is_pod {
            resources::default_requests(&mut container.resources);
        }
        for port in &mut container.ports {
            default_port(port, is_pod && spec.host_network);
        }
    }
    for container in &mut spec.ephemeral_containers {
        default_container(container);
        container.ports.iter_mut().for_each(|port| default_port(port, false));
    }
    resources::round(&mut spec.overhead);
}

fn default_container(container: &mut Container) {
    if container.image_pull_policy.is_empty() {
        default_pull_policy(&container.image).clone_into(&mut container.image_pull_policy);
    }
    set_if_empty(&mut container.termination_message_path, TERMINATION_MESSAGE_PATH);
    set_if_empty(&mut container.termination_message_policy, "File");
    resources::round(&mut container.resources.limits);
    resources::round(&mut container.resources.requests);
    for env in &mut container.env {
        if let Some(field) = env.value_from.as_mut().and_then(|from| from.field_ref.as_mut()) {
            default_field_ref(field);
        }
    }
    let probes =
        [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    probes.into_iter().flatten().for_each(default_probe);
    if let Some(lifecycle) = &mut container.lifecycle {
        let handlers = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
        for handler in handlers.into_iter().flatten() {
            handler.http_get.as_mut().map(default_http_get);
        }
    }
}

fn default_port(port: &mut ContainerPort, host_network: bool) {
    set_if_empty(&mut port.protocol, "TCP");
    if host_network && port.host_port == 0 {
        port.host_port = port.container_port;
    }
}

fn default_probe(probe: &mut Probe) {
    let defaults = [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ];
    for (value, default) in defaults {
        if *value == 0 {
            *value = default;
        }
    }
    probe.http_get.as_mut().map(default_http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_http_get(action: &mut HttpGetAction) {
    set_if_empty(&mut action.path, "/");
    set_if_empty(&mut action.scheme, "HTTP");
}

fn default_field_ref(field: &mut ObjectFieldSelector) {
    set_if_empty(&mut field.api_version, "v1");
}

/// `Always` for tags that may move (`:latest`, or neither tag nor digest), otherwise `IfNotPresent`.
#[must_use]
pub(super) fn default_pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, false), |(name, _)| (name, true));
    let last_component = name.rsplit('/').next().unwrap_or(name);
    match last_component.split_once(':') {
        Some((_, "latest")) => "Always",
        None if !digest => "Always",
        _ => "IfNotPresent",
    }
}

fn default_volume(volume: &mut Volume) {
    let unnamed = Volume { name: volume.name.clone(), ..Volume::default() };
    if *volume == unnamed {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(FILE_MODE);
        default_items(&mut source.items);
    }
    if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(FILE_MODE);
        source.sources.iter_mut().for_each(default_projection);
    }
    if let Some(source) = &mut volume.image
        && source.pull_policy.is_empty()
    {
        default_pull_policy(&source.reference).clone_into(&mut source.pull_policy);
    }
    if let Some(source) = volume.iscsi.as_mut().and_then(|source| source.as_object_mut()) {
        source.entry("iscsiInterface").or_insert_with(|| Value::from("default"));
    }
}

fn default_projection(projection: &mut VolumeProjection) {
    if let Some(source) = &mut projection.downward_api {
        default_items(&mut source.items);
    }
    if let Some(token) = &mut projection.service_account_token {
        token.expiration_seconds.get_or_insert(TOKEN_EXPIRATION_SECONDS);
    }
}

fn default_items(items: &mut [DownwardApiVolumeFile]) {
    items.iter_mut().filter_map(|item| item.field_ref.as_mut()).for_each(default_field_ref);
}

fn set_if_empty(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

#[cfg(test)]
mod tests;
