//! A clock that nobody can rely on: 1970 at boot, the right time a minute later, the future yesterday.

use edge_agent::model::types::{PodSource, Timestamp};

use super::{MINUTE, SECOND, files, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest, parse_text};

const IN_1970: Timestamp = Timestamp::from_secs(20);
const IN_2026: Timestamp = Timestamp::from_secs(1_795_190_400);
const IN_2099: Timestamp = Timestamp::from_secs(4_070_908_800);

/// One that runs for ever, one that may run for two hours, one that crashes, and one that waits for its image.
fn pods() -> Vec<edge_agent::model::source::SourcePod> {
    let limited = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "limited"},
        "spec": {"activeDeadlineSeconds": 7200, "restartPolicy": "OnFailure",
            "containers": [{"name": "c0", "image": "sim/forever:1", "imagePullPolicy": "IfNotPresent"}]}}"#;
    let mut pods = files(&[
        &Manifest::new("web", "Always", Act::Forever),
        &Manifest::new("loops", "Always", Act::Crashes),
        &Manifest::new("waits", "Always", Act::NoImage),
    ]);
    pods.push(parse_text("limited", limited, PodSource::File));
    pods
}

fn restarts(node: &Node) -> i32 {
    status(node, &pods()[1]).container_statuses[0].restart_count
}

/// Everything is as it should be, and the crash loop goes on at its own pace.
async fn goes_on(node: &mut Node, what: &str) {
    assert_eq!(running(node, "web").len(), 1, "{what}");
    assert_eq!(running(node, "limited").len(), 1, "{what}: {:?}", status(node, &pods()[3]));
    let before = restarts(node);
    node.wait(6 * MINUTE).await;
    let more = restarts(node) - before;
    assert!((1..=12).contains(&more), "{what}: restarted {more} times in six minutes");
    assert_eq!(running(node, "web").len(), 1, "{what}");
}

#[test]
fn pods_survive_clock_jumps_and_agent_restarts() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::File, &pods());
        node.wait(2 * MINUTE).await;
        goes_on(&mut node, "at first").await;
        let web = running(&node, "web");
        for (time, what) in
            [(IN_1970, "set back to 1970"), (IN_2099, "in the future"), (IN_2026, "right again")]
        {
            node.clock.set(time);
            goes_on(&mut node, what).await;
            // Somebody starts the agent anew, which reads what it wrote under another clock.
            node.crash();
            node.start().await;
            node.want(PodSource::File, &pods());
            node.wait(30 * SECOND).await;
            goes_on(&mut node, what).await;
        }
        assert_eq!(running(&node, "web"), web, "nobody restarted it");
    });
}

#[test]
fn reboot_into_1970_restarts_pods_and_clock_sync_ends_none() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::File, &pods());
        node.wait(3 * MINUTE).await;
        node.crash();
        node.fake.reboot();
        node.clock.set(IN_1970);
        node.start().await;
        // No source answers.
        node.wait(MINUTE).await;
        goes_on(&mut node, "in 1970").await;
        node.clock.set(IN_2026);
        node.wait(MINUTE).await;
        goes_on(&mut node, "half a century later").await;
        assert_eq!(status(&node, &pods()[3]).phase, "Running");
        node.wait(150 * MINUTE).await;
        assert_eq!(status(&node, &pods()[3]).reason, "DeadlineExceeded", "its two hours are over");
    });
}

#[test]
fn retries_continue_when_the_clock_is_set_back_years() {
    simulate(async {
        let mut node = Node::new(1, &[PodSource::File]);
        crate::sim::pods::script_images(&node.fake);
        node.clock.set(IN_2099);
        node.start().await;
        node.want(PodSource::File, &pods());
        node.wait(3 * MINUTE).await;
        node.clock.set(IN_2026);
        node.wait(SECOND).await;
        node.fake.add_image("sim/noimage:1");
        node.wait(11 * MINUTE).await;
        assert_eq!(running(&node, "waits").len(), 1, "{:?}", status(&node, &pods()[2]));
    });
}
