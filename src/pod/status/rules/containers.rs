//! The status of each container.

use serde_json::{Value, json};

use super::conditions::is_restarting_all;
use super::{RESTARTING_ALL_CONTAINERS, StatusContext, reported, unknown_termination};
use crate::model::api::pod::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, Pod, PodStatus, VolumeMount,
};
use crate::model::api::raw::RawJson;
use crate::model::containers::{ContainerKind, is_sidecar};
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedPod, ObservedUser};
use crate::model::ordered::Sortable as _;
use crate::model::runtime_config::absolute;
use crate::pod::prober::rules::{has_started, is_ready, runs_again_after_kill};
use crate::pod::restart::{has_run, restarts_after};

/// All termination messages of a pod together, in bytes.
const TERMINATION_MESSAGES_BUDGET: usize = 12 * 1024;
/// One termination message, in bytes.
const TERMINATION_MESSAGE_MAX: usize = 4096;
/// Message for a container whose record was removed because the pod restarts in place.
const RESTARTING_ALL_MESSAGE: &str = "The container is removed because RestartAllContainers in place";

pub(super) fn set_container_statuses(
    status: &mut PodStatus,
    pod: &Pod,
    observed: &ObservedPod,
    context: &StatusContext<'_>,
) {
    let spec = &pod.spec;
    let count = spec.containers.len() + spec.init_containers.len() + spec.ephemeral_containers.len();
    let scene = Scene {
        pod,
        observed,
        context,
        message_max: (TERMINATION_MESSAGES_BUDGET / count.max(1)).min(TERMINATION_MESSAGE_MAX),
        restarting_all: context.previous.is_some_and(is_restarting_all),
        initialised: spec.containers.iter().any(|container| {
            let started = observed.containers.iter().filter(|record| {
                matches!(record.state, ContainerStateKind::Running | ContainerStateKind::Exited)
            });
            started.into_iter().any(|record| record.name.as_str() == container.name)
        }),
    };
    status.init_container_statuses = spec
        .init_containers
        .iter()
        .map(|container| {
            let kind = if is_sidecar(container) { ContainerKind::Sidecar } else { ContainerKind::Init };
            scene.status_of(container, kind)
        })
        .collect();
    status.container_statuses =
        spec.containers.iter().map(|container| scene.status_of(container, ContainerKind::Regular)).collect();
    status.container_statuses.order_by(|a, b| a.name.cmp(&b.name));
    let guests = spec.ephemeral_containers.iter();
    status.ephemeral_container_statuses =
        guests.map(|container| scene.status_of(container, ContainerKind::Ephemeral)).collect();
    status.ephemeral_container_statuses.order_by(|a, b| a.name.cmp(&b.name));
}

struct Scene<'a> {
    pod: &'a Pod,
    observed: &'a ObservedPod,
    context: &'a StatusContext<'a>,
    message_max: usize,
    /// The pod was restarting in place, which explains the missing records.
    restarting_all: bool,
    /// A regular container has been started.
    initialised: bool,
}

impl Scene<'_> {
    fn status_of(&self, container: &Container, kind: ContainerKind) -> ContainerStatus {
        let mut records =
            self.observed.containers.iter().filter(|record| record.name.as_str() == container.name);
        let newest = records.next();
        let mut status = match newest {
            Some(record) => self.with_record(container, record, records.next()),
            None => self.without_record(container, kind),
        };
        if self.wants_start(container, kind, newest)
            && let Some((reason, message)) = self.why_waiting(container)
        {
            let before = std::mem::replace(&mut status.state, waiting(&reason, &message));
            if before.terminated.is_some() {
                status.last_state = before;
            }
        }
        let running = newest.filter(|_| status.state.running.is_some());
        // Ephemeral containers have no `started`: they have no startup probe.
        status.started = (kind != ContainerKind::Ephemeral)
            .then(|| running.is_some_and(|run| has_started(container, &run.id, self.context.probes)));
        status.ready = match kind {
            ContainerKind::Init => status.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0),
            ContainerKind::Sidecar | ContainerKind::Regular => {
                running.is_some_and(|run| is_ready(container, &run.id, self.context.probes))
            }
            ContainerKind::Ephemeral => false,
        };
        if !container.resources.limits.is_empty() || !container.resources.requests.is_empty() {
            status.allocated_resources.clone_from(&container.resources.requests);
            status.resources = Some(container.resources.clone());
        }
        status.volume_mounts = volume_mounts(container, newest);
        status.user = newest.and_then(|record| record.user.as_ref()).map(shown_user);
        status
    }

    fn with_record(
        &self,
        container: &Container,
        record: &ObservedContainer,
        older: Option<&ObservedContainer>,
    ) -> ContainerStatus {
        let previous = self.previous(container);
        // The count never decreases: an instance that was created but not started is replaced by one with the
        // same attempt.
        let counted = previous.map_or(0, |old| old.restart_count);
        let mut status = ContainerStatus {
            name: container.name.clone(),
            restart_count: i32::try_from(record.attempt).unwrap_or(i32::MAX).max(counted),
            image: if record.image.is_empty() { container.image.clone() } else { record.image.clone() },
            image_id: record.image_id.clone(),
            container_id: self.container_id(record),
            ..ContainerStatus::default()
        };
        match record.state {
            ContainerStateKind::Running => {
                let started_at = reported(record.started_at);
                status.state.running = Some(ContainerStateRunning { started_at });
            }
            ContainerStateKind::Exited => status.state.terminated = Some(self.termination(record)),
            ContainerStateKind::Unknown
                if previous.is_some_and(|old| {
                    // Also while it waits for its next run: this run is complete.
                    let was_lost = has_run(old) && old.container_id == status.container_id;
                    old.state.running.is_some() || was_lost
                }) =>
            {
                let lost =
                    unknown_termination("The container could not be located when the pod was terminated");
                let container_id = status.container_id.clone();
                status.state.terminated = Some(ContainerStateTerminated { container_id, ..lost });
            }
            ContainerStateKind::Created | ContainerStateKind::Unknown => {
                status.state = waiting(self.default_reason(), "");
            }
        }
        match older.filter(|older| older.state == ContainerStateKind::Exited) {
            Some(older) => status.last_state.terminated = Some(self.termination(older)),
            // The older record may have been pruned: the last status of the same history still holds.
            None => {
                if let Some(old) = previous {
                    status.last_state = Self::remembered(old, &status);
                }
            }
        }
        status
    }

    /// The last termination by the previous status, for a container whose older records are removed.
    fn remembered(old: &ContainerStatus, new: &ContainerStatus) -> ContainerState {
        let same_run = old.container_id == new.container_id;
        let ended = if same_run { &old.last_state } else { &old.state };
        if new.restart_count > 0 && ended.terminated.is_some() {
            ended.clone()
        } else if new.restart_count > 0 && !same_run {
            old.last_state.clone()
        } else {
            ContainerState::default()
        }
    }

    fn without_record(&self, container: &Container, kind: ContainerKind) -> ContainerStatus {
        if kind == ContainerKind::Init && self.initialised {
            return self.finished_init(container);
        }
        let earlier = self.context.earlier_counts.get(&container.name.as_str().into()).copied().unwrap_or(0);
        let mut status = ContainerStatus {
            name: container.name.clone(),
            restart_count: i32::try_from(earlier).unwrap_or(i32::MAX),
            state: waiting(self.default_reason(), ""),
            image: container.image.clone(),
            ..ContainerStatus::default()
        };
        let Some(old) = self.previous(container) else { return status };
        let has_run = has_run(old);
        if self.restarting_all && has_run && kind != ContainerKind::Ephemeral {
            return Self::restarting(status, old);
        }
        if old.state.terminated.is_some() {
            return old.clone();
        }
        status.restart_count = status.restart_count.max(old.restart_count);
        status.last_state.clone_from(&old.last_state);
        if old.state.running.is_some() {
            let gone = unknown_termination(
                "The container could not be located when the pod was deleted.  The container used to be Running",
            );
            if kind == ContainerKind::Ephemeral {
                status.state = ContainerState { terminated: Some(gone), ..ContainerState::default() };
                return status;
            }
            status.last_state.terminated.get_or_insert(gone);
        }
        // An instance that ran and has no record has ended; the next one follows.
        if has_run && self.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
        status
    }

    /// The record was removed because the pod restarts in place.
    fn restarting(status: ContainerStatus, old: &ContainerStatus) -> ContainerStatus {
        let ended = ContainerStateTerminated {
            exit_code: 137,
            reason: RESTARTING_ALL_CONTAINERS.to_owned(),
            message: RESTARTING_ALL_MESSAGE.to_owned(),
            ..ContainerStateTerminated::default()
        };
        ContainerStatus {
            restart_count: old.restart_count.saturating_add(1),
            state: waiting(RESTARTING_ALL_CONTAINERS, RESTARTING_ALL_MESSAGE),
            last_state: ContainerState { terminated: Some(ended), ..ContainerState::default() },
            ..status
        }
    }

    /// The record is removed, but a later container has run.
    fn finished_init(&self, container: &Container) -> ContainerStatus {
        if let Some(old) = self.previous(container).filter(|old| old.state.terminated.is_some()) {
            return old.clone();
        }
        let mut status = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone(),
            ..ContainerStatus::default()
        };
        status.state.terminated = Some(ContainerStateTerminated {
            reason: "Completed".to_owned(),
            message:
                "Unable to get init container status from container runtime and pod has been initialized, \
                      treat it as exited normally"
                    .to_owned(),
            ..ContainerStateTerminated::default()
        });
        status
    }

    /// The container is about to be started, so a known failure is its state.
    fn wants_start(
        &self,
        container: &Container,
        kind: ContainerKind,
        newest: Option<&ObservedContainer>,
    ) -> bool {
        if self.context.terminal {
            return false;
        }
        match newest {
            None => !(kind == ContainerKind::Init && self.initialised),
            Some(record) if kind == ContainerKind::Ephemeral => record.state == ContainerStateKind::Created,
            Some(record) => match record.state {
                ContainerStateKind::Running => false,
                ContainerStateKind::Created | ContainerStateKind::Unknown => true,
                ContainerStateKind::Exited => {
                    let succeeded = kind == ContainerKind::Init && record.exit_code == 0;
                    let probes = self.context.probes;
                    !succeeded
                        && (restarts_after(self.pod, container, record.exit_code)
                            || runs_again_after_kill(self.pod, container, &record.id, probes))
                }
            },
        }
    }

    fn why_waiting(&self, container: &Container) -> Option<(String, String)> {
        let mut blocked = self.context.blocked.iter();
        let blocked = blocked.find(|blocked| blocked.name.as_str() == container.name);
        let failed = || {
            let mut failed = self.context.waiting.iter();
            failed.find(|(name, _)| name.as_str() == container.name).map(|(_, why)| why.clone())
        };
        blocked.map(|blocked| (blocked.reason.to_owned(), blocked.message.clone())).or_else(failed)
    }

    fn previous(&self, container: &Container) -> Option<&ContainerStatus> {
        let previous = self.context.previous?;
        let all = previous.container_statuses.iter().chain(&previous.init_container_statuses);
        all.chain(&previous.ephemeral_container_statuses).find(|status| status.name == container.name)
    }

    fn default_reason(&self) -> &'static str {
        if self.pod.spec.init_containers.is_empty() { "ContainerCreating" } else { "PodInitializing" }
    }

    fn container_id(&self, record: &ObservedContainer) -> String {
        format!("{}://{}", self.context.runtime_name, record.id)
    }

    fn termination(&self, record: &ObservedContainer) -> ContainerStateTerminated {
        let by_code = if record.exit_code == 0 { "Completed" } else { "Error" };
        let reason = if record.reason.is_empty() { by_code } else { &record.reason };
        ContainerStateTerminated {
            exit_code: record.exit_code,
            signal: 0,
            reason: reason.to_owned(),
            message: shortened(&record.message, self.message_max),
            started_at: reported(record.started_at),
            finished_at: reported(record.finished_at),
            container_id: self.container_id(record),
        }
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: reason.to_owned(), message: message.to_owned() }),
        ..ContainerState::default()
    }
}

/// At most `max` bytes, cut between characters.
fn shortened(text: &str, max: usize) -> String {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

/// A mount is recursively read-only if the runtime says so; before it has the container, if the spec requires it.
fn volume_mounts(container: &Container, record: Option<&ObservedContainer>) -> Vec<VolumeMount> {
    let one = |mount: &VolumeMount| {
        let (name, mount_path) = (mount.name.clone(), mount.mount_path.clone());
        let mut shown = VolumeMount { name, mount_path, ..VolumeMount::default() };
        if mount.read_only {
            let path = absolute(&mount.mount_path);
            let is_required = mount.recursive_read_only.as_deref() == Some("Enabled");
            let is_enabled = is_required
                || record.is_some_and(|record| {
                    record.mounts.iter().any(|made| made.recursive_read_only && made.container_path == path)
                });
            shown.read_only = true;
            shown.recursive_read_only = Some(if is_enabled { "Enabled" } else { "Disabled" }.to_owned());
        }
        shown
    };
    container.volume_mounts.iter().map(one).collect()
}

fn shown_user(user: &ObservedUser) -> RawJson {
    let mut linux = json!({"uid": user.uid, "gid": user.gid});
    if !user.supplemental_groups.is_empty() {
        linux["supplementalGroups"] = Value::from(user.supplemental_groups.clone());
    }
    RawJson::from(&json!({"linux": linux}))
}
