//! The simulated node: sandboxes, containers and images with the rules real runtimes enforce, as one synchronous state
//! machine that is told the time.
//!
//! Owns the state and the invariants. Must not know tokio, callers, or faults. A violated invariant is a bug in the agent
//! and panics: the simulator has no other purpose.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::observed::{ContainerStateKind, ObservedContainer, ObservedMount, ObservedSandbox};
use crate::runtime::{
    CgroupDriver, ContainerConfig, ErrorKind, ImageAuth, ImageStatus, NamespaceMode, RuntimeError,
    RuntimeStatus, SandboxConfig, labels,
};
use crate::types::{ContainerId, ContainerName, PodRef, PodUid, SandboxId, Timestamp};

use super::program::{FakeImage, OnStop, Program, RemoteImage, Run};

/// Exit code of a killed process.
const KILLED: i32 = 137;

/// A sandbox record.
#[derive(Clone, Debug)]
pub struct FakeSandbox {
    /// What a status call shows.
    pub observed: ObservedSandbox,
    /// What it was made from.
    pub config: SandboxConfig,
    /// A `StopPodSandbox` of the agent ended it, not the world.
    stopped_by_call: bool,
}

/// A container record.
#[derive(Clone, Debug)]
pub struct FakeContainer {
    /// What a status call shows.
    pub observed: ObservedContainer,
    /// What it was made from.
    pub config: ContainerConfig,
    program: Program,
    end: Option<End>,
}

/// How and when a running container will end, as far as is known.
#[derive(Clone, Copy, Debug)]
struct End {
    at: Timestamp,
    code: i32,
    reason: &'static str,
}

/// The state of a simulated node.
#[derive(Debug)]
pub struct World {
    /// All sandboxes.
    pub sandboxes: BTreeMap<SandboxId, FakeSandbox>,
    /// All containers.
    pub containers: BTreeMap<ContainerId, FakeContainer>,
    /// Images on the node by reference.
    pub images: BTreeMap<String, FakeImage>,
    /// Images in the registry by reference.
    pub registry: BTreeMap<String, RemoteImage>,
    /// Answer of `Status`.
    pub status: RuntimeStatus,
    /// Answer of `RuntimeConfig`.
    pub cgroup_driver: Option<CgroupDriver>,
    /// What happens now is the late effect of a call of an agent that has died: nobody to blame.
    pub(super) is_late: bool,
    programs: BTreeMap<String, Vec<Program>>,
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
            status: RuntimeStatus { runtime_ready: Ok(()), network_ready: Ok(()) },
            cgroup_driver: Some(CgroupDriver::Cgroupfs),
            is_late: false,
            programs: BTreeMap::new(),
            next_id: 1,
            changes: 1,
        }
    }
}

impl World {
    /// Scripts the runs of containers with this name or, lower in precedence, this image: one program per attempt, the
    /// last one for all further attempts. Containers made before keep theirs.
    pub fn set_programs(&mut self, name_or_image: &str, programs: Vec<Program>) {
        self.programs.insert(name_or_image.to_owned(), programs);
    }

    /// Grows with every change worth a hint.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Causes a hint without a change.
    pub fn touch(&mut self) {
        self.changes += 1;
    }

    /// Carries out every end that is due.
    pub fn settle(&mut self, now: Timestamp) {
        for container in self.containers.values_mut() {
            if let Some(end) = container.end.filter(|end| end.at <= now) {
                container.finish(end);
                self.changes += 1;
            }
        }
    }

    /// When the next end is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.containers.values().filter_map(|container| container.end).map(|end| end.at).min()
    }

    /// Sandboxes of a pod, or all, as a list call shows them.
    #[must_use]
    pub fn list_sandboxes(&self, pod: Option<&PodUid>) -> Vec<ObservedSandbox> {
        let ours = |sandbox: &&FakeSandbox| is_ours(&sandbox.observed.pod, pod);
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

    /// Containers of a pod, or all, as a list call shows them.
    #[must_use]
    pub fn list_containers(&self, pod: Option<&PodUid>) -> Vec<ObservedContainer> {
        let ours = |container: &&FakeContainer| is_ours(&container.observed.pod, pod);
        self.containers.values().filter(ours).map(|container| list_view(&container.observed)).collect()
    }

    /// One sandbox in full.
    pub fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError> {
        self.sandboxes.get(id).map(|sandbox| sandbox.observed.clone()).ok_or_else(|| {
            let message = format!("an error occurred when try to find sandbox \"{id}\": not found");
            RuntimeError::new("PodSandboxStatus", ErrorKind::NotFound, message)
        })
    }

    /// One container in full.
    pub fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError> {
        self.containers.get(id).map(|container| container.observed.clone()).ok_or_else(|| {
            let message = format!("an error occurred when try to find container \"{id}\": not found");
            RuntimeError::new("ContainerStatus", ErrorKind::NotFound, message)
        })
    }

    /// Makes a ready sandbox; its name is reserved until it is removed.
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
        let host_network = config.namespaces.network == NamespaceMode::Node;
        if let (false, Err(reason)) = (host_network, &self.status.network_ready) {
            let message = format!("failed to setup network for sandbox: {reason}");
            return Err(RuntimeError::new(call, ErrorKind::Refused, message));
        }
        let number = self.take_number();
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
        Ok(id)
    }

    /// Ends a sandbox and what runs in it.
    pub fn stop_sandbox(&mut self, id: &SandboxId, now: Timestamp) {
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.stopped_by_call |= !self.is_late;
        }
        self.fell_sandbox(id, now);
    }

    /// Ends a sandbox as if its own process had died: nobody asked for it.
    pub fn fell_sandbox(&mut self, id: &SandboxId, now: Timestamp) {
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

    /// Makes a container; its name is reserved until it is removed.
    pub fn create_container(
        &mut self,
        sandbox_id: &SandboxId,
        config: &ContainerConfig,
        now: Timestamp,
    ) -> Result<ContainerId, RuntimeError> {
        let refuse = |kind, message| RuntimeError::new("CreateContainer", kind, message);
        let Some(sandbox) = self.sandboxes.get(sandbox_id) else {
            let message = format!("failed to find sandbox id {:?}: not found", sandbox_id.as_str());
            return Err(refuse(ErrorKind::NotFound, message));
        };
        let log_path = match config.log_path.as_str() {
            "" => String::new(),
            path => format!("{}/{path}", sandbox.config.log_directory.trim_end_matches('/')),
        };
        let ready = sandbox.observed.ready;
        let pod = pod_of(&config.labels);
        if !ready {
            // The kind is containerd's, odd as it is.
            let message = "failed to get sandbox container task: no running task found".to_owned();
            return Err(refuse(ErrorKind::NotFound, message));
        }
        self.check_container_name(&pod, config)?;
        let Some(image) = self.image_status(&config.image) else {
            let message = format!("failed to resolve image {:?}: not found", config.image);
            return Err(refuse(ErrorKind::NotFound, message));
        };
        let program = self.program_for(config);
        if let Run::FailsToCreate { message } = &program.run {
            return Err(refuse(ErrorKind::Refused, message.clone()));
        }
        let id = ContainerId::from(format!("{:064x}", self.take_number()));
        let observed = ObservedContainer {
            id: id.clone(),
            pod,
            name: ContainerName::from(config.labels.get(labels::CONTAINER_NAME).map_or("", String::as_str)),
            sandbox: sandbox_id.clone(),
            state: ContainerStateKind::Created,
            attempt: config.attempt,
            hash: config.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
            image: config.user_specified_image.clone(),
            image_id: image.id,
            created_at: now,
            annotations: config.annotations.clone(),
            log_path,
            mounts: config.mounts.iter().map(observed_mount).collect(),
            ..ObservedContainer::default()
        };
        let container = FakeContainer { observed, config: config.clone(), program, end: None };
        self.containers.insert(id.clone(), container);
        self.changes += 1;
        Ok(id)
    }

    /// Starts a made container in a ready sandbox, and checks the world's invariants.
    pub fn start_container(&mut self, id: &ContainerId, now: Timestamp) -> Result<(), RuntimeError> {
        let refuse = |kind, message| Err(RuntimeError::new("StartContainer", kind, message));
        let Some(container) = self.containers.get(id) else {
            let message =
                format!("an error occurred when try to find container {:?}: not found", id.as_str());
            return refuse(ErrorKind::NotFound, message);
        };
        if container.observed.state != ContainerStateKind::Created {
            let message = format!("container is in {:?} state", container.observed.state);
            return refuse(ErrorKind::Refused, message);
        }
        let sandbox = self.sandboxes.get(&container.observed.sandbox);
        if sandbox.is_none_or(|sandbox| !sandbox.observed.ready) {
            assert!(
                self.is_late || !sandbox.is_some_and(|sandbox| sandbox.stopped_by_call),
                "invariant: container {} of {} was started in a sandbox that the agent itself had stopped",
                container.observed.name,
                container.observed.pod,
            );
            let message =
                format!("sandbox container {:?} is not running", container.observed.sandbox.as_str());
            return refuse(ErrorKind::Refused, message);
        }
        self.changes += 1;
        let container = self.containers.get_mut(id).expect("looked up above");
        container.start(now)?;
        self.check_invariants(id);
        Ok(())
    }

    /// Asks a container to stop; [`World::stopping_until`] says when that will be done.
    pub fn begin_stop(&mut self, id: &ContainerId, grace: Duration, now: Timestamp) {
        let Some(container) = self.containers.get_mut(id) else { return };
        // As containerd has it: stopping a container that never ran changes nothing.
        if container.observed.state == ContainerStateKind::Running {
            container.begin_stop(grace, now);
        }
        self.settle(now);
    }

    /// When a container that runs will end; `None` if it does not run any more.
    #[must_use]
    pub fn stopping_until(&self, id: &ContainerId) -> Option<Timestamp> {
        self.containers.get(id).and_then(|container| container.end).map(|end| end.at)
    }

    /// Ends a running container from outside, as a crash or an operator's kill does.
    pub fn kill_container(&mut self, id: &ContainerId, code: i32, now: Timestamp) {
        if let Some(container) = self.containers.get_mut(id) {
            self.changes += u64::from(container.kill(now, code, "Error"));
        }
    }

    /// Deletes a container, killing it if it runs.
    pub fn remove_container(&mut self, id: &ContainerId, now: Timestamp) {
        self.kill_container(id, KILLED, now);
        self.changes += u64::from(self.containers.remove(id).is_some());
    }

    /// The node loses power and comes back: records stay, nothing runs.
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

    /// The image a reference or an id stands for.
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

    /// What the registry says to a pull: the image and the time it takes.
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

    /// Words for what exists, for messages of failing tests.
    #[must_use]
    pub fn describe(&self) -> String {
        let sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.observed).map(|sandbox| {
            format!(
                "sandbox {:.8} {} #{} ready={}",
                short(sandbox.id.as_str()),
                sandbox.pod,
                sandbox.attempt,
                sandbox.ready
            )
        });
        let containers = self.containers.values().map(|container| &container.observed).map(|container| {
            let sandbox = short(container.sandbox.as_str());
            format!(
                "container {} {} {} #{} {:?} in {sandbox}",
                short(container.id.as_str()),
                container.pod,
                container.name,
                container.attempt,
                container.state
            )
        });
        sandboxes.chain(containers).collect::<Vec<_>>().join("\n")
    }

    fn check_container_name(&self, pod: &PodRef, config: &ContainerConfig) -> Result<(), RuntimeError> {
        let reserved = |container: &&FakeContainer| {
            container.observed.pod == *pod
                && container.config.name == config.name
                && container.config.attempt == config.attempt
        };
        let Some(holder) = self.containers.values().find(reserved) else { return Ok(()) };
        let PodRef { name, namespace, uid } = pod;
        let name = format!("{}_{name}_{namespace}_{uid}_{}", config.name, config.attempt);
        let id = &holder.observed.id;
        let message =
            format!("failed to reserve container name {name:?}: name {name:?} is reserved for {id:?}");
        Err(RuntimeError::new("CreateContainer", ErrorKind::AlreadyExists, message))
    }

    fn program_for(&self, config: &ContainerConfig) -> Program {
        let scripted = self
            .programs
            .get(&config.name)
            .or_else(|| self.programs.get(&config.user_specified_image))
            .or_else(|| self.programs.get(&config.image));
        let attempt = usize::try_from(config.attempt).unwrap_or(usize::MAX);
        scripted
            .and_then(|programs| programs.get(attempt).or_else(|| programs.last()))
            .cloned()
            .unwrap_or_default()
    }

    /// What must hold whatever the agent does; called when a container has just started.
    fn check_invariants(&self, started: &ContainerId) {
        let started = &self.containers[started].observed;
        let alive = |container: &&ObservedContainer| {
            container.state == ContainerStateKind::Running && container.pod.uid == started.pod.uid
        };
        let mut living = self.containers.values().map(|container| &container.observed).filter(alive);
        if let Some(other) = living.clone().find(|other| other.name == started.name && other.id != started.id)
        {
            panic!(
                "invariant: two live containers {} of {}: {} and {}\n{}",
                started.name,
                started.pod,
                other.id,
                started.id,
                self.describe()
            );
        }
        let ready = |id: &SandboxId| self.sandboxes.get(id).is_some_and(|sandbox| sandbox.observed.ready);
        if let Some(other) = living.find(|other| other.sandbox != started.sandbox && ready(&other.sandbox)) {
            panic!(
                "invariant: two ready sandboxes of {} with running containers: {} and {}\n{}",
                started.pod,
                other.sandbox,
                started.sandbox,
                self.describe()
            );
        }
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next_id;
        self.next_id += 1;
        number
    }
}

impl FakeContainer {
    fn start(&mut self, now: Timestamp) -> Result<(), RuntimeError> {
        let end = |after, code, reason| Some(End { at: now.saturating_add(after), code, reason });
        self.end = match &self.program.run {
            Run::FailsToStart { message } => {
                let message = message.clone();
                self.finish(End { at: now, code: 128, reason: "StartError" });
                self.observed.message.clone_from(&message);
                return Err(RuntimeError::new("StartContainer", ErrorKind::Refused, message));
            }
            Run::Forever | Run::FailsToCreate { .. } => None,
            Run::Exits { after, code } => end(*after, *code, if *code == 0 { "Completed" } else { "Error" }),
            Run::OutOfMemory { after } => end(*after, KILLED, "OOMKilled"),
        };
        self.observed.state = ContainerStateKind::Running;
        self.observed.started_at = now;
        Ok(())
    }

    fn begin_stop(&mut self, grace: Duration, now: Timestamp) {
        let killed = End { at: now.saturating_add(grace), code: KILLED, reason: "Error" };
        let end = match self.program.on_stop {
            OnStop::Exits { after, code } if after < grace => {
                let reason = if code == 0 { "Completed" } else { "Error" };
                End { at: now.saturating_add(after), code, reason }
            }
            OnStop::Exits { .. } | OnStop::Ignores => killed,
        };
        if self.end.is_none_or(|current| end.at < current.at) {
            self.end = Some(end);
        }
    }

    /// True when it was alive.
    fn kill(&mut self, now: Timestamp, code: i32, reason: &'static str) -> bool {
        let alive = self.observed.state == ContainerStateKind::Running;
        if alive {
            self.finish(End { at: now, code, reason });
        }
        alive
    }

    fn finish(&mut self, end: End) {
        self.end = None;
        self.observed.state = ContainerStateKind::Exited;
        self.observed.finished_at = end.at;
        self.observed.exit_code = end.code;
        end.reason.clone_into(&mut self.observed.reason);
    }
}

/// Has a pod label, and the wanted one.
fn is_ours(pod: &PodRef, wanted: Option<&PodUid>) -> bool {
    !pod.uid.is_empty() && wanted.is_none_or(|uid| pod.uid == *uid)
}

/// Without what only a status call fills.
fn list_view(full: &ObservedContainer) -> ObservedContainer {
    ObservedContainer {
        id: full.id.clone(),
        pod: full.pod.clone(),
        name: full.name.clone(),
        sandbox: full.sandbox.clone(),
        state: full.state,
        attempt: full.attempt,
        hash: full.hash.clone(),
        image: full.image.clone(),
        image_id: full.image_id.clone(),
        created_at: full.created_at,
        ..ObservedContainer::default()
    }
}

/// The pod that labels name.
pub(super) fn pod_of(map: &BTreeMap<String, String>) -> PodRef {
    let label = |key| map.get(key).cloned().unwrap_or_default();
    PodRef {
        namespace: label(labels::POD_NAMESPACE),
        name: label(labels::POD_NAME),
        uid: PodUid::from(label(labels::POD_UID)),
    }
}

fn observed_mount(mount: &crate::runtime::Mount) -> ObservedMount {
    ObservedMount { container_path: mount.container_path.clone(), host_path: mount.host_path.clone() }
}

fn pod_ip(number: u64) -> String {
    format!("10.88.{}.{}", number / 250 % 256, number % 250 + 2)
}

/// The telling end of a long id.
fn short(id: &str) -> &str {
    id.get(id.len().saturating_sub(6)..).unwrap_or(id)
}
