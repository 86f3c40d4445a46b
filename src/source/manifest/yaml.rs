//! YAML text to raw JSON values, the way Kubernetes reads it (YAML 1.1: `0644` is 420, `yes` is true, `<<` merges).
//!
//! Owns the parser, its bounds and the splitting into documents, so that one broken document does not hide the others.

use serde_json::Value;
use serde_saphyr::{Budget, DuplicateKeyPolicy, Options};

/// Documents of one text; far more than anybody writes by hand.
const MAX_DOCUMENTS: usize = 5_000;
/// Nodes of one document: a list of a thousand pods has about a hundred thousand.
const MAX_NODES: usize = 200_000;
/// Nesting. A pod needs about 15; values are also dropped recursively.
const MAX_DEPTH: usize = 64;
/// Uses of `*alias` in one document, and how many nodes they may stand for together.
const MAX_ALIASES: usize = 1_000;
const MAX_ALIAS_NODES: usize = 100_000;

/// The text is not YAML, or goes beyond what is reasonable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", place(*.line, *.column))]
pub struct YamlError {
    /// Counted from 1 in the whole text; 0 when unknown.
    pub line: u64,
    /// Counted from 1; 0 when unknown.
    pub column: u64,
    /// What is wrong.
    pub message: String,
}

fn place(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!("line {line}, column {column}: ") }
}

/// One document of a text.
#[derive(Clone, Debug)]
pub struct YamlDocument {
    /// Counted from 1; empty documents are not counted.
    pub number: usize,
    /// What it holds, or why it cannot be read.
    pub value: Result<Value, YamlError>,
    /// What a strict reader would refuse: duplicate keys.
    pub warnings: Vec<String>,
}

/// Reads every document that is not empty. Strict: a duplicate key is an error; otherwise the last one wins.
///
/// # Errors
/// The first document that cannot be read.
pub fn yaml_to_values(text: &str, strict: bool) -> Result<Vec<Value>, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let chunks = split(text)?;
    let parsed = chunks.into_iter().map(|chunk| parse(&chunk, strict));
    parsed.filter(|result| !matches!(result, Ok(Value::Null))).collect()
}

/// Reads every document that is not empty, each on its own: strictly, and when only duplicate keys stand in the way,
/// again with the last one winning and a warning.
#[must_use]
pub fn yaml_documents(text: &str) -> Vec<YamlDocument> {
    let chunks = match split(text) {
        Ok(chunks) => chunks,
        Err(error) => return vec![YamlDocument { number: 1, value: Err(error), warnings: Vec::new() }],
    };
    let mut documents = Vec::new();
    for chunk in chunks {
        let (value, warnings) = match parse(&chunk, true) {
            Ok(value) => (Ok(value), Vec::new()),
            Err(strict) => match parse(&chunk, false) {
                Ok(value) => (Ok(value), vec![format!("{strict}; the last one is used")]),
                Err(error) => (Err(error), Vec::new()),
            },
        };
        if !matches!(value, Ok(Value::Null)) {
            documents.push(YamlDocument { number: documents.len() + 1, value, warnings });
        }
    }
    documents
}

/// A document's text and the number of lines before it.
struct Chunk<'a> {
    text: &'a str,
    lines_before: u64,
}

/// Cuts at the lines that YAML reserves for it: `---` and `...` at the start of a line end a document even inside a block
/// or quoted text. Chunks of comments, directives and blank lines are left out.
fn split(text: &str) -> Result<Vec<Chunk<'_>>, YamlError> {
    let mut chunks = Vec::new();
    let (mut start, mut offset) = (0, 0);
    let (mut start_line, mut line_number) = (0, 0);
    let mut blank = true;
    for line in text.split_inclusive('\n') {
        let ends = is_marker(line, "...");
        if is_marker(line, "---") || ends {
            if !blank {
                chunks.push(Chunk { text: &text[start..offset], lines_before: start_line });
            }
            // The marker itself is blanked out by starting behind it; content may follow `---` on its line.
            start = offset + 3;
            start_line = line_number;
            blank = ends || is_blank(&line[3..]);
        } else if blank {
            blank = is_blank(line);
        }
        offset += line.len();
        line_number += 1;
        if chunks.len() > MAX_DOCUMENTS {
            let message = format!("more than {MAX_DOCUMENTS} documents; split the file");
            return Err(YamlError { line: line_number, column: 1, message });
        }
    }
    if !blank {
        chunks.push(Chunk { text: &text[start..], lines_before: start_line });
    }
    Ok(chunks)
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_blank(line: &str) -> bool {
    let text = line.trim();
    text.is_empty() || text.starts_with('#') || line.starts_with('%')
}

fn parse(chunk: &Chunk<'_>, strict: bool) -> Result<Value, YamlError> {
    serde_saphyr::from_str_with_options(chunk.text, options(strict)).map_err(|error| {
        let location = error.location();
        let line = location.map_or(0, |location| location.line() + chunk.lines_before);
        let column = location.map_or(0, |location| location.column());
        YamlError { line, column, message: message(&error) }
    })
}

fn options(strict: bool) -> Options {
    let mut budget = Budget::default();
    budget.max_documents = 1;
    budget.max_nodes = MAX_NODES;
    budget.max_events = 3 * MAX_NODES;
    budget.max_depth = MAX_DEPTH;
    budget.flow_nesting_limit = MAX_DEPTH;
    budget.max_aliases = MAX_ALIASES;
    budget.max_anchors = MAX_ALIASES;
    budget.max_recorded_anchor_events = MAX_ALIAS_NODES;
    let mut options = Options::default();
    options.budget = Some(budget);
    options.duplicate_keys = if strict { DuplicateKeyPolicy::Error } else { DuplicateKeyPolicy::LastWins };
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    options.alias_limits.max_total_replayed_events = MAX_ALIAS_NODES;
    options
}

/// The parser's words without its own idea of the place.
fn message(error: &serde_saphyr::Error) -> String {
    error.without_snippet().to_string()
}

#[cfg(test)]
mod tests;
