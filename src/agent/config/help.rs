//! The text of `--help`.
//!
//! Owns its layout.

use std::fmt::Write;

use super::effects;
use super::fields::FIELDS;
use super::flags::{ALIASES, FLAGS, Family, Flag};
use super::resolve::EMBEDDED;
use super::value::ValueKind;
use crate::model::ordered::Sortable as _;

const INTRODUCTION: &str = "\
agent is a kubelet for the edge. It runs the pods of manifest files and URLs on this machine, with or without a
Kubernetes cluster. It accepts the flags and the KubeletConfiguration file of kubelet v1.36.

Usage:
  agent [flags]                     run the agent
  agent --runonce [flags]           start the pods once, wait for them, and exit leaving them running
  agent config [--explain] [flags]  print the resolved configuration; --explain shows the origin of each setting
  agent config print|validate|migrate|images
                                    configuration documents and images of a control plane
  agent cri [flags]                 serve the embedded runtime over CRI; --listen (unix:///run/agent/cri.sock) and
                                    --stream-address (127.0.0.1:0) set its addresses
  agent version                     print the version
";

/// Client commands, each with a line of help; `cli` implements them.
pub(crate) const CLIENT_COMMANDS: &[(&str, &str)] = &[
    ("preflight", "check whether this machine can run pods, and suggest fixes"),
    ("init", "set up this machine: certificates, kubeconfig, configuration, service"),
    ("join", "make this machine a node of a cluster"),
    ("token", "list, create and delete the tokens with which machines join"),
    ("certs", "show when a control plane's certificates end, and renew them"),
    ("leave", "take this node out of its cluster"),
    ("reset", "undo agent init: remove pods, state and the files it wrote"),
    ("upgrade", "replace the agent's program, with automatic rollback on failure"),
    ("status", "show what runs, what is wrong, and why"),
    ("source", "accept that a pod source is empty"),
    ("get", "list pods, ConfigMaps, Secrets, claims, events, nodes"),
    ("ps", "list running containers"),
    ("describe", "show details of a pod, the node or another object"),
    ("events", "show events, oldest first"),
    ("top", "show CPU and memory usage of pods and the node"),
    ("resolve", "print the addresses of a name as pods see it"),
    ("wait", "wait until objects reach a condition or state"),
    ("logs", "print a container's logs"),
    ("exec", "run a command in a container"),
    ("attach", "attach to a running container"),
    ("port-forward", "forward local ports to a pod"),
    ("cp", "copy files to and from a container"),
    ("run", "run an image as a pod, through the node's API"),
    ("apply", "create or change objects from manifests, through the node's API"),
    ("delete", "delete objects of the node's API, or the data of a claim"),
    ("snapshot", "take, list, restore and delete snapshots of a claim's data"),
    ("restart", "restart the containers of a pod"),
    ("stop", "stop a pod of the node's API and print its manifest"),
    ("image", "manage images of the embedded runtime: list, pull, import, remove"),
    (
        "kubeconfig",
        "generate a client certificate and print a kubeconfig with it; \"user\": for a control plane",
    ),
    ("completion", "print a shell completion script for bash, zsh or fish"),
];

pub(super) fn text() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\nCommands (each has its own --help):\n");
    for (name, help) in CLIENT_COMMANDS {
        let _ = writeln!(text, "  agent {name:<27} {help}");
    }
    text.push_str("\nFlags of this agent:\n");
    for (alias, flag) in ALIASES {
        let _ = writeln!(
            text,
            "      --{alias} string\n            directory or file of pod manifests; same as --{flag}"
        );
    }
    let _ = writeln!(
        text,
        "      --runonce\n            start the pods once, wait for them, and exit leaving them running"
    );
    for flag in FLAGS.iter().filter(|flag| flag.family == Family::Agent) {
        write_flag(&mut text, flag);
    }
    text.push_str("\nKubelet flags without a configuration file field:\n");
    for flag in FLAGS.iter().filter(|flag| flag.family == Family::Kubelet) {
        write_flag(&mut text, flag);
    }
    text.push_str("\nFlags for configuration file fields (a flag overrides the file):\n");
    let mut fields: Vec<_> =
        FIELDS.iter().filter(|field| !field.flag.is_empty() && field.flag != "runonce").collect();
    fields.order_by_key(|field| field.flag);
    for field in fields {
        let dash = if field.flag == "v" { "  -v, --" } else { "      --" };
        let default =
            default_text(field.kind, agent_default(field.path).or(field.default).unwrap_or_default());
        let note = if field.flag_deprecated() { "deprecated: set" } else { "sets" };
        let effect = effects::note(field.path, None);
        let _ = writeln!(
            text,
            "{dash}{}{}\n            {note} {} in the file{default}{effect}",
            field.flag,
            value_hint(field.kind),
            field.path
        );
    }
    text.push_str("\nAccepted without effect (cAdvisor):\n");
    for flag in FLAGS.iter().filter(|flag| flag.family == Family::Cadvisor) {
        let _ = writeln!(text, "      --{}{}", flag.name, value_hint(flag.kind));
    }
    text
}

fn write_flag(text: &mut String, flag: &Flag) {
    let dash = if flag.name == "help" { "  -h, --" } else { "      --" };
    let help = match flag.deprecated {
        Some(why) => format!("deprecated: {why}"),
        None => flag.help.to_owned(),
    };
    let default =
        if flag.kind == ValueKind::Version { String::new() } else { default_text(flag.kind, flag.default) };
    let effect = effects::note(&format!("--{}", flag.name), None);
    let _ =
        writeln!(text, "{dash}{}{}\n            {help}{default}{effect}", flag.name, value_hint(flag.kind));
}

fn value_hint(kind: ValueKind) -> String {
    match kind {
        ValueKind::Bool => String::new(),
        ValueKind::Version => "[=true|raw|vX.Y.Z]".to_owned(),
        other => format!(" {}", other.type_name()),
    }
}

fn default_text(kind: ValueKind, default: &str) -> String {
    if default.is_empty() || (kind == ValueKind::Bool && default == "false") {
        return String::new();
    }
    format!(" (default {default})")
}

/// A default of the agent that differs from the kubelet's, independent of other settings.
fn agent_default(path: &str) -> Option<&'static str> {
    match path {
        "containerRuntimeEndpoint" => Some(EMBEDDED),
        "failCgroupV1" | "failSwapOn" | "makeIPTablesUtilChains" => Some("false"),
        "contentType" => Some("application/json"),
        "hairpinMode" => Some("hairpin-veth"),
        _ => None,
    }
}
