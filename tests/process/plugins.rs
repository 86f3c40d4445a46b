//! Device plugins that lie, hang, flood and end: the agent says what is wrong, stays quick and small, and serves the others.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use edge_agent::platform::proto::device_plugin as wire;
use prost::Message;

use super::node::Node;
use crate::support::agent::PATIENCE;
use crate::support::api::free_port;
use crate::support::hostile_plugin::{HostilePlugin, Say, Script, list, register};
use crate::support::wait::{wait_for, wait_until};

const MEGABYTE: usize = 1 << 20;
/// On a machine that is busy compiling; without bounds it would be minutes.
const SLOWEST: Duration = Duration::from_secs(5);

fn options() -> Say {
    Say::One(wire::DevicePluginOptions::default().encode_to_vec())
}

/// Options as they should be, and this for a list.
fn listing(answer: impl Fn() -> Say + Send + Sync + 'static) -> Script {
    Arc::new(move |call| if call == "ListAndWatch" { answer() } else { options() })
}

fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

/// How long `/healthz` took.
fn healthy_after(port: u16) -> Duration {
    use std::io::{Read, Write};
    let began = Instant::now();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    assert!(answer.ends_with("ok"), "{answer}");
    began.elapsed()
}

/// How many devices of a resource the agent remembers.
fn capacity(node: &Node, resource: &str) -> Option<usize> {
    let file = node.agent.root_dir().join("device-plugins/kubelet_internal_checkpoint");
    let state: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()?;
    state["Data"]["RegisteredDevices"][resource].as_array().map(Vec::len)
}

fn plugins(node: &Node) -> PathBuf {
    let directory = node.agent.root_dir().join("device-plugins");
    wait_until("the agent's socket for plugins", PATIENCE, || directory.join("kubelet.sock").exists());
    directory
}

#[test]
fn registrations_with_odd_names_are_refused_by_name() {
    let mut node = Node::new();
    let neighbour = node.start_with_neighbour();
    let directory = plugins(&node);
    let long = "x".repeat(MEGABYTE);
    let long_resource = format!("acme.com/{long}");
    for (resource, socket, words) in [
        ("../etc", "a.sock", "is invalid"),
        ("acme.com/../etc", "a.sock", "is invalid"),
        ("acme.com/a\nb", "a.sock", "is invalid"),
        ("cpu", "a.sock", "is invalid"),
        ("requests.acme.com/x", "a.sock", "is invalid"),
        (long_resource.as_str(), "a.sock", "the ResourceName"),
        ("acme.com/x", "../a.sock", "not a file name"),
        ("acme.com/x", "/etc/shadow", "not a file name"),
        ("acme.com/x", "a/b", "not a file name"),
        ("acme.com/x", "..", "not a file name"),
        ("acme.com/x", "", "not a file name"),
        ("acme.com/x", long.as_str(), "device plugin options"),
        ("acme.com/x", "a\0b", "device plugin options"),
        ("acme.com/x", "gone.sock", "device plugin options"),
        // The agent's own: it is no plugin.
        ("acme.com/x", "kubelet.sock", "device plugin options"),
    ] {
        let shown: String = resource.chars().take(40).collect();
        let why = register(&directory, resource, socket).expect_err(&shown);
        assert!(why.contains(words) || words.is_empty(), "{shown}: {why}");
        assert!(why.len() < 8192, "{shown}: {} bytes of words", why.len());
    }
    let told = node.agent.log();
    assert!(told.lines().all(|line| line.len() < 16384), "a line of the log is as long as a name");
    assert_eq!(capacity(&node, "acme.com/x"), None);
    node.keeps_running("neighbour", &neighbour);
}

#[test]
fn hostile_plugins_cost_their_share_and_no_more() {
    let mut node = Node::new();
    let port = free_port();
    node.agent.argument(format!("--healthz-port={port}"));
    let neighbour = node.start_with_neighbour();
    let (directory, pid) = (plugins(&node), node.agent.pid());
    let (small, few) = (resident(pid), descriptors(pid));
    let well = |what: &str| {
        let took = healthy_after(port);
        assert!(took < SLOWEST, "{what}: /healthz took {took:?}");
        let grown = resident(pid).saturating_sub(small) / 1024;
        assert!(grown < 160, "{what}: {grown} MiB more");
    };

    // It never says its options, and others register meanwhile.
    let mute = HostilePlugin::start(&directory, "mute.sock", Arc::new(|_| Say::Never));
    let waiting = std::thread::Builder::new().name("mute plugin".to_owned()).spawn({
        let directory = directory.clone();
        move || register(&directory, "acme.com/mute", "mute.sock")
    });
    let waiting = waiting.expect("a thread");
    let good = HostilePlugin::start(&directory, "good.sock", listing(|| Say::Open(list(["one".to_owned()]))));
    good.register("acme.com/good", "good.sock").expect("nobody holds it up");
    wait_for("its device", PATIENCE, || match capacity(&node, "acme.com/good") {
        Some(1) => Ok(()),
        other => Err(format!("{other:?}: {}", node.agent.log_tail())),
    });
    well("one that says nothing");

    // Options and lists of 100 MB.
    let large = || Say::One(vec![0; 100 * MEGABYTE]);
    let _large = HostilePlugin::start(&directory, "large.sock", Arc::new(move |_| large()));
    let why = register(&directory, "acme.com/large", "large.sock").expect_err("nobody reads that much");
    assert!(why.contains("options") && why.contains("too large"), "{why}");
    let stream = || {
        let mut left = 3;
        Say::Stream(Box::new(move || {
            left -= 1;
            (left >= 0).then(|| vec![0; 100 * MEGABYTE])
        }))
    };
    let _lists = HostilePlugin::start(&directory, "lists.sock", listing(stream));
    register(&directory, "acme.com/lists", "lists.sock").expect("its options are good");
    let gone = |resource: &str, why: &str| {
        wait_for("a word about it", PATIENCE, || {
            let log = node.agent.log();
            let is_it = |line: &&str| line.contains(resource) && line.contains("Device plugin disconnected");
            match log.lines().find(is_it) {
                Some(line) if line.contains(why) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    };
    gone("acme.com/lists", "too large");
    well("answers of 100 MB");

    // Two hundred thousand devices fit a message.
    let very_many = || {
        let mut all = Some(list((0..200_000).map(|number| format!("{number:x}"))));
        Say::Stream(Box::new(move || all.take()))
    };
    let _many = HostilePlugin::start(&directory, "many.sock", listing(very_many));
    register(&directory, "acme.com/many", "many.sock").expect("its options are good");
    gone("acme.com/many", "the node takes 65536");
    well("two hundred thousand devices");

    // Other devices in each of its lists, as fast as it can.
    let told = Arc::new(AtomicU64::new(0));
    let flood = {
        let told = Arc::clone(&told);
        move || {
            let told = Arc::clone(&told);
            Say::Stream(Box::new(move || {
                let round = told.fetch_add(1, Ordering::SeqCst);
                Some(list((0..5_000).map(|number| format!("{round}-{number}"))))
            }))
        }
    };
    let flooding = HostilePlugin::start(&directory, "flood.sock", listing(flood));
    register(&directory, "acme.com/flood", "flood.sock").expect("its options are good");
    let before = told.load(Ordering::SeqCst);
    wait_until("it to tell more", PATIENCE, || told.load(Ordering::SeqCst) > before + 20);
    for _ in 0..10 {
        well("lists without end");
    }
    drop(flooding);
    gone("acme.com/flood", "");

    // Registers, and ends its list at once, again and again.
    let ending = HostilePlugin::start(&directory, "ending.sock", listing(|| Say::Stream(Box::new(|| None))));
    for _ in 0..1000 {
        ending.register("acme.com/ending", "ending.sock").expect("its options are good");
    }
    wait_until("their connections to be closed", PATIENCE, || descriptors(pid) < few + 40);
    well("a thousand registrations");

    let why = waiting.join().expect("no panic").expect_err("it never answers");
    assert!(why.contains("DeadlineExceeded"), "{why}");
    drop(mute);
    assert_eq!(capacity(&node, "acme.com/good"), Some(1));
    node.keeps_running("neighbour", &neighbour);
}
