//! The body of a request, which is handed back when it has not been read to its end.
//!
//! Owns how it is handed back, and how much of a refused body is read.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};

/// How much of an unread body is read before the answer is sent, in bytes: some clients (curl 7.88 over
/// HTTP/2) see no answer that comes before all of their body has gone.
const MAX_UNWANTED: usize = 64 * 1024;
/// The time limit for reading it.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct IncomingBody {
    body: Option<Incoming>,
    back: Option<Rest>,
}

/// Where a body that was not read to its end is handed back.
type Rest = Rc<RefCell<Option<Incoming>>>;

/// The part of a body that may remain.
pub(super) struct Unread(Rest);

impl IncomingBody {
    /// The rest of the body is dropped.
    pub(super) fn plain(body: Incoming) -> Self {
        Self { body: Some(body), back: None }
    }

    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { body: None, back: None }
    }

    /// With the place where the rest is handed back.
    pub(super) fn returned(body: Incoming) -> (Self, Unread) {
        let rest = Rest::default();
        (Self { body: Some(body), back: Some(Rc::clone(&rest)) }, Unread(rest))
    }
}

impl Unread {
    /// Reads and discards the rest, within bounds of size and time.
    pub(super) async fn drain(self) {
        let Some(mut rest) = self.0.take() else { return };
        let all = async {
            let mut left = MAX_UNWANTED;
            while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut rest).poll_frame(context)).await {
                let taken = frame.data_ref().map_or(0, Bytes::len);
                match left.checked_sub(taken) {
                    Some(rest) => left = rest,
                    None => return,
                }
            }
        };
        // A client that sends slower than this gets no answer, or a part of it.
        let _ = tokio::time::timeout(PATIENCE, all).await;
    }
}

impl Drop for IncomingBody {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take())
            && !body.is_end_stream()
        {
            back.replace(Some(body));
        }
    }
}

impl HttpBody for IncomingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.get_mut().body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}
