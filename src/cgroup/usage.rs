//! What a container has used: read from the files of its cgroup, whatever the version.
//!
//! Owns nothing. A file that is not there leaves its figure out.

use std::fs;
use std::path::PathBuf;

/// What a container uses and has used. `None` where the machine does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerStats {
    /// CPU time of all its processes, nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Memory that is charged to it, bytes.
    pub memory_usage: Option<u64>,
    /// That without file pages nobody has used for long: what eviction and `top` look at.
    pub working_set: Option<u64>,
    /// Anonymous memory, bytes.
    pub rss: Option<u64>,
    /// All page faults.
    pub page_faults: Option<u64>,
    /// Those that read from disk.
    pub major_page_faults: Option<u64>,
    /// The memory limit; `None` without one.
    pub memory_limit: Option<u64>,
    /// Swap in use, bytes.
    pub swap_usage: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// A limit of version 1 that is none: the largest page count the kernel has, whatever its page size.
const UNLIMITED: u64 = i64::MAX as u64 >> 16 << 16;

/// Reads the figures of a container from the directories of its cgroup.
#[must_use]
pub fn stats(dirs: &[PathBuf]) -> ContainerStats {
    let mut stats = ContainerStats::default();
    for directory in dirs {
        let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        // A container that is not limited says `max`, which is no number.
        if let Some(text) = read("cpu.stat").filter(|text| text.starts_with("usage_usec")) {
            // In a hybrid tree the unified hierarchy counts, too; whoever comes first is right.
            let micros = field(&text, "usage_usec");
            stats.cpu_ns = stats.cpu_ns.or(micros.map(|micros| micros.saturating_mul(1000)));
        }
        stats.cpu_ns = number("cpuacct.usage").or(stats.cpu_ns);
        stats.pids = number("pids.current").or(stats.pids);
        let Some(text) = read("memory.stat") else { continue };
        let v2 = number("memory.current");
        let names = if v2.is_some() {
            ["inactive_file", "anon", "pgfault", "pgmajfault"]
        } else {
            ["total_inactive_file", "total_rss", "total_pgfault", "total_pgmajfault"]
        };
        let [inactive, rss, faults, major] = names.map(|name| field(&text, name));
        stats.memory_usage = v2.or_else(|| number("memory.usage_in_bytes"));
        stats.working_set = stats.memory_usage.map(|usage| usage.saturating_sub(inactive.unwrap_or(0)));
        (stats.rss, stats.page_faults, stats.major_page_faults) = (rss, faults, major);
        let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"));
        stats.memory_limit = limit.filter(|limit| *limit < UNLIMITED);
        stats.swap_usage = if v2.is_some() {
            number("memory.swap.current")
        } else {
            let both = number("memory.memsw.usage_in_bytes");
            both.zip(stats.memory_usage).map(|(both, memory)| both.saturating_sub(memory))
        };
    }
    stats
}

/// How many processes of the container the kernel has killed for want of memory. 0 when nobody counts.
#[must_use]
pub fn oom_kills(dirs: &[PathBuf]) -> u64 {
    let counts = dirs.iter().filter_map(|directory| {
        // Before Linux 4.13 version 1 does not count; the file is there all the same.
        let files = ["memory.events", "memory.oom_control"].into_iter();
        files
            .filter_map(|file| fs::read_to_string(directory.join(file)).ok())
            .find_map(|text| field(&text, "oom_kill"))
    });
    counts.max().unwrap_or(0)
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
