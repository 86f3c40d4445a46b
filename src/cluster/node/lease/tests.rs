use super::*;

const NODE: (&str, &str) = ("n1", "u");

#[test]
fn a_lease_names_its_node_once_there_is_one() {
    let at = Timestamp::from_secs(1000);
    let first = lease(None, ("n1", ""), at, 40);
    assert_eq!(
        first,
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "n1", "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": "1970-01-01T00:16:40.000000Z"},
        })
    );
    let mut stored = first;
    stored["metadata"]["resourceVersion"] = json!("7");
    stored["metadata"]["managedFields"] = json!([{}]);
    stored["spec"]["leaseTransitions"] = json!(1);
    let renewed = lease(Some(&stored), NODE, Timestamp::from_secs(1010), 120);
    assert_eq!(
        renewed["metadata"],
        json!({"name": "n1", "namespace": "kube-node-lease", "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]})
    );
    assert_eq!(
        renewed["spec"],
        json!({"holderIdentity": "n1", "leaseDurationSeconds": 120, "leaseTransitions": 1,
            "renewTime": "1970-01-01T00:16:50.000000Z"})
    );
    let again = lease(Some(&renewed), ("n1", "other"), Timestamp::from_secs(1020), 120);
    assert_eq!(again["metadata"], renewed["metadata"], "an owner that was accepted stays");
}

#[test]
fn a_lease_never_goes_back_in_time() {
    let first = lease(None, NODE, Timestamp::from_secs(1_000_000), 40);
    let second = lease(Some(&first), NODE, Timestamp::from_secs(0), 40);
    assert_eq!(second["spec"]["renewTime"], "1970-01-12T13:46:40.000001Z");
    let third = lease(Some(&second), NODE, Timestamp::from_secs(10), 40);
    assert_eq!(third["spec"]["renewTime"], "1970-01-12T13:46:40.000002Z");
    let later = lease(Some(&third), NODE, Timestamp::from_secs(1_000_001), 40);
    assert_eq!(later["spec"]["renewTime"], "1970-01-12T13:46:41.000000Z");
    let odd = lease(Some(&json!({"metadata": {}, "spec": null})), NODE, Timestamp::from_secs(1), 40);
    assert_eq!(odd["spec"]["renewTime"], "1970-01-01T00:00:01.000000Z");
}

#[test]
fn a_lease_is_renewed_four_times_in_its_duration() {
    assert_eq!(renew_after(40, 0.0), Duration::from_secs(10));
    assert_eq!(renew_after(40, 1.0), Duration::from_millis(10_400));
    assert_eq!(renew_after(0, 0.0), Duration::from_millis(250));
}
