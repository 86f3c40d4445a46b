//! HTTP/2: many requests of a client over one connection.
//!
//! Owns the bounds of such a connection and its streams, and when an idle connection is closed.
//!
//! A stream is a task of its connection, and ends with it. A client that does not read an answer holds one
//! flow-control window and one more piece until the write times out. It delays neither other connections nor
//! its own other streams.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderValue, RETRY_AFTER};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::Respond;
use super::body::{Body, text};
use super::node::SharedNode;
use super::write_timeout::{PLAIN, Patience, Patient, STREAM};
use crate::serve::server::incoming::IncomingBody;
use crate::serve::streaming::Wire;

/// Per connection, the API server's default.
const STREAMS: u32 = 250;
/// Over all connections. A watch costs some six kilobytes.
const MAX_STREAMS: usize = 2000;
/// The most unsent data of complete answers, over all connections.
const MAX_UNSENT_KB: usize = 16 * 1024;
/// An answer below this size needs no reservation, so that health checks are answered even when other clients
/// leave their answers unread.
const SMALL: usize = 4096;
/// What a client may send before the server reads any of it: the protocol's own default.
const WINDOW: u32 = 65_535;
/// The size of a write, and the most that the protocol's buffers keep of an answer.
const PIECE: usize = 16 * 1024;
/// The last of an answer may stay in those buffers after its task has ended.
const LAST: usize = 1024;
const MAX_HEADERS: u32 = 32 * 1024;
/// Streams that a client resets before they began, and those that violate the protocol: above this the
/// connection ends.
const MAX_TAKEN_BACK: usize = 20;
const MAX_BROKEN: usize = 100;
/// A connection without streams gets a graceful shutdown after this, and is closed after the same time again.
const IDLE: Duration = Duration::from_secs(30);

/// The streams of all connections.
pub(super) struct Streams {
    places: Arc<Semaphore>,
    unsent: Arc<Semaphore>,
    warned: Cell<bool>,
}

impl Default for Streams {
    fn default() -> Self {
        Self::new(MAX_STREAMS, MAX_UNSENT_KB)
    }
}

impl Streams {
    fn new(streams: usize, unsent_kb: usize) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { places: semaphore(streams), unsent: semaphore(unsent_kb), warned: Cell::new(false) }
    }

    fn acquire_stream(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        self.log_refusals(place.is_none());
        place
    }

    /// Reserves room for a complete answer, if there is any. An answer larger than the whole budget takes all
    /// of it.
    fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let counted = if bytes <= SMALL { 0 } else { bytes.div_ceil(1024).min(MAX_UNSENT_KB) };
        let kilobytes = u32::try_from(counted).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.unsent).try_acquire_many_owned(kilobytes).ok();
        self.log_refusals(room.is_none());
        room
    }

    /// Reserves room for an answer of HTTP/1.1, or replaces the answer with a refusal.
    pub(super) fn counted(&self, response: Response<Body>) -> Response<Body> {
        let Some(length) = response.body().size_hint().exact() else { return response };
        match self.room(usize::try_from(length).unwrap_or(usize::MAX)) {
            Some(room) => response.map(|body| body.holding(room)),
            None => too_many(),
        }
    }

    /// Logs once, until there is room again.
    fn log_refusals(&self, refused: bool) {
        if refused && !self.warned.replace(true) {
            log::warn!("Too many concurrent requests, rejecting new ones");
        }
        if !refused && self.places.available_permits() > 0 {
            self.warned.set(false);
        }
    }
}

/// One stream: whether its client reads, and what it holds.
#[derive(Default)]
struct Http2Stream {
    /// Since when a piece has waited for the client.
    waits: Cell<Option<Instant>>,
    /// The answer has no end, as a watch.
    lasts: Cell<bool>,
    /// Slots and room, released with the stream.
    held: RefCell<Vec<OwnedSemaphorePermit>>,
}

tokio::task_local! {
    static CURRENT: Rc<Http2Stream>;
}

/// The streams of a connection.
#[derive(Clone, Default)]
struct Tasks(Rc<RefCell<JoinSet<()>>>);

impl<F: Future + 'static> Executor<F> for Tasks {
    fn execute(&self, work: F) {
        let mut tasks = self.0.borrow_mut();
        // Streams that a client resets at once leave their task behind until it has been polled.
        if tasks.len() < 2 * STREAMS as usize {
            let stream = Rc::new(Http2Stream::default());
            tasks.spawn_local(CURRENT.scope(Rc::clone(&stream), attend(stream, work)));
        }
    }
}

/// A connection's hold on its streams, each of which knows the others: they end when it is dropped.
struct Held(Tasks);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.0.take());
    }
}

impl Tasks {
    fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Waits until a task has ended.
    async fn reaped(&self) {
        poll_fn(|context| match self.0.borrow_mut().poll_join_next(context) {
            Poll::Ready(Some(_)) => Poll::Ready(()),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        })
        .await;
    }
}

/// Runs a stream to its end, or until its write times out. Dropping it resets the stream.
async fn attend<F: Future>(stream: Rc<Http2Stream>, work: F) {
    let mut work = pin!(work);
    let mut patience = None;
    poll_fn(|context| {
        if work.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Some(since) = stream.waits.get() else {
            patience = None;
            return Poll::Pending;
        };
        let end = since + if stream.lasts.get() { STREAM } else { PLAIN };
        let timer = patience.get_or_insert_with(|| Box::pin(sleep_until(end)));
        if timer.deadline() != end {
            timer.as_mut().reset(end);
        }
        timer.as_mut().poll(context)
    })
    .await;
}

/// A body that is sent in pieces, and knows whether the last one was read.
struct Sent {
    body: Body,
    rest: Bytes,
    stream: Rc<Http2Stream>,
}

impl Sent {
    fn next_piece(&mut self) -> Bytes {
        if self.rest.len() > 2 * LAST {
            return self.rest.split_to(PIECE.min(self.rest.len() - LAST));
        }
        let last = std::mem::take(&mut self.rest);
        // The protocol's buffers must not keep the whole answer alive.
        if self.body.is_stream() { last } else { Bytes::copy_from_slice(&last) }
    }
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = self.get_mut();
        this.stream.waits.set(None);
        while this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => this.rest = frame.into_data().unwrap_or_default(),
                end => return Poll::Ready(end),
            }
        }
        this.stream.waits.set(Some(Instant::now()));
        Poll::Ready(Some(Ok(Frame::data(this.next_piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves the requests of a connection until it ends, then notifies the node. All that began on it ends with
/// it.
pub(super) async fn serve(wire: Box<dyn Wire>, streams: Rc<Streams>, node: SharedNode, respond: Respond) {
    let (patience, tasks, stranger) = (Patience::default(), Tasks::default(), Rc::new(Notify::new()));
    let _held = Held(tasks.clone());
    let asked = (patience.clone(), Rc::clone(&stranger));
    let service = service_fn(move |request: Request<Incoming>| {
        let (respond, streams) = (Rc::clone(&respond), Rc::clone(&streams));
        let (patience, stranger) = asked.clone();
        // Boxed, as a task is as large as its largest part: a watch must not keep the memory that its setup
        // needed.
        Box::pin(async move {
            let stream = CURRENT.with(Rc::clone);
            let response = answer(request, &stream, &streams, &respond).await;
            if stream.lasts.get() {
                patience.set(STREAM);
            }
            if response.status() == StatusCode::UNAUTHORIZED {
                stranger.notify_one();
            }
            Ok::<_, Infallible>(response.map(|body| Sent { body, rest: Bytes::new(), stream }))
        })
    });
    let connection = http2::Builder::new(tasks.clone())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(PIECE)
        .max_header_list_size(MAX_HEADERS)
        .max_pending_accept_reset_streams(MAX_TAKEN_BACK)
        .max_local_error_reset_streams(MAX_BROKEN)
        .serve_connection(TokioIo::new(Patient::new(wire, patience.clone())), service);
    let (mut connection, mut end) = (pin!(connection), pin!(sleep(IDLE)));
    let (mut is_idle, mut leaves) = (true, false);
    loop {
        // Dropping an arm is safe: the connection and the deadline stay, an ended task stays in its set, an
        // unauthenticated client was noted.
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    // The client's error or timeout; no action is needed.
                    log::debug!(err:% = error; "Connection closed unexpectedly");
                }
                break;
            }
            () = tasks.reaped() => if tasks.is_empty() {
                patience.set(PLAIN);
                end.as_mut().reset(Instant::now() + IDLE);
                is_idle = true;
            },
            // As upstream: an unauthenticated client needs a new connection for each attempt.
            () = stranger.notified(), if !leaves => {
                leaves = true;
                connection.as_mut().graceful_shutdown();
            }
            () = &mut end, if is_idle => match (tasks.is_empty(), leaves) {
                (true, true) => break,
                (true, false) => {
                    leaves = true;
                    connection.as_mut().graceful_shutdown();
                    end.as_mut().reset(Instant::now() + IDLE);
                }
                (false, _) => is_idle = false,
            },
        }
    }
    node.served();
}

async fn answer(
    request: Request<Incoming>,
    stream: &Http2Stream,
    streams: &Streams,
    respond: &Respond,
) -> Response<Body> {
    let Some(place) = streams.acquire_stream() else { return too_many() };
    stream.held.borrow_mut().push(place);
    let is_head = request.method() == Method::HEAD;
    let (head, body) = request.into_parts();
    let (body, unread) = IncomingBody::returned(body);
    let mut response = respond(Request::from_parts(head, body)).await;
    unread.drain().await;
    let length = response.body().size_hint().exact();
    if is_head {
        if let Some(length) = length {
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        return response.map(|_| Body::Whole(Full::default()));
    }
    let Some(length) = length else {
        stream.lasts.set(true);
        return response;
    };
    let Some(room) = streams.room(usize::try_from(length).unwrap_or(usize::MAX)) else { return too_many() };
    stream.held.borrow_mut().push(room);
    response
}

/// Upstream's message and `Retry-After`.
pub(super) fn too_many() -> Response<Body> {
    let message = "Too many requests, please try again later.\n";
    let mut response = text(StatusCode::TOO_MANY_REQUESTS, message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests;
