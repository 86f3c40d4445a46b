//! Changes of manifests as the runtime sees them: order, replacement, and that silence removes nothing.

use edge_agent::runtime::fake::{OnStop, Program, Run};
use serde_json::json;
use std::time::Duration;

use super::node::{Node, job, pod, said};
use crate::support::http_server::{Answer, HttpServer};
use crate::support::wait::wait_until;

#[test]
fn replacement_pod_waits_until_the_old_pod_is_gone() {
    let mut node = Node::new();
    let slow =
        Program { run: Run::Forever, on_stop: OnStop::Exits { after: Duration::from_millis(800), code: 0 } };
    node.cri.script("slow", slow);
    let mut web = job("web", "slow", "Always");
    web["spec"]["terminationGracePeriodSeconds"] = json!(10);
    node.apply(&web);
    node.start_with_neighbour();
    let old = node.running("web");
    web["spec"]["containers"][0]["args"] = json!(["new"]);
    node.apply(&web);
    // The old one has its grace, and the new sandbox is only asked for afterwards.
    let new = node.running_other_than("web", Some(&old));
    assert_ne!(new, old);
    let calls = node.cri.call_names();
    let stop = calls.iter().rposition(|call| *call == "StopPodSandbox").expect("the old one was stopped");
    let run = calls.iter().rposition(|call| *call == "RunPodSandbox").expect("the new one was made");
    assert!(stop < run, "{calls:?}");
    assert_eq!(node.calls("RunPodSandbox"), 3);
}

#[test]
fn a_single_file_may_be_the_manifest_path() {
    let mut node = Node::new();
    let file = node.scratch.path().join("pods.yaml");
    std::fs::write(&file, pod("only").to_string()).expect("write the file");
    node.agent.argument(format!("--pod-manifest-path={}", file.display()));
    node.agent.start();
    let only = node.running("only");
    std::fs::remove_file(&file).expect("remove the file");
    node.problem(&["pods.yaml", "does not exist"]);
    node.keeps_running("only", &only);
}

/// `agent source accept`, its exit status and what it says.
fn accept(node: &Node, source: &str) -> (Option<i32>, String) {
    let mut command = node.agent.command_of("source");
    let output = command.args(["accept", source, "--socket"]).arg(node.agent.socket()).output();
    let output = output.expect("run agent source");
    (output.status.code(), said(&output))
}

/// A mount that is missing after a boot, or a directory that something made again, looks like this.
#[test]
fn an_empty_directory_in_anothers_place_is_confirmed_by_hand() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.agent.kill9();
    let (manifests, away) = (node.agent.manifest_dir(), node.scratch.path().join("away"));
    std::fs::rename(&manifests, &away).expect("move the manifests away");
    std::fs::create_dir(&manifests).expect("make an empty directory");
    node.agent.start();
    node.problem(&["is empty, and is not the directory that the pods came from", "agent source accept file"]);
    node.keeps_running("neighbour", &neighbour);
    let (code, refused) = accept(&node, "http");
    assert!(code == Some(1) && refused.contains("configured sources: file"), "{refused}");

    // The right one comes back, and nothing has happened.
    std::fs::remove_dir(&manifests).expect("remove the empty directory");
    std::fs::rename(&away, &manifests).expect("move the manifests back");
    node.no_problems();
    let (code, refused) = accept(&node, "file");
    assert!(code == Some(1) && refused.contains("no pending empty response"), "{refused}");
    node.keeps_running("neighbour", &neighbour);

    std::fs::rename(&manifests, &away).expect("move the manifests away");
    std::fs::create_dir(&manifests).expect("make an empty directory");
    node.problem(&["agent source accept file"]);
    node.keeps_running("neighbour", &neighbour);
    let (code, done) = accept(&node, "file");
    assert!(code == Some(0) && done.contains("accepted the current content"), "{done}");
    node.stopped("neighbour");
    node.no_problems();
    // From now on it is the directory that speaks.
    node.apply(&pod("web"));
    node.running("web");
    node.agent.terminate();
    node.agent.remove_manifest("web.yaml");
    node.agent.start();
    node.stopped("web");
}

#[test]
fn an_empty_list_is_no_first_answer_after_a_start() {
    let server = HttpServer::start(Answer::manifest(&pod("web").to_string()));
    let mut node = Node::new();
    node.agent.argument(format!("--manifest-url={}", server.url("/pods.yaml")));
    node.agent.start();
    let web = node.running("web");
    node.agent.kill9();
    server.answer(Answer::manifest("apiVersion: v1\nkind: PodList\nitems: []\n"));
    node.agent.start();
    node.problem(&["the list is empty", "agent source accept http"]);
    node.keeps_running("web", &web);
    assert_eq!(accept(&node, "http").0, Some(0));
    node.stopped("web");
    node.no_problems();
}

/// A key of minisign's whose other half is gone, and its signatures of [`signed_manifest`], `timestamp:100` and `timestamp:200`.
const KEY: &str = "untrusted comment: minisign public key 102D8AF7C47CC087
RWSHwHzE94otENT/BMudkCDMi6NB/BHbT6+VrTzbb8QID9k7/AnKPplD
";
const SIGNED_OLD: &str = "untrusted comment: signature of a test
RUSHwHzE94otEHdIpJYXjd2cxU9FPWLJsI7epUn/RN0shFx2bf8nPKEALbgKwxkif5y9zmKeAXU0i0DGH389+CxbLfy+8XXjkAc=
trusted comment: timestamp:100
ZK7lx7HTK3ftPPpM6jjWjM7opJUtUG8p07DJ9Ne7ZKFxRrmSGkZiN4NHrb/Qh3MHNqytkAL+u8Kz6LevkkfHAg==
";
const SIGNED_WEB: &str = "untrusted comment: signature of a test
RUSHwHzE94otEL1CRxik6nXunNJPXURxmspVBQOvi11KnMr0if6gXvYZ+P9GXX0uzp0wFhiC4c+zVmhXIcKK8yHUL3X5SEVDtQ0=
trusted comment: timestamp:200
PXobrqUd+8IDBzfU5V+L+ULv1r/mIGEo6f5z4p6gAqdJIBSNmaeEES2qxbQ2gdBs0qx7wULaId6XjPG3Ri4bCg==
";

fn signed_manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{terminationGracePeriodSeconds: 1, containers: [{{name: main, \
         image: localhost/test:1, imagePullPolicy: IfNotPresent}}]}}\n"
    )
}

#[test]
fn an_old_signed_set_is_refused_also_after_a_restart() {
    let mut node = Node::new();
    let directory = node.scratch.dir("fleet");
    let put = |file: &str, text: &str| {
        std::fs::write(directory.join("new"), text).expect("write a file");
        std::fs::rename(directory.join("new"), directory.join(file)).expect("rename it");
    };
    put("key", KEY);
    put("pods.yaml.minisig", SIGNED_WEB);
    put("pods.yaml", &signed_manifest("web"));
    node.agent.argument(format!("--manifest-url=file://{}/pods.yaml", directory.display()));
    node.agent.argument(format!("--manifest-url-verify-key-file={}/key", directory.display()));
    node.agent.start();
    let web = node.running("web");
    node.agent.kill9();
    put("pods.yaml.minisig", SIGNED_OLD);
    put("pods.yaml", &signed_manifest("old"));
    node.agent.start();
    node.problem(&["signed with timestamp:100, older than timestamp:200 served before"]);
    node.keeps_running("web", &web);
    put("pods.yaml.minisig", SIGNED_WEB);
    put("pods.yaml", &signed_manifest("web"));
    node.no_problems();
    node.keeps_running("web", &web);
}

#[test]
fn pods_of_a_source_no_longer_configured_are_removed() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.agent.terminate();
    node.agent.argument("--manifest-dir=");
    node.agent.start();
    node.stopped("neighbour");
    assert!(!node.log_lines(&["no longer configured"]).is_empty(), "{}", node.agent.log());
    wait_until("the old container to be gone", Duration::from_secs(20), || {
        !node.all_running().values().flatten().any(|id| *id == neighbour)
    });
}
