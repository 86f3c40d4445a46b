//! `agent describe` of kinds without a page of their own: namespaces, events, volumes.
//!
//! Owns the outline.

use serde_json::Value;

use super::{Tabbed, field, several};
use crate::cmd::cli::args::CliOptions;
use crate::cmd::cli::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, print, to_yaml};
use crate::serve::localapi::resource::Resource;

pub(super) async fn show(
    resource: &Resource,
    names: &[String],
    options: &CliOptions,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let namespace = (!options.all_namespaces).then_some(namespace);
    let list = api::fetch(&options.socket, &api::path(resource, namespace, None), api::OBJECTS).await?;
    let objects: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut shown: Vec<&Value> = Vec::new();
    let mut code = EXIT_OK;
    for wanted in names {
        let exact = objects.iter().any(|object| name(object) == *wanted);
        let is_it = |object: &&&Value| {
            if exact { name(object) == *wanted } else { name(object).starts_with(wanted.as_str()) }
        };
        let found: Vec<&Value> = objects.iter().filter(is_it).copied().collect();
        if found.is_empty() {
            let _ = writeln!(environment.err, "error: {} {wanted:?} not found", resource.plural);
            code = EXIT_FAILED;
        }
        shown.extend(found);
    }
    if names.is_empty() {
        shown = objects;
        if shown.is_empty() {
            let _ = writeln!(environment.err, "No resources found.");
        }
    }
    let pages: Result<Vec<String>, CliError> = shown.into_iter().map(page).collect();
    print(environment, &pages?.join("\n\n"))?;
    Ok(code)
}

/// Metadata as on every page, everything else unchanged.
fn page(object: &Value) -> Result<String, CliError> {
    let mut out = Tabbed::default();
    let metadata = &object["metadata"];
    let text = |name: &str| metadata[name].as_str().unwrap_or_default();
    field(&mut out, 0, "Name", text("name"));
    if !text("namespace").is_empty() {
        field(&mut out, 0, "Namespace", text("namespace"));
    }
    for (title, name, sign) in [("Labels", "labels", "="), ("Annotations", "annotations", ": ")] {
        let pairs = metadata[name].as_object().into_iter().flatten();
        let lines = pairs.map(|(key, value)| [key, sign, value.as_str().unwrap_or_default()].concat());
        several(&mut out, title, lines.collect());
    }
    field(&mut out, 0, "Created", text("creationTimestamp"));
    let mut rest = object.clone();
    if let Some(rest) = rest.as_object_mut() {
        rest.retain(|name, _| !matches!(name.as_str(), "metadata" | "apiVersion" | "kind"));
    }
    let rest =
        if rest.as_object().is_some_and(serde_json::Map::is_empty) { String::new() } else { to_yaml(&rest)? };
    Ok(out.finish() + &rest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn page_has_metadata_and_everything_else() {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "status": {"phase": "Active"},
            "metadata": {"name": "x", "labels": {"a": "b"}, "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}});
        let expected = "\
Name:         x
Labels:       a=b
Annotations:  <none>
Created:      2026-01-01T00:00:00Z
status:
  phase: Active
";
        assert_eq!(page(&object).unwrap(), expected);
    }
}
