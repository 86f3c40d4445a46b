use std::fs;

use super::*;
use crate::agent::control_plane::sign::{Leaf, Signer};
use crate::cmd::cli::yaml;
use crate::cmd::control_plane::kubeconfigs::{certificate, document};
use crate::cmd::control_plane::objects;
use crate::model::types::Timestamp;
use crate::platform::testing::TempDir;

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);
const DAY: u64 = 86_400;

/// A directory with an authority, the API server's certificate, and `admin.conf`.
fn machine() -> TempDir {
    let directory = TempDir::new();
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
    directory
}

/// What a command says, on the directory unless its line has no place.
fn said(directory: &TempDir, line: &str) -> Result<String, String> {
    let at = directory.path().display();
    let line = if line.starts_with("certificate-key") {
        line.to_owned()
    } else {
        format!("{line} --cert-dir {at} --kubeconfig-dir {at}")
    };
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let given = CommandWords::parse(&words, &OPTIONS).map_err(|error| error.to_string())?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let environment = Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
    command(&mut InitSession { environment }, &given).map_err(|error| chain(&error))?;
    Ok(String::from_utf8(out).unwrap() + &String::from_utf8(err).unwrap())
}

#[test]
fn renewed_certificates_are_the_same_for_another_year() {
    let directory = machine();
    let at = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let before = (at("apiserver.crt"), at("apiserver.key"), at("admin.conf"));
    let said = said(&directory, "renew all").unwrap();
    assert!(said.contains("certificate for serving the Kubernetes API renewed\n"), "{said}");
    assert!(said.contains("MISSING! certificate for serving etcd\n"), "{said}");
    assert!(said.contains("You must restart the kube-apiserver"), "{said}");
    assert!(at("apiserver.key") != before.1 && at("admin.conf") != before.2);
    let der = pem_blocks(&at("apiserver.crt"), CERTIFICATE).remove(0);
    let (names, addresses) = x509::alternative_names(&der);
    assert_eq!((names, addresses), (vec!["edge.example".to_owned()], vec!["192.0.2.7".parse().unwrap()]));
    let left = x509::not_after(&der).unwrap().saturating_since(NOW).as_secs();
    assert!(left.abs_diff(365 * DAY) < 600, "{left}");
    let directories = Directories { certs: directory.path().into(), confs: directory.path().into() };
    let admin = Place::all().into_iter().find(|(name, _)| name == "admin.conf").unwrap().1;
    let der = pem_blocks(&admin.certificate(&directories).unwrap().unwrap(), CERTIFICATE).remove(0);
    let subject = x509::subject(&der).unwrap();
    assert_eq!(subject.common_name, "kubernetes-admin");
    assert_eq!(subject.organizations, ["kubeadm:cluster-admins"]);
}

#[test]
fn without_the_authoritys_key_nothing_is_changed() {
    let directory = machine();
    let before = fs::read_to_string(directory.path().join("apiserver.crt")).unwrap();
    directory.remove("ca.key");
    assert_eq!(
        said(&directory, "renew apiserver").unwrap(),
        "Detected external ca, certificate for serving the Kubernetes API can't be renewed\n"
    );
    assert_eq!(fs::read_to_string(directory.path().join("apiserver.crt")).unwrap(), before);
    directory.put("ca.key", "broken");
    assert!(said(&directory, "renew apiserver").unwrap_err().contains("apiserver"));
    let why = said(&directory, "renew other").unwrap_err();
    assert!(why.contains("\"other\"") && why.contains("etcd-server"), "{why}");
}

#[test]
fn a_file_says_how_long_and_for_which_algorithm() {
    let directory = machine();
    let config = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
                  certificateValidityPeriod: 48h\nencryptionAlgorithm: ECDSA-P384\n";
    directory.put("cluster.yaml", config);
    let file = directory.join("cluster.yaml");
    said(&directory, &format!("renew apiserver --config {}", file.display())).unwrap();
    let der = |name: &str| {
        let pem = fs::read_to_string(directory.path().join(name)).unwrap();
        pem_blocks(&pem, CERTIFICATE).remove(0)
    };
    let days = |name: &str| x509::not_after(&der(name)).unwrap().saturating_since(NOW).as_secs() / DAY;
    assert_eq!(days("apiserver.crt"), 2);
    let p384 = [0x06, 5, 0x2b, 0x81, 0x04, 0x00, 0x22];
    assert!(der("apiserver.crt").windows(p384.len()).any(|bytes| bytes == p384));
    said(&directory, &format!("renew apiserver --validity-period 72h --config {}", file.display())).unwrap();
    assert_eq!(days("apiserver.crt"), 3);
}

#[test]
fn the_report_lists_all_places() {
    let directory = machine();
    let report = said(&directory, "check-expiration --kubeconfig x").unwrap();
    assert_eq!(report.matches("!MISSING!").count(), 11, "{report}");
    assert!(report.contains("admin.conf"), "{report}");
    assert!(report.contains("--kubeconfig has no effect"), "{report}");
    let key = said(&directory, "certificate-key").unwrap();
    assert!(objects::parse_certificate_key(key.trim()).is_ok(), "{key}");
}

#[test]
fn an_option_of_another_subcommand_is_refused() {
    let directory = machine();
    for (line, named) in [
        ("", "subcommand is required"),
        ("certificate-key --cert-dir x", "invalid option '--cert-dir' for \"certificate-key\""),
        ("check-expiration --validity-period 1h", "invalid option '--validity-period'"),
        ("renew all -o json", "invalid option '--output' for \"renew\""),
        ("renew all --validity-period 0", "--validity-period"),
        ("generate-csr --kubeconfig x", "invalid option '--kubeconfig'"),
        ("check-expiration -o wide", "wide"),
    ] {
        let why = said(&directory, line).unwrap_err();
        assert!(why.contains(named), "{line}: {why}");
    }
}
