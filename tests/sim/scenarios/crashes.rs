//! An agent that dies, at every single step of what it does.

use std::collections::{BTreeMap, BTreeSet};

use edge_agent::model::types::PodSource;
use edge_agent::runtime::fake::{CrashPoint, FakeFaults};
use edge_agent::store::WriteMoment;

use super::{MINUTE, SECOND, files, is_empty, node, running, status};
use crate::sim::finish;
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest};

/// Init container, sidecar, and containers that run, end and fail at first.
fn rich() -> Manifest {
    Manifest {
        init: vec![(Act::Forever, true), (Act::Done, false)],
        containers: vec![Act::Forever, Act::Done, Act::FailsOnce],
        grace: 5,
        ..Manifest::new("rich", "OnFailure", Act::Forever)
    }
}

/// What an agent dies of: the nth of them from some moment on.
#[derive(Clone, Copy, Debug)]
enum Death {
    Call { number: u64, after_effect: bool },
    Write { number: u64, moment: WriteMoment },
}

impl Death {
    fn plan(self, node: &Node) {
        match self {
            Self::Call { number, after_effect } => {
                node.fake.crash_at(CrashPoint { call: node.fake.call_count() + number, after_effect });
            }
            Self::Write { number, moment } => node.writes.crash_at(number, moment),
        }
    }
}

/// Dies while it starts a pod, or removes it. False when it does not come that far.
fn survives(death: Death, in_removal: bool) -> bool {
    simulate(async {
        let mut node = node().await;
        let manifest = rich();
        let wanted = files(&[&manifest]);
        if in_removal {
            node.want(PodSource::File, &wanted);
            node.wait(MINUTE).await;
            node.want(PodSource::File, &[]);
        } else {
            node.want(PodSource::File, &wanted);
        }
        death.plan(&node);
        node.wait(MINUTE).await;
        if node.agent.is_some() {
            return false;
        }
        node.start().await;
        if in_removal {
            node.want(PodSource::File, &[]);
            node.wait(MINUTE).await;
            assert!(is_empty(&node), "{death:?}\n{}", node.fake.world().describe());
            node.stop().await;
            finish::check_store(&node, &BTreeMap::new()).await;
        } else {
            node.want(PodSource::File, &wanted);
            node.wait(5 * MINUTE).await;
            let wanted = BTreeMap::from([(wanted[0].pod.metadata.uid.clone(), manifest)]);
            finish::check(&node, &wanted, &BTreeSet::new());
            finish::check_rest(&mut node).await;
        }
        true
    })
}

fn deaths(of: impl Fn(u64) -> Death, in_removal: bool) -> usize {
    (1..1000).take_while(|number| survives(of(*number), in_removal)).count()
}

#[test]
fn a_crash_at_any_call_of_a_start_changes_nothing_in_the_end() {
    for after_effect in [false, true] {
        let calls = deaths(|number| Death::Call { number, after_effect }, false);
        assert!(calls > 30, "{calls} calls only");
    }
}

#[test]
fn a_crash_at_any_call_of_a_removal_changes_nothing_in_the_end() {
    for after_effect in [false, true] {
        let calls = deaths(|number| Death::Call { number, after_effect }, true);
        assert!(calls > 15, "{calls} calls only");
    }
}

#[test]
fn a_crash_at_any_write_of_the_store_changes_nothing_in_the_end() {
    for moment in [WriteMoment::Before, WriteMoment::After] {
        for (in_removal, least) in [(false, 5), (true, 2)] {
            let writes = deaths(|number| Death::Write { number, moment }, in_removal);
            assert!(writes > least, "{writes} writes only, in removal: {in_removal}");
        }
    }
}

#[test]
fn what_is_alive_is_not_restarted_by_an_agent_that_keeps_dying() {
    simulate(async {
        let mut node = node().await;
        let web =
            Manifest { containers: vec![Act::Forever; 3], ..Manifest::new("web", "Always", Act::Forever) };
        node.want(PodSource::File, &files(&[&web]));
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        assert_eq!(before.len(), 3);
        for call in 1..30 {
            node.crash();
            node.start().await;
            node.fake.crash_at(CrashPoint { call, after_effect: call % 2 == 0 });
            node.wait(10 * SECOND).await;
            assert_eq!(running(&node, "web"), before);
        }
    });
}

#[test]
fn crash_loop_back_off_grows_across_agent_restarts() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::Crashes)]);
        node.want(PodSource::File, &web);
        for _ in 0..240 {
            node.wait(7 * SECOND + SECOND / 2).await;
            node.crash();
            node.start().await;
        }
        // Half an hour: at 0, 4, 18, 42, 86, 170, 334, 638, 942, 1246 and 1550 seconds, each a little later.
        let starts = node.fake.calls().iter().filter(|call| call.call == "StartContainer").count();
        assert!((9..=11).contains(&starts), "{starts} starts");
        node.wait(SECOND).await;
        let shown = status(&node, &web[0]).container_statuses[0].restart_count;
        assert_eq!(usize::try_from(shown).expect("small"), starts - 1);
    });
}

#[test]
fn reboot_without_sources_starts_pods_from_the_store() {
    simulate(async {
        let mut node = node().await;
        let web = Manifest { init: vec![(Act::Done, false)], ..Manifest::new("web", "Always", Act::Forever) };
        let job = Manifest::new("job", "OnFailure", Act::Done);
        let wanted = files(&[&web, &job]);
        node.want(PodSource::File, &wanted);
        node.wait(MINUTE).await;
        node.crash();
        node.fake.reboot();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1);
        assert_eq!(status(&node, &wanted[0]).container_statuses[0].restart_count, 1);
        let done = status(&node, &wanted[1]);
        assert_eq!((done.phase.as_str(), done.container_statuses[0].restart_count), ("Succeeded", 0));
    });
}

/// A runtime's log file of each container's first instance; the fake one writes none.
fn write_logs(node: &Node) {
    let entries =
        |path: &std::path::Path| std::fs::read_dir(path).expect("logs").map(|one| one.expect("entry").path());
    for pod in entries(&node.path("logs")) {
        for container in entries(&pod) {
            std::fs::write(container.join("0.log"), "").expect("write a log");
        }
    }
}

#[test]
fn restart_count_is_recovered_from_logs_after_a_power_cut() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        node.want(PodSource::File, &web);
        // Less than statuses wait to be written.
        node.wait(SECOND / 2).await;
        assert_eq!(running(&node, "web").len(), 1);
        write_logs(&node);
        node.crash();
        node.fake.reboot();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(status(&node, &web[0]).container_statuses[0].restart_count, 1);
        // After a while the next life of the pod is another one.
        node.want(PodSource::File, &[]);
        node.wait(2 * MINUTE).await;
        node.want(PodSource::File, &web);
        node.wait(MINUTE).await;
        assert_eq!(status(&node, &web[0]).container_statuses[0].restart_count, 0);
    });
}

#[test]
fn what_a_dead_agent_asked_for_and_comes_late_does_no_harm() {
    for seconds in 0..15 {
        simulate(async {
            let mut node = node().await;
            node.fake.set_late_effects(true);
            node.wait(SECOND).await;
            *node.fake.faults() =
                FakeFaults { slow_rate: 1.0, slow_max: 10 * SECOND, ..FakeFaults::default() };
            node.want(PodSource::File, &files(&[&rich()]));
            node.wait(seconds * 2 * SECOND).await;
            node.crash();
            *node.fake.faults() = FakeFaults::default();
            node.start().await;
            node.want(PodSource::File, &[]);
            node.wait(MINUTE).await;
            assert!(
                is_empty(&node),
                "a crash after twice {seconds} seconds\n{}",
                node.fake.world().describe()
            );
        });
    }
}
