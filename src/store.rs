//! The agent's memory.

pub mod schema;
