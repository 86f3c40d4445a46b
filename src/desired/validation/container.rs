//! Rules of containers and init containers.

use std::collections::BTreeSet;

use super::volume::Volumes;
use super::{env, probe, resources, security};
use crate::model::api::pod::{Container, ContainerPort, PodSpec, VolumeMount};
use crate::model::field_error::{Errors, Path};
use crate::model::names;
use crate::model::ordered::Ordered as _;

const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// Every container of the pod.
pub(super) fn validate_all(spec: &PodSpec, volumes: &Volumes<'_>, at: &Path<'_>, errors: &mut Errors) {
    let regular = at.child("containers");
    if spec.containers.is_empty() {
        errors.required(&regular, "");
    }
    let context = Context { spec, volumes };
    let mut seen = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let container_at = regular.index(index);
        unique_name(container, &mut seen, &container_at, errors);
        context.validate(container, &container_at, errors);
        probe::validate(container, context.grace_seconds(), &container_at, errors);
        claim_host_ports(container, &mut host_ports, &container_at, errors);
    }
    let init = at.child("initContainers");
    for (index, container) in spec.init_containers.iter().enumerate() {
        let container_at = init.index(index);
        unique_name(container, &mut seen, &container_at, errors);
        context.validate(container, &container_at, errors);
        context.init_rules(container, &container_at, errors);
        // Init containers run one after another: each may use all host ports.
        claim_host_ports(container, &mut BTreeSet::new(), &container_at, errors);
    }
}

fn unique_name<'a>(
    container: &'a Container,
    seen: &mut BTreeSet<&'a str>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let name_at = at.child("name");
    errors.name(&name_at, &container.name, names::dns_label);
    if !container.name.is_empty() && !seen.insert(&container.name) {
        errors.duplicate(&name_at, &container.name);
    }
}

/// The facts about its pod that a container's rules need.
struct Context<'a> {
    spec: &'a PodSpec,
    volumes: &'a Volumes<'a>,
}

impl Context<'_> {
    fn grace_seconds(&self) -> i64 {
        self.spec.termination_grace_period_seconds.unwrap_or_default()
    }

    fn validate(&self, container: &Container, at: &Path<'_>, errors: &mut Errors) {
        let image_at = at.child("image");
        if container.image.is_empty() {
            errors.required(&image_at, "");
        } else if container.image.trim() != container.image {
            errors.invalid(&image_at, &container.image, "must not have leading or trailing whitespace");
        }
        let policies = ["Always", "IfNotPresent", "Never"];
        errors.one_of(&at.child("imagePullPolicy"), &container.image_pull_policy, &policies);
        let message_policies = ["FallbackToLogsOnError", "File"];
        let policy_at = at.child("terminationMessagePolicy");
        errors.one_of(&policy_at, &container.termination_message_policy, &message_policies);
        ports(&container.ports, self.spec.host_network, &at.child("ports"), errors);
        env::validate(container, at, errors);
        self.mounts(container, at, errors);
        resources::validate(&container.resources, &at.child("resources"), errors);
        claims(container, self.spec, at, errors);
        restart(container, at, errors);
        if let Some(context) = &container.security_context {
            security::container(context, self.spec.host_users, &at.child("securityContext"), errors);
        }
        if let Some(signal) =
            container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_ref())
        {
            let signal_at = at.child("lifecycle");
            let signal_at = signal_at.child("stopSignal");
            if self.spec.os.is_none() {
                errors.forbidden(&signal_at, "may not be set for containers with empty `spec.os.name`");
            } else if !is_signal(signal) {
                errors.invalid(&signal_at, signal, "must be the name of a Linux signal, for example SIGTERM");
            }
        }
        if !container.target_container_name.is_empty() {
            errors.forbidden(&at.child("targetContainerName"), "may only be set for ephemeral containers");
        }
    }

    /// A plain init container runs to its end before the next one: it has no probes and no lifecycle hooks.
    fn init_rules(&self, container: &Container, at: &Path<'_>, errors: &mut Errors) {
        if container.restart_policy.as_deref() == Some("Always") {
            return probe::validate(container, self.grace_seconds(), at, errors);
        }
        for (field, is_set) in [
            ("lifecycle", container.lifecycle.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
        ] {
            if is_set {
                let detail = "may not be set for init containers without restartPolicy=Always";
                errors.forbidden(&at.child(field), detail);
            }
        }
    }

    fn mounts(&self, container: &Container, at: &Path<'_>, errors: &mut Errors) {
        let mut paths = BTreeSet::new();
        let mounts = at.child("volumeMounts");
        for (index, mount) in container.volume_mounts.iter().enumerate() {
            let mount_at = mounts.index(index);
            self.volume_name(&mount.name, &mount_at.child("name"), errors);
            let path_at = mount_at.child("mountPath");
            errors.present(&path_at, &mount.mount_path);
            if !paths.insert(mount.mount_path.as_str()) {
                errors.invalid(&path_at, &mount.mount_path, "must be unique");
            }
            mount_rules(mount, is_privileged(container), &mount_at, errors);
        }
        let devices = at.child("volumeDevices");
        let mut device_paths = BTreeSet::new();
        for (index, device) in container.volume_devices.iter().enumerate() {
            let device_at = devices.index(index);
            self.volume_name(&device.name, &device_at.child("name"), errors);
            let path_at = device_at.child("devicePath");
            errors.name(&path_at, &device.device_path, names::no_backsteps);
            if !device_paths.insert(device.device_path.as_str()) {
                errors.invalid(&path_at, &device.device_path, "must be unique");
            }
            if paths.contains(device.device_path.as_str()) {
                let detail = "must not already exist as a path in volumeMounts";
                errors.invalid(&path_at, &device.device_path, detail);
            }
            if self.volumes.get(device.name.as_str()) == Some(&false) {
                let detail =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(&device_at.child("name"), &device.name, detail);
            }
        }
    }

    fn volume_name(&self, name: &str, at: &Path<'_>, errors: &mut Errors) {
        if name.is_empty() {
            errors.required(at, "");
        } else if !self.volumes.contains_key(name) {
            errors.not_found(at, name);
        }
    }
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
}

fn is_signal(name: &str) -> bool {
    name.strip_prefix("SIG").is_some_and(|rest| {
        !rest.is_empty()
            && rest.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b"+-".contains(&b))
    })
}

fn mount_rules(mount: &VolumeMount, privileged: bool, at: &Path<'_>, errors: &mut Errors) {
    for (field, path) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
        if !path.is_empty() {
            errors.all(&at.child(field), path, names::descending_path(path));
        }
    }
    if !mount.sub_path.is_empty() && !mount.sub_path_expr.is_empty() {
        let detail = "subPathExpr and subPath are mutually exclusive";
        errors.invalid(&at.child("subPathExpr"), &mount.sub_path_expr, detail);
    }
    let propagation = mount.mount_propagation.as_deref();
    let propagation_at = at.child("mountPropagation");
    errors.optional_of(&propagation_at, propagation, &["Bidirectional", "HostToContainer", "None"]);
    if propagation == Some("Bidirectional") && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.forbidden(&propagation_at, detail);
    }
    let recursive = mount.recursive_read_only.as_deref();
    let recursive_at = at.child("recursiveReadOnly");
    errors.optional_of(&recursive_at, recursive, &["Disabled", "Enabled", "IfPossible"]);
    if matches!(recursive, Some("Enabled" | "IfPossible")) {
        if !mount.read_only {
            errors.forbidden(&recursive_at, "may only be specified when readOnly is true");
        }
        if !matches!(propagation, None | Some("None")) {
            errors.forbidden(
                &recursive_at,
                "may only be specified when mountPropagation is None or not specified",
            );
        }
    }
}

fn ports(ports: &[ContainerPort], host_network: bool, at: &Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let port_at = at.index(index);
        if !port.name.is_empty() {
            let name_at = port_at.child("name");
            let complaints = names::port_name(&port.name);
            if complaints.is_empty() && !seen.insert(&port.name) {
                errors.duplicate(&name_at, &port.name);
            }
            errors.all(&name_at, &port.name, complaints);
        }
        let number_at = port_at.child("containerPort");
        if port.container_port == 0 {
            errors.required(&number_at, "");
        } else {
            errors.all_number(&number_at, port.container_port, names::port_number(port.container_port));
        }
        if port.host_port != 0 {
            errors.all_number(&port_at.child("hostPort"), port.host_port, names::port_number(port.host_port));
        }
        // A template may leave it out: the pod gets it with its defaults.
        if host_network && port.host_port != 0 && port.host_port != port.container_port {
            let detail = "must match `hostPort` when `hostNetwork` is true";
            errors.invalid_number(&number_at, port.container_port, detail);
        }
        if !port.host_ip.is_empty() {
            errors.all(&port_at.child("hostIP"), &port.host_ip, names::ip(&port.host_ip));
        }
        errors.one_of(&port_at.child("protocol"), &port.protocol, &["SCTP", "TCP", "UDP"]);
    }
}

fn claim_host_ports(container: &Container, taken: &mut BTreeSet<String>, at: &Path<'_>, errors: &mut Errors) {
    let ports = at.child("ports");
    for (index, port) in container.ports.iter().enumerate().filter(|(_, port)| port.host_port != 0) {
        let claim = format!("{}/{}/{}", port.protocol, port.host_ip, port.host_port);
        let port_at = ports.index(index);
        if taken.contains(&claim) {
            errors.duplicate(&port_at.child("hostPort"), &claim);
        }
        taken.insert(claim);
    }
}

/// A container may only use claims of its pod.
fn claims(container: &Container, spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    if container.resources.claims.is_empty() {
        return;
    }
    let name = |claim: &serde_json::Value| {
        claim.get("name").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    };
    let known: BTreeSet<String> = spec.resource_claims.iter().map(name).into_set();
    let claims_at = at.child("resources");
    let claims_at = claims_at.child("claims");
    for (index, claim) in container.resources.claims.iter().enumerate() {
        let claim = name(claim);
        if !known.contains(&claim) {
            errors.not_found(&claims_at.index(index), &claim);
        }
    }
}

fn restart(container: &Container, at: &Path<'_>, errors: &mut Errors) {
    let policy_at = at.child("restartPolicy");
    errors.optional_of(&policy_at, container.restart_policy.as_deref(), &["Always", "Never", "OnFailure"]);
    let rules = &container.restart_policy_rules;
    if rules.is_empty() {
        return;
    }
    if container.restart_policy.is_none() {
        errors.required(&policy_at, "must specify restartPolicy when restart rules are used");
    }
    let rule_list = at.child("restartPolicyRules");
    if rules.len() > MAX_RESTART_RULES {
        errors.too_many(&rule_list, rules.len(), MAX_RESTART_RULES);
    }
    for (index, rule) in rules.iter().enumerate() {
        let rule_at = rule_list.index(index);
        errors.one_of(&rule_at.child("action"), &rule.action, &["Restart", "RestartAllContainers"]);
        let codes_at = rule_at.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.required(&codes_at, "must be specified");
            continue;
        };
        errors.one_of(&codes_at.child("operator"), &codes.operator, &["In", "NotIn"]);
        let values_at = codes_at.child("values");
        if codes.values.is_empty() {
            errors.required(&values_at, "");
        } else if codes.values.len() > MAX_EXIT_CODES {
            errors.too_many(&values_at, codes.values.len(), MAX_EXIT_CODES);
        }
    }
}
