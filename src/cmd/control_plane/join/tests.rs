//! The phases that write files, in a scratch directory.

use std::fs;

use super::*;
use crate::model::types::Timestamp;
use crate::platform::testing::TempDir;

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);
const BOOTSTRAP: &str = "clusters: [{name: k, cluster: {server: 'https://api:6443'}}]\n\
    contexts: [{name: c, context: {cluster: k, user: t}}]\nusers: [{name: t, user: {token: x}}]\ncurrent-context: c\n";

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(TempDir::new())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn settings(&self, plan: &JoinPlan, cluster: &str) -> (InitSettings, Vec<String>) {
        let text = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncertificatesDir: {}\n\
             controlPlaneEndpoint: api:6443\nencryptionAlgorithm: RSA-2048\n{cluster}",
            self.at("k/pki").display()
        );
        let of = |text: &str| yaml_to_values(text, true).unwrap().remove(0);
        let kubelet = of("kind: KubeletConfiguration\ncgroupDriver: systemd\nmaxPods: 7\n");
        settings(plan, of(&text), kubelet, &self.paths()).unwrap()
    }

    fn paths(&self) -> Paths {
        Paths { kubernetes: self.at("k"), kubelet: self.at("kubelet") }
    }

    /// Phases that need no server; what was printed, and how it ended.
    fn run(&self, cluster: &str, phases: &[&'static str]) -> Result<String, String> {
        let words =
            "api:6443 --control-plane --node-name cp2 --apiserver-advertise-address 192.0.2.11 --dry-run";
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let plan = JoinPlan::of(&plan::words(&words).unwrap().unwrap(), None).unwrap();
        let (settings, _) = self.settings(&plan, cluster);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let environment =
            Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
        let mut session = InitSession { environment };
        let (paths, kubeconfig_dir) = (self.paths(), self.at("k"));
        let mut context = Context {
            session: &mut session,
            settings,
            paths,
            kubeconfig_dir,
            mode: Mode::Real,
            drafts: BTreeMap::new(),
            patches: None,
        };
        // Only these write: what starts or asks something stays dry.
        if phases.iter().any(|phase| !phase.starts_with("control-plane-prepare")) {
            context.mode = Mode::Dry;
        }
        let known = Known {
            user: Kubeconfig::parse(&yaml_to_values(BOOTSTRAP, true).unwrap()[0], Path::new("/")).unwrap(),
            bootstrap: BOOTSTRAP.to_owned(),
            authorities: String::new(),
        };
        let checks = checks(&plan);
        let mut joining = Joining { context, plan, known, checks };
        let result = phases.iter().try_for_each(|phase| joining.run(phase)).map_err(|error| chain(&error));
        drop(joining);
        result.map(|()| String::from_utf8(out).unwrap())
    }

    /// What the first node shares.
    fn share(&self) {
        let terms = certs::sign::Terms {
            algorithm: "ECDSA-P256",
            validity: crate::model::duration::GoDuration::from_secs(86_400 * 30),
            now: NOW,
        };
        fs::create_dir_all(self.at("k/pki/etcd")).unwrap();
        let put = |name: &str, text: String| fs::write(self.at("k/pki").join(name), text).unwrap();
        for name in ["ca", "front-proxy-ca", "etcd/ca"] {
            let (made, key) = certs::sign::Signer::create(name, terms).unwrap();
            put(&format!("{name}.crt"), made.certificate);
            put(&format!("{name}.key"), key);
        }
        let (key, public) = certs::sign::key_pair("ECDSA-P256").unwrap();
        put("sa.key", key);
        put("sa.pub", public);
    }
}

const PREPARE: [&str; 3] = [
    "control-plane-prepare/certs",
    "control-plane-prepare/kubeconfig",
    "control-plane-prepare/control-plane",
];

#[test]
fn an_instance_is_prepared_with_what_the_cluster_shares() {
    let scratch = Scratch::new();
    let why = scratch.run("", &PREPARE).unwrap_err();
    assert!(why.contains("couldn't load CA certificate ca"), "no authority may be made here: {why}");
    assert!(!scratch.at("k/pki/ca.crt").exists());
    scratch.share();
    let said = scratch.run("", &PREPARE).unwrap();
    for line in [
        "[certs] Generating \"etcd/peer\" certificate and key\n",
        "[certs] Using the existing \"sa\" key\n",
        "[certs] Valid certificates and keys now exist in ",
        "[kubeconfig] Writing \"admin.conf\" kubeconfig file\n",
        "[control-plane] Creating static Pod manifest for \"kube-scheduler\"\n",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let there = |name: &str| scratch.at("k").join(name).exists();
    assert!(there("admin.conf") && there("manifests/kube-apiserver.yaml"));
    assert!(!there("kubelet.conf") && !there("super-admin.conf") && !there("manifests/etcd.yaml"));
    // Files of the first node that were copied with the others.
    let file = scratch.at("k/pki/apiserver.crt");
    let other = fs::read(scratch.at("k/pki/front-proxy-client.crt")).unwrap();
    fs::write(&file, other).unwrap();
    let why = scratch.run("", &PREPARE[..1]).unwrap_err();
    assert!(why.contains("certificate apiserver is invalid") && why.contains("is not for"), "{why}");
    fs::remove_file(scratch.at("k/pki/sa.pub")).unwrap();
    let why = scratch.run("", &PREPARE[..1]).unwrap_err();
    assert!(why.contains("failure loading key for service account") && why.contains("sa.pub"), "{why}");
}

#[test]
fn a_dry_run_shows_the_new_member_of_etcd() {
    let scratch = Scratch::new();
    let said = scratch.run("", &["check-etcd", "etcd-join", "kubelet-wait-bootstrap"]).unwrap();
    assert!(said.contains("[dryrun] Would add etcd member: https://192.0.2.11:2380\n"), "{said}");
    assert!(said.contains("--initial-cluster-state=existing"), "{said}");
    assert!(said.contains("--initial-cluster=cp2=https://192.0.2.11:2380"), "{said}");
    let external =
        "etcd: {external: {endpoints: ['https://192.0.2.1:2379'], caFile: /a, certFile: /b, keyFile: /c}}\n";
    let said = scratch.run(external, &["check-etcd", "etcd-join"]).unwrap();
    assert_eq!(said, "[check-etcd] Skipping etcd check in external mode\n");
}

#[test]
fn a_cluster_without_a_stable_address_takes_no_instance() {
    let scratch = Scratch::new();
    let why = scratch.run("", &["preflight"]).unwrap_err();
    assert!(
        why.contains("conditions for hosting") && why.contains("couldn't load CA certificate ca"),
        "{why}"
    );
    let none = "x: y\n";
    let words: Vec<String> = ["api:6443".to_owned()].into();
    let plan = JoinPlan::of(&plan::words(&words).unwrap().unwrap(), None).unwrap();
    let (settings, warnings) = scratch.settings(&plan, none);
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(
        (settings.cluster.algorithm.as_str(), &settings.kubelet["maxPods"]),
        ("ECDSA-P256", &json!(7))
    );
    assert_eq!(settings.given_kubelet.unwrap()["cgroupDriver"], Value::Null);
}

#[test]
fn the_kubelet_asks_its_own_api_server() {
    let text = with_server(BOOTSTRAP, "https://192.0.2.11:6443").unwrap();
    assert!(text.contains("server: https://192.0.2.11:6443") && text.contains("token: x"), "{text}");
    assert!(!text.contains("api:6443"), "{text}");
}
