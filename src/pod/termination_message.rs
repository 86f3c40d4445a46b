//! The termination message of an ended container: its termination log, or the end of its log.
//!
//! Owns the limits.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::codec::cri_log;
use crate::model::labels;
use crate::model::observed::{ContainerStateKind, ObservedContainer};

/// The most that is taken of a termination log, in bytes from its end.
pub(super) const MESSAGE_MAX: usize = 4096;
/// The most that is taken of a log instead, in bytes from its end.
pub(super) const LOG_MESSAGE_MAX: usize = 2048;
/// The most lines that are taken of a log.
const LOG_LINES_MAX: usize = 80;
/// Enough of a log's end, in bytes, for the limits above, the prefix of each line and a line of the length at
/// which runtimes split them.
pub(super) const LOG_TAIL: usize = 32 * 1024;

/// Whether the end of the log replaces an empty termination log. A container that could not run has no log.
#[must_use]
pub(super) fn falls_back_to_log(container: &ObservedContainer) -> bool {
    let policy = container.annotations.get(labels::TERMINATION_MESSAGE_POLICY);
    container.state == ContainerStateKind::Exited
        && policy.is_some_and(|policy| policy == "FallbackToLogsOnError")
        && container.exit_code != 0
        && container.reason != "ContainerCannotRun"
}

/// The runtime's message, then the container's own.
#[must_use]
pub(crate) fn joined(runtime: &str, own: &str) -> String {
    match (runtime.is_empty(), own.is_empty()) {
        (_, true) => runtime.to_owned(),
        (true, false) => own.to_owned(),
        (false, false) => format!("{runtime}: {own}"),
    }
}

/// The content of the last lines of a log, without prefixes: at most 80 lines and 2048 bytes. `tail` is the
/// end of the file; `is_cut` means that it begins in the middle.
#[must_use]
pub(super) fn from_log(tail: &[u8], is_cut: bool) -> String {
    let lines: Vec<&[u8]> = tail.split_inclusive(|byte| *byte == b'\n').collect();
    let skipped = lines.len().saturating_sub(LOG_LINES_MAX);
    let mut text = Vec::new();
    for (position, line) in lines.iter().enumerate().skip(skipped) {
        // A line whose beginning is cut off is so long that the end of it, which is what may be taken, is all
        // content.
        if is_cut && position == 0 {
            text.extend_from_slice(line);
            continue;
        }
        let (line, line_break) = line.strip_suffix(b"\n").map_or((*line, ""), |line| (line, "\n"));
        if let Some(line) = cri_log::parse(line) {
            text.extend_from_slice(&line.text);
            text.extend_from_slice(if line.is_partial { b"" } else { line_break.as_bytes() });
        }
    }
    let text = String::from_utf8_lossy(&text);
    let start = text.len().saturating_sub(LOG_MESSAGE_MAX);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "2026-11-20T16:00:00.123456789Z";

    fn log(entries: &[(&str, &str)]) -> Vec<u8> {
        let lines = entries.iter().map(|(tags, text)| format!("{AT} stderr {tags} {text}\n"));
        lines.collect::<String>().into_bytes()
    }

    #[test]
    fn log_prefixes_are_removed_and_split_lines_joined() {
        let tail = log(&[("F", "one two"), ("P", "half a "), ("F", "line"), ("F", ""), ("P:x", "end")]);
        assert_eq!(from_log(&tail, false), "one two\nhalf a line\n\nend");
        assert_eq!(from_log(b"no log line\nneither stdin F this\n", false), "");
        assert_eq!(from_log(b"", false), "");
    }

    #[test]
    fn the_last_eighty_lines_and_2048_bytes_are_taken() {
        let numbers: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let entries: Vec<(&str, &str)> = numbers.iter().map(|number| ("F", number.as_str())).collect();
        let text = from_log(&log(&entries), false);
        assert_eq!((text.lines().count(), text.lines().next()), (80, Some("20")));
        let long = "é".repeat(3000);
        let text = from_log(&log(&[("F", "first"), ("F", &format!("{long}x"))]), false);
        assert_eq!((text.len(), text.starts_with('é'), text.ends_with("éx\n")), (2048, true, true));
        let text = from_log(&log(&[("F", &long)]), false);
        assert_eq!(text.len(), 2047, "cut between characters");
    }

    #[test]
    fn truncated_log_tail_keeps_the_end_of_a_long_line() {
        let whole = log(&[("F", &format!("{}the end", "x".repeat(LOG_TAIL)))]);
        let tail = &whole[whole.len() - LOG_TAIL..];
        let text = from_log(tail, true);
        assert_eq!((text.len(), text.ends_with("xthe end\n")), (LOG_MESSAGE_MAX, true));
    }

    #[test]
    fn only_a_failure_of_something_that_ran_falls_back_to_the_log() {
        let ended = |policy: &str, exit_code, reason: &str| ObservedContainer {
            state: ContainerStateKind::Exited,
            exit_code,
            reason: reason.to_owned(),
            annotations: [(labels::TERMINATION_MESSAGE_POLICY.to_owned(), policy.to_owned())].into(),
            ..ObservedContainer::default()
        };
        let fallback = "FallbackToLogsOnError";
        assert!(falls_back_to_log(&ended(fallback, 1, "Error")));
        assert!(!falls_back_to_log(&ended(fallback, 0, "Completed")));
        assert!(!falls_back_to_log(&ended(fallback, 128, "ContainerCannotRun")));
        assert!(!falls_back_to_log(&ended("File", 1, "Error")));
        let running = ObservedContainer { state: ContainerStateKind::Running, ..ended(fallback, 1, "") };
        assert!(!falls_back_to_log(&running));
        assert!(!falls_back_to_log(&ObservedContainer::default()));
    }

    #[test]
    fn runtime_message_precedes_the_container_message() {
        for (runtime, own, expected) in [("", "", ""), ("a", "", "a"), ("", "b", "b"), ("a", "b", "a: b")] {
            assert_eq!(joined(runtime, own), expected);
        }
    }
}
