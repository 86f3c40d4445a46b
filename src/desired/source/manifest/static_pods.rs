//! Local sources: from manifest bytes to pods that are ready to run and objects that are ready for use.
//!
//! Owns the wording of the error messages.

use std::collections::BTreeMap;

use super::{ManifestNote, Types};
use crate::desired::local_objects;
use crate::desired::static_pod::prepare;
use crate::model::api::pod::Pod;
use crate::model::objects::LocalObject;
use crate::model::source::ManifestOrigin;
use crate::model::types::PodSource;
use crate::pod::scheduling::unscheduled;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedManifest {
    /// The pods of every valid document: defaulted, named, validated.
    pub pods: Vec<Pod>,
    /// The ConfigMaps, Secrets and claims of every valid document.
    pub objects: Vec<LocalObject>,
    /// One message per broken object, with its place in the manifest, the field and the fix (the manifest
    /// itself is not named).
    pub problems: Vec<String>,
    /// Fields without effect in accepted pods and objects.
    pub ignored: Vec<Ignored>,
    /// Warnings about accepted but doubtful input, for the log.
    pub warnings: Vec<String>,
}

/// A field without effect: unknown or duplicate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// `NAMESPACE/NAME` of its pod; empty for objects.
    pub pod: String,
    /// The message, with the document and the field.
    pub message: String,
}

impl ParsedManifest {
    /// Whether nothing was broken: a pod or an object that is absent was removed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Parses a single manifest and prepares its pods for `node_name`, which is part of every static pod's name and
/// uid. Never fails as a whole. An empty manifest is never a valid answer: writers truncate files and broken
/// servers send nothing.
#[must_use]
pub fn parse_manifest(bytes: &[u8], origin: &ManifestOrigin, node_name: &str) -> ParsedManifest {
    parse(&Types::default(), bytes, origin, node_name)
}

/// As [`parse_manifest`], of several that are read together.
pub(in crate::desired) fn parse(
    types: &Types,
    bytes: &[u8],
    origin: &ManifestOrigin,
    node_name: &str,
) -> ParsedManifest {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        let problem = match origin.source {
            PodSource::File => {
                "the file is empty; write a v1 Pod into it, or delete it if its pods are not wanted"
                    .to_owned()
            }
            _ => format!(
                "zero-length data received from {}; serve a v1 Pod, or a PodList with no items to say none",
                origin.location
            ),
        };
        return ParsedManifest { problems: vec![problem], ..ParsedManifest::default() };
    }
    let manifest = types.decode(bytes);
    let mut read = ParsedManifest {
        problems: manifest.problems.iter().map(ToString::to_string).collect(),
        ..ParsedManifest::default()
    };
    for decoded in manifest.objects {
        let who = subject(&decoded.place, decoded.kind.as_str(), &decoded.object.metadata().name);
        match local_objects::prepare(decoded.object) {
            Ok((object, ignored)) => {
                read.warnings.extend(ignored.into_iter().map(|line| format!("{who}{line}")));
                read.objects.push(object);
            }
            Err(error) => read.problems.push(format!("{who}{error}")),
        }
    }
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for decoded in manifest.pods {
        let who = subject(&decoded.place, "pod", &decoded.pod.metadata.name);
        match prepare(decoded.pod, origin, node_name) {
            Ok(pod) => {
                read.warnings.extend(unscheduled(&pod.spec).into_iter().map(|line| format!("{who}{line}")));
                names.insert(decoded.place, format!("{}/{}", pod.metadata.namespace, pod.metadata.name));
                read.pods.push(pod);
            }
            Err(error) => read.problems.push(format!("{who}{error}")),
        }
    }
    let ignored = |note: ManifestNote| Ignored {
        pod: names.get(&note.place).cloned().unwrap_or_default(),
        message: note.to_string(),
    };
    read.ignored = manifest.warnings.into_iter().map(ignored).collect();
    read
}

/// The place and the object, as the beginning of a message.
fn subject(place: &str, kind: &str, name: &str) -> String {
    match (place, name) {
        ("", "") => String::new(),
        (place, "") => format!("{place}: "),
        ("", name) => format!("{kind} {name}: "),
        (place, name) => format!("{place}: {kind} {name}: "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ParsedManifest {
        read_from(PodSource::File, text)
    }

    fn read_from(source: PodSource, text: &str) -> ParsedManifest {
        let origin = ManifestOrigin { source, location: "/etc/pods/x.yaml".to_owned() };
        parse_manifest(text.as_bytes(), &origin, "edge-1")
    }

    #[test]
    fn broken_pods_are_reported_with_place_name_field_and_rule() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec: {containers: [{name: c, image: x}]}\n\
                    ---\napiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: c}]}\n\
                    ---\napiVersion: v1\nkind: Pod\nspec: {}\n---\nkind: [\n";
        let read = read(text);
        assert_eq!(read.pods.len(), 1);
        assert_eq!(read.pods[0].metadata.name, "good-edge-1");
        assert!(!read.is_complete());
        assert!(read.problems[0].starts_with("document 4: line "), "{:?}", read.problems);
        assert_eq!(
            read.problems[1],
            "document 2: pod bad: invalid pod: spec.containers[0].image: Required value"
        );
        assert_eq!(read.problems[2], "document 3: invalid pod: name is needed for the pod");
    }

    #[test]
    fn gated_pod_is_good_and_a_foreign_scheduler_is_a_warning() {
        let pod = |spec: &str| {
            read(&format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{{spec}, containers: [{{name: c, image: x}}]}}\n"
            ))
        };
        let gated = pod("schedulingGates: [{name: example.com/a}]");
        assert!(gated.is_complete() && gated.warnings.is_empty(), "{gated:?}");
        assert_eq!(gated.pods[0].spec.node_name, "edge-1");
        let placed = pod("nodeName: edge-1, schedulingGates: [{name: a}]");
        assert!(placed.problems[0].ends_with("cannot be set until all schedulingGates have been cleared"));
        let foreign = pod("schedulerName: mine");
        assert_eq!(
            foreign.warnings,
            ["pod a: spec.schedulerName: \"mine\" has no effect: the agent runs the pod without a scheduler"]
        );
    }

    #[test]
    fn an_ignored_field_is_named_with_its_pod() {
        let pod = |name: &str, field: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{field}containers: [{{name: c, image: x}}]}}\n"
            )
        };
        let text = [
            pod("a", "hostnetwork: true, "),
            pod("b", ""),
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndate: {}\n".into(),
        ]
        .join("---\n");
        let read = read(&text);
        assert!(read.is_complete() && read.pods.len() == 2 && read.warnings.is_empty(), "{read:?}");
        let said: Vec<_> = read.ignored.iter().map(|one| (one.pod.as_str(), one.message.as_str())).collect();
        assert_eq!(
            said,
            [
                (
                    "default/a-edge-1",
                    "document 1: unknown field \"spec.hostnetwork\" is ignored; did you mean \"hostNetwork\"?"
                ),
                ("", "document 3: unknown field \"date\" is ignored; did you mean \"data\"?"),
            ]
        );
    }

    #[test]
    fn empty_pod_list_is_complete_and_an_empty_file_is_a_problem() {
        let empty = read("apiVersion: v1\nkind: PodList\nitems: []\n");
        assert!(empty.is_complete() && empty.pods.is_empty());
        for empty in ["", " \n\t\n"] {
            let problems = read(empty).problems;
            assert!(problems[0].starts_with("the file is empty; write a v1 Pod"), "{problems:?}");
            let problems = read_from(PodSource::Http, empty).problems;
            assert!(
                problems[0].starts_with("zero-length data received from /etc/pods/x.yaml"),
                "{problems:?}"
            );
        }
    }
}
