//! A configuration that changes while the agent runs.

use std::fs;

use nix::sys::signal::Signal;

use super::node::{Node, pod};
use crate::support::agent::{PATIENCE, pod_name};
use crate::support::wait::wait_for;

impl Node {
    fn replace_setting(&self, old: &str, new: &str) {
        let file = self.agent.config_file();
        let text = fs::read_to_string(&file).expect("read the configuration");
        assert!(text.contains(old), "{old} is not in {text}");
        let next = file.with_extension("next");
        fs::write(&next, text.replace(old, new)).expect("write the next configuration");
        fs::rename(&next, &file).expect("replace the configuration");
    }

    fn wait_for_line(&self, words: &[&str]) {
        wait_for(&format!("a line with {words:?}"), PATIENCE, || {
            if self.log_lines(words).is_empty() { Err(self.agent.log_tail()) } else { Ok(()) }
        });
    }

    fn wait_for_problem(&self, words: &str) {
        wait_for(&format!("the problem {words:?}"), PATIENCE, || {
            let problems = self.agent.status_json()?["problems"].to_string();
            if problems.contains(words) { Ok(()) } else { Err(problems) }
        });
    }
}

#[test]
fn changed_file_is_taken_over_or_waits_for_a_restart() {
    let mut node = Node::new();
    node.agent.configure("clusterDNS: [10.9.9.1]\nmaxPods: 30\n");
    let neighbour = node.start_with_neighbour();
    node.replace_setting("10.9.9.1", "10.9.9.2");
    node.wait_for_line(&["Reloaded the configuration", "fields=\"clusterDNS\""]);
    let mut later = pod("later");
    later["spec"]["dnsPolicy"] = "ClusterFirst".into();
    node.apply(&later);
    node.running("later");
    let servers = |name: &str| {
        let state = node.cri.state();
        let mut sandboxes = state.world.sandboxes.values();
        let found = sandboxes.find(|sandbox| *sandbox.observed.pod.name == *pod_name(name));
        found.and_then(|sandbox| Some(sandbox.config.dns.as_ref()?.servers.clone())).unwrap_or_default()
    };
    assert_eq!(
        (servers("neighbour"), servers("later")),
        (vec!["10.9.9.1".to_owned()], vec!["10.9.9.2".into()])
    );

    node.replace_setting("maxPods: 30", "maxPods: 1");
    node.wait_for_problem("restart the agent to apply maxPods");
    let words = ["Changed settings take effect when the agent is restarted", "maxPods"];
    assert_eq!(node.log_lines(&words).len(), 1, "{}", node.agent.log());
    node.replace_setting("maxPods: 1", "maxPods: 30");
    wait_for("no problem is left", PATIENCE, || {
        let problems = node.agent.status_json()?["problems"].clone();
        if problems == serde_json::json!([]) { Ok(()) } else { Err(problems.to_string()) }
    });
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn bad_file_keeps_the_configuration_until_it_is_mended() {
    let mut node = Node::new();
    node.agent.configure("clusterDNS: [10.9.9.1]\n");
    let neighbour = node.start_with_neighbour();
    node.replace_setting("[10.9.9.1]", "{");
    node.wait_for_problem("the previous configuration stays in force");
    assert_eq!(
        node.log_lines(&["Failed to reload the configuration", "config.yaml"]).len(),
        1,
        "{}",
        node.agent.log()
    );
    node.agent.signal(Signal::SIGHUP);
    wait_for("the answer to the signal", PATIENCE, || {
        let lines = node.log_lines(&["Failed to reload the configuration"]);
        if lines.len() == 2 { Ok(()) } else { Err(lines.join("\n")) }
    });
    node.replace_setting("enableServer: false", "authorization: {mode: Webhook}");
    node.replace_setting("clusterDNS: {", "clusterDNS: [10.9.9.2]");
    let refusal = "authorization.mode: Webhook requires a cluster";
    node.wait_for_problem(refusal);
    let shown = node.agent.command_of("config").arg("--config").arg(node.agent.config_file()).output();
    let shown = shown.expect("run it");
    assert_eq!(shown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&shown.stderr).contains(refusal), "{shown:?}");
    node.replace_setting("authorization: {mode: Webhook}", "enableServer: false");
    node.wait_for_line(&["Reloaded the configuration", "clusterDNS"]);
    node.replace_setting("[10.9.9.2]", "[10.9.9.2]\nmaxPodz: 3");
    node.wait_for_line(&["config.yaml", "maxPodz"]);
    assert_eq!(node.agent.status_json().expect("a status")["problems"], serde_json::json!([]));
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn hangup_without_a_change_ends_nothing() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.agent.signal(Signal::SIGHUP);
    node.wait_for_line(&["Configuration is unchanged"]);
    node.agent.assert_alive();
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn refused_settings_and_host_checks_end_the_start() {
    for (lines, words) in [
        ("tracing: {endpoint: 'localhost:4317'}\n", "tracing.endpoint: \"localhost:4317\" is not supported"),
        ("featureGates: {DynamicResourceAllocation: true}\n", "feature is locked to false"),
        ("hairpinMode: none\n", "hairpinMode: \"none\" is not supported"),
    ] {
        let mut node = Node::new();
        node.agent.configure(lines);
        node.agent.start();
        assert_eq!(node.agent.wait_for_end().code(), Some(1), "{lines}");
        assert!(node.agent.log().contains(words), "{lines}: {}", node.agent.log());
    }
}
