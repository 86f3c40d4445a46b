//! The agent itself: its configuration, and the loop that ties the rooms together.

pub mod config;
pub mod kubelet;
