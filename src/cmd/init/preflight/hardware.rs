//! CPUs, memory, swap, clock, randomness.

use super::{MachineFacts, PreflightFinding, Purpose, mebibytes};
use crate::cmd::init::facts::InitSystem;
use crate::serve::server::pki::FLOOR;

/// The minimum for the kernel, the agent and one small pod, in bytes.
const LEAST_MEMORY: u64 = 64 << 20;
/// Below this the memory of every pod has to be planned, in bytes.
const GOOD_MEMORY: u64 = 256 << 20;
/// kubeadm's minimum for a control plane.
const CONTROL_PLANE_CPUS: usize = 2;
const CONTROL_PLANE_MEMORY: u64 = 1700 << 20;
/// In bits; kernels since 5.18 always report 256.
const GOOD_ENTROPY: u32 = 128;
/// Any of these sets the clock from the network.
const TIME_SERVICES: [&str; 6] = ["systemd-timesyn", "chronyd", "ntpd", "openntpd", "ntpsec", "timesyncd"];

pub(super) fn cpus(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let seen = format!("{} CPUs", facts.cpus);
    vec![if wanted.is_control_plane() && facts.cpus < CONTROL_PLANE_CPUS {
        let message = format!(
            "the number of available CPUs {} is less than the required {CONTROL_PLANE_CPUS}",
            facts.cpus
        );
        PreflightFinding::error("NumCPU", seen, message)
            .required("2 CPUs for a control plane")
            .fix("use a machine with more, or ignore this check: its control plane is slow")
    } else {
        PreflightFinding::ok("NumCPU", seen)
    }]
}

pub(super) fn memory(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let (seen, megabytes) = (mebibytes(facts.memory), facts.memory >> 20);
    let too_little = |least: u64| {
        let least = least >> 20;
        let message = format!("the system RAM ({megabytes} MB) is less than the minimum {least} MB");
        PreflightFinding::error("Mem", seen.clone(), message).required(format!("{least} MB"))
    };
    vec![if facts.memory == 0 {
        PreflightFinding::skipped("Mem", "cannot read the memory size from /proc/meminfo")
    } else if wanted.is_control_plane() && facts.memory < CONTROL_PLANE_MEMORY {
        too_little(CONTROL_PLANE_MEMORY)
            .fix("use a machine with more: etcd and the components of the control plane need it")
    } else if facts.memory < LEAST_MEMORY {
        too_little(LEAST_MEMORY).fix("this machine has enough memory for the agent, but not for pods")
    } else if facts.memory < GOOD_MEMORY {
        let message = format!("the system RAM ({megabytes} MB) is enough for a few small pods only");
        PreflightFinding::warning("Mem", seen, message)
            .required(format!("{} MB", GOOD_MEMORY >> 20))
            .fix("set a memory limit for every container, and consider compressed swap (zram)")
    } else {
        PreflightFinding::ok("Mem", seen)
    }]
}

pub(super) fn swap(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "Swap";
    let (compressed, disks): (Vec<_>, Vec<_>) =
        facts.swaps.iter().partition(|swap| swap.name.contains("zram"));
    let total = |swaps: &[&super::super::facts::Swap]| mebibytes(swaps.iter().map(|swap| swap.bytes).sum());
    if wanted.fail_swap_on && !facts.swaps.is_empty() {
        let name = facts.swaps[0].name.clone();
        let message = format!("swap is enabled ({name}), which failSwapOn does not allow");
        return vec![
            PreflightFinding::error(NAME, name, message)
                .required("no swap")
                .fix("disable it permanently in /etc/fstab, or set failSwapOn: false")
                .command("swapoff -a"),
        ];
    }
    let Some(first) = disks.first() else {
        let seen = if compressed.is_empty() {
            "no swap".to_owned()
        } else {
            format!("{} in compressed memory (zram)", total(&compressed))
        };
        return vec![PreflightFinding::ok(NAME, seen)];
    };
    let message = format!(
        "swap is enabled on {} ({}): pods use it only if memorySwap.swapBehavior allows it, and it wears \
         out flash storage",
        first.name,
        total(&disks)
    );
    vec![
        PreflightFinding::warning(NAME, first.name.clone(), message)
            .required("no swap, or zram")
            .fix(
                "disable it, permanently in /etc/fstab (Raspberry Pi OS: systemctl disable --now \
                  dphys-swapfile)",
            )
            .command("swapoff -a"),
    ]
}

pub(super) fn clock(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    let Some(now) = facts.now else { return Vec::new() };
    let sets_itself = TIME_SERVICES.iter().find(|name| facts.processes.contains_key(**name));
    let mut findings = vec![if now < FLOOR {
        let message = format!(
            "the clock reads {now}, which is before this release was built: image pulls over TLS fail until \
             it is set, and log timestamps are wrong"
        );
        PreflightFinding::warning("Clock", now.to_string(), message)
            .required("the current time")
            .fix("set it, and enable time synchronization")
            .command("timedatectl set-ntp true")
            .command("date -u -s '2026-01-31 12:00:00'")
    } else {
        PreflightFinding::ok("Clock", now.to_string())
    }];
    findings.push(match (facts.rtcs.first(), sets_itself) {
        (Some(rtc), _) => PreflightFinding::ok("RTC", rtc.clone()),
        (None, Some(service)) => {
            PreflightFinding::ok("RTC", format!("no real-time clock, but {service} sets the clock"))
        }
        (None, None) => PreflightFinding::warning(
            "RTC",
            "no real-time clock, no time service",
            "no real-time clock and no time synchronization: the clock is wrong after every power loss",
        )
        .required("a real-time clock or time synchronization")
        .fix(
            "install a time synchronization service, or add a battery-backed clock (Raspberry Pi: \
              dtoverlay=i2c-rtc,ds3231)",
        )
        // Debian's own package would install systemd.
        .command(if facts.init_system == InitSystem::OpenRc {
            "apt-get install chrony"
        } else {
            "apt-get install systemd-timesyncd"
        }),
    });
    findings
}

pub(super) fn entropy(facts: &MachineFacts, _: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "Entropy";
    vec![match facts.entropy {
        None => PreflightFinding::skipped(NAME, "not reported by the kernel"),
        Some(bits) if bits < GOOD_ENTROPY => {
            let message = format!(
                "the kernel has {bits} bits of entropy: key generation may block on kernels older than 5.18"
            );
            PreflightFinding::warning(NAME, format!("{bits} bits"), message)
                .required(format!("{GOOD_ENTROPY} bits"))
                .fix("feed it from the hardware random number generator (/dev/hwrng)")
                .command("apt-get install rng-tools5")
        }
        Some(bits) => PreflightFinding::ok(NAME, format!("{bits} bits")),
    }]
}
