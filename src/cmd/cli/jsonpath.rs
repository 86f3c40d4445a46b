//! kubectl's JSONPath templates: `{.items[*].metadata.name}`, `{range
//! .items[?(@.kind=="Pod")]}{.metadata.name}{"\n"}{end}`.
//!
//! Owns the language. Pure. Like kubectl it prints nothing for missing fields.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

/// The maximum nesting; templates are typed by hand.
const DEEPEST: usize = 32;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Value(Path),
    Range(Path, Vec<Part>),
}

#[derive(Clone, Debug, PartialEq)]
struct Path {
    /// Evaluated from the template's object, not from the current one of a range or a filter.
    from_root: bool,
    steps: Vec<PathStep>,
}

#[derive(Clone, Debug, PartialEq)]
enum PathStep {
    Field(String),
    /// All fields of this name, at any depth.
    Anywhere(String),
    All,
    Names(Vec<String>),
    Indexes(Vec<i64>),
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        by: usize,
    },
    Filter(Operand, Option<(Comparison, Operand)>),
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Literal(Value),
    Path(Path),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Template {
    /// Parses a template. As in kubectl, one without braces is one expression, and the first dot is optional.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let braced = match text {
            _ if text.contains('{') => text.to_owned(),
            _ if text.starts_with(['.', '[', '$']) => format!("{{{text}}}"),
            _ => format!("{{.{text}}}"),
        };
        let mut reader = Reader { chars: braced.chars().peekable(), depth: 0 };
        let parts = reader.parts(false)?;
        Ok(Self(parts))
    }

    pub(super) fn render(&self, object: &Value) -> String {
        let mut text = String::new();
        render(&self.0, object, object, &mut text);
        text
    }
}

fn render(parts: &[Part], root: &Value, here: &Value, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Value(path) => {
                let words: Vec<String> = find(path, root, here).into_iter().map(shown).collect();
                out.push_str(&words.join(" "));
            }
            Part::Range(path, parts) => {
                for item in find(path, root, here) {
                    // A list is expanded, like kubectl.
                    match item {
                        Value::Array(items) if !path.ends_open() => {
                            for item in items {
                                render(parts, root, item, out);
                            }
                        }
                        item => render(parts, root, item, out),
                    }
                }
            }
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Path {
    /// Whether it already stands for several values.
    fn ends_open(&self) -> bool {
        !matches!(self.steps.last(), None | Some(PathStep::Field(_)))
    }
}

fn find<'a>(path: &Path, root: &'a Value, here: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![if path.from_root { root } else { here }];
    for step in &path.steps {
        found = found.into_iter().flat_map(|value| one(step, root, value)).collect();
    }
    found
}

fn one<'a>(step: &PathStep, root: &'a Value, value: &'a Value) -> Vec<&'a Value> {
    let at = |items: &'a [Value], index: i64| {
        let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
        usize::try_from(if index < 0 { index + length } else { index })
            .ok()
            .and_then(|index| items.get(index))
    };
    match (step, value) {
        (PathStep::Field(name), _) => value.get(name).into_iter().collect(),
        (PathStep::Names(names), _) => names.iter().filter_map(|name| value.get(name)).collect(),
        (PathStep::Anywhere(name), _) => {
            let mut found = Vec::new();
            anywhere(name, value, &mut found);
            found
        }
        (PathStep::All, Value::Array(items)) => items.iter().collect(),
        (PathStep::All, Value::Object(fields)) => fields.values().collect(),
        (PathStep::Indexes(indexes), Value::Array(items)) => {
            indexes.iter().filter_map(|index| at(items, *index)).collect()
        }
        (PathStep::Slice { from, to, by }, Value::Array(items)) => {
            let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
            let place = |index: Option<i64>, otherwise: i64| {
                let index = index.map_or(otherwise, |index| if index < 0 { index + length } else { index });
                usize::try_from(index.clamp(0, length)).unwrap_or_default()
            };
            let (from, to) = (place(*from, 0), place(*to, length));
            items.get(from..to).unwrap_or_default().iter().step_by(*by).collect()
        }
        (PathStep::Filter(left, comparison), Value::Array(items)) => {
            items.iter().filter(|item| holds(left, comparison.as_ref(), root, item)).collect()
        }
        _ => Vec::new(),
    }
}

fn anywhere<'a>(name: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(name));
            fields.values().for_each(|value| anywhere(name, value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| anywhere(name, value, found)),
        _ => {}
    }
}

fn holds(left: &Operand, right: Option<&(Comparison, Operand)>, root: &Value, item: &Value) -> bool {
    let value = |operand: &Operand| match operand {
        Operand::Literal(value) => Some(value.clone()),
        Operand::Path(path) => find(path, root, item).first().map(|value| (*value).clone()),
    };
    let Some(left) = value(left) else { return false };
    let Some((comparison, right)) = right else { return true };
    let Some(right) = value(right) else { return false };
    let order = match (&left, &right) {
        (Value::Number(a), Value::Number(b)) => {
            a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b))
        }
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => (left == right).then_some(Ordering::Equal),
    };
    match comparison {
        Comparison::Equal => order == Some(Ordering::Equal),
        Comparison::NotEqual => order != Some(Ordering::Equal),
        Comparison::Less => order == Some(Ordering::Less),
        Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Greater => order == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    depth: usize,
}

impl Reader<'_> {
    fn parts(&mut self, in_range: bool) -> Result<Vec<Part>, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("ranges are nested too deeply".to_owned());
        }
        let (mut parts, mut text) = (Vec::new(), String::new());
        while let Some(next) = self.chars.next() {
            if next != '{' {
                text.push(next);
                continue;
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            self.blanks();
            match self.chars.peek().copied() {
                Some('"' | '\'') => {
                    let words = self.quoted()?;
                    parts.push(Part::Text(words));
                }
                Some('r' | 'e') => {
                    let word = self.word();
                    match word.as_str() {
                        "end" if in_range => {
                            self.expect('}')?;
                            self.depth -= 1;
                            return Ok(parts);
                        }
                        "range" => {
                            self.blanks();
                            let path = self.path()?;
                            self.expect('}')?;
                            parts.push(Part::Range(path, self.parts(true)?));
                            continue;
                        }
                        other => return Err(format!("unexpected {other:?}: must be a path, range or end")),
                    }
                }
                _ => {
                    let path = self.path()?;
                    parts.push(Part::Value(path));
                }
            }
            self.expect('}')?;
        }
        if in_range {
            return Err("missing {end}".to_owned());
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        self.depth -= 1;
        Ok(parts)
    }

    fn blanks(&mut self) {
        while self.chars.next_if(|next| next.is_whitespace()).is_some() {}
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        self.blanks();
        match self.chars.next() {
            Some(found) if found == wanted => Ok(()),
            Some(found) => Err(format!("expected {wanted:?}, found {found:?}")),
            None => Err(format!("expected {wanted:?}, found the end of the template")),
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(next) = self.chars.next_if(char::is_ascii_alphanumeric) {
            word.push(next);
        }
        word
    }

    fn quoted(&mut self) -> Result<String, String> {
        let quote = self.chars.next().unwrap_or('"');
        let mut text = String::new();
        loop {
            match self.chars.next() {
                None => return Err(format!("unterminated string: missing {quote}")),
                Some(next) if next == quote => return Ok(text),
                Some('\\') => text.push(match self.chars.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some(other) => other,
                    None => return Err("unterminated string: it ends with a backslash".to_owned()),
                }),
                Some(next) => text.push(next),
            }
        }
    }

    /// A field's name; a backslash escapes a dot.
    fn name(&mut self) -> String {
        let mut name = String::new();
        loop {
            match self.chars.peek() {
                Some('\\') => {
                    self.chars.next();
                    name.extend(self.chars.next());
                }
                Some(next) if !" \t\n.[]{}()=!<>,".contains(*next) => name.extend(self.chars.next()),
                _ => return name,
            }
        }
    }

    fn path(&mut self) -> Result<Path, String> {
        let from_root = match self.chars.peek() {
            Some('$') => self.chars.next().is_some(),
            Some('@') => self.chars.next().is_none(),
            Some('.' | '[') => false,
            other => return Err(format!("a path cannot begin with {other:?}")),
        };
        let mut steps = Vec::new();
        loop {
            match self.chars.peek() {
                Some('.') => {
                    self.chars.next();
                    let deep = self.chars.next_if_eq(&'.').is_some();
                    if self.chars.next_if_eq(&'*').is_some() {
                        steps.push(PathStep::All);
                        continue;
                    }
                    let name = self.name();
                    match (deep, name.is_empty()) {
                        (true, true) => return Err("expected a name after ..".to_owned()),
                        (true, false) => steps.push(PathStep::Anywhere(name)),
                        // `{.}` is the whole object, `.[0]` is `[0]`.
                        (false, true) => {}
                        (false, false) => steps.push(PathStep::Field(name)),
                    }
                }
                Some('[') => {
                    self.chars.next();
                    steps.push(self.bracket()?);
                }
                _ => return Ok(Path { from_root, steps }),
            }
        }
    }

    fn bracket(&mut self) -> Result<PathStep, String> {
        self.blanks();
        let step = match self.chars.peek().copied() {
            Some('*') => {
                self.chars.next();
                PathStep::All
            }
            Some('?') => {
                self.chars.next();
                self.expect('(')?;
                let left = self.operand()?;
                let comparison = self.comparison()?;
                let right = match comparison {
                    Some(comparison) => Some((comparison, self.operand()?)),
                    None => None,
                };
                self.expect(')')?;
                PathStep::Filter(left, right)
            }
            Some('"' | '\'') => {
                let mut names = vec![self.quoted()?];
                while self.comma() {
                    names.push(self.quoted()?);
                }
                PathStep::Names(names)
            }
            _ => self.numbers()?,
        };
        self.expect(']')?;
        Ok(step)
    }

    fn comma(&mut self) -> bool {
        self.blanks();
        let found = self.chars.next_if_eq(&',').is_some();
        self.blanks();
        found
    }

    fn number(&mut self) -> Result<Option<i64>, String> {
        let mut text = String::new();
        while let Some(next) = self.chars.next_if(|next| next.is_ascii_digit() || *next == '-') {
            text.push(next);
        }
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| format!("invalid array index {text:?}"))
    }

    fn numbers(&mut self) -> Result<PathStep, String> {
        let first = self.number()?;
        if self.chars.next_if_eq(&':').is_some() {
            let to = self.number()?;
            let by = if self.chars.next_if_eq(&':').is_some() { self.number()? } else { None };
            let by = usize::try_from(by.unwrap_or(1)).ok().filter(|by| *by > 0);
            return Ok(PathStep::Slice { from: first, to, by: by.ok_or("step must be > 0")? });
        }
        let mut indexes = vec![first.ok_or("expected an index, a quoted name, * or ?() in []")?];
        while self.comma() {
            indexes.push(self.number()?.ok_or("expected an index after the comma")?);
        }
        Ok(PathStep::Indexes(indexes))
    }

    fn comparison(&mut self) -> Result<Option<Comparison>, String> {
        self.blanks();
        let mut sign = String::new();
        while let Some(next) = self.chars.next_if(|next| "=!<>".contains(*next)) {
            sign.push(next);
        }
        Ok(Some(match sign.as_str() {
            "" => return Ok(None),
            "==" | "=" => Comparison::Equal,
            "!=" => Comparison::NotEqual,
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            other => return Err(format!("unrecognized comparison operator {other:?}")),
        }))
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.blanks();
        match self.chars.peek() {
            Some('"' | '\'') => self.quoted().map(|text| Operand::Literal(Value::String(text))),
            Some('@' | '$' | '.') => self.path().map(Operand::Path),
            _ => {
                let mut word = String::new();
                while let Some(next) = self.chars.next_if(|next| !" )=!<>".contains(*next)) {
                    word.push(next);
                }
                serde_json::from_str(&word).map(Operand::Literal).map_err(|_| {
                    format!("invalid value {word:?}: must be a quoted string, a number, true or false")
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn made(template: &str) -> String {
        let object = json!({"items": [
            {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x"}}, "n": 1, "ready": true},
            {"metadata": {"name": "b", "labels": {}}, "n": 20, "ready": false, "list": [1, 2, 3, 4]},
        ]});
        Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}")).render(&object)
    }

    #[test]
    fn templates_are_kubectls() {
        for (template, expected) in [
            ("{.items[*].metadata.name}", "a b"),
            (".items[0].metadata.name", "a"),
            ("items[0].n", "1"),
            ("{$.items[-1].metadata['name']}", "b"),
            ("{.items[0].metadata.labels.app\\.kubernetes\\.io/name}", "x"),
            ("{range .items[*]}{.metadata.name}={.n}{\"\\n\"}{end}", "a=1\nb=20\n"),
            ("{range .items}{.metadata.name},{end}done", "a,b,done"),
            ("{.items[?(@.metadata.name==\"b\")].n}", "20"),
            ("{.items[?(@.n > 5)].metadata.name}", "b"),
            ("{.items[?(@.ready==true)].metadata.name}", "a"),
            ("{.items[?(@.metadata.name != 'b')].n}", "1"),
            ("{.items[?(@.list)].metadata.name}", "b"),
            ("{.items[1].list[1:3]}", "2 3"),
            ("{.items[1].list[0,-1]}", "1 4"),
            ("{.items[1].list[::2]}", "1 3"),
            ("{.items[1].list}", "[1,2,3,4]"),
            ("{..name}", "a b"),
            ("{.nothing.here[3]}", ""),
            ("{.items[0].metadata.labels}", "{\"app.kubernetes.io/name\":\"x\"}"),
            ("name: {.items[0].metadata.name}", "name: a"),
        ] {
            assert_eq!(made(template), expected, "{template}");
        }
    }

    #[test]
    fn invalid_jsonpath_template_is_refused_with_a_reason() {
        for (template, word) in [
            ("{.items[}", "index"),
            ("{.a", "end of the template"),
            ("{range .a}x", "{end}"),
            ("{end}", "end"),
            ("{\"a}", "unterminated"),
            ("{.a[?(@.b==c)]}", "\"c\""),
            ("{.a[?(@.b===\"c\")]}", "==="),
            ("{..}", "name"),
        ] {
            let said = Template::parse(template).unwrap_err();
            assert!(said.contains(word), "{template}: {said}");
        }
        assert!(Template::parse(&"{range .a}".repeat(100)).unwrap_err().contains("deep"));
    }

    proptest! {
        #[test]
        fn no_template_panics(template in "[{}.$@\\[\\]?()*:,=!<>\"'\\\\ a-c0-9-]{0,40}") {
            if let Ok(template) = Template::parse(&template) {
                template.render(&json!({"a": [{"b": 1}, {"b": [2, "c"]}], "c": null}));
            }
        }
    }
}
