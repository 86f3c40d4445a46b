//! A machine becomes a node.

use serde_json::json;

use super::control_plane::ADDRESS;
use super::{Cluster, condition, pod, spec};
use crate::support::agent::NODE;

/// TLS bootstrap, approved and signed by the controller manager; registration; the lease; a first pod.
#[test]
fn a_bootstrap_token_makes_the_machine_a_node() {
    let cluster = Cluster::new();
    let plane = &cluster.control_plane;
    let node = cluster.node().expect("it is registered");
    assert_eq!(node["status"]["addresses"][0], json!({ "type": "InternalIP", "address": ADDRESS }), "{node}");
    assert_eq!(node["spec"]["podCIDR"], "10.244.0.0/24");
    assert!(
        cluster.path("pki/kubelet-client-current.pem").is_symlink(),
        "no certificate in upstream's layout"
    );
    // It may be older than the Node, and has its owner from the second renewal on.
    plane.wait("a lease that belongs to the node", || {
        let lease =
            plane.get(&format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"))?;
        let owner = &lease["metadata"]["ownerReferences"][0]["uid"];
        if *owner == node["metadata"]["uid"] { Ok(()) } else { Err(lease.to_string()) }
    });
    let requests = plane.get("/apis/certificates.k8s.io/v1/certificatesigningrequests").expect("a list");
    assert_eq!(condition(&requests["items"][0], "Approved"), "True", "{requests}");

    plane.apply(&[pod("first", &spec("echo hello; sleep 1000"))]);
    let pods = cluster.ready_pods("app=first", 1);
    let address = pods[0]["status"]["podIP"].as_str().expect("an address");
    assert!(address.starts_with("10.244.0."), "{address} is not of the node's range");
    assert_eq!(pods[0]["spec"]["nodeName"], NODE);
    cluster.finish();
}
