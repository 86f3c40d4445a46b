//! The command line: the commands, the setup of a machine, its way into a cluster, and upgrades of the program.

pub mod cli;
pub mod control_plane;
mod help;
pub mod init;
pub mod kubelet_alias;
pub mod upgrade;
