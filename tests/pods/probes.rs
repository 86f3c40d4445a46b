//! Probes and what follows from them.

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::wait::{stays, wait_for};

fn condition(pod: &Value, name: &str) -> Value {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == name).cloned().unwrap_or_default()
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

/// A probe that asks for a file in `/out`.
fn file_probe(file: &str) -> Value {
    json!({ "exec": { "command": ["test", "-f", format!("/out/{file}")] }, "periodSeconds": 1, "failureThreshold": 1 })
}

fn readiness_follows_its_probe_both_ways() {
    let mut node = Node::new();
    let mut pod = node.pod("web", "sleep 1000");
    pod["spec"]["containers"][0]["readinessProbe"] = file_probe("ready");
    node.apply(&pod);
    node.agent.start();

    let pod = node.agent.wait_for_phase("web", "Running");
    assert!(!is_ready(&pod), "{pod}");
    assert_eq!(condition(&pod, "Ready")["message"], "containers with unready status: [main]");
    std::fs::write(node.out("ready"), "").expect("let the probe succeed");
    node.agent.wait_for_pod("web", "ready", |pod| is_ready(pod).then_some(()));
    std::fs::remove_file(node.out("ready")).expect("let the probe fail");
    node.agent.wait_for_pod("web", "unready again", |pod| (!is_ready(pod)).then_some(()));
    let described = node.agent.cli(&["describe", "pod", "web-edge"]).expect("describe the pod");
    assert!(described.contains("Unhealthy") && described.contains("Readiness probe failed"), "{described}");
}

fn failed_liveness_probe_restarts_within_its_own_grace() {
    let mut node = Node::new();
    let mut pod = node.pod("stuck", "touch /out/alive; echo up >> /out/ups; sleep 1000");
    pod["spec"]["containers"][0]["livenessProbe"] = file_probe("alive");
    pod["spec"]["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"] = json!(1);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(300);
    node.apply(&pod);
    node.agent.start();
    let first = node.running("stuck");
    node.written("ups");
    std::fs::remove_file(node.out("alive")).expect("let the probe fail");
    node.running_other_than("stuck", &first.id);
    let status = node.agent.wait_for_pod("stuck", "restarted", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1).then(|| status.clone())
    });
    assert_eq!(
        status["lastState"]["terminated"]["exitCode"], 137,
        "its own grace of 1 s, not the pod's: {status}"
    );
    let described = node.agent.cli(&["describe", "pod", "stuck-edge"]).expect("describe the pod");
    assert!(described.contains("Container main failed liveness probe, will be restarted"), "{described}");
}

fn other_probes_wait_until_the_startup_probe_succeeds() {
    let mut node = Node::new();
    let mut pod = node.pod("slow", "sleep 1000");
    let mut startup = file_probe("started");
    startup["failureThreshold"] = json!(60);
    pod["spec"]["containers"][0]["startupProbe"] = startup;
    pod["spec"]["containers"][0]["livenessProbe"] =
        json!({ "exec": { "command": ["sh", "-c", "echo asked >> /out/asked"] }, "periodSeconds": 1 });
    node.apply(&pod);
    node.agent.start();
    let pod = node.agent.wait_for_phase("slow", "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["started"], false, "{pod}");
    stays("the liveness probe", std::time::Duration::from_secs(3), || {
        if node.out("asked").exists() { Err("asked before the start was over".to_owned()) } else { Ok(()) }
    });
    std::fs::write(node.out("started"), "").expect("let the startup probe succeed");
    node.agent.wait_for_pod("slow", "started", |pod| {
        (pod["status"]["containerStatuses"][0]["started"] == true).then_some(())
    });
    node.written("asked");
}

fn failed_startup_probe_restarts_with_back_off() {
    let mut node = Node::new();
    let mut pod = node.pod("never", "sleep 1000");
    pod["spec"]["containers"][0]["startupProbe"] = file_probe("no-such-file");
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_pod("never", "in back-off", |pod| {
        (pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff")
            .then_some(())
    });
    let described = node.agent.cli(&["describe", "pod", "never-edge"]).expect("describe the pod");
    assert!(described.contains("Container main failed startup probe"), "{described}");
}

fn http_and_tcp_probes_reach_the_pods_address_by_port_name() {
    let mut node = Node::new();
    let mut pod =
        node.pod("page", "mkdir /tmp/www; echo fine > /tmp/www/healthz; httpd -f -p 8080 -h /tmp/www");
    pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
    let container = &mut pod["spec"]["containers"][0];
    container["ports"] = json!([{ "name": "web", "containerPort": 8080 }]);
    container["startupProbe"] =
        json!({ "tcpSocket": { "port": "web" }, "periodSeconds": 1, "failureThreshold": 30 });
    container["livenessProbe"] =
        json!({ "httpGet": { "path": "/healthz", "port": "web" }, "periodSeconds": 1 });
    container["readinessProbe"] =
        json!({ "httpGet": { "path": "/missing", "port": 8080 }, "periodSeconds": 1 });
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_pod("page", "started", |pod| {
        (pod["status"]["containerStatuses"][0]["started"] == true).then_some(())
    });
    let pod = node.agent.wait_for_phase("page", "Running");
    assert!(!is_ready(&pod), "404 is no success: {pod}");
    let container = node.running("page");
    node.runtime.exec(&container, &["touch", "/tmp/www/missing"]);
    let pod = node.agent.wait_for_pod("page", "ready", |pod| is_ready(pod).then(|| pod.clone()));
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
}

fn agent_restart_keeps_readiness_and_startup_results() {
    let mut node = Node::new();
    let mut pod = node.pod("calm", "sleep 1000");
    let asks = |file: &str| json!({ "exec": { "command": ["sh", "-c", format!("echo x >> /out/{file}")] }, "periodSeconds": 30 });
    pod["spec"]["containers"][0]["startupProbe"] = asks("startups");
    pod["spec"]["containers"][0]["readinessProbe"] = asks("readinesses");
    node.apply(&pod);
    node.agent.start();
    let ready = |pod: &Value| is_ready(pod).then(|| condition(pod, "Ready")["lastTransitionTime"].clone());
    let since = node.agent.wait_for_pod("calm", "ready", ready);
    // What a power cut in this very second takes away is not promised.
    wait_for("the store to know", PATIENCE, || {
        let pod = node.agent.stored_pod("calm")?;
        if is_ready(&pod) { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    node.agent.kill9();
    node.agent.start();
    let still = node.agent.wait_for_pod("calm", "seen again", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"].is_object().then(|| pod.clone())
    });
    assert!(is_ready(&still), "{still}");
    stays("readiness", std::time::Duration::from_secs(2), || {
        let pod = node.agent.pod("calm")?;
        if ready(&pod).as_ref() == Some(&since) { Ok(()) } else { Err(pod["status"].to_string()) }
    });
    assert_eq!(node.written("startups"), "x\n");
}

super::on_every_runtime! {
    readiness_follows_its_probe_both_ways,
    failed_liveness_probe_restarts_within_its_own_grace,
    other_probes_wait_until_the_startup_probe_succeeds,
    failed_startup_probe_restarts_with_back_off,
    http_and_tcp_probes_reach_the_pods_address_by_port_name,
    agent_restart_keeps_readiness_and_startup_results,
}
