//! What people and broken tools put into a manifest directory: each mistake gets one clear message, and no other pod feels it.

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;

use super::node::{A_WHILE, Node, pod};
use crate::support::wait::{stays, wait_until};

/// Manifests that cannot be used: file name, content, and what the message has to say.
const BROKEN: &[(&str, &str, &[&str])] = &[
    ("empty.yaml", "", &["empty", "delete it"]),
    ("blank.yaml", " \n\n", &["empty"]),
    ("comments.yaml", "# later\n", &["only comments"]),
    ("nul.yaml", "apiVersion: v1\0\u{1}\u{2}", &["binary data", "offset 14"]),
    ("unclosed.yaml", "apiVersion: v1\nkind: Pod\nspec: [\n", &["line 3", "unclosed bracket"]),
    ("tabs.yaml", "apiVersion: v1\nkind: Pod\nspec:\n\tcontainers: []\n", &["line 4", "tab"]),
    ("broken.json", "{\"apiVersion\": \"v1\" \"kind\": \"Pod\"}", &["line 1", "JSON"]),
    ("list.yaml", "- a\n- b\n", &["list", "mapping"]),
    ("text.yaml", "hello\n", &["expected an object, found a text", "apiVersion"]),
    ("no-kind.yaml", "apiVersion: v1\nmetadata: {name: a}\n", &["kind is missing", "kind: Pod"]),
    ("no-version.yaml", "kind: Pod\nmetadata: {name: a}\n", &["apiVersion is missing", "apiVersion: v1"]),
    ("gadget.yaml", "apiVersion: example.com/v1\nkind: Gadget\n", &["\"Gadget\"", "only Pod"]),
    ("old-version.yaml", "apiVersion: v1beta3\nkind: Pod\n", &["\"v1beta3\"", "apiVersion: v1"]),
    (
        "no-containers.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\n",
        &["spec.containers"],
    ),
    ("no-name.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, image: x}]}\n", &["name"]),
    (
        "bad-name.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: My_Pod}\nspec: {containers: [{name: c, image: x}]}\n",
        &["metadata.name", "My_Pod", "lower"],
    ),
    (
        "no-image.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n",
        &["pod a", "spec.containers[0].image"],
    ),
    (
        "wrong-type.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: 7}\n",
        &["spec.containers", "7"],
    ),
    (
        "wrong-quantity.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x, resources: \
         {limits: {memory: 10 apples}}}]}\n",
        &["spec.containers[0].resources.limits", "10 apples"],
    ),
    (
        "unquoted.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x, env: [{name: A, value: \
         yes}]}]}\n",
        &["spec.containers[0].env[0].value", "quote"],
    ),
    (
        "same-containers.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x}, {name: c, \
         image: z}]}\n",
        &["spec.containers[1].name", "uplicate"],
    ),
];

/// `&a [*b, *b, ...]` nine levels deep: 10^9 nodes when written out.
fn alias_bomb() -> String {
    let mut text = "apiVersion: v1\nkind: Pod\nl0: &l0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = format!("*l{}", level - 1);
        let items = vec![before; 10].join(", ");
        writeln!(text, "l{level}: &l{level} [{items}]").expect("writing to memory cannot fail");
    }
    text
}

#[test]
fn broken_manifests_are_reported_once_with_a_fix() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    for (file, content, _) in BROKEN {
        node.agent.write_manifest(file, content);
    }
    node.agent.write_manifest("bomb.yaml", &alias_bomb());
    node.agent.write_manifest("deep.yaml", &format!("a: {}", "[".repeat(20_000)));
    for (file, _, words) in BROKEN {
        let words: Vec<&str> = [&[*file][..], words].concat();
        let problem = node.problem(&words);
        assert_eq!(problem.matches(file).count(), 1, "the file is named once: {problem}");
    }
    node.problem(&["bomb.yaml", "alias"]);
    node.problem(&["deep.yaml", "deep"]);
    // Several rescans later everything has still been said exactly once.
    stays("the log", A_WHILE, || {
        for (file, ..) in BROKEN {
            let lines = node.log_lines(&[file, "Problem"]);
            if lines.len() > 1 || node.log_lines(&[file]).len() > 1 {
                return Err(format!("{lines:#?}"));
            }
        }
        Ok(())
    });
    node.keeps_running("neighbour", &neighbour);
    assert_eq!(node.all_running().len(), 1);
    for (file, ..) in BROKEN.iter().chain(&[("bomb.yaml", "", &[][..]), ("deep.yaml", "", &[])]) {
        node.agent.remove_manifest(file);
    }
    node.no_problems();
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn what_is_no_readable_file_is_named_and_mended_in_place() {
    let mut node = Node::new();
    // Before the start: the first of the two is a broken link until there is the other.
    symlink("loop-b.yaml", node.manifest("loop-a.yaml")).expect("make a link");
    symlink("loop-a.yaml", node.manifest("loop-b.yaml")).expect("make a link");
    let neighbour = node.start_with_neighbour();
    mkfifo(&node.manifest("pipe.yaml"), Mode::S_IRWXU).expect("make a pipe");
    symlink("nowhere", node.manifest("dangling.yaml")).expect("make a link");
    let _socket =
        std::os::unix::net::UnixListener::bind(node.manifest("socket.yaml")).expect("make a socket");
    fs::create_dir(node.manifest("directory.yaml")).expect("make a directory");
    let large = File::create(node.manifest("large.yaml")).expect("make a file");
    large.set_len(100 << 20).expect("make it large, without content");
    for words in [
        &["pipe.yaml", "named pipe", "regular file"][..],
        &["dangling.yaml", "broken symlink"],
        &["loop-a.yaml", "symlink loop"],
        &["loop-b.yaml", "symlink loop"],
        &["socket.yaml", "socket", "regular file"],
        &["large.yaml", "larger than the manifest limit of 10485760 bytes"],
    ] {
        let problem = node.problem(words);
        assert_eq!(problem.matches(words[0]).count(), 1, "{problem}");
        assert_eq!(node.log_lines(&[words[0]]).len(), 1, "{}", node.agent.log());
    }
    assert!(!node.problems().expect("the agent answers").concat().contains("directory.yaml"));
    node.keeps_running("neighbour", &neighbour);

    // Each is replaced by the manifest it should have been.
    for name in ["pipe", "dangling", "loop-a", "socket", "large"] {
        node.apply(&pod(name));
        node.running(name);
    }
    fs::remove_file(node.manifest("loop-b.yaml")).expect("remove the link");
    node.no_problems();
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn ignored_fields_are_problems_until_they_are_mended() {
    let mut node = Node::new();
    let mut unknown = pod("unknown-field");
    unknown["spec"]["restartPolcy"] = json!("Never");
    node.apply(&unknown);
    let twice = pod("twice").to_string().replacen("\"spec\"", "\"kind\":\"Pod\",\"spec\"", 1);
    node.agent.write_manifest("twice.json", &twice);
    node.agent.write_manifest(
        "twice-yaml.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: wrong, name: twice-yaml}\nspec: {containers: [{name: main, image: \
         localhost/test:1}]}\n",
    );
    node.agent.start();
    node.running("unknown-field");
    node.running("twice");
    node.running("twice-yaml");
    for words in [
        &["unknown-field.yaml", "spec.restartPolcy", "did you mean"][..],
        &["twice.json", "uplicate", "kind"],
        &["twice-yaml.yaml", "uplicate", "name"],
    ] {
        node.problem(words);
    }
    stays("each problem", A_WHILE, || {
        let lines = node.log_lines(&["Problem with a pod source", "FieldIgnored"]);
        if lines.len() == 3 { Ok(()) } else { Err(format!("{lines:#?}")) }
    });
    assert!(node.agent.cli(&["status"]).is_err(), "something is wrong");
    let status = node.agent.cli(&["status", "--exit-zero"]).expect("a page");
    assert!(status.contains("unknown-field.yaml: FieldIgnored"), "{status}");
    let page = node.agent.cli(&["describe", "pod", "unknown-field"]).expect("a page");
    let (problems, events) = page.split_once("Events:").expect("events");
    assert!(problems.contains("Problems:") && problems.contains("spec.restartPolcy"), "{page}");
    assert!(events.contains("FieldIgnored") && events.contains("did you mean"), "{page}");
    let running = node.running("unknown-field");
    node.apply(&pod("unknown-field"));
    node.apply(&pod("twice"));
    node.agent.remove_manifest("twice.json");
    node.agent.remove_manifest("twice-yaml.yaml");
    node.no_problems();
    node.keeps_running("unknown-field", &running);
    let page = node.agent.cli(&["describe", "pod", "unknown-field"]).expect("a page");
    assert!(!page.contains("Problems:"), "{page}");
}

#[test]
fn one_pod_in_two_files_runs_once_and_the_second_file_is_named() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.agent.write_manifest("b-copy.yaml", &pod("web").to_string());
    let first = node.running("web");
    node.agent.write_manifest("c-copy.yaml", &pod("web").to_string());
    node.problem(&["web", "c-copy.yaml", "b-copy.yaml"]);
    node.keeps_running("web", &first);
    node.keeps_running("neighbour", &neighbour);
    assert_eq!(node.log_lines(&["c-copy.yaml", "Problem"]).len(), 1, "{}", node.agent.log());
    node.agent.remove_manifest("c-copy.yaml");
    node.no_problems();
    node.keeps_running("web", &first);
}

#[test]
fn last_good_manifest_version_survives_an_agent_restart() {
    let mut node = Node::new();
    node.start_with_neighbour();
    node.apply(&pod("web"));
    let web = node.running("web");
    node.agent.write_manifest("web.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: 7}\n");
    node.problem(&["web.yaml", "spec.containers"]);
    node.keeps_running("web", &web);
    node.agent.terminate();
    node.agent.start();
    node.problem(&["web.yaml", "spec.containers"]);
    node.keeps_running("web", &web);
    assert_eq!(node.calls("RunPodSandbox"), 2);
}

#[test]
fn a_directory_that_goes_away_and_comes_back_removes_nothing() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    let (directory, aside) = (node.agent.manifest_dir(), node.scratch.path().join("aside"));
    fs::rename(&directory, &aside).expect("move the directory away");
    let problem = node.problem(&["does not exist", "create it"]);
    assert_eq!(problem.matches("agent/manifests").count(), 1, "{problem}");
    node.keeps_running("neighbour", &neighbour);
    assert_eq!(node.log_lines(&["does not exist"]).len(), 1, "{}", node.agent.log());
    fs::rename(&aside, &directory).expect("move it back");
    node.no_problems();
    node.keeps_running("neighbour", &neighbour);

    // Made anew with another pod in it: now the directory has spoken.
    fs::remove_dir_all(&directory).expect("remove it");
    node.problem(&["does not exist"]);
    node.keeps_running("neighbour", &neighbour);
    fs::create_dir(&directory).expect("make it again");
    node.apply(&pod("other"));
    node.running("other");
    node.stopped("neighbour");
    wait_until("the list to show it", Duration::from_secs(20), || node.agent.pod("neighbour").is_err());
}
