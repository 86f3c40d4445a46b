//! Container logs have an end: rotation on every runtime, and logs that never reach the disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Node;
use crate::support::agent::{NODE, PATIENCE};
use crate::support::wait::{wait_for, wait_until};

/// Lines of a hundred bytes without end, sixty in each tenth of a second.
const CHATTY: &str = "i=0; line=$(printf '%090d' 0); while true; do \
    for n in 0 1 2 3 4 5 6 7 8 9; do i=$((i+1)); echo $line; echo $line; echo $line; echo $line; echo $line; echo $line $i; done; \
    sleep 0.1; done";

/// The log files of the pod's container, by name, with their length.
fn files(node: &Node, pod: &str) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for directory in fs::read_dir(node.agent.pod_logs_dir()).into_iter().flatten().flatten() {
        if !directory.file_name().to_string_lossy().contains(&format!("_{pod}-")) {
            continue;
        }
        for file in fs::read_dir(directory.path().join("main")).into_iter().flatten().flatten() {
            // Docker's are links.
            let length = fs::metadata(file.path()).map_or(0, |metadata| metadata.len());
            found.push((file.file_name().to_string_lossy().into_owned(), length));
        }
    }
    found.sort();
    found
}

/// Whether the log that is being written has grown since it had this length.
fn waits_for_growth(node: &Node, pod: &str) {
    let names = |files: &[(String, u64)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let before = files(node, pod);
    wait_for("the log to go on", PATIENCE, || {
        let now = files(node, pod);
        let length =
            |files: &[(String, u64)]| files.iter().find(|(name, _)| name == "0.log").map(|file| file.1);
        if names(&now) != names(&before) || length(&now) > length(&before) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    });
}

fn a_log_that_is_long_is_moved_aside_and_only_so_many_are_kept() {
    let mut node = Node::new();
    node.agent
        .configure("containerLogMaxSize: 100Ki\ncontainerLogMaxFiles: 3\ncontainerLogMonitorInterval: 3s\n");
    node.apply(&node.pod("chatty", CHATTY));
    node.agent.start();
    let first = node.running("chatty");
    let mut oldest = None;
    wait_for("the oldest to go", 2 * PATIENCE, || {
        let files = files(&node, "chatty");
        assert!(files.len() <= 3, "{files:?}");
        let rotated = files.iter().find(|(name, _)| name.starts_with("0.log.")).map(|file| file.0.clone());
        match (&oldest, rotated) {
            (None, Some(name)) => oldest = Some(name),
            (Some(before), Some(now)) if *before != now && files.len() == 3 => return Ok(()),
            _ => {}
        }
        Err(format!("{files:?}; agent: {}", node.agent.log_tail()))
    });
    waits_for_growth(&node, "chatty");
    // As if it had died between moving the log aside and telling who writes it.
    node.agent.kill9();
    let log = node.agent.pod_logs_dir().join(format!("default_chatty-{NODE}_{}/main/0.log", first.uid));
    fs::rename(&log, log.with_file_name("0.log.20260101-000000")).expect("move it aside");
    node.agent.start();
    wait_until("the log to be there again", PATIENCE, || log.exists());
    waits_for_growth(&node, "chatty");
    assert_eq!(node.running("chatty").id, first.id, "nothing is restarted for it");
    node.delete("chatty");
    node.gone("chatty");
    wait_for("all its logs to be gone", PATIENCE, || match &files(&node, "chatty")[..] {
        [] => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

fn kind_of(path: &Path) -> (u64, u64) {
    let metadata = fs::metadata(path).expect("look at the log directory");
    let space = nix::sys::statvfs::statvfs(path).expect("ask for its size");
    (metadata.dev(), space.blocks() * space.fragment_size())
}

fn in_memory_logs_stay_below_their_limit_off_disk() {
    let mut node = Node::new();
    node.agent
        .configure("containerLogMaxSize: 100Ki\ncontainerLogMaxFiles: 20\ncontainerLogMonitorInterval: 3s\n");
    node.agent.argument("--container-log-ram=2Mi");
    for name in ["one", "two"] {
        node.apply(&node.pod(name, CHATTY));
    }
    node.agent.start();
    let (one, two) = (node.running("one"), node.running("two"));
    let place: PathBuf = node.agent.pod_logs_dir();
    let (device, size) = kind_of(&place);
    assert_eq!(size, 2 << 20);
    assert_ne!(device, kind_of(node.runtime.scratch().path()).0, "it is a file system of its own");
    // Both together would keep 4 MB: the oldest of both go before that.
    wait_for("rotations of both", 2 * PATIENCE, || {
        let rotated = |pod| files(&node, pod).iter().filter(|file| file.0 != "0.log").count();
        let seen = (rotated("one"), rotated("two"));
        if seen.0 > 0 && seen.1 > 0 {
            Ok(())
        } else {
            Err(format!("{seen:?}; agent: {}", node.agent.log_tail()))
        }
    });
    // The next agent finds them where they are, and goes on.
    node.agent.kill9();
    node.agent.start();
    node.agent.wait_for_phase("one", "Running");
    assert_eq!(kind_of(&place), (device, size));
    let kept = files(&node, "one").into_iter().next_back().expect("logs outlive the agent").0;
    wait_for("the oldest to make room", 5 * PATIENCE, || {
        let files = files(&node, "one");
        if files.iter().any(|file| file.0 == kept) { Err(format!("{files:?}")) } else { Ok(()) }
    });
    for name in ["one", "two"] {
        waits_for_growth(&node, name);
    }
    assert_eq!((node.running("one").id, node.running("two").id), (one.id, two.id));
    // What lies on the disk below the memory is what was there before: nothing.
    nix::mount::umount2(&place, nix::mount::MntFlags::MNT_DETACH).expect("look below");
    assert_eq!(fs::read_dir(&place).expect("list what is on disk").count(), 0);
}

/// The engine rotates, with the agent's limits, in its own directory.
fn a_log_of_docker_is_rotated_by_it_within_the_limits() {
    let mut node = Node::new();
    node.agent.configure("containerLogMaxSize: 100Ki\ncontainerLogMaxFiles: 3\n");
    node.apply(&node.pod("chatty", CHATTY));
    node.agent.start();
    let id = node.running("chatty").id;
    let directory = node.runtime.scratch().path().join("docker/containers").join(&id);
    wait_for("three files", 2 * PATIENCE, || {
        let entries = fs::read_dir(&directory).expect("list the engine's files").flatten();
        let logs = entries.filter(|file| file.file_name().to_string_lossy().contains("-json.log"));
        let lengths: Vec<u64> = logs.map(|file| file.metadata().map_or(0, |found| found.len())).collect();
        assert!(lengths.len() <= 3 && lengths.iter().all(|length| *length < 110 << 10), "{lengths:?}");
        if lengths.len() == 3 { Ok(()) } else { Err(format!("{lengths:?}")) }
    });
    waits_for_growth(&node, "chatty");
    assert_eq!(node.running("chatty").id, id, "nothing is restarted for it");
    node.delete("chatty");
    node.gone("chatty");
    wait_for("all its logs to be gone", PATIENCE, || match &files(&node, "chatty")[..] {
        [] if !directory.exists() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

mod only_docker {
    use crate::support::runtime::{Kind, on};

    #[test]
    fn a_log_of_docker_is_rotated_by_it_within_the_limits() {
        on(Kind::Docker, super::a_log_of_docker_is_rotated_by_it_within_the_limits);
    }
}
super::on_both_runtimes! {
    a_log_that_is_long_is_moved_aside_and_only_so_many_are_kept,
    in_memory_logs_stay_below_their_limit_off_disk,
}
