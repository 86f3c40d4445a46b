//! The configuration of a control plane: kubeadm's documents (`kubeadm.k8s.io/v1beta4`), completed and checked.
//!
//! Pure: documents and facts of the host in, settings out. Owns the types, and the document that is uploaded.

pub(crate) mod checks;
pub(crate) mod complete;
pub(crate) mod components;
pub(crate) mod fields;
pub(crate) mod read;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::model::cidr::Cidr;
use crate::model::duration::GoDuration;
use crate::model::types::Timestamp;

pub(crate) const GROUP: &str = "kubeadm.k8s.io";
pub(crate) const API_VERSION: &str = "kubeadm.k8s.io/v1beta4";
/// Of the Kubernetes releases that run on this machine's control plane.
pub(crate) const ETCD_TAG: &str = "3.6.8-0";
pub(crate) const COREDNS_TAG: &str = "v1.14.2";
pub(crate) const DEFAULT_REPOSITORY: &str = "registry.k8s.io";

/// An argument of a component, without dashes, and its value.
pub(crate) type Argument = (String, String);

/// Everything that `init` works from.
#[derive(Clone)]
pub(crate) struct InitSettings {
    pub cluster: ClusterConfig,
    pub node: NodeRegistration,
    pub endpoint: ApiEndpoint,
    pub tokens: Vec<BootstrapToken>,
    /// Hexadecimal; empty: a random one, if one is needed.
    pub certificate_key: String,
    pub skip_phases: Vec<String>,
    pub dry_run: bool,
    /// The directory; empty: none.
    pub patches: PathBuf,
    pub timeouts: Timeouts,
    /// KubeletConfiguration of the cluster, all fields that kubeadm writes.
    pub kubelet: Value,
    /// The same of kube-proxy.
    pub kube_proxy: Value,
    /// The documents of the two as the user gave them.
    pub given_kubelet: Option<Value>,
    pub given_kube_proxy: Option<Value>,
}

#[derive(Clone)]
pub(crate) struct ClusterConfig {
    /// With its `v`.
    pub version: String,
    pub name: String,
    /// `host:port`; empty: the endpoint of the first node.
    pub control_plane_endpoint: String,
    pub cert_dir: PathBuf,
    pub image_repository: String,
    /// Names and booleans.
    pub feature_gates: Map<String, Value>,
    /// As in the document, `ECDSA-P256`.
    pub algorithm: String,
    pub validity: GoDuration,
    pub ca_validity: GoDuration,
    /// CIDRs, one or two with a comma.
    pub service_subnet: String,
    /// Likewise; may be empty.
    pub pod_subnet: String,
    pub dns_domain: String,
    pub api_server: Component,
    pub api_server_sans: Vec<String>,
    pub controller_manager: Component,
    pub scheduler: Component,
    pub dns: ImageMeta,
    pub dns_disabled: bool,
    pub proxy_disabled: bool,
    pub etcd: Etcd,
}

#[derive(Clone, Default)]
pub(crate) struct Component {
    pub args: Vec<Argument>,
    pub volumes: Vec<ExtraVolume>,
    /// `EnvVar`s.
    pub envs: Vec<Value>,
}

impl Component {
    /// The value of an argument that the user set; the last one, as components read it.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        let found = self.args.iter().rev().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }
}

#[derive(Clone)]
pub(crate) struct ExtraVolume {
    pub name: String,
    pub host_path: String,
    pub mount_path: String,
    pub read_only: bool,
    pub path_type: String,
}

/// Empty fields: the default.
#[derive(Clone, Default)]
pub(crate) struct ImageMeta {
    pub repository: String,
    pub tag: String,
}

#[derive(Clone)]
pub(crate) enum Etcd {
    Local(LocalEtcd),
    External(ExternalEtcd),
}

#[derive(Clone, Default)]
pub(crate) struct LocalEtcd {
    pub data_dir: PathBuf,
    pub image: ImageMeta,
    pub component: Component,
    pub server_sans: Vec<String>,
    pub peer_sans: Vec<String>,
    /// Not of a document: all members of the etcd that this node joins. Empty: it is the first.
    pub initial_cluster: String,
}

#[derive(Clone)]
pub(crate) struct ExternalEtcd {
    pub endpoints: Vec<String>,
    pub http_endpoints: Vec<String>,
    pub ca_file: String,
    pub cert_file: String,
    pub key_file: String,
}

#[derive(Clone)]
pub(crate) struct NodeRegistration {
    pub name: String,
    pub cri_socket: String,
    pub taints: Vec<Value>,
    pub kubelet_extra_args: Vec<Argument>,
    pub ignore_preflight_errors: Vec<String>,
    pub image_pull_policy: String,
}

#[derive(Clone)]
pub(crate) struct ApiEndpoint {
    pub advertise_address: IpAddr,
    pub bind_port: u16,
}

impl ApiEndpoint {
    /// `address:port`, an IPv6 address in brackets.
    pub(crate) fn authority(&self) -> String {
        std::net::SocketAddr::new(self.advertise_address, self.bind_port).to_string()
    }

    /// What the node's own components talk to.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.authority())
    }
}

/// Without `Debug`: it contains the secret.
#[derive(Clone)]
pub(crate) struct BootstrapToken {
    pub id: String,
    pub secret: String,
    pub description: String,
    /// Zero: it does not expire.
    pub ttl: GoDuration,
    pub expires: Option<Timestamp>,
    pub usages: Vec<String>,
    pub groups: Vec<String>,
}

impl BootstrapToken {
    pub(crate) fn text(&self) -> String {
        [self.id.as_str(), ".", self.secret.as_str()].concat()
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Timeouts {
    /// `controlPlaneComponentHealthCheck`, also of startup probes.
    pub control_plane: GoDuration,
    pub kubelet: GoDuration,
    pub api_call: GoDuration,
}

impl ClusterConfig {
    pub(crate) fn cert(&self, base: &str, extension: &str) -> PathBuf {
        self.cert_dir.join(format!("{base}.{extension}"))
    }

    /// The URL for clients of the whole cluster.
    pub(crate) fn server(&self, endpoint: &ApiEndpoint) -> String {
        if self.control_plane_endpoint.is_empty() {
            return endpoint.url();
        }
        format!("https://{}", self.control_plane_endpoint)
    }

    /// An address of the first service subnet by its position: 1 is the API server, 10 is DNS.
    pub(crate) fn service_address(&self, position: u64) -> Option<IpAddr> {
        let first: Cidr = self.service_subnet.split(',').next()?.trim().parse().ok()?;
        first.at(position)
    }

    /// `registry.k8s.io/kube-proxy:v1.36.0`: every image of the release's own version.
    pub(crate) fn image(&self, component: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let tag: String = self.version.chars().map(plain).collect();
        format!("{}/{component}:{tag}", self.image_repository)
    }

    pub(crate) fn etcd_image(&self) -> String {
        let own = match &self.etcd {
            Etcd::Local(local) => local.image.clone(),
            Etcd::External(_) => ImageMeta::default(),
        };
        named(&own, &self.image_repository, "etcd", ETCD_TAG)
    }

    pub(crate) fn dns_image(&self) -> String {
        let repository = if self.image_repository == DEFAULT_REPOSITORY {
            format!("{DEFAULT_REPOSITORY}/coredns")
        } else {
            self.image_repository.clone()
        };
        named(&self.dns, &repository, "coredns", COREDNS_TAG)
    }

    /// Whether a gate is on, given its default.
    pub(crate) fn gate(&self, name: &str, default: bool) -> bool {
        self.feature_gates.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    /// The document that kubeadm uploads: fields without a value are left out.
    pub(crate) fn document(&self) -> Value {
        let mut api_server = component(&self.api_server);
        api_server["certSANs"] = json!(self.api_server_sans);
        let mut document = json!({
            "apiVersion": API_VERSION,
            "kind": "ClusterConfiguration",
            "apiServer": api_server,
            "caCertificateValidityPeriod": self.ca_validity.to_string(),
            "certificateValidityPeriod": self.validity.to_string(),
            "certificatesDir": self.cert_dir.display().to_string(),
            "clusterName": self.name,
            "controlPlaneEndpoint": self.control_plane_endpoint,
            "controllerManager": component(&self.controller_manager),
            "dns": { "imageRepository": self.dns.repository, "imageTag": self.dns.tag, "disabled": self.dns_disabled },
            "encryptionAlgorithm": self.algorithm,
            "etcd": etcd(&self.etcd),
            "featureGates": self.feature_gates,
            "imageRepository": self.image_repository,
            "kubernetesVersion": self.version,
            "networking": {
                "dnsDomain": self.dns_domain,
                "podSubnet": self.pod_subnet,
                "serviceSubnet": self.service_subnet,
            },
            "proxy": { "disabled": self.proxy_disabled },
            "scheduler": component(&self.scheduler),
        });
        prune(
            &mut document,
            &["apiServer", "controllerManager", "dns", "etcd", "networking", "proxy", "scheduler"],
        );
        document
    }
}

fn named(own: &ImageMeta, repository: &str, name: &str, tag: &str) -> String {
    let or = |own: &str, default: &str| if own.is_empty() { default.to_owned() } else { own.to_owned() };
    [or(&own.repository, repository).as_str(), "/", name, ":", &or(&own.tag, tag)].concat()
}

fn component(component: &Component) -> Value {
    let volume = |volume: &ExtraVolume| {
        let mut made = json!({
            "name": volume.name,
            "hostPath": volume.host_path,
            "mountPath": volume.mount_path,
            "readOnly": volume.read_only,
            "pathType": volume.path_type,
        });
        prune(&mut made, &[]);
        made
    };
    json!({
        "extraArgs": arguments(&component.args),
        "extraVolumes": component.volumes.iter().map(volume).collect::<Vec<_>>(),
        "extraEnvs": component.envs,
    })
}

pub(crate) fn arguments(arguments: &[Argument]) -> Value {
    arguments.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

fn etcd(etcd: &Etcd) -> Value {
    match etcd {
        Etcd::Local(local) => {
            let mut made = component(&local.component);
            made["dataDir"] = json!(path(&local.data_dir));
            made["imageRepository"] = json!(local.image.repository);
            made["imageTag"] = json!(local.image.tag);
            made["serverCertSANs"] = json!(local.server_sans);
            made["peerCertSANs"] = json!(local.peer_sans);
            json!({ "local": made })
        }
        Etcd::External(external) => json!({ "external": {
            "endpoints": external.endpoints,
            "httpEndpoints": external.http_endpoints,
            "caFile": external.ca_file,
            "certFile": external.cert_file,
            "keyFile": external.key_file,
        } }),
    }
}

pub(crate) fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Removes members without a value, as Go's `omitempty`; objects of these names stay when they are empty.
fn prune(value: &mut Value, kept: &[&str]) {
    let Value::Object(members) = value else { return };
    for (name, member) in members.iter_mut() {
        // External etcd always writes its files, and a gate that is off says so.
        if !["external", "featureGates"].contains(&name.as_str()) {
            prune(member, kept);
        }
    }
    members.retain(|name, member| match member {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(inner) => !inner.is_empty() || kept.contains(&name.as_str()),
        _ => true,
    });
}

#[cfg(test)]
mod tests;
