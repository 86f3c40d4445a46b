//! The apiserver of a cluster that this node belongs to.
#![allow(dead_code, reason = "the next slice uses it")]

pub mod client;
pub mod credentials;
pub(crate) mod csi;
pub(crate) mod discovery;
pub(crate) mod events;
pub mod fake;
pub mod kubeconfig;
pub(crate) mod link;
pub(crate) mod node;
pub(crate) mod objects;
pub(crate) mod patch;
pub(crate) mod pki;
pub(crate) mod pods;
pub(crate) mod review;
pub(crate) mod tokens;
pub(crate) mod watch;
