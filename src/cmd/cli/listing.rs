//! `agent get` of resources that only the running agent has, or with `--watch`: through the node's Kubernetes
//! API.
//!
//! Owns the output of server-side tables, and watching them.

use std::ops::ControlFlow;

use serde_json::{Value, json};

use super::args::{CliOptions, OutputFormat};
use super::jsonpath::Template;
use super::table::Paint;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, print, table, to_json, to_yaml};
use crate::codec::base64;
use crate::platform::rt;
use crate::serve::localapi::resource::Resource;

/// Shows objects of a resource, and with `--watch` their changes.
pub(super) fn run(
    resource: &'static Resource,
    names: &[String],
    options: &CliOptions,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    rt::run(show(resource, names, options, environment)).map_err(CliError::Runtime)?
}

async fn show(
    resource: &'static Resource,
    names: &[String],
    options: &CliOptions,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let is_table = matches!(options.output, OutputFormat::Text | OutputFormat::Wide);
    let accept = if is_table { api::TABLE } else { api::OBJECTS };
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let namespace = (!options.all_namespaces).then_some(namespace);
    let mut printer = Printer::new(resource, options);
    let selected = options.selectors();
    if names.is_empty() {
        let path = api::path(resource, namespace, None) + &api::query(&selected);
        let list = api::fetch(&options.socket, &path, accept).await?;
        let is_empty = list["rows"].as_array().or(list["items"].as_array()).is_none_or(Vec::is_empty);
        if is_empty && is_table && !options.watch {
            let place = namespace.filter(|_| resource.namespaced);
            let place = place.map_or(String::new(), |namespace| format!(" in {namespace} namespace."));
            // As kubectl: on standard error, since it is not data.
            let _ = writeln!(environment.err, "No resources found{place}");
            return Ok(EXIT_OK);
        }
        printer.show(&list, environment)?;
        if options.watch {
            follow(resource, namespace, None, &list, options, &mut printer, environment).await?;
        }
        return Ok(EXIT_OK);
    }
    let (mut found, mut code) = (Vec::new(), EXIT_OK);
    for name in names {
        match api::fetch(&options.socket, &api::path(resource, namespace, Some(name)), accept).await {
            Ok(object) => found.push(object),
            Err(error) => {
                let _ = writeln!(environment.err, "error: {error}");
                code = EXIT_FAILED;
            }
        }
    }
    match (&mut found[..], is_table) {
        ([], _) => {}
        ([only], _) => printer.show(only, environment)?,
        (tables, true) => {
            let rows: Vec<Value> = tables.iter_mut().flat_map(|table| rows(table).to_vec()).collect();
            tables[0]["rows"] = json!(rows);
            printer.show(&tables[0], environment)?;
        }
        (objects, false) => {
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects});
            printer.show(&list, environment)?;
        }
    }
    if let ([name], [object], true) = (names, &found[..], options.watch) {
        follow(resource, namespace, Some(name), object, options, &mut printer, environment).await?;
    }
    Ok(code)
}

/// Follows until the user interrupts or the agent is unreachable. A server ends a watch from time to time; it
/// is then restarted.
async fn follow(
    resource: &Resource,
    namespace: Option<&str>,
    name: Option<&str>,
    seen: &Value,
    options: &CliOptions,
    printer: &mut Printer<'_>,
    environment: &mut Environment<'_>,
) -> Result<(), CliError> {
    let mut version = seen["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
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
            (OutputFormat::Yaml, _) => to_yaml(&self.masked(answer))?,
            _ => to_json(&self.masked(answer))?,
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
            let hide = |object: &mut Value| {
                for value in object["data"].as_object_mut().into_iter().flat_map(|data| data.values_mut()) {
                    let length = value.as_str().and_then(base64::decode).map_or(0, |bytes| bytes.len());
                    *value = json!(format!("<{length} bytes, hidden>"));
                }
            };
            match answer["items"].as_array_mut() {
                Some(items) => items.iter_mut().for_each(hide),
                None => hide(&mut answer),
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
