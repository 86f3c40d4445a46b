//! The kernel: its version, its options, overlayfs, AppArmor.

use super::super::facts::mounted_at;
use super::{MachineFacts, PreflightFinding, Purpose};

const NAME: &str = "SystemVerification";
/// The minimum for the embedded runtime (joining namespaces by pidfd), and the recommended version.
const OLDEST: (u32, u32) = (5, 8);
const MEANT: (u32, u32) = (5, 10);

/// Options without which pods do not run.
const NEEDED: &[&str] =
    &["NAMESPACES", "UTS_NS", "IPC_NS", "PID_NS", "NET_NS", "CGROUPS", "UNIX", "EPOLL", "TMPFS"];
/// Options whose absence disables a feature: the name and the feature.
const USEFUL: &[(&str, &str)] = &[
    ("MEMCG", "memory limits"),
    ("CGROUP_PIDS", "process limits"),
    ("CFS_BANDWIDTH", "CPU limits"),
    ("FAIR_GROUP_SCHED", "CPU requests"),
    ("SECCOMP_FILTER", "seccomp profiles"),
    ("POSIX_MQUEUE", "/dev/mqueue in containers"),
    ("USER_NS", "hostUsers: false"),
];
/// The same for the embedded runtime's network.
const NETWORK: &[&str] =
    &["VETH", "BRIDGE", "NF_TABLES", "NF_TABLES_IPV4", "NFT_NAT", "NFT_MASQ", "NFT_CT", "NFT_FIB_IPV4"];

pub(super) fn system(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let mut numbers = facts.release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        return vec![PreflightFinding::skipped(NAME, "cannot read the kernel release")];
    };
    let running: (u32, u32) = (major, minor);
    let message =
        |least: (u32, u32)| format!("kernel release {} is older than {}.{}", facts.release, least.0, least.1);
    let seen = format!("Linux {}", facts.release);
    let meant = format!("Linux {}.{} or newer", MEANT.0, MEANT.1);
    vec![if running < OLDEST && wanted.is_embedded {
        let fix = "update the system, or use containerd or CRI-O (--container-runtime-endpoint)";
        PreflightFinding::error(NAME, seen, message(OLDEST)).required(meant).fix(fix)
    } else if running < MEANT {
        PreflightFinding::warning(NAME, seen, message(MEANT)).required(meant).fix("update the system")
    } else {
        PreflightFinding::ok(NAME, seen)
    }]
}

/// Whether the kernel has the option. `None`: its configuration is unknown.
fn has(facts: &MachineFacts, option: &str) -> Option<bool> {
    let config = facts.kernel_config.as_ref()?;
    let is = |line: &str| {
        let value = line.strip_prefix("CONFIG_").and_then(|line| line.strip_prefix(option));
        matches!(value, Some("=y" | "=m"))
    };
    Some(config.lines().any(is))
}

pub(super) fn options(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    if facts.kernel_config.is_none() {
        let why = "no kernel configuration in /proc/config.gz or /boot: kernel options are not checked";
        return vec![PreflightFinding::skipped(NAME, why)];
    }
    let lacks = |option: &str| has(facts, option) == Some(false);
    let listed = |options: &[&str]| {
        options.iter().map(|option| format!("CONFIG_{option}")).collect::<Vec<_>>().join(" ")
    };
    let mut findings = Vec::new();
    let needed: Vec<&str> = NEEDED.iter().copied().filter(|option| lacks(option)).collect();
    if !needed.is_empty() {
        findings.push(
            PreflightFinding::error(
                NAME,
                listed(&needed),
                format!("unexpected kernel config: {}", listed(&needed)),
            )
            .required("these options")
            .fix("use a kernel that has them: containers cannot run without"),
        );
    }
    for (option, what) in USEFUL.iter().filter(|(option, _)| lacks(option)) {
        let message = format!("the kernel lacks CONFIG_{option}: {what} will not work");
        findings.push(
            PreflightFinding::warning(NAME, format!("no CONFIG_{option}"), message)
                .required(format!("CONFIG_{option}"))
                .fix("use a kernel that has it if you need this feature"),
        );
    }
    let network: Vec<&str> = NETWORK.iter().copied().filter(|option| lacks(option)).collect();
    if wanted.is_embedded && !network.is_empty() {
        let message = format!(
            "the kernel lacks {}: pods need hostNetwork: true, or a CNI configuration that does not use them",
            listed(&network)
        );
        findings.push(
            PreflightFinding::warning(NAME, listed(&network), message)
                .required(listed(NETWORK))
                .fix("use a kernel that has them"),
        );
    }
    if findings.is_empty() {
        findings.push(PreflightFinding::ok(NAME, "kernel options"));
    }
    findings
}

pub(super) fn overlay(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "OverlayFS";
    if !wanted.is_embedded {
        return Vec::new();
    }
    let is_there = facts.file_systems.iter().any(|name| name == "overlay")
        || facts.modules.iter().any(|name| name == "overlay")
        || has(facts, "OVERLAY_FS") == Some(true);
    if !is_there {
        let message = "the kernel lacks overlayfs (CONFIG_OVERLAY_FS): images cannot be used";
        return vec![
            PreflightFinding::error(NAME, "neither overlay in /proc/filesystems nor a module", message)
                .required("overlay")
                .fix("install the kernel modules, or use a kernel that has it")
                .command("modprobe overlay"),
        ];
    }
    let below = mounted_at(&facts.mounts, &wanted.root_dir);
    let unable = ["overlay", "vfat", "exfat", "ntfs3", "fuseblk", "nfs", "nfs4", "cifs", "9p", "squashfs"];
    vec![match below {
        Some(mount) if unable.contains(&mount.kind.as_str()) => {
            let dir = wanted.root_dir.display();
            let message =
                format!("{dir} is on {}, which overlayfs does not support for writable layers", mount.kind);
            PreflightFinding::warning(NAME, format!("{} is on {}", dir, mount.kind), message)
                .required("ext4, xfs, btrfs or f2fs")
                .fix(format!("mount a supported file system on {dir}, or set another --root-dir"))
        }
        _ => PreflightFinding::ok(NAME, "overlay"),
    }]
}

pub(super) fn apparmor(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "FileExisting-apparmor_parser";
    if !facts.apparmor || !wanted.is_embedded {
        return Vec::new();
    }
    if facts.programs.contains(&"apparmor_parser") {
        return vec![PreflightFinding::ok(NAME, "apparmor_parser")];
    }
    let message = "apparmor_parser not found in system path: containers run without an AppArmor profile";
    vec![
        PreflightFinding::warning(NAME, "AppArmor without apparmor_parser", message)
            .required("apparmor_parser")
            .fix("install it")
            .command("apt-get install apparmor"),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    /// All options that are checked.
    pub(in super::super) fn every_option() -> Vec<&'static str> {
        let useful = super::USEFUL.iter().map(|(name, _)| *name);
        super::NEEDED.iter().copied().chain(useful).chain(super::NETWORK.iter().copied()).collect()
    }
}
