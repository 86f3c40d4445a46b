//! How the structs of `wire!` are read and written: member by member, into the struct's default and out of it.
//!
//! serde's derived code holds each field in an `Option`, checks each for a second value, and moves them all into place:
//! about 600 bytes of program for a field. Here a field is a comparison of its name and one call (docs/adr/0071).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap};

/// A struct of `wire!`.
pub(crate) trait Fields: Default {
    /// Reads the value of the member `name`, which comes next, into its field; ignores it if there is no such field.
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, members: &mut M) -> Result<(), M::Error>;

    /// Writes what has to be written.
    fn write<M: SerializeMap>(&self, members: &mut M) -> Result<(), M::Error>;
}

/// Reads a `T` from a map. With two members of one name the last counts, as in Go.
pub(crate) struct FieldsVisitor<T> {
    /// The struct's name, for errors.
    name: &'static str,
    of: PhantomData<T>,
}

impl<T> FieldsVisitor<T> {
    #[must_use]
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, of: PhantomData }
    }
}

impl<'de, T: Fields> Visitor<'de> for FieldsVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "struct {}", self.name)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<T, M::Error> {
        let mut value = T::default();
        while let Some(name) = members.next_key::<String>()? {
            value.read(&name, &mut members)?;
        }
        Ok(value)
    }
}

/// One function for all fields of a type, not one for each field.
#[inline(never)]
pub(crate) fn read_field<'de, T: Deserialize<'de>, M: MapAccess<'de>>(
    field: &mut T,
    members: &mut M,
) -> Result<(), M::Error> {
    *field = members.next_value()?;
    Ok(())
}

#[inline(never)]
pub(crate) fn ignore_field<'de, M: MapAccess<'de>>(members: &mut M) -> Result<(), M::Error> {
    members.next_value::<IgnoredAny>().map(drop)
}

/// Leaves out a default, unless it is `always` to be written.
#[inline(never)]
pub(crate) fn write_field<T: Serialize + Default + PartialEq, M: SerializeMap>(
    members: &mut M,
    name: &'static str,
    field: &T,
    always: bool,
) -> Result<(), M::Error> {
    if !always && *field == T::default() {
        return Ok(());
    }
    members.serialize_entry(name, field)
}

/// How long a name is in camelCase.
#[must_use]
pub(crate) const fn camel_length(name: &str) -> usize {
    let (bytes, mut length, mut at) = (name.as_bytes(), 0, 0);
    while at < bytes.len() {
        if bytes[at] != b'_' {
            length += 1;
        }
        at += 1;
    }
    length
}

/// The name of a field in camelCase.
#[must_use]
pub(crate) const fn camel<const LENGTH: usize>(name: &str) -> [u8; LENGTH] {
    let bytes = name.as_bytes();
    let (mut camel, mut length, mut at, mut starts_word) = ([0; LENGTH], 0, 0, false);
    while at < bytes.len() {
        if bytes[at] == b'_' {
            starts_word = true;
        } else {
            camel[length] = if starts_word { bytes[at].to_ascii_uppercase() } else { bytes[at] };
            length += 1;
            starts_word = false;
        }
        at += 1;
    }
    camel
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use crate::model::api::wire;

    wire! {
        /// Every form of a field.
        pub struct Odd {
            pub plain: String,
            pub of_three_words: Option<i64>,
            #[wire(rename = "hostIP")]
            pub host_ip: String,
            #[wire(always)]
            pub exit_code: i32,
            #[wire(always, rename = "imageID")]
            pub image_id: String,
            pub inner: Inner,
        }

        pub struct Inner {
            pub list: Vec<bool>,
        }
    }

    #[test]
    fn members_have_upstreams_names_and_defaults_are_left_out() {
        let full = json!({"plain": "a", "ofThreeWords": 3, "hostIP": "b", "exitCode": 4, "imageID": "c",
            "inner": {"list": [true]}});
        let odd = from_value::<Odd>(full.clone()).unwrap();
        assert_eq!((odd.of_three_words, odd.exit_code, odd.inner.list.len()), (Some(3), 4, 1));
        assert_eq!(to_value(&odd).unwrap(), full);
        assert_eq!(to_value(Odd::default()).unwrap(), json!({"exitCode": 0, "imageID": ""}));
        assert_eq!(from_value::<Odd>(json!({})).unwrap(), Odd::default());
    }

    #[test]
    fn unknown_members_are_ignored_and_the_last_of_two_counts() {
        let odd: Odd = serde_json::from_str(r#"{"plain": "a", "other": {"x": [1]}, "plain": "b"}"#).unwrap();
        assert_eq!(odd, Odd { plain: "b".to_owned(), ..Odd::default() });
    }

    #[test]
    fn a_value_of_another_kind_names_the_struct() {
        let error = from_value::<Odd>(json!({"inner": 7})).unwrap_err();
        assert_eq!(error.to_string(), "invalid type: integer `7`, expected struct Inner");
    }
}
