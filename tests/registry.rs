//! Pulls by the embedded runtime: from Debian's docker-registry, and from registries of our own that do everything wrong.

#![expect(clippy::unwrap_used, reason = "a test says where it stands by its line")]

mod bad;
mod docker;
mod fake;
mod image;
