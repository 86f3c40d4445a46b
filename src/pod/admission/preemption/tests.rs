//! Upstream's cases of `TestGetPodsToPreempt`, in short.

use super::*;
use crate::model::api::decode::decode;
use serde_json::{Value, json};

fn pod(name: &str, requests: &Value, limits: &Value, priority: i32) -> Pod {
    let annotations = json!({"kubernetes.io/config.source": "cluster"});
    let container = json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
    decode(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations},
        "spec": {"containers": [container], "priority": priority},
    }))
    .unwrap()
    .object
}

fn short(of: &[(&str, i64)]) -> Vec<(String, i64)> {
    of.iter().map(|(name, missing)| ((*name).to_owned(), *missing)).collect()
}

fn chosen(pods: &[&Pod], of: &[(&str, i64)]) -> Option<Vec<String>> {
    let critical = pod("critical", &json!({}), &json!({}), 2_000_000_000);
    let mut uids: Vec<String> =
        pods_to_preempt(&critical, pods, &short(of))?.into_iter().map(ToString::to_string).collect();
    uids.sort();
    Some(uids)
}

#[test]
fn a_critical_pod_preempts_as_upstream() {
    let none = json!({});
    let small = json!({"cpu": "100m", "memory": "100Mi"});
    let high = json!({"cpu": "500m", "memory": "500Mi"});
    let best_effort = pod("best-effort", &none, &none, 0);
    let tiny = pod("tiny", &json!({"cpu": "1m", "memory": "1Mi"}), &none, 0);
    let burstable = pod("burstable", &small, &none, 0);
    let large = pod("large", &high, &none, 0);
    let guaranteed = pod("guaranteed", &small, &small, 0);
    let large_guaranteed = pod("large-guaranteed", &high, &high, 0);
    let other_critical = pod("other-critical", &high, &none, 2_000_000_000);
    let all = [&best_effort, &tiny, &burstable, &large, &guaranteed, &large_guaranteed, &other_critical];
    let mebi = 1 << 20;
    for (pods, missing, expected) in [
        (&all[..], vec![("pods", 1)], Some(vec!["best-effort"])),
        (&all[..], vec![("pods", 2)], Some(vec!["best-effort", "tiny"])),
        (&all[..], vec![("cpu", 1)], Some(vec!["tiny"])),
        (&all[..], vec![("cpu", 100), ("memory", 100 * mebi)], Some(vec!["burstable"])),
        (&all[..], vec![("cpu", 550)], Some(vec!["burstable", "large"])),
        (&all[..], vec![("cpu", 700)], Some(vec!["burstable", "guaranteed", "large"])),
        (&all[..], vec![("cpu", 1000)], Some(vec!["large", "large-guaranteed"])),
        (&all[..], vec![("cpu", 1400)], None),
        (&[&other_critical], vec![("cpu", 1)], None),
    ] {
        let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(chosen(pods, &missing), expected, "{missing:?}");
    }
}
