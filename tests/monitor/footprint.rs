//! What a monitor costs.

use std::fs;
use std::time::Duration;

use super::fixture::{Pod, run};

/// Kilobytes of `name` in the sums of a process's mappings.
fn kilobytes(pid: i32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).expect("the kernel sums it up");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Private memory of a mapping kind, by a look at each.
fn private_of(pid: i32, wanted: impl Fn(&str) -> bool) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut sum, mut counts) = (0, false);
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            counts = wanted(line);
        } else if counts && first == "Private_Dirty:" {
            sum += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

/// Ours is heap and stack; what the linker writes into the program's own pages is the same for every process.
const HEAP_AND_STACK_KB: u64 = 160;

#[test]
fn an_idle_monitor_is_small_and_does_nothing() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "echo hello; sleep 1000").await;
        pod.run("two", "seq 1 10000").await;
        drop(pod.watch().await);
        let own = private_of(pod.pid, |line| line.ends_with("[heap]") || line.ends_with("[stack]"));
        let all = kilobytes(pod.pid, "Private_Dirty");
        println!(
            "monitor: heap and stack {own} kB, private dirty {all} kB, PSS {} kB",
            kilobytes(pod.pid, "Pss:")
        );
        assert!(own <= HEAP_AND_STACK_KB, "{own} kB of heap and stack, {all} kB in all");
        let switches = || {
            let text = fs::read_to_string(format!("/proc/{}/status", pod.pid)).unwrap();
            let line = text.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        // Two seconds after the last event it lets go of memory; after that nothing wakes it.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = switches();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(switches(), before, "it slept");
    });
}
