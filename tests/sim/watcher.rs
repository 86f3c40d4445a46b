//! What must hold at every moment, whatever happens to the agent: watched from outside, on the simulated runtime and on the
//! statuses that the agent shows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use edge_agent::model::observed::{ContainerStateKind, ObservedContainer};
use edge_agent::model::types::{ContainerId, PodSource, PodUid, SandboxId, Timestamp};
use edge_agent::runtime::fake::World;

use super::node::Node;
use super::pods::{Act, Manifest};
use super::script::Story;

/// A container of a pod.
type Key = (PodUid, String);

/// What one source was last heard to want.
pub type Wanted = BTreeMap<PodUid, Manifest>;

/// The newest instance of a container.
#[derive(Clone, Debug)]
struct Instance {
    id: ContainerId,
    attempt: u32,
    was_started: bool,
    finished_at: Timestamp,
}

/// Remembers what it saw, to compare with what it sees.
#[derive(Default)]
pub struct Watcher {
    /// Told of every new instance.
    story: Story,
    sources: BTreeMap<PodSource, Wanted>,
    /// Left the desired set at some time and have not been seen gone since: anything may happen to them.
    doubtful: BTreeSet<PodUid>,
    /// The world did something to them.
    pub harmed: BTreeSet<PodUid>,
    /// Run, should run, and nobody but the agent could end them.
    lasting: BTreeMap<ContainerId, Key>,
    /// Ended, and their policy says that this is for good.
    over: BTreeMap<Key, ContainerId>,
    newest: BTreeMap<Key, Instance>,
    restarts_shown: BTreeMap<Key, i32>,
}

impl Watcher {
    /// Nothing seen yet.
    pub fn new(story: Story) -> Self {
        Self { story, ..Self::default() }
    }

    /// A source's set has been handed to the agent.
    pub fn sent(&mut self, source: PodSource, wanted: Wanted) {
        let before = self.sources.insert(source, wanted).unwrap_or_default();
        let after = &self.sources[&source];
        let gone: Vec<PodUid> = before.into_keys().filter(|uid| !after.contains_key(uid)).collect();
        for uid in gone {
            self.forget(&uid);
            self.doubtful.insert(uid);
        }
    }

    /// Every pod that is wanted, as far as the agent was told.
    pub fn wanted(&self) -> Wanted {
        self.sources.values().flatten().map(|(uid, manifest)| (uid.clone(), manifest.clone())).collect()
    }

    /// A new agent may not know what the old one said in its last second; what has run is known for certain.
    pub fn agent_starts(&mut self) {
        for (key, shown) in &mut self.restarts_shown {
            let started = self
                .newest
                .get(key)
                .map_or(0, |newest| newest.attempt.saturating_sub(u32::from(!newest.was_started)));
            *shown = (*shown).min(i32::try_from(started).expect("small"));
        }
    }

    /// The world is about to end this container.
    pub fn harms_container(&mut self, world: &World, id: &ContainerId) {
        self.lasting.remove(id);
        self.harmed.insert(world.containers[id].observed.pod.uid.clone());
    }

    /// The world is about to end this sandbox.
    pub fn harms_sandbox(&mut self, world: &World, id: &SandboxId) {
        let uid = &world.sandboxes[id].observed.pod.uid;
        self.lasting.retain(|_, (pod, _)| pod != uid);
        self.harmed.insert(uid.clone());
    }

    /// The world is about to end everything.
    pub fn harms_everything(&mut self, world: &World) {
        self.lasting.clear();
        self.harmed.extend(world.sandboxes.values().map(|sandbox| sandbox.observed.pod.uid.clone()));
    }

    fn forget(&mut self, uid: &PodUid) {
        self.lasting.retain(|_, (pod, _)| pod != uid);
        self.over.retain(|(pod, _), _| pod != uid);
        self.newest.retain(|(pod, _), _| pod != uid);
        self.restarts_shown.retain(|(pod, _), _| pod != uid);
    }

    /// Compares the world with what was seen before.
    pub fn look(&mut self, node: &Node) {
        let world = node.fake.world();
        self.clear_doubts(node, &world);
        for (id, (uid, name)) in &self.lasting {
            let runs = world
                .containers
                .get(id)
                .is_some_and(|container| container.observed.state == ContainerStateKind::Running);
            assert!(
                runs,
                "container {name} of {uid} ({id}) was alive and unchanged, and has been stopped\n{}",
                world.describe()
            );
        }
        let sources = std::mem::take(&mut self.sources);
        // Ids count up, so this is the order of creation.
        for container in world.containers.values() {
            let record = &container.observed;
            let Some(manifest) = sources.values().find_map(|wanted| wanted.get(&record.pod.uid)) else {
                continue;
            };
            if !self.doubtful.contains(&record.pod.uid) {
                self.look_at(manifest, record, &world);
            }
        }
        self.sources = sources;
        drop(world);
        self.look_at_statuses(node);
    }

    /// A pod of which nothing is left has been taken down, and what comes now is a new life.
    fn clear_doubts(&mut self, node: &Node, world: &World) {
        let all_heard =
            node.agent.as_ref().is_some_and(|agent| agent.updates.capacity() == agent.updates.max_capacity());
        if all_heard {
            let has_trace = |uid: &PodUid| {
                world.sandboxes.values().any(|sandbox| sandbox.observed.pod.uid == *uid)
                    || world.containers.values().any(|container| container.observed.pod.uid == *uid)
            };
            let gone: Vec<PodUid> = self.doubtful.iter().filter(|uid| !has_trace(uid)).cloned().collect();
            for uid in gone {
                self.doubtful.remove(&uid);
                self.harmed.remove(&uid);
            }
        }
    }

    fn look_at(&mut self, manifest: &Manifest, record: &ObservedContainer, world: &World) {
        let key: Key = (record.pod.uid.clone(), record.name.to_string());
        let act = manifest.act(record.name.as_str());
        let is_regular = record.name.as_str().starts_with('c');
        self.compare_with_newest(manifest, act, record, &key, world);
        if let Some(over) = self.over.get(&key) {
            assert!(
                *over >= record.id,
                "container {} of {} had ended for good and is run again\n{}",
                record.name,
                record.pod,
                world.describe()
            );
        }
        match record.state {
            ContainerStateKind::Running if is_regular && act.is_lasting() => {
                self.lasting.insert(record.id.clone(), key);
            }
            ContainerStateKind::Exited if is_regular => {
                let runs_again = match manifest.policy {
                    "Never" => false,
                    "OnFailure" => record.exit_code != 0,
                    _ => true,
                };
                if !runs_again {
                    self.over.insert(key, record.id.clone());
                }
            }
            _ => {}
        }
    }

    /// Restart counts grow with every run, and crash loops are slowed down, whoever was there to count.
    fn compare_with_newest(
        &mut self,
        manifest: &Manifest,
        act: Act,
        record: &ObservedContainer,
        key: &Key,
        world: &World,
    ) {
        let before = self.newest.get(key);
        if before.is_none_or(|before| before.id < record.id) {
            self.story.borrow_mut().push(format!(
                "{}   {} of {} in {}: attempt {}",
                record.created_at.to_rfc3339_nano(),
                record.name,
                record.pod.name,
                short(record.sandbox.as_str()),
                record.attempt
            ));
        }
        if let Some(before) = before {
            // Made late, for an agent that has died: nobody starts it.
            let is_stray = record.state == ContainerStateKind::Created && record.attempt < before.attempt;
            if record.id < before.id || is_stray {
                return;
            }
            if record.id > before.id {
                let least = before.attempt + u32::from(before.was_started);
                assert!(
                    record.attempt >= least,
                    "restart count of {} of {} fell from {} to {}\n{}",
                    record.name,
                    record.pod,
                    before.attempt,
                    record.attempt,
                    world.describe()
                );
                let ends_soon = matches!(act, Act::Crashes | Act::Done | Act::NoStart);
                let pause = record.created_at.saturating_since(before.finished_at);
                assert!(
                    !(ends_soon && key.1.starts_with('c') && before.was_started)
                        || pause >= least_pause(record.attempt),
                    "container {} of {} ({manifest:?}) was started for the time {} only {pause:?} after its end",
                    record.name,
                    record.pod,
                    record.attempt,
                );
            }
        }
        let was_started = matches!(record.state, ContainerStateKind::Running | ContainerStateKind::Exited);
        let (id, attempt, finished_at) = (record.id.clone(), record.attempt, record.finished_at);
        self.newest.insert(key.clone(), Instance { id, attempt, was_started, finished_at });
    }

    fn look_at_statuses(&mut self, node: &Node) {
        let Some(agent) = &node.agent else { return };
        if !agent.view.runtime_is_up() {
            return;
        }
        for pod in agent.statuses.snapshot() {
            let uid = &pod.metadata.uid;
            // Without an answer of the runtime, what the store remembers is shown, and that may be a second old.
            let is_guess = pod.status.reason == "ContainerRuntimeDown";
            if is_guess
                || self.doubtful.contains(uid)
                || !self.sources.values().any(|wanted| wanted.contains_key(uid))
            {
                continue;
            }
            for status in pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses) {
                let shown = self.restarts_shown.entry((uid.clone(), status.name.clone())).or_default();
                assert!(
                    status.restart_count >= *shown,
                    "the restart count shown of {} of {} fell from {shown} to {}",
                    status.name,
                    pod.pod_ref(),
                    status.restart_count
                );
                *shown = status.restart_count;
            }
        }
    }
}

/// Between the end of a run and the start of the next: nothing before the first restart, then 10 s, doubling to 5 minutes.
fn least_pause(attempt: u32) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        attempt => Duration::from_secs((10 << (attempt - 2).min(10)).min(300)),
    }
}

/// The telling end of a long id.
fn short(id: &str) -> &str {
    id.get(id.len().saturating_sub(6)..).unwrap_or(id)
}
