//! `agent kubeconfig`: a certificate for a person, and the file that kubectl, curl and the like use it with.
//!
//! Owns the command and the file's shape. Must not know what the certificate will be used for. Works without the agent: it needs
//! the node's authority alone.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::args::{Common, Has, Own, UsageError, duration, text, value};
use super::{CliError, EXIT_OK, Environment, print, yaml};
use crate::api::base64;
use crate::config::GoDuration;
use crate::server::access::{MASTERS, VIEWERS};
use crate::server::pki::{Authority, Pair};
use crate::sys::node;

const HELP: &str = "\
Make a client certificate signed by this node's own authority, and print a kubeconfig with it.

Usage: agent kubeconfig [options] > FILE

Options:
      --user NAME           Name in the certificate (default \"admin\")
      --view                May look at pods, logs and metrics, and change nothing
      --server URL          Where the node is reached (default https://127.0.0.1:10250)
      --duration TIME       How long the certificate holds, such as 720h (default 8760h, a year)
      --cert-dir DIR        Where the node's certificates are (default /var/lib/kubelet/pki)
  -h, --help                This text

Whoever has the file is that user until the certificate ends: it cannot be taken back, other than with a new authority
(remove agent-ca.crt and agent-ca.key, and start the agent again).

Exit status: 0, 1 if the authority cannot be used, 2 for bad usage.
";

struct Wanted {
    common: Common,
    user: String,
    group: &'static str,
    server: String,
    duration: GoDuration,
    cert_dir: PathBuf,
}

fn parse(arguments: &[String]) -> Result<Wanted, UsageError> {
    let mut wanted = Wanted {
        common: Common::default(),
        user: "admin".to_owned(),
        group: MASTERS,
        server: "https://127.0.0.1:10250".to_owned(),
        duration: GoDuration::from_secs(365 * 24 * 3600),
        cert_dir: PathBuf::from("/var/lib/kubelet/pki"),
    };
    wanted.common = Common::parse(arguments, Has::Help, &mut |own, parser| {
        match own {
            Own::Option("--user") => wanted.user = text(value(parser)?),
            Own::Option("--view") => wanted.group = VIEWERS,
            Own::Option("--server") => wanted.server = text(value(parser)?),
            Own::Option("--cert-dir") => wanted.cert_dir = value(parser)?.into(),
            Own::Option("--duration") => wanted.duration = duration(parser, "--duration", "720h")?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let message = |message: &str| Err(UsageError::Option { message: message.to_owned() });
    if wanted.user.is_empty() || wanted.user.starts_with("system:") {
        return message("--user: a name is wanted that does not begin with system:");
    }
    if !wanted.server.starts_with("https://") {
        return message("--server: a URL that begins with https:// is wanted");
    }
    Ok(wanted)
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, HELP)?;
        return Ok(EXIT_OK);
    }
    let file = make(&wanted, &wanted.cert_dir, environment)?;
    print(environment, &file)?;
    Ok(EXIT_OK)
}

fn make(wanted: &Wanted, directory: &Path, environment: &Environment<'_>) -> Result<String, CliError> {
    let node = node::hostname().unwrap_or_default().to_lowercase();
    let authority = Authority::open(directory, &node)?;
    let pair = authority.client(&wanted.user, wanted.group, wanted.duration.to_std(), environment.now)?;
    Ok(file(&node, &wanted.server, &authority, &wanted.user, &pair))
}

/// The file, for `user` with the certificate `pair`, of the cluster that is this node alone.
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
}
