//! The controllers in the whole agent: one commit from an object to its pods, and an agent that dies in between.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use edge_agent::desired::pod_config::PodConfig;
use edge_agent::desired::pod_config::edit::ApiChange;
use edge_agent::model::objects::{LocalObject, ObjectKey, ObjectKind};
use edge_agent::model::observed::ContainerStateKind;
use edge_agent::model::types::{ContainerId, PodSource, Timestamp};
use edge_agent::runtime::fake::Program;
use edge_agent::store::WriteMoment;
use serde_json::{Value, json};

use super::{MINUTE, SECOND, node_with};
use crate::sim::finish;
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, object};

fn template(act: Act, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": restart, "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": false,
            "containers": [{"name": "c0", "image": act.image(), "imagePullPolicy": "IfNotPresent"}]},
    })
}

fn document(kind: &str, spec: &Value) -> String {
    let version = if matches!(kind, "Job" | "CronJob") { "batch/v1" } else { "apps/v1" };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "web", "namespace": "default"}, "spec": spec}).to_string()
}

fn set_of_pods(kind: &str, replicas: u32, act: Act) -> String {
    let mut spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template(act, "Always")});
    if kind == "StatefulSet" {
        spec["serviceName"] = json!("web");
        let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": claim}]);
    }
    document(kind, &spec)
}

fn key(kind: ObjectKind) -> ObjectKey {
    ObjectKey { kind, namespace: "default".to_owned(), name: "web".to_owned() }
}

/// As `kubectl apply`.
fn apply(node: &Node, text: &str) {
    let new = object(text, PodSource::Api).object;
    let put = Box::new(move |config: &PodConfig| {
        let known = config.objects_by_source().find(|(_, known)| known.object.key == new.key);
        let mut object = LocalObject::clone(&new);
        if let Some((_, known)) = known {
            let (was, becomes) = (known.object.content.body(), object.content.body());
            object.uid.clone_from(&known.object.uid);
            object.created = known.object.created;
            object.generation = known.object.generation + i64::from(was["spec"] != becomes["spec"]);
            object.annotations.clone_from(&known.object.annotations);
            if let edge_agent::model::objects::ObjectContent::Plain(body) = &mut object.content {
                *body = body.with("status", was["status"].clone());
            }
        } else {
            object.created = Timestamp::from_secs(1_795_190_400);
        }
        ApiChange { put_objects: vec![Rc::new(object)], ..ApiChange::default() }
    });
    assert!(node.agent.as_ref().expect("the agent runs").editor.post(put));
}

fn delete(node: &Node, kind: ObjectKind) {
    let remove =
        Box::new(move |_: &PodConfig| ApiChange { remove_objects: vec![key(kind)], ..ApiChange::default() });
    assert!(node.agent.as_ref().expect("the agent runs").editor.post(remove));
}

/// The containers that run, with the image and the pod of each.
fn containers(node: &Node) -> BTreeMap<ContainerId, (String, String)> {
    let world = node.fake.world();
    let records = world.containers.values().map(|container| &container.observed);
    records
        .filter(|record| record.state == ContainerStateKind::Running)
        .map(|record| (record.id.clone(), (record.image.clone(), record.pod.name.clone())))
        .collect()
}

fn pods(node: &Node) -> BTreeSet<String> {
    containers(node).into_values().map(|(_, pod)| pod).collect()
}

/// All objects of the store, by kind.
async fn stored(node: &Node) -> BTreeMap<ObjectKind, Vec<Rc<LocalObject>>> {
    let loaded = node.stored().await;
    let mut objects: BTreeMap<ObjectKind, Vec<Rc<LocalObject>>> = BTreeMap::new();
    for object in loaded.desired.into_iter().flat_map(|source| source.objects) {
        objects.entry(object.object.key.kind).or_default().push(object.object);
    }
    objects
}

async fn status(node: &mut Node, kind: ObjectKind) -> Value {
    node.stop().await;
    let status = stored(node).await[&kind][0].content.body()["status"].clone();
    node.start().await;
    status
}

#[test]
fn a_deployment_becomes_running_pods_and_rests() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        apply(&node, &set_of_pods("Deployment", 3, Act::Forever));
        node.wait(5 * SECOND).await;
        let before = containers(&node);
        assert_eq!(before.len(), 3);
        node.wait(MINUTE).await;
        finish::check_rest(&mut node).await;
        assert_eq!(status(&mut node, ObjectKind::Deployment).await["availableReplicas"], 3);
        // The agent that comes after adopts everything and remakes nothing.
        node.wait(MINUTE).await;
        assert_eq!(containers(&node), before);
        node.crash();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(containers(&node), before);
        delete(&node, ObjectKind::Deployment);
        node.wait(MINUTE).await;
        assert!(containers(&node).is_empty());
        node.stop().await;
        assert!(stored(&node).await.is_empty(), "nothing is left of it");
    });
}

#[test]
fn a_tag_is_followed_once_an_hour_and_through_a_crash() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        let image = Act::Forever.image();
        let pinned = format!("{image}@sha256:{}", "a".repeat(64));
        node.fake.change(|world, _| world.set_programs(&pinned, vec![Program::forever()]));
        node.fake.add_remote_image(&pinned, SECOND);
        let mut web: Value = serde_json::from_str(&set_of_pods("Deployment", 1, Act::Forever)).unwrap();
        web["metadata"]["annotations"] = json!({"workloads.agent.edge/image-update": "registry"});
        apply(&node, &web.to_string());
        node.wait(4 * MINUTE).await;
        assert_eq!(node.registry.asked.get(), 0, "not before five minutes");
        let before = containers(&node);
        node.wait(12 * MINUTE).await;
        assert_eq!(node.registry.asked.get(), 1);
        finish::check_rest(&mut node).await;
        assert_eq!(containers(&node), before, "a registry without an answer changes nothing");

        let digest = format!("sha256:{}", "a".repeat(64));
        node.registry.digests.borrow_mut().insert(image, digest);
        let asked = node.registry.asked.get();
        node.wait(61 * MINUTE).await;
        assert_eq!(node.registry.asked.get(), asked + 1);
        let after = containers(&node);
        let images: Vec<&String> = after.values().map(|(image, _)| image).collect();
        assert_eq!(images, [&pinned]);
        node.crash();
        node.start().await;
        node.wait(61 * MINUTE).await;
        assert!(node.registry.asked.get() > asked + 1, "asked again after the crash");
        assert_eq!(containers(&node), after, "the same digest changes nothing");
        delete(&node, ObjectKind::Deployment);
        node.wait(MINUTE).await;
        let asked = node.registry.asked.get();
        node.wait(180 * MINUTE).await;
        assert_eq!(node.registry.asked.get(), asked, "nothing is asked without a Deployment");
    });
}

/// Dies at this write of an apply, a rollout, a scaling. False when it does not come so far.
fn survives(number: u64, moment: WriteMoment) -> bool {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        apply(&node, &set_of_pods("Deployment", 2, Act::Forever));
        node.wait(5 * SECOND).await;
        node.writes.crash_at(number, moment);
        let wanted = set_of_pods("Deployment", 3, Act::Stubborn);
        apply(&node, &wanted);
        node.wait(MINUTE).await;
        let died = node.agent.is_none();
        if died {
            node.start().await;
            // Its user has had no answer, and applies it again.
            apply(&node, &wanted);
            node.wait(2 * MINUTE).await;
        }
        node.writes.spare();
        let running = containers(&node);
        let images: Vec<&String> = running.values().map(|(image, _)| image).collect();
        assert_eq!(images, [&Act::Stubborn.image(); 3], "write {number}, {moment:?}");
        node.stop().await;
        let stored = stored(&node).await;
        assert_eq!((stored[&ObjectKind::ReplicaSet].len(), stored[&ObjectKind::Deployment].len()), (2, 1));
        died
    })
}

#[test]
fn a_crash_at_any_write_of_a_rollout_changes_nothing_in_the_end() {
    for moment in [WriteMoment::Before, WriteMoment::After] {
        let writes = (1..200).take_while(|number| survives(*number, moment)).count();
        assert!(writes > 8, "{writes} writes only");
    }
}

#[test]
fn a_crash_at_any_write_of_a_job_counts_each_pod_once() {
    let job = json!({"completions": 3, "parallelism": 2, "backoffLimit": 4, "template": template(Act::Done, "Never")});
    for moment in [WriteMoment::Before, WriteMoment::After] {
        let mut number = 1;
        loop {
            let died = simulate(async {
                let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
                apply(&node, &document("Job", &job));
                node.wait(SECOND / 10).await;
                node.writes.crash_at(number, moment);
                node.wait(MINUTE).await;
                let died = node.agent.is_none();
                if died {
                    node.start().await;
                    node.wait(2 * MINUTE).await;
                }
                node.writes.spare();
                let status = status(&mut node, ObjectKind::Job).await;
                // A pod that is not restarted may be lost with the agent that started it; it is replaced then.
                let failed = status["failed"].as_u64().unwrap_or_default();
                assert!(failed <= u64::from(died), "write {number}, {moment:?}: {status}");
                assert_eq!(status["succeeded"], 3, "write {number}, {moment:?}");
                assert!(status["completionTime"].is_string());
                node.stop().await;
                let loaded = node.stored().await;
                let pods = loaded.desired.iter().map(|source| source.pods.len() as u64).sum::<u64>();
                assert_eq!(pods, 3 + failed, "write {number}, {moment:?}: each pod is counted once");
                died
            });
            if !died {
                break;
            }
            number += 1;
        }
        assert!(number > 3, "{number} writes only");
    }
}

#[test]
fn a_failing_job_gives_up_and_keeps_its_count_in_a_power_cut() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        let job = json!({"backoffLimit": 2, "template": template(Act::Crashes, "Never")});
        apply(&node, &document("Job", &job));
        node.wait(15 * SECOND).await;
        node.crash();
        node.fake.reboot();
        node.start().await;
        node.wait(5 * MINUTE).await;
        let status = status(&mut node, ObjectKind::Job).await;
        assert_eq!((&status["failed"], status.get("succeeded")), (&json!(3), None), "{status}");
        let reasons: Vec<&Value> =
            status["conditions"].as_array().unwrap().iter().map(|one| &one["reason"]).collect();
        assert_eq!(reasons, ["BackoffLimitExceeded", "BackoffLimitExceeded"]);
    });
}

#[test]
fn a_suspended_job_has_not_failed_and_goes_on() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        let job = |suspend: bool| {
            let spec = json!({"completions": 3, "parallelism": 3, "backoffLimit": 1, "suspend": suspend,
                "template": template(Act::Stubborn, "Never")});
            document("Job", &spec)
        };
        apply(&node, &job(false));
        node.wait(5 * SECOND).await;
        assert_eq!(containers(&node).len(), 3);
        apply(&node, &job(true));
        node.wait(MINUTE).await;
        assert!(containers(&node).is_empty());
        let shown = status(&mut node, ObjectKind::Job).await;
        let kinds: Vec<&Value> =
            shown["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
        assert_eq!((kinds, shown.get("failed")), (vec![&json!("Suspended")], None), "{shown}");
        apply(&node, &job(false));
        node.wait(MINUTE).await;
        assert_eq!(containers(&node).len(), 3);
        let shown = status(&mut node, ObjectKind::Job).await;
        assert_eq!((&shown["active"], shown.get("failed")), (&json!(3), None), "{shown}");
    });
}

#[test]
fn a_deleted_pod_of_a_job_is_counted_once() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        let job = json!({"completions": 2, "parallelism": 2, "backoffLimit": 3, "template": template(Act::Stubborn, "Never")});
        apply(&node, &document("Job", &job));
        node.wait(5 * SECOND).await;
        let before = containers(&node);
        assert_eq!(before.len(), 2);
        // As `kubectl delete pod`.
        let delete = Box::new(|config: &PodConfig| {
            let (_, found) =
                config.pods_by_source().find(|(source, _)| *source == PodSource::Api).expect("a pod");
            let mut pod = Rc::clone(&found.pod);
            let metadata = &mut Rc::make_mut(&mut pod).metadata;
            metadata.deletion_timestamp = Some(Timestamp::from_secs(1_795_190_405));
            metadata.deletion_grace_period_seconds = Some(5);
            ApiChange { put_pods: vec![pod], ..ApiChange::default() }
        });
        assert!(node.agent.as_ref().expect("the agent runs").editor.post(delete));
        node.wait(2 * MINUTE).await;
        let after = containers(&node);
        assert_eq!((after.len(), after.keys().filter(|id| before.contains_key(*id)).count()), (2, 1));
        let shown = status(&mut node, ObjectKind::Job).await;
        assert_eq!((&shown["failed"], &shown["active"]), (&json!(1), &json!(2)), "{shown}");
    });
}

#[test]
fn a_refused_pod_is_tried_again_when_its_class_is_there() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        let mut template = template(Act::Forever, "Always");
        template["spec"]["priorityClassName"] = json!("important");
        let spec = json!({"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template});
        apply(&node, &document("Deployment", &spec));
        node.wait(MINUTE).await;
        assert!(containers(&node).is_empty());
        let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "important"}, "value": 1_000});
        apply(&node, &class.to_string());
        node.wait(10 * SECOND).await;
        assert_eq!(containers(&node).len(), 2);
    });
}

#[test]
fn a_cron_job_keeps_its_times_through_crashes_and_clocks() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        let job = json!({"spec": {"template": template(Act::Done, "Never")}});
        let cron = json!({"schedule": "*/5 * * * *", "successfulJobsHistoryLimit": 100, "jobTemplate": job});
        apply(&node, &document("CronJob", &cron));
        node.wait(16 * MINUTE).await;
        let started =
            |node: &Node| node.fake.calls().iter().filter(|call| call.call == "StartContainer").count();
        assert_eq!(started(&node), 3);
        // Set back: what has run does not run again.
        node.clock.set(Timestamp::from_secs(1_795_190_400));
        node.wait(14 * MINUTE).await;
        assert_eq!(started(&node), 3);
        node.crash();
        node.start().await;
        node.wait(2 * MINUTE).await;
        assert_eq!(started(&node), 3);
        node.wait(5 * MINUTE).await;
        assert_eq!(started(&node), 4);
        // Boots in 1970, and is right a while later.
        node.crash();
        node.clock.set(Timestamp::from_secs(20));
        node.start().await;
        node.wait(30 * MINUTE).await;
        assert_eq!(started(&node), 4);
        node.clock.set(Timestamp::from_secs(1_795_190_400 + 86_400 + 10));
        node.wait(MINUTE).await;
        assert_eq!(started(&node), 5, "the newest of the missed ones");
        node.wait(5 * MINUTE).await;
        assert_eq!(started(&node), 6);
        node.stop().await;
        assert_eq!(stored(&node).await[&ObjectKind::Job].len(), 6);
    });
}

#[test]
fn a_stateful_set_keeps_names_and_claims_through_a_reboot() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        apply(&node, &set_of_pods("StatefulSet", 2, Act::Forever));
        node.wait(10 * SECOND).await;
        let names = BTreeSet::from(["web-0".to_owned(), "web-1".to_owned()]);
        assert_eq!(pods(&node), names);
        node.crash();
        node.fake.reboot();
        node.start().await;
        node.wait(MINUTE).await;
        assert_eq!(pods(&node), names);
        apply(&node, &set_of_pods("StatefulSet", 2, Act::Stubborn));
        node.wait(2 * MINUTE).await;
        assert_eq!(pods(&node), names);
        assert!(containers(&node).values().all(|(image, _)| *image == Act::Stubborn.image()));
        finish::check_rest(&mut node).await;
        node.stop().await;
        let stored = stored(&node).await;
        let count = |kind| stored.get(&kind).map_or(0, Vec::len);
        assert_eq!((count(ObjectKind::PersistentVolumeClaim), count(ObjectKind::ControllerRevision)), (2, 2));
    });
}

/// Its pods have the names of those that are still ending.
#[test]
fn a_stateful_set_made_again_waits_for_the_pods_of_the_old() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        apply(&node, &set_of_pods("StatefulSet", 2, Act::Stubborn));
        node.wait(20 * SECOND).await;
        let before = containers(&node);
        assert_eq!(before.len(), 2);
        delete(&node, ObjectKind::StatefulSet);
        node.wait(SECOND).await;
        let mut again =
            LocalObject::clone(&object(&set_of_pods("StatefulSet", 2, Act::Stubborn), PodSource::Api).object);
        "again".clone_into(&mut again.uid);
        let put = Box::new(move |_: &PodConfig| ApiChange {
            put_objects: vec![Rc::new(again)],
            ..ApiChange::default()
        });
        assert!(node.agent.as_ref().expect("the agent runs").editor.post(put));
        node.wait(SECOND).await;
        assert_eq!(containers(&node), before, "they take five seconds");
        node.wait(MINUTE).await;
        let after = containers(&node);
        assert_eq!(pods(&node), BTreeSet::from(["web-0".to_owned(), "web-1".to_owned()]));
        assert!(after.keys().all(|id| !before.contains_key(id)), "{after:?}");
    });
}

#[test]
fn objects_of_manifests_act_and_keep_their_status_beside_them() {
    simulate(async {
        let mut node = node_with(&[PodSource::File, PodSource::Api]).await;
        let say = |node: &mut Node, objects: Vec<String>| {
            let objects = objects.iter().map(|text| object(text, PodSource::File)).collect();
            node.defined.insert(PodSource::File, objects);
            node.want(PodSource::File, &[]);
        };
        let daemon = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template(Act::Forever, "Always")});
        let daemon = document("DaemonSet", &daemon);
        say(&mut node, vec![set_of_pods("Deployment", 2, Act::Forever), daemon.clone()]);
        node.wait(10 * SECOND).await;
        let before = containers(&node);
        assert_eq!(before.len(), 3);
        assert_eq!(status(&mut node, ObjectKind::Deployment).await["readyReplicas"], 2);
        // The same again, and the agent after the next: nothing changes.
        say(&mut node, vec![set_of_pods("Deployment", 2, Act::Forever), daemon.clone()]);
        node.wait(MINUTE).await;
        assert_eq!(containers(&node), before);
        finish::check_rest(&mut node).await;
        say(&mut node, vec![set_of_pods("Deployment", 1, Act::Stubborn), daemon]);
        node.wait(MINUTE).await;
        assert_eq!(containers(&node).len(), 2);
        let status = status(&mut node, ObjectKind::Deployment).await;
        assert_eq!((&status["updatedReplicas"], &status["observedGeneration"]), (&json!(1), &json!(2)));
        say(&mut node, Vec::new());
        node.wait(MINUTE).await;
        assert!(containers(&node).is_empty(), "they go with their manifest");
    });
}
