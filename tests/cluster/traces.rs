//! What programs leave on a machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;

use super::control_plane::said;
use super::machine::Host;
use crate::support::agent::cgroup_root;

/// Logs of containers stay after a reset, and are listed. The service's flags were there before. kube-proxy makes the lock, and
/// what else it makes stays, too.
const KEPT: [&str; 4] =
    ["/var-upper/log/pods", "/var-upper/log/containers", "/etc-upper/default/agent", "/run/xtables.lock"];

/// Files, links and sockets of the machine with their places, mounts, links of its network, cgroups and processes.
pub fn traces(host: &Host) -> Vec<String> {
    let scratch = host.path("");
    let mut found = BTreeSet::new();
    let own = ["etc-upper", "var-upper", "kubelet", "state"].map(|name| host.path(name));
    for directory in own.into_iter().chain(["/run".into()]) {
        walk(&directory, &mut |path, kind| {
            let shown = path.display().to_string();
            // A file of the real machine that was removed shows as a device.
            if !kind.is_dir() && !kind.is_char_device() && !KEPT.iter().any(|kept| shown.contains(kept)) {
                found.insert(format!("file {shown}"));
            }
        });
    }
    let mounts = fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
    let root = scratch.components().as_path();
    // What runs beside this test has mounts of its own.
    let beside = root.parent().expect("a directory").join("agent-it-").display().to_string();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let own = points.filter(|point| !point.starts_with(&beside) || Path::new(point).starts_with(root));
    found.extend(own.map(|point| format!("mount {point}")));
    let links = said(Command::new("ip").args(["-brief", "link"])).unwrap_or_else(|error| panic!("{error}"));
    found.extend(
        links.lines().map(|line| format!("link {}", line.split([' ', '@']).next().unwrap_or_default())),
    );
    for hierarchy in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"] {
        let own = Path::new(hierarchy).join(cgroup_root(root).trim_start_matches('/'));
        walk(&own, &mut |path, kind| {
            if kind.is_dir() {
                found.insert(format!("cgroup {}", path.display()));
            }
        });
    }
    let named = root.display().to_string();
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(&named) {
            found.insert(format!("process {words}"));
        }
    }
    found.into_iter().collect()
}

fn walk(directory: &Path, see: &mut dyn FnMut(&Path, fs::FileType)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        see(&entry.path(), kind);
        if kind.is_dir() {
            walk(&entry.path(), see);
        }
    }
}
