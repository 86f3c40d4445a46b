//! Which kernel parameters a pod may set: the safe ones, and those that the configuration allows.

use super::{NodeFacts, Rejection};
use crate::model::api::pod::Pod;

/// The namespace of a parameter; the words are upstream's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
    Unknown,
}

/// Safe parameters and the first kernel that keeps them per namespace.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

pub(super) fn check(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    let sysctls = pod.spec.security_context.as_ref().map(|security| security.sysctls.as_slice());
    for sysctl in sysctls.unwrap_or_default() {
        if let Err(why) = check_one(&normalized(&sysctl.name), pod, node) {
            return Err(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {why}")));
        }
    }
    Ok(())
}

fn check_one(name: &str, pod: &Pod, node: &NodeFacts) -> Result<(), String> {
    let safe = SAFE.iter().any(|(safe, since)| *safe == name && node.kernel >= *since);
    let allowed = node.allowed_unsafe_sysctls.iter().any(|pattern| {
        let pattern = normalized(pattern);
        pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
    });
    if !safe && !allowed {
        return Err(format!("{name:?} not allowlisted"));
    }
    let shared_with_host = match namespace(name) {
        Namespace::Ipc if pod.spec.host_ipc => "IPC",
        Namespace::Net if pod.spec.host_network => "Net",
        _ => return Ok(()),
    };
    Err(format!("{name:?} not allowed with host {shared_with_host} enabled"))
}

fn namespace(name: &str) -> Namespace {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) {
        Namespace::Ipc
    } else if name.starts_with("net.") {
        Namespace::Net
    } else {
        Namespace::Unknown
    }
}

/// With dots between the parts. A name written with slashes may have dots within its parts
/// (`net/ipv4/conf/eth0.1/rp_filter`): these become slashes, as sysctl(8) has it.
fn normalized(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name[first..].starts_with('/') => {
            let swap = |c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}
