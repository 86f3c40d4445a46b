//! Words for fields that the types do not have, with the likely intended name.

/// The warning for an unknown field.
pub(super) fn unknown_field(path: &str) -> String {
    format!("unknown field {path:?} is ignored")
}
