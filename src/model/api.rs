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
pub mod record;
pub mod schema;
pub mod walk;

/// Declares wire structs: camelCase names, every field optional on reading, and absent on writing while it
/// holds its default. That is how Go's `omitempty` behaves, and it keeps stored and printed objects free of
/// noise.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident {$(
        $(#[doc = $doc:expr])*
        $(#[serde(rename = $rename:literal)])?
        pub $field:ident: $type:ty,
    )*})*) => {
        $crate::model::api::record::record! {$(
            $(#[$meta])*
            #[derive(Clone, Debug, Default, PartialEq)]
            pub struct $name as camelCase {$(
                $(#[doc = $doc])*
                $(#[serde(rename = $rename)])?
                #[serde(skip_serializing_if = "unset")]
                pub $field: $type,
            )*}
        )*}
    };
}
pub(crate) use wire;
