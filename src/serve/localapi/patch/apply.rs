//! Server-side apply (upstream: structured-merge-diff's `Updater.Apply`).
//!
//! Owns merging by ownership, conflicts and the removal of fields that are no longer applied.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{FieldSet, compare, is_one_value, item_step};
use super::managed::{ManagerEntry, Operation, Writer, owned};
use super::schema::{Keyed, Shape};
use super::strategic::arrange;

/// A field that another manager owns with a different value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The other manager as messages name it: `"name" using v1`.
    pub manager: String,
    /// For example `.data.key`.
    pub path: String,
}

/// The fields of other managers that an apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflicts(pub Vec<Conflict>);

impl Conflicts {
    /// Upstream's message for all conflicts.
    #[must_use]
    pub(in crate::serve) fn message(&self) -> String {
        if let [only] = self.0.as_slice() {
            return format!("Apply failed with 1 conflict: conflict with {}: {}", only.manager, only.path);
        }
        let mut by_manager: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for conflict in &self.0 {
            by_manager.entry(&conflict.manager).or_default().push(&conflict.path);
        }
        let mut lines = Vec::new();
        for (manager, paths) in by_manager {
            lines.push(format!("conflicts with {manager}:"));
            lines.extend(paths.iter().map(|path| format!("- {path}")));
        }
        format!("Apply failed with {} conflicts: {}", self.0.len(), lines.join("\n"))
    }
}

/// The object and its field managers after an apply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Applied {
    /// The object, with its previous managedFields.
    pub object: Value,
    pub entries: Vec<ManagerEntry>,
}

/// Applies `config` to `live` (an empty object on create).
///
/// # Errors
/// Conflicts with other managers' fields, unless `force` takes these over.
pub(crate) fn apply(
    live: &Value,
    entries: Vec<ManagerEntry>,
    config: Value,
    shape: Shape<'_>,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Applied, Conflicts> {
    let config = without_nulls(config);
    let set = owned(FieldSet::of(&config, shape));
    let mut entries = before_first(entries, live, shape, writer.api_version);
    let is_own = |entry: &ManagerEntry| {
        entry.operation == Operation::Apply
            && entry.manager == writer.manager
            && entry.subresource == writer.subresource
    };
    let merged = merge(live.clone(), config, shape);
    let changes = owned(compare(live, &merged, shape).set);
    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|entry| !is_own(entry)) {
        let taken = entry.fields.intersection(&changes);
        if force {
            entry.fields = entry.fields.difference(&taken);
        } else {
            let manager = printed(entry);
            conflicts
                .extend(taken.paths().into_iter().map(|path| Conflict { manager: manager.clone(), path }));
        }
    }
    if !conflicts.is_empty() {
        return Err(Conflicts(conflicts));
    }
    let last =
        entries.iter().find(|entry| is_own(entry)).map(|entry| entry.fields.clone()).unwrap_or_default();
    let kept = entries
        .iter()
        .filter(|entry| !is_own(entry))
        .fold(set.clone(), |kept, entry| kept.union(&entry.fields));
    let mut object = merged;
    last.difference(&set).remove_from(&mut object, &kept, shape);
    let removed = owned(compare(live, &object, shape).removed);
    match entries.iter_mut().find(|entry| is_own(entry)) {
        Some(own) => {
            if own.fields != set {
                own.time = Some(writer.now);
                own.fields = set;
            }
        }
        None => entries.push(ManagerEntry {
            manager: writer.manager.to_owned(),
            operation: Operation::Apply,
            api_version: writer.api_version.to_owned(),
            time: Some(writer.now),
            subresource: writer.subresource.to_owned(),
            fields: set,
        }),
    }
    for entry in entries.iter_mut().filter(|entry| !is_own(entry)) {
        entry.fields = entry.fields.difference(&removed);
    }
    entries.retain(|entry| !entry.fields.is_empty() || is_own(entry));
    Ok(Applied { object, entries })
}

/// An object that existed before any field was managed gets upstream's `before-first-apply` manager.
fn before_first(
    entries: Vec<ManagerEntry>,
    live: &Value,
    shape: Shape<'_>,
    api_version: &str,
) -> Vec<ManagerEntry> {
    if !entries.is_empty() || live.as_object().is_none_or(Map::is_empty) {
        return entries;
    }
    vec![ManagerEntry {
        manager: "before-first-apply".to_owned(),
        operation: Operation::Update,
        api_version: api_version.to_owned(),
        time: None,
        subresource: String::new(),
        fields: owned(FieldSet::of(live, shape)),
    }]
}

fn printed(entry: &ManagerEntry) -> String {
    let subresource = match entry.subresource.as_str() {
        "" => String::new(),
        subresource => format!(" with subresource {subresource:?}"),
    };
    let how = match (entry.operation, entry.time) {
        (Operation::Apply, _) => String::new(),
        (Operation::Update, None) => format!(" using {}", entry.api_version),
        (Operation::Update, Some(time)) => format!(" using {} at {}", entry.api_version, time.to_rfc3339()),
    };
    format!("{:?}{subresource}{how}", entry.manager)
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, member)| !member.is_null());
            Value::Object(kept.map(|(name, member)| (name, without_nulls(member))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        scalar => scalar,
    }
}

fn merge(live: Value, config: Value, shape: Shape<'_>) -> Value {
    match (live, config) {
        (Value::Object(mut live), Value::Object(config)) if !matches!(shape, Shape::Atomic) => {
            for (name, new) in config {
                let member = shape.member(&name);
                let merged = match live.remove(&name) {
                    Some(old) => merge(old, new, member),
                    None => new,
                };
                live.insert(name, merged);
            }
            Value::Object(live)
        }
        (Value::Array(live), Value::Array(config)) if !is_one_value(&config, shape) => match shape {
            Shape::Keyed(keyed) => {
                Value::Array(merge_list(live, config, &|item| item_step(&keyed, item), Some(&keyed)))
            }
            Shape::Set(_) => Value::Array(merge_list(live, config, &|item| Some(item.to_string()), None)),
            _ => Value::Array(config),
        },
        (_, config) => config,
    }
}

/// Merges lists by key. The applied order has precedence; other items keep their relative places. An applied
/// item replaces all live items of its key (upstream).
fn merge_list(
    live: Vec<Value>,
    config: Vec<Value>,
    key: &impl Fn(&Value) -> Option<String>,
    keyed: Option<&Keyed<'_>>,
) -> Vec<Value> {
    let before: Vec<Option<String>> = live.iter().map(key).collect();
    let order: Vec<Option<String>> = config.iter().map(key).collect();
    let mut items = live;
    for new in config {
        let wanted = key(&new);
        let mut old: Vec<Value> = items.extract_if(.., |item| key(item) == wanted).collect();
        items.push(match old.pop().filter(|_| old.is_empty()) {
            Some(old) => merge(old, new, keyed.map_or(Shape::Free, Keyed::item)),
            None => new,
        });
    }
    arrange(items, key, &before, &order)
}
