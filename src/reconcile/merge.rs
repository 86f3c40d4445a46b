//! Whole sets from sources -> what changed (upstream: `PodConfig`'s snapshot-and-updates mode).
//!
//! Owns the comparison. Invariant: a source that has not spoken loses nothing.
