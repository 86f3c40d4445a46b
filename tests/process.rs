//! The real program against a runtime that is simulated behind a real socket: what only a process can show.

mod api_states;
mod api_writes;
mod bad_files;
mod bad_urls;
mod by_hand;
mod command_line;
mod configuration;
mod following;
mod init;
mod kubectl;
mod life;
mod many;
mod memory;
mod node;
mod plugins;
mod rollout;
mod runonce;
mod runtime;
mod runtime_classes;
mod security;
mod serving;
mod shutdown;
mod sources;
mod typed;
mod upgrade;
mod views;
