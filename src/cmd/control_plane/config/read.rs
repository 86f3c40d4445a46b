//! kubeadm's documents to settings: defaults, and what follows from the host.
//!
//! Pure: documents and facts in, settings, warnings or a complaint out.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::Paths;
use super::fields::{DocumentField, unknown};
use super::{
    API_VERSION, ApiEndpoint, Argument, BootstrapToken, ClusterConfig, Component, DEFAULT_REPOSITORY, Etcd,
    ExternalEtcd, ExtraVolume, GROUP, ImageMeta, InitSettings, LocalEtcd, NodeRegistration, Timeouts, checks,
    components,
};
use crate::codec::yaml::yaml_to_values;
use crate::model::duration::GoDuration;
use crate::model::types::Timestamp;

const OLD_API_VERSION: &str = "kubeadm.k8s.io/v1beta3";
const KUBELET: &str = "KubeletConfiguration";
const KUBE_PROXY: &str = "KubeProxyConfiguration";
const TOKEN_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
pub(crate) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// What the documents leave to the machine.
pub(crate) struct HostFacts {
    pub hostname: String,
    /// Of the default routes, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// A bootstrap token, should none be given.
    pub token: String,
    /// The agent's release of Kubernetes, with its `v`.
    pub version: String,
    pub cri_socket: String,
}

/// The documents of a configuration file by their kinds. Those that `init` has no use for cause a warning.
#[derive(Clone)]
pub(crate) struct Documents {
    pub init: Value,
    pub cluster: Value,
    pub kubelet: Value,
    pub kube_proxy: Value,
    pub warnings: Vec<String>,
}

impl Default for Documents {
    fn default() -> Self {
        let none = || json!({});
        Self { init: none(), cluster: none(), kubelet: none(), kube_proxy: none(), warnings: Vec::new() }
    }
}

impl Documents {
    /// Reads the text of a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut read = Self::default();
        let mut kinds = Vec::new();
        for document in yaml_to_values(text, true).map_err(|error| error.to_string())? {
            let part = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
            let (version, kind) = (part("apiVersion"), part("kind"));
            if version.is_empty() || kind.is_empty() {
                return Err("kind and apiVersion are mandatory information that must be specified".to_owned());
            }
            if kinds.contains(&kind) {
                return Err(format!("invalid configuration: kind {kind:?} is specified twice in the file"));
            }
            kinds.push(kind.clone());
            read.take(&version, &kind, document)?;
        }
        if read.init["kind"].is_null() && read.cluster["kind"].is_null() {
            return Err("no InitConfiguration or ClusterConfiguration kind was found in the file".to_owned());
        }
        Ok(read)
    }

    fn take(&mut self, version: &str, kind: &str, document: Value) -> Result<(), String> {
        judge(version, kind, &document, &mut self.warnings)?;
        let group = version.split_once('/').map_or("", |(group, _)| group);
        match (group, kind) {
            (GROUP, "InitConfiguration") => self.init = document,
            (GROUP, "ClusterConfiguration") => self.cluster = document,
            ("kubelet.config.k8s.io", KUBELET) => self.kubelet = document,
            ("kubeproxy.config.k8s.io", KUBE_PROXY) => self.kube_proxy = document,
            _ => self
                .warnings
                .push(format!("ignored configuration document with GroupVersionKind {version}, Kind={kind}")),
        }
        Ok(())
    }
}

/// Warns of fields that the document's kind does not have, and refuses versions that nothing can be done with.
fn judge(version: &str, kind: &str, document: &Value, warnings: &mut Vec<String>) -> Result<(), String> {
    let (group, number) = version.split_once('/').unwrap_or(("", version));
    match (group, kind) {
        (GROUP, _) if version == OLD_API_VERSION => warnings.push(format!(
            "your configuration file uses a deprecated API spec: {version:?} (kind: {kind:?}). Please use \
             'kubeadm config migrate --old-config old-config-file --new-config new-config-file', which will \
             write the new, similar spec using a newer API version."
        )),
        (GROUP, _) if version != API_VERSION => {
            return Err(format!(
                "your configuration file uses an old API spec: {version:?} (kind: {kind:?}): write it as \
                 {API_VERSION}"
            ));
        }
        ("kubelet.config.k8s.io", KUBELET) if number != "v1beta1" => return unsupported(version, kind),
        ("kubeproxy.config.k8s.io", KUBE_PROXY) if number != "v1alpha1" => {
            return unsupported(version, kind);
        }
        _ => {}
    }
    let strange = unknown(kind, document)?;
    warnings.extend(strange.into_iter().map(|field| {
        format!("error unmarshaling configuration {version}, Kind={kind}: unknown field {field:?}")
    }));
    Ok(())
}

/// The document of one kind in the text of a file, and warnings; others are ignored with a warning.
pub(crate) fn single(text: &str, wanted: &str) -> Result<(Value, Vec<String>), String> {
    let (mut found, mut warnings) = (None, Vec::new());
    for document in yaml_to_values(text, true).map_err(|error| error.to_string())? {
        let part = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (part("apiVersion"), part("kind"));
        if kind != wanted || !version.starts_with(GROUP) {
            warnings
                .push(format!("ignored configuration document with GroupVersionKind {version}, Kind={kind}"));
            continue;
        }
        judge(&version, &kind, &document, &mut warnings)?;
        if found.replace(document).is_some() {
            return Err(format!("invalid configuration: kind {kind:?} is specified twice in the file"));
        }
    }
    let found = found.ok_or_else(|| format!("no {wanted} kind was found in the file"))?;
    Ok((found, warnings))
}

fn unsupported(version: &str, kind: &str) -> Result<(), String> {
    Err(format!("unsupported apiVersion {version:?} of kind {kind:?}, you may have to do manual conversion"))
}

/// The settings of the documents. Warnings are added to the documents'.
pub(crate) fn settle(
    documents: &Documents,
    host: &HostFacts,
    paths: &Paths,
) -> Result<(InitSettings, Vec<String>), String> {
    let mut warnings = documents.warnings.clone();
    let init = DocumentField::of(&documents.init);
    let given = DocumentField::of(&documents.cluster);
    checks::own_algorithm("encryptionAlgorithm", &given.at("encryptionAlgorithm").text()?)?;
    if given.value["featureGates"]["PublicKeysECDSA"] == false {
        checks::own_algorithm("featureGates.PublicKeysECDSA", "RSA-2048")?;
    }
    let mut cluster = cluster(&given, &host.version)?;
    let endpoint = endpoint(&init.at("localAPIEndpoint"), &host.addresses)?;
    complete(&mut cluster, &endpoint);
    let settings = InitSettings {
        node: node(&init.at("nodeRegistration"), host, &mut warnings)?,
        tokens: tokens(&init.at("bootstrapTokens"), &host.token)?,
        certificate_key: init.at("certificateKey").text()?,
        skip_phases: init.at("skipPhases").texts()?,
        dry_run: init.at("dryRun").flag(false)?,
        patches: PathBuf::from(init.at("patches").at("directory").text()?),
        timeouts: timeouts(&init.at("timeouts"), &given.at("apiServer").at("timeoutForControlPlane"))?,
        kubelet: components::kubelet(&documents.kubelet, &cluster, paths, &mut warnings),
        kube_proxy: components::kube_proxy(&documents.kube_proxy, &cluster, &endpoint, &mut warnings),
        given_kubelet: given_document(&documents.kubelet),
        given_kube_proxy: given_document(&documents.kube_proxy),
        cluster,
        endpoint,
    };
    checks::check(&settings, &mut warnings)?;
    Ok((settings, warnings))
}

fn given_document(document: &Value) -> Option<Value> {
    (!document["kind"].is_null()).then(|| document.clone())
}

/// A ClusterConfiguration, such as the one in the ConfigMap `kubeadm-config`. `version` is the default.
pub(crate) fn cluster(given: &DocumentField<'_>, version: &str) -> Result<ClusterConfig, String> {
    let networking = given.at("networking");
    let api_server = given.at("apiServer");
    let sans = api_server.at("certSANs").texts()?;
    let gates = given.at("featureGates").members()?;
    let mut algorithm = given.at("encryptionAlgorithm").text_or("ECDSA-P256")?;
    // As kubeadm: the gate wins.
    match gates.get("PublicKeysECDSA").and_then(Value::as_bool) {
        Some(true) => "ECDSA-P256".clone_into(&mut algorithm),
        Some(false) => "RSA-2048".clone_into(&mut algorithm),
        None => {}
    }
    Ok(ClusterConfig {
        version: checks::version(&given.at("kubernetesVersion").text()?, version)?,
        name: given.at("clusterName").text_or("kubernetes")?,
        control_plane_endpoint: given.at("controlPlaneEndpoint").text()?,
        cert_dir: PathBuf::from(given.at("certificatesDir").text_or("/etc/kubernetes/pki")?),
        image_repository: given.at("imageRepository").text_or(DEFAULT_REPOSITORY)?,
        feature_gates: gates,
        algorithm,
        validity: given.at("certificateValidityPeriod").duration(hours(8760))?,
        ca_validity: given.at("caCertificateValidityPeriod").duration(hours(87600))?,
        service_subnet: networking.at("serviceSubnet").text_or("10.96.0.0/12")?,
        pod_subnet: networking.at("podSubnet").text()?,
        dns_domain: networking.at("dnsDomain").text_or("cluster.local")?,
        api_server: component(&api_server)?,
        api_server_sans: sans.iter().map(|san| san.to_lowercase()).collect(),
        controller_manager: component(&given.at("controllerManager"))?,
        scheduler: component(&given.at("scheduler"))?,
        dns: image(&given.at("dns"))?,
        dns_disabled: given.at("dns").at("disabled").flag(false)?,
        proxy_disabled: given.at("proxy").at("disabled").flag(false)?,
        etcd: etcd(&given.at("etcd"))?,
    })
}

fn hours(hours: i64) -> GoDuration {
    GoDuration::from_secs(hours * 3600)
}

/// kubeadm's dynamic default.
fn complete(cluster: &mut ClusterConfig, endpoint: &ApiEndpoint) {
    let given = &cluster.control_plane_endpoint;
    let has_port = match given.rfind(']') {
        Some(end) => given[end..].contains(':'),
        None => given.matches(':').count() == 1,
    };
    if given.is_empty() || has_port {
        return;
    }
    let is_bare = given.contains(':') && !given.starts_with('[');
    let host = if is_bare { format!("[{given}]") } else { given.clone() };
    cluster.control_plane_endpoint = format!("{host}:{}", endpoint.bind_port);
}

fn image(given: &DocumentField<'_>) -> Result<ImageMeta, String> {
    Ok(ImageMeta { repository: given.at("imageRepository").text()?, tag: given.at("imageTag").text()? })
}

/// A list of names and values; in `v1beta3` an object.
pub(crate) fn arguments(given: &DocumentField<'_>) -> Result<Vec<Argument>, String> {
    if given.value.is_object() {
        let members = given.members()?;
        let read = |name: &String| Ok((name.clone(), given.at(name).text()?));
        return members.keys().map(read).collect();
    }
    let read = |item: &DocumentField<'_>| match item.at("name").text()? {
        name if name.is_empty() => Err(format!("{}: Invalid value: \"\": argument has no name", item.path)),
        name => Ok((name, item.at("value").text()?)),
    };
    given.items()?.iter().map(read).collect()
}

fn component(given: &DocumentField<'_>) -> Result<Component, String> {
    let volume = |volume: &DocumentField<'_>| {
        Ok(ExtraVolume {
            name: volume.at("name").text()?,
            host_path: volume.at("hostPath").text()?,
            mount_path: volume.at("mountPath").text()?,
            read_only: volume.at("readOnly").flag(false)?,
            path_type: volume.at("pathType").text()?,
        })
    };
    let env = |env: &DocumentField<'_>| {
        let mut variable = env.value.clone();
        if let Some(reference) = variable.pointer_mut("/valueFrom/fieldRef").and_then(Value::as_object_mut) {
            reference.entry("apiVersion").or_insert_with(|| json!("v1"));
        }
        variable
    };
    Ok(Component {
        args: arguments(&given.at("extraArgs"))?,
        volumes: given.at("extraVolumes").items()?.iter().map(volume).collect::<Result<_, String>>()?,
        envs: given.at("extraEnvs").items()?.iter().map(env).collect(),
    })
}

fn etcd(given: &DocumentField<'_>) -> Result<Etcd, String> {
    let (local, external) = (given.at("local"), given.at("external"));
    match (local.is_set(), external.is_set()) {
        (true, true) => Err(format!(
            "{}: Invalid value: \"\": either .Etcd.Local or .Etcd.External is required, not both",
            given.path
        )),
        (false, true) => {
            let endpoints = external.at("endpoints").texts()?;
            let http = external.at("httpEndpoints").texts()?;
            Ok(Etcd::External(ExternalEtcd {
                http_endpoints: if http.is_empty() { endpoints.clone() } else { http },
                endpoints,
                ca_file: external.at("caFile").text()?,
                cert_file: external.at("certFile").text()?,
                key_file: external.at("keyFile").text()?,
            }))
        }
        _ => Ok(Etcd::Local(LocalEtcd {
            data_dir: PathBuf::from(local.at("dataDir").text_or("/var/lib/etcd")?),
            image: image(&local)?,
            component: component(&local)?,
            server_sans: local.at("serverCertSANs").texts()?,
            peer_sans: local.at("peerCertSANs").texts()?,
            initial_cluster: String::new(),
        })),
    }
}

fn endpoint(given: &DocumentField<'_>, addresses: &[IpAddr]) -> Result<ApiEndpoint, String> {
    let field = given.at("advertiseAddress");
    let text = field.text()?;
    let found = |wanted: Option<bool>| {
        let of_family = |address: &&IpAddr| wanted.is_none_or(|is_ipv4| address.is_ipv4() == is_ipv4);
        addresses.iter().find(of_family).or(addresses.first()).copied()
    };
    let address = if text.is_empty() {
        found(None)
    } else {
        let Ok(address) = text.parse::<IpAddr>() else {
            return Err(format!(
                "couldn't use {text:?} as \"apiserver-advertise-address\", must be ipv4 or ipv6 address"
            ));
        };
        if address.is_unspecified() { found(Some(address.is_ipv4())) } else { Some(address) }
    };
    let Some(advertise_address) = address else {
        return Err(
            "cannot use \"0.0.0.0\" as the bind address for the API Server: no default route was found: set \
                    --apiserver-advertise-address"
                .to_owned(),
        );
    };
    if advertise_address.is_multicast() {
        return Err(format!(
            "cannot use {:?} as the bind address for the API Server",
            advertise_address.to_string()
        ));
    }
    Ok(ApiEndpoint { advertise_address, bind_port: given.at("bindPort").port(6443)? })
}

/// A node's registration; the taint of a control plane unless taints are given.
fn node(
    given: &DocumentField<'_>,
    host: &HostFacts,
    warnings: &mut Vec<String>,
) -> Result<NodeRegistration, String> {
    let name = given.at("name").text_or(&host.hostname)?;
    let mut socket = given.at("criSocket").text_or(&host.cri_socket)?;
    if !socket.starts_with("unix") {
        warnings.push(format!(
            "Usage of CRI endpoints without URL scheme is deprecated and can cause kubelet errors in the future. \
             Automatically prepending scheme \"unix\" to the \"criSocket\" with value {socket:?}. Please update your \
             configuration!"
        ));
        socket = format!("unix://{socket}");
    }
    let taints = match given.at("taints") {
        taints if taints.is_set() => taints.items()?.iter().map(|taint| taint.value.clone()).collect(),
        _ => vec![json!({ "key": CONTROL_PLANE, "effect": "NoSchedule" })],
    };
    if !given.at("imagePullSerial").flag(true)? {
        warnings.push(
            "nodeRegistration.imagePullSerial: false has no effect: images are pulled one by one".to_owned(),
        );
    }
    Ok(NodeRegistration {
        name: name.trim().to_lowercase(),
        cri_socket: socket,
        taints,
        kubelet_extra_args: arguments(&given.at("kubeletExtraArgs"))?,
        ignore_preflight_errors: given.at("ignorePreflightErrors").texts()?,
        image_pull_policy: given.at("imagePullPolicy").text_or("IfNotPresent")?,
    })
}

fn tokens(given: &DocumentField<'_>, random: &str) -> Result<Vec<BootstrapToken>, String> {
    let none = [json!({})];
    let items = given.items()?;
    if items.is_empty() {
        return none
            .iter()
            .map(|one| token(&DocumentField { value: one, path: format!("{}[0]", given.path) }, random))
            .collect();
    }
    items.iter().map(|item| token(item, random)).collect()
}

fn token(given: &DocumentField<'_>, random: &str) -> Result<BootstrapToken, String> {
    let field = given.at("token");
    let text = field.text_or(random)?;
    let read =
        checks::token(&text).map_err(|why| format!("{}: Invalid value: {text:?}: {why}", field.path))?;
    let expires = given.at("expires");
    let at = expires.text()?;
    let expires = if at.is_empty() {
        None
    } else {
        Some(Timestamp::parse_rfc3339(&at).ok_or_else(|| {
            format!("{}: Invalid value: {at:?}: must be a time such as 2027-01-01T00:00:00Z", expires.path)
        })?)
    };
    let list = |name: &str, default: &[&str]| {
        let texts = given.at(name).texts()?;
        let default = || default.iter().map(|text| (*text).to_owned()).collect();
        Ok::<Vec<String>, String>(if texts.is_empty() { default() } else { texts })
    };
    Ok(BootstrapToken {
        id: read.0,
        secret: read.1,
        description: given.at("description").text()?,
        // Deliberately better than kubeadm, which refuses `expires` alone.
        ttl: given.at("ttl").duration(if expires.is_some() { hours(0) } else { hours(24) })?,
        expires,
        usages: list("usages", &["signing", "authentication"])?,
        groups: list("groups", &[TOKEN_GROUP])?,
    })
}

fn timeouts(given: &DocumentField<'_>, old: &DocumentField<'_>) -> Result<Timeouts, String> {
    let seconds = |name: &str, seconds: i64| given.at(name).duration(GoDuration::from_secs(seconds));
    // Of other commands.
    for name in ["etcdAPICall", "tlsBootstrap", "discovery", "upgradeManifests"] {
        seconds(name, 0)?;
    }
    let control_plane = old.duration(GoDuration::from_secs(240))?;
    Ok(Timeouts {
        control_plane: given.at("controlPlaneComponentHealthCheck").duration(control_plane)?,
        kubelet: seconds("kubeletHealthCheck", 240)?,
        api_call: seconds("kubernetesAPICall", 60)?,
    })
}
