//! The questions to the cluster: discovery, the Node of this name, the configuration of kubelets.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::args::JoinOptions;
use super::rules;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::limits::Limit;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::client::{Client, ClientConfig};
use crate::cluster::discovery::{self, DiscoveryError};
use crate::cluster::kubeconfig::{Kubeconfig, KubeconfigError, PemSource};
use crate::cluster::pki::files::ClusterEntry;
use crate::codec::base64;
use crate::codec::yaml::{YamlError, yaml_to_values};
use crate::model::types::Timestamp;
use crate::platform::dice::Dice;
use crate::platform::http::{HttpClient, Request, shown_url};
use crate::platform::logging::chain;

/// As kubeadm's `timeouts.discovery`.
const LIMIT: Duration = Duration::from_secs(300);
const REQUEST: Duration = Duration::from_secs(10);

/// Makes the client of a kubeconfig.
pub(super) type Dial<'a, T> = &'a dyn Fn(Kubeconfig) -> Client<T>;

#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Broken(String),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Yaml(#[from] YamlError),
    #[error("cannot get {what}")]
    Refused { what: String, source: ApiError },
}

/// A cluster that is believed, and the kubeconfig that requests the node's certificate.
pub(in crate::cmd) struct Found {
    pub(in crate::cmd) cluster: ClusterEntry,
    pub(in crate::cmd) bootstrap: String,
    pub(in crate::cmd) user: Kubeconfig,
}

pub(super) fn client<T: Transport>(transport: T, dice: Dice) -> Client<T> {
    let config =
        ClientConfig { limit: Limit { qps: 0, burst: 0 }, timeout: REQUEST, heartbeat_timeout: REQUEST };
    Client::new(std::rc::Rc::new(transport), config, dice)
}

pub(super) async fn discover<T: Transport>(
    options: &JoinOptions,
    dial: Dial<'_, T>,
    now: Timestamp,
) -> Result<Found, AskError> {
    let limit = options.limit.unwrap_or(LIMIT);
    let (cluster, file) = match (&options.endpoint, &options.file, &options.token) {
        (Some(endpoint), _, Some(token)) => {
            let connect = connector(&format!("https://{endpoint}"), dial)?;
            (discovery::by_token(&connect, token, &options.pins, limit, now).await?, String::new())
        }
        (_, Some(file), _) => {
            let (entry, text) = entry_of(file).await?;
            let connect = connector(&entry.server, dial)?;
            (discovery::by_file(&connect, entry, limit).await?, text)
        }
        _ => return Err(AskError::Broken("no cluster was named".to_owned())),
    };
    let bootstrap = match options.tls_token.as_ref().or(options.token.as_ref()) {
        Some(token) => discovery::bootstrap_kubeconfig(&cluster, token),
        None => file,
    };
    let directory =
        options.file.as_deref().filter(|file| !is_url(file)).and_then(|file| Path::new(file).parent());
    let value = yaml_to_values(&bootstrap, false)?.into_iter().next().unwrap_or_default();
    let user = Kubeconfig::parse(&value, directory.unwrap_or(Path::new("/")))?;
    Ok(Found { cluster, bootstrap, user })
}

/// The cluster of the file with its authorities in it, and the file's text.
async fn entry_of(file: &str) -> Result<(ClusterEntry, String), AskError> {
    if is_url(file) {
        let text = fetch(file).await.map_err(AskError::Broken)?;
        let entry = discovery::cluster_of(&text).map_err(AskError::Broken)?;
        return Ok((entry, text));
    }
    let path = Path::new(file);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| AskError::File { path, source }
    };
    let text = std::fs::read_to_string(path).map_err(failed(path))?;
    let mut entry = discovery::cluster_of(&text).map_err(AskError::Broken)?;
    if !entry.authority_file.is_empty() {
        let file = path.parent().unwrap_or(Path::new("/")).join(&entry.authority_file);
        entry.authority_data = base64::encode(&std::fs::read(&file).map_err(failed(&file))?);
        entry.authority_file.clear();
    }
    Ok((entry, text))
}

fn is_url(file: &str) -> bool {
    file.starts_with("https://")
}

/// The file at a URL, whose server the authorities of the system vouch for.
async fn fetch(url: &str) -> Result<String, String> {
    let failed = |why: String| format!("--discovery-file {}: {why}", shown_url(url));
    let answer = match HttpClient::start() {
        Ok(http) => http.get(Request::get(url)).await,
        Err(error) => Err(error),
    };
    let answer = answer.map_err(|error| failed(chain(&error)))?;
    if answer.status != 200 {
        return Err(failed(answer.status_line));
    }
    String::from_utf8(answer.body).map_err(|error| failed(error.to_string()))
}

/// Clients without credentials, as discovery wants them.
fn connector<'a, T: Transport>(
    server: &str,
    dial: Dial<'a, T>,
) -> Result<impl Fn(Option<&str>) -> Client<T> + 'a, KubeconfigError> {
    let anonymous = json!({
        "clusters": [{ "name": "c", "cluster": { "server": server, "insecure-skip-tls-verify": true } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": {} }],
        "current-context": "c",
    });
    let anonymous = Kubeconfig::parse(&anonymous, Path::new("/"))?;
    Ok(move |authorities: Option<&str>| {
        let mut config = anonymous.clone();
        if let Some(pem) = authorities {
            config.skip_verify = false;
            config.authorities = Some(PemSource::Data(pem.as_bytes().to_vec()));
        }
        dial(config)
    })
}

/// The cluster's `KubeletConfiguration`, once it is certain that no Ready node has this name.
pub(super) async fn ask<T: Transport>(client: &Client<T>, name: &str) -> Result<Value, AskError> {
    let node = ResourcePath::whole("", "nodes", name);
    match client.get(Lane::Main, &node, Accept::Json).await {
        Ok(node) => rules::is_free(&node, name).map_err(AskError::Broken)?,
        Err(error) if error.kind == ApiErrorKind::NotFound => {}
        Err(source) => return Err(AskError::Refused { what: format!("Node {name:?}"), source }),
    }
    let of = ResourcePath::namespaced("", "configmaps", "kube-system", "kubelet-config");
    let map = client.get(Lane::Main, &of, Accept::Json).await.map_err(|source| AskError::Refused {
        what: "ConfigMap \"kubelet-config\" in namespace \"kube-system\"".to_owned(),
        source,
    })?;
    let text = map["data"]["kubelet"].as_str().unwrap_or_default();
    let value = yaml_to_values(text, false)?.into_iter().next().unwrap_or_default();
    if value["kind"] != "KubeletConfiguration" {
        return Err(AskError::Broken("the kubelet-config ConfigMap has no KubeletConfiguration".to_owned()));
    }
    Ok(value)
}
