//! Credential provider programs, by the kubelet's exec protocol (`credentialprovider.kubelet.k8s.io/v1`).
//!
//! Owns their configuration, their processes and their responses, cached for as long as the response allows.
//! The failure of a program is logged and counts as an empty response.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::codec::yaml::yaml_to_values;
use crate::model::api::decode::decode;
use crate::model::api::record::record;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::child::TalkingChild;
use crate::pod::image::keyring::{Keyring, matches, repository_of};
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

record! {
    #[derive(Default)]
    struct ProviderConfig as camelCase {
        kind: String,
        api_version: String,
        providers: Vec<Provider>,
    }

    #[derive(Clone, Default, PartialEq)]
    struct Provider as camelCase {
        name: String,
        match_images: Vec<String>,
        default_cache_duration: String,
        api_version: String,
        args: Vec<String>,
        env: Vec<Variable>,
        token_attributes: Option<TokenAttributes>,
    }

    #[derive(Clone, Default, PartialEq)]
    struct Variable as snake_case {
        name: String,
        value: String,
    }

    /// For tokens of service accounts, which pods here do not have.
    #[derive(Clone, Default, PartialEq)]
    struct TokenAttributes as camelCase {
        require_service_account: bool,
        service_account_token_audience: String,
        cache_type: String,
        required_service_account_annotation_keys: Vec<String>,
        optional_service_account_annotation_keys: Vec<String>,
    }

    #[derive(Default)]
    struct ProviderResponse as camelCase {
        kind: String,
        api_version: String,
        cache_key_type: String,
        cache_duration: Option<String>,
        auth: BTreeMap<String, ImageAuth>,
    }
}

struct Cached {
    provider: Provider,
    /// An image, a registry, or empty for all.
    scope: String,
    keyring: Keyring,
    until: Timestamp,
}

pub(super) struct Providers {
    config: Option<PathBuf>,
    bin_dir: PathBuf,
    clock: Clock,
    cache: RefCell<Vec<Cached>>,
}

impl Providers {
    pub(super) fn new(config: Option<PathBuf>, bin_dir: PathBuf, clock: Clock) -> Self {
        Self { config, bin_dir, clock, cache: RefCell::default() }
    }

    /// The responses of the programs that match this image.
    pub(super) async fn lookup(&self, image: &str) -> Vec<ImageAuth> {
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
            if let Some(logins) = self.cached(&provider, image, &repository) {
                found.extend(logins);
                continue;
            }
            match self.request_credentials(&provider, image).await {
                Ok(answer) => found.extend(self.store_response(&provider, image, &repository, answer)),
                Err(problem) => {
                    log::error!(provider = provider.name.as_str(), image, problem; "Credential provider \
                         failed");
                }
            }
        }
        found
    }

    fn cached(&self, provider: &Provider, image: &str, repository: &str) -> Option<Vec<ImageAuth>> {
        let cache = self.cache.borrow();
        let of_scope = |scope| cache.iter().find(|one| one.scope == scope && one.provider == *provider);
        let found = [image, registry_of(repository), ""].into_iter().find_map(of_scope)?;
        Some(found.keyring.lookup(image))
    }

    fn store_response(
        &self,
        provider: &Provider,
        image: &str,
        repository: &str,
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
            cache.push(Cached { provider: provider.clone(), scope: scope.to_owned(), keyring, until });
        }
        found
    }

    async fn request_credentials(
        &self,
        provider: &Provider,
        image: &str,
    ) -> Result<ProviderResponse, String> {
        if provider.token_attributes.as_ref().is_some_and(|token| token.require_service_account) {
            return Err("tokenAttributes.requireServiceAccount: pods here have no service account".to_owned());
        }
        let request =
            json!({"kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": image});
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
        files.sort();
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
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_is_asked_once_for_what_its_answer_holds_for() {
        let root = std::env::temp_dir().join(format!("edge-agent-provider-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let program = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let asked = root.join("asked");
        program(
            "good",
            &format!(
                "#!/bin/sh\ncat >>{0}\necho >>{0}\necho '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\
                 \"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"Registry\",\"cacheDuration\":\"1h\",\"auth\":\
                 {{\"*.example\":{{\"username\":\"'$1'\",\"password\":\"'$WORD'\"}}}}}}'\n",
                asked.display()
            ),
        );
        program("bad", "#!/bin/sh\necho hush\nexit 3\n");
        let config = root.join("providers.yaml");
        std::fs::write(
            &config,
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: bad\n  \
             matchImages: ['*.example']\n  defaultCacheDuration: 0s\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n\
             - name: good\n  matchImages: ['*.example']\n  defaultCacheDuration: 12h0m0s\n  apiVersion: \
             credentialprovider.kubelet.k8s.io/v1\n  args: [me]\n  env: [{name: WORD, value: hush}]\n",
        )
        .unwrap();
        let providers = Providers::new(Some(config.clone()), root.clone(), Clock::System);
        let users = |image: &'static str| {
            let found = rt::run(providers.lookup(image)).unwrap();
            found
                .into_iter()
                .map(|login| format!("{}:{}", login.username, login.password))
                .collect::<Vec<_>>()
        };
        assert_eq!(users("r.example/a:v1"), ["me:hush"]);
        assert_eq!(users("r.example/b:v2"), ["me:hush"]);
        assert!(users("busybox").is_empty());
        let text = std::fs::read_to_string(&asked).unwrap();
        let request: Value = serde_json::from_str(text.trim()).expect("one request alone");
        assert_eq!(request["image"], "r.example/a:v1");
        assert_eq!(users("s.example/b"), ["me:hush"]);
        assert_eq!(std::fs::read_to_string(&asked).unwrap().trim().lines().count(), 2);

        // Another configuration is another question; the first one's answers are no longer valid.
        let first = std::fs::read_to_string(&config).unwrap();
        for (from, to, expected) in [
            ("args: [me]", "args: [you]", "you:hush"),
            ("value: hush", "value: shh", "me:shh"),
            ("defaultCacheDuration: 12h0m0s", "defaultCacheDuration: 1h", "me:hush"),
        ] {
            let before = std::fs::read_to_string(&asked).unwrap().trim().lines().count();
            std::fs::write(&config, first.replace(from, to)).unwrap();
            for _ in 0..2 {
                assert_eq!(users("r.example/a:v1"), [expected], "{to}");
            }
            assert_eq!(std::fs::read_to_string(&asked).unwrap().trim().lines().count(), before + 1, "{to}");
        }
        let token = "args: [me]\n  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount";
        std::fs::write(&config, first.replace("args: [me]", &format!("{token}: false}}"))).unwrap();
        assert_eq!(users("r.example/a:v1"), ["me:hush"]);
        std::fs::write(&config, first.replace("args: [me]", &format!("{token}: true}}"))).unwrap();
        assert!(users("r.example/a:v1").is_empty(), "no pod has a service account");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn provider_config_is_decoded_strictly_as_upstream() {
        let directory = TempDir::new();
        let config = directory.join("providers.yaml");
        let good = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: good\n  \
                    matchImages: ['*.example']\n  defaultCacheDuration: 0s\n  apiVersion: \
                    credentialprovider.kubelet.k8s.io/v1\n  env: [{name: A, value: b}]\n";
        for (from, to, words) in [
            ("name: good", "name: ../bad", "\"../bad\": must be a program name"),
            (
                "kind: CredentialProviderConfig",
                "kind: KubeletConfiguration",
                "kind \"KubeletConfiguration\" must be",
            ),
            ("kind: CredentialProviderConfig\n", "", "kind \"\" must be"),
            ("config.k8s.io/v1", "config.k8s.io/v2", "apiVersion \"kubelet.config.k8s.io/v2\""),
            ("apiVersion: kubelet.config.k8s.io/v1\n", "", "apiVersion \"\""),
            ("  matchImages", "  matchimages", "unknown field \"providers[0].matchimages\""),
            ("value: b", "val: b", "unknown field \"providers[0].env[0].val\""),
            ("kind:", "kinds: x\nkind:", "unknown field \"kinds\""),
            ("kind:", "kind: x\nkind:", "kind"),
            ("  defaultCacheDuration: 0s", "  args: [a]\n  args: [b]\n  defaultCacheDuration: 0s", "args"),
            ("name: good", "name: [good]", "providers[0].name: "),
        ] {
            std::fs::write(&config, good.replacen(from, to, 1)).unwrap();
            let problem = read_config(&config).err().unwrap_or_default();
            assert!(problem.contains("providers.yaml: ") && problem.contains(words), "{to}: {problem}");
        }
        for (text, count) in [
            (good.to_owned(), Some(1)),
            (good.replace("/v1\nkind", "/v1beta1\nkind"), Some(1)),
            (String::new(), None),
        ] {
            std::fs::write(&config, &text).unwrap();
            assert_eq!(read_config(&config).ok().map(|providers| providers.len()), count, "{text}");
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, millis) in
            [("12h0m0s", 43_200_000), ("1h30m", 5_400_000), ("500ms", 500), ("0s", 0), ("0", 0)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "x", "1d", "-1s", "99999999999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
