//! `agent cri` driven by a client that knows the protocol alone: requests are put together here, and nothing of the agent's own
//! conversions is used.

mod client;
mod pods;
mod runtime;
mod served;
mod streams;
