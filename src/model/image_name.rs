//! Image references and pull policies: the reference to pass to the runtime, and whether to pull.
//!
//! Owns the reference grammar as far as the kubelet checks it.

use std::fmt;

/// The longest repository name a registry accepts.
const MAX_NAME_LENGTH: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidImageName {
    pub problem: &'static str,
}

impl fmt::Display for InvalidImageName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "invalid reference format: {}", self.problem)
    }
}

/// What to do about an image before its container is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullDecision {
    Pull,
    UsePresent,
    /// The policy is `Never`, and the image is not present.
    Refuse,
}

/// `imagePullPolicy` against what is present. Unset or unknown policies behave as `IfNotPresent`; defaulting
/// has filled them in long before.
#[must_use]
pub(crate) fn decide_pull(policy: &str, present: bool) -> PullDecision {
    match (policy, present) {
        ("Never", false) => PullDecision::Refuse,
        ("Always", _) | (_, false) => PullDecision::Pull,
        _ => PullDecision::UsePresent,
    }
}

/// The reference with `:latest` when it has neither tag nor digest.
///
/// # Errors
/// When it is not a reference: the container then waits with `InvalidImageName`.
pub fn apply_default_tag(image: &str) -> Result<String, InvalidImageName> {
    let (name, tag, digest) = split_reference(image);
    check_name(name)?;
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    if let Some(digest) = digest {
        check_digest(digest)?;
    }
    Ok(if tag.is_none() && digest.is_none() { format!("{image}:latest") } else { image.to_owned() })
}

/// Name, tag and digest of a reference, unchecked.
#[must_use]
pub(crate) fn split_reference(image: &str) -> (&str, Option<&str>, Option<&str>) {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    // A colon after the last slash starts a tag; one before it belongs to a port.
    let last_slash = rest.rfind('/').map_or(0, |at| at + 1);
    match rest[last_slash..].find(':') {
        Some(at) => (&rest[..last_slash + at], Some(&rest[last_slash + at + 1..]), digest),
        None => (rest, None, digest),
    }
}

/// `docker.io/library/busybox` for `busybox:1.36@sha256:…`: in full, without tag and digest.
#[must_use]
pub(crate) fn repository_of(image: &str) -> String {
    let (registry, repository) = split_registry(split_reference(image).0);
    format!("{registry}/{repository}")
}

/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Registry and repository of a name without tag and digest: `docker.io` and `library/busybox` for `busybox`. The one
/// place that decides which registry is asked, for pulls, logins and policies alike. Host names are case-insensitive,
/// so the registry is in lower case, unless its capitals are all that tells it from a repository (`HOST/app`).
#[must_use]
pub(crate) fn split_registry(name: &str) -> (String, String) {
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first.eq_ignore_ascii_case("localhost") => {
            (first.to_ascii_lowercase(), rest)
        }
        Some((first, rest)) if first.bytes().any(|b| b.is_ascii_uppercase()) => (first.to_owned(), rest),
        _ => (DEFAULT_REGISTRY.to_owned(), name),
    };
    // Docker Hub's other name.
    let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY.to_owned() } else { registry };
    if registry == DEFAULT_REGISTRY && !repository.contains('/') {
        (registry, format!("library/{repository}"))
    } else {
        (registry, repository.to_owned())
    }
}

fn invalid<T>(problem: &'static str) -> Result<T, InvalidImageName> {
    Err(InvalidImageName { problem })
}

fn check_name(name: &str) -> Result<(), InvalidImageName> {
    if name.is_empty() {
        return invalid("the name is empty");
    }
    if name.len() > MAX_NAME_LENGTH {
        return invalid("the repository name is longer than 255 characters");
    }
    let mut components: Vec<&str> = name.split('/').collect();
    let first_is_host = components.len() > 1
        && (components[0].contains(['.', ':'])
            || components[0] == "localhost"
            || components[0].bytes().any(|b| b.is_ascii_uppercase()));
    if first_is_host {
        check_host(components.remove(0))?;
    }
    if components.iter().any(|component| component.bytes().any(|b| b.is_ascii_uppercase())) {
        return invalid("the repository name must be lower case");
    }
    if !components.iter().all(|component| is_path_component(component)) {
        return invalid(
            "each part of the name must be letters and digits, separated by '.', '_', '__' or '-'",
        );
    }
    Ok(())
}

fn check_host(host: &str) -> Result<(), InvalidImageName> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((address, after)) = rest.split_once(']') else {
                return invalid("the registry host has no closing ]");
            };
            if !address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') {
                return invalid("the registry's IPv6 address is invalid");
            }
            if !after.is_empty() && !after.starts_with(':') {
                return invalid("only a port may follow the registry's IPv6 address");
            }
            ("ok", after.strip_prefix(':'))
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !name.split('.').all(label) {
        return invalid("the registry's host name is invalid");
    }
    if port.is_some_and(|port| port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit())) {
        return invalid("the registry's port is not a number");
    }
    Ok(())
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_path_component(component: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let edges = bytes.first().is_some_and(|b| word(*b)) && bytes.last().is_some_and(|b| word(*b));
    edges
        && component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(|separator| {
            matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
        })
}

fn check_tag(tag: &str) -> Result<(), InvalidImageName> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let fits = tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-');
    if fits { Ok(()) } else { invalid("the tag must be at most 128 letters, digits, '_', '.' or '-'") }
}

fn check_digest(digest: &str) -> Result<(), InvalidImageName> {
    let fits = digest.split_once(':').is_some_and(|(algorithm, hex)| {
        matches!((algorithm, hex.len()), ("sha256", 64) | ("sha384", 96) | ("sha512", 128))
            && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    });
    if fits { Ok(()) } else { invalid("the digest must be sha256:<64 hex digits>") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_without_tag_or_digest_means_latest() {
        let digest = format!("busybox@sha256:{}", "a".repeat(64));
        for (image, expected) in [
            ("busybox", "busybox:latest"),
            ("busybox:1.36", "busybox:1.36"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1"),
            ("[2001:db8::1]:5000/a", "[2001:db8::1]:5000/a:latest"),
            ("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9"),
            ("a__b/c--d.e_f", "a__b/c--d.e_f:latest"),
            (digest.as_str(), digest.as_str()),
        ] {
            assert_eq!(apply_default_tag(image).as_deref(), Ok(expected), "{image}");
        }
    }

    #[test]
    fn malformed_references_are_refused() {
        let long = "a".repeat(256);
        for image in [
            "",
            "Busybox",
            "a//b",
            "a/",
            "/a",
            "a:",
            "a:b c",
            "a@sha256:12",
            "a..b",
            "a_-b",
            "-a/b",
            "host:port/a",
            "a b",
            "[::1]\u{f}:5/a",
            "[::1]x/a",
            &long,
        ] {
            assert!(apply_default_tag(image).is_err(), "{image:?} must be refused");
        }
    }

    #[test]
    fn pull_policies_decide_as_upstream() {
        use PullDecision::{Pull, Refuse, UsePresent};
        for (policy, present, expected) in [
            ("Always", true, Pull),
            ("Always", false, Pull),
            ("IfNotPresent", true, UsePresent),
            ("IfNotPresent", false, Pull),
            ("Never", true, UsePresent),
            ("Never", false, Refuse),
            ("", true, UsePresent),
            ("", false, Pull),
        ] {
            assert_eq!(decide_pull(policy, present), expected, "{policy} present={present}");
        }
    }
}
