//! A node of a simulated cluster: the real loop, store and the cluster's tasks, on a fake runtime and a fake apiserver.

mod offline;
mod random;

use std::time::Duration;

use edge_agent::cluster::fake::{ClusterMemory, FakeApiserver, Removal};
use edge_agent::model::api::quantity::Quantity;
use edge_agent::model::observed::ContainerStateKind;
use edge_agent::model::types::PodSource;
use edge_agent::store::WriteMoment;
use serde_json::{Value, json};

use super::node::{Cluster, Node, simulate};
use super::pods::{Act, script_images};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A node that has just joined an empty cluster.
async fn joined() -> Node {
    let mut node = unjoined(1);
    node.start().await;
    node.wait(5 * SECOND).await;
    node
}

fn unjoined(seed: u64) -> Node {
    let mut node = Node::new(seed, &[PodSource::File, PodSource::Cluster]);
    script_images(&node.fake);
    let server = FakeApiserver::new(node.clock.clone(), seed);
    node.cluster = Some(Cluster { server, memory: ClusterMemory::default(), offline_max_age: None });
    node
}

impl Cluster {
    /// As a scheduler binds it, defaulted.
    fn bind(&self, name: &str, policy: &str, act: Act) {
        self.bind_with(name, policy, act, &[]);
    }

    fn bind_with(&self, name: &str, policy: &str, act: Act, changes: &[(&str, Value)]) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 30, "dnsPolicy": "Default", "containers": [{
                "name": "c", "image": act.image(), "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {},
            }]},
        });
        for (pointer, value) in changes {
            let (parent, field) = pointer.rsplit_once('/').expect("a JSON pointer");
            pod.pointer_mut(parent).expect("the pod has it")[field] = value.clone();
        }
        self.server.bind(pod, "node1");
    }

    fn pod(&self, name: &str) -> Option<Value> {
        self.server.object(&path(name))
    }

    fn phase(&self, name: &str) -> String {
        self.pod(name)
            .map_or_else(String::new, |pod| pod["status"]["phase"].as_str().unwrap_or("").to_owned())
    }

    fn remove(&self, name: &str, how: Removal) {
        self.server.remove(&path(name), how);
    }

    fn cut(&self, is_cut: bool) {
        self.server.faults().refuse = is_cut;
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

fn cluster(node: &Node) -> &Cluster {
    node.cluster.as_ref().expect("the node has a cluster")
}

/// Ids of running containers of pods of this name.
fn running(node: &Node, name: &str) -> Vec<String> {
    let world = node.fake.world();
    let records = world.containers.values().map(|container| &container.observed);
    let live =
        records.filter(|record| record.pod.name == name && record.state == ContainerStateKind::Running);
    live.map(|record| record.id.to_string()).collect()
}

/// Ids of all containers ever made for pods of this name that are still recorded.
fn recorded(node: &Node, name: &str) -> usize {
    let world = node.fake.world();
    world.containers.values().filter(|container| container.observed.pod.name == name).count()
}

#[test]
fn a_bound_pod_runs_and_its_deletion_is_a_handshake() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        assert_eq!((running(&node, "web").len(), cluster(&node).phase("web")), (1, "Running".to_owned()));
        cluster(&node).remove("web", Removal::Graceful(30));
        node.wait(SECOND).await;
        assert_eq!(running(&node, "web").len(), 1, "it takes two seconds to stop");
        assert!(cluster(&node).pod("web").is_some());
        node.wait(10 * SECOND).await;
        assert_eq!((running(&node, "web").len(), cluster(&node).pod("web")), (0, None));
        assert_eq!(recorded(&node, "web"), 0);
    });
}

#[test]
fn a_shorter_grace_is_taken_a_longer_is_not() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Stubborn);
        node.wait(10 * SECOND).await;
        cluster(&node).remove("web", Removal::Graceful(600));
        node.wait(10 * SECOND).await;
        cluster(&node).remove("web", Removal::Graceful(20));
        node.wait(5 * SECOND).await;
        cluster(&node).remove("web", Removal::Graceful(300));
        assert_eq!(running(&node, "web").len(), 1);
        node.wait(25 * SECOND).await;
        assert_eq!((running(&node, "web").len(), cluster(&node).pod("web")), (0, None));
    });
}

#[test]
fn a_forced_deletion_uses_the_pods_grace() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Stubborn);
        node.wait(10 * SECOND).await;
        cluster(&node).remove("web", Removal::Force);
        node.wait(20 * SECOND).await;
        assert_eq!((running(&node, "web").len(), cluster(&node).pod("web")), (1, None));
        node.wait(15 * SECOND).await;
        assert_eq!(recorded(&node, "web"), 0);
    });
}

#[test]
fn a_new_uid_of_a_name_waits_for_the_old() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Stubborn);
        node.wait(10 * SECOND).await;
        let old = running(&node, "web");
        cluster(&node).remove("web", Removal::Force);
        cluster(&node).bind("web", "Always", Act::Forever);
        for _ in 0..25 {
            node.wait(SECOND).await;
            assert_eq!(running(&node, "web"), old);
        }
        node.wait(30 * SECOND).await;
        let new = running(&node, "web");
        assert!(new.len() == 1 && new != old, "{new:?}");
        assert_eq!(cluster(&node).phase("web"), "Running");
    });
}

#[test]
fn a_reboot_offline_starts_every_cached_pod() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Forever);
        cluster(&node).bind("job", "Never", Act::Done);
        node.wait(30 * SECOND).await;
        assert_eq!(cluster(&node).phase("job"), "Succeeded");
        let jobs = recorded(&node, "job");
        cluster(&node).cut(true);
        node.crash();
        node.fake.reboot();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!((running(&node, "web").len(), running(&node, "job").len()), (1, 0));
        assert!(recorded(&node, "job") <= jobs, "what has ended does not run again");
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        assert_eq!((cluster(&node).phase("web").as_str(), running(&node, "web").len()), ("Running", 1));
    });
}

#[test]
fn a_finished_job_reports_after_a_reboot() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("job", "Never", Act::Done);
        node.wait(3 * SECOND).await;
        cluster(&node).cut(true);
        node.wait(MINUTE).await;
        node.crash();
        node.fake.reboot();
        node.start().await;
        node.wait(MINUTE).await;
        assert_ne!(cluster(&node).phase("job"), "Succeeded");
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        assert_eq!(cluster(&node).phase("job"), "Succeeded");
    });
}

#[test]
fn a_deletion_ends_after_a_reboot() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Stubborn);
        node.wait(10 * SECOND).await;
        cluster(&node).remove("web", Removal::Graceful(30));
        node.wait(5 * SECOND).await;
        cluster(&node).cut(true);
        node.crash();
        node.fake.reboot();
        node.start().await;
        node.wait(2 * MINUTE).await;
        assert_eq!(running(&node, "web").len(), 0, "a deletion is not forgotten");
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        assert_eq!(cluster(&node).pod("web"), None);
    });
}

#[test]
fn a_replaced_cluster_keeps_pods_until_it_is_accepted() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        cluster(&node).cut(true);
        node.wait(2 * MINUTE).await;
        cluster(&node).server.replace();
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        assert!(cluster(&node).memory.is_guarded());
        node.crash();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(running(&node, "web"), before, "held, also after a restart");
        assert!(cluster(&node).memory.is_guarded());
        cluster(&node).memory.accept();
        node.wait(MINUTE).await;
        assert!(running(&node, "web").is_empty() && !cluster(&node).memory.is_guarded());
    });
}

#[test]
fn a_backup_behind_a_short_outage_is_judged() {
    simulate(async {
        let mut node = joined().await;
        let empty = cluster(&node).server.snapshot();
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        cluster(&node).server.restore(empty);
        node.wait(30 * SECOND).await;
        assert_eq!((running(&node, "web"), cluster(&node).memory.is_guarded()), (before.clone(), true));
        cluster(&node).cut(true);
        node.wait(5 * MINUTE).await;
        cluster(&node).cut(false);
        node.wait(MINUTE).await;
        assert_eq!(
            (running(&node, "web"), cluster(&node).memory.is_guarded()),
            (before, true),
            "listed again"
        );
        node.wait(6 * MINUTE).await;
        assert_eq!(
            (running(&node, "web").len(), cluster(&node).memory.is_guarded()),
            (0, false),
            "after its grace"
        );
    });
}

#[test]
fn a_wrong_server_removes_nothing() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        cluster(&node).cut(true);
        node.wait(2 * MINUTE).await;
        cluster(&node).server.faults().html = true;
        cluster(&node).cut(false);
        node.wait(30 * MINUTE).await;
        assert_eq!(running(&node, "web"), before);
        cluster(&node).server.faults().html = false;
        cluster(&node).server.faults().status = Some(401);
        node.wait(30 * MINUTE).await;
        assert_eq!(running(&node, "web"), before);
    });
}

#[test]
fn the_link_flaps_100_times_and_nothing_moves() {
    simulate(async {
        let mut node = joined().await;
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        let before = running(&node, "web");
        let patches = |node: &Node| {
            let writes = cluster(node).server.writes();
            writes.iter().filter(|call| call.path.contains("/pods/")).count()
        };
        let sent = patches(&node);
        for flap in 0..100 {
            cluster(&node).cut(flap % 2 == 0);
            node.wait(Duration::from_secs(flap % 7 + 1)).await;
        }
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        assert_eq!((running(&node, "web"), patches(&node)), (before, sent));
    });
}

#[test]
fn the_fence_ends_stateful_pods_only() {
    simulate(async {
        let mut node = unjoined(1);
        node.cluster.as_mut().expect("joined").offline_max_age = Some(10 * MINUTE);
        node.start().await;
        node.wait(5 * SECOND).await;
        let owner = |kind: &str| {
            let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o"}]);
            [("/metadata/ownerReferences", owner)]
        };
        cluster(&node).bind_with("db", "Always", Act::Forever, &owner("StatefulSet"));
        cluster(&node).bind_with("web", "Always", Act::Forever, &owner("ReplicaSet"));
        node.wait(10 * SECOND).await;
        cluster(&node).cut(true);
        node.wait(9 * MINUTE).await;
        assert_eq!(running(&node, "db").len(), 1);
        node.wait(3 * MINUTE).await;
        assert_eq!((running(&node, "db").len(), running(&node, "web").len()), (0, 1));
        node.crash();
        node.start().await;
        node.wait(MINUTE).await;
        assert!(running(&node, "db").is_empty(), "its end is stored");
        cluster(&node).cut(false);
        node.wait(2 * MINUTE).await;
        let ended = cluster(&node).pod("db").expect("it is not deleted");
        assert_eq!(
            (&ended["status"]["phase"], &ended["status"]["reason"]),
            (&json!("Failed"), &json!("OfflineTooLong"))
        );
    });
}

#[test]
fn a_critical_pod_preempts_as_upstream() {
    simulate(async {
        let mut node = unjoined(1);
        node.facts.allocatable.insert("pods".to_owned(), Quantity::from_units(1));
        node.start().await;
        node.wait(5 * SECOND).await;
        cluster(&node).bind("web", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        cluster(&node).bind("late", "Always", Act::Forever);
        node.wait(10 * SECOND).await;
        assert_eq!((cluster(&node).phase("late").as_str(), running(&node, "web").len()), ("Failed", 1));
        let critical = [("/spec/priority", json!(2_000_001_000))];
        cluster(&node).bind_with("vital", "Always", Act::Forever, &critical);
        node.wait(MINUTE).await;
        assert_eq!((running(&node, "vital").len(), running(&node, "web").len()), (1, 0));
        let victim = cluster(&node).pod("web").expect("it is not deleted");
        assert_eq!(
            (&victim["status"]["phase"], &victim["status"]["reason"]),
            (&json!("Failed"), &json!("Preempting"))
        );
    });
}

/// The scheduler binds the next pod as soon as it sees that one has ended, however long its sandbox takes to go.
#[test]
fn a_pod_that_is_seen_as_ended_has_left_its_place() {
    simulate(async {
        let mut node = unjoined(1);
        node.facts.allocatable.insert("pods".to_owned(), Quantity::from_units(1));
        node.start().await;
        node.wait(5 * SECOND).await;
        node.fake.faults().hang.insert("StopPodSandbox");
        cluster(&node).bind("job", "Never", Act::Done);
        node.wait(10 * SECOND).await;
        assert_eq!(cluster(&node).phase("job"), "Succeeded");
        cluster(&node).bind("next", "Never", Act::Done);
        node.wait(10 * SECOND).await;
        assert_eq!(cluster(&node).phase("next"), "Succeeded");
    });
}

#[test]
fn a_stock_kubelets_pods_are_adopted() {
    simulate(async {
        let mut node = unjoined(1);
        let seen = cluster(&node);
        let at = "2026-11-20T15:00:00Z";
        let status = |phase: &str, state: Value| {
            let conditions = json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]);
            let container = json!({"name": "c", "state": state, "ready": false, "restartCount": 3, "image": "i", "imageID": "i"});
            let status = json!({"phase": phase, "startTime": at, "conditions": conditions, "qosClass": "BestEffort",
                "containerStatuses": [container]});
            [("/status", status)]
        };
        let ended = json!({"terminated": {"exitCode": 0, "startedAt": at, "finishedAt": at}});
        seen.bind_with("job", "Never", Act::Done, &status("Succeeded", ended));
        seen.bind_with(
            "web",
            "Always",
            Act::Forever,
            &status("Running", json!({"running": {"startedAt": at}})),
        );
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!((recorded(&node, "job"), cluster(&node).phase("job").as_str()), (0, "Succeeded"));
        assert_eq!((running(&node, "web").len(), cluster(&node).phase("web").as_str()), (1, "Running"));
        cluster(&node).remove("job", Removal::Graceful(30));
        node.wait(10 * SECOND).await;
        assert_eq!(cluster(&node).pod("job"), None);
    });
}

#[test]
fn a_crash_at_each_write_of_a_pods_life_loses_nothing() {
    for write in 1..14 {
        for moment in [WriteMoment::Before, WriteMoment::After] {
            simulate(async move {
                let mut node = joined().await;
                node.writes.crash_at(write, moment);
                cluster(&node).bind("web", "Always", Act::Forever);
                cluster(&node).bind("job", "Never", Act::Done);
                node.wait(MINUTE).await;
                if node.agent.is_none() {
                    node.start().await;
                    node.wait(MINUTE).await;
                }
                let context = format!("write {write} {moment:?}");
                assert_eq!(cluster(&node).phase("job"), "Succeeded", "{context}");
                assert_eq!(
                    (running(&node, "web").len(), cluster(&node).phase("web").as_str()),
                    (1, "Running"),
                    "{context}"
                );
                node.writes.crash_at(write, moment);
                cluster(&node).remove("web", Removal::Graceful(30));
                cluster(&node).remove("job", Removal::Graceful(30));
                node.wait(MINUTE).await;
                if node.agent.is_none() {
                    node.start().await;
                    node.wait(MINUTE).await;
                }
                assert_eq!((cluster(&node).pod("web"), cluster(&node).pod("job")), (None, None), "{context}");
                assert_eq!(recorded(&node, "web") + recorded(&node, "job"), 0, "{context}");
            });
        }
    }
}

#[test]
fn a_pod_with_resource_claims_is_not_started() {
    simulate(async {
        let mut node = joined().await;
        let claims = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
        cluster(&node).bind_with("gpu", "Always", Act::Forever, &[("/spec/resourceClaims", claims)]);
        node.wait(MINUTE).await;
        assert_eq!((recorded(&node, "gpu"), cluster(&node).phase("gpu").as_str()), (0, "Pending"));
        let events = node.agent.as_ref().expect("it runs").events.recent();
        let mut events = events.iter().filter(|event| event.key.reason == "FailedPrepareDynamicResources");
        let event = events.next().expect("it says why");
        assert_eq!(
            event.key.message,
            "Failed to prepare dynamic resources: this node has no dynamic resource allocation"
        );
        cluster(&node).remove("gpu", Removal::Graceful(30));
        node.wait(10 * SECOND).await;
        assert_eq!(cluster(&node).pod("gpu"), None);
    });
}
