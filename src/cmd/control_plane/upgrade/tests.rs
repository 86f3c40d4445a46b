//! The commands where no cluster can be asked.

use super::*;
use crate::model::types::Timestamp;
use crate::platform::logging::chain;
use crate::platform::testing::TempDir;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn words_of_a_control_plane_are_not_programs() {
    for (line, expected) in [
        ("plan", true),
        ("--yes apply v1.36.2", true),
        ("node --help", true),
        ("diff", true),
        ("./plan", false),
        ("agent-0.2.0", false),
        ("status", false),
        ("--help", false),
        ("", false),
    ] {
        assert_eq!(selects(&words(line)), expected, "{line}");
    }
}

fn said(directory: &TempDir, line: &str) -> String {
    let paths = Paths { kubernetes: directory.path().join("k"), kubelet: directory.path().join("kubelet") };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let now = Timestamp::from_secs(1_795_305_600);
    let environment = Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now };
    let mut session = InitSession { environment };
    let options = ClusterUpgradeOptions::parse(&words(line)).unwrap();
    command(&mut session, &options, &paths).map_err(|error| chain(&error)).unwrap_err()
}

#[test]
fn what_keeps_an_upgrade_from_beginning_is_named() {
    let directory = TempDir::new();
    let file = directory.path().join("upgrade.yaml").display().to_string();
    assert!(said(&directory, "apply").contains("this machine has no control plane"));
    assert!(said(&directory, &format!("plan --config {file}")).contains("upgrade.yaml"));
    directory.put("upgrade.yaml", "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ResetConfiguration\n");
    assert!(
        said(&directory, &format!("plan --config {file}"))
            .contains("no UpgradeConfiguration found in the file")
    );
    directory.put(
        "upgrade.yaml",
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: UpgradeConfiguration\napply: {forced: true}\n",
    );
    assert!(said(&directory, &format!("plan --config {file}")).contains("unknown field \"apply.forced\""));
    assert!(said(&directory, "node --skip-phases nothing").contains("invalid phase name: nothing"));
    assert!(said(&directory, "node").contains("kubelet.conf"));
    assert!(said(&directory, "plan").contains("admin.conf"));
    assert!(said(&directory, "plan -o xml").contains("\"xml\""));
    std::fs::create_dir_all(directory.path().join("k/manifests")).unwrap();
    directory.put("k/manifests/kube-apiserver.yaml", "metadata: {}\n");
    assert!(said(&directory, "apply").contains("kube-apiserver.yaml: the annotation"));
}
