//! The whole agent in simulation: the real loop, workers, executor and store (a file, so that it outlives a crash) on a
//! simulated runtime, with time that passes only when everybody waits, and faults decided by a seed.
//!
//! `SIM_SEED=N` runs one seed, `SIM_SEEDS=N` that many from `SIM_FIRST` on; a failing one prints what happened, with
//! `SIM_CALLS=1` every call too. A seed gives the same run every time.

mod cluster;
mod dice;
mod disk;
mod finish;
mod node;
mod pods;
mod registry;
mod scenarios;
mod script;
mod seeds;
mod watcher;
