//! The effects of a RuntimeClass on a pod: its handler, its overhead and its scheduling (upstream: the
//! admission plugin `RuntimeClass`, 1.36).
//!
//! Owns these rules and their messages.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::model::api::pod::{Pod, PodSpec, Toleration};
use crate::model::objects::{ClassScheduling, ObjectKey, ObjectKind, ObjectLookup, Realm, RuntimeClassSpec};
use crate::model::provenance::realm;
use crate::model::runtime_config::RuntimeHandler;

#[must_use]
pub(crate) fn class_of(pod: &Pod) -> Option<&str> {
    pod.spec.runtime_class_name.as_deref().filter(|class| !class.is_empty())
}

/// The class of a pod, in its realm.
///
/// # Errors
/// A pod of the cluster names one that is not there. In a manifest, the name of a handler is enough.
pub(super) fn find_class(pod: &Pod, objects: &dyn ObjectLookup) -> Result<Option<RuntimeClassSpec>, String> {
    let Some(name) = class_of(pod) else { return Ok(None) };
    let objects = objects.of(realm(pod));
    let class = objects.runtime_class(name);
    if class.is_some() || realm(pod) == Realm::Node {
        return Ok(class);
    }
    let kind = ObjectKind::RuntimeClass;
    let key = ObjectKey { kind, namespace: String::new(), name: name.to_owned() };
    let why = objects.absence(&key).message(kind);
    Err(why.unwrap_or_else(|| format!("runtimeclass.node.k8s.io {name:?} not found")))
}

/// The runtime's handler for a pod: that of its class, or, without an object of that name, the name itself.
/// Empty for the runtime's default.
#[must_use]
pub(crate) fn handler<'a>(pod: &'a Pod, class: Option<&'a RuntimeClassSpec>) -> &'a str {
    class.map_or_else(|| class_of(pod).unwrap_or_default(), |class| &class.handler)
}

/// Admits a new pod of the API and adds the fields of its class. Without an object of that name it must be
/// one of the runtime's `handlers`; if the runtime does not report them, the pod is checked when it starts.
///
/// # Errors
/// Why the pod is refused, in upstream's words.
pub(crate) fn admit<'a>(
    pod: &mut Pod,
    class: Option<&RuntimeClassSpec>,
    handlers: impl IntoIterator<Item = &'a str>,
) -> Result<(), String> {
    match (class_of(pod), class) {
        (Some(_), Some(class)) => {
            apply(&mut pod.spec, class)?;
            without_class(&pod.spec, class.overhead.is_none())
        }
        (Some(name), None) => {
            let mut handlers = handlers.into_iter().peekable();
            if handlers.peek().is_some() && !handlers.any(|handler| handler == name) {
                return Err(format!("pod rejected: RuntimeClass {name:?} not found"));
            }
            Ok(())
        }
        (None, _) => without_class(&pod.spec, true),
    }
}

fn without_class(spec: &PodSpec, defines_none: bool) -> Result<(), String> {
    if defines_none && !spec.overhead.is_empty() {
        return Err(
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".to_owned()
        );
    }
    Ok(())
}

/// Adds the fields of a class to a pod that names it.
pub(crate) fn apply(spec: &mut PodSpec, class: &RuntimeClassSpec) -> Result<(), String> {
    if let Some(overhead) = &class.overhead {
        if !spec.overhead.is_empty() && spec.overhead != *overhead {
            return Err(
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned()
            );
        }
        spec.overhead.clone_from(overhead);
    }
    let Some(ClassScheduling { node_selector, tolerations }) = &class.scheduling else { return Ok(()) };
    for (key, wanted) in node_selector {
        match spec.node_selector.get(key) {
            Some(own) if own != wanted => {
                return Err(format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {own}"
                ));
            }
            _ => drop(spec.node_selector.insert(key.clone(), wanted.clone())),
        }
    }
    let own = std::mem::take(&mut spec.tolerations);
    spec.tolerations = merged(&own.into_iter().chain(tolerations.iter().cloned()).collect::<Vec<_>>());
    Ok(())
}

/// Without those that another one includes (upstream: `MergeTolerations`); of equal ones the first stays.
fn merged(all: &[Toleration]) -> Vec<Toleration> {
    let is_needed = |(index, one): &(usize, &Toleration)| {
        !all.iter().enumerate().any(|(other, wider)| {
            includes(wider, one) && (other < *index || (other > *index && wider != *one))
        })
    };
    all.iter().enumerate().filter(is_needed).map(|(_, one)| one.clone()).collect()
}

/// Whether `wide` tolerates all that `narrow` does.
fn includes(wide: &Toleration, narrow: &Toleration) -> bool {
    if wide == narrow {
        return true;
    }
    let is_for_key = narrow.key == wide.key || (wide.key.is_empty() && wide.operator == "Exists");
    let is_for_effect = wide.effect.is_empty() || narrow.effect == wide.effect;
    let is_long_enough = match (wide.effect.as_str(), wide.toleration_seconds) {
        ("NoExecute", Some(most)) => narrow.toleration_seconds.is_some_and(|seconds| seconds <= most),
        _ => true,
    };
    let is_for_value = match wide.operator.as_str() {
        "" | "Equal" => narrow.operator == "Equal" && narrow.value == wide.value,
        "Exists" => true,
        _ => false,
    };
    is_for_key && is_for_effect && is_long_enough && is_for_value
}

/// A pod of a manifest with the fields of its class. Fields that an earlier load of the same manifest took
/// from the class stay, as a cluster's pods keep theirs from admission. Also returns the pod's conflicts with
/// its class; the pod then runs as written.
#[must_use]
pub(crate) fn resolved(
    pod: &Pod,
    known: Option<&Pod>,
    class: Option<&RuntimeClassSpec>,
) -> Option<Result<PodSpec, String>> {
    let name = class_of(pod)?;
    if let Some(known) = known.filter(|known| class_of(known) == Some(name)) {
        let mut spec = pod.spec.clone();
        spec.overhead.clone_from(&known.spec.overhead);
        spec.node_selector.clone_from(&known.spec.node_selector);
        spec.tolerations.clone_from(&known.spec.tolerations);
        if spec != pod.spec && spec == known.spec {
            return Some(Ok(spec));
        }
    }
    let mut spec = pod.spec.clone();
    match apply(&mut spec, class?) {
        Ok(()) => (spec != pod.spec).then_some(Ok(spec)),
        Err(why) => Some(Err(why)),
    }
}

/// The runtime's handlers under the names that pods use: a class takes precedence over a handler of the same
/// name.
#[must_use]
pub(super) fn by_class_name(
    handlers: &[RuntimeHandler],
    classes: Vec<(String, RuntimeClassSpec)>,
) -> Vec<RuntimeHandler> {
    let mut named = handlers.to_vec();
    for (name, class) in classes.into_iter().filter(|_| !handlers.is_empty()) {
        named.retain(|handler| handler.name != name);
        let of_class = handlers.iter().find(|handler| handler.name == class.handler);
        named.extend(of_class.map(|handler| RuntimeHandler { name, ..handler.clone() }));
    }
    named
}

#[cfg(test)]
mod tests;
