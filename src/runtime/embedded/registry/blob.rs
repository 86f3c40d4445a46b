//! A verified blob stream: it resumes after a broken connection, and its last bytes are passed on only when
//! the whole blob has the expected digest.
//!
//! Owns one blob's hash and offset.

use std::cell::RefCell;
use std::io::{self, Read};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::error::invalid;
use super::manifest::{Descriptor, name_of};
use super::session::{Ask, Session, back_off};
use super::{LayerState, PullError};
use crate::platform::http::stream::{Method, StreamingResponse};

/// Consecutive connections to one server that each broke before delivering [`WORTHWHILE`] bytes.
const FRUITLESS_CUTS: u32 = 5;
/// With a lower value, a server that sends a byte and disconnects could delay this process forever.
const WORTHWHILE: u64 = 16 * 1024;
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Read size. The end of a blob is held back in a buffer of this size until its digest is verified.
const CHUNK_BYTES: usize = 32 * 1024;

/// Receives a blob's progress: bytes so far, and its state.
pub(super) type Tell<'a> = &'a mut dyn FnMut(u64, LayerState);

/// An error kept aside, because decoders only pass on `io::Error`.
#[derive(Clone, Default)]
pub(super) struct Fault(Rc<RefCell<Option<PullError>>>);

impl Fault {
    pub(super) fn take(&self) -> Option<PullError> {
        self.0.borrow_mut().take()
    }
}

pub(super) struct BlobReader<'a> {
    session: &'a mut Session,
    blob: &'a Descriptor,
    servers: Vec<usize>,
    answer: Option<StreamingResponse>,
    hasher: Sha256,
    /// Bytes hashed so far.
    offset: u64,
    chunk: Vec<u8>,
    /// The part of `chunk` that was not passed on yet.
    ready: std::ops::Range<usize>,
    cuts: u32,
    /// Bytes since the last broken connection.
    since_cut: u64,
    verified: bool,
    fault: Fault,
    progress: Tell<'a>,
    reported_at: Instant,
}

impl<'a> BlobReader<'a> {
    pub(super) fn new(session: &'a mut Session, blob: &'a Descriptor, progress: Tell<'a>) -> Self {
        let servers = session.servers(|host| host.pulls);
        Self {
            session,
            blob,
            servers,
            answer: None,
            hasher: Sha256::new(),
            offset: 0,
            chunk: vec![0; CHUNK_BYTES],
            ready: 0..0,
            cuts: 0,
            since_cut: 0,
            verified: false,
            fault: Fault::default(),
            progress,
            reported_at: Instant::now(),
        }
    }

    /// Where the cause of a read error is found.
    pub(super) fn fault(&self) -> Fault {
        self.fault.clone()
    }

    /// Reads what the decoder left, so that the digest covers the whole blob.
    pub(super) fn finish(&mut self) -> Result<(), PullError> {
        while self.fill()? > 0 {
            self.ready = 0..0;
        }
        Ok(())
    }

    /// All of a blob that is a small document.
    pub(super) fn read_document(&mut self, limit: usize) -> Result<Vec<u8>, PullError> {
        if self.blob.size > limit as u64 {
            return Err(invalid(
                &self.blob.digest,
                format!("{} bytes, more than the limit of {limit}", self.blob.size),
            ));
        }
        let mut bytes = Vec::new();
        while self.fill()? > 0 {
            bytes.extend_from_slice(&self.chunk[self.ready.clone()]);
            self.ready = 0..0;
        }
        Ok(bytes)
    }

    /// The next chunk; 0 when the blob is complete and verified.
    fn fill(&mut self) -> Result<usize, PullError> {
        loop {
            if self.verified {
                return Ok(0);
            }
            self.session.cancel.check()?;
            if self.offset == self.blob.size {
                self.verify()?;
                return Ok(0);
            }
            let read = match self.connected() {
                Ok(()) => self.read_more(),
                Err(error) => Err(error),
            };
            match read {
                Ok(0) => self.cut(invalid(
                    &self.blob.digest,
                    format!(
                        "the server closed the connection after {} of {} bytes",
                        self.offset, self.blob.size
                    ),
                ))?,
                Ok(count) => {
                    self.advance(count)?;
                    return Ok(count);
                }
                // A registry that goes away in the middle gets time to come back.
                Err(error) if error.is_slow() => self.next_server(error)?,
                Err(error) if error.is_transient() || (self.offset > 0 && error.is_refused()) => {
                    self.cut(error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn advance(&mut self, count: usize) -> Result<(), PullError> {
        self.since_cut += count as u64;
        if self.since_cut >= WORTHWHILE {
            self.cuts = 0;
        }
        self.offset += count as u64;
        if self.offset > self.blob.size {
            let problem = format!("larger than the {} bytes in the manifest", self.blob.size);
            return Err(invalid(&self.blob.digest, problem));
        }
        self.hasher.update(&self.chunk[..count]);
        self.ready = 0..count;
        if self.offset == self.blob.size {
            self.verify()?;
            (self.progress)(self.offset, LayerState::Extracting);
        } else if self.reported_at.elapsed() >= TELL_EVERY {
            self.reported_at = Instant::now();
            (self.progress)(self.offset, LayerState::Downloading);
        }
        Ok(())
    }

    /// Called before the last bytes are passed on: a decoder cannot finish with content that has another
    /// digest.
    fn verify(&mut self) -> Result<(), PullError> {
        let found = name_of(std::mem::take(&mut self.hasher).finalize().as_slice());
        if found != self.blob.digest {
            return Err(invalid(&self.blob.digest, format!("digest mismatch: content has {found}")));
        }
        self.verified = true;
        self.answer = None;
        Ok(())
    }

    /// After a broken connection: retries with back-off, then uses another server.
    fn cut(&mut self, error: PullError) -> Result<(), PullError> {
        self.answer = None;
        self.cuts += 1;
        self.since_cut = 0;
        if self.cuts < FRUITLESS_CUTS {
            return self.session.cancel.pause(back_off(self.cuts.saturating_sub(1)));
        }
        self.next_server(error)
    }

    fn next_server(&mut self, error: PullError) -> Result<(), PullError> {
        self.answer = None;
        if self.servers.len() > 1 {
            self.servers.remove(0);
            self.cuts = 0;
            return Ok(());
        }
        Err(error)
    }

    fn connected(&mut self) -> Result<(), PullError> {
        if self.answer.is_none() {
            self.answer = Some(self.open()?);
        }
        Ok(())
    }

    fn read_more(&mut self) -> Result<usize, PullError> {
        let Some(answer) = &mut self.answer else { return Ok(0) };
        answer.read(&mut self.chunk).map_err(|error| PullError::from_http(error, ""))
    }

    /// Requests the blob from the current offset.
    fn open(&mut self) -> Result<StreamingResponse, PullError> {
        let (blob, offset) = (self.blob, self.offset);
        let mut headers = Vec::new();
        if offset > 0 {
            headers.push(("Range".to_owned(), format!("bytes={offset}-")));
        }
        let path = format!("blobs/{}", blob.digest);
        let ask =
            Ask { method: Method::Get, path: &path, headers: &headers, what: &blob.digest, follows: true };
        let servers = self.servers.clone();
        let opened = self.session.try_servers(&servers, |session, index| session.ask(index, ask));
        let mut answer = match opened {
            Err(error) if !blob.urls.is_empty() => {
                let last = servers.last().copied().unwrap_or(0);
                let found = blob.urls.iter().find_map(|url| self.session.fetch_foreign(last, url, ask).ok());
                found.ok_or(error)?
            }
            other => other?,
        };
        let resumed = answer.status == 206;
        let begins = if resumed { range_start(&answer).unwrap_or(u64::MAX) } else { 0 };
        if begins > offset {
            return Err(invalid(&blob.digest, "the server sent a different range than requested"));
        }
        let length = answer.header("content-length").and_then(|value| value.parse::<u64>().ok());
        if let Some(length) = length.filter(|length| *length != blob.size.saturating_sub(begins)) {
            let problem = format!(
                "size mismatch: {} bytes on the server, {} in the manifest",
                length + begins,
                blob.size
            );
            return Err(invalid(&blob.digest, problem));
        }
        self.skip(&mut answer, offset - begins)?;
        Ok(answer)
    }

    /// A server without range support sends the blob from the beginning: skips what was already read.
    fn skip(&mut self, answer: &mut StreamingResponse, mut left: u64) -> Result<(), PullError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while left > 0 {
            self.session.cancel.check()?;
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
            let count = answer.read(&mut chunk[..most]).map_err(|error| PullError::from_http(error, ""))?;
            if count == 0 {
                return Err(invalid(
                    &self.blob.digest,
                    "the server closed the connection before the resume offset",
                ));
            }
            left -= count as u64;
            if self.reported_at.elapsed() >= TELL_EVERY {
                self.reported_at = Instant::now();
                (self.progress)(self.offset, LayerState::Downloading);
            }
        }
        Ok(())
    }
}

/// `bytes 100-199/200`
fn range_start(answer: &StreamingResponse) -> Option<u64> {
    let value = answer.header("content-range")?;
    value.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

impl Read for BlobReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.ready.is_empty()
            && let Err(error) = self.fill()
        {
            let told = io::Error::other(crate::platform::logging::chain(&error));
            *self.fault.0.borrow_mut() = Some(error);
            return Err(told);
        }
        let count = buffer.len().min(self.ready.len());
        let from = self.ready.start;
        buffer[..count].copy_from_slice(&self.chunk[from..from + count]);
        self.ready.start += count;
        Ok(count)
    }
}
