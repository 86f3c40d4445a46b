//! The pure zone: every decision about pods, as functions from desired + observed + now to plans and values.
//!
//! Nothing in here does anything: no tokio, no log, no file system, no clock, no HashMap (plans must print the same every
//! time). Equal inputs give equal answers, and every answer must still be safe when the observation is a second old.

pub mod admission;
pub mod allocatable;
pub mod api_pod;
pub mod containers;
pub mod defaults;
pub mod device_allocation;
pub mod devices;
pub mod env;
pub mod eviction;
pub mod hooks;
pub mod image_gc;
pub mod images;
pub mod keyring;
pub mod lifecycle;
pub mod local_objects;
pub mod log_rotation;
pub mod merge;
pub mod mounts;
pub mod network;
pub mod node_changes;
pub mod node_shutdown;
pub mod plan;
pub mod pleg;
pub mod probe;
pub mod projection;
pub mod pull_records;
pub mod resources;
pub mod restart;
pub mod rollback;
pub mod runtime_class;
pub mod scheduling;
pub mod security;
pub mod static_pod;
pub mod status;
pub mod target;
pub mod termination;
pub mod termination_message;
pub mod upgrade;
pub mod users;
pub mod validation;
pub mod volumes;
