//! Manifests with a uid of their own whose resources change: the containers go on running.

use std::rc::Rc;

use edge_agent::model::api::quantity::Quantity;
use edge_agent::model::source::SourcePod;
use edge_agent::model::types::PodSource;

use super::{MINUTE, SECOND, files, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest, script_images};

/// A node with two CPUs.
async fn small_node() -> Node {
    let mut node = Node::new(1, &[PodSource::File]);
    node.facts.allocatable.insert("cpu".to_owned(), Quantity::from_milli(2000));
    script_images(&node.fake);
    node.start().await;
    node
}

/// A pod that keeps its uid whatever it asks for.
fn asking(name: &str, milli: i64) -> SourcePod {
    asking_for(name, "cpu", Quantity::from_milli(milli))
}

fn asking_for(name: &str, resource: &str, amount: Quantity) -> SourcePod {
    let mut source = files(&[&Manifest::new(name, "Always", Act::Forever)]).remove(0);
    let pod = Rc::make_mut(&mut source.pod);
    pod.metadata.uid = format!("uid-of-{name}").as_str().into();
    let resources = &mut pod.spec.containers[0].resources;
    for list in [&mut resources.requests, &mut resources.limits] {
        list.insert(resource.to_owned(), amount);
    }
    source
}

/// Reasons of the resize events of a pod, in order.
fn told(node: &Node, name: &str) -> Vec<String> {
    let agent = node.agent.as_ref().expect("the agent runs");
    let events = agent.events.recent().into_iter().map(|event| event.key);
    events
        .filter(|key| key.name == format!("{name}-node1") && key.reason.starts_with("Resize"))
        .map(|key| key.reason)
        .collect()
}

fn shares(node: &Node) -> Vec<i64> {
    node.fake.world().containers.values().map(|container| container.config.resources.cpu_shares).collect()
}

#[test]
fn in_place_resize_survives_an_agent_restart() {
    simulate(async {
        let mut node = small_node().await;
        let before = asking("web", 500);
        node.want(PodSource::File, &[before]);
        node.wait(10 * SECOND).await;
        let container = running(&node, "web");
        let after = asking("web", 1000);
        node.want(PodSource::File, std::slice::from_ref(&after));
        node.wait(10 * SECOND).await;
        assert_eq!(running(&node, "web"), container);
        assert_eq!(shares(&node), [1024]);
        assert_eq!(told(&node, "web"), ["ResizeStarted", "ResizeCompleted"]);
        let shown = status(&node, &after);
        assert_eq!(shown.container_statuses[0].allocated_resources["cpu"].to_string(), "1");
        assert!(shown.conditions.iter().all(|condition| !condition.type_.starts_with("PodResize")));
        node.stop().await;
        let calls = |node: &Node| {
            let calls = node.fake.calls();
            calls.iter().filter(|call| format!("{call:?}").contains("UpdateContainerResources")).count()
        };
        let made = calls(&node);
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!((running(&node, "web"), calls(&node)), (container, made), "it is known to be done");
    });
}

#[test]
fn a_resize_without_room_waits_until_there_is_some() {
    simulate(async {
        let mut node = small_node().await;
        let (web, other) = (asking("web", 500), asking("other", 1200));
        node.want(PodSource::File, &[web, other.clone()]);
        node.wait(10 * SECOND).await;
        let container = running(&node, "web");
        let bigger = asking("web", 1000);
        node.want(PodSource::File, &[bigger.clone(), other]);
        node.wait(10 * SECOND).await;
        let shown = status(&node, &bigger);
        let pending = &shown.conditions[0];
        assert_eq!((pending.type_.as_str(), pending.reason.as_str()), ("PodResizePending", "Deferred"));
        assert_eq!(
            pending.message,
            "Node didn't have enough resource: cpu, requested: 1000, used: 1200, capacity: 2000"
        );
        assert_eq!(shown.container_statuses[0].allocated_resources["cpu"].to_string(), "500m");
        node.want(PodSource::File, std::slice::from_ref(&bigger));
        node.wait(MINUTE).await;
        assert_eq!((running(&node, "web"), shares(&node)), (container, vec![1024]));
        assert_eq!(told(&node, "web"), ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"]);

        let impossible = asking("web", 3000);
        node.want(PodSource::File, std::slice::from_ref(&impossible));
        node.wait(10 * SECOND).await;
        let pending = &status(&node, &impossible).conditions[0];
        assert_eq!(
            (pending.reason.as_str(), pending.message.as_str()),
            ("Infeasible", "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000")
        );
        assert_eq!(shares(&node), [1024]);
    });
}

#[test]
fn memory_in_use_keeps_its_room_in_the_container_and_around_it() {
    simulate(async {
        let mut node = small_node().await;
        std::fs::write(node.path("cgroup/cgroup.controllers"), "memory").unwrap();
        let asking = |bytes| asking_for("web", "memory", Quantity::from_units(bytes));
        node.want(PodSource::File, &[asking(400)]);
        node.wait(10 * SECOND).await;
        let container = running(&node, "web").remove(0);
        let pod = node.path("cgroup/kubepods/burstable/poduid-of-web");
        std::fs::write(pod.join("memory.max"), "400").unwrap();
        std::fs::create_dir(pod.join(container.as_str())).unwrap();
        let uses =
            |bytes| std::fs::write(pod.join(container.as_str()).join("memory.current"), bytes).unwrap();
        uses("300");
        let smaller = asking(200);
        node.want(PodSource::File, std::slice::from_ref(&smaller));
        node.wait(MINUTE).await;
        let limit = || std::fs::read_to_string(pod.join("memory.max")).unwrap();
        assert_eq!(limit(), "400", "the kernel would kill for it");
        let condition = &status(&node, &smaller).conditions[0];
        assert_eq!((condition.type_.as_str(), condition.reason.as_str()), ("PodResizeInProgress", "Error"));
        uses("100");
        node.wait(MINUTE).await;
        assert_eq!(limit(), "200");
        assert_eq!(running(&node, "web"), [container]);
    });
}
