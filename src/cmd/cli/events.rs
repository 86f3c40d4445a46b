//! `agent events`: the events, oldest first, as `kubectl events` shows them.
//!
//! Owns the command and its columns.

use crate::cmd::help;
use crate::model::ordered::Sortable as _;
use std::ops::ControlFlow;

use serde_json::Value;

use super::args::{Common, Has, Own, UsageError, text, value};
use super::table::Paint;
use super::{CliError, EXIT_OK, Environment, api, print, table};
use crate::model::types::Timestamp;
use crate::platform::rt;
use crate::serve::localapi::age;

#[derive(Debug)]
struct EventsArgs {
    common: Common,
    about: Option<(String, String)>,
    types: Vec<String>,
    watch: bool,
    no_headers: bool,
}

fn parse(arguments: &[String]) -> Result<EventsArgs, UsageError> {
    let mut wanted = EventsArgs {
        common: Common::default(),
        about: None,
        types: Vec::new(),
        watch: false,
        no_headers: false,
    };
    let message = |message: String| UsageError::Option { message };
    wanted.common = Common::parse(arguments, Has::AllNamespaces, &mut |own, parser| {
        match own {
            Own::Option("--for") => {
                let given = text(value(parser)?);
                let (kind, name) = given
                    .split_once('/')
                    .filter(|(_, name)| !name.is_empty())
                    .ok_or_else(|| message(format!("--for {given:?}: must be KIND/NAME such as pod/web")))?;
                wanted.about = Some((api::resource(kind)?.kind.to_owned(), name.to_owned()));
            }
            Own::Option("--types") => {
                let given = text(value(parser)?);
                wanted.types = given.split(',').map(|word| word.trim().to_owned()).collect();
                let known = |word: &String| {
                    ["normal", "warning"].iter().any(|known| word.eq_ignore_ascii_case(known))
                };
                if !wanted.types.iter().all(known) {
                    return Err(message(format!("--types {given:?}: valid --types are Normal or Warning")));
                }
            }
            Own::Option("-w" | "--watch") => wanted.watch = true,
            Own::Option("--no-headers") => wanted.no_headers = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(wanted)
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("events"))?;
        return Ok(EXIT_OK);
    }
    rt::run(show(&wanted, environment)).map_err(CliError::Runtime)?
}

async fn show(wanted: &EventsArgs, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let resource = api::resource("events").map_err(CliError::Usage)?;
    let path = api::path(resource, wanted.common.namespace.as_deref(), None);
    let list = api::fetch(&wanted.common.socket, &path, api::OBJECTS).await?;
    let mut events: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
    events.retain(|event| is_selected(wanted, event));
    events.order_by_key(|event| last_seen(event));
    let mut widths = Vec::new();
    let mut rows: Vec<_> = events.iter().map(|event| row(wanted, event, environment.now)).collect();
    if rows.is_empty() && !wanted.watch {
        let place =
            wanted.common.namespace.as_ref().map_or(String::new(), |name| format!(" in {name} namespace"));
        let _ = writeln!(environment.err, "No events found{place}.");
        return Ok(EXIT_OK);
    }
    if !wanted.no_headers {
        let place = wanted.common.namespace.is_none().then_some("NAMESPACE");
        let names = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
        rows.insert(0, place.into_iter().chain(names).map(str::to_owned).collect());
    }
    let header = rows.first().filter(|_| environment.colour && !wanted.no_headers);
    let paint = header.map(|header| Paint::of(header)).unwrap_or_default();
    print(environment, &table::render_on(&rows, &mut widths, &paint))?;
    if !wanted.watch {
        return Ok(EXIT_OK);
    }
    let mut version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    loop {
        let query = api::query(&[("watch", "true".to_owned()), ("resourceVersion", version.clone())]);
        let mut ended = None;
        api::watch(&wanted.common.socket, &format!("{path}{query}"), api::OBJECTS, |change| {
            let event = &change["object"];
            match change["type"].as_str() {
                Some("ERROR") => {
                    ended = Some(
                        event["message"].as_str().unwrap_or("the watch was closed by the agent").to_owned(),
                    );
                    return Ok(ControlFlow::Break(()));
                }
                Some("ADDED" | "MODIFIED") if is_selected(wanted, event) => {
                    let row = row(wanted, event, crate::platform::clock::Clock::System.now());
                    print(environment, &table::render_on(&[row], &mut widths, &paint))?;
                }
                _ => {}
            }
            if let Some(newest) = event["metadata"]["resourceVersion"].as_str() {
                newest.clone_into(&mut version);
            }
            Ok(ControlFlow::Continue(()))
        })
        .await?;
        if let Some(message) = ended {
            return Err(CliError::Answer(message));
        }
    }
}

fn is_selected(wanted: &EventsArgs, event: &Value) -> bool {
    let about = &event["involvedObject"];
    let is_about = |(kind, name): &(String, String)| {
        about["kind"] == kind.as_str()
            && about["name"].as_str().is_some_and(|found| found == name || is_of_node(found, name, event))
    };
    let kind = event["type"].as_str().unwrap_or_default();
    wanted.about.as_ref().is_none_or(is_about)
        && (wanted.types.is_empty() || wanted.types.iter().any(|word| word.eq_ignore_ascii_case(kind)))
}

/// A static pod may be named without the suffix of the node's name.
fn is_of_node(found: &str, name: &str, event: &Value) -> bool {
    let node = event["source"]["host"].as_str().unwrap_or_default();
    found.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).is_some_and(|rest| rest == node)
}

fn last_seen(event: &Value) -> Timestamp {
    let times = ["/lastTimestamp", "/eventTime", "/firstTimestamp", "/metadata/creationTimestamp"];
    let time = times.iter().find_map(|place| event.pointer(place)?.as_str());
    time.and_then(Timestamp::parse_rfc3339).unwrap_or_default()
}

fn row(wanted: &EventsArgs, event: &Value, now: Timestamp) -> Vec<String> {
    let text = |place: &str| event.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned();
    let object = format!("{}/{}", text("/involvedObject/kind"), text("/involvedObject/name"));
    let first = event["firstTimestamp"].as_str().and_then(Timestamp::parse_rfc3339);
    let seen = match (event["count"].as_i64(), first) {
        (Some(count @ 2..), Some(first)) => {
            format!("{} (x{count} over {})", age::since(last_seen(event), now), age::since(first, now))
        }
        _ => age::since(last_seen(event), now),
    };
    let place = wanted.common.namespace.is_none().then(|| text("/metadata/namespace"));
    let cells = [seen, text("/type"), text("/reason"), object, text("/message").trim().to_owned()];
    place.into_iter().chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(line: &str) -> Result<EventsArgs, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn events_filter_by_object_and_type_and_show_their_count() {
        let event = json!({
            "type": "Warning", "reason": "BackOff", "message": "again\n", "count": 3,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:01:00Z",
            "involvedObject": {"kind": "Pod", "name": "web-edge"}, "source": {"host": "edge"},
            "metadata": {"namespace": "shop"},
        });
        for (line, wanted) in [
            ("", true),
            ("--for pod/web-edge", true),
            ("--for po/web", true),
            ("--for pod/we", false),
            ("--for node/web", false),
            ("--types warning", true),
            ("--types Normal", false),
        ] {
            assert_eq!(is_selected(&parsed(line).unwrap(), &event), wanted, "{line}");
        }
        let now = Timestamp::parse_rfc3339("2026-01-01T00:01:10Z").unwrap();
        let cells = row(&parsed("-A").unwrap(), &event, now);
        assert_eq!(cells, ["shop", "10s (x3 over 70s)", "Warning", "BackOff", "Pod/web-edge", "again"]);
        assert!(parsed("--for web").unwrap_err().contains("KIND/NAME"));
        assert!(parsed("--types Bad").unwrap_err().contains("Normal or Warning"));
    }
}
