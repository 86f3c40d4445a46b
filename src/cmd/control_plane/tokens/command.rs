//! `agent token`: lists, creates and deletes bootstrap tokens. Words and forms are kubeadm's.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::Arg;
use tokio::time::Instant;

use super::super::api::{self, Api, ApiPhaseError};
use super::super::api_phases::{authorities_of, entry_of};
use super::super::join_command::Join;
use super::super::output::Output;
use super::record::{self, Record};
use super::{random, split};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::Transport;
use crate::cluster::discovery::jws;
use crate::cmd::cli::Environment;
use crate::cmd::init::args::{UsageError, text};
use crate::cmd::init::{InitError, InitSession, finish};
use crate::model::duration::GoDuration;
use crate::model::types::Timestamp;
use crate::platform::logging::chain;
use crate::platform::rt;

const HELP: &str = "\
Manage bootstrap tokens, with which machines join a cluster.

Usage: agent token create [TOKEN] [options]
       agent token list [options]
       agent token delete TOKEN-OR-ID...
       agent token generate

Options:
      --kubeconfig FILE        kubeconfig of an administrator (default: $KUBECONFIG, ~/.kube/config, else
                               /etc/kubernetes/admin.conf)
      --certificate-key KEY    With --print-join-command: the command of a control-plane node
      --description TEXT       What the token is for
      --groups LIST            Groups of who authenticates with it
      --print-join-command     Print the command that joins a machine, instead of the token
      --ttl TIME               How long it is valid; 0: for ever (default 24h)
      --usages LIST            What it may be used for (default signing,authentication)
  -o, --output FORMAT          Of list: text, json or yaml
      --dry-run                Print what would be done, without changing anything
  -h, --help                   Show this help

Exit status: 0 on success, 1 on failure, 2 for bad usage.
";
/// For one command at a server that runs.
const LIMIT: Duration = Duration::from_secs(60);

struct TokenOptions {
    words: Vec<String>,
    kubeconfig: Option<PathBuf>,
    key: Option<String>,
    description: String,
    groups: Vec<String>,
    usages: Vec<String>,
    ttl: Duration,
    prints_command: bool,
    form: Output,
    dry_run: bool,
    help: bool,
}

fn list(text: &str) -> Vec<String> {
    text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn parse(arguments: &[String]) -> Result<TokenOptions, UsageError> {
    let mut options = TokenOptions {
        words: Vec::new(),
        kubeconfig: None,
        key: None,
        description: String::new(),
        groups: vec![record::GROUP.to_owned()],
        usages: record::USAGES.map(str::to_owned).to_vec(),
        ttl: Duration::from_secs(24 * 3600),
        prints_command: false,
        form: Output::Text,
        dry_run: false,
        help: false,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(|error| UsageError::Option(error.to_string()))? {
        match argument {
            Arg::Long("kubeconfig") => options.kubeconfig = Some(text(&mut parser)?.into()),
            Arg::Long("certificate-key") => options.key = Some(text(&mut parser)?),
            Arg::Long("description") => options.description = text(&mut parser)?,
            Arg::Long("groups") => options.groups = list(&text(&mut parser)?),
            Arg::Long("usages") => options.usages = list(&text(&mut parser)?),
            Arg::Long("ttl") => {
                let given = text(&mut parser)?;
                let parsed = GoDuration::parse(&given).ok().filter(|time| !time.is_negative());
                let wrong = || UsageError::Option(format!("--ttl {given:?}: must be a duration such as 24h"));
                options.ttl = parsed.ok_or_else(wrong)?.to_std();
            }
            Arg::Long("print-join-command") => options.prints_command = true,
            Arg::Long("dry-run") => options.dry_run = true,
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

/// Runs `agent token`; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    let result =
        parse(arguments).map_err(InitError::from).and_then(|options| command(&mut session, &options));
    finish(&mut session, "token", result)
}

fn command(session: &mut InitSession<'_>, options: &TokenOptions) -> Result<(), InitError> {
    let failed = |error: ApiPhaseError| InitError::ControlPlane(chain(&error));
    if options.help {
        return session.print(HELP);
    }
    let (verb, words) =
        options.words.split_first().map_or(("", &[][..]), |(verb, words)| (verb.as_str(), words));
    match (verb, words) {
        ("generate", []) => return session.print(&format!("{}\n", random().map_err(failed)?)),
        ("create", [] | [_]) | ("list", []) | ("delete", [_, ..]) => {}
        ("delete", []) => {
            let why = "missing argument; 'token delete' is missing token of form [\"^[a-z0-9]{6}$\"]";
            return Err(InitError::ControlPlane(why.to_owned()));
        }
        _ => {
            let why = "subcommand is required: create, list, delete or generate".to_owned();
            return Err(InitError::Usage(UsageError::Option(why)));
        }
    }
    let now = session.environment.now;
    // Before the server is asked.
    let record = if verb == "create" { Some(new(options, words.first(), now)?) } else { None };
    let path = kubeconfig_of(options.kubeconfig.as_deref());
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let work = async {
        let client = if options.dry_run {
            None
        } else {
            Some(api::client(api::transport(api::kubeconfig(&path, None)?)))
        };
        let api = Api::new(client, &say, Instant::now() + LIMIT);
        match (verb, &record) {
            (_, Some(record)) => create(&api, record).await,
            ("list", _) => show(&api, options.form, now).await,
            _ => delete(&api, words).await,
        }
    };
    let done = rt::run(async { Box::pin(work).await });
    let done = done.map_err(|error| InitError::ControlPlane(error.to_string()))?;
    // What was done before an error is said.
    session.print(&said.take())?;
    done.map_err(failed)?;
    let Some(record) = record else { return Ok(()) };
    if !options.prints_command {
        return session.print(&format!("{}\n", record.text()));
    }
    let entry = entry_of(&path).map_err(failed)?;
    let (authorities, token) = (authorities_of(&entry), record.text());
    let join = Join { server: &entry.server, authorities: &authorities, token: &token };
    // Further control-plane nodes are kubeadm's.
    let program = if options.key.is_some() { "kubeadm" } else { "agent" };
    session.print(&format!("{}\n", join.line(program, options.key.as_deref())))
}

fn new(options: &TokenOptions, given: Option<&String>, now: Timestamp) -> Result<Record, InitError> {
    let refused = InitError::ControlPlane;
    if options.key.is_some() && !options.prints_command {
        return Err(refused("cannot use --certificate-key without --print-join-command".to_owned()));
    }
    let token = match given {
        Some(given) => {
            jws::BootstrapToken::parse(given).map_err(refused)?;
            given.clone()
        }
        None => random().map_err(|error| refused(chain(&error)))?,
    };
    let record = Record {
        description: options.description.clone(),
        expires: (!options.ttl.is_zero()).then(|| now.saturating_add(options.ttl)),
        usages: options.usages.clone(),
        groups: options.groups.clone(),
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

/// kubeadm's search.
fn kubeconfig_of(given: Option<&Path>) -> PathBuf {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let set = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = given.map(Path::to_owned).or(set).or_else(|| home.filter(|path| path.exists()));
    found.unwrap_or_else(|| "/etc/kubernetes/admin.conf".into())
}

#[cfg(test)]
mod tests;
