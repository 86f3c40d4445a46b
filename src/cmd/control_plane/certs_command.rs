//! `agent certs`: when the certificates of a control plane end, and new ones for them. Words and names are kubeadm's.
//!
//! Owns the replacement of certificates: names, addresses and groups are those of the certificate before, so that neither a
//! configuration nor a running API server is needed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lexopt::Arg;
use serde_json::Value;

use super::certs::sign::{Leaf, Signer, Terms};
use super::certs::{CERTS, CertSpec};
use super::expiry::{self, Found};
use super::kubeconfigs::{CONFS, ConfSpec, certificate};
use super::output::Output;
use super::{objects, upload};
use crate::cmd::cli::{Environment, yaml};
use crate::cmd::init::args::{UsageError, text};
use crate::cmd::init::install::File;
use crate::cmd::init::{InitError, InitSession, finish, write};
use crate::codec::base64;
use crate::codec::yaml::yaml_to_values;
use crate::model::duration::GoDuration;
use crate::platform::logging::chain;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};
use crate::serve::server::pki::Pair;

const HELP: &str = "\
Certificates of a control plane: when they end, and new ones.

Usage: agent certs check-expiration [options]
       agent certs renew NAME|all [options]
       agent certs certificate-key

Options:
      --cert-dir DIR           Directory of certificates (default /etc/kubernetes/pki)
      --kubeconfig-dir DIR     Directory of kubeconfigs (default /etc/kubernetes)
      --validity-period TIME   How long new certificates are valid (default 8760h, a year)
  -o, --output FORMAT          Of check-expiration: text, json or yaml
  -h, --help                   Show this help

Names are those that check-expiration lists. A certificate keeps its names, addresses and groups. Restart kube-apiserver,
kube-controller-manager, kube-scheduler and etcd after a renewal, so that they use the new certificates.

Exit status: 0 on success, 1 on failure, 2 for bad usage.
";
const DONE: &str = "
Done renewing certificates. You must restart the kube-apiserver, kube-controller-manager, kube-scheduler and etcd, so that \
they can use the new certificates.
";

struct CertsOptions {
    words: Vec<String>,
    cert_dir: PathBuf,
    conf_dir: PathBuf,
    validity: GoDuration,
    form: Output,
    help: bool,
}

fn parse(arguments: &[String]) -> Result<CertsOptions, UsageError> {
    let mut options = CertsOptions {
        words: Vec::new(),
        cert_dir: "/etc/kubernetes/pki".into(),
        conf_dir: "/etc/kubernetes".into(),
        validity: GoDuration::from_secs(365 * 24 * 3600),
        form: Output::Text,
        help: false,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    let wrong = |message: String| Err(UsageError::Option(message));
    while let Some(argument) = parser.next().map_err(|error| UsageError::Option(error.to_string()))? {
        match argument {
            Arg::Long("cert-dir") => options.cert_dir = text(&mut parser)?.into(),
            Arg::Long("kubeconfig-dir") => options.conf_dir = text(&mut parser)?.into(),
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
        _ => {
            let why =
                "subcommand is required: check-expiration, renew NAME|all or certificate-key".to_owned();
            Err(InitError::Usage(UsageError::Option(why)))
        }
    }
}

/// A certificate that can be renewed.
enum Place {
    File(&'static CertSpec),
    Conf(&'static ConfSpec),
}

impl Place {
    /// All, by their names.
    fn all() -> Vec<(String, Self)> {
        let leaves = CERTS.iter().filter(|spec| !spec.signer.is_empty());
        let mut all: Vec<_> = leaves.map(|spec| (spec.phase.to_owned(), Self::File(spec))).collect();
        // The kubelet renews its own.
        let confs = CONFS.iter().filter(|spec| spec.phase != "kubelet");
        all.extend(confs.map(|spec| (spec.file(), Self::Conf(spec))));
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    fn authority(&self) -> &'static str {
        match self {
            Self::File(spec) => spec.signer,
            Self::Conf(_) => "ca",
        }
    }

    fn path(&self, options: &CertsOptions) -> PathBuf {
        match self {
            Self::File(spec) => options.cert_dir.join(format!("{}.crt", spec.base)),
            Self::Conf(spec) => options.conf_dir.join(spec.file()),
        }
    }

    /// The certificate (PEM); `None`: there is none.
    fn certificate(&self, options: &CertsOptions) -> Result<Option<String>, InitError> {
        let path = self.path(options);
        let Some(text) = read(&path)? else { return Ok(None) };
        match self {
            Self::File(_) => Ok(Some(text)),
            Self::Conf(_) => {
                let value = conf(&path, &text)?;
                let data =
                    value["users"][0]["user"]["client-certificate-data"].as_str().and_then(base64::decode);
                Ok(data.and_then(|data| String::from_utf8(data).ok()))
            }
        }
    }

    fn store(&self, options: &CertsOptions, pair: &Pair) -> Result<(), InitError> {
        let path = self.path(options);
        match self {
            Self::File(_) => {
                write(&File { path: path.with_extension("key"), mode: 0o600, content: pair.key.clone() })?;
                write(&File { path, mode: 0o644, content: pair.certificate.clone() })
            }
            Self::Conf(_) => {
                let text = read(&path)?.unwrap_or_default();
                let mut value = conf(&path, &text)?;
                value["users"][0]["user"] = certificate(pair);
                write(&File { path, mode: 0o600, content: yaml::to_string(&value) })
            }
        }
    }
}

fn conf(path: &Path, text: &str) -> Result<Value, InitError> {
    let failed = |error| InitError::ControlPlane(format!("{}: {error}", path.display()));
    Ok(yaml_to_values(text, false).map_err(failed)?.into_iter().next().unwrap_or_default())
}

fn read(path: &Path) -> Result<Option<String>, InitError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InitError::File { action: "read", path: path.to_owned(), source }),
    }
}

/// `etcd/ca`, in the words of the table.
fn authority_name(base: &str) -> String {
    base.replace('/', "-")
}

/// What is there: certificates, then authorities.
fn found(options: &CertsOptions) -> Result<(Vec<Found>, Vec<Found>), InitError> {
    let end = |pem: &str| pem_blocks(pem, CERTIFICATE).first().and_then(|der| x509::not_after(der));
    let is_external = |base: &str| {
        let has = |extension: &str| options.cert_dir.join(format!("{base}.{extension}")).exists();
        has("crt") && !has("key")
    };
    let mut leaves = Vec::new();
    for (name, place) in Place::all() {
        let expires = place.certificate(options)?.as_deref().and_then(end);
        let authority = authority_name(place.authority());
        leaves.push(Found { name, authority, expires, is_external: is_external(place.authority()) });
    }
    let mut authorities = Vec::new();
    for spec in CERTS.iter().filter(|spec| spec.signer.is_empty()) {
        let text = read(&options.cert_dir.join(format!("{}.crt", spec.base)))?;
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
    for (name, place) in chosen {
        let long = expiry::long_name(name);
        let Some(old) = place.certificate(options)? else {
            session.print(&format!("MISSING! {long}\n"))?;
            continue;
        };
        let base = place.authority();
        let file = |extension: &str| options.cert_dir.join(format!("{base}.{extension}"));
        let Some(authority) = read(&file("crt"))? else {
            let why = format!("the certificate authority {} is not there", file("crt").display());
            return Err(InitError::ControlPlane(why));
        };
        let Some(key) = read(&file("key"))? else {
            let authority = authority_name(base);
            session.print(&format!("Detected external {authority}, {long} can't be renewed\n"))?;
            continue;
        };
        let refused =
            |why: String| InitError::ControlPlane(format!("failed to renew certificate {name}: {why}"));
        let signer = Signer::existing(&authority, Some(&key)).map_err(refused)?;
        let terms =
            Terms { algorithm: "ECDSA-P256", validity: options.validity, now: session.environment.now };
        let leaf = leaf(&old, place).ok_or_else(|| refused("it is no certificate".to_owned()))?;
        let pair = signer.sign(&leaf, terms).map_err(refused)?;
        place.store(options, &pair)?;
        session.print(&format!("{long} renewed\n"))?;
    }
    if wanted == "all" { session.print(DONE) } else { Ok(()) }
}

/// What the certificate before is for.
fn leaf(old: &str, place: &Place) -> Option<Leaf> {
    let der = pem_blocks(old, CERTIFICATE).into_iter().next()?;
    let subject = x509::subject(&der)?;
    let (names, addresses) = x509::alternative_names(&der);
    let (is_server, is_client) = match place {
        Place::File(spec) => (spec.is_server, spec.is_client),
        Place::Conf(_) => (false, true),
    };
    let (common_name, organizations) = (subject.common_name, subject.organizations);
    Some(Leaf { common_name, organizations, is_server, is_client, names, addresses })
}

#[cfg(test)]
mod tests;
