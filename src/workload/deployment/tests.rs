#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::objects::ObjectKind::{Deployment, ReplicaSet};
use crate::model::types::PodUid;
use crate::workload::pods::PodView;
use crate::workload::testing::{FakeNode, document, template};

fn web(image: &str, replicas: i64, more: Value) -> Value {
    let mut spec = json!({
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": template(image, "Always"),
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    document("Deployment", "web", spec)
}

fn rolling(surge: Value, unavailable: Value) -> Value {
    json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}})
}

/// Replicas of each set, the oldest first: wanted and available.
fn sizes(node: &FakeNode) -> Vec<(i64, i64)> {
    let mut sets: Vec<Value> = node.names(ReplicaSet).iter().map(|name| node.get(ReplicaSet, name)).collect();
    sets.sort_by_key(|set| {
        set["metadata"]["annotations"][REVISION]
            .as_str()
            .unwrap_or_default()
            .parse::<i64>()
            .unwrap_or_default()
    });
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    sets.iter()
        .map(|set| (number(&set["spec"]["replicas"]), number(&set["status"]["availableReplicas"])))
        .collect()
}

fn ready_one(node: &mut FakeNode) -> bool {
    let Some(uid) = node.uids(|pod| pod.is_active() && !pod.is_ready()).into_iter().next() else {
        return false;
    };
    node.set_pod(&uid, "Running", true);
    node.end_deleted();
    node.wait(1);
    true
}

#[test]
fn an_applied_deployment_makes_its_pods_in_one_pass() {
    let mut node = FakeNode::new();
    node.apply(web("a:1", 2, json!({})));
    node.pass();
    assert_eq!(node.writes, 1);
    let [set] = &node.names(ReplicaSet)[..] else { panic!("{:?}", node.names(ReplicaSet)) };
    let object = node.get(ReplicaSet, set);
    let hash = object["metadata"]["labels"][HASH].as_str().unwrap();
    assert_eq!(*set, format!("web-{hash}"));
    assert_eq!(object["spec"]["selector"]["matchLabels"], json!({"app": "web", HASH: hash}));
    assert_eq!(object["metadata"]["annotations"], json!({REVISION: "1", DESIRED: "2", MAX: "3"}));
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!(
        *owner,
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-1", "controller": true, "blockOwnerDeletion": true})
    );
    assert_eq!(node.pods.len(), 2);
    for pod in node.pods.values() {
        assert!(
            pod.name().starts_with(&format!("{set}-")) && pod.name().len() == set.len() + 6,
            "{}",
            pod.name()
        );
        assert_eq!((pod.label("app"), pod.label(HASH)), ("web", hash));
        assert_eq!(pod.owner(), object["metadata"]["uid"].as_str());
    }
    let status = node.status(Deployment, "web");
    assert_eq!(
        (
            &status["replicas"],
            &status["updatedReplicas"],
            &status["unavailableReplicas"],
            &status["observedGeneration"]
        ),
        (&json!(2), &json!(2), &json!(2), &json!(1))
    );
    assert_eq!(node.condition(Deployment, "web", "Available")[..2], ["False", "MinimumReplicasUnavailable"]);
    assert_eq!(
        node.condition(Deployment, "web", "Progressing"),
        ["True", "ReplicaSetUpdated", &format!("ReplicaSet {set:?} is progressing.")]
    );
    let events = node.take_events();
    assert_eq!(
        events[0],
        format!("Deployment/web ScalingReplicaSet: Scaled up replica set {set} from 0 to 2")
    );
    assert_eq!(
        events.iter().filter(|event| event.contains("SuccessfulCreate: Created pod: web-")).count(),
        2
    );

    node.ready_all();
    node.wait(1);
    let status = node.status(Deployment, "web");
    assert_eq!((&status["readyReplicas"], &status["availableReplicas"]), (&json!(2), &json!(2)));
    assert_eq!(status.get("unavailableReplicas"), None);
    assert_eq!(
        node.condition(Deployment, "web", "Progressing"),
        ["True", "NewReplicaSetAvailable", &format!("ReplicaSet {set:?} has successfully progressed.")]
    );
    assert_eq!(node.get(Deployment, "web")["metadata"]["annotations"][REVISION], "1");
    assert_eq!(node.writes, 2, "one write for two pods that got ready");
}

/// What the documentation of Kubernetes says of surge and unavailability, in the sizes of old and new set after each step.
#[test]
fn rolling_updates_follow_upstreams_arithmetic() {
    for (replicas, surge, unavailable, expected) in [
        (
            10,
            json!("25%"),
            json!("25%"),
            vec![(8, 5), (7, 6), (6, 7), (5, 8), (4, 9), (3, 10), (2, 10), (1, 10), (0, 10)],
        ),
        (3, json!(1), json!(0), vec![(3, 1), (2, 2), (1, 3), (0, 3)]),
        (3, json!(0), json!(1), vec![(2, 1), (1, 2), (0, 3)]),
        (1, json!("25%"), json!("25%"), vec![(1, 1), (0, 1)]),
        (4, json!(2), json!(0), vec![(4, 2), (3, 3), (2, 4), (1, 4), (0, 4)]),
        (2, json!("100%"), json!(0), vec![(2, 2), (1, 2), (0, 2)]),
        (2, json!(0), json!(1), vec![(1, 1), (0, 2)]),
    ] {
        let mut node = FakeNode::new();
        node.apply(web("a:1", replicas, rolling(surge.clone(), unavailable.clone())));
        node.pass();
        node.ready_all();
        node.wait(1);
        node.apply(web("a:2", replicas, rolling(surge.clone(), unavailable.clone())));
        node.wait(1);
        let mut seen = vec![(sizes(&node)[0].0, sizes(&node)[1].0)];
        while ready_one(&mut node) {
            let now = (sizes(&node)[0].0, sizes(&node)[1].0);
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        assert_eq!(seen, expected, "{replicas} replicas, surge {surge}, unavailable {unavailable}");
    }
}

#[test]
fn recreate_starts_nothing_before_the_old_pods_are_gone() {
    let mut node = FakeNode::new();
    let recreate = json!({"strategy": {"type": "Recreate"}});
    node.apply(web("a:1", 2, recreate.clone()));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(web("a:2", 2, recreate));
    node.wait(1);
    assert_eq!((node.active().len(), node.names(ReplicaSet).len()), (0, 1));
    node.wait(5);
    assert_eq!(node.active().len(), 0, "they still end");
    node.end_deleted();
    node.wait(1);
    assert_eq!((node.active().len(), node.names(ReplicaSet).len()), (2, 2));
    assert!(node.pods.values().all(|pod| pod.pod.spec.containers[0].image == "a:2"));
}

#[test]
fn an_exclusive_part_is_stopped_before_the_new_one_starts() {
    let mut node = FakeNode::new();
    node.environment.exclusive = Some("host port 80/TCP".to_owned());
    node.apply(web("a:1", 1, json!({})));
    node.pass();
    node.ready_all();
    node.wait(1);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "NewReplicaSetAvailable");
    node.apply(web("a:2", 1, json!({})));
    node.wait(1);
    assert_eq!(sizes(&node).iter().map(|(size, _)| *size).collect::<Vec<_>>(), [0, 1]);
    let message = &node.condition(Deployment, "web", "Progressing")[2];
    assert!(
        message.ends_with(
            "An old pod is stopped before a new one is started: two pods cannot have host port 80/TCP."
        ),
        "{message}"
    );
    node.end_deleted();
    node.ready_all();
    node.wait(1);
    assert!(!node.condition(Deployment, "web", "Progressing")[2].contains("host port"));

    // A number is a decision.
    let mut node = FakeNode::new();
    node.environment.exclusive = Some("host port 80/TCP".to_owned());
    node.apply(web("a:1", 1, rolling(json!(1), json!(0))));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(web("a:2", 1, rolling(json!(1), json!(0))));
    node.wait(1);
    assert_eq!(sizes(&node).iter().map(|(size, _)| *size).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_third_template_rolls_over_an_unfinished_second() {
    let mut node = FakeNode::new();
    let of = |image| web(image, 4, rolling(json!(1), json!(1)));
    node.apply(of("a:1"));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(of("a:broken"));
    node.wait(1);
    assert_eq!(sizes(&node), [(3, 3), (2, 0)]);
    node.apply(of("a:3"));
    node.wait(1);
    assert_eq!(sizes(&node), [(3, 3), (0, 0), (2, 0)], "what is not healthy goes first");
    while ready_one(&mut node) {}
    assert_eq!(sizes(&node), [(0, 0), (0, 0), (4, 4)]);
    // Back to the first: its set gets the newest revision.
    node.apply(of("a:1"));
    node.wait(1);
    while ready_one(&mut node) {}
    assert_eq!(sizes(&node), [(0, 0), (0, 0), (4, 4)]);
    assert_eq!(node.get(Deployment, "web")["metadata"]["annotations"][REVISION], "4");
    let names = node.names(ReplicaSet);
    assert_eq!(names.len(), 3);
    let histories: Vec<Value> = names
        .iter()
        .map(|name| node.get(ReplicaSet, name)["metadata"]["annotations"][REVISION_HISTORY].clone())
        .collect();
    assert!(histories.contains(&json!("1")), "{histories:?}");
}

#[test]
fn scaling_in_the_middle_of_a_rollout_is_proportional() {
    let mut node = FakeNode::new();
    let of = |image, replicas| web(image, replicas, rolling(json!(3), json!(2)));
    node.apply(of("a:1", 10));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(of("a:broken", 10));
    node.wait(1);
    assert_eq!(sizes(&node), [(8, 8), (5, 0)], "the example of the documentation");
    node.apply(of("a:broken", 15));
    node.wait(1);
    assert_eq!(sizes(&node).iter().map(|(size, _)| *size).collect::<Vec<_>>(), [11, 7]);
    node.ready_all();
    for _ in 0..20 {
        node.end_deleted();
        node.ready_all();
        node.wait(1);
    }
    assert_eq!(sizes(&node), [(0, 0), (15, 15)]);
    node.apply(of("a:broken", 2));
    node.wait(1);
    assert_eq!(node.active().len(), 2);
}

#[test]
fn a_paused_deployment_scales_and_does_not_roll() {
    let mut node = FakeNode::new();
    node.apply(web("a:1", 2, json!({})));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(web("a:2", 3, json!({"paused": true})));
    node.wait(1);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[..2], ["Unknown", "DeploymentPaused"]);
    assert_eq!(sizes(&node).len(), 1);
    assert_eq!(node.active().len(), 3);
    node.apply(web("a:2", 3, json!({})));
    node.wait(1);
    assert_eq!(sizes(&node).len(), 2);
    while ready_one(&mut node) {}
    assert_eq!(sizes(&node), [(0, 0), (3, 3)]);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "NewReplicaSetAvailable");
}

#[test]
fn a_rollout_without_progress_times_out_and_says_so() {
    let mut node = FakeNode::new();
    node.apply(web("a:1", 1, json!({"progressDeadlineSeconds": 60})));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(web("a:2", 1, json!({"progressDeadlineSeconds": 60})));
    node.wait(1);
    node.wait(58);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "ReplicaSetUpdated");
    node.wait(5);
    let [status, reason, message] = node.condition(Deployment, "web", "Progressing");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ProgressDeadlineExceeded"));
    assert!(message.ends_with("has timed out progressing."), "{message}");
    assert_eq!(
        sizes(&node).iter().map(|(size, _)| *size).collect::<Vec<_>>(),
        [1, 1],
        "nothing else changes"
    );
    node.wait(600);
    assert_eq!(sizes(&node).len(), 2);
}

#[test]
fn a_clock_that_jumps_does_not_time_a_rollout_out() {
    let mut node = FakeNode::new();
    node.now = Timestamp::from_secs(100);
    node.environment.up = std::time::Duration::from_secs(20);
    node.apply(web("a:1", 1, json!({})));
    node.pass();
    node.now = crate::workload::testing::START;
    node.environment.up = std::time::Duration::from_secs(40);
    node.pass();
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "ReplicaSetUpdated");
}

#[test]
fn an_annotation_rolls_a_failed_template_back_once() {
    let of = |image: &str| {
        let mut deployment = web(image, 1, json!({"progressDeadlineSeconds": 60}));
        deployment["metadata"]["annotations"] = json!({ROLLBACK: "true"});
        deployment
    };
    let mut node = FakeNode::new();
    node.apply(of("a:1"));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(of("a:broken"));
    node.wait(1);
    node.wait(61);
    assert_eq!(
        node.condition(Deployment, "web", "Progressing")[1],
        "ProgressDeadlineExceeded",
        "shown for clients that wait"
    );
    node.wait(6);
    assert_eq!(node.get(Deployment, "web")["spec"]["template"]["spec"]["containers"][0]["image"], "a:1");
    let events = node.take_events().join("\n");
    assert!(
        events.contains(
            "Deployment/web DeploymentRollback: Rolled back deployment \"web\" to revision 1 (web-"
        ),
        "{events}"
    );
    node.end_deleted();
    node.wait(1);
    assert_eq!(sizes(&node), [(0, 0), (1, 1)]);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "NewReplicaSetAvailable");
    // The same template again is not rolled back again: its user wants it.
    node.apply(of("a:broken"));
    node.wait(1);
    node.wait(61);
    node.wait(600);
    assert_eq!(node.get(Deployment, "web")["spec"]["template"]["spec"]["containers"][0]["image"], "a:broken");
}

#[test]
fn old_sets_beyond_the_history_are_removed() {
    let mut node = FakeNode::new();
    for version in 1..=6 {
        node.apply(web(&format!("a:{version}"), 1, json!({"revisionHistoryLimit": 2})));
        node.wait(1);
        while ready_one(&mut node) {}
        node.end_deleted();
        node.wait(1);
    }
    assert_eq!(sizes(&node), [(0, 0), (0, 0), (1, 1)]);
    assert_eq!(node.get(Deployment, "web")["metadata"]["annotations"][REVISION], "6");
}

#[test]
fn sets_are_adopted_by_selector_and_released_with_their_labels() {
    let mut node = FakeNode::new();
    let mut set = document(
        "ReplicaSet",
        "lone",
        json!({
            "replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template("a:1", "Always"),
        }),
    );
    set["metadata"]["labels"] = json!({"app": "web"});
    node.apply(set);
    node.pass();
    let pod = node.pod_names();
    node.apply(web("a:1", 1, json!({})));
    node.pass();
    assert_eq!(
        (node.names(ReplicaSet), node.pod_names()),
        (vec!["lone".to_owned()], pod),
        "nothing is remade"
    );
    assert_eq!(node.get(ReplicaSet, "lone")["metadata"]["ownerReferences"][0]["name"], "web");
    // The defaults of another version of the agent change nothing, either.
    node.edit(Deployment, "web", |web| {
        web["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(30);
    });
    node.pass();
    assert_eq!(node.names(ReplicaSet).len(), 1);
}

#[test]
fn a_name_that_is_taken_counts_a_collision() {
    let mut node = FakeNode::new();
    node.apply(web("a:1", 1, json!({})));
    let template = super::without_hash(&node.get(Deployment, "web")["spec"]["template"]);
    let name = format!("web-{}", crate::workload::names::hash(&template, 0));
    let mut taken = document(
        "ReplicaSet",
        &name,
        json!({
            "replicas": 0, "selector": {"matchLabels": {"app": "other"}},
            "template": {"metadata": {"labels": {"app": "other"}}, "spec": {"containers": [{"name": "c", "image": "z"}]}},
        }),
    );
    taken["metadata"]["labels"] = json!({"app": "other"});
    node.apply(taken);
    node.pass();
    assert_eq!(node.status(Deployment, "web")["collisionCount"], 1);
    assert_eq!(node.names(ReplicaSet).len(), 2);
    assert_eq!(node.active().len(), 1);
}

#[test]
fn pods_that_cannot_be_created_are_told_in_the_conditions() {
    let mut node = FakeNode::new();
    node.environment.refuses = Some("pods is forbidden: no room".to_owned());
    node.apply(web("a:1", 2, json!({})));
    node.pass();
    let condition = node.condition(Deployment, "web", "ReplicaFailure");
    assert_eq!(condition, ["True", "FailedCreate", "pods is forbidden: no room"]);
    assert!(
        node.take_events()
            .iter()
            .any(|event| event.ends_with("FailedCreate: Error creating: pods is forbidden: no room"))
    );
    node.environment.refuses = None;
    node.pass();
    assert_eq!(node.active().len(), 2);
    assert_eq!(node.condition(Deployment, "web", "ReplicaFailure")[0], "");
}

#[derive(Clone, Debug)]
enum Act {
    Ready(usize),
    Unready(usize),
    Fail(usize),
    End,
    Scale(i64),
    Template(u8),
    Pause(bool),
    Wait(u64),
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0_usize..20).prop_map(Act::Ready),
        2 => (0_usize..20).prop_map(Act::Unready),
        1 => (0_usize..20).prop_map(Act::Fail),
        3 => Just(Act::End),
        1 => (0_i64..8).prop_map(Act::Scale),
        2 => (0_u8..4).prop_map(Act::Template),
        1 => any::<bool>().prop_map(Act::Pause),
        2 => (1_u64..700).prop_map(Act::Wait),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever happens to its pods and to its spec.
    #[test]
    fn a_rollout_keeps_between_its_bounds(
        acts in proptest::collection::vec(act(), 1..60),
        surge in 0_i64..4,
        unavailable in 0_i64..4,
    ) {
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        let mut node = FakeNode::new();
        let (mut replicas, mut image, mut paused) = (3, 0, false);
        let of = |replicas: i64, image: u8, paused: bool| {
            let mut more = rolling(json!(surge), json!(unavailable));
            more["paused"] = json!(paused);
            web(&format!("a:{image}"), replicas, more)
        };
        node.apply(of(replicas, image, paused));
        node.pass();
        for act in acts {
            let uids = node.uids(PodView::is_active);
            let pick = |number: usize| uids.get(number % uids.len().max(1)).cloned();
            // Upstream scales in proportion to the sets, whatever of them is available.
            let is_scaled = matches!(act, Act::Scale(_));
            match act {
                Act::Ready(number) => if let Some(uid) = pick(number) { node.set_pod(&uid, "Running", true) },
                Act::Unready(number) => if let Some(uid) = pick(number) { node.set_pod(&uid, "Running", false) },
                Act::Fail(number) => if let Some(uid) = pick(number) { node.end_pod(&uid, 1) },
                Act::End => node.end_deleted(),
                Act::Scale(to) => replicas = to,
                Act::Template(to) => image = to,
                Act::Pause(to) => paused = to,
                Act::Wait(seconds) => node.now = node.now.saturating_add(std::time::Duration::from_secs(seconds)),
                Act::Restart => node.rests.clear(),
            }
            node.apply(of(replicas, image, paused));
            let available = |node: &FakeNode| -> Vec<PodUid> { node.uids(|pod| pod.is_active() && pod.is_ready()) };
            let before = available(&node);
            node.pass();
            let after = available(&node);
            let active = i64::try_from(node.active().len()).unwrap();
            prop_assert!(active <= replicas + surge, "{active} pods of {replicas} and {surge}");
            let least = (replicas - unavailable).max(0);
            let count = |pods: &[PodUid]| i64::try_from(pods.len()).unwrap();
            prop_assert!(
                is_scaled || count(&after) >= least.min(count(&before)),
                "{} were available, {} are, {least} have to be", before.len(), after.len()
            );
        }
        // In the end all is as it is wanted.
        node.apply(of(replicas, image, false));
        for _ in 0..60 {
            node.end_deleted();
            node.ready_all();
            node.wait(200);
        }
        let wanted = format!("a:{image}");
        prop_assert_eq!(i64::try_from(node.active().len()).unwrap(), replicas);
        prop_assert!(node.active().iter().all(|pod| pod.pod.spec.containers[0].image == wanted));
        let status = node.status(Deployment, "web");
        prop_assert_eq!(status["updatedReplicas"].as_i64().unwrap_or_default(), replicas);
        let writes = node.writes;
        node.wait(1);
        prop_assert_eq!(node.writes, writes, "nothing is written at rest");
    }
}
