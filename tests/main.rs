//! Every test that needs more than one module, in one binary: linking is what costs time on two cores.

mod support;

mod budget;
mod cluster;
mod cri;
mod cri_server;
mod embedded;
mod examples;
mod fs_faults;
mod fuzz;
mod monitor;
mod pods;
mod process;
mod registry;
mod sim;
mod tidy;
