//! The fields of kubeadm's documents, and a reader of JSON values that names the field in its errors.
//!
//! Pure: a value in, its parts or a complaint out.

use serde_json::{Map, Value};

use crate::model::duration::GoDuration;

/// Objects by their path, `[]` for the items of a list, each with its fields. An object that is not listed may have any.
const FIELDS: [(&str, &str); 33] = [
    (
        "InitConfiguration",
        "apiVersion kind bootstrapTokens dryRun nodeRegistration localAPIEndpoint certificateKey skipPhases patches timeouts",
    ),
    (
        "ClusterConfiguration",
        "apiVersion kind etcd networking kubernetesVersion controlPlaneEndpoint apiServer controllerManager scheduler dns \
         proxy certificatesDir imageRepository featureGates clusterName encryptionAlgorithm certificateValidityPeriod \
         caCertificateValidityPeriod",
    ),
    (
        "JoinConfiguration",
        "apiVersion kind dryRun nodeRegistration caCertPath discovery controlPlane skipPhases patches timeouts",
    ),
    (
        "ResetConfiguration",
        "apiVersion kind cleanupTmpDir certificatesDir criSocket dryRun force ignorePreflightErrors skipPhases unmountFlags \
         timeouts",
    ),
    ("UpgradeConfiguration", "apiVersion kind apply diff node plan timeouts"),
    (
        "UpgradeConfiguration.apply",
        "kubernetesVersion allowExperimentalUpgrades allowRCUpgrades certificateRenewal dryRun etcdUpgrade forceUpgrade \
         ignorePreflightErrors patches printConfig skipPhases imagePullPolicy imagePullSerial",
    ),
    ("UpgradeConfiguration.diff", "kubernetesVersion diffContextLines contextLines"),
    (
        "UpgradeConfiguration.node",
        "certificateRenewal dryRun etcdUpgrade ignorePreflightErrors skipPhases patches imagePullPolicy imagePullSerial",
    ),
    (
        "UpgradeConfiguration.plan",
        "kubernetesVersion allowExperimentalUpgrades allowRCUpgrades dryRun etcdUpgrade ignorePreflightErrors printConfig",
    ),
    ("InitConfiguration.bootstrapTokens[]", "token description ttl expires usages groups"),
    ("InitConfiguration.localAPIEndpoint", "advertiseAddress bindPort"),
    ("JoinConfiguration.controlPlane", "localAPIEndpoint certificateKey"),
    ("JoinConfiguration.controlPlane.localAPIEndpoint", "advertiseAddress bindPort"),
    ("JoinConfiguration.discovery", "bootstrapToken file tlsBootstrapToken timeout"),
    (
        "JoinConfiguration.discovery.bootstrapToken",
        "token apiServerEndpoint caCertHashes unsafeSkipCAVerification",
    ),
    ("JoinConfiguration.discovery.file", "kubeConfigPath"),
    ("*.nodeRegistration", NODE),
    ("*.nodeRegistration.kubeletExtraArgs[]", "name value"),
    ("*.patches", "directory"),
    ("*.timeouts", TIMEOUTS),
    ("ClusterConfiguration.networking", "serviceSubnet podSubnet dnsDomain"),
    ("ClusterConfiguration.apiServer", "extraArgs extraVolumes extraEnvs certSANs timeoutForControlPlane"),
    ("ClusterConfiguration.controllerManager", "extraArgs extraVolumes extraEnvs"),
    ("ClusterConfiguration.scheduler", "extraArgs extraVolumes extraEnvs"),
    ("ClusterConfiguration.dns", "imageRepository imageTag disabled"),
    ("ClusterConfiguration.proxy", "disabled"),
    ("ClusterConfiguration.etcd", "local external"),
    (
        "ClusterConfiguration.etcd.local",
        "imageRepository imageTag dataDir extraArgs extraEnvs serverCertSANs peerCertSANs",
    ),
    ("ClusterConfiguration.etcd.external", "endpoints httpEndpoints caFile certFile keyFile"),
    ("*.apiServer.extraVolumes[]", VOLUME),
    ("*.controllerManager.extraVolumes[]", VOLUME),
    ("*.scheduler.extraVolumes[]", VOLUME),
    ("*.etcd.local.extraArgs[]", "name value"),
];
const NODE: &str =
    "name criSocket taints kubeletExtraArgs ignorePreflightErrors imagePullPolicy imagePullSerial";
const VOLUME: &str = "name hostPath mountPath readOnly pathType";
const TIMEOUTS: &str = "controlPlaneComponentHealthCheck kubeletHealthCheck kubernetesAPICall etcdAPICall tlsBootstrap \
                        discovery upgradeManifests";

/// The paths of fields that the document's kind does not have.
///
/// # Errors
/// A field that has fields of its own is something else.
pub(crate) fn unknown(kind: &str, document: &Value) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    visit(kind, "", document, &mut found)?;
    Ok(found)
}

/// `place` is the path in the table, `shown` that in the document.
fn visit(place: &str, shown: &str, value: &Value, found: &mut Vec<String>) -> Result<(), String> {
    let below = |pattern: &str| match pattern.strip_prefix('*') {
        Some(end) => place.find('.').is_some_and(|at| &place[at..] == end),
        None => place == pattern,
    };
    let known = FIELDS.iter().find(|(pattern, _)| below(pattern));
    match value {
        Value::Object(members) => {
            let Some((_, fields)) = known else { return Ok(()) };
            for (name, member) in members {
                let shown = if shown.is_empty() { name.clone() } else { format!("{shown}.{name}") };
                if fields.split_whitespace().any(|field| field == name) {
                    visit(&format!("{place}.{name}"), &shown, member, found)?;
                } else {
                    found.push(shown);
                }
            }
        }
        Value::Array(items) if known.is_none() => {
            for (index, item) in items.iter().enumerate() {
                visit(&format!("{place}[]"), &format!("{shown}[{index}]"), item, found)?;
            }
        }
        Value::Null => {}
        _ if known.is_some() => return Err(format!("{shown}: Invalid value: {value}: must be an object")),
        _ => {}
    }
    Ok(())
}

/// A value with its path. What is missing or null reads as empty.
pub(crate) struct DocumentField<'a> {
    pub value: &'a Value,
    pub path: String,
}

impl<'a> DocumentField<'a> {
    pub(crate) fn of(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    pub(crate) fn at(&self, name: &str) -> DocumentField<'a> {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        DocumentField { value: &self.value[name], path }
    }

    pub(crate) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    fn expected(&self, what: &str) -> String {
        format!("{}: Invalid value: {}: must be {what}", self.path, self.value)
    }

    pub(crate) fn text(&self) -> Result<String, String> {
        match self.value {
            Value::Null => Ok(String::new()),
            Value::String(text) => Ok(text.clone()),
            _ => Err(self.expected("a string")),
        }
    }

    pub(crate) fn text_or(&self, default: &str) -> Result<String, String> {
        let text = self.text()?;
        Ok(if text.is_empty() { default.to_owned() } else { text })
    }

    pub(crate) fn flag(&self, default: bool) -> Result<bool, String> {
        match self.value {
            Value::Null => Ok(default),
            Value::Bool(value) => Ok(*value),
            _ => Err(self.expected("true or false")),
        }
    }

    pub(crate) fn port(&self, default: u16) -> Result<u16, String> {
        match self.value {
            Value::Null => Ok(default),
            value => match value.as_i64() {
                Some(0) => Ok(default),
                Some(port) if (1..=65535).contains(&port) => Ok(u16::try_from(port).unwrap_or_default()),
                _ => Err(self.expected("a valid port number, between 1 and 65535, inclusive")),
            },
        }
    }

    pub(crate) fn duration(&self, default: GoDuration) -> Result<GoDuration, String> {
        match self.value {
            Value::Null => Ok(default),
            Value::String(text) => GoDuration::parse(text).map_err(|error| format!("{}: {error}", self.path)),
            _ => Err(self.expected("a duration such as 4m0s")),
        }
    }

    pub(crate) fn items(&self) -> Result<Vec<DocumentField<'a>>, String> {
        match self.value {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) => Ok(items
                .iter()
                .enumerate()
                .map(|(index, value)| DocumentField { value, path: format!("{}[{index}]", self.path) })
                .collect()),
            _ => Err(self.expected("a list")),
        }
    }

    pub(crate) fn texts(&self) -> Result<Vec<String>, String> {
        self.items()?.iter().map(DocumentField::text).collect()
    }

    pub(crate) fn members(&self) -> Result<Map<String, Value>, String> {
        match self.value {
            Value::Null => Ok(Map::new()),
            Value::Object(members) => Ok(members.clone()),
            _ => Err(self.expected("an object")),
        }
    }
}
