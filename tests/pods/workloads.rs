//! kubectl's commands for workloads, on the real program with real containers.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::Node;
use crate::registry::docker::Registry;
use crate::registry::image::{TestImage, tar_of};
use crate::support::agent::PATIENCE;
use crate::support::api::Api;
use crate::support::image::{BUSYBOX, archives};
use crate::support::kubectl::Kubectl;
use crate::support::runtime::on_every_runtime;
use crate::support::wait::{pause, wait_for};

struct Lone {
    node: Node,
    kubectl: Kubectl,
}

impl Lone {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let mut node = Node::new();
        for argument in arguments {
            node.agent.argument((*argument).to_owned());
        }
        let api = Api::of(&mut node.agent, node.runtime.scratch().path());
        node.agent.start();
        api.wait(&mut node.agent);
        let kubectl = Kubectl::of(&api, &node.agent, node.runtime.scratch().path(), "admin", &[]);
        let kubectl = kubectl.with_each().pop().expect("at least one");
        Self { node, kubectl }
    }

    fn file(&self, document: &Value) -> PathBuf {
        let name = format!("{}.json", document["metadata"]["name"].as_str().expect("documents have names"));
        let path = self.node.runtime.scratch().path().join(name);
        fs::write(&path, document.to_string()).expect("write");
        path
    }

    fn apply(&self, document: &Value) {
        self.kubectl.out(&["apply", "-f", &self.file(document).to_string_lossy()]);
    }

    fn out(&self, line: &str) -> String {
        self.kubectl.out(&line.split(' ').collect::<Vec<_>>())
    }

    fn names(&self, of: &str) -> BTreeSet<String> {
        self.out(&format!("get {of} -o name")).lines().map(str::to_owned).collect()
    }

    fn wait(&self, what: &str, line: &str, expected: &str) {
        wait_for(what, PATIENCE, || match self.kubectl.run(&line.split(' ').collect::<Vec<_>>()) {
            said if said.out == expected => Ok(()),
            said => Err(format!("{said:?}; agent: {}", self.node.agent.log_tail())),
        });
    }
}

fn template(script: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": restart, "terminationGracePeriodSeconds": 1, "hostNetwork": true,
            "containers": [{"name": "c", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}]},
    })
}

const RUNS: &str = "trap 'exit 0' TERM; while true; do sleep 0.1; done";

fn deployment(replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template(RUNS, "Always")},
    })
}

fn a_deployment_rolls_out_and_back_as_kubectl_says() {
    let mut lone = Lone::start();
    lone.apply(&deployment(2));
    let said = lone.out("rollout status deployment web --timeout=120s");
    assert!(said.ends_with("deployment \"web\" successfully rolled out\n"), "{said}");
    let first = lone.names("pods");
    assert_eq!(first.len(), 2);
    lone.wait(
        "the numbers",
        "get deployment web -o jsonpath={.status.readyReplicas}/{.status.updatedReplicas}",
        "2/2",
    );

    // The pods are adopted, not remade, by an agent that was killed.
    lone.node.agent.kill9();
    lone.node.agent.start();
    lone.wait(
        "the deployment after a restart",
        "get deployment web -o jsonpath={.status.availableReplicas}",
        "2",
    );
    assert_eq!(lone.names("pods"), first);

    lone.out("rollout restart deployment web");
    lone.out("rollout status deployment web --timeout=120s");
    lone.wait("the old pods to go", "get pods -o jsonpath={.items[*].status.phase}", "Running Running");
    assert!(lone.names("pods").is_disjoint(&first));
    let history = lone.out("rollout history deployment web");
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");
    lone.out("rollout pause deployment web");
    lone.out("set env deployment/web A=b");
    let generation = lone.out("get deployment web -o jsonpath={.metadata.generation}");
    let observed = "get deployment web -o jsonpath={.status.observedGeneration}";
    lone.wait("the controller to see the template", observed, &generation);
    assert_eq!(lone.names("replicasets").len(), 2, "a paused rollout makes nothing");
    lone.out("rollout resume deployment web");
    lone.out("rollout status deployment web --timeout=120s");
    assert_eq!(lone.names("replicasets").len(), 3);
    lone.out("rollout undo deployment web");
    lone.out("rollout status deployment web --timeout=120s");
    assert_eq!(lone.out("get deployment web -o jsonpath={.spec.template.spec.containers[0].env}"), "");

    lone.out("scale deployment web --replicas=3");
    lone.out("wait deployment web --for=condition=Available --timeout=120s");
    lone.wait("three pods", "get deployment web -o jsonpath={.status.readyReplicas}", "3");
    let events = lone.out("get events -o jsonpath={.items[*].reason}");
    assert!(events.contains("ScalingReplicaSet") && events.contains("SuccessfulCreate"), "{events}");
    lone.out("delete deployment web --timeout=120s");
    lone.wait("everything to go", "get deployments,replicasets,pods -o name", "");
    lone.node.agent.assert_alive();
}

fn jobs_run_to_their_end_and_by_hand() {
    let mut lone = Lone::start();
    let spec = json!({"completions": 2, "template": template("echo done", "Never")});
    lone.apply(&json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": spec}));
    lone.out("wait job work --for=condition=complete --timeout=120s");
    assert_eq!(lone.out("get job work -o jsonpath={.status.succeeded}"), "2");
    assert_eq!(lone.names("pods").len(), 2);
    let spec = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template("echo by hand", "OnFailure")}}});
    lone.apply(
        &json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "yearly"}, "spec": spec}),
    );
    lone.out("create job now --from=cronjob/yearly");
    lone.out("wait job now --for=condition=complete --timeout=120s");
    let log = lone.out("logs job/now");
    assert_eq!(log, "by hand\n");
    lone.out("delete job work now --timeout=120s");
    lone.out("delete cronjob yearly");
    lone.wait("everything to go", "get jobs,cronjobs,pods -o name", "");
    lone.node.agent.assert_alive();
}

/// Versions of an image with a shell: each has its number in `/version`.
fn versions(lone: &Lone) -> [TestImage; 3] {
    let archive = archives().into_iter().find(|path| path.ends_with("busybox.tar")).expect("it is a fixture");
    let unpacked = lone.node.runtime.scratch().dir("unpacked");
    TestImage::of_archive(&archive, &unpacked);
    let listed = fs::read_to_string(unpacked.join("manifest.json")).expect("read the archive's list");
    let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
    let layer =
        fs::read(unpacked.join(listed[0]["Layers"][0].as_str().expect("it has a layer"))).expect("read");
    ["1", "2", "3"].map(|number| {
        let version = tar_of("version", format!("{number}\n").as_bytes());
        TestImage::of(&[layer.clone(), version], "amd64")
    })
}

fn a_tag_is_followed_and_left_when_it_does_not_get_ready() {
    let mut lone = Lone::start_with(&["--image-update-interval=10s"]);
    let registry = Registry::start(lone.node.runtime.scratch(), "open", "");
    let [first, second, broken] = versions(&lone);
    registry.push("app", "stable", &first);
    let image = registry.reference("app:stable");
    let with = |version: &TestImage| format!("{image}@{}", version.manifest.digest);
    let mut web = deployment(1);
    web["metadata"]["annotations"] = json!({"workloads.agent.edge/image-update": "registry"});
    web["spec"]["progressDeadlineSeconds"] = json!(10);
    let container = &mut web["spec"]["template"]["spec"]["containers"][0];
    container["image"] = json!(image);
    container["command"] = json!(["/bin/sh", "-c", format!("cat /version; {RUNS}")]);
    container["readinessProbe"] =
        json!({"exec": {"command": ["/bin/sh", "-c", "test $(cat /version) != 3"]}, "periodSeconds": 1});
    lone.apply(&web);
    lone.out("rollout status deployment web --timeout=120s");
    let seen =
        r"get deployment web -o jsonpath={.metadata.annotations.workloads\.agent\.edge/image-digests-seen}";
    lone.wait("what runs to be recorded", seen, &with(&first));
    let pods = "get pods -o jsonpath={.items[*].spec.containers[0].image}";
    lone.wait("the pod of the first version", pods, &image);

    registry.push("app", "stable", &second);
    lone.wait("the second version to be seen", seen, &with(&second));
    lone.wait("the pod of the second version alone", pods, &with(&second));
    lone.out("rollout status deployment web --timeout=120s");
    assert_eq!(lone.out("logs deployment/web"), "2\n");
    let written = "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}";
    assert_eq!(lone.out(written), image);
    let file = lone.file(&web);
    let again = lone.kubectl.out(&["apply", "-f", &file.to_string_lossy()]);
    assert!(again.ends_with("unchanged\n"), "{again}");

    registry.push("app", "stable", &broken);
    lone.wait("the third version to be seen", seen, &with(&broken));
    wait_for("the rollback", PATIENCE, || {
        let events = lone.out("get events -o jsonpath={.items[*].reason}");
        let is_back = events.contains("DeploymentRollback") && events.contains("ImageUpdate");
        if is_back { Ok(()) } else { Err(events) }
    });
    lone.wait("the pod of the second version to be alone again", pods, &with(&second));
    lone.out("rollout status deployment web --timeout=120s");
    let generation = lone.out("get deployment web -o jsonpath={.metadata.generation}");
    // Longer than the interval: nothing must happen.
    pause(Duration::from_secs(15));
    assert_eq!(lone.out("get deployment web -o jsonpath={.metadata.generation}"), generation);
    assert_eq!(lone.out(pods), with(&second));
    lone.node.agent.assert_alive();
}

on_every_runtime! {
    a_tag_is_followed_and_left_when_it_does_not_get_ready,
    a_deployment_rolls_out_and_back_as_kubectl_says,
    jobs_run_to_their_end_and_by_hand,
}
