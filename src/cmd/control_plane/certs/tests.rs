//! The table of certificates, and the names in them.

use std::net::IpAddr;

use super::super::Paths;
use super::super::config::read::{Documents, HostFacts, settle};
use super::*;

fn settings(lines: &str) -> InitSettings {
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {{name: cp1}}\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n{lines}"
    );
    let host = HostFacts {
        hostname: "box".to_owned(),
        addresses: vec![IpAddr::from([192, 0, 2, 10])],
        token: "abcdef.0123456789abcdef".to_owned(),
        version: "v1.36.0".to_owned(),
        cri_socket: "unix:///run/agent/cri.sock".to_owned(),
    };
    settle(&Documents::parse(&text).unwrap(), &host, &Paths::system()).unwrap().0
}

fn names(base: &str, settings: &InitSettings) -> String {
    let spec = CERTS.iter().find(|spec| spec.base == base).unwrap();
    let leaf = leaf(spec, settings);
    let addresses: Vec<String> = leaf.addresses.iter().map(ToString::to_string).collect();
    format!("{} {}", leaf.names.join(" "), addresses.join(" "))
}

#[test]
fn serving_certificates_are_for_kubeadms_names() {
    let plain = settings("");
    let kubernetes =
        "kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local";
    assert_eq!(names("apiserver", &plain), format!("cp1 {kubernetes} 10.96.0.1 192.0.2.10"));
    for base in ["etcd/server", "etcd/peer"] {
        assert_eq!(names(base, &plain), "cp1 localhost 192.0.2.10 127.0.0.1 ::1");
    }
    let more = settings(
        "controlPlaneEndpoint: api.example.com:8443\napiServer: {certSANs: ['*.Example.com', 192.0.2.10, 2001:db8::1]}\n\
         networking: {serviceSubnet: 10.8.0.0/16, dnsDomain: edge.local}\n\
         etcd: {local: {serverCertSANs: [a.b, 192.0.2.7], peerCertSANs: [z]}}\n",
    );
    assert_eq!(
        names("apiserver", &more),
        "*.example.com api.example.com cp1 kubernetes kubernetes.default kubernetes.default.svc \
         kubernetes.default.svc.edge.local 10.8.0.1 192.0.2.10 2001:db8::1"
    );
    assert_eq!(names("etcd/server", &more), "a.b cp1 localhost 192.0.2.10 127.0.0.1 ::1 192.0.2.7");
    assert_eq!(names("etcd/peer", &more), "cp1 localhost z 192.0.2.10 127.0.0.1 ::1");
    let by_address = settings("controlPlaneEndpoint: '[2001:db8::5]:6443'\n");
    assert!(names("apiserver", &by_address).ends_with("10.96.0.1 192.0.2.10 2001:db8::5"));
}

#[test]
fn every_certificate_is_signed_by_one_before_it() {
    let plain = settings("");
    let mut authorities = Vec::new();
    for spec in &CERTS {
        let leaf = leaf(spec, &plain);
        if spec.signer.is_empty() {
            authorities.push(spec.base);
            assert_eq!(leaf.common_name, spec.common_name);
        } else {
            assert!(authorities.contains(&spec.signer), "{}", spec.base);
        }
        assert!(leaf.organizations.is_empty(), "{}", spec.base);
    }
    let made: Vec<_> = CERTS.iter().map(|spec| (spec.base, leaf(spec, &plain))).collect();
    let usages = |base: &str| {
        let (_, leaf) = made.iter().find(|(name, _)| *name == base).unwrap();
        (leaf.common_name.as_str(), leaf.is_server, leaf.is_client)
    };
    assert_eq!(usages("apiserver"), ("kube-apiserver", true, false));
    assert_eq!(usages("apiserver-etcd-client"), ("kube-apiserver-etcd-client", false, true));
    assert_eq!(usages("etcd/server"), ("cp1", true, true));
    assert_eq!(usages("etcd/healthcheck-client"), ("kube-etcd-healthcheck-client", false, true));
}
