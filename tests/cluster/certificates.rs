//! Certificates that the cluster signs, with lives of minutes.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::control_plane::{ADDRESS, ControlPlane, Options, said};
use super::{Cluster, condition, pod, spec};

/// What the controller manager signs ends after this time, and begins five minutes before it is signed. The agent asks again
/// after seven tenths of all that, or a little later.
const LIFE: &str = "--cluster-signing-duration=2m";
/// Certificates of each kind that are waited for: the first and two renewals.
const CERTIFICATES: usize = 3;

/// The requests for serving certificates are the administrator's to approve.
fn approve(plane: &ControlPlane) -> Result<(), String> {
    let list = plane.get("/apis/certificates.k8s.io/v1/certificatesigningrequests")?;
    for request in list["items"].as_array().into_iter().flatten() {
        let is_serving = request["spec"]["signerName"] == "kubernetes.io/kubelet-serving";
        if is_serving && request["status"]["conditions"].is_null() {
            let name = request["metadata"]["name"].as_str().expect("a name");
            plane.try_kubectl(&["certificate", "approve", name])?;
        }
    }
    Ok(())
}

/// The certificate that the node's port shows, if it is one of the cluster's authority for this address.
fn served(plane: &ControlPlane) -> Result<String, String> {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{certs}", "--cacert"]);
    said(command.arg(plane.pki("ca.crt")).arg(format!("https://{ADDRESS}:10250/healthz")))
}

/// The client certificates with which the node asked and was answered.
fn used(plane: &ControlPlane) -> BTreeSet<String> {
    let of = |request: &Value| {
        let extra = &request["user"]["extra"]["authentication.kubernetes.io/credential-id"];
        let is_answered = request["responseStatus"]["code"].as_u64() < Some(300);
        is_answered.then(|| extra.to_string()).filter(|text| text.contains("X509"))
    };
    plane.requests_of_nodes().iter().filter_map(of).collect()
}

#[test]
fn certificates_of_minutes_are_renewed_and_used_in_time() {
    let options = Options { controller_manager: &[LIFE], ..Options::default() };
    let cluster = Cluster::with(&options, "serverTLSBootstrap: true\n");
    let plane = &cluster.control_plane;
    plane.apply(&[pod("web", &spec("echo hello; exec sleep 1000"))]);
    cluster.ready_pods("app=web", 1);
    let mut shown = BTreeSet::new();
    plane.wait("two renewals of each certificate", || {
        approve(plane)?;
        let node = cluster.node()?;
        assert_eq!(condition(&node, "Ready"), "True", "{node}");
        shown.insert(served(plane)?);
        let (used, served) = (used(plane).len(), shown.len());
        let is_enough = used >= CERTIFICATES && served >= CERTIFICATES;
        if is_enough { Ok(()) } else { Err(format!("{used} to ask with, {served} to serve with")) }
    });
    assert_eq!(plane.kubectl(&["logs", "web"]), "hello\n");
    let pods = cluster.ready_pods("app=web", 1);
    assert_eq!(pods[0]["status"]["containerStatuses"][0]["restartCount"], 0);
    cluster.finish();
}
