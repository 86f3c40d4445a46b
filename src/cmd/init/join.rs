//! `agent join`: makes this machine a node of a cluster that kubeadm set up. Words and order are kubeadm's.
//!
//! Expected flow: the machine is checked, the cluster is discovered and asked for its configuration, all before anything
//! is written. The agent then requests its certificate itself; the command waits for that.
//!
//! Owns the files of a joined node: the bootstrap kubeconfig, the cluster's authority, the configuration, the flags of
//! the service.

mod args;
mod discover;
mod rules;

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use std::{fs, io};

use serde_json::Value;

use super::args::InitOptions;
use super::facts::InitSystem;
use super::install::{self, File};
use super::preflight::{PreflightFinding, PreflightTask, Purpose};
use super::{CONFIG_FILE, DEFAULTS_FILE, InitError, InitSession, machine_of, phases, resolve, service};
use crate::agent::config::Resolved;
use crate::cluster::client::h2::{H2Config, H2Transport};
use crate::cluster::credentials::Credentials;
use crate::cluster::kubeconfig::Kubeconfig;
use crate::cmd::cli::fetch_report;
use crate::cmd::cli::yaml;
use crate::codec::base64;
use crate::codec::yaml::yaml_to_values;
use crate::model::provenance::is_from_api;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::dir;
use crate::serve::server::pki::FLOOR;
use crate::serve::server::report::ObjectDetail;

pub(in crate::cmd) use args::JoinOptions;
pub(super) use args::help;
use discover::Found;
pub(in crate::cmd) use rules::{host, is_free};
pub(super) use rules::{unmarked, with_cluster_flags, without_cluster, without_flags};

pub(super) const KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";
pub(super) const BOOTSTRAP: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
pub(super) const AUTHORITY: &str = "/etc/kubernetes/pki/ca.crt";
/// The configuration of the time before the node joined.
pub(super) const BEFORE: &str = "/var/lib/kubelet/config.yaml.before-join";
/// As kubeadm: `timeouts.kubeletHealthCheck` and `timeouts.tlsBootstrap`.
const HEALTHY_WITHIN: Duration = Duration::from_secs(240);
const SIGNED_WITHIN: Duration = Duration::from_secs(300);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

const DONE: &str = "
This node has joined the cluster:
* Certificate signing request was sent to apiserver and a response was received.
* The Kubelet was informed of the new secure connection details.

Run 'kubectl get nodes' on the control-plane to see this node join the cluster.

";

/// What the cluster has said of itself.
struct Joined {
    authorities: String,
    bootstrap: String,
    configuration: Value,
}

pub(super) fn run(session: &mut InitSession<'_>, arguments: &[String]) -> Result<(), InitError> {
    let options = JoinOptions::parse(arguments)?;
    if options.help {
        return session.print(&help());
    }
    let init = InitOptions {
        rootfs: PathBuf::from("/"),
        ignored: options.ignored.clone(),
        dry_run: options.dry_run,
        ..InitOptions::default()
    };
    let before = resolve(&init)?;
    let name = options.node_name.clone().unwrap_or_else(|| before.node_name.clone());
    session.print("[preflight] Running pre-flight checks\n")?;
    let host = options.endpoint.as_deref().and_then(host).unwrap_or_default();
    let wanted = joining(&before, PreflightTask::Join, &name, host);
    let mut findings = session.check(&init, &before, &wanted);
    findings.push(local_pods(&before));
    options.ignored.apply(&mut findings);
    session.judge(&findings)?;
    let joined = cluster(session, &options, &name)?;
    let init_system = machine_of(&init, session);
    let mut run = JoinRun { init_system, session, init, before, name, is_metered: options.is_metered };
    run.write(&joined)?;
    run.start()
}

/// What is checked before the cluster is asked. `host`: of the discovery's endpoint; empty with a file.
pub(in crate::cmd) fn joining(before: &Resolved, task: PreflightTask, name: &str, host: &str) -> Purpose {
    let mut wanted = Purpose { task, node_name: name.to_owned(), ..Purpose::of(before) };
    host.clone_into(&mut wanted.needs.host);
    wanted
}

/// The transport of a kubeconfig's user.
fn dial(kubeconfig: Kubeconfig) -> H2Transport {
    let user_agent = format!("kubelet/v1.36.0 (linux/{})", std::env::consts::ARCH);
    let credentials = Rc::new(Credentials::of(kubeconfig, Clock::System));
    H2Transport::new(H2Config { user_agent, floor: FLOOR }, credentials, Clock::System)
}

/// The discovery: a cluster that is believed. Writes nothing.
pub(in crate::cmd) fn find(session: &mut InitSession<'_>, options: &JoinOptions) -> Result<Found, InitError> {
    let last: RefCell<Option<H2Transport>> = RefCell::default();
    let connect = |kubeconfig: Kubeconfig| {
        let transport = dial(kubeconfig);
        *last.borrow_mut() = Some(transport.clone());
        discover::client(transport, Dice::System)
    };
    let whence = options.endpoint.as_deref().unwrap_or("the discovery file");
    session.print(&format!("[discovery] Asking {whence} for the cluster's information\n"))?;
    let now = session.environment.now;
    let found = rt::run(async { Box::pin(discover::discover(options, &connect, now.max(FLOOR))).await });
    let server_time = last.borrow().as_ref().and_then(H2Transport::server_time);
    if let Some(warning) = rules::clock_warning(now, server_time) {
        session.print_error(&warning);
    }
    let found = found.map_err(|error| InitError::Join(error.to_string()))?;
    let found = found.map_err(|error| InitError::Join(chain(&error)))?;
    session.print(&format!("[discovery] The cluster's API server is {}\n", found.cluster.server))?;
    Ok(found)
}

/// The discovery and the reading of the cluster's configuration; writes nothing.
fn cluster(session: &mut InitSession<'_>, options: &JoinOptions, name: &str) -> Result<Joined, InitError> {
    let found = find(session, options)?;
    session.print(
        "[preflight] Reading configuration from the \"kubelet-config\" ConfigMap in namespace \"kube-system\"...\n",
    )?;
    let client = discover::client(dial(found.user), Dice::System);
    let asked = rt::run(async { Box::pin(discover::ask(&client, name)).await });
    let asked = asked.map_err(|error| InitError::Join(error.to_string()))?;
    let configuration = asked.map_err(|error| InitError::Join(chain(&error)))?;
    let authorities = base64::decode(&found.cluster.authority_data).unwrap_or_default();
    Ok(Joined {
        authorities: String::from_utf8(authorities).unwrap_or_default(),
        bootstrap: found.bootstrap,
        configuration,
    })
}

/// Pods that were made with this node's own API are unknown to a cluster's scheduler.
pub(in crate::cmd) fn local_pods(resolved: &Resolved) -> PreflightFinding {
    let report = rt::run(fetch_report(&resolved.flags.agent_socket, ObjectDetail::Counted));
    let Ok(Ok(report)) = report else {
        return PreflightFinding::skipped(rules::LOCAL_PODS, "the agent is not running");
    };
    if report.cluster.is_some() {
        // Its pods are the cluster's.
        return PreflightFinding::skipped(rules::LOCAL_PODS, "this machine is a node of a cluster");
    }
    let pods = report.pods.iter().filter(|pod| is_from_api(pod));
    let names = pods.map(|pod| format!("{}/{}", pod.metadata.namespace, pod.metadata.name));
    rules::local_pods(&names.collect::<Vec<_>>())
}

struct JoinRun<'a, 'b> {
    session: &'a mut InitSession<'b>,
    init: InitOptions,
    init_system: InitSystem,
    /// The configuration before.
    before: Resolved,
    name: String,
    is_metered: bool,
}

impl JoinRun<'_, '_> {
    fn print(&mut self, text: &str) -> Result<(), InitError> {
        self.session.print(text)
    }

    fn write(&mut self, joined: &Joined) -> Result<(), InitError> {
        let there = read(CONFIG_FILE)?;
        let values = yaml_to_values(&there, false).unwrap_or_default();
        let (merged, notes) = rules::configuration(values.into_iter().next(), &joined.configuration);
        let is_written = |path: &Path| path == Path::new(AUTHORITY) && !joined.authorities.is_empty();
        rules::check_authority(&merged, &|path| is_written(path) || path.is_file())
            .map_err(InitError::Join)?;
        let missing = install::directories().into_iter().filter(|(path, _)| !path.exists());
        for (path, mode) in missing.filter(|_| !self.init.dry_run) {
            let failed = |source| InitError::File { action: "create directory", path: path.clone(), source };
            dir::make_dir(&path, mode).map_err(failed)?;
        }
        self.put("kubeconfig file", &File::new(BOOTSTRAP, 0o600, joined.bootstrap.clone()))?;
        if !joined.authorities.is_empty() && !Path::new(AUTHORITY).exists() {
            self.put("CA certificate", &File::new(AUTHORITY, 0o644, joined.authorities.clone()))?;
        }
        for note in notes {
            self.print(&format!("[kubelet-start] {note}\n"))?;
        }
        if !there.is_empty() && !Path::new(BEFORE).exists() {
            self.put("previous configuration", &File::new(BEFORE, 0o644, there))?;
        }
        let text = format!("{}{}", rules::CONFIG_HEADER, yaml::to_string(&merged));
        self.put("kubelet configuration", &File::new(CONFIG_FILE, 0o644, text))?;
        let name = (self.name != self.before.node_name).then_some(self.name.as_str());
        let defaults = rules::with_cluster(&read(DEFAULTS_FILE)?, name, self.is_metered);
        if self.is_metered {
            self.print(
                "[kubelet-start] The node's lease lasts 120 s: the kube-controller-manager needs \
                 --node-monitor-grace-period=150s\n",
            )?;
        }
        self.put("kubelet environment file with flags", &File::new(DEFAULTS_FILE, 0o644, defaults))
    }

    fn put(&mut self, what: &str, file: &File) -> Result<(), InitError> {
        let shown = file.path.display().to_string();
        if self.init.dry_run {
            return self.print(&format!("[dryrun] Would write {what} to file {shown:?}\n"));
        }
        phases::write(file)?;
        self.print(&format!("[kubelet-start] Writing {what} to file {shown:?}\n"))
    }

    fn start(&mut self) -> Result<(), InitError> {
        let commands = service::start(self.init_system);
        if self.init.dry_run {
            return self.print(
                "[dryrun] Would start the kubelet\n[dryrun] Would wait for the kubelet to be bootstrapped\n",
            );
        }
        let unit = InitOptions { phase: Some("systemd".to_owned()), ..self.init.clone() };
        phases::run(self.session, &unit)?;
        if commands.is_empty() {
            let flags = install::service_flags(&read(DEFAULTS_FILE)?);
            return self
                .print(&format!("[kubelet-start] Start the agent manually: {}\n", install::command(&flags)));
        }
        self.print("[kubelet-start] Starting the kubelet\n")?;
        service::call(self.init_system, commands)?;
        // The cluster's configuration may name another port.
        let kubelet = resolve(&self.init)?.kubelet;
        let port = u16::try_from(kubelet.healthz_port).unwrap_or_default();
        let address: IpAddr = kubelet.healthz_bind_address.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let at = SocketAddr::new(address, port);
        let url = format!("http://{at}/healthz");
        if port > 0 {
            self.print(&format!(
                "[kubelet-check] Waiting for a healthy kubelet at {url}. This can take up to 4m0s\n"
            ))?;
            let healthy =
                async { tokio::time::timeout(HEALTHY_WITHIN, phases::wait_until_healthy(at)).await };
            let why = || InitError::Unhealthy {
                at: url.clone(),
                why: service::log_hint(self.init_system).to_owned(),
            };
            rt::run(healthy).map_err(|_| why())?.map_err(|_| why())?;
            self.print("[kubelet-check] The kubelet is healthy\n")?;
        }
        wait_for_certificate(self.session, SIGNED_WITHIN)?;
        self.print(DONE)
    }
}

/// Waits until the node has its own certificate; the token has done its work then.
pub(in crate::cmd) fn wait_for_certificate(
    session: &mut InitSession<'_>,
    within: Duration,
) -> Result<(), InitError> {
    session.print("[kubelet-start] Waiting for the kubelet to perform the TLS Bootstrap\n")?;
    let signed = async { tokio::time::timeout(within, is_signed()).await };
    if !matches!(rt::run(signed), Ok(Ok(()))) {
        let live = InitOptions { rootfs: PathBuf::from("/"), ..InitOptions::default() };
        return Err(InitError::Join(format!(
            "the cluster has not signed this node's certificate within {} s: approve it (kubectl get csr; kubectl \
             certificate approve NAME), the agent keeps asking ({})",
            within.as_secs(),
            service::log_hint(machine_of(&live, session))
        )));
    }
    let _ = fs::remove_file(BOOTSTRAP);
    Ok(())
}

/// Waits until kubelet.conf names a certificate that is there.
async fn is_signed() {
    while !rules::has_certificate(&read(KUBECONFIG).unwrap_or_default(), &|path| path.is_file()) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The text of a file; empty when there is none.
pub(super) fn read(path: &str) -> Result<String, InitError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|source| InitError::File { action: "read", path: path.into(), source }),
    }
}

#[cfg(test)]
mod tests;
