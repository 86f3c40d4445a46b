//! Tables: documents in, settings, warnings and complaints out.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::Paths;
use super::read::{Documents, HostFacts, settle};
use super::{Etcd, InitSettings};

fn host() -> HostFacts {
    HostFacts {
        hostname: "Box".to_owned(),
        addresses: vec![IpAddr::from([192, 0, 2, 10]), "2001:db8::10".parse().unwrap()],
        token: "abcdef.0123456789abcdef".to_owned(),
        version: "v1.36.0".to_owned(),
        cri_socket: "unix:///run/agent/cri.sock".to_owned(),
    }
}

fn read(text: &str) -> Result<(InitSettings, Vec<String>), String> {
    settle(&Documents::parse(text)?, &host(), &Paths::system())
}

/// Settings of a ClusterConfiguration with these lines.
fn cluster(lines: &str) -> Result<(InitSettings, Vec<String>), String> {
    read(&format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n{lines}"))
}

fn init(lines: &str) -> Result<(InitSettings, Vec<String>), String> {
    read(&format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n{lines}"))
}

#[test]
fn empty_documents_get_defaults_and_are_rendered_as_kubeadms() {
    let (settings, warnings) = cluster("").unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!(settings.node.name, "box");
    assert_eq!(settings.node.cri_socket, "unix:///run/agent/cri.sock");
    assert_eq!(
        settings.node.taints,
        [json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"})]
    );
    assert_eq!(settings.endpoint.url(), "https://192.0.2.10:6443");
    assert_eq!(settings.tokens[0].text(), "abcdef.0123456789abcdef");
    assert_eq!(settings.tokens[0].ttl.to_string(), "24h0m0s");
    assert_eq!(settings.tokens[0].groups, ["system:bootstrappers:kubeadm:default-node-token"]);
    let expected = json!({
        "apiServer": {},
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "caCertificateValidityPeriod": "87600h0m0s",
        "certificateValidityPeriod": "8760h0m0s",
        "certificatesDir": "/etc/kubernetes/pki",
        "clusterName": "kubernetes",
        "controllerManager": {},
        "dns": {},
        "encryptionAlgorithm": "ECDSA-P256",
        "etcd": { "local": { "dataDir": "/var/lib/etcd" } },
        "imageRepository": "registry.k8s.io",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": "v1.36.0",
        "networking": { "dnsDomain": "cluster.local", "serviceSubnet": "10.96.0.0/12" },
        "proxy": {},
        "scheduler": {},
    });
    assert_eq!(settings.cluster.document(), expected);
}

#[test]
fn a_full_cluster_configuration_comes_back_as_it_was() {
    let text = "
apiServer:
  certSANs: [API.example.com, 192.0.2.99]
  extraArgs: [{name: audit-log-path, value: /log}, {name: audit-log-path, value: /other}]
  extraEnvs: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
  extraVolumes: [{name: log, hostPath: /var/log/a, mountPath: /log, pathType: DirectoryOrCreate}]
caCertificateValidityPeriod: 876h
certificateValidityPeriod: 24h
certificatesDir: /pki
clusterName: edge
controlPlaneEndpoint: api.example.com
controllerManager: {extraArgs: [{name: node-cidr-mask-size-ipv4, value: '26'}]}
dns: {imageTag: v1, disabled: true}
encryptionAlgorithm: ECDSA-P384
etcd: {external: {endpoints: ['https://192.0.2.1:2379'], caFile: /a, certFile: /b, keyFile: /c}}
featureGates: {NodeLocalCRISocket: false}
imageRepository: registry.example.com/k8s
kubernetesVersion: 1.36.2
networking: {podSubnet: 10.244.0.0/16, serviceSubnet: 10.96.0.0/16, dnsDomain: edge.local}
proxy: {disabled: true}
scheduler: {extraArgs: [{name: v, value: ''}]}
";
    let (settings, warnings) = cluster(text).unwrap();
    assert_eq!(warnings, [""; 0]);
    let document = settings.cluster.document();
    let at = |path: &str| document.pointer(path).cloned().unwrap_or(Value::Null);
    for (path, expected) in [
        ("/apiServer/certSANs", json!(["api.example.com", "192.0.2.99"])),
        (
            "/apiServer/extraArgs",
            json!([{"name": "audit-log-path", "value": "/log"}, {"name": "audit-log-path", "value": "/other"}]),
        ),
        ("/apiServer/extraEnvs/0/valueFrom/fieldRef/apiVersion", json!("v1")),
        (
            "/apiServer/extraVolumes",
            json!([{"name": "log", "hostPath": "/var/log/a", "mountPath": "/log", "pathType": "DirectoryOrCreate"}]),
        ),
        ("/certificateValidityPeriod", json!("24h0m0s")),
        ("/controlPlaneEndpoint", json!("api.example.com:6443")),
        ("/dns", json!({"disabled": true, "imageTag": "v1"})),
        ("/etcd/external/httpEndpoints", json!(["https://192.0.2.1:2379"])),
        ("/etcd/external/keyFile", json!("/c")),
        ("/featureGates", json!({"NodeLocalCRISocket": false})),
        ("/kubernetesVersion", json!("v1.36.2")),
        ("/networking/podSubnet", json!("10.244.0.0/16")),
        ("/proxy", json!({"disabled": true})),
        ("/scheduler/extraArgs", json!([{"name": "v", "value": ""}])),
    ] {
        assert_eq!(at(path), expected, "{path}");
    }
    let again =
        settle(&Documents { cluster: document.clone(), ..Documents::default() }, &host(), &Paths::system());
    assert_eq!(again.unwrap().0.cluster.document(), document);
    assert_eq!(settings.cluster.server(&settings.endpoint), "https://api.example.com:6443");
    assert_eq!(settings.cluster.dns_image(), "registry.example.com/k8s/coredns:v1");
    assert_eq!(settings.cluster.etcd_image(), "registry.example.com/k8s/etcd:3.6.8-0");
}

#[test]
fn what_a_document_says_of_this_node_is_read() {
    let text = "
bootstrapTokens:
- {token: aaaaaa.bbbbbbbbbbbbbbbb, ttl: 0s, usages: [signing], groups: []}
- {token: cccccc.dddddddddddddddd, expires: '2027-01-01T00:00:00Z', description: later}
certificateKey: e6a2eb8581237ab72a4f494f30285ec12a9694d750b9785706a83bfcbbbd2204
localAPIEndpoint: {advertiseAddress: '::', bindPort: 7443}
nodeRegistration:
  name: Edge-1
  criSocket: /run/containerd/containerd.sock
  taints: []
  kubeletExtraArgs: [{name: node-labels, value: a=b}]
  ignorePreflightErrors: [Swap]
  imagePullPolicy: Never
  imagePullSerial: false
patches: {directory: /patches}
skipPhases: [addon/kube-proxy]
timeouts: {controlPlaneComponentHealthCheck: 10m, kubernetesAPICall: 2m}
";
    // Groups of a token without authentication are refused, and an empty list has the default.
    let error = init(text).map(drop).unwrap_err();
    assert!(error.starts_with("bootstrapTokens[0].groups: Invalid value"), "{error}");
    let (settings, warnings) = init(&text.replace("[signing]", "[authentication]")).unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("without URL scheme"));
    assert!(warnings[1].contains("nodeRegistration.imagePullSerial"));
    assert_eq!(settings.node.name, "edge-1");
    assert_eq!(settings.node.cri_socket, "unix:///run/containerd/containerd.sock");
    assert_eq!(settings.node.taints, [Value::Null; 0]);
    assert_eq!(settings.node.kubelet_extra_args, [("node-labels".to_owned(), "a=b".to_owned())]);
    assert_eq!(settings.node.ignore_preflight_errors, ["Swap"]);
    assert_eq!(settings.node.image_pull_policy, "Never");
    assert_eq!(settings.endpoint.url(), "https://[2001:db8::10]:7443");
    assert!(settings.tokens[0].ttl.is_zero() && settings.tokens[0].expires.is_none());
    assert_eq!(
        settings.tokens[1].expires.map(crate::model::types::Timestamp::to_rfc3339).as_deref(),
        Some("2027-01-01T00:00:00Z")
    );
    assert_eq!(settings.tokens[1].description, "later");
    assert_eq!(settings.timeouts.control_plane.to_string(), "10m0s");
    assert_eq!(settings.timeouts.api_call.to_string(), "2m0s");
    assert_eq!(settings.skip_phases, ["addon/kube-proxy"]);
    assert_eq!(settings.patches.to_str(), Some("/patches"));
}

#[test]
fn the_configurations_of_components_are_kubeadms() {
    let text = "
networking: {podSubnet: 10.244.0.0/16, serviceSubnet: 10.100.0.0/16}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDomain: other
maxPods: 20
rotateCertificates: false
syncFrequency: 30s
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
";
    let (settings, warnings) = cluster(text).unwrap();
    assert_eq!(
        warnings,
        [
            "The recommended value for \"clusterDomain\" in \"KubeletConfiguration\" is: \"cluster.local\"; the provided \
          value is: \"other\""
        ]
    );
    let (kubelet, proxy) = (&settings.kubelet, &settings.kube_proxy);
    for (path, expected) in [
        ("/clusterDNS", json!(["10.100.0.10"])),
        ("/clusterDomain", json!("other")),
        ("/cgroupDriver", json!("systemd")),
        ("/rotateCertificates", json!(true)),
        ("/syncFrequency", json!("30s")),
        ("/fileCheckFrequency", json!("0s")),
        ("/authentication/x509/clientCAFile", json!("/etc/kubernetes/pki/ca.crt")),
        ("/authentication/webhook", json!({"enabled": true, "cacheTTL": "0s"})),
        ("/staticPodPath", json!("/etc/kubernetes/manifests")),
        ("/maxPods", json!(20)),
    ] {
        assert_eq!(kubelet.pointer(path), Some(&expected), "{path}");
    }
    assert_eq!(kubelet.as_object().map(serde_json::Map::len), Some(30));
    for (path, expected) in [
        ("/mode", json!("nftables")),
        ("/clusterCIDR", json!("10.244.0.0/16")),
        ("/bindAddress", json!("0.0.0.0")),
        ("/conntrack/min", Value::Null),
        ("/winkernel/sourceVip", json!("")),
        ("/clientConnection/kubeconfig", json!("/var/lib/kube-proxy/kubeconfig.conf")),
    ] {
        assert_eq!(proxy.pointer(path), Some(&expected), "{path}");
    }
}

#[test]
fn an_old_document_is_read_with_a_warning() {
    let text = "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n\
                apiServer: {extraArgs: {b: '2', a: '1'}, timeoutForControlPlane: 9m0s}\n";
    let (settings, warnings) = read(text).unwrap();
    assert!(warnings[0].contains("deprecated API spec"), "{warnings:?}");
    let args = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
    assert_eq!(settings.cluster.api_server.args, args);
    assert_eq!(settings.timeouts.control_plane.to_string(), "9m0s");
    assert!(matches!(settings.cluster.etcd, Etcd::Local(_)));
}

#[test]
fn unknown_fields_are_named_and_foreign_documents_ignored() {
    let (_, warnings) = cluster(
        "clustername: x\nnetworking: {podsubnet: 10.0.0.0/16}\napiServer: {extraVolumes: [{name: a, path: /b}]}\n\
         featureGates: {NodeLocalCRISocket: true}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
    )
    .unwrap();
    let fields: Vec<&str> =
        warnings.iter().filter_map(|warning| warning.rsplit_once("field ").map(|(_, at)| at)).collect();
    assert_eq!(fields, ["\"apiServer.extraVolumes[0].path\"", "\"clustername\"", "\"networking.podsubnet\""]);
    assert!(warnings.last().unwrap().contains("ignored configuration document"), "{warnings:?}");
    let (_, warnings) =
        cluster("featureGates: {RootlessControlPlane: true}\ncertificateValidityPeriod: 90000h\n").unwrap();
    assert!(warnings[0].contains("has no effect") && warnings[1].contains("is more than"), "{warnings:?}");
    let (_, warnings) = init("nodeRegistration: {kubeletExtraArgs: [{name: v, val: '2'}]}\n").unwrap();
    assert!(warnings[0].contains("nodeRegistration.kubeletExtraArgs[0].val"), "{warnings:?}");
}

#[test]
fn what_cannot_work_is_refused_in_kubeadms_words() {
    for (lines, expected) in [
        ("encryptionAlgorithm: RSA-2048", "use ECDSA-P256"),
        (
            "featureGates: {PublicKeysECDSA: false}",
            "featureGates.PublicKeysECDSA: Invalid value: \"RSA-2048\"",
        ),
        ("networking: foo", "networking: Invalid value: \"foo\": must be an object"),
        ("etcd: {local: [a]}", "etcd.local: Invalid value: [\"a\"]: must be an object"),
        ("encryptionAlgorithm: DSA", "encryptionAlgorithm: Invalid value: \"DSA\""),
        ("kubernetesVersion: v1.30.0", "control plane version >= 1.35.0. Current version: v1.30.0"),
        ("kubernetesVersion: newest", "doesn't match patterns"),
        ("certificatesDir: pki", "certificatesDir: Invalid value: \"pki\": path is not absolute"),
        (
            "networking: {serviceSubnet: 10.96.0.0/30}",
            "subnet with 4 address(es) is too small, the minimum is 10",
        ),
        ("networking: {serviceSubnet: 10.0.0.0/8}", "specified service subnet is too large"),
        ("networking: {serviceSubnet: '10.0.0.0/16,10.1.0.0/16'}", "two CIDRs from each family"),
        ("networking: {serviceSubnet: ten}", "couldn't parse subnet"),
        ("networking: {podSubnet: 10.244.0.0/25}", "smaller than the size of node subnet with mask 24"),
        ("networking: {podSubnet: 10.0.0.0/7}", "difference is greater than 16"),
        ("networking: {dnsDomain: 'a b'}", "networking.dnsDomain: Invalid value: \"a b\""),
        ("featureGates: {Other: true}", "featureGates: Invalid value: \"Other\""),
        ("controlPlaneEndpoint: 'api:0'", "controlPlaneEndpoint: Invalid value"),
        ("apiServer: {certSANs: ['a b']}", "apiServer.certSANs[0]: Invalid value: \"a b\""),
        (
            "apiServer: {extraArgs: [{value: x}]}",
            "apiServer.extraArgs[0]: Invalid value: \"\": argument has no name",
        ),
        (
            "apiServer: {extraArgs: [{name: v, value: 4}]}",
            "apiServer.extraArgs[0].value: Invalid value: 4: must be a string",
        ),
        ("etcd: {local: {}, external: {endpoints: []}}", "not both"),
        ("etcd: {external: {endpoints: ['http://a:2379'], caFile: /a}}", "must be using the HTTPS scheme"),
        ("etcd: {external: {endpoints: ['https://a:2379'], certFile: /a}}", "both or none"),
        ("certificateValidityPeriod: soon", "certificateValidityPeriod: \"soon\" is not a duration"),
    ] {
        let error = cluster(lines).map(drop).unwrap_err();
        assert!(error.contains(expected), "{lines}: {error}");
    }
    for (lines, expected) in [
        ("bootstrapTokens: [{token: short}]", "bootstrapTokens[0].token: Invalid value: \"short\""),
        ("bootstrapTokens: [{usages: [other]}]", "bootstrapTokens[0].usages: Invalid value: \"other\""),
        ("bootstrapTokens: [{groups: [masters]}]", "bootstrapTokens[0].groups: Invalid value: \"masters\""),
        ("bootstrapTokens: [{ttl: 1h, expires: '2027-01-01T00:00:00Z'}]", "mutually exclusive"),
        ("certificateKey: abc", "certificateKey: Invalid value"),
        ("localAPIEndpoint: {bindPort: 70000}", "localAPIEndpoint.bindPort: Invalid value: 70000"),
        ("localAPIEndpoint: {advertiseAddress: box}", "must be ipv4 or ipv6 address"),
        ("nodeRegistration: {name: 'a_b'}", "nodeRegistration.name: Invalid value: \"a_b\""),
        (
            "nodeRegistration: {imagePullPolicy: Sometimes}",
            "nodeRegistration.imagePullPolicy: Unsupported value",
        ),
        ("nodeRegistration: {taints: x}", "nodeRegistration.taints: Invalid value: \"x\": must be a list"),
    ] {
        let error = init(lines).map(drop).unwrap_err();
        assert!(error.contains(expected), "{lines}: {error}");
    }
    for (text, expected) in [
        ("kind: InitConfiguration", "mandatory information"),
        ("apiVersion: kubeadm.k8s.io/v1beta2\nkind: InitConfiguration", "old API spec"),
        ("apiVersion: v1\nkind: Pod", "no InitConfiguration or ClusterConfiguration kind"),
        (
            "{apiVersion: kubeadm.k8s.io/v1beta4, kind: InitConfiguration}\n---\n\
             {apiVersion: kubeadm.k8s.io/v1beta4, kind: InitConfiguration}",
            "specified twice",
        ),
        ("apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration", "manual conversion"),
    ] {
        let error = read(text).map(drop).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let error = cluster("certificatesDir: pki\nnetworking: {serviceSubnet: ten}").map(drop).unwrap_err();
    assert!(error.starts_with('[') && error.contains(", networking.serviceSubnet"), "{error}");
    let alone = HostFacts { addresses: Vec::new(), ..host() };
    let error = settle(&Documents::default(), &alone, &Paths::system()).map(drop).unwrap_err();
    assert!(error.contains("--apiserver-advertise-address"), "{error}");
}
