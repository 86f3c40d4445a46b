//! One fuzz target: its corpus first, then mutations until the time is up.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::mutate::{Random, mutate};

/// Inputs that are kept as seeds of further ones.
const MAX_POOL: usize = 500;

/// What is fuzzed and with what.
pub struct Target<'a> {
    /// The corpus directory's name.
    pub name: &'a str,
    /// Good inputs.
    pub seeds: Vec<Vec<u8>>,
    /// Words of the language.
    pub words: &'a [&'a str],
    /// Longest input.
    pub longest: usize,
    /// An input that takes longer is a failure.
    pub too_long: Duration,
}

impl Target<'_> {
    /// Replays the corpus and the seeds, then mutates. `check` panics on a bad input.
    #[expect(clippy::print_stderr, reason = "how to repeat the run is worth a line")]
    pub fn run(mut self, check: impl Fn(&[u8])) {
        self.seeds.extend(files_below(&format!("tests/fuzz/corpus/{}", self.name)));
        let seed = variable("FUZZ_SEED")
            .unwrap_or_else(|| u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let seconds = variable("FUZZ_SECONDS").unwrap_or(5);
        eprintln!("fuzz {}: FUZZ_SEED={seed}", self.name);
        for input in &self.seeds {
            self.one(input, seed, &check);
        }
        let mut random = Random::new(seed);
        let mut pool = self.seeds.clone();
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut count = 0_u64;
        while Instant::now() < end {
            let (first, second) = (random.below(pool.len()), random.below(pool.len()));
            let input = mutate(&pool[first], &pool[second], self.words, self.longest, &mut random);
            self.one(&input, seed, &check);
            // Damage adds up: some of the mutants have descendants.
            if random.below(20) == 0 {
                if pool.len() < MAX_POOL {
                    pool.push(input);
                } else {
                    let place = self.seeds.len() + random.below(MAX_POOL - self.seeds.len());
                    pool[place] = input;
                }
            }
            count += 1;
        }
        eprintln!("fuzz {}: {count} inputs", self.name);
    }

    #[expect(clippy::print_stderr, reason = "the failing input has to be found again")]
    fn one(&self, input: &[u8], seed: u64, check: &impl Fn(&[u8])) {
        let before = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(input)));
        let took = before.elapsed();
        if outcome.is_ok() && took < self.too_long {
            return;
        }
        let path = std::env::temp_dir().join(format!("fuzz-{}-{seed}", self.name));
        fs::write(&path, input).expect("keep the failing input");
        eprintln!(
            "fuzz {}: an input of {} bytes failed after {took:?} (FUZZ_SEED={seed}); it is kept: cp {} tests/fuzz/corpus/{}/",
            self.name,
            input.len(),
            path.display(),
            self.name
        );
        match outcome {
            Err(panic) => resume_unwind(panic),
            Ok(()) => panic!("the input took {took:?}"),
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The contents of all files below a directory of the repository, in a stable order.
pub fn files_below(directory: &str) -> Vec<Vec<u8>> {
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { todo.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files.iter().map(|path| fs::read(path).expect("read a seed")).collect()
}
