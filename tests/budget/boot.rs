//! How soon the pods of the store run: an agent starts on ten of them, with their images there and no source that answers. And how
//! soon a changed ConfigMap is in a volume.

use std::fs;
use std::path::Path;
use std::time::Instant;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{PATIENCE, SETTLE, Table, millis, monitors, release_binary, stamping_pod, wall_nanos};
use crate::support::agent::AgentProcess;
use crate::support::image::BUSYBOX;
use crate::support::runtime::TestRuntime;
use crate::support::wait::{pause, wait_for};

/// In the store when the agent starts.
const PODS: usize = 10;
/// Until the first one's first instruction, in milliseconds.
const FIRST_MILLIS: f64 = 200.0;
/// Until a change is in a volume.
const CHANGE_MILLIS: f64 = 1000.0;

/// Adds the rows.
pub fn measure(table: &mut Table) {
    let runtime = TestRuntime::start();
    let out = runtime.scratch().dir("out");
    let mut agent = runtime.agent().with_program(&release_binary());
    agent.argument(format!("--service-cidr={}", runtime.scratch().service_range()));
    agent.start();
    monitors::wait_for_images(&agent);
    let names: Vec<String> = (0..PODS).map(|number| format!("boot{number}")).collect();
    for name in &names {
        agent.write_manifest(&format!("{name}.yaml"), &stamping_pod(name, &out).to_string());
    }
    for name in &names {
        wait_for(name, PATIENCE, || stamp(&out, name).map(drop));
    }
    agent.write_manifest("settings.yaml", &settings("before"));
    agent.write_manifest("reader.yaml", &reader().to_string());
    let volume = wait_for("the reader's volume", PATIENCE, || {
        agent.pod("reader").and_then(|pod| {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            let name = format!("pods/{uid}/volumes/kubernetes.io~configmap/settings/value");
            let path = agent.root_dir().join(name);
            if path.exists() { Ok(path) } else { Err(format!("{}", path.display())) }
        })
    });
    pause(SETTLE);
    let start = Instant::now();
    agent.write_manifest("settings.yaml", &settings("after"));
    wait_for("the change to be in the volume", PATIENCE, || match fs::read_to_string(&volume) {
        Ok(text) if text == "after" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    table.time("changed ConfigMap renamed to its volume", millis(start.elapsed()), Some(CHANGE_MILLIS), "ms");

    agent.remove_manifest("reader.yaml");
    wait_for("the reader to go", PATIENCE, || match runtime.running("reader-edge")[..] {
        [] => Ok(()),
        _ => Err("it runs".to_owned()),
    });

    cut_power(&runtime, &mut agent);
    fs::rename(agent.manifest_dir(), agent.manifest_dir().with_extension("away"))
        .expect("take the source away");
    for name in &names {
        fs::remove_file(out.join(name)).expect("forget the first start");
    }
    let start = wall_nanos();
    agent.start();
    let mut stamps: Vec<i128> =
        names.iter().map(|name| wait_for(name, PATIENCE, || stamp(&out, name)) - start).collect();
    stamps.sort_unstable();
    let millis = |nanos: i128| f64::from(u32::try_from(nanos / 1000).expect("less than an hour")) / 1e3;
    let what = "process start to the first pod's first instruction, 10 in the store";
    table.time(what, millis(stamps[0]), Some(FIRST_MILLIS), "ms");
    table.time("... the last of them", millis(stamps[PODS - 1]), None, "ms");
    agent.assert_alive();
}

/// Nothing runs any more, and what was in memory is gone; the store and the images are there.
fn cut_power(runtime: &TestRuntime, agent: &mut AgentProcess) {
    agent.kill9();
    // One that is being removed has no monitor any more.
    for pid in runtime.instances().iter().filter(|one| one.is_sandbox()).filter_map(|one| one.pid) {
        let pid = i32::try_from(pid).expect("process ids are small");
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill a monitor");
    }
    wait_for("all containers to die", PATIENCE, || {
        let left: Vec<_> = runtime.instances().into_iter().filter(|one| one.pid.is_some()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let state = runtime.scratch().path().join("state");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("read mounts");
    for point in table.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new) {
        if point.starts_with(&state) {
            umount2(point, MntFlags::MNT_DETACH).expect("unmount");
        }
    }
    fs::remove_dir_all(&state).expect("forget the state");
}

fn settings(value: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" }, "data": { "value": value },
    })
    .to_string()
}

fn reader() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "reader" },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "100000"],
                "volumeMounts": [{ "name": "settings", "mountPath": "/settings" }],
            }],
            "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }],
        },
    })
}

fn stamp(out: &Path, name: &str) -> Result<i128, String> {
    let text = fs::read_to_string(out.join(name)).map_err(|error| error.to_string())?;
    text.trim().parse::<i128>().map_err(|error| error.to_string())
}
