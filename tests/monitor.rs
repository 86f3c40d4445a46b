//! The embedded runtime's monitor as a real process, spoken to by the agent's own client.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests; the figures are worth reading"
)]

mod fixture;
mod footprint;
mod fork_server;
mod hostile;
mod life;
mod logs;
mod streams;
