//! How a request reaches the apiserver: HTTP/2 in the program, a call in tests.
//!
//! Owns the `Transport` trait and its message types.

use std::time::Duration;

pub use hyper::body::Bytes;

use crate::cluster::client::error::LinkError;

/// Which connection carries a request. A lease must not wait behind watches and pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Pods, objects, events, watches.
    Main,
    /// The lease, the status of the node, reviews.
    Heartbeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// In which form an object is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    Json,
    /// `PartialObjectMetadata`: for writes whose answer only has to carry the version.
    Metadata,
}

impl Accept {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            // The second form is for servers that do not have the first.
            Self::Metadata => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
        }
    }
}

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Json,
    StrategicMerge,
    MergePatch,
}

impl Content {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::StrategicMerge => "application/strategic-merge-patch+json",
            Self::MergePatch => "application/merge-patch+json",
        }
    }
}

/// One request, without server and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    pub method: Method,
    /// With the query: `/api/v1/pods?limit=50`.
    pub path: String,
    pub accept: Accept,
    pub body: Option<(Content, Vec<u8>)>,
    /// Until the head of the answer has arrived. The body has no limit of its own, since it may be a watch: readers of
    /// a body that is not one set theirs. `None` for the transport's own limit.
    pub limit: Option<Duration>,
}

/// The head of an answer, and its body as it arrives.
#[derive(Clone, Debug)]
pub struct ApiResponse<B> {
    pub status: u16,
    /// `Retry-After`, in seconds only: the apiserver sends no dates.
    pub retry_after: Option<Duration>,
    pub content_type: String,
    pub body: B,
}

/// A body. Dropping it ends the request.
#[expect(async_fn_in_trait, reason = "one thread, one implementation per binary role: no Send bound wanted")]
pub trait Chunks {
    /// The next part, of any length; `None` at the end. Cancel safe: a part is returned or still there.
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>>;
}

/// Adds server and credentials to a request, and sends it.
#[expect(async_fn_in_trait, reason = "one thread, one implementation per binary role: no Send bound wanted")]
pub trait Transport: 'static {
    type Body: Chunks + 'static;

    /// Returns with the head of the answer, whatever its status. What to send again is the caller's decision, except
    /// for a request that a closing connection has certainly not delivered.
    async fn send(&self, lane: Lane, request: ApiRequest) -> Result<ApiResponse<Self::Body>, LinkError>;
}
