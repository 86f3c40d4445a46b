//! Helpers for the tests of all sources: temporary directories and a manifest language small enough to
//! predict.
//!
//! Owns test helpers.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use super::{ManifestParser, Origin, ParsedManifest, SourceAnswer, SourceObject, SourcePod, SourceUpdate};
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, ObjectKind, wire};

/// One pod per line, `name=version`, or ConfigMap, `@name=version`; a line that begins with `!` is a broken
/// document.
#[derive(Clone, Debug, Default)]
pub(in crate::desired) struct Lines {
    /// How often a manifest was parsed.
    pub parsed: Rc<Cell<usize>>,
}

impl ManifestParser for Lines {
    fn parse(&self, bytes: &[u8], _origin: &Origin) -> ParsedManifest {
        self.parsed.set(self.parsed.get() + 1);
        let text = String::from_utf8_lossy(bytes);
        let mut manifest = ParsedManifest { complete: true, ..ParsedManifest::default() };
        for line in text.lines().filter(|line| !line.trim().is_empty() && *line != "none") {
            match line.split_once('=') {
                Some((name, version)) if line.starts_with('@') => {
                    manifest.objects.push(object(&name[1..], version));
                }
                Some((name, version)) if !line.starts_with('!') => manifest.pods.push(pod(name, version)),
                _ => {
                    manifest.complete = false;
                    manifest.problems.push(format!("document {line}: not a pod"));
                }
            }
        }
        manifest
    }
}

/// A pod as [`Lines`] makes it.
pub(in crate::desired) fn pod(name: &str, version: &str) -> Pod {
    let mut pod = Pod::default();
    name.clone_into(&mut pod.metadata.name);
    version.clone_into(&mut pod.spec.hostname);
    pod
}

/// A ConfigMap as [`Lines`] makes it.
pub(in crate::desired) fn object(name: &str, version: &str) -> LocalObject {
    let value = json!({"metadata": {"name": name}, "data": {"version": version}});
    wire::from_value(ObjectKind::ConfigMap, value).unwrap()
}

/// `name=version` of every ConfigMap of an answer.
pub(in crate::desired) fn shown_objects(update: &SourceUpdate) -> String {
    let shown = |object: &SourceObject| {
        let text = wire::to_value(&object.object, wire::Values::Shown);
        format!("{}={}", object.object.key.name, text["data"]["version"].as_str().unwrap())
    };
    update.objects.iter().map(shown).collect::<Vec<_>>().join(" ")
}

/// A pod from before a restart.
pub(in crate::desired) fn stored(name: &str, version: &str, origin: impl AsRef<Path>) -> SourcePod {
    SourcePod { pod: Rc::new(pod(name, version)), origin: origin.as_ref().to_str().unwrap().to_owned() }
}

/// `name=version` of every pod of an answer, or `unknown`.
pub(in crate::desired) fn shown(update: &SourceUpdate) -> String {
    match &update.answer {
        SourceAnswer::Unknown => "unknown".to_owned(),
        SourceAnswer::Pods(pods) => {
            let pods: Vec<_> =
                pods.iter().map(|p| format!("{}={}", p.pod.metadata.name, p.pod.spec.hostname)).collect();
            pods.join(" ")
        }
    }
}

/// A directory that is removed with its test.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("edge-agent-test-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes atomically, as a careful writer does.
    pub(in crate::desired) fn put(&self, name: &str, content: &str) {
        let hidden = self.0.join(".being-written");
        std::fs::write(&hidden, content).unwrap();
        std::fs::rename(hidden, self.0.join(name)).unwrap();
    }

    pub(in crate::desired) fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.join(name)).unwrap();
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
