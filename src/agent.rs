//! The agent itself: its configuration, and the loop that connects the rooms.

pub mod config;
pub(crate) mod control_plane;
pub mod kubelet;
