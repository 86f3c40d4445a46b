//! Volumes, seen from the inside and from the node.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::wait::wait_for;

fn add_volume(pod: &mut Value, volume: Value, mount: Value) {
    pod["spec"]["volumes"].as_array_mut().expect("a list").push(volume);
    pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().expect("a list").push(mount);
}

/// Lines of the mount table below the pods' directories.
fn mounts_of_pods(root: &std::path::Path) -> Vec<String> {
    let root = root.join("pods");
    let table = fs::read_to_string("/proc/self/mounts").expect("read the mount table");
    table.lines().filter(|line| line.contains(&*root.to_string_lossy())).map(str::to_owned).collect()
}

fn memory_empty_dir_is_a_sized_tmpfs_and_is_unmounted() {
    let mut node = Node::new();
    let mut pod = node
        .pod("ram", "df -k /ram | tail -1 > /out/df; grep ' /ram ' /proc/mounts > /out/mount; sleep 1000");
    add_volume(
        &mut pod,
        json!({ "name": "ram", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } }),
        json!({ "name": "ram", "mountPath": "/ram" }),
    );
    node.apply(&pod);
    node.agent.start();
    let df = node.written("df");
    assert_eq!(df.split_whitespace().nth(1), Some("8192"), "{df}");
    assert!(node.written("mount").contains(" tmpfs "), "{}", node.written("mount"));
    node.delete("ram");
    node.gone("ram");
    wait_for("its mounts to be gone", PATIENCE, || {
        let left = mounts_of_pods(&node.agent.root_dir());
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

fn downward_api_files_link_through_the_data_symlink() {
    let mut node = Node::new();
    let mut pod = node.pod("self", "cat /etc/pod/labels /etc/pod/limits/cpu > /out/seen; echo >> /out/seen; readlink /etc/pod/labels > /out/link; readlink /etc/pod/..data > /out/data; sleep 1000");
    pod["metadata"]["labels"] = json!({ "app": "shop", "tier": "edge" });
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "250m" } });
    add_volume(
        &mut pod,
        json!({ "name": "pod", "projected": { "sources": [{ "downwardAPI": { "items": [
            { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
            { "path": "limits/cpu", "resourceFieldRef": { "containerName": "main", "resource": "limits.cpu", "divisor": "1m" } },
        ] } }] } }),
        json!({ "name": "pod", "mountPath": "/etc/pod", "readOnly": true }),
    );
    node.apply(&pod);
    node.agent.start();
    assert_eq!(node.written("link"), "..data/labels\n");
    assert!(node.written("data").starts_with(".."), "{}", node.written("data"));
    assert_eq!(node.written("seen"), "app=\"shop\"\ntier=\"edge\"250\n");
}

fn sub_path_mounts_one_entry_and_expands_expressions() {
    let mut node = Node::new();
    let data = node.runtime.scratch().dir("data");
    fs::create_dir(data.join("site")).expect("make a directory");
    fs::write(data.join("site/page"), "hello\n").expect("write a file");
    fs::write(data.join("one"), "only me\n").expect("write a file");
    let mut pod = node.pod(
        "part",
        "cat /site/page /one > /out/parts; echo mine > /own/file; echo done >> /out/parts; sleep 1000",
    );
    pod["spec"]["containers"][0]["env"] =
        json!([{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }]);
    let volume = json!({ "name": "data", "hostPath": { "path": data } });
    add_volume(&mut pod, volume, json!({ "name": "data", "mountPath": "/site", "subPath": "site" }));
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().expect("a list");
    mounts.push(json!({ "name": "data", "mountPath": "/one", "subPath": "one" }));
    mounts.push(json!({ "name": "data", "mountPath": "/own", "subPathExpr": "logs/$(POD)" }));
    node.apply(&pod);
    node.agent.start();
    node.wait_written("parts", "hello\nonly me\ndone\n");
    assert_eq!(
        fs::read_to_string(data.join("logs/part-edge/file")).expect("written through the mount"),
        "mine\n"
    );
    node.delete("part");
    node.gone("part");
    wait_for("its mounts to be gone", PATIENCE, || {
        let left = mounts_of_pods(&node.agent.root_dir());
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert!(data.join("one").exists() && data.join("site/page").exists(), "the data stays");
}

fn a_sub_path_that_leads_out_of_its_volume_is_refused() {
    let mut node = Node::new();
    let data = node.runtime.scratch().dir("data");
    symlink("/etc", data.join("escape")).expect("make the trap");
    let mut pod = node.pod("thief", "cat /stolen/hostname > /out/stolen; sleep 1000");
    let volume = json!({ "name": "data", "hostPath": { "path": data } });
    add_volume(&mut pod, volume, json!({ "name": "data", "mountPath": "/stolen", "subPath": "escape" }));
    node.apply(&pod);
    node.agent.start();
    let message = node.agent.wait_for_pod("thief", "refused", |pod| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        (waiting["reason"] == "CreateContainerConfigError").then(|| waiting["message"].to_string())
    });
    assert!(message.contains("subPath"), "{message}");
    assert!(!node.out("stolen").exists());
}

fn files_of_a_volume_belong_to_the_pods_group() {
    let mut node = Node::new();
    let mut pod = node.pod("group", "id -G > /out/groups; touch /shared/new; stat -c '%g %a' /shared > /out/shared; stat -c %g /shared/new > /out/new; sleep 1000");
    pod["spec"]["securityContext"] = json!({ "fsGroup": 2345 });
    add_volume(
        &mut pod,
        json!({ "name": "shared", "emptyDir": {} }),
        json!({ "name": "shared", "mountPath": "/shared" }),
    );
    node.apply(&pod);
    node.agent.start();
    assert!(node.written("groups").split_whitespace().any(|group| group == "2345"));
    assert_eq!(node.written("shared"), "2345 2777\n");
    assert_eq!(node.written("new"), "2345\n", "setgid: what is made in it belongs to the group");
}

fn host_mounts_appear_only_where_propagation_allows() {
    let mut node = Node::new();
    let data = node.runtime.scratch().dir("shared");
    // Something has to be a shared mount for anything to propagate.
    mount(Some(&data), &data, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind the directory");
    mount(None::<&str>, &data, None::<&str>, MsFlags::MS_SHARED, None::<&str>).expect("share the mount");
    let late = data.join("late");
    fs::create_dir(&late).expect("make a directory");
    let mut pod = node.pod("sees", "until [ -f /data/late/word ]; do sleep 0.05; done; cat /data/late/word > /out/word; ls /private/late > /out/private; echo . >> /out/private; sleep 1000");
    let volume = json!({ "name": "data", "hostPath": { "path": data } });
    add_volume(
        &mut pod,
        volume,
        json!({ "name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer" }),
    );
    let private = json!({ "name": "data", "mountPath": "/private" });
    pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().expect("a list").push(private);
    node.apply(&pod);
    node.agent.start();
    node.running("sees");
    mount(Some("tmpfs"), &late, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mount something");
    fs::write(late.join("word"), "there\n").expect("write into it");
    let (word, private) = (node.written("word"), node.written("private"));
    umount2(&late, MntFlags::MNT_DETACH).expect("unmount it");
    assert_eq!((word.as_str(), private.as_str()), ("there\n", ".\n"));
    node.delete("sees");
    node.gone("sees");
    umount2(&data, MntFlags::MNT_DETACH).expect("unmount the directory");
}

fn pod_waits_until_its_host_path_has_the_right_type() {
    let mut node = Node::new();
    let wanted: PathBuf = node.runtime.scratch().path().join("later");
    fs::write(&wanted, "a file").expect("write a file");
    let mut pod = node.pod("typed", "echo up > /out/up; sleep 1000");
    let volume = json!({ "name": "later", "hostPath": { "path": wanted, "type": "Directory" } });
    add_volume(&mut pod, volume, json!({ "name": "later", "mountPath": "/later" }));
    node.apply(&pod);
    node.agent.start();
    let message = node.agent.wait_for_pod("typed", "held by its volume", |pod| {
        (pod["status"]["reason"] == "FailedMount").then(|| pod["status"]["message"].to_string())
    });
    assert!(
        message.contains("hostPath type check failed") && message.contains("is not a directory"),
        "{message}"
    );
    fs::remove_file(&wanted).expect("remove the file");
    fs::create_dir(&wanted).expect("make the directory");
    node.written("up");
}

fn a_read_only_mount_cannot_be_written() {
    let mut node = Node::new();
    let data = node.runtime.scratch().dir("data");
    let mut pod = node.pod(
        "reader",
        "touch /data/x 2>/dev/null && echo written > /out/result || echo refused > /out/result; sleep 1000",
    );
    let volume = json!({ "name": "data", "hostPath": { "path": data } });
    add_volume(&mut pod, volume, json!({ "name": "data", "mountPath": "/data", "readOnly": true }));
    node.apply(&pod);
    node.agent.start();
    assert_eq!(node.written("result"), "refused\n");
    assert_eq!(fs::read_dir(&data).expect("list it").count(), 0);
}

fn empty_dir_survives_container_and_agent_restarts() {
    let mut node = Node::new();
    let mut pod = node.pod("keep", "echo $(ls /keep | wc -l) >> /out/counts; touch /keep/$(wc -l < /out/counts); [ $(wc -l < /out/counts) -ge 3 ] && sleep 1000; exit 1");
    add_volume(
        &mut pod,
        json!({ "name": "keep", "emptyDir": { "medium": "Memory" } }),
        json!({ "name": "keep", "mountPath": "/keep" }),
    );
    node.apply(&pod);
    node.agent.start();
    node.wait_written("counts", "0\n1\n");
    node.agent.kill9();
    node.agent.start();
    node.wait_written("counts", "0\n1\n2\n");
    let uid = node.running("keep").uid;
    let volume = node.agent.root_dir().join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/keep");
    assert_eq!(fs::metadata(&volume).expect("look at the volume").mode() & 0o777, 0o777);
}

super::on_every_runtime! {
    memory_empty_dir_is_a_sized_tmpfs_and_is_unmounted,
    downward_api_files_link_through_the_data_symlink,
    sub_path_mounts_one_entry_and_expands_expressions,
    a_sub_path_that_leads_out_of_its_volume_is_refused,
    files_of_a_volume_belong_to_the_pods_group,
    host_mounts_appear_only_where_propagation_allows,
    pod_waits_until_its_host_path_has_the_right_type,
    a_read_only_mount_cannot_be_written,
    empty_dir_survives_container_and_agent_restarts,
}
