//! Lines of container logs, in CRI's format: `2026-01-31T12:00:00.123456789Z stdout F the text`.

#[derive(Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// As in the file; not checked.
    pub time: &'a [u8],
    pub is_stderr: bool,
    /// The tag `P`: the text goes on in the next line of this stream.
    pub is_partial: bool,
    pub text: &'a [u8],
}

/// Parses a line without its line break. `None` for any other line, such as one torn by a power cut.
#[must_use]
pub fn parse(line: &[u8]) -> Option<LogLine<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tags, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_stderr = match stream {
        b"stdout" => false,
        b"stderr" => true,
        _ => return None,
    };
    let is_partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    Some(LogLine { time, is_stderr, is_partial, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_have_four_parts_and_a_known_stream() {
        let line = |is_stderr, is_partial, text| Some(LogLine { time: b"now", is_stderr, is_partial, text });
        for (given, expected) in [
            (&b"now stdout F one two"[..], line(false, false, &b"one two"[..])),
            (b"now stderr P  half", line(true, true, b" half")),
            (b"now stderr P:x half", line(true, true, b"half")),
            (b"now stdout F:P ", line(false, false, b"")),
            (b"now stdout F", None),
            (b"now stdin F text", None),
            (b"torn", None),
            (b"", None),
        ] {
            assert_eq!(parse(given), expected, "{}", String::from_utf8_lossy(given));
        }
    }
}
