//! What `agent init --control-plane` writes beside what kubeadm writes for the same configuration: certificates by their
//! fields, kubeconfigs and manifests by their meaning.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use edge_agent::codec::base64;
use edge_agent::codec::yaml::yaml_to_values;
use serde_json::{Value, json};

use crate::support::agent::binary;
use crate::support::scratch::Scratch;

/// `@` is the scratch directory.
const NODE: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
                    localAPIEndpoint: {advertiseAddress: \"ADDRESS\"}\n\
                    nodeRegistration: {name: cp1, criSocket: 'unix:///run/agent/cri.sock', \
                    kubeletExtraArgs: [{name: v, value: '4'}]}\n---\n\
                    apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.2\n\
                    certificatesDir: @/pki\n";
const RICH: &str = "
networking: {podSubnet: 10.244.0.0/16, dnsDomain: edge.local, serviceSubnet: 10.100.0.0/16}
controlPlaneEndpoint: api.example.com
clusterName: edge
encryptionAlgorithm: ECDSA-P384
imageRepository: registry.example.com/x
certificateValidityPeriod: 100h
apiServer:
  certSANs: [A.example.com, '*.b.c', 192.0.2.99]
  extraArgs: [{name: v, value: '3'}, {name: secure-port, value: '7443'}, {name: authorization-mode, value: RBAC}]
  extraEnvs: [{name: A, value: b}]
  extraVolumes:
  - {name: ca-certs, hostPath: /x, mountPath: /etc/ssl/certs, readOnly: true}
  - {name: zz, hostPath: /z, mountPath: /z, pathType: File}
controllerManager: {extraArgs: [{name: bind-address, value: 0.0.0.0}]}
scheduler: {extraArgs: [{name: bind-address, value: '::'}]}
etcd:
  local:
    dataDir: /data
    imageTag: 3.6.9-0
    extraArgs: [{name: listen-metrics-urls, value: 'http://192.0.2.10:2391,http://127.0.0.1:2381'}]
    extraEnvs: [{name: E, value: f}]
    serverCertSANs: [s.x]
    peerCertSANs: [192.0.2.98]
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
clusterDomain: other
evictionHard: {memory.available: 100Mi}
maxPods: 20
syncFrequency: 30s
";
const KUBELET: &str =
    "---\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n";
const MANIFESTS: [&[&str]; 3] = [&["etcd", "local"], &["control-plane", "all"], &["kubelet-start"]];

/// A scratch directory with a configuration for both.
struct Both {
    scratch: Scratch,
}

fn kubeadm() -> PathBuf {
    let programs = std::env::var_os("KUBE_BIN").expect("KUBE_BIN: see docs/contributing.md");
    Path::new(&programs).join("kubeadm")
}

impl Both {
    fn new(address: &str, cluster: &str) -> Self {
        let this = Self { scratch: Scratch::new() };
        let text = format!("{}{cluster}", NODE.replace("ADDRESS", address).replace('@', &this.at("")));
        fs::write(this.at("config"), text).expect("write the configuration");
        this
    }

    fn at(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string().trim_end_matches('/').to_owned()
    }

    fn run(&self, program: &Path, words: &[&str], more: &[&str]) -> String {
        let config = format!("--config={}", self.at("config"));
        let mut command = Command::new(program);
        command.args(["init", "phase"]).args(words).arg(config).args(more);
        command.env("KUBEADM_INIT_DRYRUN_DIR", self.at("dry"));
        let output = command.output().expect("run the program");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn kubeadm(&self, words: &[&str], more: &[&str]) -> String {
        self.run(&kubeadm(), words, more)
    }

    fn agent(&self, words: &[&str], more: &[&str]) -> String {
        self.run(&binary(), words, &[more, &["--control-plane"]].concat())
    }

    /// All that a program writes and says, by names.
    fn made(&self, by: impl Fn(&[&str], &[&str]) -> String) -> BTreeMap<String, Value> {
        for name in ["pki", "conf"] {
            let _ = fs::remove_dir_all(self.at(name));
        }
        let mut made = BTreeMap::new();
        made.insert("output of certs".to_owned(), json!(by(&["certs", "all"], &[])));
        let directory = format!("--kubeconfig-dir={}", self.at("conf"));
        made.insert("output of kubeconfig".to_owned(), json!(by(&["kubeconfig", "all"], &[&directory])));
        for directory in ["pki", "pki/etcd", "conf"] {
            let Ok(entries) = fs::read_dir(self.at(directory)) else { continue };
            for entry in entries.flatten().filter(|entry| entry.path().is_file()) {
                let name = format!("{directory}/{}", entry.file_name().display());
                let text = fs::read_to_string(entry.path()).expect("read");
                let about = fs::metadata(entry.path()).expect("stat");
                let permissions = std::os::unix::fs::PermissionsExt::mode(&about.permissions());
                let shown = match entry.path().extension().and_then(|it| it.to_str()) {
                    Some("crt") => self.fields(&text),
                    Some("conf") => self.kubeconfig(&text),
                    _ => Value::Null,
                };
                made.insert(name, json!([permissions, shown]));
            }
        }
        made
    }

    /// The fields of a certificate, without those that are random or times.
    fn fields(&self, pem: &str) -> Value {
        let file = self.at("one.crt");
        fs::write(&file, pem).expect("write");
        let extensions = "basicConstraints,keyUsage,extendedKeyUsage,subjectAltName";
        let words = ["x509", "-noout", "-subject", "-issuer", "-ext", extensions, "-in", &file];
        let output = Command::new("openssl").args(words).output().expect("run openssl");
        let text = Command::new("openssl").args(["x509", "-noout", "-text", "-in", &file]).output();
        let text = String::from_utf8_lossy(&text.expect("run openssl").stdout).into_owned();
        let has = |what: &str| text.contains(what);
        let curve = text.lines().find(|line| line.contains("ASN1 OID")).map(str::trim);
        let mut fields: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        // Extensions are in the order of each program.
        fields.sort();
        json!([fields, curve, has("Subject Key Identifier"), has("Authority Key Identifier")])
    }

    fn kubeconfig(&self, text: &str) -> Value {
        let mut conf = yaml_to_values(text, true).expect("YAML").remove(0);
        let pem = conf["users"][0]["user"]["client-certificate-data"].as_str().expect("a certificate");
        let fields = self.fields(&String::from_utf8_lossy(&base64::decode(pem).expect("base64")));
        conf["users"][0]["user"]["client-certificate-data"] = fields;
        conf["users"][0]["user"]["client-key-data"] = json!("key");
        conf["clusters"][0]["cluster"]["certificate-authority-data"] = json!("authority");
        conf
    }

    fn manifests_of_kubeadm(&self) -> BTreeMap<String, Value> {
        fs::create_dir_all(self.at("dry")).expect("make a directory");
        for words in MANIFESTS {
            self.kubeadm(words, &["--dry-run"]);
        }
        let entries = fs::read_dir(self.at("dry")).expect("list").flatten();
        entries
            .map(|entry| {
                let text = fs::read_to_string(entry.path()).expect("read");
                (
                    entry.file_name().display().to_string(),
                    yaml_to_values(&text, true).expect("YAML").remove(0),
                )
            })
            .collect()
    }

    fn manifests_of_agent(&self) -> BTreeMap<String, Value> {
        let printed = MANIFESTS.map(|words| self.agent(words, &["--dry-run", "-o", "yaml"])).concat();
        let documents = printed.split("---\n# ").filter(|document| !document.is_empty());
        documents
            .map(|document| {
                let (path, text) = document.split_once('\n').expect("a path");
                let name = path.rsplit('/').next().expect("a name").to_owned();
                (name, yaml_to_values(text, true).expect("YAML").remove(0))
            })
            .collect()
    }

    fn compare(&self) {
        let theirs = self.made(|words, more| self.kubeadm(words, more));
        let ours = self.made(|words, more| self.agent(words, more));
        assert_same(&theirs, &ours);
        assert_same(&self.manifests_of_kubeadm(), &self.manifests_of_agent());
    }
}

#[track_caller]
fn assert_same(theirs: &BTreeMap<String, Value>, ours: &BTreeMap<String, Value>) {
    assert_eq!(theirs.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>());
    for (name, value) in theirs {
        assert_eq!(value, &ours[name], "{name}: kubeadm's is on the left");
    }
}

#[test]
fn a_plain_control_plane_has_kubeadms_files() {
    let cluster = "encryptionAlgorithm: ECDSA-P256\nnetworking: {podSubnet: 10.244.0.0/16}\n";
    Both::new("192.0.2.10", &format!("{cluster}{KUBELET}")).compare();
}

#[test]
fn a_control_plane_with_many_settings_has_kubeadms_files() {
    Both::new("192.0.2.10", RICH).compare();
}

#[test]
fn a_control_plane_with_ipv6_has_kubeadms_files() {
    let cluster = "encryptionAlgorithm: ECDSA-P256\n\
                   networking: {serviceSubnet: 'fd00:10:96::/112', podSubnet: 'fd00:10:244::/56'}\n";
    Both::new("2001:db8::1", &format!("{cluster}{KUBELET}")).compare();
}

#[test]
fn a_control_plane_with_external_etcd_has_kubeadms_files() {
    let cluster = "encryptionAlgorithm: ECDSA-P256\netcd: {external: {endpoints: ['https://192.0.2.1:2379'], \
                   caFile: /etc/e/ca.crt, certFile: /etc/e/c.crt, keyFile: /opt/e/c.key}}\n";
    Both::new("192.0.2.10", &format!("{cluster}{KUBELET}")).compare();
}

#[test]
fn both_use_what_the_other_has_made() {
    let both = Both::new("192.0.2.10", "");
    // kubeadm's default: RSA, in the older form of keys.
    for name in ["ca", "front-proxy-ca", "etcd-ca", "sa"] {
        both.kubeadm(&["certs", name], &[]);
    }
    let said = both.agent(&["certs", "all"], &[]);
    assert!(
        said.contains("Using existing ca certificate authority")
            && said.contains("Using the existing \"sa\" key")
    );
    let directory = format!("--kubeconfig-dir={}", both.at("conf"));
    both.agent(&["kubeconfig", "all"], &[&directory]);
    for said in [both.kubeadm(&["certs", "all"], &[]), both.kubeadm(&["kubeconfig", "all"], &[&directory])] {
        assert!(
            said.contains("Using existing") && !said.contains("Generating") && !said.contains("Writing"),
            "{said}"
        );
    }
    let pem = both.at("pki/ca.crt");
    for leaf in ["apiserver", "apiserver-kubelet-client"] {
        let file = both.at(&format!("pki/{leaf}.crt"));
        let verified = Command::new("openssl").args(["verify", "-CAfile", &pem, &file]).status();
        assert!(verified.expect("run openssl").success(), "{leaf}");
    }
}
