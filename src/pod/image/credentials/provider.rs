//! Credential provider programs, by the kubelet's exec protocol (`credentialprovider.kubelet.k8s.io/v1`).
//!
//! Owns their configuration, their processes and their responses, cached for as long as the response allows.
//! The failure of a program is logged and counts as an empty response.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::accounts::{AccountToken, NotRun, Puller, ServiceAccounts, TokenAttributes};
use crate::codec::yaml::yaml_to_values;
use crate::model::api::decode::decode;
use crate::model::image_name::repository_of;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::child::TalkingChild;
use crate::pod::image::keyring::{Keyring, matches};
use crate::pod::image::pull_records::Opened;
use crate::runtime::ImageAuth;

const RUN_TIMEOUT: Duration = Duration::from_secs(60);
/// A few passwords.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
const API_GROUP: &str = "credentialprovider.kubelet.k8s.io/";
/// Images and registries whose responses are cached.
const MAX_CACHED: usize = 256;

/// The configuration's versions in [`CONFIG_GROUP`].
const CONFIG_VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const CONFIG_GROUP: &str = "kubelet.config.k8s.io/";

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProviderConfig {
    kind: String,
    api_version: String,
    providers: Vec<Provider>,
}

#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Provider {
    name: String,
    match_images: Vec<String>,
    default_cache_duration: String,
    api_version: String,
    args: Vec<String>,
    env: Vec<Variable>,
    token_attributes: Option<TokenAttributes>,
}

#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProviderResponse {
    kind: String,
    api_version: String,
    cache_key_type: String,
    cache_duration: Option<String>,
    auth: BTreeMap<String, ImageAuth>,
}

struct Cached {
    provider: Provider,
    /// An image, a registry, or empty for all.
    scope: String,
    /// Of the service account; empty without one.
    account: String,
    keyring: Keyring,
    until: Timestamp,
}

pub(super) struct Providers {
    config: Option<PathBuf>,
    bin_dir: PathBuf,
    clock: Clock,
    cache: RefCell<Vec<Cached>>,
    /// Of the cluster; `None` on a node of none.
    accounts: Option<Rc<dyn ServiceAccounts>>,
}

impl Providers {
    pub(super) fn new(config: Option<PathBuf>, bin_dir: PathBuf, clock: Clock) -> Self {
        Self { config, bin_dir, clock, cache: RefCell::default(), accounts: None }
    }

    pub(super) fn set_accounts(&mut self, accounts: Option<Rc<dyn ServiceAccounts>>) {
        self.accounts = accounts;
    }

    /// The responses of the programs that match this image.
    pub(super) async fn lookup(&self, image: &str, puller: Puller<'_>) -> Vec<(ImageAuth, Opened)> {
        let Some(path) = self.config.clone() else { return Vec::new() };
        let providers = match rt::blocking("credential-config", move || read_config(&path)).await {
            Ok(providers) => providers,
            Err(problem) => {
                log::error!(problem; "Invalid credential provider configuration");
                return Vec::new();
            }
        };
        let now = self.clock.now();
        // A provider that is configured differently may answer differently.
        self.cache.borrow_mut().retain(|one| now < one.until && providers.contains(&one.provider));
        let repository = repository_of(image);
        let mut found = Vec::new();
        for provider in providers {
            if !provider.match_images.iter().any(|pattern| matches(bare(pattern), &repository)) {
                continue;
            }
            let account = match self.account(&provider, puller).await {
                Ok(account) => account,
                Err(NotRun::Skipped(why)) => {
                    log::debug!(provider = provider.name.as_str(), image, why; "Credential provider is not run");
                    continue;
                }
                Err(NotRun::Failed(problem)) => {
                    log::error!(provider = provider.name.as_str(), image, problem; "Credential provider failed");
                    continue;
                }
            };
            let key = account.as_ref().map(|account| account.cache_key.as_str()).unwrap_or_default();
            let logins = match self.cached(&provider, image, &repository, key) {
                Some(logins) => logins,
                None => match self.request_credentials(&provider, image, account.as_ref()).await {
                    Ok(answer) => self.store_response(&provider, image, (&repository, key), answer),
                    Err(problem) => {
                        log::error!(provider = provider.name.as_str(), image, problem; "Credential provider \
                             failed");
                        continue;
                    }
                },
            };
            let opens = account.map_or(Opened::ByNode, |account| Opened::ByAccount(account.account));
            found.extend(logins.into_iter().map(|auth| (auth, opens.clone())));
        }
        found
    }

    /// Whether the pod's service account is one of these, and has credentials for the image. While the cluster cannot be
    /// reached its name is enough: pods that ran start again.
    pub(super) async fn opens_as_before(&self, image: &str, recorded: &[Value], puller: Puller<'_>) -> bool {
        let is_named =
            |one: &Value| one["namespace"] == puller.pod.namespace.as_str() && one["name"] == puller.account;
        let Some(accounts) = self.accounts.as_ref().filter(|_| recorded.iter().any(is_named)) else {
            return false;
        };
        if !accounts.is_online() {
            return true;
        }
        let found = self.lookup(image, puller).await;
        found
            .iter()
            .any(|(_, opens)| matches!(opens, Opened::ByAccount(account) if recorded.contains(account)))
    }

    /// What the program gets of the pod's service account.
    async fn account(&self, provider: &Provider, puller: Puller<'_>) -> Result<Option<AccountToken>, NotRun> {
        match &provider.token_attributes {
            Some(attributes) => Box::pin(attributes.token(self.accounts.as_ref(), puller)).await,
            None => Ok(None),
        }
    }

    fn cached(
        &self,
        provider: &Provider,
        image: &str,
        repository: &str,
        account: &str,
    ) -> Option<Vec<ImageAuth>> {
        let cache = self.cache.borrow();
        let of_scope = |scope| {
            cache.iter().find(|one| one.scope == scope && one.account == account && one.provider == *provider)
        };
        let found = [image, registry_of(repository), ""].into_iter().find_map(of_scope)?;
        Some(found.keyring.lookup(image))
    }

    fn store_response(
        &self,
        provider: &Provider,
        image: &str,
        (repository, account): (&str, &str),
        answer: ProviderResponse,
    ) -> Vec<ImageAuth> {
        let mut keyring = Keyring::default();
        // A program answers with nothing but user and password (upstream).
        for (key, ImageAuth { username, password, .. }) in answer.auth {
            keyring.add(&key, ImageAuth::of_user(username, password));
        }
        let found = keyring.lookup(image);
        let scope = match answer.cache_key_type.as_str() {
            "Image" => image,
            "Registry" => registry_of(repository),
            "Global" => "",
            other => {
                log::error!(provider = provider.name.as_str(), cacheKeyType = other; "Invalid response from \
                     credential provider");
                return Vec::new();
            }
        };
        let text = answer.cache_duration.as_deref().unwrap_or(&provider.default_cache_duration);
        let duration = parse_duration(text).unwrap_or(Duration::ZERO);
        let mut cache = self.cache.borrow_mut();
        if !duration.is_zero() && cache.len() < MAX_CACHED {
            let until = self.clock.now().saturating_add(duration);
            let (scope, account) = (scope.to_owned(), account.to_owned());
            cache.push(Cached { provider: provider.clone(), scope, account, keyring, until });
        }
        found
    }

    async fn request_credentials(
        &self,
        provider: &Provider,
        image: &str,
        account: Option<&AccountToken>,
    ) -> Result<ProviderResponse, String> {
        let mut request =
            json!({"kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": image});
        if let Some(account) = account {
            request["serviceAccountToken"] = json!(*account.token);
            if !account.annotations.is_empty() {
                request["serviceAccountAnnotations"] = Value::Object(account.annotations.clone());
            }
        }
        let mut command = Command::new(self.bin_dir.join(&provider.name));
        command.args(&provider.args);
        command.envs(provider.env.iter().map(|variable| (&variable.name, &variable.value)));
        let request = request.to_string();
        let answer = tokio::time::timeout(RUN_TIMEOUT, run_provider(&mut command, request.as_bytes()));
        let bytes = answer.await.map_err(|_| "no response within a minute".to_owned())??;
        // Error messages must not quote the response: it contains passwords.
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|_| "the response is not JSON".to_owned())?;
        let answer: ProviderResponse =
            decode(value).map_err(|error| format!("{}: unexpected type", error.path))?.object;
        if answer.kind != "CredentialProviderResponse" || answer.api_version != provider.api_version {
            return Err(format!(
                "the response is not a CredentialProviderResponse of {}",
                provider.api_version
            ));
        }
        if let Some(account) = account.filter(|account| !account.may_echo)
            && answer.auth.values().any(|login| login.password == *account.token)
        {
            return Err("the response has the token as a password, which requires \
                 tokenAttributes.cacheType: Token"
                .to_owned());
        }
        Ok(answer)
    }
}

async fn run_provider(command: &mut Command, request: &[u8]) -> Result<Vec<u8>, String> {
    let child = TalkingChild::start(command, request).map_err(|error| format!("failed to start: {error}"))?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 4096];
    loop {
        let count = child.read(&mut buffer).await.map_err(|error| error.to_string())?;
        if count == 0 {
            break;
        }
        answer.extend_from_slice(&buffer[..count]);
        if answer.len() > MAX_ANSWER_BYTES {
            return Err("the response is larger than 1 MiB".to_owned());
        }
    }
    match child.wait().await {
        how if how == "exit status: 0" => Ok(answer),
        how => Err(format!("it exited with {how}; its standard error is in the agent's log")),
    }
}

/// A file, or all `.json`, `.yaml` and `.yml` files of a directory in their order.
fn read_config(path: &Path) -> Result<Vec<Provider>, String> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(|error| format!("{}: {error}", path.display()))?;
        files = entries.flatten().map(|entry| entry.path()).filter(|path| is_config(path)).collect();
        files.order_by(Ord::cmp);
    }
    let mut providers: Vec<Provider> = Vec::new();
    for file in files {
        let problem = |words: String| format!("{}: {words}", file.display());
        let text = std::fs::read_to_string(&file).map_err(|error| problem(error.to_string()))?;
        let values = yaml_to_values(&text, true).map_err(|error| problem(error.to_string()))?;
        for value in values {
            let decoded = decode::<ProviderConfig>(value).map_err(|error| problem(error.to_string()))?;
            if let Some(unknown) = decoded.unknown_fields.first() {
                return Err(problem(format!("unknown field {unknown:?}")));
            }
            let config = decoded.object;
            let version = config.api_version.strip_prefix(CONFIG_GROUP);
            if config.kind != "CredentialProviderConfig"
                || !version.is_some_and(|version| CONFIG_VERSIONS.contains(&version))
            {
                return Err(problem(format!(
                    "apiVersion {:?} and kind {:?} must be {CONFIG_GROUP}v1 and CredentialProviderConfig",
                    config.api_version, config.kind
                )));
            }
            for provider in config.providers {
                check(&provider).map_err(problem)?;
                if providers.iter().any(|known| known.name == provider.name) {
                    return Err(problem(format!("provider {:?} is defined twice", provider.name)));
                }
                providers.push(provider);
            }
        }
    }
    if providers.is_empty() {
        return Err(format!("{}: providers: Required value", path.display()));
    }
    Ok(providers)
}

fn is_config(path: &Path) -> bool {
    path.extension().is_some_and(|end| ["json", "yaml", "yml"].iter().any(|known| end == *known))
}

fn check(provider: &Provider) -> Result<(), String> {
    let name = &provider.name;
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', ' ']) {
        return Err(format!("providers[].name {name:?}: must be a program name, without '/' and spaces"));
    }
    if provider.match_images.is_empty() {
        return Err(format!("provider {name:?}: matchImages is empty"));
    }
    let version = provider.api_version.strip_prefix(API_GROUP);
    if !version.is_some_and(|version| CONFIG_VERSIONS.contains(&version)) {
        return Err(format!("provider {name:?}: unsupported apiVersion {:?}", provider.api_version));
    }
    if let Some(attributes) = &provider.token_attributes {
        attributes
            .check(version == Some("v1"))
            .map_err(|why| format!("provider {name:?}: tokenAttributes{why}"))?;
    }
    if parse_duration(&provider.default_cache_duration).is_none() {
        return Err(format!(
            "provider {name:?}: invalid defaultCacheDuration {:?}",
            provider.default_cache_duration
        ));
    }
    Ok(())
}

fn bare(pattern: &str) -> &str {
    pattern.strip_prefix("https://").or_else(|| pattern.strip_prefix("http://")).unwrap_or(pattern)
}

fn registry_of(repository: &str) -> &str {
    repository.split('/').next().unwrap_or_default()
}

/// `1h30m`, `12h0m0s`, `0s`, `500ms`, as Go writes durations. (The configuration's own reader sits above this
/// module.)
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).filter(|end| *end > 0)?;
        let number: u64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
        let (unit, millis) = units.iter().find(|(unit, _)| rest.starts_with(unit))?;
        sum = sum.checked_add(Duration::from_millis(number.checked_mul(*millis)?))?;
        rest = &rest[unit.len()..];
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests;
