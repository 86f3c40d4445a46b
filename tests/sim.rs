//! The whole agent in simulation: the real loop, workers, executor and store (a file, so that it outlives a crash) on a
//! simulated runtime, with time that passes only when everybody waits, and faults decided by a seed.
//!
//! `SIM_SEED=N` runs one seed and prints its script; `SIM_SEEDS=N` runs that many. A seed gives the same run every time.

mod dice;
mod finish;
mod node;
mod pods;
mod scenarios;
mod script;
mod seeds;
mod watcher;
