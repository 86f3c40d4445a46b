use std::cell::RefCell;
use std::time::Duration;

use super::*;
use crate::cluster::fake::{FakeApiserver, FakeTransport};
use crate::cmd::control_plane::api::client;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;

fn taint() -> Value {
    json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"})
}

fn node(labels: &Value, taints: &Value) -> Value {
    json!({"kind": "Node", "metadata": {"name": "n1", "labels": labels}, "spec": {"taints": taints}})
}

#[test]
fn only_what_is_missing_is_changed() {
    let other = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let hostname = json!({"kubernetes.io/hostname": "n1"});
    let changed = change(&node(&hostname, &json!([other])), &[taint()]).unwrap();
    assert_eq!(changed["spec"]["taints"], json!([taint(), other]));
    assert_eq!(changed["metadata"]["labels"], json!({LABELS[0]: "", LABELS[1]: ""}));
    let mut all = hostname.clone();
    for label in LABELS {
        all[label] = "".into();
    }
    assert_eq!(change(&node(&all, &json!([other, taint()])), &[taint()]), None);
    assert_eq!(change(&node(&all, &Value::Null), &[]), None, "no taint was asked for");
    assert!(change(&node(&hostname, &Value::Null), &[]).is_some(), "labels are missing");
    assert_eq!(change(&node(&json!({}), &json!([])), &[taint()]), None, "it is not registered completely");
}

#[tokio::test(start_paused = true)]
async fn the_node_is_waited_for() {
    let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let api: Api<'_, FakeTransport> =
        Api::new(Some(client(server.transport("admin"))), &say, Instant::now() + Duration::from_secs(600));
    let other = server.clone();
    let registers = async {
        sleep(Duration::from_secs(120)).await;
        other.put(node(&json!({}), &Value::Null));
        sleep(Duration::from_secs(5)).await;
        other.put(node(&json!({"kubernetes.io/hostname": "n1"}), &Value::Null));
    };
    let taints = [taint()];
    let (marked, ()) = tokio::join!(run(&api, "n1", &taints), registers);
    marked.unwrap();
    let node = server.object("/api/v1/nodes/n1").unwrap();
    assert_eq!(node["spec"]["taints"], json!([taint()]));
    assert_eq!(node["metadata"]["labels"][LABELS[1]], "");
    let text = said.take();
    assert!(
        text.contains(
            "by adding the labels: [node-role.kubernetes.io/control-plane node.kubernetes.io/exclude"
        )
    );
    assert!(
        text.contains("by adding the taints [node-role.kubernetes.io/control-plane:NoSchedule]"),
        "{text}"
    );
    let count = server.writes().len();
    run(&api, "n1", &taints).await.unwrap();
    assert_eq!(server.writes().len(), count, "it has all already");
    let why = run(&api, "n2", &taints).await.unwrap_err().to_string();
    assert!(why.contains("\"n2\"") && why.contains("not registered"), "{why}");
}
