//! A node with fake programs, devices and kernel files in a scratch directory.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::block::BlockHost;
use crate::platform::testing::TempDir;

/// A log-in makes a session with the LUNs 0 and 1, as links to disks that keep what is on them.
const ISCSIADM: &str = r#"
case "$*" in
*"-o show") cat "$top/iface"; exit ;;
*--login) ;;
*--logout)
    [ -d "$top/sys/class/iscsi_host" ] || exit 21
    portal=$4 iqn=$6
    for session in "$top"/sys/class/iscsi_host/*/device/session*; do
        [ "$(cat "$session/portal")" = "$portal $iqn" ] || continue
        rm -rf "${session%/device/*}" "$top/dev/disk/by-path/ip-$portal-iscsi-$iqn-lun-"*
        exit 0
    done
    exit 21 ;;
*) exit 0 ;;
esac
portal=$4 iqn=$6
number=$(cat "$top/next"); echo $((number + 1)) > "$top/next"
session=$top/sys/class/iscsi_host/host$number/device/session$number
mkdir -p "$session/iscsi_session/session$number" "$top/sys/class/scsi_host/host$number" "$top/dev/disk/by-path"
echo "$iqn" > "$session/iscsi_session/session$number/targetname"
echo "$portal $iqn" > "$session/portal"
at=$session/connection$number:0/iscsi_connection/connection$number:0
mkdir -p "$at"
for prefix in "" persistent_; do
    echo "${portal%:*}" > "$at/${prefix}address"; echo "${portal##*:}" > "$at/${prefix}port"
done
: > "$top/sys/class/scsi_host/host$number/scan"
for lun in 0 1; do
    disk=sd$number$lun
    [ -e "$top/dev/$disk" ] || ln "$top/lun$lun" "$top/dev/$disk"
    mkdir -p "$session/target$number:0:0/$number:0:0:$lun/block/$disk" "$top/sys/block/$disk/device"
    : > "$top/sys/block/$disk/device/delete"
    ln -sf "../../$disk" "$top/dev/disk/by-path/ip-$portal-iscsi-$iqn-lun-$lun"
done
"#;
const BLKID: &str = r#"
[ -e "$top/blkid" ] && . "$top/blkid"
for device; do :; done
kind=$(head -c 16 "$device" | tr -d '\0')
[ -n "$kind" ] || exit 2
echo "DEVNAME=$device"; echo "TYPE=$kind"
"#;
const MKFS: &str =
    r#"for device; do :; done; printf "${0##*mkfs.}" | dd of="$device" conv=notrunc 2>/dev/null"#;
const FSCK: &str = r#"[ -e "$top/fsck" ] && . "$top/fsck"; exit 0"#;
const MOUNT: &str = r#"for target; do :; done; exec mount -t tmpfs none "$target""#;

pub(super) struct FakeNode {
    pub(super) scratch: TempDir,
}

impl FakeNode {
    pub(super) fn new() -> Self {
        let node = Self { scratch: TempDir::new() };
        std::fs::create_dir_all(node.path("bin")).unwrap();
        std::fs::create_dir_all(node.path("root/pods")).unwrap();
        let scripts = [
            ("iscsiadm", ISCSIADM),
            ("blkid", BLKID),
            ("mkfs.ext4", MKFS),
            ("mkfs.xfs", MKFS),
            ("fsck", FSCK),
            ("mount", MOUNT),
            ("multipath", ""),
            ("blockdev", ""),
        ];
        for (name, text) in scripts {
            node.program(name, text);
        }
        node.write("next", "3");
        let iface = "# BEGIN RECORD\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n\
                     iface.transport_name = tcp\niface.mtu = 0\n# END RECORD\n";
        node.write("iface", iface);
        for lun in ["lun0", "lun1"] {
            let file = std::fs::File::create(node.path(lun)).unwrap();
            file.set_len(2 << 20).unwrap();
        }
        node
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    /// Replaces a program. It notes its call, and fails with status 8 when its call contains what is in `fail`.
    pub(super) fn program(&self, name: &str, script: &str) {
        let top = self.scratch.0.display();
        let start = format!(
            "#!/bin/sh\ntop={top}\necho \"{name} $*\" >> \"$top/calls\"\n\
             if [ -s \"$top/fail\" ] && echo \"{name} $*\" | grep -qF -- \"$(cat \"$top/fail\")\"; then\n\
             echo broken; exit 8; fi\n"
        );
        self.write(&format!("bin/{name}"), &(start + script));
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path(&format!("bin/{name}")), mode).unwrap();
    }

    pub(super) fn host(&self) -> BlockHost {
        BlockHost {
            root: self.scratch.0.clone(),
            programs: vec![self.path("bin")],
            pause: Duration::from_millis(1),
        }
    }

    /// Calls since the last question that contain a text.
    pub(super) fn calls(&self, part: &str) -> Vec<String> {
        let calls = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        let top = format!("{}/", self.scratch.0.display());
        let calls = calls.lines().map(|line| line.replace(&top, "/"));
        calls.filter(|line| line.contains(part)).collect()
    }

    pub(super) fn forget_calls(&self) {
        self.write("calls", "");
    }

    /// A disk, with a link to it.
    pub(super) fn disk(&self, name: &str, link: &str) {
        self.write(&format!("sys/block/{name}/device/delete"), "");
        std::fs::File::create(self.path(&format!("dev/{name}"))).unwrap().set_len(2 << 20).unwrap();
        let link = self.path(&format!("dev/disk/{link}"));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(Path::new("../..").join(name), link).unwrap();
    }

    /// A multipath device of disks.
    pub(super) fn map(&self, map: &str, disks: &[&str]) {
        std::fs::File::create(self.path(&format!("dev/{map}"))).unwrap().set_len(2 << 20).unwrap();
        for disk in disks {
            self.write(&format!("sys/block/{map}/slaves/{disk}"), "");
        }
    }
}
