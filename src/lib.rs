//! `agent`: a kubelet for the edge.
//!
//! The rooms below are in order: a room imports those above it in this list, never one below, and no two files import each
//! other. `tests/tidy` reads the order here and checks both. ARCHITECTURE.md says what each room owns.

pub mod codec;

pub mod model;

pub mod platform;

pub mod store;

pub mod runtime;

pub mod devices;

pub mod managers;

pub mod pod;

pub mod desired;

pub mod node;

pub mod workload;

pub mod service;

pub mod cluster;

pub mod serve;

pub mod agent;

pub mod cmd;
