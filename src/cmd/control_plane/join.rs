//! `agent join --control-plane`: a further control-plane node, with kubeadm's phases and words (1.36).
//!
//! Expected flow: the cluster is found and asked for its configuration before anything is written. What is shared is
//! downloaded, what is this node's is made; the kubelet starts the static pods, this node becomes a member of etcd, and
//! then its API server answers its kubelet.
//!
//! Owns what each phase calls.

mod plan;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::api::{self, AGAIN, Api, ApiPhaseError};
use super::api_phases::{ApiOptions, ApiPhase, ApiPhases, authorities_of, entry_of, kubelet_health};
use super::config::read::{Documents, settle};
use super::config::{Etcd, InitSettings, path};
use super::context::{Context, Mode, Visibility};
use super::etcd::{EtcdClient, endpoints, initial_cluster};
use super::phases::{host as host_facts, in_phase};
use super::preflight::{OWN_SOCKET, before_instance, before_joining};
use super::select::JOIN;
use super::{Paths, certs, kubeconfigs, kubelet_files, manifests, objects, static_pods, upload, wait};
use crate::agent::config::is_own_socket;
use crate::cluster::client::h2::H2Transport;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::discovery;
use crate::cluster::kubeconfig::Kubeconfig;
use crate::cmd::cli::{Environment, yaml};
use crate::cmd::help;
use crate::cmd::init::args::{InitOptions, UsageError};
use crate::cmd::init::{InitError, InitSession, find, finish, host, is_free, wait_for_certificate};
use crate::codec::yaml::yaml_to_values;
use crate::platform::logging::chain;
use crate::platform::rt;

use plan::JoinPlan;

/// Of a question that needs no patience: the cluster is there.
const ASKED: Duration = Duration::from_secs(10);

/// Whether the arguments of `agent join` are for a control plane.
#[must_use]
pub fn is_wanted(arguments: &[String]) -> bool {
    plan::is_wanted(arguments)
}

/// Runs `agent join` for a control plane; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    let result = command(&mut session, arguments);
    finish(&mut session, "join --control-plane", result)
}

fn command(session: &mut InitSession<'_>, arguments: &[String]) -> Result<(), InitError> {
    let Some(given) = plan::words(arguments)? else {
        let end = "Exit status: 0 on success, 1 on failure, 2 for bad usage.";
        return session.print(&format!("{}{}\n{end}\n", help::text("join-control-plane"), JOIN.listed()));
    };
    let read = |file: &str| {
        let failed = |source| InitError::File { action: "read", path: file.into(), source };
        std::fs::read_to_string(file).map_err(failed)
    };
    let file = given.text("config").map(read).transpose()?;
    let plan =
        JoinPlan::of(&given, file.as_deref()).map_err(|error| match (error, given.text("config")) {
            (UsageError::Option(why), Some(file)) => UsageError::Option(format!("{file}: {why}")),
            (error, _) => error,
        })?;
    join(session, plan, Paths::system())
}

/// What is known of the cluster before anything is written.
struct Known {
    /// The administrator of an earlier attempt, or the user of the discovery.
    user: Kubeconfig,
    /// The kubeconfig that requests this node's certificate.
    bootstrap: String,
    /// Certificates in PEM.
    authorities: String,
}

struct Joining<'a, 'b> {
    context: Context<'a, 'b>,
    plan: JoinPlan,
    known: Known,
    checks: InitOptions,
}

fn broken(error: &ApiPhaseError) -> InitError {
    InitError::ControlPlane(chain(error))
}

/// Runs what talks to servers.
fn wait_for<T>(work: impl Future<Output = Result<T, ApiPhaseError>>) -> Result<T, InitError> {
    let done = rt::run(async { Box::pin(work).await });
    done.map_err(|error| InitError::ControlPlane(error.to_string()))?.map_err(|error| broken(&error))
}

fn join(session: &mut InitSession<'_>, plan: JoinPlan, paths: Paths) -> Result<(), InitError> {
    session.warn(&plan.warnings);
    if !paths.conf("admin.conf").exists() {
        plan.discovery.clone().checked()?;
    }
    let checks = checks(&plan);
    if plan.chosen.contains(&"preflight") {
        session.print("[preflight] Running pre-flight checks\n")?;
        let own = host_facts()?.hostname.to_lowercase();
        let name = plan.node_name.clone().unwrap_or(own);
        let host = plan.discovery.endpoint.as_deref().and_then(host).unwrap_or_default();
        before_joining(session, &checks, &name, host).map_err(in_phase("preflight"))?;
    }
    let known = find_cluster(session, &plan, &paths).map_err(in_phase("preflight"))?;
    let settings = configuration(session, &plan, &known, &paths).map_err(in_phase("preflight"))?;
    let mode = if plan.dry_run { Mode::Dry } else { Mode::Real };
    let kubeconfig_dir = paths.kubernetes.clone();
    let context =
        Context { session, settings, paths, kubeconfig_dir, mode, drafts: BTreeMap::new(), patches: None };
    let mut joining = Joining { context, plan, known, checks };
    for phase in joining.plan.chosen.clone() {
        joining.run(phase).map_err(in_phase(phase))?;
    }
    if joining.plan.phase.is_none() { joining.done() } else { Ok(()) }
}

fn checks(plan: &JoinPlan) -> InitOptions {
    let socket = plan.init["nodeRegistration"]["criSocket"].as_str().unwrap_or(OWN_SOCKET);
    let endpoint = if is_own_socket(socket, OWN_SOCKET) { "embedded" } else { socket };
    InitOptions {
        endpoint: Some(endpoint.to_owned()),
        ignored: plan.ignored.clone(),
        no_self_test: plan.no_self_test,
        dry_run: plan.dry_run,
        rootfs: "/".into(),
        ..InitOptions::default()
    }
}

/// By the administrator's kubeconfig of an earlier attempt, if there is one: as kubeadm does it.
fn find_cluster(session: &mut InitSession<'_>, plan: &JoinPlan, paths: &Paths) -> Result<Known, InitError> {
    let admin = paths.conf("admin.conf");
    let options = &plan.discovery;
    if !admin.exists() {
        let found = find(session, options)?;
        let authorities = authorities_of(&found.cluster);
        return Ok(Known { user: found.user, bootstrap: found.bootstrap, authorities });
    }
    let entry = entry_of(&admin).map_err(|error| broken(&error))?;
    let bootstrap = if let Some(token) = options.tls_token.as_ref().or(options.token.as_ref()) {
        discovery::bootstrap_kubeconfig(&entry, token)
    } else {
        let failed = |source| InitError::File { action: "read", path: admin.clone(), source };
        std::fs::read_to_string(&admin).map_err(failed)?
    };
    let user = api::kubeconfig(&admin, None).map_err(|error| broken(&error))?;
    Ok(Known { user, bootstrap, authorities: authorities_of(&entry) })
}

/// The cluster's configuration, and this node's.
fn configuration(
    session: &mut InitSession<'_>,
    plan: &JoinPlan,
    known: &Known,
    paths: &Paths,
) -> Result<InitSettings, InitError> {
    session.print(
        "[preflight] Reading configuration from the \"kubeadm-config\" ConfigMap in namespace \"kube-system\"...\n\
         [preflight] Use 'agent init phase upload-config kubeadm --config your-config-file' to re-upload it.\n",
    )?;
    let (cluster, kubelet) = wait_for(async {
        let client = api::client(api::transport(known.user.clone()));
        let api = Api::new(Some(client), &|_| {}, Instant::now() + ASKED);
        let cluster = document(&api, "kubeadm-config", "ClusterConfiguration").await?;
        Ok((cluster, document(&api, "kubelet-config", "kubelet").await?))
    })?;
    let (settings, warnings) = settings(plan, cluster, kubelet, paths)?;
    session.warn(&warnings);
    Ok(settings)
}

/// The settings of this node in a cluster of these documents, and warnings.
fn settings(
    plan: &JoinPlan,
    mut cluster: Value,
    kubelet: Value,
    paths: &Paths,
) -> Result<(InitSettings, Vec<String>), InitError> {
    // Which algorithm the cluster's own files have does not matter: keys of this node are made by this program.
    if cluster["encryptionAlgorithm"].as_str().is_some_and(|name| name.starts_with("RSA")) {
        cluster["encryptionAlgorithm"] = json!("ECDSA-P256");
    }
    if let Some(gate) = cluster.pointer_mut("/featureGates/PublicKeysECDSA") {
        *gate = json!(true);
    }
    let mut documents = Documents { init: plan.init.clone(), cluster, kubelet, ..Documents::default() };
    if let Some(name) = &plan.node_name {
        documents.init["nodeRegistration"]["name"] = json!(name);
    }
    let settled = settle(&documents, &host_facts()?, paths).map_err(InitError::ControlPlane)?;
    let (mut settings, warnings) = settled;
    // The driver that kubeadm writes for all nodes is not this node's where systemd does not run.
    if let Some(given) = settings.given_kubelet.as_mut().filter(|given| given["cgroupDriver"] == "systemd") {
        given["cgroupDriver"] = Value::Null;
    }
    Ok((settings, warnings))
}

/// A document in a ConfigMap of kubeadm.
async fn document(api: &Api<'_, H2Transport>, name: &str, key: &str) -> Result<Value, ApiPhaseError> {
    let failed = |why: String| ApiPhaseError::Broken(format!("failed to get ConfigMap {name:?}: {why}"));
    let map = api.get(&ResourcePath::namespaced("", "configmaps", "kube-system", name)).await?;
    let map = map.ok_or_else(|| failed("it is not there".to_owned()))?;
    let text = map["data"][key].as_str().ok_or_else(|| failed(format!("it has no {key:?}")))?;
    let values = yaml_to_values(text, false).map_err(|error| failed(error.to_string()))?;
    Ok(values.into_iter().next().unwrap_or_default())
}

impl Joining<'_, '_> {
    fn run(&mut self, phase: &'static str) -> Result<(), InitError> {
        match phase {
            "preflight" => self.preflight(),
            "control-plane-prepare/download-certs" => self.download(),
            "control-plane-prepare/certs" => certs::join(&mut self.context),
            "control-plane-prepare/kubeconfig" => self.kubeconfigs(),
            "control-plane-prepare/control-plane" => self.control_plane(),
            "check-etcd" => self.check_etcd(),
            "kubelet-start" => self.kubelet_start(),
            "etcd-join" => self.etcd_join(),
            "kubelet-wait-bootstrap" => self.wait_for_kubelet(),
            "control-plane-join/mark-control-plane" => self.talk(ApiPhase::MarkControlPlane),
            "wait-control-plane" => self.talk(ApiPhase::WaitControlPlane),
            _ => Ok(()),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.plan.patience
    }

    /// What is checked when the cluster is known.
    fn preflight(&mut self) -> Result<(), InitError> {
        let has_key = !self.context.settings.certificate_key.is_empty();
        let ready = if self.context.settings.cluster.control_plane_endpoint.is_empty() {
            let why = "unable to add a new control plane instance to a cluster that doesn't have a stable \
                       controlPlaneEndpoint address";
            Err(InitError::ControlPlane(why.to_owned()))
        } else if has_key {
            Ok(())
        } else {
            certs::check_shared(&self.context)
        };
        ready.map_err(|error| {
            InitError::ControlPlane(format!(
                "\nOne or more conditions for hosting a new control plane instance is not satisfied.\n\n{}\n\n\
                 Please ensure that:\n* The cluster has a stable controlPlaneEndpoint address.\n* The certificates that \
                 must be shared among control plane instances are provided.\n",
                chain(&error)
            ))
        })?;
        before_instance(&mut self.context, &self.checks, has_key)
    }

    fn download(&mut self) -> Result<(), InitError> {
        let key = self.context.settings.certificate_key.clone();
        if key.is_empty() {
            return self.context.say("[download-certs] Skipping certs download\n");
        }
        let key = objects::parse_certificate_key(&key).map_err(InitError::ControlPlane)?;
        self.context.say(
            "[download-certs] Downloading the certificates in Secret \"kubeadm-certs\" in the \"kube-system\" Namespace\n",
        )?;
        let (user, cluster) = (self.known.user.clone(), self.context.settings.cluster.clone());
        let files = wait_for(async {
            let client = api::client(api::transport(user));
            let api = Api::new(Some(client), &|_| {}, Instant::now() + ASKED);
            upload::download(&api, &key, &cluster).await
        })?;
        let at = path(&cluster.cert_dir);
        self.context.say(&format!("[download-certs] Saving the certificates to the folder: {at:?}\n"))?;
        // Keys first: a certificate without its key would be one whose key is elsewhere.
        let is_key =
            |file: &(PathBuf, String)| file.0.extension().is_some_and(|extension| extension == "key");
        let (keys, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_key);
        for (file, text) in keys {
            self.context.put(file, 0o600, text, Visibility::Secret)?;
        }
        for (file, text) in others {
            self.context.put(file, 0o644, text, Visibility::Secret)?;
        }
        Ok(())
    }

    fn kubeconfigs(&mut self) -> Result<(), InitError> {
        let at = path(&self.context.kubeconfig_dir);
        self.context.say(&format!(
            "[kubeconfig] Generating kubeconfig files\n[kubeconfig] Using kubeconfig folder {at:?}\n"
        ))?;
        ["admin", "controller-manager", "scheduler"]
            .into_iter()
            .try_for_each(|name| kubeconfigs::run(&mut self.context, name))
    }

    fn control_plane(&mut self) -> Result<(), InitError> {
        let at = path(&self.context.paths.manifests());
        self.context.say(&format!("[control-plane] Using manifest folder {at:?}\n"))?;
        [manifests::API_SERVER, manifests::CONTROLLER_MANAGER, manifests::SCHEDULER]
            .into_iter()
            .try_for_each(|name| static_pods::run(&mut self.context, name))
    }

    /// The URL at which other members reach this node's etcd; `None` with an external one.
    fn peer_url(&self) -> Option<String> {
        let address = self.context.settings.endpoint.advertise_address;
        let url = format!("https://{}", std::net::SocketAddr::new(address, 2380));
        matches!(self.context.settings.cluster.etcd, Etcd::Local(_)).then_some(url)
    }

    fn admin(&self) -> Result<Kubeconfig, InitError> {
        api::kubeconfig(&self.context.paths.conf("admin.conf"), None).map_err(|error| broken(&error))
    }

    fn check_etcd(&mut self) -> Result<(), InitError> {
        if self.peer_url().is_none() {
            return self.context.say("[check-etcd] Skipping etcd check in external mode\n");
        }
        self.context.say("[check-etcd] Checking that the etcd cluster is healthy\n")?;
        if self.context.is_dry() {
            return self.context.say("[dryrun] Would check that the etcd cluster is healthy\n");
        }
        let (admin, deadline) = (self.admin()?, self.deadline());
        let cert_dir = self.context.settings.cluster.cert_dir.clone();
        // A majority has answered.
        wait_for(async { etcd_of(admin, &cert_dir, deadline).await?.list().await.map(drop) })
    }

    fn kubelet_start(&mut self) -> Result<(), InitError> {
        let name = self.context.settings.node.name.clone();
        let user = self.known.user.clone();
        let node = wait_for(async {
            let client = api::client(api::transport(user));
            let api = Api::new(Some(client), &|_| {}, Instant::now() + ASKED);
            api.get(&ResourcePath::whole("", "nodes", &name)).await
        })?;
        if let Some(node) = node {
            is_free(&node, &name).map_err(InitError::ControlPlane)?;
        }
        // Its own API server, which starts with it.
        let local = self.context.settings.endpoint.url();
        let text = with_server(&self.known.bootstrap, &local).map_err(InitError::ControlPlane)?;
        let file = self.context.paths.conf("bootstrap-kubelet.conf");
        self.context.put(file, 0o600, text, Visibility::Secret)?;
        let authority = PathBuf::from(&self.plan.authority);
        if !self.context.has(&authority) {
            self.context.put(authority, 0o644, self.known.authorities.clone(), Visibility::Secret)?;
        }
        kubelet_files::start(&mut self.context)
    }

    fn etcd_join(&mut self) -> Result<(), InitError> {
        let Some(peer_url) = self.peer_url() else { return Ok(()) };
        let name = self.context.settings.node.name.clone();
        if self.context.is_dry() {
            self.context.say(&format!("[dryrun] Would add etcd member: {peer_url}\n"))?;
            self.etcd_manifest([&name, "=", &peer_url].concat())?;
            return self.context.say("[dryrun] Would wait for the new etcd member to join the cluster\n");
        }
        let (admin, deadline) = (self.admin()?, self.deadline());
        let cert_dir = self.context.settings.cluster.cert_dir.clone();
        let members = wait_for(async { etcd_of(admin, &cert_dir, deadline).await?.add(&peer_url).await })?;
        self.context.say("[etcd] Announced new etcd member joining to the existing etcd cluster\n")?;
        self.etcd_manifest(initial_cluster(&members, &name, &peer_url))?;
        let limit = crate::model::types::go_duration(self.plan.patience);
        self.context.say(&format!(
            "[etcd] Waiting for the new etcd member to join the cluster. This can take up to {limit}\n"
        ))?;
        let own = peer_url.replace(":2380", ":2379");
        let others: Vec<String> = members
            .iter()
            .filter(|member| !member.peer_urls.contains(&peer_url))
            .flat_map(|member| member.client_urls.iter().take(1).cloned())
            .collect();
        wait_for(async {
            EtcdClient::dial(&others, &cert_dir, deadline)?.promote(&peer_url).await?;
            // The new member itself answers, with a majority behind it.
            EtcdClient::dial(&[own], &cert_dir, deadline)?.list().await.map(drop)
        })
    }

    fn etcd_manifest(&mut self, initial_cluster: String) -> Result<(), InitError> {
        if let Etcd::Local(local) = &mut self.context.settings.cluster.etcd {
            local.initial_cluster = initial_cluster;
        }
        static_pods::run(&mut self.context, manifests::ETCD)
    }

    fn wait_for_kubelet(&mut self) -> Result<(), InitError> {
        if self.context.is_dry() {
            return self.context.say("[dryrun] Would wait for the kubelet to be bootstrapped\n");
        }
        let (deadline, health) = (self.deadline(), kubelet_health(&self.context.settings.kubelet));
        let shared = RefCell::new(&mut self.context);
        let say = |text: &str| drop(shared.borrow_mut().say(text));
        wait_for(wait::kubelet(&say, health, deadline))?;
        wait_for_certificate(self.context.session, self.plan.tls_bootstrap)
    }

    fn talk(&mut self, phase: ApiPhase) -> Result<(), InitError> {
        let (settings, paths) = (self.context.settings.clone(), self.context.paths.clone());
        let options = ApiOptions {
            dry_run: self.context.is_dry(),
            timeout: self.plan.patience,
            ..ApiOptions::default()
        };
        let now = self.context.now();
        let shared = RefCell::new(&mut self.context);
        let say = |text: &str| drop(shared.borrow_mut().say(text));
        let phases = ApiPhases::new((&settings, &options, &paths), &say, now, &Ok);
        phases.run(phase).map_err(|error| broken(&error))
    }

    fn done(&mut self) -> Result<(), InitError> {
        let etcd = if self.peer_url().is_some() {
            "* A new etcd member was added to the local/stacked etcd cluster.\n"
        } else {
            ""
        };
        let admin = path(&self.context.paths.conf("admin.conf"));
        self.context.say(&format!(
            "\nThis node has joined the cluster and a new control plane instance was created:\n\n\
             * Certificate signing request was sent to apiserver and approval was received.\n\
             * The Kubelet was informed of the new secure connection details.\n\
             * Control plane label and taint were applied to the new node.\n\
             * The Kubernetes control plane instances scaled up.\n{etcd}\n\
             To start administering your cluster from this node, you need to run the following as a regular user:\n\n\
             \tmkdir -p $HOME/.kube\n\tsudo cp -i {admin} $HOME/.kube/config\n\
             \tsudo chown $(id -u):$(id -g) $HOME/.kube/config\n\n\
             Run 'kubectl get nodes' to see this node join the cluster.\n\n"
        ))
    }
}

/// The members of etcd that the cluster's API shows.
async fn etcd_of(
    admin: Kubeconfig,
    cert_dir: &Path,
    deadline: Instant,
) -> Result<EtcdClient<H2Transport>, ApiPhaseError> {
    let api = Api::new(Some(api::client(api::transport(admin))), &|_| {}, deadline);
    loop {
        let why = match endpoints(&api).await {
            Ok(urls) if !urls.is_empty() => return EtcdClient::dial(&urls, cert_dir, deadline),
            Ok(_) => ApiPhaseError::Broken(
                "no pod in kube-system with the labels component=etcd and tier=control-plane names the URL of an etcd"
                    .to_owned(),
            ),
            Err(error) => error,
        };
        if Instant::now() + AGAIN > deadline {
            return Err(why);
        }
        sleep(AGAIN).await;
    }
}

/// A kubeconfig with another server.
fn with_server(kubeconfig: &str, server: &str) -> Result<String, String> {
    let values = yaml_to_values(kubeconfig, false).map_err(|error| error.to_string())?;
    let mut value = values.into_iter().next().unwrap_or_default();
    for cluster in value["clusters"].as_array_mut().into_iter().flatten() {
        cluster["cluster"]["server"] = json!(server);
    }
    Ok(yaml::to_string(&value))
}

#[cfg(test)]
mod tests;
