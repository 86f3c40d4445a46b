//! Pods from files: a directory of manifests, or one manifest file. inotify triggers rescans early; the
//! rescan every `fileCheckFrequency` is authoritative.
//!
//! Owns the last content of each file, and which directory it was in: an empty directory that is a different
//! one is no valid answer (ADR 0035).
//!
//! Skipped silently: names that begin with `.` (as upstream) and what editors leave beside an open file:
//! `*~`, `#*#`, `4913` (vim's test for a writable directory), `*.swp`, `*.swo`, `*.swx`, `*.kate-swp`. Every
//! other regular file is read whatever its extension, `.bak` included, as upstream does. Subdirectories are
//! never read.

pub mod entry;
pub mod read;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use self::entry::{FileEntry, Look, Looked};
use self::read::{PathContent, inspect};
use self::watch::{Hints, PathWatch};
use super::manifest::Types;
use super::{
    Accept, Accepts, REASON_EMPTY, REASON_UNAVAILABLE, Remembered, SHORTEST_PERIOD, full_name,
    is_trusted_answer, next_accept, problems_with_since,
};
use crate::model::ordered::Ordered as _;
use crate::model::source::{SourceAnswer, SourceObject, SourcePod, SourceProblem, SourceSet, SourceUpdate};
use crate::model::types::PodSource;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::sys::identity::directory_identity;

/// A directory with more files than this is a mistake in `staticPodPath`.
pub(crate) const MAX_FILES: usize = 20_000;
/// Files checked before other tasks get a turn.
const FILES_PER_TURN: usize = 100;
/// A change soon after a rescan may be one of many: wait for quiet before the next rescan.
const BURST: Duration = Duration::from_millis(20);
const QUIET: Duration = Duration::from_millis(1);
/// A removal is often half of a replacement (`rm` and `cp`, an editor's backup, a recreated directory), and
/// the end of a pod is less urgent than its start.
const QUIET_AFTER_REMOVAL: Duration = Duration::from_millis(25);
/// The longest that a burst of events delays a rescan, and what each known file adds to that: every update is
/// a whole set, so thousands of files landing one by one must not cause thousands of sets.
const MAX_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY_PER_FILE: Duration = Duration::from_micros(50);

#[derive(Clone, Debug)]
pub(crate) struct FileConfig {
    /// `staticPodPath`: a directory or a file; it may not exist yet.
    pub path: PathBuf,
    /// `fileCheckFrequency`: the time between two rescans.
    pub check_frequency: Duration,
    pub node_name: String,
}

#[derive(Debug)]
pub(crate) struct FileSource {
    config: FileConfig,
    clock: Clock,
    /// By name in the directory; a single file has an empty name.
    entries: BTreeMap<OsString, FileEntry>,
    /// Why there is no valid answer.
    unavailable: Option<SourceProblem>,
    /// Problems of the manifests in a directory that is not trusted.
    beside: Vec<SourceProblem>,
    /// The identity of the directory that gave the last good set; none if a single file did.
    trusted_directory: Option<String>,
    /// The identity of the directory that the last scan found.
    scanned_directory: Option<String>,
    /// The last good set is not empty.
    has_content: bool,
    accepts: Accepts,
    /// Some manifest is a symlink.
    has_links: bool,
    /// Something has changed since the last update.
    dirty: bool,
    logged_directories: BTreeSet<OsString>,
    watch_failed: bool,
}

enum Listing {
    /// The manifests of a directory, or the one file.
    Names(Scan),
    Unavailable(String),
}

struct Scan {
    names: BTreeSet<OsString>,
    /// The identity of the listed directory; none for a single file.
    directory: Option<String>,
    /// The user has confirmed that an empty answer is intended.
    is_accepted: bool,
}

impl FileSource {
    /// A source without an answer yet. Files that are broken now keep their pods and objects from before the
    /// restart.
    pub(crate) fn new(mut config: FileConfig, remembered: Remembered, clock: Clock) -> Self {
        let has_content = remembered.has_content();
        let Remembered { good: stored, validator: trusted_directory, .. } = remembered;
        // Without a trailing slash, so that a path is always written the same way.
        config.path = config.path.components().collect();
        let mut by_name: BTreeMap<OsString, SourceSet> = BTreeMap::new();
        for pod in stored.pods {
            if let Some(name) = name_within(&config.path, &pod.origin) {
                by_name.entry(name).or_default().pods.push(pod);
            }
        }
        for object in stored.objects {
            if let Some(name) = name_within(&config.path, &object.origin) {
                by_name.entry(name).or_default().objects.push(object);
            }
        }
        let restored = |(name, good)| (name, FileEntry::restored(good));
        let entries = by_name.into_iter().map(restored).into_map();
        Self {
            config,
            clock,
            entries,
            unavailable: None,
            beside: Vec::new(),
            trusted_directory,
            scanned_directory: None,
            has_content,
            accepts: None,
            has_links: false,
            dirty: true,
            logged_directories: BTreeSet::new(),
            watch_failed: false,
        }
    }

    /// Accepts confirmations of empty answers.
    #[must_use]
    pub(crate) fn accepting(mut self, accepts: mpsc::Receiver<Accept>) -> Self {
        self.accepts = Some(accepts);
        self
    }

    /// Scans, sends the result, waits for a reason to rescan. Ends when the receiver is closed. Dropping it
    /// at any await is safe.
    pub(crate) async fn run(mut self, updates: mpsc::Sender<SourceUpdate>) {
        let mut watch = self.start_watch();
        let mut everything = true;
        let mut accept: Option<Accept> = None;
        let mut hints = Hints::default();
        let mut rescans = rt::Periodic::every(self.config.check_frequency.max(SHORTEST_PERIOD));
        let mut is_periodic = false;
        loop {
            if everything {
                self.arm(&mut watch);
                self.scan_in_turns(watch.as_ref(), accept.is_some()).await;
            } else {
                self.rescan(&hints.names, watch.as_ref()).await;
            }
            if let Some(update) = self.take_update()
                && updates.send(update).await.is_err()
            {
                return;
            }
            if let Some(accept) = accept.take() {
                // The client has disconnected: the answer stays accepted.
                let _ = accept.send(self.unavailable.is_none());
            }
            hints = Hints::default();
            if let Some(watch) = &mut watch {
                if std::mem::take(&mut is_periodic) {
                    watch.forget_writers();
                }
                watch.follow_hidden = self.has_links;
            }
            let files = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
            let max_delay = MAX_DELAY + MAX_DELAY_PER_FILE.saturating_mul(files);
            let looked = Instant::now();
            everything = tokio::select! {
                biased;
                // The loop ends with its receiver; nothing is pending here.
                () = updates.closed() => return,
                // Dropping it is safe: a request stays in its channel until it is received.
                asked = next_accept(&mut self.accepts) => {
                    accept = Some(asked);
                    true
                }
                // Dropping it is safe: unread events stay in the kernel's queue, read ones are in `hints`.
                () = wait(&mut watch, &mut hints, looked, max_delay) => hints.everything,
                // Dropping it is safe: the deadline is kept.
                () = rescans.due() => {
                    is_periodic = true;
                    true
                }
            };
        }
    }

    /// A full scan, as at start and at every rescan; returns the update if something has changed.
    #[cfg(test)]
    pub(crate) fn scan(&mut self) -> Option<SourceUpdate> {
        self.scan_at_once(false)
    }

    /// A full scan that accepts an empty answer.
    #[cfg(test)]
    pub(crate) fn scan_and_accept(&mut self) -> Option<SourceUpdate> {
        self.scan_at_once(true)
    }

    #[cfg(test)]
    fn scan_at_once(&mut self, is_accepted: bool) -> Option<SourceUpdate> {
        if let Some(scan) = self.begin_scan(is_accepted) {
            let types = Types::default();
            for name in &scan.names {
                self.refresh(name, Look::Compare, &types);
            }
            self.end_scan(&scan);
        }
        self.take_update()
    }

    async fn scan_in_turns(&mut self, watch: Option<&PathWatch>, is_accepted: bool) {
        let Some(scan) = self.begin_scan(is_accepted) else { return };
        self.refresh_in_turns(&scan.names, Look::Compare, watch).await;
        self.end_scan(&scan);
    }

    async fn refresh_in_turns(&mut self, names: &BTreeSet<OsString>, how: Look, watch: Option<&PathWatch>) {
        let types = Types::default();
        for (count, name) in names.iter().enumerate() {
            let being_written = watch.is_some_and(|watch| watch.is_being_written(name));
            self.refresh(name, if being_written { Look::CompareWhileWritten } else { how }, &types);
            if count % FILES_PER_TURN == FILES_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Lists the directory, and returns the names to check.
    fn begin_scan(&mut self, is_accepted: bool) -> Option<Scan> {
        match self.list() {
            Listing::Unavailable(message) => {
                self.beside.clear();
                self.set_unavailable(REASON_UNAVAILABLE, message);
                None
            }
            Listing::Names(scan) => {
                self.scanned_directory.clone_from(&scan.directory);
                Some(Scan { is_accepted, ..scan })
            }
        }
    }

    /// Drops the files that a readable directory no longer has, unless it may be the wrong directory.
    fn end_scan(&mut self, scan: &Scan) {
        if !self.is_still_there() {
            // The files read may come from two different directories. An event, or the next rescan, reads
            // them all again.
            let path = self.config.path.display();
            let message = format!("{path}: was replaced, mounted or unmounted while being read; retrying");
            self.set_unavailable(REASON_UNAVAILABLE, message);
            return;
        }
        let is_empty = scan.directory.is_some()
            && !scan.names.iter().filter_map(|name| self.entries.get(name)).any(FileEntry::has_fresh);
        let same_directory = scan.directory == self.trusted_directory || scan.is_accepted;
        if !is_trusted_answer(is_empty, self.has_content, same_directory) {
            let found = if scan.names.is_empty() { "is empty" } else { "contains no valid manifest" };
            let message = format!(
                "{}: {found}, and is not the directory that the pods came from: a mount is missing, or it \
                 was replaced. Its pods keep running. Restore the manifests, or confirm their removal: \
                 agent source accept file",
                self.config.path.display()
            );
            let found = scan.names.iter().filter_map(|name| self.entries.get(name));
            let beside: Vec<_> = found.flat_map(FileEntry::problems).cloned().collect();
            self.dirty |= self.beside != beside;
            self.beside = beside;
            self.set_unavailable(REASON_EMPTY, message);
            return;
        }
        self.dirty |= self.unavailable.take().is_some();
        self.beside.clear();
        self.entries.retain(|name, entry| {
            let stays = scan.names.contains(name);
            self.dirty |= !stays && entry.has_effect();
            stays
        });
        self.logged_directories.retain(|name| scan.names.contains(name));
        if self.trusted_directory != scan.directory {
            self.trusted_directory.clone_from(&scan.directory);
            self.dirty = true;
        }
    }

    /// Whether the path still leads to the directory with which this scan began.
    fn is_still_there(&self) -> bool {
        self.scanned_directory.is_none()
            || directory_identity(&self.config.path).ok() == self.scanned_directory
    }

    /// Checks the files named by events, whose change `stat` need not show.
    async fn rescan(&mut self, names: &BTreeSet<OsString>, watch: Option<&PathWatch>) {
        if self.unavailable.is_some() || !self.is_still_there() {
            return self.scan_in_turns(watch, false).await;
        }
        let names: BTreeSet<_> = names.iter().filter(|name| is_manifest_name(name)).cloned().into_set();
        for name in &names {
            self.has_links |= fs::symlink_metadata(self.path_of(name)).is_ok_and(|found| found.is_symlink());
        }
        self.refresh_in_turns(&names, Look::Changed, watch).await;
    }

    fn refresh(&mut self, name: &OsStr, how: Look, types: &Types) {
        let path = self.path_of(name);
        let now = self.clock.now();
        if !self.entries.contains_key(name) {
            self.entries.insert(name.to_owned(), FileEntry::default());
        }
        let Some(entry) = self.entries.get_mut(name) else { return };
        match entry.refresh(&path, how, (types, &self.config.node_name), now) {
            Looked::Kept { changed } => self.dirty |= changed,
            Looked::Gone => {
                // A single file that is gone is a missing path, which the next listing reports.
                if name.is_empty() || !self.is_still_there() {
                    return;
                }
                self.dirty |= self.entries.remove(name).is_some_and(|entry| entry.has_effect());
            }
            Looked::Directory => {
                self.entries.remove(name);
                if self.logged_directories.insert(name.to_owned()) {
                    log::debug!(path:% = path.display(); "Ignoring subdirectories of the static pod path");
                }
            }
        }
    }

    fn path_of(&self, name: &OsStr) -> PathBuf {
        if name.is_empty() { self.config.path.clone() } else { self.config.path.join(name) }
    }

    fn list(&mut self) -> Listing {
        let shown = self.config.path.clone();
        let path = shown.display();
        match inspect(&self.config.path) {
            PathContent::Missing => Listing::Unavailable(format!(
                "{path}: does not exist; create it, or correct staticPodPath. Its pods keep running"
            )),
            PathContent::Unusable(error) => Listing::Unavailable(format!("{path}: {error}")),
            PathContent::File(_) => {
                let names = BTreeSet::from([OsString::new()]);
                Listing::Names(Scan { names, directory: None, is_accepted: false })
            }
            // The identity is read first, to notice a mount over the directory while it is listed.
            PathContent::Directory => match directory_identity(&shown)
                .and_then(|directory| Ok((directory, self.list_directory()?)))
            {
                Ok((_, names)) if names.len() > MAX_FILES => Listing::Unavailable(format!(
                    "{path}: contains more than {MAX_FILES} files; use a separate directory for static pods"
                )),
                Ok((directory, names)) => {
                    Listing::Names(Scan { names, directory: Some(directory), is_accepted: false })
                }
                Err(error) => {
                    Listing::Unavailable(format!("{path}: list directory: {error}; check its permissions"))
                }
            },
        }
    }

    /// All or nothing: an incomplete listing must not remove the rest.
    fn list_directory(&mut self) -> io::Result<BTreeSet<OsString>> {
        let mut names = BTreeSet::new();
        let mut has_links = false;
        for entry in fs::read_dir(&self.config.path)? {
            let entry = entry?;
            let name = entry.file_name();
            if !is_manifest_name(&name) {
                continue;
            }
            has_links |= entry.file_type().is_ok_and(|kind| kind.is_symlink());
            names.insert(name);
            if names.len() > MAX_FILES {
                break;
            }
        }
        self.has_links = has_links;
        Ok(names)
    }

    fn set_unavailable(&mut self, reason: &str, message: String) {
        let origin = self.config.path.to_string_lossy();
        let now = self.clock.now();
        let before: Vec<_> = self.unavailable.take().into_iter().collect();
        self.unavailable = problems_with_since(vec![message], reason, &origin, &before, now).pop();
        self.dirty |= self.unavailable.as_ref() != before.first();
    }

    /// The whole set, if it differs from the one sent last.
    fn take_update(&mut self) -> Option<SourceUpdate> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        let (answer, objects, problems) = if let Some(problem) = &self.unavailable {
            let problems = std::iter::once(problem).chain(&self.beside).cloned().collect();
            (SourceAnswer::Unknown, Vec::new(), problems)
        } else if self.entries.get(OsStr::new("")).is_some_and(FileEntry::has_no_good_version) {
            // One broken file that never was good gives no valid answer; upstream sends nothing either.
            (SourceAnswer::Unknown, Vec::new(), self.problems())
        } else {
            let (pods, objects) = (self.pods(), self.objects());
            self.has_content = !(pods.is_empty() && objects.is_empty());
            (SourceAnswer::Pods(pods), objects, self.problems())
        };
        let validator = self.trusted_directory.clone();
        Some(SourceUpdate { source: PodSource::File, answer, objects, problems, validator, signed: None })
    }

    /// In the order of file names. A last good version yields to a pod of the same name in a valid manifest.
    fn pods(&self) -> Vec<SourcePod> {
        let any_stale = self.entries.values().any(|entry| !entry.stale_pods().is_empty());
        let fresh: BTreeSet<_> = if any_stale {
            self.entries.values().flat_map(FileEntry::fresh_pods).map(full_name).into_set()
        } else {
            BTreeSet::new()
        };
        let mut pods = Vec::new();
        for entry in self.entries.values() {
            pods.extend_from_slice(entry.fresh_pods());
            pods.extend(entry.stale_pods().iter().filter(|pod| !fresh.contains(&full_name(pod))).cloned());
        }
        pods
    }

    /// The same for objects.
    fn objects(&self) -> Vec<SourceObject> {
        let fresh: BTreeSet<_> = self
            .entries
            .values()
            .flat_map(FileEntry::fresh_objects)
            .map(|object| &object.object.key)
            .into_set();
        let mut objects = Vec::new();
        for entry in self.entries.values() {
            objects.extend_from_slice(entry.fresh_objects());
            let stale = entry.stale_objects().iter();
            objects.extend(stale.filter(|object| !fresh.contains(&object.object.key)).cloned());
        }
        objects
    }

    fn problems(&self) -> Vec<SourceProblem> {
        self.entries.values().flat_map(FileEntry::problems).cloned().collect()
    }

    fn start_watch(&self) -> Option<PathWatch> {
        match PathWatch::new(&self.config.path) {
            Ok(watch) => Some(watch),
            Err(error) => {
                log::warn!(err:% = error; "inotify is not available, polling for manifests");
                None
            }
        }
    }

    fn arm(&mut self, watch: &mut Option<PathWatch>) {
        if let Some(armed) = watch
            && let Err(error) = armed.arm()
        {
            let level = if self.watch_failed { log::Level::Debug } else { log::Level::Warn };
            log::log!(level, path:% = self.config.path.display(), err:% = error;
                "Failed to watch static pod path, polling for changes");
            self.watch_failed = true;
        }
    }
}

/// Waits for events and then briefly for the rest of a burst. Without inotify it waits forever: the rescan
/// remains.
async fn wait(watch: &mut Option<PathWatch>, hints: &mut Hints, looked: Instant, max_delay: Duration) {
    let Some(armed) = watch else { return std::future::pending().await };
    while hints.is_empty() {
        if let Err(error) = armed.wait(hints).await {
            log::warn!(err:% = error; "inotify failed, polling for manifests");
            *watch = None;
            return std::future::pending().await;
        }
    }
    let limit = Instant::now() + max_delay;
    let alone = looked.elapsed() > BURST;
    loop {
        let quiet = match (hints.everything || hints.removed, alone) {
            (true, _) => QUIET_AFTER_REMOVAL,
            (false, false) => QUIET,
            (false, true) => return,
        };
        sleep(quiet).await;
        match armed.poll(hints) {
            Ok(true) if Instant::now() < limit => {}
            _ => return,
        }
    }
}

/// The file name of a stored origin, if it is below this path.
fn name_within(path: &Path, origin: &str) -> Option<OsString> {
    let origin = Path::new(origin);
    if origin == path {
        return Some(OsString::new());
    }
    (origin.parent() == Some(path)).then(|| origin.file_name()).flatten().map(OsStr::to_owned)
}

/// Everything but hidden files and editors' temporary files.
fn is_manifest_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let ends = |suffix: &str| name.ends_with(suffix.as_bytes());
    let lock = name.starts_with(b"#") && ends("#");
    let hidden = name.starts_with(b".");
    let editor =
        ends("~") || ends(".swp") || ends(".swo") || ends(".swx") || ends(".kate-swp") || name == b"4913";
    !(hidden || lock || editor)
}

#[cfg(test)]
mod tests;
