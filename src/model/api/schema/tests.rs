//! The table against what is served, and against the types that are decoded and shown.

mod sample;

use serde_json::{Value, json};

use super::*;
use crate::model::api::object::{ConfigMap, Namespace, PersistentVolumeClaim, Secret};
use crate::model::api::pod::Pod;
use crate::model::node_changes::Taint;
use crate::model::types::Timestamp;
use crate::node::object::{Condition, Image, NodeState};
use crate::serve::localapi::resource::{Catalog, group_version};
use crate::serve::localapi::{implied, objects};
use crate::store::{EventKey, StoredEvent};

#[test]
fn the_table_is_read_whole() {
    let schema = Schema::load();
    let source = [
        include_str!("access.txt"),
        include_str!("core.txt"),
        include_str!("groups.txt"),
        include_str!("kept.txt"),
        include_str!("machinery.txt"),
        include_str!("services.txt"),
        include_str!("workloads.txt"),
    ];
    let lines = source.iter().flat_map(|text| text.lines());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(schema.text.lines().collect::<Vec<_>>(), lines);
    let fields: usize = schema.types().filter(|of| !of.is_list).map(|of| of.body.lines().count()).sum();
    assert_eq!(fields, lines.iter().filter(|line| line.starts_with(' ')).count());
    assert_eq!(hash().len(), 8);
}

#[test]
fn every_field_and_every_type_is_found_by_its_name() {
    let schema = Schema::load();
    for of in schema.types() {
        let fields: Vec<Field<'_>> = of.fields().collect();
        for field in &fields {
            assert_eq!(of.field(field.name).as_ref(), Some(field), "{}", of.full_name());
            for other in [format!("{}x", field.name), format!("{} ", field.name), field.name[1..].to_owned()]
            {
                let is_there = fields.iter().any(|field| field.name == other);
                assert_eq!(of.field(&other).is_some(), is_there, "{}.{other}", of.full_name());
            }
        }
        assert_eq!(of.field(""), None);
        if !of.is_list {
            let found: Vec<usize> = schema.all_named(of.name).map(|found| found.index).collect();
            let same = schema.types().filter(|other| other.name == of.name && !other.is_list);
            assert_eq!(found, same.map(|same| same.index).collect::<Vec<_>>(), "{}", of.name);
        }
    }
    assert_eq!(
        schema.all_named("Po").count() + schema.all_named("").count() + schema.all_named("zz").count(),
        0
    );
}

#[test]
fn schema_table_has_only_known_types_and_marks() {
    let schema = Schema::load();
    let plain = ["string", "bytes", "bool", "int32", "int64", "double"];
    for of in schema.types() {
        let name = of.full_name();
        for mark in of.marks.split(' ').filter(|mark| !mark.is_empty()) {
            assert!(
                matches!(mark, "kind" | "list" | "atomic") || mark.starts_with("scalar="),
                "{name}: {mark}"
            );
        }
        let same = schema.types().filter(|other| other.full_name() == name).count();
        assert_eq!(same, 1, "{name} is there twice");
        let mut before = String::new();
        for field in of.fields().skip(if of.is_kind() { 2 } else { 0 }) {
            let what = format!("{name}.{}", field.name);
            assert!(before.as_str() < field.name, "{what} is not in order");
            field.name.clone_into(&mut before);
            let shape = inner(field.shape);
            assert!(plain.contains(&shape) || schema.named(of, shape).is_some(), "{what}: {shape}");
            for mark in field.marks.split(' ').filter(|mark| !mark.is_empty()) {
                let (word, is_list) = (mark.split('=').next(), field.shape.starts_with("[]"));
                match word {
                    Some("by" | "keys" | "patch") => {
                        let item = schema.named(of, shape).expect("a list of objects");
                        for key in mark.split('=').nth(1).expect("keys").split(',') {
                            let key = item.field(key).expect("a field of the items");
                            assert!(key.is_required || key.mark("default").is_some() || key.name == "name");
                        }
                    }
                    Some("set" | "union" | "retain") => assert!(is_list, "{what}: {mark}"),
                    Some("atomic" | "granular") => assert!(!is_list, "{what}: {mark}"),
                    Some("enum" | "default") => assert_eq!(shape, "string", "{what}: {mark}"),
                    Some(number) if number.starts_with('#') => {}
                    _ => panic!("{what}: {mark}"),
                }
            }
        }
    }
}

#[test]
fn every_type_and_field_has_a_description() {
    let schema = Schema::load();
    for of in schema.types() {
        assert!(!of.text.is_empty(), "{}", of.full_name());
        for field in of.fields() {
            assert!(!field.text.is_empty(), "{}.{}", of.full_name(), field.name);
        }
    }
}

#[test]
fn every_kind_that_is_served_has_a_type() {
    let schema = Schema::load();
    for resource in Catalog::default().all() {
        let kind = schema.of_kind(&resource.api_version(), resource.kind).expect(resource.kind);
        let is_listed = resource.verbs.contains(&crate::serve::localapi::resource::Verb::List);
        assert_eq!(schema.list_of(kind).is_some(), is_listed, "{}", resource.kind);
        for part in resource.subresources {
            // What is connected to takes its options in the path.
            if part.kind.2.ends_with("Options") {
                continue;
            }
            let (group, version, kind) = match part.kind {
                (_, "", kind) => (resource.group, resource.version, kind),
                of_another => of_another,
            };
            assert!(schema.of_kind(&group_version(group, version), kind).is_some(), "{kind}");
        }
    }
    let pods = schema.types().find(|of| of.short_name() == "PodList").unwrap();
    let items = pods.field("items").unwrap();
    assert_eq!(schema.named(pods, inner(items.shape)), schema.of_kind("v1", "Pod"));
    assert_eq!(
        pods.fields().map(|field| field.name).collect::<Vec<_>>(),
        ["apiVersion", "kind", "items", "metadata"]
    );
}

#[test]
fn type_name_resolves_in_its_own_package_first() {
    let schema = Schema::load();
    for (group_version, package) in [("v1", "core"), ("events.k8s.io/v1", "events")] {
        let event = schema.of_kind(group_version, "Event").unwrap();
        let series = schema.named(event, event.field("series").unwrap().shape).unwrap();
        assert_eq!(series.package, format!("io.k8s.api.{package}.v1"));
    }
}

/// What in an object the type does not have, as paths.
fn strange(schema: &Schema, of: Type<'_>, shape: &str, value: &Value, path: &str, found: &mut Vec<String>) {
    // The sample value of fields that are kept as raw JSON: they have no type in the schema.
    if *value == sample::RAW {
        return;
    }
    if let Some(item) = shape.strip_prefix("[]") {
        match value.as_array() {
            Some(items) => items.iter().for_each(|value| strange(schema, of, item, value, path, found)),
            None => found.push(format!("{path} is no list")),
        }
        return;
    }
    if let Some(entry) = shape.strip_prefix("{}") {
        match value.as_object() {
            Some(map) => map.values().for_each(|value| strange(schema, of, entry, value, path, found)),
            None => found.push(format!("{path} is no map")),
        }
        return;
    }
    let named = schema.named(of, shape);
    let fits = match (shape, named.and_then(|named| named.scalar())) {
        ("bool", _) => value.is_boolean(),
        ("int32" | "int64" | "double", _) => value.is_number(),
        ("string" | "bytes", _) => value.is_string(),
        (_, Some(scalar)) if scalar.contains("integer") => value.is_string() || value.is_number(),
        (_, Some(_)) => value.is_string() || value.is_null(),
        _ => value.is_object(),
    };
    if !fits {
        found.push(format!("{path} is {value} instead of {shape}"));
        return;
    }
    if let Some(named) = named.filter(|named| named.scalar().is_none()) {
        members(schema, named, value, path, found);
    }
}

fn members(schema: &Schema, of: Type<'_>, value: &Value, path: &str, found: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match of.field(name) {
            Some(field) => strange(schema, of, field.shape, value, &path, found),
            None => found.push(path),
        }
    }
}

fn strangers(group_version: &str, kind: &str, value: &Value) -> Vec<String> {
    let schema = Schema::load();
    let mut found = Vec::new();
    members(&schema, schema.of_kind(group_version, kind).expect(kind), value, "", &mut found);
    found
}

#[test]
fn what_is_decoded_has_no_field_that_the_table_has_not() {
    // Some types here are shared by several of upstream's, and one is of an earlier release.
    assert_eq!(
        strangers("v1", "Pod", &json!(sample::of::<Pod>())),
        [
            ".spec.containers.targetContainerName",
            ".spec.initContainers.targetContainerName",
            ".spec.volumes.projected.sources.configMap.defaultMode",
            ".spec.volumes.projected.sources.downwardAPI.defaultMode",
            ".spec.workloadRef",
            ".status.containerStatuses.volumeMounts.mountPropagation",
            ".status.containerStatuses.volumeMounts.subPath",
            ".status.containerStatuses.volumeMounts.subPathExpr",
            ".status.ephemeralContainerStatuses.volumeMounts.mountPropagation",
            ".status.ephemeralContainerStatuses.volumeMounts.subPath",
            ".status.ephemeralContainerStatuses.volumeMounts.subPathExpr",
            ".status.initContainerStatuses.volumeMounts.mountPropagation",
            ".status.initContainerStatuses.volumeMounts.subPath",
            ".status.initContainerStatuses.volumeMounts.subPathExpr",
        ]
    );
    let nothing: [&str; 0] = [];
    assert_eq!(strangers("v1", "ConfigMap", &json!(sample::of::<ConfigMap>())), nothing);
    assert_eq!(strangers("v1", "Secret", &json!(sample::of::<Secret>())), nothing);
    assert_eq!(strangers("v1", "Namespace", &json!(sample::of::<Namespace>())), nothing);
    let claim = json!(sample::of::<PersistentVolumeClaim>());
    assert_eq!(strangers("v1", "PersistentVolumeClaim", &claim), nothing);
    // The sample is a whole one.
    assert!(claim.pointer("/spec/resources/requests/key").is_some(), "{claim}");
}

#[test]
fn what_is_shown_has_no_field_that_the_table_has_not() {
    let state = NodeState {
        name: "box".into(),
        taints: vec![Taint { key: "a".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() }],
        pod_cidrs: vec!["10.0.0.0/24".into()],
        addresses: vec!["10.0.0.1".into()],
        conditions: vec![Condition { kind: "Ready", holds: true, ..Condition::default() }],
        images: vec![Image { names: vec!["a".into()], size: 1 }],
        info: vec![("kernelVersion", "6".into())],
        unschedulable: true,
        ..NodeState::default()
    };
    let key =
        EventKey { kind: "Pod".into(), name: "web".into(), field_path: "spec".into(), ..EventKey::default() };
    let at = Timestamp::from_secs(1000);
    let event = objects::event(&StoredEvent { key, count: 1, first: at, last: at }, "box");
    for (group_version, kind, object) in [
        ("v1", "Node", crate::node::object::node(&state)),
        ("v1", "Namespace", implied::namespace("a", at)),
        ("events.k8s.io/v1", "Event", objects::new_event(&event)),
        ("v1", "Event", event),
    ] {
        assert!(object["metadata"].is_object(), "{object}");
        let nothing: [&str; 0] = [];
        assert_eq!(strangers(group_version, kind, &object), nothing, "{kind}");
        let schema = Schema::load();
        for field in
            schema.of_kind(group_version, kind).expect(kind).fields().filter(|field| field.is_required)
        {
            assert!(object.get(field.name).is_some(), "{kind}: {}", field.name);
        }
    }
}
