//! Rules about values, all checked before the first effect and reported together.
//!
//! Owns what is allowed. Must not know where a value came from.

mod configuration;
mod node;

pub(super) use configuration::{configuration, soft_warnings};
pub(super) use node::flags;
