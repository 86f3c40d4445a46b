//! The kubelet's servers, from the resolved configuration: the local socket, the API over TLS, the health and
//! read-only ports.
//!
//! Owns their configuration and their start.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::agent::config::{KubeletConfiguration, Resolved};
use crate::agent::kubelet::report::LoopView;
use crate::agent::kubelet::resources;
use crate::model::objects::ObjectLookup;
use crate::node::stats::{Stats, StatsConfig};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::node;
use crate::serve::server::access::Policy;
use crate::serve::server::answer::SystemLogs;
use crate::serve::server::delegate::SharedDelegate;
use crate::serve::server::https::{self, Api, ListenError, Plain};
use crate::serve::server::identity::{Believed, Identities, IdentityError};
use crate::serve::server::node::SharedNode;
use crate::serve::server::pki::{Authority, PkiError, authority_file};
use crate::serve::server::report::ApiReport;
use crate::serve::server::tls::{Source, Tls, TlsError, TlsSettings};

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The node's certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The serving certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The CA or token file.
    #[error("{setting}")]
    Identity {
        /// The setting that names the file.
        setting: &'static str,
        source: IdentityError,
    },
    /// Webhooks need an API server, which this version does not support.
    #[error("{setting} requires an API server, which this version does not support: set {instead}")]
    NoApiServer {
        setting: &'static str,
        /// The value to use instead.
        instead: &'static str,
    },
}

/// The interval of retrying servers that cannot start.
const RETRY: Duration = Duration::from_secs(10);

/// Starts the servers that the configuration enables. An error that may pass (a port in use, a certificate on
/// a disk that is not mounted yet) keeps no pod from running: it is logged, shown by `agent status`, and
/// retried. The upstream kubelet exits instead.
///
/// # Errors
/// A configuration that can never be served.
pub fn start(
    resolved: &Resolved,
    (node, guest): (&SharedNode, &SharedDelegate),
    view: &Rc<LoopView>,
    clock: &Clock,
) -> Result<Vec<JoinHandle<()>>, ServingError> {
    let kubelet = &resolved.kubelet;
    let mut tasks = Vec::new();
    let mut plain = |name, bind: &str, port: i32, setting, shows| {
        if port > 0 {
            let (at, node, view, clock) =
                (address(bind, port), Rc::clone(node), Rc::clone(view), clock.clone());
            tasks.push(rt::spawn(name, async move {
                let listener = persist(name, at, &view, || Ok(https::listen(at, setting)?)).await;
                https::serve_plain(listener, node, shows, clock).await;
            }));
        }
    };
    let health = "healthzBindAddress, healthzPort";
    plain("health server", &kubelet.healthz_bind_address, kubelet.healthz_port, health, Plain::Health);
    if !kubelet.enable_server {
        return Ok(tasks);
    }
    let reading = "address, readOnlyPort";
    plain("read-only server", &kubelet.address, kubelet.read_only_port, reading, Plain::ReadOnly);
    let wanted = WantedApi::of(resolved)?;
    let (at, view, clock) = (address(&kubelet.address, kubelet.port), Rc::clone(view), clock.clone());
    let (node, guest) = (Rc::clone(node), Rc::clone(guest));
    tasks.push(rt::spawn("API server", async move {
        // Its certificates exist before clients can connect, for those that then request a kubeconfig.
        let open = || {
            let api = wanted.open(&node, &guest, &clock)?;
            Ok((https::listen(at, "address, port")?, api))
        };
        let (listener, api) = persist("API server", at, &view, open).await;
        // Earlier clients wait in the socket's backlog: an answer now would show no pods.
        view.begun().await;
        https::serve(listener, Rc::new(api)).await;
    }));
    Ok(tasks)
}

/// Resource usage statistics.
pub(super) fn stats(resolved: &Resolved, objects: Rc<dyn ObjectLookup>, clock: &Clock) -> Rc<Stats> {
    let (layout, cgroup) = resources::layout(&resolved.kubelet, node::cgroup_v2());
    let config = StatsConfig {
        node_name: resolved.node_name.clone(),
        cgroup,
        layout,
        proc: PathBuf::from("/proc"),
        root_dir: resolved.flags.root_dir.clone(),
        runtime_cgroup: resolved.flags.runtime_cgroups.clone(),
        pod_logs_dir: PathBuf::from(&resolved.kubelet.pod_logs_dir),
    };
    Stats::new(config, objects, clock.clone())
}

/// Retries until it succeeds.
async fn persist<T>(
    name: &'static str,
    at: SocketAddr,
    view: &LoopView,
    mut open: impl FnMut() -> Result<T, ServingError>,
) -> T {
    loop {
        match open() {
            Ok(opened) => {
                view.set_serving_trouble(name, None);
                log::info!(address:% = at; "Serving {name}");
                return opened;
            }
            Err(error) => {
                let trouble = chain(&error);
                if view.set_serving_trouble(name, Some(&trouble)) {
                    log::error!(address:% = at, err = trouble; "Failed to serve {name}, retrying; pods are \
                         not affected");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The address of the API for clients on this machine, and the directory of its authority.
pub(super) fn api_report(resolved: &Resolved) -> ApiReport {
    let directory = &resolved.flags.cert_dir;
    // Without a working directory a relative path is left unchanged.
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
    let server = if resolved.kubelet.enable_server { server_url(&resolved.kubelet) } else { String::new() };
    ApiReport { server, cert_dir: directory.display().to_string() }
}

/// The URL of the API for clients on this machine.
#[must_use]
pub fn server_url(kubelet: &KubeletConfiguration) -> String {
    let mut at = address(&kubelet.address, kubelet.port);
    if at.ip().is_unspecified() {
        at.set_ip(IpAddr::from([127, 0, 0, 1]));
    }
    format!("https://{at}")
}

/// An address and a port that are already validated.
fn address(address: &str, port: i32) -> SocketAddr {
    let address = address.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    SocketAddr::new(address, u16::try_from(port).unwrap_or_default())
}

/// The API as configured.
struct WantedApi {
    policy: Policy,
    anonymous: bool,
    debugging: bool,
    system_logs: SystemLogs,
    cert_dir: PathBuf,
    node_name: String,
    client_ca: Option<PathBuf>,
    tokens: Option<PathBuf>,
    source: Source,
    settings: TlsSettings,
}

impl WantedApi {
    fn of(resolved: &Resolved) -> Result<Self, ServingError> {
        let kubelet = &resolved.kubelet;
        if kubelet.authentication_webhook_enabled {
            let (setting, instead) = ("authentication.webhook.enabled: true", "it to false");
            return Err(ServingError::NoApiServer { setting, instead });
        }
        let policy = match kubelet.authorization_mode.as_str() {
            "AlwaysAllow" => Policy::AlwaysAllow,
            "Webhook" => {
                let (setting, instead) = ("authorization.mode: Webhook", "Local");
                return Err(ServingError::NoApiServer { setting, instead });
            }
            _ => Policy::Local,
        };
        let settings = TlsSettings {
            min_version: kubelet.tls_min_version.clone(),
            cipher_suites: kubelet.tls_cipher_suites.clone(),
        };
        settings.check()?;
        let file = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
        let (directory, node_name) = (resolved.flags.cert_dir.clone(), resolved.node_name.clone());
        let source = match file(&kubelet.tls_cert_file) {
            Some(certificate) => {
                Source::Files { certificate, key: kubelet.tls_private_key_file.as_str().into() }
            }
            None => Source::Own {
                directory: directory.clone(),
                node_name: node_name.clone(),
                names: names(node_name.clone(), resolved.node_ips.clone(), &kubelet.address),
            },
        };
        Ok(Self {
            policy,
            anonymous: kubelet.authentication_anonymous_enabled,
            debugging: kubelet.enable_debugging_handlers,
            system_logs: match (kubelet.enable_system_log_handler, kubelet.enable_system_log_query) {
                (false, _) => SystemLogs::Off,
                (true, false) => SystemLogs::Files,
                (true, true) => SystemLogs::Queries,
            },
            cert_dir: directory,
            node_name,
            client_ca: file(&kubelet.authentication_x509_client_ca_file),
            tokens: resolved.agent.token_auth_file.clone(),
            source,
            settings,
        })
    }

    fn open(&self, node: &SharedNode, guest: &SharedDelegate, clock: &Clock) -> Result<Api, ServingError> {
        let authority = Rc::new(Authority::open(&self.cert_dir, &self.node_name)?);
        let (anonymous, client_ca, tokens) = (self.anonymous, self.client_ca.clone(), self.tokens.clone());
        let files = client_ca.iter().chain(&tokens).cloned().collect();
        let (own, own_file) = (authority.certificate().to_owned(), authority_file(&self.cert_dir));
        let believed = Identities::open(files, move || {
            let identity = |setting| move |source| ServingError::Identity { setting, source };
            let mut believed = Believed::new(anonymous);
            believed.trust(&own, &own_file).map_err(identity("the node's certificate authority"))?;
            if let Some(file) = &client_ca {
                believed.trust_file(file).map_err(identity("authentication.x509.clientCAFile"))?;
            }
            if let Some(file) = &tokens {
                believed.read_tokens(file).map_err(identity("--token-auth-file"))?;
            }
            Ok::<_, ServingError>(believed)
        })?;
        let tls = Rc::new(Tls::open(self.source.clone(), self.settings.clone(), authority, clock.clone())?);
        tls.show_end();
        Ok(Api {
            node: Rc::clone(node),
            guest: Some(Rc::clone(guest)),
            tls,
            believed,
            policy: self.policy,
            debugging: self.debugging,
            system_logs: self.system_logs,
            clock: clock.clone(),
        })
    }
}

/// The names and addresses of this node for clients, from the configuration and the interfaces.
#[must_use]
pub fn serving_names(resolved: &Resolved) -> Vec<String> {
    names(resolved.node_name.clone(), resolved.node_ips.clone(), &resolved.kubelet.address)()
}

/// The names and addresses of this node for clients, evaluated at each call.
fn names(node_name: String, node_ips: Vec<IpAddr>, address: &str) -> Rc<dyn Fn() -> Vec<String>> {
    let configured = address.parse().ok().filter(|address: &IpAddr| !address.is_unspecified());
    Rc::new(move || {
        let host = node::hostname().unwrap_or_default().to_lowercase();
        let addresses = node_ips.iter().copied().chain(configured).chain(node::default_route_addresses());
        let own = [node_name.as_str(), "localhost", "127.0.0.1", "::1", &host].map(str::to_owned);
        let mut names: Vec<String> = Vec::new();
        for name in own.into_iter().chain(addresses.map(|address| address.to_string())) {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    })
}
