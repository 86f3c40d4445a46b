//! Helpers for the tests of all sources: manifests in few words.
//!
//! Owns test helpers.

use std::path::Path;
use std::rc::Rc;

use crate::desired::source::manifest::parse_manifest;
use crate::model::objects::wire;
use crate::model::source::{ManifestOrigin, SourceAnswer, SourceObject, SourcePod, SourceUpdate};
use crate::model::types::PodSource;
use crate::platform::testing::TempDir;

pub(in crate::desired) const NODE: &str = "n";

/// A manifest with a document per line: `name=version` is a pod, `@name=version` a ConfigMap, `none` an empty
/// list; anything else is broken. Blank text stays blank.
pub(in crate::desired) fn manifest(lines: &str) -> String {
    if lines.trim().is_empty() {
        return lines.to_owned();
    }
    let document = |line: &str| match line.trim_start_matches('@').split_once('=') {
        _ if line == "none" => "{apiVersion: v1, kind: PodList, items: []}".to_owned(),
        Some((name, version)) if line.starts_with('@') => {
            format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{version: \"{version}\"}}}}"
            )
        }
        Some((name, version)) => format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, \
             spec: {{hostname: \"{version}\", containers: [{{name: c, image: x}}]}}}}"
        ),
        None => format!("[{line:?}]"),
    };
    lines.lines().map(|line| ["---\n", &document(line), "\n"].concat()).collect()
}

/// The message of a document that [`manifest`] breaks, with its place.
pub(in crate::desired) fn broken(place: &str) -> String {
    let message =
        "expected an object, found a list; a manifest is a mapping with apiVersion, kind, metadata and spec";
    if place.is_empty() { message.to_owned() } else { format!("{place}: {message}") }
}

/// `name=version` of every ConfigMap of an answer.
pub(in crate::desired) fn shown_objects(update: &SourceUpdate) -> String {
    let shown = |object: &SourceObject| {
        let text = wire::to_value(&object.object, wire::Values::Shown);
        format!("{}={}", object.object.key.name, text["data"]["version"].as_str().unwrap())
    };
    update.objects.iter().map(shown).collect::<Vec<_>>().join(" ")
}

/// A pod of [`manifest`] from before a restart.
pub(in crate::desired) fn stored(name: &str, version: &str, origin: impl AsRef<Path>) -> SourcePod {
    let location = origin.as_ref().to_str().unwrap().to_owned();
    let source = if location.contains("://") { PodSource::Http } else { PodSource::File };
    let origin = ManifestOrigin { source, location };
    let parsed = parse_manifest(manifest(&format!("{name}={version}")).as_bytes(), &origin, NODE);
    SourcePod { pod: Rc::new(parsed.pods.into_iter().next().unwrap()), origin: origin.location }
}

pub(in crate::desired) fn written_name(pod: &SourcePod) -> &str {
    pod.pod.metadata.name.strip_suffix("-n").unwrap()
}

/// `name=version` of every pod of an answer, or `unknown`.
pub(in crate::desired) fn shown(update: &SourceUpdate) -> String {
    match &update.answer {
        SourceAnswer::Unknown => "unknown".to_owned(),
        SourceAnswer::Pods(pods) => {
            let pods: Vec<_> =
                pods.iter().map(|pod| format!("{}={}", written_name(pod), pod.pod.spec.hostname)).collect();
            pods.join(" ")
        }
    }
}

impl TempDir {
    /// Writes [`manifest`] atomically, as a careful writer does.
    pub(in crate::desired) fn put_lines(&self, name: &str, lines: &str) {
        self.put(name, &manifest(lines));
    }
}
