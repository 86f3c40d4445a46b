//! `metrics.k8s.io`: what nodes and pods use, measured when somebody asks.
//!
//! Owns the shapes. Must not know how it is measured.

use serde_json::Value;

use super::LocalApi;
use super::resource::Store;
use super::status::Failure;

/// All of them.
pub(super) async fn all(_api: &LocalApi, _store: Store) -> Result<Vec<Value>, Failure> {
    Err(Failure::new(503, "ServiceUnavailable", "the server is currently unable to handle the request"))
}
