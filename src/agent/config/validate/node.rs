//! Rules about the kubelet's flags that are not fields of the file: node name, labels, addresses, lock file,
//! credential providers.
//!
//! Owns the label allow lists and the rules for node names.

use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use crate::agent::config::Environment;
use crate::agent::config::args::Args;
use crate::agent::config::error::Findings;
use crate::agent::config::flags::AgentFlags;
use crate::desired::kinds::addresses::{cidrs, port_range};

/// The flags' settings of this node.
#[derive(Debug, Default)]
pub(in crate::agent::config) struct NodeSettings {
    pub(in crate::agent::config) name: String,
    pub(in crate::agent::config) addresses: Vec<IpAddr>,
    pub(in crate::agent::config) warnings: Vec<String>,
}

/// Checks the flags and reads the node's name and addresses from them.
pub(in crate::agent::config) fn flags(
    flags: &AgentFlags,
    args: &Args,
    environment: &Environment,
) -> Result<NodeSettings, Findings> {
    let mut findings = Findings::default();
    let mut node = NodeSettings { name: node_name(flags, environment), ..NodeSettings::default() };
    if node.name.is_empty() {
        findings.add("--hostname-override", "empty hostname is invalid; set a node name");
    } else if !is_subdomain(&node.name) {
        // The kubelet starts with such a name too; objects named after the node are refused later, one by
        // one.
        node.warnings.push(format!(
            "{:?} is not a valid node name (lower-case letters, digits, '-' and '.'): pods named after it \
             will be rejected; use --hostname-override",
            node.name
        ));
    }
    node_labels(flags, &mut findings);
    node_ips(&flags.node_ip, &mut node, &mut findings);
    if flags.exit_on_lock_contention && flags.lock_file.is_empty() {
        findings.add(
            "--exit-on-lock-contention",
            "cannot exit on lock file contention: no lock file specified; add --lock-file",
        );
    }
    if !matches!(flags.link_profile.as_str(), "" | "metered") {
        findings.add("--link-profile", format!("{:?} is neither empty nor \"metered\"", flags.link_profile));
    }
    if !matches!(flags.cloud_provider.as_str(), "" | "external") {
        let problem = format!(
            "the {:?} cloud provider is disabled; run its cloud controller manager and use --cloud-provider=external",
            flags.cloud_provider
        );
        findings.add("--cloud-provider", problem);
    }
    credential_providers(flags, &mut findings);
    if let Some(word) = args.value("version").and_then(Value::as_str)
        && !matches!(word, "true" | "false" | "raw")
        && !word.starts_with('v')
    {
        findings.add("--version", format!("{word:?} is not true, false, raw or a version like v1.36.0"));
    }
    if let Err(why) = cidrs(&flags.service_cidr) {
        findings.add("--service-cidr", why);
    }
    if let Err(why) = port_range(&flags.service_node_port_range) {
        findings.add("--service-node-port-range", why);
    }
    if args.value("root-dir").is_some_and(|given| given == "") {
        findings.add("--root-dir", "must not be empty; the default is /var/lib/kubelet");
    }
    if findings.0.is_empty() { Ok(node) } else { Err(findings) }
}

fn node_name(flags: &AgentFlags, environment: &Environment) -> String {
    let given = flags.hostname_override.trim();
    if given.is_empty() { environment.hostname.trim() } else { given }.to_lowercase()
}

fn is_subdomain(name: &str) -> bool {
    let part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !part.is_empty()
            && part.bytes().all(|byte| inner(byte) || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

/// Kubernetes' own label keys that a kubelet may set on its node.
const ALLOWED_KEYS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const ALLOWED_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

fn node_labels(flags: &AgentFlags, findings: &mut Findings) {
    let under = |prefix: &str, domain: &str| {
        prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let mut reserved = Vec::new();
    for (key, value) in &flags.node_labels {
        if !is_qualified_name(key) {
            findings.add(
                "--node-labels",
                format!(
                    "{key:?} is not a valid label key: [prefix/]name, with a name of at most 63 letters, \
                     digits, '-', '_' or '.', starting and ending with a letter or digit"
                ),
            );
            continue;
        }
        if !value.is_empty() && !is_name(value) {
            findings.add(
                "--node-labels",
                format!(
                    "{value:?} is not a valid value of {key}: must be empty, or at most 63 letters, digits, \
                     '-', '_' or '.', starting and ending with a letter or digit"
                ),
            );
        }
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let kubernetes = under(prefix, "kubernetes.io") || under(prefix, "k8s.io");
        let allowed = ALLOWED_KEYS.contains(&key.as_str())
            || ALLOWED_PREFIXES.iter().any(|domain| under(prefix, domain));
        if kubernetes && !allowed {
            reserved.push(key.as_str());
        }
    }
    if !reserved.is_empty() {
        let problem = format!(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]; labels in the \
             'kubernetes.io' namespace must begin with an allowed prefix ({}) or be in the specifically allowed set \
             ({})",
            reserved.join(" "),
            ALLOWED_PREFIXES.join(", "),
            ALLOWED_KEYS.join(", ")
        );
        findings.add("--node-labels", problem);
    }
}

pub(super) fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

pub(super) fn is_name(name: &str) -> bool {
    let edge = |letter: char| letter.is_ascii_alphanumeric();
    (1..=63).contains(&name.len())
        && name.chars().all(|letter| edge(letter) || "-_.".contains(letter))
        && name.starts_with(edge)
        && name.ends_with(edge)
}

/// Entries that do not parse are dropped with a warning; the remaining list is validated.
fn node_ips(text: &str, node: &mut NodeSettings, findings: &mut Findings) {
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        match parse_sloppy(entry) {
            Some(address) => node.addresses.push(address),
            None => node.warnings.push(format!("Could not parse node IP {entry:?}; ignored")),
        }
    }
    for address in &node.addresses {
        if is_unreachable(*address) {
            findings.add(
                "--node-ip",
                format!("{address} cannot be a node address; use one that other machines can reach"),
            );
        }
    }
    match node.addresses.as_slice() {
        [] | [_] => {}
        [first, second] if first.is_ipv4() != second.is_ipv4() => {
            if first.is_unspecified() || second.is_unspecified() {
                findings.add("--node-ip", "dual-stack addresses cannot include 0.0.0.0 or ::");
            }
        }
        _ => findings.add("--node-ip", "must contain either a single IP or a dual-stack pair of IPs"),
    }
}

fn is_unreachable(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    link_local || address.is_loopback() || address.is_multicast()
}

/// As old Go releases parse them: leading zeros in IPv4 octets are decimal.
pub(in crate::agent) fn parse_sloppy(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let octets: Vec<u8> = text
        .split('.')
        .map(|octet| octet.bytes().all(|byte| byte.is_ascii_digit()).then(|| octet.parse().ok())?)
        .collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(IpAddr::from)
}

/// As upstream, a kubeconfig may be missing if there is a bootstrap kubeconfig to create it with.
pub(in crate::agent::config) fn kubeconfig(flags: &AgentFlags) -> Result<(), Findings> {
    let mut findings = Findings::default();
    let is_there = |path: &str| !path.is_empty() && Path::new(path).is_file();
    let (own, first) = (&flags.kubeconfig, &flags.bootstrap_kubeconfig);
    if !own.is_empty() && !is_there(own) && !is_there(first) {
        let (flag, path) =
            if first.is_empty() { ("--kubeconfig", own) } else { ("--bootstrap-kubeconfig", first) };
        findings.add(
            flag,
            format!("{path} does not exist or is not a regular file; correct the path or remove the flag"),
        );
    }
    if findings.0.is_empty() { Ok(()) } else { Err(findings) }
}

fn credential_providers(flags: &AgentFlags, findings: &mut Findings) {
    let (config, directory) =
        (&flags.image_credential_provider_config, &flags.image_credential_provider_bin_dir);
    match (config.is_empty(), directory.is_empty()) {
        (true, true) => {}
        (false, true) => findings.add(
            "--image-credential-provider-bin-dir",
            "must be set with --image-credential-provider-config",
        ),
        (true, false) => findings.add(
            "--image-credential-provider-config",
            "must be set with --image-credential-provider-bin-dir",
        ),
        (false, false) => {
            if !Path::new(directory).is_dir() {
                findings
                    .add("--image-credential-provider-bin-dir", format!("{directory} is not a directory"));
            }
            if !Path::new(config).exists() {
                findings.add("--image-credential-provider-config", format!("{config} does not exist"));
            }
        }
    }
}
