//! Versions of Kubernetes, and which of them may follow which: kubeadm's rules.
//!
//! Pure: versions in, complaints out.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Minor releases that the control plane, and the control plane over its kubelets, may be ahead.
const CONTROL_PLANE_SKEW: u64 = 1;
const KUBELET_SKEW: u64 = 3;

/// As semantic versions have it; what follows a `+` does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubeVersion {
    numbers: [u64; 3],
    /// `rc.1`; empty of a release.
    pub pre: String,
}

impl KubeVersion {
    /// With or without a `v`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once('+').map_or(text, |(version, _)| version);
        let (numbers, pre) = text.split_once('-').unwrap_or((text, ""));
        let numbers: Vec<u64> =
            numbers.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<_>>>()?;
        Some(Self { numbers: numbers.try_into().ok()?, pre: pre.to_owned() })
    }

    pub(super) fn minor(&self) -> u64 {
        self.numbers[1]
    }

    fn release(&self) -> (u64, u64) {
        (self.numbers[0], self.numbers[1])
    }
}

impl Ord for KubeVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.as_str(), other.pre.as_str()) {
            (one, other) if one == other => Ordering::Equal,
            ("", _) => Ordering::Greater,
            (_, "") => Ordering::Less,
            (one, other) => identifiers(one).cmp(&identifiers(other)),
        })
    }
}

impl PartialOrd for KubeVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Numbers come before words.
fn identifiers(pre: &str) -> Vec<(bool, u64, &str)> {
    let read = |part| str::parse(part).map_or((true, 0, part), |number| (false, number, ""));
    pre.split('.').map(read).collect()
}

/// The tag of an image, as a version: registries have no `+`.
pub(super) fn tag_of(image: &str) -> String {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rsplit('/').next().unwrap_or_default();
    last.split_once(':').map_or(String::new(), |(_, tag)| tag.replacen('_', "+", 1))
}

/// What the rules look at. The versions have their `v`.
pub(super) struct SkewFacts<'a> {
    pub target: &'a str,
    /// Of the API servers.
    pub cluster: &'a str,
    /// The release that the agent is made for.
    pub own: &'a str,
    /// Nodes by the version of their kubelets.
    pub kubelets: &'a BTreeMap<String, Vec<String>>,
    pub allows_experimental: bool,
    pub allows_candidates: bool,
}

/// Complaints that nothing helps against, and those that `--force` makes warnings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SkewComplaints {
    pub fatal: Vec<String>,
    pub skippable: Vec<String>,
}

pub(super) fn complaints(facts: &SkewFacts<'_>) -> SkewComplaints {
    let mut found = SkewComplaints::default();
    let parse =
        |text: &str| KubeVersion::parse(text).ok_or_else(|| format!("couldn't parse version {text:?}"));
    let (target, cluster, own) = match (parse(facts.target), parse(facts.cluster), parse(facts.own)) {
        (Ok(target), Ok(cluster), Ok(own)) => (target, cluster, own),
        (target, cluster, own) => {
            found.fatal.extend([target, cluster, own].into_iter().filter_map(Result::err));
            return found;
        }
    };
    // What was never released may be tried.
    let mut add = |complaint: String| {
        let list = if target.pre.is_empty() { &mut found.fatal } else { &mut found.skippable };
        list.push(complaint);
    };
    let named = format!("Specified version to upgrade to {:?}", facts.target);
    if target.minor() > cluster.minor() + CONTROL_PLANE_SKEW {
        add(format!(
            "{named} is too high; the agent can upgrade only {CONTROL_PLANE_SKEW} minor version at a time"
        ));
    }
    if target.minor() + CONTROL_PLANE_SKEW < cluster.minor() {
        add(format!(
            "Specified version to downgrade to {:?} is too low; the agent can downgrade only {CONTROL_PLANE_SKEW} minor \
             version at a time",
            facts.target
        ));
    }
    // A patch release needs no other agent.
    if target.release() > own.release() {
        add(format!(
            "{named} is at least one minor release higher than the agent's minor release ({} > {}). Such an upgrade is \
             not supported",
            target.minor(),
            own.minor()
        ));
    }
    if target.release() < own.release() {
        found.skippable.push(format!(
            "The agent's release {} can only be used to upgrade to Kubernetes version {}.{}",
            facts.own,
            own.numbers[0],
            own.minor()
        ));
    }
    if target < cluster {
        found.skippable.push(format!("{named} is lower than the version of the cluster {:?}", facts.cluster));
    }
    let is_allowed = facts.allows_experimental || facts.allows_candidates && target.pre.starts_with("rc");
    if !target.pre.is_empty() && !is_allowed {
        found.skippable.push(format!(
            "{named} is an unstable version and such upgrades weren't allowed via setting the --allow-*-upgrades flags"
        ));
    }
    let is_old = |version: &&String| {
        KubeVersion::parse(version).is_none_or(|version| target.minor() > version.minor() + KUBELET_SKEW)
    };
    let old: Vec<&str> = facts.kubelets.keys().filter(is_old).map(String::as_str).collect();
    if !old.is_empty() {
        found.skippable.push(format!(
            "There are kubelets in this cluster that are too old that have these versions [{}]",
            old.join(" ")
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_semantic_versions() {
        let all = [
            "v1.35.9",
            "1.36.0-alpha.2",
            "v1.36.0-alpha.10",
            "v1.36.0-rc.0",
            "v1.36.0",
            "v1.36.2",
            "v1.100.0",
        ];
        let parsed: Vec<_> = all.iter().map(|text| KubeVersion::parse(text).unwrap()).collect();
        let mut sorted = parsed.clone();
        sorted.reverse();
        sorted.sort();
        assert_eq!(sorted, parsed);
        assert_eq!(KubeVersion::parse("v1.36.2+agent"), KubeVersion::parse("1.36.2"));
        for text in ["", "v1.36", "1.36.x", "stable", "1.2.3.4"] {
            assert_eq!(KubeVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn tags_are_read_from_names_of_images() {
        for (image, tag) in [
            ("registry.k8s.io/etcd:3.6.8-0", "3.6.8-0"),
            ("localhost:5000/kube-apiserver:v1.36.1_own", "v1.36.1+own"),
            ("localhost:5000/kube-apiserver", ""),
            ("a/b:v1@sha256:00", "v1"),
        ] {
            assert_eq!(tag_of(image), tag, "{image}");
        }
    }

    fn judged(target: &str, cluster: &str, kubelets: &[&str], allowed: (bool, bool)) -> SkewComplaints {
        let kubelets = kubelets.iter().map(|version| ((*version).to_owned(), vec!["a".to_owned()])).collect();
        complaints(&SkewFacts {
            target,
            cluster,
            own: "v1.36.0",
            kubelets: &kubelets,
            allows_experimental: allowed.0,
            allows_candidates: allowed.1,
        })
    }

    #[test]
    fn one_minor_release_at_a_time_and_not_back() {
        let kubelets = ["v1.36.0"];
        for (target, cluster) in [("v1.36.2", "v1.36.1"), ("v1.36.2", "v1.36.2"), ("v1.36.0", "v1.35.4")] {
            assert_eq!(judged(target, cluster, &kubelets, (false, false)), SkewComplaints::default());
        }
        for (target, cluster, fatal, skippable) in [
            ("v1.36.0", "v1.34.1", "too high; the agent can upgrade only 1 minor version", ""),
            ("v1.37.0", "v1.36.1", "minor release (37 > 36)", ""),
            ("v1.34.0", "v1.36.1", "too low; the agent can downgrade only 1 minor version", "lower than"),
            ("v1.35.0", "v1.36.1", "", "can only be used to upgrade to Kubernetes version 1.36"),
            ("v1.36.1", "v1.36.2", "", "\"v1.36.1\" is lower than the version of the cluster \"v1.36.2\""),
            ("v1.37.0-rc.1", "v1.36.1", "", "minor release (37 > 36)"),
            ("v1.36.0-rc.1", "v1.35.1", "", "is an unstable version"),
            ("1.36", "v1.35.1", "couldn't parse version \"1.36\"", ""),
        ] {
            let found = judged(target, cluster, &kubelets, (false, false));
            for (list, expected) in [(&found.fatal, fatal), (&found.skippable, skippable)] {
                let text = list.join("\n");
                assert!(
                    text.contains(expected) && text.is_empty() == expected.is_empty(),
                    "{target}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn unstable_versions_need_their_flag_and_no_old_kubelets() {
        for (target, allowed, complaints) in [
            ("v1.36.3-rc.1", (false, true), 0),
            ("v1.36.3-beta.1", (false, true), 1),
            ("v1.36.3-beta.1", (true, false), 0),
        ] {
            assert_eq!(judged(target, "v1.36.2", &[], allowed).skippable.len(), complaints, "{target}");
        }
        let found = judged("v1.36.2", "v1.36.1", &["v1.32.9", "v1.33.0", "what"], (false, false));
        assert_eq!(
            found.skippable,
            ["There are kubelets in this cluster that are too old that have these versions [v1.32.9 what]"]
        );
    }
}
