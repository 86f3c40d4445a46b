//! What is known of an upgrade while it replaces static pods: enough to go on, or back, after a power cut.
//!
//! Pure: a record and its text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplacementRecord {
    /// To which the control plane is upgraded.
    pub version: String,
    /// When it began, in RFC 3339.
    pub began: String,
    /// The directory of the manifests before.
    pub backup: PathBuf,
    /// Of etcd's data; `None`: there is none.
    pub etcd_backup: Option<PathBuf>,
    /// Components that run as the new version wants them.
    pub replaced: Vec<String>,
    /// The one whose manifest is being replaced.
    pub replacing: Option<String>,
    /// Of the mirror pods before, by component.
    pub hashes: BTreeMap<String, String>,
}

impl ReplacementRecord {
    pub(super) fn to_text(&self) -> String {
        let path = |path: &Path| path.display().to_string();
        let value = json!({
            "version": self.version,
            "began": self.began,
            "backup": path(&self.backup),
            "etcdBackup": self.etcd_backup.as_deref().map(path),
            "replaced": self.replaced,
            "replacing": self.replacing,
            "hashes": self.hashes,
        });
        format!("{value:#}\n")
    }

    /// # Errors
    /// It is not the text of a record.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let part = |name: &str| {
            let text = value[name].as_str().filter(|text| !text.is_empty());
            text.map(str::to_owned).ok_or_else(|| format!("{name}: must be a text"))
        };
        let owned = |value: &Value| value.as_str().map(str::to_owned);
        let hashes = value["hashes"].as_object().into_iter().flatten();
        Ok(Self {
            version: part("version")?,
            began: part("began")?,
            backup: part("backup")?.into(),
            etcd_backup: owned(&value["etcdBackup"]).map(PathBuf::from),
            replaced: value["replaced"].as_array().into_iter().flatten().filter_map(owned).collect(),
            replacing: owned(&value["replacing"]),
            hashes: hashes.filter_map(|(name, hash)| Some((name.clone(), owned(hash)?))).collect(),
        })
    }

    pub(super) fn manifest(&self, component: &str) -> PathBuf {
        self.backup.join(format!("{component}.yaml"))
    }

    pub(super) fn hash(&self, component: &str) -> &str {
        self.hashes.get(component).map_or("", String::as_str)
    }

    /// The component in the middle is done.
    pub(super) fn has_replaced(&mut self, component: &str) {
        self.replacing = None;
        self.replaced.retain(|done| done != component);
        self.replaced.push(component.to_owned());
    }

    /// Components that a roll back puts back, the last one first. As in kubeadm, etcd stays unless it is the one that fails.
    pub(super) fn to_put_back(&self) -> Vec<String> {
        let etcd_fails = self.replacing.as_deref() == Some("etcd");
        let mut all: Vec<String> = self.replaced.iter().chain(&self.replacing).cloned().collect();
        all.retain(|component| component != "etcd" || etcd_fails);
        all.reverse();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> ReplacementRecord {
        ReplacementRecord {
            version: "v1.36.2".to_owned(),
            began: "2026-11-27T10:00:00Z".to_owned(),
            backup: "/b".into(),
            etcd_backup: Some("/e".into()),
            replaced: vec!["etcd".to_owned(), "kube-apiserver".to_owned()],
            replacing: Some("kube-scheduler".to_owned()),
            hashes: BTreeMap::from([("etcd".to_owned(), "1".to_owned())]),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let whole = record();
        assert_eq!(ReplacementRecord::parse(&whole.to_text()).unwrap(), whole);
        let little = ReplacementRecord {
            etcd_backup: None,
            replaced: Vec::new(),
            replacing: None,
            hashes: BTreeMap::new(),
            ..record()
        };
        assert_eq!(ReplacementRecord::parse(&little.to_text()).unwrap(), little);
        for text in ["", "{}", "[]", "{\"version\": \"v1\", \"began\": \"x\"}"] {
            assert!(ReplacementRecord::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn etcd_goes_back_only_if_it_fails_itself() {
        assert_eq!(record().to_put_back(), ["kube-scheduler", "kube-apiserver"]);
        let etcd = ReplacementRecord { replaced: Vec::new(), replacing: Some("etcd".to_owned()), ..record() };
        assert_eq!(etcd.to_put_back(), ["etcd"]);
    }
}
