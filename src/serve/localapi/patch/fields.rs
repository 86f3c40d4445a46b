//! Sets of fields as in managedFields (`FieldsV1`), and the fields in which two versions of an object differ.
//!
//! Owns the sets and their notation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::schema::{Keyed, Shape};

use crate::model::ordered::Ordered as _;

/// A set of an object's fields: a tree whose steps are written as in `FieldsV1` (`f:spec`, `k:{"name":"c"}`,
/// `v:"x"`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// This node itself is in the set.
    here: bool,
    below: BTreeMap<String, FieldSet>,
}

/// How the items of a list are identified.
enum Items<'a> {
    /// By step; items and steps are unique.
    Apart(BTreeMap<String, &'a Value>),
    /// They are not unique: the list is one value.
    Whole,
}

fn items<'a>(list: &'a [Value], shape: Shape<'_>) -> Items<'a> {
    let mut apart = BTreeMap::new();
    for item in list {
        match step_of(item, shape) {
            Some(step) if !apart.contains_key(&step) => drop(apart.insert(step, item)),
            _ => return Items::Whole,
        }
    }
    match shape {
        Shape::Keyed(keyed) if !keyed.is_map() => Items::Whole,
        Shape::Keyed(_) | Shape::Set(_) => Items::Apart(apart),
        _ => Items::Whole,
    }
}

fn step_of(item: &Value, shape: Shape<'_>) -> Option<String> {
    match shape {
        Shape::Keyed(keyed) => item_step(&keyed, item),
        Shape::Set(_) if !item.is_object() && !item.is_array() => Some(format!("v:{item}")),
        _ => None,
    }
}

/// Whether a list has one owner: it is atomic, or its items are not unique.
pub(super) fn is_one_value(list: &[Value], shape: Shape<'_>) -> bool {
    matches!(items(list, shape), Items::Whole)
}

/// The items that an applied object may not have, as upstream reports them: those that appear twice in a list
/// by key or in a set, and null in a set.
pub(in crate::serve) fn misplaced(value: &Value, shape: Shape<'_>, path: &str) -> Vec<String> {
    let mut errors = Vec::new();
    match value {
        Value::Object(members) if !matches!(shape, Shape::Atomic) => {
            for (name, member) in members {
                errors.extend(misplaced(member, shape.member(name), &format!("{path}.{name}")));
            }
        }
        Value::Array(list) => {
            let mut steps = BTreeSet::new();
            for (index, item) in list.iter().enumerate() {
                if matches!(shape, Shape::Set(_)) && item.is_null() {
                    errors.push(format!(
                        "{path}: element {index}: associative list without keys has an element that's an explicit null"
                    ));
                    continue;
                }
                let Some(step) = step_of(item, shape) else { continue };
                let at = shown(&step);
                errors.extend(misplaced(item, item_shape(shape), &format!("{path}{at}")));
                if !steps.insert(step) {
                    errors.push(format!("{path}: duplicate entries for key {at}"));
                }
            }
        }
        _ => {}
    }
    errors
}

/// The path element of an item.
pub(super) fn item_step(keyed: &Keyed<'_>, item: &Value) -> Option<String> {
    keyed.key_of(item).map(|key| format!("k:{key}"))
}

/// The path element of a member.
pub(super) fn member_step(name: &str) -> String {
    format!("f:{name}")
}

fn item_shape(shape: Shape<'_>) -> Shape<'_> {
    match shape {
        Shape::Keyed(keyed) => keyed.item(),
        _ => Shape::Free,
    }
}

impl FieldSet {
    /// A set of the node itself.
    fn leaf() -> Self {
        Self { here: true, below: BTreeMap::new() }
    }

    #[must_use]
    pub(in crate::serve) fn is_empty(&self) -> bool {
        !self.here && self.below.values().all(Self::is_empty)
    }

    /// The subtree below a path element.
    #[must_use]
    pub(in crate::serve) fn at(&self, step: &str) -> Option<&Self> {
        self.below.get(step)
    }

    /// Every field that `value` sets.
    #[must_use]
    pub(in crate::serve) fn of(value: &Value, shape: Shape<'_>) -> Self {
        let mut set = Self::default();
        match value {
            Value::Object(members) if !matches!(shape, Shape::Atomic) => {
                for (name, member) in members {
                    let mut below = Self::of(member, shape.member(name));
                    below.here |= member.as_object().is_some_and(Map::is_empty);
                    set.insert(member_step(name), below);
                }
            }
            Value::Array(list) => match items(list, shape) {
                Items::Apart(items) => {
                    for (step, item) in items {
                        let mut below = Self::of(item, item_shape(shape));
                        below.here = true;
                        set.insert(step, below);
                    }
                }
                Items::Whole => set.here = true,
            },
            _ => set.here = true,
        }
        set
    }

    fn insert(&mut self, step: String, below: Self) {
        if !below.is_empty() {
            self.below.insert(step, below);
        }
    }

    #[must_use]
    pub(in crate::serve) fn union(mut self, other: &Self) -> Self {
        self.here |= other.here;
        for (step, below) in &other.below {
            let known = self.below.remove(step).unwrap_or_default();
            self.insert(step.clone(), known.union(below));
        }
        self
    }

    #[must_use]
    pub(in crate::serve) fn intersection(&self, other: &Self) -> Self {
        let mut set = Self { here: self.here && other.here, ..Self::default() };
        for (step, below) in &self.below {
            if let Some(other) = other.below.get(step) {
                set.insert(step.clone(), below.intersection(other));
            }
        }
        set
    }

    #[must_use]
    pub(in crate::serve) fn difference(&self, other: &Self) -> Self {
        let mut set = Self { here: self.here && !other.here, ..Self::default() };
        for (step, below) in &self.below {
            let left = match other.below.get(step) {
                Some(other) => below.difference(other),
                None => below.clone(),
            };
            set.insert(step.clone(), left);
        }
        set
    }

    /// Without these path elements of the top level and of `metadata`.
    #[must_use]
    pub(super) fn without(mut self, steps: &[&str], in_metadata: &[&str]) -> Self {
        self.here = false;
        self.below.retain(|step, _| !steps.contains(&step.as_str()));
        if let Some(metadata) = self.below.get_mut("f:metadata") {
            metadata.here = false;
            metadata.below.retain(|step, _| !in_metadata.contains(&step.as_str()));
            if metadata.is_empty() {
                self.below.remove("f:metadata");
            }
        }
        self
    }

    /// Parses `fieldsV1`; malformed parts are ignored.
    #[must_use]
    pub(in crate::serve) fn read(fields: &Value) -> Self {
        let mut set = Self::default();
        for (step, below) in fields.as_object().into_iter().flatten() {
            if step == "." {
                set.here = true;
                continue;
            }
            if !["f:", "k:", "v:", "i:"].iter().any(|prefix| step.starts_with(prefix)) {
                continue;
            }
            let mut below = Self::read(below);
            below.here |= below.below.is_empty();
            set.below.insert(step.clone(), below);
        }
        set
    }

    /// Formats as `fieldsV1`.
    #[must_use]
    pub(in crate::serve) fn write(&self) -> Value {
        let mut fields = Map::new();
        if self.here && !self.below.is_empty() {
            fields.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (step, below) in &self.below {
            fields.insert(step.clone(), below.write());
        }
        Value::Object(fields)
    }

    /// Every field as a path in messages, `.spec.containers[name="c"].image`.
    #[must_use]
    pub(in crate::serve) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect(String::new(), &mut paths);
        paths
    }

    fn collect(&self, path: String, paths: &mut Vec<String>) {
        for (step, below) in &self.below {
            below.collect(format!("{path}{}", shown(step)), paths);
        }
        if self.here {
            paths.push(path);
        }
    }

    /// Removes this set's fields from `value`, except those that contain fields in `kept`.
    pub(super) fn remove_from(&self, value: &mut Value, kept: &Self, shape: Shape<'_>) {
        let nothing = Self::default();
        match value {
            Value::Object(members) => {
                members.retain(|name, member| {
                    let step = member_step(name);
                    let Some(gone) = self.at(&step) else { return true };
                    let kept = kept.at(&step).unwrap_or(&nothing);
                    gone.leaves(member, kept, shape.member(name))
                });
            }
            Value::Array(list) => {
                list.retain_mut(|item| {
                    let step = match shape {
                        Shape::Keyed(keyed) => item_step(&keyed, item),
                        _ => Some(format!("v:{item}")),
                    };
                    let Some(step) = step else { return true };
                    let Some(gone) = self.at(&step) else { return true };
                    let kept = kept.at(&step).unwrap_or(&nothing);
                    gone.leaves(item, kept, item_shape(shape))
                });
            }
            _ => {}
        }
    }

    /// Removes the fields below an existing node; false when the node itself is to be removed.
    fn leaves(&self, value: &mut Value, kept: &Self, shape: Shape<'_>) -> bool {
        if self.here && kept.is_empty() {
            return false;
        }
        let was_empty = is_hollow(value);
        self.remove_from(value, kept, shape);
        was_empty || !is_hollow(value) || !kept.is_empty()
    }
}

fn is_hollow(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn shown(step: &str) -> String {
    let (kind, rest) = step.split_at(2.min(step.len()));
    match kind {
        "f:" => format!(".{rest}"),
        "k:" => {
            let key: Value = serde_json::from_str(rest).unwrap_or_default();
            let parts = key.as_object().into_iter().flatten();
            let parts: Vec<String> = parts.map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", parts.join(","))
        }
        "v:" => format!("[={rest}]"),
        _ => format!("[{rest}]"),
    }
}

/// The differences of a newer version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Fields that are new or have a different value.
    pub set: FieldSet,
    pub removed: FieldSet,
}

/// Compares two versions of an object of `shape`.
#[must_use]
pub(crate) fn compare(old: &Value, new: &Value, shape: Shape<'_>) -> Changes {
    let mut changes = Changes::default();
    match (old, new) {
        (Value::Object(old), Value::Object(new)) if !matches!(shape, Shape::Atomic) => {
            let names: BTreeSet<&String> = old.keys().chain(new.keys()).into_set();
            for name in names {
                changes.compare_member(member_step(name), old.get(name), new.get(name), shape.member(name));
            }
        }
        (Value::Array(old_list), Value::Array(new_list)) => {
            match (items(old_list, shape), items(new_list, shape)) {
                (Items::Apart(old), Items::Apart(new)) => {
                    let steps: BTreeSet<&String> = old.keys().chain(new.keys()).into_set();
                    for step in steps {
                        let (old, new) = (old.get(step).copied(), new.get(step).copied());
                        changes.compare_member(step.clone(), old, new, item_shape(shape));
                    }
                }
                _ => changes.set.here = old_list != new_list,
            }
        }
        _ => changes.set.here = old != new,
    }
    changes
}

impl Changes {
    fn compare_member(&mut self, step: String, old: Option<&Value>, new: Option<&Value>, shape: Shape<'_>) {
        match (old, new) {
            (Some(old), Some(new)) => {
                let below = compare(old, new, shape);
                self.set.insert(step.clone(), below.set);
                self.removed.insert(step, below.removed);
            }
            (Some(gone), None) => {
                self.removed.insert(step, FieldSet::of(gone, shape).union(&FieldSet::leaf()));
            }
            (None, Some(added)) => {
                let mut below = FieldSet::of(added, shape);
                below.here |= step.starts_with("k:") || below.below.is_empty();
                self.set.insert(step, below);
            }
            (None, None) => {}
        }
    }
}
