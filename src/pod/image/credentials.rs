//! Credentials for pulls: the pod's own secrets, the node's Docker configuration, credential provider
//! programs; tried in this order, as upstream.
//!
//! Owns the sources of credentials. An unreadable source is logged and skipped: a public image must not wait
//! for a broken password file.

mod accounts;
mod provider;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};

use super::records::hash;
use crate::model::objects::ObjectData;
use crate::model::types::PodRef;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::pod::image::keyring::Keyring;
use crate::pod::image::pull_records::{Opened, PullSecret};
use crate::runtime::ImageAuth;
use provider::Providers;

pub(in crate::pod) use accounts::Puller;
pub(crate) use accounts::{AccountAnswer, ServiceAccounts};

/// Key of a Secret of type `kubernetes.io/dockerconfigjson`.
const CONFIG_JSON_KEY: &str = ".dockerconfigjson";
/// Key of a Secret of type `kubernetes.io/dockercfg`.
const DOCKERCFG_KEY: &str = ".dockercfg";
/// Larger files are refused: Docker's configuration has a few kilobytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialsConfig {
    /// The kubelet's root directory: its `config.json` and `.dockercfg` come first. Without one, no file is
    /// read.
    pub root_dir: Option<PathBuf>,
    /// `--image-credential-provider-config`, a file or a directory.
    pub provider_config: Option<PathBuf>,
    /// `--image-credential-provider-bin-dir`.
    pub provider_bin_dir: PathBuf,
}

/// One of a pod's `imagePullSecrets`. Deliberately without `Debug`.
#[derive(Clone)]
pub(crate) struct PodSecret {
    pub namespace: String,
    pub name: String,
    /// Distinguishes it from an earlier one of the same name; empty if there is no uid.
    pub uid: String,
    /// `data`.
    pub data: ObjectData,
}

impl PodSecret {
    /// The form in which pulls are recorded, with the kubelet's hash of a login.
    fn with_login(&self, login: &ImageAuth) -> PullSecret {
        let members = [("username", &login.username), ("password", &login.password)];
        let members = members.iter().filter(|(_, value)| !value.is_empty());
        let members: Vec<String> =
            members.map(|(name, value)| format!("{}:{}", json!(name), json!(value))).collect();
        // Go's encoding, which a kubelet hashed.
        let text = format!("{{{}}}", members.join(","));
        let text = text.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
        PullSecret {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            credential_hash: hash(text.as_bytes()),
        }
    }
}

/// Credentials, and what is recorded if a pull with them succeeds.
pub(super) struct ImageCredentials {
    pub auth: ImageAuth,
    pub opens: Opened,
}

pub(super) struct Credentials {
    config: CredentialsConfig,
    providers: Providers,
}

impl Credentials {
    pub(super) fn new(config: CredentialsConfig, clock: Clock) -> Self {
        let providers =
            Providers::new(config.provider_config.clone(), config.provider_bin_dir.clone(), clock);
        Self { config, providers }
    }

    /// Service accounts of the cluster; `None` on a node of none.
    pub(super) fn set_accounts(&mut self, accounts: Option<Rc<dyn ServiceAccounts>>) {
        self.providers.set_accounts(accounts);
    }

    /// Whether the pod may use an image that these service accounts have pulled.
    pub(super) async fn opens_as_before(&self, image: &str, recorded: &[Value], puller: Puller<'_>) -> bool {
        self.providers.opens_as_before(image, recorded, puller).await
    }

    /// All credentials that may match the image, in the order to try; without the anonymous pull.
    pub(super) async fn lookup(
        &self,
        image: &str,
        secrets: &[PodSecret],
        puller: Puller<'_>,
    ) -> Vec<ImageCredentials> {
        let mut all = logins_of(image, secrets);
        let mut found = Vec::new();
        if let Some(root) = self.config.root_dir.clone() {
            let home = std::env::var_os("HOME").map(PathBuf::from);
            let node = rt::blocking("docker-config", move || node_keyring(&root, home.as_deref())).await;
            let node = node.lookup(image).into_iter();
            found.extend(node.map(|auth| (auth, Opened::ByNode)));
        }
        found.extend(self.providers.lookup(image, puller).await);
        for (auth, opens) in found {
            if all.iter().all(|known| known.auth != auth) {
                all.push(ImageCredentials { auth, opens });
            }
        }
        all
    }
}

/// The logins for questions about images outside of pulls.
pub(crate) struct ImageLogins(Credentials);

impl ImageLogins {
    #[must_use]
    pub(crate) fn new(config: CredentialsConfig, clock: Clock) -> Self {
        Self(Credentials::new(config, clock))
    }

    /// Those that a pull of this image for this pod would try, in this order.
    pub(crate) async fn of(&self, image: &str, secrets: &[PodSecret], pod: &PodRef) -> Vec<ImageAuth> {
        let found = self.0.lookup(image, secrets, Puller { pod, account: "" }).await;
        found.into_iter().map(|found| found.auth).collect()
    }
}

/// The logins in the pod's own Secrets that match an image, in the order to try.
pub(super) fn logins_of(image: &str, secrets: &[PodSecret]) -> Vec<ImageCredentials> {
    let keyrings: Vec<Keyring> = secrets.iter().map(|secret| keyring_of([secret])).collect();
    let mut all: Vec<ImageCredentials> = Vec::new();
    // The keyring of all Secrets gives the order; that of each one tells which Secret a login is from.
    for auth in keyring_of(secrets).lookup(image) {
        let mut owners = keyrings.iter().zip(secrets);
        let owner = owners.find(|(keyring, _)| keyring.lookup(image).contains(&auth));
        let Some((_, secret)) = owner else { continue };
        let opens = Opened::BySecret(secret.with_login(&auth));
        if all.iter().all(|known| known.auth != auth) {
            all.push(ImageCredentials { auth, opens });
        }
    }
    all
}

/// The logins in the node's own Docker configuration that match an image, in the order to try. Blocks; for
/// pulls without a running agent. `root` is the kubelet's root directory.
#[must_use]
pub(crate) fn node_logins(root: &Path, image: &str) -> Vec<ImageAuth> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    node_keyring(root, home.as_deref()).lookup(image)
}

fn keyring_of<'a>(secrets: impl IntoIterator<Item = &'a PodSecret>) -> Keyring {
    let mut keyring = Keyring::default();
    for PodSecret { data, .. } in secrets {
        let added = match (data.get(CONFIG_JSON_KEY), data.get(DOCKERCFG_KEY)) {
            (Some(text), _) => keyring.add_config_json(text).map(drop),
            (None, Some(text)) => keyring.add_dockercfg(text),
            (None, None) => Err(format!("has neither the key {CONFIG_JSON_KEY:?} nor {DOCKERCFG_KEY:?}")),
        };
        if let Err(problem) = added {
            log::warn!(problem; "Ignoring invalid image pull secret");
        }
    }
    keyring
}

/// The first file that can be read, as upstream: new form before old, the root directory before home and `/`.
fn node_keyring(root: &Path, home: Option<&Path>) -> Keyring {
    let mut keyring = Keyring::default();
    let slash = Path::new("/");
    let new = [Some(root.to_owned()), home.map(|home| home.join(".docker")), Some(slash.join(".docker"))];
    let old = [Some(root.to_owned()), home.map(Path::to_owned), Some(slash.to_owned())];
    let new = new.into_iter().flatten().map(|directory| (directory.join("config.json"), true));
    let old = old.into_iter().flatten().map(|directory| (directory.join(".dockercfg"), false));
    for (path, is_new) in new.chain(old) {
        if !std::fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= MAX_FILE_BYTES) {
            continue;
        }
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let added = if is_new {
            keyring.add_config_json(&bytes)
        } else {
            keyring.add_dockercfg(&bytes).map(|()| Vec::new())
        };
        let file = path.display().to_string();
        match added {
            Ok(helpers) => {
                if !helpers.is_empty() {
                    log::info!(file, helpers = helpers.join(", "); "Credential helpers are not supported: \
                         use a credential provider");
                }
                return keyring;
            }
            Err(problem) => log::warn!(file, problem; "Ignoring invalid Docker configuration"),
        }
    }
    keyring
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_secrets_precede_node_files_and_broken_are_skipped() {
        let root = std::env::temp_dir().join(format!("edge-agent-credentials-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(
            root.join("config.json"),
            r#"{"auths":{"r.example":{"username":"node","password":"n"}}}"#,
        )
        .unwrap();
        let secret = |key: &str, text: &str| PodSecret {
            namespace: "default".to_owned(),
            name: key.trim_start_matches('.').to_owned(),
            uid: String::new(),
            data: ObjectData::from([(key.to_owned(), text.as_bytes().to_vec())]),
        };
        let secrets = [
            secret(CONFIG_JSON_KEY, "broken"),
            secret(CONFIG_JSON_KEY, r#"{"auths":{"r.example":{"username":"pod","password":"p"}}}"#),
            secret(DOCKERCFG_KEY, r#"{"*.example":{"username":"old","password":"o"}}"#),
            secret("other", "x"),
        ];
        let config = CredentialsConfig { root_dir: Some(root.clone()), ..CredentialsConfig::default() };
        let credentials = Credentials::new(config, Clock::System);
        let users = |image: &'static str| {
            let pod = crate::model::types::PodRef::default();
            let puller = Puller { pod: &pod, account: "" };
            let found = rt::run(credentials.lookup(image, &secrets, puller)).unwrap();
            found.into_iter().map(|found| found.auth.username).collect::<Vec<_>>()
        };
        assert_eq!(users("r.example/a:v1"), ["pod", "old", "node"]);
        assert!(users("busybox").is_empty());
        let found = logins_of("r.example/a:v1", &secrets);
        let owners = found.into_iter().map(|found| match found.opens {
            Opened::BySecret(secret) => (secret.name, secret.credential_hash),
            _ => panic!("a pod's own"),
        });
        let hashed = |text: &str| hash(text.as_bytes());
        let expected = [
            ("dockerconfigjson".to_owned(), hashed(r#"{"username":"pod","password":"p"}"#)),
            ("dockercfg".to_owned(), hashed(r#"{"username":"old","password":"o"}"#)),
        ];
        assert_eq!(owners.collect::<Vec<_>>(), expected);
        std::fs::remove_dir_all(root).unwrap();
    }
}
