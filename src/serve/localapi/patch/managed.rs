//! `metadata.managedFields`: field ownership, and how a write changes it.
//!
//! Owns the entries.

use serde_json::{Value, json};

use super::fields::{FieldSet, compare};
use super::schema::Shape;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagerEntry {
    pub manager: String,
    pub operation: Operation,
    /// The version of the object in which it wrote.
    pub api_version: String,
    pub time: Option<Timestamp>,
    /// Empty for the object itself.
    pub subresource: String,
    pub fields: FieldSet,
}

#[derive(Clone, Debug)]
pub(crate) struct Writer<'a> {
    /// `fieldManager`, or the prefix of the client's user agent.
    pub manager: &'a str,
    /// The version of the object, as in `apiVersion`.
    pub api_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub now: Timestamp,
}

/// Fields without an owner: they identify the object, or the node writes them.
const UNOWNED: [&str; 3] = ["f:apiVersion", "f:kind", "f:status"];
const UNOWNED_METADATA: [&str; 12] = [
    "f:name",
    "f:generateName",
    "f:namespace",
    "f:selfLink",
    "f:uid",
    "f:resourceVersion",
    "f:generation",
    "f:creationTimestamp",
    "f:deletionTimestamp",
    "f:deletionGracePeriodSeconds",
    "f:managedFields",
    "f:clusterName",
];

/// The most update managers of one object; upstream merges the oldest entries beyond this number.
const MAX_UPDATE_MANAGERS: usize = 10;

/// Removes the fields that have no owner.
#[must_use]
pub(in crate::serve) fn owned(fields: FieldSet) -> FieldSet {
    fields.without(&UNOWNED, &UNOWNED_METADATA)
}

/// The entries of an object; malformed ones are ignored.
#[must_use]
pub(in crate::serve) fn read(list: &[Value]) -> Vec<ManagerEntry> {
    list.iter().filter_map(entry).collect()
}

fn entry(value: &Value) -> Option<ManagerEntry> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let operation = match text("operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return None,
    };
    Some(ManagerEntry {
        manager: text("manager").to_owned(),
        operation,
        api_version: text("apiVersion").to_owned(),
        time: Timestamp::parse_rfc3339(text("time")),
        subresource: text("subresource").to_owned(),
        fields: FieldSet::read(value.get("fieldsV1")?),
    })
}

/// In Kubernetes' order: applied ones first, then by time and name.
#[must_use]
pub(in crate::serve) fn write(mut entries: Vec<ManagerEntry>) -> Vec<Value> {
    entries.order_by(|one, other| {
        let key = |entry: &ManagerEntry| {
            (entry.operation, entry.time, entry.manager.clone(), entry.subresource.clone())
        };
        key(one).cmp(&key(other))
    });
    entries
        .into_iter()
        .map(|entry| {
            let mut value = json!({
                "manager": entry.manager,
                "operation": entry.operation.as_str(),
                "apiVersion": entry.api_version,
                "fieldsType": "FieldsV1",
                "fieldsV1": entry.fields.write(),
            });
            if let Some(time) = entry.time {
                value["time"] = json!(time.to_rfc3339());
            }
            if !entry.subresource.is_empty() {
                value["subresource"] = json!(entry.subresource);
            }
            value
        })
        .collect()
}

/// The entries after `new` was written over `old` (null on create) other than by apply.
#[must_use]
pub(in crate::serve) fn after_update(
    entries: Vec<ManagerEntry>,
    old: &Value,
    new: &Value,
    shape: Shape<'_>,
    writer: &Writer<'_>,
) -> Vec<ManagerEntry> {
    let nothing = json!({});
    let changes = compare(if old.is_null() { &nothing } else { old }, new, shape);
    let (set, removed) = (owned(changes.set), owned(changes.removed));
    if set.is_empty() && removed.is_empty() {
        return entries;
    }
    let mut entries = entries;
    let is_writer = |entry: &ManagerEntry| {
        entry.operation == Operation::Update
            && entry.manager == writer.manager
            && entry.subresource == writer.subresource
    };
    for entry in &mut entries {
        if !is_writer(entry) {
            entry.fields = entry.fields.difference(&set);
        }
        entry.fields = entry.fields.difference(&removed);
    }
    match entries.iter_mut().find(|entry| is_writer(entry)) {
        Some(own) => {
            own.fields = std::mem::take(&mut own.fields).union(&set);
            own.time = Some(writer.now);
        }
        None => entries.push(ManagerEntry {
            manager: writer.manager.to_owned(),
            operation: Operation::Update,
            api_version: writer.api_version.to_owned(),
            time: Some(writer.now),
            subresource: writer.subresource.to_owned(),
            fields: set,
        }),
    }
    entries.retain(|entry| !entry.fields.is_empty());
    join_oldest(entries)
}

/// Updates by many clients would grow without bound: the oldest entries are merged into one.
fn join_oldest(mut entries: Vec<ManagerEntry>) -> Vec<ManagerEntry> {
    loop {
        let mut updates: Vec<(Option<Timestamp>, usize)> = entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.operation == Operation::Update && entry.subresource.is_empty())
            .map(|(at, entry)| (entry.time, at))
            .collect();
        if updates.len() <= MAX_UPDATE_MANAGERS {
            return entries;
        }
        updates.order_by(Ord::cmp);
        let (first, second) = (updates[0].1, updates[1].1);
        let fields = entries[first].fields.clone();
        let joined = &mut entries[second];
        joined.fields = std::mem::take(&mut joined.fields).union(&fields);
        "ancient-changes".clone_into(&mut joined.manager);
        entries.remove(first);
    }
}
