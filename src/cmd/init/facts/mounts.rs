//! The mount table: mount points, whether they are writable, and the underlying disk.
//!
//! Owns the parsing of mountinfo.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mount {
    pub point: PathBuf,
    pub kind: String,
    /// The mounted source, for example `/dev/mmcblk0p2`.
    pub source: String,
    /// The options of the mount and of the file system, separated by commas.
    pub options: String,
}

impl Mount {
    #[must_use]
    pub(in crate::cmd) fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }

    /// Whether its content is lost at shutdown.
    #[must_use]
    pub(in crate::cmd) fn is_in_memory(&self) -> bool {
        matches!(self.kind.as_str(), "tmpfs" | "ramfs")
            || (self.kind == "overlay"
                && self.options.split(',').any(|option| {
                    option.strip_prefix("upperdir=").is_some_and(|upper| {
                        // The paths that overlayroot, Raspberry Pi OS and Alpine use.
                        ["/run/", "/media/root-rw", "/overlay", "/cow", "/rw/", "/upper"]
                            .iter()
                            .any(|start| upper.starts_with(start))
                    })
                }))
    }

    /// The disk's name in sysfs: `mmcblk0` for `/dev/mmcblk0p2`, `sda` for `/dev/sda1`. `None` when it is not
    /// a device.
    #[must_use]
    pub(crate) fn disk(&self) -> Option<String> {
        let name = self.source.strip_prefix("/dev/")?;
        let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_numbered =
            ["mmcblk", "nvme", "loop", "nbd", "dm-"].iter().any(|start| name.starts_with(start));
        let disk = match digits.strip_suffix('p') {
            Some(disk) if is_numbered && digits.len() < name.len() => disk,
            _ if is_numbered => name,
            _ => digits,
        };
        Some(disk.to_owned())
    }
}

/// The mount that contains `path`.
#[must_use]
pub(crate) fn mounted_at<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let holding = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // Of two mounts at the same place the later one is visible.
    holding.max_by_key(|mount| mount.point.components().count())
}

/// `/proc/self/mountinfo`.
pub(super) fn parse(text: &str) -> Vec<Mount> {
    let line = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let (mut before, mut after) = (before.split(' ').skip(4), after.split(' '));
        let point = before.next()?.replace("\\040", " ");
        let own = before.next()?;
        let (kind, source) = (after.next()?, after.next()?);
        let options = format!("{own},{}", after.next().unwrap_or_default());
        Some(Mount { point: point.into(), kind: kind.to_owned(), source: source.to_owned(), options })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_the_deepest_and_latest_mount_above_it() {
        let mounts = parse(
            "1 0 179:2 / / ro,noatime - ext4 /dev/mmcblk0p2 rw\n\
             2 1 0:5 / /var rw shared:1 - ext4 /dev/sda1 rw,sync\n\
             3 1 0:6 / /var rw - tmpfs tmpfs rw\n\
             4 1 0:7 / /a\\040b rw - overlay overlay rw,lowerdir=/x,upperdir=/media/root-rw/overlay\n",
        );
        let at = |path: &str| mounted_at(&mounts, Path::new(path)).unwrap();
        assert!(at("/etc/kubernetes").is_read_only());
        assert!(!at("/variable").is_in_memory());
        assert_eq!((at("/var/lib").kind.as_str(), at("/var/lib").is_in_memory()), ("tmpfs", true));
        assert!(at("/a b/c").is_in_memory());
        assert_eq!(mounted_at(&[], Path::new("/")), None);
    }

    #[test]
    fn partitions_lead_to_their_disk() {
        for (source, disk) in [
            ("/dev/mmcblk0p2", Some("mmcblk0")),
            ("/dev/mmcblk0", Some("mmcblk0")),
            ("/dev/nvme0n1p3", Some("nvme0n1")),
            ("/dev/nvme0n1", Some("nvme0n1")),
            ("/dev/sda1", Some("sda")),
            ("/dev/vda", Some("vda")),
            ("tmpfs", None),
        ] {
            let mount = Mount { source: source.to_owned(), ..Mount::default() };
            assert_eq!(mount.disk().as_deref(), disk, "{source}");
        }
    }
}
