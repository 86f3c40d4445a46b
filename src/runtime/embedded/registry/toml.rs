//! The subset of TOML that `hosts.toml` files use: tables, strings, booleans, integers, arrays and inline
//! tables.
//!
//! Owns the grammar. (The `toml` crate would add 90 kB and a second Deserializer for files of ten lines.
//! Unsupported syntax is refused with its line, never guessed.)

use serde_json::{Map, Value};

/// Deeper nesting is no real configuration.
const MAX_DEPTH: usize = 8;

/// One assignment. Their order in the file is kept, because it is significant in `hosts.toml`.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::runtime) struct Assignment {
    /// The table it is in and the leading parts of a dotted key.
    pub table: Vec<String>,
    /// The last part of its key.
    pub key: String,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub(in crate::runtime) struct TomlError {
    /// Counted from 1.
    pub line: usize,
    pub problem: &'static str,
}

/// Reads a file. A table without keys appears with an empty key and a null value.
pub(in crate::runtime) fn parse(text: &str) -> Result<Vec<Assignment>, TomlError> {
    let mut reader = Reader { rest: text, line: 1 };
    let mut table = Vec::new();
    let mut found = Vec::new();
    loop {
        reader.skip_blank_lines();
        if reader.rest.is_empty() {
            return Ok(found);
        }
        if reader.consume("[") {
            if reader.rest.starts_with('[') {
                return Err(reader.error("arrays of tables are not supported"));
            }
            table = reader.key()?;
            reader.expect("]", "missing ']' after the table name")?;
            found.push(Assignment { table: table.clone(), key: String::new(), value: Value::Null });
        } else {
            let (path, value) = reader.assignment(0)?;
            let mut full = table.clone();
            full.extend(path);
            let key = full.pop().unwrap_or_default();
            found.push(Assignment { table: full, key, value });
        }
        reader.end_of_line()?;
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    fn error(&self, problem: &'static str) -> TomlError {
        TomlError { line: self.line, problem }
    }

    fn consume(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, text: &str, problem: &'static str) -> Result<(), TomlError> {
        self.skip_spaces();
        if self.consume(text) { Ok(()) } else { Err(self.error(problem)) }
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
    }

    fn skip_comment(&mut self) {
        self.skip_spaces();
        if self.rest.starts_with('#') {
            self.rest = self.rest.find('\n').map_or("", |at| &self.rest[at..]);
        }
    }

    fn skip_blank_lines(&mut self) {
        loop {
            self.skip_comment();
            if !self.consume("\n") {
                return;
            }
            self.line += 1;
        }
    }

    fn end_of_line(&mut self) -> Result<(), TomlError> {
        self.skip_comment();
        if self.rest.is_empty() || self.rest.starts_with('\n') {
            return Ok(());
        }
        Err(self.error("unexpected text after the value"))
    }

    fn assignment(&mut self, depth: usize) -> Result<(Vec<String>, Value), TomlError> {
        let path = self.key()?;
        self.expect("=", "missing '=' after the key")?;
        self.skip_spaces();
        Ok((path, self.value(depth)?))
    }

    fn key(&mut self) -> Result<Vec<String>, TomlError> {
        let mut parts = Vec::new();
        loop {
            self.skip_spaces();
            if self.rest.starts_with(['"', '\'']) {
                parts.push(self.string()?);
            } else {
                let bare = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
                let end = self.rest.find(|letter| !bare(letter)).unwrap_or(self.rest.len());
                if end == 0 {
                    return Err(self.error(
                        "missing key; keys with characters other than letters, digits, '_' and '-' must be \
                         quoted",
                    ));
                }
                parts.push(self.rest[..end].to_owned());
                self.rest = &self.rest[end..];
            }
            self.skip_spaces();
            if !self.consume(".") {
                return Ok(parts);
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, TomlError> {
        if depth > MAX_DEPTH {
            return Err(self.error("values are nested too deeply"));
        }
        if self.rest.starts_with(['"', '\'']) {
            return self.string().map(Value::String);
        }
        if self.consume("[") {
            return self.array(depth);
        }
        if self.consume("{") {
            return self.inline_table(depth);
        }
        let end = self.rest.find([',', ']', '}', '#', '\n', ' ', '\t', '\r']).unwrap_or(self.rest.len());
        let word = &self.rest[..end];
        let value = match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => match word.replace('_', "").parse::<i64>() {
                Ok(number) => Value::from(number),
                Err(_) => {
                    return Err(
                        self.error("must be a quoted string, true, false, an integer, [...] or {...}")
                    );
                }
            },
        };
        self.rest = &self.rest[end..];
        Ok(value)
    }

    fn array(&mut self, depth: usize) -> Result<Value, TomlError> {
        let mut items = Vec::new();
        loop {
            self.skip_blank_lines();
            if self.consume("]") {
                return Ok(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.skip_blank_lines();
            if !self.consume(",") && !self.rest.starts_with(']') {
                return Err(self.error("missing ',' or ']' in an array"));
            }
        }
    }

    fn inline_table(&mut self, depth: usize) -> Result<Value, TomlError> {
        let mut members = Map::new();
        loop {
            self.skip_spaces();
            if self.consume("}") {
                return Ok(Value::Object(members));
            }
            let (path, value) = self.assignment(depth + 1)?;
            let [key] = &path[..] else {
                return Err(self.error("dotted keys are not supported in inline tables"));
            };
            members.insert(key.clone(), value);
            self.skip_spaces();
            if !self.consume(",") && !self.rest.starts_with('}') {
                return Err(self.error("missing ',' or '}' in an inline table"));
            }
        }
    }

    fn string(&mut self) -> Result<String, TomlError> {
        if self.rest.starts_with("\"\"\"") || self.rest.starts_with("'''") {
            return Err(self.error("multi-line strings are not supported"));
        }
        let literal = self.rest.starts_with('\'');
        let mut letters = self.rest.char_indices();
        letters.next();
        let mut text = String::new();
        loop {
            let Some((at, letter)) = letters.next().filter(|(_, letter)| *letter != '\n') else {
                return Err(self.error("unterminated string"));
            };
            match letter {
                '\'' if literal => {}
                '"' if !literal => {}
                '\\' if !literal => {
                    let escaped = letters.next().and_then(|(_, letter)| match letter {
                        '"' | '\\' => Some(letter),
                        'n' => Some('\n'),
                        't' => Some('\t'),
                        'r' => Some('\r'),
                        'u' => {
                            let digits: String = letters.by_ref().take(4).map(|(_, digit)| digit).collect();
                            u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)
                        }
                        _ => None,
                    });
                    let Some(escaped) = escaped else {
                        return Err(self.error("unknown escape in a string; use '...' for literal text"));
                    };
                    text.push(escaped);
                    continue;
                }
                other => {
                    text.push(other);
                    continue;
                }
            }
            self.rest = &self.rest[at + 1..];
            return Ok(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_hosts_file_is_read_in_its_order() {
        let text = "server = \"https://r.example\" # upstream\n\n[host.\"https://b.example/v2/x\"]\n  \
                    capabilities = [\"pull\",\n   'resolve', # both\n  ]\n  skip_verify = true\r\n\
                    [host.'https://a.example']\n client = [[\"/c.pem\", \"/k.pem\"]]\n\
                    [host.'https://a.example'.header]\n x-key = [\"1\"]\n[host.z]\nheader = { a = \"b\", c = 1_0 }\n";
        let found = parse(text).unwrap();
        let host = |name: &str| vec!["host".to_owned(), name.to_owned()];
        let entry =
            |table: Vec<String>, key: &str, value: Value| Assignment { table, key: key.into(), value };
        let a = host("https://a.example");
        let b = host("https://b.example/v2/x");
        assert_eq!(
            found,
            [
                entry(vec![], "server", json!("https://r.example")),
                entry(b.clone(), "", Value::Null),
                entry(b.clone(), "capabilities", json!(["pull", "resolve"])),
                entry(b, "skip_verify", json!(true)),
                entry(a.clone(), "", Value::Null),
                entry(a.clone(), "client", json!([["/c.pem", "/k.pem"]])),
                entry([a.clone(), vec!["header".to_owned()]].concat(), "", Value::Null),
                entry([a, vec!["header".to_owned()]].concat(), "x-key", json!(["1"])),
                entry(host("z"), "", Value::Null),
                entry(host("z"), "header", json!({"a": "b", "c": 10})),
            ]
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_by_line() {
        for (text, line, words) in [
            ("a = 1\nb", 2, "'='"),
            ("a = yes", 1, "true"),
            ("\n[host", 2, "']'"),
            ("a = \"x\n\"", 1, "unterminated"),
            ("a = 1 2", 1, "unexpected text"),
            ("[[a]]", 1, "arrays of tables"),
            ("a = [1", 1, "','"),
            ("a = \"\\q\"", 1, "escape"),
            ("a = '''x'''", 1, "multi-line"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}: {error}");
            assert!(error.problem.contains(words), "{text:?}: {error}");
        }
        assert!(parse(&format!("a = {}", "[".repeat(10_000))).is_err());
    }

    proptest! {
        #[test]
        fn no_file_is_too_strange(text in "[\\[\\]{}a-c=\"'#\\\\,.\n 0-9é]{0,80}") {
            let _ = parse(&text);
        }
    }
}
