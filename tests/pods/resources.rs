//! Resources: cgroup values of pods and containers, admission, changes in place.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::{PATIENCE, cgroup_root as cgroup_root_of};
use crate::support::api::Api;
use crate::support::kubectl::Kubectl;
use crate::support::wait::{stays, wait_for};

/// Where the controller of a cgroup v1 file or the unified tree is mounted.
fn cgroup_root(controller: &str) -> PathBuf {
    let v1 = Path::new("/sys/fs/cgroup").join(controller);
    if v1.is_dir() { v1 } else { PathBuf::from("/sys/fs/cgroup") }
}

fn node_cgroup_root(node: &Node) -> String {
    cgroup_root_of(node.runtime.scratch().path())
}

fn limited(node: &Node, name: &str, cpu: &str, memory: &str) -> Value {
    let mut pod = node.pod(name, "sleep 1000");
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": cpu, "memory": memory } });
    pod
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The pod's own cgroup for a controller; Guaranteed pods are directly below `kubepods`.
fn pod_cgroup(node: &Node, controller: &str, class: &str, uid: &str) -> PathBuf {
    cgroup_root(controller)
        .join(node_cgroup_root(node).trim_start_matches('/'))
        .join("kubepods")
        .join(class)
        .join(format!("pod{uid}"))
}

fn a_pods_cgroup_has_its_sums_and_goes_with_it() {
    let mut node = Node::new();
    node.agent.configure("podPidsLimit: 77\n");
    node.apply(&limited(&node, "sized", "200m", "64Mi"));
    node.agent.start();
    let uid = node.running("sized").uid;
    let memory = pod_cgroup(&node, "memory", "", &uid);
    if memory.join("memory.limit_in_bytes").exists() {
        assert_eq!(read(&memory.join("memory.limit_in_bytes")), Ok((64 << 20).to_string()));
        assert_eq!(
            read(&pod_cgroup(&node, "cpu", "", &uid).join("cpu.cfs_quota_us")),
            Ok("20000".to_owned())
        );
        assert_eq!(read(&pod_cgroup(&node, "cpu", "", &uid).join("cpu.shares")), Ok("204".to_owned()));
        assert_eq!(read(&pod_cgroup(&node, "pids", "", &uid).join("pids.max")), Ok("77".to_owned()));
    } else {
        assert_eq!(read(&memory.join("memory.max")), Ok((64 << 20).to_string()));
        assert_eq!(read(&memory.join("cpu.max")), Ok("20000 100000".to_owned()));
        assert_eq!(read(&memory.join("pids.max")), Ok("77".to_owned()));
    }
    node.delete("sized");
    node.gone("sized");
    wait_for("its cgroups to be gone", PATIENCE, || {
        let left: Vec<PathBuf> =
            ["memory", "cpu", "pids", "cpuset", "devices", "freezer", "blkio", "systemd"]
                .iter()
                .map(|controller| pod_cgroup(&node, controller, "", &uid))
                .filter(|path| path.exists())
                .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

fn a_runtime_class_gives_its_handler_and_widens_the_pods_cgroup() {
    let mut node = Node::new();
    let mut pod = limited(&node, "classed", "200m", "64Mi");
    // Burstable: not every machine lets runc set the score of a Guaranteed pod.
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({ "cpu": "100m", "memory": "32Mi" });
    pod["spec"]["runtimeClassName"] = json!("sandboxed");
    node.apply(&pod);
    node.apply(&json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "sandboxed"},
        "handler": "second",
        "overhead": {"podFixed": {"cpu": "100m", "memory": "16Mi"}},
    }));
    node.agent.start();
    let container = node.running("classed");
    assert!(node.runtime.is_second(&container), "{container:?} was not made by the handler");
    let memory = pod_cgroup(&node, "memory", "burstable", &container.uid);
    let limit = ["memory.limit_in_bytes", "memory.max"].map(|file| memory.join(file));
    let limit = limit.iter().find(|path| path.exists()).expect("a limit of memory");
    assert_eq!(read(limit), Ok((80 << 20).to_string()));
    let cpu = pod_cgroup(&node, "cpu", "burstable", &container.uid);
    let quota = read(&cpu.join("cpu.cfs_quota_us")).or_else(|_| read(&cpu.join("cpu.max")));
    assert_eq!(quota.map(|quota| quota.split(' ').next().map(str::to_owned)), Ok(Some("30000".to_owned())));
}

fn pod_that_does_not_fit_waits_until_resources_are_free() {
    let mut node = Node::new();
    let cpus = std::thread::available_parallelism().expect("count CPUs").get();
    let big = |name: &str| {
        let mut pod = node.pod(name, "sleep 1000");
        pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": format!("{}", f64::from(u32::try_from(cpus).expect("few")) * 0.6) } });
        pod
    };
    let (first, second) = (big("first"), big("second"));
    node.apply(&first);
    node.agent.start();
    node.running("first");
    node.apply(&second);
    let message = node.agent.wait_for_pod("second", "rejected", |pod| {
        let status = &pod["status"];
        (status["reason"] == "OutOfcpu" && status["phase"] == "Pending")
            .then(|| status["message"].to_string())
    });
    assert!(
        message.contains("Pod was rejected: Node didn't have enough resource: cpu, requested: "),
        "{message}"
    );
    stays("the rejected pod", std::time::Duration::from_secs(1), || {
        if node.runtime.running("second-edge").is_empty() { Ok(()) } else { Err("it runs".to_owned()) }
    });
    node.delete("first");
    node.running("second");
    node.agent.wait_for_phase("second", "Running");
}

fn node_selector_and_host_port_conflicts_hold_pods() {
    let mut node = Node::new();
    let mut elsewhere = node.pod("elsewhere", "sleep 1000");
    elsewhere["spec"]["nodeSelector"] = json!({ "disk": "ssd" });
    let port = |name: &str| {
        let mut pod = node.pod(name, "sleep 1000");
        pod["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 18099, "hostPort": 18099 }]);
        pod
    };
    let (holder, late) = (port("holder"), port("late"));
    node.apply(&elsewhere);
    node.apply(&holder);
    node.agent.start();
    node.running("holder");
    node.apply(&late);
    for (pod, reason) in [("elsewhere", "NodeAffinity"), ("late", "NodePorts")] {
        node.agent.wait_for_pod(pod, reason, |pod| (pod["status"]["reason"] == reason).then_some(()));
    }
    node.delete("holder");
    node.running("late");
}

fn a_pod_with_a_uid_of_its_own_is_resized_without_a_restart() {
    let mut node = Node::new();
    let mut pod = limited(&node, "grows", "100m", "32Mi");
    pod["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    node.apply(&pod);
    node.agent.start();
    let before = node.running("grows");
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "300m", "memory": "48Mi" } });
    node.apply(&pod);
    let container = |controller: &str| pod_cgroup(&node, controller, "", &before.uid).join(&before.id);
    wait_for("the container's cgroup to be changed", PATIENCE, || {
        let memory = container("memory");
        let (file, quota) = if memory.join("memory.limit_in_bytes").exists() {
            (memory.join("memory.limit_in_bytes"), container("cpu").join("cpu.cfs_quota_us"))
        } else {
            (memory.join("memory.max"), memory.join("cpu.max"))
        };
        let (memory, quota) = (read(&file)?, read(&quota)?);
        if memory == (48 << 20).to_string() && quota.starts_with("30000") {
            Ok(())
        } else {
            Err(format!("{memory} {quota}"))
        }
    });
    assert_eq!(node.running("grows").id, before.id, "the same instance");
    let status = node.agent.wait_for_pod("grows", "resized", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        (status["resources"]["limits"]["memory"] == "48Mi").then(|| status.clone())
    });
    assert_eq!(status["restartCount"], 0, "{status}");
}

/// By kubectl where one knows the subresource (1.32), else by what it would send.
fn kubectl_resizes_a_pod_in_place_and_sees_how_it_went() {
    let mut node = Node::new();
    let scratch = node.runtime.scratch().path().to_path_buf();
    let api = Api::of(&mut node.agent, &scratch);
    let mut pod = limited(&node, "grows", "100m", "32Mi");
    pod["spec"]["restartPolicy"] = json!("Always");
    node.agent.start();
    api.wait(&mut node.agent);
    let admin = api.person(&node.agent, "curl", &[]);
    let send = |method: &str, path: &str, kind: &str, body: &Value| {
        let (header, body) = (format!("Content-Type: {kind}"), body.to_string());
        let (code, text) =
            api.curl(Some(&admin), path, &["-X", method, "-H", &header, "--data-binary", &body]);
        (code, serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(send("POST", pods, "application/json", &pod).0, 201);
    let shown = |what: &str, fits: &dyn Fn(&Value) -> bool| {
        wait_for(what, PATIENCE, || {
            let (_, text) = api.curl(Some(&admin), &format!("{pods}/grows"), &[]);
            let pod: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            if fits(&pod) { Ok(pod) } else { Err(text) }
        })
    };
    let before = shown("it to run", &|pod| pod["status"]["containerStatuses"][0]["ready"] == true);
    let id = before["status"]["containerStatuses"][0]["containerID"].clone();
    let kubectl = Kubectl::of(&api, &node.agent, &scratch, "admin", &[]);
    let kubectl =
        kubectl.with_each().pop().filter(|kubectl| kubectl.out(&["patch", "-h"]).contains("--subresource"));
    let resize = |cpu: &str, memory: &str| {
        let container = &pod["spec"]["containers"][0]["name"];
        let amounts =
            json!({"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": cpu, "memory": memory}});
        let patch = json!({"spec": {"containers": [{"name": container, "resources": amounts}]}});
        if let Some(kubectl) = &kubectl {
            let patch = patch.to_string();
            let said = kubectl.run(&["patch", "pod", "grows", "--subresource", "resize", "-p", &patch]);
            (said.ok, said.err)
        } else {
            let target = format!("{pods}/grows/resize");
            let (code, said) = send("PATCH", &target, "application/strategic-merge-patch+json", &patch);
            (code == 200, said.to_string())
        }
    };
    let (ok, err) = resize("300m", "48Mi");
    assert!(ok, "{err}");
    let done = shown("the resize to be done", &|pod| {
        let status = &pod["status"]["containerStatuses"][0];
        let conditions = pod["status"]["conditions"].to_string();
        status["resources"]["limits"]["memory"] == "48Mi" && !conditions.contains("PodResize")
    });
    let status = &done["status"]["containerStatuses"][0];
    assert_eq!((&status["containerID"], &status["restartCount"]), (&id, &json!(0)), "the same instance");
    assert_eq!(status["allocatedResources"], json!({"cpu": "300m", "memory": "48Mi"}));
    assert_eq!(status["resources"]["requests"], json!({"cpu": "300m", "memory": "48Mi"}));
    let generations = (&done["metadata"]["generation"], &done["status"]["observedGeneration"]);
    assert_eq!(generations, (&json!(2), &json!(2)));
    let told = || {
        let (_, text) = api.curl(Some(&admin), "/api/v1/namespaces/default/events", &[]);
        let events: Value = serde_json::from_str(&text).expect("JSON");
        let mut reasons = Vec::new();
        for event in events["items"].as_array().into_iter().flatten() {
            let reason = event["reason"].as_str().unwrap_or_default().to_owned();
            if reason.starts_with("Resize") && event["involvedObject"]["name"] == "grows" {
                reasons.push(reason);
            }
        }
        reasons.sort_unstable();
        reasons
    };
    assert_eq!(told(), ["ResizeCompleted", "ResizeStarted"]);

    // More than the node has is taken down as a wish, and said to be one that cannot come true.
    let (ok, err) = resize("100000", "48Mi");
    assert!(ok, "{err}");
    let pending = shown("the resize to be infeasible", &|pod| {
        pod["status"]["conditions"].to_string().contains("Infeasible")
    });
    let conditions = pending["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let condition =
        conditions.iter().find(|condition| condition["type"] == "PodResizePending").expect("a condition");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Infeasible")));
    assert_eq!(pending["status"]["containerStatuses"][0]["allocatedResources"]["cpu"], "300m");
    assert_eq!(pending["status"]["containerStatuses"][0]["containerID"], id);
    assert!(told().contains(&"ResizeInfeasible".to_owned()), "{:?}", told());
    // What no resize may change.
    let (ok, err) = resize("100m", "-1");
    assert!(!ok, "{err}");
}

fn oom_score_adj_follows_the_qos_class() {
    let mut node = Node::new();
    node.apply(&node.pod("modest", "cat /proc/self/oom_score_adj > /out/modest; sleep 1000"));
    let mut some = node.pod("some", "cat /proc/self/oom_score_adj > /out/some; sleep 1000");
    some["spec"]["containers"][0]["resources"] = json!({ "requests": { "memory": "64Mi" } });
    node.apply(&some);
    node.agent.start();
    assert_eq!(node.written("modest"), "1000\n");
    let score: i32 = node.written("some").trim().parse().expect("a number");
    assert!((3..1000).contains(&score), "{score}");
    let pod = node.agent.wait_for_phase("some", "Running");
    assert_eq!(pod["status"]["qosClass"], "Burstable");
}

super::on_every_runtime! {
    a_pods_cgroup_has_its_sums_and_goes_with_it,
    a_runtime_class_gives_its_handler_and_widens_the_pods_cgroup,
    pod_that_does_not_fit_waits_until_resources_are_free,
    node_selector_and_host_port_conflicts_hold_pods,
    a_pod_with_a_uid_of_its_own_is_resized_without_a_restart,
    kubectl_resizes_a_pod_in_place_and_sees_how_it_went,
    oom_score_adj_follows_the_qos_class,
}
