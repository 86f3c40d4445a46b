//! JSON text to values, noticing duplicate members (serde_json keeps the last one and says nothing).
//!
//! Owns JSON's duplicate check. Nesting is bounded by serde_json's own limit of 128.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// One value of a text.
pub(super) struct Parsed {
    pub(super) value: Value,
    /// Names that appear twice in one object.
    pub(super) duplicates: Vec<String>,
}

/// Duplicates remembered of one value.
const MAX_DUPLICATES: usize = 20;

/// All values of a text, one after another.
pub(super) fn parse(text: &str) -> Result<Vec<Parsed>, serde_json::Error> {
    let mut values = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let duplicates = RefCell::new(Vec::new());
        let mut deserializer = serde_json::Deserializer::from_str(rest).into_iter::<serde::de::IgnoredAny>();
        // The first pass only finds where the value ends.
        if let Some(end) = deserializer.next() {
            end?;
        }
        let (this, after) = rest.split_at(deserializer.byte_offset());
        let value = Seed(&duplicates).deserialize(&mut serde_json::Deserializer::from_str(this))?;
        values.push(Parsed { value, duplicates: duplicates.into_inner() });
        rest = after.trim_start();
    }
    Ok(values)
}

#[derive(Clone, Copy)]
struct Seed<'a>(&'a RefCell<Vec<String>>);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
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
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(self)?;
            if object.contains_key(&name) && self.0.borrow().len() < MAX_DUPLICATES {
                self.0.borrow_mut().push(name.clone());
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}
