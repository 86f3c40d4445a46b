//! Encoding and decoding of SPDY/3.1 frames, without a connection.
//!
//! Owns the bounds on memory per frame: control frames are read whole and are small; data frames are handed
//! on in pieces as they arrive, whatever length they declare.

use super::SpdyError;
use super::headers::{HeaderReader, HeaderWriter, Headers};

/// The version in every control frame.
const VERSION: u16 = 3;
const HEADER: usize = 8;
/// A larger control frame is an error.
pub(in crate::serve) const MAX_CONTROL: usize = 16 * 1024;
/// Data is handed on in pieces of this size.
pub(in crate::serve) const MAX_PIECE: usize = 8 * 1024;

const FLAG_FIN: u8 = 1;
const FLAG_UNIDIRECTIONAL: u8 = 2;
const SETTINGS_INITIAL_WINDOW: u32 = 7;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// `PROTOCOL_ERROR` of RST_STREAM.
pub(in crate::serve) const RESET_PROTOCOL_ERROR: u32 = 1;
/// `REFUSED_STREAM` of RST_STREAM.
pub(in crate::serve) const RESET_REFUSED: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Open {
        stream: u32,
        /// The sender sends nothing on it.
        fin: bool,
        /// The receiver may send nothing on it.
        unidirectional: bool,
        headers: Headers,
    },
    /// Accepts a stream that this side opened.
    Reply {
        stream: u32,
        /// The sender sends nothing on it.
        fin: bool,
    },
    Data {
        stream: u32,
        bytes: Vec<u8>,
        /// The last data of this side.
        fin: bool,
    },
    /// Both directions of a stream are over.
    Reset {
        stream: u32,
    },
    /// To be returned if the id is odd, as a client's are.
    Ping {
        id: u32,
    },
    WindowUpdate {
        stream: u32,
        delta: u32,
    },
    /// The initial window of new streams.
    InitialWindow {
        size: u32,
    },
    /// The sender will open no more streams.
    GoAway,
    /// A frame without effect.
    Ignored,
}

/// The rest of a data frame.
struct Unread {
    stream: u32,
    left: usize,
    fin: bool,
}

#[derive(Default)]
pub(crate) struct Decoder {
    headers: HeaderReader,
    data: Option<Unread>,
}

impl Decoder {
    /// Removes the next event from the front of `input`; `None` until more has arrived.
    ///
    /// # Errors
    /// The input is not SPDY/3.1; the connection is unusable.
    pub(crate) fn next(&mut self, input: &mut Vec<u8>) -> Result<Option<Event>, SpdyError> {
        if let Some(unread) = self.data.take() {
            return Ok(self.piece(unread, input));
        }
        let Some(header) = input.first_chunk::<HEADER>() else { return Ok(None) };
        let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let flags = header[4];
        let length = usize::from(header[5]) << 16 | usize::from(header[6]) << 8 | usize::from(header[7]);
        if first >> 31 == 0 {
            input.drain(..HEADER);
            let unread = Unread { stream: first, left: length, fin: flags & FLAG_FIN != 0 };
            return Ok(self.piece(unread, input));
        }
        let (version, kind) = ((first >> 16 & 0x7fff) as u16, (first & 0xffff) as u16);
        if version != VERSION {
            return Err(SpdyError::Version(version));
        }
        if length > MAX_CONTROL {
            return Err(SpdyError::FrameTooLarge(length));
        }
        let Some(payload) = input.get(HEADER..HEADER + length) else { return Ok(None) };
        let event = self.control(kind, flags, payload)?;
        input.drain(..HEADER + length);
        Ok(Some(event))
    }

    fn piece(&mut self, mut unread: Unread, input: &mut Vec<u8>) -> Option<Event> {
        let take = unread.left.min(input.len()).min(MAX_PIECE);
        if take == 0 && unread.left > 0 {
            self.data = Some(unread);
            return None;
        }
        let bytes = input.drain(..take).collect();
        unread.left -= take;
        let (stream, fin) = (unread.stream, unread.fin && unread.left == 0);
        if unread.left > 0 {
            self.data = Some(unread);
        }
        Some(Event::Data { stream, bytes, fin })
    }

    fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> Result<Event, SpdyError> {
        let number = |index: usize| {
            let bytes = payload.get(index * 4..).and_then(|rest| rest.first_chunk::<4>());
            bytes.copied().map(u32::from_be_bytes).ok_or(SpdyError::Short(kind))
        };
        let stream = |index: usize| Ok::<_, SpdyError>(number(index)? & 0x7fff_ffff);
        let fin = flags & FLAG_FIN != 0;
        Ok(match kind {
            SYN_STREAM => Event::Open {
                stream: stream(0)?,
                fin,
                unidirectional: flags & FLAG_UNIDIRECTIONAL != 0,
                // They follow two stream ids, priority and slot.
                headers: self.headers.read(payload.get(10..).ok_or(SpdyError::Short(kind))?)?,
            },
            SYN_REPLY | HEADERS => {
                let stream = stream(0)?;
                // Decoded although the headers are not used: the next block depends on the compression state.
                self.headers.read(payload.get(4..).ok_or(SpdyError::Short(kind))?)?;
                match kind {
                    SYN_REPLY => Event::Reply { stream, fin },
                    _ if fin => Event::Data { stream, bytes: Vec::new(), fin },
                    _ => Event::Ignored,
                }
            }
            RST_STREAM => Event::Reset { stream: stream(0)? },
            SETTINGS => initial_window(payload).map_or(Event::Ignored, |size| Event::InitialWindow { size }),
            PING => Event::Ping { id: number(0)? },
            GOAWAY => Event::GoAway,
            WINDOW_UPDATE => Event::WindowUpdate { stream: stream(0)?, delta: stream(1)? },
            _ => Event::Ignored,
        })
    }
}

fn initial_window(payload: &[u8]) -> Option<u32> {
    payload.get(4..)?.chunks_exact(8).find_map(|entry| {
        let id = u32::from_be_bytes([0, entry[1], entry[2], entry[3]]);
        let value = u32::from_be_bytes([entry[4], entry[5], entry[6], entry[7]]);
        (id == SETTINGS_INITIAL_WINDOW).then_some(value)
    })
}

fn control(kind: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend((VERSION | 0x8000).to_be_bytes());
    frame.extend(kind.to_be_bytes());
    frame.extend(flags_and_length(flags, payload.len()));
    frame.extend(payload);
    frame
}

/// Flags and a length of 24 bits.
fn flags_and_length(flags: u8, length: usize) -> [u8; 4] {
    let [_, high, middle, low] = u32::try_from(length).unwrap_or_default().to_be_bytes();
    [flags, high, middle, low]
}

/// A data frame; `bytes` are at most [`MAX_PIECE`].
#[must_use]
pub(crate) fn data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + bytes.len());
    frame.extend((stream & 0x7fff_ffff).to_be_bytes());
    frame.extend(flags_and_length(u8::from(fin) * FLAG_FIN, bytes.len()));
    frame.extend(bytes);
    frame
}

/// `SYN_STREAM`.
#[must_use]
pub(crate) fn open(stream: u32, headers: &Headers, writer: &mut HeaderWriter) -> Vec<u8> {
    let mut payload = stream.to_be_bytes().to_vec();
    payload.extend([0; 6]);
    payload.extend(writer.write(headers));
    control(SYN_STREAM, 0, &payload)
}

/// `SYN_REPLY`.
#[must_use]
pub(crate) fn reply(stream: u32, writer: &mut HeaderWriter) -> Vec<u8> {
    let mut payload = stream.to_be_bytes().to_vec();
    payload.extend(writer.write(&Headers::new()));
    control(SYN_REPLY, 0, &payload)
}

/// `RST_STREAM`.
#[must_use]
pub(crate) fn reset(stream: u32, status: u32) -> Vec<u8> {
    control(RST_STREAM, 0, &[stream.to_be_bytes(), status.to_be_bytes()].concat())
}

#[must_use]
pub(in crate::serve) fn ping(id: u32) -> Vec<u8> {
    control(PING, 0, &id.to_be_bytes())
}

/// `GOAWAY` with status OK.
#[must_use]
pub(in crate::serve) fn go_away(last_stream: u32) -> Vec<u8> {
    control(GOAWAY, 0, &[last_stream.to_be_bytes(), [0; 4]].concat())
}

#[must_use]
pub(in crate::serve) fn window_update(stream: u32, delta: u32) -> Vec<u8> {
    control(WINDOW_UPDATE, 0, &[stream.to_be_bytes(), delta.to_be_bytes()].concat())
}

#[cfg(test)]
mod tests;
