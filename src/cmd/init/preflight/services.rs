//! Neighbours: other kubelets, runtimes, firewalls, and their leftovers.

use std::path::PathBuf;

use super::{MachineFacts, PreflightFinding, Purpose};

/// Where every cluster looks for its kubelets.
const KUBELET_PORT: u16 = 10250;

/// Kubelets, and services that contain one: they use the same ports, cgroups and directories.
const KUBELETS: [&str; 8] = [
    "kubelet",
    "k3s",
    "k3s-agent",
    "k0scontroller",
    "k0sworker",
    "rke2-server",
    "rke2-agent",
    "snap.microk8s.daemon-kubelite",
];
/// Runtimes that use memory beside the agent.
const RUNTIMES: [&str; 3] = ["containerd", "docker", "crio"];

/// The socket of an endpoint; the embedded runtime has none.
pub(super) fn socket_path(endpoint: &str) -> PathBuf {
    PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint))
}

/// Upstream warns that the kubelet's service is missing. The agent's service is a different one, so here the
/// check warns that a kubelet is present.
pub(super) fn conflicts(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let mut findings = Vec::new();
    for name in KUBELETS {
        let service = facts.services.get(name).copied().unwrap_or_default();
        let check = format!("Service-{name}");
        let seen = match (service.process, service.enabled, service.installed) {
            (Some(pid), ..) => format!("running (process {pid})"),
            (None, true, _) => "started at boot".to_owned(),
            (None, false, true) => "installed, not started".to_owned(),
            _ => continue,
        };
        if service.process.is_none() && !service.enabled {
            findings.push(PreflightFinding::ok(&check, seen));
            continue;
        }
        let message = format!("{name} is {seen}: it conflicts with the agent over pods, ports and cgroups");
        let off = match facts.init_system {
            super::super::facts::InitSystem::OpenRc => {
                format!("rc-service {name} stop; rc-update del {name} default")
            }
            _ => format!("systemctl disable --now {name}"),
        };
        let finding = PreflightFinding::error(&check, seen, message).required("stopped and disabled");
        findings.push(match name {
            "k3s" => finding
                .fix("remove it, or stop and disable it; its containers keep running until they are killed")
                .command("k3s-killall.sh")
                .command(off),
            "kubelet" => finding
                .fix(
                    "stop and disable it; the agent can take over its pods on the same containerd \
                      (docs/migrating-from-kubelet.md)",
                )
                .command(off),
            _ => finding.fix("stop and disable it").command(off),
        });
    }
    for name in RUNTIMES {
        let service = facts.services.get(name).copied().unwrap_or_default();
        if let (Some(pid), true) = (service.process, wanted.is_embedded) {
            let seen = format!("running (process {pid})");
            let more =
                if name == "docker" { ", and its firewall rules drop forwarded pod traffic" } else { "" };
            let message =
                format!("{name} is running but not needed by the embedded runtime: it uses memory{more}");
            findings.push(
                PreflightFinding::warning(&format!("Service-{name}"), seen, message)
                    .required("not running")
                    .fix(
                        "stop it if nothing else uses it, or configure the agent to use it \
                          (--container-runtime-endpoint)",
                    )
                    .command(format!("systemctl disable --now {name}")),
            );
        }
    }
    if findings.is_empty() {
        findings.push(PreflightFinding::ok("Service-kubelet", "no kubelet, no k3s, no other runtime"));
    }
    findings
}

pub(super) fn firewalld(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "Firewalld";
    let service = facts.services.get("firewalld").copied().unwrap_or_default();
    let port = wanted.needs.bind_port;
    let Some(pid) = service.process.filter(|_| wanted.is_embedded || port > 0) else {
        return vec![PreflightFinding::ok(NAME, "not running")];
    };
    let seen = format!("running (process {pid})");
    let mut findings = Vec::new();
    if port > 0 {
        let ports = format!("ports [{port} {KUBELET_PORT}]");
        let message = format!(
            "firewalld is active, please ensure {ports} are open or your cluster may not function correctly"
        );
        findings.push(
            PreflightFinding::warning(NAME, seen.clone(), message).required(ports).fix("open them").command(
                format!(
                    "firewall-cmd --permanent --add-port={port}/tcp --add-port={KUBELET_PORT}/tcp && firewall-cmd --reload"
                ),
            ),
        );
    }
    if wanted.is_embedded {
        let message =
            "firewalld is active: it drops pod traffic unless the pod bridge is in a zone that allows it";
        findings.push(
            PreflightFinding::warning(NAME, seen, message)
                .required("the bridge agent0 in zone trusted")
                .fix("add it to that zone")
                .command(
                    "firewall-cmd --permanent --zone=trusted --add-interface=agent0 && firewall-cmd --reload",
                ),
        );
    }
    findings
}

/// The socket of the configured runtime; another check tests whether it answers.
pub(super) fn socket(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "CRI";
    if wanted.is_embedded || facts.files.contains(&socket_path(&wanted.endpoint)) {
        return Vec::new();
    }
    let path = socket_path(&wanted.endpoint);
    let message = format!("could not connect to the container runtime: {} does not exist", path.display());
    let finding = PreflightFinding::error(NAME, "no socket", message).required(wanted.endpoint.clone()).fix(
        "install and start that runtime, or omit --container-runtime-endpoint to use the embedded runtime",
    );
    vec![if path.to_string_lossy().contains("containerd") {
        finding.command("systemctl enable --now containerd")
    } else {
        finding
    }]
}
