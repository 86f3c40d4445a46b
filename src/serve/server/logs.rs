//! `/containerLogs`: a container's output, from the file that the runtime writes.
//!
//! Owns the choice of the instance, the position in the file and the filters.
//!
//! A follower polls the end of the file ten times a second: an inotify instance per follower would exceed the
//! kernel's limit of 128 per user. Without followers there is no polling.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::body::Bytes;

use super::body::Pieces;
use super::route::LogOptions;
use crate::codec::cri_log;
use crate::model::api::pod::{ContainerState, ContainerStatus, PodStatus};
use crate::model::types::{ContainerId, Timestamp};
use crate::platform::rt;
use crate::platform::sys::open::open_without_following;

/// The size of a read and of a piece: three of them are held for a client that stops reading.
const CHUNK: usize = 16 * 1024;
/// Chunks read without yielding when nothing in them is selected: a few milliseconds' worth.
const CHUNKS_AT_ONCE: usize = 128;
/// A line has at most 16 KiB of text and its header; Docker writes six bytes for one in the worst case. A longer one was
/// not written by a runtime and is split.
const LONGEST_LINE: usize = 128 * 1024;
/// How often a follower polls for more...
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// ...and, while there is none, whether the container still runs.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The instance whose log is selected: the running one, otherwise the last one; with `previous` the one
/// before it.
///
/// # Errors
/// Upstream's messages for why there is none, all of them 400.
pub(crate) fn instance(
    status: &PodStatus,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<ContainerId, String> {
    let all =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let found = all.into_iter().flatten().find(|found| found.name == container);
    let Some(found) = found else {
        return Err(format!("container {container:?} in pod {pod:?} is not available"));
    };
    let ended = |state: &ContainerState| {
        state.terminated.as_ref().map(|ended| ended.container_id.clone()).filter(|id| !id.is_empty())
    };
    let id = if previous {
        ended(&found.last_state)
            .ok_or_else(|| format!("previous terminated container {container:?} in pod {pod:?} not found"))?
    } else {
        current(found, ended).ok_or_else(|| waiting(found, pod))?
    };
    let (_, id) = id.split_once("://").unwrap_or(("", &id));
    Ok(id.into())
}

fn current(found: &ContainerStatus, ended: impl Fn(&ContainerState) -> Option<String>) -> Option<String> {
    let running = found.state.running.as_ref().map(|_| found.container_id.clone());
    running.or_else(|| ended(&found.state)).or_else(|| ended(&found.last_state)).filter(|id| !id.is_empty())
}

fn waiting(found: &ContainerStatus, pod: &str) -> String {
    let name = &found.name;
    let reason = found.state.waiting.as_ref().map_or("", |waiting| waiting.reason.as_str());
    match reason {
        "" => format!("container {name:?} in pod {pod:?} is not available"),
        "ErrImagePull" => {
            format!("container {name:?} in pod {pod:?} is waiting to start: image can't be pulled")
        }
        "ImagePullBackOff" => {
            format!("container {name:?} in pod {pod:?} is waiting to start: trying and failing to pull image")
        }
        _ => format!("container {name:?} in pod {pod:?} is waiting to start: {reason}"),
    }
}

/// Which lines are sent, and in which form.
#[derive(Debug)]
struct Filter {
    since: Option<Timestamp>,
    timestamps: bool,
    left: Option<u64>,
    /// The last line was complete, so the next one starts at its beginning.
    at_start: bool,
}

impl Filter {
    fn new(options: &LogOptions, now: Timestamp) -> Self {
        let earliest = |since: Duration| {
            let nanos = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
            Timestamp::from_nanos(now.as_nanos().saturating_sub(nanos))
        };
        Self {
            since: options.since_time.or_else(|| options.since.map(earliest)),
            timestamps: options.timestamps,
            left: options.limit_bytes,
            at_start: true,
        }
    }

    /// Adds the selected part of a line of the file, without its line break. False when nothing more is
    /// selected.
    fn add(&mut self, line: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(parsed) = cri_log::parse(line) else { return true };
        let time = || std::str::from_utf8(&parsed.time).ok().and_then(Timestamp::parse_rfc3339);
        if self.since.is_some_and(|since| time().is_none_or(|time| time < since)) {
            return true;
        }
        let before = out.len();
        if self.timestamps && self.at_start {
            out.extend_from_slice(&parsed.time);
            out.push(b' ');
        }
        out.extend_from_slice(&parsed.text);
        if !parsed.is_partial {
            out.push(b'\n');
        }
        self.at_start = !parsed.is_partial;
        let Some(left) = &mut self.left else { return true };
        let added = u64::try_from(out.len() - before).unwrap_or(u64::MAX);
        if added < *left {
            *left -= added;
            return true;
        }
        out.truncate(before + usize::try_from(*left).unwrap_or(usize::MAX));
        *left = 0;
        false
    }
}

/// Where the last `lines` lines of a file begin.
fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(end);
    }
    let mut buffer = vec![0; CHUNK];
    let (mut position, mut breaks) = (end, 0);
    while position > 0 {
        let length = usize::try_from(position).unwrap_or(CHUNK).min(CHUNK);
        let part = &mut buffer[..length];
        position -= u64::try_from(length).unwrap_or(position);
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(part)?;
        for (index, _) in part.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = position + u64::try_from(index).unwrap_or_default() + 1;
            if after == end {
                // The end of the last line, not of the one before it.
                continue;
            }
            breaks += 1;
            if breaks == lines {
                return Ok(after);
            }
        }
    }
    Ok(0)
}

#[derive(Debug, PartialEq, Eq)]
enum ReadStep {
    /// This is to be sent, perhaps empty; there may be more.
    On(Vec<u8>),
    /// This is to be sent, and nothing more is selected.
    Enough(Vec<u8>),
    /// The end of the file, for now.
    End,
}

/// A file that is being sent to a client.
struct Reading {
    file: File,
    position: u64,
    /// The beginning of a line whose end has not been read.
    held: Vec<u8>,
}

impl Reading {
    fn open(path: &Path, tail: Option<u64>) -> io::Result<Self> {
        // A user who can write into the directory must not choose what is read, nor block the reader.
        let mut file = open_without_following(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let position = match tail {
            Some(lines) => {
                let start = tail_start(&mut file, lines)?;
                file.seek(SeekFrom::Start(start))?
            }
            None => 0,
        };
        Ok(Self { file, position, held: Vec::new() })
    }

    /// Reads until there is something worth sending, but not for long: other tasks share the thread.
    fn next(&mut self, filter: &mut Filter) -> io::Result<ReadStep> {
        let (mut chunk, mut out) = (vec![0; CHUNK], Vec::new());
        for _ in 0..CHUNKS_AT_ONCE {
            let length = self.file.read(&mut chunk)?;
            if length == 0 {
                return Ok(if out.is_empty() { ReadStep::End } else { ReadStep::On(out) });
            }
            self.position += u64::try_from(length).unwrap_or_default();
            self.held.extend_from_slice(&chunk[..length]);
            let mut taken = 0;
            while let Some(index) = self.held[taken..].iter().position(|byte| *byte == b'\n') {
                let line = &self.held[taken..taken + index];
                taken += index + 1;
                if !filter.add(line, &mut out) {
                    return Ok(ReadStep::Enough(out));
                }
            }
            self.held.drain(..taken);
            if self.held.len() > LONGEST_LINE {
                self.held.clear();
            }
            if out.len() >= CHUNK {
                break;
            }
        }
        Ok(ReadStep::On(out))
    }

    fn has_grown(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.len() > self.position)
    }

    /// The path names another file by now: the log was rotated.
    fn is_replaced(&self, path: &Path) -> bool {
        let id = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        match (self.file.metadata(), std::fs::symlink_metadata(path)) {
            (Ok(ours), Ok(there)) => id(ours) != id(there),
            _ => false,
        }
    }
}

/// Opens a log, and finds the position to begin at.
pub(crate) async fn open(path: PathBuf, options: &LogOptions, now: Timestamp) -> io::Result<Log> {
    let (filter, follow, tail) = (Filter::new(options, now), options.follow, options.tail);
    let opened = path.clone();
    let reading = rt::blocking("open log", move || Reading::open(&opened, tail)).await?;
    Ok(Log { reading, filter, path, follow })
}

pub(crate) struct Log {
    reading: Reading,
    filter: Filter,
    path: PathBuf,
    follow: bool,
}

impl Log {
    /// Sends a log until its end; when following, until the container has ended and all its output is sent,
    /// or the client is gone. `ended` returns whether the container has ended. An error cuts the answer
    /// short.
    pub(crate) async fn send(mut self, pieces: Pieces, mut ended: impl AsyncFnMut() -> bool) {
        let mut is_last = !self.follow;
        loop {
            let step;
            (self, step) = rt::blocking("read log", move || {
                let step = self.reading.next(&mut self.filter);
                (self, step)
            })
            .await;
            match step {
                Ok(ReadStep::On(bytes)) => {
                    let gone = if bytes.is_empty() {
                        pieces.is_closed()
                    } else {
                        pieces.send(Ok(Bytes::from(bytes))).await.is_err()
                    };
                    if gone {
                        return;
                    }
                }
                Ok(ReadStep::Enough(bytes)) => return drop(pieces.send(Ok(Bytes::from(bytes))).await),
                Ok(ReadStep::End) => {
                    if self.reading.is_replaced(&self.path) {
                        // The writer has left the old file by now, perhaps after it was read to its end.
                        if self.reading.has_grown() {
                            continue;
                        }
                        // The next file does not exist yet; it is tried again.
                        if let Ok(next) = Reading::open(&self.path, None) {
                            self.reading = next;
                            continue;
                        }
                    } else if is_last {
                        return;
                    }
                    tokio::select! {
                        () = pieces.closed() => return,
                        grown = self.grows() => if !grown {
                            // One more read after the end: the last output may have arrived meanwhile.
                            is_last = ended().await;
                        },
                    }
                }
                Err(error) => return drop(pieces.send(Err(error)).await),
            }
        }
    }

    /// Waits for more. False when it is time to check whether the container still runs.
    async fn grows(&self) -> bool {
        let mut waited = Duration::ZERO;
        while waited < ASK_EVERY {
            if self.reading.has_grown() {
                return true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
            waited += LOOK_EVERY;
        }
        false
    }
}

#[cfg(test)]
mod tests;
