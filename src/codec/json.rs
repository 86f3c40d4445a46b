//! JSON text to values, with duplicate members reported (serde_json keeps the last one without an error).
//!
//! Owns JSON's duplicate check. Nesting is bounded by serde_json's own limit of 128.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// One value of a text.
#[derive(Debug)]
pub struct Parsed {
    /// The value; of members with the same name the last one.
    pub value: Value,
    /// Paths of members that appear twice in one object: `spec.containers[0].image`.
    pub duplicates: Vec<String>,
}

/// Duplicates reported for one value.
const MAX_DUPLICATES: usize = 20;
/// Values of one text; the same bound as for a YAML document, since a value takes far more memory than its
/// text.
const MAX_VALUES: usize = 200_000;

/// The duplicates found so far in a text, and the path of the current value.
#[derive(Default)]
struct Met {
    duplicates: Vec<String>,
    values: usize,
    path: String,
    lean: bool,
}

/// All values of a text, one after another.
pub(crate) fn parse(text: &str) -> Result<Vec<Parsed>, serde_json::Error> {
    let mut values = Vec::new();
    let mut met = Met::default();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let mut deserializer = serde_json::Deserializer::from_str(rest).into_iter::<serde::de::IgnoredAny>();
        // The first pass only finds where the value ends.
        if let Some(end) = deserializer.next() {
            end?;
        }
        let (this, after) = rest.split_at(deserializer.byte_offset());
        let shared = RefCell::new(met);
        let value = Seed(&shared).deserialize(&mut serde_json::Deserializer::from_str(this))?;
        met = shared.into_inner();
        values.push(Parsed { value, duplicates: std::mem::take(&mut met.duplicates) });
        rest = after.trim_start();
    }
    Ok(values)
}

/// The only value of a text.
pub fn parse_one(text: &[u8]) -> Result<Parsed, serde_json::Error> {
    let met = RefCell::new(Met::default());
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Seed(&met).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Parsed { value, duplicates: met.into_inner().duplicates })
}

/// The only value of a text, without the `managedFields` of objects: their tree would take more memory than the rest
/// of the object. Of members with the same name the last one counts.
pub(crate) fn parse_lean(text: &[u8]) -> Result<Value, serde_json::Error> {
    let met = RefCell::new(Met { lean: true, ..Met::default() });
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Seed(&met).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct Seed<'a>(&'a RefCell<Met>);

impl Seed<'_> {
    /// True for the member of an object's metadata that [`parse_lean`] leaves out.
    fn skips(self, name: &str) -> bool {
        let met = self.0.borrow();
        let place = met.path.strip_suffix("metadata");
        met.lean
            && name == "managedFields"
            && place.is_some_and(|place| place.is_empty() || place.ends_with('.'))
    }

    /// Reads a value one level deeper.
    fn below<T, E>(self, step: std::fmt::Arguments<'_>, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let length = self.0.borrow().path.len();
        // Writing to a string does not fail.
        let _ = fmt::Write::write_fmt(&mut self.0.borrow_mut().path, step);
        let value = read()?;
        self.0.borrow_mut().path.truncate(length);
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let mut met = self.0.borrow_mut();
        met.values += 1;
        if met.values > MAX_VALUES {
            return Err(D::Error::custom(format_args!("more than {MAX_VALUES} values")));
        }
        drop(met);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) =
            self.below(format_args!("[{}]", list.len()), || items.next_element_seed(self))?
        {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if self.skips(&name) {
                members.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            let dot = if self.0.borrow().path.is_empty() { "" } else { "." };
            let value = self.below(format_args!("{dot}{name}"), || {
                let mut met = self.0.borrow_mut();
                if object.contains_key(&name) && met.duplicates.len() < MAX_DUPLICATES {
                    let path = met.path.clone();
                    met.duplicates.push(path);
                }
                drop(met);
                members.next_value_seed(self)
            })?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
