//! Hooks that take long, fail or hang, and stops that are hurried or interrupted.

use std::rc::Rc;

use edge_agent::model::observed::ContainerStateKind;
use edge_agent::model::source::SourcePod;
use edge_agent::model::types::{PodSource, Timestamp};
use edge_agent::runtime::ExecOutput;
use edge_agent::runtime::fake::{ExecScript, FakeFaults};

use super::{MINUTE, SECOND, files, is_empty, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest};

const GREET: &str = r#"{"postStart": {"exec": {"command": ["greet"]}}}"#;
const PART: &str = r#"{"preStop": {"exec": {"command": ["part"]}}}"#;

fn script(node: &Node, container: &str, command: &str, seconds: u32, exit_code: i32) {
    let output = ExecOutput { exit_code, output: Vec::new() };
    let script = ExecScript { takes: seconds * SECOND, output };
    node.fake.change(|world, _| world.set_exec(container, command, script));
}

fn with_hooks(name: &str, act: Act, lifecycle: &'static str) -> Manifest {
    Manifest { lifecycle, ..Manifest::new(name, "Always", act) }
}

/// Calls so far, of this and all earlier agents.
fn count(node: &Node, call: &str) -> usize {
    node.fake.calls().iter().filter(|made| made.call == call).count()
}

fn told(node: &Node, reason: &str) -> Vec<String> {
    let agent = node.agent.as_ref().expect("the agent runs");
    let events = agent.events.recent();
    events.into_iter().filter(|event| event.key.reason == reason).map(|event| event.key.message).collect()
}

/// When containers of this name were started, oldest first.
fn starts(node: &Node, name: &str) -> Vec<Timestamp> {
    let world = node.fake.world();
    let records = world.containers.values().map(|container| &container.observed);
    records.filter(|record| record.name.as_str() == name).map(|record| record.started_at).collect()
}

/// Whole seconds until nothing of any pod runs.
async fn seconds_to_rest(node: &mut Node) -> u32 {
    for seconds in 0..600 {
        let is_running = |node: &Node| {
            let world = node.fake.world();
            let mut records = world.containers.values().map(|container| &container.observed);
            records.any(|record| record.state == ContainerStateKind::Running)
        };
        if !is_running(node) {
            return seconds;
        }
        node.wait(SECOND).await;
    }
    panic!("something still runs\n{}", node.fake.world().describe());
}

/// The pod as the API has it when its deletion is asked for.
fn deleted(pod: &SourcePod, node: &Node, grace_seconds: i64) -> SourcePod {
    let mut pod = pod.clone();
    let metadata = &mut Rc::make_mut(&mut pod.pod).metadata;
    metadata.deletion_timestamp = Some(node.clock.now());
    metadata.deletion_grace_period_seconds = Some(grace_seconds);
    pod
}

#[test]
fn post_start_hook_delays_only_its_own_pods_containers() {
    simulate(async {
        let mut node = node().await;
        script(&node, "c0", "greet", 10, 0);
        let web = Manifest { containers: vec![Act::Forever; 2], ..with_hooks("web", Act::Forever, GREET) };
        let other =
            Manifest { containers: vec![Act::Forever; 2], ..Manifest::new("other", "Always", Act::Forever) };
        node.want(PodSource::File, &files(&[&web, &other]));
        node.wait(5 * SECOND).await;
        assert_eq!((running(&node, "web").len(), running(&node, "other").len()), (1, 2));
        node.wait(MINUTE).await;
        let first = starts(&node, "c0")[0];
        let last = starts(&node, "c1").into_iter().max().expect("started");
        assert_eq!(last.saturating_since(first).as_secs(), 10);
        assert_eq!(count(&node, "ExecSync"), 2);
    });
}

#[test]
fn failed_post_start_hook_restarts_with_back_off() {
    simulate(async {
        let mut node = node().await;
        script(&node, "c0", "greet", 1, 7);
        let web = files(&[&with_hooks("web", Act::Forever, GREET)]);
        node.want(PodSource::File, &web);
        node.wait(5 * MINUTE).await;
        // At 0 and, with 3 s for each to end, 3, 16, 39, 82, 165 seconds.
        assert_eq!(count(&node, "StartContainer"), 6);
        assert_eq!(told(&node, "FailedPostStartHook")[0], "PostStartHook failed");
        assert!(told(&node, "Killing").contains(&"FailedPostStartHook".to_owned()));
        let shown = &status(&node, &web[0]).container_statuses[0];
        let waiting = shown.state.waiting.as_ref().expect("it waits");
        assert_eq!(waiting.reason, "CrashLoopBackOff");
        script(&node, "c0", "greet", 1, 0);
        node.wait(10 * MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1);
    });
}

#[test]
fn a_pod_whose_hook_never_ends_is_taken_down_at_once() {
    simulate(async {
        let mut node = node().await;
        script(&node, "c0", "greet", 1_000_000, 0);
        node.want(PodSource::File, &files(&[&with_hooks("web", Act::Forever, GREET)]));
        node.wait(10 * SECOND).await;
        assert_eq!(running(&node, "web").len(), 1);
        node.want(PodSource::File, &[]);
        node.wait(5 * SECOND).await;
        assert!(is_empty(&node), "{}", node.fake.world().describe());
        assert_eq!(told(&node, "FailedPostStartHook"), Vec::<String>::new());
    });
}

#[test]
fn container_exit_during_its_hook_unblocks_the_next_one() {
    simulate(async {
        let mut node = node().await;
        let sleeps = r#"{"postStart": {"sleep": {"seconds": 30}}}"#;
        let web = Manifest {
            containers: vec![Act::FailsOnce, Act::Forever],
            ..with_hooks("web", Act::Forever, sleeps)
        };
        node.want(PodSource::File, &files(&[&Manifest { policy: "OnFailure", ..web }]));
        node.wait(5 * SECOND).await;
        assert_eq!(starts(&node, "c1").len(), 1, "the first one ended after three seconds, not thirty");
        node.wait(MINUTE).await;
        assert_eq!((count(&node, "StartContainer"), running(&node, "web").len()), (3, 1));
    });
}

#[test]
fn agent_restart_does_not_repeat_a_post_start_hook() {
    simulate(async {
        let mut node = node().await;
        script(&node, "c0", "greet", 20, 0);
        let web = Manifest { containers: vec![Act::Forever; 2], ..with_hooks("web", Act::Forever, GREET) };
        node.want(PodSource::File, &files(&[&web]));
        node.wait(5 * SECOND).await;
        let before = running(&node, "web");
        assert_eq!((before.len(), count(&node, "ExecSync")), (1, 1));
        node.crash();
        node.start().await;
        node.wait(5 * SECOND).await;
        let after = running(&node, "web");
        assert!(after.len() == 2 && after.contains(&before[0]), "{after:?} after {before:?}");
        assert_eq!(count(&node, "ExecSync"), 2, "the second one's");
    });
}

#[test]
fn pre_stop_hook_runs_within_the_grace_period() {
    // What the hook takes, what it ends with, how long all of it takes.
    for (takes, code, seconds) in [(5, 0, 7), (5, 1, 7), (1000, 0, 22), (20, 0, 22), (19, 0, 21)] {
        simulate(async {
            let mut node = node().await;
            script(&node, "c0", "part", takes, code);
            let web = Manifest { grace: 20, ..with_hooks("web", Act::Forever, PART) };
            node.want(PodSource::File, &files(&[&web]));
            node.wait(10 * SECOND).await;
            node.want(PodSource::File, &[]);
            assert_eq!(seconds_to_rest(&mut node).await, seconds, "a hook of {takes} s");
            node.wait(SECOND).await;
            assert!(is_empty(&node));
            assert_eq!(count(&node, "ExecSync"), 1);
            assert_eq!(told(&node, "FailedPreStopHook").len(), usize::from(code != 0 || takes > 20));
            assert_eq!(told(&node, "ExceededGracePeriod").len(), 0);
        });
    }
}

#[test]
fn next_agent_continues_a_stop_with_the_remaining_grace() {
    // When it dies: during the hook, during the stop, when all is over.
    for (dies, hooks, seconds) in [(4, 2, 30), (14, 2, 30), (29, 2, 30)] {
        simulate(async {
            let mut node = node().await;
            script(&node, "c0", "part", 10, 0);
            node.want(PodSource::File, &files(&[&with_hooks("web", Act::Stubborn, PART)]));
            node.wait(10 * SECOND).await;
            node.want(PodSource::File, &[]);
            node.wait(dies * SECOND).await;
            node.crash();
            node.start().await;
            let rest = seconds_to_rest(&mut node).await;
            assert!(
                (seconds..=seconds + 2).contains(&(dies + rest)),
                "died after {dies} s, over {rest} s later"
            );
            assert_eq!(count(&node, "ExecSync"), hooks);
            node.wait(SECOND).await;
            assert!(is_empty(&node));
        });
    }
}

#[test]
fn a_shorter_grace_reaches_a_stop_that_is_under_way() {
    // Grace in the beginning and later, when, how long all of it takes.
    for (lifecycle, later, at, seconds) in
        [("", 5, 10, 15), ("", 0, 10, 12), ("", 29, 10, 30), (PART, 5, 10, 15)]
    {
        simulate(async {
            let mut node = node().await;
            script(&node, "c0", "part", 100, 0);
            let web = files(&[&with_hooks("web", Act::Stubborn, lifecycle)]);
            node.want(PodSource::File, &web);
            node.wait(10 * SECOND).await;
            node.want(PodSource::File, &[deleted(&web[0], &node, 30)]);
            node.wait(at * SECOND).await;
            node.want(PodSource::File, &[deleted(&web[0], &node, later)]);
            let rest = seconds_to_rest(&mut node).await;
            assert_eq!(at + rest, seconds, "{later} s after {at} s, hooks: {lifecycle:?}");
        });
    }
}

#[test]
fn pod_lost_from_the_store_still_gets_its_pre_stop_hook() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::File, &files(&[&with_hooks("web", Act::Forever, PART)]));
        node.wait(10 * SECOND).await;
        node.stop().await;
        std::fs::remove_file(node.store_path()).expect("remove the store");
        node.start().await;
        node.want(PodSource::File, &[]);
        node.wait(MINUTE).await;
        assert!(is_empty(&node));
        assert_eq!(count(&node, "ExecSync"), 1);
    });
}

#[test]
fn hanging_stop_is_reported_once_and_completes_later() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::File, &files(&[&with_hooks("web", Act::Forever, PART)]));
        node.wait(10 * SECOND).await;
        node.fake.faults().hang.insert("StopContainer");
        node.want(PodSource::File, &[]);
        node.wait(44 * SECOND).await;
        assert_eq!(told(&node, "ExceededGracePeriod").len(), 0);
        node.wait(10 * MINUTE).await;
        assert_eq!(
            told(&node, "ExceededGracePeriod"),
            ["Container runtime did not kill the pod within specified grace period."]
        );
        assert!(told(&node, "FailedKillPod")[0].starts_with("error killing pod: "));
        *node.fake.faults() = FakeFaults::default();
        node.wait(5 * MINUTE).await;
        assert!(is_empty(&node));
    });
}
