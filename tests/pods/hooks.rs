//! Lifecycle hooks and the way containers are stopped.

use std::time::{Duration, Instant};

use serde_json::json;

use super::Node;

const TRAP: &str =
    "trap 'echo term >> /out/order; exit 0' TERM; echo main >> /out/order; while :; do sleep 0.05; done";

fn hooks_run_after_the_start_and_before_the_end_of_a_container() {
    let mut node = Node::new();
    let mut pod = node.pod("hooked", TRAP);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(20);
    let says = |word: &str| json!({ "exec": { "command": ["sh", "-c", format!("sleep 0.5; echo {word} >> /out/order")] } });
    pod["spec"]["containers"][0]["lifecycle"] =
        json!({ "postStart": says("post-start"), "preStop": says("pre-stop") });
    let next = node.container("next", "echo next >> /out/order; sleep 1000");
    pod["spec"]["containers"].as_array_mut().expect("a list").push(next);
    node.apply(&pod);
    node.agent.start();
    node.wait_written("order", "main\npost-start\nnext\n");
    node.delete("hooked");
    node.gone("hooked");
    assert_eq!(node.written("order"), "main\npost-start\nnext\npre-stop\nterm\n");
}

fn failed_post_start_hook_kills_the_container() {
    let mut node = Node::new();
    let mut pod = node.pod("bad", "sleep 1000");
    pod["spec"]["containers"][0]["lifecycle"] =
        json!({ "postStart": { "exec": { "command": ["sh", "-c", "echo oh no; exit 3"] } } });
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_pod("bad", "waiting", |pod| {
        let reason = pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].as_str()?;
        ["PostStartHookError", "CrashLoopBackOff"].contains(&reason).then_some(())
    });
    let described = node.agent.cli(&["describe", "pod", "bad-edge"]).expect("describe the pod");
    assert!(described.contains("FailedPostStartHook"), "{described}");
}

fn hanging_pre_stop_hook_is_limited_by_the_grace_period() {
    let mut node = Node::new();
    let mut pod = node.pod("stuck", TRAP);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(3);
    pod["spec"]["containers"][0]["lifecycle"] =
        json!({ "preStop": { "exec": { "command": ["sleep", "1000"] } } });
    node.apply(&pod);
    node.agent.start();
    node.running("stuck");
    node.wait_written("order", "main\n");
    let began = Instant::now();
    node.delete("stuck");
    node.gone("stuck");
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(3), "the hook had its time: {took:?}");
    assert!(took < Duration::from_secs(60), "three seconds for the hook, two for the container: {took:?}");
    assert_eq!(node.written("order"), "main\nterm\n", "asked before it was killed");
}

fn a_pre_stop_sleep_and_an_http_hook_are_carried_out() {
    let mut node = Node::new();
    let mut pod = node.pod("web", "mkdir -p /tmp/www/cgi-bin; printf '#!/bin/sh\\necho asked >> /out/asked\\necho; echo ok\\n' > /tmp/www/cgi-bin/stop; chmod +x /tmp/www/cgi-bin/stop; trap 'exit 0' TERM; httpd -p 8080 -h /tmp/www; echo up > /out/up; while :; do sleep 0.1; done");
    pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
    pod["spec"]["terminationGracePeriodSeconds"] = json!(10);
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "web", "containerPort": 8080 }]);
    pod["spec"]["containers"][0]["lifecycle"] =
        json!({ "preStop": { "httpGet": { "path": "/cgi-bin/stop", "port": "web" } } });
    let mut sleeper = node.container("sleeper", TRAP);
    sleeper["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": 2 } } });
    pod["spec"]["containers"].as_array_mut().expect("a list").push(sleeper);
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_phase("web", "Running");
    node.wait_written("order", "main\n");
    // The server forks away once it listens.
    node.wait_written("up", "up\n");
    let began = Instant::now();
    node.delete("web");
    node.gone("web");
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(node.written("asked"), "asked\n");
    assert_eq!(node.written("order"), "main\nterm\n");
}

super::on_every_runtime! {
    hooks_run_after_the_start_and_before_the_end_of_a_container,
    failed_post_start_hook_kills_the_container,
    hanging_pre_stop_hook_is_limited_by_the_grace_period,
    a_pre_stop_sleep_and_an_http_hook_are_carried_out,
}
