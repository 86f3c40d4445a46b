//! The figures that procfs has of the machine and of network namespaces.
//!
//! Owns reading its files. A file that does not exist leaves its figures out.

use std::path::Path;

use crate::node::usage::{Disk, Interface};
use crate::platform::cgroup::usage::ContainerStats;
use crate::runtime::embedded::network::bridge::is_veth_name;

/// Of times in `/proc/stat`, whose unit is fixed whatever the kernel's own tick is.
const NANOS_PER_TICK: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// CPU time and memory.
    pub counted: ContainerStats,
    /// Bytes of memory.
    pub memory_total: Option<u64>,
    /// Bytes of swap.
    pub swap_total: Option<u64>,
    /// When it was booted, seconds since the epoch.
    pub booted_at: Option<i64>,
    /// The number of processes and threads.
    pub threads: Option<u64>,
}

/// Reads it, from `/proc` usually. Memory is counted as cAdvisor counts that of the root cgroup: usage is
/// everything but free pages, and the working set is usage without inactive file pages.
#[must_use]
pub(crate) fn machine(proc: &Path) -> Machine {
    let read = |file: &str| std::fs::read_to_string(proc.join(file)).unwrap_or_default();
    let (stat, meminfo, vmstat, loadavg) = (read("stat"), read("meminfo"), read("vmstat"), read("loadavg"));
    let bytes = |name: &str| Some(number(&meminfo, name)?.saturating_mul(1024));
    let less = |all: Option<u64>, part: Option<u64>| Some(all?.saturating_sub(part?));
    let usage = less(bytes("MemTotal:"), bytes("MemFree:"));
    let (memory_total, swap_total) = (bytes("MemTotal:"), bytes("SwapTotal:"));
    Machine {
        counted: ContainerStats {
            cpu_ns: cpu_ns(&stat),
            memory_usage: usage,
            working_set: less(usage, bytes("Inactive(file):")),
            rss: bytes("AnonPages:"),
            page_faults: number(&vmstat, "pgfault"),
            major_page_faults: number(&vmstat, "pgmajfault"),
            memory_limit: memory_total,
            swap_usage: less(swap_total, bytes("SwapFree:")),
            swap_limit: swap_total,
            pids: None,
        },
        memory_total,
        swap_total,
        booted_at: number(&stat, "btime").and_then(|seconds| i64::try_from(seconds).ok()),
        threads: threads(&loadavg),
    }
}

/// The number after a name at the start of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(' ').then(|| rest.split_whitespace().next()?.parse().ok())?
    })
}

/// user nice system idle iowait irq softirq steal guest guest_nice: all but idle and iowait; guests are in
/// user and nice.
fn cpu_ns(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let busy = ticks.iter().take(8).enumerate().filter(|(index, _)| !matches!(index, 3 | 4));
    (ticks.len() >= 4).then(|| {
        busy.fold(0, |sum: u64, (_, ticks)| sum.saturating_add(*ticks)).saturating_mul(NANOS_PER_TICK)
    })
}

/// `0.10 0.20 0.30 1/234 5678`: one of 234 is running.
fn threads(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// This process's metrics, as in Prometheus' clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// CPU time, nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Bytes of memory.
    pub resident: Option<u64>,
    /// Bytes of address space.
    pub address_space: Option<u64>,
    /// Seconds since the epoch.
    pub started_at: Option<u64>,
    pub open_files: Option<u64>,
    /// Descriptors it may have.
    pub max_files: Option<u64>,
}

impl Process {
    /// Reads it, from `/proc` usually.
    #[must_use]
    pub(crate) fn read(proc: &Path) -> Self {
        let read = |file: &str| std::fs::read_to_string(proc.join(file)).unwrap_or_default();
        let (stat, status, limits) = (read("self/stat"), read("self/status"), read("self/limits"));
        // The name, in parentheses, may have blanks and parentheses itself; the first number after it is the
        // third field.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let booted = number(&read("stat"), "btime");
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
        };
        let files = std::fs::read_dir(proc.join("self/fd")).ok().map(Iterator::count);
        Self {
            cpu_ns: field(14).zip(field(15)).map(|(user, system)| (user + system) * NANOS_PER_TICK),
            resident: kilobytes("VmRSS:"),
            address_space: kilobytes("VmSize:"),
            started_at: booted.zip(field(22)).map(|(booted, ticks)| booted + ticks / 100),
            // One of them is the descriptor of the directory itself.
            open_files: files
                .and_then(|files| u64::try_from(files).ok())
                .map(|files| files.saturating_sub(1)),
            max_files: limits.lines().find_map(|line| {
                line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok()
            }),
        }
    }
}

/// The interfaces of a network namespace, from the `net/dev` of a process in it (`/proc/<pid>/net/dev`).
/// Loopback and the node's ends of the pods' veth pairs are left out, as upstream does.
#[must_use]
pub(crate) fn interfaces(text: &str) -> Vec<Interface> {
    text.lines().filter_map(interface).collect()
}

fn interface(line: &str) -> Option<Interface> {
    let (name, rest) = line.split_once(':')?;
    let name = name.trim();
    if ["lo", "veth", "docker", "nerdctl"].iter().any(|prefix| name.starts_with(prefix)) || is_veth_name(name)
    {
        return None;
    }
    let counts: Vec<u64> = rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // Eight receive columns, then eight transmit columns; the first four of each are used.
    let at = |column: usize| counts.get(column).copied();
    Some(Interface {
        name: name.to_owned(),
        rx_bytes: at(0)?,
        rx_packets: at(1)?,
        rx_errors: at(2)?,
        rx_dropped: at(3)?,
        tx_bytes: at(8)?,
        tx_packets: at(9)?,
        tx_errors: at(10)?,
        tx_dropped: at(11)?,
    })
}

/// The disks that file systems are mounted from, from `/proc/diskstats` and `/proc/self/mountinfo`. Each is
/// named once.
#[must_use]
pub(crate) fn disks(diskstats: &str, mountinfo: &str) -> Vec<Disk> {
    let mut found: Vec<Disk> = Vec::new();
    for line in mountinfo.lines() {
        let source = line.split_once(" - ").and_then(|(_, rest)| rest.split_whitespace().nth(1));
        let device = source.filter(|source| source.starts_with("/dev/")).unwrap_or_default();
        let number = line.split_whitespace().nth(2).unwrap_or_default();
        if device.is_empty() || found.iter().any(|disk| disk.device == device) {
            continue;
        }
        // A file system may have a device number of its own (btrfs): then it is matched by name.
        let is_it = |line: &&str| {
            let mut words = line.split_whitespace();
            let [major, minor, name] = [(); 3].map(|()| words.next().unwrap_or_default());
            number.split_once(':') == Some((major, minor)) || device.strip_prefix("/dev/") == Some(name)
        };
        let counts = diskstats.lines().find(is_it).map(|line| {
            let mut numbers = line.split_whitespace().skip(3).map_while(|word| word.parse().ok());
            [(); 11].map(|()| numbers.next().unwrap_or_default())
        });
        found.extend(counts.map(|counts| Disk { device: device.to_owned(), counts }));
    }
    found
}

/// The interface of the default route with the lowest metric, from `/proc/net/route`.
#[must_use]
pub(in crate::node) fn default_interface(route: &str) -> Option<String> {
    let routes = route.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (destination, mask) = (fields.get(1)?, fields.get(7)?);
        let metric: u32 = fields.get(6)?.parse().ok()?;
        (*destination == "00000000" && *mask == "00000000").then(|| (metric, fields[0].to_owned()))
    });
    routes.min_by_key(|(metric, _)| *metric).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_those_that_are_mounted_each_once() {
        let diskstats = "   8       0 sda 9 9 9 9 9 9 9 9 9 9 9 0 0\n   8       1 sda1 1 2 3 4 5 6 7 8 9 10 11 0 0 0 0 0 0\n\
             254       0 vda 21 0 0 0\n   8      17 sdb1 31 0 0 0 0 0 0 0 0 0 41\n";
        let mountinfo = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n23 22 0:5 / /proc rw - proc proc rw\n\
             24 22 8:1 /var /srv rw - ext4 /dev/sda1 rw\n25 22 0:31 / /data rw shared:7 master:2 - btrfs /dev/sdb1 rw\n\
             26 22 7:0 / /snap rw - squashfs /dev/loop0 rw\n";
        let found = disks(diskstats, mountinfo);
        let one = Disk { device: "/dev/sda1".to_owned(), counts: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] };
        let other = Disk { device: "/dev/sdb1".to_owned(), counts: [31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 41] };
        assert_eq!(found, [one, other]);
    }
    use std::fs;

    #[test]
    fn procfs_statistics_are_parsed_and_missing_files_omitted() {
        let proc = std::env::temp_dir().join(format!("edge-agent-proc-{}", std::process::id()));
        let _ = fs::remove_dir_all(&proc);
        fs::create_dir_all(&proc).unwrap();
        assert_eq!(machine(&proc), Machine::default());
        fs::write(proc.join("stat"), "cpu  100 10 20 5000 70 1 2 3 50 5\ncpu0 1 1 1 1\nbtime 1700000000\n")
            .unwrap();
        fs::write(
            proc.join("meminfo"),
            "MemTotal:  1000 kB\nMemFree:    400 kB\nInactive(file): 100 kB\nInactive: 7 kB\nAnonPages: 50 kB\nSwapTotal: 20 kB\nSwapFree: 15 kB\n",
        )
        .unwrap();
        fs::write(proc.join("vmstat"), "pgfault_x 9\npgfault 11\npgmajfault 3\n").unwrap();
        fs::write(proc.join("loadavg"), "0.10 0.20 0.30 1/234 5678\n").unwrap();
        let read = machine(&proc);
        fs::remove_dir_all(&proc).unwrap();
        assert_eq!(read.counted.cpu_ns, Some(136 * NANOS_PER_TICK));
        assert_eq!((read.counted.memory_usage, read.counted.working_set), (Some(600 << 10), Some(500 << 10)));
        assert_eq!((read.counted.rss, read.counted.swap_usage), (Some(50 << 10), Some(5 << 10)));
        assert_eq!((read.counted.page_faults, read.counted.major_page_faults), (Some(11), Some(3)));
        assert_eq!((read.memory_total, read.swap_total), (Some(1000 << 10), Some(20 << 10)));
        assert_eq!((read.booted_at, read.threads), (Some(1_700_000_000), Some(234)));
    }

    #[test]
    fn this_process_is_read_as_it_is() {
        let read = Process::read(Path::new("/proc"));
        assert!(read.resident.unwrap() > 1 << 20 && read.address_space >= read.resident, "{read:?}");
        assert!(
            (3..10_000).contains(&read.open_files.unwrap()) && read.max_files >= read.open_files,
            "{read:?}"
        );
        let booted = machine(Path::new("/proc")).booted_at.unwrap();
        assert!(
            read.started_at.unwrap() >= u64::try_from(booted).unwrap() && read.cpu_ns.is_some(),
            "{read:?}"
        );
        assert_eq!(Process::read(Path::new("/nonexistent")), Process::default());
    }

    #[test]
    fn interfaces_are_counted_without_loopback_and_wires_of_pods() {
        let text = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    lo:   10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n  eth0:18446744073709551615 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\nveth12: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n  bad: 1 2\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        let eth0 = &found[0];
        assert_eq!((eth0.name.as_str(), eth0.rx_bytes, eth0.rx_packets), ("eth0", u64::MAX, 2));
        assert_eq!((eth0.rx_errors, eth0.rx_dropped), (3, 4));
        assert_eq!((eth0.tx_bytes, eth0.tx_packets, eth0.tx_errors, eth0.tx_dropped), (5, 6, 7, 8));
    }

    #[test]
    fn the_default_interface_is_that_of_the_best_default_route() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\nwlan0\t00000000\t01\t0003\t0\t0\t600\t00000000\t0\t0\t0\neth0\t00000000\t01\t0003\t0\t0\t100\t00000000\t0\t0\t0\neth1\t0000000A\t00\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n";
        assert_eq!(default_interface(text).as_deref(), Some("eth0"));
        assert_eq!(default_interface("Iface\n"), None);
    }
}
