//! Lines of container logs: CRI's, `2026-01-31T12:00:00.123456789Z stdout F the text`, and those of Docker's driver
//! `json-file`, `{"log":"the text\n","stream":"stdout","time":"2026-01-31T12:00:00.123456789Z"}`.

use std::borrow::Cow;

use serde_json::Value;

#[derive(Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// As in the file; not checked.
    pub time: Cow<'a, [u8]>,
    pub is_stderr: bool,
    /// The text goes on in the next line of this stream: the tag `P`, or no line break at its end.
    pub is_partial: bool,
    pub text: Cow<'a, [u8]>,
}

/// Parses a line without its line break. `None` for any other line, such as one torn by a power cut.
#[must_use]
pub fn parse(line: &[u8]) -> Option<LogLine<'_>> {
    if line.first() == Some(&b'{') {
        return parse_json(line);
    }
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tags, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_stderr = is_stderr(stream)?;
    let is_partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    Some(LogLine { time: time.into(), is_stderr, is_partial, text: text.into() })
}

fn parse_json(line: &[u8]) -> Option<LogLine<'static>> {
    let line: Value = serde_json::from_slice(line).ok()?;
    let member = |name: &str| line[name].as_str();
    let (text, time) = (member("log")?, member("time")?);
    let whole = text.strip_suffix('\n');
    Some(LogLine {
        time: time.as_bytes().to_vec().into(),
        is_stderr: is_stderr(member("stream")?.as_bytes())?,
        is_partial: whole.is_none(),
        text: whole.unwrap_or(text).as_bytes().to_vec().into(),
    })
}

fn is_stderr(stream: &[u8]) -> Option<bool> {
    match stream {
        b"stdout" => Some(false),
        b"stderr" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(is_stderr: bool, is_partial: bool, text: &'static [u8]) -> LogLine<'static> {
        LogLine { time: b"now".into(), is_stderr, is_partial, text: text.into() }
    }

    #[test]
    fn log_lines_have_four_parts_and_a_known_stream() {
        for (given, expected) in [
            (&b"now stdout F one two"[..], Some(line(false, false, &b"one two"[..]))),
            (b"now stderr P  half", Some(line(true, true, b" half"))),
            (b"now stderr P:x half", Some(line(true, true, b"half"))),
            (b"now stdout F:P ", Some(line(false, false, b""))),
            (b"now stdout F", None),
            (b"now stdin F text", None),
            (b"torn", None),
            (b"", None),
        ] {
            assert_eq!(parse(given), expected, "{}", String::from_utf8_lossy(given));
        }
    }

    #[test]
    fn dockers_lines_are_whole_when_their_text_ends_in_a_break() {
        for (given, expected) in [
            (
                &br#"{"log":"one \"two\"\n","stream":"stdout","time":"now"}"#[..],
                Some(line(false, false, b"one \"two\"")),
            ),
            (
                br#"{"log":"half","stream":"stderr","attrs":{"a":"b"},"time":"now"}"#,
                Some(line(true, true, b"half")),
            ),
            (br#"{"log":"\n","stream":"stdout","time":"now"}"#, Some(line(false, false, b""))),
            (br#"{"log":"a\n","stream":"stdin","time":"now"}"#, None),
            (br#"{"log":"a\n","stream":"stdout"}"#, None),
            (br#"{"log":"torn"#, None),
        ] {
            assert_eq!(parse(given), expected, "{}", String::from_utf8_lossy(given));
        }
    }
}
