//! The two directions of a client's stream, independent of the protocol, and the idle timer of its
//! connection.
//!
//! Owns queues and their bounds.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::spdy::frame;
use super::websocket;

/// Pieces of at most 8 KiB that wait for a stream's reader; then the client waits.
const PIECES: usize = 4;
/// Frames that wait for the connection; then their sender waits.
const FRAMES: usize = 8;
/// The client's window is replenished once this much has been consumed.
const CREDIT: usize = 16 * 1024;
/// A client that does not close its end within this time after the server has is cut off.
pub(in crate::serve) const LINGER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has disconnected")]
pub(crate) struct Gone;

/// The time of the last traffic on a connection.
#[derive(Debug)]
pub(in crate::serve) struct Activity(Cell<Instant>);

impl Activity {
    #[must_use]
    pub(in crate::serve) fn new() -> Rc<Self> {
        Rc::new(Self(Cell::new(Instant::now())))
    }

    pub(in crate::serve) fn note(&self) {
        self.0.set(Instant::now());
    }

    /// Waits until there was no traffic for `limit`; forever if that is zero.
    pub(in crate::serve) async fn idle(&self, limit: Duration) {
        if limit.is_zero() {
            std::future::pending::<()>().await;
        }
        loop {
            let until = self.0.get() + limit;
            tokio::time::sleep_until(until).await;
            if self.0.get() + limit <= until {
                return;
            }
        }
    }
}

pub(in crate::serve) enum Outgoing {
    /// A frame, whole.
    Frame(Vec<u8>),
    /// The last item: the connection is closed for writing.
    Close,
}

pub(in crate::serve) type Frames = mpsc::Sender<Outgoing>;

#[must_use]
pub(in crate::serve) fn frames() -> (Frames, mpsc::Receiver<Outgoing>) {
    mpsc::channel(FRAMES)
}

/// Writes frames until [`Outgoing::Close`], an error, or all senders are dropped.
pub(in crate::serve) async fn write_frames(
    mut io: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Outgoing>,
    activity: Rc<Activity>,
) {
    while let Some(Outgoing::Frame(frame)) = frames.recv().await {
        let written = async {
            io.write_all(&frame).await?;
            io.flush().await
        };
        if written.await.is_err() {
            return;
        }
        activity.note();
    }
    // An error does not matter: the connection ends either way.
    let _ = io.shutdown().await;
}

/// A stream's flow-control window.
///
/// The library behind Kubernetes' clients neither announces nor keeps windows, so a window is respected only
/// once the client has shown that it keeps one: by a WINDOW_UPDATE or by its settings.
#[derive(Debug)]
pub(in crate::serve) struct Window {
    kept: Cell<bool>,
    open: Cell<i64>,
    changed: Notify,
    cut: Cell<bool>,
    was_cut: Notify,
}

impl Window {
    /// A window of `size` bytes; `kept` when the client has announced it.
    #[must_use]
    pub(in crate::serve) fn new(size: i64, kept: bool) -> Rc<Self> {
        Rc::new(Self {
            kept: Cell::new(kept),
            open: Cell::new(size),
            changed: Notify::new(),
            cut: Cell::new(false),
            was_cut: Notify::new(),
        })
    }

    /// The client has room for `delta` more bytes (fewer, when it reduced its windows).
    pub(in crate::serve) fn widen(&self, delta: i64) {
        self.kept.set(true);
        self.open.set(self.open.get().saturating_add(delta));
        self.changed.notify_one();
    }

    /// The client has reset the stream.
    pub(in crate::serve) fn cut(&self) {
        self.cut.set(true);
        self.was_cut.notify_one();
    }

    /// Waits for room and returns how much of `wanted` may be sent.
    async fn reserve(&self, wanted: usize) -> usize {
        loop {
            let open = usize::try_from(self.open.get()).unwrap_or(0);
            let size = if self.kept.get() { wanted.min(open) } else { wanted };
            if size > 0 || wanted == 0 {
                self.open.set(self.open.get().saturating_sub(i64::try_from(size).unwrap_or(i64::MAX)));
                return size;
            }
            self.changed.notified().await;
        }
    }
}

/// The sender of a client's data.
pub(crate) type Pieces = mpsc::Sender<Vec<u8>>;

/// A stream's data from the client.
pub(in crate::serve) struct Inlet {
    pieces: mpsc::Receiver<Vec<u8>>,
    /// For SPDY: the stream's id, and the queue for its window updates.
    credit: Option<(u32, Frames)>,
    owed: usize,
}

impl Inlet {
    /// An inlet, with the sender for the connection.
    #[must_use]
    pub(in crate::serve) fn new(credit: Option<(u32, Frames)>) -> (Pieces, Self) {
        let (sender, pieces) = mpsc::channel(PIECES);
        (sender, Self { pieces, credit, owed: 0 })
    }

    /// The next piece; `None` when the client has closed its side or disconnected. Cancel safe.
    pub(in crate::serve) async fn next(&mut self) -> Option<Vec<u8>> {
        if let Some((stream, frames)) = &self.credit
            && self.owed >= CREDIT
            && let Ok(permit) = frames.reserve().await
        {
            let delta = u32::try_from(std::mem::take(&mut self.owed)).unwrap_or(u32::MAX);
            permit.send(Outgoing::Frame(frame::window_update(*stream, delta)));
        }
        let piece = self.pieces.recv().await?;
        self.owed += piece.len();
        Some(piece)
    }
}

pub(in crate::serve) enum Framing {
    /// Data frames of a stream.
    Spdy {
        stream: u32,
        /// How much may be sent.
        window: Rc<Window>,
    },
    /// Messages with a channel number in front.
    WebSocket {
        channel: u8,
        /// Text instead of bytes.
        base64: bool,
    },
    /// Messages of bytes: a tunnel.
    Raw,
    /// Messages of text in base64.
    Base64,
}

/// A stream's data to the client.
pub(in crate::serve) struct Outlet {
    frames: Frames,
    framing: Framing,
}

impl Outlet {
    #[must_use]
    pub(in crate::serve) fn new(frames: Frames, framing: Framing) -> Self {
        Self { frames, framing }
    }

    /// Whether [`Outlet::finish`] signals the end of the data to the client.
    #[must_use]
    pub(in crate::serve) fn half_closes(&self) -> bool {
        matches!(self.framing, Framing::Spdy { .. })
    }

    /// Waits until the client resets the stream or disconnects. Cancel safe.
    pub(in crate::serve) async fn cut(&self) {
        let cut = async {
            match &self.framing {
                Framing::Spdy { window, .. } if !window.cut.get() => window.was_cut.notified().await,
                Framing::Spdy { .. } => {}
                Framing::WebSocket { .. } | Framing::Raw | Framing::Base64 => std::future::pending().await,
            }
        };
        tokio::select! {
            () = cut => {}
            () = self.frames.closed() => {}
        }
    }

    /// Sends bytes; waits while the client does not read them.
    pub(in crate::serve) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let mut size = bytes.len().min(frame::MAX_PIECE);
            if let Framing::Spdy { window, .. } = &self.framing {
                tokio::select! {
                    biased;
                    granted = window.reserve(size) => size = granted,
                    () = self.cut() => return Err(Gone),
                }
            }
            let (now, later) = bytes.split_at(size);
            self.send(now).await?;
            bytes = later;
        }
        Ok(())
    }

    /// Sends one frame, which may be empty.
    pub(in crate::serve) async fn send(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let frame = match &self.framing {
            Framing::Spdy { stream, .. } => frame::data(*stream, bytes, false),
            Framing::WebSocket { channel, base64 } => websocket::frame::message(*channel, *base64, bytes),
            Framing::Raw => websocket::frame::binary(&[], bytes),
            Framing::Base64 => websocket::frame::base64_text(bytes),
        };
        self.frames.send(Outgoing::Frame(frame)).await.map_err(|_| Gone)
    }

    /// Closes the stream for writing. WebSocket has no message for that: v5's is for clients only, and they
    /// reject it from a server.
    pub(in crate::serve) async fn finish(self) {
        if let Framing::Spdy { stream, .. } = self.framing {
            // The send may fail: the client may have disconnected.
            let _ = self.frames.send(Outgoing::Frame(frame::data(stream, &[], true))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_is_idle_after_the_timeout_without_traffic() {
        let activity = Activity::new();
        let begin = Instant::now();
        let note = async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            activity.note();
        };
        tokio::join!(activity.idle(Duration::from_secs(60)), note);
        assert_eq!(begin.elapsed().as_secs(), 90);
        let never = tokio::time::timeout(Duration::from_secs(1_000_000), activity.idle(Duration::ZERO));
        assert!(never.await.is_err(), "without a limit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_holds_once_the_client_has_shown_that_it_keeps_one() {
        let window = Window::new(10, false);
        assert_eq!(window.reserve(100).await, 100, "nobody counts");
        window.widen(95);
        assert_eq!(window.reserve(100).await, 5);
        let take = tokio::time::timeout(Duration::from_secs(1), window.reserve(100));
        assert!(take.await.is_err(), "the window is shut");
        window.widen(3);
        assert_eq!(window.reserve(100).await, 3);
    }

    #[tokio::test]
    async fn the_client_gets_its_window_back_when_a_stream_was_read() {
        let (frames, mut sent) = frames();
        let (pieces, mut inlet) = Inlet::new(Some((5, frames)));
        let feed = async {
            for _ in 0..3 {
                pieces.send(vec![0; 8192]).await.expect("the inlet is there");
            }
            drop(pieces);
        };
        let read = async {
            let mut total = 0;
            while let Some(piece) = inlet.next().await {
                total += piece.len();
            }
            total
        };
        let ((), total) = tokio::join!(feed, read);
        assert_eq!(total, 3 * 8192);
        let Some(Outgoing::Frame(update)) = sent.recv().await else { panic!("there is an update") };
        assert_eq!(update, frame::window_update(5, 2 * 8192));
    }
}
