//! The command line of a small command: its words, and the options of a table.

use lexopt::Arg;

use crate::cmd::init::args::{UsageError, text};

/// An option's name, and whether it has a value.
pub(super) type Known = (&'static str, bool);

pub(super) struct CommandWords {
    pub words: Vec<String>,
    pub help: bool,
    options: Vec<(&'static str, String)>,
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
        for (line, named) in
            [("--volumes", "--volumes"), ("-x", "-x"), ("--org", "--org"), ("--dry-run=x", "x")]
        {
            let why = parse(line).err().unwrap().to_string();
            assert!(why.contains(named), "{line}: {why}");
        }
    }
}
