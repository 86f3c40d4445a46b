//! Processes that die, and machines.

use super::*;

#[test]
fn pods_survive_an_agent_kill_and_are_adopted() {
    let mut node = Node::new();
    node.apply(&pod("quiet"));
    node.agent.start();
    node.agent.wait_for_phase("quiet", "Running");
    let before = node.one_running_other_than("");
    node.agent.kill9();
    stays("the container", Duration::from_millis(500), || {
        if node.running() == [before.clone()] { Ok(()) } else { Err(format!("{:?}", node.running())) }
    });
    node.agent.start();
    let pod = node.agent.wait_for_phase("quiet", "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(node.running(), [before]);
    node.agent.remove_manifest("quiet.yaml");
    node.nothing_is_left();
    node.agent.assert_alive();
}

#[test]
fn unsupported_monitor_protocol_recreates_the_pod_once() {
    let mut node = Node::new();
    node.apply(&pod("quiet"));
    node.agent.start();
    node.agent.wait_for_phase("quiet", "Running");
    let (first, sandbox) = (node.one_running_other_than(""), node.sandbox());
    let record = node.runtime.state_dir().join("sandboxes").join(&sandbox.id).join("sandbox.json");
    let change = |how: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let text = fs::read_to_string(&record).expect("a sandbox has a record");
        let mut value: Value = serde_json::from_str(&text).expect("which is JSON");
        how(value.as_object_mut().expect("with fields"));
        fs::write(&record, value.to_string()).expect("write the record");
    };
    // Written before there was such a field.
    node.agent.kill9();
    change(&|fields| assert_eq!(fields.remove("monitor_protocol"), Some(json!(1))));
    node.agent.start();
    node.agent.wait_for_phase("quiet", "Running");
    assert_eq!(node.running(), std::slice::from_ref(&first));
    node.agent.kill9();
    change(&|fields| drop(fields.insert("monitor_protocol".to_owned(), json!(99))));
    node.agent.start();
    let second = node.one_running_other_than(&first.id);
    assert!(node.agent.log().contains("unsupported protocol version"));
    node.agent.kill9();
    node.agent.start();
    node.agent.wait_for_phase("quiet", "Running");
    assert_eq!(node.running(), [second]);
    node.agent.remove_manifest("quiet.yaml");
    node.nothing_is_left();
}

#[test]
fn killed_monitor_ends_its_containers_and_pod_is_recreated() {
    let mut node = Node::new();
    node.apply(&pod("orphan"));
    node.agent.start();
    node.agent.wait_for_phase("orphan", "Running");
    let (before, sandbox) = (node.one_running_other_than(""), node.sandbox());
    kill9(sandbox.pid.expect("it runs"));
    let first = i32::try_from(before.pid.expect("it runs")).expect("process ids are small");
    wait_for("the container to die with its monitor", PATIENCE, || {
        if is_gone(first) { Ok(()) } else { Err(format!("process {first} runs")) }
    });
    let after = node.one_running_other_than(&before.id);
    assert_ne!(node.sandbox().id, sandbox.id);
    let status = node.agent.wait_for_pod("orphan", "restarted", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1 && status["state"]["running"].is_object()).then(|| status.clone())
    });
    let last = &status["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["reason"]), (&json!(137), &json!("Error")), "{status}");
    assert!(last["message"].as_str().unwrap_or_default().contains("monitor"), "{status}");
    assert_ne!(after.id, before.id);
    node.agent.remove_manifest("orphan.yaml");
    node.nothing_is_left();
}

#[test]
fn monitor_death_while_the_agent_is_down_is_detected() {
    let mut node = Node::new();
    node.apply(&pod("unseen"));
    node.agent.start();
    node.agent.wait_for_phase("unseen", "Running");
    let (before, sandbox) = (node.one_running_other_than(""), node.sandbox());
    node.agent.kill9();
    kill9(sandbox.pid.expect("it runs"));
    node.agent.start();
    node.one_running_other_than(&before.id);
    node.agent.remove_manifest("unseen.yaml");
    node.nothing_is_left();
}

#[test]
fn reboot_recreates_pods_and_removes_their_old_layers() {
    let mut node = Node::new();
    node.apply(&pod("again"));
    node.agent.start();
    node.agent.wait_for_phase("again", "Running");
    let before = node.one_running_other_than("");
    node.agent.kill9();
    // As a power cut: all processes are gone, and with them everything that is in memory.
    let first = i32::try_from(before.pid.expect("it runs")).expect("process ids are small");
    for monitor in monitors_of(&node.runtime.state_dir()) {
        kill(Pid::from_raw(monitor), Signal::SIGKILL).expect("kill a monitor");
    }
    wait_for("the container to die", PATIENCE, || if is_gone(first) { Ok(()) } else { Err(String::new()) });
    for point in mounts_below(&node.runtime.state_dir()) {
        umount2(&point, MntFlags::MNT_DETACH).expect("unmount");
    }
    fs::remove_dir_all(node.runtime.state_dir()).expect("forget the state");
    let bridge = node.runtime.scratch().bridge();
    let deleted = std::process::Command::new("ip").args(["link", "delete", &bridge]).status();
    assert!(deleted.expect("run ip").success());
    assert!(node.layers().join(&before.id).is_dir());
    node.agent.start();
    let after = node.one_running_other_than(&before.id);
    wait_for("the old writable layer to go", PATIENCE, || {
        let layers = entries(&node.layers());
        if layers == [node.layers().join(&after.id)] { Ok(()) } else { Err(format!("{layers:?}")) }
    });
    node.agent.remove_manifest("again.yaml");
    node.nothing_is_left();
}

#[test]
fn other_oci_runtimes_container_is_killed_after_its_monitor() {
    // The kernel does not tie it to the monitor, as it does with our own: the agent has to see it.
    const SOON: Duration = Duration::from_secs(5);
    let mut node = Node::new();
    let mut manifest = pod("foreign");
    manifest["spec"]["runtimeClassName"] = json!("second");
    node.apply(&manifest);
    node.agent.start();
    node.agent.wait_for_phase("foreign", "Running");
    let (before, sandbox) = (node.one_running_other_than(""), node.sandbox());
    let first = i32::try_from(before.pid.expect("it runs")).expect("process ids are small");
    kill9(sandbox.pid.expect("it runs"));
    let began = std::time::Instant::now();
    wait_for("the container to be killed", SOON, || {
        if is_gone(first) { Ok(()) } else { Err(format!("process {first} runs")) }
    });
    println!("it ended {:?} after its monitor", began.elapsed());
    let after = node.one_running_other_than(&before.id);

    // Without an agent it goes on, until there is one again.
    let second = i32::try_from(after.pid.expect("it runs")).expect("process ids are small");
    let sandbox = node.sandbox();
    node.agent.kill9();
    kill9(sandbox.pid.expect("it runs"));
    node.agent.start();
    wait_for("the container to be killed", PATIENCE, || {
        if is_gone(second) { Ok(()) } else { Err(format!("process {second} runs")) }
    });
    node.agent.remove_manifest("foreign.yaml");
    node.nothing_is_left();
}
