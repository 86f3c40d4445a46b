//! `agent wait`: until objects meet a condition, as `kubectl wait`.
//!
//! Owns the command and its conditions.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::args::{Common, Has, Own, UsageError, text, value};
use super::jsonpath::Template;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, print};
use crate::cmd::help;
use crate::model::duration::GoDuration;
use crate::platform::rt;
use crate::serve::localapi::resource::Resource;

#[derive(Clone, Debug, PartialEq)]
enum For {
    Condition { name: String, value: String },
    JsonPath { path: Template, value: Option<String> },
    Create,
    Delete,
}

impl For {
    fn parse(given: &str) -> Result<Self, UsageError> {
        let wrong = |why: String| UsageError::Option { message: format!("--for {given:?}: {why}") };
        match given.split_once('=') {
            None if given.eq_ignore_ascii_case("delete") => Ok(Self::Delete),
            None if given.eq_ignore_ascii_case("create") => Ok(Self::Create),
            Some(("condition", rest)) if !rest.is_empty() => {
                let (name, value) = rest.split_once('=').unwrap_or((rest, "True"));
                Ok(Self::Condition { name: name.to_owned(), value: value.to_owned() })
            }
            Some(("jsonpath", rest)) => {
                // The value follows the closing brace of the expression.
                let (path, value) = match rest.rfind('}') {
                    Some(end) => (&rest[..=end], rest[end + 1..].strip_prefix('=')),
                    None => rest.split_once('=').map_or((rest, None), |(path, value)| (path, Some(value))),
                };
                let path = Template::parse(path).map_err(wrong)?;
                Ok(Self::JsonPath { path, value: value.map(str::to_owned) })
            }
            _ => Err(wrong("must be condition=NAME, jsonpath=PATH, create or delete".to_owned())),
        }
    }

    /// Whether the object meets the condition; `None`: it does not exist.
    fn is_met(&self, object: Option<&Value>) -> bool {
        match (self, object) {
            (Self::Delete, object) => object.is_none(),
            (_, None) => false,
            (Self::Create, Some(_)) => true,
            (Self::Condition { name, value }, Some(object)) => {
                let conditions = object["status"]["conditions"].as_array();
                let text =
                    |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
                conditions.into_iter().flatten().any(|condition| {
                    text(condition, "type").eq_ignore_ascii_case(name)
                        && text(condition, "status").eq_ignore_ascii_case(value)
                })
            }
            (Self::JsonPath { path, value }, Some(object)) => {
                let found = path.render(object);
                value.as_ref().map_or(!found.is_empty(), |value| *value == found)
            }
        }
    }
}

#[derive(Debug)]
struct WaitArgs {
    common: Common,
    what: Option<For>,
    timeout: Duration,
    selector: Option<String>,
    all: bool,
    words: Vec<String>,
}

fn parse(arguments: &[String]) -> Result<WaitArgs, UsageError> {
    let mut wanted = WaitArgs {
        common: Common::default(),
        what: None,
        timeout: Duration::from_secs(30),
        selector: None,
        all: false,
        words: Vec::new(),
    };
    let message = |message: String| UsageError::Option { message };
    wanted.common = Common::parse(arguments, Has::Namespace, &mut |own, parser| {
        match own {
            Own::Option("--for") => wanted.what = Some(For::parse(&text(value(parser)?))?),
            Own::Option("--timeout") => {
                let given = text(value(parser)?);
                let parsed = GoDuration::parse(&given).ok().filter(|parsed| parsed.as_nanos() >= 0);
                let wrong = || message(format!("--timeout {given:?}: must be a duration such as 90s"));
                wanted.timeout = parsed.ok_or_else(wrong)?.to_std();
            }
            Own::Option("-l" | "--selector") => wanted.selector = Some(text(value(parser)?)),
            Own::Option("--all") => wanted.all = true,
            Own::Word(word) => wanted.words.push(word.to_owned()),
            Own::Option(_) => return Ok(false),
        }
        Ok(true)
    })?;
    if !wanted.common.help {
        if wanted.words.is_empty() {
            return Err(message("missing object: agent wait pod/NAME --for condition=Ready".to_owned()));
        }
        if wanted.what.is_none() {
            return Err(message("missing --for, such as --for condition=Ready".to_owned()));
        }
    }
    Ok(wanted)
}

/// A resource and an object's name.
pub(super) type Named = (&'static Resource, String);

/// The named objects; without names all selected ones of the kind.
pub(super) fn named(words: &[String]) -> Result<(Vec<Named>, Option<&'static Resource>), UsageError> {
    let (mut named, mut kind) = (Vec::new(), None);
    for word in words {
        match (word.split_once('/'), kind) {
            (Some((_, "")), _) => return Err(UsageError::Resource { given: word.clone() }),
            (Some((kind, name)), _) => named.push((api::resource(kind)?, name.to_owned())),
            (None, Some(kind)) => named.push((kind, word.clone())),
            (None, None) => kind = Some(api::resource(word)?),
        }
    }
    Ok((named, kind))
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    let Some(what) = &wanted.what else {
        print(environment, &help::text("wait"))?;
        return Ok(EXIT_OK);
    };
    if wanted.common.help {
        print(environment, &help::text("wait"))?;
        return Ok(EXIT_OK);
    }
    let (objects, kind) = named(&wanted.words).map_err(CliError::Usage)?;
    rt::run(wait(&wanted, what, objects, kind, environment)).map_err(CliError::Runtime)?
}

async fn wait(
    wanted: &WaitArgs,
    what: &For,
    mut objects: Vec<Named>,
    kind: Option<&'static Resource>,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    if let (true, Some(kind)) = (objects.is_empty(), kind) {
        if !wanted.all && wanted.selector.is_none() {
            let message = format!("no {} specified: give names, -l or --all", kind.plural);
            return Err(CliError::Usage(UsageError::Option { message }));
        }
        let (namespace, selector) = (wanted.common.one_namespace(), wanted.selector.as_deref());
        let names = api::selected(&wanted.common.socket, kind, namespace, selector).await?;
        objects.extend(names.into_iter().map(|name| (kind, name)));
        if objects.is_empty() && *what != For::Delete {
            return Err(CliError::Answer("no matching resources found".to_owned()));
        }
    }
    let (deadline, mut code) = (Instant::now() + wanted.timeout, EXIT_OK);
    for (resource, name) in objects {
        let place = (wanted.common.one_namespace(), name.as_str());
        let may_be_missing = *what == For::Create;
        let is_met = |object: Option<&Value>| what.is_met(object);
        match until(&wanted.common.socket, resource, place, may_be_missing, deadline, &is_met).await {
            Ok(true) => print(environment, &format!("{}/{name} condition met\n", resource.singular))?,
            Ok(false) => {
                let _ = writeln!(
                    environment.err,
                    "error: timed out waiting for the condition on {}/{name}",
                    resource.plural
                );
                code = EXIT_FAILED;
            }
            Err(error) => {
                let _ = writeln!(environment.err, "error: {error}");
                code = EXIT_FAILED;
            }
        }
    }
    Ok(code)
}

/// Waits until `is_met` for the object of this namespace and name, or for its absence. False: not before the
/// deadline.
///
/// # Errors
/// The object does not exist, unless it `may_be_missing` at first.
pub(super) async fn until(
    socket: &Path,
    resource: &Resource,
    (namespace, name): (&str, &str),
    may_be_missing: bool,
    deadline: Instant,
    is_met: &dyn Fn(Option<&Value>) -> bool,
) -> Result<bool, CliError> {
    let path = api::path(resource, Some(namespace), None);
    let field = format!("metadata.name={name}");
    let only = api::query(&[("fieldSelector", field.clone())]);
    loop {
        let list = api::fetch(socket, &(path.clone() + &only), api::OBJECTS).await?;
        let object = list["items"].as_array().and_then(|items| items.first());
        if is_met(object) {
            return Ok(true);
        }
        if object.is_none() && !may_be_missing {
            // As kubectl: a missing object cannot meet a condition.
            api::fetch(socket, &api::path(resource, Some(namespace), Some(name)), api::OBJECTS).await?;
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let query = api::query(&[
            ("watch", "true".to_owned()),
            ("fieldSelector", field.clone()),
            ("resourceVersion", version),
        ]);
        let mut is_done = false;
        let path = path.clone() + &query;
        let watched = api::watch(socket, &path, api::OBJECTS, |event| {
            let object = match event["type"].as_str() {
                Some("DELETED") => None,
                Some("ADDED" | "MODIFIED") => Some(&event["object"]),
                // The version has expired: list again.
                Some("ERROR") if event["object"]["code"] == 410 => return Ok(ControlFlow::Break(())),
                Some("ERROR") => {
                    let message =
                        event["object"]["message"].as_str().unwrap_or("the watch was closed by the agent");
                    return Err(CliError::Answer(message.to_owned()));
                }
                _ => return Ok(ControlFlow::Continue(())),
            };
            is_done = is_met(object);
            Ok(if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        match tokio::time::timeout_at(deadline, watched).await {
            Err(_) => return Ok(false),
            Ok(result) => result?,
        }
        if is_done {
            return Ok(true);
        }
        // The server has ended the watch, as it does from time to time: list again.
        if Instant::now() >= deadline {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_waited_for_is_kubectls() {
        let pod =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}});
        for (what, met) in [
            ("condition=Ready", false),
            ("condition=ready=false", true),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath=.status.phase=Pending", false),
            ("jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=False", true),
            ("jsonpath={.status.podIP}", false),
            ("jsonpath={.status.phase}", true),
            ("create", true),
            ("delete", false),
        ] {
            assert_eq!(For::parse(what).unwrap().is_met(Some(&pod)), met, "{what}");
        }
        assert!(For::parse("delete").unwrap().is_met(None));
        assert!(!For::parse("condition=Ready=False").unwrap().is_met(None));
        for bad in ["", "condition=", "ready", "jsonpath={.a[}"] {
            assert!(For::parse(bad).unwrap_err().to_string().contains("--for"), "{bad}");
        }
    }

    #[test]
    fn objects_are_named_in_both_ways() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let names = |line: &str| {
            let (named, kind) = named(&words(line)).unwrap();
            let named: Vec<_> =
                named.iter().map(|(resource, name)| format!("{}/{name}", resource.plural)).collect();
            (named.join(" "), kind.map(|kind| kind.plural))
        };
        assert_eq!(names("pod/a cm/b"), ("pods/a configmaps/b".to_owned(), None));
        assert_eq!(names("po a b"), ("pods/a pods/b".to_owned(), Some("pods")));
        assert_eq!(names("pods"), (String::new(), Some("pods")));
        assert!(named(&words("pod/")).is_err() && named(&words("gadget/x")).is_err());
    }
}
