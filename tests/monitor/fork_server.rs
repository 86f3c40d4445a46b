//! The process that monitors are forked from.

use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use edge_agent::runtime::embedded::client::{ForkServer, MonitorError};
use edge_agent::runtime::embedded::layout::SandboxDir;
use edge_agent::runtime::embedded::spec::PodSpec;
use nix::cmsg_space;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::sockopt::PassCred;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixCredentials,
    recvmsg, sendmsg, setsockopt, socketpair,
};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::fixture::{Pod, children_of, command_line, eventually, run};
use crate::support::agent::binary;
use crate::support::scratch::{Scratch, is_gone};

/// Longer than two monitors take to start, and not long for a test.
const IDLE: Duration = Duration::from_secs(2);

/// The fork servers of this process.
fn servers() -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap();
    let live = children_of(own).into_iter().filter(|(_, state)| *state != 'Z').map(|(pid, _)| pid);
    live.filter(|pid| command_line(*pid) == ["agent", "fork-server"]).collect()
}

async fn pod_of(server: &Rc<ForkServer>) -> Pod {
    Pod::forked_from(server, &PodSpec::default()).await
}

#[test]
fn monitors_are_children_of_the_agent_and_outlive_the_server() {
    run(async {
        let server = ForkServer::new(binary(), IDLE);
        let before = servers();
        let pods = [pod_of(&server).await, pod_of(&server).await];
        let started: Vec<i32> = servers().into_iter().filter(|pid| !before.contains(pid)).collect();
        let [forked_from] = started[..] else { panic!("one for both: {started:?}") };
        let own = i32::try_from(std::process::id()).unwrap();
        for pod in &pods {
            assert!(children_of(own).iter().any(|(pid, _)| *pid == pod.pid), "a child of this process");
            assert_eq!(command_line(pod.pid), ["agent", "monitor", pod.directory.0.to_str().unwrap()]);
            assert_eq!(fs::read_to_string(format!("/proc/{}/comm", pod.pid)).unwrap(), "pod-monitor\n");
            let open = fs::read_dir(format!("/proc/{}/fd", pod.pid)).unwrap().flatten();
            let sockets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
            let sockets = sockets.filter(|target| target.to_string_lossy().starts_with("socket:"));
            assert_eq!(sockets.count(), 1, "its own socket, and not the server's");
        }
        eventually("the end of a server that is not used", || is_gone(forked_from)).await;
        for pod in &pods {
            assert_eq!(pod.run("one", "exit 3").await.code, 3);
        }
        let later = pod_of(&server).await;
        assert_eq!(later.run("one", "exit 4").await.code, 4);
    });
}

#[test]
fn a_killed_fork_server_is_started_again() {
    run(async {
        let server = ForkServer::new(binary(), Duration::from_secs(60));
        let before = servers();
        let pod = pod_of(&server).await;
        for pid in servers().into_iter().filter(|pid| !before.contains(pid)) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            eventually("its end", || is_gone(pid)).await;
        }
        assert_eq!(pod_of(&server).await.run("one", "exit 5").await.code, 5);
        assert_eq!(pod.run("one", "exit 6").await.code, 6);
    });
}

/// The agent must know of every process that was forked for it.
#[test]
fn a_fork_server_killed_with_a_request_is_started_again() {
    run(async {
        let server = ForkServer::new(binary(), Duration::from_secs(60));
        let before = servers();
        let _first = pod_of(&server).await;
        let [stopped] = servers().into_iter().filter(|pid| !before.contains(pid)).collect::<Vec<_>>()[..]
        else {
            panic!("one server")
        };
        let stopped = Pid::from_raw(stopped);
        kill(stopped, Signal::SIGSTOP).unwrap();
        let scratch = Scratch::new();
        let directory = SandboxDir(scratch.dir("sandboxes/1"));
        fs::create_dir_all(directory.containers()).unwrap();
        fs::write(directory.pod_spec(), serde_json::to_vec(&PodSpec::default()).unwrap()).unwrap();
        // The file is made just before the request is sent.
        let errors = directory.0.join("monitor.err");
        let (spawned, ()) = tokio::join!(server.spawn(&directory, None), async {
            eventually("the request", || errors.exists()).await;
            kill(stopped, Signal::SIGKILL).unwrap();
        });
        let spawned = spawned.expect("another server forks it");
        kill(Pid::from_raw(spawned.pid), Signal::SIGKILL).unwrap();
        spawned.reap().await;
    });
}

/// Otherwise a server killed just after it has forked one would leave a monitor that no agent knows.
#[test]
fn a_monitor_itself_answers_with_its_process_id() {
    let scratch = Scratch::new();
    let directory = SandboxDir(scratch.dir("sandboxes/1"));
    let (agents, stdin) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    setsockopt(&agents, PassCred, &true).unwrap();
    let mut command = Command::new(binary());
    let mut server = command.arg("fork-server").arg(" ".repeat(200)).stdin(stdin).spawn().unwrap();
    let streams: [OwnedFd; 2] = [(); 2].map(|()| File::create(scratch.path().join("out")).unwrap().into());
    let numbers = streams.each_ref().map(AsRawFd::as_raw_fd);
    let message = [IoSlice::new(directory.0.as_os_str().as_encoded_bytes())];
    let rights = [ControlMessage::ScmRights(&numbers)];
    sendmsg::<()>(agents.as_raw_fd(), &message, &rights, MsgFlags::empty(), None).unwrap();
    let (mut answer, mut space) = ([0; 4], cmsg_space!(UnixCredentials));
    let mut room = [IoSliceMut::new(&mut answer)];
    let received = recvmsg::<()>(agents.as_raw_fd(), &mut room, Some(&mut space), MsgFlags::empty()).unwrap();
    let sender = received.cmsgs().unwrap().find_map(|message| match message {
        ControlMessageOwned::ScmCredentials(sender) => Some(sender.pid()),
        _ => None,
    });
    let pid = i32::from_ne_bytes(answer);
    assert_eq!(sender, Some(pid));
    assert_ne!(pid, i32::try_from(server.id()).unwrap());
    // It has no directory, or ends when it is killed: its parent is this process.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    waitpid(Pid::from_raw(pid), None).unwrap();
    drop(agents);
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_program_that_cannot_be_run_as_fork_server_is_named() {
    run(async {
        let scratch = Scratch::new();
        let directory = SandboxDir(scratch.dir("sandboxes/1"));
        fs::create_dir_all(&directory.0).unwrap();
        let spawn = async |program: &str| ForkServer::new(program.into(), IDLE).spawn(&directory, None).await;
        let missing = spawn("/nowhere/agent").await.unwrap_err();
        assert!(
            matches!(missing, MonitorError::Io { .. }) && missing.to_string().contains("/nowhere/agent"),
            "{missing}"
        );
        // It ends at once.
        let other = spawn("/bin/true").await.unwrap_err();
        let sending = matches!(other, MonitorError::Io { action: "fork the monitor of", .. });
        assert!(sending || other.to_string() == "agent fork-server exited", "{other}");
    });
}

#[test]
fn a_person_who_starts_a_fork_server_is_told() {
    let output =
        Command::new(binary()).arg("fork-server").stdin(File::open("/dev/null").unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("fork-server, which only the agent starts"), "{said}");
}

/// A new agent looks for monitors by their command lines, once. One that is forked for the agent before it, and would only
/// begin after that, must not begin at all.
#[test]
fn no_monitor_begins_when_its_agent_is_gone() {
    let scratch = Scratch::new();
    let directory = SandboxDir(scratch.dir("sandboxes/1"));
    fs::create_dir_all(&directory.0).unwrap();
    fs::write(directory.pod_spec(), serde_json::to_vec(&PodSpec::default()).unwrap()).unwrap();
    let (agents, stdin) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let mut command = Command::new(binary());
    let mut server = command.arg("fork-server").arg(" ".repeat(200)).stdin(stdin).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(server.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let streams: [OwnedFd; 2] = [(); 2].map(|()| File::create(scratch.path().join("out")).unwrap().into());
    let numbers = streams.each_ref().map(AsRawFd::as_raw_fd);
    let message = [IoSlice::new(directory.0.as_os_str().as_encoded_bytes())];
    let rights = [ControlMessage::ScmRights(&numbers)];
    sendmsg::<()>(agents.as_raw_fd(), &message, &rights, MsgFlags::empty(), None).unwrap();
    drop(agents);
    kill(pid, Signal::SIGCONT).unwrap();
    server.wait().unwrap();
    // What it forked is a child of this process.
    let own = i32::try_from(std::process::id()).unwrap();
    let is_its =
        |words: &[String]| words.iter().any(|word| word == "fork-server" || word.ends_with("sandboxes/1"));
    let left = || -> Vec<i32> {
        let live = children_of(own).into_iter().filter(|(_, state)| *state != 'Z').map(|(pid, _)| pid);
        live.filter(|pid| is_its(&command_line(*pid))).collect()
    };
    let began = loop {
        match (directory.monitor_pid().exists(), left().is_empty()) {
            (began, true) | (began @ true, _) => break began,
            _ => std::thread::yield_now(),
        }
    };
    for pid in left() {
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
    assert!(!began && !directory.socket().exists());
}
