//! A node that is short of memory: who goes, who stays, and that nothing of it depends on when the agent dies.

use std::time::Duration;

use edge_agent::model::disruption::Pressure;
use edge_agent::model::source::SourcePod;
use edge_agent::model::types::PodSource;
use edge_agent::node::NodeConfig;
use edge_agent::node::eviction::{EvictionConfig, ThresholdTexts, thresholds};
use edge_agent::node::image_gc::ImageLimits;
use edge_agent::runtime::fake::CrashPoint;
use edge_agent::store::WriteMoment;

use super::{MINUTE, SECOND, files, running, status};
use crate::sim::node::{Keeping, Node, simulate};
use crate::sim::pods::{Act, Manifest, script_images};

/// A node that wants 100 MiB of its memory free, and holds pressure for a minute.
async fn kept_node(images: ImageLimits) -> Node {
    let texts = ThresholdTexts {
        hard: [("memory.available".to_owned(), "100Mi".to_owned())].into(),
        ..ThresholdTexts::default()
    };
    let eviction =
        EvictionConfig { thresholds: thresholds(&texts), transition: MINUTE, max_pod_grace_seconds: 0 };
    let mut node = Node::new(1, &[PodSource::File, PodSource::Api]);
    let config = NodeConfig { eviction, images, isolates_storage: true, ..NodeConfig::default() };
    node.keeping = Some(Keeping { config, ..Keeping::default() });
    node.use_memory(300);
    script_images(&node.fake);
    node.start().await;
    node
}

fn of_api(name: &str) -> SourcePod {
    Manifest::new(name, "Always", Act::Forever).parse(PodSource::Api)
}

/// With a pod from a file that uses most, and two through the API.
async fn three_pods() -> (Node, SourcePod, [SourcePod; 2]) {
    let node = kept_node(ImageLimits::default()).await;
    let base = files(&[&Manifest::new("base", "Always", Act::Forever)]).remove(0);
    node.want(PodSource::File, std::slice::from_ref(&base));
    let pods = [of_api("small"), of_api("big")];
    node.want(PodSource::Api, &pods);
    let mut node = node;
    node.wait(MINUTE).await;
    let usage = &node.keeping.as_ref().expect("made with it").usage;
    for (pod, mib) in [(&base, 800), (&pods[0], 10), (&pods[1], 100)] {
        usage.borrow_mut().insert(pod.pod.metadata.uid.to_string(), mib);
    }
    (node, base, pods)
}

fn is_evicted(node: &Node, pod: &SourcePod) -> bool {
    let status = status(node, pod);
    (status.phase.as_str(), status.reason.as_str()) == ("Failed", "Evicted")
}

fn records(node: &Node, name: &str) -> usize {
    let world = node.fake.world();
    let of_pod = |pod: &str| pod == format!("{name}-node1");
    let containers = world.containers.values().filter(|found| of_pod(&found.observed.pod.name)).count();
    containers + world.sandboxes.values().filter(|found| of_pod(&found.observed.pod.name)).count()
}

#[test]
fn memory_pressure_evicts_one_pod_and_blocks_admission() {
    simulate(async {
        let (mut node, base, [small, big]) = three_pods().await;
        node.use_memory(950);
        let mut waited = Duration::ZERO;
        while !is_evicted(&node, &big) {
            assert!(waited < 2 * MINUTE, "nobody goes: {:?}", status(&node, &big));
            node.wait(SECOND / 10).await;
            waited += SECOND / 10;
        }
        node.use_memory(300);
        assert!(!is_evicted(&node, &small), "not two at once");
        let said = status(&node, &big).message;
        assert!(
            said.starts_with(
                "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
            ),
            "{said}"
        );
        node.wait(20 * SECOND).await;
        assert_eq!(records(&node, "big"), 0, "what it held is free");
        assert!(status(&node, &small).phase == "Running" && status(&node, &base).phase == "Running");
        let agent = node.agent.as_ref().expect("it runs");
        assert!(agent.view.health().pressure(Pressure::Memory).0);

        let late = of_api("late");
        node.want(PodSource::Api, &[small.clone(), big.clone(), late.clone()]);
        node.wait(5 * SECOND).await;
        let waiting = status(&node, &late);
        assert_eq!((waiting.phase.as_str(), waiting.reason.as_str()), ("Pending", "Evicted"));
        assert_eq!(waiting.message, "Pod was rejected: The node had condition: [MemoryPressure]. ");
        node.wait(2 * MINUTE).await;
        assert_eq!(status(&node, &late).phase, "Running");
        let agent = node.agent.as_ref().expect("it runs");
        assert!(!agent.view.health().pressure(Pressure::Memory).0);
        let told = agent.events.recent().into_iter().filter(|event| event.key.reason == "Evicted");
        assert_eq!(told.count(), 2, "one pod that went, one that waited");

        node.crash();
        node.start().await;
        node.wait(MINUTE).await;
        assert!(is_evicted(&node, &big) && running(&node, "big").is_empty(), "it is not run again");
        node.want(PodSource::Api, &[small, late]);
        node.wait(MINUTE).await;
        node.want(PodSource::Api, &[of_api("small"), of_api("late"), of_api("big")]);
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "big").len(), 1, "unless it is deleted and wanted anew");
    });
}

#[test]
fn pods_from_files_stay_whatever_the_node_is_short_of() {
    simulate(async {
        let mut node = kept_node(ImageLimits::default()).await;
        let pods = files(&[&Manifest::new("base", "Always", Act::Forever)]);
        node.want(PodSource::File, &pods);
        node.wait(MINUTE).await;
        node.use_memory(990);
        node.wait(5 * MINUTE).await;
        assert_eq!(running(&node, "base").len(), 1);
        let agent = node.agent.as_ref().expect("it runs");
        let told = agent.events.recent().into_iter().find(|event| event.key.reason == "EvictionThresholdMet");
        assert_eq!(told.map(|event| event.count), Some(1), "told once, not at each look");
        let late = files(&[
            &Manifest::new("base", "Always", Act::Forever),
            &Manifest::new("late", "Always", Act::Forever),
        ]);
        node.want(PodSource::File, &late);
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "late").len(), 1, "a critical pod is let in");
    });
}

/// The agent dies at one point of an eviction. False when it does not come that far.
fn survives(plan: impl FnOnce(&Node)) -> bool {
    simulate(async {
        let (mut node, _, [small, big]) = three_pods().await;
        node.use_memory(950);
        plan(&node);
        node.wait(MINUTE).await;
        let died = node.agent.is_none();
        node.use_memory(300);
        if died {
            node.start().await;
        }
        node.wait(3 * MINUTE).await;
        if node.agent.is_none() {
            // It died of a later one, when all was over.
            node.start().await;
            node.wait(3 * MINUTE).await;
        }
        assert_eq!(running(&node, "base").len(), 1);
        for (pod, name) in [(&big, "big"), (&small, "small")] {
            let runs = running(&node, name).len();
            if is_evicted(&node, pod) {
                assert_eq!((runs, records(&node, name)), (0, 0), "{name}");
            } else {
                assert_eq!((runs, status(&node, pod).phase.as_str()), (1, "Running"), "{name}");
            }
        }
        died
    })
}

#[test]
fn agent_death_leaves_pods_either_running_or_evicted() {
    for after_effect in [false, true] {
        let mut number = 1;
        while survives(|node| {
            node.fake.crash_at(CrashPoint { call: node.fake.call_count() + number, after_effect });
        }) {
            number += 1;
        }
        assert!(number > 5, "{number} calls in an eviction");
    }
    for moment in [WriteMoment::Before, WriteMoment::After] {
        let mut number = 1;
        while survives(|node| node.writes.crash_at(number, moment)) {
            number += 1;
        }
        assert!(number > 2, "{number} writes in an eviction");
    }
}

#[test]
fn unused_images_are_removed_at_their_maximum_age() {
    simulate(async {
        let limits = ImageLimits { maximum_age: 10 * MINUTE, ..ImageLimits::default() };
        let mut node = kept_node(limits).await;
        node.fake.add_image("forgotten");
        let pods = files(&[&Manifest::new("base", "Always", Act::Forever)]);
        node.want(PodSource::File, &pods);
        node.wait(9 * MINUTE).await;
        assert!(node.fake.world().images.contains_key("forgotten"));
        node.wait(3 * MINUTE).await;
        let left: Vec<String> = node.fake.world().images.keys().cloned().collect();
        assert!(!left.contains(&"forgotten".to_owned()), "{left:?}");
        let named = &pods[0].pod.spec.containers[0].image;
        assert!(left.contains(named), "{left:?}");
        assert_eq!(running(&node, "base").len(), 1);
    });
}
