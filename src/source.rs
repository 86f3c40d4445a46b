//! Where pods come from. A source always sends its whole set, never a delta, and never a set it is not sure of: silence
//! keeps what runs.
//!
//! Owns reading manifests. Must not know who listens.

pub mod manifest;
pub mod file;
pub mod url;

pub use crate::desired::{SourceAnswer, SourcePod, SourceProblem, SourceUpdate};
