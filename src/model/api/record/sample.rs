//! Records with every member set, for tests: what serde requests for a plain member is what its type has.
//!
//! Owns the values.

use serde::de::value::{Error, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

use super::{Member, Record};

/// What stands where a type keeps any JSON.
pub(crate) const RAW: i64 = 7777;

/// A value with every field set.
pub(crate) fn of<T: Member + Default>() -> T {
    let mut value = T::default();
    value.fill("");
    value
}

/// Sets all members.
pub(crate) fn fill(record: &mut dyn Record) {
    for (at, name) in record.shape().names.iter().enumerate() {
        record.member_mut(at).expect("each name has a member").fill(name);
    }
}

/// The value of a plain member.
pub(crate) fn named<T: DeserializeOwned>(field: &'static str) -> T {
    T::deserialize(Sample(field)).expect("a sample")
}

/// The field that serde requests.
#[derive(Clone, Copy)]
struct Sample(&'static str);

macro_rules! numbers {
    ($($name:ident $visit:ident,)*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(1)
        }
    )*};
}

impl<'de> Deserializer<'de> for Sample {
    type Error = Error;

    numbers! {
        deserialize_i32 visit_i32, deserialize_i64 visit_i64, deserialize_u32 visit_u32, deserialize_u64 visit_u64,
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(RAW)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(true)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let is_time = ["Time", "Timestamp", "At"].iter().any(|end| self.0.ends_with(end));
        visitor.visit_str(if is_time { "2026-01-02T03:04:05Z" } else { "1" })
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Fields(["item"].iter(), ""))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Fields(["key"].iter(), ""))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Fields(fields.iter(), ""))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

/// What is still to come, and what came last.
struct Fields(std::slice::Iter<'static, &'static str>, &'static str);

impl<'de> MapAccess<'de> for Fields {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.0.next() else { return Ok(None) };
        self.1 = name;
        let name: StrDeserializer<'_, Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(Sample(self.1))
    }
}

impl<'de> SeqAccess<'de> for Fields {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        self.0.next().map(|name| seed.deserialize(Sample(name))).transpose()
    }
}
