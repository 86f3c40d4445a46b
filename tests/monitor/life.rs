//! Starts, ends, signals, and what becomes of containers when monitor or agent go.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use edge_agent::platform::sys::children;
use edge_agent::platform::sys::own_program::read_only;
use edge_agent::runtime::embedded::client::{Monitor, MonitorError, Streams, write_bundle};
use edge_agent::runtime::embedded::protocol::{Exited, Reply, Started};
use edge_agent::runtime::embedded::spec::PodSpec;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fixture::{Pod, children_of, eventually, exec_spec, run};
use crate::support::agent::binary;
use crate::support::scratch::is_gone;

#[test]
fn container_start_and_exit_are_recorded_and_announced() {
    run(async {
        let pod = Pod::new().await;
        let mut watch = pod.watch().await;
        let pid = pod.start("one", "exit 3").await;
        let Some(Reply::Exited { container, exited }) = watch.next().await else { panic!("it ended") };
        assert_eq!((container.as_str(), exited.code, exited.signal), ("one", 3, 0));
        let directory = pod.directory.container("one");
        let started = Started::from_line(&fs::read_to_string(directory.started()).unwrap()).unwrap();
        assert_eq!(started.pid, pid);
        assert!(started.at <= exited.at && !started.at.is_zero());
        let written = Exited::from_line(&fs::read_to_string(directory.exited()).unwrap()).unwrap();
        assert_eq!(written, exited);

        // A name is used once.
        assert!(matches!(pod.monitor.start("one").await, Err(MonitorError::Refused(_))));
        assert_eq!(pod.exited("one").await, exited);
        pod.monitor.forget("one").await.unwrap();
        pod.monitor.forget("never-there").await.unwrap();
        let mut watch = pod.monitor.watch().await.unwrap();
        assert_eq!(watch.next().await, Some(Reply::Done));
    });
}

/// The agent that asked for the start is killed before the answer; the next one must not take the container for one that
/// was never started.
#[test]
fn a_watch_shows_a_container_that_was_being_started() {
    run(async {
        let pod = Pod::new().await;
        write_bundle(&pod.directory.container("one"), &pod.bundle("one", "exit 3")).unwrap();
        // Both requests are there when the monitor reads the first.
        kill(Pid::from_raw(pod.pid), Signal::SIGSTOP).unwrap();
        let asked = tokio::time::timeout(Duration::from_millis(50), pod.monitor.start("one")).await;
        assert!(asked.is_err(), "no answer: {asked:?}");
        let mut watch = pod.monitor.watch().await.unwrap();
        kill(Pid::from_raw(pod.pid), Signal::SIGCONT).unwrap();
        let first = watch.next().await;
        assert!(
            matches!(&first, Some(Reply::Running { container, .. } | Reply::Exited { container, .. }) if container == "one"),
            "{first:?}"
        );
        assert_eq!(pod.exited("one").await.code, 3);
    });
}

/// A service manager's `CPUAffinity=` for the agent.
#[test]
fn cpus_that_the_agent_is_restricted_to_do_not_bind_containers() {
    run(async {
        let pod = Pod::new().await;
        let allowed = |pid: i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.unwrap().trim().to_owned()
        };
        let all = allowed(pod.start("before", "sleep 1000").await);
        let monitor = Pid::from_raw(pod.pid);
        let own = sched_getaffinity(monitor).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| own.is_set(*cpu).unwrap()).unwrap();
        let mut one = CpuSet::new();
        one.set(first).unwrap();
        sched_setaffinity(monitor, &one).unwrap();
        assert_eq!(allowed(pod.pid), first.to_string());
        assert_eq!(allowed(pod.start("one", "sleep 1000").await), all);
        let session = pod.monitor.exec("one", &exec_spec("sleep 1000"), Streams::default()).await.unwrap();
        assert_eq!(allowed(session.started().pid), all);
    });
}

#[test]
fn a_container_that_cannot_start_leaves_nothing() {
    run(async {
        let pod = Pod::new().await;
        let mut bundle = pod.bundle("bad", "");
        bundle.oci.process.args = vec!["/bin/nothing-here".into()];
        write_bundle(&pod.directory.container("bad"), &bundle).unwrap();
        let error = pod.monitor.start("bad").await.unwrap_err();
        assert!(matches!(&error, MonitorError::Refused(reason) if !reason.is_empty()), "{error}");
        for id in ["..", "a/b", "", "no-such-bundle"] {
            assert!(pod.monitor.start(id).await.is_err(), "{id:?}");
        }
        let mut watch = pod.monitor.watch().await.unwrap();
        assert_eq!(watch.next().await, Some(Reply::Done));
        eventually("no child of the monitor to be left", || children_of(pod.pid).is_empty()).await;
        // The log's directory is missing: said at once, not after the program has run.
        let mut bundle = pod.bundle("nolog", "");
        bundle.log_path = PathBuf::from("/proc/nowhere/0.log");
        write_bundle(&pod.directory.container("nolog"), &bundle).unwrap();
        let error = pod.monitor.start("nolog").await.unwrap_err().to_string();
        assert!(error.contains("/proc/nowhere/0.log"), "{error}");
        // Nothing of it is in the way of another try.
        pod.start("bad", "exit 0").await;
        assert_eq!(pod.exited("bad").await.code, 0);
    });
}

#[test]
fn signals_reach_the_first_process_and_kill_ends_all() {
    run(async {
        let pod = Pod::new().await;
        pod.start("polite", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done").await;
        eventually("its word", || fs::read_to_string(pod.log("polite")).unwrap().contains("ready")).await;
        assert!(matches!(pod.monitor.signal("polite", 999, false).await, Err(MonitorError::Refused(_))));
        pod.monitor.signal("polite", 15, false).await.unwrap();
        assert_eq!(pod.exited("polite").await.code, 9);
        pod.monitor.signal("polite", 15, false).await.unwrap();

        pod.start("stubborn", "trap '' TERM; echo ready; while :; do sleep 1; done").await;
        eventually("its word", || fs::read_to_string(pod.log("stubborn")).unwrap().contains("ready")).await;
        assert!(matches!(pod.monitor.forget("stubborn").await, Err(MonitorError::Refused(_))));
        pod.monitor.signal("stubborn", 15, false).await.unwrap();
        pod.monitor.signal("stubborn", 9, true).await.unwrap();
        let exited = pod.exited("stubborn").await;
        assert_eq!((exited.code, exited.signal), (137, 9));
        pod.monitor.signal("never-there", 9, true).await.unwrap();
    });
}

#[test]
fn orphaned_processes_are_reaped() {
    run(async {
        let pod = Pod::new().await;
        for round in 0..5 {
            let id = format!("orphans-{round}");
            let exited = pod.run(&id, "for i in 1 2 3 4 5; do (sleep 0.0$i &); done; sleep 0.2").await;
            assert_eq!(exited.code, 0);
        }
        eventually("all children to be reaped", || children_of(pod.pid).is_empty()).await;
    });
}

#[test]
fn a_killed_monitor_takes_its_containers_with_it() {
    run(async {
        let mut pod = Pod::new().await;
        let mut watch = pod.watch().await;
        let first = pod.start("one", "sleep 1000 & sleep 1000 & wait").await;
        eventually("children of the container", || children_of(first).len() == 2).await;
        let all: Vec<i32> = children_of(first).into_iter().map(|(pid, _)| pid).chain([first]).collect();
        kill(Pid::from_raw(pod.pid), Signal::SIGKILL).unwrap();
        assert_eq!(watch.next().await, None);
        eventually("the container's processes to be gone", || all.iter().all(|pid| is_gone(*pid))).await;
        let status = pod.spawned.take().unwrap().reap().await.expect("it was our child");
        assert!(!status.success());
        assert!(!std::path::Path::new(&format!("/proc/{}", pod.pid)).exists(), "not even a zombie");
        assert!(matches!(
            pod.monitor.start("two").await,
            Err(MonitorError::Io { .. } | MonitorError::Gone { .. })
        ));
        assert!(matches!(pod.monitor.signal("one", 9, true).await, Err(MonitorError::Gone { .. })));
        pod.monitor.shutdown().await.unwrap();
    });
}

#[test]
fn a_pod_whose_init_is_killed_is_over() {
    run(async {
        let spec = PodSpec { shared_pid: true, ..PodSpec::default() };
        let mut pod = Pod::with(&spec, &binary()).await;
        let init = children_of(pod.pid).first().expect("the pod's init").0;
        let mut bundle = pod.bundle("one", "sleep 1000");
        for namespace in bundle.oci.linux.namespaces.iter_mut().filter(|namespace| namespace.kind == "pid") {
            namespace.path = format!("/proc/{init}/ns/pid");
        }
        let mut watch = pod.watch().await;
        let pid = pod.start_bundle("one", &bundle).await;
        kill(Pid::from_raw(init), Signal::SIGKILL).unwrap();
        loop {
            match watch.next().await {
                Some(Reply::Exited { exited, .. }) => break assert_eq!(exited.signal, 9),
                Some(Reply::Running { .. }) => {}
                other => panic!("its end is told: {other:?}"),
            }
        }
        assert_eq!(watch.next().await, None);
        assert!(pod.spawned.take().unwrap().reap().await.is_some_and(|status| status.success()));
        assert!(is_gone(pid) && !pod.directory.socket().exists());
    });
}

#[test]
fn another_agent_finds_what_runs() {
    run(async {
        let pod = Pod::new().await;
        let pid = pod.start("one", "sleep 1000").await;
        pod.run("two", "exit 4").await;
        let record = fs::read_to_string(pod.directory.monitor_pid()).unwrap();
        let numbers: Vec<u64> = record.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(numbers, [u64::try_from(pod.pid).unwrap(), children::start_time(pod.pid).unwrap()]);
        // The signals that a terminal sends to everybody do not end it.
        for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            kill(Pid::from_raw(pod.pid), signal).unwrap();
        }
        let other = Monitor::new(&pod.directory);
        let mut watch = other.watch().await.unwrap();
        let mut seen = Vec::new();
        loop {
            match watch.next().await.unwrap() {
                Reply::Done => break,
                Reply::Running { container, started } => seen.push((container, started.pid)),
                Reply::Exited { container, exited } => seen.push((container, exited.code)),
                Reply::Failed { message } => panic!("{message}"),
            }
        }
        seen.sort();
        assert_eq!(seen, [("one".to_owned(), pid), ("two".to_owned(), 4)]);
    });
}

#[test]
fn stopped_scope_kills_containers_that_outlast_the_grace() {
    run(async {
        let mut pod = Pod::new().await;
        let polite = pod.start("polite", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done").await;
        let stubborn = pod.start("stubborn", "trap '' TERM; echo ready; while :; do sleep 1; done").await;
        for id in ["polite", "stubborn"] {
            eventually("its word", || fs::read_to_string(pod.log(id)).unwrap().contains("ready")).await;
        }
        let began = Instant::now();
        // systemd tells everybody in the scope.
        for pid in [pod.pid, polite, stubborn] {
            kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        }
        assert_eq!(pod.exited("polite").await.code, 7);
        assert!(pod.spawned.take().unwrap().reap().await.is_some_and(|status| status.success()));
        assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());
        assert!(is_gone(stubborn) && pod.directory.container("stubborn").exited().exists());

        let mut pod = Pod::new().await;
        pod.run("over", "exit 0").await;
        kill(Pid::from_raw(pod.pid), Signal::SIGTERM).unwrap();
        assert!(pod.spawned.take().unwrap().reap().await.is_some_and(|status| status.success()));
    });
}

#[test]
fn a_shutdown_leaves_nothing() {
    run(async {
        let mut pod = Pod::new().await;
        let mut watch = pod.watch().await;
        let pid = pod.start("one", "trap '' TERM; while :; do sleep 1; done").await;
        pod.monitor.shutdown().await.unwrap();
        let Some(Reply::Exited { exited, .. }) = watch.next().await else { panic!("its end is told") };
        assert_eq!(exited.signal, 9);
        assert_eq!(watch.next().await, None);
        assert!(pod.spawned.take().unwrap().reap().await.is_some_and(|status| status.success()));
        assert!(is_gone(pid) && !pod.directory.socket().exists());
        assert!(pod.directory.container("one").exited().exists());
        pod.monitor.shutdown().await.unwrap();
    });
}

#[test]
fn a_monitor_that_hangs_costs_a_caller_its_patience_only() {
    run(async {
        let pod = Pod::new().await;
        kill(Pid::from_raw(pod.pid), Signal::SIGSTOP).unwrap();
        let before = Instant::now();
        assert!(matches!(pod.monitor.forget("x").await, Err(MonitorError::Timeout { .. })));
        assert!(before.elapsed() < Duration::from_secs(20));
        kill(Pid::from_raw(pod.pid), Signal::SIGCONT).unwrap();
        pod.monitor.forget("x").await.unwrap();
    });
}

#[test]
fn the_program_of_a_monitor_cannot_be_written_through_proc() {
    run(async {
        let program = read_only(&binary()).expect("this kernel can");
        let path = PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd()));
        let mut pod = Pod::with(&PodSpec::default(), &path).await;
        let exe = format!("/proc/{}/exe", pod.pid);
        let kept = fs::File::options().read(true).custom_flags(nix::libc::O_PATH).open(&exe).unwrap();
        let refused = |path: &str| {
            let error = fs::File::options().write(true).open(path).unwrap_err().raw_os_error();
            assert!([nix::libc::ETXTBSY, nix::libc::EROFS].map(Some).contains(&error), "{error:?}");
        };
        refused(&exe);
        pod.monitor.shutdown().await.unwrap();
        pod.spawned.take().unwrap().reap().await;
        refused(&format!("/proc/self/fd/{}", kept.as_raw_fd()));
    });
}
