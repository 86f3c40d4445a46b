//! The real [`ManifestParser`]: bytes to decoded pods to static pods that are ready to run on this node.

use crate::reconcile::static_pod::{StaticOrigin, prepare};
use crate::source::manifest::{ManifestOrigin, decode_manifest};
use crate::source::{ManifestParser, Origin, ParsedManifest};
use crate::types::PodSource;

/// Parses for one node: its name is part of every static pod's name and uid.
#[derive(Clone, Debug)]
pub struct StaticPodParser {
    /// Name of this node.
    pub node_name: String,
}

impl ManifestParser for StaticPodParser {
    fn parse(&self, bytes: &[u8], origin: &Origin) -> ParsedManifest {
        let (kind, static_origin) = match origin.source {
            PodSource::File => (ManifestOrigin::File, StaticOrigin::File { path: origin.location.clone() }),
            PodSource::Http | PodSource::Api => {
                (ManifestOrigin::Url, StaticOrigin::Url { url: origin.location.clone() })
            }
        };
        let manifest = decode_manifest(bytes, kind);
        let mut parsed = ParsedManifest {
            problems: manifest.problems.iter().map(ToString::to_string).collect(),
            warnings: manifest.warnings.iter().map(ToString::to_string).collect(),
            ..ParsedManifest::default()
        };
        for found in manifest.pods {
            match prepare(found.pod, &static_origin, &self.node_name) {
                Ok(pod) => parsed.pods.push(pod),
                Err(error) if found.place.is_empty() => parsed.problems.push(error.to_string()),
                Err(error) => parsed.problems.push(format!("{}: {error}", found.place)),
            }
        }
        parsed.complete = parsed.problems.is_empty();
        parsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ParsedManifest {
        let origin = Origin { source: PodSource::File, location: "/m/pods.yaml".to_owned() };
        StaticPodParser { node_name: "node1".to_owned() }.parse(text.as_bytes(), &origin)
    }

    #[test]
    fn good_documents_become_static_pods_and_broken_ones_are_named() {
        let parsed = parse(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec: {containers: [{name: c, image: busybox}]}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: c}]}\n",
        );
        assert_eq!(parsed.pods.len(), 1);
        assert_eq!(parsed.pods[0].metadata.name, "good-node1");
        assert!(!parsed.complete);
        assert_eq!(parsed.problems.len(), 1);
        assert!(parsed.problems[0].contains("document 2"), "{}", parsed.problems[0]);
        assert!(parsed.problems[0].contains("spec.containers[0].image"), "{}", parsed.problems[0]);
    }
}
