//! What probes cost and how punctual they are: a hundred pods with three probes each, every second.
//!
//! The runtime takes no time, and the probed servers are this process's own, so what is measured is the agent alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use super::{PATIENCE, Table, cpu_nanos, float, private_megabytes, pss_megabytes};
use crate::support::agent::AgentProcess;
use crate::support::fake_cri::FakeCri;
use crate::support::image::STAMP;
use crate::support::scratch::Scratch;
use crate::support::wait::{pause, wait_for};

/// Probed pods.
const PODS: usize = 100;
/// Of each.
const PROBES: usize = 3;
/// Starts, first results and their status writes are over by then.
const SETTLE: Duration = Duration::from_secs(10);
/// How long is watched.
const WATCHED: Duration = Duration::from_secs(30);
/// Of 300 runs per second, on one core.
const CPU_PERCENT: f64 = 10.0;
/// A run may be this much later than a period after the one before.
const LATE_MILLIS: f64 = 200.0;
/// Of memory, for each probe.
const KILOBYTES: f64 = 4.0;

/// Who was asked, and when.
type Asked = (String, Instant);

/// Adds the rows. The agent without probes has nothing to do, so it is there beside the first one that has.
pub fn measure(program: &Path, table: &mut Table) {
    let servers = Servers::start();
    let without = Life::start(program, &|_| Vec::new());
    let sockets = Life::start(program, &|number| servers.probes_of(number)).watched();
    let without = without.seen((0, Instant::now()));
    let exec = Life::start(program, &|_| exec_probes()).watched();
    add(table, "httpGet and tcpSocket", &sockets, &servers.asked());
    add(table, "exec", &exec, &exec.commands);
    let of_each = |with: f64, without: f64| (with - without).max(0.0) * 1000.0 / float_of(PODS * PROBES);
    // Text of the program is there once, however many probes need it.
    table.time("memory of a probe", of_each(exec.private, without.private), Some(KILOBYTES), "KB");
    table.time("... with its share of the text", of_each(exec.megabytes, without.megabytes), None, "KB");
}

/// What one life of the agent came to.
struct Watched {
    cpu_percent: f64,
    megabytes: f64,
    private: f64,
    /// The time that counts.
    from: Instant,
    to: Instant,
    commands: Vec<Asked>,
}

/// An agent with its runtime.
struct Life {
    agent: AgentProcess,
    runtime: FakeCri,
    _scratch: Scratch,
}

impl Life {
    /// Runs a hundred pods whose containers have these probes. The program is a copy, which shares its text with no other agent's.
    fn start(program: &Path, probes_of: &dyn Fn(usize) -> Vec<Value>) -> Self {
        let scratch = Scratch::new();
        let runtime = FakeCri::start(&scratch.path().join("cri.sock"));
        runtime.add_image(STAMP);
        let own = scratch.path().join("program");
        fs::copy(program, &own).expect("copy the program");
        let mut agent = AgentProcess::new(scratch.path(), &runtime.endpoint()).with_program(&own);
        agent.start();
        wait_for("the agent to answer", PATIENCE, || agent.status_json());
        for number in 0..PODS {
            let pod = pod(number, &probes_of(number));
            agent.write_manifest(&format!("pod{number}.yaml"), &pod.to_string());
        }
        wait_for("all pods to be ready", PATIENCE, || {
            let list: Value = serde_json::from_str(&agent.cli(&["get", "pods", "-o", "json"])?)
                .map_err(|error| error.to_string())?;
            let pods = list["items"].as_array().into_iter().flatten();
            let ready = pods.filter(|pod| is_ready(pod)).count();
            if ready == PODS { Ok(()) } else { Err(format!("{ready} of {PODS}")) }
        });
        Self { agent, runtime, _scratch: scratch }
    }

    /// What it does in a while, once it has settled. Ends it.
    fn watched(self) -> Watched {
        pause(SETTLE);
        let before = (cpu_nanos(self.agent.pid()), Instant::now());
        pause(WATCHED);
        self.seen(before)
    }

    /// What there is to say of it since it had used so many nanoseconds of a core, at that moment. Ends it.
    fn seen(mut self, (cpu, from): (u64, Instant)) -> Watched {
        let pid = self.agent.pid();
        let (busy, to) = (cpu_nanos(pid) - cpu, Instant::now());
        let (megabytes, private) = (pss_megabytes(pid), private_megabytes(pid));
        self.agent.assert_alive();
        let state = self.runtime.state();
        let execs = state.calls.iter().filter(|call| call.name == "ExecSync");
        let commands = execs.map(|call| (call.subject.clone(), call.at)).collect();
        let cpu_percent = Duration::from_nanos(busy).as_secs_f64() / (to - from).as_secs_f64() * 100.0;
        Watched { cpu_percent, megabytes, private, from, to, commands }
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn add(table: &mut Table, what: &str, watched: &Watched, asked: &[Asked]) {
    let mut moments: BTreeMap<&str, Vec<Instant>> = BTreeMap::new();
    for (who, when) in asked.iter().filter(|(_, when)| (watched.from..watched.to).contains(when)) {
        moments.entry(who).or_default().push(*when);
    }
    assert_eq!(moments.len(), PODS * PROBES, "{what}: every probe has run");
    let mut late: Vec<f64> = moments.values().flat_map(|moments| lateness(moments)).collect();
    late.sort_by(f64::total_cmp);
    let of_runs = |percent: usize| late[(late.len() - 1) * percent / 100];
    table.time(
        &format!("CPU of 300 {what} probes a second"),
        watched.cpu_percent,
        Some(CPU_PERCENT),
        "% of a core",
    );
    table.time("... late, 99 of 100 at most", of_runs(99), Some(LATE_MILLIS), "ms");
    table.time("... late, the worst", of_runs(100), None, "ms");
    table.time("... agent PSS", watched.megabytes, None, "MB");
}

/// Milliseconds by which each run is later than the most punctual one of its probe; a missed run makes all that follow a
/// second late.
fn lateness(moments: &[Instant]) -> Vec<f64> {
    let since = |moment: &Instant| (*moment - moments[0]).as_secs_f64() * 1e3;
    let shifts = moments.iter().enumerate().map(|(index, moment)| since(moment) - float_of(index) * 1e3);
    let shifts: Vec<f64> = shifts.collect();
    let earliest = shifts.iter().copied().fold(f64::INFINITY, f64::min);
    shifts.into_iter().map(|shift| shift - earliest).collect()
}

fn float_of(number: usize) -> f64 {
    float(u64::try_from(number).expect("a small number"))
}

/// Two containers: two probes in the first, one in the second.
fn pod(number: usize, probes: &[Value]) -> Value {
    let mut containers = ["one", "two"]
        .map(|name| json!({ "name": name, "image": STAMP, "imagePullPolicy": "Never", "args": ["/out/x"] }));
    let fields = [(0, "livenessProbe"), (0, "readinessProbe"), (1, "livenessProbe")];
    for ((container, field), probe) in fields.into_iter().zip(probes) {
        containers[container][field] = probe.clone();
        containers[container][field]["periodSeconds"] = json!(1);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("pod{number}") },
        "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": containers },
    })
}

fn exec_probes() -> Vec<Value> {
    ["alive", "ready", "alive"].map(|command| json!({ "exec": { "command": [command] } })).to_vec()
}

/// What is probed: an HTTP server for all, told apart by path, and a listener for each pod.
struct Servers {
    http: u16,
    tcp: Vec<u16>,
    asked: Receiver<Asked>,
}

impl Servers {
    fn start() -> Self {
        let listen = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind a port");
            listener.set_nonblocking(true).expect("a socket of our own");
            (listener.local_addr().expect("it is bound").port(), listener)
        };
        let (http, http_listener) = listen();
        let (tcp, tcp_listeners): (Vec<u16>, Vec<_>) = (0..PODS).map(|_| listen()).unzip();
        let (tell, asked) = channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("start tokio").block_on(async move {
                for (number, listener) in tcp_listeners.into_iter().enumerate() {
                    let listener = TcpListener::from_std(listener).expect("inside the runtime");
                    tokio::spawn(note_connections(listener, format!("tcp{number}"), tell.clone()));
                }
                let listener = TcpListener::from_std(http_listener).expect("inside the runtime");
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, tell.clone()));
                }
            });
        };
        // Ends with the test's process.
        std::thread::Builder::new().name("probed".into()).spawn(serve).expect("start a thread");
        Self { http, tcp, asked }
    }

    fn probes_of(&self, number: usize) -> Vec<Value> {
        let get = |what| json!({ "httpGet": { "host": "127.0.0.1", "port": self.http, "path": format!("/{what}{number}") } });
        let tcp = json!({ "tcpSocket": { "host": "127.0.0.1", "port": self.tcp[number] } });
        vec![get("one"), tcp, get("two")]
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.try_iter().collect()
    }
}

async fn note_connections(listener: TcpListener, name: String, tell: Sender<Asked>) {
    while listener.accept().await.is_ok() {
        if tell.send((name.clone(), Instant::now())).is_err() {
            return;
        }
    }
}

/// One request of less than a kilobyte.
async fn answer(stream: TcpStream, tell: Sender<Asked>) -> io::Result<()> {
    let began = Instant::now();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        stream.readable().await?;
        let mut chunk = [0; 1024];
        match stream.try_read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => head.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let _ = tell.send((path, began));
    stream.writable().await?;
    stream.try_write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").map(drop)
}
