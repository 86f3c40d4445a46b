//! kubeadm's documents with every default, as `agent config` prints them.
//!
//! Pure: documents and facts of the host in, documents or complaints out.

use std::path::Path;

use serde_json::{Value, json};

use super::super::Paths;
use super::components::under;
use super::fields::{DocumentField, unknown};
use super::read::{CONTROL_PLANE, Documents, HostFacts, arguments, settle};
use super::{API_VERSION, BootstrapToken, GROUP, InitSettings, checks};
use crate::codec::yaml::yaml_to_values;
use crate::model::duration::GoDuration;

/// The kinds beside those of `init`, in the order in which they are printed.
pub(crate) const OTHERS: [&str; 3] = ["JoinConfiguration", "ResetConfiguration", "UpgradeConfiguration"];
const EXAMPLE_TOKEN: &str = "abcdef.0123456789abcdef";

/// The documents of a file with all defaults, in kubeadm's order, and the warnings. An unknown field is an error.
pub(crate) fn file(text: &str, host: &HostFacts, paths: &Paths) -> Result<(Vec<Value>, Vec<String>), String> {
    let values = yaml_to_values(text, true).map_err(|error| error.to_string())?;
    let of = |kind: &str| values.iter().find(|value| value["kind"] == kind && is_kubeadms(value));
    for value in values.iter().filter(|value| is_kubeadms(value)) {
        let kind = value["kind"].as_str().unwrap_or_default();
        if let Some(field) = unknown(kind, value)?.first() {
            let version = value["apiVersion"].as_str().unwrap_or_default();
            return Err(format!(
                "error unmarshaling configuration {version}, Kind={kind}: strict decoding error: unknown field {field:?}"
            ));
        }
    }
    let (mut made, mut warnings) = (Vec::new(), Vec::new());
    if of("InitConfiguration").or(of("ClusterConfiguration")).is_some() {
        let documents = Documents::parse(text)?;
        let (settings, found) = settle(&documents, host, paths)?;
        warnings = found;
        made.extend([init(&documents.init, &settings)?, settings.cluster.document()]);
        // kubeadm drops them.
        made.extend(settings.given_kubelet.into_iter().chain(settings.given_kube_proxy));
    }
    for kind in OTHERS {
        if let Some(given) = of(kind) {
            let document = other(kind, given, host)?;
            if kind == "JoinConfiguration" {
                checks::listed(&join_complaints(&document))?;
            }
            made.push(document);
        }
    }
    Ok((made, warnings))
}

fn is_kubeadms(value: &Value) -> bool {
    value["apiVersion"].as_str().is_some_and(|version| version.starts_with(GROUP))
}

/// What `config print` shows: documents without settings of a user.
pub(crate) fn defaults(
    command: &str,
    components: &[String],
    host: HostFacts,
    paths: &Paths,
) -> Result<Vec<Value>, String> {
    let kind = match command {
        "join-defaults" => OTHERS[0],
        "reset-defaults" => OTHERS[1],
        "upgrade-defaults" => OTHERS[2],
        _ => return init_defaults(components, host, paths),
    };
    let discovery = json!({ "discovery": { "bootstrapToken": {
        "apiServerEndpoint": "kube-apiserver:6443", "token": EXAMPLE_TOKEN, "unsafeSkipCAVerification": true,
    } } });
    let given = if kind == OTHERS[0] { discovery } else { json!({}) };
    Ok(vec![other(kind, &given, &host)?])
}

fn init_defaults(components: &[String], host: HostFacts, paths: &Paths) -> Result<Vec<Value>, String> {
    let version = host.version.trim_start_matches('v').to_owned();
    let host = HostFacts {
        hostname: "node".to_owned(),
        addresses: vec![[1, 2, 3, 4].into()],
        token: EXAMPLE_TOKEN.to_owned(),
        ..host
    };
    let (settings, _) = settle(&Documents::default(), &host, paths)?;
    let mut made = vec![init(&json!({}), &settings)?, settings.cluster.document()];
    made[0]["nodeRegistration"]["taints"] = Value::Null;
    made[1]["kubernetesVersion"] = version.into();
    for component in components {
        made.push(match component.as_str() {
            "KubeletConfiguration" => settings.kubelet.clone(),
            "KubeProxyConfiguration" => settings.kube_proxy.clone(),
            _ => {
                let known = "[KubeProxyConfiguration KubeletConfiguration]";
                return Err(format!("--component-configs needs to contain some of {known}"));
            }
        });
    }
    Ok(made)
}

/// An InitConfiguration of these settings.
fn init(given: &Value, settings: &InitSettings) -> Result<Value, String> {
    let mut made = given.clone();
    let node = &settings.node;
    made["bootstrapTokens"] = settings.tokens.iter().map(token).collect();
    let (address, port) = (settings.endpoint.advertise_address, settings.endpoint.bind_port);
    made["localAPIEndpoint"] = json!({ "advertiseAddress": address.to_string(), "bindPort": port });
    made["nodeRegistration"]["name"] = node.name.as_str().into();
    made["nodeRegistration"]["criSocket"] = node.cri_socket.as_str().into();
    made["nodeRegistration"]["taints"] = node.taints.clone().into();
    let wait = settings.timeouts.control_plane.to_string();
    made["timeouts"]["controlPlaneComponentHealthCheck"] = wait.into();
    finish(made, "InitConfiguration", &node.name, &node.cri_socket)
}

fn token(token: &BootstrapToken) -> Value {
    let mut made = json!({ "token": token.text(), "usages": token.usages, "groups": token.groups });
    if !token.description.is_empty() {
        made["description"] = token.description.as_str().into();
    }
    match token.expires {
        Some(expires) => made["expires"] = expires.to_rfc3339().into(),
        None => made["ttl"] = token.ttl.to_string().into(),
    }
    made
}

/// A document of [`OTHERS`].
fn other(kind: &str, given: &Value, host: &HostFacts) -> Result<Value, String> {
    let mut made = given.clone();
    match kind {
        "JoinConfiguration" => {
            if given["controlPlane"].is_object() {
                let address = host.addresses.first().map(ToString::to_string);
                let endpoint =
                    json!({ "localAPIEndpoint": { "advertiseAddress": address, "bindPort": 6443 } });
                under(&mut made["controlPlane"], &endpoint);
                let taint = json!([{ "key": CONTROL_PLANE, "effect": "NoSchedule" }]);
                under(&mut made, &json!({ "nodeRegistration": { "taints": taint } }));
            }
            // Of the version before.
            if let Some(limit) = made["discovery"].as_object_mut().and_then(|it| it.remove("timeout")) {
                under(&mut made, &json!({ "timeouts": { "discovery": limit } }));
            }
            let token = made["discovery"]["bootstrapToken"]["token"].clone();
            if token.is_string() {
                under(&mut made, &json!({ "discovery": { "tlsBootstrapToken": token } }));
            }
            under(&mut made, &json!({ "caCertPath": "/etc/kubernetes/pki/ca.crt" }));
        }
        "ResetConfiguration" => {
            let more = json!({ "certificatesDir": "/etc/kubernetes/pki", "criSocket": host.cri_socket });
            under(&mut made, &more);
        }
        _ => {
            let each = json!({
                "certificateRenewal": true, "etcdUpgrade": true, "imagePullPolicy": "IfNotPresent",
                "imagePullSerial": true,
            });
            let more = json!({ "apply": each, "diff": {}, "node": each, "plan": { "etcdUpgrade": true } });
            under(&mut made, &more);
        }
    }
    finish(made, kind, &host.hostname, &host.cri_socket)
}

/// What all kinds have.
fn finish(mut made: Value, kind: &str, node: &str, socket: &str) -> Result<Value, String> {
    let times = json!({
        "controlPlaneComponentHealthCheck": "4m0s", "discovery": "5m0s", "etcdAPICall": "2m0s",
        "kubeletHealthCheck": "4m0s", "kubernetesAPICall": "1m0s", "tlsBootstrap": "5m0s", "upgradeManifests": "5m0s",
    });
    under(&mut made, &json!({ "timeouts": times }));
    let given = made["timeouts"].clone();
    for name in given.as_object().into_iter().flat_map(|times| times.keys()) {
        let time = DocumentField::of(&given).at(name).duration(GoDuration::from_secs(0));
        made["timeouts"][name] = time.map_err(|why| ["timeouts.", &why].concat())?.to_string().into();
    }
    if matches!(kind, "InitConfiguration" | "JoinConfiguration") {
        under(
            &mut made,
            &json!({ "nodeRegistration": {
            "criSocket": socket, "imagePullPolicy": "IfNotPresent", "imagePullSerial": true,
            "name": node.to_lowercase(), "taints": null,
        } }),
        );
        let given = arguments(&DocumentField::of(&made).at("nodeRegistration").at("kubeletExtraArgs"))?;
        if !given.is_empty() {
            made["nodeRegistration"]["kubeletExtraArgs"] = super::arguments(&given);
        }
    }
    made["apiVersion"] = API_VERSION.into();
    made["kind"] = kind.into();
    Ok(made)
}

/// What kubeadm demands of a JoinConfiguration, in its words.
fn join_complaints(document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut invalid = |path: &str, value: &str, why: &str| {
        found.push(format!("{path}: Invalid value: {value:?}: {why}"));
    };
    let path = text(&document["caCertPath"]);
    if !Path::new(&path).is_absolute() {
        invalid("caCertPath", &path, "the ca certificate path must be an absolute path");
    }
    let (discovery, token) = (&document["discovery"], &document["discovery"]["bootstrapToken"]);
    match (token.is_object(), discovery["file"].is_object()) {
        (false, false) => invalid("discovery", "", "bootstrapToken or file must be set"),
        (true, true) => invalid("discovery", "", "bootstrapToken and file cannot both be set"),
        _ => {}
    }
    if token.is_object() {
        let given = text(&token["token"]);
        if checks::token(&given).is_err() {
            invalid("discovery.bootstrapToken.token", &given, "the bootstrap token is invalid");
        }
        let endpoint = text(&token["apiServerEndpoint"]);
        let port = endpoint.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            let why = format!("address {endpoint}: missing port in address");
            invalid("discovery.bootstrapToken.apiServerEndpoint", &endpoint, &why);
        }
        let has_hashes = token["caCertHashes"].as_array().is_some_and(|hashes| !hashes.is_empty());
        if !has_hashes && token["unsafeSkipCAVerification"] != true {
            let why = "using token-based discovery without caCertHashes can be unsafe. Set unsafeSkipCAVerification as \
                       true in your kubeadm config file or pass --discovery-token-unsafe-skip-ca-verification flag to \
                       continue";
            invalid("discovery.bootstrapToken.caCertHashes", "", why);
        }
    }
    let given = text(&discovery["tlsBootstrapToken"]);
    if !given.is_empty() && checks::token(&given).is_err() {
        invalid("discovery.tlsBootstrapToken", &given, "the bootstrap token is invalid");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostFacts {
        HostFacts {
            hostname: "Box".to_owned(),
            addresses: vec![[192, 0, 2, 7].into()],
            token: "zzzzzz.0123456789abcdef".to_owned(),
            version: "v1.36.0".to_owned(),
            cri_socket: "unix:///run/agent/cri.sock".to_owned(),
        }
    }

    fn completed(kind: &str, lines: &str) -> Result<Value, String> {
        let text = format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: {kind}\n{lines}");
        file(&text, &host(), &Paths::system()).map(|(mut made, _)| made.remove(0))
    }

    #[test]
    fn what_is_given_stays_and_the_rest_is_completed() {
        let made = completed(
            "InitConfiguration",
            "nodeRegistration: {taints: [], kubeletExtraArgs: [{name: v, value: '4'}]}\n\
             bootstrapTokens: [{ttl: 0s, token: aaaaaa.0123456789abcdef, description: x}]\ntimeouts: {discovery: 1m}\n\
             certificateKey: ''\n",
        )
        .unwrap();
        assert_eq!(made["nodeRegistration"]["name"], "box");
        assert_eq!(made["nodeRegistration"]["taints"], json!([]));
        assert_eq!(made["nodeRegistration"]["imagePullSerial"], true);
        assert_eq!(made["bootstrapTokens"][0]["ttl"], "0s");
        assert_eq!(
            (&made["timeouts"]["discovery"], &made["timeouts"]["etcdAPICall"]),
            (&json!("1m0s"), &json!("2m0s"))
        );
        assert_eq!(made["localAPIEndpoint"], json!({"advertiseAddress": "192.0.2.7", "bindPort": 6443}));
        // What is completed is complete.
        let text = serde_json::to_string(&made).unwrap();
        assert_eq!(file(&text, &host(), &Paths::system()).unwrap().0[0], made);
    }

    #[test]
    fn documents_of_the_version_before_become_those_of_this_one() {
        let text = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n\
                    apiServer: {timeoutForControlPlane: 7m, extraArgs: {v: '4'}}\n---\n\
                    apiVersion: kubeadm.k8s.io/v1beta3\nkind: InitConfiguration\n\
                    nodeRegistration: {kubeletExtraArgs: {v: '5'}}\n---\n\
                    apiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\n\
                    nodeRegistration: {kubeletExtraArgs: {v: '6'}}\n\
                    discovery: {timeout: 9m, bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'a:1', \
                    caCertHashes: [x]}}\n";
        let (made, warnings) = file(text, &host(), &Paths::system()).unwrap();
        let of_the_version = warnings.iter().filter(|warning| warning.contains("deprecated API spec"));
        assert_eq!(of_the_version.count(), 3, "{warnings:?}");
        assert!(made.iter().all(|document| document["apiVersion"] == API_VERSION));
        assert_eq!(made[0]["timeouts"]["controlPlaneComponentHealthCheck"], "7m0s");
        let arguments = |of: &Value| of[0]["value"].clone();
        assert_eq!(arguments(&made[0]["nodeRegistration"]["kubeletExtraArgs"]), "5");
        assert_eq!(arguments(&made[1]["apiServer"]["extraArgs"]), "4");
        assert_eq!(arguments(&made[2]["nodeRegistration"]["kubeletExtraArgs"]), "6");
        assert_eq!(made[2]["timeouts"]["discovery"], "9m0s");
        assert_eq!(made[2]["discovery"]["tlsBootstrapToken"], EXAMPLE_TOKEN);
    }

    #[test]
    fn what_is_wrong_is_named_as_kubeadm_names_it() {
        for (kind, lines, expected) in [
            ("ResetConfiguration", "forced: true", "unknown field \"forced\""),
            ("UpgradeConfiguration", "apply: {forced: true}", "unknown field \"apply.forced\""),
            (
                "ClusterConfiguration",
                "networking: {dnsDomain: A_b}",
                "networking.dnsDomain: Invalid value: \"A_b\"",
            ),
            ("JoinConfiguration", "", "discovery: Invalid value: \"\": bootstrapToken or file must be set"),
            (
                "JoinConfiguration",
                "caCertPath: ca\ndiscovery: {file: {kubeConfigPath: /x}, tlsBootstrapToken: x}",
                "[caCertPath: Invalid value: \"ca\": the ca certificate path must be an absolute path, \
                 discovery.tlsBootstrapToken: Invalid value: \"x\": the bootstrap token is invalid]",
            ),
            (
                "JoinConfiguration",
                "discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: a}}",
                "apiServerEndpoint: Invalid value: \"a\": address a: missing port in address, ",
            ),
        ] {
            let why = completed(kind, lines).unwrap_err();
            assert!(why.contains(expected), "{lines}: {why}");
        }
        assert_eq!(completed("UpgradeConfiguration", "").unwrap()["apply"]["etcdUpgrade"], true);
        assert_eq!(completed("ResetConfiguration", "force: true").unwrap()["force"], true);
    }

    #[test]
    fn defaults_can_be_read_again() {
        for command in ["init-defaults", "join-defaults", "reset-defaults", "upgrade-defaults"] {
            let components = ["KubeletConfiguration".to_owned(), "KubeProxyConfiguration".to_owned()];
            let made = defaults(command, &components, host(), &Paths::system()).unwrap();
            let texts: Vec<String> = made.iter().map(ToString::to_string).collect();
            let (again, warnings) = file(&texts.join("\n---\n"), &host(), &Paths::system()).unwrap();
            assert_eq!((again.len(), warnings), (made.len(), Vec::new()), "{command}");
        }
        assert!(defaults("init-defaults", &["x".to_owned()], host(), &Paths::system()).is_err());
    }
}
