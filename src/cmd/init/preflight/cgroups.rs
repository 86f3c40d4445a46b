//! The cgroup hierarchy: its version, and whether the controllers that limit pods are available.

use super::super::facts::{Cgroups, Mount, mounted_at};
use super::{MachineFacts, PreflightFinding, Purpose};

/// Upstream's name: the check is one of the system verification.
const NAME: &str = "SystemVerification";
/// Without these controllers pods have no limits.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];
/// Controllers that fewer pods need: CPU sets, limits of disks; for cgroup v1 also those to freeze containers
/// and restrict devices.
const USEFUL_V2: [&str; 2] = ["cpuset", "io"];
const USEFUL_V1: [&str; 5] = ["cpuset", "blkio", "cpuacct", "devices", "freezer"];

pub(super) fn cgroups(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let (version, controllers, useful) = match &facts.cgroups {
        Cgroups::None => {
            return vec![
                PreflightFinding::error(
                    NAME,
                    "no cgroups",
                    "no cgroup file system is mounted on /sys/fs/cgroup",
                )
                .required("cgroup v2 on /sys/fs/cgroup")
                .fix(
                    "have the init system mount it (systemd does, OpenRC with the service cgroups), or \
                          mount it manually",
                )
                .command("mount -t cgroup2 cgroup2 /sys/fs/cgroup"),
            ];
        }
        Cgroups::Unified { controllers, .. } => ("cgroup v2", controllers, &USEFUL_V2[..]),
        Cgroups::Legacy { controllers } => ("cgroup v1", controllers, &USEFUL_V1[..]),
    };
    let seen = format!("{version}: {}", controllers.join(" "));
    let mut findings = Vec::new();
    let missing = |names: &[&'static str]| -> Vec<&'static str> {
        names.iter().copied().filter(|name| !controllers.iter().any(|there| there == name)).collect()
    };
    if let Cgroups::Unified { is_threaded: true, .. } = facts.cgroups {
        let message = "the visible cgroup tree is threaded: controllers cannot be enabled for pods";
        findings.push(PreflightFinding::error(NAME, seen.clone(), message).fix(
            "the agent runs in a cgroup namespace: start it directly on the host, or with --cgroupns=host",
        ));
    }
    let tree = mounted_at(&facts.mounts, "/sys/fs/cgroup".as_ref()).filter(|mount| mount.kind == "cgroup2");
    if tree.is_some_and(Mount::is_read_only) {
        let message = "the cgroup tree is mounted read-only: pod limits cannot be set";
        findings.push(
            PreflightFinding::error(NAME, seen.clone(), message)
                .fix(
                    "in a Docker or Podman container: run it privileged, or with delegated cgroups; on a \
                      host: remount it read-write",
                )
                .command("mount -o remount,rw /sys/fs/cgroup"),
        );
    }
    let needed = missing(&NEEDED);
    if needed.contains(&"memory") {
        findings.push(no_memory(facts, &seen));
    }
    let others: Vec<&str> = needed.into_iter().filter(|name| *name != "memory").collect();
    if !others.is_empty() {
        let message = format!("missing required cgroups: {}", others.join(" "));
        findings.push(PreflightFinding::error(NAME, seen.clone(), message).required(NEEDED.join(" ")).fix(
            "use a kernel with CONFIG_CGROUP_SCHED, CONFIG_FAIR_GROUP_SCHED and \
                      CONFIG_CGROUP_PIDS, and none of them in cgroup_disable= in /proc/cmdline",
        ));
    }
    let lacking = missing(useful);
    if !lacking.is_empty() {
        let message = format!("missing optional cgroups: {}", lacking.join(" "));
        findings.push(PreflightFinding::warning(NAME, seen.clone(), message).required(useful.join(" ")).fix(
            "CPU sets and io limits of pods have no effect; use a kernel with CONFIG_CPUSETS and \
                      CONFIG_BLK_CGROUP",
        ));
    }
    if let Cgroups::Legacy { .. } = facts.cgroups {
        let message = "cgroups v1 support is in maintenance mode upstream, please migrate to cgroups v2";
        let finding = if wanted.fail_cgroup_v1 { PreflightFinding::error } else { PreflightFinding::warning };
        findings.push(finding(NAME, seen.clone(), message.to_owned()).required("cgroup v2").fix(
            "cgroup v1 works; to switch to v2, add systemd.unified_cgroup_hierarchy=1 to the \
                      kernel command line, or on OpenRC set rc_cgroup_mode=\"unified\" in /etc/rc.conf",
        ));
    }
    if findings.is_empty() {
        findings.push(PreflightFinding::ok(NAME, seen));
    }
    findings
}

/// The most common problem of small boards: the firmware of Raspberry Pis disables the controller.
fn no_memory(facts: &MachineFacts, seen: &str) -> PreflightFinding {
    let is_disabled = facts
        .command_line
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("cgroup_disable="))
        .any(|names| names.split(',').any(|name| name == "memory"));
    let is_pi = facts.model.contains("Raspberry Pi");
    let why = if is_disabled { " (the kernel was booted with cgroup_disable=memory)" } else { "" };
    let message =
        format!("missing required cgroups: memory{why}: memory limits of pods would have no effect");
    let finding = PreflightFinding::error(NAME, seen, message).required(NEEDED.join(" "));
    match facts.command_line_file {
        Some(file) if is_pi || is_disabled => finding
            .fix(format!("append cgroup_enable=memory to the single line of {file}, and reboot"))
            .command(format!("sed -i '1s/$/ cgroup_enable=memory/' {file} && reboot")),
        _ if is_pi => finding.fix(
            "append cgroup_enable=memory to the single line of /boot/firmware/cmdline.txt (before Debian \
             12: /boot/cmdline.txt), and reboot",
        ),
        _ if is_disabled => finding
            .fix(
                "remove cgroup_disable=memory from the boot loader's kernel command line (GRUB: \
                  GRUB_CMDLINE_LINUX in /etc/default/grub), and reboot",
            )
            .command("sed -i 's/cgroup_disable=memory//' /etc/default/grub && update-grub && reboot"),
        _ => finding.fix(
            "add cgroup_enable=memory to the kernel command line and reboot, or use a kernel \
                          with CONFIG_MEMCG",
        ),
    }
}
