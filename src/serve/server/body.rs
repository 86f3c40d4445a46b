//! Response bodies: complete ones, and those sent in pieces while they are produced.
//!
//! Owns the body's type and the constructors of responses.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// How many pieces wait for a slow client. With the next one the writer waits.
const PIECES: usize = 1;

pub(crate) enum Body {
    /// A complete body.
    Whole(Full<Bytes>),
    /// A complete body, with its memory reservation until it has been sent.
    Held { body: Full<Bytes>, _room: OwnedSemaphorePermit },
    /// In pieces. An error cuts the connection, so that a truncated body is not taken for a complete one.
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

/// The sender of [`Body::Pieces`].
pub(crate) type Pieces = mpsc::Sender<io::Result<Bytes>>;

impl Body {
    /// A body that is produced while it is sent. Sending fails when the client has disconnected.
    #[must_use]
    pub(in crate::serve) fn in_pieces() -> (Pieces, Self) {
        let (sender, receiver) = mpsc::channel(PIECES);
        (sender, Self::Pieces(receiver))
    }

    /// The same body, with its memory reservation until it has been sent.
    #[must_use]
    pub(super) fn holding(self, room: OwnedSemaphorePermit) -> Self {
        match self {
            Self::Whole(full) => Self::Held { body: full, _room: room },
            other => other,
        }
    }

    /// Whether the body is produced while it is sent.
    #[must_use]
    pub(in crate::serve) fn is_stream(&self) -> bool {
        matches!(self, Self::Pieces(_))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(full) | Self::Held { body: full, .. } => {
                Pin::new(full).poll_frame(context).map_err(|never: std::convert::Infallible| match never {})
            }
            Self::Pieces(receiver) => {
                receiver.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(full) | Self::Held { body: full, .. } if full.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(full) | Self::Held { body: full, .. } => full.size_hint(),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

#[must_use]
pub(crate) fn response(code: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A message for the user.
#[must_use]
pub(crate) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    response(code, "text/plain; charset=utf-8", Body::Whole(Full::new(text.into())))
}

#[must_use]
pub(crate) fn object(code: StatusCode, object: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(object) {
        Ok(json) => response(code, "application/json", Body::Whole(Full::new(Bytes::from(json)))),
        Err(error) => {
            log::error!(err:% = error; "Failed to encode response");
            text(StatusCode::INTERNAL_SERVER_ERROR, Bytes::new())
        }
    }
}

/// An object that is already JSON.
#[must_use]
pub(crate) fn json(code: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    response(code, content_type, Body::Whole(Full::new(text.into())))
}

/// Kubernetes' `Status` of a failure.
#[must_use]
pub(crate) fn failure(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    object(code, &status)
}

/// Adds an `Allow` header with the accepted methods.
#[must_use]
pub(in crate::serve) fn allowing(mut response: Response<Body>, methods: &'static str) -> Response<Body> {
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}
