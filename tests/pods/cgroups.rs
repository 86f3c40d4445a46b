//! Pods' cgroups on the machine's own cgroup file system.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::wait::wait_for;

/// A controller's hierarchy: its own directory, or the only one there is.
fn hierarchy(controller: &str) -> PathBuf {
    let mount = Path::new("/sys/fs/cgroup");
    if mount.join("cgroup.controllers").exists() { mount.to_owned() } else { mount.join(controller) }
}

fn pod_level_cgroup_limits_are_set_and_go_with_the_pod() {
    let mut node = Node::new();
    node.agent.configure("podPidsLimit: 120\n");
    let mut pod = node.pod("limited", "sleep 1000");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod["spec"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": "250m" }, "limits": { "cpu": "500m", "memory": "64Mi" } });
    node.apply(&pod);
    node.agent.start();
    let uid = node.running("limited").uid;
    let root = node.runtime.scratch().path().file_name().expect("it has a name").to_owned();
    let pod_cgroup = |controller: &str| {
        hierarchy(controller).join(&root).join("kubepods/burstable").join(format!("pod{uid}"))
    };
    let first = |controller: &str, files: [&str; 2]| {
        let read = |file: &str| fs::read_to_string(pod_cgroup(controller).join(file)).ok();
        files.iter().find_map(|file| read(file)).expect("the file of either version").trim().to_owned()
    };
    assert_eq!(first("memory", ["memory.max", "memory.limit_in_bytes"]), "67108864");
    assert_eq!(first("pids", ["pids.max", "pids.max"]), "120");
    let quota = first("cpu", ["cpu.max", "cpu.cfs_quota_us"]);
    assert!(["50000 100000", "50000"].contains(&quota.as_str()), "{quota}");
    node.delete("limited");
    wait_for("the pod's cgroup to go", PATIENCE, || {
        if pod_cgroup("memory").exists() { Err(node.agent.log_tail()) } else { Ok(()) }
    });
}

super::on_every_runtime! {
    pod_level_cgroup_limits_are_set_and_go_with_the_pod,
}
