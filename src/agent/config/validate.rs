//! Validation of values, all done before the first effect and reported together.
//!
//! Owns the permitted values.

mod check;
mod configuration;
mod node;
mod resources;
mod tls;

pub(super) use configuration::{configuration, soft_warnings};
pub(super) use node::{flags, kubeconfig};
