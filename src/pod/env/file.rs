//! Env files, as `fileKeyRef` reads them: lines `NAME='value'`, which a POSIX shell would read the same way.
//!
//! Owns the syntax.

/// A syntax error before the variable was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The value of a variable; `None` when the file does not set it. Values stand in single quotes, are taken
/// literally and may go over several lines; blank lines and lines that begin with `#` count for nothing.
pub(super) fn find(text: &str, key: &str) -> Result<Option<String>, Malformed> {
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(None);
        }
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
            continue;
        }
        let (name, value, after) = declaration(rest)?;
        if name == key {
            return Ok(Some(value.to_owned()));
        }
        rest = after;
    }
}

/// Name, value and what follows the line.
fn declaration(text: &str) -> Result<(&str, &str, &str), Malformed> {
    let (name, after) = text.split_once('=').ok_or(Malformed)?;
    let name = name.trim_end_matches([' ', '\t']);
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '\'' || c == '"') {
        return Err(Malformed);
    }
    let quoted = after.trim_start_matches([' ', '\t']).strip_prefix('\'').ok_or(Malformed)?;
    let (value, after) = quoted.split_once('\'').ok_or(Malformed)?;
    let (tail, after) = after.split_once('\n').unwrap_or((after, ""));
    let comment = tail.trim_start();
    let is_comment = comment.starts_with('#') && comment.len() < tail.len();
    if !comment.is_empty() && !is_comment {
        return Err(Malformed);
    }
    Ok((name, value, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_stand_in_single_quotes() {
        let cases = [
            ("A='1'", Ok(Some("1"))),
            ("# A='0'\n\n  A='1' \nA='2'", Ok(Some("1"))),
            ("B='x # y'\nA = '$B \\n \"q\"'\t# note\n", Ok(Some("$B \\n \"q\""))),
            ("B='one\nA=two'\nA='three'", Ok(Some("three"))),
            ("A=''", Ok(Some(""))),
            ("AA='1'\r\n", Ok(None)),
            ("", Ok(None)),
            ("A='1'\nA", Ok(Some("1"))),
            ("B\nA='1'", Err(Malformed)),
            ("A=1", Err(Malformed)),
            ("A=\"1\"", Err(Malformed)),
            ("A='1''2'", Err(Malformed)),
            ("A='1'$B", Err(Malformed)),
            ("A='1'#x", Err(Malformed)),
            ("A='1", Err(Malformed)),
            ("='1'", Err(Malformed)),
            ("export A='1'", Err(Malformed)),
        ];
        for (text, expected) in cases {
            assert_eq!(find(text, "A"), expected.map(|value| value.map(str::to_owned)), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(values in proptest::collection::vec("[^']*", 1..5)) {
            let lines: Vec<String> =
                values.iter().enumerate().map(|(at, value)| format!(" K{at}='{value}'")).collect();
            let text = lines.join("\n");
            for (at, value) in values.iter().enumerate() {
                prop_assert_eq!(find(&text, &format!("K{at}")), Ok(Some(value.clone())));
            }
            prop_assert_eq!(find(&text, "OTHER"), Ok(None));
        }
    }
}
