//! The phases that write files, on a scratch directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use super::*;
use crate::codec::base64;
use crate::codec::yaml::yaml_to_values;
use crate::model::types::Timestamp;
use crate::platform::testing::TempDir;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};
use crate::serve::server::pki::verify_chain;

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

struct Scratch {
    directory: TempDir,
}

/// What a command printed, and how it ended.
struct Said {
    out: String,
    err: String,
    result: Result<(), String>,
}

impl Said {
    fn error(self) -> String {
        self.result.unwrap_err()
    }

    #[track_caller]
    fn well(self) -> String {
        self.result.unwrap();
        self.out
    }
}

impl Scratch {
    fn new() -> Self {
        let scratch = Self { directory: TempDir::new() };
        scratch.configure("");
        scratch
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `more`: lines of the ClusterConfiguration.
    fn configure(&self, more: &str) {
        let (pki, etcd, patches) = (self.at("k/pki"), self.at("etcd"), self.at("patches"));
        fs::create_dir_all(&patches).unwrap();
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {{name: cp1}}\n\
             localAPIEndpoint: {{advertiseAddress: 192.0.2.10}}\npatches: {{directory: {}}}\n---\n\
             apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncertificatesDir: {}\n\
             etcd: {{local: {{dataDir: {}}}}}\n{more}",
            patches.display(),
            pki.display(),
            etcd.display()
        );
        fs::write(self.at("config"), text).unwrap();
    }

    fn run(&self, line: &str) -> Said {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.push(format!("--config={}", self.at("config").display()));
        let paths = Paths { kubernetes: self.at("k"), kubelet: self.at("kubelet") };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let environment =
            Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
        let mut session = InitSession { environment };
        let options = ControlPlaneOptions::parse(&words, false).unwrap();
        let result = init(&mut session, &options, paths).map_err(|error| chain(&error));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { out: text(out), err: text(err), result }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn yaml(&self, name: &str) -> Value {
        yaml_to_values(&self.read(name), true).unwrap().remove(0)
    }

    fn mode(&self, name: &str) -> u32 {
        self.at(name).metadata().unwrap().permissions().mode() & 0o7777
    }
}

const BASES: [&str; 10] = [
    "ca",
    "apiserver",
    "apiserver-kubelet-client",
    "front-proxy-ca",
    "front-proxy-client",
    "etcd/ca",
    "etcd/server",
    "etcd/peer",
    "etcd/healthcheck-client",
    "apiserver-etcd-client",
];

#[test]
fn certificates_are_made_once_and_then_kept() {
    let scratch = Scratch::new();
    let out = scratch.run("phase certs all").well();
    assert!(out.starts_with("[certs] Using certificateDir folder "), "{out}");
    assert!(out.contains("[certs] Generating \"etcd/server\" certificate and key\n"), "{out}");
    assert!(
        out.contains("etcd/server serving cert is signed for DNS names [cp1 localhost] and IPs [192.0.2.10 127.0.0.1 ::1]"),
        "{out}"
    );
    let mut before = Vec::new();
    for base in BASES {
        assert_eq!(scratch.mode(&format!("k/pki/{base}.crt")), 0o644, "{base}");
        assert_eq!(scratch.mode(&format!("k/pki/{base}.key")), 0o600, "{base}");
        before.push(scratch.read(&format!("k/pki/{base}.crt")));
    }
    assert_eq!((scratch.mode("k/pki/sa.key"), scratch.mode("k/pki/sa.pub")), (0o600, 0o600));
    assert!(scratch.read("k/pki/sa.pub").starts_with("-----BEGIN PUBLIC KEY-----"));
    let again = scratch.run("phase certs all").well();
    assert!(again.contains("[certs] Using existing ca certificate authority\n"), "{again}");
    assert!(again.contains("[certs] Using existing apiserver certificate and key on disk\n"), "{again}");
    assert!(
        again.contains("[certs] Using the existing \"sa\" key\n") && !again.contains("Generating"),
        "{again}"
    );
    let after: Vec<_> = BASES.iter().map(|base| scratch.read(&format!("k/pki/{base}.crt"))).collect();
    assert_eq!(before, after);
    // One alone, without the line of its parent.
    fs::remove_file(scratch.at("k/pki/apiserver.crt")).unwrap();
    fs::remove_file(scratch.at("k/pki/apiserver.key")).unwrap();
    assert!(scratch.run("phase certs apiserver").well().starts_with("[certs] Generating \"apiserver\""));
    let (leaf, root) = (scratch.read("k/pki/apiserver.crt"), scratch.read("k/pki/ca.crt"));
    verify_chain(&leaf, &root, NOW).unwrap();
}

#[test]
fn an_authority_whose_key_is_elsewhere_needs_its_certificates() {
    let scratch = Scratch::new();
    scratch.run("phase certs all").well();
    scratch.run("phase kubeconfig all").well();
    let key = scratch.read("k/pki/ca.key");
    fs::remove_file(scratch.at("k/pki/ca.key")).unwrap();
    let out = scratch.run("phase certs all").well();
    assert!(out.contains("Using existing ca keyless certificate authority"), "{out}");
    let out = scratch.run("phase kubeconfig all").well();
    assert!(out.contains("[kubeconfig] External CA mode: Using user provided "), "{out}");
    scratch.run("phase control-plane controller-manager").well();
    assert!(
        scratch
            .read("k/manifests/kube-controller-manager.yaml")
            .contains("\"--cluster-signing-key-file=\"\n")
    );
    let error = scratch.run("--upload-certs --skip-phases=preflight --dry-run").error();
    assert!(error.contains("can't use upload-certs"), "{error}");
    fs::remove_file(scratch.at("k/scheduler.conf")).unwrap();
    assert!(scratch.run("phase certs ca").error().contains("scheduler.conf"));
    fs::remove_file(scratch.at("k/pki/apiserver.crt")).unwrap();
    let error = scratch.run("phase certs apiserver").error();
    assert!(
        error.contains("invalid or incomplete external CA") && error.contains("apiserver.crt"),
        "{error}"
    );
    fs::write(scratch.at("k/pki/ca.key"), key).unwrap();
    fs::remove_file(scratch.at("k/pki/front-proxy-ca.key")).unwrap();
    fs::write(scratch.at("k/pki/front-proxy-client.key"), "broken").unwrap();
    let error = scratch.run("phase certs sa").error();
    assert!(error.contains("external front-proxy CA") && error.contains("front-proxy-client.key"), "{error}");
}

#[test]
fn files_that_cannot_be_right_are_refused_with_their_path() {
    let scratch = Scratch::new();
    assert!(scratch.run("phase certs apiserver").error().contains("couldn't load CA certificate ca"));
    assert!(scratch.run("phase kubeconfig admin").error().contains("couldn't load CA certificate ca"));
    scratch.run("phase certs all").well();
    let other = Scratch::new();
    other.run("phase certs all").well();
    let put = |name: &str, text: String| fs::write(scratch.at(name), text).unwrap();
    let (leaf, ca, ca_key) =
        (scratch.read("k/pki/apiserver.crt"), scratch.read("k/pki/ca.crt"), scratch.read("k/pki/ca.key"));
    put("k/pki/apiserver.crt", other.read("k/pki/apiserver.crt"));
    let error = scratch.run("phase certs apiserver").error();
    assert!(error.contains("certificate apiserver not signed by CA certificate ca"), "{error}");
    fs::remove_file(scratch.at("k/pki/apiserver.crt")).unwrap();
    let error = scratch.run("phase certs apiserver").error();
    assert!(
        error.contains("failure loading apiserver certificate") && error.contains("apiserver.key"),
        "{error}"
    );
    put("k/pki/apiserver.crt", leaf);
    let leaf_key = scratch.read("k/pki/apiserver.key");
    put("k/pki/apiserver.key", other.read("k/pki/apiserver.key"));
    let error = scratch.run("phase certs apiserver").error();
    assert!(error.contains("apiserver.key") && error.contains("do not belong together"), "{error}");
    fs::remove_file(scratch.at("k/pki/apiserver.key")).unwrap();
    let error = scratch.run("phase certs apiserver").error();
    assert!(error.contains("apiserver.key: no such file"), "{error}");
    put("k/pki/apiserver.key", leaf_key);
    scratch.run("phase certs apiserver").well();
    put("k/pki/ca.key", other.read("k/pki/ca.key"));
    assert!(scratch.run("phase certs ca").error().contains("do not belong together"));
    put("k/pki/ca.key", ca_key);
    put("k/pki/ca.crt", "no certificate".to_owned());
    assert!(scratch.run("phase certs ca").error().contains("ca.crt"));
    put("k/pki/ca.crt", ca);
    let public = scratch.read("k/pki/sa.pub");
    put("k/pki/sa.pub", other.read("k/pki/sa.pub"));
    assert!(scratch.run("phase certs sa").well().contains("Writing the public key"));
    assert_eq!(scratch.read("k/pki/sa.pub"), public);
    fs::remove_file(scratch.at("k/pki/sa.pub")).unwrap();
    scratch.run("phase certs sa").well();
    assert_eq!(scratch.read("k/pki/sa.pub"), public);
    assert!(!scratch.run("phase certs sa").well().contains("Writing the public key"));
    put("k/pki/sa.key", "no key".to_owned());
    let error = scratch.run("phase certs sa").error();
    assert!(error.starts_with("error execution phase certs/sa: couldn't load the private key"), "{error}");
}

#[test]
fn kubeconfigs_are_kubeadms_and_judged_by_their_authority() {
    let scratch = Scratch::new();
    scratch.configure("controlPlaneEndpoint: api.example.com\nclusterName: edge\n");
    scratch.run("phase certs ca").well();
    let out = scratch.run("phase kubeconfig all").well();
    assert!(out.contains("[kubeconfig] Writing \"super-admin.conf\" kubeconfig file\n"), "{out}");
    let (cluster, local) = ("https://api.example.com:6443", "https://192.0.2.10:6443");
    for (name, user, groups, server) in [
        ("admin", "kubernetes-admin", &["kubeadm:cluster-admins"][..], cluster),
        ("super-admin", "kubernetes-super-admin", &["system:masters"], cluster),
        ("kubelet", "system:node:cp1", &["system:nodes"], local),
        ("controller-manager", "system:kube-controller-manager", &[], local),
        ("scheduler", "system:kube-scheduler", &[], local),
    ] {
        let file = format!("k/{name}.conf");
        assert_eq!(scratch.mode(&file), 0o600);
        let conf = scratch.yaml(&file);
        assert_eq!(conf["current-context"], format!("{user}@edge"));
        assert_eq!(conf["clusters"][0]["cluster"]["server"], server, "{name}");
        let certificate = conf["users"][0]["user"]["client-certificate-data"].as_str().unwrap();
        let certificate = String::from_utf8(base64::decode(certificate).unwrap()).unwrap();
        let subject = x509::subject(&pem_blocks(&certificate, CERTIFICATE)[0]).unwrap();
        assert_eq!(
            (subject.common_name.as_str(), subject.organizations.as_slice()),
            (user, groups.iter().map(|group| (*group).to_owned()).collect::<Vec<_>>().as_slice())
        );
    }
    let text = scratch.read("k/admin.conf");
    let again = scratch.run("phase kubeconfig admin");
    assert!(again.err.is_empty() && again.well().contains("[kubeconfig] Using existing kubeconfig file: "));
    fs::write(scratch.at("k/admin.conf"), text.replace("api.example.com", "other.example.com")).unwrap();
    assert!(scratch.run("phase kubeconfig admin").err.contains("unexpected API Server URL"));
    let other = Scratch::new();
    other.run("phase certs ca").well();
    other.run("phase kubeconfig admin").well();
    fs::write(scratch.at("k/admin.conf"), other.read("k/admin.conf")).unwrap();
    assert!(scratch.run("phase kubeconfig admin").error().contains("does not match any of the 1"));
    fs::write(scratch.at("k/admin.conf"), "current-context: x\n").unwrap();
    assert!(scratch.run("phase kubeconfig admin").error().contains("has no current cluster"));
}

#[test]
fn manifests_are_written_with_the_users_patches() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.at("patches/more")).unwrap();
    fs::write(
        scratch.at("patches/etcd+merge.yaml"),
        "metadata: {labels: {a: b}}\n---\nspec: {priority: 1}\n",
    )
    .unwrap();
    fs::write(
        scratch.at("patches/more/etcd+json.json"),
        r#"[{"op": "remove", "path": "/metadata/labels/a"}]"#,
    )
    .unwrap();
    fs::write(scratch.at("patches/notes.txt"), "-").unwrap();
    let out = scratch.run("phase etcd local").well();
    assert!(out.contains("Found the following patch files: [etcd+merge.yaml etcd+json.json]"), "{out}");
    assert!(out.contains("Ignored the following files: [notes.txt]"), "{out}");
    assert!(
        out.contains("Applied patch of type \"application/json-patch+json\" to target \"etcd\""),
        "{out}"
    );
    assert_eq!((scratch.mode("k/manifests"), scratch.mode("k/manifests/etcd.yaml")), (0o700, 0o600));
    assert_eq!(scratch.mode("etcd"), 0o700);
    let pod = scratch.yaml("k/manifests/etcd.yaml");
    assert_eq!(pod["metadata"]["labels"], serde_json::json!({"component": "etcd", "tier": "control-plane"}));
    assert_eq!(pod["spec"]["priority"], 1);
    scratch.run("phase control-plane all").well();
    for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        assert_eq!(scratch.yaml(&format!("k/manifests/{name}.yaml"))["metadata"]["name"], name);
    }
    fs::write(scratch.at("patches/etcd+xml.yaml"), "a: b").unwrap();
    assert!(scratch.run("phase etcd local").error().contains("after '+'"));
}

#[test]
fn a_dry_run_of_everything_writes_nothing() {
    let scratch = Scratch::new();
    let said = scratch.run("--skip-phases=preflight --dry-run");
    let (out, err) = (said.out.clone(), said.err.clone());
    assert!(said.result.is_ok(), "{:?} {err}", said.result);
    assert!(out.starts_with("[init] Using Kubernetes version: v1.36.0\n"), "{out}");
    for part in
        ["etcd.yaml", "kube-apiserver.yaml", "kubeadm-flags.env", "instance-config.yaml", "config.yaml"]
    {
        assert!(
            out.lines().any(|line| line.starts_with("[dryrun] Would write file") && line.contains(part)),
            "{part}"
        );
    }
    assert!(out.contains("[dryrun] Would start the kubelet\n"), "{out}");
    assert!(!out.contains("PRIVATE KEY"));
    let mut left: Vec<_> =
        fs::read_dir(scratch.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["config", "patches"]);
}

#[test]
fn a_dry_run_in_yaml_prints_documents_alone() {
    let scratch = Scratch::new();
    let said = scratch.run("--skip-phases=preflight,addon/coredns --dry-run -o yaml");
    assert!(said.err.contains("[certs] Generating \"ca\" certificate and key"), "{}", said.err);
    let documents = yaml_to_values(&said.well(), true).unwrap();
    let kinds: Vec<&str> = documents.iter().filter_map(|document| document["kind"].as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "Pod").count(), 4, "{kinds:?}");
    assert!(kinds.contains(&"KubeletConfiguration") && kinds.contains(&"ConfigMap"), "{kinds:?}");
    let config = documents.iter().find(|document| document["metadata"]["name"] == "kubeadm-config").unwrap();
    let cluster = config["data"]["ClusterConfiguration"].as_str().unwrap();
    // What is skipped is not upgraded later.
    assert!(cluster.contains("dns:\n  disabled: true\n"), "{cluster}");
}

#[test]
fn an_addon_that_the_configuration_disables_is_not_applied() {
    let scratch = Scratch::new();
    let applied = |line: &str| {
        let out = scratch.run(&format!("{line} --dry-run -o yaml")).well();
        let documents = yaml_to_values(&out, true).unwrap();
        let is_there = |kind: &str, name: &str| {
            documents.iter().any(|document| document["kind"] == kind && document["metadata"]["name"] == name)
        };
        (is_there("Deployment", "coredns"), is_there("DaemonSet", "kube-proxy"))
    };
    assert_eq!(applied("--skip-phases=preflight"), (true, true));
    scratch.configure("dns: {disabled: true}\n");
    assert_eq!(applied("--skip-phases=preflight"), (false, true));
    scratch.configure("proxy: {disabled: true}\n");
    assert_eq!(applied("--skip-phases=preflight"), (true, false));
    assert_eq!(applied("phase addon all"), (true, false));
}

#[test]
fn phases_without_what_they_need_name_it() {
    let scratch = Scratch::new();
    let error = scratch.run("phase upload-config kubeadm").error();
    assert!(
        error.starts_with("error execution phase upload-config/kubeadm: ") && error.contains("admin.conf"),
        "{error}"
    );
    for phase in [
        "upload-config kubelet",
        "upload-certs --upload-certs",
        "mark-control-plane",
        "bootstrap-token",
        "addon coredns",
        "addon kube-proxy",
    ] {
        let error = scratch.run(&format!("phase {phase}")).error();
        let name = phase.split(" --").next().unwrap().replace(' ', "/");
        assert!(error.starts_with(&format!("error execution phase {name}: ")), "{error}");
        assert!(error.contains("admin.conf"), "{phase}: {error}");
    }
    for phase in ["certs apiserver", "certs etcd-peer", "kubeconfig admin", "kubeconfig scheduler"] {
        let error = scratch.run(&format!("phase {phase}")).error();
        assert!(error.contains("couldn't load CA certificate"), "{phase}: {error}");
    }
    assert!(scratch.run("phase show-join-command").error().contains("unresolved dependencies"));
    let error = scratch.run("--skip-phases=upload-certs").error();
    assert!(error.contains("unresolved dependencies"), "{error}");
    scratch.configure("encryptionAlgorithm: RSA-2048\n");
    assert!(scratch.run("phase certs ca").error().contains("use ECDSA-P256"));
    fs::remove_file(scratch.at("config")).unwrap();
    assert!(scratch.run("phase certs ca").error().contains(&Path::new("config").display().to_string()));
}
