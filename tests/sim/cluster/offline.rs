//! Situations of a node whose cluster cannot be reached, which `docs/cluster.md` compares with others.

use std::time::Duration;

use edge_agent::model::disruption::Pressure;
use edge_agent::node::NodeConfig;
use edge_agent::node::eviction::{EvictionConfig, ThresholdTexts, thresholds};
use serde_json::json;

use super::{MINUTE, SECOND, cluster, joined, recorded, running, unjoined};
use crate::sim::node::{Keeping, Node, simulate};
use crate::sim::pods::Act;

#[test]
fn a_restart_offline_changes_no_container() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        cluster(&node).cut(true);
        node.wait(MINUTE).await;
        for _ in 0..3 {
            node.crash();
            node.start().await;
            node.wait(MINUTE).await;
            assert_eq!((running(&node, "web"), recorded(&node, "web")), (before.clone(), 1));
        }
    });
}

#[test]
fn a_crash_offline_is_restarted_and_reported_later() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::CrashesTwice);
        node.wait(2 * SECOND).await;
        assert_eq!(running(&node, "web").len(), 1);
        cluster(&node).cut(true);
        node.wait(4 * SECOND).await;
        // The second end is one of an agent that has never had an answer.
        node.crash();
        node.start().await;
        node.wait(2 * MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1);
        let status =
            |node: &Node| cluster(node).pod("web").expect("bound")["status"]["containerStatuses"][0].clone();
        assert_eq!(status(&node)["restartCount"], 0, "the server cannot know");
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        let known = status(&node);
        assert_eq!(
            (&known["restartCount"], &known["lastState"]["terminated"]["exitCode"]),
            (&json!(2), &json!(2))
        );
    });
}

#[test]
fn pressure_offline_evicts_and_is_reported_later() {
    simulate(async {
        let mut node = unjoined(1);
        let texts = ThresholdTexts {
            hard: [("memory.available".to_owned(), "100Mi".to_owned())].into(),
            ..ThresholdTexts::default()
        };
        let eviction =
            EvictionConfig { thresholds: thresholds(&texts), transition: MINUTE, max_pod_grace_seconds: 0 };
        let config = NodeConfig { eviction, isolates_storage: true, ..NodeConfig::default() };
        let keeping = Keeping { config, ..Keeping::default() };
        let usage = std::rc::Rc::clone(&keeping.usage);
        node.keeping = Some(keeping);
        node.use_memory(300);
        node.start().await;
        node.wait(5 * SECOND).await;
        for (name, mib) in [("small", 10), ("big", 500)] {
            cluster(&node).bind(name, "Always", Act::Forever);
            let pod = cluster(&node).pod(name).expect("bound");
            let uid = pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
            usage.borrow_mut().insert(uid, mib);
        }
        node.wait(MINUTE).await;
        cluster(&node).cut(true);
        node.wait(MINUTE).await;
        node.use_memory(950);
        let mut waited = Duration::ZERO;
        while !running(&node, "big").is_empty() {
            assert!(waited < 2 * MINUTE, "no pod was evicted");
            node.wait(SECOND / 10).await;
            waited += SECOND / 10;
        }
        node.use_memory(300);
        let agent = node.agent.as_ref().expect("it runs");
        assert!(agent.view.health().pressure(Pressure::Memory).0);
        // The eviction is stored: it outlives the agent.
        node.wait(5 * SECOND).await;
        node.crash();
        node.start().await;
        node.wait(5 * MINUTE).await;
        assert_eq!((running(&node, "big").len(), running(&node, "small").len()), (0, 1));
        assert_eq!(cluster(&node).phase("big"), "Running", "the server cannot know");
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        let evicted = cluster(&node).pod("big").expect("it is not deleted");
        assert_eq!(
            (&evicted["status"]["phase"], &evicted["status"]["reason"]),
            (&json!("Failed"), &json!("Evicted"))
        );
        assert_eq!(cluster(&node).phase("small"), "Running");
    });
}

/// The cluster marks the node as unreachable and deletes what does not tolerate that; the node sees it afterwards.
#[test]
fn an_eviction_by_the_cluster_waits_for_the_link() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).server.evict_after(5 * MINUTE);
        let forever =
            json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]);
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]);
        let daemon = [("/spec/tolerations", forever), ("/metadata/ownerReferences", owner)];
        cluster(&node).bind_with("daemon", "Always", Act::Forever, &daemon);
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        let daemon = running(&node, "daemon");
        cluster(&node).cut(true);
        node.wait(20 * MINUTE).await;
        assert_eq!((running(&node, "web").len(), running(&node, "daemon")), (1, daemon.clone()));
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        assert_eq!((running(&node, "web").len(), cluster(&node).pod("web")), (0, None));
        assert_eq!((running(&node, "daemon"), cluster(&node).phase("daemon").as_str()), (daemon, "Running"));
    });
}
