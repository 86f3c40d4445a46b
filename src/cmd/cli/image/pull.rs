//! `agent image pull`: the agent's own pull as a command. It shares layers, locks and leftovers with the
//! agent, whether the agent runs or not.
//!
//! Owns the options and the output.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use super::progress::PullProgress;
use super::{ImageCommandError, ImageOptions};
use crate::cmd::cli::args::{OutputFormat, UsageError, text, value};
use crate::cmd::cli::{CliError, EXIT_FAILED, EXIT_OK, Environment, print, to_json, to_yaml};
use crate::platform::logging::chain;
use crate::platform::rt::{self, shutdown};
use crate::platform::sys::streams::terminal_size;
use crate::pod::image::node_logins;
use crate::runtime::ImageAuth;
use crate::runtime::embedded::images::ImageStore;
use crate::runtime::embedded::images::platform::Platform;
use crate::runtime::embedded::registry::{
    DEFAULT_HOSTS_DIRS, Progress, PullError, PullErrorKind, PullRequest, Pulled, policy_file, pull_until,
};
use crate::runtime::embedded::runtime::OWN_PROGRAM;

/// The options of a pull only.
pub(super) const OPTIONS: &[&str] =
    &["creds", "creds-file", "platform", "registry-hosts-dir", "image-policy"];
/// The longest user name and password, in bytes.
const MAX_CREDENTIALS: u64 = 64 * 1024;
/// The assumed width of a terminal that does not report one.
const COLUMNS: usize = 80;

#[derive(Clone, Default)]
pub(super) struct PullOptions {
    creds: Option<String>,
    creds_file: Option<PathBuf>,
    platform: String,
    hosts_dirs: Option<String>,
    policy: Option<PathBuf>,
    /// The first of them, for the error in other commands.
    given: Option<String>,
}

impl PullOptions {
    /// Parses the value of one of [`OPTIONS`].
    pub(super) fn set(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), UsageError> {
        let given = value(parser)?;
        match name {
            "creds" => self.creds = Some(text(given)),
            "creds-file" => self.creds_file = Some(given.into()),
            "platform" => {
                self.platform = text(given);
                // Checked before anything is started.
                if let Err(problem) = self.platform.parse::<Platform>() {
                    let message = format!("--platform: {problem}");
                    return Err(UsageError::Option { message });
                }
            }
            "image-policy" => self.policy = Some(given.into()),
            _ => self.hosts_dirs = Some(text(given)),
        }
        self.given.get_or_insert_with(|| name.to_owned());
        Ok(())
    }

    /// Refuses an option of a pull that was given to another command.
    pub(super) fn check_unused(&self) -> Result<(), UsageError> {
        match &self.given {
            Some(name) => {
                let message = format!("--{name} is only an option of agent image pull");
                Err(UsageError::Option { message })
            }
            None => Ok(()),
        }
    }
}

pub(super) fn run(options: &ImageOptions, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let given = credentials(&options.pull)?;
    let mut code = EXIT_OK;
    let mut documents = Vec::new();
    for image in &options.words {
        match pull(options, image, given.as_ref(), environment)? {
            Ok(pulled) => match options.output {
                OutputFormat::Json | OutputFormat::Yaml => documents.push(json!({
                    "image": pulled.reference, "id": pulled.image_id, "repoDigest": pulled.repo_digest,
                })),
                _ if options.quiet => print(environment, &format!("{}\n", pulled.image_id))?,
                _ => print(environment, &format!("Pulled {}\n", pulled.reference))?,
            },
            Err(error) => {
                // The write may fail: standard error may be closed, too.
                let _ = writeln!(environment.err, "error: {}", chain(&error));
                code = EXIT_FAILED;
                if matches!(error, PullError::Interrupted) {
                    break;
                }
            }
        }
    }
    match options.output {
        OutputFormat::Json => print(environment, &to_json(&json!({"images": documents}))?)?,
        OutputFormat::Yaml => print(environment, &to_yaml(&json!({"images": documents}))?)?,
        _ => {}
    }
    Ok(code)
}

/// Pulls one image, with each of the credentials until one is accepted.
fn pull(
    options: &ImageOptions,
    image: &str,
    given: Option<&ImageAuth>,
    environment: &mut Environment<'_>,
) -> Result<Result<Pulled, PullError>, CliError> {
    let known = given.map_or_else(|| node_logins(&options.root_dir, image), |auth| vec![auth.clone()]);
    let mut auths: Vec<Option<ImageAuth>> = known.into_iter().map(Some).collect();
    if auths.is_empty() {
        auths.push(None);
    }
    let store = options.open()?;
    let hosts_dirs = options.pull.hosts_dirs.as_deref().unwrap_or(DEFAULT_HOSTS_DIRS);
    let mut request = PullRequest {
        image: image.to_owned(),
        platform: options.pull.platform.clone(),
        hosts_dirs: std::env::split_paths(hosts_dirs).filter(|path| path.is_absolute()).collect(),
        store: store.root().to_owned(),
        policy: policy_file(options.pull.policy.as_deref()),
        ..PullRequest::default()
    };
    let mut last = Err(PullError::Interrupted);
    for auth in auths {
        request.auth = auth;
        last = pull_once(options, &request, environment)?;
        let denied = matches!(&last, Err(error) if error.kind() == PullErrorKind::Denied);
        if !denied {
            break;
        }
    }
    if matches!(last, Err(PullError::Interrupted)) {
        // The child is dead: its partial downloads have no owner, and opening the store removes them.
        drop(ImageStore::open(&request.store));
    }
    Ok(last)
}

fn pull_once(
    options: &ImageOptions,
    request: &PullRequest,
    environment: &mut Environment<'_>,
) -> Result<Result<Pulled, PullError>, CliError> {
    let is_silent = options.quiet || matches!(options.output, OutputFormat::Json | OutputFormat::Yaml);
    let draws = environment.terminal && !is_silent;
    let mut view = PullProgress::default();
    let began = Instant::now();
    let mut warnings = String::new();
    // A closed output does not cancel the pull: the result counts.
    let mut write = |text: &str| drop(print(environment, text));
    let pulled = rt::run(async {
        let interrupted = shutdown::first_signal()?;
        let progress = |news| {
            if let Progress::Warning { reference, message } = &news {
                warnings.extend(["warning: ", reference, ": ", message, "\n"]);
            }
            let line = view.on_progress(&news, began.elapsed());
            let text =
                if draws { view.frame(began.elapsed(), columns()) } else { line.filter(|_| !is_silent) };
            if let Some(text) = text {
                write(&text);
            }
        };
        Ok(pull_until(Path::new(OWN_PROGRAM), request, progress, interrupted).await)
    });
    if draws {
        write(&view.end());
    }
    // The write may fail: standard error may be closed, too.
    let _ = environment.err.write_all(warnings.as_bytes());
    Ok(pulled.and_then(|pulled| pulled).map_err(ImageCommandError::Start)?)
}

/// The width of the terminal, which may change at any time.
fn columns() -> usize {
    let size = terminal_size(std::io::stdout().as_fd());
    size.ok().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

/// The registry credentials, if the options name any.
fn credentials(options: &PullOptions) -> Result<Option<ImageAuth>, CliError> {
    let usage = |message: &str| CliError::Usage(UsageError::Option { message: message.to_owned() });
    let given = match (&options.creds, &options.creds_file) {
        (Some(_), Some(_)) => return Err(usage("--creds and --creds-file cannot be used together")),
        (None, None) => return Ok(None),
        (Some(given), None) => given.clone(),
        (None, Some(path)) => first_line(path)
            .map_err(|source| ImageCommandError::Credentials { path: path.clone(), source })?,
    };
    let (username, password) = match given.split_once(':') {
        Some((username, password)) => (username.to_owned(), password.to_owned()),
        None if options.creds_file.is_some() => {
            return Err(usage("--creds-file: its first line must be USER:PASSWORD"));
        }
        // A terminal would echo the password.
        None if std::io::stdin().is_terminal() => {
            return Err(usage(
                "--creds: the password is read from standard input; pipe it in, or use --creds-file",
            ));
        }
        None => {
            let path = Path::new("/dev/stdin");
            let source = |source| ImageCommandError::Credentials { path: path.to_owned(), source };
            (given, first_line(path).map_err(source)?)
        }
    };
    if username.is_empty() {
        return Err(usage("--creds: missing user name"));
    }
    Ok(Some(ImageAuth::of_user(username, password)))
}

fn first_line(path: &Path) -> std::io::Result<String> {
    let mut line = String::new();
    BufReader::new(std::fs::File::open(path)?.take(MAX_CREDENTIALS)).read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ImageOptions, UsageError> {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        ImageOptions::parse(&words)
    }

    #[test]
    fn a_pulls_options_are_for_pulls_alone_and_checked_at_once() {
        let options = parse("pull a --creds me:hu:sh --platform linux/arm/v7").unwrap();
        let auth = credentials(&options.pull).unwrap().unwrap();
        assert_eq!((auth.username.as_str(), auth.password.as_str()), ("me", "hu:sh"));
        let refused = |line: &str| parse(line).err().unwrap().to_string();
        assert_eq!(refused("ls --creds me:x"), "--creds is only an option of agent image pull");
        assert!(refused("pull a --platform arm").contains("--platform: invalid platform \"arm\""));
        assert!(refused("pull a --creds").contains("--creds"));
    }

    #[test]
    fn credentials_come_from_one_place_and_have_a_name() {
        let path = std::env::temp_dir().join(format!("agent-cli-creds-{}", std::process::id()));
        std::fs::write(&path, "me:hush\nmore\n").unwrap();
        let of = |line: &str| match credentials(&parse(line).unwrap().pull) {
            Ok(auth) => auth.map(|auth| format!("{}:{}", auth.username, auth.password)).unwrap_or_default(),
            Err(error) => format!("error: {}", chain(&error)),
        };
        let file = path.display();
        assert_eq!(of(&format!("pull a --creds-file {file}")), "me:hush");
        assert_eq!(of("pull a"), "");
        assert_eq!(
            of(&format!("pull a --creds x --creds-file {file}")),
            "error: --creds and --creds-file cannot be used together"
        );
        assert_eq!(of("pull a --creds :x"), "error: --creds: missing user name");
        std::fs::write(&path, "me\n").unwrap();
        assert!(of(&format!("pull a --creds-file {file}")).contains("USER:PASSWORD"));
        std::fs::remove_file(&path).unwrap();
        assert!(of(&format!("pull a --creds-file {file}")).starts_with("error: read credentials from"));
    }
}
