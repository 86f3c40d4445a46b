//! Pulls by the embedded runtime: from Debian's docker-registry, and from registries of our own that do everything wrong.

#![expect(clippy::unwrap_used, reason = "a test says where it stands by its line")]

mod again;
mod bad;
mod command;
mod credentials;
pub mod docker;
mod fake;
pub mod image;
mod signed;
mod slow;
