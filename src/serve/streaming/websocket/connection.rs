//! A client's connection and its channels.
//!
//! Owns the connection and its two tasks. As with SPDY, an unread channel stops the reading of the whole
//! connection.

use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::task::JoinSet;

use super::frame::{self, Decoder, Event};
use super::{CLOSE_CHANNEL, WebSocketError};
use crate::codec::base64;
use crate::serve::streaming::pipe::{
    Activity, Frames, Framing, Inlet, LINGER, Outgoing, Outlet, Pieces, frames, write_frames,
};

const READ: usize = 8 * 1024;

/// How messages are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct Messages {
    /// Text in base64 instead of bytes.
    pub base64: bool,
    /// Channel 255 closes channels (v5).
    pub closes: bool,
    /// No channels: all bytes are one stream, numbered 0.
    pub raw: bool,
}

/// A connection. Dropping it closes the socket without a close frame.
pub(in crate::serve) struct WebSocketConnection {
    frames: Frames,
    messages: Messages,
    reader: JoinSet<()>,
    writer: JoinSet<()>,
}

impl WebSocketConnection {
    /// Serves the client behind `io`, and accepts input on `channels`; input on others is dropped. Needs a
    /// `LocalSet`.
    pub(in crate::serve) fn start(
        io: impl AsyncRead + AsyncWrite + 'static,
        messages: Messages,
        channels: &[u8],
        activity: &Rc<Activity>,
    ) -> (Self, BTreeMap<u8, Inlet>) {
        let (read, write) = tokio::io::split(io);
        let (frames, outgoing) = frames();
        let (mut reader, mut writer) = (JoinSet::new(), JoinSet::new());
        writer.spawn_local(write_frames(write, outgoing, Rc::clone(activity)));
        let mut inlets = BTreeMap::new();
        let mut open = BTreeMap::new();
        for channel in channels {
            let (pieces, inlet) = Inlet::new(None);
            open.insert(*channel, pieces);
            inlets.insert(*channel, inlet);
        }
        let demultiplexer = Demultiplexer { messages, open, channel: None, text: base64::Decoder::default() };
        reader.spawn_local(read_frames(read, demultiplexer, frames.clone(), Rc::clone(activity)));
        (Self { frames, messages, reader, writer }, inlets)
    }

    #[must_use]
    pub(in crate::serve) fn outlet(&self, channel: u8) -> Outlet {
        let framing = match self.messages {
            Messages { raw: true, base64: true, .. } => Framing::Base64,
            Messages { raw: true, .. } => Framing::Raw,
            Messages { base64, .. } => Framing::WebSocket { channel, base64 },
        };
        Outlet::new(self.frames.clone(), framing)
    }

    /// Waits until the client disconnects or sends a close frame. Cancel safe.
    pub(in crate::serve) async fn gone(&mut self) {
        self.reader.join_next().await;
    }

    /// Sends a close frame after everything else, however long the client takes to read it, and waits briefly for
    /// the client's.
    pub(in crate::serve) async fn close(mut self) {
        let _ = self.frames.send(Outgoing::Frame(frame::close())).await;
        let _ = self.frames.send(Outgoing::Close).await;
        self.writer.join_next().await;
        let _ = tokio::time::timeout(LINGER, self.reader.join_next()).await;
    }
}

async fn read_frames(
    mut io: impl AsyncRead + Unpin,
    mut demultiplexer: Demultiplexer,
    frames: Frames,
    activity: Rc<Activity>,
) {
    let (mut decoder, mut input, mut block) = (Decoder::default(), Vec::new(), vec![0_u8; READ]);
    loop {
        let count = match io.read(&mut block).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        activity.note();
        input.extend_from_slice(&block[..count]);
        loop {
            let handled = match decoder.next(&mut input) {
                Ok(None) => break,
                Ok(Some(Event::Data { first, bytes, last })) => demultiplexer.take(first, bytes, last).await,
                Ok(Some(Event::Ping(bytes))) => {
                    let _ = frames.send(Outgoing::Frame(frame::pong(&bytes))).await;
                    Ok(())
                }
                Ok(Some(Event::Close)) => return,
                Ok(Some(Event::Ignored)) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = handled {
                log::debug!(err:% = error; "WebSocket error from streaming client");
                return;
            }
        }
    }
}

struct Demultiplexer {
    messages: Messages,
    open: BTreeMap<u8, Pieces>,
    /// The channel of the message that is being read.
    channel: Option<u8>,
    text: base64::Decoder,
}

impl Demultiplexer {
    async fn take(&mut self, first: bool, mut bytes: Vec<u8>, last: bool) -> Result<(), WebSocketError> {
        if self.messages.raw {
            self.channel = Some(0);
        } else {
            if first {
                self.channel = None;
            }
            if self.channel.is_none() && !bytes.is_empty() {
                let channel = bytes.remove(0);
                self.channel = Some(if self.messages.base64 {
                    channel.checked_sub(b'0').filter(|digit| *digit < 10).ok_or(WebSocketError::Base64)?
                } else {
                    channel
                });
            }
            if self.messages.base64 {
                bytes = self.text.push(&bytes, last)?;
            }
        }
        match self.channel {
            Some(CLOSE_CHANNEL) if self.messages.closes => {
                bytes.first().map(|closed| self.open.remove(closed));
            }
            Some(channel) if !bytes.is_empty() => {
                if let Some(pieces) = self.open.get(&channel)
                    && pieces.send(bytes).await.is_err()
                {
                    self.open.remove(&channel);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
