//! Reports OOM kills of processes that belong to no pod (upstream: `oom_watcher`).
//!
//! Owns reading the kernel's log. An OOM kill inside a pod is reported by its container's status.

use crate::platform::sys::kernel_log::KernelLog;
use crate::pod::events::{EventRecorder, EventType};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Victim {
    name: String,
    pid: String,
}

/// Reads as long as the task lives. Sleeps while the kernel logs nothing.
pub(crate) async fn watch(events: EventRecorder) {
    let log = match KernelLog::open() {
        Ok(log) => log,
        Err(error) => {
            log::info!(err:% = error; "Failed to read the kernel log: OOM kills are not reported");
            return;
        }
    };
    let mut teller = Teller::default();
    loop {
        match log.next().await {
            Ok(line) => {
                if let Some(victim) = teller.parse_line(&line) {
                    events.node_event(
                        EventType::Warning,
                        "SystemOOM",
                        &format!(
                            "System OOM encountered, victim process: {}, pid: {}",
                            victim.name, victim.pid
                        ),
                    );
                }
            }
            Err(error) => {
                log::warn!(err:% = error; "Lost access to the kernel log: OOM kills are no longer reported");
                return;
            }
        }
    }
}

#[derive(Default)]
struct Teller {
    /// The kernel logs each victim's cgroup (5.0 and later).
    names_cgroups: bool,
}

impl Teller {
    /// Parses a line of the kernel log, without its header.
    fn parse_line(&mut self, line: &str) -> Option<Victim> {
        if let Some(said) = line.strip_prefix("oom-kill:") {
            self.names_cgroups = true;
            let value =
                |key: &str| said.split(',').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
            let victim = Victim { name: value("task")?.to_owned(), pid: value("pid")?.to_owned() };
            return (!is_pod_cgroup(value("task_memcg")?)).then_some(victim);
        }
        if self.names_cgroups {
            return None;
        }
        // `Out of memory: Killed process 812 (stress) total-vm:…`, of older kernels without the cgroup.
        let said = line.strip_prefix("Out of memory: ")?;
        let (_, rest) = said.split_once(" process ")?;
        let (pid, rest) = rest.split_once(" (")?;
        let name = rest.split_once(')')?.0;
        Some(Victim { name: name.to_owned(), pid: pid.to_owned() })
    }
}

fn is_pod_cgroup(cgroup: &str) -> bool {
    cgroup.split('/').any(|part| matches!(part, "kubepods" | "kubepods.slice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str]) -> Vec<String> {
        let mut teller = Teller::default();
        let tell =
            |line: &&str| teller.parse_line(line).map(|victim| format!("{} {}", victim.name, victim.pid));
        lines.iter().filter_map(tell).collect()
    }

    #[test]
    fn oom_kills_are_reported_only_outside_of_pods() {
        let line = |cgroup: &str| {
            format!(
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
                 task_memcg={cgroup},task=stress,pid=812,uid=0"
            )
        };
        let said = "Out of memory: Killed process 812 (stress) total-vm:1kB, anon-rss:1kB, oom_score_adj:0";
        assert_eq!(heard(&["usb 1-1: new device", &line("/system.slice/x.service"), said]), ["stress 812"]);
        assert!(heard(&[&line("/kubepods/burstable/pod1/c1"), said]).is_empty());
        assert!(heard(&[&line("/kubepods.slice/kubepods-pod1.slice")]).is_empty());
        assert_eq!(heard(&[&line("/")]), ["stress 812"]);
        assert!(heard(&["oom-kill:constraint=CONSTRAINT_NONE"]).is_empty(), "less than a whole line");
    }

    #[test]
    fn older_kernels_say_less() {
        let lines = [
            "Out of memory: Kill process 7 (a (b) score 900",
            "Memory cgroup out of memory: Kill process 8 (c)",
        ];
        assert_eq!(heard(&lines), ["a (b 7"]);
    }
}
