//! The representation that a client requests: whole objects, rows of a table, or metadata only.
//!
//! Owns the negotiation and the forms. Pure.

use std::rc::Rc;

use serde_json::{Value, json};

use super::autoscaler;
use super::discovery::AGGREGATED;
use super::objects::new_event;
use super::printers::{CustomColumn, custom_cells, custom_definitions};
use super::resource::{Resource, Store};
use super::status::{self, Failure};
use crate::model::objects::ObjectKind;
use crate::model::types::Timestamp;
use crate::serve::localapi::printers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    /// `meta.k8s.io` tables of this version.
    Table(&'static str),
    /// `PartialObjectMetadata` of this version.
    Metadata(&'static str),
}

/// What each row of a table contains: `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rows {
    #[default]
    Metadata,
    Objects,
    /// `None`.
    Bare,
}

impl Rows {
    /// Parses `includeObject`.
    pub(in crate::serve) fn parse(word: &str) -> Result<Self, Failure> {
        match word {
            "" | "Metadata" => Ok(Self::Metadata),
            "Object" => Ok(Self::Objects),
            "None" => Ok(Self::Bare),
            other => {
                let message = format!(
                    "includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
                );
                Err(status::bad_request(message))
            }
        }
    }
}

/// The entries of an `Accept` header: each media type and its parameters.
fn accepted(header: &str) -> impl Iterator<Item = (&str, Vec<(&str, &str)>)> {
    header.split(',').map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        (kind, parts.filter_map(|part| part.split_once('=')).collect())
    })
}

fn is_json(kind: &str) -> bool {
    matches!(kind, "" | "*/*" | "application/*" | "application/json")
}

fn one_of(versions: [&'static str; 2], wanted: &str) -> Option<&'static str> {
    versions.into_iter().find(|version| *version == wanted)
}

/// The first supported form.
///
/// # Errors
/// 406 when there is none.
pub(crate) fn form(accept: &str) -> Result<Form, Failure> {
    for (kind, parameters) in accepted(accept) {
        let get = |name: &str| parameters.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
        if !is_json(kind) {
            continue;
        }
        let Some(shape) = get("as") else { return Ok(Form::Whole) };
        let version = one_of(["v1", "v1beta1"], get("v").unwrap_or_default());
        let group = get("g") == Some("meta.k8s.io");
        match (shape, version) {
            ("Table", Some(version)) if group => return Ok(Form::Table(version)),
            ("PartialObjectMetadata" | "PartialObjectMetadataList", Some(version)) if group => {
                return Ok(Form::Metadata(version));
            }
            _ => {}
        }
    }
    Err(status::not_acceptable())
}

/// The version of aggregated discovery and its content type, if the client prefers it to the plain one.
#[must_use]
pub(in crate::serve) fn aggregated(accept: &str) -> Option<(&'static str, &'static str)> {
    for (kind, parameters) in accepted(accept) {
        let get = |name: &str| parameters.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
        if !is_json(kind) {
            continue;
        }
        let shape = get("as")?;
        let is_ours = shape == "APIGroupDiscoveryList" && get("g") == Some("apidiscovery.k8s.io");
        let found = AGGREGATED.into_iter().find(|(version, _)| get("v") == Some(*version));
        if is_ours && found.is_some() {
            return found;
        }
    }
    None
}

/// Whether the objects of this resource may be stored in another group or version.
fn is_translated(resource: &Resource) -> bool {
    match resource.store {
        Store::Events => !resource.group.is_empty(),
        Store::Objects(kind) => kind.version() != resource.version,
        _ => false,
    }
}

/// An object in the resource's own group and version.
#[must_use]
pub(crate) fn own(resource: &Resource, object: &Value) -> Value {
    match resource.store {
        _ if !is_translated(resource) => object.clone(),
        Store::Events => new_event(object),
        Store::Objects(ObjectKind::HorizontalPodAutoscaler) => autoscaler::to_v1(object.clone()),
        _ => {
            let mut object = object.clone();
            object["apiVersion"] = json!(resource.api_version());
            object
        }
    }
}

fn metadata(object: &Value, version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object.get("metadata").cloned().unwrap_or_default(),
    })
}

/// The representation of objects for one client.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub resource: &'static Resource,
    /// Of a resource of a definition.
    pub columns: Option<Rc<Vec<CustomColumn>>>,
    pub form: Form,
    pub rows: Rows,
    pub now: Timestamp,
}

impl View {
    fn table(&self, version: &str, list: &Value, objects: &[&Value], headed: bool) -> Value {
        let row = |object: &&Value| {
            let cells = match &self.columns {
                Some(columns) => custom_cells(columns, object, self.now),
                None => printers::cells(self.resource, object, self.now),
            };
            let mut row = json!({"cells": cells});
            if let Some(conditions) = printers::conditions(self.resource, object) {
                row["conditions"] = conditions;
            }
            row["object"] = match self.rows {
                Rows::Bare => return row,
                Rows::Metadata => metadata(object, version),
                Rows::Objects => own(self.resource, object),
            };
            row
        };
        let definitions = match &self.columns {
            _ if !headed => Value::Null,
            Some(columns) => json!(custom_definitions(columns)),
            None => json!(printers::definitions(self.resource)),
        };
        json!({
            "kind": "Table",
            "apiVersion": format!("meta.k8s.io/{version}"),
            "metadata": list,
            "columnDefinitions": definitions,
            "rows": objects.iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// Whether [`one`](Self::one) returns an object unchanged.
    #[must_use]
    pub(in crate::serve) fn shows_unchanged(&self) -> bool {
        self.form == Form::Whole && !is_translated(self.resource)
    }

    /// One object. `headed`: a table includes its column definitions.
    #[must_use]
    pub(in crate::serve) fn one(&self, object: &Value, headed: bool) -> Value {
        match self.form {
            Form::Whole => own(self.resource, object),
            Form::Metadata(version) => metadata(object, version),
            Form::Table(version) => {
                let list = json!({"resourceVersion": super::text(object, "/metadata/resourceVersion")});
                self.table(version, &list, &[object], headed)
            }
        }
    }

    /// A list, with the list's own metadata.
    #[must_use]
    pub(crate) fn many(&self, list: &Value, objects: &[&Value]) -> Value {
        match self.form {
            Form::Table(version) => self.table(version, list, objects, true),
            Form::Metadata(version) => {
                let items: Vec<Value> = objects.iter().map(|object| metadata(object, version)).collect();
                let api_version = format!("meta.k8s.io/{version}");
                json!({"kind": "PartialObjectMetadataList", "apiVersion": api_version, "metadata": list, "items": items})
            }
            Form::Whole => {
                // Items of a list carry no `kind` and `apiVersion`, as upstream's.
                let bare = |object: &&Value| {
                    let mut object = own(self.resource, object);
                    if self.resource.is_custom() {
                        // Upstream keeps them there.
                        return object;
                    }
                    if let Some(fields) = object.as_object_mut() {
                        fields.remove("kind");
                        fields.remove("apiVersion");
                    }
                    object
                };
                let items: Vec<Value> = objects.iter().map(bare).collect();
                let kind = format!("{}List", self.resource.kind);
                json!({"kind": kind, "apiVersion": self.resource.api_version(), "metadata": list, "items": items})
            }
        }
    }

    /// The object of a bookmark: the kind and a version.
    #[must_use]
    pub(in crate::serve) fn bookmark(&self, version: u64, initial: bool) -> Value {
        let mut object = json!({
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": version.to_string()},
        });
        if initial {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.form {
            Form::Metadata(version) => metadata(&object, version),
            Form::Whole => object,
            Form::Table(form) => {
                let row = json!({"cells": [], "object": metadata(&object, form)});
                json!({
                    "kind": "Table",
                    "apiVersion": format!("meta.k8s.io/{form}"),
                    "metadata": {"resourceVersion": version.to_string()},
                    "columnDefinitions": null,
                    "rows": [row],
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::localapi::resource::find;

    #[test]
    fn the_first_form_that_we_have_is_taken() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(form(table).unwrap(), Form::Table("v1"));
        assert_eq!(form("application/vnd.kubernetes.protobuf, */*").unwrap(), Form::Whole);
        assert_eq!(form("").unwrap(), Form::Whole);
        assert_eq!(
            form("application/json;as=Table;v=v9;g=meta.k8s.io, application/json").unwrap(),
            Form::Whole
        );
        assert_eq!(
            form("application/json; as=PartialObjectMetadataList; g=meta.k8s.io; v=v1").unwrap(),
            Form::Metadata("v1")
        );
        assert_eq!(form("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(aggregated(discovery).map(|found| found.0), Some("v2"));
        assert_eq!(aggregated("application/json"), None);
        assert_eq!(aggregated("*/*"), None);
    }

    #[test]
    fn forms_of_one_object() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "resourceVersion": "7"}, "spec": {}, "status": {}});
        let view = |form, rows| View {
            resource: find("", "v1", "pods").unwrap(),
            columns: None,
            form,
            rows,
            now: Timestamp::default(),
        };
        let table = view(Form::Table("v1"), Rows::Metadata).many(&json!({"resourceVersion": "9"}), &[&pod]);
        assert_eq!((&table["kind"], &table["metadata"]["resourceVersion"]), (&json!("Table"), &json!("9")));
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["rows"][0]["cells"][0], "a");
        assert_eq!(view(Form::Table("v1"), Rows::Bare).one(&pod, true)["rows"][0].get("object"), None);
        assert_eq!(view(Form::Table("v1"), Rows::Objects).one(&pod, true)["rows"][0]["object"], pod);
        assert!(view(Form::Table("v1"), Rows::Bare).one(&pod, false)["columnDefinitions"].is_null());
        let list = view(Form::Whole, Rows::Metadata).many(&json!({}), &[&pod]);
        assert_eq!((&list["kind"], list["items"][0].get("kind")), (&json!("PodList"), None));
        let partial = view(Form::Metadata("v1"), Rows::Metadata).one(&pod, true);
        assert_eq!((&partial["kind"], partial.get("spec")), (&json!("PartialObjectMetadata"), None));
        let bookmark = view(Form::Whole, Rows::Metadata).bookmark(9, true);
        assert_eq!(bookmark["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    }
}
