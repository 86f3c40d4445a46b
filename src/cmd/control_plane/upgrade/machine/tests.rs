//! Files of an upgrade in a directory of the test, and what a mirror pod says.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::*;
use crate::platform::testing::TempDir;

#[test]
fn a_mirror_pod_is_healthy_with_another_hash_and_ready() {
    let pod = |hash: &str, ready: &str, status: Value| {
        let mut pod = json!({
            "metadata": { "annotations": { CONFIG_HASH_ANNOTATION: hash } },
            "status": { "conditions": [{ "type": "Ready", "status": ready }], "containerStatuses": [{ "name": "etcd" }] },
        });
        let container = &mut pod["status"]["containerStatuses"][0];
        for (name, value) in status.as_object().into_iter().flatten() {
            container[name] = value.clone();
        }
        pod
    };
    let other = WaitedHash::Not("a");
    let judged = |pod: &Value, hash| judge(Some(pod), "etcd", hash);
    assert_eq!(judged(&pod("b", "True", json!({})), other), Ok(()));
    assert_eq!(judged(&pod("b", "True", json!({})), WaitedHash::Is("b")), Ok(()));
    assert_eq!(judged(&pod("b", "True", json!({})), WaitedHash::Is("")), Ok(()));
    let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } });
    let ended = json!({ "terminated": { "exitCode": 3, "message": "no such flag\n" } });
    for (pod, hash, expected) in [
        (pod("a", "True", json!({})), other, "has not taken the manifest"),
        (pod("b", "True", json!({})), WaitedHash::Is("a"), "has not taken the manifest"),
        (pod("b", "False", json!({ "state": { "running": {} } })), other, "runs and is not ready"),
        (
            pod("b", "False", json!({ "state": waiting, "lastState": ended })),
            other,
            "CrashLoopBackOff: back-off 10s; it ended with exit code 3 (no such flag)",
        ),
        (
            pod("b", "False", json!({ "state": { "terminated": { "exitCode": 1 } } })),
            other,
            "the container does not run; it ended with exit code 1",
        ),
    ] {
        let why = judged(&pod, hash).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
    assert!(judge(None, "etcd", other).unwrap_err().contains("no such pod"));
}

#[test]
fn manifests_are_compared_by_their_meaning() {
    let one = "kind: Pod\nmetadata: {name: a, creationTimestamp: null}\nspec: {containers: [{name: c}]}\nstatus: {}\n";
    let other = "metadata:\n  name: a\nkind: Pod\nspec:\n  containers:\n  - name: c\n    resources: {}\n";
    assert!(is_same_pod(one, other) && is_same_pod("x: [", "x: ["));
    assert!(!is_same_pod(one, &other.replace("name: c", "name: d")));
    assert!(!is_same_pod(one, "x: [") && !is_same_pod("x: [", "y: ["));
}

#[test]
fn backups_have_kubeadms_names_and_belong_to_their_owner() {
    let now = Timestamp::from_secs(1_795_305_600);
    let directory = TempDir::new();
    let path = backup_dir(directory.path(), "kubeadm-backup-manifests", now);
    assert!(path.ends_with("tmp/kubeadm-backup-manifests-2026-11-22-00-00-00"), "{}", path.display());
    store(&path.join("etcd.yaml"), "a: b\n").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join("etcd.yaml"))), (0o700, 0o600));
    assert_eq!(text_of(&path.join("etcd.yaml")).unwrap().as_deref(), Some("a: b\n"));
    assert_eq!(text_of(&path.join("none")).unwrap(), None);
    assert!(interrupted(directory.path()).unwrap().is_none());
    directory.put("tmp/agent-upgrade.json", "{}");
    let why = interrupted(directory.path()).unwrap_err().to_string();
    assert!(why.contains("tmp/agent-upgrade.json: version: must be a text: compare"), "{why}");
}

#[test]
fn etcds_data_is_copied_as_it_is() {
    let directory = TempDir::new();
    let at = |name: &str| directory.path().join(name);
    for (name, text) in [("etcd/member/snap/db", "data"), ("etcd/member/wal/0.wal", "log")] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        directory.put(name, text);
    }
    fs::set_permissions(at("etcd/member/snap/db"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(size(&at("etcd")).unwrap(), 7);
    copy(&at("etcd"), &at("copy")).unwrap();
    assert_eq!(fs::read_to_string(at("copy/member/wal/0.wal")).unwrap(), "log");
    let mode = fs::metadata(at("copy/member/snap/db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(copy(&at("none"), &at("other")).is_err() && size(&at("none")).is_err());
}
