//! Facts about this machine and limits of this process: name, addresses, memory, CPUs, cgroup version, oom
//! score, files.

use crate::model::ordered::Sortable as _;
use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

pub(crate) fn hostname() -> std::io::Result<String> {
    let name = nix::unistd::gethostname()?;
    name.into_string()
        .map_err(|name| std::io::Error::other(format!("host name {} is not UTF-8", name.display())))
}

/// A random uid in the form that Kubernetes gives its objects, from the kernel.
pub(crate) fn random_uid() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").map(|text| text.trim().to_owned())
}

/// Addresses of interfaces that are up, loopback and link-local ones left out; IPv4 first, in the kernel's
/// order.
#[must_use]
pub(crate) fn addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let mut found: Vec<IpAddr> = interfaces
        .filter(|interface| {
            interface.flags.contains(InterfaceFlags::IFF_UP)
                && !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
        })
        .filter_map(|interface| {
            let address = interface.address?;
            let ipv4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            ipv4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .filter(|address| match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        })
        .collect();
    found.order_by_key(IpAddr::is_ipv6);
    found
}

/// The source address of the default route of each family, IPv4 first: what upstream calls the node's IPs.
/// Queries the kernel's routing table through an unconnected datagram socket; nothing is sent.
#[must_use]
pub(crate) fn default_route_addresses() -> Vec<IpAddr> {
    let probes: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    probes
        .iter()
        .filter_map(|(local, remote)| {
            let socket = std::net::UdpSocket::bind(local).ok()?;
            socket.connect(remote).ok()?;
            let address = socket.local_addr().ok()?.ip();
            (!address.is_loopback() && !address.is_unspecified()).then_some(address)
        })
        .collect()
}

/// CPUs of the machine that are online, whatever affinity and quota this process has. Without sysfs those that it may
/// use.
#[must_use]
pub(crate) fn cpu_count() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match usize::try_from(count_cpus(&online)) {
        Ok(count @ 1..) => count,
        _ => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    }
}

/// How many CPUs the kernel's list format (`0-2,7`) names.
#[must_use]
pub(crate) fn count_cpus(named: &str) -> i64 {
    let number = |text: &str| text.trim().parse::<i64>().ok();
    named
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((number(last)? - number(first)? + 1).max(0))
        })
        .sum()
}

/// `MemTotal` in bytes; 0 when procfs cannot be read.
#[must_use]
pub(crate) fn memory_total_bytes() -> i64 {
    meminfo_bytes("MemTotal:")
}

/// `SwapTotal` in bytes; 0 without swap.
#[must_use]
pub(crate) fn swap_total_bytes() -> i64 {
    meminfo_bytes("SwapTotal:")
}

fn meminfo_bytes(field: &str) -> i64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<i64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

/// Huge page sizes the kernel offers, in bytes.
#[must_use]
pub(crate) fn huge_page_sizes() -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let mut sizes: Vec<u64> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some(kilobytes * 1024)
        })
        .collect();
    sizes.order_by(Ord::cmp);
    sizes
}

/// Bytes reserved as huge pages of one size, used or not.
#[must_use]
pub(crate) fn huge_page_bytes(size: u64) -> i64 {
    let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", size / 1024);
    let pages = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    i64::try_from(pages.unwrap_or(0).saturating_mul(size)).unwrap_or(i64::MAX)
}

/// The kernel's limit on processes and threads together; `None` when procfs cannot be read.
#[must_use]
pub(crate) fn max_pids() -> Option<i64> {
    ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
        .min()
}

/// Size of the file system that holds `path`, bytes; 0 on errors.
#[must_use]
pub(crate) fn file_system_bytes(path: &Path) -> i64 {
    let Ok(facts) = nix::sys::statvfs::statvfs(path) else { return 0 };
    #[allow(clippy::useless_conversion, reason = "32 bits on some architectures")]
    let bytes = u64::from(facts.blocks()).saturating_mul(u64::from(facts.fragment_size()));
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystemFacts {
    pub capacity: u64,
    /// Free bytes available to unprivileged users.
    pub available: u64,
    /// Bytes in use.
    pub used: u64,
    /// Inodes; 0 where they are not limited.
    pub inodes: u64,
    pub inodes_free: u64,
}

pub(crate) fn file_system(path: &Path) -> std::io::Result<FileSystemFacts> {
    let facts = nix::sys::statvfs::statvfs(path)?;
    #[allow(clippy::useless_conversion, reason = "32 bits on some architectures")]
    let (block, number) = (u64::from(facts.fragment_size()), |number| u64::from(number));
    let bytes = |blocks| number(blocks).saturating_mul(block);
    Ok(FileSystemFacts {
        capacity: bytes(facts.blocks()),
        available: bytes(facts.blocks_available()),
        used: bytes(facts.blocks()).saturating_sub(bytes(facts.blocks_free())),
        inodes: number(facts.files()),
        inodes_free: number(facts.files_free()),
    })
}

/// True when `/sys/fs/cgroup` is the unified hierarchy.
#[must_use]
pub(crate) fn cgroup_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// True when the kernel accounts swap per cgroup; without that, writing a swap limit fails.
#[must_use]
pub(crate) fn swap_accounting(cgroup_v2: bool) -> bool {
    // On v2 the file exists in every cgroup but the root, so a child has to be read.
    let candidates: &[&str] = if cgroup_v2 {
        &["/sys/fs/cgroup/system.slice/memory.swap.max", "/sys/fs/cgroup/init.scope/memory.swap.max"]
    } else {
        &["/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"]
    };
    candidates.iter().any(|path| Path::new(path).exists())
}

/// Major and minor version of the running kernel; zeros when procfs cannot be read.
#[must_use]
pub(crate) fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// True when the running kernel is older than `version`, false when its version is unknown. For options whose
/// refusal the kernel logs: options that are used again and again are not tried then.
#[must_use]
pub(crate) fn is_older_than(version: (u32, u32)) -> bool {
    let running = kernel_version();
    running != (0, 0) && running < version
}

/// True when the kernel enforces AppArmor profiles.
#[must_use]
pub(crate) fn apparmor_enabled() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|enabled| enabled.starts_with('Y'))
}

/// True when the machine was booted with systemd, as `sd_booted(3)` finds out.
#[must_use]
pub(crate) fn systemd_is_running() -> bool {
    std::path::Path::new("/run/systemd/system").is_dir()
}

/// The boot id; it changes with every boot. Empty when procfs cannot be read.
#[must_use]
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// `uname -r`; empty when procfs cannot be read.
#[must_use]
pub(crate) fn kernel_release() -> String {
    first_line_of("/proc/sys/kernel/osrelease")
}

/// `PRETTY_NAME` of the system, as its os-release has it; empty when unknown.
#[must_use]
pub(crate) fn os_image() -> String {
    let read = |path| std::fs::read_to_string(path).ok();
    let text = read("/etc/os-release").or_else(|| read("/usr/lib/os-release")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
}

/// The hardware's own id; empty where it does not exist, as on most boards.
#[must_use]
pub(crate) fn system_uuid() -> String {
    first_line_of("/sys/class/dmi/id/product_uuid")
}

/// The first line of the first of these files (separated by commas) that is not empty; empty if there is
/// none.
#[must_use]
pub(crate) fn first_line_of(paths: &str) -> String {
    let line = |path: &str| {
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().next()?.trim().to_owned();
        (!line.is_empty()).then_some(line)
    };
    paths.split(',').find_map(line).unwrap_or_default()
}

/// The user this process acts as.
#[must_use]
pub(crate) fn user_id() -> u32 {
    nix::unistd::geteuid().as_raw()
}

#[must_use]
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Writes this process's oom_score_adj. Lowering it needs CAP_SYS_RESOURCE.
pub(crate) fn set_oom_score_adj(value: i32) -> std::io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", value.to_string())
}

/// Sets RLIMIT_NOFILE as far as allowed: to `wanted`, or to the hard limit when raising that is refused.
/// Returns the effective limit.
///
/// # Errors
/// When not even the soft limit can be changed.
pub(crate) fn raise_open_files(wanted: u64) -> std::io::Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted.max(hard)).is_ok() {
        return Ok(wanted);
    }
    let allowed = wanted.min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, allowed, hard)?;
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_name_memory_and_a_cpu() {
        assert!(!hostname().unwrap().is_empty());
        assert!(memory_total_bytes() > 16 << 20);
        assert!(cpu_count() >= 1);
        assert!(max_pids().unwrap() > 100);
        assert!(file_system_bytes(Path::new("/")) > 1 << 20);
        assert_eq!(file_system_bytes(Path::new("/nonexistent")), 0);
        assert_eq!(boot_id().len(), 36);
    }

    #[test]
    fn cpus_are_the_machines_whatever_the_affinity() {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let pinned = || {
            let own = nix::unistd::Pid::from_raw(0);
            let may_use = nix::sched::sched_getaffinity(own).unwrap();
            let first =
                (0..nix::sched::CpuSet::count()).find(|cpu| may_use.is_set(*cpu) == Ok(true)).unwrap();
            let mut one = nix::sched::CpuSet::new();
            one.set(first).unwrap();
            nix::sched::sched_setaffinity(own, &one).unwrap();
            (std::thread::available_parallelism().unwrap().get(), cpu_count())
        };
        let counted = std::thread::scope(|threads| threads.spawn(pinned).join().unwrap());
        assert_eq!(counted, (1, usize::try_from(count_cpus(&online)).unwrap()));
    }

    #[test]
    fn cpu_lists_are_counted() {
        for (text, count) in [("0", 1), ("0-3\n", 4), ("0-1,4,6-7", 5), ("", 0)] {
            assert_eq!(count_cpus(text), count, "{text:?}");
        }
    }

    #[test]
    fn addresses_never_contain_loopback() {
        assert!(addresses().iter().chain(&default_route_addresses()).all(|address| !address.is_loopback()));
    }

    #[test]
    fn open_file_limit_stays_within_the_hard_limit() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(raise_open_files(soft.min(hard)).unwrap(), soft.min(hard));
    }
}
