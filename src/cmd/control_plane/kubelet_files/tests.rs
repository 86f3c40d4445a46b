//! Flags, their file, and what of the configuration is the machine's.

use std::net::IpAddr;

use super::super::Paths;
use super::super::config::read::{Documents, HostFacts, settle};
use super::*;

fn settings(text: &str) -> InitSettings {
    let host = HostFacts {
        hostname: "box".to_owned(),
        addresses: vec![IpAddr::from([192, 0, 2, 10])],
        token: "abcdef.0123456789abcdef".to_owned(),
        version: "v1.36.0".to_owned(),
        cri_socket: "unix:///run/agent/cri.sock".to_owned(),
    };
    let text = format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n{text}");
    settle(&Documents::parse(&text).unwrap(), &host, &Paths::system()).unwrap().0
}

#[test]
fn flags_name_what_differs_and_the_users_win() {
    assert_eq!(environment(&flags(&settings(""), "box")), "KUBELET_KUBEADM_ARGS=\"\"\n");
    let other = settings("nodeRegistration: {name: cp1, kubeletExtraArgs: [{name: v, value: '4'}]}");
    assert_eq!(
        environment(&flags(&other, "box")),
        "KUBELET_KUBEADM_ARGS=\"--hostname-override=cp1 --v=4\"\n"
    );
    let own =
        settings("nodeRegistration: {name: cp1, kubeletExtraArgs: [{name: hostname-override, value: x}]}");
    assert_eq!(flags(&own, "box"), ["--hostname-override=x"]);
    let gate = settings(
        "---\n{apiVersion: kubeadm.k8s.io/v1beta4, kind: ClusterConfiguration, featureGates: {NodeLocalCRISocket: false}}",
    );
    assert_eq!(flags(&gate, "box"), ["--container-runtime-endpoint=unix:///run/agent/cri.sock"]);
}

#[test]
fn a_machine_without_systemd_has_no_driver_of_that_name() {
    let made = |text: &str, has_resolved, has_systemd| {
        let made = configuration(&settings(text), &Machine { has_resolved, has_systemd });
        (made["cgroupDriver"].clone(), made["resolvConf"].clone())
    };
    assert_eq!(made("", true, true), (json!("systemd"), json!("/run/systemd/resolve/resolv.conf")));
    assert_eq!(made("", false, false), (json!("cgroupfs"), Value::Null));
    let given = "---\n{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, cgroupDriver: systemd, \
                 resolvConf: /r}";
    assert_eq!(made(given, true, false), (json!("systemd"), json!("/r")));
}

#[test]
fn a_configuration_of_a_cluster_is_recognised() {
    assert!(is_cluster_node("authentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}"));
    for text in ["", "staticPodPath: /x", "authentication: {x509: {clientCAFile: ''}}"] {
        assert!(!is_cluster_node(text), "{text}");
    }
}

#[test]
fn another_life_of_certificates_is_for_their_renewal_too() {
    let flags = |hours: i64| renewal(GoDuration::from_secs(hours * 3600));
    assert!(flags(8760).is_empty());
    assert_eq!(flags(100), ["--control-plane-cert-validity-period=100h"]);
    assert!(renewal(GoDuration::from_secs(600)).is_empty(), "the agent renews for an hour or longer");
}
