//! Start, lock, signals, systemd, and the end: what must not touch a pod.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rusqlite::Connection;

use super::node::{Node, pod, said};
use crate::support::agent::{AgentProcess, PATIENCE, cgroup_root};
use crate::support::wait::{wait_for, wait_until};

#[test]
fn sigterm_and_sigint_end_the_agent_well_and_pods_keep_running() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut node = Node::new();
        let neighbour = node.start_with_neighbour();
        let before = node.agent.wait_for_phase("neighbour", "Running");
        node.agent.signal(signal);
        assert_eq!(node.agent.wait_for_end().code(), Some(0), "{}", node.agent.log());
        assert_eq!(node.log_lines(&["Shutting down", signal.as_str()]).len(), 1);
        node.keeps_running("neighbour", &neighbour);
        // Times are of whole seconds.
        let ended = Instant::now();
        wait_until("the next second", PATIENCE, || ended.elapsed() > Duration::from_secs(1));

        node.agent.start();
        let after = node.agent.wait_for_phase("neighbour", "Running");
        let started = &after["status"]["startTime"];
        assert!(started.is_string() && *started == before["status"]["startTime"], "{before} {after}");
        node.keeps_running("neighbour", &neighbour);
        assert_eq!(node.calls("RunPodSandbox"), 1);
    }
}

#[test]
fn a_second_signal_ends_an_agent_whose_shutdown_hangs() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    // Somebody else writes in the store: closing it has to wait.
    let database = Connection::open(node.agent.root_dir().join("agent.db")).expect("open the store");
    database.busy_timeout(PATIENCE).expect("be patient");
    database.execute_batch("BEGIN IMMEDIATE").expect("hold the store");
    node.apply(&pod("other"));
    node.running("neighbour");
    node.logged(&["manifests", "pod"]);
    node.agent.signal(Signal::SIGTERM);
    node.logged(&["Shutting down"]);
    let before = Instant::now();
    node.agent.signal(Signal::SIGINT);
    assert_eq!(node.agent.wait_for_end().code(), Some(1), "{}", node.agent.log());
    assert!(before.elapsed() < PATIENCE / 2, "{:?}", before.elapsed());
    assert_eq!(node.log_lines(&["second signal", "SIGINT"]).len(), 1);
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn lock_file_contention_ends_the_agent_but_no_pod() {
    let mut node = Node::new();
    let lock = node.scratch.path().join("agent.lock");
    node.agent.argument(format!("--lock-file={}", lock.display()));
    node.agent.argument("--exit-on-lock-contention");
    let neighbour = node.start_with_neighbour();
    drop(File::open(&lock).expect("open the lock file"));
    assert_eq!(node.agent.wait_for_end().code(), Some(0), "{}", node.agent.log());
    assert_eq!(node.log_lines(&["Lock file", "pods keep running"]).len(), 1, "{}", node.agent.log());
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn second_agent_waits_for_the_lock_file_and_takes_over() {
    let mut node = Node::new();
    let lock = format!("--lock-file={}", node.scratch.path().join("agent.lock").display());
    node.agent.argument(lock.clone());
    let neighbour = node.start_with_neighbour();
    // The same directories: as when a service is restarted too early.
    let mut second = AgentProcess::new(node.scratch.path(), &node.cri.endpoint());
    second.argument(lock);
    let waits = |starts: usize| {
        wait_for("the second agent to wait for the lock", PATIENCE, || {
            let asked = node.log_lines(&["Acquiring file lock"]).len();
            if asked == starts { Ok(()) } else { Err(node.agent.log_tail()) }
        });
    };
    second.start();
    waits(2);
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait_for_end().code(), Some(0), "{}", second.log());

    second.start();
    waits(3);
    node.agent.terminate();
    wait_for("the second agent to take over", PATIENCE, || second.status_json().map(|_| ()));
    node.keeps_running("neighbour", &neighbour);
    assert_eq!(node.calls("RunPodSandbox"), 1);
}

/// A second agent of the node: its own directories, the same cgroup root.
fn second_on_the_cgroup_root(node: &Node) -> AgentProcess {
    let mut second = AgentProcess::new(&node.scratch.dir("second"), &node.cri.endpoint());
    second.argument(format!("--cgroup-root={}", cgroup_root(node.scratch.path())));
    second
}

#[test]
fn second_agent_on_a_cgroup_root_is_refused() {
    let mut node = Node::new();
    node.with_cgroups();
    node.agent.start();
    wait_for("the agent to answer", PATIENCE, || node.agent.status_json());

    let mut second = second_on_the_cgroup_root(&node);
    second.start();
    assert_eq!(second.wait_for_end().code(), Some(1), "{}", second.log());
    let log = second.log();
    let error = log.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{log}"));
    let holder = format!("(pid {}, --root-dir {})", node.agent.pid(), node.agent.root_dir().display());
    assert!(error.contains("another agent uses cgroup root"), "{error}");
    assert!(error.contains(&cgroup_root(node.scratch.path())) && error.contains(&holder), "{error}");
    assert!(error.contains("--cgroup-root"), "{error}");
    // Nor once beside it: what one makes, the other would take for left behind.
    let once = second.run_once(&[]);
    assert_eq!(once.status.code(), Some(1), "{}", said(&once));
    assert!(said(&once).contains(&holder), "{}", said(&once));

    // What the refusal asks for helps, and so does an agent that makes no cgroups.
    let elsewhere = format!("--cgroup-root={}/second", cgroup_root(node.scratch.path()));
    let once = second.run_once(&[&elsewhere]);
    assert_eq!(once.status.code(), Some(0), "{}", said(&once));
    let once = second.run_once(&["--cgroups-per-qos=false", "--enforce-node-allocatable="]);
    assert_eq!(once.status.code(), Some(0), "{}", said(&once));
    node.agent.assert_alive();
}

#[test]
fn an_agent_that_was_killed_holds_no_cgroup_root() {
    let mut node = Node::new();
    node.with_cgroups();
    node.agent.start();
    wait_for("the agent to answer", PATIENCE, || node.agent.status_json());
    let mut second = second_on_the_cgroup_root(&node);
    node.agent.kill9();
    second.start();
    wait_for("the second agent to answer", PATIENCE, || second.status_json());
    // And the one that was killed is the one that is refused.
    node.agent.start();
    assert_eq!(node.agent.wait_for_end().code(), Some(1), "{}", node.agent.log());
    assert!(node.agent.log().contains(&format!("(pid {}, ", second.pid())), "{}", node.agent.log());
}

#[test]
fn systemd_gets_ready_watchdog_and_stopping_messages() {
    let mut node = Node::new();
    let path = node.scratch.path().join("notify");
    let systemd = UnixDatagram::bind(&path).expect("bind the notification socket");
    systemd.set_read_timeout(Some(PATIENCE)).expect("be patient");
    node.agent.variable("NOTIFY_SOCKET", &path.to_string_lossy());
    node.agent.variable("WATCHDOG_USEC", "1600000");
    node.agent.start();
    let mut heard = Vec::new();
    let hear = || {
        let mut buffer = [0; 256];
        let length = systemd.recv(&mut buffer).expect("hear of the agent");
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), Instant::now())
    };
    // Three beats of 0.8 s. A machine that stalls holds some up, but not all of them.
    let in_time = Duration::from_secs(2)..Duration::from_millis(3600);
    let keeps_time = |heard: &[(String, Instant)]| {
        let beats: Vec<Instant> =
            heard.iter().filter(|(word, _)| word == "WATCHDOG=1").map(|(_, moment)| *moment).collect();
        beats.windows(4).any(|four| in_time.contains(&four[3].duration_since(four[0])))
    };
    while !keeps_time(&heard) {
        assert!(heard.len() < 40, "{heard:?}");
        heard.push(hear());
    }
    assert_eq!(heard[0].0, "READY=1", "{heard:?}");
    node.agent.signal(Signal::SIGTERM);
    while hear().0 != "STOPPING=1" {}
    assert_eq!(node.agent.wait_for_end().code(), Some(0));
}

#[test]
fn a_watchdog_that_cannot_be_kept_is_refused_at_start() {
    let mut node = Node::new();
    node.agent.variable("WATCHDOG_USEC", "900000");
    node.agent.start();
    assert_eq!(node.agent.wait_for_end().code(), Some(1));
    let log = node.agent.log();
    assert!(log.contains("error: ") && log.contains("900ms") && log.contains("WatchdogSec"), "{log}");
}

#[test]
fn a_second_agent_in_the_same_root_directory_is_refused() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    let calls = node.calls("RunPodSandbox");
    let mut command = node.agent.command();
    // Another socket: the root directory alone has to be enough.
    command.arg(format!("--agent-socket={}", node.scratch.path().join("other.sock").display()));
    let output = command.output().expect("start a second agent");
    let text = super::node::said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let error = text.lines().find(|line| line.starts_with("error: ")).expect("an error");
    let database = node.agent.root_dir().join("agent.db");
    assert!(error.contains(&database.display().to_string()) && error.contains("another"), "{error}");
    node.keeps_running("neighbour", &neighbour);
    node.agent.assert_alive();
    assert_eq!(node.calls("RunPodSandbox"), calls);
}
