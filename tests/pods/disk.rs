//! The file system of the root directory fails for a while, for real: what runs goes on, what cannot be done is said, and all is
//! well when it is mended.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MsFlags, mount};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::containerd::Instance;
use crate::support::wait::{stays, wait_for};

/// Room for the images, the store, some pods, and what image imports leave free.
const OPTIONS: &str = "size=128m,nr_inodes=4000,mode=755";

fn tmpfs(at: &Path) {
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some(OPTIONS)).expect("mount a small disk");
}

fn remount(at: &Path, flags: MsFlags) {
    mount(None::<&str>, at, None::<&str>, MsFlags::MS_REMOUNT | flags, Some(OPTIONS)).expect("remount");
}

fn filler(at: &Path) -> PathBuf {
    at.join("filler")
}

/// To the last byte.
fn fill(at: &Path) {
    let mut file = File::create(filler(at)).expect("make a file");
    for size in [1 << 20, 1 << 12, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
}

fn empty(at: &Path) {
    fs::remove_file(filler(at)).expect("make room");
}

/// To the last name.
fn crowd(at: &Path) {
    fs::create_dir(filler(at)).expect("make a directory");
    let mut number = 0;
    while File::create(filler(at).join(number.to_string())).is_ok() {
        number += 1;
    }
    assert!(number > 100, "{number} files filled it");
}

fn thin_out(at: &Path) {
    fs::remove_dir_all(filler(at)).expect("make room");
}

fn is_well(node: &Node) -> Result<(), String> {
    node.agent.cli(&["status"]).map(drop)
}

/// What `agent status` finds wrong, with one of these words in it.
fn complaint(node: &Node, word: &str) -> Result<String, String> {
    let text = node.agent.cli(&["status", "--exit-zero"])?;
    let wrong = text.split_once("What is wrong:").map(|(_, wrong)| wrong.to_owned());
    wrong.filter(|wrong| wrong.contains(word)).ok_or(text)
}

/// A node whose root directory is a file system of its own, and the container of its pod `web`.
fn on_small_disk() -> (Node, PathBuf, Instance) {
    let mut node = Node::new();
    let disk = node.agent.root_dir();
    fs::create_dir_all(&disk).expect("make the root directory");
    tmpfs(&disk);
    node.apply(&node.pod("web", "sleep 1000"));
    node.agent.start();
    let web = node.running("web");
    node.agent.wait_for_phase("web", "Running");
    (node, disk, web)
}

fn survives(breaks: fn(&Path), mends: fn(&Path), word: &str) {
    let (mut node, disk, web) = on_small_disk();
    wait_for("all to be well", PATIENCE, || is_well(&node));

    breaks(&disk);
    node.apply(&node.pod("late", "sleep 1000"));
    let said = wait_for("the agent to say what it cannot do", PATIENCE, || complaint(&node, word));
    assert!(!said.contains("web-edge"), "{said}");
    stays("web", Duration::from_secs(2), || same(&node, &web.id));
    // Neither does an agent that starts on such a disk make it worse.
    node.agent.kill9();
    node.agent.start();
    wait_for("the new agent to say the same", PATIENCE, || complaint(&node, word));
    stays("web", Duration::from_secs(2), || same(&node, &web.id));

    mends(&disk);
    heals(&node, &web.id);
}

fn heals(node: &Node, web: &str) {
    node.running("late");
    wait_for("all to be well again", PATIENCE, || is_well(node));
    same(node, web).expect("it was never restarted");
    wait_for("the store to know of the late one", PATIENCE, || node.agent.stored_pod("late").map(drop));
}

fn same(node: &Node, id: &str) -> Result<(), String> {
    let running = node.runtime.running(&super::full_name("web"));
    match &running[..] {
        [only] if only.id == id => Ok(()),
        other => Err(format!("{other:?}; agent: {}", node.agent.log_tail())),
    }
}

fn full_disk_stops_no_running_pod_and_recovers() {
    survives(fill, empty, "the disk is full");
}

fn disk_without_inodes_stops_no_running_pod_and_recovers() {
    survives(crowd, thin_out, "o space left on device");
}

/// The kernel makes no file system read-only while somebody writes to it, so this happens while there is no agent, and on
/// containerd, whose containers live elsewhere.
#[test]
fn read_only_disk_fails_the_agents_start_but_no_pod() {
    let (mut node, disk, web) = on_small_disk();
    node.agent.kill9();
    remount(&disk, MsFlags::MS_RDONLY);
    node.apply(&node.pod("late", "sleep 1000"));
    node.agent.start();
    let status = node.agent.wait_for_end();
    assert_eq!(status.code(), Some(1));
    let said = node.agent.log_tail();
    assert!(said.contains("open the store") && said.contains("Read-only file system"), "{said}");
    same(&node, &web.id).expect("nobody stops it");
    let known = node.agent.cli(&["status", "--exit-zero"]).expect("what the store remembers");
    assert!(known.contains("not running") && known.contains("web-edge"), "{known}");
    remount(&disk, MsFlags::empty());
    node.agent.start();
    heals(&node, &web.id);
}

super::on_every_runtime! {
    full_disk_stops_no_running_pod_and_recovers,
    disk_without_inodes_stops_no_running_pod_and_recovers,
}
