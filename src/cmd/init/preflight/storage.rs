//! Directories and disks: whether they are writable, their free space, and existing files.

use std::path::Path;

use super::super::facts::mounted_at;
use super::{MachineFacts, PreflightFinding, Purpose, mebibytes, path_name};

/// Below this nothing can be pulled, in bytes.
const LEAST_ROOM: u64 = 64 << 20;
/// Space for a few images and their layers, in bytes.
const GOOD_ROOM: u64 = 512 << 20;
/// An image has some thousands of files.
const GOOD_INODES: u64 = 10_000;

/// Existing manifests run as soon as the agent does: kubeadm's check of the directory, which is not an error
/// here.
pub(super) fn manifests(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let name = path_name("DirAvailable", &wanted.manifests);
    let Some(entries) = facts.directories.get(&wanted.manifests) else {
        return vec![PreflightFinding::ok(&name, "absent or not configured")];
    };
    let files: Vec<&str> = entries.iter().map(String::as_str).filter(|name| !name.starts_with('.')).collect();
    if files.is_empty() {
        return vec![PreflightFinding::ok(&name, "empty")];
    }
    let path = wanted.manifests.display();
    let message = format!("{path} is not empty: the agent will start its pods ({})", shortened(&files));
    vec![
        PreflightFinding::warning(&name, format!("{} files", files.len()), message)
            .required("empty, or only manifests of wanted pods")
            .fix("remove manifests of pods that should not run")
            .command(format!("ls -l {path}")),
    ]
}

fn shortened(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

pub(super) fn writable(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let places: [(&Path, bool); 4] = [
        (&wanted.root_dir, true),
        (&wanted.log_dir, true),
        (Path::new("/etc/kubernetes"), false),
        (Path::new("/run/agent"), true),
    ];
    let finding = |(path, always): (&Path, bool)| {
        let name = path_name("Writable", path);
        let Some(mount) = mounted_at(&facts.mounts, path) else {
            return PreflightFinding::skipped(&name, "not found in the mount table");
        };
        let (shown, point) = (path.display(), mount.point.display());
        let seen = format!("{} on {point}", mount.kind);
        if mount.is_read_only() {
            let message = format!("{shown} cannot be written to: {point} is mounted read-only");
            let finding =
                PreflightFinding::error(&name, format!("{seen}, read-only"), message).required("writable");
            let fix = if always {
                format!(
                    "mount a writable file system on {shown}, or make {point} writable, permanently in \
                     /etc/fstab"
                )
            } else {
                format!("make {point} writable during setup; the agent itself only reads there")
            };
            return finding.fix(fix).command(format!("mount -o remount,rw {point}"));
        }
        if mount.is_in_memory() && path == wanted.root_dir {
            let message = format!(
                "{shown} is in memory ({}): images and the agent's state are lost at every reboot",
                mount.kind
            );
            return PreflightFinding::warning(&name, seen, message)
                .required("a disk")
                .fix(format!("mount a disk file system on {shown} (Raspberry Pi OS: disable the overlay)"))
                .command("raspi-config nonint disable_overlayfs");
        }
        PreflightFinding::ok(&name, seen)
    };
    places.into_iter().map(finding).collect()
}

pub(super) fn room(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "DiskSpace";
    let Some(room) = facts.room.get(&wanted.root_dir) else {
        return vec![PreflightFinding::skipped(NAME, "not reported by the file system")];
    };
    let dir = wanted.root_dir.display();
    let seen = format!(
        "{} and {} files free on the file system of {dir}",
        mebibytes(room.available),
        room.inodes_free
    );
    let is_short_of_inodes = room.inodes > 0 && room.inodes_free < GOOD_INODES;
    let help = |finding: PreflightFinding| {
        finding
            .required(format!("{} and {GOOD_INODES} files", mebibytes(GOOD_ROOM)))
            .fix("free some space, or mount a larger file system there")
            .command(format!("df -h {dir}; df -i {dir}"))
    };
    vec![if room.available < LEAST_ROOM {
        help(PreflightFinding::error(
            NAME,
            seen,
            format!("only {} free for {dir}", mebibytes(room.available)),
        ))
    } else if room.available < GOOD_ROOM {
        help(PreflightFinding::warning(
            NAME,
            seen,
            format!("only {} free for {dir}", mebibytes(room.available)),
        ))
    } else if is_short_of_inodes {
        help(PreflightFinding::warning(
            NAME,
            seen,
            format!("only {} inodes free for {dir}", room.inodes_free),
        ))
    } else {
        PreflightFinding::ok(NAME, seen)
    }]
}

/// The kind of disk; access times and synchronous writes wear flash.
pub(super) fn disk(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    const NAME: &str = "DiskType";
    let Some(mount) = mounted_at(&facts.mounts, &wanted.root_dir) else { return Vec::new() };
    let Some(disk) = mount.disk() else {
        return vec![PreflightFinding::ok(NAME, format!("{} ({})", mount.kind, mount.source))];
    };
    let kind = match facts.rotational.get(&disk) {
        _ if disk.starts_with("mmcblk") => "flash: SD card or eMMC",
        Some(true) => "rotating or virtual",
        Some(false) => "solid state",
        None => "unknown kind",
    };
    let seen = format!("{} on {} ({kind})", mount.kind, mount.source);
    let wears = mount.options.split(',').find(|option| matches!(*option, "strictatime" | "sync" | "dirsync"));
    let is_flash = disk.starts_with("mmcblk") || facts.rotational.get(&disk) == Some(&false);
    vec![match wears {
        Some(option) if is_flash => {
            let point = mount.point.display();
            let message =
                format!("{point} is on flash and mounted with {option}: every file access causes a write");
            PreflightFinding::warning(NAME, seen, message)
                .required("noatime")
                .fix("mount it with noatime, permanently in /etc/fstab")
                .command(format!("mount -o remount,noatime,async {point}"))
        }
        _ => PreflightFinding::ok(NAME, seen),
    }]
}
