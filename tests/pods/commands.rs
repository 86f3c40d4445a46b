//! `agent exec`, `agent attach` and `agent port-forward` on the box itself, whichever runtime runs the pod.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::image::BUSYBOX;
use crate::support::runtime::on_every_runtime;
use crate::support::wait::{wait_for, wait_until};

/// A command of the program against this node, not yet started.
fn command(node: &Node, words: &str) -> Command {
    let mut words = words.split(' ');
    let mut command = node.agent.command_of(words.next().expect("a command"));
    command.arg("--socket").arg(node.agent.socket()).args(words);
    command
}

/// Runs it with something to read.
fn run(mut command: Command, input: Vec<u8>) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start it");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // It may end before it has read everything.
            let _ = stdin.write_all(&input);
        });
        child.wait_with_output().expect("wait for it")
    })
}

/// Exit code, standard output and standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The same in a terminal of 99 columns.
fn in_a_terminal(node: &Node, words: &str) -> Command {
    let wanted = command(node, words);
    let line: Vec<String> = std::iter::once(wanted.get_program())
        .chain(wanted.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let mut script = Command::new("script");
    script.args(["-qefc", &format!("stty rows 33 cols 99; exec {}", line.join(" ")), "/dev/null"]);
    script
}

fn a_command_runs_with_its_streams_its_code_and_a_terminal() {
    let mut node = Node::new();
    let mut pod = node.pod("inside", "sleep 1000");
    let mut second = pod["spec"]["containers"][0].clone();
    second["name"] = json!("second");
    pod["spec"]["containers"].as_array_mut().expect("a list").push(second);
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_pod("inside", "both containers to run", |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array()?;
        let run = statuses.iter().filter(|status| status["state"]["running"].is_object()).count();
        (run == 2).then_some(())
    });
    let exec = |words: &str, script: &str| {
        let mut command = command(&node, words);
        command.args(["--", "sh", "-c", script]);
        command
    };
    let output = run(exec("exec inside -c main", "echo out; echo err >&2; exit 3"), Vec::new());
    let (code, out, err) = said(&output);
    assert_eq!((code, out.as_str()), (Some(3), "out\n"), "{err}");
    assert_eq!(err, "err\ncommand terminated with exit code 3\n");
    // Both ways at once, more than all that waits anywhere, and the end of the input is seen.
    let much: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let output = run(exec("exec -i inside-edge -c second", "cat; exit 0"), much.clone());
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), much.len()), "{}", said(&output).2);
    assert!(output.stdout == much);
    let (code, out, err) = said(&run(exec("exec pod/inside", "echo here"), Vec::new()));
    assert_eq!((code, out.as_str()), (Some(0), "here\n"));
    assert_eq!(err, "Defaulted container \"main\" out of: main, second\n");
    let mut missing = command(&node, "exec inside -c main");
    missing.args(["--", "no-such-program"]);
    let (code, _, err) = said(&run(missing, Vec::new()));
    assert!(code == Some(1) && err.contains("no-such-program"), "{code:?} {err}");
    let (code, _, err) = said(&run(exec("exec inside -c third", "true"), Vec::new()));
    assert!(code == Some(1) && err.contains("container \"third\" not found"), "{code:?} {err}");
    let (code, _, err) = said(&run(exec("exec nobody", "true"), Vec::new()));
    assert!(code == Some(1) && err.contains("nobody"), "{code:?} {err}");

    let script = node.runtime.scratch().path().join("out/ask");
    let text = "until [ \"$(busybox stty size)\" = '33 99' ]; do sleep 0.1; done; echo ready; read word; \
                echo \"got $word\" >&2; exit 5";
    fs::write(script, text).expect("write");
    let terminal = in_a_terminal(&node, "exec inside -c main -it -- sh /out/ask");
    let output = run(terminal, b"this\n".to_vec());
    let (code, out, err) = said(&output);
    assert_eq!(code, Some(5), "{out} {err}");
    assert!(out.contains("ready\r\n") && out.contains("got this\r\n"), "{out}");
}

fn a_container_is_attached_to_and_its_ports_are_reached() {
    let mut node = Node::new();
    let mut pod = node.pod(
        "inside",
        "mkdir /www; echo welcome > /www/index.html; httpd -f -p 80 -h /www & \
         while read word; do [ $word != end ] || exit 0; echo \"heard $word\"; done",
    );
    pod["spec"]["hostNetwork"] = json!(false);
    pod["spec"]["containers"][0]["stdin"] = json!(true);
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 80 }]);
    node.apply(&pod);
    node.agent.start();
    node.running("inside");

    let mut forward = command(&node, "port-forward inside :http")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start it");
    let mut lines = BufReader::new(forward.stdout.take().expect("a pipe")).lines();
    let first = lines.next().expect("it says where").expect("text");
    let port = first
        .strip_prefix("Forwarding from 127.0.0.1:")
        .and_then(|rest| rest.strip_suffix(" -> 80"))
        .and_then(|port| port.parse::<u16>().ok())
        .unwrap_or_else(|| panic!("{first}"));
    let fetch = || -> std::io::Result<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        connection.read_to_string(&mut page)?;
        Ok(page)
    };
    wait_until("the page", PATIENCE, || fetch().is_ok_and(|page| page.ends_with("welcome\n")));
    // Several at once, each with a connection of its own.
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| assert!(fetch().expect("a page").ends_with("welcome\n")));
        }
    });
    forward.kill().expect("end it");
    forward.wait().expect("it ends");
    let bad = command(&node, "port-forward inside 0.0.0.0:80");
    assert_eq!(said(&run(bad, Vec::new())).0, Some(2));
    let (code, _, err) = said(&run(command(&node, "port-forward inside :nothing"), Vec::new()));
    assert!(code == Some(1) && err.contains("no port named \"nothing\""), "{code:?} {err}");

    let mut attach = command(&node, "attach inside -i")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start it");
    let mut heard = BufReader::new(attach.stdout.take().expect("a pipe")).lines();
    let mut keys = attach.stdin.take().expect("a pipe");
    writeln!(keys, "you").expect("it reads");
    assert_eq!(heard.next().expect("a line").expect("text"), "heard you");
    writeln!(keys, "bye").expect("it reads");
    assert_eq!(heard.next().expect("a line").expect("text"), "heard bye");
    // containerd may drop what a container says with its last breath.
    writeln!(keys, "end").expect("it reads");
    let code = wait_for("attach to end with the container", PATIENCE, || {
        attach.try_wait().expect("look").ok_or_else(|| "it goes on".to_owned())
    });
    assert_eq!(code.code(), Some(0));
}

fn a_stream_over_which_nothing_goes_is_ended() {
    let mut node = Node::new();
    node.agent.configure("streamingConnectionIdleTimeout: 1s\n");
    node.apply(&node.pod("inside", "sleep 1000"));
    node.agent.start();
    node.running("inside");
    // Its standard input stays open.
    let mut idle = command(&node, "exec inside -i -- sleep 1000")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start it");
    let code = wait_for("the stream to be ended", PATIENCE, || {
        idle.try_wait().expect("look").ok_or_else(|| "it goes on".to_owned())
    });
    let mut said = String::new();
    idle.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(code.code() == Some(1) && said.contains("the connection was lost"), "{code} {said}");
    let busy = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $n; sleep 0.3; done";
    let mut talking = command(&node, "exec inside --");
    let (code, out, err) = said_by(talking.args(["sh", "-c", busy]));
    assert_eq!((code, out.lines().count()), (Some(0), 12), "{err}");
}

fn files_are_copied_both_ways_and_a_pod_is_run_to_its_end() {
    let mut node = Node::new();
    node.apply(&node.pod("inside", "sleep 1000"));
    node.agent.start();
    node.running("inside");
    let here = node.runtime.scratch().path().join("copied");
    let long = "n".repeat(150);
    fs::create_dir_all(here.join("tree/deep")).expect("make a directory");
    fs::write(here.join("tree/deep").join(&long), vec![7; 300_000]).expect("write");
    std::os::unix::fs::symlink("/etc/passwd", here.join("tree/link")).expect("make a link");
    let copy = |from: &str, to: &str| said_by(command(&node, "cp").args([from, to]));
    let shown = |path: &str| here.join(path).display().to_string();
    let (code, out, err) = copy(&shown("tree"), "inside:/tmp/there");
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", ""));
    let (code, _, err) = copy("inside:/tmp/there", &shown("back"));
    assert_eq!(
        (code, err.as_str()),
        (Some(0), "warning: skipping symbolic link: ./there/link -> /etc/passwd\n")
    );
    let bytes = fs::read(here.join("back/deep").join(&long)).expect("it came back");
    assert!(bytes == vec![7; 300_000]);
    assert!(here.join("back/link").symlink_metadata().is_err());
    // One file, into a directory that is there, and under a name.
    assert_eq!(
        copy(&shown(&format!("back/deep/{long}")), "default/inside-edge:/tmp/there/deep/x").0,
        Some(0)
    );
    assert_eq!(copy("inside:/tmp/there/deep/x", &shown("back")).0, Some(0));
    assert!(fs::read(here.join("back/x")).expect("it came back") == vec![7; 300_000]);
    let (code, _, err) = copy("inside:/nothing", &shown("none"));
    assert!(code == Some(1) && err.contains("tar in the container exited with code 1"), "{code:?} {err}");

    // A pod that is made, shown and deleted; its exit code is the command's, and what it was given to read has an end.
    let mut run = command(&node, "run");
    run.args([
        BUSYBOX,
        "--name",
        "once",
        "--restart",
        "Never",
        "--rm",
        "-i",
        "--",
        "sh",
        "-c",
        "cat; exit 7",
    ]);
    let (code, out, err) = said(&self::run(run, b"typed\n".to_vec()));
    assert_eq!((code, out.as_str()), (Some(7), "typed\n"), "{err}");
    assert!(err.contains("pod \"once\" deleted"), "{err}");
    // What is over before it can be attached to is shown, too.
    for count in 0..5 {
        let name = format!("brief{count}");
        let mut run = command(&node, "run");
        run.args([BUSYBOX, "--name", &name, "--restart", "Never", "--rm", "-i", "--", "echo", "hi"]);
        let (code, out, err) = said(&self::run(run, b"typed\n".to_vec()));
        assert_eq!((code, out.as_str()), (Some(0), "hi\n"), "{err}");
    }
    let (code, _, err) = said_by(command(&node, "get").args(["pods", "once"]));
    assert!(code == Some(1) && err.contains("not found"), "{code:?} {err}");
}

/// Runs it with nothing to read.
fn said_by(command: &mut Command) -> (Option<i32>, String, String) {
    said(&command.stdin(Stdio::null()).output().expect("run it"))
}

on_every_runtime! {
    files_are_copied_both_ways_and_a_pod_is_run_to_its_end,
    a_stream_over_which_nothing_goes_is_ended,
    a_command_runs_with_its_streams_its_code_and_a_terminal,
    a_container_is_attached_to_and_its_ports_are_reached,
}
