//! Label and field selectors.
//!
//! Owns their grammar and their matching. Pure: text and objects in.

use serde_json::Value;

use super::resource::{Resource, Store};
use super::status::{self, Failure};
use crate::model::objects::ObjectKind;

/// A label and a field selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    equal: bool,
    value: String,
}

impl Selector {
    pub(crate) fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Failure> {
        let labels = parse_labels(labels)
            .map_err(|why| status::bad_request(format!("unable to parse requirement: {why}")))?;
        let fields = parse_fields(fields).map_err(status::bad_request)?;
        for field in &fields {
            if !is_selectable(resource, &field.name) {
                return Err(status::bad_request(unknown_field(resource, &field.name)));
            }
        }
        Ok(Self { labels, fields })
    }

    /// Whether every object matches.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    #[must_use]
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object.pointer("/metadata/labels")?.get(key)?.as_str();
        self.labels.iter().all(|wanted| wanted.holds(label(&wanted.key)))
            && self.fields.iter().all(|field| (field_of(object, &field.name) == field.value) == field.equal)
    }
}

impl Requirement {
    fn holds(&self, found: Option<&str>) -> bool {
        let is_listed = |value: &str| self.values.iter().any(|listed| listed == value);
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = || number(self.values.first()?);
        match self.operator {
            Operator::In => found.is_some_and(is_listed),
            Operator::NotIn => !found.is_some_and(is_listed),
            Operator::Exists => found.is_some(),
            Operator::DoesNotExist => found.is_none(),
            Operator::GreaterThan => {
                found.and_then(number).zip(bound()).is_some_and(|(found, bound)| found > bound)
            }
            Operator::LessThan => {
                found.and_then(number).zip(bound()).is_some_and(|(found, bound)| found < bound)
            }
        }
    }
}

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
];
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];
const NEW_EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

fn is_selectable(resource: &Resource, field: &str) -> bool {
    let more: &[&str] = match resource.store {
        Store::Pods => POD_FIELDS,
        Store::Events if resource.group.is_empty() => EVENT_FIELDS,
        Store::Events => NEW_EVENT_FIELDS,
        Store::Objects(ObjectKind::Secret) => &["type"],
        Store::Namespaces => &["status.phase"],
        Store::Nodes => &["spec.unschedulable"],
        _ => &[],
    };
    matches!(field, "metadata.name" | "metadata.namespace") || more.contains(&field)
}

fn unknown_field(resource: &Resource, field: &str) -> String {
    match resource.store {
        Store::Pods
        | Store::Events
        | Store::Objects(ObjectKind::Secret)
        | Store::Namespaces
        | Store::Nodes => {
            format!("field label not supported: {field}")
        }
        _ => {
            format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        }
    }
}

/// A field's value as text; an absent field is empty, or `false`.
fn field_of(object: &Value, name: &str) -> String {
    let pointer = match name {
        "source" => "/source/component".to_owned(),
        "status.podIPs" => "/status/podIPs/0/ip".to_owned(),
        name => format!("/{}", name.replace('.', "/")),
    };
    match object.pointer(&pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(value)) => value.to_string(),
        None if matches!(name, "spec.hostNetwork" | "spec.unschedulable") => "false".to_owned(),
        _ => String::new(),
    }
}

fn parse_fields(text: &str) -> Result<Vec<Field>, String> {
    let mut fields = Vec::new();
    for term in split_unescaped(text) {
        if term.is_empty() {
            continue;
        }
        let bad = || format!("invalid selector: '{text}'; can't understand '{term}'");
        let at = term.find(['=', '!']).ok_or_else(bad)?;
        let (name, rest) = term.split_at(at);
        let (equal, value) = if let Some(value) = rest.strip_prefix("!=") {
            (false, value)
        } else if let Some(value) = rest.strip_prefix("==") {
            (true, value)
        } else {
            (true, rest.strip_prefix('=').ok_or_else(bad)?)
        };
        fields.push(Field { name: name.to_owned(), equal, value: unescape(value).ok_or_else(bad)? });
    }
    Ok(fields)
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            ',' if !escaped => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => escaped = letter == '\\' && !escaped,
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Backslashes, commas and equals signs are escaped with a backslash.
fn unescape(value: &str) -> Option<String> {
    let mut text = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => text.push(letters.next().filter(|next| matches!(next, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            other => text.push(other),
        }
    }
    Some(text)
}

/// A word, or an operator of the grammar.
type Token = String;

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if ["==", "!="].iter().any(|sign| rest.starts_with(sign)) {
            2
        } else if is_sign(first) {
            1
        } else {
            rest.find(|letter: char| is_sign(letter) || letter.is_whitespace()).unwrap_or(rest.len())
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token.to_owned());
        rest = after.trim_start();
    }
    tokens
}

fn is_sign(letter: char) -> bool {
    matches!(letter, '(' | ')' | ',' | '!' | '=' | '<' | '>')
}

fn is_word(token: &str) -> bool {
    token.chars().next().is_some_and(|first| !is_sign(first))
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let tokens = tokens(text);
    let mut rest = tokens.as_slice();
    let mut requirements = Vec::new();
    while !rest.is_empty() {
        let (requirement, after) = requirement(rest)?;
        requirements.push(requirement);
        rest = match after.split_first() {
            None => after,
            Some((comma, [])) if comma == "," => {
                return Err("found '', expected: identifier after ','".to_owned());
            }
            Some((comma, after)) if comma == "," => after,
            Some((found, _)) => return Err(format!("found '{found}', expected: ',' or 'end of string'")),
        };
    }
    Ok(requirements)
}

fn requirement(tokens: &[Token]) -> Result<(Requirement, &[Token]), String> {
    let found = |tokens: &[Token]| tokens.first().cloned().unwrap_or_default();
    let word = |tokens: &[Token]| {
        let first = found(tokens);
        if is_word(&first) { Ok(first) } else { Err(format!("found '{first}', expected: identifier")) }
    };
    if let Some((not, rest)) = tokens.split_first()
        && not == "!"
    {
        let key = checked_key(word(rest)?)?;
        return Ok((Requirement { key, operator: Operator::DoesNotExist, values: Vec::new() }, &rest[1..]));
    }
    let key = checked_key(word(tokens)?)?;
    let rest = &tokens[1..];
    let sign = found(rest);
    let operator = match sign.as_str() {
        "" | "," => return Ok((Requirement { key, operator: Operator::Exists, values: Vec::new() }, rest)),
        "=" | "==" | "in" => Operator::In,
        "!=" | "notin" => Operator::NotIn,
        ">" => Operator::GreaterThan,
        "<" => Operator::LessThan,
        other => {
            return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt"));
        }
    };
    let rest = &rest[1..];
    if matches!(sign.as_str(), "in" | "notin") {
        let (values, rest) = set(rest)?;
        return Ok((Requirement { key, operator, values }, rest));
    }
    // Nothing after the operator is an empty value.
    let (value, rest) = match rest.split_first() {
        Some((value, rest)) if is_word(value) => (value.clone(), rest),
        _ => (String::new(), rest),
    };
    if matches!(operator, Operator::GreaterThan | Operator::LessThan) && value.parse::<i64>().is_err() {
        return Err(format!(
            "values[0][{key}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
        ));
    }
    Ok((Requirement { key, operator, values: vec![checked_value(value)?] }, rest))
}

fn set(tokens: &[Token]) -> Result<(Vec<String>, &[Token]), String> {
    let Some(("(", mut rest)) = tokens.split_first().map(|(first, rest)| (first.as_str(), rest)) else {
        return Err(format!("found '{}' expected: '('", tokens.first().cloned().unwrap_or_default()));
    };
    let (mut values, mut last) = (Vec::new(), String::new());
    loop {
        let Some((token, after)) = rest.split_first() else {
            return Err("found '', expected: ',', or ')'".to_owned());
        };
        rest = after;
        match token.as_str() {
            "," => values.push(std::mem::take(&mut last)),
            ")" => {
                values.push(last);
                return Ok((values, rest));
            }
            word if is_word(word) && last.is_empty() => last = checked_value(word.to_owned())?,
            other => return Err(format!("found '{other}', expected: ',', or ')'")),
        }
    }
}

fn checked_key(key: String) -> Result<String, String> {
    let name = key.rsplit('/').next().unwrap_or_default();
    let ok = key.matches('/').count() < 2
        && !key.starts_with('/')
        && !name.is_empty()
        && name.len() <= 63
        && is_label_text(name);
    if ok {
        Ok(key)
    } else {
        Err(format!(
            "<nil>: Invalid value: {key:?}: name part must consist of alphanumeric characters, '-', '_' or '.'"
        ))
    }
}

fn checked_value(value: String) -> Result<String, String> {
    let ok = value.is_empty() || (value.len() <= 63 && is_label_text(&value));
    if ok {
        Ok(value)
    } else {
        Err(format!(
            "<nil>: Invalid value: {value:?}: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
        ))
    }
}

fn is_label_text(text: &str) -> bool {
    let edge = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::localapi::resource::find;
    use serde_json::json;

    fn pods() -> &'static Resource {
        find("", "v1", "pods").unwrap()
    }

    fn chosen(labels: &str, fields: &str) -> bool {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "a", "labels": {"app": "web", "tier": "front", "n": "5", "x/y": ""}},
            "spec": {"nodeName": "box"},
            "status": {"phase": "Running"},
        });
        Selector::parse(pods(), labels, fields).unwrap().matches(&pod)
    }

    #[test]
    fn labels_are_selected_by_every_operator() {
        for (selector, matches) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app = web , tier in (front, back)", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (web)", true),
            ("app in (a,b)", false),
            ("app notin (a,b)", true),
            ("app notin (web)", false),
            ("other notin (web)", true),
            ("app", true),
            ("other", false),
            ("!other", true),
            ("!app", false),
            ("n>4", true),
            ("n>5", false),
            ("n<6", true),
            ("app>1", false),
            ("x/y", true),
            ("x/y=", true),
            ("app=", false),
            ("app=web,!other,n in (5)", true),
            ("app in (,web)", true),
        ] {
            assert_eq!(chosen(selector, ""), matches, "{selector}");
        }
    }

    #[test]
    fn fields_are_selected_and_unknown_ones_named() {
        for (selector, matches) in [
            ("metadata.name=web", true),
            ("metadata.name==web,metadata.namespace!=b", true),
            ("metadata.name=web,metadata.namespace=b", false),
            ("status.phase!=Running", false),
            ("spec.nodeName=box", true),
            ("spec.hostNetwork=false", true),
            ("status.podIP=", true),
        ] {
            assert_eq!(chosen("", selector), matches, "{selector}");
        }
        let said = |resource, fields| Selector::parse(resource, "", fields).unwrap_err();
        assert_eq!(said(pods(), "spec.color=red").message, "field label not supported: spec.color");
        assert_eq!(said(pods(), "spec.color=red").code, 400);
        let maps = find("", "v1", "configmaps").unwrap();
        assert_eq!(
            said(maps, "data=1").message,
            "\"data\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        );
        assert!(said(pods(), "metadata.name").message.contains("can't understand 'metadata.name'"));
        let event =
            json!({"involvedObject": {"name": "a,b", "kind": "Pod"}, "source": {"component": "kubelet"}});
        let events = find("", "v1", "events").unwrap();
        let selector = Selector::parse(events, "", "involvedObject.name=a\\,b,source=kubelet").unwrap();
        assert!(selector.matches(&event));
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for bad in [
            "a b",
            "app in web",
            "app in (web",
            "=web",
            "a,,b",
            "a,",
            "n>x",
            "app=we!b",
            "(",
            "a=-x",
            "/a",
            "a/b/c=1",
            "!",
        ] {
            let failure = Selector::parse(pods(), bad, "").expect_err(bad);
            assert!(
                failure.code == 400 && failure.message.starts_with("unable to parse requirement: "),
                "{bad}"
            );
        }
    }
}
