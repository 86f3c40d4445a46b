//! DNS of a pod: its policy applied to the node's resolv.conf and the cluster's servers.

use crate::model::api::pod::{Pod, PodDnsConfig};
use crate::model::runtime_config::DnsConfig;

/// As many as the resolver of the C library reads.
const SERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARACTERS_MAX: usize = 2048;

/// The node's resolver configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvConfSource {
    /// Content of the file at `resolvConf`, parsed.
    Parsed(DnsConfig),
    /// `resolvConf: ""`: pods get no resolver but themselves.
    Disabled,
}

/// What the DNS of a pod depends on besides the pod.
#[derive(Clone, Copy, Debug)]
pub struct DnsContext<'a> {
    /// The node's own.
    pub host: &'a ResolvConfSource,
    pub cluster_dns: &'a [String],
    /// `clusterDomain`; may be empty.
    pub cluster_domain: &'a str,
    /// Addresses of the node: their families decide the loopback address of a disabled resolver.
    pub node_ips: &'a [String],
}

/// A problem for the user; each is a Warning event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsProblem {
    /// `MissingClusterDNS` or `DNSConfigForming`.
    pub reason: &'static str,
    pub message: String,
}

/// Parses resolv.conf. The last `search` and the last `options` line win; unknown lines are skipped.
#[must_use]
pub fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                let domains = words.filter(|domain| *domain != ".");
                config.searches =
                    domains.map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned()).collect();
            }
            Some("options") => config.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    config
}

/// The resolver configuration of a pod's sandbox, and the problems with it.
#[must_use]
pub fn pod_dns(pod: &Pod, context: &DnsContext<'_>) -> (DnsConfig, Vec<DnsProblem>) {
    let mut problems = Vec::new();
    let cluster_first = match pod.spec.dns_policy.as_str() {
        "None" => {
            let mut config = DnsConfig::default();
            append(&mut config, pod.spec.dns_config.as_ref());
            limit(&mut config, &mut problems);
            return (config, problems);
        }
        "Default" => false,
        "ClusterFirstWithHostNet" => true,
        _ => !pod.spec.host_network,
    };
    let mut config = if cluster_first && !context.cluster_dns.is_empty() {
        cluster_config(pod, context)
    } else {
        host_config(context)
    };
    // Upstream reports this for every pod. On a node without a cluster it is normal: ClusterFirst is the
    // API's default. `ClusterFirstWithHostNet` is never a default, so it is reported.
    let policy = pod.spec.dns_policy.as_str();
    if context.cluster_dns.is_empty() && policy == "ClusterFirstWithHostNet" {
        let message = format!(
            "pod: \"{}\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"{policy}\" \
             policy. Falling back to \"Default\" policy.",
            pod.pod_ref()
        );
        problems.push(DnsProblem { reason: "MissingClusterDNS", message });
    }
    append(&mut config, pod.spec.dns_config.as_ref());
    limit(&mut config, &mut problems);
    (config, problems)
}

fn cluster_config(pod: &Pod, context: &DnsContext<'_>) -> DnsConfig {
    let mut searches = Vec::new();
    if !context.cluster_domain.is_empty() {
        let (namespace, domain) = (&pod.metadata.namespace, context.cluster_domain);
        searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
    }
    if let ResolvConfSource::Parsed(host) = context.host {
        searches.extend(host.searches.clone());
    }
    DnsConfig {
        servers: context.cluster_dns.to_vec(),
        searches: without_repeats(searches),
        options: vec!["ndots:5".to_owned()],
    }
}

fn host_config(context: &DnsContext<'_>) -> DnsConfig {
    match context.host {
        ResolvConfSource::Parsed(host) => host.clone(),
        ResolvConfSource::Disabled => {
            let loopback = |ip: &String| if ip.contains(':') { "::1" } else { "127.0.0.1" }.to_owned();
            let mut servers: Vec<String> = context.node_ips.iter().map(loopback).collect();
            if servers.is_empty() {
                servers.push("127.0.0.1".to_owned());
            }
            let servers = without_repeats(servers);
            DnsConfig { servers, searches: vec![".".to_owned()], options: Vec::new() }
        }
    }
}

/// Adds the pod's own DNS configuration; its options replace those of the same name.
fn append(config: &mut DnsConfig, wished: Option<&PodDnsConfig>) {
    let Some(wished) = wished else { return };
    config.servers.extend(wished.nameservers.clone());
    config.servers = without_repeats(std::mem::take(&mut config.servers));
    config.searches.extend(wished.searches.clone());
    config.searches = without_repeats(std::mem::take(&mut config.searches));
    for option in &wished.options {
        let text = match option.value.as_deref() {
            Some(value) if !value.is_empty() => format!("{}:{value}", option.name),
            _ => option.name.clone(),
        };
        let name = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        match config.options.iter_mut().find(|known| name(known) == option.name) {
            Some(known) => *known = text,
            None => config.options.push(text),
        }
    }
}

fn limit(config: &mut DnsConfig, problems: &mut Vec<DnsProblem>) {
    let mut exceeded = |what: &str, line: &str| {
        problems.push(DnsProblem { reason: "DNSConfigForming", message: format!("{what} is: {line}") });
    };
    if config.servers.len() > SERVERS_MAX {
        config.servers.truncate(SERVERS_MAX);
        exceeded(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line",
            &config.servers.join(" "),
        );
    }
    let fitting = fitting_searches(&config.searches);
    if fitting < config.searches.len() {
        config.searches.truncate(fitting);
        exceeded(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line",
            &config.searches.join(" "),
        );
    }
}

/// How many search paths fit into the line.
fn fitting_searches(searches: &[String]) -> usize {
    let mut characters = 0;
    let fits = |search: &&String| {
        characters += search.len() + usize::from(characters > 0);
        characters <= SEARCH_CHARACTERS_MAX
    };
    searches.iter().take(SEARCHES_MAX).take_while(fits).count()
}

/// Whether the node's own resolv.conf can be honoured: what to report once (`CheckLimitsForResolvConf`).
#[must_use]
pub fn check_host_limits(host: &DnsConfig, path: &str) -> Option<String> {
    if host.servers.len() > SERVERS_MAX {
        return Some(format!(
            "Resolv.conf file '{path}' contains more than {SERVERS_MAX} nameservers: only the first are used"
        ));
    }
    if host.searches.len() > SEARCHES_MAX {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {SEARCHES_MAX} domains!"
        ));
    }
    (fitting_searches(&host.searches) < host.searches.len()).then(|| {
        format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed \
             {SEARCH_CHARACTERS_MAX} chars!"
        )
    })
}

fn without_repeats(words: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for word in words {
        if !kept.contains(&word) {
            kept.push(word);
        }
    }
    kept
}
