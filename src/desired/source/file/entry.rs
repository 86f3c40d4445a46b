//! One manifest file: its last content, its last good version, and its problems.
//!
//! Owns the rule that a broken file keeps its last good pods and objects.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::read::{Identity, PathContent, ReadError, inspect, read_manifest_file};
use crate::desired::source::manifest::{Types, parse};
use crate::desired::source::{
    REASON_INVALID_MANIFEST, ignored_problems, keep_last_good, keep_last_good_objects, problems_with_since,
};
use crate::model::source::{ManifestOrigin, SourceObject, SourcePod, SourceProblem, SourceSet};
use crate::model::types::{PodSource, Timestamp};

/// Two writes within one tick of the file system's clock have the same time. FAT's tick of two seconds is the
/// coarsest.
const TICK: Duration = Duration::from_secs(2);

/// How to check a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// An event reports a change: read it whatever `stat` shows.
    Changed,
    /// Read it if `stat` shows a change.
    Compare,
    /// As `Compare`, but a writer has it open: do not read changed content yet.
    CompareWhileWritten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::desired) enum Looked {
    /// The file does not exist any more.
    Gone,
    /// A subdirectory that never was a manifest.
    Directory,
    /// It still exists; `changed` when its pods or problems differ.
    Kept { changed: bool },
}

#[derive(Debug, Default)]
pub(in crate::desired) struct FileEntry {
    /// The identity of the content in `digest`; `None` when nothing could be read.
    identity: Option<Identity>,
    /// Since when `identity` is known; content that was read soon after may have changed within the tick.
    known_since: Option<Instant>,
    settled: bool,
    digest: Option<u64>,
    /// The newest good version of every pod and object of this file.
    good: SourceSet,
    /// How many of its pods, from the front, are in the newest content; the others are last good versions.
    fresh: usize,
    /// The same for its objects.
    fresh_objects: usize,
    problems: Vec<SourceProblem>,
}

impl FileEntry {
    /// A file that was good before a restart.
    #[must_use]
    pub(in crate::desired) fn restored(good: SourceSet) -> Self {
        Self { good, ..Self::default() }
    }

    /// Whether removing it would change the set or the problems.
    #[must_use]
    pub(in crate::desired) fn has_effect(&self) -> bool {
        self.has_good() || !self.problems.is_empty()
    }

    /// Whether it is broken, without a last good version.
    #[must_use]
    pub(in crate::desired) fn has_no_good_version(&self) -> bool {
        !self.has_good() && !self.problems.is_empty()
    }

    /// Whether the newest content has a valid document.
    #[must_use]
    pub(in crate::desired) fn has_fresh(&self) -> bool {
        self.fresh + self.fresh_objects > 0
    }

    fn has_good(&self) -> bool {
        !self.good.pods.is_empty() || !self.good.objects.is_empty()
    }

    /// The pods in the newest content.
    #[must_use]
    pub(in crate::desired) fn fresh_pods(&self) -> &[SourcePod] {
        &self.good.pods[..self.fresh]
    }

    /// Pods kept because a document is broken.
    #[must_use]
    pub(in crate::desired) fn stale_pods(&self) -> &[SourcePod] {
        &self.good.pods[self.fresh..]
    }

    /// The objects in the newest content.
    #[must_use]
    pub(in crate::desired) fn fresh_objects(&self) -> &[SourceObject] {
        &self.good.objects[..self.fresh_objects]
    }

    /// Objects kept because a document is broken.
    #[must_use]
    pub(in crate::desired) fn stale_objects(&self) -> &[SourceObject] {
        &self.good.objects[self.fresh_objects..]
    }

    #[must_use]
    pub(in crate::desired) fn problems(&self) -> &[SourceProblem] {
        &self.problems
    }

    /// Checks the file and, if needed, reads it.
    pub(in crate::desired) fn refresh(
        &mut self,
        path: &Path,
        how: Look,
        (types, node_name): (&Types, &str),
        now: Timestamp,
    ) -> Looked {
        let found = match inspect(path) {
            PathContent::Missing => return Looked::Gone,
            PathContent::Directory if !self.has_effect() => {
                return Looked::Directory;
            }
            // A directory in place of a manifest does not remove its pods.
            PathContent::Directory => Err(ReadError::NotRegular { kind: "directory" }),
            PathContent::Unusable(error) => Err(error),
            PathContent::File(identity) => {
                let same = self.identity == Some(identity);
                if same && self.settled && how != Look::Changed || !same && how == Look::CompareWhileWritten {
                    return Looked::Kept { changed: false };
                }
                read_manifest_file(path)
            }
        };
        match found {
            Ok((bytes, identity)) => self.content(path, (&bytes, identity), (types, node_name), now),
            Err(ReadError::Io { call: "open", source }) if source.kind() == std::io::ErrorKind::NotFound => {
                Looked::Gone
            }
            Err(error) => self.unreadable(path, &error, now),
        }
    }

    fn content(
        &mut self,
        path: &Path,
        (bytes, identity): (&[u8], Identity),
        (types, node_name): (&Types, &str),
        now: Timestamp,
    ) -> Looked {
        if self.identity != Some(identity) {
            self.identity = Some(identity);
            self.known_since = None;
        }
        let known_since = *self.known_since.get_or_insert_with(Instant::now);
        self.settled = known_since.elapsed() >= TICK;
        let digest = digest(bytes);
        if self.digest == Some(digest) {
            return Looked::Kept { changed: false };
        }
        self.digest = Some(digest);
        let location = path.to_string_lossy().into_owned();
        let origin = ManifestOrigin { source: PodSource::File, location };
        let parsed = parse(types, bytes, &origin, node_name);
        for warning in &parsed.warnings {
            log::warn!(path = origin.location.as_str(), warning = warning.as_str(); "Manifest has warnings");
        }
        let (fresh, fresh_objects) = (parsed.pods.len(), parsed.objects.len());
        let complete = parsed.is_complete();
        let good = SourceSet {
            pods: keep_last_good(parsed.pods, complete, &self.good.pods, &origin, now),
            objects: keep_last_good_objects(parsed.objects, complete, &self.good.objects, &origin, now),
        };
        let mut problems = problems_with_since(
            parsed.problems,
            REASON_INVALID_MANIFEST,
            &origin.location,
            &self.problems,
            now,
        );
        problems.extend(ignored_problems(parsed.ignored, &origin.location, &self.problems, now));
        let changed = (&good, &problems) != (&self.good, &self.problems)
            || (fresh, fresh_objects) != (self.fresh, self.fresh_objects);
        (self.good, self.problems) = (good, problems);
        (self.fresh, self.fresh_objects) = (fresh, fresh_objects);
        Looked::Kept { changed }
    }

    fn unreadable(&mut self, path: &Path, error: &ReadError, now: Timestamp) -> Looked {
        (self.identity, self.digest) = (None, None);
        (self.fresh, self.fresh_objects) = (0, 0);
        let location = path.to_string_lossy();
        let message = format!("{location}: cannot be parsed as a manifest: {error}");
        let problems =
            problems_with_since(vec![message], REASON_INVALID_MANIFEST, &location, &self.problems, now);
        let changed = problems != self.problems;
        self.problems = problems;
        Looked::Kept { changed }
    }
}

/// Detects changed content. It need not resist collisions: the user's own manifests are not adversarial.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::source::testing::{NODE, manifest};
    use crate::platform::testing::TempDir;

    impl FileEntry {
        /// Content that is parsed again shows its pods again.
        pub(in crate::desired) fn forget_pods(&mut self) {
            (self.good, self.fresh) = (SourceSet::default(), 0);
        }
    }

    #[test]
    fn second_write_within_a_clock_tick_is_found() {
        let root = TempDir::new();
        let path = root.join("a.yaml");
        let mut entry = FileEntry::default();
        let look_again = |entry: &mut FileEntry, content: &str| {
            std::fs::write(&path, manifest(content)).unwrap();
            // As within one clock tick: `stat` shows the known identity.
            if entry.identity.is_some() {
                let PathContent::File(identity) = inspect(&path) else { panic!("no file") };
                entry.identity = Some(identity);
            }
            entry.refresh(&path, Look::Compare, (&Types::default(), NODE), Timestamp::default())
        };
        assert_eq!(look_again(&mut entry, "a=1"), Looked::Kept { changed: true });
        assert_eq!(look_again(&mut entry, "a=2"), Looked::Kept { changed: true });
        entry.known_since = Instant::now().checked_sub(TICK);
        assert_eq!(
            look_again(&mut entry, "a=3"),
            Looked::Kept { changed: true },
            "one last time after the tick"
        );
        assert_eq!(
            look_again(&mut entry, "a=4"),
            Looked::Kept { changed: false },
            "from here on stat is believed"
        );
        assert_eq!(entry.fresh_pods()[0].pod.spec.hostname, "3");
    }
}
