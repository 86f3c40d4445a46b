//! Pods that come through the node's own API: what is filled in when one is created, and which changes one may undergo
//! (upstream: the pod strategy's `PrepareForCreate`, `ValidatePodUpdate`, `ValidatePodResize`,
//! `ValidatePodEphemeralContainersUpdate`, 1.36).
//!
//! Owns these rules and their words. Must not know requests, nor what is wanted already.

use serde_json::{Map, Value};

use crate::api::pod::{
    Container, ObjectMeta, Pod, PodCondition, PodSpec, PodStatus, ResourceRequirements, Toleration, Volume,
};
use crate::reconcile::defaults::default_pod;
use crate::reconcile::merge::{LOCAL_ANNOTATIONS, mark_first_seen};
use crate::reconcile::plan::resize::infeasible;
use crate::reconcile::scheduling::{first_status, is_gated, place};
use crate::reconcile::static_pod::{CONFIG_HASH_ANNOTATION, refused_reference};
use crate::reconcile::status::{is_foreign, take_foreign_conditions};
use crate::reconcile::validation::names::qualified_name;
use crate::reconcile::validation::{
    FieldError, FieldErrorKind, validate_ephemeral, validate_placement, validate_pod,
};
use crate::types::{PodSource, PodUid, Timestamp};

/// What may change of a pod over one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The pod itself: metadata, images and little else.
    Itself,
    /// `resize`: CPU and memory.
    Resize,
    /// `ephemeralcontainers`: more of them.
    EphemeralContainers,
}

const ONLY_THESE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn error(kind: FieldErrorKind, path: &str, value: String, detail: impl Into<String>) -> FieldError {
    FieldError { path: path.to_owned(), kind, value, detail: detail.into() }
}

fn forbidden(path: &str, detail: impl Into<String>) -> FieldError {
    error(FieldErrorKind::Forbidden, path, String::new(), detail)
}

fn invalid(path: &str, value: impl std::fmt::Display, detail: &str) -> FieldError {
    error(FieldErrorKind::Invalid, path, value.to_string(), detail)
}

/// Why a pod is not admitted because of its service account (upstream: the admission plugin `ServiceAccount`). The account
/// `default` is there in every namespace and may do nothing; no account has a token.
#[must_use]
pub fn refused_account(pod: &Pod) -> Option<String> {
    let spec = &pod.spec;
    let name = match spec.service_account_name.as_str() {
        "" => &spec.deprecated_service_account,
        name => name,
    };
    if !matches!(name, "" | "default") {
        let namespace = &pod.metadata.namespace;
        return Some(format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        ));
    }
    let of_volume = |(index, volume): (usize, &Volume)| {
        let sources =
            volume.projected.as_ref().map(|projected| projected.sources.as_slice()).unwrap_or_default();
        let source = sources.iter().position(|source| source.service_account_token.is_some())?;
        Some(format!(
            "spec.volumes[{index}].projected.sources[{source}].serviceAccountToken: this node issues no service account tokens; leave the source out"
        ))
    };
    spec.volumes.iter().enumerate().find_map(of_volume)
}

/// Why a pod is not admitted because of its runtime class (upstream: the admission plugin `RuntimeClass`). A class is a handler of
/// the runtime; a runtime that does not tell its handlers is asked when the pod starts.
#[must_use]
pub fn refused_class<'a>(pod: &Pod, handlers: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let class = pod.spec.runtime_class_name.as_deref().filter(|class| !class.is_empty())?;
    let mut handlers = handlers.into_iter().peekable();
    handlers.peek()?;
    (!handlers.any(|handler| handler == class))
        .then(|| format!("pod rejected: RuntimeClass {class:?} not found"))
}

/// Makes a decoded pod, with name and namespace, ready to run on `node_name`.
///
/// # Errors
/// Every broken rule.
pub fn create(pod: Pod, node_name: &str, uid: PodUid, now: Timestamp) -> Result<Pod, Vec<FieldError>> {
    let mut pod = default_pod(pod);
    let metadata = &mut pod.metadata;
    *metadata = ObjectMeta {
        name: std::mem::take(&mut metadata.name),
        generate_name: std::mem::take(&mut metadata.generate_name),
        namespace: std::mem::take(&mut metadata.namespace),
        labels: std::mem::take(&mut metadata.labels),
        annotations: std::mem::take(&mut metadata.annotations),
        owner_references: std::mem::take(&mut metadata.owner_references),
        finalizers: std::mem::take(&mut metadata.finalizers),
        uid,
        creation_timestamp: Some(now),
        generation: 1,
        ..ObjectMeta::default()
    };
    // Ours to say.
    metadata.annotations.retain(|name, _| !is_ours(name));
    let mut errors = Vec::new();
    if !pod.spec.node_name.is_empty() && pod.spec.node_name != node_name {
        let detail = format!("this API has one node, {node_name:?}; leave the field out");
        errors.push(invalid("spec.nodeName", format!("{:?}", pod.spec.node_name), &detail));
    }
    errors.extend(validate_placement(&pod));
    errors.extend(validate_pod(&pod));
    if let Some(kind) = refused_reference(&pod) {
        errors.push(forbidden("spec", format!("pods of this node may not reference {kind}")));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    place(&mut pod.spec, node_name);
    mark_first_seen(&mut pod, PodSource::Api, now);
    pod.status = first_status(&pod);
    Ok(pod)
}

fn is_ours(annotation: &str) -> bool {
    LOCAL_ANNOTATIONS.contains(&annotation) || annotation == CONFIG_HASH_ANNOTATION
}

/// The pod to go on with when `new` is to take the place of `old`: what nobody may set is as it was.
///
/// # Errors
/// Every broken rule.
pub fn update(old: &Pod, new: Pod, part: Part) -> Result<Pod, Vec<FieldError>> {
    let mut new = default_pod(new);
    let mut annotations = std::mem::take(&mut new.metadata.annotations);
    annotations.retain(|name, _| !is_ours(name));
    let ours = old.metadata.annotations.iter().filter(|(name, _)| is_ours(name));
    annotations.extend(ours.map(|(name, value)| (name.clone(), value.clone())));
    new.metadata = match part {
        Part::Itself => ObjectMeta {
            labels: new.metadata.labels,
            annotations,
            owner_references: new.metadata.owner_references,
            finalizers: new.metadata.finalizers,
            ..old.metadata.clone()
        },
        // The subresources change nothing else.
        _ => old.metadata.clone(),
    };
    new.status.clone_from(&old.status);
    if new.spec.node_name.is_empty() {
        new.spec.node_name.clone_from(&old.spec.node_name);
    }
    let mut errors = match part {
        Part::Itself => changes_of_itself(&old.spec, &new.spec),
        Part::Resize => changes_of_size(old, &new),
        Part::EphemeralContainers => changes_of_guests(old, &new),
    };
    if errors.is_empty() {
        // They may not be there when a pod is created, which is what is checked here.
        let guests = std::mem::take(&mut new.spec.ephemeral_containers);
        errors = validate_pod(&new);
        new.spec.ephemeral_containers = guests;
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if new.spec != old.spec {
        new.metadata.generation = old.metadata.generation + 1;
    }
    Ok(new)
}

/// What is kept of a pod's status: what clients say of it. The rest is observed.
#[must_use]
pub fn kept_status(pod: &Pod) -> PodStatus {
    let mut status = PodStatus::pending();
    take_foreign_conditions(&mut status, pod);
    status
}

/// The pod with the conditions of `said` that are its clients': those of readiness gates, say. What the node observes stays the
/// node's, whatever is said of it.
///
/// # Errors
/// Every broken rule.
pub fn update_status(old: &Pod, said: &PodStatus) -> Result<Pod, Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut conditions: Vec<PodCondition> = Vec::new();
    for (index, condition) in said.conditions.iter().enumerate() {
        let at = |field: &str| format!("status.conditions[{index}].{field}");
        if !is_foreign(&condition.type_) {
            continue;
        }
        for why in qualified_name(&condition.type_) {
            errors.push(invalid(&at("type"), format!("{:?}", condition.type_), &why));
        }
        if !matches!(condition.status.as_str(), "True" | "False" | "Unknown") {
            let supported = "supported values: \"False\", \"True\", \"Unknown\"";
            let value = format!("{:?}", condition.status);
            errors.push(error(FieldErrorKind::NotSupported, &at("status"), value, supported));
        }
        // Of two of a type the later counts, as in a list by type.
        conditions.retain(|earlier| earlier.type_ != condition.type_);
        conditions.push(condition.clone());
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let status = PodStatus { conditions, ..kept_status(&Pod::default()) };
    Ok(Pod { status, ..old.clone() })
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().chain(&spec.containers)
}

fn containers_mut(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    spec.init_containers.iter_mut().chain(&mut spec.containers)
}

const NODE_AFFINITY: &str = "nodeAffinity";

fn required_nodes(spec: &PodSpec) -> Option<&Value> {
    spec.affinity.as_ref()?.get(NODE_AFFINITY)?.get("requiredDuringSchedulingIgnoredDuringExecution")
}

/// The affinity with another part for nodes; an empty one is none.
fn with_nodes(affinity: Option<Value>, nodes: Option<Value>) -> Option<Value> {
    let mut parts = match affinity {
        Some(Value::Object(parts)) => parts,
        _ => Map::new(),
    };
    parts.remove(NODE_AFFINITY);
    parts.extend(nodes.map(|nodes| (NODE_AFFINITY.to_owned(), nodes)));
    (!parts.is_empty()).then_some(Value::Object(parts))
}

fn changes_of_itself(old: &PodSpec, new: &PodSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, old, new) in [
        ("spec.containers", old.containers.len(), new.containers.len()),
        ("spec.initContainers", old.init_containers.len(), new.init_containers.len()),
    ] {
        if old != new {
            return vec![forbidden(field, "pod updates may not add or remove containers")];
        }
    }
    let deadline = "spec.activeDeadlineSeconds";
    match (old.active_deadline_seconds, new.active_deadline_seconds) {
        (_, Some(seconds)) if !(0..=i64::from(i32::MAX)).contains(&seconds) => {
            errors.push(invalid(deadline, seconds, "must be between 0 and 2147483647, inclusive"));
        }
        (Some(before), Some(seconds)) if seconds > before => {
            errors.push(invalid(deadline, seconds, "must be less than or equal to previous value"));
        }
        (Some(_), None) => {
            errors.push(invalid(deadline, "null", "must not update from a positive integer to nil value"));
        }
        _ => {}
    }
    let alike = |toleration: &Toleration| Toleration { toleration_seconds: None, ..toleration.clone() };
    let now: Vec<Toleration> = new.tolerations.iter().map(alike).collect();
    if old.tolerations.iter().any(|toleration| !now.contains(&alike(toleration))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(forbidden("spec.tolerations", detail));
    }
    for gate in new.scheduling_gates.iter().filter(|gate| !old.scheduling_gates.contains(gate)) {
        let name = gate.get("name").and_then(Value::as_str).unwrap_or_default();
        let detail = format!("only deletion is allowed, but found new scheduling gate {name:?}");
        errors.push(forbidden("spec.schedulingGates", detail));
    }
    let mut rest = new.clone();
    rest.scheduling_gates.clone_from(&old.scheduling_gates);
    if is_gated(old) {
        let kept = old.node_selector.iter().all(|(name, value)| new.node_selector.get(name) == Some(value));
        if !kept {
            let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.push(invalid("spec.nodeSelector", format!("{:?}", new.node_selector), detail));
        }
        rest.node_selector.clone_from(&old.node_selector);
        if required_nodes(old).is_none() {
            let before = old.affinity.as_ref().and_then(|affinity| affinity.get(NODE_AFFINITY)).cloned();
            rest.affinity = with_nodes(rest.affinity, before);
        }
    }
    rest.active_deadline_seconds = old.active_deadline_seconds;
    rest.tolerations.clone_from(&old.tolerations);
    if old.termination_grace_period_seconds.is_some_and(|grace| grace < 0)
        && new.termination_grace_period_seconds == Some(1)
    {
        rest.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    for (new, old) in containers_mut(&mut rest).zip(containers(old)) {
        new.image.clone_from(&old.image);
    }
    if rest != *old {
        errors.push(forbidden("spec", ONLY_THESE));
    }
    errors
}

fn changes_of_size(old: &Pod, new: &Pod) -> Vec<FieldError> {
    let mut rest = new.spec.clone();
    for (new, old) in containers_mut(&mut rest).zip(containers(&old.spec)) {
        let own = [
            (&mut new.resources.limits, &old.resources.limits),
            (&mut new.resources.requests, &old.resources.requests),
        ];
        for (new, old) in own {
            for name in ["cpu", "memory"] {
                new.remove(name);
                new.extend(old.get_key_value(name).map(|(name, amount)| (name.clone(), *amount)));
            }
        }
    }
    if rest != old.spec {
        return vec![forbidden("spec", "only cpu and memory resources are mutable")];
    }
    let given = |pod: &Pod| {
        containers(&pod.spec).map(|each| each.resources.clone()).collect::<Vec<ResourceRequirements>>()
    };
    if given(old) == given(new) {
        return Vec::new();
    }
    infeasible(old, new).map(|why| invalid("spec", "", &why)).into_iter().collect()
}

fn changes_of_guests(old: &Pod, new: &Pod) -> Vec<FieldError> {
    let rest = PodSpec { ephemeral_containers: old.spec.ephemeral_containers.clone(), ..new.spec.clone() };
    if rest != old.spec {
        return vec![forbidden("spec", "only ephemeralContainers may change over this path")];
    }
    for known in &old.spec.ephemeral_containers {
        let path = "spec.ephemeralContainers";
        match new.spec.ephemeral_containers.iter().find(|container| container.name == known.name) {
            None => {
                let detail = format!("existing ephemeral containers {:?} may not be removed\n", known.name);
                return vec![forbidden(path, detail)];
            }
            Some(container) if container != known => {
                let detail = format!("existing ephemeral containers {:?} may not be changed\n", known.name);
                return vec![forbidden(path, detail)];
            }
            Some(_) => {}
        }
    }
    validate_ephemeral(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::decode::decode;
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

    /// The errors of a change, as they are printed.
    fn refused(old: &Pod, part: Part, change: impl Fn(&mut Pod)) -> Vec<String> {
        let mut new = old.clone();
        change(&mut new);
        update(old, new, part).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_new_pod_is_ours_whatever_it_said_of_itself() {
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
            let said: PodStatus =
                decode(json!({"phase": "Failed", "conditions": conditions})).unwrap().object;
            update_status(&old, &said)
        };
        let gate = json!({"type": "example.com/gate", "status": "True", "reason": "Open"});
        let new = said(json!([{"type": "Ready", "status": "True"}, gate])).unwrap();
        let kept: Vec<&str> =
            new.status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
        assert_eq!((new.status.phase.as_str(), kept), ("Pending", vec!["example.com/gate"]));
        assert_eq!(kept_status(&new), new.status);
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
    fn a_service_account_is_refused_unless_it_is_the_default_without_token() {
        let refused = |change: Value| {
            let mut spec = plain();
            spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let pod = pod(&spec);
            refused_account(&pod).or_else(|| {
                let made = create(pod, "node", PodUid::from("u"), Timestamp::default());
                made.err().map(|errors| errors[0].to_string())
            })
        };
        let volume = |source: Value| json!({"volumes": [{"name": "v", "projected": {"sources": [source]}}]});
        for harmless in [
            json!({"serviceAccountName": "default", "automountServiceAccountToken": true}),
            json!({"serviceAccount": "default"}),
            volume(json!({"clusterTrustBundle": {"name": "b", "path": "p", "optional": true}})),
        ] {
            assert_eq!(refused(harmless.clone()), None, "{harmless}");
        }
        let said = |change: Value| refused(change).unwrap_or_default();
        assert_eq!(
            said(json!({"serviceAccountName": "robot"})),
            "error looking up service account default/robot: serviceaccount \"robot\" not found"
        );
        let token = said(volume(json!({"serviceAccountToken": {"path": "token"}})));
        assert!(token.starts_with("spec.volumes[0].projected.sources[0].serviceAccountToken: "), "{token}");
        let bundle = said(volume(json!({"clusterTrustBundle": {"name": "b", "path": "p"}})));
        assert_eq!(bundle, "spec: Forbidden: pods of this node may not reference clustertrustbundles");
    }

    #[test]
    fn a_runtime_class_is_refused_when_the_runtime_has_no_such_handler() {
        let mut spec = plain();
        assert_eq!(refused_class(&pod(&spec), ["", "kata"]), None);
        spec["runtimeClassName"] = json!("gvisor");
        let said = refused_class(&pod(&spec), ["", "kata"]);
        assert_eq!(said.as_deref(), Some("pod rejected: RuntimeClass \"gvisor\" not found"));
        assert_eq!(refused_class(&pod(&spec), ["", "gvisor"]), None);
        assert_eq!(refused_class(&pod(&spec), []), None, "it has not told");
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
                "spec.nodeName: Invalid value: \"other\": this API has one node, \"node\"; leave the field out",
                "spec: Forbidden: pods of this node may not reference resourceclaims",
            ]
        );
    }

    #[test]
    fn images_labels_and_further_tolerations_may_change_and_nothing_else() {
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
        assert_eq!(
            (updated.metadata.generation, updated.spec.containers[0].image.as_str()),
            (2, "busybox:2")
        );
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
            [
                "spec.schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate \"c\""
            ]
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
    fn resize_changes_cpu_and_memory_within_the_class_and_nothing_else() {
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
        let guest = |name: &str| Container {
            name: name.to_owned(),
            image: "busybox".to_owned(),
            ..Container::default()
        };
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
}
