//! Arguments of `agent join`, with kubeadm's names and messages.

use std::time::Duration;

use lexopt::Arg;

use super::super::args::{UsageError, text};
use super::super::preflight::Ignored;
use crate::cluster::discovery::jws::{BootstrapToken, CaPin, parse_pin};
use crate::cmd::help;

pub(in crate::cmd::init) fn help() -> String {
    help::text("join")
}

/// Without `Debug`: it contains the token.
#[derive(Clone, Default)]
pub(in crate::cmd) struct JoinOptions {
    /// `host:port`.
    pub(in crate::cmd) endpoint: Option<String>,
    pub(in crate::cmd) token: Option<BootstrapToken>,
    /// For the request of the certificate, if that is another one.
    pub(in crate::cmd) tls_token: Option<BootstrapToken>,
    pub(in crate::cmd) pins: Vec<CaPin>,
    pub(in crate::cmd) skips_pins: bool,
    pub(in crate::cmd) file: Option<String>,
    pub(in crate::cmd) node_name: Option<String>,
    pub(in crate::cmd) is_metered: bool,
    pub(in crate::cmd) ignored: Ignored,
    pub(in crate::cmd) dry_run: bool,
    /// `timeouts.discovery`, if it is not kubeadm's.
    pub(in crate::cmd) limit: Option<Duration>,
    pub(in crate::cmd) help: bool,
}

impl JoinOptions {
    pub(super) fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let mut options = Self::default();
        let mut parser = lexopt::Parser::from_args(arguments);
        let bad = |error: lexopt::Error| UsageError::Option(error.to_string());
        while let Some(argument) = parser.next().map_err(bad)? {
            match argument {
                Arg::Long("token") => {
                    let token = BootstrapToken::parse(&text(&mut parser)?);
                    options.token = Some(token.map_err(|why| UsageError::Option(format!("--token: {why}")))?);
                }
                Arg::Long("discovery-token-ca-cert-hash") => {
                    for hash in text(&mut parser)?.split(',') {
                        let wrong =
                            |why| UsageError::Option(format!("--discovery-token-ca-cert-hash: {why}"));
                        options.pins.push(parse_pin(hash.trim()).map_err(wrong)?);
                    }
                }
                Arg::Long("discovery-token-unsafe-skip-ca-verification") => options.skips_pins = true,
                Arg::Long("discovery-file") => options.file = Some(text(&mut parser)?),
                Arg::Long("node-name") => options.node_name = Some(text(&mut parser)?.trim().to_lowercase()),
                Arg::Long("ignore-preflight-errors") => {
                    options.ignored.add(&text(&mut parser)?).map_err(UsageError::Option)?;
                }
                Arg::Long("link-profile") => match text(&mut parser)?.as_str() {
                    "metered" => options.is_metered = true,
                    other => {
                        return Err(UsageError::Option(format!(
                            "--link-profile {other:?}: must be \"metered\""
                        )));
                    }
                },
                Arg::Long("dry-run") => options.dry_run = true,
                Arg::Short('h') | Arg::Long("help") => options.help = true,
                Arg::Value(word) if options.endpoint.is_none() => {
                    options.endpoint = Some(word.to_string_lossy().into_owned());
                }
                other => return Err(UsageError::Option(other.unexpected().to_string())),
            }
        }
        if options.help { Ok(options) } else { options.checked() }
    }

    pub(in crate::cmd) fn checked(self) -> Result<Self, UsageError> {
        let wrong = |message: &str| Err(UsageError::Option(message.to_owned()));
        if let Some(endpoint) = &self.endpoint {
            let port = endpoint.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none() || endpoint.contains('/') {
                return wrong("the API server must be given as HOST:PORT");
            }
        }
        match (&self.endpoint, &self.file) {
            (None, None) => wrong("give the API server as HOST:PORT, or a kubeconfig with --discovery-file"),
            (Some(_), Some(_)) => {
                wrong("bootstrapToken and file cannot both be set: give HOST:PORT or --discovery-file")
            }
            (Some(_), None) if self.token.is_none() => {
                wrong("--token is required: \"kubeadm token create\" makes one")
            }
            (Some(_), None) if self.pins.is_empty() && !self.skips_pins => wrong(
                "using token-based discovery without --discovery-token-ca-cert-hash can be unsafe: pass \
                 --discovery-token-unsafe-skip-ca-verification to continue",
            ),
            (None, Some(file)) if file.starts_with("http://") => {
                wrong("--discovery-file: only https URLs are allowed: the file says which server to trust")
            }
            _ => Ok(self),
        }
    }
}
