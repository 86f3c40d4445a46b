//! What a container finds inside: environment, volumes, hosts; and what it leaves outside: logs.

use std::fs;

use edge_agent::codec::cri_log;
use serde_json::json;

use super::Node;
use crate::support::agent::{NODE, PATIENCE};
use crate::support::image::BUSYBOX;
use crate::support::wait::wait_for;

fn containers_get_env_downward_api_and_expanded_args() {
    let mut node = Node::new();
    let mut pod = node.pod("env", "");
    pod["metadata"]["labels"] = json!({ "app": "shop" });
    pod["metadata"]["annotations"] = json!({ "team": "blue" });
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let container = &mut pod["spec"]["containers"][0];
    container["resources"] = json!({ "limits": { "memory": "64Mi" } });
    container["env"] = json!([
        { "name": "GREETING", "value": "good" },
        { "name": "BOTH", "value": "$(GREETING) day" },
        { "name": "LATER", "value": "$(UNKNOWN) $$(GREETING)" },
        field("POD", "metadata.name"),
        field("SPACE", "metadata.namespace"),
        field("UID", "metadata.uid"),
        field("APP", "metadata.labels['app']"),
        field("TEAM", "metadata.annotations['team']"),
        field("ON", "spec.nodeName"),
        { "name": "MEMORY", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory" } } },
    ]);
    container["command"] = json!(["sh", "-c"]);
    container["args"] = json!([
        "echo \"$BOTH|$LATER|$POD|$SPACE|$UID|$APP|$TEAM|$ON|$MEMORY|$(GREETING)\" > /out/env; sleep 1000"
    ]);
    node.apply(&pod);
    node.agent.start();

    let text = node.written("env");
    let uid = node.running("env").uid;
    let expected =
        format!("good day|$(UNKNOWN) $(GREETING)|env-{NODE}|default|{uid}|shop|blue|{NODE}|67108864|good\n");
    assert_eq!(text, expected);
}

fn containers_share_an_empty_dir_and_reach_host_paths() {
    let mut node = Node::new();
    let mut pod = node.pod(
        "volumes",
        "until [ -s /shared/word ]; do sleep 0.1; done; cat /shared/word > /out/word; sleep 1000",
    );
    pod["spec"]["volumes"].as_array_mut().expect("a list").push(json!({ "name": "shared", "emptyDir": {} }));
    let mount = json!({ "name": "shared", "mountPath": "/shared" });
    pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().expect("a list").push(mount.clone());
    pod["spec"]["containers"].as_array_mut().expect("a list").push(json!({
        "name": "writer",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "echo hello > /shared/word; sleep 1000"],
        "volumeMounts": [mount],
    }));
    node.apply(&pod);
    node.agent.start();

    assert_eq!(node.written("word"), "hello\n");
    let instances = node.runtime.running("volumes-edge");
    assert_eq!(instances.len(), 2, "{instances:?}");
    let directory = node
        .agent
        .root_dir()
        .join("pods")
        .join(&instances[0].uid)
        .join("volumes/kubernetes.io~empty-dir/shared");
    assert_eq!(fs::read_to_string(directory.join("word")).expect("read the volume on the node"), "hello\n");
}

fn downward_api_volumes_and_file_key_ref_variables() {
    let mut node = Node::new();
    let mut pod = node.pod(
        "itself",
        "(cat /itself/labels; echo; cat /both/deep/name; echo; stat -c %a -L /itself/labels /both/deep/name; \
          touch /itself/x 2>/dev/null && echo writable; echo $WORD) > /out/itself; sleep 1000",
    );
    pod["metadata"]["labels"] = json!({ "app": "shop", "tier": "front" });
    let item =
        |path: &str, field: &str| json!({ "path": path, "fieldRef": { "fieldPath": field }, "mode": 0o440 });
    let volumes = pod["spec"]["volumes"].as_array_mut().expect("a list");
    volumes
        .push(json!({ "name": "itself", "downwardAPI": { "items": [item("labels", "metadata.labels")] } }));
    volumes.push(json!({ "name": "both", "projected": { "sources": [
        { "downwardAPI": { "items": [{ "path": "deep/name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        { "configMap": { "name": "absent", "optional": true } },
    ] } }));
    volumes.push(json!({ "name": "words", "emptyDir": {} }));
    pod["spec"]["initContainers"] = json!([{
        "name": "writer",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "echo \"# for main\" > /words/env; echo \"WORD='hello \\$x'\" >> /words/env"],
        "volumeMounts": [{ "name": "words", "mountPath": "/words" }],
    }]);
    let container = &mut pod["spec"]["containers"][0];
    container["env"] = json!([{ "name": "WORD", "valueFrom": {
        "fileKeyRef": { "volumeName": "words", "path": "env", "key": "WORD" } } }]);
    for volume in ["itself", "both"] {
        let mount = json!({ "name": volume, "mountPath": format!("/{volume}") });
        container["volumeMounts"].as_array_mut().expect("a list").push(mount);
    }
    node.apply(&pod);
    node.agent.start();

    let expected = format!("app=\"shop\"\ntier=\"front\"\nitself-{NODE}\n440\n644\nhello $x\n");
    node.wait_written("itself", &expected);
    let uid = node.running("itself").uid;
    node.delete("itself");
    node.gone("itself");
    let left = node.agent.root_dir().join("pods").join(uid);
    wait_for("the pod's directory, with its mounts, to go", PATIENCE, || {
        if left.exists() { Err(left.display().to_string()) } else { Ok(()) }
    });
}

fn the_hosts_file_names_the_pods_aliases() {
    let mut node = Node::new();
    let mut pod = node.pod("hosts", "cat /etc/hosts > /out/hosts; sleep 1000");
    pod["spec"]["hostAliases"] = json!([{ "ip": "192.0.2.7", "hostnames": ["printer", "printer.lan"] }]);
    node.apply(&pod);
    node.agent.start();

    let text = node.written("hosts");
    assert!(text.starts_with("# Kubernetes-managed hosts file (host network).\n"), "{text}");
    assert!(text.ends_with("\n# Entries added by HostAliases.\n192.0.2.7\tprinter\tprinter.lan\n"), "{text}");
}

fn container_logs_have_the_kubelets_paths_and_symlinks() {
    let mut node = Node::new();
    node.apply(&node.pod("talk", "echo to out; echo to err >&2; sleep 1000"));
    node.agent.start();
    let container = node.running("talk");

    let file = node.agent.pod_logs_dir().join(format!("default_talk-{NODE}_{}/main/0.log", container.uid));
    let text = wait_for("the log lines", PATIENCE, || {
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        if text.lines().count() == 2 { Ok(text) } else { Err(text) }
    });
    // In CRI's format, or in Docker's.
    for (is_stderr, expected) in [(false, &b"to out"[..]), (true, b"to err")] {
        let is_it = |line: cri_log::LogLine<'_>| line.is_stderr == is_stderr && *line.text == *expected;
        assert!(text.lines().any(|line| cri_log::parse(line.as_bytes()).is_some_and(is_it)), "{text}");
    }

    let links = node.agent.pod_logs_dir().parent().expect("it has one").join("containers");
    let link = links.join(format!("talk-{NODE}_default_main-{}.log", container.id));
    let linked = wait_for("the link", PATIENCE, || {
        fs::read_to_string(&link).map_err(|error| format!("{}: {error}", link.display()))
    });
    assert_eq!(linked, text);

    node.delete("talk");
    node.gone("talk");
    wait_for("the link to go", PATIENCE, || {
        if link.symlink_metadata().is_ok() { Err(link.display().to_string()) } else { Ok(()) }
    });
}

super::on_every_runtime! {
    containers_get_env_downward_api_and_expanded_args,
    containers_share_an_empty_dir_and_reach_host_paths,
    downward_api_volumes_and_file_key_ref_variables,
    the_hosts_file_names_the_pods_aliases,
    container_logs_have_the_kubelets_paths_and_symlinks,
}
