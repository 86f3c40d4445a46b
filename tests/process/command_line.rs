//! What one start says and with which status it ends, before anything runs.

use std::process::{Command, Output};

use crate::support::agent::binary;

fn agent(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().expect("run the agent")
}

#[track_caller]
fn ends(arguments: &[&str], code: i32, out: &[&str], err: &[&str]) {
    let output = agent(arguments);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}{complained}");
    for word in out {
        assert!(said.contains(word), "{arguments:?} does not print {word:?}: {said}");
    }
    for word in err {
        assert!(complained.contains(word), "{arguments:?} does not complain of {word:?}: {complained}");
    }
    assert!(!out.is_empty() || said.is_empty(), "{arguments:?} prints {said}");
    assert!(!err.is_empty() || complained.is_empty(), "{arguments:?} complains: {complained}");
    if code != 0 {
        assert!(complained.starts_with("error: "), "{arguments:?}: {complained}");
        assert!(complained.lines().count() <= 2, "a line says it, another where to read on: {complained}");
    }
}

#[test]
fn help_and_version_print_and_end_well() {
    ends(&["--help"], 0, &["Usage:", "--manifest-dir", "agent status", "--runonce"], &[]);
    ends(&["-h"], 0, &["Usage:"], &[]);
    ends(&["help"], 0, &["Usage:"], &[]);
    let version = env!("CARGO_PKG_VERSION");
    ends(&["--version"], 0, &[&format!("agent v{version} (Kubernetes v1.36)")], &[]);
    ends(&["version"], 0, &[&format!("agent v{version}")], &[]);
    ends(&["--version=raw"], 0, &["version.Info{", "GitVersion:\"v1.36", version], &[]);
    ends(&["status", "--help"], 0, &["Usage: agent status"], &[]);
    ends(&["get", "--help"], 0, &["Usage: agent get"], &[]);
}

#[test]
fn unknown_flags_and_commands_fail_with_suggestions() {
    ends(&["--manifest-dri=/x"], 1, &[], &["unknown flag: --manifest-dri", "did you mean --manifest-dir?"]);
    ends(&["--zzzzzz"], 1, &[], &["unknown flag: --zzzzzz"]);
    ends(&["-x"], 1, &[], &["unknown shorthand flag: 'x'"]);
    ends(&["statsu"], 1, &[], &["unknown command statsu", "did you mean status?"]);
    ends(&["--fail-swap-on", "false"], 1, &[], &["write --fail-swap-on=false"]);
    ends(&["--max-pods"], 1, &[], &["flag needs an argument: --max-pods"]);
    ends(&["--max-pods=many"], 1, &[], &["\"many\"", "--max-pods"]);
    ends(&["--api-servers=x"], 1, &[], &["--api-servers was removed", "--kubeconfig"]);
}

#[test]
fn bad_usage_of_run_once_and_of_the_client_ends_with_two() {
    ends(&["--runonce", "--runonce-wait=tomorrow"], 2, &[], &["--runonce-wait", "tomorrow", "completed"]);
    ends(&["--runonce", "--runonce-timeout=0s"], 2, &[], &["--runonce-timeout"]);
    ends(&["--runonce", "--runonce-timeout=soon"], 2, &[], &["--runonce-timeout", "soon"]);
    ends(&["--runonce-wait=completed"], 2, &[], &["--runonce-wait", "--runonce"]);
    ends(&["--runonce", "--kubeconfig=/x"], 2, &[], &["--kubeconfig"]);
    ends(&["get", "gadgets"], 2, &[], &["\"gadgets\"", "pods", "nodes"]);
    ends(&["get", "pods", "-o", "xml"], 2, &[], &["xml", "json, yaml, wide, name"]);
    ends(&["status", "-o", "name"], 2, &[], &["json, yaml, wide"]);
    ends(&["status", "--bogus"], 2, &[], &["--bogus"]);
}

#[test]
fn the_agent_that_does_not_run_is_named_as_such() {
    let nowhere = ["--socket=/nonexistent/agent.sock", "--root-dir=/nonexistent/state"];
    for command in [&["status"][..], &["get", "pods"]] {
        let arguments = [command, &nowhere[..]].concat();
        ends(&arguments, 1, &[], &["not running", "/nonexistent/state/agent.db"]);
    }
}

#[test]
fn output_into_a_closed_pipe_is_no_failure() {
    let script = format!("{} --help | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}", binary().display());
    let output = Command::new("bash").args(["-c", &script]).output().expect("run bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
