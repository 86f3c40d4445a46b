//! Messages for unknown fields, and for values of a wrong type.
//!
//! Owns the messages.

use crate::model::api::schema::check::Unknown;

pub(super) fn unknown_field(Unknown { path, meant }: &Unknown) -> String {
    match meant {
        Some(meant) => format!("unknown field {path:?} is ignored; did you mean {meant:?}?"),
        None => format!("unknown field {path:?} is ignored"),
    }
}

/// A value of the wrong type, with an explanation if YAML's type inference is the likely cause.
pub(super) fn wrong_type(message: &str) -> String {
    let unquoted = ["boolean", "integer", "floating point"]
        .iter()
        .any(|kind| message.contains(&format!("invalid type: {kind}")));
    if unquoted && message.ends_with("expected a string") {
        return format!("{message}; quote the value, YAML parses it as another type otherwise");
    }
    message.to_owned()
}

/// The line number of a field, from 1, if its name occurs on one line only.
pub(super) fn line_of(text: &str, path: &str) -> Option<usize> {
    let name = path.rsplit('.').next()?.split('[').next().filter(|name| !name.is_empty())?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| has_key(line, name));
    let (index, _) = lines.next()?;
    lines.next().is_none().then_some(index + 1)
}

fn has_key(line: &str, name: &str) -> bool {
    let is_comment = line.trim_start().starts_with('#');
    !is_comment
        && line.match_indices(name).any(|(at, _)| {
            let begins = line[..at].ends_with([' ', '\t', '-', '{', ',', '"', '\'']) || at == 0;
            let rest = &line[at + name.len()..];
            begins && rest.strip_prefix(['"', '\'']).unwrap_or(rest).trim_start().starts_with(':')
        })
}

/// A message about a Secret: the value that serde quotes is removed, the path and the types stay.
pub(super) fn without_values(message: &str) -> String {
    let (place, words) = message.split_once(": ").unwrap_or(("", message));
    let mut kept = String::with_capacity(words.len());
    let mut rest = words;
    while let Some((before, quoted)) = rest.find(['`', '"']).map(|at| rest.split_at(at)) {
        kept.push_str(before.trim_end());
        let mark = &quoted[..1];
        // The last quotation mark: the value itself may contain some.
        let end = quoted[1..].rfind(mark).map_or(quoted.len(), |end| end + 2);
        rest = &quoted[end..];
    }
    kept.push_str(rest);
    if place.is_empty() { kept } else { format!("{place}: {kept}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_a_line_where_its_name_is_on_one_only() {
        let text = "# podAffinity: no\nspec:\n  affinity:\n    podAffinity: 5\n  containers: [{name: a}, {\"tty\": 1}]\n- name: b\n";
        for (path, line) in [
            ("spec.affinity.podAffinity", Some(4)),
            ("spec.containers[1].tty", Some(5)),
            ("spec.containers[0]", Some(5)),
            ("spec.containers[0].name", None),
            ("spec.nodeName", None),
            (".", None),
        ] {
            assert_eq!(line_of(text, path), line, "{path}");
        }
    }

    #[test]
    fn a_message_about_a_secret_quotes_no_value() {
        for (message, expected) in [
            (
                "stringData.pin: invalid type: integer `1234`, expected a string; write the value in quotes",
                "stringData.pin: invalid type: integer, expected a string; write the value in quotes",
            ),
            (
                "data: invalid type: string \"a: \\\"b`\", expected a map",
                "data: invalid type: string, expected a map",
            ),
            ("data: invalid type: string \"open", "data: invalid type: string"),
        ] {
            assert_eq!(without_values(message), expected);
        }
    }
}
