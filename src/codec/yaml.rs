//! YAML text to raw JSON values, the way Kubernetes reads it (YAML 1.1: `0644` is 420, `yes` is true, `<<`
//! merges).
//!
//! Owns the parser, its bounds and the splitting into documents, so that one broken document does not hide
//! the others.

mod compose;
mod events;
mod scalar;
pub(crate) mod text;

use std::borrow::Cow;

use serde_json::Value;

/// Documents in one text; far above what hand-written files have.
const MAX_DOCUMENTS: usize = 5_000;
/// Nodes of one document: a list of a thousand pods has about a hundred thousand.
const MAX_NODES: usize = 200_000;
/// Nesting. A pod needs about 15; values are also dropped recursively.
const MAX_DEPTH: usize = 64;
/// Uses of `*alias` in one document; the nodes that they stand for together are bounded below.
const MAX_ALIASES: usize = 1_000;
const MAX_ALIAS_NODES: usize = 100_000;
/// Quoted texts of one document with `\'` in them: each costs another pass over the document.
const MAX_APOSTROPHE_TEXTS: usize = 20;

/// The text is not YAML, or exceeds a bound of this module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", place(*.line, *.column))]
pub struct YamlError {
    /// Counted from 1 in the whole text; 0 when unknown.
    pub line: u64,
    /// Counted from 1; 0 when unknown.
    pub column: u64,
    pub message: String,
}

fn place(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!("line {line}, column {column}: ") }
}

#[derive(Clone, Debug)]
pub struct YamlDocument {
    /// Counted from 1; empty documents are not counted.
    pub number: usize,
    /// Its value, or why it cannot be read.
    pub value: Result<Value, YamlError>,
    /// Problems that a strict reader would refuse: duplicate keys.
    pub warnings: Vec<String>,
}

/// Reads every document that is not empty. Strict: a duplicate key is an error; otherwise the last one wins.
pub fn yaml_to_values(text: &str, strict: bool) -> Result<Vec<Value>, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let chunks = split(text)?;
    let parsed = chunks.into_iter().map(|chunk| parse(&chunk, strict));
    parsed.filter(|result| !matches!(result, Ok(Value::Null))).collect()
}

/// Reads every document that is not empty, each on its own and lazily: strictly, and if duplicate keys are
/// the only problem, again with the last one winning and a warning.
pub fn yaml_documents(text: &str) -> impl Iterator<Item = YamlDocument> {
    let (chunks, refused) = match split(text) {
        Ok(chunks) => (chunks, None),
        Err(error) => (Vec::new(), Some(YamlDocument { number: 1, value: Err(error), warnings: Vec::new() })),
    };
    let read = chunks.into_iter().map(|chunk| read_chunk(&chunk));
    let not_null = read.filter(|(value, _)| !matches!(value, Ok(Value::Null)));
    let numbered = not_null.enumerate();
    let documents =
        numbered.map(|(index, (value, warnings))| YamlDocument { number: index + 1, value, warnings });
    refused.into_iter().chain(documents)
}

fn read_chunk(chunk: &Chunk<'_>) -> (Result<Value, YamlError>, Vec<String>) {
    match parse(chunk, true) {
        Ok(value) => (Ok(value), Vec::new()),
        Err(strict) => match parse(chunk, false) {
            Ok(value) => (Ok(value), vec![format!("{strict}; the last one is used")]),
            Err(error) => (Err(error), Vec::new()),
        },
    }
}

/// A document's text and the number of lines before it.
struct Chunk<'a> {
    text: &'a str,
    lines_before: u64,
}

/// Splits at the lines that YAML reserves for it: `---` and `...` at the start of a line end a document even
/// inside a block or quoted text. Chunks of comments, directives and blank lines are left out.
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
    let mut value = parse_leniently(chunk.text, strict).map_err(|mut error| {
        if error.line > 0 {
            error.line += chunk.lines_before;
        }
        error
    })?;
    make_whole(&mut value);
    Ok(value)
}

/// Reads `\'` in double quotes as an apostrophe. YAML does not have that escape; the parser of Kubernetes
/// accepts it.
fn parse_leniently(text: &str, strict: bool) -> Result<Value, YamlError> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_APOSTROPHE_TEXTS {
        let parsed = compose::document(&text, strict);
        let Err(error) = &parsed else { return parsed };
        let place = Some(error).filter(|error| error.message.contains("unknown escape character"));
        match place.and_then(|place| without_escaped_apostrophes(&text, place.line, place.column)) {
            Some(changed) => text = Cow::Owned(changed),
            None => return parsed,
        }
    }
    compose::document(&text, strict)
}

/// Replaces the escapes in the double-quoted text that begins at a place counted from 1; `None` when there
/// are none.
fn without_escaped_apostrophes(text: &str, line: u64, column: u64) -> Option<String> {
    let line_start: usize =
        text.split_inclusive('\n').take(usize::try_from(line).ok()?.checked_sub(1)?).map(str::len).sum();
    let in_line = text[line_start..].char_indices().nth(usize::try_from(column).ok()?.checked_sub(1)?)?;
    let quoted = text[line_start + in_line.0..].strip_prefix('"')?;
    let start = text.len() - quoted.len();
    let mut changed = text[..start].to_owned();
    let mut characters = quoted.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => {
                changed.push_str(&quoted[index..]);
                break;
            }
            '\\' => match characters.next()?.1 {
                '\'' => changed.push('\''),
                escaped => changed.extend(['\\', escaped]),
            },
            other => changed.push(other),
        }
    }
    (changed.len() < text.len()).then_some(changed)
}

/// Converts whole numbers that were written as `1e3` or `08` to integers, as the kubelet's conversion from
/// YAML to JSON does.
fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(whole_number) {
                *value = Value::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(members) => members.values_mut().for_each(make_whole),
        _ => {}
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "only integers below 2^53 get to the cast, which is exact for them"
)]
fn whole_number(float: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (float.fract() == 0.0 && float.abs() < EXACT).then_some(float as i64)
}

#[cfg(test)]
mod parity;
#[cfg(test)]
mod tests;
