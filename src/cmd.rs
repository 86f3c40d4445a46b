//! The command line: what `agent COMMAND` does, setting a machine up, and upgrading the program.

pub mod cli;
pub mod init;
pub mod upgrade;
