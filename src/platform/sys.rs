//! Kernel calls with safe interfaces. The only module allowed to use unsafe code, where nix has no safe
//! interface.
//!
//! Owns descriptors it opens.

pub mod background;
pub(super) mod bpf;
pub mod children;
pub mod clone;
pub mod command;
pub mod console;
pub mod container_root;
pub mod credentials;
pub mod dir;
pub mod disk_usage;
pub mod durable;
pub mod epoll;
pub mod identity;
pub(crate) mod inherited;
pub mod inotify;
pub mod kernel_log;
pub mod kill;
pub mod layer;
pub mod listeners;
pub mod lock;
pub mod memory;
pub mod mount;
pub mod mount_tree;
pub mod namespace;
pub mod netlink;
pub mod node;
pub mod open;
pub mod own_program;
pub mod packets;
pub(crate) mod project_quota;
pub mod raw_mode;
pub mod reactor;
pub mod seccomp;
pub mod streams;
pub mod terminal;
pub(in crate::platform) mod timer;
#[cfg(panic = "abort")]
mod unwinder;
