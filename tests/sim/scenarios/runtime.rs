//! Runtimes that are slow, gone or wrong.

use std::time::Duration;

use edge_agent::model::types::PodSource;
use edge_agent::runtime::fake::FakeFaults;

use super::{MINUTE, SECOND, files, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest};

fn hang(node: &Node, calls: &[&'static str]) {
    let hang = calls.iter().copied().collect();
    *node.fake.faults() = FakeFaults { hang, ..FakeFaults::default() };
}

#[test]
fn a_hanging_runtime_is_survived_and_the_pods_status_says_so() {
    simulate(async {
        let mut node = node().await;
        let web = Manifest::new("web", "Always", Act::Forever);
        node.want(PodSource::File, &files(&[&web]));
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        hang(&node, &["ListPodSandbox", "ListContainers", "Version"]);
        let late = Manifest::new("late", "Always", Act::Forever);
        let both = files(&[&web, &late]);
        node.want(PodSource::File, &both);
        node.wait(10 * MINUTE).await;
        for pod in &both {
            let shown = status(&node, pod);
            assert_eq!(shown.reason, "ContainerRuntimeDown");
            assert!(
                shown.message.starts_with("container runtime is down: ListPodSandbox: "),
                "{}",
                shown.message
            );
        }
        let trouble = node.agent.as_ref().and_then(|agent| agent.view.runtime_trouble());
        assert!(trouble.is_some_and(|trouble| trouble.contains("deadline exceeded")));
        *node.fake.faults() = FakeFaults::default();
        node.wait(5 * MINUTE).await;
        assert_eq!(running(&node, "web"), before);
        assert_eq!(running(&node, "late").len(), 1);
        for pod in &both {
            let shown = status(&node, pod);
            assert_eq!(
                (shown.phase.as_str(), shown.reason.as_str(), shown.message.as_str()),
                ("Running", "", "")
            );
        }
    });
}

#[test]
fn hanging_version_call_blocks_no_source_or_shutdown() {
    simulate(async {
        let mut node = node().await;
        node.wait(SECOND).await;
        *node.fake.faults() = FakeFaults { unavailable: true, ..FakeFaults::default() };
        node.wait(MINUTE).await;
        hang(&node, &["Version"]);
        node.wait(10 * SECOND).await;
        let asked = node.clock.now();
        let web = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        node.want(PodSource::File, &web);
        node.wait(Duration::from_millis(100)).await;
        node.stop().await;
        let took = node.clock.now().saturating_since(asked);
        assert!(took < SECOND, "stopping took {took:?}");
        assert_eq!(node.stored().await.desired[0].pods.len(), 1, "the pod was not written down");
    });
}

#[test]
fn finished_pods_status_survives_a_restart() {
    simulate(async {
        let mut node = node().await;
        let job = files(&[&Manifest::new("job", "Never", Act::Done)]);
        node.want(PodSource::File, &job);
        node.wait(20 * SECOND).await;
        let before = status(&node, &job[0]);
        assert_eq!(before.phase, "Succeeded");
        assert!(before.container_statuses[0].container_id.starts_with("fake://"), "{before:?}");
        node.stop().await;
        *node.fake.faults() = FakeFaults { unavailable: true, ..FakeFaults::default() };
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(status(&node, &job[0]), before, "the runtime being down does not change how it ended");
        *node.fake.faults() = FakeFaults::default();
        node.wait(MINUTE).await;
        assert_eq!(status(&node, &job[0]), before);
    });
}

#[test]
fn failed_pulls_are_tried_again_with_growing_pauses() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::NoImage)]);
        node.want(PodSource::File, &web);
        node.wait(SECOND / 2).await;
        let reason = |node: &Node| {
            let shown = status(node, &web[0]);
            let waiting = shown.container_statuses[0].state.waiting.clone();
            waiting.expect("a container without an image waits").reason
        };
        assert_eq!(reason(&node), "ErrImagePull");
        node.wait(5 * SECOND).await;
        assert_eq!(reason(&node), "ImagePullBackOff");
        node.wait(20 * MINUTE).await;
        let pulls: Vec<_> =
            node.fake.calls().iter().filter(|call| call.call == "PullImage").map(|call| call.at).collect();
        let pauses: Vec<u64> =
            pulls.windows(2).map(|pair| pair[1].saturating_since(pair[0]).as_secs()).collect();
        assert_eq!(pauses[..7], [10, 20, 40, 80, 160, 300, 300]);
        node.fake.add_image(&Act::NoImage.image());
        node.wait(5 * MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1, "the image has come by other means");
    });
}

#[test]
fn dead_sandbox_is_stopped_once_per_failed_replacement() {
    simulate(async {
        let mut node = node().await;
        let web = Manifest::new("web", "Always", Act::Forever);
        node.want(PodSource::File, &files(&[&web]));
        node.wait(10 * SECOND).await;
        node.stop().await;
        node.fake.reboot();
        let slow_max = Duration::from_millis(20);
        *node.fake.faults() = FakeFaults { slow_rate: 1.0, slow_max, ..FakeFaults::default() };
        node.fake
            .change(|world, _| world.status.network_ready = Err("cni plugin not initialized".to_owned()));
        node.fake.clear_calls();
        node.start().await;
        node.wait(MINUTE).await;
        let calls = node.fake.calls();
        let stops = calls.iter().filter(|call| call.call == "StopPodSandbox").count();
        assert!((1..70).contains(&stops), "once per try, and there is one in a second: {stops}");
        node.fake.change(|world, _| world.status.network_ready = Ok(()));
        node.wait(10 * SECOND).await;
        assert_eq!(running(&node, "web").len(), 1);
    });
}
