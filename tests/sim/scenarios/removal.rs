//! Taking pods down, with interruptions.

use edge_agent::model::types::PodSource;
use edge_agent::runtime::fake::FakeFaults;

use super::{MINUTE, SECOND, files, is_empty, node, node_with, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest};

#[test]
fn a_removal_that_was_under_way_goes_on_after_a_crash() {
    simulate(async {
        let mut node = node().await;
        let web = Manifest::new("web", "Always", Act::Stubborn);
        let other = Manifest::new("other", "Always", Act::Forever);
        node.want(PodSource::File, &files(&[&web, &other]));
        node.wait(10 * SECOND).await;
        let kept = running(&node, "other");
        node.want(PodSource::File, &files(&[&other]));
        node.wait(5 * SECOND).await;
        node.crash();
        assert_eq!(running(&node, "web").len(), 1);
        node.start().await;
        node.wait(MINUTE).await;
        assert!(running(&node, "web").is_empty(), "the store remembers, no source has spoken");
        assert_eq!(running(&node, "other"), kept);
        node.stop().await;
        let stored = node.stored().await;
        assert!(stored.terminating.is_empty() && stored.statuses.len() == 1, "{stored:?}");
    });
}

#[test]
fn terminating_pod_restored_under_its_uid_starts_again() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::Stubborn)]);
        node.want(PodSource::File, &web);
        node.wait(10 * SECOND).await;
        let first = running(&node, "web");
        node.fake.change(|world, now| world.kill_container(&first[0], 1, now));
        node.wait(10 * SECOND).await;
        assert_eq!(status(&node, &web[0]).container_statuses[0].restart_count, 1);
        let before = running(&node, "web");
        node.want(PodSource::File, &[]);
        node.wait(5 * SECOND).await;
        node.want(PodSource::File, &web);
        node.wait(5 * SECOND).await;
        assert_eq!(running(&node, "web"), before, "what has begun is brought to its end");
        node.wait(MINUTE).await;
        let after = running(&node, "web");
        assert!(after.len() == 1 && after != before, "{after:?} after {before:?}");
        assert_eq!(status(&node, &web[0]).container_statuses[0].restart_count, 2, "the count goes on");
    });
}

#[test]
fn a_static_pod_that_comes_back_goes_on_with_its_restart_count() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        node.want(PodSource::File, &web);
        node.wait(10 * SECOND).await;
        for (away, expected) in [(10 * SECOND, 1), (10 * SECOND, 2), (2 * MINUTE, 0), (10 * SECOND, 1)] {
            let before = running(&node, "web");
            node.want(PodSource::File, &[]);
            node.wait(away).await;
            assert!(is_empty(&node));
            node.want(PodSource::File, &web);
            node.wait(10 * SECOND).await;
            let after = running(&node, "web");
            assert!(after.len() == 1 && after != before, "{after:?} after {before:?}");
            let count = status(&node, &web[0]).container_statuses[0].restart_count;
            assert_eq!(count, expected, "away for {away:?}");
        }
    });
}

#[test]
fn a_crash_loop_that_goes_and_comes_back_keeps_its_back_off() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::Crashes)]);
        node.want(PodSource::File, &web);
        node.wait(4 * MINUTE).await;
        let newest = |node: &Node| {
            let world = node.fake.world();
            world.containers.values().next_back().expect("it has run").observed.clone()
        };
        let before = newest(&node);
        assert_eq!(before.attempt, 5);
        node.want(PodSource::File, &[]);
        node.wait(5 * SECOND).await;
        assert!(is_empty(&node));
        node.want(PodSource::File, &web);
        node.wait(MINUTE).await;
        let waiting = &status(&node, &web[0]).container_statuses[0];
        assert!(waiting.state.waiting.as_ref().is_some_and(|waiting| waiting.reason == "CrashLoopBackOff"));
        assert_eq!(waiting.restart_count, 5, "as before, until it starts");
        node.wait(2 * MINUTE).await;
        let after = newest(&node);
        assert_eq!(after.attempt, 6);
        assert!(
            after.created_at.saturating_since(before.finished_at) >= 160 * SECOND,
            "{after:?} after {before:?}"
        );
    });
}

#[test]
fn a_pod_whose_image_is_on_its_way_is_taken_down_at_once() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::File, &files(&[&Manifest::new("web", "Always", Act::Slow)]));
        node.wait(5 * SECOND).await;
        assert_eq!(node.fake.world().sandboxes.len(), 1);
        node.want(PodSource::File, &[]);
        node.wait(5 * SECOND).await;
        assert!(is_empty(&node));
    });
}

#[test]
fn restored_terminating_pod_starts_after_an_agent_crash() {
    simulate(async {
        let mut node = node().await;
        let job = files(&[&Manifest::new("job", "Never", Act::Stubborn)]);
        node.want(PodSource::File, &job);
        node.wait(10 * SECOND).await;
        let before = running(&node, "job");
        node.want(PodSource::File, &[]);
        node.wait(5 * SECOND).await;
        node.want(PodSource::File, &job);
        node.wait(SECOND).await;
        node.crash();
        node.start().await;
        node.wait(MINUTE).await;
        let after = running(&node, "job");
        assert!(after.len() == 1 && after != before, "{after:?} after {before:?}");
        assert_eq!(status(&node, &job[0]).phase, "Running");
        node.crash();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "job"), after, "nothing of the old life is left to go on with");
    });
}

#[test]
fn pod_restored_during_its_cleanup_starts_again() {
    for pause in 0..12 {
        simulate(async {
            let mut node = node().await;
            let job = files(&[&Manifest::new("job", "Never", Act::Done)]);
            node.want(PodSource::File, &job);
            node.wait(MINUTE).await;
            *node.fake.faults() =
                FakeFaults { slow_rate: 1.0, slow_max: 20 * SECOND, ..FakeFaults::default() };
            node.want(PodSource::File, &[]);
            node.wait(pause * 5 * SECOND).await;
            node.want(PodSource::File, &job);
            node.wait(SECOND).await;
            *node.fake.faults() = FakeFaults::default();
            node.wait(5 * MINUTE).await;

            assert_eq!(
                node.fake.world().containers.len(),
                1,
                "wanted again after {pause} times five seconds"
            );
            assert_eq!(status(&node, &job[0]).phase, "Succeeded");
        });
    }
}

#[test]
fn removed_pod_is_not_torn_down_again_on_stale_state() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Http]).await;
        node.fake.set_hints(false);
        let web = files(&[&Manifest::new("web", "Always", Act::Slow)]);
        node.want(PodSource::File, &web);
        node.want(PodSource::Http, &[]);
        node.wait(MINUTE).await;
        node.want(PodSource::File, &[]);
        node.wait(SECOND / 10).await;
        assert!(is_empty(&node));
        let calls = node.fake.calls().len();
        node.want(PodSource::Http, &[]);
        node.wait(SECOND / 2).await;
        let uid = web[0].pod.metadata.uid.as_str();
        let again = node.fake.calls().iter().skip(calls).filter(|call| call.subject == uid).count();
        assert_eq!(again, 0);
    });
}
