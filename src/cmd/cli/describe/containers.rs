//! The containers on a pod's page.
//!
//! Owns their part of the page.

use super::super::tabs::Tabbed;
use super::{field, printable, time};
use crate::model::api::pod::{
    Container, ContainerPort, ContainerState, ContainerStatus, EnvVar, IntOrString, Pod, Probe,
    ResourceRequirements, VolumeMount,
};
use crate::model::ordered::Sortable as _;

pub(super) fn describe(out: &mut Tabbed, pod: &Pod) {
    let (spec, status) = (&pod.spec, &pod.status);
    let lists = [
        ("Init Containers", &spec.init_containers, &status.init_container_statuses),
        ("Containers", &spec.containers, &status.container_statuses),
        ("Ephemeral Containers", &spec.ephemeral_containers, &status.ephemeral_container_statuses),
    ];
    for (title, containers, statuses) in lists {
        if containers.is_empty() {
            continue;
        }
        out.line(0, &format!("{title}:"));
        for container in containers {
            let status = statuses.iter().find(|status| status.name == container.name);
            describe_one(out, pod, container, status);
        }
    }
}

fn describe_one(out: &mut Tabbed, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
    out.line(1, &format!("{}:", printable(&container.name)));
    if let Some(status) = status {
        field(out, 2, "Container ID", &status.container_id);
    }
    field(out, 2, "Image", &container.image);
    if let Some(status) = status {
        field(out, 2, "Image ID", &status.image_id);
    }
    ports(out, "Port", &container.ports, |port| port.container_port);
    ports(out, "Host Port", &container.ports, |port| port.host_port);
    let profile = container.security_context.as_ref().and_then(|security| security.seccomp_profile.as_ref());
    if let Some(profile) = profile {
        field(out, 2, "SeccompProfile", &profile.type_);
        if let Some(path) = &profile.localhost_profile {
            field(out, 3, "LocalhostProfile", path);
        }
    }
    for (title, words) in [("Command", &container.command), ("Args", &container.args)] {
        if !words.is_empty() {
            out.line(2, &format!("{title}:"));
        }
        for line in words.iter().flat_map(|word| word.split('\n')) {
            out.line(3, &printable(line));
        }
    }
    if let Some(status) = status {
        standing(out, status);
    }
    resources(out, &container.resources, 2);
    let probes = [
        ("Liveness", &container.liveness_probe),
        ("Readiness", &container.readiness_probe),
        ("Startup", &container.startup_probe),
    ];
    for (title, probe) in probes {
        if let Some(probe) = probe {
            field(out, 2, title, &probe_line(probe));
        }
    }
    environment(out, pod, container);
    mounts(out, container);
}

fn ports(out: &mut Tabbed, title: &str, ports: &[ContainerPort], number: impl Fn(&ContainerPort) -> i32) {
    let shown = |port: &ContainerPort| {
        let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        let name = if port.name.is_empty() { String::new() } else { format!(" ({})", port.name) };
        format!("{}/{protocol}{name}", number(port))
    };
    let plural = if ports.len() > 1 { "s" } else { "" };
    let all: Vec<String> = ports.iter().map(shown).collect();
    let text = if all.is_empty() { "<none>".to_owned() } else { all.join(", ") };
    field(out, 2, &format!("{title}{plural}"), &text);
}

fn standing(out: &mut Tabbed, status: &ContainerStatus) {
    state(out, "State", &status.state);
    if status.last_state.terminated.is_some() {
        state(out, "Last State", &status.last_state);
    }
    field(out, 2, "Ready", if status.ready { "True" } else { "False" });
    field(out, 2, "Restart Count", &status.restart_count.to_string());
}

/// kubectl omits the message of a waiting container; here there is no other place that shows it.
fn state(out: &mut Tabbed, title: &str, state: &ContainerState) {
    if let Some(running) = &state.running {
        field(out, 2, title, "Running");
        field(out, 3, "Started", &running.started_at.map(time).unwrap_or_default());
    } else if let Some(ended) = &state.terminated {
        field(out, 2, title, "Terminated");
        let signal = if ended.signal > 0 { ended.signal.to_string() } else { String::new() };
        non_empty_fields(
            out,
            &[
                ("Reason", &ended.reason),
                ("Message", ended.message.trim_end()),
                ("Exit Code", &ended.exit_code.to_string()),
                ("Signal", &signal),
                ("Started", &ended.started_at.map(time).unwrap_or_default()),
                ("Finished", &ended.finished_at.map(time).unwrap_or_default()),
            ],
        );
    } else {
        let waiting = state.waiting.clone().unwrap_or_default();
        field(out, 2, title, "Waiting");
        non_empty_fields(out, &[("Reason", &waiting.reason), ("Message", &waiting.message)]);
    }
}

fn non_empty_fields(out: &mut Tabbed, fields: &[(&str, &str)]) {
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        field(out, 3, name, value);
    }
}

pub(super) fn resources(out: &mut Tabbed, resources: &ResourceRequirements, level: usize) {
    for (title, list) in [("Limits", &resources.limits), ("Requests", &resources.requests)] {
        if !list.is_empty() {
            out.line(level, &format!("{title}:"));
        }
        for (name, amount) in list {
            field(out, level + 1, name, &amount.to_string());
        }
    }
}

fn port_text(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    }
}

fn probe_line(probe: &Probe) -> String {
    let timing = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        probe.initial_delay_seconds,
        probe.timeout_seconds,
        probe.period_seconds,
        probe.success_threshold,
        probe.failure_threshold
    );
    let what = if let Some(exec) = &probe.exec {
        format!("exec [{}]", exec.command.join(" "))
    } else if let Some(get) = &probe.http_get {
        let slash = if get.path.is_empty() || get.path.starts_with('/') { "" } else { "/" };
        let scheme = get.scheme.to_lowercase();
        format!("http-get {scheme}://{}:{}{slash}{}", get.host, port_text(&get.port), get.path)
    } else if let Some(socket) = &probe.tcp_socket {
        format!("tcp-socket {}:{}", socket.host, port_text(&socket.port))
    } else if let Some(grpc) = &probe.grpc {
        format!("grpc <pod>:{} {}", grpc.port, grpc.service.as_deref().unwrap_or_default())
    } else {
        "unknown".to_owned()
    };
    format!("{what} {timing}")
}

fn environment(out: &mut Tabbed, pod: &Pod, container: &Container) {
    if !container.env_from.is_empty() {
        out.line(2, "Environment Variables from:");
    }
    for source in &container.env_from {
        let (kind, reference) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(reference), _) => ("ConfigMap", reference.clone()),
            (None, reference) => ("Secret", reference.clone().unwrap_or_default()),
        };
        let prefix = if source.prefix.is_empty() {
            String::new()
        } else {
            format!(" with prefix '{}'", source.prefix)
        };
        let optional = reference.optional.unwrap_or(false);
        let cells = [reference.name, format!("{kind}{prefix}"), format!("Optional: {optional}")];
        out.line(3, &cells.map(|cell| printable(&cell)).join("\t"));
    }
    if container.env.is_empty() {
        return out.line(2, "Environment:\t<none>");
    }
    out.line(2, "Environment:");
    for variable in &container.env {
        let mut name = format!("{}:", printable(&variable.name));
        for cells in variable_lines(pod, variable) {
            let cells: Vec<String> = cells.iter().map(|cell| printable(cell)).collect();
            out.line(3, &format!("{name}\t{}", cells.join("\t")));
            name.clear();
        }
    }
}

/// The lines of a value, each in cells. A value from an object is shown as a reference, never in the clear.
fn variable_lines(pod: &Pod, variable: &EnvVar) -> Vec<Vec<String>> {
    let Some(from) = &variable.value_from else {
        return variable.value.split('\n').map(|line| vec![line.to_owned()]).collect();
    };
    let cells = if let Some(field) = &from.field_ref {
        let version = if field.api_version.is_empty() { "v1" } else { &field.api_version };
        vec![format!("{} ({version}:{})", field_value(pod, &field.field_path), field.field_path)]
    } else if let Some(resource) = &from.resource_field_ref {
        vec![format!("({})", resource.resource)]
    } else if let Some(key) = &from.secret_key_ref {
        let text = format!("<set to the key '{}' in secret '{}'>", key.key, key.name);
        vec![text, format!("Optional: {}", key.optional.unwrap_or(false))]
    } else if let Some(key) = &from.config_map_key_ref {
        let text = format!("<set to the key '{}' of config map '{}'>", key.key, key.name);
        vec![text, format!("Optional: {}", key.optional.unwrap_or(false))]
    } else {
        let key = from.file_key_ref.clone().unwrap_or_default();
        vec![format!("<set to the key '{}' of file '{}' in volume '{}'>", key.key, key.path, key.volume_name)]
    };
    vec![cells]
}

/// The value of a field as far as kubectl knows it without the node.
fn field_value(pod: &Pod, path: &str) -> String {
    let metadata = &pod.metadata;
    match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.to_string(),
        _ => {
            let of_map = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
            let label = of_map("metadata.labels['").and_then(|key| metadata.labels.get(key));
            let annotation =
                || of_map("metadata.annotations['").and_then(|key| metadata.annotations.get(key));
            label.or_else(annotation).cloned().unwrap_or_default()
        }
    }
}

fn mounts(out: &mut Tabbed, container: &Container) {
    if container.volume_mounts.is_empty() {
        out.line(2, "Mounts:\t<none>");
    } else {
        out.line(2, "Mounts:");
    }
    let mut mounts: Vec<&VolumeMount> = container.volume_mounts.iter().collect();
    mounts.order_by(|one, other| one.mount_path.cmp(&other.mount_path));
    for mount in mounts {
        let access = if mount.read_only { "ro" } else { "rw" };
        let path =
            if mount.sub_path.is_empty() { String::new() } else { format!(",path={:?}", mount.sub_path) };
        out.line(3, &printable(&format!("{} from {} ({access}{path})", mount.mount_path, mount.name)));
    }
    if !container.volume_devices.is_empty() {
        out.line(2, "Devices:");
    }
    for device in &container.volume_devices {
        out.line(3, &printable(&format!("{} from {}", device.device_path, device.name)));
    }
}
