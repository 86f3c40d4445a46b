//! Ports, proxies, routes, the machine's name.

use std::net::IpAddr;

use super::{MachineFacts, PreflightFinding, Purpose};
use crate::platform::sys::listeners::Listener;
use crate::runtime::embedded::network::subnet::Subnet;

/// The longest node name that fits into a label.
const LONGEST_NAME: usize = 63;

/// Whether two sockets cannot be bound at the same time.
fn collide(one: IpAddr, other: IpAddr) -> bool {
    one == other || one.is_unspecified() || other.is_unspecified()
}

pub(super) fn ports(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let holder = |port: &super::WantedPort| {
        facts.listeners.iter().find(|there| there.port == port.port && collide(there.address, port.address))
    };
    let finding = |port: &super::WantedPort| {
        let name = format!("Port-{}", port.port);
        let Some(Listener { address, process, .. }) = holder(port) else {
            return PreflightFinding::ok(&name, "free");
        };
        let (who, is_agent) = match process {
            Some((program, pid)) => (format!(" by {program} (process {pid})"), program == "agent"),
            None => (String::new(), false),
        };
        let seen = format!("{address} in use{who}");
        if is_agent {
            return PreflightFinding::ok(&name, seen);
        }
        let fix = format!("stop the process, or set {} in the configuration to another port", port.setting);
        let finding = PreflightFinding::error(&name, seen, format!("Port {} is in use{who}", port.port))
            .required("free")
            .fix(fix);
        match process {
            Some((_, pid)) => finding.command(format!("systemctl status {pid}")),
            None => finding.command(format!("ss -tlnp sport = :{}", port.port)),
        }
    };
    wanted.ports.iter().map(finding).collect()
}

/// kubeadm warns that its own connections go through a proxy. The agent's are image pulls, and they use the
/// service's environment, not this shell's.
pub(super) fn proxies(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "HTTPProxy";
    let missing: Vec<_> = facts
        .proxies
        .iter()
        .filter(|(name, _)| {
            let name = name.to_ascii_uppercase();
            !facts.service_environment.to_ascii_uppercase().contains(&format!("{name}="))
        })
        .collect();
    let Some((name, value)) = missing.first() else {
        let seen = if facts.proxies.is_empty() {
            "no proxy"
        } else {
            "the service's proxies are set in /etc/default/agent"
        };
        return vec![PreflightFinding::ok(NAME, seen)];
    };
    // A proxy's address may contain a password.
    let shown = value.rsplit('@').next().unwrap_or_default();
    let message = format!(
        "this shell uses proxy \"{shown}\" ({name}), but the service does not: it pulls images without a proxy"
    );
    let finding = PreflightFinding::warning(NAME, format!("{name}={shown}"), message)
        .required("the same in /etc/default/agent")
        .fix("set it there, with NO_PROXY for local registries");
    vec![missing.iter().fold(finding, |finding, (name, _)| {
        finding.command(format!("echo \"{name}=${name}\" >> /etc/default/agent"))
    })]
}

pub(super) fn hostname(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "Hostname";
    let name =
        if wanted.node_name.is_empty() { facts.hostname.to_lowercase() } else { wanted.node_name.clone() };
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_label = name.len() <= LONGEST_NAME
        && is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let help = |finding: PreflightFinding| {
        finding
            .required("a unique name of at most 63 letters, digits, '-', '_' and '.'")
            .fix("set a unique host name: it becomes part of pod names")
            .command("hostnamectl set-hostname NAME")
    };
    vec![if !is_label {
        help(PreflightFinding::warning(NAME, name.clone(), format!("invalid node name format {name:?}")))
    } else if name == "localhost" {
        help(PreflightFinding::warning(NAME, name, "the host name is localhost, which is not unique"))
    } else {
        PreflightFinding::ok(NAME, name)
    }]
}

pub(super) fn forwarding(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "FileContent--proc-sys-net-ipv4-ip_forward";
    const PATH: &str = "/proc/sys/net/ipv4/ip_forward";
    vec![match facts.ipv4_forwarding {
        Some(true) => PreflightFinding::ok(NAME, "1"),
        // The embedded runtime enables it with the first pod that needs it.
        Some(false) if wanted.is_embedded && !wanted.control_plane => {
            PreflightFinding::ok(NAME, "0; enabled when the first pod needs it")
        }
        Some(false) => PreflightFinding::error(NAME, "0", format!("{PATH} contents are not set to 1"))
            .required("1")
            .fix("enable it, also for later boots")
            .command("echo net.ipv4.ip_forward=1 > /etc/sysctl.d/99-agent.conf && sysctl --system"),
        None => PreflightFinding::warning(NAME, "no IPv4", format!("{PATH} does not exist"))
            .required("IPv4")
            .fix("pods get IPv6 addresses only"),
    }]
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
