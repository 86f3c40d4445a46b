//! A container's log in CRI's format: `2026-11-20T10:00:00.123456789Z stdout F text`, one entry per line, `P`
//! for a part of a line that continues in the next entry.
//!
//! Owns the file and the splitting of streams into entries. A log that cannot be written never stops a
//! container.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::model::types::Timestamp;
use crate::platform::sys::streams::open_log;

/// Longer lines are cut into parts, as containerd cuts them.
pub(super) const MAX_LINE: usize = 16 * 1024;
/// Time, stream, tag, and the spaces and the line break around them.
const ENVELOPE: usize = 30 + 1 + 6 + 1 + 1 + 1 + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStream {
    Stdout,
    Stderr,
}

impl LogStream {
    fn name(self) -> &'static [u8; 6] {
        match self {
            Self::Stdout => b"stdout",
            Self::Stderr => b"stderr",
        }
    }
}

/// Splits a stream into entries. Holds only the beginning of a line that has not ended yet.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    pending: Vec<u8>,
}

impl Splitter {
    /// Passes on every complete entry: its first half, its second half, and whether the line ends with it.
    pub(super) fn feed(&mut self, mut chunk: &[u8], mut entry: impl FnMut(&[u8], &[u8], bool)) {
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = chunk.split_at(end);
            let line = self.cut(line, &mut entry);
            entry(&self.pending, line, true);
            self.pending = Vec::new();
            chunk = &rest[1..];
        }
        let rest = self.cut(chunk, &mut entry);
        if !rest.is_empty() {
            self.pending.reserve_exact(rest.len());
            self.pending.extend_from_slice(rest);
        }
    }

    /// Passes on parts until what is left, pending and returned, fits into one entry.
    fn cut<'a>(&mut self, mut line: &'a [u8], entry: &mut impl FnMut(&[u8], &[u8], bool)) -> &'a [u8] {
        while self.pending.len() + line.len() > MAX_LINE {
            let (part, rest) = line.split_at(MAX_LINE - self.pending.len());
            entry(&self.pending, part, false);
            self.pending = Vec::new();
            line = rest;
        }
        line
    }

    /// At the end of the stream: a last line without a line break is a part.
    pub(super) fn finish(&mut self, mut entry: impl FnMut(&[u8], &[u8], bool)) {
        if !self.pending.is_empty() {
            entry(&self.pending, &[], false);
            self.pending = Vec::new();
        }
    }
}

/// Entries to be written to a file: one buffer for all containers.
#[derive(Debug)]
pub(super) struct Entries {
    bytes: Vec<u8>,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(MAX_LINE + ENVELOPE) }
    }

    /// Splits a chunk into entries and writes them.
    pub(super) fn chunk(
        &mut self,
        log: &mut Log,
        splitter: &mut Splitter,
        stream: LogStream,
        at: Timestamp,
        chunk: &[u8],
    ) {
        let time = format_time(at);
        splitter.feed(chunk, |head, tail, ends| self.entry(log, &time, stream, head, tail, ends));
        log.flush(&mut self.bytes, at);
    }

    /// Writes what a stream has left at its end.
    pub(super) fn finish(
        &mut self,
        log: &mut Log,
        splitter: &mut Splitter,
        stream: LogStream,
        at: Timestamp,
    ) {
        let time = format_time(at);
        splitter.finish(|head, tail, ends| self.entry(log, &time, stream, head, tail, ends));
        log.flush(&mut self.bytes, at);
    }

    fn entry(
        &mut self,
        log: &mut Log,
        time: &[u8; 30],
        stream: LogStream,
        head: &[u8],
        tail: &[u8],
        ends: bool,
    ) {
        if self.bytes.len() + ENVELOPE + head.len() + tail.len() > MAX_LINE + ENVELOPE {
            log.write(&mut self.bytes, time);
        }
        let tag: &[u8] = if ends { b" F " } else { b" P " };
        for part in [&time[..], b" ", stream.name(), tag, head, tail, b"\n"] {
            self.bytes.extend_from_slice(part);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Log {
    path: Option<PathBuf>,
    file: Option<File>,
    /// Bytes of entries that could not be written since the last success.
    lost: u64,
    /// The file ends inside a line.
    torn: bool,
}

/// Opens a log, and makes its directory when it is missing, as containerd does: not every CRI client makes
/// it.
fn open_in_place(path: &Path) -> io::Result<File> {
    match open_log(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(path))?;
            open_log(path)
        }
        opened => opened,
    }
}

impl Log {
    pub(super) fn open(path: Option<PathBuf>) -> io::Result<Self> {
        let file = path.as_deref().map(open_in_place).transpose()?;
        Ok(Self { path, file, lost: 0, torn: false })
    }

    /// Reopens the file at the path; when that fails, the old file stays open.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.file = Some(open_in_place(path)?);
            self.torn = false;
        }
        Ok(())
    }

    fn flush(&mut self, bytes: &mut Vec<u8>, at: Timestamp) {
        if !bytes.is_empty() {
            self.write(bytes, &format_time(at));
        }
    }

    /// Writes `bytes`, whole entries, and empties it. What cannot be written is counted, and the count is
    /// logged with the next entries that fit: warnings must not fill up a full disk.
    fn write(&mut self, bytes: &mut Vec<u8>, time: &[u8; 30]) {
        let Some(file) = &mut self.file else { return bytes.clear() };
        if self.lost == 0 && !self.torn {
            let written = write_available(file, bytes);
            if written < bytes.len() {
                let kept = self.keep_whole_entries(bytes, written);
                self.lost += (bytes.len() - kept) as u64;
            }
            return bytes.clear();
        }
        let mut all = Vec::with_capacity(ENVELOPE + 64 + bytes.len());
        if self.torn {
            all.push(b'\n');
        }
        if self.lost > 0 {
            all.extend_from_slice(time);
            all.extend_from_slice(b" stderr F ");
            let _ = writeln!(all, "[agent] {} bytes of log lost", self.lost);
        }
        all.extend_from_slice(bytes);
        let written = write_available(file, &all);
        if written == all.len() {
            (self.lost, self.torn) = (0, false);
        } else {
            self.lost += bytes.len() as u64;
            self.truncate_tail(written);
        }
        bytes.clear();
    }

    /// The first `written` of `bytes` are in the file. Removes the beginning of an incomplete entry again, so
    /// that readers see only whole entries. Returns how many bytes remain in the file.
    fn keep_whole_entries(&mut self, bytes: &[u8], written: usize) -> usize {
        let whole = bytes[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if self.truncate_tail(written - whole) { whole } else { written }
    }

    /// Truncates the last bytes of the file; where that is not possible the file ends inside a line.
    fn truncate_tail(&mut self, count: usize) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| count > 0) else { return true };
        let shortened = file.metadata().and_then(|now| file.set_len(now.len().saturating_sub(count as u64)));
        self.torn |= shortened.is_err();
        shortened.is_ok()
    }
}

/// Writes as much as there is room for; returns how much that was.
fn write_available(file: &mut File, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

/// RFC 3339 in UTC with all nine digits, so that entries line up. Without allocation; the years 1970 to 2262.
fn format_time(at: Timestamp) -> [u8; 30] {
    let nanos = at.as_nanos().max(0).unsigned_abs();
    let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Converts days to a date. The year begins in March, so that the leap day is its last; eras have 400
    // years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let mut text = *b"0000-00-00T00:00:00.000000000Z";
    for (end, digits, mut value) in [
        (4, 4, year),
        (7, 2, month),
        (10, 2, day),
        (13, 2, second / 3600),
        (16, 2, second / 60 % 60),
        (19, 2, second % 60),
        (29, 9, nanos),
    ] {
        for place in text[end - digits..end].iter_mut().rev() {
            *place = b'0' + u8::try_from(value % 10).unwrap_or(0);
            value /= 10;
        }
    }
    text
}

#[cfg(test)]
mod tests;
