//! `--patches`: files that change what kubeadm's phases write, by target and kind in their names.
//!
//! Owns the reading of the directory, the names, and which patch is applied how.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use crate::cmd::init::InitError;
use crate::codec::yaml::yaml_to_values;
use crate::model::api::schema::Schema;
use crate::model::ordered::Sortable as _;
use crate::serve::localapi::patch::schema::Shape;
use crate::serve::localapi::patch::{json_patch, merge_patch, strategic};

pub(crate) const KUBELET: &str = "kubeletconfiguration";
pub(crate) const COREDNS: &str = "corednsdeployment";
const TARGETS: [&str; 6] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", KUBELET, COREDNS];
/// Directories below each other.
const DEEPEST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Strategic,
    Merge,
    Json,
}

impl PatchKind {
    fn media_type(self) -> &'static str {
        match self {
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }

    /// What is said of a patch.
    pub(crate) fn applied_to(self, target: &str) -> String {
        format!("[patches] Applied patch of type {:?} to target {target:?}\n", self.media_type())
    }
}

/// The patches of a directory in the order of their application.
#[derive(Clone, Default)]
pub(crate) struct Patches(Vec<(&'static str, PatchKind, Value)>);

/// Target and kind of a file's name: `etcd0+merge.yaml`. `None`: it is of no interest.
fn parse(name: &str) -> Result<Option<(&'static str, PatchKind)>, String> {
    let Some(stem) = name.strip_suffix(".json").or_else(|| name.strip_suffix(".yaml")) else {
        return Ok(None);
    };
    let Some(target) = TARGETS.into_iter().find(|target| stem.starts_with(target)) else { return Ok(None) };
    let Some((_, kind)) = stem.split_once('+') else { return Ok(Some((target, PatchKind::Strategic))) };
    match kind {
        "strategic" => Ok(Some((target, PatchKind::Strategic))),
        "merge" => Ok(Some((target, PatchKind::Merge))),
        "json" => Ok(Some((target, PatchKind::Json))),
        _ => Err(format!(
            "unknown or missing patch type after '+' in {name:?}: must be strategic, merge or json"
        )),
    }
}

/// What a directory has.
pub(crate) struct PatchFiles {
    pub patches: Patches,
    /// Names of files.
    pub found: Vec<String>,
    pub ignored: Vec<String>,
}

/// Reads a directory.
pub(crate) fn read(directory: &Path) -> Result<PatchFiles, InitError> {
    let mut read = PatchFiles { patches: Patches::default(), found: Vec::new(), ignored: Vec::new() };
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| InitError::File { action: "read", path, source }
    };
    let about = directory.symlink_metadata().map_err(failed(directory))?;
    if !about.is_dir() {
        return Err(failed(directory)(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let mut files = Vec::new();
    walk(directory, 0, &mut files).map_err(failed(directory))?;
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).map_err(failed(&file))?;
        let wrong = |why: String| InitError::ControlPlane(format!("{}: {why}", file.display()));
        match parse(&name).map_err(wrong)? {
            Some((target, kind)) if !text.trim().is_empty() => {
                let documents = yaml_to_values(&text, true).map_err(|error| wrong(error.to_string()))?;
                read.patches.0.extend(documents.into_iter().map(|patch| (target, kind, patch)));
                read.found.push(name);
            }
            _ => read.ignored.push(name),
        }
    }
    Ok(read)
}

/// All files below a directory in the order of their paths.
fn walk(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    entries.order_by(Ord::cmp);
    for entry in entries {
        if entry.symlink_metadata()?.is_dir() {
            if depth < DEEPEST {
                walk(&entry, depth + 1, files)?;
            }
        } else {
            files.push(entry);
        }
    }
    Ok(())
}

impl Patches {
    /// The patched object, and the kinds of patches that were applied.
    pub(crate) fn applied(&self, target: &str, mut object: Value) -> Result<(Value, Vec<PatchKind>), String> {
        let mut kinds = Vec::new();
        let mut schema = None;
        for (_, kind, patch) in self.0.iter().filter(|(of, ..)| *of == target) {
            let of = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let (version, name) = (of("apiVersion"), of("kind"));
            let patch = patch.clone();
            let changed = match kind {
                PatchKind::Json => json_patch::apply(object, patch),
                PatchKind::Merge => Ok(merge_patch::apply(object, patch)),
                PatchKind::Strategic => {
                    let schema = schema.get_or_insert_with(Schema::load);
                    strategic::apply(object, patch, Shape::of_kind(schema, &version, &name))
                }
            };
            object = changed
                .map_err(|error| format!("could not apply the patch of target {target:?}: {error}"))?;
            kinds.push(*kind);
        }
        Ok((object, kinds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_files_say_target_and_kind() {
        for (name, expected) in [
            ("etcd.yaml", Some(("etcd", PatchKind::Strategic))),
            ("kube-apiserver0+merge.yaml", Some(("kube-apiserver", PatchKind::Merge))),
            ("kube-scheduler-b+json.json", Some(("kube-scheduler", PatchKind::Json))),
            ("kubeletconfiguration+strategic.yaml", Some((KUBELET, PatchKind::Strategic))),
            ("corednsdeployment.json", Some((COREDNS, PatchKind::Strategic))),
            ("kube-proxy.yaml", None),
            ("etcd.yml", None),
            ("README", None),
        ] {
            assert_eq!(parse(name).unwrap(), expected, "{name}");
        }
        assert!(parse("etcd+xml.yaml").unwrap_err().contains("after '+'"));
        assert!(parse("etcd+.yaml").is_err());
    }

    #[test]
    fn patches_of_a_target_are_applied_in_order_and_know_lists() {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": {"containers": [{"name": "etcd", "image": "a", "command": ["etcd"]}], "hostNetwork": true},
        });
        let patches = Patches(vec![
            ("etcd", PatchKind::Strategic, json!({"spec": {"containers": [{"name": "etcd", "image": "b"}]}})),
            ("kube-scheduler", PatchKind::Merge, json!({"spec": null})),
            ("etcd", PatchKind::Merge, json!({"spec": {"hostNetwork": null, "priority": 1}})),
            (
                "etcd",
                PatchKind::Json,
                json!([{"op": "add", "path": "/spec/containers/0/command/-", "value": "--x"}]),
            ),
        ]);
        let (changed, kinds) = patches.applied("etcd", pod).unwrap();
        assert_eq!(
            changed["spec"],
            json!({"containers": [{"name": "etcd", "image": "b", "command": ["etcd", "--x"]}], "priority": 1})
        );
        assert_eq!(kinds, [PatchKind::Strategic, PatchKind::Merge, PatchKind::Json]);
        let kubelet = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "clusterDNS": ["a"]});
        let patches =
            Patches(vec![(KUBELET, PatchKind::Strategic, json!({"clusterDNS": ["b"], "maxPods": 5}))]);
        let (changed, _) = patches.applied(KUBELET, kubelet).unwrap();
        assert_eq!((&changed["clusterDNS"], &changed["maxPods"]), (&json!(["b"]), &json!(5)));
        let bad = Patches(vec![("etcd", PatchKind::Json, json!([{"op": "remove", "path": "/none"}]))]);
        assert!(bad.applied("etcd", json!({})).unwrap_err().contains("\"etcd\""));
    }
}
