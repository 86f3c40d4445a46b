//! A node that is short of room: images nobody uses go, then a pod that may, and everything comes back.

#![expect(clippy::unwrap_used, reason = "a test says where it stands by its line")]

use std::fs;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use super::Node;
use crate::registry::docker::Registry;
use crate::registry::image::{TestImage, noise, tar_of};
use crate::support::agent::PATIENCE;
use crate::support::api::Api;
use crate::support::image;
use crate::support::kubectl::Kubectl;
use crate::support::runtime::{Kind, on};
use crate::support::wait::wait_for;

/// Room for the images, the store, and a pod that wants too much.
const DISK: &str = "size=128m,mode=755";
/// A part of it that leaves less than a third free.
const TOO_MUCH: &str = "dd if=/dev/zero of=/data/much bs=1M count=100; sleep 1000";

/// A node on a small disk, with a pod from a file that has nothing to fear, and kubectl.
fn on_small_disk(settings: &str) -> (Node, Kubectl) {
    let mut node = Node::new();
    let disk = node.agent.root_dir();
    fs::create_dir_all(&disk).unwrap();
    mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some(DISK)).unwrap();
    node.agent.configure(settings);
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    node.apply(&node.pod("web", "sleep 1000"));
    node.agent.start();
    api.wait(&mut node.agent);
    node.running("web");
    let kubectl = Kubectl::of(&api, &node.agent, node.runtime.scratch().path(), "admin", &[]);
    (node, kubectl)
}

fn apply(node: &Node, kubectl: &Kubectl, pod: &Value) {
    let file = node.runtime.scratch().path().join("applied.json");
    fs::write(&file, pod.to_string()).unwrap();
    kubectl.out(&["apply", "-f", &file.to_string_lossy()]);
}

fn get(kubectl: &Kubectl, arguments: &[&str]) -> Value {
    let said = kubectl.run(&[&["get", "-o", "json"], arguments].concat());
    serde_json::from_str(&said.out).unwrap_or(Value::Null)
}

/// `True` or `False`, with its reason.
fn disk_pressure(kubectl: &Kubectl) -> (String, String) {
    let node = get(kubectl, &["node", "edge"]);
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found =
        conditions.into_iter().find(|condition| condition["type"] == "DiskPressure").unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// With an `emptyDir` of its own at `/data`.
fn hog(node: &Node, name: &str, command: &str) -> Value {
    let mut pod = node.pod(name, command);
    pod["metadata"]["namespace"] = json!("default");
    pod["spec"]["containers"][0]["volumeMounts"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "data", "mountPath": "/data"}));
    pod["spec"]["volumes"].as_array_mut().unwrap().push(json!({"name": "data", "emptyDir": {}}));
    pod
}

fn evicted(kubectl: &Kubectl, name: &str) -> String {
    wait_for(&format!("{name} to be evicted"), PATIENCE, || {
        let pod = get(kubectl, &["pod", name]);
        let status = &pod["status"];
        let is_evicted = status["phase"] == "Failed" && status["reason"] == "Evicted";
        if is_evicted {
            Ok(status["message"].as_str().unwrap_or_default().to_owned())
        } else {
            Err(format!("{pod}"))
        }
    })
}

fn free(disk: &Path) -> u64 {
    let facts = nix::sys::statvfs::statvfs(disk).unwrap();
    facts.blocks_available() * facts.fragment_size()
}

fn a_pod_that_fills_the_disk_goes_and_the_node_recovers() {
    let (mut node, kubectl) = on_small_disk("evictionHard: {nodefs.available: 30%}\n");
    let web = node.running("web");
    assert_eq!(disk_pressure(&kubectl), ("False".to_owned(), "KubeletHasNoDiskPressure".to_owned()));
    let before = free(&node.agent.root_dir());
    apply(&node, &kubectl, &hog(&node, "hog", TOO_MUCH));
    let said = evicted(&kubectl, "hog");
    let begins = "The node was low on resource: ephemeral-storage. Threshold quantity: ";
    assert!(said.starts_with(begins) && said.contains(", available: "), "{said}");
    let pod = get(&kubectl, &["pod", "hog"]);
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget").unwrap();
    assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    wait_for("nothing of it to be left", PATIENCE, || {
        let left = node.runtime.instances().into_iter().filter(|instance| instance.pod == "hog").count();
        if left == 0 { Ok(()) } else { Err(format!("{left}; agent: {}", node.agent.log_tail())) }
    });
    wait_for("the room to come back", PATIENCE, || {
        let free = free(&node.agent.root_dir());
        if free + (8 << 20) > before { Ok(()) } else { Err(format!("{free} of {before}")) }
    });
    wait_for("the condition to end", PATIENCE, || match disk_pressure(&kubectl) {
        (status, _) if status == "False" => Ok(()),
        other => Err(format!("{other:?}; agent: {}", node.agent.log_tail())),
    });
    assert_eq!(node.running("web").id, web.id, "a pod from a file stays");
    let events = kubectl.out(&["get", "events", "-A"]);
    for reason in ["Evicted", "EvictionThresholdMet", "NodeHasDiskPressure", "NodeHasNoDiskPressure"] {
        assert!(events.contains(reason), "{reason}: {events}");
    }
    // It stays what it is, whoever looks; only who deletes it has it run again.
    node.agent.kill9();
    node.agent.start();
    wait_for("the evicted pod to be seen again", PATIENCE, || match get(&kubectl, &["pod", "hog"]) {
        pod if pod["status"]["reason"] == "Evicted" => Ok(()),
        pod => Err(format!("{pod}")),
    });
    assert!(node.runtime.running("hog").is_empty());
}

fn nothing_starts_on_a_node_without_room_until_there_is_some() {
    let (node, kubectl) = on_small_disk("evictionHard: {nodefs.available: 30%}\n");
    let filler = node.agent.root_dir().join("filler");
    fs::write(&filler, vec![0; 100 << 20]).unwrap();
    // Something happens, so that the node looks.
    node.apply(&node.pod("also", "sleep 1000"));
    wait_for("disk pressure", PATIENCE * 2, || match disk_pressure(&kubectl) {
        (status, reason) if status == "True" => {
            assert_eq!(reason, "KubeletHasDiskPressure");
            Ok(())
        }
        other => Err(format!("{other:?}; agent: {}", node.agent.log_tail())),
    });
    node.running("also");
    apply(&node, &kubectl, &hog(&node, "late", "sleep 1000"));
    let said = wait_for("the pod to be turned away", PATIENCE, || {
        let status = get(&kubectl, &["pod", "late"])["status"].take();
        if status["reason"] == "Evicted" { Ok(status) } else { Err(status.to_string()) }
    });
    assert_eq!(said["phase"], "Pending");
    assert_eq!(said["message"], "Pod was rejected: The node had condition: [DiskPressure]. ");
    let status = node.agent.cli(&["status", "--exit-zero"]).unwrap();
    assert!(
        status.contains("node: DiskPressure for ") && status.contains("kubelet has disk pressure"),
        "{status}"
    );
    fs::remove_file(&filler).unwrap();
    wait_for("the pod to run", PATIENCE, || match get(&kubectl, &["pod", "late"]) {
        pod if pod["status"]["phase"] == "Running" => Ok(()),
        pod => Err(format!("{}; agent: {}", pod["status"], node.agent.log_tail())),
    });
}

/// The node's images by name, as `kubectl get node` has them.
fn images(kubectl: &Kubectl) -> Vec<String> {
    let node = get(kubectl, &["node", "edge"]);
    let images = node["status"]["images"].as_array().cloned().unwrap_or_default();
    let names = images.iter().flat_map(|image| image["names"].as_array().cloned().unwrap_or_default());
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

fn unused_image_is_removed_at_its_maximum_age() {
    let mut node = Node::new();
    let archive = image::archives().into_iter().find(|path| path.ends_with("busybox.tar")).unwrap();
    let scratch = node.runtime.scratch();
    let unpacked = scratch.dir("unpacked");
    TestImage::of_archive(&archive, &unpacked);
    let listed: Value = serde_json::from_slice(&fs::read(unpacked.join("manifest.json")).unwrap()).unwrap();
    let layer = fs::read(unpacked.join(listed[0]["Layers"][0].as_str().unwrap())).unwrap();
    // As busybox, and another image.
    let other = TestImage::of(&[layer, tar_of("other", b"yes\n")], "amd64");
    let registry = Registry::start(scratch, "open", "");
    registry.push("gc/app", "v1", &other);
    node.agent.configure("imageMinimumGCAge: 1s\nimageMaximumGCAge: 15s\n");
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    node.apply(&node.pod("web", "sleep 1000"));
    let mut job = node.pod("job", "sleep 1000");
    job["spec"]["containers"][0]["image"] = json!(registry.reference("gc/app:v1"));
    job["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    node.apply(&job);
    node.agent.start();
    api.wait(&mut node.agent);
    let kubectl = Kubectl::of(&api, &node.agent, node.runtime.scratch().path(), "admin", &[]);
    let web = node.running("web");
    node.running("job");
    let is_there = |what: &str| images(&kubectl).iter().any(|name| name.contains(what));
    wait_for("both images to be shown", PATIENCE * 2, || {
        if is_there("gc/app") && is_there("busybox") {
            Ok(())
        } else {
            Err(format!("{:?}", images(&kubectl)))
        }
    });
    node.delete("job");
    node.gone("job");
    wait_for("the unused image to go", PATIENCE * 2, || {
        if is_there("gc/app") {
            Err(format!("{:?}; agent: {}", images(&kubectl), node.agent.log_tail()))
        } else {
            Ok(())
        }
    });
    assert!(is_there("busybox"), "{:?}", images(&kubectl));
    assert_eq!(node.running("web").id, web.id);
}

/// An ext4 of this many bytes on a loop device; gone with its mount.
struct LoopDisk(std::path::PathBuf);

impl LoopDisk {
    fn mount(image: &Path, size: u64, at: &Path) -> Self {
        fs::File::create(image).unwrap().set_len(size).unwrap();
        run("mkfs.ext4", &["-q", "-m", "0", &image.to_string_lossy()]);
        run("mount", &["-o", "loop", &image.to_string_lossy(), &at.to_string_lossy()]);
        Self(at.to_owned())
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

fn run(program: &str, arguments: &[&str]) {
    let done = std::process::Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A day of a gateway with a disk of 64 MB: eight programs of 8 MB, one after the other, beside a pod that stays.
#[test]
fn image_gc_keeps_a_64_mb_disk_usable_embedded() {
    on(Kind::Embedded, a_gateways_days);
}

fn a_gateways_days() {
    const MEGABYTE: u64 = 1 << 20;
    let mut node = Node::new();
    let disk = node.agent.root_dir();
    fs::create_dir_all(&disk).unwrap();
    let image = node.runtime.scratch().path().join("disk.img");
    let _disk = LoopDisk::mount(&image, 64 * MEGABYTE, &disk);
    let registry = Registry::start(node.runtime.scratch(), "open", "");
    let archive = image::archives().into_iter().find(|path| path.ends_with("busybox.tar")).unwrap();
    let unpacked = node.runtime.scratch().dir("unpacked");
    TestImage::of_archive(&archive, &unpacked);
    let listed: Value = serde_json::from_slice(&fs::read(unpacked.join("manifest.json")).unwrap()).unwrap();
    let layer = fs::read(unpacked.join(listed[0]["Layers"][0].as_str().unwrap())).unwrap();
    node.agent.configure("imageMinimumGCAge: 0s\nevictionHard: {nodefs.available: 5%}\n");
    node.apply(&node.pod("web", "sleep 1000"));
    node.agent.start();
    let web = node.running("web");
    for day in 0..8 {
        let name = format!("day{day}");
        let content = noise(8 << 20, day);
        registry.push(&name, "v1", &TestImage::of(&[layer.clone(), tar_of("program", &content)], "amd64"));
        let mut pod = node.pod(&name, "sleep 1000");
        pod["spec"]["containers"][0]["image"] = json!(registry.reference(&format!("{name}:v1")));
        pod["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
        node.apply(&pod);
        node.running(&name);
        node.delete(&name);
        node.gone(&name);
        assert!(free(&disk) > MEGABYTE, "{} bytes are left on day {day}", free(&disk));
    }
    assert_eq!(node.running("web").id, web.id, "what stays was never touched");
    wait_for("all to be well", PATIENCE, || node.agent.cli(&["status"]).map(drop));
}

super::on_every_runtime! {
    a_pod_that_fills_the_disk_goes_and_the_node_recovers,
    nothing_starts_on_a_node_without_room_until_there_is_some,
    unused_image_is_removed_at_its_maximum_age,
}
