//! What a pod asks for that this version accepts and does not act on: said once per manifest, never refused, so that the
//! same manifest may serve a whole fleet.
//!
//! Owns the list; a feature that arrives takes its row out. Fields that are refused when a container starts are not here.

use crate::api::pod::Pod;

/// One line per ignored field, with its path.
#[must_use]
pub fn ignored_fields(pod: &Pod) -> Vec<String> {
    let of_pod = [(!pod.spec.image_pull_secrets.is_empty(), "spec.imagePullSecrets")];
    let set = of_pod.iter().filter(|(set, _)| *set);
    set.map(|(_, path)| format!("{path}: accepted, but this version does not act on it yet")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::decode::decode;
    use serde_json::json;

    fn ignored(spec: &serde_json::Value) -> Vec<String> {
        ignored_fields(&decode(json!({"spec": spec})).unwrap().object)
    }

    #[test]
    fn ignored_fields_are_named_by_path() {
        let lines =
            ignored(&json!({"imagePullSecrets": [{"name": "registry"}], "containers": [{"name": "a"}]}));
        assert_eq!(lines, ["spec.imagePullSecrets: accepted, but this version does not act on it yet"]);
    }

    #[test]
    fn what_is_acted_on_is_not_named() {
        let probe = json!({"exec": {"command": ["true"]}});
        let pod = json!({
            "hostUsers": false, "runtimeClassName": "crun", "nodeSelector": {"disk": "ssd"},
            "securityContext": {"fsGroup": 1}, "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            "containers": [{"name": "a", "livenessProbe": probe, "lifecycle": {"preStop": probe}}],
        });
        assert!(ignored(&pod).is_empty());
    }
}
