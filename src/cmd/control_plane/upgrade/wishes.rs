//! What an upgrade is to do: flags, else the UpgradeConfiguration, else kubeadm's defaults.
//!
//! Pure: options and a document in, wishes or a complaint out.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::args::{ClusterUpgradeOptions, UpgradeVerb};
use super::versions::KubeVersion;
use crate::cmd::control_plane::config::fields::DocumentField;
use crate::model::duration::GoDuration;

const WHOLE: Duration = Duration::from_secs(1800);
const MANIFESTS: i64 = 300;
const CONTEXT_LINES: u64 = 3;

#[derive(Debug)]
pub(super) struct UpgradeWishes {
    /// With its `v`; `None`: none is given.
    pub version: Option<String>,
    pub renews: bool,
    pub has_etcd: bool,
    pub dry_run: bool,
    pub force: bool,
    /// Nothing is asked.
    pub yes: bool,
    pub allows_experimental: bool,
    pub allows_candidates: bool,
    pub prints_config: bool,
    pub skip_phases: Vec<String>,
    /// Checks, from both places.
    pub ignored: Vec<String>,
    /// Empty: none.
    pub patches: PathBuf,
    pub pull_policy: String,
    /// For one component.
    pub manifests: Duration,
    /// For all of it.
    pub whole: Duration,
    pub context_lines: usize,
    /// The timeouts of the document.
    pub timeouts: Value,
}

impl UpgradeWishes {
    /// `document` is empty without `--config`.
    pub(super) fn of(options: &ClusterUpgradeOptions, document: &Value) -> Result<Self, String> {
        let whole = DocumentField::of(document);
        let section = whole.at(match options.verb {
            UpgradeVerb::Plan => "plan",
            UpgradeVerb::Apply => "apply",
            UpgradeVerb::Node => "node",
            UpgradeVerb::Diff => "diff",
        });
        let switch = |flag: &str, field: &str, default: bool| match options.switch(flag) {
            Some(given) => Ok::<bool, String>(given),
            None => section.at(field).flag(default),
        };
        let version = match &options.version {
            Some(version) => version.clone(),
            None => section.at("kubernetesVersion").text()?,
        };
        let skipped = options.list("skip-phases");
        let mut ignored = options.list("ignore-preflight-errors");
        ignored.extend(section.at("ignorePreflightErrors").texts()?);
        let patches = match options.text("patches") {
            Some(given) => given.to_owned(),
            None => section.at("patches").at("directory").text()?,
        };
        let lines =
            section.at("contextLines").value.as_u64().or(section.at("diffContextLines").value.as_u64());
        let context_lines = match options.text("context-lines") {
            Some(given) => {
                given.parse().map_err(|_| format!("--context-lines {given:?}: must be a number of lines"))?
            }
            None => usize::try_from(lines.unwrap_or(CONTEXT_LINES)).unwrap_or(usize::MAX / 4),
        };
        let manifests = whole.at("timeouts").at("upgradeManifests");
        let manifests = manifests.duration(GoDuration::from_secs(MANIFESTS))?;
        let force = switch("force", "forceUpgrade", false)?;
        section.at("imagePullSerial").flag(true)?;
        Ok(Self {
            version: if version.is_empty() { None } else { Some(normal(&version)?) },
            renews: switch("certificate-renewal", "certificateRenewal", true)?,
            has_etcd: switch("etcd-upgrade", "etcdUpgrade", true)?,
            dry_run: switch("dry-run", "dryRun", false)?,
            force,
            yes: force || options.switch("yes") == Some(true),
            allows_experimental: switch("allow-experimental-upgrades", "allowExperimentalUpgrades", false)?,
            allows_candidates: switch("allow-release-candidate-upgrades", "allowRCUpgrades", false)?,
            prints_config: switch("print-config", "printConfig", false)?,
            skip_phases: if skipped.is_empty() { section.at("skipPhases").texts()? } else { skipped },
            ignored,
            patches: patches.into(),
            pull_policy: section.at("imagePullPolicy").text_or("IfNotPresent")?,
            manifests: positive(manifests).ok_or("timeouts.upgradeManifests: must be longer than 0s")?,
            whole: match options.text("timeout") {
                None => WHOLE,
                Some(given) => GoDuration::parse(given)
                    .ok()
                    .and_then(positive)
                    .ok_or_else(|| format!("--timeout {given:?}: must be a duration such as 10m"))?,
            },
            context_lines: context_lines.min(usize::MAX / 4),
            timeouts: match &document["timeouts"] {
                Value::Null => json!({}),
                given => given.clone(),
            },
        })
    }

    /// The version to upgrade to: by default the agent's release, or that of the cluster if it is later.
    pub(super) fn target(&self, own: &str, cluster: &str) -> String {
        let later = |one: &str, other: &str| KubeVersion::parse(one) > KubeVersion::parse(other);
        match &self.version {
            Some(version) => version.clone(),
            None if later(cluster, own) => cluster.to_owned(),
            None => own.to_owned(),
        }
    }
}

fn positive(time: GoDuration) -> Option<Duration> {
    (!time.is_negative() && !time.is_zero()).then(|| time.to_std())
}

/// No server is asked what a label such as `stable` means.
fn normal(version: &str) -> Result<String, String> {
    let plain = version.strip_prefix('v').unwrap_or(version);
    match KubeVersion::parse(plain) {
        Some(_) => Ok(format!("v{plain}")),
        None => Err(format!("couldn't parse version {version:?}: name a release such as v1.36.2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(line: &str, document: &Value) -> Result<UpgradeWishes, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let options = ClusterUpgradeOptions::parse(&words).map_err(|error| error.to_string())?;
        UpgradeWishes::of(&options, document)
    }

    #[test]
    fn flags_win_over_the_file_and_that_over_defaults() {
        let document = json!({
            "apply": {
                "kubernetesVersion": "1.36.1", "certificateRenewal": false, "etcdUpgrade": false, "forceUpgrade": true,
                "ignorePreflightErrors": ["Swap"], "skipPhases": ["addon"], "patches": {"directory": "/p"},
                "imagePullPolicy": "Never", "allowRCUpgrades": true, "printConfig": true, "dryRun": true,
            },
            "node": {"etcdUpgrade": false, "skipPhases": ["preflight"]},
            "diff": {"contextLines": 9, "kubernetesVersion": "v1.36.7"},
            "timeouts": {"upgradeManifests": "90s", "controlPlaneComponentHealthCheck": "8m0s"},
        });
        let found = wishes("apply", &document).unwrap();
        assert_eq!(found.version.as_deref(), Some("v1.36.1"));
        assert_eq!((found.renews, found.has_etcd, found.force, found.yes), (false, false, true, true));
        assert_eq!((found.allows_candidates, found.prints_config, found.dry_run), (true, true, true));
        assert_eq!((found.pull_policy.as_str(), found.patches.to_str()), ("Never", Some("/p")));
        assert_eq!(found.manifests, Duration::from_secs(90));
        assert_eq!(found.timeouts["controlPlaneComponentHealthCheck"], "8m0s");
        let found = wishes(
            "apply v1.36.3 --skip-phases preflight --ignore-preflight-errors Mem --timeout 20m",
            &document,
        )
        .unwrap();
        assert_eq!(found.version.as_deref(), Some("v1.36.3"));
        assert_eq!(
            (found.skip_phases, found.ignored),
            (vec!["preflight".to_owned()], vec!["Mem".to_owned(), "Swap".to_owned()])
        );
        assert_eq!(found.whole, Duration::from_secs(1200));
        assert!(!wishes("node", &document).unwrap().has_etcd);
        assert_eq!(wishes("diff", &document).unwrap().context_lines, 9);
        assert_eq!(wishes("diff -c 0", &json!({})).unwrap().context_lines, 0);
        let found = wishes("apply", &json!({})).unwrap();
        assert_eq!((found.version, found.renews, found.has_etcd, found.yes), (None, true, true, false));
        assert_eq!((found.manifests, found.whole), (Duration::from_secs(300), WHOLE));
    }

    #[test]
    fn the_version_is_the_agents_unless_the_cluster_is_ahead() {
        let none = wishes("plan", &json!({})).unwrap();
        assert_eq!(none.target("v1.36.0", "v1.35.4"), "v1.36.0");
        assert_eq!(none.target("v1.36.0", "v1.36.1"), "v1.36.1");
        let given = wishes("plan 1.36.2", &json!({})).unwrap();
        assert_eq!(given.target("v1.36.0", "v1.36.3"), "v1.36.2");
    }

    #[test]
    fn values_that_are_none_are_named() {
        for (line, document, expected) in [
            ("apply stable", json!({}), "couldn't parse version \"stable\""),
            ("apply --timeout 0", json!({}), "--timeout \"0\""),
            ("diff --context-lines x", json!({}), "--context-lines \"x\""),
            ("apply", json!({"timeouts": {"upgradeManifests": "0s"}}), "timeouts.upgradeManifests"),
            ("apply", json!({"apply": {"etcdUpgrade": "no"}}), "apply.etcdUpgrade"),
        ] {
            let why = wishes(line, &document).unwrap_err();
            assert!(why.contains(expected), "{line}: {why}");
        }
    }
}
