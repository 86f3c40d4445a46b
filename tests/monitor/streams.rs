//! Execs, attaches and terminals.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use edge_agent::runtime::embedded::client::{ExecSession, MonitorError, Streams};

use super::fixture::{PATIENCE, Pod, children_of, entries, eventually, exec_spec, run, shell};
use crate::support::scratch::is_gone;

/// A pipe: the end the test keeps and the one it hands over.
fn out() -> (File, Option<OwnedFd>) {
    let (reader, writer) = io::pipe().unwrap();
    (File::from(OwnedFd::from(reader)), Some(writer.into()))
}

fn input() -> (File, Option<OwnedFd>) {
    let (reader, writer) = io::pipe().unwrap();
    (File::from(OwnedFd::from(writer)), Some(reader.into()))
}

/// Reads to the end without holding up the runtime.
async fn all_of(mut file: File) -> String {
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        file.read_to_string(&mut text).map(|_| text)
    });
    tokio::time::timeout(PATIENCE, read).await.expect("an end in time").unwrap().unwrap()
}

async fn end_of(session: &mut ExecSession) -> i32 {
    tokio::time::timeout(PATIENCE, session.wait()).await.expect("an end in time").unwrap().code
}

#[test]
fn an_exec_has_its_own_streams_and_exit_code() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "sleep 1000").await;
        let ((mut to, stdin), (from, stdout), (errors, stderr)) = (input(), out(), out());
        let spec = exec_spec("read word; echo got $word; echo oh >&2; exit 5");
        let mut session = pod.monitor.exec("one", &spec, Streams { stdin, stdout, stderr }).await.unwrap();
        assert!(session.started().pid > 0 && session.take_terminal().is_none());
        to.write_all(b"this\n").unwrap();
        assert_eq!(end_of(&mut session).await, 5);
        assert_eq!(all_of(from).await, "got this\n");
        assert_eq!(all_of(errors).await, "oh\n");
        // Without streams it reads and writes nothing; nothing of it is in the log.
        let mut session =
            pod.monitor.exec("one", &exec_spec("read x || exit 6"), Streams::default()).await.unwrap();
        assert_eq!(end_of(&mut session).await, 6);
        assert!(fs::read(pod.log("one")).unwrap().is_empty());

        let mut missing = exec_spec("");
        missing.process.args = vec!["/bin/nothing-here".into()];
        let refused = pod.monitor.exec("one", &missing, Streams::default()).await;
        assert!(matches!(refused, Err(MonitorError::Refused(_))));
        let refused = pod.monitor.exec("other", &exec_spec(""), Streams::default()).await;
        assert!(matches!(refused, Err(MonitorError::Refused(_))));
    });
}

#[test]
fn many_execs_at_once_do_not_mix() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "sleep 1000").await;
        let mut sessions = Vec::new();
        for number in 0..20 {
            let (from, stdout) = out();
            let streams = Streams { stdout, ..Streams::default() };
            let spec = exec_spec(&format!("sleep 0.1; echo {number}; exit {number}"));
            sessions.push((number, from, pod.monitor.exec("one", &spec, streams).await.unwrap()));
        }
        for (number, from, mut session) in sessions {
            assert_eq!(end_of(&mut session).await, number);
            assert_eq!(all_of(from).await, format!("{number}\n"));
        }
    });
}

#[test]
fn abandoned_exec_is_killed_with_its_children() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "sleep 1000").await;
        let spec = exec_spec("sleep 1000 & sleep 1000 & wait");
        let session = pod.monitor.exec("one", &spec, Streams::default()).await.unwrap();
        let pid = session.started().pid;
        eventually("its children", || children_of(pid).len() == 2).await;
        let all: Vec<i32> = children_of(pid).into_iter().map(|(child, _)| child).chain([pid]).collect();
        drop(session);
        eventually("all of it to be gone", || all.iter().all(|pid| is_gone(*pid))).await;
        // Its container goes on.
        let mut session = pod.monitor.exec("one", &exec_spec("exit 2"), Streams::default()).await.unwrap();
        assert_eq!(end_of(&mut session).await, 2);
    });
}

#[test]
fn an_exec_ends_with_its_container() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "sleep 1000").await;
        let mut session =
            pod.monitor.exec("one", &exec_spec("sleep 1000"), Streams::default()).await.unwrap();
        pod.monitor.signal("one", 9, true).await.unwrap();
        pod.exited("one").await;
        assert_eq!(end_of(&mut session).await, 137);
    });
}

#[test]
fn an_exec_with_a_terminal_hands_out_its_master() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "sleep 1000").await;
        let mut spec = exec_spec("test -t 0 && test -t 1 && test -t 2 && stty size; exit 7");
        spec.process.terminal = true;
        spec.process.console_size =
            Some(edge_agent::runtime::embedded::spec::ConsoleSize { height: 33, width: 77 });
        let mut session = pod.monitor.exec("one", &spec, Streams::default()).await.unwrap();
        let master = session.take_terminal().expect("a terminal was asked for");
        assert_eq!(end_of(&mut session).await, 7);
        let mut text = [0; 64];
        let count = (&File::from(master)).read(&mut text).unwrap();
        assert_eq!(String::from_utf8_lossy(&text[..count]), "33 77\r\n");
    });
}

#[test]
fn an_attach_couples_all_streams_and_the_log_has_them_too() {
    run(async {
        let pod = Pod::new().await;
        let mut bundle = pod.bundle("one", "cat; echo end >&2");
        (bundle.stdin, bundle.stdin_once) = (true, true);
        pod.start_bundle("one", &bundle).await;
        let ((mut to, stdin), (from, stdout), (errors, stderr)) = (input(), out(), out());
        let mut session = pod.monitor.attach("one", Streams { stdin, stdout, stderr }).await.unwrap();
        // More than any pipe on the way holds: the writer waits for the container.
        let sent = "0123456789\n".repeat(60_000);
        let text = sent.clone();
        let writer = tokio::task::spawn_blocking(move || to.write_all(text.as_bytes()));
        let received = all_of(from).await;
        writer.await.unwrap().unwrap();
        assert_eq!(all_of(errors).await, "end\n");
        assert_eq!(session.wait().await.unwrap().code, 0, "the end of stdin was the end of cat");
        assert!(sent.len() >= received.len() && received.starts_with("0123456789\n"));
        let logged: usize = entries(&pod.log("one")).iter().filter(|entry| entry.0 == "stdout").count();
        assert_eq!(logged, 60_000);
        assert!(matches!(pod.monitor.attach("one", Streams::default()).await, Err(MonitorError::Refused(_))));
    });
}

#[test]
fn first_attach_with_stdin_once_gets_earlier_output() {
    run(async {
        let pod = Pod::new().await;
        for (name, stdin_once, before, expected) in [
            ("once", true, "echo early; echo error >&2", ("early\n", "error\n")),
            ("often", false, "echo early; echo error >&2", ("", "")),
            // More than is kept: it is only in the log.
            ("much", true, "seq 20000; echo error >&2", ("", "")),
        ] {
            let mut bundle = pod.bundle(name, &format!("{before}; read word; exit 3"));
            (bundle.stdin, bundle.stdin_once) = (true, stdin_once);
            pod.start_bundle(name, &bundle).await;
            // The log is being written: its last line may not be whole yet.
            let has_written = || fs::read_to_string(pod.log(name)).unwrap().contains(" stderr F error\n");
            let written = async {
                while !has_written() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(PATIENCE, written).await.unwrap();
            let ((to, stdin), (from, stdout), (errors, stderr)) = (input(), out(), out());
            let mut session = pod.monitor.attach(name, Streams { stdin, stdout, stderr }).await.unwrap();
            drop(to);
            if !stdin_once {
                pod.monitor.signal(name, 9, true).await.unwrap();
            }
            session.wait().await.unwrap();
            let seen = (all_of(from).await, all_of(errors).await);
            assert_eq!((seen.0.as_str(), seen.1.as_str()), expected, "{name}");
        }
    });
}

#[test]
fn second_attach_reuses_stdin_without_stdin_once() {
    run(async {
        let pod = Pod::new().await;
        let mut bundle = pod.bundle("one", "while read word; do echo got $word; done");
        bundle.stdin = true;
        pod.start_bundle("one", &bundle).await;
        for word in ["first", "second"] {
            let (mut to, stdin) = input();
            let (mut from, stdout) = out();
            let session = pod.monitor.attach("one", Streams { stdin, stdout, stderr: None }).await.unwrap();
            to.write_all(format!("{word}\n").as_bytes()).unwrap();
            let expected = format!("got {word}\n");
            let length = expected.len();
            let read = tokio::task::spawn_blocking(move || {
                let mut text = vec![0; length];
                from.read_exact(&mut text).map(|()| text)
            });
            let text = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap().unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
            drop(session);
        }
    });
}

#[test]
fn attached_client_that_never_reads_blocks_nothing() {
    run(async {
        let pod = Pod::new().await;
        let mut bundle = pod.bundle("one", "read go; seq 1 100000");
        bundle.stdin = true;
        pod.start_bundle("one", &bundle).await;
        let (_unread, stdout) = out();
        let _slow = pod.monitor.attach("one", Streams { stdout, ..Streams::default() }).await.unwrap();
        let (mut to, stdin) = input();
        let _go = pod.monitor.attach("one", Streams { stdin, ..Streams::default() }).await.unwrap();
        to.write_all(b"go\n").unwrap();
        assert_eq!(pod.exited("one").await.code, 0);
        assert_eq!(entries(&pod.log("one")).len(), 100_000);
    });
}

#[test]
fn a_writer_that_is_not_read_costs_no_time() {
    run(async {
        let pod = Pod::new().await;
        let mut bundle = pod.bundle("one", "sleep 1000");
        bundle.stdin = true;
        pod.start_bundle("one", &bundle).await;
        let (to, stdin) = input();
        let _session = pod.monitor.attach("one", Streams { stdin, ..Streams::default() }).await.unwrap();
        let writer = tokio::task::spawn_blocking(move || {
            let mut to = to;
            // Fills pipe after pipe and the pump between them, then goes away: nothing may spin then.
            let text = vec![b'x'; 100_000];
            to.write_all(&text)
        });
        tokio::time::timeout(PATIENCE, writer).await.expect("two pipes hold that").unwrap().unwrap();
        let ticks = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pod.pid)).unwrap();
            let (_, rest) = stat.rsplit_once(')').unwrap();
            let fields: Vec<u64> =
                rest.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
            fields.iter().sum::<u64>()
        };
        let before = ticks();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(ticks() - before <= 5, "{} ticks of a hundred", ticks() - before);
        pod.monitor.signal("one", 9, true).await.unwrap();
    });
}

#[test]
fn a_container_with_a_terminal_is_attached_to_and_resized() {
    run(async {
        let pod = Pod::new().await;
        let mut bundle = pod.bundle("one", "");
        bundle.oci.process = shell("test -t 0 || exit 1; echo ready; read x; stty size; exit 8");
        bundle.oci.process.terminal = true;
        bundle.stdin = true;
        pod.start_bundle("one", &bundle).await;
        let ((mut to, stdin), (from, stdout)) = (input(), out());
        let mut session = pod.monitor.attach("one", Streams { stdin, stdout, stderr: None }).await.unwrap();
        pod.monitor.resize("one", 101, 42).await.unwrap();
        to.write_all(b"go\n").unwrap();
        assert_eq!(session.wait().await.unwrap().code, 8);
        assert!(all_of(from).await.contains("42 101"));
        assert!(
            entries(&pod.log("one"))
                .iter()
                .any(|(stream, _, text)| stream == "stdout" && text == b"42 101\r")
        );
        pod.start("two", "sleep 1000").await;
        assert!(matches!(pod.monitor.resize("two", 1, 1).await, Err(MonitorError::Refused(_))));
    });
}
