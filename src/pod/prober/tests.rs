//! Probes against a simulated runtime, on paused time.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::*;
use crate::model::api::decode::decode;
use crate::model::types::{ContainerId, SandboxId};
use crate::pod::observe::observe_pod;
use crate::pod::prober::rules::{InstanceProbes, ProbeKind, ProbeResult};
use crate::runtime::fake::{ExecScript, FakeRuntime};
use crate::runtime::{ContainerConfig, ExecOutput, Runtime, SandboxConfig, labels};
use crate::store::{Mode, OpenOptions, StoreHandle};

mod answers;
mod crowd;
mod results;
mod timing;

const START: Timestamp = Timestamp::from_secs(1_795_190_400);
const SECOND: Duration = Duration::from_secs(1);

/// A node with a prober, a pod `p` and its worker's mailbox.
struct Bench {
    fake: FakeRuntime,
    clock: Clock,
    events: EventRecorder,
    prober: Prober<FakeRuntime>,
    pod: Rc<Pod>,
    sandbox: SandboxId,
    inbox: Rc<Inbox>,
}

/// Runs on paused time with local tasks.
fn bench<F: Future>(containers: Value, test: impl FnOnce(Bench) -> F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async { test(Bench::new(containers).await).await })
}

impl Bench {
    async fn new(containers: Value) -> Self {
        let clock = Clock::manual(START);
        let fake = FakeRuntime::new(clock.clone(), 1);
        fake.add_image("image");
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        let events = EventRecorder::new("n1".into(), clock.clone(), store.unwrap(), Vec::new());
        let pod = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
            "spec": {"containers": containers},
        });
        let pod = Rc::new(decode::<Pod>(pod).unwrap().object);
        let sandbox = fake.run_sandbox(&sandbox_config(&pod)).await.unwrap();
        let prober = prober(&fake, &clock, &events);
        Self { fake, clock, events, prober, pod, sandbox, inbox: Rc::default() }
    }

    /// Starts the next instance of a container.
    async fn start(&self, name: &str, attempt: u32) -> ContainerId {
        let mut labels = sandbox_config(&self.pod).labels;
        labels.insert(labels::CONTAINER_NAME.into(), name.into());
        let config = ContainerConfig {
            name: name.into(),
            attempt,
            image: "image".into(),
            user_specified_image: "image".into(),
            log_path: format!("{name}/{attempt}.log"),
            labels,
            ..ContainerConfig::default()
        };
        let id =
            self.fake.create_container(&self.sandbox, &config, &sandbox_config(&self.pod)).await.unwrap();
        self.fake.start_container(&id).await.unwrap();
        id
    }

    /// Does what the worker does after each observation.
    async fn observe(&self) {
        self.observe_after(None).await;
    }

    async fn observe_after(&self, remembered: Option<&PodStatus>) {
        let observed = observe_pod(&self.fake, &self.pod.metadata.uid).await.unwrap();
        self.prober.observe(&self.pod, &observed, remembered, &self.inbox);
    }

    fn results(&self, id: &ContainerId) -> InstanceProbes {
        self.prober.results(&self.pod.metadata.uid).get(id).copied().unwrap_or_default()
    }

    /// The command ends with this code from now on.
    fn script(&self, command: &str, exit_code: i32) {
        self.script_slow(command, exit_code, Duration::ZERO);
    }

    fn script_slow(&self, command: &str, exit_code: i32, takes: Duration) {
        let output = ExecOutput { exit_code, output: format!("{command} says {exit_code}").into_bytes() };
        self.fake.change(|world, _| world.set_exec("main", command, ExecScript { takes, output }));
    }

    /// Seconds since the start at which commands have begun.
    fn runs(&self) -> Vec<f64> {
        let calls = self.fake.calls();
        let execs = calls.iter().filter(|call| call.call == "ExecSync");
        execs.map(|call| call.at.saturating_since(START).as_secs_f64()).collect()
    }

    /// Count and message of each event.
    fn said(&self) -> Vec<(u32, String)> {
        self.events.recent().into_iter().map(|event| (event.count, event.key.message)).collect()
    }

    /// Whether the worker was woken since the last call.
    fn was_woken(&self) -> bool {
        self.inbox.take().observe
    }
}

fn prober(fake: &FakeRuntime, clock: &Clock, events: &EventRecorder) -> Prober<FakeRuntime> {
    Prober::new(Rc::new(fake.clone()), clock.clone(), events.clone(), ProberConfig::default())
}

fn sandbox_config(pod: &Pod) -> SandboxConfig {
    let pod = pod.pod_ref();
    let labels = [
        (labels::POD_NAME, pod.name.clone()),
        (labels::POD_NAMESPACE, pod.namespace.clone()),
        (labels::POD_UID, pod.uid.to_string()),
    ];
    SandboxConfig {
        pod,
        log_directory: "/var/log/pods/p".into(),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        ..SandboxConfig::default()
    }
}

/// An exec probe with upstream's defaults but for these fields.
fn exec(command: &str, more: &Value) -> Value {
    let mut probe = json!({
        "exec": {"command": [command]},
        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
    });
    for (field, value) in more.as_object().unwrap() {
        probe[field] = value.clone();
    }
    probe
}

/// Lets this much time pass, and what happens in it.
async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}
