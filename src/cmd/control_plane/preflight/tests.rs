//! What settings demand of a machine, and which images are pulled.

use std::path::PathBuf;

use super::super::config::read::{Documents, HostFacts, settle};
use super::*;

fn settings(text: &str) -> InitSettings {
    let host = HostFacts {
        hostname: "box".to_owned(),
        addresses: vec![IpAddr::from([192, 0, 2, 10])],
        token: "abcdef.0123456789abcdef".to_owned(),
        version: "v1.36.0".to_owned(),
        cri_socket: OWN_SOCKET.to_owned(),
    };
    let text = format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n{text}");
    settle(&Documents::parse(&text).unwrap(), &host, &Paths::system()).unwrap().0
}

fn cluster(text: &str) -> InitSettings {
    settings(&format!(
        "---\n{{apiVersion: kubeadm.k8s.io/v1beta4, kind: ClusterConfiguration, {text}}}\n---\n\
         apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: 11250\nhealthzPort: 11248\n\
         failSwapOn: true\n"
    ))
}

/// The checks of an agent that runs with its defaults.
fn purpose_of(settings: &InitSettings) -> Purpose {
    let checks = check_options(settings, &ControlPlaneOptions::default()).unwrap();
    purpose(settings, &Paths::system(), &resolve(&checks).unwrap())
}

#[test]
fn the_settings_say_what_is_checked() {
    let defaults = purpose_of(&settings(""));
    assert_eq!(
        defaults.needs,
        ClusterNeeds {
            host: "192.0.2.10".to_owned(),
            version: "v1.36.0".to_owned(),
            bind_port: 6443,
            cidrs: vec!["10.96.0.0/12".to_owned()],
            manifests: PathBuf::from("/etc/kubernetes/manifests"),
            etcd_dir: Some(PathBuf::from("/var/lib/etcd")),
            external_etcd: None,
        }
    );
    let ports = |purpose: &Purpose| purpose.ports.iter().map(|port| port.port).collect::<Vec<_>>();
    assert_eq!((ports(&defaults), defaults.node_name.as_str()), (vec![10248, 10250], "box"));
    assert!(defaults.is_embedded && !defaults.fail_swap_on);
    let other = cluster(
        "networking: {podSubnet: '10.244.0.0/16,fd00:1::/56', serviceSubnet: '10.96.0.0/12,fd00:2::/112'}, \
         etcd: {external: {endpoints: ['https://e:2379'], caFile: /a, certFile: /b, keyFile: /c}}",
    );
    let given = purpose_of(&other);
    assert_eq!(given.needs.cidrs, ["10.96.0.0/12", "fd00:2::/112", "10.244.0.0/16", "fd00:1::/56"]);
    let etcd = given.needs.external_etcd.clone().unwrap();
    assert_eq!((etcd.endpoints, given.needs.etcd_dir.clone()), (vec!["https://e:2379".to_owned()], None));
    assert_eq!((ports(&given), given.fail_swap_on), (vec![11248, 11250], true));
    // Certificates that are downloaded are not here yet.
    let with_key = instance(given.clone(), true);
    assert_eq!((with_key.task, with_key.needs.external_etcd), (PreflightTask::Instance, None));
    assert_eq!(instance(given.clone(), false).needs, given.needs);
    let node = settings(
        "nodeRegistration: {name: cp1, criSocket: unix:///run/c.sock, ignorePreflightErrors: [Mem]}\n\
         localAPIEndpoint: {bindPort: 7443, advertiseAddress: 'fd00::1'}",
    );
    let given = purpose_of(&node);
    assert_eq!((given.node_name.as_str(), given.endpoint.as_str()), ("cp1", "unix:///run/c.sock"));
    assert_eq!((given.needs.host.as_str(), given.needs.bind_port), ("fd00::1", 7443));
    let mut findings = [PreflightFinding::error("Mem", "", "little")];
    check_options(&node, &ControlPlaneOptions::default()).unwrap().ignored.apply(&mut findings);
    assert!(findings[0].text().contains("[WARNING Mem]"));
}

#[test]
fn images_are_kubeadms_and_the_agents_runtime_has_no_pause() {
    let names = |settings: &InitSettings, is_own| wanted_images(settings, is_own).join(" ");
    assert_eq!(
        names(&settings(""), false),
        "registry.k8s.io/kube-apiserver:v1.36.0 registry.k8s.io/kube-controller-manager:v1.36.0 \
         registry.k8s.io/kube-scheduler:v1.36.0 registry.k8s.io/kube-proxy:v1.36.0 \
         registry.k8s.io/coredns/coredns:v1.14.2 registry.k8s.io/pause:3.10.2 registry.k8s.io/etcd:3.6.8-0"
    );
    assert!(!names(&settings(""), true).contains("pause"));
    let less = cluster(
        "imageRepository: r/x, dns: {disabled: true}, proxy: {disabled: true}, \
         etcd: {external: {endpoints: ['http://e:2379']}}",
    );
    assert_eq!(
        names(&less, false),
        "r/x/kube-apiserver:v1.36.0 r/x/kube-controller-manager:v1.36.0 r/x/kube-scheduler:v1.36.0 r/x/pause:3.10.2"
    );
}

#[test]
fn images_are_pulled_unless_a_setting_or_the_state_says_no() {
    let why = |policy, is_dry, is_own, answers: bool| reason_to_skip(policy, is_dry, is_own, &|| answers);
    for policy in ["Always", "IfNotPresent"] {
        assert_eq!(why(policy, false, false, false), None, "another runtime has to be there");
        assert_eq!(why(policy, false, true, true), None);
        assert!(why(policy, false, true, false).unwrap().contains("when the static pods start"));
        assert!(why(policy, true, false, true).unwrap().starts_with("Would pull"));
    }
    assert!(why("Never", true, false, true).unwrap().contains("imagePullPolicy"));
}
