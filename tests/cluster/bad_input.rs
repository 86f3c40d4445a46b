//! `agent init --control-plane` on a machine where it cannot work: it says why, and changes nothing that is there.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use super::control_plane::{ADDRESS, said};
use super::machine::Host;
use super::whole::{host, try_init};

fn refused(host: &Host) -> String {
    let said = try_init(host, "").expect_err("it cannot work");
    let manifests: Vec<_> = fs::read_dir("/etc/kubernetes/manifests").expect("a directory").collect();
    assert!(manifests.is_empty(), "{manifests:?}: {said}");
    assert!(!Path::new("/var/lib/kubelet/kubeadm-flags.env").exists(), "{said}");
    said
}

#[test]
fn what_cannot_work_is_refused_with_its_reason() {
    let host = host();
    let taken = TcpListener::bind((ADDRESS, 6443)).expect("take the API server's port");
    let why = refused(&host);
    assert!(why.contains("[ERROR Port-6443]") && why.contains("Port 6443 is in use"), "{why}");
    assert!(!Path::new("/etc/kubernetes/pki").exists(), "{why}");
    drop(taken);

    // An authority with the key of another.
    let pki = |name: &str| Path::new("/etc/kubernetes/pki").join(name);
    let config = host.path("init.yaml").display().to_string();
    let certificates = ["init", "phase", "certs", "all", "--config", &config];
    host.run("agent", &certificates).unwrap_or_else(|error| panic!("{error}"));
    let (certificate, key) = (fs::read(pki("ca.crt")).expect("read"), fs::read(pki("ca.key")).expect("read"));
    let mut other = Command::new("openssl");
    other
        .args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"])
        .arg(pki("ca.key"));
    said(&mut other).unwrap_or_else(|error| panic!("{error}"));
    let why = refused(&host);
    assert!(why.contains("ca.crt") && why.contains("do not belong together"), "{why}");
    assert_eq!(fs::read(pki("ca.crt")).expect("read"), certificate);
    fs::write(pki("ca.key"), key).expect("write");

    // What a power cut or a careless copy leaves.
    let whole = fs::read(pki("etcd/server.crt")).expect("read");
    fs::write(pki("etcd/server.crt"), &whole[..whole.len() / 2]).expect("write");
    let why = refused(&host);
    assert!(why.contains("etcd/server") && why.contains("certs/etcd-server"), "{why}");
    fs::write(pki("etcd/server.crt"), whole).expect("write");
    let sa = fs::read(pki("sa.key")).expect("read");
    fs::write(pki("sa.key"), "").expect("write");
    let why = refused(&host);
    assert!(why.contains("/etc/kubernetes/pki/sa.key"), "{why}");
    fs::write(pki("sa.key"), sa).expect("write");
    fs::remove_file(pki("front-proxy-client.key")).expect("remove");
    let why = refused(&host);
    assert!(why.contains("front-proxy-client.key: no such file"), "{why}");
}
