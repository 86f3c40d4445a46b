//! The user id ranges of pods with a user namespace, on disk and in memory.
//!
//! Owns `<pods>/<uid>/userns` and the allocation.

use std::path::{Path, PathBuf};
use std::process::Command;

use tokio::sync::Mutex;

use crate::model::api::pod::Pod;
use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;
use crate::platform::rt;
use crate::platform::sys::dir::make_dir;
use crate::platform::sys::durable::write_durably;
use crate::pod::users::{NodeIds, NodeIdsError, RangeError, UserRanges, format_mappings, parse_mappings};
use crate::runtime::IdRange;

/// In the pod's directory, as the kubelet has it.
const MAPPINGS_FILE: &str = "userns";
/// The user whose subordinate ids are the node's share, if the user and the tool exist.
const KUBELET_USER: &str = "kubelet";
const SUBORDINATE_IDS_TOOL: &str = "getsubids";

/// The pod's user id range could not be set up.
#[derive(Debug, thiserror::Error)]
pub(in crate::pod) enum UserNamespaceError {
    #[error("create user namespace: {0}")]
    Allocate(RangeError),
    /// A pod's mapping file is invalid. The ids of its processes are unknown, so no pod gets a range.
    #[error("record pod mappings for existing pod {pod:?}: {error}")]
    Record { pod: String, error: RangeError },
    #[error("{action} {path:?}")]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// The node's share of ids could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    #[error(transparent)]
    Ids(#[from] NodeIdsError),
    /// The tool failed; it may query a server that is not reachable now.
    #[error("error retrieving additional ids for user \"{KUBELET_USER}\": {0}")]
    Tool(String),
    #[error("mismatched subuids and subgids for user \"{KUBELET_USER}\"")]
    Mismatch,
}

/// The node's share: the output of `getsubids kubelet` if the user and the tool exist, else all ids but the
/// first ones.
pub(crate) async fn node_ids(ids_per_pod: u32, max_pods: u32) -> Result<NodeIds, ShareError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let find = move || {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let tool = std::env::split_paths(&path).map(|dir| dir.join(SUBORDINATE_IDS_TOOL));
        match tool.into_iter().find(|tool| tool.is_file()) {
            Some(tool) if has_user(&users, KUBELET_USER) => subordinate_ids(&tool).map(Some),
            _ => Ok(None),
        }
    };
    match rt::blocking("find subordinate ids", find).await? {
        Some(output) => Ok(NodeIds::from_getsubids(&output, ids_per_pod, max_pods)?),
        None => Ok(NodeIds::all(ids_per_pod, max_pods)?),
    }
}

fn has_user(passwd: &str, name: &str) -> bool {
    passwd.lines().any(|line| line.split(':').next() == Some(name))
}

/// What the tool prints, the same for users and groups.
fn subordinate_ids(tool: &Path) -> Result<String, ShareError> {
    let ask = |arguments: &[&str]| {
        let output = Command::new(tool).args(arguments).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(output.status.to_string());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let users = ask(&[KUBELET_USER]).map_err(ShareError::Tool)?;
    let groups = ask(&["-g", KUBELET_USER]).map_err(ShareError::Tool)?;
    if users == groups { Ok(users) } else { Err(ShareError::Mismatch) }
}

/// The ranges of all pods of this node. Nothing is read before the first pod asks for one.
pub(super) struct UserNamespaces {
    pods_dir: PathBuf,
    ids: NodeIds,
    /// Locked until a new range is on disk, so that it is not taken for the range of a removed pod.
    ranges: Mutex<Option<UserRanges>>,
}

impl UserNamespaces {
    pub(super) fn new(pods_dir: PathBuf, ids: NodeIds) -> Self {
        Self { pods_dir, ids, ranges: Mutex::default() }
    }

    /// The pod's range: the one it has, or else a free one, which is stored on disk before it is used. `None`
    /// for a pod with the node's users.
    pub(super) async fn range_of(&self, pod: &Pod) -> Result<Option<IdRange>, UserNamespaceError> {
        if pod.spec.host_users != Some(false) {
            return Ok(None);
        }
        let uid = &pod.metadata.uid;
        let mut ranges = self.ranges.lock().await;
        let ranges = match &mut *ranges {
            Some(ranges) => ranges,
            none => none.insert(self.load().await?),
        };
        if let Some(range) = ranges.of(uid) {
            return Ok(Some(range));
        }
        if ranges.is_full() {
            let on_disk = self.files().await?;
            ranges.retain(&on_disk.into_iter().map(|(uid, _)| uid).into_set());
        }
        let range = ranges.allocate(uid).map_err(UserNamespaceError::Allocate)?;
        let directory = self.pods_dir.join(uid.as_str());
        let written = rt::blocking("write user namespace", move || write_mappings(&directory, range)).await;
        if let Err(error) = written {
            ranges.release(uid);
            return Err(error);
        }
        Ok(Some(range))
    }

    /// The pod has ended and its directory is gone.
    pub(super) async fn release(&self, uid: &PodUid) {
        if let Some(ranges) = &mut *self.ranges.lock().await {
            ranges.release(uid);
        }
    }

    /// Loads the ranges that earlier processes allocated.
    async fn load(&self) -> Result<UserRanges, UserNamespaceError> {
        let mut ranges = UserRanges::new(self.ids);
        for (uid, text) in self.files().await? {
            parse_mappings(&text)
                .and_then(|range| ranges.record(&uid, range))
                .map_err(|error| UserNamespaceError::Record { pod: uid.to_string(), error })?;
        }
        Ok(ranges)
    }

    async fn files(&self) -> Result<Vec<(PodUid, String)>, UserNamespaceError> {
        let pods_dir = self.pods_dir.clone();
        rt::blocking("read user namespaces", move || read_mappings(&pods_dir)).await
    }
}

/// The files of all pods that have one, by pod.
fn read_mappings(pods_dir: &Path) -> Result<Vec<(PodUid, String)>, UserNamespaceError> {
    let fail = |action, path: &Path| {
        let path = path.to_owned();
        move |source| UserNamespaceError::File { action, path, source }
    };
    let pods = match std::fs::read_dir(pods_dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        pods => pods.map_err(fail("read", pods_dir))?,
    };
    let mut files = Vec::new();
    for pod in pods {
        let pod = pod.map_err(fail("read", pods_dir))?;
        let path = pod.path().join(MAPPINGS_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => files.push((PodUid::from(pod.file_name().to_string_lossy().as_ref()), text)),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) => {}
            Err(error) => return Err(fail("read", &path)(error)),
        }
    }
    Ok(files)
}

/// Atomic and durable: two pods with the same user ids would be worse than a failure.
fn write_mappings(directory: &Path, range: IdRange) -> Result<(), UserNamespaceError> {
    let fail = |action, path: &Path| {
        let path = path.to_owned();
        move |source| UserNamespaceError::File { action, path, source }
    };
    let path = directory.join(MAPPINGS_FILE);
    make_dir(directory, 0o750).map_err(fail("create", directory))?;
    write_durably(&path, format_mappings(range).as_bytes(), 0o644).map_err(fail("write", &path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::model::api::pod::{ObjectMeta, PodSpec};
    use crate::platform::testing::TempDir;

    const UNIT: u32 = 65_536;

    fn pod(uid: &str, host_users: Option<bool>) -> Pod {
        Pod {
            metadata: ObjectMeta { uid: uid.into(), ..ObjectMeta::default() },
            spec: PodSpec { host_users, ..PodSpec::default() },
            ..Pod::default()
        }
    }

    fn two_ranges(scratch: &TempDir) -> UserNamespaces {
        UserNamespaces::new(scratch.0.clone(), NodeIds::new(UNIT, 2 * UNIT, UNIT, 2).unwrap())
    }

    #[tokio::test]
    async fn a_range_is_kept_over_restarts_and_given_back_at_the_end() {
        let scratch = TempDir::new();
        let users = two_ranges(&scratch);
        assert_eq!(users.range_of(&pod("n", None)).await.unwrap(), None);
        assert_eq!(users.range_of(&pod("n", Some(true))).await.unwrap(), None);
        assert!(!scratch.0.join("n").exists(), "a pod with the node's users leaves no trace");
        let (a, b, c) = (pod("a", Some(false)), pod("b", Some(false)), pod("c", Some(false)));
        let first = users.range_of(&a).await.unwrap().unwrap();
        assert_eq!(first, IdRange { host: UNIT, length: UNIT });
        assert_eq!(users.range_of(&a).await.unwrap(), Some(first), "the same as before");
        users.range_of(&b).await.unwrap().unwrap();
        let again = two_ranges(&scratch);
        let error = again.range_of(&c).await.unwrap_err().to_string();
        assert_eq!(error, "create user namespace: could not find an empty slot to allocate a user namespace");
        assert_eq!(again.range_of(&a).await.unwrap(), Some(first), "also to the next process");
        std::fs::remove_dir_all(scratch.0.join("a")).unwrap();
        assert_eq!(again.range_of(&c).await.unwrap(), Some(first), "whose directory is gone needs none");
        std::fs::remove_dir_all(scratch.0.join("b")).unwrap();
        again.release(&"b".into()).await;
        assert_eq!(again.range_of(&a).await.unwrap().unwrap().host, 2 * UNIT);
    }

    #[tokio::test]
    async fn user_namespace_is_refused_while_a_mapping_is_unreadable() {
        let scratch = TempDir::new();
        std::fs::create_dir_all(scratch.0.join("a")).unwrap();
        std::fs::write(scratch.0.join("a/userns"), "{").unwrap();
        let users = two_ranges(&scratch);
        let error = users.range_of(&pod("b", Some(false))).await.unwrap_err().to_string();
        assert_eq!(
            error,
            "record pod mappings for existing pod \"a\": invalid user namespace mappings file: it is not JSON"
        );
        std::fs::remove_file(scratch.0.join("a/userns")).unwrap();
        assert!(users.range_of(&pod("b", Some(false))).await.unwrap().is_some(), "found out anew");
    }

    #[tokio::test]
    async fn a_range_that_did_not_get_to_the_disk_is_nobodys() {
        let scratch = TempDir::new();
        std::fs::write(scratch.0.join("a"), "in the way").unwrap();
        let users = two_ranges(&scratch);
        assert!(users.range_of(&pod("a", Some(false))).await.is_err());
        assert_eq!(users.range_of(&pod("b", Some(false))).await.unwrap().unwrap().host, UNIT);
    }

    #[test]
    fn the_tool_must_say_the_same_of_users_and_groups() {
        let scratch = TempDir::new();
        let tool = scratch.0.join("getsubids");
        let script = |text: &str| {
            std::fs::write(&tool, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
            subordinate_ids(&tool).map_err(|error| error.to_string())
        };
        assert_eq!(script("echo 0: kubelet 65536 65536"), Ok("0: kubelet 65536 65536\n".to_owned()));
        assert_eq!(script("echo $1"), Err("mismatched subuids and subgids for user \"kubelet\"".to_owned()));
        assert_eq!(
            script("exit 1"),
            Err("error retrieving additional ids for user \"kubelet\": exit status: 1".to_owned())
        );
    }

    #[test]
    fn a_user_is_known_by_its_whole_name() {
        let passwd = "root:x:0:0::/:/bin/sh\nkubelet2:x:1:1::/:/bin/sh\n";
        assert!(has_user(passwd, "root") && has_user(passwd, "kubelet2"));
        assert!(!has_user(passwd, "kubelet"));
    }
}
