//! How the parts of an object are merged: which lists are maps by a key, which are sets, which values are
//! atomic.
//!
//! Owns what the marks of [the types](crate::model::api::schema) mean for strategic merge patch and
//! server-side apply. Without a mark the default applies: objects merge by member, lists are atomic.

use serde_json::{Value, json};

use crate::model::api::schema::{Field, Schema, Type};

/// How one part is merged.
#[derive(Clone, Copy)]
pub(crate) enum Shape<'s> {
    /// The default for everything below: objects merge by member, lists are atomic.
    Free,
    /// One value with one owner. (A strategic merge patch still merges an object by member.)
    Atomic,
    Struct(&'s Schema, Type<'s>),
    /// A list of unique scalars; a strategic merge patch adds to it or replaces it.
    Set(Patch),
    /// A list of objects that are identified by keys.
    Keyed(Keyed<'s>),
}

/// What a strategic merge patch does with a set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patch {
    /// The patch's items are added.
    Adds,
    /// The patch's items replace the list.
    Replaces,
}

/// The keys of [`Shape::Keyed`].
#[derive(Clone, Copy)]
pub(crate) struct Keyed<'s> {
    /// `patchMergeKey`. None: a strategic merge patch replaces the list.
    pub merge_key: Option<&'s str>,
    /// `listMapKey`, separated by commas. None: the list is one value with one owner.
    keys: Option<&'s str>,
    schema: &'s Schema,
    of: Type<'s>,
}

impl<'s> Shape<'s> {
    #[must_use]
    pub(crate) fn of_kind(schema: &'s Schema, api_version: &str, kind: &str) -> Self {
        schema.of_kind(api_version, kind).map_or(Self::Free, |of| Self::Struct(schema, of))
    }

    /// The shape of a member of an object of this shape.
    #[must_use]
    pub(in crate::serve) fn member(self, name: &str) -> Self {
        match self {
            Self::Struct(schema, of) => {
                of.field(name).map_or(Self::Free, |field| Self::of_field(schema, of, &field))
            }
            _ => Self::Free,
        }
    }

    fn of_field(schema: &'s Schema, of: Type<'s>, field: &Field<'s>) -> Self {
        if field.has("atomic") {
            return Self::Atomic;
        }
        if field.has("set") {
            return Self::Set(Patch::Replaces);
        }
        if field.has("union") {
            return Self::Set(Patch::Adds);
        }
        let is_list = field.shape.starts_with("[]");
        let named = |name| schema.named(of, name).filter(|named| named.scalar().is_none());
        if is_list {
            let Some(item) = named(&field.shape[2..]) else { return Self::Free };
            let by = field.mark("by");
            let first = by.map(|keys| keys.split(',').next().unwrap_or_default());
            let merge_key = first.or_else(|| field.mark("patch"));
            let keys = by.or_else(|| field.mark("keys"));
            if merge_key.is_none() && keys.is_none() {
                return Self::Free;
            }
            return Self::Keyed(Keyed { merge_key, keys, schema, of: item });
        }
        match named(field.shape) {
            Some(named) if named.is_atomic() && !field.has("granular") => Self::Atomic,
            Some(named) => Self::Struct(schema, named),
            None => Self::Free,
        }
    }
}

impl<'s> Keyed<'s> {
    /// The shape of the items in server-side apply.
    #[must_use]
    pub(in crate::serve) fn item(&self) -> Shape<'s> {
        if self.of.is_atomic() { Shape::Atomic } else { self.members() }
    }

    /// The shape of the items in a strategic merge patch: never atomic, as the patch names the members it
    /// changes.
    #[must_use]
    pub(in crate::serve) fn members(&self) -> Shape<'s> {
        Shape::Struct(self.schema, self.of)
    }

    /// Whether server-side apply identifies the items by key.
    #[must_use]
    pub(in crate::serve) fn is_map(&self) -> bool {
        self.keys.is_some()
    }

    /// The key of an item as canonical JSON; `None` when the item lacks it, or the list has no keys.
    #[must_use]
    pub(in crate::serve) fn key_of(&self, item: &Value) -> Option<String> {
        let members = item.as_object()?;
        let mut key = serde_json::Map::new();
        for name in self.keys?.split(',') {
            match members.get(name) {
                Some(value) if !value.is_object() && !value.is_array() && !value.is_null() => {
                    key.insert(name.to_owned(), value.clone());
                }
                None => {
                    let default = self.of.field(name)?.mark("default")?;
                    key.insert(name.to_owned(), json!(default));
                }
                _ => return None,
            }
        }
        Some(Value::Object(key).to_string())
    }
}
