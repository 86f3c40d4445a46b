//! Ports, proxies, routes, the machine's name.

use std::net::IpAddr;
use std::path::Path;

use super::{MachineFacts, PreflightFinding, Purpose, path_name};
use crate::model::cidr::Cidr;
use crate::model::names;
use crate::platform::http::named_proxy;
use crate::platform::sys::listeners::Listener;
use crate::runtime::embedded::network::subnet::Subnet;

const NO_PROXY: &str = "NO_PROXY";

/// Whether two sockets cannot be bound at the same time.
fn collide(one: IpAddr, other: IpAddr) -> bool {
    one == other || one.is_unspecified() || other.is_unspecified()
}

/// Of kube-scheduler and kube-controller-manager.
const COMPONENT_PORTS: [u16; 2] = [10259, 10257];
/// Of etcd's clients and peers.
pub(super) const ETCD_PORTS: [u16; 2] = [2379, 2380];

/// The ports of the control plane on this machine, but for etcd's.
pub(super) fn control_plane_ports(wanted: &Purpose) -> Vec<u16> {
    [&[wanted.needs.bind_port], &COMPONENT_PORTS[..]].concat()
}

pub(super) fn control_plane(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    every(facts, &control_plane_ports(wanted))
}

pub(super) fn etcd(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    if wanted.needs.etcd_dir.is_some() { every(facts, &ETCD_PORTS) } else { Vec::new() }
}

/// Upstream's check: nothing listens on any address, an agent neither.
fn every(facts: &MachineFacts, ports: &[u16]) -> Vec<PreflightFinding> {
    let any = IpAddr::from([0, 0, 0, 0]);
    let wanted = |port: &u16| super::WantedPort { address: any, port: *port, setting: "" };
    ports.iter().map(|port| of_port(facts, &wanted(port))).collect()
}

pub(super) fn kubelet(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    wanted.ports.iter().map(|port| of_port(facts, port)).collect()
}

fn of_port(facts: &MachineFacts, port: &super::WantedPort) -> PreflightFinding {
    let name = format!("Port-{}", port.port);
    let holder =
        facts.listeners.iter().find(|there| there.port == port.port && collide(there.address, port.address));
    let Some(Listener { address, process, .. }) = holder else {
        return PreflightFinding::ok(&name, "free");
    };
    let (who, is_agent) = match process {
        Some((program, pid)) => (format!(" by {program} (process {pid})"), program == "agent"),
        None => (String::new(), false),
    };
    let seen = format!("{address} in use{who}");
    let fix = match port.setting {
        // Of a control plane that is there already.
        "" => "stop the process; if it is of an earlier control plane, undo that first".to_owned(),
        _ if is_agent => return PreflightFinding::ok(&name, seen),
        setting => format!("stop the process, or set {setting} in the configuration to another port"),
    };
    let finding = PreflightFinding::error(&name, seen, format!("Port {} is in use{who}", port.port))
        .required("free")
        .fix(fix);
    match process {
        Some((_, pid)) => finding.command(format!("systemctl status {pid}")),
        None => finding.command(format!("ss -tlnp sport = :{}", port.port)),
    }
}

/// kubeadm's check, that the components' connections go through no proxy; and of the agent's own connections, image pulls,
/// that they use the service's environment, not this shell's.
pub(super) fn proxies(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "HTTPProxy";
    let mut findings = Vec::new();
    let host = &wanted.needs.host;
    if let Some((url, proxy)) = proxied(facts, host).filter(|_| !host.is_empty()) {
        let message = format!(
            "Connection to {url:?} uses proxy {proxy:?}. If that is not intended, adjust your proxy settings"
        );
        findings.push(
            PreflightFinding::warning(NAME, proxy, message)
                .required("no proxy")
                .fix("name the host in NO_PROXY")
                .command(format!("export NO_PROXY=\"$NO_PROXY,{host}\"")),
        );
    }
    let proxies = facts.proxies.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(NO_PROXY));
    let proxies: Vec<_> = proxies.filter(|_| wanted.task != super::PreflightTask::Instance).collect();
    let is_missing = |(name, _): &&&(String, String)| {
        let name = name.to_ascii_uppercase();
        !facts.service_environment.to_ascii_uppercase().contains(&format!("{name}="))
    };
    let missing: Vec<_> = proxies.iter().filter(is_missing).collect();
    let Some((name, value)) = missing.first() else {
        if findings.is_empty() {
            let seen = if proxies.is_empty() {
                "no proxy"
            } else {
                "the service's proxies are set in /etc/default/agent"
            };
            findings.push(PreflightFinding::ok(NAME, seen));
        }
        return findings;
    };
    let shown = without_user(value);
    let message = format!(
        "this shell uses proxy \"{shown}\" ({name}), but the service does not: it pulls images without a proxy"
    );
    let finding = PreflightFinding::warning(NAME, format!("{name}={shown}"), message)
        .required("the same in /etc/default/agent")
        .fix("set it there, with NO_PROXY for local registries");
    findings.push(missing.iter().fold(finding, |finding, (name, _)| {
        finding.command(format!("echo \"{name}=${name}\" >> /etc/default/agent"))
    }));
    findings
}

/// The same for the first address of every subnet of Services and pods.
pub(super) fn proxies_of_subnets(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "HTTPProxyCIDR";
    let finding = |subnet: &String| {
        let Some(first) = subnet.parse::<Cidr>().ok().and_then(|range| range.at(1)) else {
            let message = format!("error parsing CIDR {subnet:?}: invalid CIDR address: {subnet}");
            return PreflightFinding::error(NAME, subnet.clone(), message)
                .required("an address and a prefix")
                .fix("correct the subnet in the configuration");
        };
        let Some((_, proxy)) = proxied(facts, &first.to_string()) else {
            return PreflightFinding::ok(NAME, format!("{subnet}: no proxy"));
        };
        let message = format!(
            "connection to {subnet:?} uses proxy {proxy:?}. This may lead to malfunctional cluster setup. Make sure that \
             Pod and Services IP ranges specified correctly as exceptions in proxy configuration"
        );
        PreflightFinding::warning(NAME, proxy, message)
            .required("no proxy")
            .fix("name the range in NO_PROXY")
            .command(format!("export NO_PROXY=\"$NO_PROXY,{subnet}\""))
    };
    wanted.needs.cidrs.iter().map(finding).collect()
}

/// The URL that is asked for, and the proxy that the environment names for it.
fn proxied(facts: &MachineFacts, host: &str) -> Option<(String, String)> {
    let url = if host.contains(':') { format!("https://[{host}]:1234") } else { format!("https://{host}") };
    let value = |name: &str| {
        let set = facts.proxies.iter().find(|(known, _)| known == name);
        set.map(|(_, value)| value.clone())
    };
    let proxy = named_proxy(&url, &value)?;
    Some((url, without_user(&proxy)))
}

/// A proxy's address may contain a password.
fn without_user(proxy: &str) -> String {
    let Some((front, host)) = proxy.rsplit_once('@') else { return proxy.to_owned() };
    let scheme = front.split_once("://").map(|(scheme, _)| [scheme, "://"].concat());
    scheme.unwrap_or_default() + host
}

pub(super) fn hostname(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "Hostname";
    let name =
        if wanted.node_name.is_empty() { facts.hostname.to_lowercase() } else { wanted.node_name.clone() };
    let warn = |message: String| {
        PreflightFinding::warning(NAME, name.clone(), message)
            .required("a unique name of at most 63 letters, digits, '-', '_' and '.'")
            .fix("set a unique host name: it becomes part of pod names")
            .command("hostnamectl set-hostname NAME")
    };
    let wrong = names::qualified_name(&name);
    if !wrong.is_empty() {
        return vec![warn(format!("invalid node name format {name:?}: {}", wrong.join(", ")))];
    }
    vec![if name == "localhost" {
        warn("the host name is localhost, which is not unique".to_owned())
    } else if let Some(error) = &facts.lookup_error {
        PreflightFinding::warning(
            NAME,
            name.clone(),
            format!("hostname {name:?} could not be reached: {error}"),
        )
        .required("an address of this name")
        .fix("add the name to DNS, or to /etc/hosts")
        .command(format!("echo 127.0.1.1 {name} >> /etc/hosts"))
    } else {
        PreflightFinding::ok(NAME, name)
    }]
}

/// Of both families: whether it is IPv4, the file, and the setting that lasts.
const FORWARDING: [(bool, &str, &str); 2] = [
    (true, "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
    (false, "/proc/sys/net/ipv6/conf/default/forwarding", "net.ipv6.conf.all.forwarding"),
];

pub(super) fn forwarding(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let mut findings = Vec::new();
    for (is_ipv4, path, setting) in FORWARDING {
        let is_of_family = |text: &String| {
            let address = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
            address.is_ok_and(|address| address.is_ipv4() == is_ipv4)
        };
        let needs = &wanted.needs;
        let is_used = needs.cidrs.iter().chain([&needs.host]).any(is_of_family);
        let is_needed = is_used || wanted.is_alone() && is_ipv4;
        if !is_needed {
            continue;
        }
        let name = path_name("FileContent", Path::new(path));
        let forwards = if is_ipv4 { facts.ipv4_forwarding } else { facts.ipv6_forwarding };
        findings.push(match forwards {
            Some(true) => PreflightFinding::ok(&name, "1"),
            // The embedded runtime enables it with the first pod that needs it.
            Some(false) if wanted.is_embedded && !wanted.is_control_plane() => {
                PreflightFinding::ok(&name, "0; enabled when the first pod needs it")
            }
            Some(false) => PreflightFinding::error(&name, "0", format!("{path} contents are not set to 1"))
                .required("1")
                .fix("enable it, also for later boots")
                .command(format!("echo {setting}=1 >> /etc/sysctl.d/99-agent.conf && sysctl --system")),
            None if wanted.is_alone() => {
                PreflightFinding::warning(&name, "no IPv4", format!("{path} does not exist"))
                    .required("IPv4")
                    .fix("pods get IPv6 addresses only")
            }
            None => PreflightFinding::error(&name, "absent", format!("{path} does not exist"))
                .required("a kernel with this family of addresses")
                .fix("use addresses and subnets of the other family"),
        });
    }
    findings
}

pub(super) fn default_route(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "DefaultRoute";
    if !facts.default_routes.is_empty() {
        return vec![PreflightFinding::ok(NAME, facts.default_routes.join(", "))];
    }
    let message = "no default route: pods run, but there is no Internet access, and images cannot be pulled";
    vec![
        PreflightFinding::warning(NAME, "none", message)
            .required("a default route")
            .fix("bring the network up, or put image archives into the images directory")
            .command("ip route"),
    ]
}

/// A subnet in which the node already has neighbours is an error: the pod network would cut it off from them.
pub(super) fn pod_cidr(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "PodCIDR";
    let clash = |subnet: &Subnet| {
        let route = facts.routes.iter().find(|route| {
            // A wider route through a gateway is how a cluster reaches the pods of all nodes.
            let is_wider = route.by_gateway && route.prefix < subnet.prefix();
            route.link != wanted.bridge && !is_wider && subnet.overlaps(route.network, route.prefix)
        })?;
        let seen = format!("{}/{} on {}", route.network, route.prefix, route.link);
        let message = format!(
            "pod network {subnet} overlaps with {seen}: pods without hostNetwork: true would not start"
        );
        let finding = PreflightFinding::warning(NAME, seen, message)
            .required("an unused range")
            .fix("set another podCIDR in the configuration, such as 10.99.0.0/24");
        Some(finding)
    };
    let ranges: Vec<String> = wanted.subnets.iter().map(Subnet::to_string).collect();
    match wanted.subnets.iter().find_map(clash) {
        Some(finding) => vec![finding],
        None if ranges.is_empty() => Vec::new(),
        None => vec![PreflightFinding::ok(NAME, ranges.join(", "))],
    }
}
