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
use crate::support::api::Api;
use crate::support::device_plugin::{DevicePlugin, REFUSED, RESOURCE};
use crate::support::hostile_plugin::{HostilePlugin, Say, list};
use crate::support::runtime::{Kind, on, on_every_runtime};
use crate::support::wait::wait_for;

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

fn devices_open_only_with_the_requested_permissions() {
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

fn container_waits_until_its_device_is_plugged_in() {
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

/// The path has another device when the container starts again, then a directory: it gets the one, and never more.
fn a_device_volume_follows_its_path_from_start_to_start() {
    let mut node = Node::new();
    let path = node.runtime.scratch().dir("dev").join("sensor");
    let make = |minor: &str| {
        let made = Command::new("mknod").arg(&path).args(["c", "10", minor]).status().expect("run mknod");
        assert!(made.success());
    };
    make("229");
    let script = "stat -c %t:%T /dev/modem > /out/now.part; mv /out/now.part /out/now; exec sleep 1";
    let pod = node.pod("moved", script);
    node.apply(&with_volume(pod, &path.display().to_string(), "CharDevice", "/dev/modem", false));
    node.agent.start();
    node.wait_written("now", "a:e5\n");
    std::fs::remove_file(&path).expect("unplug it");
    make("235");
    node.wait_written("now", "a:eb\n");
    std::fs::remove_file(&path).expect("unplug it");
    std::fs::create_dir(&path).expect("a directory in its place");
    node.agent.wait_for_pod("moved", "it to be refused the directory", |pod| {
        pod["status"].to_string().contains("is not a character device").then_some(())
    });
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
    assert!(message.contains("requests device \\\"/dev/fuse\\\", which --allowed-devices"), "{message}");
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

fn plugin_devices_are_exclusive_and_survive_a_restart() {
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

fn refused_allocation_fails_api_pods_not_static_ones() {
    let mut node = Node::new();
    let directory = node.agent.root_dir().join("device-plugins");
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    node.agent.start();
    api.wait(&mut node.agent);
    let admin = api.person(&node.agent, "admin", &[]);
    let id = format!("{REFUSED}-1");
    let plugin = DevicePlugin::start(&directory, &[(&id, true)]);
    let body = wanting(&node, "asked").to_string();
    let pods = "/api/v1/namespaces/default/pods";
    let json = "Content-Type: application/json";
    let (code, made) = api.curl(Some(&admin), pods, &["-X", "POST", "-H", json, "--data-binary", &body]);
    assert_eq!(code, 201, "{made}");
    let status = wait_for("the pod to have failed", PATIENCE, || {
        let (_, text) = api.curl(Some(&admin), &format!("{pods}/asked"), &[]);
        let pod: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if pod["status"]["phase"] == "Failed" { Ok(pod["status"].clone()) } else { Err(text) }
    });
    let why = format!(
        "Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = {id} does not answer, which is unexpected"
    );
    assert_eq!((&status["reason"], &status["message"]), (&json!("UnexpectedAdmissionError"), &json!(why)));
    assert_eq!(status["containerStatuses"], Value::Null, "none was made");
    // Nothing else would make this one again.
    node.apply(&wanting(&node, "filed"));
    let status = node.agent.wait_for_pod("filed", "it to be turned away", |pod| {
        (pod["status"]["reason"] == "UnexpectedAdmissionError").then(|| pod["status"].clone())
    });
    assert_eq!((&status["phase"], &status["message"]), (&json!("Pending"), &json!(why)));
    assert!(listed(&node.agent.root_dir()).is_empty(), "what was refused is free");
    plugin.set(&[("a", true)]);
    assert_eq!(node.written("filed"), "read yes write yes a\n", "{}", node.agent.log_tail());
}

/// Root in a container may make nodes, as upstream. Whose numbers it was not given do not open, wherever the node comes from; the
/// filter outlives the agent.
fn a_node_that_a_container_makes_itself_does_not_open() {
    let mut node = Node::new();
    let disk = fs_device();
    let script = format!(
        "cd /tmp; mknod disk b {disk}; mknod kmsg c 1 11; mknod mem c 1 1; mknod zero c 1 5; \
         say() {{ for n in disk kmsg mem zero; do (: < $n) 2>/dev/null && printf '%s ' $n; done; \
         (: < /node/kmsg) 2>/dev/null && printf 'node '; echo; }}; \
         say > /out/NAME.part; mv /out/NAME.part /out/NAME; \
         until [ -e /out/again ]; do sleep 0.1; done; say > /out/NAME-2.part; mv /out/NAME-2.part /out/NAME-2; sleep 1000"
    );
    let maker = |name: &str| {
        let mut pod = node.pod(name, &script.replace("NAME", name));
        let spec = &mut pod["spec"];
        let volume = json!({"name": "node", "hostPath": {"path": "/dev"}});
        spec["volumes"].as_array_mut().expect("a list").push(volume);
        let mount = json!({"name": "node", "mountPath": "/node"});
        spec["containers"][0]["volumeMounts"].as_array_mut().expect("a list").push(mount);
        pod
    };
    node.apply(&maker("plain"));
    let mut pod = maker("open");
    pod["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    node.apply(&pod);
    node.agent.start();
    assert_eq!(node.written("plain"), "zero \n", "{}", node.agent.log_tail());
    assert!(node.written("open").contains("kmsg zero "), "{}", node.written("open"));
    node.agent.kill9();
    node.agent.start();
    node.running("plain");
    std::fs::write(node.out("again"), "").expect("let it look again");
    assert_eq!(node.written("plain-2"), "zero \n");
}

/// Numbers of the disk that this machine runs from, or of any.
fn fs_device() -> String {
    let disks = std::fs::read_dir("/sys/class/block").expect("the kernel has disks").flatten();
    let number =
        disks.map(|disk| std::fs::read_to_string(disk.path().join("dev")).unwrap_or_default()).next();
    number.unwrap_or_else(|| "8:0".to_owned()).trim().replace(':', " ")
}

/// What a plugin gives is said to be wrong on the container that was to have it, and nowhere else.
fn a_plugin_that_gives_what_cannot_be_given_stops_its_own_pod() {
    use edge_agent::platform::proto::device_plugin as plugin;
    let mut node = Node::new();
    node.agent.start();
    let directory = node.agent.root_dir().join("device-plugins");
    crate::support::wait::wait_until("the socket for plugins", PATIENCE, || {
        directory.join("kubelet.sock").exists()
    });
    let response = || plugin::ContainerAllocateResponse::default();
    let device = |host: &str, place: &str| plugin::ContainerAllocateResponse {
        devices: vec![plugin::DeviceSpec {
            host_path: host.to_owned(),
            container_path: place.to_owned(),
            permissions: "rwm".to_owned(),
        }],
        ..response()
    };
    let mount = |host: &str, place: &str| plugin::ContainerAllocateResponse {
        mounts: vec![plugin::Mount {
            host_path: host.to_owned(),
            container_path: place.to_owned(),
            read_only: false,
        }],
        ..response()
    };
    let bomb = |bytes: usize| plugin::ContainerAllocateResponse {
        envs: [("BOMB".to_owned(), "x".repeat(bytes))].into(),
        ..response()
    };
    let cases = [
        ("shadow", device("/dev/../etc/shadow", "/dev/x")),
        ("relative", device("dev/null", "/dev/x")),
        ("gone", device("/dev/no-such-thing", "/dev/x")),
        ("zero", device("/dev/nu\0ll", "/dev/x")),
        ("place", mount("/etc", "relative/../../..")),
        ("mount", mount("etc/shadow", "/x")),
        ("large", bomb(3 << 20)),
        ("huge", bomb(100 << 20)),
        (
            "cdi",
            plugin::ContainerAllocateResponse {
                cdi_devices: vec![plugin::CdiDevice { name: "acme.com/none=1".to_owned() }],
                ..response()
            },
        ),
    ];
    let mut running = Vec::new();
    for (name, response) in &cases {
        let answer = plugin::AllocateResponse { container_responses: vec![response.clone()] }.encode_to_vec();
        let script = std::sync::Arc::new(move |call: &str| match call {
            "ListAndWatch" => Say::Open(list(["one".to_owned()])),
            "Allocate" => Say::One(answer.clone()),
            _ => Say::One(Vec::new()),
        });
        let socket = format!("{name}.sock");
        let plugin = HostilePlugin::start(&directory, &socket, script);
        plugin.register(&format!("acme.com/{name}"), &socket).expect("it is taken in");
        running.push(plugin);
        let mut pod = node.pod(name, "echo > /out/ran; sleep 1000");
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {format!("acme.com/{name}"): "1"}});
        node.apply(&pod);
    }
    node.apply(&node.pod("neighbour", "echo well > /out/neighbour; sleep 1000"));
    assert_eq!(node.written("neighbour"), "well\n");
    for (name, _) in &cases {
        let said = node.agent.wait_for_pod(name, "to be refused", |pod| {
            let state = &pod["status"]["containerStatuses"][0]["state"];
            // What the plugin gives is judged before the pod starts, or when the container is made.
            let waiting = state["waiting"]["message"].as_str().or(pod["status"]["message"].as_str());
            waiting.filter(|message| !message.is_empty()).map(str::to_owned)
        });
        let words = match *name {
            "relative" | "mount" => "not an absolute path",
            "gone" => "/dev/no-such-thing",
            "huge" => "too large",
            "cdi" => "acme.com/none=1",
            _ => "",
        };
        assert!(said.len() < 20_000 && said.contains(words), "{name}: {} bytes: {said:.400}", said.len());
    }
    assert!(!node.out("ran").exists(), "one has run all the same");
    node.agent.assert_alive();
}

/// containerd 1.6 does not know CDI names, and leaves them out.
#[test]
fn hostile_allocations_stop_their_own_pod_embedded() {
    on(Kind::Embedded, a_plugin_that_gives_what_cannot_be_given_stops_its_own_pod);
}

on_every_runtime! {
    devices_open_only_with_the_requested_permissions,
    container_waits_until_its_device_is_plugged_in,
    a_device_volume_follows_its_path_from_start_to_start,
    a_device_that_the_node_does_not_give_keeps_the_pod_out,
    plugin_devices_are_exclusive_and_survive_a_restart,
    refused_allocation_fails_api_pods_not_static_ones;
    // Docker gives a privileged container all capabilities; the engine itself may lack some.
    without_docker: a_node_that_a_container_makes_itself_does_not_open,
}
