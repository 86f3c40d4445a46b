//! A store that cannot be written.

use edge_agent::model::types::PodSource;
use edge_agent::serve::server::ObjectDetail;
use rusqlite::Connection;

use super::{MINUTE, SECOND, files, is_empty, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest};

const TABLES: [&str; 8] =
    ["meta", "source", "desired", "terminating", "container_state", "status", "problem", "event"];

/// From now on every insert fails as it does on a full disk.
fn fill(node: &Node) {
    let disk = Connection::open(node.store_path()).expect("open the store beside the agent");
    for table in TABLES {
        let statement = format!(
            "CREATE TRIGGER full_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        );
        disk.execute_batch(&statement).expect("fill the disk");
    }
}

fn empty(node: &Node) {
    let disk = Connection::open(node.store_path()).expect("open the store beside the agent");
    for table in TABLES {
        disk.execute_batch(&format!("DROP TRIGGER full_{table}")).expect("make room");
    }
}

fn is_store_well(node: &Node) -> bool {
    let agent = node.agent.as_ref().expect("the agent runs");
    agent.view.report(&agent.statuses, &agent.events, ObjectDetail::Counted).store.ok
}

#[test]
fn a_full_disk_stops_nothing() {
    simulate(async {
        let mut node = node().await;
        let old = Manifest::new("old", "Always", Act::Forever);
        node.want(PodSource::File, &files(&[&old]));
        node.wait(10 * SECOND).await;
        fill(&node);
        let wanted = files(&[
            &Manifest::new("web", "Always", Act::Forever),
            &Manifest::new("loop", "Always", Act::Crashes),
        ]);
        node.want(PodSource::File, &wanted);
        node.wait(2 * MINUTE).await;
        assert!(running(&node, "old").is_empty(), "what is not wanted goes");
        let before = running(&node, "web");
        assert_eq!(before.len(), 1, "what is wanted runs");
        let restarts = status(&node, &wanted[0]).container_statuses[0].restart_count;
        assert_eq!(restarts, 0);
        let loops = status(&node, &wanted[1]).container_statuses[0].restart_count;
        assert!((3..=5).contains(&loops), "restarted {loops} times in two minutes");
        assert!(!is_store_well(&node), "it is told");
        empty(&node);
        node.wait(2 * MINUTE).await;
        assert!(is_store_well(&node), "it is told that all is well again");
        node.crash();
        let stored = node.stored().await;
        assert_eq!(stored.desired[0].pods.len(), 2, "what could not be written has been written");
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web"), before);
        node.want(PodSource::File, &[]);
        node.wait(MINUTE).await;
        assert!(is_empty(&node));
    });
}
