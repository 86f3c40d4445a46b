//! What `agent get` prints, and `--watch`.
//!
//! Owns the choice between the node's Kubernetes API and a report, which is read from the store when the agent
//! is not running, and the output of both: the objects, or the server's tables.

use std::ops::ControlFlow;

use serde_json::{Value, json};

use super::args::{CliOptions, OutputFormat};
use super::client::ClientError;
use super::jsonpath::Template;
use super::table::Paint;
use super::{
    CliError, EXIT_FAILED, EXIT_OK, Environment, api, objects, offline, print, table, to_json, to_yaml,
};
use crate::codec::base64;
use crate::model::objects::ObjectKind;
use crate::platform::rt;
use crate::serve::localapi::objects::pod;
use crate::serve::localapi::resource::{Resource, Store};
use crate::serve::localapi::selector::Selector;
use crate::serve::localapi::shape::{Form, Rows, View};
use crate::serve::server::report::{ObjectDetail, ObjectReport};

/// Shows objects of a resource, and with `--watch` their changes.
pub(super) fn run(
    resource: &'static Resource,
    names: &[String],
    options: &CliOptions,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let is_stored = resource.store == Store::Pods || objects::reported_kind(resource).is_some();
    let is_stored = is_stored && !options.watch;
    // Versions and mirror pods, which a template or a selector may name, are only in the API.
    if !is_stored || options.template.is_some() || !options.selectors().is_empty() {
        let shown = rt::run(show(resource, names, None, options, environment)).map_err(CliError::Runtime)?;
        if !(is_stored && matches!(shown, Err(CliError::Client(ClientError::NotRunning { .. })))) {
            return shown;
        }
    }
    let reported = ReportedObjects::read(resource, options, environment)?;
    rt::run(show(resource, names, Some(&reported), options, environment)).map_err(CliError::Runtime)?
}

async fn show(
    resource: &'static Resource,
    names: &[String],
    reported: Option<&ReportedObjects>,
    options: &CliOptions,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let mut printer = Printer::new(resource, options);
    let is_table = printer.is_table();
    let accept = if is_table { api::TABLE } else { api::OBJECTS };
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let namespace = (!options.all_namespaces).then_some(namespace);
    let (mut answers, mut code) = (Vec::new(), EXIT_OK);
    if names.is_empty() {
        let path = api::path(resource, namespace, None) + &api::query(&options.selectors());
        answers.push(match reported {
            Some(reported) => reported.all(options)?,
            None => api::fetch(&options.socket, &path, accept).await?,
        });
    }
    for name in names {
        let answer = match reported {
            Some(reported) => reported.one(name, options),
            None => api::fetch(&options.socket, &api::path(resource, namespace, Some(name)), accept).await,
        };
        match answer {
            Ok(answer) => answers.push(answer),
            Err(error @ CliError::Client(_)) => return Err(error),
            Err(error) => {
                let _ = writeln!(environment.err, "error: {error}");
                code = EXIT_FAILED;
            }
        }
    }
    let Some(first) = answers.first() else { return Ok(code) };
    let version = first["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let answer = if is_table { one_table(answers) } else { one_object(resource, answers, names.len() == 1) };
    if names.is_empty() && is_table && !options.watch && rows(&answer).is_empty() {
        let place = namespace.filter(|_| resource.namespaced);
        let place = place.map_or(String::new(), |namespace| format!(" in {namespace} namespace."));
        // As kubectl: on standard error, since it is not data.
        let _ = writeln!(environment.err, "No resources found{place}");
        return Ok(EXIT_OK);
    }
    printer.show(&answer, environment)?;
    if options.watch && code == EXIT_OK && names.len() <= 1 {
        let name = names.first().map(String::as_str);
        follow(resource, namespace, name, version, options, &mut printer, environment).await?;
    }
    Ok(code)
}

/// The rows of all tables below the columns of the first one.
fn one_table(tables: Vec<Value>) -> Value {
    let mut tables = tables.into_iter();
    let mut table = tables.next().unwrap_or_default();
    if let Some(all) = table["rows"].as_array_mut() {
        tables.for_each(|table| all.extend_from_slice(rows(&table)));
    }
    table
}

/// The only object, or a `List`, as kubectl prints them.
fn one_object(resource: &Resource, answers: Vec<Value>, is_alone: bool) -> Value {
    let mut items = Vec::new();
    for mut answer in answers {
        match answer.get_mut("items").map(Value::take) {
            Some(Value::Array(more)) => items.extend(more),
            _ => items.push(answer),
        }
    }
    for item in &mut items {
        item["kind"] = json!(resource.kind);
        item["apiVersion"] = json!(resource.api_version());
    }
    match items.pop() {
        Some(only) if is_alone => only,
        last => {
            items.extend(last);
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
        }
    }
}

/// The objects of a resource that the agent reports, and its store has when it is not running.
struct ReportedObjects {
    view: View,
    /// By namespace and name.
    objects: Vec<ObjectReport>,
}

impl ReportedObjects {
    fn read(
        resource: &'static Resource,
        options: &CliOptions,
        environment: &mut Environment<'_>,
    ) -> Result<Self, CliError> {
        let kind = objects::reported_kind(resource);
        let detail = if kind.is_some() { ObjectDetail::Shown } else { ObjectDetail::Counted };
        let mut report = offline::report(options, detail, environment)?;
        let mut objects = match kind {
            Some(kind) => objects::of_kind(kind, &mut report),
            None => std::mem::take(&mut report.pods)
                .into_iter()
                .map(|found| ObjectReport {
                    object: pod(found, &report.node_name, None),
                    ..ObjectReport::default()
                })
                .collect(),
        };
        objects::select(&mut objects, options);
        let is_table = matches!(options.output, OutputFormat::Text | OutputFormat::Wide);
        let form = if is_table { Form::Table("v1") } else { Form::Whole };
        let view = View { resource, columns: None, form, rows: Rows::Metadata, now: environment.now };
        Ok(Self { view, objects })
    }

    fn all(&self, options: &CliOptions) -> Result<Value, CliError> {
        let [labels, fields] =
            [&options.selector, &options.field_selector].map(|given| given.as_deref().unwrap_or_default());
        let selector = Selector::parse(self.view.resource, labels, fields);
        let selector = selector.map_err(|failure| CliError::Answer(failure.message))?;
        Ok(self.shown(self.objects.iter().filter(|report| selector.matches(&report.object)).collect()))
    }

    fn one(&self, name: &str, options: &CliOptions) -> Result<Value, CliError> {
        let report = self.objects.iter().find(|report| report.object["metadata"]["name"] == name);
        let namespace = options.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let kind = self.view.resource.plural;
        let missing = || CliError::NotFound { kind, name: name.to_owned(), namespace };
        Ok(self.shown(vec![report.ok_or_else(missing)?]))
    }

    /// As the server shows them; of an object also where it is defined, which the API does not have.
    fn shown(&self, reports: Vec<&ObjectReport>) -> Value {
        let objects: Vec<&Value> = reports.iter().map(|report| &report.object).collect();
        let mut answer = self.view.many(&json!({"resourceVersion": ""}), &objects);
        let more: &[&str] = match self.view.resource.store {
            Store::Pods => &[],
            Store::Objects(ObjectKind::PersistentVolumeClaim) => &["Directory", "Origin"],
            _ => &["Origin"],
        };
        let Some(definitions) = answer.get_mut("columnDefinitions").and_then(Value::as_array_mut) else {
            return answer;
        };
        definitions.extend(more.iter().map(|name| json!({"name": name, "priority": 1})));
        let rows = answer["rows"].as_array_mut().into_iter().flatten();
        for (row, report) in rows.zip(reports) {
            let Some(cells) = row["cells"].as_array_mut() else { continue };
            let places = [&report.directory, &report.origin];
            cells.extend(places[2 - more.len()..].iter().map(|place| json!(place)));
        }
        answer
    }
}

/// Follows until the user interrupts or the agent is unreachable. A server ends a watch from time to time; it
/// is then restarted.
async fn follow(
    resource: &Resource,
    namespace: Option<&str>,
    name: Option<&str>,
    mut version: String,
    options: &CliOptions,
    printer: &mut Printer<'_>,
    environment: &mut Environment<'_>,
) -> Result<(), CliError> {
    let accept = if printer.is_table() { api::TABLE } else { api::OBJECTS };
    loop {
        let mut parameters = options.selectors();
        if let Some(name) = name {
            parameters.push(("fieldSelector", format!("metadata.name={name}")));
        }
        parameters.extend([
            ("watch", "true".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("resourceVersion", version.clone()),
        ]);
        let path = api::path(resource, namespace, None) + &api::query(&parameters);
        let mut expired = None;
        api::watch(&options.socket, &path, accept, |event| {
            let object = &event["object"];
            let newest = object["metadata"]["resourceVersion"]
                .as_str()
                .or_else(|| object["rows"][0]["object"]["metadata"]["resourceVersion"].as_str());
            if let Some(newest) = newest.filter(|newest| !newest.is_empty()) {
                newest.clone_into(&mut version);
            }
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED" | "DELETED") => printer.show(object, environment)?,
                Some("ERROR") => {
                    expired = Some(
                        object["message"].as_str().unwrap_or("the watch was closed by the agent").to_owned(),
                    );
                    return Ok(ControlFlow::Break(()));
                }
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })
        .await?;
        if let Some(message) = expired {
            return Err(CliError::Answer(message));
        }
    }
}

/// The items of a list, or the one object.
fn each(answer: &mut Value) -> &mut [Value] {
    if answer["items"].is_array() {
        return answer["items"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    }
    std::slice::from_mut(answer)
}

fn rows(table: &Value) -> &[Value] {
    table["rows"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Prints several answers: the header once, with stable column widths.
struct Printer<'a> {
    resource: &'static Resource,
    options: &'a CliOptions,
    /// The indices of the visible cells; a watch names its columns in the first event only.
    shown: Vec<usize>,
    widths: Vec<usize>,
    has_header: bool,
    paint: Paint,
}

impl<'a> Printer<'a> {
    fn new(resource: &'static Resource, options: &'a CliOptions) -> Self {
        Self {
            resource,
            options,
            shown: Vec::new(),
            widths: Vec::new(),
            has_header: options.no_headers,
            paint: Paint::default(),
        }
    }

    fn is_table(&self) -> bool {
        matches!(self.options.output, OutputFormat::Text | OutputFormat::Wide)
    }

    fn show(&mut self, answer: &Value, environment: &mut Environment<'_>) -> Result<(), CliError> {
        let text = match (&self.options.output, &self.options.template) {
            (OutputFormat::Text | OutputFormat::Wide, _) => self.table(answer, environment.colour),
            (OutputFormat::Name, _) => self.names(answer),
            (OutputFormat::JsonPath, Some(template)) => Template::parse(template)
                .map(|template| template.render(&self.masked(answer)))
                .map_err(|error| CliError::Answer(format!("error parsing jsonpath {template}, {error}")))?,
            (OutputFormat::Yaml, _) => to_yaml(&self.shortened(answer))?,
            _ => to_json(&self.shortened(answer))?,
        };
        print(environment, &text)
    }

    fn names(&self, answer: &Value) -> String {
        let items = answer["items"].as_array().map_or(std::slice::from_ref(answer), Vec::as_slice);
        let mut text = String::new();
        for item in items {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            text.extend([self.resource.singular, "/", name, "\n"]);
        }
        text
    }

    /// Values of Secrets are shown only on request, as everywhere in this program.
    fn masked(&self, answer: &Value) -> Value {
        let mut answer = answer.clone();
        if self.resource.kind == "Secret" && !self.options.show_secrets {
            for object in each(&mut answer) {
                for value in object["data"].as_object_mut().into_iter().flat_map(|data| data.values_mut()) {
                    let length = value.as_str().and_then(base64::decode).map_or(0, |bytes| bytes.len());
                    *value = json!(format!("<{length} bytes, hidden>"));
                }
            }
        }
        answer
    }

    /// As [`Self::masked`], and without managed fields, as kubectl prints JSON and YAML.
    fn shortened(&self, answer: &Value) -> Value {
        let mut answer = self.masked(answer);
        if !self.options.show_managed_fields {
            for object in each(&mut answer) {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
            }
        }
        answer
    }

    fn table(&mut self, answer: &Value, colour: bool) -> String {
        let wide = self.options.output == OutputFormat::Wide;
        let columns = answer["columnDefinitions"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !columns.is_empty() {
            self.shown =
                (0..columns.len()).filter(|index| wide || columns[*index]["priority"] == 0).collect();
        }
        let with_namespace = self.options.all_namespaces && self.resource.namespaced;
        let mut lines = Vec::new();
        if !self.has_header && !columns.is_empty() {
            self.has_header = true;
            let names = self.shown.iter().map(|index| columns[*index]["name"].as_str().unwrap_or_default());
            let place = with_namespace.then_some("NAMESPACE");
            let header: Vec<_> = place.into_iter().chain(names).map(str::to_uppercase).collect();
            if colour {
                self.paint = Paint::of(&header);
            }
            lines.push(header);
        }
        for row in rows(answer) {
            let namespace = row["object"]["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            let place = with_namespace.then_some(namespace);
            let text = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
            let cells = self.shown.iter().map(|index| text(&row["cells"][*index]));
            lines.push(place.into_iter().chain(cells).collect());
        }
        table::render_on(&lines, &mut self.widths, &self.paint)
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::Command;
    use super::*;

    #[test]
    fn managed_fields_are_shown_only_on_request() {
        let object = json!({"metadata": {"name": "a", "managedFields": [{}]}});
        let short = json!({"metadata": {"name": "a"}});
        let list = |item: &Value| json!({"kind": "List", "items": [item]});
        let resource = api::resource("pods").unwrap();
        for (argument, wanted) in [(None, &short), (Some("--show-managed-fields"), &object)] {
            let words: Vec<String> = ["pods"].into_iter().chain(argument).map(str::to_owned).collect();
            let options = CliOptions::parse(Command::Get, &words).unwrap();
            let printer = Printer::new(resource, &options);
            assert_eq!(printer.shortened(&object), *wanted, "{argument:?}");
            assert_eq!(printer.shortened(&list(&object)), list(wanted), "{argument:?}");
        }
    }
}
