//! A container's cgroups: entering them, and showing them inside.
//!
//! Owns nothing.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::error::{Doing, InitError};
use crate::platform::cgroup::MOUNT_POINT;
use crate::platform::sys::container_root::{ContainerRoot, clean};
use crate::platform::sys::mount_tree::{
    Mount, MountAttributes, NO_DEV, NO_EXEC, NO_SUID, NewFileSystem, READ_ONLY,
};

/// Longer than any real list of a process's cgroups.
const MAX_TABLE: u64 = 1 << 20;

/// Puts this process, which has one thread, into every one of `directories`.
///
/// Before it moves a process the kernel stops all forks of the machine and waits for a grace period of RCU, 5 to 25 ms.
/// It moves the calling thread without that: cgroup v1 has a file for threads. With cgroup v2 the process was made in its cgroup
/// where the kernel can (docs/adr/0064).
pub(in crate::runtime) fn enter(directories: &[PathBuf]) -> Result<(), InitError> {
    let own = own_unified(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    for directory in directories.iter().filter(|directory| !own.contains(directory)) {
        let open = |name| File::options().write(true).open(directory.join(name));
        let file = open("tasks").or_else(|_| open("cgroup.procs"));
        // 0 stands for the writer.
        file.and_then(|mut file| file.write_all(b"0")).doing("enter cgroup", directory.display())?;
    }
    Ok(())
}

/// The directory of version 2 in a process's table of cgroups, at both places where it may be mounted.
fn own_unified(table: &str) -> Vec<PathBuf> {
    let own = table.lines().find_map(|line| line.strip_prefix("0::")).map(|path| clean(Path::new(path)));
    let Some(own) = own.as_ref().and_then(|own| own.strip_prefix("/").ok()) else { return Vec::new() };
    // Beside version 1 it is mounted below.
    ["", "unified"].map(|mount| Path::new(MOUNT_POINT).join(mount).join(own)).into()
}

/// A hierarchy and where this process is in it.
#[derive(Debug, PartialEq, Eq)]
struct Membership {
    /// Empty for cgroup v2.
    controllers: Vec<String>,
    path: PathBuf,
}

fn memberships(table: &str) -> Vec<Membership> {
    let line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let controllers = controllers.split(',').filter(|name| !name.is_empty());
        Some(Membership {
            controllers: controllers.map(str::to_owned).collect(),
            path: clean(Path::new(path)),
        })
    };
    table.lines().filter_map(line).collect()
}

/// Shows this process's own cgroups at `target`, as runc does: with cgroup v2 its directory, with v1 a
/// directory per hierarchy. These are binds of directories: nothing above is reachable, with or without a
/// cgroup namespace. Returns what has to be made read-only at the end.
pub(in crate::runtime) fn mount(
    target: &OwnedFd,
    attributes: MountAttributes,
) -> Result<Vec<(Mount, MountAttributes)>, InitError> {
    let mut table = String::new();
    let file = File::open("/proc/self/cgroup").doing("read", "/proc/self/cgroup")?;
    file.take(MAX_TABLE).read_to_string(&mut table).doing("read", "/proc/self/cgroup")?;
    let memberships = memberships(&table);
    let base = Path::new(MOUNT_POINT);
    if let [Membership { controllers, path }] = memberships.as_slice()
        && controllers.is_empty()
    {
        let own = base.join(path.strip_prefix("/").unwrap_or(path));
        let copy = Mount::copy_of(&own, false).doing("show cgroup", own.display())?;
        copy.attach(target.as_fd()).doing("mount", "the cgroup")?;
        copy.set_attributes(attributes, false).doing("set options of", "the cgroup")?;
        return Ok(Vec::new());
    }
    let new = NewFileSystem::open("tmpfs").doing("make", "a tmpfs")?;
    new.set("mode", b"755").doing("make", "a tmpfs")?;
    let top = new.mount(NO_SUID | NO_DEV | NO_EXEC).doing("make", "a tmpfs")?;
    top.attach(target.as_fd()).doing("mount", "the cgroups")?;
    let inside = ContainerRoot::below(top.as_fd()).doing("open", "the cgroups")?;
    for Membership { controllers, path } in memberships.iter().filter(|one| !one.controllers.is_empty()) {
        let joined = controllers.join(",");
        let name = joined.strip_prefix("name=").unwrap_or(&joined);
        let own = base.join(name).join(path.strip_prefix("/").unwrap_or(path));
        // A hierarchy that is mounted at another place than the usual one is not shown.
        let Ok(copy) = Mount::copy_of(&own, false) else { continue };
        let point = inside.ensure_dir(Path::new(name), 0o755).doing("make", name)?;
        copy.attach(point.as_fd()).doing("mount cgroup", name)?;
        copy.set_attributes(attributes, false).doing("set options of cgroup", name)?;
        for alone in controllers.iter().filter(|_| controllers.len() > 1) {
            inside.ensure_link(Path::new(alone), name).doing("make", alone)?;
        }
    }
    let read_only = MountAttributes { set: attributes.set & READ_ONLY, clear: 0 };
    Ok(vec![(top, read_only)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn the_only_thread_enters_where_there_is_a_file_for_threads() {
        let tree = TempDir::new();
        let [v1, v2] = ["v1", "v2"].map(|name| tree.join(name));
        for (directory, files) in [(&v1, &["tasks", "cgroup.procs"][..]), (&v2, &["cgroup.procs"])] {
            std::fs::create_dir(directory).unwrap();
            for file in files {
                std::fs::write(directory.join(file), "").unwrap();
            }
        }
        enter(&[v1.clone(), v2.clone()]).unwrap();
        let read = |file: PathBuf| std::fs::read_to_string(file).unwrap();
        assert_eq!(read(v1.join("tasks")), "0");
        assert_eq!(read(v1.join("cgroup.procs")), "", "a move of the whole process waits");
        assert_eq!(read(v2.join("cgroup.procs")), "0");
        let missing = tree.join("missing");
        let error = enter(std::slice::from_ref(&missing)).unwrap_err();
        assert!(error.chain().contains(&*missing.to_string_lossy()), "{}", error.chain());
    }

    #[test]
    fn its_own_cgroup_of_version_2_is_known() {
        let table = "9:name=systemd:/a\n0::/pods/b\n";
        for (path, expected) in [
            ("/sys/fs/cgroup/pods/b", true),
            ("/sys/fs/cgroup/unified/pods/b", true),
            ("/sys/fs/cgroup/pids/pods/b", false),
            ("/sys/fs/cgroup/unified/pods", false),
            ("/pods/b", false),
        ] {
            assert_eq!(own_unified(table).contains(&PathBuf::from(path)), expected, "{path}");
        }
        assert!(own_unified("1:cpu:/a\n").is_empty());
    }

    #[test]
    fn lines_of_both_versions_are_understood_and_no_path_leads_up() {
        let table = "9:name=systemd:/a\n4:cpu,cpuacct:/b:c\n2:memory:/../../etc\n0::/d\nrubbish\n";
        let shown: Vec<_> = memberships(table)
            .into_iter()
            .map(|one| (one.controllers.join("+"), one.path.display().to_string()))
            .collect();
        let expected = [("name=systemd", "/a"), ("cpu+cpuacct", "/b:c"), ("memory", "/etc"), ("", "/d")];
        assert_eq!(shown, expected.map(|(controllers, path)| (controllers.to_owned(), path.to_owned())));
    }
}
