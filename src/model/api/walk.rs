//! A value with the path to it, for readers of records and, as a `Deserializer`, for serde's.
//!
//! Owns that path and the list of unread fields. One type for all decoded types: wrappers around another
//! deserializer compile every visitor once more, which was a seventh of the program (docs/adr/0023).

use std::cell::RefCell;
use std::fmt::Write;

use serde::Deserializer;
use serde::de::{
    DeserializeSeed, Error as _, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::{Error, Map, Value};

enum Step {
    Key(String),
    Index(usize),
}

/// The current position.
#[derive(Default)]
pub(super) struct Track {
    path: RefCell<Vec<Step>>,
    unknown: RefCell<Vec<String>>,
}

impl Track {
    /// The form of Kubernetes' field errors: `spec.containers[0].image`. After an error the path stays at its
    /// position.
    pub(super) fn path(&self) -> String {
        let mut text = String::new();
        for step in self.path.borrow().iter() {
            match step {
                Step::Key(key) if text.is_empty() => text.push_str(key),
                Step::Key(key) => {
                    text.push('.');
                    text.push_str(key);
                }
                Step::Index(index) => {
                    // Writing to a string does not fail.
                    let _ = write!(text, "[{index}]");
                }
            }
        }
        if text.is_empty() { ".".to_owned() } else { text }
    }

    pub(super) fn into_unknown(self) -> Vec<String> {
        self.unknown.into_inner()
    }

    /// The current value is none that its reader has.
    fn note_unknown(&self) {
        self.unknown.borrow_mut().push(self.path());
    }

    /// Reads a value one level deeper.
    fn below<T>(&self, step: Step, read: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.path.borrow_mut().push(step);
        let value = read()?;
        self.path.borrow_mut().pop();
        Ok(value)
    }
}

/// A value at a place.
pub struct Walk<'t> {
    pub(super) value: Value,
    pub(super) track: &'t Track,
}

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Array(_) => self.visit_items(visitor),
            Value::Object(_) => self.visit_members(visitor),
            scalar => scalar.deserialize_any(visitor),
        }
    }

    // A value of a known kind compiles that kind's reader alone: a visitor has one for each, and the derived
    // ones for sequences are as large as those for members.

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.visit_members(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.visit_members(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.visit_items(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::String(text) => visitor.visit_string(text),
            other => Err(mistaken(&other, &visitor)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Bool(value) => visitor.visit_bool(value),
            other => Err(mistaken(&other, &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.track.note_unknown();
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

impl<'t> Walk<'t> {
    /// Reads the items of a list, one level deeper.
    pub(super) fn each_item(self, read: &mut dyn FnMut(Walk<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let (items, track) = self.items(&"a sequence")?;
        for (index, value) in items.into_iter().enumerate() {
            track.below(Step::Index(index), || read(Walk { value, track }))?;
        }
        Ok(())
    }

    /// Reads the members of an object, one level deeper. A member for which `read` gives `false` is unknown.
    pub(crate) fn each_member(
        self,
        expected: &dyn Expected,
        read: &mut dyn FnMut(&str, Walk<'_>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let (members, track) = self.members(expected)?;
        for (name, value) in members {
            track.below(Step::Key(name.clone()), || {
                if !read(&name, Walk { value, track })? {
                    track.note_unknown();
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn items(self, expected: &dyn Expected) -> Result<(Vec<Value>, &'t Track), Error> {
        match self.value {
            Value::Array(items) => Ok((items, self.track)),
            other => Err(mistaken(&other, expected)),
        }
    }

    fn members(self, expected: &dyn Expected) -> Result<(Map<String, Value>, &'t Track), Error> {
        match self.value {
            Value::Object(members) => Ok((members, self.track)),
            other => Err(mistaken(&other, expected)),
        }
    }

    fn visit_items<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (items, track) = self.items(&visitor)?;
        let mut access = Items { items: items.into_iter().enumerate(), track };
        let value = visitor.visit_seq(&mut access)?;
        // A tuple has its length.
        match access.items.len() {
            0 => Ok(value),
            more => Err(Error::custom(format_args!("{more} elements more than expected"))),
        }
    }

    fn visit_members<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (members, track) = self.members(&visitor)?;
        visitor.visit_map(Members { left: members.into_iter(), waiting: None, track })
    }
}

/// The message of `serde_json` for a value of another kind.
fn mistaken(value: &Value, expected: &dyn Expected) -> Error {
    let unexpected = match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), _, _) => Unexpected::Unsigned(number),
            (None, Some(number), _) => Unexpected::Signed(number),
            (None, None, number) => Unexpected::Float(number.unwrap_or_default()),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    };
    Error::invalid_type(unexpected, expected)
}

struct Items<'t> {
    items: std::iter::Enumerate<std::vec::IntoIter<Value>>,
    track: &'t Track,
}

impl<'de> SeqAccess<'de> for &mut Items<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((index, value)) = self.items.next() else { return Ok(None) };
        let walk = Walk { value, track: self.track };
        self.track.below(Step::Index(index), || seed.deserialize(walk)).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Members<'t> {
    left: <Map<String, Value> as IntoIterator>::IntoIter,
    waiting: Option<(String, Value)>,
    track: &'t Track,
}

impl<'de> MapAccess<'de> for Members<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((key, value)) = self.left.next() else { return Ok(None) };
        let name = seed.deserialize(Key(key.clone()))?;
        self.waiting = Some((key, value));
        Ok(Some(name))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let (key, value) = self.waiting.take().ok_or_else(|| Error::custom("a value without its key"))?;
        let walk = Walk { value, track: self.track };
        self.track.below(Step::Key(key), || seed.deserialize(walk))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

/// The name of a member; a number in quotes for maps by number.
struct Key(String);

impl<'de> Deserializer<'de> for Key {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        IntoDeserializer::<Error>::into_deserializer(self.0).deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}
