//! The certificates of a control plane on this node: which there are, how they are signed, and their renewal in place.
//!
//! Expected flow: the commands of `cmd` make them. On a node of a cluster whose static pods have a kube-apiserver, a task
//! looks at them when the first is due, once a day and when the clock is set, and renews those with less than 30 % of their
//! life left by the same function as `agent certs renew`.
//!
//! Guarantees: nothing is written while nothing is due; a clock before 2026 renews nothing; authorities, and certificates
//! whose authority's key is elsewhere, stay as they are.

pub(crate) mod certificates;
mod due;
pub(crate) mod keeper;
pub(crate) mod keys;
pub(crate) mod renewal;
pub(crate) mod sign;
