//! What the API server does not let a node do, whatever happens on it.

use serde_json::json;

use super::control_plane::program;
use super::{Cluster, pod, spec};
use crate::support::agent::NODE;

/// The node's own credentials cannot touch what belongs to another node, nor read what no pod of it uses.
#[test]
fn the_nodes_credentials_reach_only_what_is_the_nodes() {
    let cluster = Cluster::new();
    let plane = &cluster.control_plane;
    let mut with_secret = spec("exec sleep 1000");
    with_secret["volumes"] = json!([{ "name": "s", "secret": { "secretName": "used" } }]);
    let secret = |name: &str| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { "key": "word" } });
    let mut elsewhere = spec("exec sleep 1000");
    elsewhere["nodeName"] = json!("other");
    plane.apply(&[
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "other" } }),
        secret("used"),
        secret("unused"),
        pod("here", &with_secret),
        pod("elsewhere", &elsewhere),
    ]);
    cluster.ready_pods("app=here", 1);

    let conf = cluster.path("kubelet.conf").display().to_string();
    let as_node = |arguments: &[&str]| {
        let mut command = std::process::Command::new(program("kubectl"));
        command.args(["--kubeconfig", &conf]).args(arguments).env("HOME", cluster.path(""));
        super::control_plane::said(&mut command)
    };
    as_node(&["get", "node", NODE]).expect("its own Node");
    as_node(&["get", "secret", "used"]).expect("a secret of its pod");
    let patch = r#"{"metadata": {"labels": {"moved": "true"}}}"#;
    let status = r#"{"status": {"message": "mine"}}"#;
    let isolated =
        format!(r#"{{"metadata": {{"labels": {{"node-restriction.kubernetes.io/zone": "{NODE}"}}}}}}"#);
    let refused: [&[&str]; 9] = [
        &["get", "node", "other"],
        &["patch", "node", "other", "-p", patch],
        &["delete", "node", "other"],
        &["patch", "node", NODE, "-p", &isolated],
        &["get", "secret", "unused"],
        &["get", "secrets"],
        &["patch", "pod", "elsewhere", "--subresource=status", "--type=merge", "-p", status],
        &["delete", "pod", "elsewhere", "--wait=false"],
        &["create", "token", "default", "--bound-object-kind=Pod", "--bound-object-name=elsewhere"],
    ];
    for arguments in refused {
        let error = as_node(arguments).expect_err("it is another node's");
        assert!(error.contains("orbidden") || error.contains("is not allowed"), "{arguments:?}: {error}");
    }
    cluster.finish();
}
