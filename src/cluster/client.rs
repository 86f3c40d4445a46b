//! Requests to the apiserver: verbs, limits, one decode path.

pub mod error;
pub mod h2;
pub mod request;
mod resolve;
pub mod transport;
