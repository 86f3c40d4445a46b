//! `agent get -w`, `events -w` and `wait`: commands that go on as things happen, and `top`.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::node::{Node, pod};
use crate::support::agent::PATIENCE;
use crate::support::wait::wait_for;

fn command(node: &Node, words: &str) -> Command {
    let mut words = words.split(' ');
    let mut command = node.agent.command_of(words.next().expect("a command"));
    command.arg("--socket").arg(node.agent.socket()).args(words);
    command
}

/// Exit code, standard output, standard error.
fn run(node: &Node, words: &str) -> (Option<i32>, String, String) {
    let output = command(node, words).output().expect("run it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A command that goes on, and its lines. It ends with the test's process at the latest.
struct Follower(Child, Lines<BufReader<ChildStdout>>);

impl Follower {
    fn start(node: &Node, words: &str) -> Self {
        let mut child = command(node, words).stdout(Stdio::piped()).spawn().expect("start it");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self(child, lines)
    }

    /// The next line with all of these words.
    fn next_with(&mut self, words: &[&str]) -> String {
        let mut seen = Vec::new();
        for line in self.1.by_ref() {
            let line = line.expect("text");
            if words.iter().all(|word| line.contains(word)) {
                return line;
            }
            seen.push(line);
        }
        panic!("it ended: {seen:?}");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_becomes_of_pods_is_followed_and_waited_for() {
    let mut node = Node::new();
    node.start_with_neighbour();
    let mut pods = Follower::start(&node, "get pods -w");
    assert!(pods.next_with(&["NAME"]).starts_with("NAME "));
    pods.next_with(&["neighbour-edge", "Running"]);
    let mut events = Follower::start(&node, "events -w --for pod/late");
    events.next_with(&["LAST SEEN"]);
    let mut created =
        command(&node, "wait pod/late-edge --for create --timeout 600s").spawn().expect("start it");
    let (code, _, said) = run(&node, "wait pod/late-edge --for condition=Ready --timeout 600s");
    assert!(code == Some(1) && said.contains("pods \"late-edge\" not found"), "{code:?} {said}");
    node.apply(&pod("late"));
    pods.next_with(&["late-edge", "1/1", "Running"]);
    events.next_with(&["Normal", "Started", "Pod/late-edge"]);
    assert!(created.wait().expect("it ends").success());
    let (code, said, _) = run(&node, "wait po late-edge neighbour-edge --for condition=Ready --timeout 600s");
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "pod/late-edge condition met\npod/neighbour-edge condition met\n")
    );
    let (code, _, said) =
        run(&node, "wait pod/late-edge --for jsonpath={.status.phase}=Failed --timeout 100ms");
    assert!(
        code == Some(1) && said.contains("timed out waiting for the condition on pods/late-edge"),
        "{said}"
    );
    let mut gone =
        command(&node, "wait pod/late-edge --for delete --timeout 600s").spawn().expect("start it");
    node.agent.remove_manifest("late.yaml");
    assert!(gone.wait().expect("it ends").success());
    let (code, names, _) = run(&node, "get pods -o jsonpath={.items[*].metadata.name}");
    assert_eq!((code, names.as_str()), (Some(0), "neighbour-edge"));
    let (code, names, _) = run(&node, "get pods -o name --field-selector metadata.name=neighbour-edge");
    assert_eq!((code, names.as_str()), (Some(0), "pod/neighbour-edge\n"));
    // One table: as reported by the agent, as answered by its API, as read from the store.
    let table = |words: &str| {
        let (code, table, said) = run(&node, words);
        assert_eq!(code, Some(0), "{said}");
        let lines = table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        // The age is of the moment.
        lines.map(|mut cells| [cells.drain(..5).collect(), cells.split_off(1)].concat()).collect::<Vec<_>>()
    };
    let reported = table("get pods -A -o wide");
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(table("get pods -A -o wide --field-selector metadata.name=neighbour-edge"), reported);
    let root = node.agent.root_dir();
    let stored = format!("get pods -A -o wide --socket=/nowhere --root-dir={}", root.display());
    // Statuses are stored a second later.
    wait_for("the same table from the store", PATIENCE, || {
        let read = table(&stored);
        if read == reported { Ok(()) } else { Err(format!("{read:?}")) }
    });
    let (code, nodes, _) = run(&node, "get nodes");
    assert!(code == Some(0) && nodes.lines().nth(1).is_some_and(|line| line.starts_with("edge")), "{nodes}");
    let (code, used, said) = run(&node, "top nodes --no-headers");
    assert!(code == Some(0) && used.starts_with("edge") && used.contains("Mi"), "{used} {said}");
    wait_for("the agent to be well", PATIENCE, || node.agent.status_json().map(drop));
}

#[test]
fn top_w_shows_usage_again_until_sigint() {
    let mut node = Node::new();
    node.agent.start();
    wait_for("the agent to answer", PATIENCE, || node.agent.status_json());
    let mut top = Follower::start(&node, "top nodes -w");
    for _ in 0..2 {
        // Nothing clears the screen: standard output is not a terminal.
        assert!(top.next_with(&["CPU(cores)"]).starts_with("NAME "));
        assert!(top.next_with(&["Mi"]).starts_with("edge "));
    }
    let pid = Pid::from_raw(i32::try_from(top.0.id()).expect("a process id"));
    kill(pid, Signal::SIGINT).expect("interrupt it");
    // As kubectl: a shell shows 130.
    assert_eq!(top.0.wait().expect("it ends").signal(), Some(Signal::SIGINT as i32));
}
