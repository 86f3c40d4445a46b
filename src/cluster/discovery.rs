//! How a machine learns which cluster it joins: kubeadm's discovery by token and by file.
//!
//! Owns the order of the steps, and what the bootstrap kubeconfig has. Without pins, a server that knows the
//! token's secret is believed; with them, the authorities of the cluster must have a pinned key, and the second
//! answer, over TLS verified with them, must be the first one.

pub(crate) mod jws;

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::pki::deadline::validity;
use crate::cluster::pki::files::{ClusterEntry, kubeconfig};
use crate::codec::base64;
use crate::codec::yaml::yaml_to_values;
use crate::model::types::Timestamp;
use jws::{BootstrapToken, CLUSTER_INFO, CaPin};

const RETRY: Duration = Duration::from_secs(5);
/// kubeadm's names in `bootstrap-kubelet.conf`.
const CLUSTER_NAME: &str = "kubernetes";
const TOKEN_USER: &str = "tls-bootstrap-token-user";

/// Makes a client without credentials, for TLS verified with these authorities (PEM); `None`: not verified.
pub(crate) type Connect<'a, T> = &'a dyn Fn(Option<&str>) -> Client<T>;

/// The cluster is unknown or not to be trusted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiscoveryError {
    /// Nothing usable was answered in time.
    #[error("{what}")]
    NoAnswer {
        what: String,
        /// The last error of the connection.
        source: Option<ApiError>,
    },
    /// What was answered must not be believed, or is broken.
    #[error("couldn't validate the identity of the API Server: {0}")]
    Untrusted(String),
}

/// Discovery by token. Pins are those of `--discovery-token-ca-cert-hash`; none of them means that the user has
/// said so (`--discovery-token-unsafe-skip-ca-verification`).
///
/// # Errors
/// The server has no signed `cluster-info` in time, or it is not the one of the token and the pins.
pub(crate) async fn by_token<T: Transport>(
    connect: Connect<'_, T>,
    token: &BootstrapToken,
    pins: &[CaPin],
    limit: Duration,
    now: Timestamp,
) -> Result<ClusterEntry, DiscoveryError> {
    let deadline = Instant::now() + limit;
    let first = signed_info(&connect(None), token, deadline).await?;
    let text = jws::signed_kubeconfig(&first, token).map_err(DiscoveryError::Untrusted)?;
    let cluster = cluster_of(&text).map_err(DiscoveryError::Untrusted)?;
    if pins.is_empty() {
        return Ok(cluster);
    }
    let authorities = base64::decode(&cluster.authority_data).unwrap_or_default();
    let authorities = String::from_utf8(authorities).unwrap_or_default();
    jws::check_pins(&authorities, pins).map_err(DiscoveryError::Untrusted)?;
    if let Some(since) = validity(&authorities).map(|times| times.not_before)
        && now < since
    {
        let (now, since) = (now.to_rfc3339(), since.to_rfc3339());
        let what = format!(
            "the clock of this machine shows {now}, and the cluster's authority is valid from {since}: set the clock"
        );
        return Err(DiscoveryError::NoAnswer { what, source: None });
    }
    let second = signed_info(&connect(Some(&authorities)), token, deadline).await?;
    if second["data"]["kubeconfig"] != text {
        return Err(DiscoveryError::Untrusted(format!(
            "the second kubeconfig from the {CLUSTER_INFO} ConfigMap (using validated TLS) was different from the \
             first"
        )));
    }
    Ok(cluster)
}

async fn cluster_info<T: Transport>(client: &Client<T>) -> Result<Value, ApiError> {
    let of = ResourcePath::namespaced("", "configmaps", "kube-public", CLUSTER_INFO);
    client.get(Lane::Main, &of, Accept::Json).await
}

/// Asks until the ConfigMap has the token's signature: that arrives some time after the token.
async fn signed_info<T: Transport>(
    client: &Client<T>,
    token: &BootstrapToken,
    deadline: Instant,
) -> Result<Value, DiscoveryError> {
    loop {
        let no_answer = match cluster_info(client).await {
            Ok(found) if jws::is_signed(&found, token) => return Ok(found),
            Ok(_) => DiscoveryError::NoAnswer {
                what: format!(
                    "could not find a JWS signature in the {CLUSTER_INFO} ConfigMap for token ID {:?}",
                    token.id
                ),
                source: None,
            },
            Err(error) => DiscoveryError::NoAnswer {
                what: format!("failed to request the {CLUSTER_INFO} ConfigMap"),
                source: Some(error),
            },
        };
        log::debug!(err:% = no_answer; "Will ask for the cluster's information again");
        if Instant::now() + RETRY > deadline {
            return Err(no_answer);
        }
        sleep(RETRY).await;
    }
}

/// Discovery by file: the user trusts the kubeconfig in it. The server is asked all the same, so that a wrong
/// address or authority is noticed now; a server that does not show `cluster-info` to strangers is believed.
///
/// # Errors
/// The server did not answer in time, or its kubeconfig is broken.
pub(crate) async fn by_file<T: Transport>(
    connect: Connect<'_, T>,
    mut cluster: ClusterEntry,
    limit: Duration,
) -> Result<ClusterEntry, DiscoveryError> {
    let deadline = Instant::now() + limit;
    let authorities = base64::decode(&cluster.authority_data).and_then(|pem| String::from_utf8(pem).ok());
    let authorities = authorities.unwrap_or_default();
    let client = connect(Some(&authorities));
    let found = loop {
        match cluster_info(&client).await {
            Ok(found) => break found,
            Err(error) if error.kind == ApiErrorKind::Forbidden => return Ok(cluster),
            Err(error) if Instant::now() + RETRY > deadline => {
                let seconds = limit.as_secs();
                let what = format!("abort reading the {CLUSTER_INFO} ConfigMap after timeout of {seconds}s");
                return Err(DiscoveryError::NoAnswer { what, source: Some(error) });
            }
            Err(_) => sleep(RETRY).await,
        }
    };
    // One that is not set up properly changes nothing.
    if cluster.authority_data.is_empty()
        && let Some(text) = found["data"]["kubeconfig"].as_str()
        && let Ok(fresh) = cluster_of(text)
    {
        cluster.authority_data = fresh.authority_data;
    }
    Ok(cluster)
}

/// The unnamed cluster of a kubeconfig, else that of its current context: kubeadm's rule. Paths are not followed.
///
/// # Errors
/// No kubeconfig, or one without such a cluster.
pub(crate) fn cluster_of(kubeconfig: &str) -> Result<ClusterEntry, String> {
    let broken = |why: String| format!("malformed kubeconfig in the {CLUSTER_INFO} ConfigMap: {why}");
    let mut values = yaml_to_values(kubeconfig, false).map_err(|error| broken(error.to_string()))?;
    let config = if values.is_empty() { Value::Null } else { values.remove(0) };
    let named = |list: &str, name: &str| {
        let entries = config[list].as_array().into_iter().flatten();
        entries.clone().find(|entry| entry["name"].as_str().unwrap_or_default() == name)
    };
    let current = config["current-context"].as_str().unwrap_or_default();
    let cluster = named("clusters", "").or_else(|| {
        let context = named("contexts", current).filter(|_| !current.is_empty())?;
        named("clusters", context["context"]["cluster"].as_str()?)
    });
    let Some(cluster) = cluster.map(|entry| &entry["cluster"]).filter(|cluster| cluster.is_object()) else {
        return Err(broken(format!("the current context is invalid: {current}")));
    };
    let text = |key: &str| cluster[key].as_str().unwrap_or_default().to_owned();
    if text("server").is_empty() {
        return Err(broken("the cluster has no server".to_owned()));
    }
    Ok(ClusterEntry {
        server: text("server"),
        authority_file: text("certificate-authority"),
        authority_data: text("certificate-authority-data"),
        insecure: cluster["insecure-skip-tls-verify"] == true,
        server_name: text("tls-server-name"),
        proxy_url: text("proxy-url"),
    })
}

/// `bootstrap-kubelet.conf`, with kubeadm's names.
#[must_use]
pub(crate) fn bootstrap_kubeconfig(cluster: &ClusterEntry, token: &BootstrapToken) -> String {
    let context = format!("{TOKEN_USER}@{CLUSTER_NAME}");
    let token = format!("{}.{}", token.id, token.secret);
    kubeconfig(cluster, [CLUSTER_NAME, TOKEN_USER, &context], None, &[("token", &token)])
}

#[cfg(test)]
mod tests;
