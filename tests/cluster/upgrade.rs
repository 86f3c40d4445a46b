//! `agent upgrade` of a control plane: from one version of Kubernetes to the next, back when a component fails, and on after a
//! power cut.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::control_plane::VERSION;
use super::images;
use super::machine::{Host, NAME, wait};
use super::whole::{deploy, get, host, init_at, static_pods, wait_for_pods, wait_until_ready};

const BEFORE: &str = "v1.36.1";
/// Whose scheduler ends at once.
const BROKEN: &str = "v1.36.3";
const COMPONENTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// The addons' images are nowhere, and the machine is that of tests. The API server takes half a minute to end.
const CONFIG: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: UpgradeConfiguration\n\
                      apply: {imagePullPolicy: Never, ignorePreflightErrors: [SystemVerification]}\n\
                      node: {imagePullPolicy: Never, ignorePreflightErrors: [SystemVerification]}\n\
                      timeouts: {upgradeManifests: 90s}\n";
const FILE: &str = "--config=/etc/kubernetes/upgrade.yaml";
const RECORD: &str = "/etc/kubernetes/tmp/agent-upgrade.json";

/// A cluster at the version before.
fn cluster() -> Host {
    let host = host();
    images::offer_version(&host.path("images"), &host.path(""), BEFORE, "");
    images::offer_version(&host.path("images"), &host.path(""), BROKEN, "kube-scheduler");
    init_at(&host, BEFORE, "");
    fs::write("/etc/kubernetes/upgrade.yaml", CONFIG).expect("write the configuration");
    wait_until_ready(&host, NAME);
    host
}

fn run(host: &Host, program: &str, words: &[&str]) -> String {
    host.run(program, words).unwrap_or_else(|error| panic!("{error}"))
}

fn manifests() -> Vec<String> {
    let path = |name| format!("/etc/kubernetes/manifests/{name}.yaml");
    COMPONENTS.map(|name| fs::read_to_string(path(name)).expect("read a manifest")).into()
}

fn assert_version(version: &str) {
    for text in &manifests()[1..] {
        assert!(text.contains(&format!(":{version}\n")), "{text}");
    }
}

fn process(host: &Host, name: &str) -> u32 {
    let found = static_pods(host).into_iter().find(|(pod, _)| pod.starts_with(name));
    found.unwrap_or_else(|| panic!("{name} runs")).1
}

/// The scheduler and the controller manager work.
fn assert_works(host: &Host, name: &str) {
    deploy(host, name, 1);
    assert_eq!(wait_for_pods(host, name, 1), [NAME]);
    wait_until_ready(host, NAME);
}

/// What both programs plan, without themselves.
fn planned(text: &str) -> Vec<Value> {
    let plan: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut components = plan["availableUpgrades"][0]["components"].as_array().expect("components").clone();
    components.retain(|component| component["name"] != "kubeadm");
    for component in &mut components {
        // kubeadm loses the `v` of kube-proxy's.
        let version =
            component["currentVersion"].as_str().unwrap_or_default().trim_start_matches('v').to_owned();
        component["currentVersion"] = version.into();
    }
    components.sort_by_key(Value::to_string);
    components.push(plan["configVersions"].clone());
    components
}

#[test]
fn a_control_plane_is_upgraded_as_kubeadm_would() {
    let host = cluster();
    // kubeadm's Job has no image here.
    let words = ["upgrade", "plan", VERSION, "-o", "json"];
    let theirs = run(&host, "kubeadm", &[&words[..], &["--ignore-preflight-errors=CreateJob"]].concat());
    let theirs = &theirs[theirs.find('{').expect("a document")..];
    assert_eq!(planned(&run(&host, "agent", &words)), planned(theirs));
    let text = run(&host, "agent", &["upgrade", "plan", VERSION]);
    assert!(text.contains(&format!("\tagent upgrade apply {VERSION}\n")), "{text}");
    let text = run(&host, "agent", &["upgrade", "diff", VERSION, "-c", "0"]);
    assert_eq!(text.matches("@@ -").count(), 3, "{text}");
    for name in &COMPONENTS[1..] {
        let line = |mark, version| format!("{mark}    image: registry.k8s.io/{name}:{version}\n");
        let both = [line('-', BEFORE), line('+', VERSION)].concat();
        assert!(text.contains(&both), "{text}");
    }

    let dry = run(&host, "agent", &["upgrade", "apply", VERSION, "--dry-run", FILE]);
    assert!(dry.contains("Finished dryrunning successfully!"), "{dry}");
    assert_version(BEFORE);
    let (etcd, scheduler) = (process(&host, "etcd"), process(&host, "kube-scheduler"));
    let certificate = || fs::read("/etc/kubernetes/pki/apiserver.crt").expect("read a certificate");
    let old = certificate();
    let said = run(&host, "agent", &["upgrade", "apply", VERSION, "--yes", FILE]);
    assert!(
        said.contains(&format!("SUCCESS! A control plane node of your cluster was upgraded to {VERSION:?}.")),
        "{said}"
    );
    assert!(said.contains("manifests of etcd are equal, skipping upgrade"), "{said}");
    assert_version(VERSION);
    assert_eq!(process(&host, "etcd"), etcd, "etcd was restarted");
    assert_ne!(process(&host, "kube-scheduler"), scheduler);
    assert_ne!(certificate(), old);
    assert!(!Path::new(RECORD).exists());
    let backups = fs::read_dir("/etc/kubernetes/tmp").expect("list").flatten();
    let names: Vec<String> = backups.map(|entry| entry.file_name().display().to_string()).collect();
    for expected in ["kubeadm-backup-manifests-", "kubeadm-backup-etcd-"] {
        assert!(names.iter().any(|name| name.starts_with(expected)), "{names:?}");
    }
    let config =
        get(&host, "/api/v1/namespaces/kube-system/configmaps/kubeadm-config").expect("the configuration");
    let text = config["data"]["ClusterConfiguration"].as_str().unwrap_or_default();
    assert!(text.contains(&format!("kubernetesVersion: {VERSION}\n")), "{text}");
    assert_works(&host, "web");

    // Nothing is left to do, also with manifests that kubeadm has written.
    let processes = static_pods(&host);
    assert_eq!(run(&host, "agent", &["upgrade", "diff"]).matches("@@").count(), 0);
    let config = host.path("init.yaml");
    let text = fs::read_to_string(&config).expect("read the configuration").replace(BEFORE, VERSION);
    fs::write(&config, text).expect("write the configuration");
    let words = ["init", "phase", "control-plane", "all", "--config", &config.display().to_string()];
    let ours = manifests();
    run(&host, "kubeadm", &words);
    let before = manifests();
    assert_ne!(before[1..], ours[1..], "kubeadm's are written another way");
    assert_eq!(run(&host, "agent", &["upgrade", "diff"]).matches("@@").count(), 0);
    let said = run(&host, "agent", &["upgrade", "apply", "--yes", FILE]);
    assert_eq!(said.matches("are equal, skipping upgrade").count(), 4, "{said}");
    let said = run(&host, "agent", &["upgrade", "node", FILE]);
    assert_eq!(said.matches("are equal, skipping upgrade").count(), 4, "{said}");
    assert_eq!((manifests(), static_pods(&host)), (before, processes));
    let text = run(&host, "agent", &["upgrade", "plan"]);
    assert!(text.contains("nothing to upgrade to"), "{text}");
    let why = host.run("agent", &["upgrade", "apply", BEFORE, "--yes", FILE]).unwrap_err();
    assert!(why.contains("lower than the version of the cluster") && why.contains("--force"), "{why}");
}

#[test]
fn a_broken_version_is_undone_and_a_power_cut_survived() {
    let host = cluster();
    let (before, etcd) = (manifests(), process(&host, "etcd"));
    let why = host.run("agent", &["upgrade", "apply", BROKEN, "--yes", FILE]).unwrap_err();
    assert!(
        why.contains("couldn't upgrade control plane: kube-scheduler: not healthy within 1m30s: "),
        "{why}"
    );
    assert!(why.contains("it ended with exit code 1"), "{why}");
    assert!(why.contains("The earlier manifests are back, and their components are healthy"), "{why}");
    assert!(manifests() == before && !Path::new(RECORD).exists());
    assert_eq!(process(&host, "etcd"), etcd, "etcd was restarted");
    assert_works(&host, "web");
    let config =
        get(&host, "/api/v1/namespaces/kube-system/configmaps/kubeadm-config").expect("the configuration");
    assert!(config["data"]["ClusterConfiguration"].as_str().unwrap_or_default().contains(BEFORE), "{config}");

    // The power goes while the controller manager is replaced.
    let mut command = host.command("agent", &["upgrade", "apply", VERSION, "--yes", FILE]);
    let mut upgrade = command.stdout(Stdio::null()).spawn().expect("start the upgrade");
    wait("the controller manager's turn", || {
        let record = fs::read_to_string(RECORD).map_err(|error| error.to_string())?;
        let manifest = fs::read_to_string("/etc/kubernetes/manifests/kube-controller-manager.yaml");
        let is_new = manifest.is_ok_and(|text| text.contains(&format!(":{VERSION}\n")));
        if is_new && record.contains("\"replacing\": \"kube-controller-manager\"") {
            Ok(())
        } else {
            Err(record)
        }
    });
    upgrade.kill().expect("end the upgrade");
    upgrade.wait().expect("its end");
    host.cut_power();
    run(&host, "systemctl", &["start", "agent"]);
    wait_until_ready(&host, NAME);
    let said = run(&host, "agent", &["upgrade", "apply", VERSION, "--yes", FILE]);
    assert!(said.contains("was interrupted while kube-controller-manager was replaced"), "{said}");
    assert!(said.contains("SUCCESS!"), "{said}");
    assert_version(VERSION);
    assert!(!Path::new(RECORD).exists());
    assert_works(&host, "later");
}
