//! Rollouts of new sets of pods: what does not start goes back to what was good, whatever happens meanwhile.

use std::rc::Rc;
use std::time::Duration;

use edge_agent::desired::rollout::{REASON_ROLLED_BACK, RolloutConfig};
use edge_agent::model::objects::ObjectContent;
use edge_agent::model::source::SourcePod;
use edge_agent::model::types::PodSource;
use edge_agent::runtime::fake::FakeFaults;
use edge_agent::store::WriteMoment;
use edge_agent::store::rollout::RolloutPhase;

use super::{MINUTE, SECOND, is_empty, running};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest, config_map, script_images};

const AFTER: Duration = Duration::from_secs(300);

/// A node that tries what the URL says, with a good set that runs.
async fn node() -> Node {
    let mut node = Node::new(1, &[PodSource::Http]);
    script_images(&node.fake);
    node.rollout =
        Some(RolloutConfig { source: PodSource::Http, origin: "http://host/pods".to_owned(), after: AFTER });
    node.start().await;
    node.want(PodSource::Http, &good());
    node.wait(MINUTE).await;
    assert_eq!(running(&node, "web").len(), 1);
    node
}

fn web(version: u64, act: Act) -> SourcePod {
    Manifest { version, ..Manifest::new("web", "Always", act) }.parse(PodSource::Http)
}

fn other(act: Act) -> SourcePod {
    Manifest::new("other", "Always", act).parse(PodSource::Http)
}

fn good() -> Vec<SourcePod> {
    vec![web(0, Act::Forever)]
}

/// One pod that runs, one that cannot.
fn bad() -> Vec<SourcePod> {
    vec![web(1, Act::NoImage), other(Act::Forever)]
}

/// What runs of `web` has this uid.
fn runs(node: &Node, pod: &SourcePod) -> bool {
    let running = running(node, "web");
    let world = node.fake.world();
    running.len() == 1
        && running.iter().all(|id| world.containers[id].observed.pod.uid == pod.pod.metadata.uid)
}

fn complaint(node: &Node) -> Option<String> {
    let agent = node.agent.as_ref().expect("the agent runs");
    let views = agent.view.sources();
    let problem =
        views[&PodSource::Http].problems.iter().find(|problem| problem.reason == REASON_ROLLED_BACK);
    problem.map(|problem| problem.message.clone())
}

#[test]
fn failed_pod_set_is_rolled_back_and_not_retried_unchanged() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::Http, &bad());
        node.wait(4 * MINUTE).await;
        assert!(running(&node, "web").is_empty() && running(&node, "other").len() == 1, "it is on trial");
        assert_eq!(complaint(&node), None);
        node.wait(2 * MINUTE).await;
        assert!(runs(&node, &good()[0]) && running(&node, "other").is_empty());
        let said = complaint(&node).expect("it is said");
        assert!(said.contains("within 5m") && said.contains("pod default/web-node1: c0: "), "{said}");
        let events = node.agent.as_ref().expect("it runs").events.recent();
        assert_eq!(events.iter().filter(|event| event.key.reason == REASON_ROLLED_BACK).count(), 1);

        // The same answer again, in this life and in the next.
        let before = running(&node, "web");
        for _ in 0..2 {
            node.want(PodSource::Http, &bad());
            node.wait(10 * MINUTE).await;
            assert_eq!(running(&node, "web"), before);
            assert!(complaint(&node).is_some());
            node.crash();
            node.start().await;
        }
        node.want(PodSource::Http, &[web(2, Act::Forever), other(Act::Forever)]);
        node.wait(MINUTE).await;
        assert!(runs(&node, &web(2, Act::Forever)) && running(&node, "other").len() == 1);
        assert_eq!(complaint(&node), None);
    });
}

#[test]
fn what_started_is_what_the_next_one_goes_back_to() {
    simulate(async {
        let mut node = node().await;
        let second = vec![web(1, Act::CrashesTwice)];
        node.want(PodSource::Http, &second);
        // Two crashes and their delays, and ten seconds.
        node.wait(2 * MINUTE).await;
        for act in [Act::Crashes, Act::NoStart, Act::NoCreate] {
            node.want(PodSource::Http, &[web(2, act)]);
            node.wait(7 * MINUTE).await;
            assert!(runs(&node, &second[0]), "{act:?}\n{}", node.fake.world().describe());
            assert!(complaint(&node).is_some());
        }
        // The source goes back by itself.
        node.want(PodSource::Http, &second);
        node.wait(MINUTE).await;
        assert!(runs(&node, &second[0]));
        assert_eq!(complaint(&node), None);
        node.want(PodSource::Http, &[]);
        node.wait(MINUTE).await;
        assert!(is_empty(&node), "no pods are a set that starts at once");
        node.stop().await;
        assert!(node.stored().await.rollouts.is_empty());
    });
}

#[test]
fn objects_go_back_with_their_pods() {
    simulate(async {
        let mut node = node().await;
        let first = vec![config_map("shared", "one", PodSource::Http)];
        node.defined.insert(PodSource::Http, first.clone());
        node.want(PodSource::Http, &good());
        node.wait(MINUTE).await;
        // The new one may not change, which does not keep it.
        let mut second = config_map("shared", "two", PodSource::Http);
        if let ObjectContent::ConfigMap { immutable, .. } = &mut Rc::make_mut(&mut second.object).content {
            *immutable = true;
        }
        node.defined.insert(PodSource::Http, vec![second]);
        node.want(PodSource::Http, &bad());
        node.wait(6 * MINUTE).await;
        assert!(runs(&node, &good()[0]));
        node.stop().await;
        let stored = node.stored().await;
        let contents: Vec<_> =
            stored.desired[0].objects.iter().map(|object| object.object.content.clone()).collect();
        assert_eq!(contents, [first[0].object.content.clone()]);
    });
}

#[test]
fn a_first_set_has_nothing_to_go_back_to() {
    simulate(async {
        let mut node = Node::new(1, &[PodSource::Http]);
        script_images(&node.fake);
        node.rollout =
            Some(RolloutConfig { source: PodSource::Http, origin: "u".to_owned(), after: 10 * SECOND });
        node.start().await;
        node.want(PodSource::Http, &bad());
        node.wait(30 * MINUTE).await;
        assert_eq!(running(&node, "other").len(), 1);
        assert_eq!(complaint(&node), None);
        // Nor is one good that never started.
        node.want(PodSource::Http, &[web(2, Act::NoStart)]);
        node.wait(30 * MINUTE).await;
        assert_eq!(complaint(&node), None);
        assert!(running(&node, "other").is_empty());
    });
}

#[test]
fn a_trial_ends_though_the_agent_is_started_again_and_again() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::Http, &bad());
        node.wait(5 * SECOND).await;
        for _ in 0..4 {
            assert_eq!(complaint(&node), None);
            node.crash();
            node.start().await;
            node.wait(20 * SECOND).await;
        }
        assert!(complaint(&node).is_some(), "four starts are the whole of its time");
        node.wait(MINUTE).await;
        assert!(runs(&node, &good()[0]));
    });
}

#[test]
fn time_without_a_runtime_does_not_count() {
    simulate(async {
        let mut node = node().await;
        *node.fake.faults() = FakeFaults { unavailable: true, ..FakeFaults::default() };
        node.wait(MINUTE).await;
        node.want(PodSource::Http, &[web(1, Act::Forever)]);
        node.wait(60 * MINUTE).await;
        assert_eq!(complaint(&node), None);
        *node.fake.faults() = FakeFaults::default();
        node.wait(3 * MINUTE).await;
        assert!(runs(&node, &web(1, Act::Forever)));
        assert_eq!(complaint(&node), None);
    });
}

#[test]
fn without_the_flag_the_source_counts_again() {
    simulate(async {
        let mut node = node().await;
        node.want(PodSource::Http, &bad());
        node.wait(7 * MINUTE).await;
        assert!(complaint(&node).is_some());
        node.stop().await;
        node.rollout = None;
        node.start().await;
        node.want(PodSource::Http, &bad());
        node.wait(10 * MINUTE).await;
        assert_eq!(complaint(&node), None);
        assert!(running(&node, "web").is_empty() && running(&node, "other").len() == 1);
        node.stop().await;
        assert!(node.stored().await.rollouts.is_empty());
    });
}

/// The agent dies at a write of the store somewhere between the new answer and the end of its trial. False: it lived.
fn survives(number: u64, moment: WriteMoment) -> bool {
    simulate(async {
        let mut node = node().await;
        node.writes.crash_at(number, moment);
        node.want(PodSource::Http, &bad());
        node.wait(7 * MINUTE).await;
        if node.agent.is_some() {
            return false;
        }
        node.start().await;
        node.want(PodSource::Http, &bad());
        node.wait(7 * MINUTE).await;
        assert!(runs(&node, &good()[0]), "{number} {moment:?}\n{}", node.fake.world().describe());
        assert!(running(&node, "other").is_empty());
        assert!(complaint(&node).is_some(), "{number} {moment:?}");
        node.stop().await;
        let stored = node.stored().await;
        assert!(matches!(stored.rollouts.get(&PodSource::Http), Some(RolloutPhase::RolledBack { .. })));
        assert_eq!(stored.desired[0].pods.len(), 1);
        true
    })
}

#[test]
fn rollback_survives_a_power_cut_at_any_write() {
    for moment in [WriteMoment::Before, WriteMoment::After] {
        let writes = (1..1000).take_while(|number| survives(*number, moment)).count();
        assert!(writes > 8, "{writes} writes only");
    }
}
