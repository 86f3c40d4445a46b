//! The pods, flag by flag.

use super::super::config::read::{Documents, HostFacts, settle};
use super::*;

fn settings(init: &str, cluster: &str) -> InitSettings {
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {{name: cp1}}\n{init}\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.2\n{cluster}"
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

fn made(component: &str, settings: &InitSettings, facts: &PodFacts) -> Value {
    pod(component, settings, &Paths::system(), facts).unwrap()
}

fn plain(component: &str, init: &str, cluster: &str) -> Value {
    made(component, &settings(init, cluster), &PodFacts::default())
}

/// Of the container.
fn at<'a>(pod: &'a Value, path: &str) -> &'a Value {
    pod.pointer(&format!("/spec/containers/0/{path}")).unwrap_or(&Value::Null)
}

fn flags(pod: &Value) -> Vec<&str> {
    at(pod, "command").as_array().unwrap().iter().filter_map(Value::as_str).collect()
}

#[test]
fn flags_are_kubeadms_in_the_order_of_their_names() {
    assert_eq!(
        flags(&plain(API_SERVER, "", "")),
        [
            "kube-apiserver",
            "--advertise-address=192.0.2.10",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--client-ca-file=/etc/kubernetes/pki/ca.crt",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-bootstrap-token-auth=true",
            "--etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt",
            "--etcd-certfile=/etc/kubernetes/pki/apiserver-etcd-client.crt",
            "--etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key",
            "--etcd-servers=https://127.0.0.1:2379",
            "--kubelet-client-certificate=/etc/kubernetes/pki/apiserver-kubelet-client.crt",
            "--kubelet-client-key=/etc/kubernetes/pki/apiserver-kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            "--proxy-client-cert-file=/etc/kubernetes/pki/front-proxy-client.crt",
            "--proxy-client-key-file=/etc/kubernetes/pki/front-proxy-client.key",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            "--secure-port=6443",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--service-account-key-file=/etc/kubernetes/pki/sa.pub",
            "--service-account-signing-key-file=/etc/kubernetes/pki/sa.key",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--tls-cert-file=/etc/kubernetes/pki/apiserver.crt",
            "--tls-private-key-file=/etc/kubernetes/pki/apiserver.key",
        ]
    );
    assert_eq!(
        flags(&plain(CONTROLLER_MANAGER, "", "networking: {podSubnet: 10.244.0.0/16}")),
        [
            "kube-controller-manager",
            "--allocate-node-cidrs=true",
            "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--bind-address=127.0.0.1",
            "--client-ca-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-cidr=10.244.0.0/16",
            "--cluster-name=kubernetes",
            "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
            "--controllers=*,bootstrapsigner,tokencleaner",
            "--kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--leader-elect=true",
            "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
            "--root-ca-file=/etc/kubernetes/pki/ca.crt",
            "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--use-service-account-credentials=true",
        ]
    );
    assert_eq!(
        flags(&plain(SCHEDULER, "", "")),
        [
            "kube-scheduler",
            "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf",
            "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
            "--bind-address=127.0.0.1",
            "--kubeconfig=/etc/kubernetes/scheduler.conf",
            "--leader-elect=true",
        ]
    );
    assert_eq!(
        flags(&plain(ETCD, "", "")),
        [
            "etcd",
            "--advertise-client-urls=https://192.0.2.10:2379",
            "--cert-file=/etc/kubernetes/pki/etcd/server.crt",
            "--client-cert-auth=true",
            "--data-dir=/var/lib/etcd",
            "--feature-gates=InitialCorruptCheck=true",
            "--initial-advertise-peer-urls=https://192.0.2.10:2380",
            "--initial-cluster=cp1=https://192.0.2.10:2380",
            "--key-file=/etc/kubernetes/pki/etcd/server.key",
            "--listen-client-urls=https://127.0.0.1:2379,https://192.0.2.10:2379",
            "--listen-metrics-urls=http://127.0.0.1:2381",
            "--listen-peer-urls=https://192.0.2.10:2380",
            "--name=cp1",
            "--peer-cert-file=/etc/kubernetes/pki/etcd/peer.crt",
            "--peer-client-cert-auth=true",
            "--peer-key-file=/etc/kubernetes/pki/etcd/peer.key",
            "--peer-trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt",
            "--snapshot-count=10000",
            "--trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt",
            "--watch-progress-notify-interval=5s",
        ]
    );
}

#[test]
fn a_pod_has_kubeadms_shape() {
    let pod = plain(SCHEDULER, "timeouts: {controlPlaneComponentHealthCheck: 4m1s}", "");
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {"component": "kube-scheduler", "tier": "control-plane"},
            "name": "kube-scheduler",
            "namespace": "kube-system",
        },
        "spec": {
            "containers": [{
                "command": at(&pod, "command"),
                "image": "registry.k8s.io/kube-scheduler:v1.36.2",
                "imagePullPolicy": "IfNotPresent",
                "livenessProbe": {
                    "failureThreshold": 8,
                    "httpGet": {"host": "127.0.0.1", "path": "/livez", "port": "probe-port", "scheme": "HTTPS"},
                    "initialDelaySeconds": 10,
                    "periodSeconds": 10,
                    "timeoutSeconds": 15,
                },
                "name": "kube-scheduler",
                "ports": [{"containerPort": 10259, "name": "probe-port", "protocol": "TCP"}],
                "readinessProbe": {
                    "failureThreshold": 3,
                    "httpGet": {"host": "127.0.0.1", "path": "/readyz", "port": "probe-port", "scheme": "HTTPS"},
                    "periodSeconds": 1,
                    "timeoutSeconds": 15,
                },
                "resources": {"requests": {"cpu": "100m"}},
                "startupProbe": {
                    "failureThreshold": 25,
                    "httpGet": {"host": "127.0.0.1", "path": "/livez", "port": "probe-port", "scheme": "HTTPS"},
                    "initialDelaySeconds": 10,
                    "periodSeconds": 10,
                    "timeoutSeconds": 15,
                },
                "volumeMounts": [
                    {"mountPath": "/etc/kubernetes/scheduler.conf", "name": "kubeconfig", "readOnly": true},
                ],
            }],
            "hostNetwork": true,
            "priority": 2_000_001_000,
            "priorityClassName": "system-node-critical",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [
                {"hostPath": {"path": "/etc/kubernetes/scheduler.conf", "type": "FileOrCreate"}, "name": "kubeconfig"},
            ],
        },
        "status": {},
    });
    assert_eq!(pod, expected);
    assert_eq!(
        plain(API_SERVER, "localAPIEndpoint: {bindPort: 7443}", "")["metadata"]["annotations"],
        json!({"kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint": "192.0.2.10:7443"})
    );
    let etcd = plain(ETCD, "", "");
    assert_eq!(
        etcd["metadata"]["annotations"],
        json!({"kubeadm.kubernetes.io/etcd.advertise-client-urls": "https://192.0.2.10:2379"})
    );
    assert_eq!(at(&etcd, "resources/requests"), &json!({"cpu": "100m", "memory": "100Mi"}));
    assert_eq!(at(&etcd, "volumeMounts/0/name"), "etcd-data");
    assert_eq!(etcd.pointer("/spec/volumes/0/name"), Some(&json!("etcd-certs")));
}

#[test]
fn what_the_user_adds_replaces_defaults() {
    let cluster = "
apiServer:
  extraArgs: [{name: v, value: '4'}, {name: secure-port, value: '1'}, {name: v, value: '5'}, {name: authorization-config, value: /a}]
  extraEnvs: [{name: B, value: own}, {name: https_proxy, value: own}]
  extraVolumes:
  - {name: ca-certs, hostPath: /certs, mountPath: /etc/ssl/certs, readOnly: true}
  - {name: audit, hostPath: /var/log/audit, mountPath: /log, pathType: DirectoryOrCreate}
controllerManager: {extraArgs: [{name: bind-address, value: '::'}]}
etcd: {local: {dataDir: /data, imageTag: 3.6.9-0, extraArgs: [{name: listen-metrics-urls, value: 'http://192.0.2.10:2391,http://a'}]}}
";
    let settings = settings("", cluster);
    let facts = PodFacts {
        trust: vec!["/etc/ca-certificates"],
        proxies: vec![
            ("https_proxy".to_owned(), "http://p".to_owned()),
            ("NO_PROXY".to_owned(), "x".to_owned()),
        ],
        is_external_ca: true,
    };
    let server = made(API_SERVER, &settings, &facts);
    let said = flags(&server);
    assert_eq!(said[said.len() - 4..], ["--v=4", "--secure-port=1", "--v=5", "--authorization-config=/a"]);
    assert!(
        !said.iter().any(|flag| flag.starts_with("--authorization-mode") || *flag == "--secure-port=6443")
    );
    assert_eq!(
        at(&server, "env"),
        &json!([{"name": "B", "value": "own"}, {"name": "NO_PROXY", "value": "x"}, {"name": "https_proxy", "value": "own"}])
    );
    assert_eq!(
        server["spec"]["volumes"],
        json!([
            {"hostPath": {"path": "/var/log/audit", "type": "DirectoryOrCreate"}, "name": "audit"},
            {"hostPath": {"path": "/certs", "type": ""}, "name": "ca-certs"},
            {"hostPath": {"path": "/etc/ca-certificates", "type": "DirectoryOrCreate"}, "name": "etc-ca-certificates"},
            {"hostPath": {"path": "/etc/kubernetes/pki", "type": "DirectoryOrCreate"}, "name": "k8s-certs"},
        ])
    );
    let manager = made(CONTROLLER_MANAGER, &settings, &facts);
    assert!(flags(&manager).contains(&"--cluster-signing-key-file="));
    assert!(at(&manager, "livenessProbe/httpGet/host").is_null(), "the pod's address");
    let etcd = made(ETCD, &settings, &facts);
    assert_eq!(at(&etcd, "image"), "registry.k8s.io/etcd:3.6.9-0");
    assert_eq!(at(&etcd, "livenessProbe/httpGet/host"), "192.0.2.10");
    assert_eq!(at(&etcd, "ports/0/containerPort"), 2391);
    assert!(at(&etcd, "env").is_null());
}

#[test]
fn an_external_etcd_has_no_pod_and_its_files_are_mounted() {
    let cluster = "etcd: {external: {endpoints: ['https://a:2379', 'https://b:2379'], caFile: /e/ca.crt, \
                   certFile: /e/c.crt, keyFile: /etc/kubernetes/pki/k.key}}";
    let settings = settings("", cluster);
    assert!(pod(ETCD, &settings, &Paths::system(), &PodFacts::default()).is_none());
    let server = made(API_SERVER, &settings, &PodFacts::default());
    let said = flags(&server);
    for flag in [
        "--etcd-servers=https://a:2379,https://b:2379",
        "--etcd-cafile=/e/ca.crt",
        "--etcd-keyfile=/etc/kubernetes/pki/k.key",
    ] {
        assert!(said.contains(&flag), "{flag}");
    }
    let volumes: Vec<&str> = server["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|volume| volume["name"].as_str())
        .collect();
    assert_eq!(volumes, ["ca-certs", "etcd-certs-0", "k8s-certs"]);
}

#[test]
fn ipv6_addresses_are_in_brackets_where_they_are_in_urls() {
    let init = "localAPIEndpoint: {advertiseAddress: '2001:db8::1'}";
    let cluster = "networking: {serviceSubnet: 'fd00:10:96::/112'}";
    let etcd = plain(ETCD, init, cluster);
    assert!(flags(&etcd).contains(&"--listen-client-urls=https://[::1]:2379,https://[2001:db8::1]:2379"));
    assert_eq!(at(&etcd, "startupProbe/httpGet/host"), "::1");
    let server = plain(API_SERVER, init, cluster);
    assert!(flags(&server).contains(&"--etcd-servers=https://[::1]:2379"));
    assert!(flags(&server).contains(&"--advertise-address=2001:db8::1"));
    assert_eq!(at(&server, "livenessProbe/httpGet/host"), "2001:db8::1");
}
