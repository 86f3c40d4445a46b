//! Block devices: what is on one, formatting, checking, mounting, removal from the node.
//!
//! Owns the calls of the host's programs for volumes. A device is formatted only when it is proven to be empty: it can be
//! read, no program has it, `blkid` finds nothing, and its first megabyte is zeros. Texts are upstream's where it has them.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::platform::sys::command;
use crate::platform::sys::open::open_alone;

/// Where programs of the system are, whatever `PATH` says.
const SYSTEM: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// Debian's packages of the programs.
const PACKAGES: [(&str, &str); 9] = [
    ("iscsiadm", "open-iscsi"),
    ("multipath", "multipath-tools"),
    ("blkid", "util-linux"),
    ("mount", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.ext3", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.vfat", "dosfstools"),
];
/// A log-in to a portal that does not answer takes two minutes.
const ISCSIADM: Duration = Duration::from_secs(180);
/// A large file system is formatted and checked as long as it takes: upstream has no limit.
const UNLIMITED: Duration = Duration::from_secs(7 * 24 * 3600);
const LONGEST_OUTPUT: u64 = 16 << 10;
/// So much of a device must be zeros before it is formatted.
const EMPTY_BYTES: u64 = 1 << 20;

/// The node as volumes of disks see it: its devices and its programs.
pub(super) struct BlockHost {
    /// `/`; `dev` and `sys` are below it.
    pub(super) root: PathBuf,
    pub(super) programs: Vec<PathBuf>,
    /// Between two looks for a device.
    pub(super) pause: Duration,
}

impl BlockHost {
    pub(super) fn new() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            root: PathBuf::from("/"),
            programs: std::env::split_paths(&path).chain(SYSTEM.map(PathBuf::from)).collect(),
            pause: Duration::from_secs(1),
        }
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.programs.iter().map(|directory| directory.join(program)).find(|path| path.is_file())
    }

    /// The exit status (-1 after a signal) and all output.
    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), String> {
        let path = self.find(program).ok_or_else(|| {
            let package = PACKAGES.iter().find(|(known, _)| *known == program);
            let package = package.map(|(_, package)| format!("; it is in the Debian package {package}"));
            format!("program {program} is not installed on this node{}", package.unwrap_or_default())
        })?;
        let limit = if program == "iscsiadm" { ISCSIADM } else { UNLIMITED };
        let mut command = Command::new(path);
        let done = command::run(command.args(arguments).env("LC_ALL", "C"), b"", LONGEST_OUTPUT, limit)
            .map_err(|error| format!("run {program}: {error}"))?;
        let text = String::from_utf8_lossy(&[done.output, done.errors].concat()).trim().to_owned();
        Ok((done.status.code().unwrap_or(-1), text))
    }

    /// What a program that has to succeed says. No argument may be a secret.
    pub(super) fn must(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        match self.run(program, arguments)? {
            (0, text) => Ok(text),
            (code, text) => Err(format!("{program} {}: exit status {code}: {text}", arguments.join(" "))),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a thread of its own, which waits for the kernel and udev")]
    pub(super) fn wait(&self) {
        std::thread::sleep(self.pause);
    }

    pub(super) fn write(&self, below_root: &str, text: &str) -> io::Result<()> {
        // As the kernel's files want it: never created.
        let mut file = OpenOptions::new().write(true).open(self.root.join(below_root))?;
        io::Write::write_all(&mut file, text.as_bytes())
    }

    /// The names in a directory, sorted; none when there is no such directory.
    pub(super) fn names(&self, below_root: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(below_root)).into_iter().flatten().flatten();
        let names: BTreeSet<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.into_iter().collect()
    }

    /// The name of the disk behind a link, `sda`.
    pub(super) fn disk(device: &Path) -> Option<String> {
        let name = device.canonicalize().ok()?.file_name()?.to_string_lossy().into_owned();
        Some(name)
    }

    pub(super) fn device(&self, disk: &str) -> PathBuf {
        self.root.join("dev").join(disk)
    }

    /// `dm-0`, of which a disk is a path.
    pub(super) fn multipath(&self, disk: &str) -> Option<String> {
        if disk.starts_with("dm-") {
            return Some(disk.to_owned());
        }
        let is_its = |name: &String| {
            name.starts_with("dm-")
                && self.root.join(format!("sys/block/{name}/slaves/{disk}")).symlink_metadata().is_ok()
        };
        self.names("sys/block").into_iter().find(is_its)
    }

    /// Neither mounted, in any mount namespace, nor part of another device.
    pub(super) fn is_free(&self, disk: &str) -> bool {
        !matches!(open_alone(&self.device(disk)), Err(error) if error.kind() == ErrorKind::ResourceBusy)
    }

    /// Takes disks from the kernel, and the multipath device that they are paths of.
    pub(super) fn remove(&self, disks: &[String]) -> Result<(), String> {
        let maps: BTreeSet<String> = disks.iter().filter_map(|disk| self.multipath(disk)).collect();
        let mut tops = if maps.is_empty() { disks.iter() } else { [].iter() }.chain(&maps);
        if let Some(disk) = tops.find(|disk| !self.is_free(disk)) {
            return Err(format!("/dev/{disk} is still in use"));
        }
        for map in &maps {
            self.must("multipath", &["-f", &self.device(map).to_string_lossy()])?;
        }
        for disk in disks {
            match self.write(&format!("sys/block/{disk}/device/delete"), "1") {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(format!("delete block device {disk}: {error}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What `blkid` finds; `None` when that is nothing.
    pub(super) fn format_of(&self, device: &str) -> Result<Option<String>, String> {
        let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device];
        let (code, text) = self.run("blkid", &arguments)?;
        // A device that it cannot read is status 2, too, with a message.
        if code == 2 && text.is_empty() {
            return Ok(None);
        }
        let failed =
            || format!("failed to get disk format of disk {device}: blkid: exit status {code}: {text}");
        let (mut kind, mut table) = ("", "");
        for line in text.lines().filter(|line| !line.is_empty()) {
            match line.split_once('=') {
                Some(("TYPE", value)) => kind = value,
                Some(("PTTYPE", value)) => table = value,
                Some(_) => {}
                None => return Err(failed()),
            }
        }
        match (code, table, kind) {
            (0, "", kind) if !kind.is_empty() => Ok(Some(kind.to_owned())),
            (0, table, _) if !table.is_empty() => Ok(Some("unknown data, probably partitions".to_owned())),
            _ => Err(failed()),
        }
    }

    /// Mounts a device, after formatting an empty one, or checking the file system that is on it.
    pub(super) fn format_and_mount(
        &self,
        device: &Path,
        target: &Path,
        (fs_type, options): (&str, &[String]),
        read_only: bool,
    ) -> Result<(), String> {
        let fs_type = if fs_type.is_empty() { "ext4" } else { fs_type };
        if !fs_type.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
            return Err(format!("fsType {fs_type:?} is no name of a file system"));
        }
        let (device, target) = (device.to_string_lossy(), target.to_string_lossy());
        let found = self.format_of(&device)?;
        match &found {
            None if read_only => {
                return Err(format!(
                    "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
                ));
            }
            None => self.format(&device, fs_type)?,
            Some(_) if read_only => {}
            Some(_) => self.check(&device)?,
        }
        let mut all: BTreeSet<&str> =
            options.iter().map(String::as_str).filter(|each| !each.is_empty()).collect();
        if read_only {
            all.insert("ro");
        }
        let all = all.into_iter().chain(["defaults"]).collect::<Vec<_>>().join(",");
        let mounted = self.must("mount", &["-t", fs_type, "-o", &all, &device, &target]);
        mounted.map(drop).map_err(|why| match found.filter(|found| found != fs_type) {
            Some(found) => format!("{why}; the volume's fsType is {fs_type}, on the disk is {found}"),
            None => why,
        })
    }

    fn format(&self, device: &str, fs_type: &str) -> Result<(), String> {
        let refused = |why: &str| format!("will not format disk {device}: {why}");
        let file = open_alone(Path::new(device)).map_err(|error| refused(&error.to_string()))?;
        let mut start = Vec::new();
        file.take(EMPTY_BYTES).read_to_end(&mut start).map_err(|error| refused(&error.to_string()))?;
        if start.is_empty() || start.iter().any(|byte| *byte != 0) {
            return Err(refused("it has data of an unknown kind; erase it to let it be formatted"));
        }
        let options: &[&str] = match fs_type {
            "ext3" | "ext4" => &["-F", "-m0"],
            "xfs" => &["-f"],
            _ => &[],
        };
        self.must(&format!("mkfs.{fs_type}"), &[options, &[device]].concat())
            .map_err(|why| format!("format of disk {device} failed: {why}"))?;
        log::info!(device, fsType = fs_type; "Formatted an empty disk");
        Ok(())
    }

    fn check(&self, device: &str) -> Result<(), String> {
        if self.find("fsck").is_none() {
            log::info!(device; "Program fsck is not installed, mounting the disk unchecked");
            return Ok(());
        }
        match self.run("fsck", &["-a", device])? {
            (0, _) => {}
            (1, _) => log::info!(device; "Program fsck has corrected errors of the disk"),
            (4, text) => {
                return Err(format!(
                    "'fsck' found errors on device {device} but could not correct them: {text}"
                ));
            }
            (code, text) => log::info!(device, code, output = text; "Program fsck could not check the disk"),
        }
        Ok(())
    }
}
