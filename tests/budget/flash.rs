//! What the embedded runtime and the agent write to flash: everything they keep lies on an ext4 of its own, and the bytes that
//! reach its device are counted, journal and metadata included.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{IDLE_SECONDS, PATIENCE, SETTLE_MANY, Table, float, monitors, release_binary};
use crate::support::agent::AgentProcess;
use crate::support::api::Api;
use crate::support::image::BUSYBOX;
use crate::support::runtime::TestRuntime;
use crate::support::wait::{pause, wait_for};

/// Pods that are started one by one, restarted one by one, and then watched.
const PODS: u32 = 5;
/// As many are idle in the end, the later ones with a volume of a ConfigMap.
const IDLE_PODS: u32 = 50;
/// Statuses and events are written a second late.
const SETTLE: Duration = Duration::from_secs(3);
/// Restarts of a crash loop in a day: one each five minutes, after the first ones.
const CRASHES_A_DAY: f64 = 24.0 * 12.0 + 6.0;

/// A small disk and what was written to it.
struct Flash {
    statistics: PathBuf,
}

impl Flash {
    /// Puts one at a directory. It goes with the mount.
    fn mount(at: &Path) -> Self {
        fs::create_dir_all(at).expect("make the mount point");
        let file = at.with_extension("img");
        let image = fs::File::create(&file).expect("make the disk's file");
        image.set_len(512 << 20).expect("give it a size");
        // The kernel would go on making the file system for minutes after it was mounted.
        let whole = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-E", whole]).arg(&file));
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(at));
        let found = Command::new("findmnt").args(["-no", "SOURCE"]).arg(at).output().expect("start findmnt");
        let device = String::from_utf8(found.stdout).expect("device names are text");
        let name = device.trim().strip_prefix("/dev/").expect("a device").to_owned();
        Self { statistics: Path::new("/sys/block").join(name).join("stat") }
    }

    /// Everything written so far, in bytes.
    fn written(&self) -> u64 {
        run(&mut Command::new("sync"));
        let text = fs::read_to_string(&self.statistics).expect("read the disk's statistics");
        let sectors = text.split_whitespace().nth(6).and_then(|field| field.parse::<u64>().ok());
        sectors.expect("the seventh field counts sectors") * 512
    }
}

fn run(command: &mut Command) {
    let status = command.status().expect("start a program");
    assert!(status.success(), "{command:?}: {status}");
}

/// Adds the rows.
pub fn measure(table: &mut Table) {
    let runtime = TestRuntime::start();
    let flash_dir = runtime.scratch().path().join("agent");
    let flash = Flash::mount(&flash_dir);
    let mut agent = runtime.agent().with_program(&release_binary());
    agent.argument(format!("--service-cidr={}", runtime.scratch().service_range()));
    let _api = Api::of(&mut agent, &flash_dir);
    // The crash loop below writes the same for each restart, however long it waits between them.
    agent.configure("crashLoopBackOff: {maxContainerRestartPeriod: 5s}\n");
    agent.start();
    monitors::wait_for_images(&agent);
    pause(SETTLE);

    let names: Vec<String> = (0..PODS).map(|number| format!("pod{number}")).collect();
    let each = |what: &dyn Fn(&str)| {
        let before = flash.written();
        for name in &names {
            what(name);
            pause(SETTLE);
        }
        float(flash.written() - before) / 1e3 / f64::from(PODS)
    };
    let start = each(&|name| {
        agent.write_manifest(&format!("{name}.yaml"), &pod(name, "sleep 100000").to_string());
        wait_for(name, PATIENCE, || restarts(&agent, name, 0));
    });
    table.hard("flash: written for the start of a pod", start, 350.0, "kB");
    let restart = each(&|name| {
        let running = runtime.running(&format!("{name}-edge"));
        let pid = running.first().and_then(|instance| instance.pid).expect("it runs");
        run(Command::new("kill").args(["-9", &pid.to_string()]));
        wait_for(name, PATIENCE, || restarts(&agent, name, 1));
    });
    table.hard("flash: written for the restart of a container", restart, 350.0, "kB");

    agent.write_manifest("settings.yaml", &config_map().to_string());
    let more: Vec<String> = (PODS..IDLE_PODS).map(|number| format!("pod{number}")).collect();
    for name in &more {
        agent.write_manifest(&format!("{name}.yaml"), &with_config(pod(name, "sleep 100000")).to_string());
    }
    for name in &more {
        wait_for(name, PATIENCE, || restarts(&agent, name, 0));
    }
    pause(SETTLE_MANY);
    let before = flash.written();
    let seconds = std::env::var("AGENT_BUDGET_IDLE_SECONDS").ok().and_then(|text| text.parse().ok());
    pause(Duration::from_secs(seconds.unwrap_or(IDLE_SECONDS)));
    let idle = flash.written() - before;
    table.hard("flash: written while idle, 50 pods with exec probes", float(idle), 0.0, "B");

    let before = flash.written();
    agent.write_manifest("loop.yaml", &pod("loop", "exit 1").to_string());
    let crashes = 3;
    wait_for("some crashes", PATIENCE, || restarts(&agent, "loop", crashes));
    pause(SETTLE);
    let crash = float(flash.written() - before) / float(crashes + 1);
    let a_day = crash * CRASHES_A_DAY / 1e6;
    table.hard("flash: written in a day by a crash loop", a_day, 150.0, "MB");
    agent.assert_alive();
}

/// Nothing when the container has been started again so often, and the status says so.
fn restarts(agent: &AgentProcess, name: &str, wanted: u64) -> Result<(), String> {
    let pod = agent.pod(name)?;
    let status = &pod["status"]["containerStatuses"][0];
    let begun = status["state"]["running"].is_object() || status["lastState"]["terminated"].is_object();
    if begun && status["restartCount"].as_u64() >= Some(wanted) { Ok(()) } else { Err(status.to_string()) }
}

fn pod(name: &str, command: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", command],
                // However busy the machine is, a probe that is late is no failure.
                "readinessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 30 },
            }],
        },
    })
}

fn config_map() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "settings" },
        "data": { "mode": "idle", "text": "of some length, ".repeat(50) },
    })
}

/// The pod with all of the ConfigMap in a volume, and probed as often as most are.
fn with_config(mut pod: Value) -> Value {
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([{ "name": "settings", "mountPath": "/settings" }]);
    container["readinessProbe"]["exec"] = json!({ "command": ["test", "-s", "/settings/text"] });
    container["readinessProbe"]["periodSeconds"] = json!(10);
    pod["spec"]["volumes"] = json!([{ "name": "settings", "configMap": { "name": "settings" } }]);
    pod
}
