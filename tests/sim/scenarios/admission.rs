//! A node that is full: who waits, who comes in, and that a place once held is kept.

use std::rc::Rc;

use edge_agent::model::api::quantity::Quantity;
use edge_agent::model::types::PodSource;

use super::{MINUTE, SECOND, files, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest, script_images};

/// A node with room for so many pods.
async fn small_node(pods: i64) -> Node {
    let mut node = Node::new(1, &[PodSource::File]);
    node.facts.allocatable.insert("pods".to_owned(), Quantity::from_units(pods));
    script_images(&node.fake);
    node.start().await;
    node
}

#[test]
fn a_pod_without_room_waits_and_starts_when_there_is_some() {
    simulate(async {
        let mut node = small_node(1).await;
        let first = Manifest::new("first", "Always", Act::Forever);
        let second = Manifest::new("second", "Always", Act::Forever);
        node.want(PodSource::File, &files(&[&first]));
        node.wait(10 * SECOND).await;
        let both = files(&[&first, &second]);
        node.want(PodSource::File, &both);
        node.wait(10 * SECOND).await;
        let waiting = status(&node, &both[1]);
        assert_eq!((waiting.phase.as_str(), waiting.reason.as_str()), ("Pending", "OutOfpods"));
        let why =
            "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1";
        assert_eq!(waiting.message, why);
        assert!(waiting.container_statuses.is_empty(), "{waiting:?}");
        let calls = node.fake.calls().len();
        node.wait(2 * MINUTE).await;
        let about = node.fake.calls().split_off(calls);
        let uid = &both[1].pod.metadata.uid;
        assert!(
            about.iter().all(|call| !format!("{call:?}").contains(uid.as_str())),
            "waiting costs nothing"
        );

        node.want(PodSource::File, &files(&[&second]));
        node.wait(MINUTE).await;
        assert!(running(&node, "first").is_empty());
        assert_eq!(running(&node, "second").len(), 1);
        let started = status(&node, &both[1]);
        assert_eq!((started.phase.as_str(), started.reason.as_str()), ("Running", ""));
        assert_eq!(started.message, "");
    });
}

#[test]
fn a_pod_that_has_ended_makes_room() {
    simulate(async {
        let mut node = small_node(1).await;
        let job = Manifest::new("job", "Never", Act::Done);
        node.want(PodSource::File, &files(&[&job]));
        node.wait(3 * SECOND).await;
        let web = Manifest::new("web", "Always", Act::Forever);
        node.want(PodSource::File, &files(&[&job, &web]));
        node.wait(2 * SECOND).await;
        assert!(running(&node, "web").is_empty());
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1);
    });
}

#[test]
fn admitted_pod_keeps_its_place_after_a_reboot() {
    simulate(async {
        let mut node = small_node(1).await;
        let first = Manifest::new("z-first", "Always", Act::Forever);
        let second = Manifest::new("a-second", "Always", Act::Forever);
        node.want(PodSource::File, &files(&[&first]));
        node.wait(10 * SECOND).await;
        node.want(PodSource::File, &files(&[&first, &second]));
        node.wait(10 * SECOND).await;
        node.stop().await;
        node.fake.change(|world, _| {
            world.sandboxes.clear();
            world.containers.clear();
        });
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!((running(&node, "z-first").len(), running(&node, "a-second").len()), (1, 0));
    });
}

#[test]
fn a_pod_is_not_active_while_it_waits_for_room() {
    simulate(async {
        let mut node = small_node(1).await;
        let first = files(&[&Manifest::new("first", "Always", Act::Forever)]);
        let mut second = files(&[&Manifest::new("second", "Always", Act::Forever)]);
        Rc::make_mut(&mut second[0].pod).spec.active_deadline_seconds = Some(60);
        node.want(PodSource::File, &first);
        node.wait(10 * SECOND).await;
        node.want(PodSource::File, &[first[0].clone(), second[0].clone()]);
        node.wait(2 * MINUTE).await;
        node.want(PodSource::File, &second);
        node.wait(50 * SECOND).await;
        assert_eq!(running(&node, "second").len(), 1);
        node.wait(MINUTE).await;
        let over = status(&node, &second[0]);
        assert_eq!((over.phase.as_str(), over.reason.as_str()), ("Failed", "DeadlineExceeded"));
    });
}

/// A pod that this node does not fit, whatever leaves it.
fn elsewhere(name: &str, source: PodSource) -> edge_agent::model::source::SourcePod {
    let mut pod = Manifest::new(name, "Always", Act::Forever).parse(source);
    Rc::make_mut(&mut pod.pod).spec.node_selector.insert("zone".to_owned(), "7".to_owned());
    pod
}

#[test]
fn a_rejection_that_cannot_pass_fails_the_pod() {
    simulate(async {
        let mut node = Node::new(1, &[PodSource::File, PodSource::Api]);
        script_images(&node.fake);
        node.start().await;
        let (of_file, of_api) = (elsewhere("file", PodSource::File), elsewhere("api", PodSource::Api));
        node.want(PodSource::File, std::slice::from_ref(&of_file));
        node.want(PodSource::Api, std::slice::from_ref(&of_api));
        node.wait(10 * SECOND).await;
        for pod in [&of_file, &of_api] {
            let failed = status(&node, pod);
            assert_eq!((failed.phase.as_str(), failed.reason.as_str()), ("Failed", "NodeAffinity"));
            assert!(failed.message.starts_with("Pod was rejected: "), "{failed:?}");
            assert!(failed.start_time.is_some() && failed.container_statuses.is_empty(), "{failed:?}");
        }
        node.stop().await;
        node.facts.labels.insert("zone".to_owned(), "7".to_owned());
        node.start().await;
        node.want(PodSource::File, std::slice::from_ref(&of_file));
        node.want(PodSource::Api, std::slice::from_ref(&of_api));
        node.wait(MINUTE).await;
        assert_eq!((running(&node, "file").len(), running(&node, "api").len()), (1, 0));
        assert_eq!(status(&node, &of_file).phase, "Running");
        assert_eq!(status(&node, &of_api).phase, "Failed", "its client has seen the end of it");
    });
}
