//! `agent get|describe configmaps|secrets|pvc`: as kubectl prints them, but values of Secrets only on
//! request.
//!
//! Owns the tables and pages of objects.

use serde_json::{Value, json};
use std::fmt::Write;

use super::args::{CliOptions, OutputFormat};
use super::table::printable;
use super::tabs::Tabbed;
use super::{
    CliError, EXIT_FAILED, EXIT_OK, Environment, age, claims, offline, print, table, to_json, to_yaml,
};
use crate::model::objects::ObjectKind;
use crate::model::types::Timestamp;
use crate::serve::localapi::printers::access_modes;
use crate::serve::server::report::{ObjectDetail, ObjectReport};

/// The kind of a resource name on the command line.
pub(super) fn kind(word: &str) -> Option<ObjectKind> {
    match word {
        "configmaps" | "configmap" | "cm" => Some(ObjectKind::ConfigMap),
        "secrets" | "secret" => Some(ObjectKind::Secret),
        "persistentvolumeclaims" | "persistentvolumeclaim" | "pvc" => Some(ObjectKind::PersistentVolumeClaim),
        _ => None,
    }
}

/// The plural in messages.
pub(super) fn plural(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::ConfigMap => "configmaps",
        ObjectKind::Secret => "secrets",
        ObjectKind::PersistentVolumeClaim => "persistentvolumeclaims",
        ObjectKind::Namespace => "namespaces",
        ObjectKind::RuntimeClass => "runtimeclasses",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectCommand {
    /// `get`.
    Get,
    /// `describe`: a name may be a prefix.
    Describe,
}

pub(super) fn run(
    view: ObjectCommand,
    kind: ObjectKind,
    names: &[String],
    options: &CliOptions,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let detail = if options.show_secrets { ObjectDetail::Shown } else { ObjectDetail::Hidden };
    let report = offline::report(options, detail, environment)?;
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let released =
        if kind == ObjectKind::PersistentVolumeClaim { claims::released(&report) } else { Vec::new() };
    let mut objects: Vec<ObjectReport> = report.objects;
    objects.extend(released);
    let place = |object: &ObjectReport| {
        ["/metadata/namespace", "/metadata/name"].map(|pointer| text(&object.object, pointer).to_owned())
    };
    objects.sort_by_cached_key(place);
    objects.retain(|object| {
        text(&object.object, "/kind") == kind.as_str()
            && (options.all_namespaces || text(&object.object, "/metadata/namespace") == namespace)
    });
    let matches = |object: &ObjectReport, name: &str| {
        let own = text(&object.object, "/metadata/name");
        own == name || (view == ObjectCommand::Describe && own.starts_with(name))
    };
    let missing: Vec<&String> =
        names.iter().filter(|name| !objects.iter().any(|object| matches(object, name))).collect();
    if !names.is_empty() {
        objects.retain(|object| names.iter().any(|name| matches(object, name)));
    }
    let is_list =
        matches!(options.output, OutputFormat::Text | OutputFormat::Wide) || view == ObjectCommand::Describe;
    if objects.is_empty() && names.is_empty() && is_list {
        let place =
            if options.all_namespaces { String::new() } else { format!(" in {namespace} namespace.") };
        // As kubectl: on standard error, since it is not data.
        let _ = writeln!(environment.err, "No resources found{place}");
        return Ok(EXIT_OK);
    }
    if !objects.is_empty() || missing.is_empty() {
        let text = match view {
            ObjectCommand::Get => render(kind, &objects, options, names.len() == 1, environment.now)?,
            ObjectCommand::Describe => {
                let pages: Vec<String> = objects
                    .iter()
                    .map(|object| page(kind, object, &report.pods, options.show_secrets))
                    .collect();
                pages.join("\n\n")
            }
        };
        print(environment, &text)?;
    }
    for name in &missing {
        let error = CliError::ObjectNotFound {
            kind: plural(kind),
            name: (*name).clone(),
            namespace: namespace.to_owned(),
        };
        let _ = writeln!(environment.err, "error: {error}");
    }
    Ok(if missing.is_empty() { EXIT_OK } else { EXIT_FAILED })
}

fn render(
    kind: ObjectKind,
    objects: &[ObjectReport],
    options: &CliOptions,
    alone: bool,
    now: Timestamp,
) -> Result<String, CliError> {
    let value = || match objects {
        [only] if alone => only.object.clone(),
        _ => {
            let items: Vec<&Value> = objects.iter().map(|object| &object.object).collect();
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
        }
    };
    match options.output {
        OutputFormat::Json | OutputFormat::JsonPath => to_json(&value()),
        OutputFormat::Yaml => to_yaml(&value()),
        OutputFormat::Name => Ok(objects.iter().fold(String::new(), |mut lines, object| {
            let name = text(&object.object, "/metadata/name");
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{}/{name}", kind.as_str().to_lowercase());
            lines
        })),
        OutputFormat::Text | OutputFormat::Wide => {
            let wide = options.output == OutputFormat::Wide;
            let mut rows = vec![header(kind, wide)];
            rows.extend(objects.iter().map(|object| row(kind, object, wide, now)));
            if options.all_namespaces {
                let spaces =
                    objects.iter().map(|object| text(&object.object, "/metadata/namespace").to_owned());
                let spaces = std::iter::once("NAMESPACE".to_owned()).chain(spaces);
                rows.iter_mut().zip(spaces).for_each(|(row, namespace)| row.insert(0, namespace));
            }
            if options.no_headers {
                rows.remove(0);
            }
            Ok(table::render(&rows))
        }
    }
}

fn header(kind: ObjectKind, wide: bool) -> Vec<String> {
    let (columns, more): (&[&str], &[&str]) = match kind {
        ObjectKind::ConfigMap => (&["NAME", "DATA", "AGE"], &["ORIGIN"]),
        ObjectKind::Namespace => (&["NAME", "AGE"], &["ORIGIN"]),
        ObjectKind::RuntimeClass => (&["NAME", "HANDLER", "AGE"], &["ORIGIN"]),
        ObjectKind::Secret => (&["NAME", "TYPE", "DATA", "AGE"], &["ORIGIN"]),
        ObjectKind::PersistentVolumeClaim => (
            &["NAME", "STATUS", "VOLUME", "CAPACITY", "ACCESS MODES", "STORAGECLASS", "AGE"],
            &["DIRECTORY", "ORIGIN"],
        ),
    };
    columns.iter().chain(more.iter().filter(|_| wide)).map(|column| (*column).to_owned()).collect()
}

fn row(kind: ObjectKind, report: &ObjectReport, wide: bool, now: Timestamp) -> Vec<String> {
    let object = &report.object;
    let at = |pointer: &str| text(object, pointer).to_owned();
    let count = |field: &str| object.get(field).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    let data = (count("data") + count("binaryData")).to_string();
    let since =
        age::since_or_unknown(Timestamp::parse_rfc3339(text(object, "/metadata/creationTimestamp")), now);
    let mut row = vec![at("/metadata/name")];
    match kind {
        ObjectKind::ConfigMap => row.extend([data, since]),
        ObjectKind::Namespace => row.push(since),
        ObjectKind::RuntimeClass => row.extend([at("/handler"), since]),
        ObjectKind::Secret => row.extend([at("/type"), data, since]),
        ObjectKind::PersistentVolumeClaim => row.extend([
            at("/status/phase"),
            at("/spec/volumeName"),
            at("/status/capacity/storage"),
            access_modes(object),
            at("/spec/storageClassName"),
            since,
        ]),
    }
    if wide {
        if kind == ObjectKind::PersistentVolumeClaim {
            row.push(report.directory.clone());
        }
        row.push(report.origin.clone());
    }
    row
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn page(
    kind: ObjectKind,
    report: &ObjectReport,
    pods: &[crate::model::api::pod::Pod],
    shown: bool,
) -> String {
    let object = &report.object;
    let mut out = Tabbed::default();
    let mut field = |name: &str, value: &str| out.line(0, &format!("{name}:\t{}", printable(value)));
    field("Name", text(object, "/metadata/name"));
    field("Namespace", text(object, "/metadata/namespace"));
    for (name, pointer) in [("Labels", "/metadata/labels"), ("Annotations", "/metadata/annotations")] {
        let map = object.pointer(pointer).and_then(Value::as_object);
        let pairs: Vec<String> = map
            .into_iter()
            .flatten()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        field(name, if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(", ") }.as_str());
    }
    field("Origin", &report.origin);
    if object["immutable"] == true {
        field("Immutable", "true");
    }
    match kind {
        ObjectKind::ConfigMap | ObjectKind::Namespace => {}
        ObjectKind::RuntimeClass => field("Handler", text(object, "/handler")),
        ObjectKind::Secret => field("Type", text(object, "/type")),
        ObjectKind::PersistentVolumeClaim => {
            field("StorageClass", text(object, "/spec/storageClassName"));
            field("Status", text(object, "/status/phase"));
            field("Volume", text(object, "/spec/volumeName"));
            field("Capacity", text(object, "/status/capacity/storage"));
            field("Access Modes", &access_modes(object));
            field("VolumeMode", text(object, "/spec/volumeMode"));
            field("Directory", &report.directory);
            let users = users(object, pods);
            field("Used By", if users.is_empty() { "<none>" } else { &users });
        }
    }
    let mut page = out.finish();
    if kind != ObjectKind::PersistentVolumeClaim {
        data(&mut page, object, kind == ObjectKind::Secret && !shown);
    }
    page
}

fn users(claim: &Value, pods: &[crate::model::api::pod::Pod]) -> String {
    let (namespace, name) = (text(claim, "/metadata/namespace"), text(claim, "/metadata/name"));
    let uses = |pod: &&crate::model::api::pod::Pod| {
        let mut claims = pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        pod.metadata.namespace == namespace && claims.any(|claim| claim.claim_name == name)
    };
    pods.iter().filter(uses).map(|pod| pod.metadata.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Keys with their values; for hidden and binary ones the size. A value is printed unchanged, line breaks
/// included, except for control characters.
fn data(page: &mut String, object: &Value, hidden: bool) {
    page.push_str("\nData\n====\n");
    let members = |field: &str| object.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, value) in members("data") {
        let value = value.as_str().unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = if hidden {
            let size = value.trim_start_matches('<').trim_end_matches(", hidden>");
            writeln!(page, "{}:  {size}", printable(&key))
        } else {
            let lines: Vec<String> = value.lines().map(printable).collect();
            writeln!(page, "{}:\n----\n{}\n", printable(&key), lines.join("\n"))
        };
    }
    let binary = members("binaryData");
    if !binary.is_empty() {
        page.push_str("\nBinaryData\n====\n");
    }
    for (key, value) in binary {
        let bytes =
            crate::codec::base64::decode(value.as_str().unwrap_or_default()).map_or(0, |bytes| bytes.len());
        let _ = writeln!(page, "{}: {bytes} bytes", printable(&key));
    }
}
