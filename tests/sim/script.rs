//! Random scripts: users who change their minds, agents that die, runtimes that fail.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use edge_agent::model::observed::ContainerStateKind;
use edge_agent::model::source::SourceAnswer;
use edge_agent::model::types::{PodSource, Timestamp};
use edge_agent::runtime::fake::{CallRecord, CrashPoint, FakeFaults};
use edge_agent::store::WriteMoment;

use super::dice::Dice;
use super::node::Node;
use super::pods::{Act, CONFIG, Manifest, config_map, script_images};
use super::watcher::Watcher;

/// Things that happen in one script.
const STEPS: u64 = 22;
/// The watcher looks this often.
const TICK: Duration = Duration::from_secs(1);
/// And this often while nothing is done to the node.
const CALM_TICK: Duration = Duration::from_secs(4);
/// Wanted at the same time, at most.
const MOST_PODS: usize = 6;
/// CRI calls that may hang.
const CALLS: [&str; 14] = [
    "Version",
    "ListPodSandbox",
    "PodSandboxStatus",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "ListContainers",
    "ContainerStatus",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ImageStatus",
    "PullImage",
];

/// What has happened so far, for whoever has to understand a failure.
pub type Story = Rc<RefCell<Vec<String>>>;

/// One seed's run.
pub struct Simulation {
    pub node: Node,
    pub watcher: Watcher,
    dice: Dice,
    story: Story,
    /// By source and name.
    manifests: BTreeMap<PodSource, BTreeMap<String, Manifest>>,
    /// Sources that have something to say, and since when they may.
    unsaid: BTreeMap<PodSource, Timestamp>,
    /// Content of the ConfigMap as each source's user has written it; not always said already.
    configs: BTreeMap<PodSource, u64>,
    /// When the dead agent is started again.
    revival: Option<Timestamp>,
    /// When the faults end.
    calm: Option<Timestamp>,
    next_name: u64,
    tells_calls: bool,
    calls_told: usize,
    tick: Duration,
}

impl Simulation {
    /// A node with an agent that has just been started for the first time.
    pub async fn new(seed: u64, story: Story) -> Self {
        let sources = [PodSource::File, PodSource::Http, PodSource::Api];
        let mut node = Node::new(seed, &sources);
        script_images(&node.fake);
        node.fake.set_late_effects(true);
        node.start().await;
        let mut simulation = Self {
            watcher: Watcher::new(Rc::clone(&story)),
            dice: Dice::new(seed),
            story,
            manifests: sources.map(|source| (source, BTreeMap::new())).into(),
            unsaid: BTreeMap::new(),
            configs: BTreeMap::new(),
            revival: None,
            calm: None,
            next_name: 0,
            tells_calls: std::env::var_os("SIM_CALLS").is_some(),
            calls_told: 0,
            tick: TICK,
            node,
        };
        for _ in 0..2 {
            simulation.add_pod();
        }
        simulation
    }

    /// Everything the script has in store.
    pub async fn play(&mut self) {
        for _ in 0..STEPS {
            self.step().await;
            let pause = self.dice.up_to(Duration::from_secs(40));
            self.pass(pause).await;
        }
    }

    /// No more trouble: everybody says what they want and the agent gets time.
    pub async fn calm_down(&mut self, time: Duration) {
        self.tell("calm");
        self.tick = CALM_TICK;
        *self.node.fake.faults() = FakeFaults::default();
        self.node.fake.set_hints(true);
        self.calm = None;
        if self.node.agent.is_none() {
            self.watcher.agent_starts();
            self.node.start().await;
            self.revival = None;
        } else {
            // A death that has not happened by now does not happen.
            self.node.fake.crash_at(CrashPoint { call: 0, after_effect: false });
            self.node.writes.spare();
        }
        let now = self.node.clock.now();
        for source in self.node.sources.clone() {
            self.unsaid.insert(source, now);
        }
        self.pass(time).await;
    }

    /// Pods that never come to rest are taken away.
    pub fn drop_pods(&mut self, restless: impl Fn(&Manifest) -> bool) {
        for pods in self.manifests.values_mut() {
            pods.retain(|_, manifest| !restless(manifest));
        }
        self.unsaid = self.node.sources.iter().map(|source| (*source, self.node.clock.now())).collect();
    }

    /// Calls of the whole run, as far as they are kept.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.node.fake.calls()
    }

    /// Lets time pass, with everything that is due in it.
    pub async fn pass(&mut self, time: Duration) {
        let end = self.node.clock.now().saturating_add(time);
        loop {
            let left = end.saturating_since(self.node.clock.now());
            if left.is_zero() {
                return;
            }
            self.node.wait(left.min(self.tick)).await;
            self.revive_when_due().await;
            self.calm_when_due();
            self.speak_when_due();
            if self.tells_calls {
                self.tell_calls();
            }
            self.watcher.look(&self.node);
        }
    }

    async fn revive_when_due(&mut self) {
        if self.node.agent.is_some() {
            return;
        }
        let now = self.node.clock.now();
        match self.revival {
            None => {
                let pause = self.dice.up_to(Duration::from_secs(20));
                self.tell(&format!("the agent is dead for {pause:?}"));
                self.revival = Some(now.saturating_add(pause));
            }
            Some(at) if at <= now => {
                self.tell("the agent starts");
                self.revival = None;
                self.watcher.agent_starts();
                self.node.start().await;
                for source in self.node.sources.clone() {
                    if self.dice.one_in(4) {
                        self.node.say(source, SourceAnswer::Unknown);
                    }
                    let pause = self.dice.up_to(Duration::from_secs(30));
                    self.unsaid.insert(source, now.saturating_add(pause));
                }
            }
            Some(_) => {}
        }
    }

    fn calm_when_due(&mut self) {
        if self.calm.is_some_and(|at| at <= self.node.clock.now()) {
            self.tell("faults end");
            self.calm = None;
            *self.node.fake.faults() = FakeFaults::default();
        }
    }

    fn speak_when_due(&mut self) {
        let now = self.node.clock.now();
        let due: Vec<PodSource> =
            self.unsaid.iter().filter(|(_, at)| **at <= now).map(|(source, _)| *source).collect();
        for source in due {
            let pods: Vec<_> =
                self.manifests[&source].values().map(|manifest| manifest.parse(source)).collect();
            let wanted = pods
                .iter()
                .zip(self.manifests[&source].values())
                .map(|(pod, manifest)| (pod.pod.metadata.uid.clone(), manifest.clone()))
                .collect();
            let config =
                self.configs.get(&source).map(|value| config_map(CONFIG, &value.to_string(), source));
            let before = self.node.defined.insert(source, config.into_iter().collect());
            if self.node.say(source, SourceAnswer::Pods(pods)) {
                self.tell(&format!("{source} has spoken"));
                self.unsaid.remove(&source);
                self.watcher.sent(source, wanted);
            } else {
                self.node.defined.insert(source, before.unwrap_or_default());
            }
        }
    }

    async fn step(&mut self) {
        match self.dice.below(30) {
            0..=3 => self.add_pod(),
            4..=5 => self.remove_pod(),
            6..=8 => self.change_pod(),
            9 => self.silence(),
            10..=12 => {
                self.tell("crash");
                self.node.crash();
            }
            13..=17 => self.plan_crash(),
            18 => {
                self.tell("stop");
                self.node.stop().await;
            }
            19 => self.reboot(),
            20 => self.fault(FakeFaults { unavailable: true, ..FakeFaults::default() }),
            21 => self.kill_container(),
            22 => self.kill_sandbox(),
            23 => self.error_rates(),
            24 => self.hang(),
            25..=28 => self.change_config(),
            _ => {
                let on = self.dice.one_in(2);
                self.tell(&format!("hints: {on}"));
                self.node.fake.set_hints(on);
            }
        }
    }

    fn tell(&self, what: &str) {
        self.story.borrow_mut().push(format!("{} {what}", self.node.clock.now()));
    }

    /// With `SIM_CALLS` set, calls are part of the story.
    fn tell_calls(&mut self) {
        let calls = self.node.fake.calls();
        for call in calls.iter().skip(self.calls_told) {
            let (at, outcome) = (call.at.to_rfc3339_nano(), &call.outcome);
            self.story.borrow_mut().push(format!("{at}     {} {} {outcome:?}", call.call, call.subject));
        }
        self.calls_told = calls.len();
    }

    fn source(&mut self) -> PodSource {
        *self.dice.pick(&self.node.sources)
    }

    fn speaks_soon(&mut self, source: PodSource) {
        let pause = self.dice.up_to(Duration::from_secs(10));
        self.unsaid.insert(source, self.node.clock.now().saturating_add(pause));
    }

    fn add_pod(&mut self) {
        if self.manifests.values().map(BTreeMap::len).sum::<usize>() >= MOST_PODS {
            return;
        }
        let source = self.source();
        let manifest = self.random_manifest(source);
        self.tell(&format!("add {manifest:?}"));
        self.manifests.entry(source).or_default().insert(manifest.name.clone(), manifest);
        self.speaks_soon(source);
    }

    fn random_manifest(&mut self, source: PodSource) -> Manifest {
        let policy = *self.dice.pick(&["Always", "Always", "OnFailure", "Never"]);
        let name = format!("{source}-{}", self.next_name);
        self.next_name += 1;
        let mut manifest = Manifest::new(&name, policy, *self.dice.pick(&Act::ALL));
        manifest.grace = *self.dice.pick(&[1, 5, 30]);
        let parting = r#"{"preStop": {"exec": {"command": ["part"]}}}"#;
        manifest.lifecycle = *self.dice.pick(&["", "", parting, r#"{"preStop": {"sleep": {"seconds": 1}}}"#]);
        for _ in 0..self.dice.below(3) {
            manifest.containers.push(*self.dice.pick(&Act::ALL));
        }
        if self.dice.one_in(2) {
            for _ in 0..=self.dice.below(2) {
                let is_sidecar = self.dice.one_in(3);
                let acts: &[Act] = if is_sidecar {
                    &[Act::Forever, Act::Stubborn, Act::Slow]
                } else {
                    &[Act::Done, Act::Done, Act::FailsOnce, Act::Crashes, Act::NoImage]
                };
                manifest.init.push((*self.dice.pick(acts), is_sidecar));
            }
        }
        manifest
    }

    fn any_pod(&mut self) -> Option<(PodSource, String)> {
        let all: Vec<(PodSource, String)> = self
            .manifests
            .iter()
            .flat_map(|(source, pods)| pods.keys().map(|name| (*source, name.clone())))
            .collect();
        if all.is_empty() { None } else { Some(self.dice.pick(&all).clone()) }
    }

    fn remove_pod(&mut self) {
        let Some((source, name)) = self.any_pod() else { return };
        self.tell(&format!("remove {name}"));
        self.manifests.entry(source).or_default().remove(&name);
        self.speaks_soon(source);
    }

    /// To another version and perhaps back again: an old uid may return while its pod is still going.
    fn change_pod(&mut self) {
        let Some((source, name)) = self.any_pod() else { return };
        let manifest =
            self.manifests.get_mut(&source).and_then(|pods| pods.get_mut(&name)).expect("picked from there");
        manifest.version = 1 - manifest.version;
        let version = manifest.version;
        self.tell(&format!("change {name} to version {version}"));
        self.speaks_soon(source);
    }

    /// The ConfigMap comes, changes or goes.
    fn change_config(&mut self) {
        let source = self.source();
        if self.dice.one_in(4) {
            self.configs.remove(&source);
        } else {
            let value = self.dice.below(1000);
            self.configs.insert(source, value);
        }
        self.tell(&format!("{source} is to define {CONFIG} as {:?}", self.configs.get(&source)));
        self.speaks_soon(source);
    }

    fn silence(&mut self) {
        let source = self.source();
        self.tell(&format!("{source} gives no answer"));
        self.node.say(source, SourceAnswer::Unknown);
    }

    fn plan_crash(&mut self) {
        if self.dice.one_in(2) {
            let number = 1 + self.dice.below(10);
            let moment = if self.dice.one_in(2) { WriteMoment::Before } else { WriteMoment::After };
            self.tell(&format!("will crash at write {number} of the store from now on: {moment:?}"));
            self.node.writes.crash_at(number, moment);
            return;
        }
        let call = self.node.fake.call_count() + 1 + self.dice.below(40);
        let after_effect = self.dice.one_in(2);
        self.tell(&format!("will crash at call {call}, after its effect: {after_effect}"));
        self.node.fake.crash_at(CrashPoint { call, after_effect });
    }

    fn reboot(&mut self) {
        self.tell("reboot");
        self.node.crash();
        self.watcher.harms_everything(&self.node.fake.world());
        self.node.fake.reboot();
    }

    fn kill_container(&mut self) {
        let running: Vec<_> = self
            .node
            .fake
            .world()
            .containers
            .values()
            .filter(|container| container.observed.state == ContainerStateKind::Running)
            .map(|container| container.observed.id.clone())
            .collect();
        if running.is_empty() {
            return;
        }
        let id = self.dice.pick(&running).clone();
        self.tell(&format!("kill container {id}"));
        self.watcher.harms_container(&self.node.fake.world(), &id);
        self.node.fake.change(|world, now| world.kill_container(&id, 137, now));
    }

    fn kill_sandbox(&mut self) {
        let ready: Vec<_> = self
            .node
            .fake
            .world()
            .sandboxes
            .values()
            .filter(|sandbox| sandbox.observed.ready)
            .map(|sandbox| sandbox.observed.id.clone())
            .collect();
        if ready.is_empty() {
            return;
        }
        let id = self.dice.pick(&ready).clone();
        self.tell(&format!("fell sandbox {id}"));
        self.watcher.harms_sandbox(&self.node.fake.world(), &id);
        self.node.fake.change(|world, now| world.kill_sandbox(&id, now));
    }

    fn error_rates(&mut self) {
        let error_rate = *self.dice.pick(&[0.05, 0.2, 0.5]);
        let slow_rate = *self.dice.pick(&[0.0, 0.3, 0.9]);
        let slow_max = *self.dice.pick(&[1, 5, 30]);
        self.fault(FakeFaults {
            error_rate,
            slow_rate,
            slow_max: Duration::from_secs(slow_max),
            ..FakeFaults::default()
        });
    }

    fn hang(&mut self) {
        let hang = (0..=self.dice.below(3)).map(|_| *self.dice.pick(&CALLS)).collect();
        let hang_timeout = Duration::from_secs(*self.dice.pick(&[10, 120]));
        self.fault(FakeFaults { hang, hang_timeout, ..FakeFaults::default() });
    }

    fn fault(&mut self, faults: FakeFaults) {
        let time = self.dice.up_to(Duration::from_secs(120));
        self.tell(&format!("for {time:?}: {faults:?}"));
        *self.node.fake.faults() = faults;
        self.calm = Some(self.node.clock.now().saturating_add(time));
    }
}
