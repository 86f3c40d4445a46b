//! Checks of a machine before anything is changed: the observation, the requirement, the remedy. Names and
//! behaviour are those of kubeadm (1.36) where it has the check; checks that matter on small machines are
//! added.
//!
//! Owns the table of checks and how findings are printed. A check is a pure function over [`MachineFacts`]
//! and the [`Purpose`]. Must not read anything itself.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::facts::etcd::ExternalEtcdAccess;
use super::facts::{Interest, MachineFacts};
use crate::agent::config::Resolved;
use crate::agent::kubelet::embedded;
use crate::runtime::embedded::network::subnet::Subnet;

mod cgroups;
mod cluster;
mod hardware;
mod kernel;
mod network;
mod services;
mod storage;
#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cmd) enum Severity {
    Ok,
    /// Not checked, or nothing to check.
    Skipped,
    Warning,
    /// `init` would stop.
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cmd) struct PreflightFinding {
    /// The name for `--ignore-preflight-errors`.
    pub name: String,
    pub severity: Severity,
    pub seen: String,
    pub required: String,
    /// What is wrong; empty if nothing is.
    pub message: String,
    /// The remedy, in words.
    pub fix: String,
    pub commands: Vec<String>,
}

impl PreflightFinding {
    fn new(severity: Severity, name: &str, seen: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            severity,
            seen: seen.into(),
            required: String::new(),
            message: message.into(),
            fix: String::new(),
            commands: Vec::new(),
        }
    }

    #[must_use]
    pub(in crate::cmd) fn ok(name: &str, seen: impl Into<String>) -> Self {
        Self::new(Severity::Ok, name, seen, "")
    }

    #[must_use]
    pub(in crate::cmd) fn skipped(name: &str, why: impl Into<String>) -> Self {
        Self::new(Severity::Skipped, name, why, "")
    }

    #[must_use]
    pub(in crate::cmd) fn warning(name: &str, seen: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, name, seen, message)
    }

    #[must_use]
    pub(in crate::cmd) fn error(name: &str, seen: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, name, seen, message)
    }

    #[must_use]
    pub(in crate::cmd) fn required(mut self, wanted: impl Into<String>) -> Self {
        self.required = wanted.into();
        self
    }

    #[must_use]
    pub(in crate::cmd) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    #[must_use]
    pub(in crate::cmd) fn command(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    #[must_use]
    pub(in crate::cmd) fn text(&self) -> String {
        let word = match self.severity {
            Severity::Error => "ERROR ",
            Severity::Warning => "WARNING ",
            Severity::Ok | Severity::Skipped => "",
        };
        let said = if self.message.is_empty() { &self.seen } else { &self.message };
        let mut text = format!("\t[{word}{}]: {said}\n", self.name);
        if !self.fix.is_empty() {
            let _ = writeln!(text, "\t    fix: {}", self.fix);
        }
        for command in &self.commands {
            let _ = writeln!(text, "\t      # {command}");
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "severity": match self.severity {
                Severity::Ok => "ok",
                Severity::Skipped => "skipped",
                Severity::Warning => "warning",
                Severity::Error => "error",
            },
            "seen": self.seen,
            "wanted": self.required,
            "message": self.message,
            "fix": self.fix,
            "commands": self.commands,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cmd) struct WantedPort {
    pub address: IpAddr,
    pub port: u16,
    /// The configuration setting behind the requirement.
    pub setting: &'static str,
}

/// The command that the checks are for: a bit in the table of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cmd) enum PreflightTask {
    /// `agent preflight` and `agent init`: a node of its own.
    Alone = 1,
    /// `agent init --control-plane`.
    Init = 2,
    /// `agent join`.
    Join = 4,
    /// `agent join --control-plane`, before the cluster is asked.
    JoinControlPlane = 8,
    /// The same, when the cluster's configuration is known.
    Instance = 16,
    /// `agent upgrade apply` and `agent upgrade node`.
    Upgrade = 32,
}

const ALONE: u8 = PreflightTask::Alone as u8;
const INIT: u8 = PreflightTask::Init as u8;
const WORKER: u8 = PreflightTask::Join as u8;
const JOINS: u8 = WORKER | PreflightTask::JoinControlPlane as u8;
const INSTANCE: u8 = PreflightTask::Instance as u8;
const UPGRADE: u8 = PreflightTask::Upgrade as u8;
/// Every first batch: the machine itself is checked.
const NODE: u8 = ALONE | INIT | JOINS;

/// What a cluster demands of this machine. Empty where it demands nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cmd) struct ClusterNeeds {
    /// What connections go to: the advertise address, or the host of the discovery's endpoint.
    pub host: String,
    /// Of the control plane, with its `v`.
    pub version: String,
    /// Of the API server.
    pub bind_port: u16,
    /// Subnets of Services and pods.
    pub cidrs: Vec<String>,
    /// The directory of the static pods.
    pub manifests: PathBuf,
    /// Of an etcd on this machine.
    pub etcd_dir: Option<PathBuf>,
    pub external_etcd: Option<ExternalEtcdAccess>,
}

/// The agent's tasks on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cmd) struct Purpose {
    pub task: PreflightTask,
    pub needs: ClusterNeeds,
    /// `--hostname-override`, or the machine's name; empty for checks of the machine only.
    pub node_name: String,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub log_dir: PathBuf,
    /// `staticPodPath`.
    pub manifests: PathBuf,
    /// `containerRuntimeEndpoint`.
    pub endpoint: String,
    /// Of the kubelet.
    pub ports: Vec<WantedPort>,
    pub is_embedded: bool,
    /// The pod subnets; none with another runtime.
    pub subnets: Vec<Subnet>,
    /// `--bridge-name`.
    pub bridge: String,
    pub fail_swap_on: bool,
    pub fail_cgroup_v1: bool,
}

impl Purpose {
    #[must_use]
    pub(in crate::cmd) fn of(resolved: &Resolved) -> Self {
        let kubelet = &resolved.kubelet;
        let any = IpAddr::from([0, 0, 0, 0]);
        let at = |address: &str| address.parse().unwrap_or(any);
        let mut ports = vec![(kubelet.healthz_bind_address.as_str(), kubelet.healthz_port, "healthzPort")];
        if kubelet.enable_server {
            ports.push((&kubelet.address, kubelet.port, "port"));
            ports.push((&kubelet.address, kubelet.read_only_port, "readOnlyPort"));
        }
        let wanted = |(address, port, setting)| {
            let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
            Some(WantedPort { address: at(address), port, setting })
        };
        Self {
            task: PreflightTask::Alone,
            needs: ClusterNeeds::default(),
            node_name: resolved.node_name.clone(),
            root_dir: resolved.flags.root_dir.clone(),
            log_dir: PathBuf::from(&kubelet.pod_logs_dir),
            manifests: PathBuf::from(&kubelet.static_pod_path),
            is_embedded: kubelet.container_runtime_endpoint == "embedded",
            endpoint: kubelet.container_runtime_endpoint.clone(),
            ports: ports.into_iter().filter_map(wanted).collect(),
            subnets: if kubelet.container_runtime_endpoint == "embedded" {
                embedded::subnets(&kubelet.pod_cidr).unwrap_or_default()
            } else {
                Vec::new()
            },
            bridge: resolved.flags.bridge_name.clone(),
            fail_swap_on: kubelet.fail_swap_on,
            fail_cgroup_v1: kubelet.fail_cgroup_v1,
        }
    }

    /// The facts of the machine that the checks need.
    #[must_use]
    pub(in crate::cmd) fn interest(&self) -> Interest {
        let mut directories = vec![
            self.root_dir.clone(),
            self.log_dir.clone(),
            PathBuf::from("/etc/kubernetes"),
            PathBuf::from("/run/agent"),
        ];
        if !self.manifests.as_os_str().is_empty() {
            directories.push(self.manifests.clone());
        }
        directories.extend(self.needs.etcd_dir.clone());
        let mut files = cluster::files(&self.needs);
        files.push(services::socket_path(&self.endpoint));
        let ports = self.ports.iter().map(|port| port.port);
        Interest {
            directories,
            files,
            ports: ports.chain(network::control_plane_ports(self)).chain(network::ETCD_PORTS).collect(),
            name: match self.task {
                PreflightTask::Alone | PreflightTask::Instance | PreflightTask::Upgrade => String::new(),
                _ => self.node_name.clone(),
            },
            etcd: self.needs.external_etcd.clone().filter(|_| self.task == PreflightTask::Init),
        }
    }

    fn is_alone(&self) -> bool {
        self.task == PreflightTask::Alone
    }

    fn is_control_plane(&self) -> bool {
        !matches!(self.task, PreflightTask::Alone | PreflightTask::Join)
    }
}

/// One check, which may have several findings.
type Check = fn(&MachineFacts, &Purpose) -> Vec<PreflightFinding>;

/// The tasks of each check, in the order of the output: kubeadm's, then those for small machines.
const CHECKS: &[(u8, Check)] = &[
    (ALONE | JOINS, cluster::kubeconfigs),
    (ALONE | INIT | WORKER | INSTANCE, hardware::cpus),
    (ALONE | INIT | WORKER | INSTANCE, hardware::memory),
    (INIT | INSTANCE, cluster::kubernetes_version),
    (ALONE | INIT | WORKER | INSTANCE, services::firewalld),
    (INIT | INSTANCE, network::control_plane),
    (INIT | INSTANCE, cluster::static_pods),
    (ALONE | INIT | INSTANCE, network::proxies),
    (INIT | INSTANCE, network::proxies_of_subnets),
    (NODE | UPGRADE, services::socket),
    (NODE, hardware::swap),
    (INIT | JOINS, cluster::programs),
    (NODE | UPGRADE, kernel::system),
    (NODE, kernel::options),
    (NODE, cgroups::cgroups),
    (NODE, network::hostname),
    (INIT | JOINS, cluster::kubelet_version),
    (NODE, services::conflicts),
    (NODE, network::kubelet),
    (WORKER, cluster::authority),
    (JOINS, network::proxies),
    (NODE, network::forwarding),
    (INIT, cluster::etcd_version),
    (INIT | INSTANCE, network::etcd),
    (INIT | INSTANCE, cluster::etcd_dir),
    (INIT | INSTANCE, cluster::etcd_files),
    (NODE, storage::manifests),
    (NODE, kernel::overlay),
    (NODE, kernel::apparmor),
    (NODE, network::default_route),
    (NODE, network::pod_cidr),
    (NODE, storage::writable),
    (NODE, storage::room),
    (NODE, storage::disk),
    (NODE, hardware::clock),
    (NODE, hardware::entropy),
];

/// The first batch: without root no other check is reliable.
#[must_use]
pub(in crate::cmd) fn privileged(user: u32) -> PreflightFinding {
    const NAME: &str = "IsPrivilegedUser";
    let seen = format!("user id {user}");
    if user == 0 {
        return PreflightFinding::ok(NAME, seen);
    }
    PreflightFinding::error(NAME, seen, "user is not running as root")
        .required("user id 0")
        .fix("run it with sudo")
}

/// All checks of the task but the first.
#[must_use]
pub(in crate::cmd) fn check(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let its = CHECKS.iter().filter(|(tasks, _)| tasks & wanted.task as u8 > 0);
    its.flat_map(|(_, check)| check(facts, wanted)).collect()
}

/// Names whose errors become warnings (`--ignore-preflight-errors`), in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cmd) struct Ignored(Vec<String>);

impl Ignored {
    /// Adds names separated by commas.
    ///
    /// # Errors
    /// `all` together with others. Unknown names are accepted, as upstream.
    pub(in crate::cmd) fn add(&mut self, names: &str) -> Result<(), String> {
        let names = names.split(',').map(|name| name.trim().to_ascii_lowercase());
        self.0.extend(names.filter(|name| !name.is_empty()));
        if self.0.len() > 1 && self.0.iter().any(|name| name == "all") {
            return Err(
                "--ignore-preflight-errors: don't specify individual checks if 'all' is used".to_owned()
            );
        }
        Ok(())
    }

    /// Turns ignored errors into warnings.
    pub(in crate::cmd) fn apply(&self, findings: &mut [PreflightFinding]) {
        let is_ignored = |name: &str| {
            let name = name.to_ascii_lowercase();
            self.0.iter().any(|ignored| *ignored == name || ignored == "all")
        };
        for finding in findings {
            if finding.severity == Severity::Error && is_ignored(&finding.name) {
                finding.severity = Severity::Warning;
            }
        }
    }
}

/// The warnings and errors for standard error. `all` adds the checks that passed.
#[must_use]
pub(in crate::cmd) fn report(findings: &[PreflightFinding], all: bool) -> String {
    let of = |severity| findings.iter().filter(move |finding| finding.severity == severity);
    let mut text = String::new();
    if all {
        let well = findings.iter().filter(|finding| finding.severity <= Severity::Skipped);
        well.for_each(|finding| text.push_str(&finding.text()));
    }
    of(Severity::Warning).for_each(|finding| text.push_str(&finding.text()));
    if of(Severity::Error).next().is_some() {
        text.push_str("[preflight] Some fatal errors occurred:\n");
        of(Severity::Error).for_each(|finding| text.push_str(&finding.text()));
        text.push_str(
            "[preflight] If you know what you are doing, you can make a check non-fatal with \
             `--ignore-preflight-errors=...`\n",
        );
    }
    text
}

#[must_use]
pub(in crate::cmd) fn to_json(findings: &[PreflightFinding]) -> Value {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    json!({
        "kind": "PreflightReport",
        "passed": !has_errors(findings),
        "errors": count(Severity::Error),
        "warnings": count(Severity::Warning),
        "checks": findings.iter().map(PreflightFinding::json).collect::<Vec<_>>(),
    })
}

#[must_use]
pub(in crate::cmd) fn has_errors(findings: &[PreflightFinding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Error)
}

/// Upstream's name of a check for a path: `DirAvailable--etc-kubernetes-manifests`.
fn path_name(kind: &str, path: &std::path::Path) -> String {
    format!("{kind}-{}", path.display().to_string().replace('/', "-"))
}

/// Bytes in the usual units of memory and disks.
fn mebibytes(bytes: u64) -> String {
    format!("{} MB", bytes >> 20)
}
