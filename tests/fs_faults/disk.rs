//! A file system of its own whose calls fail on demand.
//!
//! Owns the mount, the shim and its two files. Must not know what the program under test keeps there.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::log::{self, Record};
use crate::support::scratch::Scratch;

/// Writing into a file.
pub const WRITE: u32 = 1;
/// Syncing a file, a directory or all.
pub const SYNC: u32 = 2;
/// Renaming and linking.
pub const NAME: u32 = 4;
/// Making files and directories.
pub const MAKE: u32 = 8;
/// Removing them.
pub const REMOVE: u32 = 16;
/// Cutting a file to a length.
pub const CUT: u32 = 32;
/// Changing modes.
pub const META: u32 = 64;
/// Opening a file that is there for writing.
pub const OPEN: u32 = 128;
/// Everything that changes a disk.
pub const ALL: u32 = 255;

/// The errors of a disk.
pub const ENOSPC: u32 = 28;
pub const EROFS: u32 = 30;
pub const EIO: u32 = 5;
/// No error: half of a write is made, and the caller told so.
pub const SHORT: u32 = 0;

/// Where the fields of the shim's `struct control` are.
const COUNT: u64 = 0;
const FROM: u64 = 8;
const UNTIL: u64 = 16;
const FAILED: u64 = 24;
const CLASSES: u64 = 32;
const ERROR: u64 = 36;
const RECORD: u64 = 40;
const CONTROL_BYTES: u64 = 48;

/// What fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Of these calls …
    pub classes: u32,
    /// … the one with this number, from 1 …
    pub from: u64,
    /// … and all before this one.
    pub until: u64,
    /// With this error.
    pub error: u32,
}

/// What a disk does to programs, by name.
pub const KINDS: [(&str, u32, u32); 10] = [
    ("failed write", WRITE, EIO),
    ("short write", WRITE, SHORT),
    ("no room for a write", WRITE, ENOSPC),
    ("failed sync", SYNC, EIO),
    ("failed rename", NAME, EIO),
    ("no room for a name", MAKE | NAME, ENOSPC),
    ("failed removal", REMOVE | CUT, EIO),
    ("failed change of a mode, or opening", META | OPEN, EIO),
    ("read-only", ALL, EROFS),
    ("any call fails", ALL, EIO),
];

/// The file system, and what is to happen to those who use it.
pub struct Disk {
    root: PathBuf,
    control: File,
    files: [PathBuf; 3],
    device: u64,
}

impl Disk {
    /// An empty one at `root`, which goes with the scratch directory.
    pub fn mount(scratch: &Scratch, root: &Path) -> Self {
        fs::create_dir_all(root).expect("make the mount point");
        mount(Some("tmpfs"), root, Some("tmpfs"), MsFlags::empty(), Some("size=512m,mode=755"))
            .expect("mount a disk");
        let files = [shim(), scratch.path().join("faults.control"), scratch.path().join("faults.log")];
        let control = File::options().read(true).write(true).create(true).truncate(true).open(&files[1]);
        let control = control.expect("make the control file");
        control.set_len(CONTROL_BYTES).expect("give it its size");
        File::create(&files[2]).expect("make the log");
        let device = fs::metadata(root).expect("look at the disk").dev();
        let disk = Self { root: root.to_owned(), control, files, device };
        disk.put(RECORD, 1);
        disk.put(CLASSES, ALL);
        disk
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What a program needs in its environment to be on it.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        let path = |at: usize| self.files[at].display().to_string();
        [
            ("LD_PRELOAD", path(0)),
            ("FAULTS_CONTROL", path(1)),
            ("FAULTS_LOG", path(2)),
            ("FAULTS_DEV", self.device.to_string()),
        ]
    }

    /// Begins to count; what `fault` says fails.
    pub fn arm(&self, fault: Fault) {
        self.put64(FROM, 0);
        self.put64(COUNT, 0);
        self.put64(FAILED, 0);
        self.put(CLASSES, fault.classes);
        self.put(ERROR, fault.error);
        self.put64(UNTIL, fault.until);
        self.put64(FROM, fault.from);
    }

    /// Nothing fails any more.
    pub fn mend(&self) {
        self.put64(FROM, 0);
    }

    /// Only faults from now on: no log.
    pub fn stop_recording(&self) {
        self.put(RECORD, 0);
    }

    /// Calls of the armed classes since then.
    pub fn count(&self) -> u64 {
        self.get64(COUNT)
    }

    /// Those that failed.
    pub fn failed(&self) -> u64 {
        self.get64(FAILED)
    }

    /// Notes a moment in the log: what the program has said by now.
    pub fn mark(&self, text: &str) {
        let mut file = File::options().append(true).open(&self.files[2]).expect("open the log");
        file.lock().expect("lock the log");
        file.write_all(&log::mark(text)).expect("note a moment");
    }

    /// The log so far.
    pub fn records(&self) -> Vec<Record> {
        let file = File::open(&self.files[2]).expect("open the log");
        file.lock().expect("lock the log");
        log::read(&fs::read(&self.files[2]).expect("read the log"))
    }

    fn put(&self, at: u64, value: u32) {
        self.control.write_all_at(&value.to_ne_bytes(), at).expect("steer the shim");
    }

    fn put64(&self, at: u64, value: u64) {
        self.control.write_all_at(&value.to_ne_bytes(), at).expect("steer the shim");
    }

    fn get64(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, at).expect("ask the shim");
        u64::from_ne_bytes(bytes)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What still uses it is gone with the scratch directory, soon.
        let _ = umount2(&self.root, MntFlags::MNT_DETACH);
    }
}

/// The shim, built at most once per content.
fn shim() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fs_faults/shim.c");
    let mut hasher = DefaultHasher::new();
    fs::read(&source).expect("read the shim").hash(&mut hasher);
    let library =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fs-faults-{:016x}.so", hasher.finish()));
    if !library.exists() {
        // Tests in other processes may be at it, too.
        let unfinished = library.with_extension(std::process::id().to_string());
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
        let output =
            compiler.arg(&unfinished).arg(&source).arg("-ldl").output().expect("start the C compiler");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler:?}: {said}");
        fs::rename(&unfinished, &library).expect("put the shim in place");
    }
    library
}
