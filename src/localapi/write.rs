//! Creating, changing and deleting.
//!
//! Owns the verbs that write. Must not know how objects are read.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Request, Response};

use super::LocalApi;
use super::path::Wanted;
use super::status::{self, Failure};
use crate::server::access::User;
use crate::server::body::Body;

/// Carries out `create`, `update`, `patch`, `delete` and `deletecollection` of objects and of the subresources that hold one
/// (`status`, `resize`, `ephemeralcontainers`, `eviction`). Whether `user` may has been decided.
///
/// # Errors
/// The failure to answer with.
#[allow(clippy::unused_async, reason = "writing waits for the store")]
pub async fn change(
    _api: &Rc<LocalApi>,
    wanted: &Wanted,
    _request: Request<Incoming>,
    _user: &User,
) -> Result<Response<Body>, Failure> {
    Err(status::not_supported(wanted.resource, wanted.verb.as_str()))
}
