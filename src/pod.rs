//! The life of a pod: what to do next ([`plan`]), executing it ([`executor`]), and what is reported
//! ([`status`]).
//!
//! A decision is a function over desired state, observation and time; its file says `Pure.` and has no
//! effects. An effect calls a decision and executes the result.

pub mod admission;
pub mod container_logs;
pub(crate) mod csi;
pub mod env;
pub mod events;
pub mod executor;
pub mod handler;
pub mod hooks;
pub mod image;
pub mod inbox;
pub mod lifecycle;
pub mod log_rotation;
pub mod mounts;
pub mod network;
pub mod observe;
pub mod plan;
pub mod pleg;
pub mod prober;
pub mod resources;
pub mod restart;
pub mod runtime_class;
pub mod scheduling;
pub mod security;
pub mod start;
pub mod status;
pub mod target;
pub mod termination_message;
pub mod users;
pub mod volume;
pub mod workers;
