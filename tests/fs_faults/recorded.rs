//! The log itself: if anything that changes a disk were not in it, no state made from it could be trusted.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::cut::Remains;
use super::log::Record;
use super::pods::FaultyNode;
use super::tree::{differences, tree};
use crate::support::wait::pause;

/// What containers write goes through the kernel, SQLite's shared index through memory; volumes in memory are other disks.
fn is_unseen(name: &Path) -> bool {
    let text = name.to_string_lossy();
    text.starts_with("runtime/containers/") || text.ends_with("-shm") || text.contains("/volumes/")
}

/// Statuses and events are written a second late.
const SETTLE: Duration = Duration::from_secs(3);

/// Bytes written and syncs asked for.
fn cost(records: &[Record]) -> (usize, usize) {
    let bytes = records.iter().map(|record| match record {
        Record::Write { bytes, .. } => bytes.len(),
        _ => 0,
    });
    let is_sync = |record: &&Record| matches!(record, Record::Sync { .. } | Record::SyncAll { .. });
    (bytes.sum(), records.iter().filter(is_sync).count())
}

#[test]
fn everything_an_agent_does_to_its_disk_is_in_the_log() {
    let mut node = FaultyNode::new();
    node.agent.start();
    node.apply("one");
    node.wait_until_it_runs("one");
    let mut before = 0;
    for (what, bytes, syncs) in
        [("first start", usize::MAX, 1000), ("start", 200_000, 6), ("end", 200_000, 8)]
    {
        match what {
            "start" => {
                node.apply("two");
                node.wait_until_it_runs("two");
            }
            "end" => {
                node.agent.remove_manifest("one.yaml");
                node.wait_until_it_is_gone("one");
            }
            _ => {}
        }
        pause(SETTLE);
        let records = node.disk.records();
        let (written, synced) = cost(&records[before..]);
        before = records.len();
        println!("{what} of a pod: the agent writes {written} bytes and syncs {synced} times");
        assert!(written < bytes && synced <= syncs, "{what}: {written} bytes, {synced} syncs");
    }
    node.agent.terminate();
    let root = fs::metadata(node.disk.root()).expect("look at the disk").ino();
    let records = node.disk.records();
    assert!(records.len() > 500, "{} changes", records.len());
    let place = node.runtime.scratch().dir("made-again");
    Remains::of_all(&records, root).write_to(&place);
    let wrong = differences(&tree(node.disk.root(), is_unseen), &tree(&place, is_unseen));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
