//! Pulls by the embedded runtime: from Debian's docker-registry, and from registries of our own that do everything wrong.

mod bad;
mod docker;
mod fake;
mod image;
