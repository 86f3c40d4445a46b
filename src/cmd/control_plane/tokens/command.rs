//! `agent token`: lists, creates and deletes bootstrap tokens. Words and forms are kubeadm's.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::super::api::{self, Api, ApiPhaseError};
use super::super::api_phases::{authorities_of, entry_of};
use super::super::join_command::Join;
use super::super::output::Output;
use super::super::words::{CommandWords, Known, Small};
use super::record::{self, Record};
use super::{random, split};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::Transport;
use crate::cluster::discovery::jws;
use crate::cmd::cli::Environment;
use crate::cmd::init::args::UsageError;
use crate::cmd::init::{InitError, InitSession};
use crate::model::duration::GoDuration;
use crate::model::types::Timestamp;
use crate::platform::logging::chain;
use crate::platform::rt;

/// For one command at a server that runs.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a token is valid.
const DAY: Duration = Duration::from_secs(24 * 3600);
const CREATE: [&str; 6] = ["certificate-key", "description", "groups", "print-join-command", "ttl", "usages"];
const OPTIONS: [Known; 10] = [
    ("kubeconfig", true),
    ("certificate-key", true),
    ("description", true),
    ("groups", true),
    ("print-join-command", false),
    ("ttl", true),
    ("usages", true),
    ("output", true),
    ("dry-run", false),
    // kubeadm's, without an effect here.
    ("show-managed-fields", false),
];

/// Runs `agent token`; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    Small { name: "token", help: "token", options: &OPTIONS, run: command }.run(arguments, environment)
}

fn command(session: &mut InitSession<'_>, given: &CommandWords) -> Result<(), InitError> {
    let failed = |error: ApiPhaseError| InitError::ControlPlane(chain(&error));
    let (verb, words) =
        given.words.split_first().map_or(("", &[][..]), |(verb, words)| (verb.as_str(), words));
    // Those of all subcommands, as with kubeadm.
    let only = |has: &[&str]| given.only(verb, &[has, &["kubeconfig", "dry-run"]].concat());
    match (verb, words) {
        ("generate", []) => {
            only(&[])?;
            return session.print(&format!("{}\n", random().map_err(failed)?));
        }
        ("create", [] | [_]) => only(&CREATE)?,
        ("list", []) => only(&["output", "show-managed-fields"])?,
        ("delete", [_, ..]) => only(&[])?,
        ("delete", []) => {
            let why = "missing argument; 'token delete' is missing token of form [\"^[a-z0-9]{6}$\"]";
            return Err(InitError::ControlPlane(why.to_owned()));
        }
        _ => {
            let why = "subcommand is required: create, list, delete or generate".to_owned();
            return Err(InitError::Usage(UsageError::Option(why)));
        }
    }
    let form = given.text("output").map_or(Ok(Output::Text), Output::parse)?;
    let now = session.environment.now;
    // Before the server is asked.
    let record = if verb == "create" { Some(new(given, words.first(), now)?) } else { None };
    let path = kubeconfig_of(given.text("kubeconfig"));
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let work = async {
        let client = if given.has("dry-run") {
            None
        } else {
            Some(api::client(api::transport(api::kubeconfig(&path, None)?)))
        };
        let api = Api::new(client, &say, Instant::now() + LIMIT);
        match (verb, &record) {
            (_, Some(record)) => create(&api, record).await,
            ("list", _) => show(&api, form, now).await,
            _ => delete(&api, words).await,
        }
    };
    let done = rt::run(async { Box::pin(work).await });
    let done = done.map_err(|error| InitError::ControlPlane(error.to_string()))?;
    // What was done before an error is said.
    session.print(&said.take())?;
    done.map_err(failed)?;
    let Some(record) = record else { return Ok(()) };
    if !given.has("print-join-command") {
        return session.print(&format!("{}\n", record.text()));
    }
    let entry = entry_of(&path).map_err(failed)?;
    let (authorities, token) = (authorities_of(&entry), record.text());
    let join = Join { server: &entry.server, authorities: &authorities, token: &token };
    session.print(&format!("{}\n", join.line("agent", given.text("certificate-key"))))
}

fn new(given: &CommandWords, token: Option<&String>, now: Timestamp) -> Result<Record, InitError> {
    let refused = InitError::ControlPlane;
    if given.has("certificate-key") && !given.has("print-join-command") {
        return Err(refused("cannot use --certificate-key without --print-join-command".to_owned()));
    }
    let token = match token {
        Some(token) => {
            jws::BootstrapToken::parse(token).map_err(refused)?;
            token.clone()
        }
        None => random().map_err(|error| refused(chain(&error)))?,
    };
    let list = |name: &str, default: &[&str]| {
        if given.has(name) {
            given.list(name)
        } else {
            default.iter().map(|item| (*item).to_owned()).collect()
        }
    };
    let ttl = given.duration("ttl", "24h")?.map_or(DAY, GoDuration::to_std);
    let record = Record {
        description: given.text("description").unwrap_or_default().to_owned(),
        expires: (!ttl.is_zero()).then(|| now.saturating_add(ttl)),
        usages: list("usages", &record::USAGES),
        groups: list("groups", &[record::GROUP]),
        ..split(&token)
    };
    record.check().map_err(refused)?;
    Ok(record)
}

async fn create<T: Transport>(api: &Api<'_, T>, record: &Record) -> Result<(), ApiPhaseError> {
    if api.create(&record.to_secret()).await? {
        return Ok(());
    }
    Err(ApiPhaseError::Broken(format!("a token with id {:?} already exists", record.id)))
}

async fn show<T: Transport>(api: &Api<'_, T>, form: Output, now: Timestamp) -> Result<(), ApiPhaseError> {
    let of = ResourcePath::namespaced("", "secrets", "kube-system", "");
    let secrets = api.list(&of, "type=bootstrap.kubernetes.io/token").await?;
    // Others are no tokens, whatever their type says: the token cleaner's business.
    let records: Vec<_> = secrets.iter().filter_map(|secret| Record::from_secret(secret).ok()).collect();
    if form == Output::Text {
        (api.say)(&record::table(&records, now));
    } else {
        let shown: Vec<_> = records.iter().map(Record::shown).collect();
        (api.say)(&form.documents(&shown));
    }
    Ok(())
}

async fn delete<T: Transport>(api: &Api<'_, T>, words: &[String]) -> Result<(), ApiPhaseError> {
    for word in words {
        let id = record::id_of(word).map_err(ApiPhaseError::Broken)?;
        let name = record::secret_name(&id);
        let of = ResourcePath::namespaced("", "secrets", "kube-system", &name);
        let there = api.get(&of).await?;
        let uid = there.as_ref().and_then(|secret| secret["metadata"]["uid"].as_str()).unwrap_or_default();
        let is_gone = !api.is_dry() && (there.is_none() || !api.delete(&of, uid).await?);
        if is_gone {
            return Err(ApiPhaseError::Broken(format!(
                "failed to delete bootstrap token {id:?}: secrets {name:?} not found"
            )));
        }
        (api.say)(&format!("bootstrap token {id:?} deleted\n"));
    }
    Ok(())
}

/// Where kubeadm looks, in this order: the flag, the variable, the home directory, the file of `init`.
fn kubeconfig_of(given: Option<&str>) -> PathBuf {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let set = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = given.map(PathBuf::from).or(set).or_else(|| home.filter(|path| path.exists()));
    found.unwrap_or_else(|| "/etc/kubernetes/admin.conf".into())
}

#[cfg(test)]
mod tests;
