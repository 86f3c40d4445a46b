//! What happens to a pod while it lives, seen through the whole agent.

use std::rc::Rc;

use edge_agent::model::api::pod::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};
use edge_agent::model::source::SourcePod;
use edge_agent::model::types::PodSource;

use super::{MINUTE, SECOND, files, node, running, status};
use crate::sim::node::simulate;
use crate::sim::pods::{Act, Manifest};

/// The first container's ends with code 2, of which there are two, restart everything.
fn lockstep() -> SourcePod {
    let manifest = Manifest {
        init: vec![(Act::Forever, true), (Act::Done, false)],
        containers: vec![Act::CrashesTwice, Act::Forever],
        ..Manifest::new("lockstep", "Never", Act::Forever)
    };
    let mut source = files(&[&manifest]).remove(0);
    let container = &mut Rc::make_mut(&mut source.pod).spec.containers[0];
    container.restart_policy = Some("Never".to_owned());
    container.restart_policy_rules = vec![ContainerRestartRule {
        action: "RestartAllContainers".to_owned(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes { operator: "In".to_owned(), values: vec![2] }),
    }];
    source
}

/// Restart counts of all containers, init containers first.
fn counts(node: &crate::sim::node::Node, pod: &SourcePod) -> Vec<i32> {
    let status = status(node, pod);
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    all.map(|container| container.restart_count).collect()
}

#[test]
fn one_container_restarts_the_whole_pod_in_its_sandbox() {
    simulate(async {
        let mut node = node().await;
        let pod = lockstep();
        node.want(PodSource::File, std::slice::from_ref(&pod));
        node.wait(5 * MINUTE).await;
        assert_eq!(status(&node, &pod).phase, "Running");
        assert_eq!(running(&node, "lockstep").len(), 3);
        assert_eq!(counts(&node, &pod), [2, 2, 2, 2]);
        assert_eq!(node.fake.world().sandboxes.len(), 1);
        let made = node.fake.calls().iter().filter(|call| call.call == "RunPodSandbox").count();
        assert_eq!(made, 1);
    });
}

#[test]
fn whole_pod_restart_survives_agent_death_at_any_call() {
    for call in 1..80 {
        simulate(async {
            let mut node = node().await;
            let pod = lockstep();
            node.want(PodSource::File, std::slice::from_ref(&pod));
            node.fake.crash_at(edge_agent::runtime::fake::CrashPoint { call, after_effect: call % 2 == 0 });
            node.wait(5 * MINUTE).await;
            if node.agent.is_none() {
                node.start().await;
                node.want(PodSource::File, std::slice::from_ref(&pod));
                node.wait(5 * MINUTE).await;
            }
            assert_eq!(status(&node, &pod).phase, "Running", "call {call}");
            assert_eq!(running(&node, "lockstep").len(), 3, "call {call}");
            assert_eq!(counts(&node, &pod), [2, 2, 2, 2], "call {call}");
        });
    }
}

#[test]
fn what_ran_in_a_runtime_that_was_wiped_counts_as_restarted() {
    simulate(async {
        let mut node = node().await;
        let web = files(&[&Manifest::new("web", "Always", Act::Forever)]);
        node.want(PodSource::File, &web);
        node.wait(MINUTE).await;
        for wiped in 1..4 {
            node.crash();
            node.fake.change(|world, _| {
                world.containers.clear();
                world.sandboxes.clear();
            });
            node.start().await;
            node.wait(MINUTE + SECOND).await;
            assert_eq!(running(&node, "web").len(), 1);
            assert_eq!(counts(&node, &web[0]), [wiped]);
        }
    });
}
