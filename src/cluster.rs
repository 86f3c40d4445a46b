//! The apiserver of a cluster that this node belongs to.
#![allow(dead_code, reason = "the next slice uses it")]

pub mod client;
pub mod fake;
pub(crate) mod link;
pub(crate) mod objects;
pub(crate) mod patch;
pub(crate) mod pods;
pub(crate) mod watch;
