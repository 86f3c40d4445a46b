//! `agent describe configmaps|secrets|pvc`: as kubectl prints them, but values of Secrets only on request.
//!
//! Owns the pages of objects.

use crate::model::ordered::Sortable as _;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

use super::args::CliOptions;
use super::table::printable;
use super::tabs::Tabbed;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, claims, offline, print};
use crate::model::objects::ObjectKind;
use crate::pod::volume::quota;
use crate::serve::localapi::printers::access_modes;
use crate::serve::localapi::resource::{Resource, Store};
use crate::serve::server::AgentReport;
use crate::serve::server::report::{ObjectDetail, ObjectReport};

/// The kind of a resource whose objects are in a report: ConfigMaps, Secrets, claims.
pub(super) fn reported_kind(resource: &Resource) -> Option<ObjectKind> {
    match resource.store {
        Store::Objects(
            kind @ (ObjectKind::ConfigMap | ObjectKind::Secret | ObjectKind::PersistentVolumeClaim),
        ) => Some(kind),
        _ => None,
    }
}

/// The objects of a kind in a report; claims without a manifest included.
pub(super) fn of_kind(kind: ObjectKind, report: &mut AgentReport) -> Vec<ObjectReport> {
    let released =
        if kind == ObjectKind::PersistentVolumeClaim { claims::released(report) } else { Vec::new() };
    let mut objects = std::mem::take(&mut report.objects);
    objects.extend(released);
    objects.retain(|object| text(&object.object, "/kind") == kind.as_str());
    objects
}

/// Keeps the objects of the requested namespaces, and sorts them by namespace and name.
pub(super) fn select(objects: &mut Vec<ObjectReport>, options: &CliOptions) {
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let place = |object: &ObjectReport| {
        ["/metadata/namespace", "/metadata/name"].map(|pointer| text(&object.object, pointer).to_owned())
    };
    objects.retain(|object| options.all_namespaces || place(object)[0] == namespace);
    objects.order_by_key(place);
}

pub(super) fn describe(
    resource: &'static Resource,
    kind: ObjectKind,
    names: &[String],
    options: &CliOptions,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let detail = if options.show_secrets { ObjectDetail::Shown } else { ObjectDetail::Hidden };
    let mut report = offline::report(options, detail, environment)?;
    let mut objects = of_kind(kind, &mut report);
    select(&mut objects, options);
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let matches =
        |object: &ObjectReport, name: &String| text(&object.object, "/metadata/name").starts_with(name);
    let missing: Vec<&String> =
        names.iter().filter(|name| !objects.iter().any(|object| matches(object, name))).collect();
    if !names.is_empty() {
        objects.retain(|object| names.iter().any(|name| matches(object, name)));
    }
    if objects.is_empty() && names.is_empty() {
        let place =
            if options.all_namespaces { String::new() } else { format!(" in {namespace} namespace.") };
        // As kubectl: on standard error, since it is not data.
        let _ = writeln!(environment.err, "No resources found{place}");
        return Ok(EXIT_OK);
    }
    let pages: Vec<String> =
        objects.iter().map(|object| page(kind, object, &report.pods, options.show_secrets)).collect();
    print(environment, &pages.join("\n\n"))?;
    for name in &missing {
        let (name, namespace) = ((*name).clone(), namespace.to_owned());
        let error = CliError::NotFound { kind: resource.plural, name, namespace };
        let _ = writeln!(environment.err, "error: {error}");
    }
    Ok(if missing.is_empty() { EXIT_OK } else { EXIT_FAILED })
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
        ObjectKind::RuntimeClass => field("Handler", text(object, "/handler")),
        ObjectKind::Secret => field("Type", text(object, "/type")),
        ObjectKind::PersistentVolumeClaim => {
            field("StorageClass", text(object, "/spec/storageClassName"));
            field("Status", text(object, "/status/phase"));
            field("Volume", text(object, "/spec/volumeName"));
            field("Capacity", text(object, "/status/capacity/storage"));
            field("Access Modes", &access_modes(object));
            field("VolumeMode", text(object, "/spec/volumeMode"));
            if !report.directory.is_empty() {
                field("Directory", &report.directory);
                field("Limit", &quota::shown(Path::new(&report.directory)));
            }
            let users = users(object, pods);
            field("Used By", if users.is_empty() { "<none>" } else { &users });
        }
        _ => {}
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
