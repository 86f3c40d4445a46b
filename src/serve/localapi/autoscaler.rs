//! HorizontalPodAutoscalers in version 1, which are stored in version 2.
//!
//! Owns the conversion. Pure.

use serde_json::{Value, json};

use super::text;

const V2: &str = "autoscaling/v2";
const V1: &str = "autoscaling/v1";

fn is_of_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && text(metric, "/resource/name") == "cpu"
        && metric.pointer("/resource/target/averageUtilization").is_some()
}

/// The form of version 1: without metrics but the one of CPU usage, and without behavior.
pub(super) fn to_v1(mut object: Value) -> Value {
    object["apiVersion"] = json!(V1);
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    if let Some(spec) = spec {
        spec.remove("behavior");
        let metrics = spec.remove("metrics").unwrap_or_default();
        let cpu = metrics.as_array().and_then(|metrics| metrics.iter().find(|metric| is_of_cpu(metric)));
        if let Some(percent) = cpu.and_then(|cpu| cpu.pointer("/resource/target/averageUtilization")) {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), percent.clone());
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("conditions");
        status.remove("currentMetrics");
    }
    object
}

/// The form of version 2 of an object of version 1; what that cannot say stays as in `old`.
pub(super) fn to_v2(mut object: Value, old: &Value) -> Value {
    object["apiVersion"] = json!(V2);
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return object };
    let percent = spec.remove("targetCPUUtilizationPercentage").filter(|percent| !percent.is_null());
    let of_cpu = percent.map(|percent| {
        json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}})
    });
    let known = old.pointer("/spec/metrics").and_then(Value::as_array).into_iter().flatten();
    let metrics: Vec<Value> =
        of_cpu.into_iter().chain(known.filter(|metric| !is_of_cpu(metric)).cloned()).collect();
    if !metrics.is_empty() {
        spec.insert("metrics".to_owned(), Value::Array(metrics));
    }
    if let Some(behavior) = old.pointer("/spec/behavior") {
        spec.insert("behavior".to_owned(), behavior.clone());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_version_1_can_say_comes_back_and_the_rest_stays() {
        let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}});
        let cpu = |percent: i64| json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}});
        let v2 = json!({"apiVersion": V2, "spec": {"maxReplicas": 3, "metrics": [cpu(80), memory], "behavior": {"scaleUp": {}}}});
        let mut v1 = to_v1(v2.clone());
        assert_eq!(
            v1,
            json!({"apiVersion": V1, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 80}})
        );
        assert_eq!(to_v2(v1.clone(), &v2), v2);
        v1["spec"]["targetCPUUtilizationPercentage"] = json!(50);
        let changed = to_v2(v1, &v2);
        assert_eq!(changed["spec"]["metrics"], json!([cpu(50), memory]));
        assert_eq!(to_v2(json!({"spec": {"maxReplicas": 1}}), &json!({}))["spec"], json!({"maxReplicas": 1}));
    }
}
