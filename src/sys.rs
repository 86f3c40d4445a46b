//! To come.

pub mod inotify;
