//! Names of images in full: `busybox` is `docker.io/library/busybox:latest`, as containerd has it.
//!
//! Owns the defaults of a short name.

use std::fmt;

use super::ImageError;
use crate::model::image_name::{apply_default_tag, split_reference, split_registry};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    /// `docker.io`, `localhost:5000`.
    pub registry: String,
    /// `library/busybox`.
    pub repository: String,
    /// `latest`. Absent only when there is a digest.
    pub tag: Option<String>,
    /// `sha256:…`.
    pub digest: Option<String>,
}

impl Reference {
    /// Registry and repository: `docker.io/library/busybox`.
    #[must_use]
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// `docker.io/library/busybox:latest`. `None` when there is a digest: the content that it names says nothing about
    /// the tag beside it, which is ignored as in containerd's CRI plugin.
    #[must_use]
    pub(crate) fn tagged(&self) -> Option<String> {
        let tag = self.tag.as_ref().filter(|_| self.digest.is_none())?;
        Some(format!("{}:{tag}", self.name()))
    }

    /// The one name under which the store has the image: with the digest if there is one, else with the tag.
    #[must_use]
    pub(crate) fn stored_name(&self) -> String {
        match &self.digest {
            Some(digest) => self.with_digest(digest),
            None => self.tagged().unwrap_or_default(),
        }
    }

    /// `docker.io/library/busybox@sha256:…` for a digest of the manifest.
    #[must_use]
    pub(in crate::runtime) fn with_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.name())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(formatter, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// The parts of a name, with what is missing filled in.
pub(crate) fn normalise_reference(text: &str) -> Result<Reference, ImageError> {
    let full = apply_default_tag(text)
        .map_err(|error| ImageError::Reference { reference: text.to_owned(), problem: error.problem })?;
    let (name, tag, digest) = split_reference(&full);
    let (registry, repository) = split_registry(name);
    Ok(Reference { registry, repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_filled_in_as_containerd_does() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, expected) in [
            ("busybox", "docker.io/library/busybox:latest".to_owned()),
            ("busybox:1.36", "docker.io/library/busybox:1.36".to_owned()),
            ("docker.io/busybox", "docker.io/library/busybox:latest".to_owned()),
            ("index.docker.io/a/b", "docker.io/a/b:latest".to_owned()),
            ("grafana/loki", "docker.io/grafana/loki:latest".to_owned()),
            ("localhost/a", "localhost/a:latest".to_owned()),
            ("Docker.IO/busybox", "docker.io/library/busybox:latest".to_owned()),
            ("Index.Docker.io/a/b", "docker.io/a/b:latest".to_owned()),
            ("LOCALHOST/a", "localhost/a:latest".to_owned()),
            ("HOST/a", "HOST/a:latest".to_owned()),
            ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1".to_owned()),
            ("[2001:db8::1]:5000/a", "[2001:db8::1]:5000/a:latest".to_owned()),
            ("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9".to_owned()),
            (&format!("busybox@{digest}"), format!("docker.io/library/busybox@{digest}")),
            (&format!("a/b:v1@{digest}"), format!("docker.io/a/b:v1@{digest}")),
        ] {
            let reference = normalise_reference(text).unwrap();
            assert_eq!(reference.to_string(), expected, "{text}");
            assert_eq!(normalise_reference(&expected).unwrap(), reference, "{text} twice");
        }
    }

    #[test]
    fn tag_beside_a_digest_names_nothing() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let both = normalise_reference(&format!("a/b:v1@{digest}")).unwrap();
        assert_eq!((both.tagged(), both.stored_name()), (None, format!("docker.io/a/b@{digest}")));
        let tag = normalise_reference("a/b:v1").unwrap();
        assert_eq!((tag.tagged(), tag.stored_name()), (Some(tag.to_string()), tag.to_string()));
    }

    #[test]
    fn what_is_no_reference_is_refused_by_name() {
        let error = normalise_reference("Busybox").unwrap_err().to_string();
        assert_eq!(error, "invalid image reference \"Busybox\": the repository name must be lower case");
    }
}
