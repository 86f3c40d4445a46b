//! The agent as a node of a real cluster: Kubernetes' own control plane, one for each test, and an agent with the embedded runtime.
//!
//! `scripts/test cluster` runs them; the programs come from `KUBE_BIN` (docs/contributing.md).

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::agent::{AgentProcess, NODE};
use crate::support::embedded::Embedded;
use crate::support::image::BUSYBOX;

mod another;
mod bad_input;
mod certificates;
mod charts;
mod churn;
mod control_plane;
mod credentials;
mod csi;
mod figures;
mod images;
mod join;
mod joining;
mod machine;
mod outages;
mod renewal;
mod restriction;
mod same_commands;
mod same_files;
mod same_objects;
mod streams;
mod traces;
mod upgrade;
mod whole;
mod with_kubeadm;
mod workloads;

use control_plane::{ADDRESS, ControlPlane, Options};

/// A control plane and its one node.
struct Cluster {
    // Before the control plane and the directories: the agent is gone first.
    agent: AgentProcess,
    control_plane: ControlPlane,
    runtime: Embedded,
}

impl Cluster {
    /// Whose node has joined and is ready.
    fn new() -> Self {
        Self::with(&Options::default(), "")
    }

    /// The same with flags of the control plane and lines of the agent's configuration.
    fn with(options: &Options<'_>, configuration: &str) -> Self {
        let mut cluster = Self::prepared(options);
        cluster.agent.configure(configuration);
        cluster.agent.start();
        cluster.wait_until_ready();
        cluster
    }

    /// Whose agent is not started yet. It will join with a bootstrap token.
    fn prepared(options: &Options<'_>) -> Self {
        let runtime = Embedded::new();
        let control_plane = ControlPlane::start(runtime.scratch().path(), options);
        let mut agent = AgentProcess::new(runtime.scratch().path(), "embedded");
        runtime.configure(&mut agent);
        let file = |name: &str| runtime.scratch().path().join(name).display().to_string();
        fs::write(file("bootstrap.conf"), control_plane.bootstrap_kubeconfig()).expect("write");
        agent.argument(format!("--bootstrap-kubeconfig={}", file("bootstrap.conf")));
        agent.argument(format!("--kubeconfig={}", file("kubelet.conf")));
        agent.argument(format!("--cert-dir={}", file("pki")));
        agent.argument(format!("--cri-socket=unix://{}", file("cri.sock")));
        agent.argument(format!("--node-ip={ADDRESS}"));
        agent.argument("--enable-server=true");
        agent.configure(&format!(
            "rotateCertificates: true\nclusterDomain: cluster.local\nclusterDNS: [10.96.0.10]\n\
             authentication: {{x509: {{clientCAFile: {}}}}}\n",
            control_plane.pki("ca.crt")
        ));
        Self { agent, control_plane, runtime }
    }

    /// A file or directory of the test.
    fn path(&self, name: &str) -> PathBuf {
        self.runtime.scratch().path().join(name)
    }

    fn node(&self) -> Result<Value, String> {
        self.control_plane.get(&format!("/api/v1/nodes/{NODE}"))
    }

    fn wait_until_ready(&mut self) {
        let Self { agent, control_plane, .. } = self;
        control_plane.wait("the node to be ready", || {
            agent.assert_alive();
            let node = control_plane.get(&format!("/api/v1/nodes/{NODE}"))?;
            // The scheduler waits for the controller that takes this taint away.
            let is_tainted = node["spec"]["taints"].as_array().is_some_and(|taints| !taints.is_empty());
            let is_ready = condition(&node, "Ready") == "True";
            if is_ready && !is_tainted {
                Ok(())
            } else {
                Err(format!("{}; {}", node["spec"], node["status"]["conditions"]))
            }
        });
    }

    /// Waits until so many pods with this label are ready and no other is there, and returns them.
    fn ready_pods(&self, selector: &str, count: usize) -> Vec<Value> {
        self.control_plane.wait(&format!("{count} pods {selector} to be ready"), || {
            let pods = self.control_plane.pods("default", selector)?;
            let ready = pods.iter().filter(|pod| condition(pod, "Ready") == "True").count();
            if pods.len() == count && ready == count { Ok(pods) } else { Err(summary(&pods)) }
        })
    }

    /// At the end of every test: the agent runs, and no request of it was one that the API server does not let a node make.
    fn finish(mut self) {
        self.agent.assert_alive();
        let refusals = self.control_plane.refusals();
        assert!(refusals.is_empty(), "the API server refused: {refusals:#?}");
    }
}

/// The status of a condition of a pod or a node, empty without it.
fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = conditions.filter(|condition| condition["type"] == kind);
    found.next().and_then(|condition| condition["status"].as_str()).unwrap_or_default().to_owned()
}

/// A number from the environment.
fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// What matters of pods when they are not as they should be.
fn summary(pods: &[Value]) -> String {
    let line = |pod: &Value| {
        let (meta, status) = (&pod["metadata"], &pod["status"]);
        format!(
            "{} {} {} {}\n",
            meta["name"], meta["deletionTimestamp"], status["phase"], status["containerStatuses"]
        )
    };
    pods.iter().map(line).collect()
}

/// A container that runs this script of a shell.
fn container(script: &str) -> Value {
    json!({ "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script] })
}

/// A pod's spec with one container, which does not wait for it when it has to end.
fn spec(script: &str) -> Value {
    json!({ "terminationGracePeriodSeconds": 1, "containers": [container(script)] })
}

/// A pod of that spec.
fn pod(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } }, "spec": spec })
}
