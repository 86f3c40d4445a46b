//! The root file system of a container and everything mounted into it, in a mount namespace that no other
//! process sees.
//!
//! Expected flow: open the sources of binds first, while mounts still propagate as on the node; then stop
//! propagation to the node; mount the overlay; have the kernel resolve every target as the container would,
//! make it if it is missing, and mount by descriptor; make mounts read-only at the end.
//!
//! Guarantees: nothing outside the root is made, changed or mounted over, whatever links an image or a volume
//! contains, and even if another process changes them meanwhile. No path is resolved twice.
//!
//! Owns mounts of the container.

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::cgroups;
use super::error::{Doing, InitError};
use super::options::MountOptions;
use crate::platform::sys::container_root::{
    ContainerRoot, FileSystem, clean, facts, file_system, point_at, set_owner,
};
use crate::platform::sys::mount_tree::{
    Mount, MountAttributes, NO_DEV, NO_EXEC, NO_SUID, NewFileSystem, Propagation, READ_ONLY, enter_root,
    is_unsupported, mount_overlay, set_propagation,
};
use crate::platform::sys::node::is_older_than;
use crate::runtime::embedded::layout::ContainerDir;
use crate::runtime::embedded::spec::{Bundle, OciMount, Overlay};

/// Files of procfs that something may be mounted over, as runc allows it: system containers show their own
/// figures there.
const COVERABLE: [&str; 11] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
    "/proc/version",
];

/// File systems whose files get the container's label, as with runc. procfs, sysfs and queues get their
/// labels from the kernel.
const LABELLED: [&str; 2] = ["tmpfs", "devpts"];
/// The mount option that SELinux reads on every file system.
const CONTEXT: &str = "context";

/// The pod's users, as far as mounts care.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct Users<'a> {
    pub namespace: BorrowedFd<'a>,
    /// The node's user id of the pod's root.
    pub root_uid: u32,
    /// The node's group id of the pod's root.
    pub root_gid: u32,
}

/// A root file system under construction.
#[derive(Debug)]
pub(in crate::runtime) struct Rootfs {
    pub root: ContainerRoot,
    mount: Mount,
    /// Mounts that become read-only when everything in them was made.
    later: Vec<(Mount, MountAttributes)>,
    /// The procfs to mount when this process is not in the container's PID namespace.
    procfs: Option<Mount>,
    /// SELinux's context of all files of new file systems; empty for none.
    label: String,
}

/// A mount of the specification with its options parsed and its source open.
struct Planned<'a> {
    mount: &'a OciMount,
    options: MountOptions,
    source: Option<Mount>,
    destination: PathBuf,
}

impl Rootfs {
    /// Mounts everything. This process is in a mount namespace of its own that is still a plain copy of the
    /// node's. `procfs` is used for mounts of procfs; without it, the procfs of this process's PID namespace.
    pub(in crate::runtime) fn make(
        dir: &ContainerDir,
        bundle: &Bundle,
        users: Option<Users<'_>>,
        procfs: Option<Mount>,
    ) -> Result<Self, InitError> {
        let planned =
            bundle.oci.mounts.iter().map(|mount| plan(mount, users)).collect::<Result<Vec<_>, _>>()?;
        let shares = !matches!(bundle.oci.linux.rootfs_propagation.as_str(), "private" | "rprivate");
        let travel = if shares { Propagation::Slave } else { Propagation::Private };
        set_propagation(Path::new("/"), travel, true).doing("detach", "mounts of the node")?;
        let label = &bundle.oci.linux.mount_label;
        let mount = mount_root(&dir.rootfs(), &bundle.overlay, label, users)?;
        let root = ContainerRoot::open(&dir.rootfs()).doing("open", dir.rootfs().display())?;
        let mut rootfs = Self { root, mount, later: Vec::new(), procfs, label: label.clone() };
        for planned in planned {
            rootfs.mount(planned, users)?;
        }
        Ok(rootfs)
    }

    fn mount(&mut self, planned: Planned<'_>, users: Option<Users<'_>>) -> Result<(), InitError> {
        let Planned { mount, mut options, source, destination } = planned;
        let shown = destination.display().to_string();
        if let Some(source) = source {
            let is_dir = facts(source.as_fd()).doing("stat", &mount.source)?.is_directory;
            let target = if is_dir {
                self.root.ensure_dir(&destination, 0o755)
            } else {
                self.root.ensure_file(&destination)
            };
            let target = target.doing("create mount point", &shown)?;
            Self::refuse_procfs(&target, &destination)?;
            return Self::attach_bind(&source, &target, &options, &shown);
        }
        if mount.kind == "cgroup" || mount.kind == "cgroup2" {
            let target = self.root.ensure_dir(&destination, 0o755).doing("create mount point", &shown)?;
            Self::refuse_procfs(&target, &destination)?;
            return cgroups::mount(&target, options.attributes).map(|later| self.later.extend(later));
        }
        let existing = self.root.point_unfollowed(&destination).ok();
        let existing = existing.and_then(|fd| facts(fd.as_fd()).ok());
        let is_system = matches!(mount.kind.as_str(), "proc" | "sysfs");
        if is_system && existing.is_some_and(|facts| !facts.is_directory) {
            return Err(InitError::Invalid {
                field: format!("mounts: {} on {shown}", mount.kind),
                problem: "the mount point in the image must be a regular directory",
            });
        }
        let target = self.root.ensure_dir(&destination, 0o755).doing("create mount point", &shown)?;
        if is_system {
            // A link in a parent may have led into the procfs mounted before; a second procfs over its root
            // is allowed.
            let at = facts(target.as_fd()).doing("stat", &shown)?;
            if at.inode != 1 {
                Self::refuse_procfs(&target, &destination)?;
            }
        } else {
            Self::refuse_procfs(&target, &destination)?;
        }
        if !self.label.is_empty() && LABELLED.contains(&mount.kind.as_str()) {
            options.data.push((CONTEXT.to_owned(), Some(self.label.clone())));
        }
        if mount.kind == "tmpfs" {
            if let Some(facts) = existing.filter(|facts| facts.is_directory && !options.has("mode")) {
                options.data.push(("mode".to_owned(), Some(format!("{:o}", facts.mode))));
            }
            if let Some(users) = users.filter(|_| !options.has("uid")) {
                options.data.push(("uid".to_owned(), Some(users.root_uid.to_string())));
                options.data.push(("gid".to_owned(), Some(users.root_gid.to_string())));
            }
        }
        if let (Some(users), "devpts") = (users, mount.kind.as_str()) {
            for (name, value) in &mut options.data {
                if let (Some(value), "gid") = (value, name.as_str()) {
                    let gid = value.parse::<u32>().unwrap_or(0);
                    *value = users.root_gid.saturating_add(gid).to_string();
                }
            }
        }
        let procfs = self.procfs.take().filter(|_| mount.kind == "proc");
        let Some(procfs) = procfs else {
            let made = new_file_system(mount, &options)?;
            made.attach(target.as_fd()).doing("mount", &shown)?;
            return self.apply_attributes(made, &options, &shown);
        };
        procfs.attach(target.as_fd()).doing("mount", &shown)?;
        let attributes = (options.attributes.set | options.recursive.set) & !READ_ONLY;
        procfs
            .set_attributes(MountAttributes { set: attributes, clear: 0 }, false)
            .doing("set options of", &shown)?;
        // For another procfs mount, if there is one.
        self.procfs = Some(Mount::copy_of_descriptor(procfs.as_fd(), false).doing("copy", &shown)?);
        self.apply_attributes(procfs, &options, &shown)
    }

    fn attach_bind(
        source: &Mount,
        target: &OwnedFd,
        options: &MountOptions,
        shown: &str,
    ) -> Result<(), InitError> {
        source.attach(target.as_fd()).doing("mount", shown)?;
        if options.propagation.is_empty() {
            // A copy of a shared mount is in the peer group of its source: without this, what is mounted
            // inside it next would appear on the node, too.
            source.set_propagation(Propagation::Slave, true).doing("set propagation of", shown)?;
        }
        source.set_attributes(options.attributes, false).doing("set options of", shown)?;
        source.set_attributes(options.recursive, true).doing("set recursive options of", shown)?;
        for (propagation, recursive) in &options.propagation {
            source.set_propagation(*propagation, *recursive).doing("set propagation of", shown)?;
        }
        Ok(())
    }

    /// Sets the attributes of a new file system; those that would prevent mounts below it are set at the end.
    fn apply_attributes(
        &mut self,
        made: Mount,
        options: &MountOptions,
        shown: &str,
    ) -> Result<(), InitError> {
        for (propagation, recursive) in &options.propagation {
            made.set_propagation(*propagation, *recursive).doing("set propagation of", shown)?;
        }
        if options.attributes.set & READ_ONLY != 0 || options.recursive.set & READ_ONLY != 0 {
            self.later.push((made, MountAttributes { set: READ_ONLY, clear: 0 }));
        }
        Ok(())
    }

    /// A volume, or a link in it, must not cover procfs or fill in parts of it: masks and labels depend on
    /// its content.
    fn refuse_procfs(target: &OwnedFd, destination: &Path) -> Result<(), InitError> {
        let shown = destination.display().to_string();
        let is_proc = file_system(target.as_fd()).doing("stat", &shown)? == FileSystem::Proc;
        if !is_proc || COVERABLE.iter().any(|path| Path::new(path) == destination) {
            return Ok(());
        }
        Err(InitError::Invalid {
            field: format!("mounts: {shown}"),
            problem: "mounts inside /proc are not allowed",
        })
    }

    /// Hides `masked` and makes `readonly` read-only. Paths that do not exist need neither.
    pub(in crate::runtime) fn restrict(
        &self,
        masked: &[String],
        readonly: &[String],
    ) -> Result<(), InitError> {
        for path in readonly {
            let Some(target) = self.find(path)? else { continue };
            let copy = Mount::copy_of_descriptor(target.as_fd(), true).doing("copy", path)?;
            copy.attach(target.as_fd()).doing("make read-only", path)?;
            let attributes = MountAttributes { set: READ_ONLY, clear: 0 };
            match copy.set_attributes(attributes, true) {
                Err(error) if is_unsupported(&error) => copy.set_attributes(attributes, false),
                other => other,
            }
            .doing("make read-only", path)?;
        }
        if masked.is_empty() {
            return Ok(());
        }
        // The node's own device, and checked: the container's /dev/null may be anything.
        let null = point_at(Path::new("/dev/null")).doing("open", "/dev/null")?;
        if facts(null.as_fd()).doing("stat", "/dev/null")?.character_device != Some((1, 3)) {
            return Err(InitError::Invalid {
                field: "/dev/null".to_owned(),
                problem: "not the null device: cannot mask paths with it",
            });
        }
        let mut empty: Option<Mount> = None;
        for path in masked {
            let Some(target) = self.find(path)? else { continue };
            if !facts(target.as_fd()).doing("stat", path)?.is_directory {
                cover(&target, copy_for(&null, path)?, path)?;
                continue;
            }
            // The first one is the original: before Linux 6.15 a mount that is attached nowhere cannot be
            // copied.
            let next = match &empty {
                Some(empty) => copy_for(empty, path)?,
                None => empty_directory().doing("make", "an empty directory")?,
            };
            empty = Some(cover(&target, next, path)?);
        }
        Ok(())
    }

    fn find(&self, path: &str) -> Result<Option<OwnedFd>, InitError> {
        match self.root.point(&clean(Path::new(path))) {
            Ok(target) => Ok(Some(target)),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error).doing("open", path),
        }
    }

    /// Makes it the root of this process and its mount namespace, and unmounts the node's file systems there.
    pub(in crate::runtime) fn enter(self, readonly: bool, propagation: &str) -> Result<(), InitError> {
        for (mount, attributes) in &self.later {
            mount.set_attributes(*attributes, false).doing("make read-only", "a mount")?;
        }
        if readonly {
            let attributes = MountAttributes { set: READ_ONLY, clear: 0 };
            self.mount.set_attributes(attributes, false).doing("make read-only", "the root")?;
        }
        enter_root(self.mount.as_fd()).doing("enter", "the root file system")?;
        match propagation {
            "shared" | "rshared" => self.mount.set_propagation(Propagation::Shared, false),
            "unbindable" | "runbindable" => self.mount.set_propagation(Propagation::Unbindable, false),
            _ => Ok(()),
        }
        .doing("set propagation of", "the root")
    }
}

fn copy_for(source: &impl AsFd, path: &str) -> Result<Mount, InitError> {
    Mount::copy_of_descriptor(source.as_fd(), false).doing("create a mask of", path)
}

/// Mounts it over a path; from then on the path shows it.
fn cover(target: &OwnedFd, cover: Mount, path: &str) -> Result<Mount, InitError> {
    cover.attach(target.as_fd()).doing("mask", path)?;
    cover.set_attributes(MountAttributes { set: READ_ONLY, clear: 0 }, false).doing("mask", path)?;
    Ok(cover)
}

fn empty_directory() -> std::io::Result<Mount> {
    let new = NewFileSystem::open("tmpfs")?;
    new.set("mode", b"555")?;
    // The minimum that the kernel accepts: nothing can be created in it.
    new.set("nr_inodes", b"1")?;
    new.mount(READ_ONLY | NO_SUID | NO_DEV | NO_EXEC)
}

fn plan<'a>(mount: &'a OciMount, users: Option<Users<'_>>) -> Result<Planned<'a>, InitError> {
    let mut options = MountOptions::parse(&mount.options);
    if mount.kind == "bind" && options.bind.is_none() {
        options.bind = Some(false);
    }
    let invalid = |problem| InitError::Invalid { field: format!("mounts: {:?}", mount.destination), problem };
    if !mount.destination.starts_with('/') {
        return Err(invalid("the destination must be absolute"));
    }
    let destination = clean(Path::new(&mount.destination));
    if destination == Path::new("/") {
        return Err(invalid("mounts over the root are not allowed"));
    }
    let source = match options.bind {
        None => None,
        Some(recursive) => {
            let source = Mount::copy_of(Path::new(&mount.source), recursive).doing("bind", &mount.source)?;
            if let Some(below) = options.id_map {
                let users = users.ok_or_else(|| invalid("idmap without a user namespace"))?;
                source.map_ids(users.namespace, below).doing("map owners of", &mount.source)?;
            }
            Some(source)
        }
    };
    Ok(Planned { mount, options, source, destination })
}

fn new_file_system(mount: &OciMount, options: &MountOptions) -> Result<Mount, InitError> {
    let kind = mount.kind.as_str();
    let new = NewFileSystem::open(kind).doing("create file system", kind)?;
    if !mount.source.is_empty() {
        // Shown in the mount table.
        new.set("source", mount.source.as_bytes()).doing("name", kind)?;
    }
    for (name, value) in &options.data {
        match value {
            Some(value) => new.set(name, value.as_bytes()),
            // Every devpts is one of its own since Linux 4.7.
            None if kind == "devpts" && name == "newinstance" => Ok(()),
            None => new.set_flag(name),
        }
        .doing("set option", format_args!("{name} of {kind}"))?;
    }
    let attributes = (options.attributes.set | options.recursive.set) & !READ_ONLY;
    new.mount(attributes).doing("create file system", kind)
}

/// Mounts the layers at `target`, their files labelled unless `label` is empty. Attached, at a place without
/// propagation to the node.
pub(in crate::runtime) fn mount_root(
    target: &Path,
    overlay: &Overlay,
    label: &str,
    users: Option<Users<'_>>,
) -> Result<Mount, InitError> {
    std::fs::create_dir_all(target).doing("make", target.display())?;
    if overlay.lower.is_empty() {
        return Err(InitError::Invalid {
            field: "overlay.lower".to_owned(),
            problem: "the image has no layers",
        });
    }
    if let Some(users) = users {
        map_layers(overlay, users)?;
    }
    for dir in [&overlay.upper, &overlay.work].into_iter().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).doing("make", dir.display())?;
    }
    // An older kernel would log an error at every start of a container.
    if is_older_than(LAYER_BY_LAYER) {
        return mount_in_one_page(target, overlay, label);
    }
    let point = point_at(target).doing("open", target.display())?;
    match overlay_by_layer(overlay, label) {
        Ok(mount) => mount.attach(point.as_fd()).doing("mount overlay on", target.display()).map(|()| mount),
        Err(error) if is_unsupported(&error) => mount_in_one_page(target, overlay, label),
        Err(error) => Err(error).doing("mount overlay on", shown(target, label)),
    }
}

fn shown(target: &Path, label: &str) -> String {
    let with = if label.is_empty() { "" } else { " with SELinux context " };
    format!("{}{with}{label}", target.display())
}

/// The first kernel that takes layers one by one.
const LAYER_BY_LAYER: (u32, u32) = (6, 8);

/// Layers one by one, so that neither their number nor their names are limited by a page.
fn overlay_by_layer(overlay: &Overlay, label: &str) -> std::io::Result<Mount> {
    use std::os::unix::ffi::OsStrExt;
    let new = NewFileSystem::open("overlay")?;
    new.set("source", b"overlay")?;
    for layer in &overlay.lower {
        new.set("lowerdir+", layer.as_os_str().as_bytes())?;
    }
    if !overlay.upper.as_os_str().is_empty() {
        new.set("upperdir", overlay.upper.as_os_str().as_bytes())?;
        new.set("workdir", overlay.work.as_os_str().as_bytes())?;
    }
    if !label.is_empty() {
        new.set(CONTEXT, label.as_bytes())?;
    }
    new.mount(0)
}

/// All layers in one string of at most a page: their names are the numbers of descriptors, seen from
/// `/proc/self/fd`.
pub(super) fn mount_in_one_page(target: &Path, overlay: &Overlay, label: &str) -> Result<Mount, InitError> {
    use std::os::fd::AsRawFd;
    let open = |path: &PathBuf| point_at(path).doing("open layer", path.display());
    let lower = overlay.lower.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = lower.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let mut options = format!("lowerdir={}", names.join(":"));
    let mut writable = Vec::new();
    if !overlay.upper.as_os_str().is_empty() {
        for (name, path) in [("upperdir", &overlay.upper), ("workdir", &overlay.work)] {
            let fd = open(path)?;
            let _ = write!(options, ",{name}={}", fd.as_raw_fd());
            writable.push(fd);
        }
    }
    if !label.is_empty() {
        // Categories are separated by commas, as options are; a label has no quotes.
        let _ = write!(options, ",{CONTEXT}=\"{label}\"");
    }
    std::env::set_current_dir("/proc/self/fd").doing("enter", "/proc/self/fd")?;
    let mounted = mount_overlay(target, options.as_bytes()).doing("mount overlay on", shown(target, label));
    std::env::set_current_dir("/").doing("enter", "/")?;
    mounted?;
    Mount::at(target).doing("open", target.display())
}

/// Layers have owners of the node; in this mount namespace they are covered by idmapped copies that show the
/// pod's ids.
fn map_layers(overlay: &Overlay, users: Users<'_>) -> Result<(), InitError> {
    for layer in &overlay.lower {
        let copy = Mount::copy_of(layer, false).doing("copy layer", layer.display())?;
        copy.map_ids(users.namespace, false).doing("map owners of layer", layer.display())?;
        let point = point_at(layer).doing("open layer", layer.display())?;
        copy.attach(point.as_fd()).doing("mount layer", layer.display())?;
    }
    std::fs::create_dir_all(&overlay.upper).doing("make", overlay.upper.display())?;
    let upper = point_at(&overlay.upper).doing("open", overlay.upper.display())?;
    // This one is the container's root directory.
    if facts(upper.as_fd()).doing("stat", overlay.upper.display())?.uid == 0 {
        set_owner(upper.as_fd(), users.root_uid, users.root_gid).doing("give", overlay.upper.display())?;
    }
    Ok(())
}
