//! A container's usage: read from the files of its cgroup, whatever the version.
//!
//! Owns nothing. A file that does not exist leaves its figure out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A container's current and cumulative usage. `None` where the machine does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerStats {
    /// CPU time of all its processes, nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Memory that is charged to it, bytes.
    pub memory_usage: Option<u64>,
    /// Usage without inactive file pages: the figure that eviction and `top` use.
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
    /// The swap limit, bytes, without memory; `None` without one.
    pub swap_limit: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

impl ContainerStats {
    /// The memory limit less the working set; `None` without a limit.
    #[must_use]
    pub(crate) fn memory_available(&self) -> Option<u64> {
        Some(self.memory_limit?.saturating_sub(self.working_set?))
    }

    /// Sums the usage of containers; a figure that is available for none of them stays absent.
    pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let add = |sum: &mut Option<u64>, one: Option<u64>| {
            if let Some(one) = one {
                *sum = Some(sum.unwrap_or(0).saturating_add(one));
            }
        };
        all.fold(Self::default(), |mut sum, one| {
            add(&mut sum.cpu_ns, one.cpu_ns);
            add(&mut sum.memory_usage, one.memory_usage);
            add(&mut sum.working_set, one.working_set);
            add(&mut sum.rss, one.rss);
            add(&mut sum.page_faults, one.page_faults);
            add(&mut sum.major_page_faults, one.major_page_faults);
            add(&mut sum.swap_usage, one.swap_usage);
            add(&mut sum.pids, one.pids);
            sum
        })
    }
}

/// An unset limit of version 1: the largest page count the kernel has, whatever its page size.
const UNLIMITED: u64 = i64::MAX as u64 >> 16 << 16;

/// Reads the figures of a container from the directories of its cgroup.
#[must_use]
pub(crate) fn stats(dirs: &[PathBuf]) -> ContainerStats {
    let mut stats = ContainerStats::default();
    for directory in dirs {
        let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        // The text `max` of an unset limit is no number, and is left out.
        if let Some(text) = read("cpu.stat").filter(|text| text.starts_with("usage_usec")) {
            // In a hybrid tree the unified hierarchy counts, too; the first value found is right.
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
        (stats.swap_usage, stats.swap_limit) = if v2.is_some() {
            (number("memory.swap.current"), number("memory.swap.max"))
        } else {
            // Version 1 counts memory and swap together.
            let less = |file: &str, memory: Option<u64>| Some(number(file)?.saturating_sub(memory?));
            let limit = less("memory.memsw.limit_in_bytes", stats.memory_limit);
            (
                less("memory.memsw.usage_in_bytes", stats.memory_usage),
                limit.filter(|limit| *limit < UNLIMITED / 2),
            )
        };
    }
    stats
}

/// Time lost waiting for one resource, as the kernel reports it (PSI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psi {
    /// All processes waited.
    pub full: Lost,
    pub some: Lost,
}

/// One line of the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Microseconds, since the cgroup was created.
    pub total: u64,
    /// Hundredths of a per cent of the last 10, 60 and 300 seconds.
    pub average: [u32; 3],
}

/// Of `cpu`, `memory` and `io`, from these files of the first directory that has them; `None` where the
/// machine does not count it.
#[must_use]
pub(crate) fn psi(dirs: &[PathBuf], files: [&str; 3]) -> [Option<Psi>; 3] {
    files.map(|file| {
        let text = dirs.iter().find_map(|directory| fs::read_to_string(directory.join(file)).ok())?;
        // Older kernels have no `full` line for CPU.
        Some(Psi { full: line(&text, "full ").unwrap_or_default(), some: line(&text, "some ")? })
    })
}

fn line(text: &str, kind: &str) -> Option<Lost> {
    let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
    let word = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let hundredths = |name: &str| word(name)?.replacen('.', "", 1).parse().ok();
    let average = [hundredths("avg10")?, hundredths("avg60")?, hundredths("avg300")?];
    Some(Lost { total: word("total")?.parse().ok()?, average })
}

pub(crate) const PRESSURE_FILES: [&str; 3] = ["cpu.pressure", "memory.pressure", "io.pressure"];

/// Figures of a cgroup that only `/metrics/cadvisor` shows. `None` where the machine does not count it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// CPU time in user mode, nanoseconds.
    pub user_ns: Option<u64>,
    /// CPU time in kernel mode, nanoseconds.
    pub system_ns: Option<u64>,
    /// Periods of the CPU quota in which something ran.
    pub periods: Option<u64>,
    /// Those in which the quota was used up.
    pub throttled_periods: Option<u64>,
    /// Time spent waiting for the next period, nanoseconds.
    pub throttled_ns: Option<u64>,
    /// File pages in memory, bytes.
    pub cache: Option<u64>,
    /// Mapped file pages, bytes.
    pub mapped_file: Option<u64>,
    /// The peak memory usage, bytes.
    pub memory_max_usage: Option<u64>,
    /// How often the memory limit was hit.
    pub memory_failures: Option<u64>,
    /// The memory that is left to it when the node is short of memory (`memory.soft_limit_in_bytes`,
    /// `memory.high`); `None` if unset.
    pub memory_reservation: Option<u64>,
    pub oom_kills: Option<u64>,
    /// The limit of processes and threads; `None` without one.
    pub pids_limit: Option<u64>,
    /// Relative weight, as `cpu.shares`.
    pub cpu_shares: Option<u64>,
    /// CPU time per period, microseconds; `None` without a quota.
    pub cpu_quota: Option<u64>,
    /// Length of a period, microseconds.
    pub cpu_period: Option<u64>,
    /// Traffic to disks, by their numbers (`8:0`).
    pub io: BTreeMap<String, Io>,
    /// Time lost waiting for CPU, memory and disk, in this order.
    pub pressure: [Pressure; 3],
    /// Its processes; read for containers.
    pub processes: Option<Processes>,
}

/// Time lost waiting for a resource, nanoseconds. `None` where the kernel does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Some of its threads waited.
    pub waiting_ns: Option<u64>,
    /// All of its threads waited.
    pub stalled_ns: Option<u64>,
}

/// Open files of the processes of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    pub count: u64,
    /// Their file descriptors; `None`: too many to count in passing.
    pub files: Option<u64>,
    /// Those that are sockets.
    pub sockets: Option<u64>,
    /// The first process's limit of descriptors (`RLIMIT_NOFILE`, soft).
    pub max_files: Option<u64>,
}

/// Traffic from and to a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Number of the disk.
    pub device: (u32, u32),
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Reads what [`stats`] leaves out.
#[must_use]
pub(crate) fn detail(dirs: &[PathBuf]) -> Detail {
    let mut detail = Detail::default();
    for directory in dirs {
        let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        if let Some(text) = read("cpu.stat") {
            let of = |name: &str| field(&text, name);
            let micros = |name: &str| of(name).map(|micros| micros.saturating_mul(1000));
            detail.periods = of("nr_periods").or(detail.periods);
            detail.throttled_periods = of("nr_throttled").or(detail.throttled_periods);
            detail.throttled_ns =
                of("throttled_time").or_else(|| micros("throttled_usec")).or(detail.throttled_ns);
            detail.user_ns = detail.user_ns.or_else(|| micros("user_usec"));
            detail.system_ns = detail.system_ns.or_else(|| micros("system_usec"));
        }
        detail.user_ns = number("cpuacct.usage_user").or(detail.user_ns);
        detail.system_ns = number("cpuacct.usage_sys").or(detail.system_ns);
        detail.pids_limit = number("pids.max").or(detail.pids_limit);
        detail.cpu_shares =
            number("cpu.shares").or_else(|| number("cpu.weight").map(shares)).or(detail.cpu_shares);
        // Without a quota the files hold -1, or `max`.
        detail.cpu_quota = number("cpu.cfs_quota_us").or(detail.cpu_quota);
        detail.cpu_period = number("cpu.cfs_period_us").or(detail.cpu_period);
        if let Some(text) = read("cpu.max") {
            let mut words = text.split_whitespace().map(|word| word.parse().ok());
            detail.cpu_quota = words.next().flatten();
            detail.cpu_period = words.next().flatten();
        }
        for (file, is_bytes) in [
            ("io.stat", true),
            ("blkio.throttle.io_service_bytes", true),
            ("blkio.throttle.io_serviced", false),
        ] {
            read_io(&mut detail.io, &read(file).unwrap_or_default(), is_bytes);
        }
        for (pressure, file) in detail.pressure.iter_mut().zip(PRESSURE_FILES) {
            if let Some(text) = read(file) {
                *pressure = Pressure { waiting_ns: lost(&text, "some "), stalled_ns: lost(&text, "full ") };
            }
        }
        let Some(text) = read("memory.stat") else { continue };
        let v2 = directory.join("memory.current").exists();
        let of = |new: &str, old: &str| field(&text, if v2 { new } else { old });
        detail.cache = of("file", "total_cache");
        detail.mapped_file = of("file_mapped", "total_mapped_file");
        detail.oom_kills = Some(oom_kills(std::slice::from_ref(directory)));
        if v2 {
            detail.memory_max_usage = number("memory.peak");
            detail.memory_failures = read("memory.events").and_then(|events| field(&events, "max"));
            detail.memory_reservation = number("memory.high");
        } else {
            detail.memory_max_usage = number("memory.max_usage_in_bytes");
            detail.memory_failures = number("memory.failcnt");
            detail.memory_reservation =
                number("memory.soft_limit_in_bytes").filter(|limit| *limit < UNLIMITED);
        }
    }
    detail
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`, in microseconds.
fn lost(text: &str, kind: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
    let micros: u64 = line.split_once("total=")?.1.trim().parse().ok()?;
    Some(micros.saturating_mul(1000))
}

/// How many descriptors are inspected, of all processes together.
const MAX_FILES: usize = 10_000;

/// The processes in a cgroup, and what they have open: from `cgroup.procs` and, below `proc`, their
/// descriptors. `None` if that cannot be read. A process that ends meanwhile counts for nothing.
#[must_use]
pub(crate) fn processes(proc: &Path, dirs: &[PathBuf]) -> Option<Processes> {
    let text = dirs.iter().find_map(|directory| fs::read_to_string(directory.join("cgroup.procs")).ok())?;
    let (mut found, mut files, mut sockets) = (0, 0, 0);
    for pid in text.lines() {
        found += 1;
        let Ok(open) = fs::read_dir(proc.join(pid).join("fd")) else { continue };
        for file in open.flatten() {
            files += 1;
            if files > MAX_FILES {
                break;
            }
            let is_socket = |link: PathBuf| link.to_string_lossy().starts_with("socket:");
            sockets += u64::from(fs::read_link(file.path()).is_ok_and(is_socket));
        }
    }
    let first = text.lines().next().unwrap_or_default();
    let limits = fs::read_to_string(proc.join(first).join("limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let max_files = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let is_known = files <= MAX_FILES;
    let files = u64::try_from(files).ok();
    Some(Processes {
        count: found,
        files: files.filter(|_| is_known),
        sockets: is_known.then_some(sockets),
        max_files,
    })
}

/// `cpu.weight` as the least `cpu.shares` that maps to it: the inverse of the runtimes' conversion.
fn shares(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142).div_ceil(9999)
}

/// Version 2: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 ...`. Version 1: `8:0 Read 1`, with bytes and operations
/// in separate files.
fn read_io(disks: &mut BTreeMap<String, Io>, text: &str, is_bytes: bool) {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(disk) = words.next().filter(|disk| disk.contains(':')) else { continue };
        let words: Vec<&str> = words.collect();
        let io = disks.entry(disk.to_owned()).or_default();
        let device = disk.split_once(':');
        io.device =
            device.and_then(|(major, minor)| major.parse().ok().zip(minor.parse().ok())).unwrap_or_default();
        if let [name, number] = words[..]
            && let Ok(number) = number.parse()
        {
            match (name, is_bytes) {
                ("Read", true) => io.read_bytes = number,
                ("Write", true) => io.written_bytes = number,
                ("Read", false) => io.reads = number,
                ("Write", false) => io.writes = number,
                _ => {}
            }
        }
        for (name, number) in words.iter().filter_map(|word| word.split_once('=')) {
            let Ok(number) = number.parse() else { continue };
            match name {
                "rbytes" => io.read_bytes = number,
                "wbytes" => io.written_bytes = number,
                "rios" => io.reads = number,
                "wios" => io.writes = number,
                _ => {}
            }
        }
    }
}

/// How many processes of the container the OOM killer has killed. 0 when the kernel does not count.
#[must_use]
pub(crate) fn oom_kills(dirs: &[PathBuf]) -> u64 {
    let counts = dirs.iter().filter_map(|directory| {
        // Before Linux 4.13 version 1 does not count; the file exists all the same.
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
