//! Kills everything in a container by its cgroups.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use crate::platform::sys::children::kill_by_id;

/// The rest of a longer list of process ids is handled in the next round.
const MAX_LIST: u64 = 64 * 1024;
/// Rounds per call: what a fork bomb makes meanwhile is left for the next call.
const ROUNDS: usize = 5;

/// Sends SIGKILL to everything in these cgroups, the directories of one container in every hierarchy. Returns
/// whether anything may be left. Never kills this process.
pub(super) fn kill_all(directories: &[PathBuf]) -> bool {
    let mut left = false;
    for directory in directories {
        left = false;
        for _ in 0..ROUNDS {
            let pids = processes(directory);
            left = !pids.is_empty();
            if !left || pids.contains(&own_pid()) {
                break;
            }
            // cgroup v2 since Linux 5.14: kills all at once, faster than any fork.
            if fs::write(directory.join("cgroup.kill"), "1").is_ok() {
                break;
            }
            pids.into_iter().for_each(kill_by_id);
        }
    }
    left
}

/// Sends SIGKILL to the session that this process leads, as far as it is in these cgroups.
pub(super) fn kill_session(directories: &[PathBuf], leader: i32) {
    // Its own process group first: that is enough in nearly all cases, and it works without cgroups.
    kill_by_id(-leader);
    let in_session = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let session =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(3)?.parse().ok());
        session == Some(leader)
    };
    for directory in directories {
        processes(directory).into_iter().filter(in_session).for_each(kill_by_id);
    }
}

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

fn processes(directory: &std::path::Path) -> Vec<i32> {
    let mut text = String::new();
    match fs::File::open(directory.join("cgroup.procs")) {
        Ok(file) => {
            // A truncated or unreadable list is left for another round.
            let _ = file.take(MAX_LIST).read_to_string(&mut text);
        }
        Err(_) => return Vec::new(),
    }
    // 0 stands for a process outside this PID namespace, which must not be killed.
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// For hierarchies of both versions, with and without a file that kills all.
    #[test]
    fn everything_in_a_cgroup_is_killed_and_nothing_else() {
        let hierarchies = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"];
        let mut tried = 0;
        for hierarchy in hierarchies.map(Path::new) {
            if !hierarchy.join("cgroup.procs").exists() {
                continue;
            }
            let directory = hierarchy.join(format!("edge-agent-kill-{}", std::process::id()));
            fs::create_dir(&directory).unwrap();
            let spawn = || Command::new("sleep").arg("1000").spawn().unwrap();
            let mut inside = [spawn(), spawn()];
            let mut outside = spawn();
            for child in &inside {
                fs::write(directory.join("cgroup.procs"), child.id().to_string()).unwrap();
            }
            kill_all(std::slice::from_ref(&directory));
            for child in &mut inside {
                assert!(!child.wait().unwrap().success(), "{}", directory.display());
            }
            assert!(!kill_all(std::slice::from_ref(&directory)));
            assert!(outside.try_wait().unwrap().is_none());
            outside.kill().unwrap();
            outside.wait().unwrap();
            fs::remove_dir(&directory).unwrap();
            tried += 1;
        }
        assert!(tried > 0, "there are cgroups on this machine");
        assert!(!kill_all(&["/sys/fs/cgroup/nothing-here".into()]));
    }
}
