//! `agent kubeconfig`: a client certificate, and the kubeconfig for kubectl, curl and similar clients.
//!
//! Owns the command and the file's shape. The address of the API and the authority come from the running
//! agent; without it, only the node's authority is needed.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::args::{Common, DEFAULT_ROOT_DIR, Has, Own, UsageError, duration, text, value};
use super::client::{self, ClientError};
use super::{CliError, EXIT_OK, Environment, print, yaml};
use crate::cmd::help;
use crate::codec::base64;
use crate::model::duration::GoDuration;
use crate::platform::sys::node;
use crate::serve::server::ObjectDetail;
use crate::serve::server::access::{MASTERS, VIEWERS};
use crate::serve::server::pki::{Authority, Pair};
use crate::serve::server::report::ApiReport;

struct KubeconfigArgs {
    common: Common,
    user: String,
    group: &'static str,
    server: Option<String>,
    duration: GoDuration,
    cert_dir: Option<PathBuf>,
    root_dir: Option<PathBuf>,
}

fn parse(arguments: &[String]) -> Result<KubeconfigArgs, UsageError> {
    let mut wanted = KubeconfigArgs {
        common: Common::default(),
        user: "admin".to_owned(),
        group: MASTERS,
        server: None,
        duration: GoDuration::from_secs(365 * 24 * 3600),
        cert_dir: None,
        root_dir: None,
    };
    wanted.common = Common::parse(arguments, Has::Socket, &mut |own, parser| {
        match own {
            Own::Option("--user") => wanted.user = text(value(parser)?),
            Own::Option("--view") => wanted.group = VIEWERS,
            Own::Option("--server") => wanted.server = Some(text(value(parser)?)),
            Own::Option("--cert-dir") => wanted.cert_dir = Some(value(parser)?.into()),
            Own::Option("--root-dir") => wanted.root_dir = Some(value(parser)?.into()),
            Own::Option("--duration") => wanted.duration = duration(parser, "--duration", "720h")?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let message = |message: &str| Err(UsageError::Option { message: message.to_owned() });
    if wanted.user.is_empty() || wanted.user.starts_with("system:") {
        return message("--user: must not be empty or begin with system:");
    }
    if wanted.server.as_ref().is_some_and(|server| !server.starts_with("https://")) {
        return message("--server: must be a URL that begins with https://");
    }
    Ok(wanted)
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("kubeconfig"))?;
        return Ok(EXIT_OK);
    }
    let place = ApiEndpoint::of(&wanted, || ask(&wanted.common.socket))?;
    let file = make(&wanted, &place, environment)?;
    print(environment, &file)?;
    Ok(EXIT_OK)
}

/// The address of the API, and the authority.
#[derive(Debug, PartialEq, Eq)]
struct ApiEndpoint {
    server: String,
    cert_dir: PathBuf,
}

impl ApiEndpoint {
    /// From the command line, otherwise the running agent, otherwise the defaults. The agent is not asked
    /// when the command line is complete; a given root directory is that of an agent that is not running.
    fn of(
        wanted: &KubeconfigArgs,
        ask: impl FnOnce() -> Result<Option<ApiReport>, CliError>,
    ) -> Result<Self, CliError> {
        let says_all = wanted.root_dir.is_some() || (wanted.server.is_some() && wanted.cert_dir.is_some());
        let said = if says_all { None } else { ask()? };
        if said.as_ref().is_some_and(|api| api.server.is_empty()) && wanted.server.is_none() {
            let message = "the running agent serves no API: set enableServer, or specify --server";
            return Err(CliError::Answer(message.to_owned()));
        }
        let root_dir = wanted.root_dir.as_deref().unwrap_or(Path::new(DEFAULT_ROOT_DIR));
        let (server, cert_dir) = match said {
            Some(api) => (api.server, PathBuf::from(api.cert_dir)),
            None => ("https://127.0.0.1:10250".to_owned(), root_dir.join("pki")),
        };
        Ok(Self {
            server: wanted.server.clone().unwrap_or(server),
            cert_dir: wanted.cert_dir.clone().unwrap_or(cert_dir),
        })
    }
}

/// Asks the agent. `None`: it is not running, or its release does not report the API.
fn ask(socket: &Path) -> Result<Option<ApiReport>, CliError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    match runtime.block_on(client::fetch_report(socket, ObjectDetail::Counted)) {
        Ok(report) => Ok(Some(report.api).filter(|api| !api.cert_dir.is_empty())),
        Err(ClientError::NotRunning { .. }) => Ok(None),
        Err(error) => Err(CliError::Client(error)),
    }
}

fn make(
    wanted: &KubeconfigArgs,
    place: &ApiEndpoint,
    environment: &Environment<'_>,
) -> Result<String, CliError> {
    let node = node::hostname().unwrap_or_default().to_lowercase();
    let authority = Authority::existing(&place.cert_dir, &node)?;
    let pair = authority.client(&wanted.user, wanted.group, wanted.duration.to_std(), environment.now)?;
    Ok(file(&node, &place.server, &authority, &wanted.user, &pair))
}

/// The kubeconfig for `user` with the certificate `pair`; the cluster is this node alone.
pub(crate) fn file(node: &str, server: &str, authority: &Authority, user: &str, pair: &Pair) -> String {
    let data = |text: &str| base64::encode(text.as_bytes());
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": node,
            "cluster": { "server": server, "certificate-authority-data": data(authority.certificate()) },
        }],
        "users": [{
            "name": user,
            "user": {
                "client-certificate-data": data(&pair.certificate),
                "client-key-data": data(&pair.key),
            },
        }],
        "contexts": [{ "name": node, "context": { "cluster": node, "user": user } }],
        "current-context": node,
    });
    yaml::to_string(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_usage_is_named() {
        let said = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            parse(&words).map(drop).unwrap_err().to_string()
        };
        assert!(said("--duration soon").contains("--duration"));
        assert!(said("--duration -1h").contains("--duration"));
        assert!(said("--user system:masters").contains("--user"));
        assert!(said("--server http://box").contains("--server"));
        assert!(said("extra").contains("extra"));
    }
    #[test]
    fn the_place_is_what_is_given_then_what_the_agent_says() {
        let place = |line: &str, said: Option<(&str, &str)>| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let api =
                said.map(|(server, cert_dir)| ApiReport { server: server.into(), cert_dir: cert_dir.into() });
            let place =
                ApiEndpoint::of(&parse(&words).unwrap(), || Ok(api)).map_err(|error| error.to_string())?;
            Ok((place.server, place.cert_dir.display().to_string()))
        };
        let is = |server: &str, directory: &str| Ok::<_, String>((server.to_owned(), directory.to_owned()));
        let runs = Some(("https://127.0.0.1:9999", "/data/pki"));
        assert_eq!(place("", runs), is("https://127.0.0.1:9999", "/data/pki"));
        assert_eq!(place("--server https://box:1", runs), is("https://box:1", "/data/pki"));
        assert_eq!(place("--cert-dir /c", runs), is("https://127.0.0.1:9999", "/c"));
        assert_eq!(place("--root-dir /r", runs), is("https://127.0.0.1:10250", "/r/pki"));
        assert_eq!(place("", None), is("https://127.0.0.1:10250", "/var/lib/kubelet/pki"));
        assert!(place("", Some(("", "/data/pki"))).unwrap_err().contains("enableServer"));
        assert_eq!(place("--server https://box:1", Some(("", "/p"))), is("https://box:1", "/p"));
    }

    #[test]
    fn a_directory_without_an_authority_is_an_error_and_stays() {
        let directory = crate::platform::testing::TempDir::new();
        let error = Authority::existing(&directory.join("pki"), "box").err().unwrap().to_string();
        assert!(error.contains("agent-ca.crt") && error.contains("--cert-dir"), "{error}");
        assert!(!directory.join("pki").exists(), "nothing was made");
        Authority::open(&directory.join("pki"), "box").unwrap();
        Authority::existing(&directory.join("pki"), "box").unwrap();
    }
}
