//! What kubeadm demands of its configuration, in its words.
//!
//! Pure: settings in, complaints out.

use std::net::IpAddr;
use std::path::Path;

use super::{ClusterConfig, Etcd, InitSettings};
use crate::cluster::discovery::jws;
use crate::model::cidr::Cidr;
use crate::model::names;

/// As kubeadm of this minor release.
const OLDEST_MINOR: u64 = 35;
const KNOWN_GATES: [&str; 3] = ["NodeLocalCRISocket", "PublicKeysECDSA", "RootlessControlPlane"];
const ALGORITHMS: [&str; 5] = ["RSA-2048", "RSA-3072", "RSA-4096", "ECDSA-P256", "ECDSA-P384"];
const MODES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
/// Of a subnet of services and of pods.
const FEWEST_SERVICES: u64 = 10;
const FEWEST_PODS: u64 = 14;
/// Bits of a subnet's addresses, as in upstream's allocators.
const MOST_HOST_BITS: u8 = 20;
const MOST_NODE_BITS: u8 = 16;

#[derive(Default)]
struct Complaints(Vec<String>);

impl Complaints {
    fn invalid(&mut self, path: &str, value: &str, why: &str) {
        self.0.push(format!("{path}: Invalid value: {value:?}: {why}"));
    }

    fn all(&mut self, path: &str, value: &str, reasons: &[String]) {
        for why in reasons {
            self.invalid(path, value, why);
        }
    }

    fn absolute(&mut self, path: &str, value: &Path) {
        if !value.is_absolute() {
            self.invalid(path, &super::path(value), "path is not absolute");
        }
    }
}

/// Checks the whole; several complaints are listed in brackets.
pub(super) fn check(settings: &InitSettings, warnings: &mut Vec<String>) -> Result<(), String> {
    let mut found = Complaints::default();
    let (node, cluster) = (&settings.node, &settings.cluster);
    found.all("nodeRegistration.name", &node.name, &names::dns_subdomain(&node.name));
    if !MODES.contains(&node.image_pull_policy.as_str()) {
        found.0.push(format!(
            "nodeRegistration.imagePullPolicy: Unsupported value: {:?}: supported values: \"Always\", \"IfNotPresent\", \
             \"Never\"",
            node.image_pull_policy
        ));
    }
    if !settings.certificate_key.is_empty() && !is_key(&settings.certificate_key) {
        found.invalid("certificateKey", "<value withheld>", "must be 32 bytes in hexadecimal");
    }
    for (index, token) in settings.tokens.iter().enumerate() {
        let at = |field: &str| format!("bootstrapTokens[{index}].{field}");
        if token.expires.is_some() && !token.ttl.is_zero() {
            found.invalid(
                &at("ttl"),
                &token.ttl.to_string(),
                "the field .ttl is mutually exclusive with .expires",
            );
        }
        for usage in
            token.usages.iter().filter(|usage| !["signing", "authentication"].contains(&usage.as_str()))
        {
            found.invalid(&at("usages"), usage, "valid usages are \"signing\" and \"authentication\"");
        }
        if !token.groups.is_empty() && !token.usages.iter().any(|usage| usage == "authentication") {
            found.invalid(
                &at("groups"),
                &token.groups.join(","),
                "token groups cannot be specified unless --usages includes \"authentication\"",
            );
        }
        for group in token.groups.iter().filter(|group| !is_group(group)) {
            found.invalid(
                &at("groups"),
                group,
                "bootstrap group is invalid: must match \\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\\z",
            );
        }
    }
    cluster_config(cluster, &mut found);
    if cluster.gate("RootlessControlPlane", false) {
        warnings.push(
            "featureGates: RootlessControlPlane has no effect here: the static pods run as root".to_owned(),
        );
    }
    if cluster.validity > cluster.ca_validity {
        warnings.push(format!(
            "certificateValidityPeriod: the value {} is more than caCertificateValidityPeriod {}",
            cluster.validity, cluster.ca_validity
        ));
    }
    listed(&found.0)
}

pub(super) fn listed(complaints: &[String]) -> Result<(), String> {
    match complaints {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

fn cluster_config(cluster: &ClusterConfig, found: &mut Complaints) {
    found.absolute("certificatesDir", &cluster.cert_dir);
    found.all("networking.dnsDomain", &cluster.dns_domain, &names::dns_subdomain(&cluster.dns_domain));
    subnets("networking.serviceSubnet", &cluster.service_subnet, FEWEST_SERVICES, found);
    for range in cidrs(&cluster.service_subnet) {
        if width(range).saturating_sub(range.prefix()) > MOST_HOST_BITS {
            let most = width(range) - MOST_HOST_BITS;
            let why = format!(
                "specified service subnet is too large; for {}-bit addresses, the mask must be >= {most}",
                width(range)
            );
            found.invalid("networking.serviceSubnet", &cluster.service_subnet, &why);
        }
    }
    if !cluster.pod_subnet.is_empty() {
        subnets("networking.podSubnet", &cluster.pod_subnet, FEWEST_PODS, found);
        if cluster.controller_manager.argument("allocate-node-cidrs") != Some("false") {
            node_masks(cluster, found);
        }
    }
    if !ALGORITHMS.contains(&cluster.algorithm.as_str()) {
        let why = format!("must be one of {}", ALGORITHMS.join(", "));
        found.invalid("encryptionAlgorithm", &cluster.algorithm, &why);
    }
    for name in cluster.feature_gates.keys().filter(|name| !KNOWN_GATES.contains(&name.as_str())) {
        found.invalid("featureGates", name, "is not a valid feature name.");
    }
    if !cluster.control_plane_endpoint.is_empty() {
        control_plane_endpoint(&cluster.control_plane_endpoint, found);
    }
    for (index, san) in cluster.api_server_sans.iter().enumerate() {
        alternative_name(&format!("apiServer.certSANs[{index}]"), san, found);
    }
    match &cluster.etcd {
        Etcd::Local(local) => {
            found.absolute("etcd.local.dataDir", &local.data_dir);
            for (list, path) in [(&local.server_sans, "serverCertSANs"), (&local.peer_sans, "peerCertSANs")] {
                for san in list {
                    alternative_name(&format!("etcd.local.{path}"), san, found);
                }
            }
        }
        Etcd::External(external) => {
            let files = [&external.ca_file, &external.cert_file, &external.key_file];
            let is_plain = files.iter().all(|file| file.is_empty());
            if external.endpoints.is_empty() {
                found.invalid("etcd.external.endpoints", "", "at least one endpoint is required");
            }
            for endpoint in &external.endpoints {
                let is_good = endpoint.starts_with("https://") || is_plain && endpoint.starts_with("http://");
                if !is_good {
                    let why = "the URL must be using the HTTPS scheme";
                    found.invalid("etcd.external.endpoints", endpoint, why);
                }
            }
            if external.cert_file.is_empty() != external.key_file.is_empty() {
                let why =
                    "either both or none of .Etcd.External.CertFile and .Etcd.External.KeyFile must be set";
                found.invalid("etcd.external", "", why);
            } else if !external.cert_file.is_empty() && external.ca_file.is_empty() {
                let why = "setting .Etcd.External.CertFile and .Etcd.External.KeyFile requires .Etcd.External.CAFile";
                found.invalid("etcd.external", "", why);
            }
            for file in files.into_iter().filter(|file| !file.is_empty()) {
                found.absolute("etcd.external", Path::new(file));
            }
        }
    }
}

fn width(range: Cidr) -> u8 {
    if range.network().is_ipv4() { 32 } else { 128 }
}

fn cidrs(text: &str) -> Vec<Cidr> {
    text.split(',').filter_map(|part| part.trim().parse().ok()).collect()
}

/// One subnet, or two of different families.
fn subnets(path: &str, text: &str, fewest: u64, found: &mut Complaints) {
    let ranges = cidrs(text);
    if ranges.len() != text.split(',').count() {
        return found.invalid(path, text, "couldn't parse subnet");
    }
    match ranges.as_slice() {
        [_] => {}
        [one, other] if width(*one) != width(*other) => {}
        _ => found.invalid(
            path,
            text,
            "expected one (IPv4 or IPv6) CIDR or two CIDRs from each family for dual-stack networking",
        ),
    }
    for range in ranges.iter().filter(|range| range.len() < fewest) {
        let why = format!("subnet with {} address(es) is too small, the minimum is {fewest}", range.len());
        found.invalid(path, text, &why);
    }
}

/// Every node gets a part of the pods' subnet.
fn node_masks(cluster: &ClusterConfig, found: &mut Complaints) {
    for range in cidrs(&cluster.pod_subnet) {
        let (name, default) = match width(range) {
            32 => ("node-cidr-mask-size-ipv4", 24),
            _ => ("node-cidr-mask-size-ipv6", 64),
        };
        let given = &cluster.controller_manager;
        let given = given.argument(name).or_else(|| given.argument("node-cidr-mask-size"));
        let mask = given.and_then(|mask| mask.parse().ok()).unwrap_or(default);
        if range.prefix() > mask {
            let why = format!(
                "the size of pod subnet with mask {} is smaller than the size of node subnet with mask {mask}",
                range.prefix()
            );
            found.invalid("networking.podSubnet", &cluster.pod_subnet, &why);
        } else if mask - range.prefix() > MOST_NODE_BITS {
            let why = format!(
                "pod subnet mask ({}) and node-mask ({mask}) difference is greater than {MOST_NODE_BITS}",
                range.prefix()
            );
            found.invalid("networking.podSubnet", &cluster.pod_subnet, &why);
        }
    }
}

/// Host and port of `host:port`; brackets of an IPv6 address are removed.
pub(crate) fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None if text.matches(':').count() > 1 => (text, ""),
        None => text.find(':').map_or((text, ""), |at| text.split_at(at)),
    };
    match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0).map(|port| (host, Some(port))),
        None => port.is_empty().then_some((host, None)),
    }
}

fn control_plane_endpoint(text: &str, found: &mut Complaints) {
    let is_host = |host: &str| host.parse::<IpAddr>().is_ok() || names::dns_subdomain(host).is_empty();
    if !host_and_port(text).is_some_and(|(host, _)| is_host(host)) {
        let why = "must be an IP address or a DNS name, optionally with a port between 1 and 65535";
        found.invalid("controlPlaneEndpoint", text, why);
    }
}

fn alternative_name(path: &str, san: &str, found: &mut Complaints) {
    let is_name = names::dns_subdomain(san.strip_prefix("*.").unwrap_or(san)).is_empty();
    if san.parse::<IpAddr>().is_err() && !is_name {
        let why = "altname is not a valid IP address, DNS label or a DNS label with subdomain wildcards";
        found.invalid(path, san, why);
    }
}

fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    rest.len() <= 256
        && rest.bytes().all(|byte| plain(byte) || byte == b':' || byte == b'-')
        && rest.bytes().last().is_some_and(plain)
}

/// Identifier and secret of a token.
pub(crate) fn token(text: &str) -> Result<(String, String), String> {
    jws::BootstrapToken::parse(text).map(|token| (token.id, token.secret))
}

/// An algorithm that this program can generate keys of.
pub(crate) fn own_algorithm(field: &str, given: &str) -> Result<(), String> {
    if !given.starts_with("RSA-") {
        return Ok(());
    }
    Err(format!(
        "{field}: Invalid value: {given:?}: RSA keys cannot be generated here: use ECDSA-P256; existing RSA \
         keys and certificates are used"
    ))
}

/// A version with its `v`. Labels such as `stable-1` mean the agent's own: no server is asked.
pub(super) fn version(given: &str, own: &str) -> Result<String, String> {
    let is_label = ["stable", "latest", "release/", "ci/"].iter().any(|label| given.starts_with(label));
    if given.is_empty() || is_label {
        return Ok(own.to_owned());
    }
    let plain = given.strip_prefix('v').unwrap_or(given);
    let numbers = plain.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<u64> = numbers.split('.').map_while(|part| part.parse().ok()).collect();
    let [major, minor, _] = numbers[..] else {
        return Err(format!(
            "version {given:?} doesn't match patterns for neither semantic version nor labels (stable, latest, ...)"
        ));
    };
    if (major, minor) < (1, OLDEST_MINOR) {
        return Err(format!(
            "this version of kubeadm only supports deploying clusters with the control plane version >= \
             1.{OLDEST_MINOR}.0. Current version: v{plain}"
        ));
    }
    Ok(format!("v{plain}"))
}
