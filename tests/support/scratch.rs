//! A directory of one test, and the certainty that nothing started from it outlives the test.
//!
//! Everything a test starts names its scratch directory on its command line: that is how left-overs are found, of this
//! test and of earlier ones that were killed before they could clean up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wait::wait_until;

/// Start of every scratch directory's name; the owner's process id and a number follow.
const PREFIX: &str = "agent-it-";
/// The file that names the network bridge to delete.
const BRIDGE_FILE: &str = "bridge";

/// Distinguishes the scratch directories of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A temporary directory that is emptied of processes, mounts and files when dropped.
pub struct Scratch {
    path: PathBuf,
    number: u32,
}

impl Scratch {
    /// Makes one, after cleaning up after test processes that no longer exist.
    pub fn new() -> Self {
        sweep();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("make the test's scratch directory");
        Self { path, number }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A sub-directory, made if needed.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir_all(&path).expect("make a directory in the scratch directory");
        path
    }

    /// A network bridge name nobody else uses; the bridge goes when the directory goes.
    pub fn bridge(&self) -> String {
        let name = format!("ag{}x{}", std::process::id(), self.number);
        fs::write(self.path.join(BRIDGE_FILE), &name).expect("note the bridge's name");
        name
    }

    /// A range for Services that no concurrent test is likely to use.
    pub fn service_range(&self) -> String {
        let number = std::process::id().wrapping_mul(7).wrapping_add(self.number) % 2000;
        format!("10.{}.{}.0/24", 246 + number / 250, number % 250)
    }

    /// The first three bytes of a subnet, like `10.214.7`, that no concurrent test is likely to use: tests are processes of their
    /// own, started at most some thousand after each other, and one in eight thousand shares its subnet.
    pub fn net(&self) -> String {
        let number = std::process::id().wrapping_mul(7).wrapping_add(self.number) % 8000;
        format!("10.{}.{}", 214 + number / 250, number % 250)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        clear(&self.path);
    }
}

/// Clears the directories of owners that are gone.
fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(owner) = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok())
        else {
            continue;
        };
        if !Path::new(&format!("/proc/{owner}")).exists() {
            clear(&entry.path());
        }
    }
}

/// Ends every process started from `root` with all its descendants, then removes their cgroups, mounts, sockets, the
/// bridge and the files. Does as much as it can.
fn clear(root: &Path) {
    let doomed = processes_of(root);
    let cgroups: BTreeSet<PathBuf> = doomed.iter().flat_map(|pid| cgroups_of(*pid)).collect();
    let sockets = shim_sockets(root);
    for pid in &doomed {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    wait_until("the test's processes to be gone", Duration::from_secs(20), || {
        doomed.iter().all(|pid| is_gone(*pid))
    });
    for directory in cgroups {
        remove_cgroup(&directory);
    }
    for directory in own_cgroups(root) {
        remove_cgroup_tree(&directory);
    }
    unmount_below(root);
    for socket in sockets {
        let _ = fs::remove_file(socket);
    }
    if let Ok(bridge) = fs::read_to_string(root.join(BRIDGE_FILE)) {
        let quietly = |program: &str, arguments: &[&str]| {
            let _ = Command::new(program).args(arguments).stderr(std::process::Stdio::null()).status();
        };
        quietly("ip", &["link", "delete", &bridge]);
        quietly("ip", &["link", "delete", &format!("svc-{bridge}")]);
        for family in ["ip", "ip6"] {
            quietly("nft", &["delete", "table", family, &format!("{bridge}-services")]);
        }
    }
    if std::env::var_os("AGENT_KEEP_SCRATCH").is_none() {
        let _ = fs::remove_dir_all(root);
    }
}

/// Processes with `root` in an argument, and all their descendants.
fn processes_of(root: &Path) -> BTreeSet<i32> {
    let root = root.as_os_str().as_encoded_bytes();
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut todo = Vec::new();
    let own = i32::try_from(std::process::id()).expect("process ids are positive and small");
    for pid in all_pids() {
        children.entry(parent_of(pid)).or_default().push(pid);
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let names_root = arguments.windows(root.len().max(1)).enumerate().any(|(position, window)| {
            window == root && !arguments.get(position + root.len()).is_some_and(u8::is_ascii_digit)
        });
        if names_root && pid != own {
            todo.push(pid);
        }
    }
    let mut found = BTreeSet::new();
    while let Some(pid) = todo.pop() {
        if found.insert(pid) {
            todo.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("read /proc");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The parent's id, 0 when the process is gone.
fn parent_of(pid: i32) -> i32 {
    stat_field(pid, 1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// True when the process does not exist or only its exit code is left.
pub fn is_gone(pid: i32) -> bool {
    stat_field(pid, 0).is_none_or(|state| state == "Z" || state == "X")
}

/// A field of `/proc/PID/stat`, counted from the state, which follows the name in parentheses.
fn stat_field(pid: i32, index: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(index).map(str::to_owned)
}

/// The pods' cgroup directories a process is in, in every hierarchy.
fn cgroups_of(pid: i32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for path in text
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter(|path| ["/kubepods", "/k8s.io/", PREFIX].iter().any(|ours| path.contains(ours)))
    {
        let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        found.extend(hierarchies.map(|hierarchy| hierarchy.path().join(path.trim_start_matches('/'))));
        found.push(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')));
    }
    found
}

/// Cgroups at the top that are named after the scratch directory, one per hierarchy.
pub fn own_cgroups(root: &Path) -> Vec<PathBuf> {
    let Some(name) = root.file_name() else { return Vec::new() };
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let unified = Path::new("/sys/fs/cgroup").join(name);
    let all = hierarchies.map(|hierarchy| hierarchy.path().join(name)).chain([unified]);
    all.filter(|path| path.exists()).collect()
}

/// Removes an empty cgroup and its pod's, but not the QoS classes' and not the root, which other tests share.
fn remove_cgroup(directory: &Path) {
    let _ = fs::remove_dir(directory);
    if let Some(parent) = directory.parent()
        && parent.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pod"))
    {
        let _ = fs::remove_dir(parent);
    }
}

/// Removes a cgroup with all below it; whatever is in use stays.
fn remove_cgroup_tree(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// As many as it can.
pub fn unmount_below(root: &Path) {
    for mount in mounts_below(root) {
        let _ = umount2(&mount, MntFlags::MNT_DETACH);
    }
}

/// Mount points under `root`, innermost first.
fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let mut mounts: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|path| path.starts_with(root))
        .collect();
    mounts.sort();
    mounts.reverse();
    mounts
}

/// The sockets of shims, which lie outside the state directory; each bundle's `address` file names one.
fn shim_sockets(root: &Path) -> Vec<PathBuf> {
    let bundles = root.join("state/io.containerd.runtime.v2.task/k8s.io");
    let entries = fs::read_dir(bundles).into_iter().flatten().flatten();
    let addresses = entries.filter_map(|entry| fs::read_to_string(entry.path().join("address")).ok());
    addresses.filter_map(|address| address.trim().strip_prefix("unix://").map(PathBuf::from)).collect()
}
