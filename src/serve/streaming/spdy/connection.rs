//! A connection and its streams, on the client's and on the server's side.
//!
//! Owns the connection, its two tasks and the table of streams. A stream's data waits in a short queue until
//! it is read; when it is full the connection is not read, and the client waits.

use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::frame::{self, Decoder, Event, RESET_PROTOCOL_ERROR, RESET_REFUSED};
use super::headers::{HeaderWriter, Headers};
use crate::serve::streaming::pipe::{
    Activity, Frames, Framing, Inlet, LINGER, Outgoing, Outlet, Pieces, Window, frames, write_frames,
};

/// A forwarded connection has two. A client with this many open is refused further ones.
const MAX_STREAMS: usize = 512;
/// Streams that have not been accepted yet.
const WAITING: usize = 16;
/// The protocol's default.
const INITIAL_WINDOW: i64 = 64 * 1024;
const READ: usize = 8 * 1024;

/// A stream that either side opened.
pub(in crate::serve) struct SpdyStream {
    pub id: u32,
    pub headers: Headers,
    /// Data from the other side.
    pub inlet: Inlet,
    /// Data to the other side.
    pub outlet: Outlet,
}

/// A connection. Dropping it closes the socket without `GOAWAY`.
pub(in crate::serve) struct SpdyConnection {
    streams: mpsc::Receiver<SpdyStream>,
    frames: Frames,
    reader: JoinSet<()>,
    writer: JoinSet<()>,
}

impl SpdyConnection {
    /// Serves the client behind `io`. Needs a `LocalSet`.
    pub(in crate::serve) fn start(
        io: impl AsyncRead + AsyncWrite + 'static,
        activity: &Rc<Activity>,
    ) -> Self {
        Self::over(io, activity, |_| ()).0
    }

    /// Opens streams to the server behind `io`, all of them at once: one for each of `wanted`, in that order,
    /// and no more than the frame queue holds. Needs a `LocalSet`.
    pub(in crate::serve) fn ask(
        io: impl AsyncRead + AsyncWrite + 'static,
        wanted: Vec<Headers>,
        activity: &Rc<Activity>,
    ) -> (Self, Vec<SpdyStream>) {
        Self::over(io, activity, |table| {
            table.is_client = true;
            wanted.into_iter().map(|headers| table.ask(headers)).collect()
        })
    }

    fn over<T>(
        io: impl AsyncRead + AsyncWrite + 'static,
        activity: &Rc<Activity>,
        prepare: impl FnOnce(&mut Table) -> T,
    ) -> (Self, T) {
        let (read, write) = tokio::io::split(io);
        let (frames, outgoing) = frames();
        let (opened, streams) = mpsc::channel(WAITING);
        let (mut reader, mut writer) = (JoinSet::new(), JoinSet::new());
        writer.spawn_local(write_frames(write, outgoing, Rc::clone(activity)));
        let mut table = Table {
            frames: frames.clone(),
            opened,
            open: BTreeMap::new(),
            last: 0,
            window: INITIAL_WINDOW,
            window_kept: false,
            headers: HeaderWriter::default(),
            is_client: false,
        };
        let asked = prepare(&mut table);
        reader.spawn_local(read_frames(read, table, Rc::clone(activity)));
        (Self { streams, frames, reader, writer }, asked)
    }

    /// The next stream that the client opens; `None` when it has disconnected. Cancel safe.
    pub(in crate::serve) async fn next(&mut self) -> Option<SpdyStream> {
        self.streams.recv().await
    }

    pub(in crate::serve) async fn refuse(&self, stream: SpdyStream) {
        let _ = self.frames.send(Outgoing::Frame(frame::reset(stream.id, RESET_PROTOCOL_ERROR))).await;
    }

    /// Sends `GOAWAY` after everything else, however long the client takes to read it, and waits briefly for the
    /// client to close: closing a connection with unread input would lose data in flight.
    pub(in crate::serve) async fn close(mut self) {
        let _ = self.frames.send(Outgoing::Frame(frame::go_away(0))).await;
        let _ = self.frames.send(Outgoing::Close).await;
        self.streams.close();
        while self.streams.recv().await.is_some() {}
        self.writer.join_next().await;
        let _ = tokio::time::timeout(LINGER, self.reader.join_next()).await;
    }
}

struct StreamEntry {
    /// `None` when the client has closed its side, or the receiver is dropped.
    pieces: Option<Pieces>,
    window: Rc<Window>,
}

struct Table {
    frames: Frames,
    opened: mpsc::Sender<SpdyStream>,
    open: BTreeMap<u32, StreamEntry>,
    last: u32,
    window: i64,
    window_kept: bool,
    headers: HeaderWriter,
    /// The other side is the server.
    is_client: bool,
}

async fn read_frames(mut io: impl AsyncRead + Unpin, mut table: Table, activity: Rc<Activity>) {
    let (mut decoder, mut input, mut block) = (Decoder::default(), Vec::new(), vec![0_u8; READ]);
    loop {
        let count = match io.read(&mut block).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        activity.note();
        input.extend_from_slice(&block[..count]);
        loop {
            match decoder.next(&mut input) {
                Ok(Some(event)) => table.handle(event).await,
                Ok(None) => break,
                Err(error) => {
                    log::debug!(err:% = error; "SPDY error from streaming client");
                    return;
                }
            }
        }
    }
}

impl Table {
    async fn handle(&mut self, event: Event) {
        match event {
            Event::Open { stream, fin, unidirectional: _, headers } => self.open(stream, fin, headers).await,
            Event::Data { stream, bytes, fin } => self.data(stream, bytes, fin).await,
            Event::Reset { stream } => {
                if let Some(entry) = self.open.remove(&stream) {
                    entry.window.cut();
                }
            }
            // Ping ids of clients are odd. The others answer this side's own pings.
            Event::Ping { id } if (id % 2 == 0) == self.is_client => self.send(frame::ping(id)).await,
            Event::WindowUpdate { stream, delta } => {
                if let Some(entry) = self.open.get(&stream) {
                    entry.window.widen(delta.into());
                }
            }
            Event::InitialWindow { size } => {
                let change = i64::from(size) - self.window;
                self.window = size.into();
                self.window_kept = true;
                self.open.values().for_each(|entry| entry.window.widen(change));
            }
            Event::Ping { .. } | Event::Reply { .. } | Event::GoAway | Event::Ignored => {}
        }
    }

    async fn send(&self, frame: Vec<u8>) {
        // While the connection is being closed, the rest of the input is read and nothing is answered.
        let _ = self.frames.send(Outgoing::Frame(frame)).await;
    }

    async fn open(&mut self, id: u32, fin: bool, headers: Headers) {
        // Clients' ids are odd and increasing; servers open no streams.
        if self.is_client || id.is_multiple_of(2) || id <= self.last {
            return self.send(frame::reset(id, RESET_PROTOCOL_ERROR)).await;
        }
        self.last = id;
        // Streams that are over on both sides: the receiver is dropped, or the client ended them.
        self.open.retain(|_, entry| match &entry.pieces {
            Some(pieces) => !pieces.is_closed(),
            None => Rc::strong_count(&entry.window) > 1,
        });
        if self.open.len() >= MAX_STREAMS {
            return self.send(frame::reset(id, RESET_REFUSED)).await;
        }
        let stream = self.add_stream(id, fin, headers);
        let reply = frame::reply(id, &mut self.headers);
        self.send(reply).await;
        // The send may fail: a connection that is being closed accepts no streams.
        let _ = self.opened.send(stream).await;
    }

    fn add_stream(&mut self, id: u32, fin: bool, headers: Headers) -> SpdyStream {
        let window = Window::new(self.window, self.window_kept);
        // Servers keep no windows, and one that has closed its end would answer a window update with a reset,
        // which would discard its output.
        let credit = (!self.is_client).then(|| (id, self.frames.clone()));
        let (pieces, inlet) = Inlet::new(credit);
        let framing = Framing::Spdy { stream: id, window: Rc::clone(&window) };
        let outlet = Outlet::new(self.frames.clone(), framing);
        self.open.insert(id, StreamEntry { pieces: (!fin).then_some(pieces), window });
        SpdyStream { id, headers, inlet, outlet }
    }

    fn ask(&mut self, headers: Headers) -> SpdyStream {
        let id = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = id;
        // There is room: nothing else was sent yet, and the stream's data follows this frame.
        let _ = self.frames.try_send(Outgoing::Frame(frame::open(id, &headers, &mut self.headers)));
        self.add_stream(id, false, headers)
    }

    async fn data(&mut self, id: u32, bytes: Vec<u8>, fin: bool) {
        let Some(entry) = self.open.get_mut(&id) else { return };
        if !bytes.is_empty()
            && let Some(pieces) = &entry.pieces
            && pieces.send(bytes).await.is_err()
        {
            entry.pieces = None;
        }
        if fin {
            entry.pieces = None;
        }
    }
}
