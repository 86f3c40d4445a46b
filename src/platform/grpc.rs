//! gRPC over HTTP/2: the connection of clients, and the server's side of the framing for single-threaded handlers.
//!
//! Owns messages' frames, statuses and trailers. Generated services would require every handler to be `Send`,
//! which the agent's handlers, by design, are not; what they add beyond this file is compression and
//! interceptors.

mod authority;
mod channel;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use authority::Named;

pub use channel::Channel;

/// Largest message either way, the kubelet's limit.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The prefix of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// For a stream that the client does not read.
const STREAM_QUEUE: usize = 16;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// gRPC's status codes, those in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request cannot be decoded or stored.
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Unknown = 2,
    /// Try again later.
    Unavailable = 14,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    pub message: String,
}

impl Status {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The sender for the messages of a streaming answer.
pub(crate) type Sink = mpsc::Sender<Result<Vec<u8>, Status>>;

pub enum GrpcReply {
    One(Vec<u8>),
    Stream(mpsc::Receiver<Result<Vec<u8>, Status>>),
}

/// A queue for a streaming answer.
#[must_use]
pub fn stream() -> (Sink, GrpcReply) {
    let (sink, messages) = mpsc::channel(STREAM_QUEUE);
    (sink, GrpcReply::Stream(messages))
}

pub struct AnswerBody {
    ready: VecDeque<Frame<Bytes>>,
    stream: Option<mpsc::Receiver<Result<Vec<u8>, Status>>>,
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(frame) = self.ready.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let frame = match std::task::ready!(stream.poll_recv(context)) {
            Some(Ok(message)) => framed(&message),
            Some(Err(status)) => {
                self.stream = None;
                Frame::trailers(trailers(Some(&status)))
            }
            None => {
                self.stream = None;
                Frame::trailers(trailers(None))
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.stream.is_none()
    }
}

fn framed(message: &[u8]) -> Frame<Bytes> {
    let mut bytes = Vec::with_capacity(PREFIX + message.len());
    bytes.push(0);
    bytes.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(message);
    Frame::data(Bytes::from(bytes))
}

fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from(status.map_or(0, |status| status.code as u16)));
    if let Some(status) = status
        && let Ok(message) = HeaderValue::from_str(&percent_encoded(shortened(&status.message)))
    {
        trailers.insert(GRPC_MESSAGE, message);
    }
    trailers
}

/// Longer error messages make a header that clients refuse, and with it the whole answer.
const MAX_WORDS: usize = 2048;

/// The beginning of an untrusted text, at most `MAX_WORDS` bytes.
#[must_use]
pub(crate) fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_WORDS);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// gRPC's encoding of status messages: printable ASCII but for `%`.
fn percent_encoded(text: &str) -> String {
    const NOT_PLAIN: AsciiSet = CONTROLS.add(b'%');
    utf8_percent_encode(text, &NOT_PLAIN).to_string()
}

#[must_use]
pub fn response(answer: Result<GrpcReply, Status>) -> Response<AnswerBody> {
    let body = match answer {
        Ok(GrpcReply::One(message)) => {
            AnswerBody { ready: [framed(&message), Frame::trailers(trailers(None))].into(), stream: None }
        }
        Ok(GrpcReply::Stream(stream)) => AnswerBody { ready: VecDeque::new(), stream: Some(stream) },
        Err(status) => AnswerBody { ready: [Frame::trailers(trailers(Some(&status)))].into(), stream: None },
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The message of a request.
///
/// # Errors
/// When it is no gRPC request, too large, or compressed.
pub async fn message(request: Request<Incoming>) -> Result<Bytes, Status> {
    let is_grpc = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|content_type| content_type.as_bytes().starts_with(b"application/grpc"));
    if *request.method() != Method::POST || !is_grpc {
        return Err(Status::new(Code::InvalidArgument, "this is a gRPC server"));
    }
    let body = Limited::new(request.into_body(), MAX_MESSAGE_BYTES + PREFIX).collect().await;
    let body = body
        .map_err(|error| Status::new(Code::ResourceExhausted, format!("read the request: {error}")))?
        .to_bytes();
    unframed(&body)
}

fn unframed(body: &Bytes) -> Result<Bytes, Status> {
    let Some((prefix, _)) = body.split_first_chunk::<PREFIX>() else {
        return Err(Status::new(Code::InvalidArgument, "the request contains no message"));
    };
    if prefix[0] != 0 {
        return Err(Status::new(Code::Unimplemented, "compressed requests are not supported"));
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if body.len() != PREFIX + length {
        return Err(Status::new(
            Code::InvalidArgument,
            "the request must contain exactly one complete message",
        ));
    }
    Ok(body.slice(PREFIX..))
}

/// Decodes a request, calls its handler, and encodes the answer.
pub(crate) async fn unary<Q, A, F>(message: Bytes, handler: impl FnOnce(Q) -> F) -> Result<GrpcReply, Status>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<A, Status>>,
{
    let answer = handler(decoded(message)?).await?;
    Ok(GrpcReply::One(answer.encode_to_vec()))
}

pub(crate) fn decoded<Q: Message + Default>(message: Bytes) -> Result<Q, Status> {
    Q::decode(message).map_err(|error| Status::new(Code::InvalidArgument, format!("request: {error}")))
}

/// Runs HTTP/2's tasks on this thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// Concurrent calls of one connection; a kubelet with 110 pods stays below.
const MAX_CALLS: u32 = 256;
/// Idle connections are checked with a keep-alive ping.
const KEEP_ALIVE: Duration = Duration::from_secs(5 * 60);

/// Answers a call. Behind a pointer, so that all servers share one connection's code.
pub type Handler = Rc<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Response<AnswerBody>>>>>;

pub async fn serve_connection(stream: UnixStream, answer: Handler) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request);
        async move { Ok::<Response<AnswerBody>, Infallible>(answer.await) }
    });
    let connection = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CALLS)
        .keep_alive_interval(KEEP_ALIVE)
        .serve_connection(TokioIo::new(Named::new(stream)), service);
    if let Err(error) = connection.await {
        log::debug!(err:% = error; "gRPC connection closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_whole_uncompressed_message() {
        let unframed = |bytes: &'static [u8]| unframed(&Bytes::from_static(bytes));
        assert_eq!(unframed(&[0, 0, 0, 0, 2, 7, 8]), Ok(Bytes::from_static(&[7, 8])));
        assert_eq!(unframed(&[0, 0, 0, 0, 0]), Ok(Bytes::new()));
        let code = |bytes| unframed(bytes).map_err(|status| status.code).err();
        assert_eq!(code(&[1, 0, 0, 0, 0]), Some(Code::Unimplemented));
        for odd in [&[][..], &[0, 0], &[0, 0, 0, 0, 9, 1], &[0, 0, 0, 0, 1, 1, 1], &[0, 255, 255, 255, 255]] {
            assert_eq!(code(odd), Some(Code::InvalidArgument));
        }
    }

    #[test]
    fn messages_of_failures_survive_their_header() {
        let status = Status::new(Code::NotFound, "ä 100%\nnot found");
        let trailers = trailers(Some(&status));
        assert_eq!(trailers[GRPC_STATUS], "5");
        assert_eq!(trailers[GRPC_MESSAGE], "%C3%A4 100%25%0Anot found");
    }
}
