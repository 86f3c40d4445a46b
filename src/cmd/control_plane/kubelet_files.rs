//! The phase `kubelet-start`: the files of this node's kubelet, which is the agent.
//!
//! Owns `config.yaml`, `instance-config.yaml` and `kubeadm-flags.env` while a control plane is made.

use std::path::Path;

use serde_json::{Value, json};

use super::config::{Argument, InitSettings, path};
use super::context::{Context, Visibility};
use super::patches;
use crate::cmd::cli::yaml;
use crate::cmd::init::{InitError, prepare_node, start_node};
use crate::codec::yaml::yaml_to_values;
use crate::model::duration::GoDuration;
use crate::platform::sys::node;

/// The configuration of the time before.
const BEFORE: &str = "config.yaml.before-join";
/// systemd-resolved answers at an address that pods cannot reach; this file lists the servers behind it.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// The flags of this node's kubelet besides its files: defaults, then the user's.
pub(crate) fn flags(settings: &InitSettings, hostname: &str) -> Vec<String> {
    let node = &settings.node;
    let extra = |name: &str| node.kubelet_extra_args.iter().any(|(given, _)| given == name);
    let mut defaults: Vec<Argument> = Vec::new();
    if !settings.cluster.gate("NodeLocalCRISocket", true) {
        defaults.push(("container-runtime-endpoint".to_owned(), node.cri_socket.clone()));
    }
    if node.name != hostname {
        defaults.push(("hostname-override".to_owned(), node.name.clone()));
    }
    let kept = defaults.iter().filter(|(name, _)| !extra(name));
    kept.chain(&node.kubelet_extra_args).map(|(name, value)| format!("--{name}={value}")).collect()
}

/// The line of `kubeadm-flags.env`, quoted as Go does it.
pub(crate) fn environment(flags: &[String]) -> String {
    format!("KUBELET_KUBEADM_ARGS={:?}\n", flags.join(" "))
}

/// What of the configuration belongs to this machine.
pub(crate) struct Machine {
    pub has_resolved: bool,
    pub has_systemd: bool,
}

/// The configuration of this node's kubelet, before patches.
pub(crate) fn configuration(settings: &InitSettings, machine: &Machine) -> Value {
    let mut made = settings.kubelet.clone();
    let is_given = |field: &str| settings.given_kubelet.as_ref().is_some_and(|given| !given[field].is_null());
    if machine.has_resolved && !is_given("resolvConf") {
        made["resolvConf"] = json!(RESOLVED);
    }
    // Without systemd the driver of that name does not work.
    if !machine.has_systemd && !is_given("cgroupDriver") {
        made["cgroupDriver"] = json!("cgroupfs");
    }
    made
}

/// The same for the machine that this is.
pub(super) fn on_this_machine(settings: &InitSettings) -> Value {
    let machine =
        Machine { has_resolved: Path::new(RESOLVED).is_file(), has_systemd: node::systemd_is_running() };
    configuration(settings, &machine)
}

/// Writes the files and starts the agent as this node's kubelet.
pub(super) fn start(context: &mut Context<'_, '_>) -> Result<(), InitError> {
    let kubelet = context.paths.kubelet.clone();
    let hostname = node::hostname().unwrap_or_default().to_lowercase();
    let flags = flags(&context.settings, &hostname);
    if !context.is_dry() {
        prepare_node()?;
    }
    context.directory(&kubelet, 0o700)?;
    let file = kubelet.join("kubeadm-flags.env");
    context.say(&format!(
        "[kubelet-start] Writing kubelet environment file with flags to file {:?}\n",
        path(&file)
    ))?;
    context.put(file, 0o644, environment(&flags), Visibility::Shown)?;
    let instance = json!({ "containerRuntimeEndpoint": context.settings.node.cri_socket });
    let file = kubelet.join("instance-config.yaml");
    context.say(&format!("[kubelet-start] Writing kubelet configuration to file {:?}\n", path(&file)))?;
    context.put(file, 0o644, yaml::to_string(&instance), Visibility::Shown)?;
    let made = on_this_machine(&context.settings);
    let mut made = context.patched(patches::KUBELET, made)?;
    made["containerRuntimeEndpoint"] = instance["containerRuntimeEndpoint"].clone();
    let file = kubelet.join("config.yaml");
    let text = yaml::to_string(&made);
    let before = kubelet.join(BEFORE);
    match context.read(&file)? {
        // What an earlier run of this phase wrote has the instance's file beside it.
        Some(there) if there != text && !is_cluster_node(&there) && !context.has(&before) => {
            context.say(&format!(
                "[kubelet-start] Keeping the previous configuration in {:?}\n",
                path(&before)
            ))?;
            context.put(before, 0o644, there, Visibility::Secret)?;
        }
        _ => {}
    }
    context.say(&format!("[kubelet-start] Writing kubelet configuration to file {:?}\n", path(&file)))?;
    context.put(file, 0o644, text, Visibility::Shown)?;
    if context.is_dry() {
        return context.say("[dryrun] Would start the kubelet\n");
    }
    start_node(context.session, &[flags, renewal(context.settings.cluster.validity)].concat())
}

/// The agent's own flag, which another kubelet does not have: certificates are renewed for as long as they were signed for.
pub(crate) fn renewal(validity: GoDuration) -> Vec<String> {
    let hours = validity.to_std().as_secs() / 3600;
    let is_other = hours > 0 && hours != 8760;
    is_other.then(|| format!("--control-plane-cert-validity-period={hours}h")).into_iter().collect()
}

/// Whether a configuration is of a node of a cluster: the authority of kubeadm's clusters is its clients'.
fn is_cluster_node(text: &str) -> bool {
    let values = yaml_to_values(text, false).unwrap_or_default();
    let file = |value: &Value| value["authentication"]["x509"]["clientCAFile"].as_str().map(str::len);
    values.first().and_then(file).is_some_and(|length| length > 0)
}

#[cfg(test)]
mod tests;
