//! The kubelet's servers: the API over TLS, the health and read-only ports.
//!
//! Owns their configuration and their start.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::config::{KubeletConfiguration, Resolved};
use crate::agent::kubelet::embedded::subnets;
use crate::agent::kubelet::report::LoopView;
use crate::cluster::pki::serving_pair_file;
use crate::cluster::review::Reviews;
use crate::cluster::review::rules::ReviewTimes;
use crate::desired::kinds::addresses::cidrs;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::{listeners, node};
use crate::runtime::embedded::network::subnet::Subnet;
use crate::serve::accounts::{Accounts, CLUSTER_DOMAIN};
use crate::serve::roles::Roles;
use crate::serve::server::access::Policy;
use crate::serve::server::answer::SystemLogs;
use crate::serve::server::authorize::Authorizer;
use crate::serve::server::delegate::SharedDelegate;
use crate::serve::server::https::{self, Api, ListenError, Plain};
use crate::serve::server::identity::{Believed, Identities, IdentityError};
use crate::serve::server::node::SharedNode;
use crate::serve::server::pki::{Authority, PkiError, authority_file};
use crate::serve::server::tls::{Source, Tls, TlsError, TlsSettings};
use crate::service::driver::ServiceConfig;

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{setting}")]
    Identity {
        /// The setting that names the file.
        setting: &'static str,
        source: IdentityError,
    },
}

/// The interval of retrying servers that cannot start.
const RETRY: Duration = Duration::from_secs(10);

pub(super) struct ServingConfig {
    pub(super) health: Option<SocketAddr>,
    pub(super) read_only: Option<SocketAddr>,
    pub(super) api: Option<ApiConfig>,
    /// Where pods reach the API, if not at its own address.
    pub(super) pods: Option<PodsAddress>,
}

/// The node's address on the pods' bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodsAddress {
    pub(super) at: SocketAddr,
    pub(super) subnets: Vec<Subnet>,
}

/// What the API answers with, and who its clients are.
pub(super) struct ServingParts<'a> {
    pub(super) node: &'a SharedNode,
    pub(super) delegate: &'a SharedDelegate,
    pub(super) accounts: Option<&'a Rc<Accounts>>,
    pub(super) roles: &'a Rc<Roles>,
}

/// Starts the configured servers. An error that may pass (a port in use, a certificate on
/// a disk that is not mounted yet) keeps no pod from running: it is logged, shown by `agent status`, and
/// retried. The upstream kubelet exits instead.
pub(super) fn start(
    config: ServingConfig,
    parts: &ServingParts<'_>,
    view: &Rc<LoopView>,
    clock: &Clock,
) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    let mut plain = |name, at: Option<SocketAddr>, setting, shows| {
        if let Some(at) = at {
            let (node, view, clock) = (Rc::clone(parts.node), Rc::clone(view), clock.clone());
            tasks.push(rt::spawn(name, async move {
                let listener = persist(name, at, &view, || Ok(https::listen(at, setting)?)).await;
                https::serve_plain(listener, node, shows, clock).await;
            }));
        }
    };
    plain("health server", config.health, "healthzBindAddress, healthzPort", Plain::Health);
    plain("read-only server", config.read_only, "address, readOnlyPort", Plain::ReadOnly);
    let Some(wanted) = config.api else { return tasks };
    let (at, view, clock) = (wanted.at, Rc::clone(view), clock.clone());
    let (node, delegate) = (Rc::clone(parts.node), Rc::clone(parts.delegate));
    let (accounts, roles) = (parts.accounts.cloned(), Rc::clone(parts.roles));
    tasks.push(rt::spawn("API server", async move {
        // Its certificates exist before clients can connect, for those that then request a kubeconfig.
        let open = || {
            let parts =
                ServingParts { node: &node, delegate: &delegate, accounts: accounts.as_ref(), roles: &roles };
            let api = wanted.open(&parts, &clock)?;
            Ok((https::listen(at, "address, port")?, api))
        };
        let (listener, api) = persist("API server", at, &view, open).await;
        // Earlier clients wait in the socket's backlog: an answer now would show no pods.
        view.wait_until_restored().await;
        let api = Rc::new(api);
        let everybody = https::serve(listener, Rc::clone(&api));
        match (config.pods, accounts) {
            (Some(pods), Some(accounts)) => {
                let for_pods = serve_pods(pods, api, accounts.carried(), &view);
                // Neither ends: each listens as long as the task.
                tokio::join!(everybody, for_pods);
            }
            _ => everybody.await,
        }
    }));
    tasks
}

/// Serves the API at the node's address on the pods' bridge while there are pods with tokens.
async fn serve_pods(
    pods: PodsAddress,
    api: Rc<Api>,
    mut carried: watch::Receiver<bool>,
    view: &Rc<LoopView>,
) {
    let is_here = |peer: IpAddr| {
        pods.subnets.iter().any(|subnet| subnet.contains(peer)) || listeners::is_own_address(peer)
    };
    // Cancel safe: the value is read again. The sender lives as long as the process.
    while carried.wait_for(|carried| *carried).await.is_ok() {
        let name = "API server for pods";
        let open = || Ok(https::listen_ahead(pods.at, "podCIDR, port")?);
        let listener = persist(name, pods.at, view, open).await;
        tokio::select! {
            biased;
            ended = carried.wait_for(|carried| !*carried) => drop(ended),
            () = https::serve_pods(listener, Rc::clone(&api), is_here) => {}
        }
    }
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

/// The URL of the API for clients on this machine.
#[must_use]
pub(crate) fn server_url(host: &str, port: i32) -> String {
    let mut at = address(host, port);
    if at.ip().is_unspecified() {
        at.set_ip(IpAddr::from([127, 0, 0, 1]));
    }
    format!("https://{at}")
}

/// An address and a port that are already validated.
pub(super) fn address(address: &str, port: i32) -> SocketAddr {
    let address = address.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    SocketAddr::new(address, u16::try_from(port).unwrap_or_default())
}

pub(super) struct ApiConfig {
    pub(super) at: SocketAddr,
    pub(super) access: AccessRules,
    pub(super) anonymous: bool,
    pub(super) debugging: bool,
    pub(super) system_logs: SystemLogs,
    pub(super) cert_dir: PathBuf,
    pub(super) node_name: String,
    pub(super) client_ca: Option<PathBuf>,
    pub(super) tokens: Option<PathBuf>,
    pub(super) source: Source,
    pub(super) settings: TlsSettings,
}

/// Who judges users, and who knows the users of tokens.
#[derive(Clone)]
pub(super) struct AccessRules {
    /// Of `authorization.mode`; `None`: the cluster's, with `reviews`.
    policy: Option<Policy>,
    /// `authentication.webhook.enabled`.
    reviews_tokens: bool,
    /// Of a node with a kubeconfig.
    reviews: Option<Rc<Reviews>>,
}

/// The cluster's reviews for a node with a kubeconfig. They deny until they are connected ([`Reviews::connect`]).
pub(super) fn reviews(resolved: &Resolved, clock: &Clock) -> Option<Rc<Reviews>> {
    let kubelet = &resolved.kubelet;
    let times = ReviewTimes::of(
        kubelet.authentication_webhook_cache_ttl.to_std(),
        kubelet.authorization_webhook_cache_authorized_ttl.to_std(),
        kubelet.authorization_webhook_cache_unauthorized_ttl.to_std(),
    );
    let is_joined = !resolved.flags.kubeconfig.is_empty();
    is_joined.then(|| Reviews::new(&resolved.node_name, times, clock.clone(), Dice::System))
}

/// As configured. Without a cluster, validation has refused what needs one.
pub(super) fn access(kubelet: &KubeletConfiguration, reviews: Option<&Rc<Reviews>>) -> AccessRules {
    let reviews_tokens = kubelet.authentication_webhook_enabled;
    let policy = match kubelet.authorization_mode.as_str() {
        "AlwaysAllow" => Some(Policy::AlwaysAllow),
        "Webhook" => None,
        _ => Some(Policy::Local),
    };
    AccessRules { policy, reviews_tokens, reviews: reviews.cloned() }
}

impl AccessRules {
    fn authorizer(&self) -> Authorizer {
        match (&self.reviews, self.policy) {
            (Some(reviews), None) => Authorizer::Reviews(Rc::clone(reviews)),
            (_, policy) => Authorizer::Policy(policy.unwrap_or(Policy::Local)),
        }
    }

    fn tokens(&self) -> Option<Rc<Reviews>> {
        self.reviews.clone().filter(|_| self.reviews_tokens)
    }
}

/// With `serverTLSBootstrap` on a node with a kubeconfig, the certificate that the cluster signs, and `source` until
/// then.
pub(super) fn cluster_source(resolved: &Resolved, source: Source) -> Source {
    if !resolved.kubelet.server_tls_bootstrap || resolved.flags.kubeconfig.is_empty() {
        return source;
    }
    Source::Cluster { file: serving_pair_file(&resolved.flags.cert_dir), until: Box::new(source) }
}

impl ApiConfig {
    fn open(&self, parts: &ServingParts<'_>, clock: &Clock) -> Result<Api, ServingError> {
        let authority = Rc::new(Authority::open(&self.cert_dir, &self.node_name)?);
        let (anonymous, client_ca, tokens) = (self.anonymous, self.client_ca.clone(), self.tokens.clone());
        let files = client_ca.iter().chain(&tokens).cloned().collect();
        let reviews_tokens = self.access.reviews_tokens || parts.accounts.is_some();
        let (own, own_file) = (authority.certificate().to_owned(), authority_file(&self.cert_dir));
        let identities = Identities::open(files, move || {
            let identity = |setting| move |source| ServingError::Identity { setting, source };
            let mut believed = Believed::new(anonymous).reviewing_tokens(reviews_tokens);
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
            node: Rc::clone(parts.node),
            delegate: Some(Rc::clone(parts.delegate)),
            tls,
            identities,
            authorizer: self.access.authorizer(),
            tokens: self.access.tokens(),
            accounts: parts.accounts.cloned(),
            roles: Rc::clone(parts.roles),
            debugging: self.debugging,
            system_logs: self.system_logs,
            clock: clock.clone(),
        })
    }
}

/// The names and addresses by which pods reach the API of a node of no cluster.
#[must_use]
pub(crate) fn names_for_pods(resolved: &Resolved) -> Vec<String> {
    if !resolved.flags.kubeconfig.is_empty() {
        return Vec::new();
    }
    let domain = match resolved.kubelet.cluster_domain.as_str() {
        "" => CLUSTER_DOMAIN,
        domain => domain,
    };
    let whole = ["kubernetes.default.svc.", domain].concat();
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", &whole];
    let gateways = subnets(&resolved.kubelet.pod_cidr).unwrap_or_default();
    let gateways = gateways.iter().map(|subnet| subnet.gateway().to_string());
    let ranges = cidrs(&resolved.flags.service_cidr).unwrap_or_default();
    let service = ServiceConfig::api_addresses(&ranges).into_iter().map(|ip| ip.to_string());
    names.map(str::to_owned).into_iter().chain(service).chain(gateways).collect()
}

/// The names and addresses of this node for clients, evaluated at each call.
pub(crate) fn serving_names(
    node_name: String,
    node_ips: Vec<IpAddr>,
    address: &str,
    for_pods: Vec<String>,
) -> Rc<dyn Fn() -> Vec<String>> {
    let configured = address.parse().ok().filter(|address: &IpAddr| !address.is_unspecified());
    Rc::new(move || {
        let host = node::hostname().unwrap_or_default().to_lowercase();
        let given = node_ips.iter().copied().filter(|address| !address.is_unspecified());
        let addresses = given.chain(configured).chain(node::default_route_addresses());
        let own = [node_name.as_str(), "localhost", "127.0.0.1", "::1", &host].map(str::to_owned);
        let mut names: Vec<String> = Vec::new();
        let addresses = addresses.map(|address| address.to_string());
        for name in own.into_iter().chain(addresses).chain(for_pods.iter().cloned()) {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    })
}

#[cfg(test)]
mod tests;
