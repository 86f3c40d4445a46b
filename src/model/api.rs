//! The part of Kubernetes' core/v1 that the agent honours, as serde types with the wire's names.
//!
//! Owns shapes only.
//!
//! Decode these from `serde_json::Value` and from nothing else: each further `Deserializer` type instantiates
//! every visitor again and costs about a megabyte of program text (and so of memory).

pub mod decode;
pub(crate) mod fields;
pub mod managed_fields;
pub mod object;
pub mod pod;
pub mod quantity;
pub mod raw;
pub mod schema;

/// Declares wire structs: camelCase names, every field optional on reading, and absent on writing while it
/// holds its default. That is how Go's `omitempty` behaves, and it keeps stored and printed objects free of
/// noise. `#[wire(rename = "hostIP")]` gives a field another name, `#[wire(always)]` writes also its default.
macro_rules! wire {
    ($($(#[$meta:meta])* $visibility:vis struct $name:ident { $(
        $(#[doc = $doc:literal])* $(#[wire($($option:tt)*)])? pub $field:ident: $type:ty,
    )* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        $visibility struct $name {$(
            $(#[doc = $doc])*
            pub $field: $type,
        )*}

        impl $crate::model::api::fields::Fields for $name {
            fn read<'de, M: serde::de::MapAccess<'de>>(
                &mut self,
                name: &str,
                members: &mut M,
            ) -> Result<(), M::Error> {
                $(
                    if name == $crate::model::api::wire_name!($field $($($option)*)?) {
                        return $crate::model::api::fields::read_field(&mut self.$field, members);
                    }
                )*
                $crate::model::api::fields::ignore_field(members)
            }

            fn write<M: serde::ser::SerializeMap>(&self, members: &mut M) -> Result<(), M::Error> {
                $(
                    let name = $crate::model::api::wire_name!($field $($($option)*)?);
                    let always = $crate::model::api::wire_always!($($($option)*)?);
                    $crate::model::api::fields::write_field(members, name, &self.$field, always)?;
                )*
                Ok(())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                const NAME: &str = stringify!($name);
                const FIELDS: &[&str] = &[$($crate::model::api::wire_name!($field $($($option)*)?)),*];
                let visitor = $crate::model::api::fields::FieldsVisitor::new(NAME);
                deserializer.deserialize_struct(NAME, FIELDS, visitor)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut members = serializer.serialize_map(None)?;
                $crate::model::api::fields::Fields::write(self, &mut members)?;
                members.end()
            }
        }
    )*};
}
pub(crate) use wire;

/// As `wire!`, for the agent's own files: names are those of the fields.
macro_rules! record {
    ($($(#[$meta:meta])* $visibility:vis struct $name:ident { $(
        $(#[doc = $doc:literal])* $(#[wire($($option:tt)*)])? pub $field:ident: $type:ty,
    )* })*) => {
        $crate::model::api::wire! {$(
            $(#[$meta])*
            $visibility struct $name {$(
                $(#[doc = $doc])*
                #[wire($($($option)*,)? own = $field)]
                pub $field: $type,
            )*}
        )*}
    };
}
pub(crate) use record;

/// The name of a field of `wire!` on the wire.
macro_rules! wire_name {
    ($field:ident always, $($option:tt)*) => { $crate::model::api::wire_name!($field $($option)*) };
    ($field:ident rename = $name:literal) => { $name };
    ($field:ident own = $own:ident) => { stringify!($own) };
    ($field:ident $(always)?) => {{
        const BYTES: [u8; $crate::model::api::fields::camel_length(stringify!($field))] =
            $crate::model::api::fields::camel(stringify!($field));
        const NAME: &str = match std::str::from_utf8(&BYTES) {
            Ok(name) => name,
            Err(_) => panic!("a name of a field in ASCII"),
        };
        NAME
    }};
}
pub(crate) use wire_name;

/// Whether a field of `wire!` is written when it holds its default.
macro_rules! wire_always {
    (always $($option:tt)*) => {
        true
    };
    ($($option:tt)*) => {
        false
    };
}
pub(crate) use wire_always;
