//! Which of the known registry credentials may open an image, and in which order they are tried (upstream:
//! credential provider's keyring, 1.36).
//!
//! Owns the forms of Docker's configuration and the matching of its keys. Invariant: an image is never
//! offered a login of a registry that its key does not match.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::codec::base64;
use crate::model::api::decode::decode;
use crate::model::image_name::repository_of;
use crate::runtime::ImageAuth;

/// The key that Docker's own tools write for Docker Hub.
const DEFAULT_REGISTRY_KEY: &str = "index.docker.io";

/// Logins by what they match: `host[:port][/path]`, where each label of the host may be a glob.
#[derive(Clone, Debug, Default)]
pub(in crate::pod) struct Keyring {
    logins: BTreeMap<String, Vec<ImageAuth>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ConfigJson {
    auths: BTreeMap<String, KeyringEntry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KeyringEntry {
    username: String,
    password: String,
    auth: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OldConfig {
    #[serde(flatten)]
    auths: BTreeMap<String, KeyringEntry>,
}

impl Keyring {
    /// Adds the `auths` of a `config.json` (`.dockerconfigjson` of a Secret). Returns the names of its
    /// credential helpers, which are not run; the kubelet does not run them either.
    ///
    /// # Errors
    /// What is wrong with it; nothing of its content is in the message.
    pub(in crate::pod) fn add_config_json(&mut self, bytes: &[u8]) -> Result<Vec<String>, String> {
        let config: ConfigJson = from_json(bytes)?;
        self.add_entries(config.auths)?;
        let mut helpers: Vec<String> = config.cred_helpers.into_values().collect();
        if !config.creds_store.is_empty() {
            helpers.push(config.creds_store);
        }
        helpers.dedup();
        Ok(helpers)
    }

    /// Adds a `.dockercfg`: the entries without anything around them.
    pub(in crate::pod) fn add_dockercfg(&mut self, bytes: &[u8]) -> Result<(), String> {
        let config: OldConfig = from_json(bytes)?;
        self.add_entries(config.auths)
    }

    /// Adds one login under a key: `r.example`, `*.r.example:5000/team`, `https://index.docker.io/v1/`.
    pub(in crate::pod) fn add(&mut self, key: &str, login: ImageAuth) {
        if login.username.is_empty() && login.password.is_empty() {
            return;
        }
        let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
        let (host, path) = match bare.find('/') {
            Some(at) => bare.split_at(at),
            None => (bare, ""),
        };
        let path = path.strip_prefix("/v1/").or_else(|| path.strip_prefix("/v2/")).map_or_else(
            || path.to_owned(),
            |rest| if rest.is_empty() { String::new() } else { format!("/{rest}") },
        );
        let key = if path == "/" { host.to_owned() } else { format!("{host}{path}") };
        self.logins.entry(key).or_default().push(login);
    }

    fn add_entries(&mut self, entries: BTreeMap<String, KeyringEntry>) -> Result<(), String> {
        for (key, entry) in entries {
            let login = login_of(entry)
                .ok_or_else(|| format!("auths[{key:?}].auth is not base64 of user:password"))?;
            self.add(&key, login);
        }
        Ok(())
    }

    /// The logins that match an image, the most specific first. Without any, those of Docker Hub for its
    /// images.
    #[must_use]
    pub(in crate::pod) fn lookup(&self, image: &str) -> Vec<ImageAuth> {
        let repository = repository_of(image);
        let found: Vec<ImageAuth> = self
            .logins
            .iter()
            .rev()
            .filter(|(key, _)| matches(key, &repository))
            .flat_map(|(_, logins)| logins.iter().cloned())
            .collect();
        if found.is_empty() && repository.starts_with("docker.io/") {
            return self.logins.get(DEFAULT_REGISTRY_KEY).cloned().unwrap_or_default();
        }
        found
    }
}

fn from_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("not JSON: line {}, column {}", error.line(), error.column()))?;
    // The text of a type error quotes the value, which may be a password: only its path is reported.
    decode(value).map(|decoded| decoded.object).map_err(|error| format!("{}: unexpected type", error.path))
}

/// `auth` wins over user and password, as upstream.
fn login_of(entry: KeyringEntry) -> Option<ImageAuth> {
    if entry.auth.is_empty() {
        return Some(ImageAuth::of_user(entry.username, entry.password));
    }
    let text = String::from_utf8(base64::decode(&entry.auth)?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some(ImageAuth::of_user(username.to_owned(), password.trim_end_matches('\0').to_owned()))
}

/// Ports are equal, hosts have as many labels and each one fits, the path begins alike.
#[must_use]
pub(in crate::pod) fn matches(pattern: &str, repository: &str) -> bool {
    let (pattern_host, pattern_path) = split_host(pattern);
    let pattern_host = pattern_host.to_ascii_lowercase();
    let (host, path) = split_host(repository);
    let host = host.to_ascii_lowercase();
    let ((pattern_name, pattern_port), (name, port)) = (split_port(&pattern_host), split_port(&host));
    let (globs, labels): (Vec<&str>, Vec<&str>) =
        (pattern_name.split('.').collect(), name.split('.').collect());
    pattern_port == port
        && globs.len() == labels.len()
        && path.starts_with(pattern_path)
        && globs.iter().zip(labels).all(|(glob, label)| fits(glob.as_bytes(), label.as_bytes()))
}

fn split_host(text: &str) -> (&str, &str) {
    text.find('/').map_or((text, ""), |at| text.split_at(at))
}

fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, ""),
    }
}

/// `*` is any text, `?` any character.
fn fits(glob: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match glob.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(letter) if *letter == b'?' || *letter == text[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((star_at, star_from)) = star else { return false };
                star = Some((star_at, star_from + 1));
                at = star_at + 1;
                from = star_from + 1;
            }
        }
    }
    glob[at..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(keyring: &Keyring, image: &str) -> Vec<String> {
        keyring
            .lookup(image)
            .into_iter()
            .map(|login| format!("{}:{}", login.username, login.password))
            .collect()
    }

    /// Keys as upstream's table of globs, with images that match and that do not.
    #[test]
    fn keys_match_by_host_labels_port_and_path() {
        for (key, image, expected) in [
            ("r.example", "r.example/a/b:v1", true),
            ("r.example", "r.example:5000/a", false),
            ("r.example:5000", "r.example:5000/a@sha256:abc", true),
            ("*.example", "r.example/a", true),
            ("*.example", "x.r.example/a", false),
            ("*.*.example", "x.r.example/a", true),
            ("prefix-*.example", "prefix-1.example/a", true),
            ("prefix-*.example", "other-1.example/a", false),
            ("r.exampl?", "r.example/a", true),
            ("r.example/a", "r.example/a/b", true),
            ("r.example/a/c", "r.example/a/b", false),
            ("https://r.example/v1/", "r.example/b", true),
            ("https://r.example/v2/a", "r.example/a/b", true),
            ("https://r.example/v2/a", "r.example/b", false),
            ("http://r.example/", "r.example/b", true),
            ("localhost:5000", "localhost:5000/a", true),
            ("docker.io", "busybox", true),
            ("https://index.docker.io/v1/", "busybox:1.36", true),
            ("https://index.docker.io/v1/", "grafana/loki", true),
            ("https://index.docker.io/v1/", "docker.io/grafana/loki", true),
            ("https://index.docker.io/v1/", "r.example/a", false),
            // A registry although its name has neither a dot nor a port.
            ("docker.io", "EVIL/x", false),
            ("https://index.docker.io/v1/", "EVIL/x:v1", false),
            ("evil", "EVIL/x", true),
            ("docker.io", "Docker.IO/busybox", true),
            ("R.example", "r.Example/a", true),
        ] {
            let mut keyring = Keyring::default();
            keyring.add(key, ImageAuth::of_user("me".into(), "x".into()));
            assert_eq!(!keyring.lookup(image).is_empty(), expected, "{key} and {image}");
        }
    }

    #[test]
    fn the_most_specific_key_comes_first_and_auth_wins() {
        let mut keyring = Keyring::default();
        let config = br#"{"auths": {
            "r.example": {"auth": "YWxsOng6eQ=="},
            "r.example/team": {"username": "team", "password": "z"},
            "both.example": {"username": "u", "password": "p", "auth": "bWU6aHVzaA=="},
            "empty.example": {}},
            "credHelpers": {"gcr.io": "gcloud"}, "credsStore": "desktop", "HttpHeaders": {"a": "b"}}"#;
        assert_eq!(keyring.add_config_json(config).unwrap(), ["gcloud", "desktop"]);
        assert_eq!(users(&keyring, "r.example/team/app"), ["team:z", "all:x:y"]);
        assert_eq!(users(&keyring, "r.example/other"), ["all:x:y"]);
        assert_eq!(users(&keyring, "both.example/a"), ["me:hush"]);
        assert!(users(&keyring, "empty.example/a").is_empty());
        let mut old = Keyring::default();
        old.add_dockercfg(br#"{"old.example": {"auth": "bWU6aHVzaA==", "email": "a@b"}}"#).unwrap();
        assert_eq!(users(&old, "old.example/a"), ["me:hush"]);
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        let mut keyring = Keyring::default();
        for (text, words) in [
            (r#"{"auths": {"r.example": {"auth": "hush!"}}}"#, "auths[\"r.example\"].auth"),
            (r#"{"auths": {"r.example": {"password": 4711}}}"#, "auths"),
            (r#"{"auths": "hush"}"#, "auths"),
            ("hush", "not JSON"),
        ] {
            let problem = keyring.add_config_json(text.as_bytes()).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
            assert!(!problem.contains("hush") && !problem.contains("4711"), "{problem}");
        }
        assert!(!format!("{:?}", ImageAuth::of_user("me".into(), "hush".into())).contains("hush"));
    }
}
