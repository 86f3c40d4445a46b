//! To come.

pub mod inotify;
pub mod open;
