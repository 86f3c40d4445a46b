//! Which directories to watch so that no change of the manifests is missed: the directory itself, its parent,
//! those of symlinks on the way, and the nearest existing one while it is missing.
//!
//! Owns the watches and turns events into hints. Must not read manifests. The rescan is authoritative.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::platform::sys::inotify::{Change, InotifyError, InotifyEvent, Interest, WatchId, Watcher};

/// The kernel's own limit on symlinks in one path.
const MAX_SYMLINKS: usize = 40;
/// How often the path may change while the watches are set up, before they are left to the next rescan.
const ARM_ATTEMPTS: usize = 4;

/// What to rescan after the events so far.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Rescan everything and recreate the watches.
    pub everything: bool,
    /// Files that were closed after writing, replaced, or removed.
    pub names: BTreeSet<OsString>,
    pub removed: bool,
}

impl Hints {
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        !self.everything && self.names.is_empty()
    }
}

/// A directory and a name in it on which the configured path depends.
type Lookup = (PathBuf, OsString);

#[derive(Debug, Default)]
struct Role {
    directory: PathBuf,
    /// The names that matter; in the manifest directory, every name.
    names: BTreeSet<OsString>,
    is_manifest_directory: bool,
}

#[derive(Debug)]
pub(in crate::desired) struct PathWatch {
    watcher: Watcher,
    path: PathBuf,
    roles: BTreeMap<WatchId, Role>,
    /// Manifests are symlinks, which may lead through hidden names (`..data`).
    pub follow_hidden: bool,
    /// Files known to be open for writing: they may be incomplete.
    writing: BTreeSet<OsString>,
    events: Vec<InotifyEvent>,
}

impl PathWatch {
    pub(in crate::desired) fn new(path: &Path) -> Result<Self, InotifyError> {
        Ok(Self {
            watcher: Watcher::new()?,
            path: path.to_owned(),
            roles: BTreeMap::new(),
            follow_hidden: false,
            writing: BTreeSet::new(),
            events: Vec::new(),
        })
    }

    /// Sets the watches that the path needs now. Must be called before a scan, so that no change falls in
    /// between.
    pub(in crate::desired) fn arm(&mut self) -> Result<(), InotifyError> {
        let mut way = walk(&self.path);
        let mut result = Ok(());
        for _ in 0..ARM_ATTEMPTS {
            result = self.watch_components(&way);
            let again = walk(&self.path);
            if again == way {
                break;
            }
            way = again;
        }
        result
    }

    fn watch_components(&mut self, way: &Way) -> Result<(), InotifyError> {
        let mut roles: BTreeMap<WatchId, Role> = BTreeMap::new();
        let manifest_directory = way.end.as_deref().filter(|end| end.is_dir());
        if let Some(directory) = manifest_directory {
            let watch = self.watcher.watch(directory, Interest::Contents)?;
            let role =
                Role { directory: directory.to_owned(), is_manifest_directory: true, ..Role::default() };
            roles.insert(watch, role);
        }
        for (index, (directory, name)) in way.lookups.iter().enumerate() {
            if Some(directory.as_path()) == manifest_directory {
                continue;
            }
            // The last name may be a single manifest file, now or soon.
            let is_last = index + 1 == way.lookups.len();
            let interest =
                if is_last && manifest_directory.is_none() { Interest::Contents } else { Interest::Names };
            match self.watcher.watch(directory, interest) {
                Ok(watch) => {
                    let role = roles.entry(watch).or_default();
                    role.directory.clone_from(directory);
                    role.names.insert(name.clone());
                }
                Err(error) => {
                    log::debug!(err:% = error; "Failed to watch a parent directory of the manifests");
                }
            }
        }
        for old in self.roles.keys().filter(|old| !roles.contains_key(old)) {
            self.watcher.unwatch(*old);
        }
        let before = self.manifest_directory();
        self.roles = roles;
        if self.manifest_directory() != before {
            self.writing.clear();
        }
        Ok(())
    }

    fn manifest_directory(&self) -> Option<WatchId> {
        self.roles.iter().find(|(_, role)| role.is_manifest_directory).map(|(id, _)| *id)
    }

    /// True while a writer is known to have the file open.
    #[must_use]
    pub(in crate::desired) fn is_being_written(&self, name: &OsStr) -> bool {
        self.writing.contains(name)
    }

    /// No writer may delay a file forever.
    pub(in crate::desired) fn forget_writers(&mut self) {
        self.writing.clear();
    }

    /// Waits for events and adds their hints.
    pub(in crate::desired) async fn wait(&mut self, hints: &mut Hints) -> Result<(), InotifyError> {
        self.events.clear();
        self.watcher.read(&mut self.events).await?;
        self.translate(hints);
        Ok(())
    }

    /// Adds the hints of pending events; false when there were none.
    pub(in crate::desired) fn poll(&mut self, hints: &mut Hints) -> Result<bool, InotifyError> {
        self.events.clear();
        let any = self.watcher.drain(&mut self.events)?;
        self.translate(hints);
        Ok(any)
    }

    fn translate(&mut self, hints: &mut Hints) {
        for event in std::mem::take(&mut self.events) {
            match event {
                InotifyEvent::Overflow => hints.everything = true,
                InotifyEvent::Directory { watch, .. } => hints.everything |= self.roles.contains_key(&watch),
                InotifyEvent::Entry { watch, name, change } => {
                    self.translate_entry(watch, name, change, hints);
                }
            }
        }
    }

    fn translate_entry(&mut self, watch: WatchId, name: OsString, change: Change, hints: &mut Hints) {
        let Some(role) = self.roles.get(&watch) else { return };
        let unfinished = change == Change::Modified
            || change == Change::Created && !may_be_complete(&role.directory, &name);
        if !role.is_manifest_directory {
            hints.everything |= !unfinished && role.names.contains(&name);
        } else if unfinished {
            self.writing.insert(name);
        } else {
            if change != Change::Attributes {
                self.writing.remove(&name);
            }
            if name.as_encoded_bytes().starts_with(b".") {
                hints.everything |= self.follow_hidden && change != Change::Attributes;
            } else {
                hints.removed |= change == Change::Gone;
                hints.names.insert(name);
            }
        }
    }
}

/// A new symlink, hard link or directory is complete; a new file gets its content later, and an event when it
/// is closed.
fn may_be_complete(directory: &Path, name: &OsStr) -> bool {
    match fs::symlink_metadata(directory.join(name)) {
        Ok(metadata) => !metadata.is_file() || metadata.nlink() > 1,
        Err(_) => true,
    }
}

/// The current resolution of a path.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    /// The lookups on which it depends: every symlink, the last component, or the first missing one.
    lookups: Vec<Lookup>,
    /// The path without symlinks, when it exists.
    end: Option<PathBuf>,
}

fn walk(path: &Path) -> Way {
    let mut lookups: Vec<Lookup> = Vec::new();
    let mut pending: VecDeque<OsString> = VecDeque::new();
    let mut here = if path.is_absolute() { PathBuf::from("/") } else { PathBuf::from(".") };
    let mut symlinks = 0;
    push_components(&mut pending, path);
    while let Some(name) = pending.pop_front() {
        if name == ".." {
            if !here.pop() || here.as_os_str().is_empty() {
                here.push("..");
            }
            continue;
        }
        let next = here.join(&name);
        let Ok(metadata) = fs::symlink_metadata(&next) else {
            lookups.push((here, name));
            return Way { lookups, end: None };
        };
        if metadata.is_symlink() {
            lookups.push((here.clone(), name));
            symlinks += 1;
            let Ok(target) = fs::read_link(&next) else { return Way { lookups, end: None } };
            if symlinks > MAX_SYMLINKS {
                return Way { lookups, end: None };
            }
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            push_components(&mut pending, &target);
        } else {
            if pending.is_empty() {
                lookups.push((here, name));
            }
            here = next;
        }
    }
    Way { lookups, end: Some(here) }
}

fn push_components(pending: &mut VecDeque<OsString>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => pending.push_front(name.to_owned()),
            Component::ParentDir => pending.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::platform::testing::TempDir;

    fn names(way: &Way) -> Vec<&str> {
        way.lookups.iter().map(|(_, name)| name.to_str().unwrap()).collect()
    }

    #[test]
    fn the_way_names_every_symlink_and_the_last_component() {
        let root = TempDir::new();
        fs::create_dir_all(root.join("real/deep/m")).unwrap();
        symlink("real/../real/deep", root.join("link")).unwrap();
        let way = walk(&root.join("link/m"));
        assert_eq!(names(&way), ["link", "m"]);
        assert_eq!(way.end, Some(root.join("real/deep/m").canonicalize().unwrap()));
    }

    #[test]
    fn walk_names_the_first_missing_component_and_ends_a_loop() {
        let root = TempDir::new();
        let way = walk(&root.join("a/b/c"));
        assert_eq!((names(&way), way.end.as_ref()), (vec!["a"], None));
        symlink("loop", root.join("loop")).unwrap();
        let way = walk(&root.join("loop"));
        assert_eq!((way.lookups.len(), way.end), (MAX_SYMLINKS + 1, None));
    }

    #[tokio::test]
    async fn an_overflow_asks_for_a_look_at_everything() {
        let root = TempDir::new();
        let mut watch = PathWatch::new(root.path()).unwrap();
        watch.arm().unwrap();
        let mut hints = Hints::default();
        watch.events.push(InotifyEvent::Overflow);
        watch.translate(&mut hints);
        assert!(hints.everything);
    }

    #[tokio::test]
    async fn changes_beside_the_watched_path_give_no_hints() {
        let root = TempDir::new();
        fs::create_dir(root.join("m")).unwrap();
        let mut watch = PathWatch::new(&root.join("m")).unwrap();
        watch.arm().unwrap();
        fs::write(root.join("neighbour"), "x").unwrap();
        let mut hints = Hints::default();
        assert!(watch.poll(&mut hints).unwrap());
        assert!(hints.is_empty());
        fs::remove_dir(root.join("m")).unwrap();
        watch.poll(&mut hints).unwrap();
        assert!(hints.everything);
    }
}
