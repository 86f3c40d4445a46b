//! Devices without `privileged`: by annotation, by volume, of plugins; and what is closed to everybody else.
//!
//! `/dev/fuse` is the device of these tests: every machine that runs containers has it, opening it does nothing, and nobody is
//! given it by default.

use std::path::Path;
use std::process::Command;

use edge_agent::devices::client::PluginClient;
use edge_agent::platform::proto::pod_resources as wire;
use prost::Message;
use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::device_plugin::{DevicePlugin, RESOURCE};
use crate::support::runtime::on_both_runtimes;

/// Tries to open a path for reading and for writing, and says what became of both.
fn opener(node: &Node, name: &str, path: &str) -> Value {
    let script = format!(
        "r=no; w=no; (: < {path}) && r=yes; (: >> {path}) && w=yes; \
         echo read $r write $w $ACME > /out/{name}.part; mv /out/{name}.part /out/{name}; sleep 1000"
    );
    node.pod(name, &script)
}

fn with_volume(mut pod: Value, path: &str, type_: &str, place: &str, read_only: bool) -> Value {
    let spec = &mut pod["spec"];
    let volume = json!({"name": "device", "hostPath": {"path": path, "type": type_}});
    spec["volumes"].as_array_mut().expect("a list").push(volume);
    let mount = json!({"name": "device", "mountPath": place, "readOnly": read_only});
    spec["containers"][0]["volumeMounts"].as_array_mut().expect("a list").push(mount);
    pod
}

fn annotated(mut pod: Value, text: &str) -> Value {
    pod["metadata"]["annotations"] = json!({"devices.agent.edge/main": text});
    pod
}

fn what_is_asked_for_opens_as_far_as_it_is_asked_for_and_nothing_else_does() {
    let mut node = Node::new();
    let fuse = "/dev/fuse";
    node.apply(&annotated(opener(&node, "given", fuse), fuse));
    node.apply(&annotated(opener(&node, "renamed", "/dev/sensor"), "/dev/fuse:/dev/sensor:r"));
    node.apply(&with_volume(opener(&node, "volume", "/dev/modem"), fuse, "CharDevice", "/dev/modem", false));
    node.apply(&with_volume(opener(&node, "half", "/dev/modem"), fuse, "CharDevice", "/dev/modem", true));
    node.apply(&with_volume(opener(&node, "bound", "/dev/modem"), fuse, "", "/dev/modem", false));
    node.agent.start();
    for (name, said) in [
        ("given", "read yes write yes\n"),
        ("renamed", "read yes write no\n"),
        ("volume", "read yes write yes\n"),
        ("half", "read yes write no\n"),
        ("bound", "read no write no\n"),
    ] {
        assert_eq!(node.written(name), said, "{name}: {}", node.agent.log_tail());
    }
}

fn make_device(path: &Path) {
    let made = Command::new("mknod").arg(path).args(["c", "10", "229"]).status().expect("run mknod");
    assert!(made.success());
}

fn a_container_waits_for_its_device_and_starts_when_it_is_plugged_in() {
    let mut node = Node::new();
    let path = node.runtime.scratch().dir("dev").join("by-id/sensor");
    let shown = path.display();
    node.apply(&annotated(opener(&node, "patient", "/dev/sensor"), &format!("{shown}:/dev/sensor")));
    let bound = opener(&node, "bound", "/dev/modem");
    node.apply(&with_volume(bound, &path.display().to_string(), "CharDevice", "/dev/modem", false));
    node.agent.start();
    for name in ["patient", "bound"] {
        node.agent.wait_for_pod(name, "it to wait for its device", |pod| {
            let text = pod["status"].to_string();
            (text.contains("waiting for it") && text.contains("DeviceNotFound")).then_some(())
        });
    }
    std::fs::create_dir(path.parent().expect("a directory")).expect("make it");
    make_device(&path);
    assert_eq!(node.written("patient"), "read yes write yes\n", "{}", node.agent.log_tail());
    assert_eq!(node.written("bound"), "read yes write yes\n", "{}", node.agent.log_tail());
}

fn a_device_that_the_node_does_not_give_keeps_the_pod_out() {
    let mut node = Node::new();
    node.agent.argument("--allowed-devices=/dev/null,/dev/tty*");
    node.apply(&annotated(opener(&node, "greedy", "/dev/fuse"), "/dev/fuse"));
    node.apply(&annotated(opener(&node, "modest", "/dev/zero"), "/dev/null"));
    node.agent.start();
    let message = node.agent.wait_for_pod("greedy", "it to be turned away", |pod| {
        (pod["status"]["reason"] == "DeviceNotAllowed").then(|| pod["status"]["message"].to_string())
    });
    assert!(
        message.contains("asks for device \\\"/dev/fuse\\\", which is not among --allowed-devices"),
        "{message}"
    );
    node.written("modest");
}

fn wanting(node: &Node, name: &str) -> Value {
    let mut pod = opener(node, name, "/dev/acme");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {RESOURCE: "1"}});
    pod
}

/// What the pod resources API says of the pods' devices: pod and id.
fn listed(root: &Path) -> Vec<(String, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
    let ask = |path: &'static str| {
        let call = async {
            let client = PluginClient::new(root.join("pod-resources/kubelet.sock"));
            client.call(path, Vec::new(), PATIENCE).await
        };
        let answer = runtime.block_on(call).expect("an answer");
        wire::ListPodResourcesResponse::decode(answer.as_slice()).expect("a list")
    };
    let answer = ask("/v1.PodResourcesLister/List");
    assert_eq!(ask("/v1alpha1.PodResourcesLister/List"), answer, "the older version says the same of these");
    let mut all = Vec::new();
    for pod in answer.pod_resources {
        for container in pod.containers {
            for device in container.devices {
                let name = pod.name.split("-edge").next().unwrap_or_default().to_owned();
                all.extend(device.device_ids.into_iter().map(|id| (name.clone(), id)));
            }
        }
    }
    all.sort_unstable();
    all
}

fn a_plugins_devices_go_to_one_pod_each_and_stay_with_it_over_a_restart() {
    let mut node = Node::new();
    let root = node.agent.root_dir();
    node.apply(&wanting(&node, "first"));
    node.agent.start();
    let reason = format!("OutOf{RESOURCE}");
    node.agent.wait_for_pod("first", "it to wait for a plugin", |pod| {
        (pod["status"]["reason"] == reason.as_str()).then_some(())
    });
    let directory = root.join("device-plugins");
    let plugin = DevicePlugin::start(&directory, &[("a", true), ("b", true), ("c", false)]);
    // The plugin would rather give its last one, and the sick one is nobody's.
    assert_eq!(node.written("first"), "read yes write yes b\n", "{}", node.agent.log_tail());
    let asked: Vec<String> = plugin.asked.try_iter().collect();
    assert_eq!(asked, ["allocate b", "start b"]);
    drop(plugin);
    node.agent.kill9();
    // It would look like the next one's.
    std::fs::remove_file(directory.join("kubelet.sock")).expect("remove the socket");
    node.agent.start();
    let plugin = DevicePlugin::start(&directory, &[("a", true), ("b", true), ("c", false)]);
    node.apply(&wanting(&node, "second"));
    assert_eq!(node.written("second"), "read yes write yes a\n", "{}", node.agent.log_tail());
    node.apply(&wanting(&node, "third"));
    let message = node.agent.wait_for_pod("third", "it to be turned away", |pod| {
        (pod["status"]["reason"] == reason.as_str()).then(|| pod["status"]["message"].to_string())
    });
    assert!(message.contains("requested: 1, used: 2, capacity: 2"), "{message}");
    let has = |pod: &str, id: &str| (pod.to_owned(), id.to_owned());
    assert_eq!(listed(&root), [has("first", "b"), has("second", "a")]);
    // The sick one is well again.
    plugin.set(&[("a", true), ("b", true), ("c", true)]);
    assert_eq!(node.written("third"), "read yes write yes c\n", "{}", node.agent.log_tail());
}

on_both_runtimes! {
    what_is_asked_for_opens_as_far_as_it_is_asked_for_and_nothing_else_does,
    a_container_waits_for_its_device_and_starts_when_it_is_plugged_in,
    a_device_that_the_node_does_not_give_keeps_the_pod_out,
    a_plugins_devices_go_to_one_pod_each_and_stay_with_it_over_a_restart,
}
