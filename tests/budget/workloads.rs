//! Deployments, Services and CronJobs on one box: what they cost while nothing changes, and how soon a change acts.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    PATIENCE, SETTLE_MANY, Table, finish, idleness, millis, release_binary, stamping_pod, wall_nanos,
};
use crate::support::agent::AgentProcess;
use crate::support::api::{Api, Person};
use crate::support::runtime::{Kind, TestRuntime, on};
use crate::support::wait::{wait_for, wait_until};

const DEPLOYMENTS: usize = 20;
const REPLICAS: usize = 2;
const SERVICES: usize = 20;
const CRON_JOBS: usize = 10;
/// Pods of the Deployment whose rolling update is measured.
const ROLLED: usize = 10;
/// Of what is measured one by one; the middle one counts.
const ROUNDS: usize = 9;
const QUESTIONS: usize = 200;

struct Loaded {
    agent: AgentProcess,
    api: Api,
    admin: Person,
    tokio: tokio::runtime::Runtime,
}

impl Loaded {
    /// Sends an object on a connection that is ready; returns when that began. It has been answered then.
    fn send(&self, method: &str, path: &str, object: &Value) -> i128 {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = object.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.tokio.block_on(async {
            let mut stream = self.api.stream(&self.admin).await;
            let began = wall_nanos();
            stream.write_all(request.as_bytes()).await.expect("send");
            stream.flush().await.expect("send");
            let mut answer = [0; 4096];
            let length = stream.read(&mut answer).await.expect("an answer");
            let said = String::from_utf8_lossy(&answer[..length]);
            assert!(said.starts_with("HTTP/1.1 20"), "{path}: {said}");
            began
        })
    }

    fn deploy(&self, name: &str, replicas: usize, on_host: bool, out: &Path) -> i128 {
        let mut template = stamping_pod(name, out);
        template["spec"]["hostNetwork"] = json!(on_host);
        template["spec"]["automountServiceAccountToken"] = json!(!on_host);
        template["metadata"] = json!({ "labels": { "app": name } });
        let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name }, "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": template["metadata"], "spec": template["spec"] },
        } });
        self.send("POST", "/apis/apps/v1/namespaces/default/deployments", &deployment)
    }

    /// Milliseconds from the request to the first instruction. Nothing of the pod is left afterwards.
    fn first_instruction(&self, name: &str, on_host: bool, out: &Path) -> f64 {
        let began = self.deploy(name, 1, on_host, out);
        let stamp = wait_for(&format!("the first instruction of {name}"), PATIENCE, || {
            let text = fs::read_to_string(out.join(name)).map_err(|error| error.to_string())?;
            text.trim().parse::<i128>().map_err(|error| error.to_string())
        });
        let path = format!("/apis/apps/v1/namespaces/default/deployments/{name}");
        self.api.curl(Some(&self.admin), &path, &["-X", "DELETE"]);
        wait_for("the pod to go", PATIENCE, || match self.pods()?.len() {
            0 => Ok(()),
            left => Err(format!("{left} are left")),
        });
        f64::from(u32::try_from((stamp - began) / 1000).expect("forward")) / 1e3
    }

    /// Milliseconds from the answer to the first connection that goes to the new port of a pod on the host's network.
    fn change_of_a_service(&self, out: &Path) -> f64 {
        let listener = |_| {
            let listener = TcpListener::bind("0.0.0.0:0").expect("bind");
            listener.set_nonblocking(true).expect("set");
            listener
        };
        let listeners: Vec<TcpListener> = (0..=ROUNDS).map(listener).collect();
        let ports = |round: usize| {
            let target = listeners[round].local_addr().expect("an address").port();
            json!({ "selector": { "app": "probe" }, "ports": [{ "port": 80, "targetPort": target }] })
        };
        self.deploy("probe", 1, true, out);
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "probe" }, "spec": ports(0) });
        self.send("POST", "/api/v1/namespaces/default/services", &service);
        let address = wait_for("the address of the Service", PATIENCE, || {
            let said = self.agent.ask(&["resolve", "probe"])?;
            said.trim().parse::<IpAddr>().map_err(|_| said)
        });
        let is_at = |round: usize| {
            // Refused while the pod is not ready.
            let _ = TcpStream::connect_timeout(&(address, 80).into(), Duration::from_secs(1));
            listeners[round].accept().is_ok()
        };
        wait_until("the Service to be reached", PATIENCE, || is_at(0));
        let change = (1..=ROUNDS).map(|round| {
            let path = "/api/v1/namespaces/default/services/probe";
            self.send("PATCH", path, &json!({ "spec": ports(round) }));
            let answered = Instant::now();
            while !is_at(round) {
                assert!(answered.elapsed() < PATIENCE, "the rules have not changed");
            }
            millis(answered.elapsed())
        });
        middle(change.collect())
    }

    /// Milliseconds from the change of a Deployment of many pods to the end of its rolling update.
    fn rolling_update(&self, out: &Path) -> f64 {
        self.deploy("rolled", ROLLED, false, out);
        let is_done = |generation: u64| {
            let shown = self.agent.cli(&["get", "deployment", "rolled", "-o", "json"])?;
            let shown: Value = serde_json::from_str(&shown).map_err(|error| error.to_string())?;
            let status = &shown["status"];
            let all = ["replicas", "updatedReplicas", "availableReplicas"].map(|count| &status[count]);
            if status["observedGeneration"] == generation && all.iter().all(|count| **count == ROLLED) {
                Ok(())
            } else {
                Err(format!("{status}; {}", self.agent.log_tail()))
            }
        };
        wait_for("all pods to be ready", PATIENCE, || is_done(1));
        let change = json!({ "spec": { "template": { "metadata": { "labels": { "round": "2" } } } } });
        self.send("PATCH", "/apis/apps/v1/namespaces/default/deployments/rolled", &change);
        let began = Instant::now();
        wait_for("the rolling update to end", PATIENCE, || is_done(2));
        millis(began.elapsed())
    }

    fn pods(&self) -> Result<Vec<Value>, String> {
        let list = self.agent.cli(&["get", "pods", "-o", "json"])?;
        let mut list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
        serde_json::from_value(list["items"].take()).map_err(|error| error.to_string())
    }

    fn running(&self) -> Result<usize, String> {
        Ok(self.pods()?.iter().filter(|pod| pod["status"]["phase"] == "Running").count())
    }
}

fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The question for the address of a name, of one packet.
fn question(name: &str) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).expect("a short label"));
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

/// The time of one answer, in milliseconds.
fn answer_time(socket: &UdpSocket, packet: &[u8]) -> f64 {
    let began = Instant::now();
    socket.send(packet).expect("send");
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).expect("an answer");
    let taken = millis(began.elapsed());
    // No error, one answer.
    assert_eq!((length > 12, answer[3] & 15, answer[7]), (true, 0, 1));
    taken
}

#[test]
fn workloads_and_services_keep_their_budgets() {
    on(Kind::Embedded, || {
        let mut table = Table::default();
        let runtime = TestRuntime::start();
        let out = runtime.scratch().dir("out");
        let mut agent = runtime.agent().with_program(&release_binary());
        agent.argument(format!("--service-cidr={}", runtime.scratch().service_range()));
        let api = Api::of(&mut agent, runtime.scratch().path());
        agent.start();
        super::monitors::wait_for_images(&agent);
        api.wait(&mut agent);
        let admin = api.person(&agent, "admin", &[]);
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut one = Loaded { agent, api, admin, tokio };

        let on_host = (0..ROUNDS).map(|round| one.first_instruction(&format!("host{round}"), true, &out));
        let on_host = middle(on_host.collect());
        table.time("Deployment sent to its pod's first instruction, host network", on_host, None, "ms");
        let first = (0..ROUNDS).map(|round| one.first_instruction(&format!("first{round}"), false, &out));
        let first = middle(first.collect());
        table.time("... pod network and token", first, Some(60.0), "ms");

        for number in 0..DEPLOYMENTS {
            one.deploy(&format!("web{number}"), REPLICAS, false, &out);
        }
        for number in 0..SERVICES {
            let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": format!("web{number}") },
                "spec": { "selector": { "app": format!("web{number}") }, "ports": [{ "port": 80, "targetPort": 8080 }] } });
            one.send("POST", "/api/v1/namespaces/default/services", &service);
        }
        let job = stamping_pod("job", &out)["spec"].clone();
        for number in 0..CRON_JOBS {
            let mut job = job.clone();
            job["restartPolicy"] = json!("Never");
            let cron = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": format!("job{number}") },
                "spec": { "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": { "spec": job } } } } });
            one.send("POST", "/apis/batch/v1/namespaces/default/cronjobs", &cron);
        }
        wait_for("all pods to run", PATIENCE, || match one.running()? {
            count if count == DEPLOYMENTS * REPLICAS => Ok(()),
            count => Err(format!("{count} run; {}", one.agent.log_tail())),
        });
        crate::support::wait::pause(SETTLE_MANY);
        let usual = idleness(&one.agent, &mut table, "20 Deployments", 0.05);
        table.hard("agent PSS with 20 Deployments, 40 pods, 20 Services", usual, 7.0, "MB");

        let change = one.change_of_a_service(&out);
        table.time("Service's change answered to connections that follow it", change, Some(10.0), "ms");

        let rolled = one.rolling_update(&out) / 1e3;
        table.time("rolling update of a Deployment of 10 pods", rolled, None, "s");

        let dns = one.agent.ask(&["resolve", "kube-dns", "-n", "kube-system"]).expect("the server's address");
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        socket.connect((dns.trim(), 53)).expect("connect");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        let packet = question("web7.default.svc.cluster.local");
        let answers = (0..QUESTIONS).map(|_| answer_time(&socket, &packet)).collect();
        table.time("DNS answer for a Service", middle(answers), Some(1.0), "ms");
        one.agent.assert_alive();
        finish(&table);
    });
}
