//! YAML text to JSON values, for configuration files.
//!
//! Owns the options of the YAML parser and its bounds. Must not know what a document means.

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

/// The text is not YAML, or is more than a configuration may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    message: String,
}

/// Deep enough for any configuration, shallow enough for any stack.
const MAX_DEPTH: usize = 48;
/// Sequences, maps and scalars of one file.
const MAX_NODES: usize = 20_000;
/// References to anchors of one file.
const MAX_ALIASES: usize = 100;

/// Every non-empty document. A duplicate key is an error when `strict`; otherwise the last one wins.
///
/// # Errors
/// When the text is malformed or beyond the bounds, with line and column.
pub(super) fn yaml_to_values(text: &str, strict: bool) -> Result<Vec<Value>, YamlError> {
    let duplicates = if strict { DuplicateKeyPolicy::Error } else { DuplicateKeyPolicy::LastWins };
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_aliases: MAX_ALIASES,
        },
        duplicate_keys: duplicates,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| YamlError { message: error.to_string() })?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}
