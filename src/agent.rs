//! The agent itself: its configuration, and the loop that connects the rooms.

pub mod config;
pub mod kubelet;
