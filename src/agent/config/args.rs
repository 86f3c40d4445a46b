//! The argument vector as flags, in pflag's grammar, and the command that follows them.
//!
//! Owns spelling: normalisation, short flags, repetition.

use std::collections::BTreeMap;
use std::ffi::OsString;

use lexopt::{Arg, Parser};
use serde_json::Value;

use super::error::{ConfigError, FlagError};
use super::flags::{FlagTarget, find, known_names};
use super::suggest::nearest;
use super::value::ValueKind;

#[derive(Clone, Debug)]
pub(super) struct Given {
    /// The last spelling used, normalised.
    pub(super) spelled: String,
    /// Its value, all occurrences combined.
    pub(super) value: Value,
}

/// The first positional argument and the arguments around it.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) name: String,
    /// Arguments before it.
    pub(super) before: Vec<OsString>,
    /// Arguments after it.
    pub(super) rest: Vec<OsString>,
    /// The bare bool flag right before it, if any: a detached `false` lands here.
    pub(super) after_bool: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    /// By the flag's canonical name.
    pub(super) given: BTreeMap<&'static str, Given>,
    pub(super) command: Option<Command>,
    /// `--explain` was given (only where the caller allows it).
    pub(super) explain: bool,
    /// Lines about deprecated and removed flags, in order of use.
    pub(super) warnings: Vec<String>,
}

impl Args {
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.given.get(name).map(|given| &given.value)
    }
}

/// Parses flags up to the first positional argument. `explain` allows `--explain`.
pub(super) fn scan(arguments: &[OsString], explain: bool) -> Result<Args, ConfigError> {
    let mut args = Args::default();
    let mut parser = Parser::from_args(arguments.iter().cloned());
    let mut after_bool = None;
    loop {
        let (name, short) = match parser.next().map_err(unreadable)? {
            None => return Ok(args),
            Some(Arg::Value(name)) => {
                let rest: Vec<OsString> = parser.raw_args().map(Iterator::collect).unwrap_or_default();
                let before = arguments.len().saturating_sub(rest.len() + 1);
                let before =
                    arguments[..before].iter().filter(|argument| *argument != "--").cloned().collect();
                args.command = Some(Command { name: text(name)?, before, rest, after_bool });
                return Ok(args);
            }
            Some(Arg::Long(name)) => (name.replace('_', "-"), None),
            Some(Arg::Short('v')) => ("v".to_owned(), Some('v')),
            Some(Arg::Short('h')) => ("help".to_owned(), Some('h')),
            Some(Arg::Short(flag)) => return Err(ConfigError::Flag(FlagError::UnknownShort { flag })),
        };
        if explain && name == "explain" {
            let value = parser.optional_value().map_or(Ok("true".to_owned()), text)?;
            args.explain = explain_switch(&value)?;
            continue;
        }
        let target = find(&name).ok_or_else(|| unknown(&name))?;
        let (value, alone) = match parser.optional_value() {
            Some(value) => (text(value)?, false),
            None if target.value_is_optional() => ("true".to_owned(), true),
            None => {
                let value = parser.value().map_err(|_| FlagError::NoValue { flag: name.clone() });
                (text(value.map_err(ConfigError::Flag)?)?, false)
            }
        };
        after_bool = alone.then(|| short.map_or_else(|| format!("--{name}"), |flag| format!("-{flag}")));
        apply_flag(&mut args, name, target, &value)?;
    }
}

fn explain_switch(value: &str) -> Result<bool, ConfigError> {
    let parsed = ValueKind::Bool.parse(value, None);
    let flag = "explain".to_owned();
    let on =
        parsed.map_err(|error| ConfigError::Flag(FlagError::Value { flag, value: shorten(value), error }))?;
    Ok(on == Value::Bool(true))
}

fn apply_flag(args: &mut Args, name: String, target: FlagTarget, text: &str) -> Result<(), ConfigError> {
    let (canonical, kind, warning) = match target {
        FlagTarget::Removed(removed) if removed.fatal => {
            return Err(ConfigError::Flag(FlagError::Removed { flag: name, advice: removed.advice }));
        }
        FlagTarget::Removed(removed) => {
            let line =
                format!("Flag --{name} was removed from the kubelet and is ignored: {}", removed.advice);
            add_once(&mut args.warnings, line);
            return Ok(());
        }
        FlagTarget::Flag(flag) => {
            let warning = flag.deprecated.map(|why| format!("Flag --{name} has been deprecated, {why}"));
            (flag.name, flag.kind, warning)
        }
        FlagTarget::Field(field) => {
            let deprecated = field.flag_deprecated() && field.flag == name;
            let warning = deprecated.then(|| {
                format!(
                    "Flag --{name} has been deprecated, set {} in the file given to --config instead",
                    field.path
                )
            });
            (field.flag, field.kind, warning)
        }
    };
    let earlier = args.given.get(canonical).map(|given| &given.value);
    let value = kind.parse(text, earlier).map_err(|error| {
        // A header often contains a token, so it is not printed.
        let value = if canonical == "manifest-url-header" { "<masked>".to_owned() } else { shorten(text) };
        ConfigError::Flag(FlagError::Value { flag: name.clone(), value, error })
    })?;
    if let Some(line) = warning {
        add_once(&mut args.warnings, line);
    }
    args.given.insert(canonical, Given { spelled: name, value });
    Ok(())
}

/// Each line once, however often the flag is used.
fn add_once(lines: &mut Vec<String>, line: String) {
    if !lines.contains(&line) {
        lines.push(line);
    }
}

/// The longest value in a message.
const MAX_SHOWN: usize = 128;

fn shorten(text: &str) -> String {
    if text.chars().count() <= MAX_SHOWN {
        return text.to_owned();
    }
    text.chars().take(MAX_SHOWN).chain(['.', '.', '.']).collect()
}

fn unknown(name: &str) -> ConfigError {
    let hint = nearest(name, known_names()).map_or(String::new(), |near| format!(", did you mean --{near}?"));
    ConfigError::Flag(FlagError::Unknown { flag: shorten(name), hint })
}

fn unreadable(error: lexopt::Error) -> ConfigError {
    ConfigError::Flag(match error {
        lexopt::Error::NonUnicodeValue(argument) => {
            FlagError::NotUtf8 { argument: shorten(&argument.to_string_lossy()) }
        }
        lexopt::Error::UnexpectedOption(flag) => {
            FlagError::Unknown { flag: shorten(&flag), hint: String::new() }
        }
        other => FlagError::NoValue { flag: shorten(&other.to_string()) },
    })
}

fn text(value: OsString) -> Result<String, ConfigError> {
    value.into_string().map_err(|value| {
        ConfigError::Flag(FlagError::NotUtf8 { argument: shorten(&value.to_string_lossy()) })
    })
}
