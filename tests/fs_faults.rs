//! The disk fails: a write, half a write, a sync, a rename, no room, read-only, or the power in the middle of anything. The
//! real program runs on a file system of its own, with a shim between it and the C library (`fs_faults/shim.c`) that fails the
//! calls a test names and logs all others; from the log any state is made that a power cut could have left.
//!
//! `AGENT_FS_FAULT_ROUNDS` says how many of each, `AGENT_FS_FAULT_SEED` which; a failure names both.

use std::path::{Path, PathBuf};

mod cut;
mod disk;
mod images;
mod log;
mod pods;
mod recorded;
mod tree;

/// As many as continuous integration has time for.
const ROUNDS: u64 = 60;

/// A number from the environment.
fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn rounds() -> u64 {
    variable("AGENT_FS_FAULT_ROUNDS", ROUNDS)
}

fn seed() -> u64 {
    variable("AGENT_FS_FAULT_SEED", 1)
}

/// The program that was built with the tests: one for production may have no dynamic linker that could preload anything.
fn program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_agent")).to_owned()
}

/// Marsaglia's xorshift.
struct Die(u64);

impl Die {
    /// A die whose throws differ from those of neighbouring seeds.
    fn new(seed: u64, salt: u64) -> Self {
        let mut die = Self((seed ^ salt.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            die.throw();
        }
        die
    }

    fn throw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: u64) -> u64 {
        self.throw() % most.max(1)
    }

    /// Between both, both included.
    fn between(&mut self, least: usize, most: usize) -> usize {
        least + usize::try_from(self.below((most - least + 1) as u64)).expect("it is below a usize")
    }

    fn one_of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.between(0, things.len() - 1)]
    }
}
