//! Stock clients into real pods, whichever runtime runs them: kubectl in its old and its new protocols, and Python's.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::Api;
use crate::support::kubectl::Kubectl;
use crate::support::runtime::{TestRuntime, on_every_runtime};
use crate::support::wait::wait_for;

fn kubectl_reads_logs_runs_programs_and_reaches_ports() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    let mut pod = node.pod(
        "inside",
        "mkdir /www; echo welcome > /www/index.html; echo started; exec httpd -f -p 80 -h /www",
    );
    pod["spec"]["hostNetwork"] = json!(false);
    node.apply(&pod);
    let listens = "echo ready; while read line; do echo got $line; [ $line = end ] && exit 0; done";
    let mut listener = node.pod("listener", listens);
    listener["spec"]["containers"][0]["stdin"] = json!(true);
    // Without it containerd and Docker take a client's outputs away when its input ends, whatever the program still has to say.
    listener["spec"]["containers"][0]["stdinOnce"] =
        json!(matches!(node.runtime, TestRuntime::Containerd(..) | TestRuntime::Docker(..)));
    node.apply(&listener);
    node.agent.start();
    api.wait(&mut node.agent);
    node.running("inside");
    let kubectl = Kubectl::of(&api, &node.agent, node.runtime.scratch().path(), "admin", &[]);
    for kubectl in kubectl.with_each() {
        reaches_into_it(&kubectl);
        sends_into_it(&kubectl, node.runtime.scratch().path());
        attaches_to_it(&kubectl, node.runtime.scratch().path());
    }
}

/// Debian's speaks SPDY, newer ones WebSocket.
fn reaches_into_it(kubectl: &Kubectl) {
    wait_for("its log", PATIENCE, || match kubectl.run(&["logs", "inside-edge"]) {
        said if said.out == "started\n" => Ok(()),
        said => Err(format!("{said:?}")),
    });
    assert_eq!(kubectl.out(&["logs", "inside-edge", "--tail=0"]), "");
    let said = kubectl.run(&["exec", "inside-edge", "--", "sh", "-c", "cat /www/index.html; exit 3"]);
    assert_eq!((said.code, said.out.as_str()), (Some(3), "welcome\n"), "{said:?}");

    let mut forward = kubectl.command(&["port-forward", "pod/inside-edge", ":80"]);
    let mut forward = forward.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start kubectl");
    let mut line = String::new();
    let mut out = BufReader::new(forward.stdout.take().expect("its output"));
    out.read_line(&mut line).expect("read");
    let port =
        line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port").to_owned();
    let page =
        Command::new("curl").args(["-sS", "--max-time", "60", &format!("http://127.0.0.1:{port}/")]).output();
    let _ = forward.kill();
    let _ = forward.wait();
    assert_eq!(String::from_utf8_lossy(&page.expect("run curl").stdout), "welcome\n", "{line}");

    wait_for("what it uses", PATIENCE, || {
        let said = kubectl.run(&["top", "pod", "--containers"]);
        if said.ok && said.out.contains("inside-edge") && said.out.contains("Mi") {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    });
}

/// What is sent ends: a program that reads to the end comes to its own. containerd 1.6 knows nothing of the protocol that says so
/// over a WebSocket; newer kubectls go back to SPDY then.
fn sends_into_it(kubectl: &Kubectl, directory: &Path) {
    let (sent, back) = (directory.join("sent"), directory.join("back"));
    let _ = fs::remove_file(&back);
    fs::write(&sent, "word\nend\n").expect("write");
    let (out, err) = fed(kubectl, &sent, &["exec", "-i", "inside-edge", "--", "wc", "-l"]);
    assert_eq!(out.trim(), "2", "{err}");
    kubectl.out(&["cp", &sent.to_string_lossy(), "inside-edge:/www/copied"]);
    kubectl.out(&["cp", "inside-edge:/www/copied", &back.to_string_lossy()]);
    assert_eq!(fs::read_to_string(&back).expect("it came back"), "word\nend\n");
}

/// It is started again for the next one.
fn attaches_to_it(kubectl: &Kubectl, directory: &Path) {
    let sent = directory.join("sent");
    wait_for("the listener to answer", PATIENCE, || {
        match fed(kubectl, &sent, &["attach", "-i", "listener-edge"]) {
            (out, _) if out.contains("got word\n") && out.contains("got end\n") => Ok(()),
            said => Err(format!("{said:?}")),
        }
    });
}

/// Output and errors of kubectl with a file as its input.
fn fed(kubectl: &Kubectl, input: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = kubectl.command(arguments);
    let output = command.stdin(fs::File::open(input).expect("open")).output().expect("run kubectl");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn the_python_client_lists_watches_and_enters() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    node.agent.start();
    api.wait(&mut node.agent);
    let directory = node.runtime.scratch().path().to_path_buf();
    let pod = node.pod("snake", "echo started; exec sleep 1000");
    let (config, manifest) = (directory.join("python.conf"), directory.join("snake.json"));
    fs::write(&config, api.kubeconfig(&node.agent, "snake", &[])).expect("write");
    fs::write(&manifest, pod.to_string()).expect("write");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pods/client.py");
    let output = Command::new("/usr/bin/python3").arg(script).args([&config, &manifest]).output();
    let output = output.expect("python3 is installed by scripts/setup test");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let steps = [
        "list 0",
        "create snake",
        "watch Running",
        "patch yes",
        "log started",
        "exec got word 3",
        "delete 404 Not Found",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), steps, "{err}");
    node.agent.assert_alive();
}

on_every_runtime! {
    the_python_client_lists_watches_and_enters,
    kubectl_reads_logs_runs_programs_and_reaches_ports,
}
