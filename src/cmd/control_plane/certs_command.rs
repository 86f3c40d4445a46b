//! `agent certs`: when the certificates of a control plane end, and new ones for them. Words and names are kubeadm's.
//!
//! Owns the commands; the agent renews by the same function.

use std::path::PathBuf;

use super::certs::CERTS;
use super::expiry::{self, Found};
use super::output::Output;
use super::user_command::settings_of;
use super::words::{CommandWords, Known, Small, YEAR};
use super::{requests, upload};
use crate::agent::control_plane::renewal::{self, Directories, Place, RenewalError, Renewed, authority_name};
use crate::agent::control_plane::sign::Terms;
use crate::cmd::cli::Environment;
use crate::cmd::init::args::UsageError;
use crate::cmd::init::{InitError, InitSession};
use crate::codec::hex;
use crate::model::duration::GoDuration;
use crate::model::ordered::Sortable as _;
use crate::platform::logging::chain;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};

const DONE: &str = "
Done renewing certificates. You must restart the kube-apiserver, kube-controller-manager, kube-scheduler and etcd, so that \
they can use the new certificates.
";

/// Options that say where the certificates are.
const PLACES: [&str; 4] = ["cert-dir", "config", "kubeconfig-dir", "kubeconfig"];
const OPTIONS: [Known; 6] = [
    ("cert-dir", true),
    ("config", true),
    ("kubeconfig-dir", true),
    ("validity-period", true),
    ("output", true),
    // kubeadm's, without an effect here.
    ("kubeconfig", true),
];

/// Runs `agent certs`; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    Small { name: "certs", help: "certs", options: &OPTIONS, run: command }.run(arguments, environment)
}

/// Where the certificates are, and what new ones are like.
struct Plan {
    directories: Directories,
    validity: GoDuration,
    algorithm: String,
}

fn command(session: &mut InitSession<'_>, given: &CommandWords) -> Result<(), InitError> {
    let words: Vec<&str> = given.words.iter().map(String::as_str).collect();
    match words[..] {
        ["certificate-key"] => {
            given.only("certificate-key", &[])?;
            let key = upload::certificate_key().map_err(|error| InitError::ControlPlane(chain(&error)))?;
            session.print(&format!("{}\n", hex::encode(&key)))
        }
        ["check-expiration"] => {
            given.only("check-expiration", &[&PLACES[..], &["output"]].concat())?;
            let form = given.text("output").map_or(Ok(Output::Text), Output::parse)?;
            let (leaves, authorities) = found(&plan(session, given)?.directories)?;
            let now = session.environment.now;
            session.print(&expiry::report(&leaves, &authorities, form, now))
        }
        ["renew", name] => {
            given.only("renew", &[&PLACES[..], &["validity-period"]].concat())?;
            let plan = plan(session, given)?;
            renew(session, &plan, name)
        }
        ["generate-csr"] => {
            given.only("generate-csr", &PLACES[..3])?;
            let (mut settings, warnings) = settings_of(given.text("config"))?;
            session.warn(&warnings);
            if let Some(directory) = given.text("cert-dir") {
                settings.cluster.cert_dir = directory.into();
            }
            requests::generate(session, &settings, &confs(given))
        }
        _ => {
            let why =
                "subcommand is required: check-expiration, renew NAME|all, certificate-key or generate-csr"
                    .to_owned();
            Err(InitError::Usage(UsageError::Option(why)))
        }
    }
}

fn confs(given: &CommandWords) -> PathBuf {
    given.text("kubeconfig-dir").unwrap_or("/etc/kubernetes").into()
}

/// What the options say, then the file, then the defaults.
fn plan(session: &mut InitSession<'_>, given: &CommandWords) -> Result<Plan, InitError> {
    if given.has("kubeconfig") {
        session.warn(&["--kubeconfig has no effect: no API server is asked".to_owned()]);
    }
    let mut plan = Plan {
        directories: Directories { certs: "/etc/kubernetes/pki".into(), confs: confs(given) },
        validity: YEAR,
        algorithm: "ECDSA-P256".to_owned(),
    };
    if let Some(file) = given.text("config") {
        let (settings, warnings) = settings_of(Some(file))?;
        session.warn(&warnings);
        plan.directories.certs = settings.cluster.cert_dir;
        (plan.validity, plan.algorithm) = (settings.cluster.validity, settings.cluster.algorithm);
    }
    if let Some(directory) = given.text("cert-dir") {
        plan.directories.certs = directory.into();
    }
    if let Some(validity) = given.validity()? {
        plan.validity = validity;
    }
    Ok(plan)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: RenewalError) -> InitError {
    InitError::ControlPlane(chain(&error))
}

/// What is there: certificates, then authorities.
fn found(directories: &Directories) -> Result<(Vec<Found>, Vec<Found>), InitError> {
    let end = |pem: &str| pem_blocks(pem, CERTIFICATE).first().and_then(|der| x509::not_after(der));
    let is_external = |base: &str| {
        let has = |extension: &str| directories.certs.join(format!("{base}.{extension}")).exists();
        has("crt") && !has("key")
    };
    let mut leaves = Vec::new();
    for (name, place) in Place::all() {
        let expires = place.certificate(directories).map_err(failed)?.as_deref().and_then(end);
        let authority = authority_name(place.authority());
        leaves.push(Found { name, authority, expires, is_external: is_external(place.authority()) });
    }
    let mut authorities = Vec::new();
    for spec in CERTS.iter().filter(|spec| spec.signer.is_empty()) {
        let text = renewal::read(&directories.certs.join(format!("{}.crt", spec.base))).map_err(failed)?;
        authorities.push(Found {
            name: authority_name(spec.base),
            authority: String::new(),
            expires: text.as_deref().and_then(end),
            is_external: is_external(spec.base),
        });
    }
    authorities.order_by(|one, other| one.name.cmp(&other.name));
    Ok((leaves, authorities))
}

fn renew(session: &mut InitSession<'_>, plan: &Plan, wanted: &str) -> Result<(), InitError> {
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
            Terms { algorithm: &plan.algorithm, validity: plan.validity, now: session.environment.now };
        let line = match renewal::renew(entry, &plan.directories, terms).map_err(failed)? {
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
