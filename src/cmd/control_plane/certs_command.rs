//! `agent certs`: when the certificates of a control plane end, and new ones for them. Words and names are kubeadm's.
//!
//! Owns the commands; the agent renews by the same function.

use lexopt::Arg;

use super::certs::CERTS;
use super::expiry::{self, Found};
use super::output::Output;
use super::user_command::settings_of;
use super::{objects, requests, upload};
use crate::agent::control_plane::renewal::{self, Directories, Place, RenewalError, Renewed, authority_name};
use crate::agent::control_plane::sign::Terms;
use crate::cmd::cli::Environment;
use crate::cmd::init::args::{UsageError, text};
use crate::cmd::init::{InitError, InitSession, finish};
use crate::model::duration::GoDuration;
use crate::platform::logging::chain;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};

const HELP: &str = "\
Certificates of a control plane: when they end, and new ones.

Usage: agent certs check-expiration [options]
       agent certs renew NAME|all [options]
       agent certs certificate-key
       agent certs generate-csr [options]

Options:
      --cert-dir DIR           Directory of certificates (default /etc/kubernetes/pki)
      --config FILE            Of generate-csr: ClusterConfiguration and InitConfiguration
      --kubeconfig-dir DIR     Directory of kubeconfigs (default /etc/kubernetes)
      --validity-period TIME   How long new certificates are valid (default 8760h, a year)
  -o, --output FORMAT          Of check-expiration: text, json or yaml
  -h, --help                   Show this help

Names are those that check-expiration lists. A certificate keeps its names, addresses and groups. Restart kube-apiserver,
kube-controller-manager, kube-scheduler and etcd after a renewal, so that they use the new certificates; where the agent is
the kubelet, it restarts within a day those that need it. generate-csr writes keys and requests for an authority elsewhere.

Exit status: 0 on success, 1 on failure, 2 for bad usage.
";
const DONE: &str = "
Done renewing certificates. You must restart the kube-apiserver, kube-controller-manager, kube-scheduler and etcd, so that \
they can use the new certificates.
";

struct CertsOptions {
    words: Vec<String>,
    directories: Directories,
    /// `--cert-dir` is given.
    has_cert_dir: bool,
    config: Option<String>,
    validity: GoDuration,
    form: Output,
    help: bool,
}

fn parse(arguments: &[String]) -> Result<CertsOptions, UsageError> {
    let mut options = CertsOptions {
        words: Vec::new(),
        directories: Directories { certs: "/etc/kubernetes/pki".into(), confs: "/etc/kubernetes".into() },
        has_cert_dir: false,
        config: None,
        validity: GoDuration::from_secs(365 * 24 * 3600),
        form: Output::Text,
        help: false,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    let wrong = |message: String| Err(UsageError::Option(message));
    while let Some(argument) = parser.next().map_err(|error| UsageError::Option(error.to_string()))? {
        match argument {
            Arg::Long("cert-dir") => {
                options.directories.certs = text(&mut parser)?.into();
                options.has_cert_dir = true;
            }
            Arg::Long("config") => options.config = Some(text(&mut parser)?),
            Arg::Long("kubeconfig-dir") => options.directories.confs = text(&mut parser)?.into(),
            Arg::Long("validity-period") => {
                let given = text(&mut parser)?;
                let time =
                    GoDuration::parse(&given).ok().filter(|time| !time.is_negative() && !time.is_zero());
                let Some(time) = time else {
                    return wrong(format!("--validity-period {given:?}: must be a duration such as 8760h"));
                };
                options.validity = time;
            }
            Arg::Short('o') | Arg::Long("output") => {
                options.form = Output::parse(&text(&mut parser)?)?;
            }
            Arg::Short('h') | Arg::Long("help") => options.help = true,
            Arg::Value(word) => options.words.push(word.to_string_lossy().into_owned()),
            other => return Err(UsageError::Option(other.unexpected().to_string())),
        }
    }
    Ok(options)
}

/// Runs `agent certs`; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    let result =
        parse(arguments).map_err(InitError::from).and_then(|options| command(&mut session, &options));
    finish(&mut session, "certs", result)
}

fn command(session: &mut InitSession<'_>, options: &CertsOptions) -> Result<(), InitError> {
    if options.help {
        return session.print(HELP);
    }
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    match words[..] {
        ["certificate-key"] => {
            let key = upload::certificate_key().map_err(|error| InitError::ControlPlane(chain(&error)))?;
            session.print(&format!("{}\n", objects::hex(&key)))
        }
        ["check-expiration"] => {
            let (leaves, authorities) = found(options)?;
            let now = session.environment.now;
            session.print(&expiry::report(&leaves, &authorities, options.form, now))
        }
        ["renew", name] => renew(session, options, name),
        ["generate-csr"] => {
            let (mut settings, warnings) = settings_of(options.config.as_deref())?;
            for warning in warnings {
                session.print_error(&["W ", &warning, "\n"].concat());
            }
            if options.has_cert_dir {
                settings.cluster.cert_dir.clone_from(&options.directories.certs);
            }
            requests::generate(session, &settings, &options.directories.confs)
        }
        _ => {
            let why =
                "subcommand is required: check-expiration, renew NAME|all, certificate-key or generate-csr"
                    .to_owned();
            Err(InitError::Usage(UsageError::Option(why)))
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: RenewalError) -> InitError {
    InitError::ControlPlane(chain(&error))
}

/// What is there: certificates, then authorities.
fn found(options: &CertsOptions) -> Result<(Vec<Found>, Vec<Found>), InitError> {
    let end = |pem: &str| pem_blocks(pem, CERTIFICATE).first().and_then(|der| x509::not_after(der));
    let is_external = |base: &str| {
        let has = |extension: &str| options.directories.certs.join(format!("{base}.{extension}")).exists();
        has("crt") && !has("key")
    };
    let mut leaves = Vec::new();
    for (name, place) in Place::all() {
        let expires = place.certificate(&options.directories).map_err(failed)?.as_deref().and_then(end);
        let authority = authority_name(place.authority());
        leaves.push(Found { name, authority, expires, is_external: is_external(place.authority()) });
    }
    let mut authorities = Vec::new();
    for spec in CERTS.iter().filter(|spec| spec.signer.is_empty()) {
        let text =
            renewal::read(&options.directories.certs.join(format!("{}.crt", spec.base))).map_err(failed)?;
        authorities.push(Found {
            name: authority_name(spec.base),
            authority: String::new(),
            expires: text.as_deref().and_then(end),
            is_external: is_external(spec.base),
        });
    }
    authorities.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((leaves, authorities))
}

fn renew(session: &mut InitSession<'_>, options: &CertsOptions, wanted: &str) -> Result<(), InitError> {
    let all = Place::all();
    let chosen: Vec<_> = all.iter().filter(|(name, _)| wanted == "all" || wanted == name).collect();
    if chosen.is_empty() {
        let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        let why = format!("unknown certificate {wanted:?}: use all, or one of {}", names.join(", "));
        return Err(InitError::Usage(UsageError::Option(why)));
    }
    for entry in chosen {
        let name = &entry.0;
        let long = expiry::long_name(name);
        let terms =
            Terms { algorithm: "ECDSA-P256", validity: options.validity, now: session.environment.now };
        let line = match renewal::renew(entry, &options.directories, terms).map_err(failed)? {
            Renewed::Done => format!("{long} renewed\n"),
            Renewed::Missing => format!("MISSING! {long}\n"),
            Renewed::External => {
                let authority = authority_name(entry.1.authority());
                format!("Detected external {authority}, {long} can't be renewed\n")
            }
        };
        session.print(&line)?;
    }
    if wanted == "all" { session.print(DONE) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
