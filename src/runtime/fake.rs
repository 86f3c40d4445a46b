//! A simulated runtime for tests: containers are scripts, time comes from a clock, faults are seeded.
//!
//! It runs nothing. No flag of the program enables it: only tests that construct a [`FakeRuntime`] use it.
//!
//! Owns the asynchronous side: delays, faults, crashes of the agent, the log of calls. The state is in
//! `world`. Must not depend on the agent.
//!
//! Names are reserved, lookups fail and stops take time as with containerd. What an agent must never do
//! panics (two live instances of one container, a start in a sandbox it has stopped, two ready sandboxes of a
//! pod both at work).
//!
//! A handle belongs to one incarnation of the agent. [`FakeRuntime::crash_at`] makes all further calls of an
//! incarnation hang, which is how a dead process appears to the runtime; [`FakeRuntime::reincarnate`] gives a
//! new agent the same world.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::observed::{ObservedContainer, ObservedSandbox};
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, PodUid, SandboxId, Timestamp};
use crate::platform::clock::Clock;
use crate::runtime::{
    ContainerConfig, DiskPlaces, ErrorKind, ExecOutput, ImageAuth, ImageStatus, LinuxResources, Runtime,
    RuntimeError, RuntimeImage, RuntimeStatus, RuntimeVersion, SandboxConfig,
};

pub mod faults;
mod late;
pub mod program;
#[cfg(test)]
mod tests;
pub mod world;

pub use faults::FakeFaults;
pub use program::{Command, ExecScript, FakeImage, OnStop, Program, RemoteImage, Run};
pub use world::{FakeContainer, FakeSandbox, World};

use faults::Dice;
use late::{Late, UnderWay};
use world::KILLED;

/// Calls remembered; older ones are dropped so that a long simulation stays small.
const CALL_LOG_LIMIT: usize = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    pub at: Timestamp,
    /// Which incarnation of the agent made it, from 0.
    pub incarnation: u32,
    /// CRI's name of the call.
    pub call: &'static str,
    /// Id, image, or `namespace/name` of the pod or container concerned; empty for none.
    pub subject: String,
    /// `None` while it is under way, and forever when the caller died.
    pub outcome: Option<Result<(), ErrorKind>>,
}

/// Where an incarnation of the agent dies, counted in its own calls from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    pub call: u64,
    /// The call still takes effect on the world.
    pub after_effect: bool,
}

/// A handle to the simulated runtime; clones share it.
#[derive(Clone)]
pub struct FakeRuntime {
    shared: Rc<FakeInner>,
    incarnation: Rc<Incarnation>,
}

struct FakeInner {
    clock: Clock,
    world: RefCell<World>,
    faults: RefCell<FakeFaults>,
    dice: RefCell<Dice>,
    hints: Cell<bool>,
    changed: Notify,
    log: RefCell<CallLog>,
    incarnations: Cell<u32>,
    late: Late,
}

#[derive(Default)]
struct CallLog {
    records: VecDeque<CallRecord>,
    dropped: usize,
}

struct Incarnation {
    number: u32,
    calls: Cell<u64>,
    crash: Cell<Option<CrashPoint>>,
    dead: Cell<bool>,
    died: Notify,
    seen: Cell<u64>,
}

impl FakeRuntime {
    /// An empty node. `seed` decides the faults.
    #[must_use]
    pub fn new(clock: Clock, seed: u64) -> Self {
        let shared = FakeInner {
            clock,
            world: RefCell::default(),
            faults: RefCell::default(),
            dice: RefCell::new(Dice::new(seed)),
            hints: Cell::new(true),
            changed: Notify::new(),
            log: RefCell::default(),
            incarnations: Cell::new(1),
            late: Late::default(),
        };
        Self { shared: Rc::new(shared), incarnation: Rc::new(Incarnation::new(0)) }
    }

    /// The same world for the next incarnation of the agent; calls of the old one never return from now on.
    #[must_use]
    pub fn reincarnate(&self) -> Self {
        self.incarnation.die();
        let number = self.shared.incarnations.replace(self.shared.incarnations.get() + 1);
        Self { shared: Rc::clone(&self.shared), incarnation: Rc::new(Incarnation::new(number)) }
    }

    /// This incarnation dies at its n-th call.
    pub fn crash_at(&self, point: CrashPoint) {
        self.incarnation.crash.set(Some(point));
    }

    /// Ends this incarnation now.
    pub fn die(&self) {
        self.incarnation.die();
    }

    /// Whether its calls get no more answers.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.incarnation.dead.get()
    }

    /// Waits for this incarnation to die.
    pub async fn crashed(&self) {
        let died = self.incarnation.died.notified();
        if !self.incarnation.dead.get() {
            died.await;
        }
    }

    #[must_use]
    pub fn call_count(&self) -> u64 {
        self.incarnation.calls.get()
    }

    pub fn faults(&self) -> RefMut<'_, FakeFaults> {
        // Waiters for hints check the switches again: the socket may be back.
        self.shared.world.borrow_mut().touch();
        self.shared.changed.notify_waiters();
        self.shared.faults.borrow_mut()
    }

    /// Whether `next_change` works; else it is unimplemented.
    pub fn set_hints(&self, on: bool) {
        self.shared.hints.set(on);
        self.shared.changed.notify_waiters();
    }

    /// Whether a call whose caller is gone still takes effect when its time comes, as in real runtimes.
    pub fn set_late_effects(&self, on: bool) {
        self.shared.late.on.set(on);
    }

    /// The node loses power and restarts: calls under way are lost, records stay, nothing runs.
    pub fn reboot(&self) {
        self.shared.late.clear();
        self.change(World::reboot);
    }

    /// Calls so far, oldest first.
    #[must_use]
    pub fn calls(&self) -> Vec<CallRecord> {
        self.shared.log.borrow().records.iter().cloned().collect()
    }

    pub fn clear_calls(&self) {
        let mut log = self.shared.log.borrow_mut();
        log.dropped += log.records.len();
        log.records.clear();
    }

    #[must_use]
    pub fn world(&self) -> Ref<'_, World> {
        self.shared.settle();
        self.shared.world.borrow()
    }

    /// Changes the world behind the agent's back; hints follow.
    pub fn change<T>(&self, change: impl FnOnce(&mut World, Timestamp) -> T) -> T {
        let now = self.shared.settle();
        let answer = change(&mut self.shared.world.borrow_mut(), now);
        self.shared.changed.notify_waiters();
        answer
    }

    pub fn add_image(&self, reference: &str) {
        self.change(|world, _| world.images.insert(reference.to_owned(), FakeImage::named(reference)));
    }

    /// Puts an image into the registry, open to all.
    pub fn add_remote_image(&self, reference: &str, pull_time: Duration) {
        let remote = RemoteImage { image: FakeImage::named(reference), pull_time, auth: None };
        self.change(|world, _| world.registry.insert(reference.to_owned(), remote));
    }

    /// Sets what containers of this name, or of this image, do.
    pub fn script(&self, name_or_image: &str, program: Program) {
        self.change(|world, _| world.set_programs(name_or_image, vec![program]));
    }

    /// One call: it arrives, its faults are drawn, it takes effect, it is answered.
    async fn call<T>(
        &self,
        call: &'static str,
        subject: impl Into<String>,
        effect: impl FnOnce(&mut World, Timestamp) -> Result<T, RuntimeError> + 'static,
    ) -> Result<T, RuntimeError> {
        let arrival = self.arrive(call, subject.into()).await;
        let fate = self.shared.faults.borrow().fate(call, &mut self.shared.dice.borrow_mut());
        let due = self.shared.clock.now().saturating_add(fate.delay_before);
        let late = fate.error_before.is_none().then_some(&self.shared.late);
        let under_way = UnderWay::new(effect, due, late);
        self.delay(fate.delay_before).await;
        let effect = under_way.go_through();
        let mut answer = match fate.error_before {
            Some(error) => Err(error),
            None => self.change(effect),
        };
        if arrival.dies_after {
            self.incarnation.die();
        }
        self.delay(fate.delay_after).await;
        if let Some(error) = fate.error_after {
            answer = Err(error);
        }
        self.shared
            .log
            .borrow_mut()
            .finish(arrival.index, answer.as_ref().map(|_| ()).map_err(|error| error.kind));
        answer
    }

    async fn arrive(&self, call: &'static str, subject: String) -> Arrival {
        self.alive().await;
        let number = self.incarnation.calls.get() + 1;
        self.incarnation.calls.set(number);
        let crash = self.incarnation.crash.get().filter(|crash| crash.call == number);
        let now = self.shared.clock.now();
        let incarnation = self.incarnation.number;
        let record = CallRecord { at: now, incarnation, call, subject, outcome: None };
        let index = self.shared.log.borrow_mut().begin(record);
        if crash.is_some_and(|crash| !crash.after_effect) {
            self.incarnation.die();
            self.alive().await;
        }
        Arrival { index, dies_after: crash.is_some() }
    }

    /// Waits in simulated time; a caller that died meanwhile gets no answer.
    async fn delay(&self, delay: Duration) {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.alive().await;
    }

    /// Returns at once, or never if the caller is dead.
    async fn alive(&self) {
        if self.incarnation.dead.get() {
            pending::<()>().await;
        }
    }
}

struct Arrival {
    index: usize,
    dies_after: bool,
}

impl Incarnation {
    fn new(number: u32) -> Self {
        Self {
            number,
            calls: Cell::new(0),
            crash: Cell::new(None),
            dead: Cell::new(false),
            died: Notify::new(),
            seen: Cell::new(0),
        }
    }

    fn die(&self) {
        self.dead.set(true);
        self.died.notify_waiters();
    }
}

impl FakeInner {
    /// Brings the world up to now.
    fn settle(&self) -> Timestamp {
        let now = self.clock.now();
        self.late.settle(&mut self.world.borrow_mut(), now);
        self.world.borrow_mut().settle(now);
        now
    }
}

impl CallLog {
    fn begin(&mut self, record: CallRecord) -> usize {
        if self.records.len() == CALL_LOG_LIMIT {
            self.records.pop_front();
            self.dropped += 1;
        }
        self.records.push_back(record);
        self.dropped + self.records.len() - 1
    }

    fn finish(&mut self, index: usize, outcome: Result<(), ErrorKind>) {
        let record = index.checked_sub(self.dropped).and_then(|index| self.records.get_mut(index));
        if let Some(record) = record {
            record.outcome = Some(outcome);
        }
    }
}

impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        self.call("Version", "", |_, _| {
            let [name, version, api_version] = ["fake", "1.0.0", "v1"].map(str::to_owned);
            Ok(RuntimeVersion { name, version, api_version })
        })
        .await
    }

    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        self.call("Status", "", |world, _| Ok(world.status.clone())).await
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError> {
        self.call("RuntimeConfig", "", |world, _| Ok(world.cgroup_driver)).await
    }

    async fn list_sandboxes(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedSandbox>, RuntimeError> {
        let subject = pod.map_or("", PodUid::as_str);
        let pod = pod.cloned();
        self.call("ListPodSandbox", subject, move |world, _| Ok(world.list_sandboxes(pod.as_ref()))).await
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError> {
        let wanted = id.clone();
        self.call("PodSandboxStatus", id.as_str(), move |world, _| world.sandbox_status(&wanted)).await
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, RuntimeError> {
        let subject = format!("{}/{}", config.pod.namespace, config.pod.name);
        let config = config.clone();
        self.call("RunPodSandbox", subject, move |world, now| world.run_sandbox(&config, now)).await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let wanted = id.clone();
        let effect = move |world: &mut World, now| {
            world.stop_sandbox(&wanted, now);
            Ok(())
        };
        self.call("StopPodSandbox", id.as_str(), effect).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let wanted = id.clone();
        let effect = move |world: &mut World, now| {
            world.remove_sandbox(&wanted, now);
            Ok(())
        };
        self.call("RemovePodSandbox", id.as_str(), effect).await
    }

    async fn list_containers(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedContainer>, RuntimeError> {
        let subject = pod.map_or("", PodUid::as_str);
        let pod = pod.cloned();
        self.call("ListContainers", subject, move |world, _| Ok(world.list_containers(pod.as_ref()))).await
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError> {
        let wanted = id.clone();
        self.call("ContainerStatus", id.as_str(), move |world, _| world.container_status(&wanted)).await
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let subject = format!("{}/{}/{}", sandbox_config.pod.namespace, sandbox_config.pod.name, config.name);
        let (sandbox, config) = (sandbox.clone(), config.clone());
        let effect = move |world: &mut World, now| world.create_container(&sandbox, &config, now);
        self.call("CreateContainer", subject, effect).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let wanted = id.clone();
        self.call("StartContainer", id.as_str(), move |world, now| world.start_container(&wanted, now)).await
    }

    /// Returns when the container has ended, as in real runtimes.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let wanted = id.clone();
        let effect = move |world: &mut World, now| {
            world.begin_stop(&wanted, grace, now);
            Ok(())
        };
        self.call("StopContainer", id.as_str(), effect).await?;
        loop {
            self.alive().await;
            let now = self.shared.settle();
            let Some(until) = self.shared.world.borrow().stopping_until(id) else { break };
            tokio::time::sleep(until.saturating_since(now)).await;
        }
        self.shared.changed.notify_waiters();
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let wanted = id.clone();
        let effect = move |world: &mut World, now| {
            world.remove_container(&wanted, now);
            Ok(())
        };
        self.call("RemoveContainer", id.as_str(), effect).await
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.call("ReopenContainerLog", id.as_str(), |_: &mut World, _| Ok(())).await
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let (wanted, resources) = (id.clone(), resources.clone());
        let effect = move |world: &mut World, _| world.update_resources(&wanted, &resources);
        self.call("UpdateContainerResources", id.as_str(), effect).await
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, RuntimeError> {
        let (wanted, command) = (id.clone(), command.to_vec());
        let effect = move |world: &mut World, now| world.exec(&wanted, &command, timeout, now);
        let begun = self.call("ExecSync", id.as_str(), effect).await?;
        let until = self.shared.clock.now().saturating_add(begun.takes);
        loop {
            self.alive().await;
            let mut wake = std::pin::pin!(self.shared.changed.notified());
            wake.as_mut().enable();
            let now = self.shared.settle();
            let (running, end) = {
                let world = self.shared.world.borrow();
                (world.is_running(id), world.stopping_until(id))
            };
            if !running {
                // The command ends with its container.
                return Ok(ExecOutput { exit_code: KILLED, output: Vec::new() });
            }
            if now >= until {
                return begun.outcome;
            }
            let wait = end.unwrap_or(until).min(until).saturating_since(now);
            // Dropping either is safe: the loop checks everything again.
            let _ = tokio::time::timeout(wait, wake).await;
        }
    }

    async fn image_status(&self, image: &str) -> Result<Option<ImageStatus>, RuntimeError> {
        let wanted = image.to_owned();
        self.call("ImageStatus", image, move |world, _| Ok(world.image_status(&wanted))).await
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&ImageAuth>,
        _sandbox: &SandboxConfig,
    ) -> Result<String, RuntimeError> {
        let (wanted, auth) = (image.to_owned(), auth.cloned());
        let resolve = move |world: &mut World, _| world.resolve_remote(&wanted, auth.as_ref());
        let remote = self.call("PullImage", image, resolve).await?;
        self.delay(remote.pull_time).await;
        let id = remote.image.id.clone();
        self.change(|world, _| world.images.insert(image.to_owned(), remote.image));
        Ok(id)
    }

    async fn list_images(&self) -> Result<Vec<RuntimeImage>, RuntimeError> {
        self.call("ListImages", "", |world, _| Ok(world.list_images())).await
    }

    async fn remove_image(&self, id: &str) -> Result<Option<u64>, RuntimeError> {
        let wanted = id.to_owned();
        self.call("RemoveImage", id, move |world, _| Ok(world.remove_image(&wanted))).await
    }

    async fn disk_places(&self) -> Result<DiskPlaces, RuntimeError> {
        self.call("ImageFsInfo", "", |_, _| Ok(DiskPlaces::default())).await
    }

    async fn next_change(&self) -> Result<(), RuntimeError> {
        loop {
            self.alive().await;
            let mut wake = std::pin::pin!(self.shared.changed.notified());
            wake.as_mut().enable();
            if !self.shared.hints.get() {
                let message = "unknown method GetContainerEvents";
                return Err(RuntimeError::new("GetContainerEvents", ErrorKind::Unimplemented, message));
            }
            let now = self.shared.settle();
            let (changes, due) = {
                let world = self.shared.world.borrow();
                (world.changes(), world.next_due().into_iter().chain(self.shared.late.next_due()).min())
            };
            if !self.shared.faults.borrow().unavailable && self.incarnation.seen.replace(changes) != changes {
                return Ok(());
            }
            let wait = due.map_or(Duration::MAX, |due| due.saturating_since(now));
            // Dropping either is safe: the loop checks everything again.
            let _ = tokio::time::timeout(wait, wake).await;
        }
    }
}
