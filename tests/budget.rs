//! What the release binary costs: size, memory, time to first container, and what it does while nothing happens.
//!
//! Prints one table. Sizes, memory and bytes fail the test when over their limit; times depend on who else uses the machine
//! and fail it only with `AGENT_BUDGET_STRICT=1`. Budgets only ever tighten.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::agent::AgentProcess;
use crate::support::api::Api;
use crate::support::image::STAMP;
use crate::support::runtime::{Kind as RuntimeKind, TestRuntime, on};
use crate::support::wait::{pause, wait_for};

mod boot;
mod clients;
mod flash;
mod monitors;
mod own_share;
mod probes;
mod workloads;

/// 10 MiB, of the static program of the packages: `AGENT_BIN=target/dist/agent-... just budget`.
const STATIC_BYTES: u64 = 10 * 1024 * 1024;
/// Of `cargo build --release`, which links Rust's own build of the standard library: optimised for speed, with tables for unwinding.
const SHARED_BYTES: u64 = 10 * 1024 * 1024;
/// Pods of the big row.
const MANY: usize = 50;
/// How long idleness is watched, unless `AGENT_BUDGET_IDLE_SECONDS` says otherwise.
const IDLE_SECONDS: u64 = 30;
/// What is still to be written and freed after a start is done by then.
const SETTLE: Duration = Duration::from_secs(5);
/// A start's last coalesced writes are on disk by then; idleness begins after it.
const SETTLE_MANY: Duration = Duration::from_secs(20);
/// Enough to show what each would leave behind.
const REQUESTS: usize = 50;
/// All pods run by then, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a limit means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The same on every machine: over it is a failure.
    Hard,
    /// Depends on the machine and on who else uses it.
    Time,
}

/// One line of the table.
struct Row {
    what: String,
    measured: f64,
    limit: Option<f64>,
    unit: &'static str,
    kind: Kind,
}

impl Row {
    fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.measured > limit)
    }

    fn verdict(&self) -> &'static str {
        match (self.limit, self.is_over(), self.kind) {
            (None, ..) => "for the record",
            (_, false, _) => "met",
            (_, true, Kind::Hard) => "OVER",
            (_, true, Kind::Time) => "over (this machine, now)",
        }
    }
}

/// The rows so far.
#[derive(Default)]
pub struct Table(Vec<Row>);

impl Table {
    pub fn hard(&mut self, what: &str, measured: f64, limit: f64, unit: &'static str) {
        self.0.push(Row { what: what.to_owned(), measured, limit: Some(limit), unit, kind: Kind::Hard });
    }

    pub fn time(&mut self, what: &str, measured: f64, limit: Option<f64>, unit: &'static str) {
        self.0.push(Row { what: what.to_owned(), measured, limit, unit, kind: Kind::Time });
    }

    fn text(&self) -> String {
        let mut text = format!("\n{:<58} {:>10} {:>8}  verdict\n", "what", "measured", "limit");
        for row in &self.0 {
            let limit = row.limit.map_or_else(|| "-".to_owned(), |limit| format!("{limit}"));
            writeln!(
                text,
                "{:<58} {:>10.2} {limit:>8}  {}",
                format!("{} ({})", row.what, row.unit),
                row.measured,
                row.verdict()
            )
            .expect("writing to a string");
        }
        text
    }

    fn failures(&self) -> Vec<&str> {
        let strict = std::env::var("AGENT_BUDGET_STRICT").is_ok_and(|value| value == "1");
        let failed = self.0.iter().filter(|row| row.is_over() && (strict || row.kind == Kind::Hard));
        failed.map(|row| row.what.as_str()).collect()
    }
}

#[test]
fn the_release_binary_keeps_its_budgets() {
    let program = release_binary();
    let mut table = Table::default();
    let size = fs::metadata(&program).expect("look at the binary").len();
    let (what, limit) = if is_static(&program) {
        ("binary, static", STATIC_BYTES)
    } else {
        ("binary, with shared C library", SHARED_BYTES)
    };
    table.hard(what, megabytes(size), megabytes(limit), "MB");
    own_share::measure(&program, &mut table);
    finish(&table);
}

#[test]
fn pods_on_containerd_keep_their_budgets() {
    on(RuntimeKind::Containerd, || with_pods("containerd", [None, None]));
}

#[test]
fn pods_on_the_embedded_runtime_keep_their_budgets() {
    on(RuntimeKind::Embedded, || with_pods("embedded", [Some(40.0), Some(1000.0)]));
}

#[test]
fn little_is_written_to_flash_and_nothing_while_idle() {
    on(RuntimeKind::Embedded, || {
        let mut table = Table::default();
        flash::measure(&mut table);
        finish(&table);
    });
}

#[test]
fn pods_of_the_store_and_changed_objects_are_there_soon() {
    on(RuntimeKind::Embedded, || {
        let mut table = Table::default();
        boot::measure(&mut table);
        finish(&table);
    });
}

#[test]
fn probes_are_cheap_and_punctual() {
    let mut table = Table::default();
    probes::measure(&release_binary(), &mut table);
    finish(&table);
}

/// Prints the table, or fails with it.
#[expect(clippy::print_stdout, reason = "the table is what this is for")]
pub fn finish(table: &Table) {
    let text = table.text();
    let failures = table.failures();
    assert!(failures.is_empty(), "over budget: {failures:?}\n{text}");
    println!("{text}");
}

/// The binary to measure. Nothing is built here: what is measured must be what ships.
fn release_binary() -> PathBuf {
    let built = || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("release").join("agent");
    let program = std::env::var_os("AGENT_BIN").map_or_else(built, PathBuf::from);
    let path = program.display();
    assert!(program.is_file(), "no release binary at {path}: run `cargo build --release` or set AGENT_BIN");
    program
}

/// A program that names no loader is loaded by the kernel alone.
pub fn is_static(program: &Path) -> bool {
    let start = fs::read(program).expect("read the binary");
    !start[..start.len().min(64 * 1024)].windows(8).any(|bytes| bytes == b"ld-linux")
}

/// Memory, time to first instruction and idleness on a runtime; how long the first of one pod and the last of 49 may take
/// in milliseconds.
fn with_pods(runtime_name: &str, limits: [Option<f64>; 2]) {
    let mut table = Table::default();
    let runtime = TestRuntime::start();
    let out = runtime.scratch().dir("out");
    let mut agent = runtime.agent().with_program(&release_binary());
    agent.argument(format!("--service-cidr={}", runtime.scratch().service_range()));
    // As an agent is that nobody configured: with its API.
    let api = Api::of(&mut agent, runtime.scratch().path());

    let started = Instant::now();
    agent.start();
    wait_for("the agent to answer", PATIENCE, || agent.status_json());
    let what = format!("{runtime_name}: agent start to its first answer");
    table.time(&what, millis(started.elapsed()), None, "ms");
    if runtime_name == "embedded" {
        monitors::wait_for_images(&agent);
    }
    pause(SETTLE);
    table.hard("agent PSS without pods", usual_pss_megabytes(agent.pid()), 8.0, "MB");

    let first = first_instructions(&agent, &out, &["one".to_owned()]);
    table.time("manifest renamed to first instruction, 1 pod", first, limits[0], "ms");
    let names: Vec<String> = (1..MANY).map(|number| format!("many{number}")).collect();
    let many = first_instructions(&agent, &out, &names);
    table.time("... last of 49 more at once", many, limits[1], "ms");
    wait_for("all pods to be seen running", PATIENCE, || {
        let list = agent.cli(&["get", "pods", "-o", "json"])?;
        let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
        let running = list["items"].as_array().into_iter().flatten();
        let running = running.filter(|pod| pod["status"]["phase"] == "Running").count();
        if running == MANY { Ok(()) } else { Err(format!("{running} of {MANY}")) }
    });
    pause(SETTLE_MANY);
    let usual = idleness(&agent, &mut table, "50 pods", 0.1);
    let limit = if runtime_name == "embedded" { 6.0 } else { 10.0 };
    table.hard("agent PSS with 50 pods", usual, limit, "MB");
    let admin = api.person(&agent, "admin", &[]);
    for _ in 0..REQUESTS {
        assert_eq!(api.curl(Some(&admin), "/pods", &[]).0, 200);
    }
    pause(SETTLE);
    table.hard("... after 50 times all of them over TLS", usual_pss_megabytes(agent.pid()), 10.0, "MB");
    monitors::measure(&agent, usual, &mut table);
    agent.assert_alive();
    finish(&table);
}

/// Renames manifests into place and returns the milliseconds until the last container's first instruction.
fn first_instructions(agent: &AgentProcess, out: &Path, names: &[String]) -> f64 {
    let start = wall_nanos();
    for name in names {
        agent.write_manifest(&format!("{name}.yaml"), &stamping_pod(name, out).to_string());
    }
    let stamps = names.iter().map(|name| {
        wait_for(&format!("the first instruction of {name}"), PATIENCE, || {
            let text = fs::read_to_string(out.join(name)).map_err(|error| error.to_string())?;
            text.trim().parse::<i128>().map_err(|error| error.to_string())
        })
    });
    let last = stamps.max().expect("at least one pod");
    let micros =
        u32::try_from((last - start) / 1000).expect("it took less than an hour, and time went forward");
    f64::from(micros) / 1000.0
}

/// What the agent does while nothing happens; returns its usual share of memory at that, in megabytes. To look at another
/// process's memory costs that process nothing.
fn idleness(agent: &AgentProcess, table: &mut Table, with: &str, most_percent: f64) -> f64 {
    let seconds = std::env::var("AGENT_BUDGET_IDLE_SECONDS")
        .map_or(IDLE_SECONDS, |text| text.parse().expect("a number of seconds"));
    let look = || {
        let io =
            fs::read_to_string(format!("/proc/{}/io", agent.pid())).expect("read the agent's io counters");
        let field = |name: &str| number_after(&io, name);
        let logged = fs::metadata(agent.log_file()).map_or(0, |metadata| metadata.len());
        (cpu_nanos(agent.pid()), field("write_bytes:"), field("wchar:"), logged)
    };
    let (cpu, disk, written, logged) = look();
    let start = Instant::now();
    let usual = usual_pss_over(agent.pid(), seconds);
    let elapsed = start.elapsed();
    let (cpu_after, disk_after, written_after, logged_after) = look();

    let busy = Duration::from_nanos(cpu_after - cpu);
    let percent = busy.as_secs_f64() / elapsed.as_secs_f64() * 100.0;
    table.time(&format!("idle CPU with {with}"), percent, Some(most_percent), "% of a core");
    table.hard(&format!("idle bytes to disk with {with}"), float(disk_after - disk), 0.0, "B");
    table.hard(&format!("idle log output with {with}"), float(logged_after - logged), 0.0, "B");
    table.time("idle bytes through write calls, sockets too", float(written_after - written), None, "B");
    usual
}

/// A pod that notes its first instruction.
pub fn stamping_pod(name: &str, out: &Path) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": STAMP,
                "imagePullPolicy": "Never",
                "args": [format!("/out/{name}")],
                "volumeMounts": [{ "name": "out", "mountPath": "/out" }],
            }],
            "volumes": [{ "name": "out", "hostPath": { "path": out, "type": "Directory" } }],
        },
    })
}

/// The usual share of memory of an agent that waits: a look at the runtime now and then needs more for some seconds.
fn usual_pss_megabytes(pid: u32) -> f64 {
    usual_pss_over(pid, 15)
}

/// The middle one of a sample a second.
pub fn usual_pss_over(pid: u32, seconds: u64) -> f64 {
    let mut samples: Vec<f64> = (0..seconds)
        .map(|_| {
            pause(Duration::from_secs(1));
            pss_megabytes(pid)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Proportional share of memory, the figure that adds up over processes.
fn pss_megabytes(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("read the agent's memory map");
    float(number_after(&text, "Pss:")) * 1024.0 / 1e6
}

/// Memory that nobody else has and no file could give back: heap and stacks.
fn private_megabytes(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("read the agent's memory map");
    float(number_after(&text, "Private_Dirty:")) * 1024.0 / 1e6
}

/// Time on a processor, all threads.
pub fn cpu_nanos(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("list the agent's threads");
    let of_thread = |path: PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(|thread| of_thread(thread.path())).sum()
}

/// The number behind a word at the start of a line.
pub fn number_after(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word)).expect("the kernel prints this line");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("the kernel prints a number")
}

/// The wall clock, to compare with what containers write down.
#[expect(clippy::disallowed_methods, reason = "measures real time across processes")]
pub fn wall_nanos() -> i128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("the clock is set");
    i128::try_from(now.as_nanos()).expect("before the end of time")
}

fn megabytes(bytes: u64) -> f64 {
    float(bytes) / 1e6
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// For printing; the figures are far below where this loses digits.
#[expect(clippy::cast_precision_loss, reason = "figures of a table, below 2^53")]
pub fn float(number: u64) -> f64 {
    number as f64
}
