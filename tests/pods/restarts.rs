//! Restart policies, back-off, pods that end, and instances that die under us.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::containerd::Instance;
use crate::support::wait::{stays, wait_for};

/// Kills an instance's first process.
pub fn kill_instance(instance: &Instance) {
    let pid = i32::try_from(instance.pid.expect("it runs")).expect("process ids are small");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill a container's process");
}

fn crashing_container_restarts_with_growing_back_off() {
    let mut node = Node::new();
    node.apply(&node.pod("crash", "date +%s >> /out/starts; exit 3"));
    node.agent.start();

    let status = node.agent.wait_for_pod("crash", "in its second back-off", |pod| {
        let status = pod["status"]["containerStatuses"][0].clone();
        let waiting = status["state"]["waiting"]["reason"] == "CrashLoopBackOff";
        (waiting && status["restartCount"].as_i64()? >= 2).then_some(status)
    });
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3, "{status}");
    assert_eq!(status["lastState"]["terminated"]["reason"], "Error", "{status}");
    let message = status["state"]["waiting"]["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("back-off 20s restarting failed container=main pod=crash-edge_default("),
        "{message}"
    );

    let names = |directory: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("list a directory");
        entries.map(|entry| entry.expect("read an entry").file_name().into_string().expect("UTF-8")).collect()
    };
    let logs = node.agent.pod_logs_dir();
    let pods = names(&logs);
    let pod = pods.iter().find(|name| name.starts_with("default_crash-")).expect("the pod has logs");
    let kept = names(&logs.join(pod).join("main"));
    assert!(kept.contains(&"2.log".to_owned()) && !kept.contains(&"0.log".to_owned()), "{kept:?}");

    let starts: Vec<i64> =
        node.written("starts").lines().map(|line| line.parse().expect("seconds")).collect();
    assert_eq!(starts.len(), 3, "{starts:?}");
    assert!(starts[1] - starts[0] <= 5, "the first restart does not wait: {starts:?}");
    assert!((9..=16).contains(&(starts[2] - starts[1])), "the second waits ten seconds: {starts:?}");
}

fn a_back_off_survives_the_death_of_the_agent() {
    let mut node = Node::new();
    node.apply(&node.pod("crash", "date +%s >> /out/starts; exit 3"));
    node.agent.start();
    wait_for("two starts", PATIENCE, || match node.written("starts").lines().count() {
        2.. => Ok(()),
        count => Err(count.to_string()),
    });
    node.agent.kill9();
    node.agent.start();
    stays("the back-off", Duration::from_secs(5), || match node.written("starts").lines().count() {
        2 => Ok(()),
        count => Err(format!("{count} starts")),
    });
}

fn succeeded_pod_is_not_rerun_after_an_agent_restart() {
    let mut node = Node::new();
    let mut job = node.pod("job", "echo run >> /out/runs");
    job["spec"]["restartPolicy"] = json!("OnFailure");
    node.apply(&job);
    node.agent.start();
    node.agent.wait_for_phase("job", "Succeeded");

    assert!(node.agent.terminate().success());
    node.agent.start();
    node.agent.wait_for_phase("job", "Succeeded");
    stays("the finished pod", Duration::from_secs(3), || match node.written("runs").as_str() {
        "run\n" => Ok(()),
        runs => Err(runs.to_owned()),
    });
}

fn a_pod_that_may_not_restart_fails_for_good() {
    let mut node = Node::new();
    let mut job = node.pod("once", "echo run >> /out/once; exit 4");
    job["spec"]["restartPolicy"] = json!("Never");
    node.apply(&job);
    node.agent.start();
    let pod = node.agent.wait_for_phase("once", "Failed");
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 4, "{pod}");
    stays("the failed pod", Duration::from_secs(2), || match node.written("once").as_str() {
        "run\n" => Ok(()),
        runs => Err(runs.to_owned()),
    });
}

fn init_containers_run_one_after_another_before_the_others() {
    let mut node = Node::new();
    let mut pod = node.pod("init", "echo main >> /out/order; sleep 1000");
    let step = |name: &str| {
        let mut container = pod["spec"]["containers"][0].clone();
        container["name"] = json!(name);
        container["command"] = json!(["sh", "-c", format!("sleep 0.5; echo {name} >> /out/order")]);
        container
    };
    let steps = json!([step("first"), step("second")]);
    pod["spec"]["initContainers"] = steps;
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_phase("init", "Running");
    node.running("init");
    wait_for("all three", PATIENCE, || match node.written("order").as_str() {
        "first\nsecond\nmain\n" => Ok(()),
        order => Err(order.to_owned()),
    });
}

fn a_killed_container_is_started_again_in_its_sandbox() {
    let node = Node::with_pods(&[]);
    node.apply(&node.pod("web", "sleep 1000"));
    let before = node.running("web");
    kill_instance(&before);
    let after = node.running_other_than("web", &before.id);
    assert_eq!(after.uid, before.uid);
    let sandboxes = node.runtime.instances().into_iter().filter(Instance::is_sandbox).count();
    assert_eq!(sandboxes, 1);
}

fn pod_restarts_in_a_new_sandbox_after_its_sandbox_dies() {
    let node = Node::with_pods(&[]);
    node.apply(&node.pod("web", "sleep 1000"));
    let before = node.running("web");
    let sandbox = node.runtime.instances().into_iter().find(Instance::is_sandbox).expect("a pod has one");
    kill_instance(&sandbox);
    let after = node.running_other_than("web", &before.id);
    assert_eq!(after.uid, before.uid);
    let live: Vec<Instance> = node
        .runtime
        .instances()
        .into_iter()
        .filter(|instance| instance.is_sandbox() && instance.pid.is_some())
        .collect();
    assert_eq!(live.len(), 1, "{live:?}");
    assert_ne!(live[0].id, sandbox.id);
}

super::on_every_runtime! {
    crashing_container_restarts_with_growing_back_off,
    a_back_off_survives_the_death_of_the_agent,
    succeeded_pod_is_not_rerun_after_an_agent_restart,
    a_pod_that_may_not_restart_fails_for_good,
    init_containers_run_one_after_another_before_the_others,
    a_killed_container_is_started_again_in_its_sandbox,
    pod_restarts_in_a_new_sandbox_after_its_sandbox_dies,
}
