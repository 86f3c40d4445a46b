//! Accepts requests of clients that send a socket's path as the server's name.
//!
//! gRPC libraries put the target they dial into `:authority`: a path, or one with `%2F`. That is no
//! authority, and the agent's HTTP/2 library refuses the connection for it; Kubernetes' own servers do not
//! check. So the client's stream passes through this module, which replaces a long `:authority` by
//! `localhost`. Owns as much of HTTP/2's frames and header blocks as that takes; must not know the requests.
//! What it does not understand passes unchanged.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// The client's connection preface.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// The default maximum frame size of HTTP/2.
const LONGEST_HEADERS: usize = 16 * 1024;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The index of `:authority` in the static table.
const AUTHORITY: usize = 1;
/// Without Huffman's code. Any name with as many bytes, coded or not, is at least as long: the client's
/// header table never holds more than the server's.
const NAME: &[u8] = b"localhost";

/// A connection whose requests are all addressed to `localhost`.
pub(in crate::platform) struct Named {
    stream: UnixStream,
    rewriter: Rewriter,
    ready: Vec<u8>,
    given: usize,
}

impl Named {
    /// A new connection, before the client's first byte.
    #[must_use]
    pub(in crate::platform) fn new(stream: UnixStream) -> Self {
        Self { stream, rewriter: Rewriter::default(), ready: Vec::new(), given: 0 }
    }
}

impl AsyncRead for Named {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.given < this.ready.len() {
                let some = (this.ready.len() - this.given).min(buffer.remaining());
                buffer.put_slice(&this.ready[this.given..this.given + some]);
                this.given += some;
                return Poll::Ready(Ok(()));
            }
            (this.ready, this.given) = (Vec::new(), 0);
            let mut bytes = [0; 4096];
            let mut read = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.feed(read.filled(), &mut this.ready);
        }
    }
}

impl AsyncWrite for Named {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// The position in the client's stream.
#[derive(Default)]
struct Rewriter {
    /// Bytes of the preface that have passed.
    preface: usize,
    /// Bytes of a frame's payload that pass unchanged.
    passing: usize,
    /// The beginning of a frame.
    held: Vec<u8>,
}

impl Rewriter {
    fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        self.preface += pass(&mut input, PREFACE - self.preface, out);
        while !input.is_empty() {
            if self.passing > 0 {
                self.passing -= pass(&mut input, self.passing, out);
                continue;
            }
            let missing = self.missing();
            pass(&mut input, missing, &mut self.held);
            if self.missing() > 0 {
                continue;
            }
            let frame = std::mem::take(&mut self.held);
            if is_headers(&frame) {
                out.extend(renamed(&frame).unwrap_or(frame));
            } else {
                self.passing = length(&frame);
                out.extend(frame);
            }
        }
    }

    /// Bytes that are buffered before the decision: a frame's head, and all of one with headers.
    fn missing(&self) -> usize {
        let wanted = if is_headers(&self.held) { FRAME_HEAD + length(&self.held) } else { FRAME_HEAD };
        wanted - self.held.len()
    }
}

/// Moves at most `most` bytes, and returns how many.
fn pass(input: &mut &[u8], most: usize, out: &mut Vec<u8>) -> usize {
    let (some, rest) = input.split_at(most.min(input.len()));
    out.extend_from_slice(some);
    *input = rest;
    some.len()
}

fn length(frame: &[u8]) -> usize {
    usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2])
}

fn is_headers(frame: &[u8]) -> bool {
    frame.len() >= FRAME_HEAD && frame[3] == HEADERS && length(frame) <= LONGEST_HEADERS
}

/// The frame with another `:authority`; `None` if nothing has to change.
fn renamed(frame: &[u8]) -> Option<Vec<u8>> {
    let flags = frame[4];
    let mut at = FRAME_HEAD;
    let mut end = frame.len();
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*frame.get(at)?))?;
        at += 1;
    }
    if flags & PRIORITY != 0 {
        at += 5;
    }
    while at < end {
        let first = frame[at];
        // Indexed; with a new size of the table; literal with, without or never to have an index.
        let bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = number(frame, &mut at, bits)?;
        if matches!(bits, 7 | 5) {
            continue;
        }
        let mut is_authority = index == AUTHORITY;
        if index == 0 {
            let bytes = number(frame, &mut at, 7)?;
            // gRPC's C core writes the name literally, and without Huffman's code.
            is_authority = frame.get(at..at.checked_add(bytes)?)? == b":authority";
            at += bytes;
        }
        let value = at;
        let bytes = number(frame, &mut at, 7)?;
        at = at.checked_add(bytes)?;
        if is_authority && bytes >= NAME.len() && at <= end {
            let mut new = frame[..value].to_vec();
            new.push(u8::try_from(NAME.len()).ok()?);
            new.extend_from_slice(NAME);
            new.extend_from_slice(&frame[at..]);
            let length = u32::try_from(new.len() - FRAME_HEAD).ok()?.to_be_bytes();
            new[..3].copy_from_slice(&length[1..]);
            return Some(new);
        }
    }
    None
}

/// An integer whose first byte has `bits` bits for it.
fn number(frame: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let mut next = || {
        let byte = frame.get(*at).copied();
        *at += 1;
        byte.map(usize::from)
    };
    let most = (1 << bits) - 1;
    let mut value = next()? & most;
    if value < most {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = next()?;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, 1];
        frame.extend(payload);
        frame
    }

    /// Method and scheme, a path, and the authority in a literal of this kind.
    fn block(literal: u8, authority: &[u8]) -> Vec<u8> {
        let mut block =
            vec![0x83, 0x86, 0x44, 2, b'/', b'x', literal, u8::try_from(authority.len()).unwrap()];
        block.extend(authority);
        // A header with a literal name.
        block.extend([0x40, 1, b'a', 1, b'b']);
        block
    }

    #[test]
    fn only_socket_path_authority_is_rewritten_in_any_chunking() {
        let path = b"%2Frun%2Fkubelet.sock";
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut expected = sent.clone();
        let other = frame(4, 0, &[0, 1, 2, 3, 4, 5]);
        for (literal, flags) in [(0x41, 4), (0x01, 4), (0x11, 4), (0x41, 4 | PRIORITY), (0x41, 4 | PADDED)] {
            let around = |block: Vec<u8>| match flags {
                0x24 => [vec![0; 5], block].concat(),
                0x0c => [vec![2], block, vec![0, 0]].concat(),
                _ => block,
            };
            sent.extend(&other);
            sent.extend(frame(HEADERS, flags, &around(block(literal, path))));
            expected.extend(&other);
            expected.extend(frame(HEADERS, flags, &around(block(literal, b"localhost"))));
        }
        let spelled = |authority: &[u8]| {
            let length = u8::try_from(authority.len()).unwrap();
            frame(HEADERS, 4, &[&[0x83, 0x40, 10], &b":authority"[..], &[length], authority].concat())
        };
        sent.extend(spelled(path));
        expected.extend(spelled(b"localhost"));
        for same in
            [frame(HEADERS, 4, &block(0x41, b"a.b:1")), frame(HEADERS, 4, &[0x83, 0xbe]), frame(0, 1, path)]
        {
            sent.extend(&same);
            expected.extend(&same);
        }
        for size in [1, 2, 7, 30, sent.len()] {
            let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
            for piece in sent.chunks(size) {
                rewriter.feed(piece, &mut out);
            }
            assert_eq!(out, expected, "in pieces of {size}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), flags in 0_u8..64) {
            let mut sent = vec![0; PREFACE];
            sent.extend(frame(HEADERS, flags, &bytes));
            sent.extend(&bytes);
            let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
            rewriter.feed(&sent, &mut out);
        }
    }
}
