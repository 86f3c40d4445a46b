//! Controllers of the cluster and their pods on the node.

use serde_json::{Value, json};

use super::{Cluster, condition, pod, spec, summary};
use crate::support::agent::{NODE, PATIENCE};
use crate::support::wait::wait_for;

/// A Deployment whose pods are ready only when their program says so.
fn deployment(name: &str, replicas: u32, version: &str) -> Value {
    let mut spec = spec(&format!("echo {version} > /tmp/version; exec sleep 1000"));
    spec["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["cat", "/tmp/version"] }, "periodSeconds": 1 });
    let mut deployment = controller("Deployment", name, &spec);
    deployment["spec"]["replicas"] = json!(replicas);
    deployment["spec"]["strategy"] = json!({ "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } });
    deployment
}

/// An object of `apps/v1` with pods of this spec.
fn controller(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": spec },
        },
    })
}

#[test]
fn every_controller_gets_its_pods_on_the_node() {
    let cluster = Cluster::new();
    let plane = &cluster.control_plane;
    let mut once = spec("echo done");
    once["restartPolicy"] = json!("Never");
    let template = json!({ "metadata": { "labels": { "app": "batch" } }, "spec": once });
    let mut set = controller("StatefulSet", "set", &spec("hostname > /tmp/name; exec sleep 1000"));
    set["spec"]["replicas"] = json!(2);
    set["spec"]["serviceName"] = json!("set");
    let often = json!({ "spec": { "template": template } });
    plane.apply(&[
        deployment("web", 2, "one"),
        controller("DaemonSet", "daemon", &spec("exec sleep 1000")),
        set,
        json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "batch" }, "spec": {
            "completions": 3, "parallelism": 2, "template": template,
        } }),
        json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "often" }, "spec": {
            "schedule": "* * * * *", "jobTemplate": often,
        } }),
    ]);

    for (name, count) in [("web", 2), ("daemon", 1), ("set", 2)] {
        let pods = cluster.ready_pods(&format!("app={name}"), count);
        assert!(pods.iter().all(|pod| pod["spec"]["nodeName"] == NODE), "{}", summary(&pods));
    }
    let name = plane.kubectl(&["exec", "set-1", "--", "cat", "/tmp/name"]);
    assert_eq!(name, "set-1\n");
    plane.wait("the job to be complete", || {
        let job = plane.get("/apis/batch/v1/namespaces/default/jobs/batch")?;
        let is_whole = condition(&job, "Complete") == "True" && job["status"]["succeeded"] == 3;
        if is_whole { Ok(()) } else { Err(job["status"].to_string()) }
    });
    plane.wait("the next minute's job to be complete", || {
        let schedule = plane.get("/apis/batch/v1/namespaces/default/cronjobs/often")?;
        let has_ended = schedule["status"]["lastSuccessfulTime"].is_string();
        if has_ended { Ok(()) } else { Err(schedule["status"].to_string()) }
    });
    cluster.finish();
}

#[test]
fn a_rolling_update_keeps_as_many_pods_ready_as_asked() {
    let cluster = Cluster::new();
    let plane = &cluster.control_plane;
    plane.apply(&[deployment("web", 3, "one")]);
    let first = cluster.ready_pods("app=web", 3);
    plane.apply(&[deployment("web", 3, "two")]);
    plane.wait("the update to be complete", || {
        let web = plane.get("/apis/apps/v1/namespaces/default/deployments/web")?;
        let status = &web["status"];
        assert!(status["availableReplicas"].as_u64() >= Some(3), "fewer than asked: {status}");
        let is_new = status["observedGeneration"] == 2 && status["updatedReplicas"] == 3;
        if is_new && status["replicas"] == 3 { Ok(()) } else { Err(status.to_string()) }
    });
    let second = cluster.ready_pods("app=web", 3);
    for pod in &second {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        assert_eq!(plane.kubectl(&["exec", name, "--", "cat", "/tmp/version"]), "two\n");
        assert!(first.iter().all(|old| old["metadata"]["uid"] != pod["metadata"]["uid"]));
    }
    // Nothing of the first ones is left on the machine.
    for old in &first {
        let uid = &old["metadata"]["uid"];
        wait_for("the earlier pods to be gone from the machine", PATIENCE, || {
            let left: Vec<_> =
                cluster.runtime.instances().into_iter().filter(|instance| *uid == *instance.uid).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }
    plane.kubectl(&["rollout", "undo", "deployment/web"]);
    plane.kubectl(&["rollout", "status", "deployment/web", "--timeout=100s"]);
    cluster.finish();
}

/// What `kubectl drain` is for: all pods but the daemons and the node's own leave, and come back when they may.
#[test]
fn a_drain_empties_the_node_until_it_is_uncordoned() {
    let mut cluster = Cluster::new();
    let own = pod("own", &spec("exec sleep 1000"));
    cluster.agent.write_manifest("own.yaml", &own.to_string());
    let plane = &cluster.control_plane;
    plane.apply(&[deployment("web", 2, "one"), controller("DaemonSet", "daemon", &spec("exec sleep 1000"))]);
    let before = cluster.ready_pods("app=web", 2);
    let daemon = cluster.ready_pods("app=daemon", 1);
    let mirror = cluster.ready_pods("app=own", 1);
    plane.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s"]);
    let web = plane.pods("default", "app=web").expect("a list");
    let is_old = |pod: &Value| before.iter().any(|old| old["metadata"]["uid"] == pod["metadata"]["uid"]);
    assert!(!web.iter().any(is_old), "{}", summary(&web));
    assert!(web.iter().all(|pod| pod["status"]["phase"] == "Pending"), "{}", summary(&web));
    for (name, earlier) in [("daemon", &daemon), ("own", &mirror)] {
        let now = cluster.ready_pods(&format!("app={name}"), 1);
        assert_eq!(now[0]["metadata"]["uid"], earlier[0]["metadata"]["uid"], "{name}");
    }
    assert!(cluster.node().expect("the node")["spec"]["unschedulable"] == true);

    plane.kubectl(&["uncordon", NODE]);
    cluster.ready_pods("app=web", 2);
    cluster.agent.assert_alive();
    cluster.finish();
}
