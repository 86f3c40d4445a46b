use std::os::unix::fs::{PermissionsExt, symlink};

use rcgen::CertificateParams;

use super::*;
use crate::codec::yaml::yaml_to_values;
use crate::platform::testing::TempDir;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn open(directory: &TempDir) -> PairFiles {
    PairFiles::open(directory.path(), "kubelet-client").unwrap()
}

#[test]
fn a_pair_is_kept_as_upstream_keeps_it() {
    let directory = TempDir::new();
    let files = open(&directory);
    assert_eq!(files.current().unwrap(), None);
    files.update("CERT 1\n", "KEY 1\n", NOW).unwrap();
    files.update("CERT 2", "KEY 2", NOW.saturating_add(std::time::Duration::from_secs(61))).unwrap();
    assert_eq!(files.current().unwrap().as_deref(), Some("CERT 2\nKEY 2\n"));
    let current = fs::read_link(files.current_path()).unwrap();
    assert_eq!(current, directory.join("kubelet-client-2027-01-15-08-01-01.pem"));
    assert_eq!(fs::metadata(&current).unwrap().permissions().mode() & 0o777, 0o600);
    let earlier = fs::read_to_string(directory.join("kubelet-client-2027-01-15-08-00-00.pem")).unwrap();
    assert_eq!(earlier, "CERT 1\nKEY 1\n", "nothing is deleted");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
}

#[test]
fn a_half_done_rotation_is_completed() {
    let directory = TempDir::new();
    fs::write(directory.join("kubelet-client-new.pem"), "NEW").unwrap();
    symlink(directory.join("kubelet-client-new.pem"), directory.join("kubelet-client-updated.pem")).unwrap();
    let files = open(&directory);
    assert_eq!(files.current().unwrap().as_deref(), Some("NEW"));
    assert!(!directory.join("kubelet-client-updated.pem").exists());
    // With a current pair the leftover has to wait for the next update, as upstream.
    symlink(directory.join("nothing"), directory.join("kubelet-client-updated.pem")).unwrap();
    let files = open(&directory);
    assert_eq!(files.current().unwrap().as_deref(), Some("NEW"));
    files.update("CERT", "KEY", NOW).unwrap();
    assert_eq!(files.current().unwrap().as_deref(), Some("CERT\nKEY\n"));
}

#[test]
fn a_file_in_the_place_of_a_link_is_an_error() {
    let directory = TempDir::new();
    let files = open(&directory);
    fs::write(files.current_path(), "MINE").unwrap();
    let error = files.update("CERT", "KEY", NOW).unwrap_err().to_string();
    assert!(error.contains("to be a symlink but it is a file"), "{error}");
    assert_eq!(files.current().unwrap().as_deref(), Some("MINE"));
    let other = TempDir::new();
    fs::write(other.join("kubelet-client.crt"), "C").unwrap();
    assert_eq!(open(&other).current().unwrap(), None, "its key is missing");
    fs::write(other.join("kubelet-client.key"), "K").unwrap();
    assert_eq!(open(&other).current().unwrap().as_deref(), Some("C\nK"));
}

#[test]
fn a_pending_key_stays_until_its_certificate_comes() {
    let directory = TempDir::new();
    let files = open(&directory);
    let key = files.pending_key().unwrap();
    let path = directory.join("kubelet-client.key.tmp");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(open(&directory).pending_key().unwrap().serialize_der(), key.serialize_der());
    let issued = |key: &KeyPair| CertificateParams::new(Vec::new()).unwrap().self_signed(key).unwrap().pem();
    let other = issued(&KeyPair::generate().unwrap());
    assert!(matches!(files.complete(&other, NOW), Err(PairError::OtherKey)));
    assert_eq!(files.current().unwrap(), None);
    files.complete(&issued(&key), NOW).unwrap();
    assert!(!path.exists());
    let pair = files.current().unwrap().unwrap();
    assert_eq!(
        KeyPair::from_pem(&pair[pair.find("-----BEGIN PRIVATE").unwrap()..]).unwrap().serialize_der(),
        key.serialize_der()
    );
    fs::write(&path, "torn").unwrap();
    let young = files.pending_key().unwrap();
    assert_ne!(young.serialize_der(), key.serialize_der());
    files.drop_pending_key();
    files.drop_pending_key();
    assert_ne!(files.pending_key().unwrap().serialize_der(), young.serialize_der());
}

#[test]
fn a_kubeconfig_names_cluster_and_pair() {
    let cluster = ClusterEntry {
        server: "https://10.0.0.1:6443".into(),
        authority_data: "Q0E=".into(),
        server_name: "kubernetes".into(),
        ..ClusterEntry::default()
    };
    let text = kubeconfig_of_pair(&cluster, Path::new("/pki/kubelet-client-current.pem"));
    let found = yaml_to_values(&text, true).unwrap().remove(0);
    assert_eq!(
        found,
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "default-cluster", "cluster": {
                "server": "https://10.0.0.1:6443",
                "certificate-authority-data": "Q0E=",
                "tls-server-name": "kubernetes",
            } }],
            "contexts": [{ "name": "default-context", "context": {
                "cluster": "default-cluster", "namespace": "default", "user": "default-auth",
            } }],
            "current-context": "default-context",
            "users": [{ "name": "default-auth", "user": {
                "client-certificate": "/pki/kubelet-client-current.pem",
                "client-key": "/pki/kubelet-client-current.pem",
            } }],
        })
    );
    let files = ClusterEntry { authority_file: "/pki/ca.crt".into(), insecure: true, ..cluster };
    let found = yaml_to_values(&kubeconfig_of_pair(&files, Path::new("/p")), true).unwrap().remove(0);
    let entry = &found["clusters"][0]["cluster"];
    assert_eq!(entry["certificate-authority"], "/pki/ca.crt");
    assert_eq!(entry["insecure-skip-tls-verify"], true);
    assert!(entry.get("certificate-authority-data").is_none());
}
