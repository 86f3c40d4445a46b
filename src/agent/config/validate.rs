//! Rules about values, all checked before the first effect and reported together.
//!
//! Owns what is allowed.

mod check;
mod configuration;
mod node;
mod resources;
mod tls;

pub(super) use configuration::{configuration, soft_warnings};
pub(super) use node::{flags, kubeconfig};
