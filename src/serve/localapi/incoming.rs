//! Request bodies.
//!
//! Owns the bounds of a body, in bytes and in time.

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use tokio::time::timeout;

use super::status::{self, Failure};
use crate::serve::server::incoming::IncomingBody;

/// Upstream's limit for a request that is not long-running.
const PATIENCE: Duration = Duration::from_secs(60);

/// The body's media type, without parameters; empty without a `Content-Type`.
pub(super) fn media_type(request: &Request<IncomingBody>) -> String {
    let header = request.headers().get(CONTENT_TYPE).and_then(|header| header.to_str().ok());
    header.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned()
}

/// The whole body. A client that sends it too slowly gets an error.
pub(super) async fn bytes(request: Request<IncomingBody>, most: usize) -> Result<Bytes, Failure> {
    let body = timeout(PATIENCE, Limited::new(request.into_body(), most).collect());
    let body = body.await.map_err(|_| status::too_slow())?;
    body.map(http_body_util::Collected::to_bytes).map_err(|_| status::too_large(most))
}
