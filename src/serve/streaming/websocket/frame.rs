//! Encoding and decoding of WebSocket frames (RFC 6455), the server's side, without a connection.
//!
//! Owns what a valid frame is. Data is handed on in pieces as it arrives, whatever length a frame declares.

use super::WebSocketError;
use crate::codec::base64;

/// Data is handed on in pieces of this size.
const MAX_PIECE: usize = 8 * 1024;
const MAX_CONTROL: usize = 125;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Event {
    /// A piece of a message.
    Data {
        /// The message's first.
        first: bool,
        bytes: Vec<u8>,
        /// The message's last.
        last: bool,
    },
    /// To be answered with a pong of the same bytes.
    Ping(Vec<u8>),
    /// The client closes the connection.
    Close,
    /// A frame without effect.
    Ignored,
}

struct Unread {
    left: u64,
    mask: [u8; 4],
    at: usize,
    first: bool,
    fin: bool,
}

#[derive(Default)]
pub(in crate::serve) struct Decoder {
    data: Option<Unread>,
    in_message: bool,
}

impl Decoder {
    /// Removes the next event from the front of `input`; `None` until more has arrived.
    ///
    /// # Errors
    /// The input is not WebSocket; the connection is unusable.
    pub(in crate::serve) fn next(&mut self, input: &mut Vec<u8>) -> Result<Option<Event>, WebSocketError> {
        if let Some(unread) = self.data.take() {
            return Ok(self.piece(unread, input));
        }
        let Some(&[begin, second]) = input.first_chunk::<2>() else { return Ok(None) };
        if begin & 0x70 != 0 {
            return Err(WebSocketError::Reserved);
        }
        if second & 0x80 == 0 {
            return Err(WebSocketError::Unmasked);
        }
        let (short, fin, kind) = (second & 0x7f, begin & FIN != 0, begin & 0x0f);
        let is_control = kind & 8 != 0;
        if is_control && (!fin || usize::from(short) > MAX_CONTROL) {
            return Err(WebSocketError::Control);
        }
        let (length, header) = match short {
            126 => match input.get(2..).and_then(|rest| rest.first_chunk::<2>()) {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 4),
                None => return Ok(None),
            },
            127 => match input.get(2..).and_then(|rest| rest.first_chunk::<8>()) {
                Some(length) => (u64::from_be_bytes(*length), 10),
                None => return Ok(None),
            },
            short => (short.into(), 2),
        };
        let Some(&mask) = input.get(header..).and_then(|rest| rest.first_chunk::<4>()) else {
            return Ok(None);
        };
        let header = header + 4;
        if is_control {
            let end = header + usize::from(short);
            let Some(payload) = input.get(header..end) else { return Ok(None) };
            let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
            input.drain(..end);
            return match kind {
                CLOSE => Ok(Some(Event::Close)),
                PING => Ok(Some(Event::Ping(payload))),
                PONG => Ok(Some(Event::Ignored)),
                other => Err(WebSocketError::Kind(other)),
            };
        }
        let first = match kind {
            CONTINUATION => false,
            TEXT | BINARY => true,
            other => return Err(WebSocketError::Kind(other)),
        };
        if first == self.in_message {
            return Err(WebSocketError::Order);
        }
        self.in_message = !fin;
        input.drain(..header);
        Ok(self.piece(Unread { left: length, mask, at: 0, first, fin }, input))
    }

    fn piece(&mut self, mut unread: Unread, input: &mut Vec<u8>) -> Option<Event> {
        let left = usize::try_from(unread.left).unwrap_or(usize::MAX);
        let take = left.min(input.len()).min(MAX_PIECE);
        if take == 0 && left > 0 {
            self.data = Some(unread);
            return None;
        }
        let (mask, at) = (unread.mask, unread.at);
        let bytes =
            input.drain(..take).enumerate().map(|(index, byte)| byte ^ mask[(at + index) % 4]).collect();
        unread.at = (at + take) % 4;
        unread.left -= take as u64;
        let (first, last) = (unread.first, unread.fin && unread.left == 0);
        if unread.left > 0 {
            unread.first = false;
            self.data = Some(unread);
        }
        Some(Event::Data { first, bytes, last })
    }
}

fn encode(kind: u8, head: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = head.len() + bytes.len();
    let mut frame = Vec::with_capacity(10 + length);
    frame.push(FIN | kind);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..126), _) => frame.push(short),
        (_, Ok(middle)) => {
            frame.push(126);
            frame.extend(middle.to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(head);
    frame.extend(bytes);
    frame
}

/// A binary message of `head` followed by `bytes`.
#[must_use]
pub(in crate::serve) fn binary(head: &[u8], bytes: &[u8]) -> Vec<u8> {
    encode(BINARY, head, bytes)
}

/// A text message of bytes in base64.
#[must_use]
pub(in crate::serve) fn base64_text(bytes: &[u8]) -> Vec<u8> {
    encode(TEXT, &[], base64::encode(bytes).as_bytes())
}

/// A message for a channel: its number and the bytes, or in base64 its digit and the encoded text.
#[must_use]
pub(in crate::serve) fn message(channel: u8, as_base64: bool, bytes: &[u8]) -> Vec<u8> {
    if as_base64 {
        return encode(TEXT, &[b'0' + channel], base64::encode(bytes).as_bytes());
    }
    binary(&[channel], bytes)
}

#[must_use]
pub(in crate::serve) fn pong(bytes: &[u8]) -> Vec<u8> {
    encode(PONG, &[], bytes)
}

/// A close frame with code 1000, normal closure.
#[must_use]
pub(in crate::serve) fn close() -> Vec<u8> {
    encode(CLOSE, &[], &1000_u16.to_be_bytes())
}

#[cfg(test)]
mod tests;
