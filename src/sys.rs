//! Kernel calls with safe faces. The only module allowed to use unsafe code (so far it needs none: nix covers it).
//!
//! Owns descriptors it opens. Must not know why anybody calls.

pub mod inotify;
pub mod lock;
pub mod mount;
pub mod node;
