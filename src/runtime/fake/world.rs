//! The simulated node: sandboxes, containers and images with the rules that real runtimes enforce, as one
//! synchronous state machine that gets the time as an argument.
//!
//! Owns the state; `container` has the containers' behaviour, `invariants` what must never happen. A violated
//! invariant is a bug in the agent and panics: that is the simulator's only purpose.

use std::collections::{BTreeMap, VecDeque};

use crate::model::observed::ObservedSandbox;
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, PodRef, PodUid, SandboxId, Timestamp};
use crate::runtime::{
    ErrorKind, ImageAuth, ImageStatus, NamespaceMode, RuntimeError, RuntimeImage, RuntimeStatus,
    SandboxConfig, labels,
};

use super::program::{Command, ExecScript, FakeImage, Program, RemoteImage};

mod container;
mod invariants;

pub use container::FakeContainer;

pub(super) use container::KILLED;

/// Commands remembered; older ones are dropped so that a long simulation stays small.
const COMMAND_LOG_LIMIT: usize = 4096;

#[derive(Clone, Debug)]
pub struct FakeSandbox {
    /// What a status call shows.
    pub observed: ObservedSandbox,
    pub config: SandboxConfig,
    /// The agent's `StopPodSandbox` ended it, not an outside event.
    stopped_by_call: bool,
}

/// The state of a simulated node.
#[derive(Debug)]
pub struct World {
    pub sandboxes: BTreeMap<SandboxId, FakeSandbox>,
    pub containers: BTreeMap<ContainerId, FakeContainer>,
    pub images: BTreeMap<String, FakeImage>,
    pub registry: BTreeMap<String, RemoteImage>,
    /// Commands begun in containers, oldest first.
    pub commands: VecDeque<Command>,
    pub status: RuntimeStatus,
    /// Answer of `RuntimeConfig`.
    pub cgroup_driver: Option<CgroupDriver>,
    /// The current change is the late effect of a call by a dead agent, so invariants do not blame the
    /// current one.
    pub(super) is_late: bool,
    programs: BTreeMap<String, Vec<Program>>,
    execs: BTreeMap<(String, String), ExecScript>,
    next_id: u64,
    changes: u64,
}

impl Default for World {
    fn default() -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images: BTreeMap::new(),
            registry: BTreeMap::new(),
            commands: VecDeque::new(),
            status: RuntimeStatus {
                runtime_ready: Ok(()),
                network_ready: Ok(()),
                handlers: Vec::new(),
                supplemental_groups_policy: None,
            },
            cgroup_driver: Some(CgroupDriver::Cgroupfs),
            is_late: false,
            programs: BTreeMap::new(),
            execs: BTreeMap::new(),
            next_id: 1,
            changes: 1,
        }
    }
}

impl World {
    /// Grows with every change worth a hint.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Causes a hint without a change.
    pub fn touch(&mut self) {
        self.changes += 1;
    }

    /// Applies every end that is due.
    pub fn settle(&mut self, now: Timestamp) {
        for container in self.containers.values_mut() {
            if let Some(end) = container.end.filter(|end| end.at <= now) {
                container.finish(end);
                self.changes += 1;
            }
        }
    }

    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.containers.values().filter_map(|container| container.end).map(|end| end.at).min()
    }

    /// Sandboxes of a pod, or all, as a list call shows them.
    #[must_use]
    pub(crate) fn list_sandboxes(&self, pod: Option<&PodUid>) -> Vec<ObservedSandbox> {
        let ours = |sandbox: &&FakeSandbox| matches_pod(&sandbox.observed.pod, pod);
        self.sandboxes
            .values()
            .filter(ours)
            .map(|sandbox| ObservedSandbox {
                ips: Vec::new(),
                host_network: false,
                ..sandbox.observed.clone()
            })
            .collect()
    }

    pub fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError> {
        self.sandboxes.get(id).map(|sandbox| sandbox.observed.clone()).ok_or_else(|| {
            let message = format!("an error occurred when try to find sandbox \"{id}\": not found");
            RuntimeError::new("PodSandboxStatus", ErrorKind::NotFound, message)
        })
    }

    /// Makes a ready sandbox; its name is reserved until its removal.
    pub fn run_sandbox(&mut self, config: &SandboxConfig, now: Timestamp) -> Result<SandboxId, RuntimeError> {
        let call = "RunPodSandbox";
        let reserved = |sandbox: &&FakeSandbox| {
            sandbox.config.pod == config.pod && sandbox.config.attempt == config.attempt
        };
        if let Some(holder) = self.sandboxes.values().find(reserved) {
            let PodRef { name, namespace, uid } = &config.pod;
            let name = format!("{name}_{namespace}_{uid}_{}", config.attempt);
            let id = &holder.observed.id;
            let message =
                format!("failed to reserve sandbox name {name:?}: name {name:?} is reserved for {id:?}");
            return Err(RuntimeError::new(call, ErrorKind::AlreadyExists, message));
        }
        self.check_handler(config)?;
        let host_network = config.namespaces.network == NamespaceMode::Node;
        if let (false, Err(reason)) = (host_network, &self.status.network_ready) {
            let message = format!("failed to setup network for sandbox: {reason}");
            return Err(RuntimeError::new(call, ErrorKind::Refused, message));
        }
        let number = self.next_number();
        let id = SandboxId::from(format!("{number:064x}"));
        let ips = if host_network { Vec::new() } else { vec![pod_ip(number)] };
        let observed = ObservedSandbox {
            id: id.clone(),
            pod: pod_of(&config.labels),
            ready: true,
            attempt: config.attempt,
            created_at: now,
            ips,
            host_network,
        };
        let sandbox = FakeSandbox { observed, config: config.clone(), stopped_by_call: false };
        self.sandboxes.insert(id.clone(), sandbox);
        self.changes += 1;
        self.check_users(&id);
        Ok(id)
    }

    /// The handler must exist and support what is requested. A world without handlers is an old runtime,
    /// which has only its default handler and would silently run the pod with the node's users.
    fn check_handler(&self, config: &SandboxConfig) -> Result<(), RuntimeError> {
        let name = config.runtime_handler.as_str();
        let handler = self.status.handlers.iter().find(|handler| handler.name == name);
        if handler.is_none() && !name.is_empty() {
            let message = format!("failed to get sandbox runtime: no runtime for {name:?} is configured");
            return Err(RuntimeError::new("RunPodSandbox", ErrorKind::Refused, message));
        }
        assert!(
            config.user_namespace.is_none() || handler.is_some_and(|handler| handler.user_namespaces),
            "invariant: {} was asked for with users of its own from a handler that cannot",
            config.pod
        );
        Ok(())
    }

    /// Ends a sandbox and what runs in it.
    pub fn stop_sandbox(&mut self, id: &SandboxId, now: Timestamp) {
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.stopped_by_call |= !self.is_late;
        }
        self.kill_sandbox(id, now);
    }

    /// Ends a sandbox as if its own process had died, without a call.
    pub fn kill_sandbox(&mut self, id: &SandboxId, now: Timestamp) {
        if let Some(sandbox) = self.sandboxes.get_mut(id).filter(|sandbox| sandbox.observed.ready) {
            sandbox.observed.ready = false;
            sandbox.observed.ips.clear();
            self.changes += 1;
        }
        for container in self.containers.values_mut().filter(|container| container.observed.sandbox == *id) {
            self.changes += u64::from(container.kill(now, KILLED, "Error"));
        }
    }

    /// Deletes a sandbox and its containers.
    pub fn remove_sandbox(&mut self, id: &SandboxId, now: Timestamp) {
        self.stop_sandbox(id, now);
        self.containers.retain(|_, container| container.observed.sandbox != *id);
        self.changes += u64::from(self.sandboxes.remove(id).is_some());
    }

    /// The node loses power and restarts: records stay, nothing runs.
    pub fn reboot(&mut self, now: Timestamp) {
        for sandbox in self.sandboxes.values_mut() {
            sandbox.observed.ready = false;
            sandbox.observed.ips.clear();
        }
        for container in self.containers.values_mut() {
            container.kill(now, 255, "Unknown");
        }
        self.changes += 1;
    }

    /// The image that a reference or an id resolves to.
    #[must_use]
    pub fn image_status(&self, image: &str) -> Option<ImageStatus> {
        let found = self
            .images
            .get(image)
            .or_else(|| self.images.values().find(|candidate| candidate.id == image))?;
        Some(ImageStatus {
            id: found.id.clone(),
            uid: found.uid,
            username: found.username.clone(),
            size_bytes: found.size_bytes,
        })
    }

    /// All images, by id.
    #[must_use]
    pub(crate) fn list_images(&self) -> Vec<RuntimeImage> {
        let mut found: BTreeMap<&str, RuntimeImage> = BTreeMap::new();
        for (name, image) in &self.images {
            let one = found.entry(&image.id).or_insert_with(|| RuntimeImage {
                id: image.id.clone(),
                size_bytes: image.size_bytes,
                ..RuntimeImage::default()
            });
            one.names.push(name.clone());
        }
        found.into_values().collect()
    }

    /// Removes an image with all its names; returns how many bytes that frees. An image of an existing
    /// container is kept.
    pub(crate) fn remove_image(&mut self, id: &str) -> Option<u64> {
        let user = self.containers.values().find(|container| container.observed.image_id == id);
        assert!(user.is_none(), "the image {id} of a container was removed");
        let freed = self.images.values().find(|image| image.id == id).map(|image| image.size_bytes);
        self.images.retain(|_, image| image.id != id);
        freed
    }

    /// The registry's answer to a pull: the image and the time it takes.
    pub fn resolve_remote(&self, image: &str, auth: Option<&ImageAuth>) -> Result<RemoteImage, RuntimeError> {
        let refuse = |kind, words| {
            let message = format!("failed to pull and unpack image {image:?}: {words}");
            Err(RuntimeError::new("PullImage", kind, message))
        };
        match self.registry.get(image) {
            None => refuse(ErrorKind::NotFound, "failed to resolve reference: not found"),
            Some(remote) if remote.auth.is_some() && remote.auth.as_ref() != auth => {
                refuse(ErrorKind::Refused, "authorization failed: no basic auth credentials")
            }
            Some(remote) => Ok(remote.clone()),
        }
    }

    fn next_number(&mut self) -> u64 {
        let number = self.next_id;
        self.next_id += 1;
        number
    }
}

/// Whether it has pod labels and belongs to the wanted pod.
fn matches_pod(pod: &PodRef, wanted: Option<&PodUid>) -> bool {
    !pod.uid.is_empty() && wanted.is_none_or(|uid| pod.uid == *uid)
}

/// The pod named by the labels.
pub(super) fn pod_of(map: &BTreeMap<String, String>) -> PodRef {
    let label = |key| map.get(key).cloned().unwrap_or_default();
    PodRef {
        namespace: label(labels::POD_NAMESPACE),
        name: label(labels::POD_NAME),
        uid: PodUid::from(label(labels::POD_UID)),
    }
}

fn pod_ip(number: u64) -> String {
    format!("10.88.{}.{}", number / 250 % 256, number % 250 + 2)
}
