//! Reading and writing structs with named members through trait objects: one reader and one writer for all of them.
//!
//! Owns both. serde's derives compile a reader and a writer for every type and every format, which were 400 kB of the
//! program (docs/adr/0053).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Error, Value};

use super::walk::{Track, Walk};

#[cfg(test)]
pub(crate) mod sample;

/// A value that can be a member of a record.
pub trait Member {
    /// Becomes what is there.
    fn read(&mut self, walk: Walk<'_>) -> Result<(), Error>;
    fn shown(&self) -> Shown<'_>;
    /// True while it is what a new one is.
    fn is_unset(&self) -> bool;
    /// Becomes one with everything set, for tests; `field` is its name.
    #[cfg(test)]
    fn fill(&mut self, field: &'static str);
}

/// A struct with named members; `record!` and `wire!` make it one.
pub trait Record {
    fn shape(&self) -> &'static Shape;
    fn member(&self, at: usize) -> Option<&dyn Member>;
    fn member_mut(&mut self, at: usize) -> Option<&mut dyn Member>;
}

/// What is the same for all values of a record's type.
pub struct Shape {
    /// With the word before it, as errors name it: `struct Pod`.
    pub type_name: &'static str,
    pub names: &'static [&'static str],
    /// By position: whether a member that is not set is left out.
    pub is_left_out: &'static [bool],
}

/// Several values of one type, in order.
pub trait List {
    fn add(&mut self) -> &mut dyn Member;
    fn item(&self, at: usize) -> Option<&dyn Member>;
}

/// Values by name.
pub trait Names {
    fn add(&mut self, name: String) -> &mut dyn Member;
    fn each(&self, see: &mut dyn FnMut(&str, &dyn Member));
}

/// A value as writers see it.
pub enum Shown<'a> {
    Null,
    Bool(bool),
    Number(i64),
    Text(&'a str),
    Value(&'a Value),
    Made(Result<Value, Error>),
    Record(&'a dyn Record),
    List(&'a dyn List),
    Names(&'a dyn Names),
}

/// Reads all members of a record; what it does not have is noted as unknown.
pub fn read_record(record: &mut dyn Record, walk: Walk<'_>) -> Result<(), Error> {
    let shape = record.shape();
    walk.each_member(&shape.type_name, &mut |name, walk| {
        let at = shape.names.iter().position(|known| *known == name);
        match at.and_then(|at| record.member_mut(at)) {
            Some(member) => member.read(walk).map(|()| true),
            None => Ok(false),
        }
    })
}

/// Reads a value that stands alone: fields that the record does not have are ignored.
pub fn read_alone(record: &mut dyn Record, value: Value) -> Result<(), Error> {
    read_record(record, Walk { value, track: &Track::default() })
}

fn read_list(list: &mut dyn List, walk: Walk<'_>) -> Result<(), Error> {
    walk.each_item(&mut |walk| list.add().read(walk))
}

fn read_names(names: &mut dyn Names, walk: Walk<'_>) -> Result<(), Error> {
    walk.each_member(&"a map", &mut |name, walk| names.add(name.to_owned()).read(walk).map(|()| true))
}

/// True while all members are unset.
pub fn is_unset(record: &dyn Record) -> bool {
    (0..).map_while(|at| record.member(at)).all(Member::is_unset)
}

impl Serialize for dyn Record + '_ {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shape = self.shape();
        let mut map = serializer.serialize_map(None)?;
        for (at, name) in shape.names.iter().enumerate() {
            let Some(member) = self.member(at) else { break };
            if !(shape.is_left_out[at] && member.is_unset()) {
                map.serialize_entry(name, member)?;
            }
        }
        map.end()
    }
}

impl Serialize for dyn Member + '_ {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.shown() {
            Shown::Null => serializer.serialize_unit(),
            Shown::Bool(value) => serializer.serialize_bool(value),
            Shown::Number(number) => serializer.serialize_i64(number),
            Shown::Text(text) => serializer.serialize_str(text),
            Shown::Value(value) => value.serialize(serializer),
            Shown::Made(value) => value.map_err(S::Error::custom)?.serialize(serializer),
            Shown::Record(record) => record.serialize(serializer),
            Shown::List(list) => serializer.collect_seq((0..).map_while(|at| list.item(at))),
            Shown::Names(names) => {
                let mut map = serializer.serialize_map(None)?;
                let mut result = Ok(());
                names.each(&mut |name, member| {
                    if result.is_ok() {
                        result = map.serialize_entry(name, member);
                    }
                });
                result?;
                map.end()
            }
        }
    }
}

impl<T: Member + Default> Member for Option<T> {
    fn read(&mut self, walk: Walk<'_>) -> Result<(), Error> {
        *self = None;
        if walk.value.is_null() { Ok(()) } else { self.insert(T::default()).read(walk) }
    }

    fn shown(&self) -> Shown<'_> {
        self.as_ref().map_or(Shown::Null, Member::shown)
    }

    fn is_unset(&self) -> bool {
        self.is_none()
    }

    #[cfg(test)]
    fn fill(&mut self, field: &'static str) {
        self.insert(T::default()).fill(field);
    }
}

impl<T: Member + Default> List for Vec<T> {
    fn add(&mut self) -> &mut dyn Member {
        let at = self.len();
        self.push(T::default());
        &mut self[at]
    }

    fn item(&self, at: usize) -> Option<&dyn Member> {
        self.get(at).map(|item| item as _)
    }
}

impl<T: Member + Default> Member for Vec<T> {
    fn read(&mut self, walk: Walk<'_>) -> Result<(), Error> {
        self.clear();
        read_list(self, walk)
    }

    fn shown(&self) -> Shown<'_> {
        Shown::List(self)
    }

    fn is_unset(&self) -> bool {
        self.is_empty()
    }

    #[cfg(test)]
    fn fill(&mut self, _: &'static str) {
        List::add(self).fill("");
    }
}

/// What can be the name in a map.
pub trait Name: Ord {
    fn text(&self) -> &str;
    fn from_text(text: String) -> Self;
}

impl Name for String {
    fn text(&self) -> &str {
        self
    }

    fn from_text(text: String) -> Self {
        text
    }
}

impl<K: Name, T: Member + Default> Names for BTreeMap<K, T> {
    fn add(&mut self, name: String) -> &mut dyn Member {
        self.entry(K::from_text(name)).or_default()
    }

    fn each(&self, see: &mut dyn FnMut(&str, &dyn Member)) {
        for (name, member) in self {
            see(name.text(), member);
        }
    }
}

impl<K: Name, T: Member + Default> Member for BTreeMap<K, T> {
    fn read(&mut self, walk: Walk<'_>) -> Result<(), Error> {
        self.clear();
        read_names(self, walk)
    }

    fn shown(&self) -> Shown<'_> {
        Shown::Names(self)
    }

    fn is_unset(&self) -> bool {
        self.is_empty()
    }

    #[cfg(test)]
    fn fill(&mut self, _: &'static str) {
        Names::add(self, "key".to_owned()).fill("");
    }
}

/// Members that serde reads, each shown in its own way.
macro_rules! plain {
    ($($type:ty: $value:ident => $shown:expr;)*) => {$(
        impl $crate::model::api::record::Member for $type {
            fn read(&mut self, walk: $crate::model::api::walk::Walk<'_>) -> Result<(), serde_json::Error> {
                *self = serde::Deserialize::deserialize(walk)?;
                Ok(())
            }

            fn shown(&self) -> $crate::model::api::record::Shown<'_> {
                let $value = self;
                $shown
            }

            fn is_unset(&self) -> bool {
                *self == Self::default()
            }

            #[cfg(test)]
            fn fill(&mut self, field: &'static str) {
                *self = $crate::model::api::record::sample::named(field);
            }
        }
    )*};
    // Shown as serde writes them, too.
    ($($type:ty),*) => {
        $crate::model::api::record::plain! {
            $($type: value => $crate::model::api::record::Shown::Made(serde_json::to_value(value));)*
        }
    };
}
pub(crate) use plain;

plain! {
    bool: value => Shown::Bool(*value);
    i32: value => Shown::Number(i64::from(*value));
    i64: value => Shown::Number(*value);
    u8: value => Shown::Number(i64::from(*value));
    u16: value => Shown::Number(i64::from(*value));
    u32: value => Shown::Number(i64::from(*value));
    String: value => Shown::Text(value);
    PathBuf: value => value.to_str().map_or_else(not_text, Shown::Text);
}
plain! { u64, usize, (String, String), (String, u64) }

impl Member for f64 {
    fn read(&mut self, walk: Walk<'_>) -> Result<(), Error> {
        *self = Deserialize::deserialize(walk)?;
        Ok(())
    }

    fn shown(&self) -> Shown<'_> {
        Shown::Made(Ok(Value::from(*self)))
    }

    fn is_unset(&self) -> bool {
        self.to_bits() == 0
    }

    #[cfg(test)]
    fn fill(&mut self, field: &'static str) {
        *self = sample::named(field);
    }
}

/// serde's words for such a path.
fn not_text<'a>() -> Shown<'a> {
    Shown::Made(Err(serde::ser::Error::custom("path contains invalid UTF-8 characters")))
}

impl Member for Value {
    fn read(&mut self, walk: Walk<'_>) -> Result<(), Error> {
        *self = walk.value;
        Ok(())
    }

    fn shown(&self) -> Shown<'_> {
        Shown::Value(self)
    }

    fn is_unset(&self) -> bool {
        self.is_null()
    }

    #[cfg(test)]
    fn fill(&mut self, field: &'static str) {
        *self = sample::named(field);
    }
}

/// Declares records: structs that are read and written by name. Every member is optional on reading. Names are the
/// fields' in `snake_case`, `camelCase` or `PascalCase`, or given by `#[serde(rename = "...")]`; a second attribute
/// `#[serde(skip_serializing_if = "...")]` leaves a member out while it is unset.
macro_rules! record {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident as $case:ident {$(
        $(#[doc = $doc:expr])*
        $(#[serde(rename = $rename:literal)])?
        $(#[serde(skip_serializing_if = $skip:literal)])?
        $field_vis:vis $field:ident: $type:ty,
    )*})*) => {$(
        $(#[$meta])*
        $vis struct $name {$(
            $(#[doc = $doc])*
            $field_vis $field: $type,
        )*}

        impl $crate::model::api::record::Record for $name {
            fn shape(&self) -> &'static $crate::model::api::record::Shape {
                &$crate::model::api::record::Shape {
                    type_name: concat!("struct ", stringify!($name)),
                    names: &[$($crate::model::api::record::record!(@name $case $field $($rename)?)),*],
                    is_left_out: &[$($crate::model::api::record::record!(@is_left_out $($skip)?)),*],
                }
            }

            fn member(&self, at: usize) -> Option<&dyn $crate::model::api::record::Member> {
                const MEMBERS: &[fn(&$name) -> &dyn $crate::model::api::record::Member] =
                    &[$(|record| &record.$field),*];
                MEMBERS.get(at).map(|member| member(self))
            }

            fn member_mut(&mut self, at: usize) -> Option<&mut dyn $crate::model::api::record::Member> {
                const MEMBERS: &[fn(&mut $name) -> &mut dyn $crate::model::api::record::Member] =
                    &[$(|record| &mut record.$field),*];
                MEMBERS.get(at).map(|member| member(self))
            }
        }

        impl $crate::model::api::record::Member for $name {
            fn read(&mut self, walk: $crate::model::api::walk::Walk<'_>) -> Result<(), serde_json::Error> {
                $crate::model::api::record::read_record(self, walk)
            }

            fn shown(&self) -> $crate::model::api::record::Shown<'_> {
                $crate::model::api::record::Shown::Record(self)
            }

            fn is_unset(&self) -> bool {
                $crate::model::api::record::is_unset(self)
            }

            #[cfg(test)]
            fn fill(&mut self, _: &'static str) {
                $crate::model::api::record::sample::fill(self);
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let record: &dyn $crate::model::api::record::Record = self;
                record.serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut record = Self::default();
                let value = serde::Deserialize::deserialize(deserializer)?;
                $crate::model::api::record::read_alone(&mut record, value).map_err(serde::de::Error::custom)?;
                Ok(record)
            }
        }
    )*};
    (@name $case:ident $field:ident $rename:literal) => {
        $rename
    };
    (@name snake_case $field:ident) => {
        stringify!($field)
    };
    (@name $case:ident $field:ident) => {{
        const NAME: $crate::model::api::record::Spelled =
            $crate::model::api::record::Spelled::$case(stringify!($field));
        const TEXT: &str = NAME.text();
        TEXT
    }};
    (@is_left_out) => {
        false
    };
    (@is_left_out $skip:literal) => {
        true
    };
}
pub(crate) use record;

/// A field's name as JSON has it, made by the compiler.
pub struct Spelled {
    bytes: [u8; 64],
    length: usize,
}

#[expect(non_snake_case, reason = "named as what they make")]
impl Spelled {
    #[must_use]
    pub const fn camelCase(field: &str) -> Self {
        Self::joined(field, false)
    }

    #[must_use]
    pub const fn PascalCase(field: &str) -> Self {
        Self::joined(field, true)
    }

    const fn joined(field: &str, mut is_start: bool) -> Self {
        let mut name = Self { bytes: [0; 64], length: 0 };
        let (field, mut at) = (field.as_bytes(), 0);
        while at < field.len() {
            if field[at] == b'_' {
                is_start = true;
            } else {
                name.bytes[name.length] = if is_start { field[at].to_ascii_uppercase() } else { field[at] };
                name.length += 1;
                is_start = false;
            }
            at += 1;
        }
        name
    }

    #[must_use]
    pub const fn text(&self) -> &str {
        match std::str::from_utf8(self.bytes.split_at(self.length).0) {
            Ok(text) => text,
            Err(_) => panic!("a field has an ASCII name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::api::decode::decode;

    record! {
        #[derive(Clone, Debug, Default, PartialEq)]
        struct Leaf as snake_case {
            #[serde(rename = "type")]
            kind: String,
            #[serde(skip_serializing_if = "unset")]
            host_path: PathBuf,
        }

        #[derive(Clone, Debug, Default, PartialEq)]
        struct Tree as camelCase {
            some_name: String,
            #[serde(rename = "hostIPC")]
            #[serde(skip_serializing_if = "unset")]
            host_ipc: bool,
            exit_code: i32,
            size_bytes: u64,
            maybe: Option<i64>,
            #[serde(skip_serializing_if = "unset")]
            any: Value,
            pairs: Vec<(String, u64)>,
            #[serde(skip_serializing_if = "unset")]
            leaf: Leaf,
            leaves: Vec<Leaf>,
            #[serde(skip_serializing_if = "unset")]
            by_name: BTreeMap<String, Option<Leaf>>,
        }
    }

    /// What serde makes of the same structs.
    mod derived {
        use super::*;

        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Leaf {
            #[serde(rename = "type")]
            kind: String,
            #[serde(skip_serializing_if = "is_default")]
            host_path: PathBuf,
        }

        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct Tree {
            some_name: String,
            #[serde(rename = "hostIPC", skip_serializing_if = "is_default")]
            host_ipc: bool,
            exit_code: i32,
            size_bytes: u64,
            maybe: Option<i64>,
            #[serde(skip_serializing_if = "is_default")]
            any: Value,
            pairs: Vec<(String, u64)>,
            #[serde(skip_serializing_if = "is_default")]
            leaf: Leaf,
            leaves: Vec<Leaf>,
            #[serde(skip_serializing_if = "is_default")]
            by_name: BTreeMap<String, Option<Leaf>>,
        }

        fn is_default<T: Default + PartialEq>(value: &T) -> bool {
            *value == T::default()
        }
    }

    #[test]
    fn records_are_read_and_written_as_serde_does_it() {
        for good in [
            json!({}),
            json!({"someName": "a", "hostIPC": true, "exitCode": -7, "sizeBytes": u64::MAX, "maybe": 3, "any": {"b": [1.5, null]}}),
            json!({"pairs": [["a", 1], ["b", 2]], "leaf": {"type": "x"}, "leaves": [{"host_path": "/a"}, {}]}),
            json!({"byName": {"b": {"type": "y"}, "a": null}, "maybe": null, "strange": {"type": 1}, "leaf": {"type": "", "more": 1}}),
        ] {
            let theirs: derived::Tree = serde_json::from_value(good.clone()).unwrap();
            let ours: Tree = serde_json::from_value(good).unwrap();
            assert_eq!(serde_json::to_string(&ours).unwrap(), serde_json::to_string(&theirs).unwrap());
            assert_eq!(serde_json::to_value(&ours).unwrap(), serde_json::to_value(&theirs).unwrap());
        }
        for bad in [
            json!([]),
            json!("x"),
            json!({"someName": 1}),
            json!({"exitCode": 5_000_000_000_i64}),
            json!({"exitCode": 1.5}),
            json!({"sizeBytes": -1}),
            json!({"leaves": {}}),
            json!({"leaves": [[]]}),
            json!({"leaves": [null]}),
            json!({"leaves": [{"host_path": 1}]}),
            json!({"byName": []}),
            json!({"byName": {"a": {"type": false}}}),
            json!({"pairs": [["a"]]}),
        ] {
            let theirs = serde_json::from_value::<derived::Tree>(bad.clone()).unwrap_err();
            let ours = serde_json::from_value::<Tree>(bad).unwrap_err();
            assert_eq!(ours.to_string(), theirs.to_string());
        }
        let odd: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff]);
        let odd = Leaf { host_path: PathBuf::from(odd), ..Leaf::default() };
        assert_eq!(
            serde_json::to_value(&odd).unwrap_err().to_string(),
            "path contains invalid UTF-8 characters"
        );
    }

    #[test]
    fn errors_and_unknown_members_are_named_by_path() {
        let error = decode::<Tree>(json!({"byName": {"a": {"type": 1}}})).unwrap_err();
        assert_eq!(error.to_string(), "byName.a.type: invalid type: integer `1`, expected a string");
        let decoded =
            decode::<Tree>(json!({"x": {"y": 1}, "leaves": [{}, {"kind": 1, "type": null}]})).unwrap();
        assert_eq!(decoded.unknown_fields, ["leaves[1].kind", "x"]);
        assert_eq!(decoded.object.leaves, [Leaf::default(), Leaf::default()]);
    }

    #[test]
    fn names_are_spelled_as_serde_spells_them() {
        for (field, camel, pascal) in [
            ("api_version", "apiVersion", "ApiVersion"),
            ("se_linux_options", "seLinuxOptions", "SeLinuxOptions"),
            ("a1_b", "a1B", "A1B"),
            ("name", "name", "Name"),
        ] {
            assert_eq!(Spelled::camelCase(field).text(), camel);
            assert_eq!(Spelled::PascalCase(field).text(), pascal);
        }
    }
}
