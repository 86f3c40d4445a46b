//! Helpers for the tests of all sources: a manifest language small enough to predict.
//!
//! Owns test helpers.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

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
