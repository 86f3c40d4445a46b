//! Random runs: every seed must come out right, and come out the same every time.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use edge_agent::runtime::fake::CallRecord;

use super::finish;
use super::node::simulate;
use super::pods::{Fate, Manifest};
use super::script::{Simulation, Story};

/// Seeds in a normal run of the tests, by each of the two tests that share them.
const SEEDS: u64 = 20;
/// Enough for the longest back-offs, one after another.
const SETTLING: Duration = Duration::from_secs(30 * 60);

/// One seed from the first pod to rest. Answers the calls that the runtime saw.
fn run(seed: u64, story: &Story) -> Vec<CallRecord> {
    simulate(async {
        let mut simulation = Simulation::new(seed, Rc::clone(story)).await;
        simulation.play().await;
        simulation.calm_down(SETTLING).await;
        let calls = simulation.calls();
        finish::check(&simulation.node, &simulation.watcher.wanted(), &simulation.watcher.harmed);
        simulation.drop_pods(is_restless);
        simulation.pass(Duration::from_secs(300)).await;
        let wanted = simulation.watcher.wanted();
        finish::check(&simulation.node, &wanted, &simulation.watcher.harmed);
        finish::check_rest(&mut simulation.node).await;
        simulation.node.stop().await;
        finish::check_store(&simulation.node, &wanted).await;
        calls
    })
}

/// Something in it is tried again and again.
fn is_restless(manifest: &Manifest) -> bool {
    let restless = |fate: Fate| matches!(fate, Fate::Loops | Fate::Waits);
    restless(manifest.init_fate())
        || manifest.containers.iter().any(|act| restless(act.fate(manifest.policy)))
}

/// Runs a seed; the story of a failure is told.
#[expect(clippy::print_stdout, reason = "the test's harness shows it when the test fails")]
fn survives(seed: u64) -> bool {
    let story: Story = Rc::new(RefCell::default());
    let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, &story)));
    if outcome.is_err() {
        println!("seed {seed} failed; SIM_SEED={seed} runs it again. What happened:");
        for line in story.borrow().iter() {
            println!("  {line}");
        }
    }
    outcome.is_ok()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().expect("SIM_SEED, SIM_FIRST and SIM_SEEDS are numbers"))
}

/// Half of the seeds, so that two can run at the same time.
fn check_seeds(half: u64) {
    let seeds: Vec<u64> = if let Some(seed) = number("SIM_SEED") {
        Vec::from_iter((half == 0).then_some(seed))
    } else {
        let first = number("SIM_FIRST").unwrap_or(0);
        let count = number("SIM_SEEDS").map_or(SEEDS, |all| (all + 1 - half) / 2);
        (0..count).map(|position| first + 2 * position + half).collect()
    };
    let failed: Vec<u64> = seeds.iter().copied().filter(|seed| !survives(*seed)).collect();
    assert!(failed.is_empty(), "{} of {} seeds failed: {failed:?}", failed.len(), seeds.len());
}

#[test]
fn every_pod_reaches_its_desired_state_with_even_seeds() {
    check_seeds(0);
}

#[test]
fn every_pod_reaches_its_desired_state_with_odd_seeds() {
    check_seeds(1);
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..5 {
        let calls = || run(seed, &Rc::default());
        let (first, second) = (calls(), calls());
        assert!(first.len() > 50, "seed {seed} made {} calls only", first.len());
        for (position, (first, second)) in first.iter().zip(&second).enumerate() {
            assert_eq!(first, second, "call {position} of seed {seed}");
        }
        assert_eq!(first.len(), second.len(), "calls of seed {seed}");
    }
}
