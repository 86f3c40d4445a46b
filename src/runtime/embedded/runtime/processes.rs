//! Processes by number and start time, because numbers are reused.
//!
//! Owns reading `/proc`.

use std::path::Path;

use super::super::layout::SandboxDir;
use crate::platform::sys::kill::kill_process;

/// A monitor as its file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Clock ticks since boot.
    start: u64,
}

impl Process {
    /// The monitor that a sandbox's directory names, alive or not.
    pub(super) fn monitor_of(dir: &SandboxDir) -> Option<Self> {
        let text = std::fs::read_to_string(dir.monitor_pid()).ok()?;
        let mut words = text.split_whitespace();
        Some(Self { pid: words.next()?.parse().ok()?, start: words.next()?.parse().ok()? })
    }

    /// A process that runs now.
    pub(super) fn of_pid(pid: i32) -> Option<Self> {
        Some(Self { pid, start: start_of(pid)? })
    }

    /// Whether it is still the same process, and no zombie.
    pub(super) fn is_alive(self) -> bool {
        start_of(self.pid) == Some(self.start)
    }

    /// Kills the process if it is still the same one.
    pub(super) fn kill(self) {
        if self.is_alive()
            && let Err(error) = kill_process(self.pid)
        {
            log::debug!(pid = self.pid, err:% = error; "Failed to kill monitor");
        }
    }
}

/// When a process started; `None` for a missing one or a zombie.
fn start_of(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 22 of the file; the state is field 3.
    fields.nth(18)?.parse().ok()
}

/// Monitors of sandboxes below `sandboxes`, found by their command-line argument: the directory's name and
/// the process.
pub(super) fn monitors_below(sandboxes: &Path) -> Vec<(String, Process)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut arguments = arguments.split(|byte| *byte == 0).skip(1);
        if arguments.next()? != b"monitor" {
            return None;
        }
        let dir = Path::new(std::str::from_utf8(arguments.next()?).ok()?);
        let name = dir.strip_prefix(sandboxes).ok()?.to_str()?.to_owned();
        Some((name, Process::of_pid(pid)?))
    })
    .collect()
}

/// The first child of a monitor: the init process of a shared PID namespace, once it is ready and before
/// anything else was started.
pub(super) fn first_child(pid: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_pid_is_not_the_same_live_process() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of_pid(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(process.is_alive());
        let other = Process { start: process.start + 1, ..process };
        assert!(!other.is_alive());
        other.kill();
        assert!(process.is_alive());
        process.kill();
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert_eq!(Process::of_pid(process.pid), None);
    }
}
