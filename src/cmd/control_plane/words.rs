//! The command line of a small command: its words, and the options of a table.

use lexopt::Arg;

use crate::cmd::cli::Environment;
use crate::cmd::help;
use crate::cmd::init::args::{UsageError, text};
use crate::cmd::init::{InitError, InitSession, finish};
use crate::model::duration::GoDuration;

/// How long a certificate is valid unless something else is asked for.
pub(super) const YEAR: GoDuration = GoDuration::from_secs(365 * 24 * 3600);

/// An option's name, and whether it has a value.
pub(super) type Known = (&'static str, bool);

pub(super) struct CommandWords {
    pub words: Vec<String>,
    pub help: bool,
    options: Vec<(&'static str, String)>,
}

/// A command whose options are those of a table.
pub(super) struct Small {
    /// `certs`, in its errors.
    pub name: &'static str,
    /// The name of its text, see [`help`].
    pub help: &'static str,
    pub options: &'static [Known],
    pub run: fn(&mut InitSession<'_>, &CommandWords) -> Result<(), InitError>,
}

impl Small {
    /// Returns the exit code.
    pub(super) fn run(&self, arguments: &[String], environment: Environment<'_>) -> u8 {
        let mut session = InitSession { environment };
        let result = match CommandWords::parse(arguments, self.options) {
            Ok(given) if given.help => session.print(&help::text(self.help)),
            Ok(given) => (self.run)(&mut session, &given),
            Err(error) => Err(error.into()),
        };
        finish(&mut session, self.name, result)
    }
}

impl CommandWords {
    pub(super) fn parse(arguments: &[String], known: &[Known]) -> Result<Self, UsageError> {
        let mut given = Self { words: Vec::new(), help: false, options: Vec::new() };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(|error| UsageError::Option(error.to_string()))? {
            let name = match argument {
                Arg::Value(word) => {
                    given.words.push(word.to_string_lossy().into_owned());
                    continue;
                }
                Arg::Short('h') | Arg::Long("help") => {
                    given.help = true;
                    continue;
                }
                Arg::Short('o') => "output",
                Arg::Long(name) => name,
                Arg::Short(_) => return Err(UsageError::Option(argument.unexpected().to_string())),
            };
            let Some((name, has_value)) = known.iter().find(|(known, _)| *known == name) else {
                return Err(UsageError::Option(format!("invalid option '--{name}'")));
            };
            let value = if *has_value { text(&mut parser)? } else { String::new() };
            given.options.push((*name, value));
        }
        Ok(given)
    }

    /// Refuses options that a subcommand does not have.
    pub(super) fn only(&self, subcommand: &str, has: &[&str]) -> Result<(), UsageError> {
        match self.options.iter().find(|(given, _)| !has.contains(given)) {
            None => Ok(()),
            Some((name, _)) => {
                Err(UsageError::Option(format!("invalid option '--{name}' for {subcommand:?}")))
            }
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// A duration as Go writes it, 0 or more.
    pub(super) fn duration(&self, name: &str, example: &str) -> Result<Option<GoDuration>, UsageError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let parsed = GoDuration::parse(text).ok().filter(|time| !time.is_negative());
        let wrong = || UsageError::Option(format!("--{name} {text:?}: must be a duration such as {example}"));
        parsed.ok_or_else(wrong).map(Some)
    }

    /// `--validity-period`, more than 0.
    pub(super) fn validity(&self) -> Result<Option<GoDuration>, UsageError> {
        let given = self.duration("validity-period", "8760h")?;
        if given.is_some_and(GoDuration::is_zero) {
            return Err(UsageError::Option("--validity-period 0: must be more than 0".to_owned()));
        }
        Ok(given)
    }

    /// The last value of an option.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// All values of an option, which may be repeated and have commas.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let of = self.options.iter().filter(|(given, _)| *given == name);
        let items = of.flat_map(|(_, value)| value.split(',')).map(str::trim);
        items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_checked() {
        let parse = |value: &str| {
            let words = ["--validity-period".to_owned(), value.to_owned()];
            CommandWords::parse(&words, &[("validity-period", true)]).ok().unwrap()
        };
        assert_eq!(parse("2h").validity().ok().unwrap().unwrap(), GoDuration::from_secs(7200));
        for wrong in ["0s", "-1h", "soon", ""] {
            let why = parse(wrong).validity().unwrap_err().to_string();
            assert!(why.contains("--validity-period"), "{wrong}: {why}");
        }
        assert!(parse("0").duration("validity-period", "1h").ok().unwrap().unwrap().is_zero());
        assert!(parse("1h").duration("other", "1h").ok().unwrap().is_none());
    }

    #[test]
    fn options_have_the_names_of_the_table() {
        let parse = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            CommandWords::parse(&words, &[("org", true), ("output", true), ("dry-run", false)])
        };
        let given = parse("images list --org a,b --org=c -o json --dry-run").ok().unwrap();
        assert_eq!(given.words, ["images", "list"]);
        assert_eq!(given.list("org"), ["a", "b", "c"]);
        assert_eq!((given.text("org"), given.text("output")), (Some("c"), Some("json")));
        assert_eq!((given.text("dry-run"), given.text("other")), (Some(""), None));
        assert!(parse("-h").ok().unwrap().help);
        let why = given.only("images list", &["org", "output"]).unwrap_err().to_string();
        assert!(why.contains("invalid option '--dry-run' for \"images list\""), "{why}");
        assert!(given.only("images list", &["org", "output", "dry-run"]).is_ok() && given.has("dry-run"));
        for (line, named) in
            [("--volumes", "--volumes"), ("-x", "-x"), ("--org", "--org"), ("--dry-run=x", "x")]
        {
            let why = parse(line).err().unwrap().to_string();
            assert!(why.contains(named), "{line}: {why}");
        }
    }
}
