//! `agent get`: a table like kubectl's, or the objects.
//!
//! Owns the command and its arguments.

use super::args::{CliOptions, Command, UsageError};
use super::jsonpath::Template;
use super::{CliError, EXIT_OK, Environment, api, listing, print};
use crate::cmd::help;

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let options = CliOptions::parse(Command::Get, arguments).map_err(CliError::Usage)?;
    if options.help {
        print(environment, &help::text("get"))?;
        return Ok(EXIT_OK);
    }
    if let Some(template) = &options.template {
        let wrong = |error| UsageError::Option { message: format!("jsonpath {template}: {error}") };
        Template::parse(template).map_err(wrong).map_err(CliError::Usage)?;
    }
    let (resource, names) = names(&options, api::resource).map_err(CliError::Usage)?;
    if !names.is_empty() && !options.selectors().is_empty() {
        // kubectl's message and exit code.
        return Err(CliError::Answer("name cannot be provided when a selector is specified".to_owned()));
    }
    listing::run(resource, &names, &options, environment)
}

/// The requested resource and names: `pods a b`, `pod/a pod/b`, `secret/a`.
pub(super) fn names<T: PartialEq>(
    options: &CliOptions,
    resource: impl Fn(&str) -> Result<T, UsageError>,
) -> Result<(T, Vec<String>), UsageError> {
    let mut words = options.words.iter();
    let first = words.next().ok_or(UsageError::NoResource)?;
    let unknown = |word: &String| UsageError::Resource { given: word.clone() };
    let (kind, name) =
        first.split_once('/').map_or((first.as_str(), None), |(kind, name)| (kind, Some(name)));
    let asked = resource(kind)?;
    if name == Some("") {
        return Err(unknown(first));
    }
    let mut names: Vec<String> = name.map(str::to_owned).into_iter().collect();
    for word in words {
        match word.split_once('/') {
            Some((kind, name)) if resource(kind).is_ok_and(|kind| kind == asked) && !name.is_empty() => {
                names.push(name.to_owned());
            }
            None => names.push(word.clone()),
            _ => return Err(unknown(word)),
        }
    }
    if options.all_namespaces && !names.is_empty() {
        return Err(UsageError::NameInAllNamespaces);
    }
    Ok((asked, names))
}
