//! The command line: the commands, the setup of a machine, and upgrades of the program.

pub mod cli;
pub mod init;
pub mod upgrade;
