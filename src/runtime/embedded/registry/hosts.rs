//! Which servers stand for a registry, in which order, and how to reach each: containerd's `certs.d` layout.
//!
//! Owns the interpretation of `hosts.toml`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::toml::{self, Assignment};
use super::{PullError, STALL_TIMEOUT};
use crate::model::ordered::Sortable as _;
use crate::platform::http::ClientFiles;
use crate::platform::http::stream::StreamOptions;
use crate::platform::http::url::{Url, is_loopback_host};

/// Real files have ten lines.
const MAX_FILE_BYTES: u64 = 64 * 1024;
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Docker Hub's name, and the host that serves it.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// One server of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct Host {
    /// Scheme, authority and the path before `/<repository>/manifests/…`.
    pub base: Url,
    pub resolves: bool,
    /// May serve content.
    pub pulls: bool,
    /// The registry that this mirror stands for; requests carry it as `?ns=`.
    pub namespace: Option<String>,
    /// Sent with every request to it.
    pub headers: Vec<(String, String)>,
    /// Certificates and time limits.
    pub options: StreamOptions,
}

/// The servers of a registry: mirrors first, the registry itself last.
///
/// # Errors
/// When a configuration file exists and cannot be parsed: guessing would use the wrong server.
pub(in crate::runtime) fn hosts_of(
    registry: &str,
    directories: &[PathBuf],
    stall: Duration,
) -> Result<Vec<Host>, PullError> {
    let Some(directory) = directories.iter().find_map(|root| directory_of(root, registry)) else {
        return Ok(vec![default_host(registry, HostConfig::default(), stall)?]);
    };
    let path = directory.join("hosts.toml");
    let text = match read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // As Docker's certs.d: certificates by their file extensions.
            return Ok(vec![default_host(registry, certificates_in(&directory), stall)?]);
        }
        Err(error) => return Err(bad(&path, format!("cannot be read: {error}"))),
    };
    let parsed = toml::parse(&text).map_err(|error| bad(&path, error.to_string()))?;
    hosts_from(registry, &parsed, &directory, stall).map_err(|problem| bad(&path, problem))
}

fn bad(path: &Path, problem: String) -> PullError {
    PullError::Hosts { path: path.to_owned(), problem }
}

fn read(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 64 KiB"));
    }
    fs::read_to_string(path)
}

/// `host:port`, then containerd's spelling without a colon, then the default for all.
fn directory_of(root: &Path, registry: &str) -> Option<PathBuf> {
    let mut names = vec![registry.to_owned()];
    if let Some((host, port)) = registry.rsplit_once(':') {
        names.push(format!("{host}_{port}_"));
    }
    names.push("_default".to_owned());
    names.into_iter().map(|name| root.join(name)).find(|path| path.is_dir())
}

#[derive(Default)]
struct HostConfig {
    capabilities: Option<Vec<String>>,
    ca: Vec<PathBuf>,
    client: Option<ClientFiles>,
    skip_verify: bool,
    override_path: bool,
    headers: Vec<(String, String)>,
    dial_timeout: Option<Duration>,
}

fn hosts_from(
    registry: &str,
    assignments: &[Assignment],
    directory: &Path,
    stall: Duration,
) -> Result<Vec<Host>, String> {
    let mut server = None;
    let mut root = HostConfig::default();
    let mut mirrors: Vec<(String, HostConfig)> = Vec::new();
    for Assignment { table, key, value } in assignments {
        match &table.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] if key == "server" => server = Some(text(key, value)?),
            [] if key == "host" => return Err("hosts must be [host.\"https://…\"] tables".to_owned()),
            [] => root.set(key, value, directory)?,
            ["header"] => root.header(key, value)?,
            ["host"] if key.is_empty() => {}
            ["host", name, rest @ ..] => {
                let known = mirrors.iter().position(|(known, _)| known == name);
                let at = known.unwrap_or_else(|| {
                    mirrors.push(((*name).to_owned(), HostConfig::default()));
                    mirrors.len() - 1
                });
                match rest {
                    [] => mirrors[at].1.set(key, value, directory)?,
                    ["header"] => mirrors[at].1.header(key, value)?,
                    other => return Err(format!("unknown table {other:?} of host {name:?}")),
                }
            }
            other => return Err(format!("unknown table {other:?}")),
        }
    }
    let mut hosts = Vec::new();
    for (name, part) in mirrors {
        hosts.push(part.host(&name, registry, stall)?);
    }
    hosts.push(match server {
        Some(server) => root.host(&server, registry, stall)?,
        None => default_host(registry, root, stall).map_err(|error| error.to_string())?,
    });
    Ok(hosts)
}

/// The registry under its own name: with TLS, except for a loopback host without TLS settings.
fn default_host(registry: &str, part: HostConfig, stall: Duration) -> Result<Host, PullError> {
    let secured = !part.ca.is_empty() || part.client.is_some() || part.skip_verify;
    let scheme = if is_loopback_host(registry) && !secured { "http" } else { "https" };
    let authority = if registry == DOCKER_HUB.0 { DOCKER_HUB.1 } else { registry };
    part.host(&format!("{scheme}://{authority}"), registry, stall)
        .map_err(|problem| PullError::Reference { image: registry.to_owned(), problem })
}

impl HostConfig {
    fn set(&mut self, key: &str, value: &Value, directory: &Path) -> Result<(), String> {
        let path = |text: &str| directory.join(text);
        match key {
            "" => {}
            "capabilities" => self.capabilities = Some(texts(key, value)?),
            "ca" => self.ca = texts(key, value)?.iter().map(|text| path(text)).collect(),
            "client" => {
                let first = match value {
                    Value::Array(items) => items.first().unwrap_or(&Value::Null),
                    other => other,
                };
                let pair = texts(key, first)?;
                let Some(certificate) = pair.first() else { return Ok(()) };
                let key_file = pair.get(1).filter(|name| !name.is_empty());
                self.client = Some(ClientFiles {
                    certificate: path(certificate),
                    key: key_file.map(|name| path(name)),
                });
            }
            "skip_verify" => self.skip_verify = flag(key, value)?,
            "override_path" => self.override_path = flag(key, value)?,
            "dial_timeout" => self.dial_timeout = Some(duration(key, value)?),
            "header" => {
                let Value::Object(members) = value else { return Err("header: not a table".to_owned()) };
                for (name, value) in members {
                    self.header(name, value)?;
                }
            }
            other => return Err(format!("unknown key {other:?}")),
        }
        Ok(())
    }

    fn header(&mut self, name: &str, value: &Value) -> Result<(), String> {
        if name.is_empty() {
            return Ok(());
        }
        let values = texts(name, value)?;
        self.headers.extend(values.into_iter().map(|value| (name.to_owned(), value)));
        Ok(())
    }

    fn host(self, server: &str, registry: &str, stall: Duration) -> Result<Host, String> {
        let with_scheme = if server.contains("://") {
            server.to_owned()
        } else {
            format!("{}://{server}", if is_loopback_host(server) { "http" } else { "https" })
        };
        let mut base = Url::parse(&with_scheme)
            .ok_or_else(|| format!("{server:?} is not an http:// or https:// URL"))?;
        let path = base.path.split('?').next().unwrap_or_default().trim_end_matches('/').to_owned();
        base.path = if self.override_path || path.ends_with("/v2") { path } else { format!("{path}/v2") };
        let capable =
            |name: &str| self.capabilities.as_ref().is_none_or(|given| given.iter().any(|one| one == name));
        let itself =
            base.authority == registry || (registry == DOCKER_HUB.0 && base.authority == DOCKER_HUB.1);
        Ok(Host {
            resolves: capable("resolve"),
            pulls: capable("pull"),
            namespace: (!itself).then(|| registry.to_owned()),
            headers: self.headers,
            options: StreamOptions {
                ca_files: self.ca,
                client: self.client,
                skip_verify: self.skip_verify,
                connect_timeout: self.dial_timeout.unwrap_or(DIAL_TIMEOUT),
                stall_timeout: if stall.is_zero() { STALL_TIMEOUT } else { stall },
                least_rate: None,
            },
            base,
        })
    }
}

fn certificates_in(directory: &Path) -> HostConfig {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.order_by(Ord::cmp);
    let ends = |path: &PathBuf, end: &str| path.extension().is_some_and(|found| found == end);
    let client = paths
        .iter()
        .find(|path| ends(path, "cert"))
        .map(|path| ClientFiles { certificate: path.clone(), key: Some(path.with_extension("key")) });
    HostConfig {
        ca: paths.into_iter().filter(|path| ends(path, "crt")).collect(),
        client,
        ..HostConfig::default()
    }
}

fn text(key: &str, value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{key}: must be a string"))
}

/// One string, or several.
fn texts(key: &str, value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(items) => items.iter().map(|item| text(key, item)).collect(),
        one => Ok(vec![text(key, one)?]),
    }
}

fn flag(key: &str, value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("{key}: must be true or false"))
}

/// `"3s"`, `"500ms"`, `"1m"`.
fn duration(key: &str, value: &Value) -> Result<Duration, String> {
    let text = text(key, value)?;
    let units = [("ms", 1), ("s", 1000), ("m", 60_000)];
    let millis = units.iter().find_map(|(unit, millis)| {
        let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
        number.checked_mul(*millis)
    });
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{key}: {text:?} must be a duration such as \"3s\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(registry: &str, file: &str) -> Result<Vec<Host>, String> {
        let parsed = toml::parse(file).map_err(|error| error.to_string())?;
        hosts_from(registry, &parsed, Path::new("/c"), Duration::ZERO)
    }

    #[test]
    fn unconfigured_registry_uses_https_except_on_loopback() {
        let base = |registry: &str| {
            let found = hosts_of(registry, &[], Duration::ZERO).unwrap();
            assert_eq!((found.len(), found[0].namespace.as_deref()), (1, None));
            found[0].base.text()
        };
        assert_eq!(base("docker.io"), "https://registry-1.docker.io/v2");
        assert_eq!(base("r.example:5000"), "https://r.example:5000/v2");
        assert_eq!(base("localhost:5000"), "http://localhost:5000/v2");
        assert_eq!(base("127.0.0.1:5000"), "http://127.0.0.1:5000/v2");
        assert_eq!(base("10.0.0.1:5000"), "https://10.0.0.1:5000/v2");
    }

    #[test]
    fn mirrors_come_first_in_order_and_carry_their_upstream() {
        let found = hosts(
            "docker.io",
            "server = \"https://registry-1.docker.io\"\nca = \"hub.pem\"\n[host.\"https://z.example\"]\ncapabilities = \
             [\"pull\"]\n[host.\"http://a.example:5000/proxy\"]\nskip_verify = true\noverride_path = true\nclient = \
             [[\"c.pem\", \"/k.pem\"]]\ndial_timeout = \"3s\"\n[host.\"http://a.example:5000/proxy\".header]\nx-a = [\"1\", \"2\"]\n",
        )
        .unwrap();
        let bases: Vec<String> = found.iter().map(|host| host.base.text()).collect();
        assert_eq!(
            bases,
            ["https://z.example/v2", "http://a.example:5000/proxy", "https://registry-1.docker.io/v2"]
        );
        assert!(!found[0].resolves && found[0].pulls && found[1].resolves);
        let namespaces: Vec<Option<&str>> = found.iter().map(|host| host.namespace.as_deref()).collect();
        assert_eq!(namespaces, [Some("docker.io"), Some("docker.io"), None]);
        assert!(found[1].options.skip_verify && !found[0].options.skip_verify);
        let client = Some(ClientFiles { certificate: "/c/c.pem".into(), key: Some("/k.pem".into()) });
        assert_eq!(found[1].options.client, client);
        assert_eq!(found[1].options.connect_timeout, Duration::from_secs(3));
        assert_eq!(found[1].headers, [("x-a".into(), "1".into()), ("x-a".into(), "2".into())]);
        assert_eq!(found[2].options.ca_files, [PathBuf::from("/c/hub.pem")]);
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (file, words) in [
            ("servers = \"x\"", "unknown key \"servers\""),
            ("[host.\"ftp://x\"]", "not an http:// or https:// URL"),
            ("skip_verify = \"yes\"", "skip_verify: must be true or false"),
            ("dial_timeout = \"soon\"", "must be a duration"),
            ("[plugins.x]\na = 1", "unknown table"),
        ] {
            let error = hosts("r.example", file).unwrap_err();
            assert!(error.contains(words), "{file}: {error}");
        }
    }

    #[test]
    fn the_first_directory_that_knows_the_registry_counts() {
        let root = std::env::temp_dir().join(format!("edge-agent-hosts-{}", std::process::id()));
        let (first, second) = (root.join("a"), root.join("b"));
        fs::create_dir_all(first.join("other.example")).unwrap();
        fs::create_dir_all(second.join("r.example_5000_")).unwrap();
        fs::create_dir_all(second.join("docker.example")).unwrap();
        fs::write(second.join("r.example_5000_/hosts.toml"), "server = \"http://10.0.0.9\"").unwrap();
        for name in ["ca.crt", "client.cert", "client.key"] {
            fs::write(second.join("docker.example").join(name), "").unwrap();
        }
        let found = hosts_of("r.example:5000", &[first.clone(), second.clone()], Duration::ZERO).unwrap();
        assert_eq!(found[0].base.text(), "http://10.0.0.9/v2");
        let found = hosts_of("docker.example", &[first.clone(), second.clone()], Duration::ZERO).unwrap();
        assert_eq!(found[0].options.ca_files, [second.join("docker.example/ca.crt")]);
        assert!(found[0].options.client.is_some());
        fs::write(first.join("other.example/hosts.toml"), "a b").unwrap();
        let error = hosts_of("other.example", &[first, second], Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("other.example/hosts.toml") && error.contains("line 1"), "{error}");
        fs::remove_dir_all(root).unwrap();
    }
}
