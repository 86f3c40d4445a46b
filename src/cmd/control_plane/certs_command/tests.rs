use std::fs;

use super::*;
use crate::agent::control_plane::sign::{Leaf, Signer};
use crate::cmd::cli::yaml;
use crate::cmd::control_plane::kubeconfigs::{certificate, document};
use crate::model::types::Timestamp;
use crate::platform::testing::TempDir;

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);
const DAY: u64 = 86_400;

/// A directory with an authority, the API server's certificate, and `admin.conf`.
fn machine() -> (TempDir, CertsOptions) {
    let directory = TempDir::new();
    let options = CertsOptions {
        directories: Directories { certs: directory.path().to_owned(), confs: directory.path().to_owned() },
        ..parse(&[]).unwrap()
    };
    let terms = Terms { algorithm: "ECDSA-P256", validity: GoDuration::from_secs(3600), now: NOW };
    let (authority, key) = Signer::create("kubernetes", terms).unwrap();
    directory.put("ca.crt", &authority.certificate);
    directory.put("ca.key", &key);
    let leaf = Leaf {
        common_name: "kube-apiserver".to_owned(),
        is_server: true,
        names: vec!["edge.example".to_owned()],
        addresses: vec!["192.0.2.7".parse().unwrap()],
        ..Leaf::default()
    };
    let pair = authority.sign(&leaf, terms).unwrap();
    directory.put("apiserver.crt", &pair.certificate);
    directory.put("apiserver.key", &pair.key);
    let user = Leaf {
        common_name: "kubernetes-admin".to_owned(),
        organizations: vec!["kubeadm:cluster-admins".to_owned()],
        is_client: true,
        ..Leaf::default()
    };
    let pair = authority.sign(&user, terms).unwrap();
    let made =
        document("c", "https://edge:6443", "kubernetes-admin", &authority.certificate, &certificate(&pair));
    directory.put("admin.conf", &yaml::to_string(&made));
    (directory, options)
}

fn run_command(options: &CertsOptions, words: &[&str]) -> (Result<(), InitError>, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let options = CertsOptions {
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        directories: options.directories.clone(),
        config: options.config.clone(),
        ..*options
    };
    let environment = Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
    let result = command(&mut InitSession { environment }, &options);
    (result, String::from_utf8(out).unwrap())
}

#[test]
fn renewed_certificates_are_the_same_for_another_year() {
    let (directory, options) = machine();
    let at = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let before = (at("apiserver.crt"), at("apiserver.key"), at("admin.conf"));
    let (result, said) = run_command(&options, &["renew", "all"]);
    result.unwrap();
    assert!(said.contains("certificate for serving the Kubernetes API renewed\n"), "{said}");
    assert!(said.contains("MISSING! certificate for serving etcd\n"), "{said}");
    assert!(said.contains("You must restart the kube-apiserver"), "{said}");
    assert!(at("apiserver.key") != before.1 && at("admin.conf") != before.2);
    let der = pem_blocks(&at("apiserver.crt"), CERTIFICATE).remove(0);
    let (names, addresses) = x509::alternative_names(&der);
    assert_eq!((names, addresses), (vec!["edge.example".to_owned()], vec!["192.0.2.7".parse().unwrap()]));
    let left = x509::not_after(&der).unwrap().saturating_since(NOW).as_secs();
    assert!(left.abs_diff(365 * DAY) < 600, "{left}");
    let admin = Place::all().into_iter().find(|(name, _)| name == "admin.conf").unwrap().1;
    let der = pem_blocks(&admin.certificate(&options.directories).unwrap().unwrap(), CERTIFICATE).remove(0);
    let subject = x509::subject(&der).unwrap();
    assert_eq!(subject.common_name, "kubernetes-admin");
    assert_eq!(subject.organizations, ["kubeadm:cluster-admins"]);
}

#[test]
fn without_the_authoritys_key_nothing_is_changed() {
    let (directory, options) = machine();
    let before = fs::read_to_string(directory.path().join("apiserver.crt")).unwrap();
    directory.remove("ca.key");
    let (result, said) = run_command(&options, &["renew", "apiserver"]);
    result.unwrap();
    assert_eq!(said, "Detected external ca, certificate for serving the Kubernetes API can't be renewed\n");
    assert_eq!(fs::read_to_string(directory.path().join("apiserver.crt")).unwrap(), before);
    directory.put("ca.key", "broken");
    assert!(run_command(&options, &["renew", "apiserver"]).0.unwrap_err().to_string().contains("apiserver"));
    let why = run_command(&options, &["renew", "other"]).0.unwrap_err().to_string();
    assert!(why.contains("\"other\"") && why.contains("etcd-server"), "{why}");
}

#[test]
fn the_report_lists_all_places() {
    let (_directory, options) = machine();
    let (result, said) = run_command(&options, &["check-expiration"]);
    result.unwrap();
    assert_eq!(said.matches("!MISSING!").count(), 11, "{said}");
    assert!(said.contains("admin.conf"), "{said}");
    let (result, key) = run_command(&options, &["certificate-key"]);
    result.unwrap();
    assert!(objects::parse_certificate_key(key.trim()).is_ok(), "{key}");
    assert!(run_command(&options, &[]).0.is_err());
}
