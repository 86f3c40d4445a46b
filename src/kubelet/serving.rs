//! The kubelet's servers, from the resolved configuration: the local socket, the API over TLS, health and reading.
//!
//! Owns their configuration and their start. Must not know what they answer.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::config::Resolved;
use crate::rt;
use crate::server::access::Policy;
use crate::server::https::{self, Api, ListenError, Plain};
use crate::server::identity::{Believed, IdentityError};
use crate::server::node::SharedNode;
use crate::server::pki::{Authority, PkiError, authority_file};
use crate::server::tls::{Source, Tls, TlsError, TlsSettings};
use crate::sys::node;

/// A server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// An address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The node's certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The serving certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Whom to believe.
    #[error("{setting}")]
    Identity {
        /// Which setting names the file.
        setting: &'static str,
        /// What is wrong with it.
        source: IdentityError,
    },
    /// Webhooks without a cluster.
    #[error("{0} asks an API server: give --kubeconfig, or leave it out")]
    NoApiServer(&'static str),
}

/// Starts what the configuration wants, and nothing of it if a part cannot be.
///
/// # Errors
/// The part that cannot be.
pub(super) fn start(
    resolved: &Resolved,
    node: &SharedNode,
    clock: &Clock,
) -> Result<Vec<JoinHandle<()>>, ServingError> {
    let kubelet = &resolved.kubelet;
    let mut tasks = Vec::new();
    if kubelet.healthz_port > 0 {
        let at = address(&kubelet.healthz_bind_address, kubelet.healthz_port);
        let listener = https::listen(at, "healthzBindAddress, healthzPort")?;
        log::info!(address:% = at; "Serving health");
        let served = https::serve_plain(listener, Rc::clone(node), Plain::Health, clock.clone());
        tasks.push(rt::spawn("health server", served));
    }
    if !kubelet.enable_server {
        return Ok(tasks);
    }
    let api = Rc::new(api(resolved, node, clock)?);
    let at = address(&kubelet.address, kubelet.port);
    let listener = https::listen(at, "address, port")?;
    log::info!(address:% = at; "Serving the API");
    tasks.push(rt::spawn("API server", https::serve(listener, api)));
    if kubelet.read_only_port > 0 {
        let at = address(&kubelet.address, kubelet.read_only_port);
        let listener = https::listen(at, "address, readOnlyPort")?;
        log::warn!(address:% = at; "Serving what can be read without asking who reads it, as readOnlyPort says");
        let served = https::serve_plain(listener, Rc::clone(node), Plain::ReadOnly, clock.clone());
        tasks.push(rt::spawn("read-only server", served));
    }
    Ok(tasks)
}

/// Validated before: an address and a port.
fn address(address: &str, port: i32) -> SocketAddr {
    let address = address.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    SocketAddr::new(address, u16::try_from(port).unwrap_or_default())
}

fn api(resolved: &Resolved, node: &SharedNode, clock: &Clock) -> Result<Api, ServingError> {
    let kubelet = &resolved.kubelet;
    if kubelet.authentication.webhook.enabled {
        return Err(ServingError::NoApiServer("authentication.webhook.enabled"));
    }
    let policy = match kubelet.authorization.mode.as_str() {
        "AlwaysAllow" => Policy::AlwaysAllow,
        "Webhook" => return Err(ServingError::NoApiServer("authorization.mode: Webhook")),
        _ => Policy::Local,
    };
    let directory = &resolved.flags.cert_dir;
    let authority = Rc::new(Authority::open(directory, &resolved.node_name)?);
    let mut believed = Believed::new(kubelet.authentication.anonymous.enabled);
    let identity = |setting| move |source| ServingError::Identity { setting, source };
    believed
        .trust(authority.certificate(), &authority_file(directory))
        .map_err(identity("the node's own authority"))?;
    let client_ca = kubelet.authentication.x509.client_ca_file.as_str();
    if !client_ca.is_empty() {
        believed.trust_file(Path::new(client_ca)).map_err(identity("authentication.x509.clientCAFile"))?;
    }
    if let Some(file) = &resolved.agent.token_auth_file {
        believed.read_tokens(file).map_err(identity("--token-auth-file"))?;
    }
    let source = if kubelet.tls_cert_file.is_empty() {
        Source::Own {
            directory: directory.clone(),
            node_name: resolved.node_name.clone(),
            names: names(resolved),
        }
    } else {
        Source::Files {
            certificate: kubelet.tls_cert_file.as_str().into(),
            key: kubelet.tls_private_key_file.as_str().into(),
        }
    };
    let settings = TlsSettings {
        min_version: kubelet.tls_min_version.clone(),
        cipher_suites: kubelet.tls_cipher_suites.clone(),
    };
    let tls = Tls::open(source, settings, authority, clock.clone())?;
    let debugging = kubelet.enable_debugging_handlers;
    Ok(Api { node: Rc::clone(node), tls, believed, policy, debugging, clock: clock.clone() })
}

/// What clients may call this node.
pub(super) fn names(resolved: &Resolved) -> Vec<String> {
    let mut names =
        vec![resolved.node_name.clone(), "localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let host = node::hostname().unwrap_or_default().to_lowercase();
    let addresses = resolved.node_ips.iter().copied().chain(node::default_route_addresses());
    let configured: IpAddr = resolved.kubelet.address.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let more = [host]
        .into_iter()
        .chain(addresses.chain([configured]).filter(|ip| !ip.is_unspecified()).map(|ip| ip.to_string()));
    for name in more {
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
