//! Pods of the API: creation and permitted changes.

use super::*;
use crate::model::api::decode::decode;
use serde_json::json;

fn pod(spec: &Value) -> Pod {
    decode(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": spec})).unwrap().object
}

fn made(spec: &Value) -> Pod {
    create(pod(spec), "node", PodUid::from("u"), Timestamp::from_secs(7)).unwrap()
}

fn plain() -> Value {
    json!({"containers": [{"name": "c", "image": "busybox:1", "resources": {"requests": {"cpu": "100m"}}}]})
}

/// The errors of a change, as text.
fn refused(old: &Pod, part: Part, change: impl Fn(&mut Pod)) -> Vec<String> {
    let mut new = old.clone();
    change(&mut new);
    update(old, new, part).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

#[test]
fn new_pod_overrides_client_set_metadata_and_status() {
    let mut written = pod(&plain());
    written.metadata.uid = PodUid::from("mine");
    written.metadata.resource_version = "5".to_owned();
    written.metadata.deletion_timestamp = Some(Timestamp::from_secs(1));
    written.metadata.annotations =
        [("kubernetes.io/config.source", "file"), ("kubernetes.io/config.mirror", "x"), ("a", "b")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    written.status.phase = "Succeeded".to_owned();
    let made = create(written, "node", PodUid::from("u"), Timestamp::from_secs(7)).unwrap();
    let metadata = &made.metadata;
    assert_eq!((metadata.uid.as_str(), metadata.generation, metadata.name.as_str()), ("u", 1, "p"));
    assert_eq!(
        (metadata.creation_timestamp, metadata.deletion_timestamp),
        (Some(Timestamp::from_secs(7)), None)
    );
    assert_eq!((made.spec.node_name.as_str(), made.status.phase.as_str()), ("node", "Pending"));
    assert_eq!(metadata.annotations["kubernetes.io/config.source"], "api");
    assert_eq!(metadata.annotations.get("kubernetes.io/config.mirror"), None);
    assert_eq!(metadata.annotations["a"], "b");
}

#[test]
fn a_status_keeps_what_clients_say_and_the_node_the_rest() {
    let old = made(&plain());
    let said = |conditions: Value| {
        let said: PodStatus = decode(json!({"phase": "Failed", "conditions": conditions})).unwrap().object;
        update_status(&old, &said)
    };
    let gate = json!({"type": "example.com/gate", "status": "True", "reason": "Open"});
    let new = said(json!([{"type": "Ready", "status": "True"}, gate])).unwrap();
    let kept: Vec<&str> = new.status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!((new.status.phase.as_str(), kept), ("Pending", vec!["example.com/gate"]));
    assert_eq!(stored_status(&new), new.status);
    assert_eq!(update_status(&new, &PodStatus::default()).unwrap().status, old.status);
    let labelled = update(&new, new.clone(), Part::Itself).unwrap();
    assert_eq!(labelled.status, new.status, "other changes leave it");
    let words: Vec<String> = said(json!([{"type": "a b", "status": "Yes"}]))
        .unwrap_err()
        .iter()
        .map(|error| error.path.clone())
        .collect();
    assert_eq!(words, ["status.conditions[0].type", "status.conditions[0].status"]);
}

#[test]
fn of_trust_bundles_only_optional_ones_are_accepted() {
    let made = |source: Value| {
        let mut spec = plain();
        spec["volumes"] = json!([{"name": "v", "projected": {"sources": [source]}}]);
        let made = create(pod(&spec), "node", PodUid::from("u"), Timestamp::default());
        made.err().map(|errors| errors[0].to_string())
    };
    assert_eq!(made(json!({"clusterTrustBundle": {"name": "b", "path": "p", "optional": true}})), None);
    assert_eq!(made(json!({"serviceAccountToken": {"path": "token", "audience": "vault"}})), None);
    let bundle = made(json!({"clusterTrustBundle": {"name": "b", "path": "p"}}));
    let refused = "spec: Forbidden: pods of this node may not reference clustertrustbundles";
    assert_eq!(bundle.as_deref(), Some(refused));
}

#[test]
fn a_pod_of_another_node_is_refused() {
    let mut spec = plain();
    spec["nodeName"] = json!("other");
    spec["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
    let errors = create(pod(&spec), "node", PodUid::from("u"), Timestamp::default()).unwrap_err();
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "spec.nodeName: Invalid value: \"other\": the only node is \"node\"; omit the field",
            "spec: Forbidden: pods of this node may not reference resourceclaims",
        ]
    );
}

#[test]
fn update_may_change_only_images_labels_and_tolerations() {
    let mut spec = plain();
    spec["tolerations"] = json!([{"key": "a", "operator": "Exists"}]);
    spec["activeDeadlineSeconds"] = json!(100);
    let old = made(&spec);
    let mut new = old.clone();
    new.spec.containers[0].image = "busybox:2".to_owned();
    new.spec.tolerations.push(Toleration {
        key: "b".to_owned(),
        operator: "Exists".to_owned(),
        ..Toleration::default()
    });
    new.spec.active_deadline_seconds = Some(50);
    new.metadata.labels.insert("x".to_owned(), "y".to_owned());
    new.metadata.annotations.clear();
    let updated = update(&old, new, Part::Itself).unwrap();
    assert_eq!((updated.metadata.generation, updated.spec.containers[0].image.as_str()), (2, "busybox:2"));
    assert_eq!(updated.metadata.annotations, old.metadata.annotations, "what is ours stays");

    let only = |field: &str| format!("{field}: Forbidden: ");
    let words = refused(&old, Part::Itself, |new| new.spec.containers[0].command = vec!["x".to_owned()]);
    assert_eq!(words, [format!("{}{ONLY_THESE}", only("spec"))]);
    let words = refused(&old, Part::Itself, |new| new.spec.containers.push(Container::default()));
    assert_eq!(words, ["spec.containers: Forbidden: pod updates may not add or remove containers"]);
    let words = refused(&old, Part::Itself, |new| new.spec.active_deadline_seconds = Some(200));
    assert!(words[0].contains("must be less than or equal to previous value"), "{words:?}");
    let words = refused(&old, Part::Itself, |new| new.spec.tolerations.clear());
    assert!(words[0].contains("existing toleration can not be modified"), "{words:?}");
    let words = refused(&old, Part::Itself, |new| new.spec.containers[0].image.clear());
    assert!(words[0].contains("spec.containers[0].image: Required value"), "{words:?}");
    let words = refused(&old, Part::Itself, |new| {
        new.metadata.labels.insert("x y".to_owned(), String::new());
    });
    assert!(words[0].starts_with("metadata.labels: Invalid value: \"x y\""), "{words:?}");
}

#[test]
fn gates_are_only_taken_away_and_then_the_pod_is_placed() {
    let mut spec = plain();
    spec["schedulingGates"] = json!([{"name": "a"}, {"name": "b"}]);
    spec["nodeSelector"] = json!({"x": "1"});
    let old = made(&spec);
    assert_eq!(
        (old.spec.node_name.as_str(), old.status.conditions[0].reason.as_str()),
        ("", "SchedulingGated")
    );
    let mut new = old.clone();
    new.spec.scheduling_gates.remove(0);
    new.spec.node_selector.insert("y".to_owned(), "2".to_owned());
    new.spec.affinity = Some(json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "y", "operator": "Exists"}]}]}}}));
    let fewer = update(&old, new, Part::Itself).unwrap();
    assert_eq!(fewer.spec.scheduling_gates, [json!({"name": "b"})]);
    let words = refused(&fewer, Part::Itself, |new| new.spec.scheduling_gates.push(json!({"name": "c"})));
    assert_eq!(
        words,
        ["spec.schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate \"c\""]
    );
    let words = refused(&fewer, Part::Itself, |new| new.spec.node_selector.clear());
    assert!(words[0].starts_with("spec.nodeSelector: Invalid value: "), "{words:?}");
    let words = refused(&fewer, Part::Itself, |new| new.spec.affinity = None);
    assert_eq!(words, [format!("spec: Forbidden: {ONLY_THESE}")]);
    let mut free = fewer.clone();
    free.spec.scheduling_gates.clear();
    let mut free = update(&fewer, free, Part::Itself).unwrap();
    place(&mut free.spec, "node");
    assert_eq!((free.spec.node_name.as_str(), free.metadata.generation), ("node", 3));
    let words = refused(&free, Part::Itself, |new| new.spec.node_selector.clear());
    assert_eq!(words, [format!("spec: Forbidden: {ONLY_THESE}")]);
    spec["nodeName"] = json!("node");
    let errors = create(pod(&spec), "node", PodUid::from("u"), Timestamp::default()).unwrap_err();
    assert!(errors[0].to_string().starts_with("spec.nodeName: Forbidden: "), "{errors:?}");
}

#[test]
fn resize_may_change_only_cpu_and_memory_within_qos_class() {
    let old = made(&plain());
    let cpu = |text: &str| json!({"cpu": text});
    let resized = |requests: Value| {
        let mut new = old.clone();
        new.spec.containers[0].resources.requests = decode(requests).unwrap().object;
        update(&old, new, Part::Resize)
    };
    assert_eq!(resized(cpu("200m")).unwrap().metadata.generation, 2);
    let errors = resized(json!({})).unwrap_err();
    assert!(errors[0].detail.contains("QOS Class may not change"), "{errors:?}");
    let words = refused(&old, Part::Resize, |new| new.spec.containers[0].image = "x".to_owned());
    assert_eq!(words, ["spec: Forbidden: only cpu and memory resources are mutable"]);
}

#[test]
fn ephemeral_containers_join_and_stay() {
    let old = made(&plain());
    let guest =
        |name: &str| Container { name: name.to_owned(), image: "busybox".to_owned(), ..Container::default() };
    let mut new = old.clone();
    new.spec.ephemeral_containers.push(guest("debug"));
    let with = update(&old, new, Part::EphemeralContainers).unwrap();
    assert_eq!(with.spec.ephemeral_containers[0].termination_message_policy, "File");
    let labelled = update(&with, Pod::clone(&with), Part::Itself).unwrap();
    assert_eq!(labelled.spec, with.spec, "other updates leave them");
    let words = refused(&with, Part::EphemeralContainers, |new| new.spec.ephemeral_containers.clear());
    assert!(words[0].contains("\"debug\" may not be removed"), "{words:?}");
    let words =
        refused(&old, Part::EphemeralContainers, |new| new.spec.ephemeral_containers.push(guest("c")));
    assert_eq!(words, ["spec.ephemeralContainers[0].name: Duplicate value: \"c\""]);
    let words = refused(&old, Part::Itself, |new| new.spec.ephemeral_containers.push(guest("d")));
    assert_eq!(words.len(), 1);
}
