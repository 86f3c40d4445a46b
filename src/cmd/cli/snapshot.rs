//! `agent snapshot`: copies of a claim's data that share its blocks, on file systems that can (reflinks).
//!
//! Owns the directory of snapshots. It is below the root directory, on the same file system as the claims. A snapshot
//! becomes visible under its name when it is complete. One command at a time works on a claim; it removes what
//! an interrupted one has left.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use super::args::{CliOptions, Command, UsageError};
use super::claims::{
    Refusal, Size, check_mounts, check_mounts_if, check_names, check_unused, remove, root_dir,
};
use super::table::render;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, offline, print};
use crate::cmd::help;
use crate::model::names;
use crate::model::objects::{ObjectKey, ObjectKind, SNAPSHOTS_DIR, VOLUMES_DIR};
use crate::platform::logging::chain;
use crate::platform::sys::dir::{Handle, Mounts, exchange, make_dir};
use crate::platform::sys::layer;
use crate::platform::sys::lock::{ByteLock, try_acquire_byte};
use crate::pod::volume::quota;
use crate::serve::server::AgentReport;
use crate::serve::server::report::ObjectDetail;

/// A copy that is not complete, or one that is being removed: it is no valid name of a snapshot.
const PARTIAL_PREFIX: &str = ".partial-";
/// Beside the namespaces: one byte for each claim.
const LOCK_FILE: &str = ".lock";

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let may_copy = arguments.iter().any(|argument| argument == "--copy");
    let others: Vec<String> = arguments.iter().filter(|argument| *argument != "--copy").cloned().collect();
    let options = CliOptions::parse(Command::Delete, &others).map_err(CliError::Usage)?;
    if options.help {
        print(environment, &help::text("snapshot"))?;
        return Ok(EXIT_OK);
    }
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    let (verb, claim, name) = match words.as_slice() {
        ["list"] => ("list", None, None),
        [verb @ ("list" | "create"), claim] => (*verb, Some(*claim), None),
        [verb @ ("create" | "restore" | "delete"), claim, name] => (*verb, Some(*claim), Some(*name)),
        _ => {
            let message =
                "expected list [CLAIM], create CLAIM [NAME], restore CLAIM NAME or delete CLAIM NAME"
                    .to_owned();
            return Err(CliError::Usage(UsageError::Option { message }));
        }
    };
    let report = offline::report(&options, ObjectDetail::Hidden, environment)?;
    let root = root_dir(&report).unwrap_or_else(|| options.root_dir.clone());
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let places = || {
        let made = format!("at-{}", environment.now.as_nanos() / 1_000_000_000);
        Places::new(&root, namespace, claim.unwrap_or_default(), name.unwrap_or(&made))
    };
    let done = match verb {
        "list" => Ok(list(&root, namespace, claim)),
        "create" => places().and_then(|places| places.create(may_copy)),
        "restore" => places().and_then(|places| places.restore(&report, may_copy)),
        _ => places().and_then(|places| places.delete()),
    };
    match done {
        Ok(text) => {
            print(environment, &text)?;
            Ok(EXIT_OK)
        }
        Err(refusal) => {
            let _ = writeln!(environment.err, "error: {}", chain(&refusal));
            Ok(EXIT_FAILED)
        }
    }
}

/// A claim, a snapshot of it, and where they are.
struct Places {
    claim: ObjectKey,
    name: String,
    root: PathBuf,
    data: PathBuf,
    snapshot: PathBuf,
}

impl Places {
    fn new(root: &Path, namespace: &str, claim: &str, name: &str) -> Result<Self, Refusal> {
        let key = ObjectKey {
            kind: ObjectKind::PersistentVolumeClaim,
            namespace: namespace.to_owned(),
            name: claim.strip_prefix("pvc/").unwrap_or(claim).to_owned(),
        };
        check_names(&key)?;
        if let Some(why) = names::dns_subdomain(name).into_iter().next() {
            return Err(Refusal::Snapshot { name: name.to_owned(), why });
        }
        Ok(Self {
            data: root.join(VOLUMES_DIR).join(namespace).join(&key.name),
            snapshot: root.join(SNAPSHOTS_DIR).join(namespace).join(&key.name).join(name),
            root: root.to_owned(),
            name: name.to_owned(),
            claim: key,
        })
    }

    fn refuse(&self, why: impl Into<String>) -> Refusal {
        Refusal::Snapshot { name: self.name.clone(), why: why.into() }
    }

    /// One command at a time works on a claim. What an interrupted one has left goes.
    fn hold(&self) -> Result<ByteLock, Refusal> {
        let directory = self.root.join(SNAPSHOTS_DIR);
        make_dir(&directory, 0o750).map_err(|error| io_refusal("create", &directory, error))?;
        let mut hasher = DefaultHasher::new();
        (&self.claim.namespace, &self.claim.name).hash(&mut hasher);
        let byte = i32::try_from(hasher.finish() >> 33).unwrap_or_default();
        let lock = try_acquire_byte(&directory.join(LOCK_FILE), byte);
        let lock = lock.map_err(|error| self.refuse(chain(&error)))?;
        let lock = lock.ok_or_else(|| self.refuse("another command works on the claim's snapshots"))?;
        let entries = self.snapshot.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
        let is_partial = |name: &OsStr| name.as_encoded_bytes().starts_with(PARTIAL_PREFIX.as_bytes());
        let left = entries.filter(|entry| is_partial(&entry.file_name())).map(|entry| entry.path());
        left.chain([beside(&self.data)]).try_for_each(|tree| self.discard(&tree))?;
        Ok(lock)
    }

    /// No pod has this very tree, and nothing is mounted below it.
    fn check_free(&self, tree: &Path) -> Result<(), Refusal> {
        let identity = |path: &Path| fs::metadata(path).map(|node| (node.dev(), node.ino())).ok();
        let own = identity(tree);
        check_mounts_if(&self.claim, &self.root, tree, &|point| own.is_some() && identity(point) == own)
    }

    fn discard(&self, tree: &Path) -> Result<(), Refusal> {
        self.check_free(tree)?;
        remove(tree).map_err(|error| io_refusal("delete", tree, error))
    }

    fn create(&self, may_copy: bool) -> Result<String, Refusal> {
        let _held = self.hold()?;
        self.check_data(
            &self.data,
            &format!("claim {:?} has no data: {} does not exist", self.claim.name, self.data.display()),
        )?;
        if self.snapshot.symlink_metadata().is_ok() {
            return Err(self.refuse("it exists already"));
        }
        self.check_sharing(&self.data, may_copy)?;
        let partial = beside(&self.snapshot);
        let copied = copy(&self.data, &partial, None).and_then(|size| {
            fs::rename(&partial, &self.snapshot)?;
            Ok(size)
        });
        let size = copied.map_err(|error| {
            let _ = self.discard(&partial);
            io_refusal("copy to", &self.snapshot, error)
        })?;
        Ok(format!(
            "snapshot {:?} of claim {:?}: {} files, {} bytes\n",
            self.name, self.claim.name, size.files, size.bytes
        ))
    }

    fn restore(&self, report: &AgentReport, may_copy: bool) -> Result<String, Refusal> {
        let _held = self.hold()?;
        self.check_data(&self.snapshot, "it does not exist; \"agent snapshot list\" shows those that do")?;
        check_unused(&self.claim, report)?;
        check_mounts(&self.claim, &self.root, &self.data)?;
        self.check_sharing(&self.snapshot, may_copy)?;
        let partial = beside(&self.data);
        let copied = copy(&self.snapshot, &partial, Some(&self.data));
        let restored = copied.map_err(|error| self.not_restored(error)).and_then(|_| self.swap(&partial));
        // The data that was there, or a copy that could not take its place.
        let removed = self.discard(&partial);
        restored.and(removed)?;
        Ok(format!("claim {:?} has the data of snapshot {:?}\n", self.claim.name, self.name))
    }

    fn not_restored(&self, error: io::Error) -> Refusal {
        io_refusal("restore to", &self.data, error)
    }

    /// Puts a copy in the place of the data, which is then where the copy was.
    fn swap(&self, copy: &Path) -> Result<(), Refusal> {
        check_mounts(&self.claim, &self.root, &self.data)?;
        if self.data.symlink_metadata().is_err() {
            return fs::rename(copy, &self.data).map_err(|error| self.not_restored(error));
        }
        exchange(copy, &self.data).map_err(|error| self.not_restored(error))?;
        self.settle(copy)
    }

    /// A pod that has started meanwhile keeps the data that it has: if these are the `old` ones, they come back.
    fn settle(&self, old: &Path) -> Result<(), Refusal> {
        let Err(why) = self.check_free(old) else { return Ok(()) };
        exchange(old, &self.data).map_err(|error| self.not_restored(error))?;
        Err(self.refuse(format!("not restored: {}", chain(&why))))
    }

    fn delete(&self) -> Result<String, Refusal> {
        let _held = self.hold()?;
        self.check_data(&self.snapshot, "it does not exist; \"agent snapshot list\" shows those that do")?;
        let failed = |error| io_refusal("delete", &self.snapshot, error);
        let aside = beside(&self.snapshot);
        fs::rename(&self.snapshot, &aside).map_err(failed)?;
        self.discard(&aside)?;
        // They fail when other snapshots are in there.
        for directory in self.snapshot.ancestors().skip(1).take(2) {
            let _ = fs::remove_dir(directory);
        }
        Ok(format!("snapshot {:?} of claim {:?} deleted\n", self.name, self.claim.name))
    }

    fn check_data(&self, path: &Path, missing: &str) -> Result<(), Refusal> {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => Ok(()),
            Ok(_) => Err(self.refuse(format!("{} is not a directory", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.refuse(missing)),
            Err(error) => Err(io_refusal("read", path, error)),
        }
    }

    fn check_sharing(&self, from: &Path, may_copy: bool) -> Result<(), Refusal> {
        let shares =
            layer::shares_blocks(from).map_err(|error| io_refusal("read the file system of", from, error))?;
        if shares || may_copy {
            return Ok(());
        }
        let mut size = Size::default();
        size.add(from);
        Err(self.refuse(format!(
            "the file system of {} cannot share blocks (Btrfs and XFS can): use --copy to copy {} files, {} bytes",
            from.display(),
            size.files,
            size.bytes
        )))
    }
}

fn io_refusal(action: &'static str, path: &Path, source: io::Error) -> Refusal {
    Refusal::Io { action, path: path.to_owned(), source }
}

fn list(root: &Path, namespace: &str, only: Option<&str>) -> String {
    let directory = root.join(SNAPSHOTS_DIR).join(namespace);
    let mut rows = Vec::new();
    for claim in super::claims::entries(&directory) {
        if only.is_some_and(|only| only != claim) {
            continue;
        }
        for name in super::claims::entries(&directory.join(&claim)) {
            let mut size = Size::default();
            size.add(&directory.join(&claim).join(&name));
            let (files, bytes) = (size.files.to_string(), size.bytes.to_string());
            rows.push([claim.clone(), name, files, bytes].to_vec());
        }
    }
    if rows.is_empty() {
        return "No snapshots found.\n".to_owned();
    }
    rows.insert(0, ["CLAIM", "SNAPSHOT", "FILES", "BYTES"].map(str::to_owned).to_vec());
    render(&rows)
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!("{PARTIAL_PREFIX}{name}"))
}

/// Copies the tree `from` to `to`, which is to take the place of `old`, and waits until it is on the disk.
fn copy(from: &Path, to: &Path, old: Option<&Path>) -> io::Result<Size> {
    if let Some(parent) = to.parent() {
        make_dir(parent, 0o750)?;
    }
    let size = copy_tree(from, to)?;
    if let Some(old) = old.filter(|old| old.symlink_metadata().is_ok()) {
        quota::share(old, to)?;
    }
    layer::LayerDir::open(to)?.sync_file_system()?;
    Ok(size)
}

/// What has gone meanwhile is `None`.
fn present<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Copies directories, files and links with owner, mode and time. Files share their blocks where the file system can: the
/// kernel's copy does that by itself. Pods may change the tree meanwhile: no link of theirs is followed.
fn copy_tree(from: &Path, to: &Path) -> io::Result<Size> {
    let root = Handle::open(from)?;
    let mut size = Size::default();
    // The first name of a file with several, by device and inode.
    let mut linked: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut directories = vec![PathBuf::new()];
    let mut done = Vec::new();
    while let Some(relative) = directories.pop() {
        let here = if relative.as_os_str().is_empty() {
            root.duplicate()?
        } else {
            let Some(here) = present(root.below(&relative, Mounts::Stay))? else { continue };
            here
        };
        let target = to.join(&relative);
        DirBuilder::new().mode(0o700).create(&target)?;
        for name in here.names()? {
            let name = name?;
            let Some(node) = present(here.entry(&name))? else { continue };
            let (metadata, below) = (node.metadata()?, relative.join(&name));
            let target = to.join(&below);
            let kind = metadata.file_type();
            if kind.is_dir() {
                directories.push(below);
            } else if kind.is_symlink() {
                let Some(link) = present(fs::read_link(descriptor(&here).join(&name)))? else { continue };
                symlink(link, &target)?;
                lchown(&target, Some(metadata.uid()), Some(metadata.gid()))?;
            } else if kind.is_file() {
                let first = linked.get(&(metadata.dev(), metadata.ino())).filter(|_| metadata.nlink() > 1);
                if let Some(first) = first {
                    fs::hard_link(first, &target)?;
                    continue;
                }
                copy_file(&node, &metadata, &target)?;
                size.files += 1;
                size.bytes += metadata.len();
                linked.insert((metadata.dev(), metadata.ino()), target);
            }
        }
        done.push((here.metadata()?, target));
    }
    // From below: what is put into a directory changes its time.
    for (metadata, target) in done.into_iter().rev() {
        adopt(&metadata, &target, &File::open(&target)?)?;
    }
    Ok(size)
}

/// Leads to the node of the descriptor, whatever its name is by now.
fn descriptor(node: &Handle) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", node.as_fd().as_raw_fd()))
}

fn copy_file(node: &Handle, metadata: &Metadata, target: &Path) -> io::Result<()> {
    let mut from = File::open(descriptor(node))?;
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target)?;
    io::copy(&mut from, &mut to)?;
    adopt(metadata, target, &to)
}

/// The owner first: changing it clears setuid.
fn adopt(metadata: &Metadata, path: &Path, file: &File) -> io::Result<()> {
    chown(path, Some(metadata.uid()), Some(metadata.gid()))?;
    fs::set_permissions(path, Permissions::from_mode(metadata.mode() & 0o7777))?;
    file.set_modified(metadata.modified()?)
}

#[cfg(test)]
mod tests;
