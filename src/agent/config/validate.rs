//! Validation of values, all done before the first effect and reported together.
//!
//! Owns the permitted values.

mod check;
mod configuration;
mod node;
mod resources;
mod start;
mod tls;

pub(super) use configuration::{configuration, soft_warnings};
pub(in crate::agent) use node::parse_sloppy;
pub(super) use node::{flags, kubeconfig};
pub(super) use start::start;
pub(in crate::agent) use start::tls_settings;
