//! The part of Kubernetes' core/v1 that the agent honours, as serde types with the wire's names.
//!
//! Owns shapes only.
//!
//! Decode these from `serde_json::Value` and from nothing else: each further `Deserializer` type instantiates
//! every visitor again and costs about a megabyte of program text (and so of memory).

pub mod decode;
pub mod managed_fields;
pub mod object;
pub mod pod;
pub mod quantity;
pub mod raw;
pub mod schema;

/// Declares wire structs: camelCase names, every field optional on reading, and absent on writing while it
/// holds its default. That is how Go's `omitempty` behaves, and it keeps stored and printed objects free of
/// noise.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {$(
            $(#[$field_meta])*
            #[serde(default, skip_serializing_if = "crate::model::api::is_default")]
            pub $field: $type,
        )*}
    )*};
}
pub(crate) use wire;

/// True for a value that need not be written.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
