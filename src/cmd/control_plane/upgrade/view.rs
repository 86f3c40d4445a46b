//! The cluster as an upgrade finds it: kubeadm's ConfigMaps, the nodes, the pods of the control plane.
//!
//! Owns how it is read, and the settings that follow from it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::versions::{KubeVersion, tag_of};
use super::wishes::UpgradeWishes;
use crate::cluster::client::h2::H2Transport;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::Transport;
use crate::cluster::kubeconfig::PemSource;
use crate::cmd::control_plane::api::{self, Api, ApiPhaseError};
use crate::cmd::control_plane::config::InitSettings;
use crate::cmd::control_plane::config::fields::DocumentField;
use crate::cmd::control_plane::config::read::{Documents, HostFacts, cluster, settle};
use crate::cmd::control_plane::manifests::API_SERVER;
use crate::cmd::control_plane::{Paths, objects, preflight};
use crate::cmd::init::InitError;
use crate::codec::yaml::yaml_to_values;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
pub(super) const CRI_SOCKET: &str = "kubeadm.alpha.kubernetes.io/cri-socket";
const ENDPOINT: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";

/// How the API server is asked.
pub(super) struct Reach {
    pub kubeconfig: PathBuf,
    /// This node's own API server, instead of the kubeconfig's.
    pub server: Option<String>,
    pub name: String,
}

impl Reach {
    /// Requests that fail are sent again for `patience`.
    pub(super) fn talk<R>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(&Api<'_, H2Transport>) -> Result<R, ApiPhaseError>,
    ) -> Result<R, InitError> {
        let failed = |error: ApiPhaseError| InitError::ControlPlane(chain(&error));
        let kubeconfig = api::kubeconfig(&self.kubeconfig, self.server.as_deref()).map_err(failed)?;
        let asked = rt::run(async {
            let client = api::client(api::transport(kubeconfig));
            let api = Api::new(Some(client), &|_: &str| {}, Instant::now() + patience);
            Box::pin(work(&api)).await
        });
        asked.map_err(|error| InitError::ControlPlane(error.to_string()))?.map_err(failed)
    }
}

/// What the API server says. Empty where it was not asked, or there is none.
#[derive(Default)]
pub(super) struct ClusterView {
    pub documents: Documents,
    /// Whether users have changed the configurations of kubelets and of kube-proxy.
    pub has_own_kubelet: bool,
    pub has_own_proxy: bool,
    pub node: Value,
    pub nodes: Vec<Value>,
    /// Of `kube-system`.
    pub pods: Vec<Value>,
    /// The version of CoreDNS.
    pub dns: String,
}

/// `is_worker`: with the rights of a node, which sees its own object and the configurations.
pub(super) async fn read<T: Transport>(
    api: &Api<'_, T>,
    name: &str,
    is_worker: bool,
) -> Result<ClusterView, ApiPhaseError> {
    let of = |plural, name: &str| ResourcePath::namespaced("", plural, "kube-system", name);
    let mut view = ClusterView::default();
    let Some(config) = api.get(&of("configmaps", "kubeadm-config")).await? else {
        return Err(ApiPhaseError::Broken(
            "the ConfigMap \"kubeadm-config\" in the \"kube-system\" namespace was not found: use 'agent init phase \
             upload-config kubeadm --config your-config-file' to re-upload it"
                .to_owned(),
        ));
    };
    view.documents.cluster = document(&config, "ClusterConfiguration")?;
    view.node = api.get(&ResourcePath::whole("", "nodes", name)).await?.unwrap_or_default();
    if let Some(config) = api.get(&of("configmaps", "kubelet-config")).await? {
        view.documents.kubelet = document(&config, "kubelet")?;
        view.has_own_kubelet = !objects::is_marked(&config);
    }
    if is_worker {
        return Ok(view);
    }
    if let Some(config) = api.get(&of("configmaps", "kube-proxy")).await? {
        view.documents.kube_proxy = document(&config, "config.conf")?;
        view.has_own_proxy = !objects::is_marked(&config);
    }
    view.nodes = api.list(&ResourcePath::whole("", "nodes", ""), "").await?;
    view.pods = api.list(&of("pods", ""), "").await?;
    let deployments = ResourcePath::namespaced("apps", "deployments", "kube-system", "");
    for deployment in api.list(&deployments, "").await? {
        if deployment["metadata"]["labels"]["k8s-app"] == "kube-dns" {
            let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
            view.dns = tag_of(image.as_str().unwrap_or_default());
        }
    }
    Ok(view)
}

fn document(config: &Value, key: &str) -> Result<Value, ApiPhaseError> {
    let broken = |why: String| {
        ApiPhaseError::Broken(format!("ConfigMap {}, key {key:?}: {why}", config["metadata"]["name"]))
    };
    let text = config["data"][key].as_str().ok_or_else(|| broken("is missing".to_owned()))?;
    let values = yaml_to_values(text, false).map_err(|error| broken(error.to_string()))?;
    values.into_iter().next().filter(Value::is_object).ok_or_else(|| broken("must be an object".to_owned()))
}

impl ClusterView {
    /// Nodes by the versions of a component of the control plane on them.
    pub(super) fn versions(&self, component: &str) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in &self.pods {
            let labels = &pod["metadata"]["labels"];
            if labels["component"] == component && labels["tier"] == "control-plane" {
                let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
                let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
                found.entry(tag_of(image)).or_default().push(node.to_owned());
            }
        }
        found
    }

    /// Nodes by the versions of their kubelets.
    pub(super) fn kubelets(&self) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in &self.nodes {
            let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default();
            found.entry(version.to_owned()).or_default().push(name_of(node));
        }
        found
    }

    /// The latest one of the API servers; without any, that of the configuration.
    pub(super) fn version(&self) -> String {
        let versions = self.versions(API_SERVER);
        let parsed = versions.keys().filter_map(|text| Some((KubeVersion::parse(text)?, text)));
        let latest = parsed.max_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, text)| text.clone());
        latest.unwrap_or_else(|| {
            self.documents.cluster["kubernetesVersion"].as_str().unwrap_or_default().to_owned()
        })
    }

    /// Control-plane nodes that are not ready.
    pub(super) fn not_ready(&self) -> Vec<String> {
        let is_ready = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array();
            conditions
                .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
        };
        let theirs = self.nodes.iter().filter(|node| !node["metadata"]["labels"][CONTROL_PLANE].is_null());
        theirs.filter(|node| !is_ready(node)).map(name_of).collect()
    }

    /// Nodes whose API server has another image than this one's, by the mirror pods.
    pub(super) fn not_upgraded(&self, name: &str) -> Vec<String> {
        let mut images = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| pod["metadata"]["labels"]["component"] == API_SERVER) {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            images.insert(node, &pod["spec"]["containers"][0]["image"]);
        }
        let own = images.get(name).copied();
        images.iter().filter(|(_, image)| Some(**image) != own).map(|(node, _)| (*node).to_owned()).collect()
    }

    /// Whether kubeadm has noted the node's runtime at it, as earlier releases did.
    pub(super) fn has_noted_socket(&self) -> bool {
        self.node["metadata"]["annotations"][CRI_SOCKET].is_string()
    }

    /// The settings of the upgraded control plane. `endpoint`: of this node's API server, if it has one.
    pub(super) fn settings(
        &self,
        wishes: &UpgradeWishes,
        (name, version): (&str, &str),
        endpoint: Option<SocketAddr>,
        host: &HostFacts,
        paths: &Paths,
    ) -> Result<(InitSettings, Vec<String>), String> {
        let mut documents = self.documents.clone();
        documents.cluster["kubernetesVersion"] = version.into();
        // Its certificates stay what they are: new ones get other keys.
        let as_it_says = cluster(&DocumentField::of(&documents.cluster), version)?;
        documents.cluster["encryptionAlgorithm"] = Value::Null;
        documents.cluster["featureGates"] = Value::Null;
        let socket = match self.node["metadata"]["annotations"][CRI_SOCKET].as_str() {
            Some(socket) => socket.to_owned(),
            None => socket_of(paths).unwrap_or_else(|| preflight::OWN_SOCKET.to_owned()),
        };
        let taints = self.node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        documents.init = json!({
            "nodeRegistration": {
                "name": name, "criSocket": socket, "taints": taints, "imagePullPolicy": wishes.pull_policy,
                "ignorePreflightErrors": wishes.ignored,
            },
            "patches": { "directory": wishes.patches.display().to_string() },
            "timeouts": wishes.timeouts,
        });
        // A worker has none, and nothing of it is written there.
        let at = endpoint.unwrap_or(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 6443));
        documents.init["localAPIEndpoint"] =
            json!({ "advertiseAddress": at.ip().to_string(), "bindPort": at.port() });
        let (mut settings, warnings) = settle(&documents, host, paths)?;
        settings.cluster.algorithm = as_it_says.algorithm;
        settings.cluster.feature_gates = as_it_says.feature_gates;
        settings.given_kubelet = settings.given_kubelet.filter(|_| self.has_own_kubelet);
        settings.given_kube_proxy = settings.given_kube_proxy.filter(|_| self.has_own_proxy);
        Ok((settings, warnings))
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Of the configuration of this node's kubelet.
fn socket_of(paths: &Paths) -> Option<String> {
    let text = std::fs::read_to_string(paths.kubelet.join("instance-config.yaml")).ok()?;
    let values = yaml_to_values(&text, false).ok()?;
    let socket = values.first()?["containerRuntimeEndpoint"].as_str()?;
    (!socket.is_empty()).then(|| socket.to_owned())
}

/// Where this node's API server is, by its manifest (text of the file at `path`).
pub(super) fn endpoint(path: &Path, manifest: &str) -> Result<SocketAddr, InitError> {
    let failed = |why: String| InitError::ControlPlane(format!("{}: {why}", path.display()));
    let values = yaml_to_values(manifest, false).map_err(|error| failed(error.to_string()))?;
    let text = values.first().map(|pod| pod["metadata"]["annotations"][ENDPOINT].clone()).unwrap_or_default();
    let address = text.as_str().and_then(|text| text.parse().ok());
    address.ok_or_else(|| {
        failed(format!(
            "the annotation {ENDPOINT:?} must be an address and a port, such as 192.0.2.1:6443, not {text}"
        ))
    })
}

/// The name of this node: that of the kubelet's certificate.
pub(super) fn node_name(kubeconfig: &Path) -> Result<String, InitError> {
    let failed = |why: String| InitError::ControlPlane(format!("{}: {why}", kubeconfig.display()));
    let read = api::kubeconfig(kubeconfig, None).map_err(|error| failed(chain(&error)))?;
    let pem = match read.client {
        Some((PemSource::Data(pem), _)) => pem,
        Some((PemSource::File(path), _)) => {
            std::fs::read(&path).map_err(|source| InitError::File { action: "read", path, source })?
        }
        None => return Err(failed("it has no client certificate, which names this node".to_owned())),
    };
    let text = String::from_utf8_lossy(&pem);
    let subject = pem_blocks(&text, CERTIFICATE).first().and_then(|der| x509::subject(der));
    let name = subject.and_then(|of| of.common_name.strip_prefix("system:node:").map(str::to_owned));
    name.ok_or_else(|| failed("its client certificate is not that of a node".to_owned()))
}

#[cfg(test)]
pub(in crate::cmd::control_plane::upgrade) mod tests;
