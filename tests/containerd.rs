//! The real program on a real containerd.

mod fixture;
