//! What tests share: runtimes, processes and patience.

pub mod containerd;
pub mod image;
pub mod scratch;
pub mod wait;
