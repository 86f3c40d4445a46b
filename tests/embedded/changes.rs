//! Another runtime than last time.

use super::*;
use crate::support::agent::pod_name;
use crate::support::containerd::Containerd;

/// The same agent (directories, pods) with another runtime.
fn agent_with(containerd: &Containerd, runtime: &Embedded, endpoint: &str) -> AgentProcess {
    let mut agent = AgentProcess::new(containerd.scratch().path(), endpoint);
    runtime.configure(&mut agent);
    agent
}

#[test]
fn runtime_change_stops_pods_on_the_old_runtime_first() {
    let (containerd, runtime) = (Containerd::start(), Embedded::new());
    let on_embedded = || {
        let all = runtime.instances().into_iter();
        all.filter(|instance| instance.pid.is_some()).count()
    };
    let endpoint = containerd.endpoint();
    for (kind, endpoint) in
        [("embedded", "embedded"), ("containerd", endpoint.as_str()), ("embedded", "embedded")]
    {
        let mut agent = agent_with(&containerd, &runtime, endpoint);
        agent.write_manifest("moving.yaml", &pod("moving").to_string());
        agent.start();
        // Until the change is carried out the pod may still be seen on the other one.
        wait_for("the pod to run here and nowhere else", PATIENCE, || {
            let seen = (on_embedded(), containerd.running(&pod_name("moving")).len());
            let wanted = if kind == "embedded" { (2, 0) } else { (0, 1) };
            if seen == wanted { Ok(()) } else { Err(format!("{kind}: {seen:?}: {}", agent.log_tail())) }
        });
        agent.wait_for_phase("moving", "Running");
        assert!(kind == "containerd" || containerd.instances().is_empty(), "{:?}", containerd.instances());
        assert!(kind == "embedded" || runtime.instances().is_empty(), "{:?}", runtime.instances());
        agent.terminate();
    }
}

#[test]
fn pods_of_a_runtime_that_cannot_be_reached_are_not_forgotten() {
    let (containerd, runtime) = (Containerd::start(), Embedded::new());
    let mut agent = agent_with(&containerd, &runtime, &containerd.endpoint());
    agent.write_manifest("left.yaml", &pod("left").to_string());
    agent.start();
    agent.wait_for_phase("left", "Running");
    agent.terminate();
    containerd.end_daemon(nix::sys::signal::Signal::SIGTERM);
    let mut agent = agent_with(&containerd, &runtime, "embedded");
    agent.start();
    wait_for("the agent to say so", PATIENCE, || {
        let log = agent.log();
        if log.contains("retrying at the next start") { Ok(()) } else { Err(agent.log_tail()) }
    });
    agent.wait_for_phase("left", "Running");
    agent.terminate();
    containerd.start_daemon();
    assert_eq!(containerd.running(&pod_name("left")).len(), 1);
    agent.start();
    wait_for("the pod to be stopped there", PATIENCE, || {
        let left = containerd.instances();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}: {}", agent.log_tail())) }
    });
    agent.wait_for_phase("left", "Running");
}

#[test]
fn two_agents_cannot_have_the_same_directories() {
    let mut node = Node::new();
    node.apply(&pod("mine"));
    node.agent.start();
    node.agent.wait_for_phase("mine", "Running");
    let before = node.one_running_other_than("");
    let socket = node.runtime.scratch().path().join("cri.sock");
    let output = std::process::Command::new(binary())
        .arg("cri")
        .arg(format!("--listen=unix://{}", socket.display()))
        .arg(format!("--root-dir={}", node.agent.root_dir().display()))
        .arg(format!("--runtime-state-dir={}", node.runtime.state_dir().display()))
        .output()
        .expect("start the other one");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("another agent uses"), "{said}");
    assert!(said.contains("state.lock") && !socket.exists(), "{said}");
    assert_eq!(node.running(), [before]);
    node.agent.assert_alive();
}

#[test]
fn reset_stops_and_removes_the_pods_that_an_agent_left_running() {
    let runtime = Embedded::new();
    let mut agent = AgentProcess::new(runtime.scratch().path(), "embedded");
    runtime.configure(&mut agent);
    agent.write_manifest("leaving.yaml", &pod("leaving").to_string());
    agent.start();
    agent.wait_for_phase("leaving", "Running");
    let flags = [
        format!("--config={}", agent.config_file().display()),
        format!("--root-dir={}", agent.root_dir().display()),
        format!("--runtime-state-dir={}", runtime.state_dir().display()),
        format!("--bridge-name={}", runtime.scratch().bridge()),
        format!("--cni-conf-dir={}", runtime.scratch().path().join("no-cni").display()),
    ];
    let reset = || {
        let mut command = std::process::Command::new(crate::support::agent::binary());
        let output = command.args(["reset", "phase", "pods", "--"]).args(&flags).output().expect("run reset");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), said(&output.stdout) + &said(&output.stderr))
    };
    let (code, said) = reset();
    assert!(code == Some(1) && said.contains("stop it first"), "an agent that runs is not robbed: {said}");
    agent.assert_alive();
    agent.terminate();
    assert!(runtime.instances().iter().any(|instance| instance.pid.is_some()), "pods outlive the agent");
    let (code, said) = reset();
    assert!(code == Some(0) && said.contains("Pods removed: 1"), "{code:?} {said}");
    assert!(runtime.instances().is_empty(), "{:?}", runtime.instances());
    assert!(!std::path::Path::new("/sys/class/net").join(runtime.scratch().bridge()).exists());
}

/// The cgroup tree is read-only for the process that this is the beginning of, and `/etc` is empty.
const READ_ONLY_CGROUPS: &str = "set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /etc
while read -r _ point kind _; do case $kind in cgroup*) mount -o remount,bind,ro \"$point\";; esac; done < /proc/mounts
exec \"$@\"";

#[test]
fn reset_goes_on_where_cgroups_cannot_be_removed_and_says_so() {
    let runtime = Embedded::new();
    let mut agent = AgentProcess::new(runtime.scratch().path(), "embedded");
    runtime.configure(&mut agent);
    agent.write_manifest("leaving.yaml", &pod("leaving").to_string());
    agent.start();
    agent.wait_for_phase("leaving", "Running");
    agent.terminate();
    let pids: Vec<u32> = runtime.instances().into_iter().filter_map(|instance| instance.pid).collect();
    let output = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", READ_ONLY_CGROUPS, "sh"])
        .arg(crate::support::agent::binary())
        .args(["reset", "--force", "--"])
        .arg(format!("--config={}", agent.config_file().display()))
        .arg(format!("--root-dir={}", agent.root_dir().display()))
        .arg(format!("--runtime-state-dir={}", runtime.state_dir().display()))
        .arg(format!("--agent-socket={}", runtime.scratch().path().join("agent.sock").display()))
        .arg(format!("--bridge-name={}", runtime.scratch().bridge()))
        .arg(format!("--cni-conf-dir={}", runtime.scratch().path().join("no-cni").display()))
        .output()
        .expect("run reset");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    assert!(err.contains("failed to remove") && err.contains("Read-only file system"), "{out}{err}");
    assert!(out.contains("[reset] Deleting: "), "it goes on: {out}{err}");
    assert!(!agent.root_dir().join("pods").exists() && !agent.root_dir().join("agent.db").exists(), "{out}");
    let runs = |pid: &u32| !is_gone(i32::try_from(*pid).expect("process ids are small"));
    assert!(!pids.is_empty() && !pids.iter().any(runs), "{out}{err}");
}
