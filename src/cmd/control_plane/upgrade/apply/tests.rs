//! Phases that change files of this machine alone, in a directory of the test.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::cmd::cli::Environment;
use crate::cmd::control_plane::Paths;
use crate::cmd::control_plane::context::Mode;
use crate::cmd::control_plane::upgrade::args::ClusterUpgradeOptions;
use crate::cmd::control_plane::upgrade::view::Reach;
use crate::cmd::control_plane::upgrade::view::tests::{settings, view};
use crate::cmd::control_plane::upgrade::wishes::UpgradeWishes;
use crate::cmd::init::InitSession;
use crate::model::types::Timestamp;
use crate::platform::testing::TempDir;

/// What a phase prints, on a node with these files.
fn said(
    directory: &TempDir,
    mode: Mode,
    work: impl FnOnce(&mut UpgradeRun<'_>, &mut Context<'_, '_>) -> Result<(), InitError>,
) -> String {
    let options = ClusterUpgradeOptions::parse(&["apply".to_owned()]).unwrap();
    let wishes = UpgradeWishes::of(&options, &Value::Null).unwrap();
    let paths = Paths { kubernetes: directory.path().join("k"), kubelet: directory.path().join("kubelet") };
    let view = view();
    let mut settings = settings(&view, "v1.36.2");
    settings.patches = std::path::PathBuf::new();
    settings.cluster.control_plane_endpoint = "api.example.com:6443".to_owned();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let now = Timestamp::from_secs(1_795_305_600);
    let environment = Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now };
    let mut session = InitSession { environment };
    let mut context = Context {
        session: &mut session,
        settings,
        kubeconfig_dir: paths.kubernetes.clone(),
        paths,
        mode,
        drafts: BTreeMap::new(),
        patches: None,
    };
    let mut run = UpgradeRun {
        wishes: &wishes,
        is_node: false,
        is_worker: false,
        reach: Reach { kubeconfig: "/none".into(), server: None, name: "a".to_owned() },
        given_kubeconfig: None,
        view,
        own: "v1.36.0".to_owned(),
        record: None,
        deadline: Instant::now() + Duration::from_secs(60),
    };
    work(&mut run, &mut context).unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(out).unwrap()
}

fn scratch() -> TempDir {
    let directory = TempDir::new();
    for name in ["k/manifests", "kubelet"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    directory
}

fn read(directory: &TempDir, name: &str) -> String {
    fs::read_to_string(directory.path().join(name)).unwrap_or_default()
}

#[test]
fn a_member_of_etcd_keeps_what_it_was_made_with() {
    let directory = scratch();
    let etcd = |tag: &str| {
        format!(
            "metadata: {{labels: {{tier: control-plane, component: etcd}}}}\nspec: {{containers: [{{image: 'r/etcd:{tag}', \
             command: [etcd, --initial-cluster-state=existing, '--initial-cluster=a=https://1:2380,b=https://2:2380']}}]}}\n"
        )
    };
    for (tag, expected) in [("3.6.8-0", true), ("3.5.24-0", true), ("own", true), ("3.7.0-0", false)] {
        directory.put("k/manifests/etcd.yaml", &etcd(tag));
        let text = said(&directory, Mode::Real, |_, context| {
            assert_eq!(is_newer_etcd(context).unwrap(), expected, "{tag}");
            let Etcd::Local(local) = &context.settings.cluster.etcd else { panic!("it is local") };
            assert_eq!(local.initial_cluster, "a=https://1:2380,b=https://2:2380");
            Ok(())
        });
        assert_eq!(text.contains("\"3.6.8-0\" is older than the currently installed"), !expected, "{text}");
    }
}

#[test]
fn the_kubelets_file_is_the_clusters_and_the_old_one_is_kept() {
    let directory = scratch();
    let before = "cgroupDriver: cgroupfs\nmaxPods: 5\n";
    directory.put("kubelet/config.yaml", before);
    let text = said(&directory, Mode::Dry, |run, context| kubelet_config(run, context));
    assert!(
        text.contains("[dryrun] Would back up kubelet config file to ") && text.contains("clusterDomain"),
        "{text}"
    );
    assert_eq!(read(&directory, "kubelet/config.yaml"), before);

    let text = said(&directory, Mode::Real, |run, context| kubelet_config(run, context));
    assert!(text.contains("successfully upgraded! Restart the kubelet"), "{text}");
    let made = read(&directory, "kubelet/config.yaml");
    assert!(made.contains("clusterDomain: cluster.local\n") && !made.contains("maxPods"), "{made}");
    // The machine's own: the driver, and the socket of its runtime.
    assert!(made.contains("cgroupDriver: cgroupfs\n") && made.contains("unix:///run/c.sock"), "{made}");
    assert!(read(&directory, "kubelet/instance-config.yaml").contains("unix:///run/c.sock"));
    assert_eq!(read(&directory, "k/tmp/kubeadm-kubelet-config-2026-11-22-00-00-00/config.yaml"), before);
    let text = said(&directory, Mode::Real, |run, context| kubelet_config(run, context));
    assert!(text.contains("is as it should be"), "{text}");
    assert_eq!(read(&directory, "kubelet/config.yaml"), made);
}

#[test]
fn a_kubelet_beside_an_api_server_asks_that_one() {
    let directory = scratch();
    let conf = "clusters: [{name: c, cluster: {server: 'https://api.example.com:6443'}}]\n";
    directory.put("k/kubelet.conf", conf);
    let text = said(&directory, Mode::Dry, |run, context| kubelet_server(run, context));
    assert!(text.contains("Would change the Server URL from \"https://api.example.com:6443\""), "{text}");
    assert_eq!(read(&directory, "k/kubelet.conf"), conf);
    let text = said(&directory, Mode::Real, |run, context| kubelet_server(run, context));
    assert!(text.contains("Restart the kubelet"), "{text}");
    assert!(read(&directory, "k/kubelet.conf").contains("server: https://192.0.2.1:6444\n"));
    let text = said(&directory, Mode::Real, |run, context| kubelet_server(run, context));
    assert!(!text.contains("Restart") && text.contains("successfully upgraded"), "{text}");
}

#[test]
fn versions_that_do_not_fit_need_force() {
    let directory = scratch();
    let refused = |target: &'static str, force: bool| {
        let mut result = String::new();
        let text = said(&directory, Mode::Real, |run, context| {
            context.settings.cluster.version = target.to_owned();
            let words = ["apply", "--force"].map(str::to_owned);
            let parsed = ClusterUpgradeOptions::parse(&words[..=usize::from(force)]).unwrap();
            let wishes = UpgradeWishes::of(&parsed, &Value::Null).unwrap();
            let run = UpgradeRun {
                wishes: &wishes,
                is_node: false,
                is_worker: false,
                reach: Reach { kubeconfig: "/none".into(), server: None, name: "a".to_owned() },
                given_kubeconfig: None,
                view: view(),
                own: run.own.clone(),
                record: None,
                deadline: run.deadline,
            };
            if let Err(error) = versions(&run, context) {
                result = error.to_string();
            }
            Ok(())
        });
        [result, text].concat()
    };
    let why = refused("v1.36.0", false);
    assert!(why.contains("due to these errors:") && why.contains("pass the --force flag"), "{why}");
    let why = refused("v1.36.0", true);
    assert!(why.contains("Found 1 potential version compatibility errors but skipping"), "{why}");
    let why = refused("v1.38.0", true);
    assert!(why.contains("due to these fatal errors:"), "{why}");
    assert!(!refused("v1.36.2", false).contains("errors"));
}
