//! The production [`ManifestParser`]: bytes to decoded documents to static pods and objects that are ready
//! for this node.

use crate::desired::source::manifest::read_static_pods;
use crate::desired::source::{ManifestParser, Origin, ParsedManifest};
use crate::desired::static_pod::StaticOrigin;
use crate::model::types::PodSource;

/// Parses for one node: its name is part of every static pod's name and uid.
#[derive(Clone, Debug)]
pub struct StaticPodParser {
    pub node_name: String,
}

impl ManifestParser for StaticPodParser {
    fn parse(&self, bytes: &[u8], origin: &Origin) -> ParsedManifest {
        let location = origin.location.clone();
        let origin = match origin.source {
            PodSource::File => StaticOrigin::File { path: location },
            PodSource::Http | PodSource::Api => StaticOrigin::Url { url: location },
        };
        let read = read_static_pods(bytes, &origin, &self.node_name);
        let complete = read.is_complete();
        ParsedManifest {
            pods: read.pods,
            objects: read.objects,
            problems: read.problems,
            ignored: read.ignored,
            warnings: read.warnings,
            complete,
        }
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
