//! Flags, the file and its drop-ins, as far as a running agent shows what it made of them.

use std::fs;
use std::process::Command;

use super::node::{Node, pod, said};
use crate::support::agent::binary;

#[test]
fn flags_and_deprecations_are_logged_once() {
    let mut node = Node::new();
    node.agent.configure("contentType: application/vnd.kubernetes.protobuf\n");
    for argument in [
        "-v=1",
        "--event-qps=7",
        "--log-dir=/x",
        "--log-dir=/y",
        "--manifest-url-header=Authorization:secret",
    ] {
        node.agent.argument(argument);
    }
    node.start_with_neighbour();
    for words in [
        &["FLAG: --event-qps=", "7"][..],
        &["FLAG: --hostname-override=", "edge"],
        &["Flag --event-qps has been deprecated", "eventRecordQPS", "--config"],
        &["Flag --log-dir was removed", "stderr"],
        &["contentType", "has no effect", "JSON"],
    ] {
        assert_eq!(node.log_lines(words).len(), 1, "{words:?}: {}", node.agent.log());
    }
    assert!(!node.agent.log().contains("secret"), "{}", node.agent.log());
}

#[test]
fn configuration_page_names_every_setting_that_acts() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md"));
    let page = page.expect("read the page");
    let (_, named) = page.split_once("## Where each setting is described").expect("the page has its list");
    let explained = Command::new(binary()).args(["config", "--explain"]).output().expect("explain");
    let text = said(&explained);
    let settings: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(" = ")).collect();
    assert!(settings.len() > 150, "only {} settings are explained", settings.len());
    for (name, rest) in settings {
        let acts = !rest.contains("no other value is supported") && !rest.contains("no effect: ");
        assert_eq!(named.contains(&format!("`{name}`")), acts, "{name} = {rest}");
    }
}

#[test]
fn flags_are_not_logged_without_verbosity() {
    let mut node = Node::new();
    node.start_with_neighbour();
    assert_eq!(node.log_lines(&["FLAG:"]), Vec::<String>::new());
}

#[test]
fn flags_win_over_drop_ins_and_drop_ins_over_the_file() {
    let mut node = Node::new();
    let drop_ins = node.scratch.dir("drop-ins");
    let (first, second, third) =
        (node.scratch.dir("one"), node.scratch.dir("two"), node.scratch.dir("three"));
    for (directory, name) in [(&first, "from-file"), (&second, "from-drop-in"), (&third, "from-flag")] {
        fs::write(directory.join("pod.yaml"), pod(name).to_string()).expect("write a manifest");
    }
    node.agent.configure(&format!("staticPodPath: {}\n", first.display()));
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let drop_in = format!("{head}staticPodPath: {}\n", second.display());
    fs::write(drop_ins.join("10-path.conf"), drop_in).expect("write a drop-in");
    fs::write(drop_ins.join("20-ignored.txt"), "not a drop-in").expect("write beside the drop-in");
    // The helper's own command line names the manifest directory; here only what is said below counts.
    let start = |arguments: &[String]| {
        let explained = Command::new(binary())
            .args(["config", "--explain"])
            .arg(format!("--config={}", node.agent.config_file().display()))
            .args(arguments)
            .output()
            .expect("explain");
        assert!(explained.status.success(), "{}", said(&explained));
        let text = said(&explained);
        text.lines()
            .find(|line| line.starts_with("staticPodPath = "))
            .expect("a line for the path")
            .to_owned()
    };
    let config_dir = format!("--config-dir={}", drop_ins.display());
    let flag = format!("--manifest-dir={}", third.display());
    for (arguments, directory, origin) in [
        (vec![], &first, "config.yaml"),
        (vec![config_dir.clone()], &second, "10-path.conf"),
        (vec![flag.clone(), config_dir.clone()], &third, "flag --manifest-dir"),
    ] {
        let line = start(&arguments);
        assert!(line.contains(&directory.display().to_string()) && line.contains(origin), "{line}");
    }
    node.agent.argument(config_dir);
    node.agent.argument(flag);
    node.agent.start();
    node.running("from-flag");
    assert_eq!(node.all_running().len(), 1, "{:?}", node.all_running());
    node.agent.terminate();

    // Without the flag the drop-in decides, and the pod of the other directory goes.
    let mut command = Command::new(binary());
    command
        .arg(format!("--config={}", node.agent.config_file().display()))
        .args([
            format!("--config-dir={}", drop_ins.display()),
            "--runonce".into(),
            "--hostname-override=edge".into(),
        ])
        .arg(format!("--root-dir={}", node.agent.root_dir().display()))
        .arg(format!("--container-runtime-endpoint={}", node.cri.endpoint()));
    let output = command.output().expect("run the agent");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(node.all_running().keys().collect::<Vec<_>>(), ["from-drop-in-edge"]);
}

#[test]
fn the_printed_configuration_is_read_back_as_the_same() {
    let node = Node::new();
    node.agent.configure("clusterDNS: [10.0.0.10]\nmaxPods: 9\nevictionHard: {memory.available: 50Mi}\n");
    let print = |file: &std::path::Path| {
        let argument = format!("--config={}", file.display());
        let output = Command::new(binary()).args(["config", &argument]).output().expect("print");
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        String::from_utf8(output.stdout).expect("YAML is text")
    };
    let printed = print(&node.agent.config_file());
    assert!(
        printed.contains("maxPods: 9\n") && printed.contains("kind: KubeletConfiguration\n"),
        "{printed}"
    );
    let copy = node.scratch.path().join("copy.yaml");
    fs::write(&copy, &printed).expect("write the copy");
    assert_eq!(print(&copy), printed);
}

#[test]
fn invalid_configuration_is_refused_with_file_and_field() {
    for (lines, words) in [
        ("maxPods: many\n", &["config.yaml", "maxPods"][..]),
        ("maxPods: -3\n", &["maxPods", "-3"]),
        ("maxPods: [\n", &["config.yaml", "line"]),
        (
            "imageGCLowThresholdPercent: 90\nimageGCHighThresholdPercent: 80\n",
            &["imageGCHighThresholdPercent"],
        ),
    ] {
        let mut node = Node::new();
        node.agent.configure(lines);
        node.agent.start();
        assert_eq!(node.agent.wait_for_end().code(), Some(1), "{lines}");
        let log = node.agent.log();
        assert!(log.starts_with("error: ") && words.iter().all(|word| log.contains(word)), "{lines}: {log}");
        assert_eq!(node.cri.call_names(), Vec::<&str>::new());
    }
}

#[test]
fn manifest_directory_as_config_file_suggests_manifest_dir() {
    let node = Node::new();
    let argument = format!("--config={}", node.agent.manifest_dir().display());
    let output = Command::new(binary()).arg(argument).output().expect("run the agent");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("--manifest-dir"), "{}", said(&output));
}

#[test]
fn unknown_config_field_is_logged_and_the_agent_starts() {
    let mut node = Node::new();
    node.agent.configure("maxPodz: 3\n");
    node.start_with_neighbour();
    assert_eq!(node.log_lines(&["lenient", "config.yaml", "maxPodz"]).len(), 1, "{}", node.agent.log());
}
