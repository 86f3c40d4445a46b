//! Charts as people have them, by Helm 3 and 4 from `KUBE_BIN`, on a node without a cluster.
//!
//! Their images are not here: what is checked is what the API makes of the objects, not what their programs do.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::control_plane::make_network;
use crate::support::agent::{AgentProcess, PATIENCE};
use crate::support::api::Api;
use crate::support::embedded::Embedded;
use crate::support::wait::wait_for;

/// Charts by the names of their directories, each with a value that changes an object of it.
const CHARTS: [(&str, &str); 10] = [
    ("metrics-server", "replicas=2"),
    ("nginx", "replicaCount=2"),
    ("podinfo", "replicaCount=2"),
    ("prometheus-blackbox-exporter", "replicas=2"),
    ("prometheus-node-exporter", "podAnnotations.upgraded=yes"),
    ("redis", "replica.replicaCount=2"),
    ("reflector", "replicaCount=2"),
    ("reloader", "reloader.deployment.replicas=2"),
    ("scaffold", "replicaCount=2"),
    ("traefik", "deployment.replicas=2"),
];
/// Fewer would say little.
const AT_LEAST: usize = 5;

struct Node {
    // Before the directories: the agent is gone first.
    agent: AgentProcess,
    programs: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
    _runtime: Embedded,
}

impl Node {
    fn new() -> Self {
        let programs = PathBuf::from(std::env::var_os("KUBE_BIN").expect("KUBE_BIN: docs/contributing.md"));
        // Nothing is pulled: the network has no way out.
        make_network();
        let runtime = Embedded::new();
        let home = runtime.scratch().path().join("home");
        std::fs::create_dir_all(&home).expect("create a directory");
        let mut agent = AgentProcess::new(runtime.scratch().path(), "embedded");
        runtime.configure(&mut agent);
        let range = runtime.scratch().service_range();
        agent.argument(format!("--service-cidr={range}"));
        let api = Api::of(&mut agent, runtime.scratch().path());
        agent.start();
        api.wait(&mut agent);
        let kubeconfig = home.join("config");
        std::fs::write(&kubeconfig, api.kubeconfig(&agent, "admin", &[])).expect("write");
        Self { agent, programs, kubeconfig, home, _runtime: runtime }
    }

    /// What a program of `KUBE_BIN` prints, or its complaint.
    fn try_run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = Command::new(self.programs.join(program));
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("start {program} of KUBE_BIN: {error}"));
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("write");
        let output = child.wait_with_output().expect("run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("{}{}", text(&output.stdout), text(&output.stderr)))
        }
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> String {
        self.try_run(program, arguments, input)
            .unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}"))
    }

    /// Every object of this revision is as its chart wants it. Returns its documents.
    fn is_as_rendered(&self, helm: &str, release: &str, revision: usize) -> String {
        let revision = revision.to_string();
        let documents = self.run(helm, &["get", "manifest", release, "--revision", &revision], "");
        self.run("kubectl", &["diff", "-f", "-"], &documents);
        documents
    }

    /// The controllers have made what these workloads ask for; their pods wait for their images.
    fn is_acted_on(&self, documents: &str) {
        wait_for("the workloads to have their pods", PATIENCE, || {
            let objects = self.try_run("kubectl", &["get", "-f", "-", "-o", "json"], documents)?;
            let objects: Value = serde_json::from_str(&objects).map_err(|error| error.to_string())?;
            let all = objects["items"].as_array().cloned().unwrap_or_else(|| vec![objects.clone()]);
            let waits = |object: &&Value| match object["kind"].as_str() {
                // A rolling update waits for the first pod of the new template.
                Some("Deployment") => object["status"]["updatedReplicas"].as_u64().unwrap_or_default() == 0,
                Some("DaemonSet") => object["status"]["currentNumberScheduled"] != 1,
                Some("StatefulSet") => object["status"]["replicas"].as_u64().unwrap_or_default() == 0,
                _ => false,
            };
            all.iter()
                .find(waits)
                .map_or(Ok(()), |object| Err(format!("{} {}", object["kind"], object["status"])))
        });
    }

    fn lives(&mut self, helm: &str, chart: &Path, name: &str, change: &str) {
        let chart = chart.display().to_string();
        let release = format!("{helm}-{}", &name[..name.len().min(12)]);
        self.run(helm, &["install", &release, &chart], "");
        let first = self.is_as_rendered(helm, &release, 1);
        self.is_acted_on(&first);
        self.run(helm, &["upgrade", &release, &chart, "--set", change], "");
        let second = self.is_as_rendered(helm, &release, 2);
        assert_ne!(first, second, "{name}: {change} changes nothing");
        self.is_acted_on(&second);
        self.run(helm, &["rollback", &release, "1"], "");
        assert_eq!(self.is_as_rendered(helm, &release, 3), first, "{name}");
        self.run(helm, &["uninstall", &release], "");
        wait_for("the objects of the chart to go", PATIENCE, || {
            let left = ["get", "--ignore-not-found", "-o", "name", "-f", "-"];
            match self.try_run("kubectl", &left, &first)?.as_str() {
                "" => Ok(()),
                left => Err(left.to_owned()),
            }
        });
        self.agent.assert_alive();
    }
}

#[test]
fn charts_are_installed_upgraded_and_removed() {
    let charts = PathBuf::from(
        std::env::var_os("KUBE_CHARTS")
            .expect("KUBE_CHARTS names the directory of the charts: docs/contributing.md"),
    );
    let found: Vec<_> = CHARTS.into_iter().filter(|(name, _)| charts.join(name).is_dir()).collect();
    assert!(found.len() >= AT_LEAST, "{}: {} of {CHARTS:?}", charts.display(), found.len());
    let mut node = Node::new();
    for (name, change) in found {
        for helm in ["helm3", "helm4"] {
            node.lives(helm, &charts.join(name), name, change);
        }
    }
    let left =
        node.run("kubectl", &["get", "pods,secrets,deployments,statefulsets,daemonsets", "-o", "name"], "");
    assert_eq!(left, "", "what no chart has left");
}
