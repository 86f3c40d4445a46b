//! What a joined node costs, with 50 pods and 100 objects: `AGENT_BIN` is the release binary. `AGENT_BUDGET_IDLE_SECONDS` is how
//! long it is watched while nothing happens; with `AGENT_CLUSTER_WIRE` for ten minutes, which have two reports of the node's status.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::control_plane::{ADDRESS, said};
use super::{Cluster, number_from};
use crate::budget::{
    Table, cpu_nanos, finish, float, is_static, number_after, stamping_pod, usual_pss_over, wall_nanos,
};
use crate::support::agent::{NODE, PATIENCE, binary};
use crate::support::wait::{pause, wait_for};

const PODS: usize = 50;
/// Single starts and single changes, of which the middle one counts.
const SINGLE: usize = 9;
/// Starts, statuses and events are over by then.
const SETTLE: Duration = Duration::from_secs(30);
const IDLE_SECONDS: u64 = 90;
const WIRE_SECONDS: u64 = 600;
/// Fewer heartbeats say little about an hour.
const LEASES: usize = 6;
/// Of the static program of the packages.
const STATIC_MEGABYTES: f64 = 9.0;
/// With a shared C library and what it maps.
const SHARED_MEGABYTES: f64 = 8.0;

/// What goes between the node and the API server, and the requests of the heartbeat so far.
struct Wire {
    bytes: u64,
    leases: usize,
}

/// Counts from now on. In the kernel, both ways, with the headers of IP and TCP: the counts of sockets end with them.
fn count_wire() {
    let rule = format!(
        "add rule ip service wire ct original ip daddr 10.96.0.1 ct original ip saddr {ADDRESS} counter"
    );
    for line in ["add chain ip service wire { type filter hook output priority 10 ; }", &rule] {
        said(Command::new("nft").args(line.split(' '))).expect("count the packets");
    }
}

impl Wire {
    fn read(cluster: &Cluster) -> Self {
        let text = said(Command::new("nft").args(["list", "chain", "ip", "service", "wire"]))
            .expect("read the count");
        let count =
            text.split_once("bytes ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        let is_lease = |request: &&Value| request["objectRef"]["resource"] == "leases";
        let requests = cluster.control_plane.requests_of_nodes();
        Self { bytes: count.expect("nft prints a count"), leases: requests.iter().filter(is_lease).count() }
    }
}

/// Sends a request of the administrator; the wall clock when the connection was ready and the request began.
fn sent_at(cluster: &Cluster, method: &str, path: &str, kind: &str, body: &Value) -> i128 {
    let plane = &cluster.control_plane;
    let file = cluster.path("request.json");
    fs::write(&file, body.to_string()).expect("write the request");
    let mut command = Command::new("curl");
    command.args(["-sS", "-f", "-X", method, "-H", &format!("Content-Type: {kind}"), "-o", "/dev/null"]);
    command.args(["-w", "%{time_pretransfer} %{time_total}", "--cacert", &plane.pki("ca.crt")]);
    command.args(["--cert", &plane.pki("administrator.crt"), "--key", &plane.pki("administrator.key")]);
    command.args(["--data-binary", &format!("@{}", file.display())]);
    let times =
        said(command.arg(format!("https://{}{path}", super::control_plane::SERVER))).expect("it is taken");
    let end = wall_nanos();
    let mut times = times.split(' ').map(|text| text.parse::<f64>().expect("seconds"));
    let (begun, total) = (times.next().expect("two times"), times.next().expect("two times"));
    end - i128::try_from(Duration::from_secs_f64(total - begun).as_nanos()).expect("a short time")
}

fn millis_since(start: i128, end: i128) -> f64 {
    float(u64::try_from((end - start) / 1000).expect("the end is later")) / 1e3
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A pod that is bound when it is made; with a token of its service account, or without.
fn bound(name: &str, out: &std::path::Path, has_token: bool) -> Value {
    let mut pod = stamping_pod(name, out);
    pod["metadata"]["labels"] = json!({ "app": "figures" });
    pod["spec"]["nodeName"] = json!(NODE);
    pod["spec"]["automountServiceAccountToken"] = json!(has_token);
    pod
}

fn stamp(out: &std::path::Path, name: &str) -> i128 {
    wait_for(&format!("the first instruction of {name}"), PATIENCE, || {
        let text = fs::read_to_string(out.join(name)).map_err(|error| error.to_string())?;
        text.trim().parse::<i128>().map_err(|error| error.to_string())
    })
}

fn start_of_one(cluster: &Cluster, out: &std::path::Path, has_token: bool) -> f64 {
    let one = |number: usize| {
        let name = format!("one-{has_token}-{number}");
        let pod = bound(&name, out, has_token);
        let start = sent_at(cluster, "POST", "/api/v1/namespaces/default/pods", "application/json", &pod);
        let took = millis_since(start, stamp(out, &name));
        pause(Duration::from_secs(1));
        took
    };
    middle((0..SINGLE).map(one).collect())
}

/// What the API server needs for a token, by its own clock; and how often it did not know yet that the pod is the node's.
fn answers_of_tokens(cluster: &Cluster) -> (f64, usize) {
    let requests = cluster.control_plane.requests_of_nodes();
    let is_token = |request: &&Value| {
        request["verb"] == "create"
            && request["requestURI"].as_str().is_some_and(|uri| uri.ends_with("/token"))
    };
    let tokens: Vec<&Value> = requests.iter().filter(is_token).collect();
    let of = |code: u16| tokens.iter().filter(move |request| request["responseStatus"]["code"] == code);
    let millis = |request: &&&Value| {
        // `2026-01-01T00:00:59.999999Z`: seconds of the minute.
        let at = |name: &str| {
            let text = request[name].as_str().and_then(|text| text.get(17..26)?.parse::<f64>().ok());
            text.expect("a time with microseconds")
        };
        (at("stageTimestamp") - at("requestReceivedTimestamp")).rem_euclid(60.0) * 1e3
    };
    (middle(of(201).map(|request| millis(&request)).collect()), of(403).count())
}

/// From a change at the API server to the changed file of a pod that runs.
fn change_of_one(cluster: &Cluster) -> f64 {
    let pod = cluster.control_plane.get("/api/v1/namespaces/default/pods/many-0").expect("it runs");
    let uid = pod["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let file: PathBuf =
        cluster.agent.root_dir().join("pods").join(uid).join("volumes/kubernetes.io~configmap/words/word");
    let one = |number: usize| {
        let (word, path) = (format!("word {number}"), "/api/v1/namespaces/default/configmaps/words-0");
        let change = json!({ "data": { "word": word } });
        let start = sent_at(cluster, "PATCH", path, "application/merge-patch+json", &change);
        let end = wait_for("the file to change", PATIENCE, || match fs::read_to_string(&file) {
            Ok(text) if text == word => Ok(wall_nanos()),
            other => Err(format!("{other:?}")),
        });
        millis_since(start, end)
    };
    middle((0..SINGLE).map(one).collect())
}

/// Fifty pods with a ConfigMap in a volume and a Secret in a variable each.
fn fill(cluster: &Cluster, out: &std::path::Path) {
    let mut objects = Vec::new();
    for number in 0..PODS {
        let name = |kind: &str| json!({ "name": format!("{kind}-{number}") });
        objects.push(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": name("words"),
            "data": { "word": "none" } }));
        objects.push(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": name("secret"),
            "stringData": { "key": "value" } }));
        let mut pod = bound(&format!("many-{number}"), out, true);
        let volumes = pod["spec"]["volumes"].as_array_mut().expect("it has one");
        volumes.push(json!({ "name": "words", "configMap": name("words") }));
        let container = &mut pod["spec"]["containers"][0];
        container["volumeMounts"]
            .as_array_mut()
            .expect("it has one")
            .push(json!({ "name": "words", "mountPath": "/words" }));
        container["env"] = json!([{ "name": "KEY", "valueFrom": { "secretKeyRef": { "name": format!("secret-{number}"), "key": "key" } } }]);
        objects.push(pod);
    }
    cluster.control_plane.apply(&objects);
    cluster.ready_pods("app=figures", PODS);
}

#[test]
fn a_joined_node_keeps_its_budgets() {
    let cluster = Cluster::new();
    let out = cluster.runtime.scratch().dir("out");
    let mut table = Table::default();
    table.time(
        "pod bound to first instruction, median of 9",
        start_of_one(&cluster, &out, false),
        Some(50.0),
        "ms",
    );
    table.time("... with a token of its service account", start_of_one(&cluster, &out, true), None, "ms");
    let (answer, refusals) = answers_of_tokens(&cluster);
    let what =
        format!("... of which the API server needs for the token ({refusals} of {SINGLE} refused first)");
    table.time(&what, answer, None, "ms");
    cluster.control_plane.kubectl(&["delete", "pods", "-l", "app=figures", "--wait=true"]);

    fill(&cluster, &out);
    table.time("ConfigMap changed to file changed, median of 9", change_of_one(&cluster), Some(1000.0), "ms");
    count_wire();
    pause(SETTLE);
    let usual = if std::env::var_os("AGENT_CLUSTER_WIRE").is_some() { WIRE_SECONDS } else { IDLE_SECONDS };
    let seconds = number_from("AGENT_BUDGET_IDLE_SECONDS", usual);
    let pid = cluster.agent.pid();
    let look = || {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("read the agent's counters");
        let logged = fs::metadata(cluster.agent.log_file()).map_or(0, |metadata| metadata.len());
        (cpu_nanos(pid), number_after(&io, "write_bytes:"), logged, Wire::read(&cluster))
    };
    let before = look();
    let usual = usual_pss_over(pid, seconds);
    let after = look();
    let percent = float(after.0 - before.0) / float(seconds) / 1e7;
    let limit = if is_static(&binary()) { STATIC_MEGABYTES } else { SHARED_MEGABYTES };
    table.hard("joined: PSS with 50 pods and 100 objects", usual, limit, "MB");
    table.time("... idle CPU", percent, Some(0.1), "% of a core");
    table.hard("... idle bytes to disk", float(after.1 - before.1), 0.0, "B");
    table.hard("... idle log output", float(after.2 - before.2), 0.0, "B");
    let (bytes, leases) = (after.3.bytes - before.3.bytes, after.3.leases - before.3.leases);
    assert!(leases >= LEASES, "{leases} heartbeats in {seconds} s are too few for the bytes of an hour");
    let what = format!("... on the wire in an hour, as of {leases} heartbeats");
    table.time(&what, float(bytes * 3600 / seconds) / 1e6, None, "MB");
    finish(&table);
    cluster.finish();
}
