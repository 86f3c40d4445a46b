//! Arguments of `agent upgrade`.
//!
//! Owns their names, defaults and help.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg;

use crate::model::duration::GoDuration;
use crate::serve::server::DEFAULT_SOCKET;

/// The default path of the public key.
pub(super) const KEY_FILE: &str = "/etc/kubernetes/upgrade.pub";
const ROOT_DIR: &str = "/var/lib/kubelet";
/// Long enough for a crash loop to show, short enough to wait for.
const WINDOW: Duration = Duration::from_secs(120);
/// A slow board has to read its store, its images and its pods.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(super) String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpgradeOptions {
    /// A file, or one of the subcommands.
    pub(super) what: String,
    pub(super) key: Option<PathBuf>,
    pub(super) signature: Option<PathBuf>,
    pub(super) allow_unsigned: bool,
    pub(super) allow_downgrade: bool,
    pub(super) window: Duration,
    pub(super) patience: Duration,
    pub(super) restart_command: Option<String>,
    pub(super) no_restart: bool,
    pub(super) dry_run: bool,
    pub(super) json: bool,
    pub(super) socket: PathBuf,
    pub(super) root_dir: PathBuf,
    pub(super) help: bool,
}

impl UpgradeOptions {
    pub(super) fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let mut options = Self {
            what: String::new(),
            key: None,
            signature: None,
            allow_unsigned: false,
            allow_downgrade: false,
            window: WINDOW,
            patience: PATIENCE,
            restart_command: None,
            no_restart: false,
            dry_run: false,
            json: false,
            socket: DEFAULT_SOCKET.into(),
            root_dir: ROOT_DIR.into(),
            help: false,
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(|error| bad(&error))? {
            match argument {
                Arg::Long("verify-key-file") => options.key = Some(text(&mut parser)?.into()),
                Arg::Long("signature") => options.signature = Some(text(&mut parser)?.into()),
                Arg::Long("allow-unsigned") => options.allow_unsigned = true,
                Arg::Long("allow-downgrade") => options.allow_downgrade = true,
                Arg::Long("window") => options.window = duration("--window", &text(&mut parser)?)?,
                Arg::Long("timeout") => options.patience = duration("--timeout", &text(&mut parser)?)?,
                Arg::Long("restart-command") => options.restart_command = Some(text(&mut parser)?),
                Arg::Long("no-restart") => options.no_restart = true,
                Arg::Long("dry-run") => options.dry_run = true,
                Arg::Long("socket") => options.socket = text(&mut parser)?.into(),
                Arg::Long("root-dir") => options.root_dir = text(&mut parser)?.into(),
                Arg::Short('o') | Arg::Long("output") => {
                    options.json = match text(&mut parser)?.as_str() {
                        "json" => true,
                        "text" => false,
                        other => {
                            let known = "use one of text, json";
                            return Err(UsageError(format!("unknown output format {other:?}: {known}")));
                        }
                    };
                }
                Arg::Short('h') | Arg::Long("help") => options.help = true,
                Arg::Value(word) if options.what.is_empty() => {
                    options.what = word.to_string_lossy().into_owned();
                }
                other => return Err(UsageError(other.unexpected().to_string())),
            }
        }
        if options.what.is_empty() && !options.help {
            return Err(UsageError("missing program: agent upgrade FILE".to_owned()));
        }
        if options.no_restart && options.restart_command.is_some() {
            return Err(UsageError("--no-restart and --restart-command cannot be used together".to_owned()));
        }
        Ok(options)
    }
}

fn bad(error: &lexopt::Error) -> UsageError {
    UsageError(error.to_string())
}

fn text(parser: &mut lexopt::Parser) -> Result<String, UsageError> {
    let value = parser.value().map_err(|error| bad(&error))?;
    Ok(value.to_string_lossy().into_owned())
}

fn duration(name: &str, given: &str) -> Result<Duration, UsageError> {
    let parsed = GoDuration::parse(given).ok().map(GoDuration::to_std).filter(|parsed| !parsed.is_zero());
    parsed.ok_or_else(|| UsageError(format!("{name} {given:?}: must be a duration such as 2m")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<UpgradeOptions, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        UpgradeOptions::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn file_or_status_and_options_parse_in_any_order() {
        let options = parse("--window 30s ./agent --timeout=5s -o json --allow-unsigned").unwrap();
        assert_eq!(
            (options.what.as_str(), options.window, options.patience),
            ("./agent", WINDOW / 4, PATIENCE / 12)
        );
        assert!(options.json && options.allow_unsigned && !options.allow_downgrade);
        assert_eq!(parse("status").unwrap().what, "status");
        assert!(parse("--help").unwrap().help);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let said = |line| parse(line).unwrap_err();
        assert!(said("").contains("agent upgrade FILE"));
        assert!(said("a b").contains('b'));
        assert!(said("a --window 0").contains("--window \"0\""));
        assert!(said("a --window soon").contains("2m"));
        assert!(said("a -o yaml").contains("text, json"));
        assert!(said("a --now").contains("--now"));
        assert!(said("a --no-restart --restart-command true").contains("cannot be used together"));
    }
}
