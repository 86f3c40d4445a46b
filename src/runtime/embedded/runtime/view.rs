//! One container or sandbox in full: from its record, the monitor's files beside it, and the state in memory.
//!
//! Owns nothing.

use std::rc::Rc;

use super::api::{ContainerView, SandboxView};
use super::record::{ContainerRecord, RecordedUser, SandboxRecord, SandboxStage, started};
use super::state::ContainerPhase;
use super::{Failure, RuntimeInner, no_container, no_sandbox};
use crate::model::observed::{ObservedContainer, ObservedMount};
use crate::model::types::{ContainerId, SandboxId, Timestamp};
use crate::runtime::labels;

/// One container in full, for the agent.
pub(super) fn status(shared: &Rc<RuntimeInner>, id: &ContainerId) -> Result<ObservedContainer, Failure> {
    let (view, record) = view(shared, id)?;
    let pod = crate::runtime::convert::pod_from_labels(&record.config.labels).unwrap_or_default();
    let name =
        record.config.labels.get(labels::CONTAINER_NAME).unwrap_or(&record.config.name).as_str().into();
    let annotations = record.config.annotations;
    Ok(ObservedContainer {
        id: view.id,
        pod,
        name,
        sandbox: view.sandbox,
        state: view.state,
        attempt: record.config.attempt,
        hash: annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
        image: view.image,
        image_id: view.image_ref,
        created_at: view.created_at,
        started_at: view.started_at,
        finished_at: view.finished_at,
        exit_code: view.exit_code,
        reason: view.reason,
        message: view.message,
        annotations,
        log_path: view.log_path,
        mounts: record
            .config
            .mounts
            .into_iter()
            .map(|mount| ObservedMount {
                container_path: mount.container_path,
                host_path: mount.host_path,
                recursive_read_only: mount.recursive_read_only,
            })
            .collect(),
        user: view.user,
    })
}

pub(super) fn sandbox(shared: &RuntimeInner, id: &SandboxId) -> Result<SandboxView, Failure> {
    let state = shared.state.borrow();
    let sandbox = state.sandboxes.get(id).filter(|sandbox| sandbox.stage != SandboxStage::Making);
    let sandbox = sandbox.ok_or_else(|| no_sandbox(id))?;
    let record = SandboxRecord::read(&shared.config.layout.sandbox(id))
        .map_err(|error| Failure::because("read sandbox", &error))?;
    Ok(SandboxView {
        id: id.clone(),
        config: record.config,
        ready: sandbox.stage == SandboxStage::Ready,
        created_at: sandbox.created_at,
        ips: if sandbox.host_network { Vec::new() } else { sandbox.ips.clone() },
        pid: sandbox.monitor.unwrap_or(0),
    })
}

/// A container in full, from its record and the state in memory.
pub(super) fn view(
    shared: &Rc<RuntimeInner>,
    id: &ContainerId,
) -> Result<(ContainerView, ContainerRecord), Failure> {
    let state = shared.state.borrow();
    let known = state.containers.get(id).filter(|container| container.phase != ContainerPhase::Making);
    let known = known.ok_or_else(|| no_container(id))?;
    let dir = shared.config.layout.sandbox(&known.sandbox).container(id.as_str());
    let record = ContainerRecord::read(&dir).map_err(|error| Failure::because("read container", &error))?;
    let started = match known.phase {
        ContainerPhase::Running(started) => Some(started),
        _ => started(&dir),
    };
    let end = record.end.clone().unwrap_or_default();
    let view = ContainerView {
        id: id.clone(),
        sandbox: known.sandbox.clone(),
        state: known.kind(),
        created_at: known.created_at,
        started_at: started.map(|started| started.at).unwrap_or_default(),
        finished_at: Timestamp::from_nanos(end.at),
        exit_code: end.code,
        reason: end.reason,
        message: end.message,
        image: record.image.clone(),
        image_ref: record.image_ref.clone(),
        image_id: record.image_id.clone(),
        log_path: record.log_path.display().to_string(),
        pid: match known.phase {
            ContainerPhase::Running(started) => started.pid,
            _ => 0,
        },
        user: record.user.as_ref().map(RecordedUser::observed),
        config: record.config.clone(),
    };
    Ok((view, record))
}
