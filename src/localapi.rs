//! Kubernetes' API for this one node.
//!
//! Owns which part answers what. Must not know how a request came in.

pub mod patch;
