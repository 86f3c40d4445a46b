//! `agent`: a kubelet for the edge.
//!
//! The rooms below are in order: a room imports those above it in this list, never one below. Within a room
//! no two files import each other. `tests/tidy` reads the order here and checks both. ARCHITECTURE.md lists
//! what each room owns.

pub mod agent;
pub mod cmd;
pub mod codec;
pub mod desired;
pub mod devices;
pub mod model;
pub mod node;
pub mod platform;
pub mod pod;
pub mod runtime;
pub mod serve;
pub mod store;
