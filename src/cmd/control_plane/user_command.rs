//! `agent kubeconfig user`: a kubeconfig for a user of the cluster, with a certificate of its authority or a token.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Paths;
use super::certs::sign::{Leaf, Signer, Terms};
use super::config::InitSettings;
use super::config::read::{Documents, settle};
use super::kubeconfigs::{certificate, document};
use super::phases::host;
use super::words::{CommandWords, Known, Small, YEAR};
use crate::cmd::cli::{Environment, yaml};
use crate::cmd::init::args::UsageError;
use crate::cmd::init::{InitError, InitSession};

const OPTIONS: [Known; 5] =
    [("client-name", true), ("org", true), ("token", true), ("validity-period", true), ("config", true)];

/// Runs the command, without its first word; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    Small { name: "kubeconfig user", help: "kubeconfig-user", options: &OPTIONS, run: command }
        .run(arguments, environment)
}

fn command(session: &mut InitSession<'_>, given: &CommandWords) -> Result<(), InitError> {
    let usage = |why: String| InitError::Usage(UsageError::Option(why));
    if let Some(word) = given.words.first() {
        return Err(InitError::Usage(UsageError::Unexpected(word.clone())));
    }
    let name = given.text("client-name").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| usage("required flag(s) \"client-name\" not set".to_owned()))?;
    let validity = given.validity()?.unwrap_or(YEAR);
    if given.has("token") {
        given.only("kubeconfig user --token", &["client-name", "token", "config"])?;
    }
    let (settings, warnings) = settings_of(given.text("config"))?;
    session.warn(&warnings);
    if validity > YEAR {
        session.print_error(&format!(
            "W WARNING: the specified certificate validity period {validity} is longer than the default duration {YEAR}, \
             this may increase security risks.\n"
        ));
    }
    let cluster = &settings.cluster;
    let read = |file: PathBuf| read(&file);
    let authority = read(cluster.cert("ca", "crt"))?;
    let credentials = if let Some(token) = given.text("token") {
        json!({ "token": token })
    } else {
        let file = cluster.cert("ca", "crt");
        let refused = |why: String| InitError::ControlPlane(format!("{}: {why}", file.display()));
        let signer = Signer::existing(&authority, Some(&read(cluster.cert("ca", "key"))?));
        let leaf = Leaf {
            common_name: name.to_owned(),
            organizations: given.list("org"),
            is_client: true,
            ..Leaf::default()
        };
        let terms = Terms { algorithm: &cluster.algorithm, validity, now: session.environment.now };
        certificate(&signer.and_then(|signer| signer.sign(&leaf, terms)).map_err(refused)?)
    };
    let server = cluster.server(&settings.endpoint);
    let made = document(&cluster.name, &server, name, &authority, &credentials);
    session.print(&yaml::to_string(&made))
}

fn read(file: &Path) -> Result<String, InitError> {
    let failed = |source| InitError::File {
        action: "couldn't create a kubeconfig; the CA files couldn't be loaded: open",
        path: file.to_owned(),
        source,
    };
    std::fs::read_to_string(file).map_err(failed)
}

/// What a file says, or the defaults, and warnings.
pub(super) fn settings_of(file: Option<&str>) -> Result<(InitSettings, Vec<String>), InitError> {
    let documents = match file {
        None => Documents::default(),
        Some(file) => {
            let failed = |source| InitError::File { action: "read", path: file.into(), source };
            let text = std::fs::read_to_string(file).map_err(failed)?;
            Documents::parse(&text).map_err(|why| InitError::ControlPlane(format!("{file}: {why}")))?
        }
    };
    settle(&documents, &host()?, &Paths::system()).map_err(InitError::ControlPlane)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::base64;
    use crate::codec::yaml::yaml_to_values;
    use crate::model::types::Timestamp;
    use crate::platform::testing::TempDir;
    use crate::platform::x509::{self, CERTIFICATE, pem_blocks};

    const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

    /// A cluster's directory, its configuration in `cluster.yaml`.
    fn cluster() -> TempDir {
        let directory = TempDir::new();
        let terms = Terms { algorithm: "ECDSA-P256", validity: YEAR, now: NOW };
        let (authority, key) = Signer::create("kubernetes", terms).unwrap();
        directory.put("ca.crt", &authority.certificate);
        directory.put("ca.key", &key);
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
             localAPIEndpoint: {{advertiseAddress: 192.0.2.7}}\n---\n\
             apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: edge\n\
             controlPlaneEndpoint: api.example.com\ncertificatesDir: {}\n",
            directory.path().display()
        );
        directory.put("cluster.yaml", &text);
        directory
    }

    fn made(directory: &TempDir, line: &str) -> Result<serde_json::Value, String> {
        let config = directory.join("cluster.yaml").display().to_string();
        let words = line.split_whitespace().map(str::to_owned).chain(["--config".to_owned(), config]);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let environment =
            Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
        let given =
            CommandWords::parse(&words.collect::<Vec<_>>(), &OPTIONS).map_err(|error| error.to_string())?;
        command(&mut InitSession { environment }, &given)
            .map_err(|error| crate::platform::logging::chain(&error))?;
        Ok(yaml_to_values(&String::from_utf8(out).unwrap(), true).unwrap().remove(0))
    }

    #[test]
    fn a_user_gets_a_certificate_of_the_cluster_or_a_token() {
        let directory = cluster();
        let conf = made(&directory, "--client-name foo --org a,b --validity-period 24h").unwrap();
        assert_eq!(conf["current-context"], "foo@edge");
        assert_eq!(conf["clusters"][0]["cluster"]["server"], "https://api.example.com:6443");
        let data = conf["users"][0]["user"]["client-certificate-data"].as_str().unwrap();
        let pem = String::from_utf8(base64::decode(data).unwrap()).unwrap();
        let der = pem_blocks(&pem, CERTIFICATE).remove(0);
        let subject = x509::subject(&der).unwrap();
        assert_eq!((subject.common_name.as_str(), subject.organizations.len()), ("foo", 2));
        assert_eq!(x509::not_after(&der).unwrap().saturating_since(NOW).as_secs(), 24 * 3600);
        directory.remove("ca.key");
        let conf = made(&directory, "--client-name foo --token abc").unwrap();
        assert_eq!(conf["users"][0]["user"], json!({"token": "abc"}));
        assert!(made(&directory, "--client-name foo").unwrap_err().contains("ca.key"));
    }

    #[test]
    fn bad_usage_is_named() {
        let directory = cluster();
        for (line, expected) in [
            ("", "required flag(s) \"client-name\" not set"),
            ("--client-name a b", "unexpected argument \"b\""),
            ("--client-name a --validity-period soon", "--validity-period \"soon\""),
            ("--client-name a --org a,b,c", "more than two organizations"),
            ("--user a", "--user"),
            ("--client-name a --token t --org b", "invalid option '--org' for \"kubeconfig user --token\""),
        ] {
            let why = made(&directory, line).unwrap_err();
            assert!(why.contains(expected), "{line}: {why}");
        }
    }
}
