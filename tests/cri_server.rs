//! `agent cri` driven by a client that knows the protocol alone: requests are put together here, and nothing of the agent's own
//! conversions is used.

#![allow(
    dead_code,
    clippy::similar_names,
    clippy::too_many_lines,
    clippy::cloned_ref_to_slice_refs,
    clippy::print_stderr,
    reason = "a pod's life is told in one piece; the clients of streams are shared with the server's own tests"
)]

pub mod client;
mod clients;
mod odd;
mod plugins;
mod pods;
mod runtime;
mod served;
mod streams;
