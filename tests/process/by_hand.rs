//! `agent run`, `apply`, `delete`, `restart`, `stop`, `ps` and `completion`: what a box needs no kubectl for.

use std::fs;

use serde_json::json;

use super::node::{IMAGE, Node, job, pod};
use crate::support::agent::PATIENCE;
use crate::support::wait::wait_for;

/// Runs `agent COMMAND --socket ... WORDS`: exit code, standard output, standard error.
fn by_hand(node: &Node, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = node.agent.command_of(words[0]);
    command.arg("--socket").arg(node.agent.socket()).args(&words[1..]);
    let output = command.output().expect("run it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn well(node: &Node, words: &[&str]) -> String {
    let (code, out, err) = by_hand(node, words);
    assert_eq!(code, Some(0), "{words:?}: {out} {err}");
    out
}

fn refused(node: &Node, words: &[&str]) -> String {
    let (code, out, err) = by_hand(node, words);
    assert_eq!(code, Some(1), "{words:?}: {out} {err}");
    err
}

#[test]
fn pods_are_run_applied_and_deleted_without_kubectl() {
    let mut node = Node::new();
    node.start_with_neighbour();
    assert_eq!(well(&node, &["run", IMAGE, "--name", "one", "--env", "A=b"]), "pod/one created\n");
    well(&node, &["wait", "pod/one", "--for", "condition=Ready", "--timeout", "600s"]);
    let said = refused(&node, &["run", IMAGE, "--name", "one"]);
    assert!(said.contains("pods \"one\" already exists"), "{said}");
    let made = well(
        &node,
        &["get", "po", "one", "-o", "jsonpath={.metadata.labels.run} {.spec.containers[0].env[0].value}"],
    );
    assert_eq!(made, "one b");
    // Through a file: what is printed is what can be applied.
    let file = node.scratch.path().join("two.yaml");
    let shown = file.display().to_string();
    fs::write(&file, well(&node, &["run", IMAGE, "--name", "two", "--dry-run"])).expect("write it");
    let objects = node.scratch.path().join("objects");
    fs::create_dir_all(&objects).expect("a directory");
    fs::write(objects.join("a.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: v}\n")
        .expect("write it");
    fs::write(
        objects.join("b.json"),
        json!({"apiVersion": "apps/v9", "kind": "Robot", "metadata": {"name": "r"}}).to_string(),
    )
    .expect("write it");
    fs::write(objects.join("notes.txt"), "no manifest").expect("write it");
    assert_eq!(well(&node, &["apply", "-f", &shown]), "pod/two created\n");
    assert_eq!(well(&node, &["apply", "-f", &shown]), "pod/two unchanged\n");
    let (code, out, said) = by_hand(&node, &["apply", "-f", &objects.display().to_string()]);
    assert_eq!((code, out.as_str()), (Some(1), "configmap/c created\n"));
    assert!(
        said.contains("b.json: ") && said.contains("no matches for kind \"Robot\" in version \"apps/v9\""),
        "{said}"
    );
    let text = fs::read_to_string(&file).expect("read it");
    fs::write(&file, text.replace("run: two", "run: other")).expect("write it");
    assert_eq!(well(&node, &["apply", "-f", &shown]), "pod/two configured\n");
    fs::write(&file, text.replace("name: two\n  restartPolicy", "name: third\n  restartPolicy"))
        .expect("write it");
    let said = refused(&node, &["apply", "-f", &shown]);
    assert!(said.contains("To replace the pod, run agent delete pod two -n default"), "{said}");
    well(&node, &["wait", "pod/two", "--for", "condition=Ready", "--timeout", "600s"]);
    let offered = well(&node, &["completion", "bash"]);
    assert!(offered.contains("complete -F _agent agent"), "{offered}");
    let socket = node.agent.socket().display().to_string();
    let mut words = node.agent.command_of("completion");
    words.args(["words", "logs", "--socket", &socket, "t"]);
    assert_eq!(String::from_utf8_lossy(&words.output().expect("run it").stdout), "two\n");
    let listed = well(&node, &["ps"]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let pods: Vec<&str> = rows[1..].iter().map(|row| row[3]).collect();
    assert_eq!(pods, ["neighbour-edge", "one", "two"], "{listed}");

    fs::write(&file, &text).expect("write it");
    assert_eq!(well(&node, &["delete", "-f", &shown]), "pod \"two\" deleted from default namespace\n");
    let said = refused(&node, &["get", "pods", "two"]);
    assert!(said.contains("not found"), "it is gone when the command ends: {said}");
    let said = refused(&node, &["delete", "pod", "two"]);
    assert!(said.contains("pods \"two\" not found"), "{said}");
    well(&node, &["delete", "pod", "two", "--ignore-not-found"]);
    assert_eq!(well(&node, &["delete", "cm/c"]), "configmap \"c\" deleted from default namespace\n");
    assert_eq!(
        well(&node, &["delete", "po", "-l", "run=one"]),
        "pod \"one\" deleted from default namespace\n"
    );
}

#[test]
fn pod_of_a_file_is_not_stopped_and_one_of_the_api_comes_back() {
    let mut node = Node::new();
    node.start_with_neighbour();
    let manifest = node.manifest("neighbour.yaml").display().to_string();
    for words in
        [["stop", "neighbour"].as_slice(), &["delete", "pod", "neighbour"], &["delete", "po/neighbour-edge"]]
    {
        let said = refused(&node, words);
        assert!(said.contains(&format!("  mv {manifest} ")), "{said}");
    }
    well(&node, &["run", IMAGE, "--name", "one", "--labels", "a=b"]);
    well(&node, &["wait", "pod/one", "--for", "condition=Ready", "--timeout", "600s"]);
    let (code, manifest, said) = by_hand(&node, &["stop", "one"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("pod/one stopped and deleted") && !manifest.contains("status:"),
        "{manifest} {said}"
    );
    assert!(!well(&node, &["get", "pods"]).contains("one"));
    let file = node.scratch.path().join("one.yaml");
    fs::write(&file, &manifest).expect("write it");
    assert_eq!(well(&node, &["apply", "-f", &file.display().to_string()]), "pod/one created\n");
    assert_eq!(well(&node, &["get", "po", "one", "-o", "jsonpath={.metadata.labels.a}"]), "b");
}

#[test]
fn restart_makes_new_instances_whatever_the_policy() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    node.apply(&job("never", "main", "Never"));
    let mut two = pod("two");
    let mut side = two["spec"]["containers"][0].clone();
    side["name"] = json!("side");
    two["spec"]["containers"].as_array_mut().expect("a list").push(side);
    node.apply(&two);
    let old = node.running("never");
    assert_eq!(well(&node, &["restart", "never"]), "pod/never-edge restarted (main)\n");
    let new = node.running_other_than("never", Some(&old));
    let count = "jsonpath={.status.containerStatuses[0].restartCount}";
    wait_for("the count to go up", PATIENCE, || {
        let counted = well(&node, &["get", "po", "never-edge", "-o", count]);
        if counted == "1" { Ok(()) } else { Err(counted) }
    });
    well(&node, &["wait", "pod/two-edge", "--for", "condition=Ready", "--timeout", "600s"]);
    let id = |container: usize| {
        let path = format!("jsonpath={{.status.containerStatuses[{container}].containerID}}");
        well(&node, &["get", "po", "two-edge", "-o", &path])
    };
    let before = (id(0), id(1));
    assert_eq!(well(&node, &["restart", "two", "-c", "side"]), "pod/two-edge restarted (side)\n");
    assert_eq!(id(0), before.0);
    assert_ne!(id(1), before.1);
    let said = refused(&node, &["restart", "two", "-c", "third"]);
    assert!(said.contains("no restartable container \"third\""), "{said}");
    let said = refused(&node, &["restart", "nothing"]);
    assert!(said.contains("pods \"nothing\" not found"), "{said}");
    node.keeps_running("never", &new);
    node.keeps_running("neighbour", &neighbour);
}
