//! For tests: a container on a simulated runtime, for hooks and stops.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::types::{ContainerId, PodRef, SandboxId, Timestamp};
use crate::platform::clock::Clock;
use crate::pod::events::EventRecorder;
use crate::pod::executor::hooks::{HookRunner, HookSite};
use crate::runtime::fake::{ExecScript, FakeRuntime, Program};
use crate::runtime::{ContainerConfig, ExecOutput, Runtime, SandboxConfig, labels};
use crate::store::{Mode, OpenOptions, StoreHandle};

pub(in crate::pod) struct Bench {
    pub fake: FakeRuntime,
    pub events: EventRecorder,
    pub hooks: Rc<HookRunner<FakeRuntime>>,
    sandbox: SandboxId,
    names: Cell<u32>,
}

impl Bench {
    pub(in crate::pod) async fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_secs(1_000_000));
        let fake = FakeRuntime::new(clock.clone(), 1);
        fake.add_image("busybox");
        let options = OpenOptions { mode: Mode::Inline, ..OpenOptions::default() };
        let store = StoreHandle::open_in_memory(options).unwrap();
        let events = EventRecorder::new("n1".into(), clock, store, vec![]);
        let sandbox = fake.run_sandbox(&sandbox_config()).await.unwrap();
        let hooks = Rc::new(HookRunner::new(Rc::new(fake.clone()), events.clone()));
        Self { fake, events, hooks, sandbox, names: Cell::new(0) }
    }

    /// Starts another container, which does this.
    pub(in crate::pod) async fn start(&self, program: Program) -> HookSite {
        self.names.set(self.names.get() + 1);
        let name = format!("c{}", self.names.get());
        self.fake.script(&name, program);
        let mut labels = sandbox_config().labels;
        labels.insert(labels::CONTAINER_NAME.into(), name.clone());
        let config = ContainerConfig {
            name: name.clone(),
            image: "busybox".into(),
            user_specified_image: "busybox".into(),
            labels,
            ..ContainerConfig::default()
        };
        let id = self.fake.create_container(&self.sandbox, &config, &sandbox_config()).await.unwrap();
        self.fake.start_container(&id).await.unwrap();
        HookSite { pod: pod(), name: name.as_str().into(), id, pod_ip: Some("127.0.0.1".into()) }
    }

    /// Sets the result of a command in a container.
    pub(in crate::pod) fn script_command(
        &self,
        site: &HookSite,
        command: &str,
        takes: Duration,
        exit_code: i32,
    ) {
        let output = ExecOutput { exit_code, output: b"words".to_vec() };
        let name = site.name.to_string();
        self.fake.change(|world, _| world.set_exec(&name, command, ExecScript { takes, output }));
    }

    /// Reason and message of all events.
    pub(in crate::pod) fn event_messages(&self) -> Vec<(String, String)> {
        self.events.recent().into_iter().map(|event| (event.key.reason, event.key.message)).collect()
    }

    /// Calls of one kind about one container.
    pub(in crate::pod) fn calls(&self, call: &str, id: &ContainerId) -> usize {
        let calls = self.fake.calls();
        calls.iter().filter(|made| made.call == call && made.subject == id.as_str()).count()
    }

    pub(in crate::pod) fn exit_code(&self, id: &ContainerId) -> i32 {
        self.fake.world().containers[id].observed.exit_code
    }
}

fn pod() -> PodRef {
    PodRef { namespace: "shop".into(), name: "web".into(), uid: "u1".into() }
}

fn sandbox_config() -> SandboxConfig {
    let pod = pod();
    let labels = [
        (labels::POD_NAME, pod.name.clone()),
        (labels::POD_NAMESPACE, pod.namespace.clone()),
        (labels::POD_UID, pod.uid.to_string()),
    ];
    let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    SandboxConfig { pod, labels, ..SandboxConfig::default() }
}
