//! One document's events to its value: keys, duplicates and `<<`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::YamlError;
use super::events::{Events, What, YamlEvent};
use super::scalar;

/// A member whose value was not read yet.
struct Entry<'a> {
    key: Vec<YamlEvent<'a>>,
    value: Vec<YamlEvent<'a>>,
}

pub(super) fn document(text: &str, strict: bool) -> Result<Value, YamlError> {
    let mut composer = Composer { events: Events::new(text), strict };
    let value = match composer.events.peek()? {
        Some(_) => composer.value()?,
        None => Value::Null,
    };
    composer.events.finish()?;
    Ok(value)
}

struct Composer<'a> {
    events: Events<'a>,
    strict: bool,
}

impl<'a> Composer<'a> {
    fn value(&mut self) -> Result<Value, YamlError> {
        let event = self.events.take()?;
        match &event.what {
            What::Scalar { text, tag, plain } => {
                scalar::value(text, tag, *plain).map_err(|message| event.error(message))
            }
            What::List => {
                let mut items = Vec::new();
                while !self.events.take_end()? {
                    items.push(self.value()?);
                }
                Ok(Value::Array(items))
            }
            What::Map => self.map(),
            What::End => Err(event.error("unexpected end of a list or map")),
        }
    }

    /// A map's own members win over those that it merges, and of these the first.
    fn map(&mut self) -> Result<Value, YamlError> {
        let mut members = Map::new();
        let mut seen = BTreeSet::new();
        let mut merged = Vec::new();
        let mut late = Vec::new();
        while !self.events.take_end()? {
            let key = self.events.node()?;
            if is_merge(&key) {
                self.merged(&mut merged)?;
                continue;
            }
            let identity = identity(&key);
            // Two spellings of a number are one key: which of them is the last is known at the end.
            if !self.strict && (identity.1 || !late.is_empty()) {
                let value = self.events.node()?;
                late.push(Entry { key, value });
                continue;
            }
            if self.strict && seen.contains(&identity) {
                return Err(duplicate(&key));
            }
            let name = name(&key)?;
            seen.insert(identity);
            let value = self.value()?;
            members.insert(name, value);
        }
        for entry in without_duplicates(late, self.strict)? {
            seen.insert(identity(&entry.key));
            self.insert(&mut members, entry)?;
        }
        for entry in merged {
            if seen.insert(identity(&entry.key)) {
                self.insert(&mut members, entry)?;
            }
        }
        Ok(Value::Object(members))
    }

    fn insert(&mut self, members: &mut Map<String, Value>, entry: Entry<'a>) -> Result<(), YamlError> {
        let name = name(&entry.key)?;
        self.events.put_back(entry.value);
        let value = self.value()?;
        members.insert(name, value);
        Ok(())
    }

    /// Reads the value of a `<<`: a map, a list of them, or nothing.
    fn merged(&mut self, entries: &mut Vec<Entry<'a>>) -> Result<(), YamlError> {
        let event = self.events.take()?;
        match &event.what {
            What::Scalar { text, tag, plain } if scalar::is_null(text, tag, *plain) => Ok(()),
            What::List => {
                while !self.events.take_end()? {
                    self.merged(entries)?;
                }
                Ok(())
            }
            What::Map => self.merged_map(entries),
            _ => Err(event.error("YAML merge value must be mapping or sequence of mappings")),
        }
    }

    fn merged_map(&mut self, entries: &mut Vec<Entry<'a>>) -> Result<(), YamlError> {
        let mut own = Vec::new();
        let mut nested = Vec::new();
        while !self.events.take_end()? {
            let key = self.events.node()?;
            if is_merge(&key) {
                self.merged(&mut nested)?;
            } else {
                let value = self.events.node()?;
                own.push(Entry { key, value });
            }
        }
        entries.extend(without_duplicates(own, self.strict)?);
        entries.extend(nested);
        Ok(())
    }
}

fn without_duplicates(mut entries: Vec<Entry<'_>>, strict: bool) -> Result<Vec<Entry<'_>>, YamlError> {
    if !strict {
        entries.reverse();
    }
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    for entry in entries {
        if seen.insert(identity(&entry.key)) {
            kept.push(entry);
        } else if strict {
            return Err(duplicate(&entry.key));
        }
    }
    if !strict {
        kept.reverse();
    }
    Ok(kept)
}

fn is_merge(key: &[YamlEvent<'_>]) -> bool {
    match key {
        [YamlEvent { what: What::Scalar { text, tag, plain }, .. }] => scalar::is_merge(text, tag, *plain),
        _ => false,
    }
}

/// Equal for keys that are the same; and whether the key is a whole number. A list or map as a key is refused
/// by its name.
fn identity(key: &[YamlEvent<'_>]) -> (String, bool) {
    match key {
        [YamlEvent { what: What::Scalar { text, tag, plain }, .. }] => scalar::identity(text, tag, *plain),
        _ => (String::new(), false),
    }
}

fn name(key: &[YamlEvent<'_>]) -> Result<String, YamlError> {
    match &key[0] {
        event @ YamlEvent { what: What::Scalar { text, tag, plain }, .. } => {
            scalar::name(text, tag, *plain).map_err(|message| event.error(message))
        }
        event => Err(event.error("expected string scalar")),
    }
}

fn duplicate(key: &[YamlEvent<'_>]) -> YamlError {
    let message = match &key[0].what {
        What::Scalar { text, tag, .. } if scalar::is_textual(tag) => format!("duplicate key {text:?}"),
        _ => "duplicate key".to_owned(),
    };
    key[0].error(message)
}
