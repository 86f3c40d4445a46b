//! Clients of the streams' protocols: those that the server's own tests use, written against the protocols.

#[path = "../../src/serve/streaming/tests/client.rs"]
mod shared;

pub use shared::{Spdy, WebSocket};
