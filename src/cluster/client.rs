//! Requests to the apiserver: verbs, limits, one decode path.

pub mod error;
pub mod request;
pub mod transport;
