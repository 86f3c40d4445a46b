//! Containers of the simulated node: from their creation to their end.
//!
//! Owns a container's life cycle.

use std::time::Duration;

use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedMount};
use crate::model::types::{ContainerId, ContainerName, PodRef, PodUid, SandboxId, Timestamp};
use crate::runtime::{ContainerConfig, ErrorKind, LinuxResources, RuntimeError, labels};

use super::super::program::{Command, Exec, ExecScript, OnStop, Program, Run};
use super::{COMMAND_LOG_LIMIT, World, matches_pod, pod_of};

/// Exit code of a killed process.
pub(in crate::runtime::fake) const KILLED: i32 = 137;
#[derive(Clone, Debug)]
pub struct FakeContainer {
    /// What a status call shows.
    pub observed: ObservedContainer,
    pub config: ContainerConfig,
    program: Program,
    pub(super) end: Option<PlannedEnd>,
}

/// How and when a running container will end, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedEnd {
    pub(super) at: Timestamp,
    code: i32,
    reason: &'static str,
}

impl World {
    /// Scripts the runs of containers with this name or, with lower precedence, this image: one program per
    /// attempt, the last one for all further attempts. Existing containers keep their programs.
    pub fn set_programs(&mut self, name_or_image: &str, programs: Vec<Program>) {
        self.programs.insert(name_or_image.to_owned(), programs);
    }

    /// Scripts commands run in containers with this name: how long they take and how they end, by the
    /// command's first word; others end at once with 0.
    pub fn set_exec(&mut self, container: &str, command: &str, script: ExecScript) {
        self.execs.insert((container.to_owned(), command.to_owned()), script);
    }

    /// Begins a command in a running container; it is killed when `timeout` expires.
    pub fn exec(
        &mut self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        now: Timestamp,
    ) -> Result<Exec, RuntimeError> {
        let found = self.containers.get(id);
        let Some(container) = found.filter(|found| found.observed.state == ContainerStateKind::Running)
        else {
            let message = format!("container {id} is not running");
            return Err(RuntimeError::new("ExecSync", ErrorKind::NotFound, message));
        };
        let first = command.first().cloned().unwrap_or_default();
        let script = self.execs.get(&(container.config.name.clone(), first)).cloned().unwrap_or_default();
        if self.commands.len() == COMMAND_LOG_LIMIT {
            self.commands.pop_front();
        }
        self.commands.push_back(Command { at: now, container: id.clone(), words: command.to_vec() });
        Ok(match timeout {
            Some(timeout) if timeout < script.takes => {
                let message = format!("command {:?} timed out", command.join(" "));
                let outcome = Err(RuntimeError::new("ExecSync", ErrorKind::Timeout, message));
                Exec { takes: timeout, outcome }
            }
            _ => Exec { takes: script.takes, outcome: Ok(script.output) },
        })
    }

    /// Changes a container's cgroup values; zero and empty values are left as they are.
    pub fn update_resources(
        &mut self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let Some(container) = self.containers.get_mut(id) else {
            let message = format!("container {id} not found");
            return Err(RuntimeError::new("UpdateContainerResources", ErrorKind::NotFound, message));
        };
        let own = &mut container.config.resources;
        for (old, new) in [
            (&mut own.cpu_shares, resources.cpu_shares),
            (&mut own.cpu_quota, resources.cpu_quota),
            (&mut own.cpu_period, resources.cpu_period),
            (&mut own.memory_limit_bytes, resources.memory_limit_bytes),
            (&mut own.memory_swap_limit_bytes, resources.memory_swap_limit_bytes),
            (&mut own.oom_score_adj, resources.oom_score_adj),
        ] {
            if new != 0 {
                *old = new;
            }
        }
        for (old, new) in
            [(&mut own.cpuset_cpus, &resources.cpuset_cpus), (&mut own.cpuset_mems, &resources.cpuset_mems)]
        {
            if !new.is_empty() {
                old.clone_from(new);
            }
        }
        own.unified.extend(resources.unified.clone());
        Ok(())
    }

    #[must_use]
    pub(crate) fn is_running(&self, id: &ContainerId) -> bool {
        self.containers
            .get(id)
            .is_some_and(|container| container.observed.state == ContainerStateKind::Running)
    }

    /// Containers of a pod, or all, as a list call shows them.
    #[must_use]
    pub(crate) fn list_containers(&self, pod: Option<&PodUid>) -> Vec<ObservedContainer> {
        let ours = |container: &&FakeContainer| matches_pod(&container.observed.pod, pod);
        self.containers.values().filter(ours).map(|container| list_view(&container.observed)).collect()
    }

    pub fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError> {
        self.containers.get(id).map(|container| container.observed.clone()).ok_or_else(|| {
            let message = format!("an error occurred when try to find container \"{id}\": not found");
            RuntimeError::new("ContainerStatus", ErrorKind::NotFound, message)
        })
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
            // The error kind is containerd's, odd as it is.
            let message = "failed to get sandbox container task: no running task found".to_owned();
            return Err(refuse(ErrorKind::NotFound, message));
        }
        assert!(
            config.security.user_namespace == sandbox.config.user_namespace,
            "invariant: container {} of {pod} has other users than its sandbox",
            config.name
        );
        self.check_target(sandbox_id, config)?;
        self.check_container_name(&pod, config)?;
        let Some(image) = self.image_status(&config.image) else {
            let message = format!("failed to resolve image {:?}: not found", config.image);
            return Err(refuse(ErrorKind::NotFound, message));
        };
        let program = self.program_for(config);
        if let Run::FailsToCreate { message } = &program.run {
            return Err(refuse(ErrorKind::Refused, message.clone()));
        }
        let id = ContainerId::from(format!("{:064x}", self.next_number()));
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

    /// Starts a created container in a ready sandbox, and checks the world's invariants.
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

    /// Asks a container to stop; [`World::stopping_until`] returns when that will be done.
    pub fn begin_stop(&mut self, id: &ContainerId, grace: Duration, now: Timestamp) {
        let Some(container) = self.containers.get_mut(id) else { return };
        // As in containerd, stopping a container that never ran changes nothing.
        if container.observed.state == ContainerStateKind::Running {
            container.begin_stop(grace, now);
        }
        self.settle(now);
    }

    /// When a running container will end; `None` if it no longer runs.
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

    /// A target container must run in the same sandbox.
    fn check_target(&self, sandbox: &SandboxId, config: &ContainerConfig) -> Result<(), RuntimeError> {
        let Some(target) = &config.security.target else { return Ok(()) };
        let why = match self.containers.get(target) {
            None => format!("container {:?} does not exist", target.as_str()),
            Some(found) if found.observed.sandbox != *sandbox => {
                format!("container {:?} does not belong to sandbox {sandbox}", target.as_str())
            }
            Some(found) if found.observed.state != ContainerStateKind::Running => {
                format!(
                    "container {:?} is not running - in state {:?}",
                    target.as_str(),
                    found.observed.state
                )
            }
            Some(_) => return Ok(()),
        };
        let message = format!("invalid target container: {why}");
        Err(RuntimeError::new("CreateContainer", ErrorKind::Refused, message))
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
}

impl FakeContainer {
    fn start(&mut self, now: Timestamp) -> Result<(), RuntimeError> {
        let end = |after, code, reason| Some(PlannedEnd { at: now.saturating_add(after), code, reason });
        self.end = match &self.program.run {
            Run::FailsToStart { message } => {
                let message = message.clone();
                self.finish(PlannedEnd { at: now, code: 128, reason: "StartError" });
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
        let killed = PlannedEnd { at: now.saturating_add(grace), code: KILLED, reason: "Error" };
        let end = match self.program.on_stop {
            OnStop::Exits { after, code } if after < grace => {
                let reason = if code == 0 { "Completed" } else { "Error" };
                PlannedEnd { at: now.saturating_add(after), code, reason }
            }
            OnStop::Exits { .. } | OnStop::Ignores => killed,
        };
        if self.end.is_none_or(|current| end.at < current.at) {
            self.end = Some(end);
        }
    }

    /// True when the container was alive.
    pub(super) fn kill(&mut self, now: Timestamp, code: i32, reason: &'static str) -> bool {
        let alive = self.observed.state == ContainerStateKind::Running;
        if alive {
            self.finish(PlannedEnd { at: now, code, reason });
        }
        alive
    }

    pub(super) fn finish(&mut self, end: PlannedEnd) {
        self.end = None;
        self.observed.state = ContainerStateKind::Exited;
        self.observed.finished_at = end.at;
        self.observed.exit_code = end.code;
        end.reason.clone_into(&mut self.observed.reason);
    }
}

/// The container without the fields that only a status call fills.
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

fn observed_mount(mount: &crate::runtime::Mount) -> ObservedMount {
    ObservedMount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        recursive_read_only: mount.recursive_read_only,
    }
}
