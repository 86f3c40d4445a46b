//! `agent snapshot`: copies of a claim's data that share its blocks, on file systems that can (reflinks).
//!
//! Owns the directory of snapshots. It is below the root directory, on the same file system as the claims. A snapshot
//! becomes visible under its name when it is complete.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::time::{Duration, SystemTime};

use super::args::{CliOptions, Command, UsageError};
use super::claims::{Refusal, Size, check_mounts, check_names, check_unused, remove, root_dir};
use super::table::render;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, offline, print};
use crate::cmd::help;
use crate::model::names;
use crate::model::objects::{ObjectKey, ObjectKind, SNAPSHOTS_DIR, VOLUMES_DIR};
use crate::platform::logging::chain;
use crate::platform::sys::dir::{Handle, Mounts, exchange};
use crate::platform::sys::layer;
use crate::pod::volume::quota;
use crate::serve::server::AgentReport;
use crate::serve::server::report::ObjectDetail;

/// A copy that is not complete, or one that is being removed: it is no valid name of a snapshot.
const PARTIAL_PREFIX: &str = ".partial-";

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

    fn create(&self, may_copy: bool) -> Result<String, Refusal> {
        self.check_data(
            &self.data,
            &format!("claim {:?} has no data: {} does not exist", self.claim.name, self.data.display()),
        )?;
        if self.snapshot.symlink_metadata().is_ok() {
            return Err(self.refuse("it exists already"));
        }
        self.check_sharing(&self.data, may_copy)?;
        let size = replace(&self.data, &self.snapshot)
            .map_err(|error| io_refusal("copy to", &self.snapshot, error))?;
        Ok(format!(
            "snapshot {:?} of claim {:?}: {} files, {} bytes\n",
            self.name, self.claim.name, size.files, size.bytes
        ))
    }

    fn restore(&self, report: &AgentReport, may_copy: bool) -> Result<String, Refusal> {
        self.check_data(&self.snapshot, "it does not exist; \"agent snapshot list\" shows those that do")?;
        check_unused(&self.claim, report)?;
        check_mounts(&self.claim, &self.root, &self.data)?;
        self.check_sharing(&self.snapshot, may_copy)?;
        replace(&self.snapshot, &self.data).map_err(|error| io_refusal("restore to", &self.data, error))?;
        Ok(format!("claim {:?} has the data of snapshot {:?}\n", self.claim.name, self.name))
    }

    fn delete(&self) -> Result<String, Refusal> {
        self.check_data(&self.snapshot, "it does not exist; \"agent snapshot list\" shows those that do")?;
        let failed = |error| io_refusal("delete", &self.snapshot, error);
        let aside = beside(&self.snapshot);
        remove(&aside).map_err(failed)?;
        fs::rename(&self.snapshot, &aside).map_err(failed)?;
        remove(&aside).map_err(failed)?;
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

/// Copies the tree `from` and puts the copy in place of `to`: after a crash there is the old tree or the new one.
fn replace(from: &Path, to: &Path) -> io::Result<Size> {
    let partial = beside(to);
    if let Some(parent) = to.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(parent)?;
    }
    remove(&partial)?;
    let size = copy_tree(from, &partial)?;
    let is_there = to.symlink_metadata().is_ok();
    if is_there {
        quota::share(to, &partial)?;
    }
    layer::LayerDir::open(&partial)?.sync_file_system()?;
    if is_there {
        exchange(&partial, to)?;
        remove(&partial)?;
    } else {
        fs::rename(&partial, to)?;
    }
    Ok(size)
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
            root.below(&relative, Mounts::Stay)?
        };
        let target = to.join(&relative);
        DirBuilder::new().mode(0o700).create(&target)?;
        for name in here.names()? {
            let name = name?;
            let (node, below) = (here.entry(&name)?, relative.join(&name));
            let (metadata, target) = (node.metadata()?, to.join(&below));
            let kind = metadata.file_type();
            if kind.is_dir() {
                directories.push(below);
            } else if kind.is_symlink() {
                symlink(fs::read_link(descriptor(&here).join(&name))?, &target)?;
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
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    /// A claim `data` of the default namespace with some files.
    fn claim(root: &Path) -> PathBuf {
        let data = root.join(VOLUMES_DIR).join("default/data");
        fs::create_dir_all(data.join("deep")).unwrap();
        fs::write(data.join("deep/file"), "one").unwrap();
        fs::hard_link(data.join("deep/file"), data.join("second")).unwrap();
        symlink("/etc/shadow", data.join("link")).unwrap();
        fs::set_permissions(data.join("deep/file"), Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(data.join("deep"), Permissions::from_mode(0o1777)).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        File::open(data.join("deep")).unwrap().set_modified(time).unwrap();
        data
    }

    fn places(root: &Path, name: &str) -> Places {
        Places::new(root, "default", "data", name).unwrap()
    }

    #[test]
    fn snapshot_keeps_what_the_claim_had_and_gives_it_back() {
        let root = TempDir::new();
        let data = claim(&root);
        let said = places(&root, "first").create(true).unwrap();
        assert_eq!(said, "snapshot \"first\" of claim \"data\": 1 files, 3 bytes\n");
        fs::write(data.join("deep/file"), "changed").unwrap();
        fs::write(data.join("new"), "new").unwrap();
        assert!(list(&root, "default", None).contains("first"), "{}", list(&root, "default", None));

        places(&root, "first").restore(&AgentReport::default(), true).unwrap();
        assert_eq!(fs::read_to_string(data.join("deep/file")).unwrap(), "one");
        assert!(!data.join("new").exists());
        assert_eq!(fs::read_link(data.join("link")).unwrap(), Path::new("/etc/shadow"));
        let of = |name: &str| fs::metadata(data.join(name)).unwrap();
        assert_eq!(of("second").ino(), of("deep/file").ino());
        assert_eq!((of("deep/file").mode() & 0o7777, of("deep").mode() & 0o7777), (0o4751, 0o1777));
        assert_eq!(of("deep").mtime(), 1000);
        let left = |directory: &Path| fs::read_dir(directory).unwrap().count();
        assert_eq!(left(data.parent().unwrap()), 1, "nothing partial stays");

        places(&root, "first").delete().unwrap();
        assert_eq!(list(&root, "default", Some("data")), "No snapshots found.\n");
        assert_eq!(left(&root.join(SNAPSHOTS_DIR)), 0);
    }

    #[test]
    fn an_interrupted_copy_is_replaced_and_never_listed() {
        let root = TempDir::new();
        claim(&root);
        let partial = root.join(SNAPSHOTS_DIR).join("default/data/.partial-first");
        fs::create_dir_all(&partial).unwrap();
        fs::write(partial.join("half"), "").unwrap();
        assert_eq!(list(&root, "default", None), "No snapshots found.\n");
        places(&root, "first").create(true).unwrap();
        assert!(!root.join(SNAPSHOTS_DIR).join("default/data/first/half").exists());
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_the_reason() {
        let root = TempDir::new();
        let data = claim(&root);
        let refused = |done: Result<String, Refusal>| done.unwrap_err().to_string();
        let none = |name: &str| Places::new(&root, "default", name, "x").map(|_| String::new());
        assert!(refused(none("../x")).contains("../x"));
        assert!(Places::new(&root, "default", "data", "No").is_err());
        assert!(
            refused(places(&root, "a").restore(&AgentReport::default(), true)).contains("does not exist")
        );
        places(&root, "a").create(true).unwrap();
        assert!(refused(places(&root, "a").create(true)).contains("exists already"));
        if !layer::shares_blocks(&data).unwrap() {
            assert!(
                refused(places(&root, "b").create(false)).contains("use --copy to copy 3 files"),
                "blocks are not shared"
            );
        }
        fs::remove_dir_all(&data).unwrap();
        assert!(refused(places(&root, "c").create(true)).contains("has no data"));
    }
}
