//! The part of the records that is kept in memory: as much as lists need.
//!
//! Owns the maps and the names in use.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::super::protocol::Started;
use super::record::{ContainerRecord, SandboxRecord, SandboxStage};
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedSandbox};
use crate::model::types::{ContainerId, ContainerName, PodRef, PodUid, SandboxId, Timestamp};
use crate::runtime::convert::{may_name_files, pod_from_labels};
use crate::runtime::{ContainerConfig, NamespaceMode, SandboxConfig, labels};

/// All sandboxes and containers.
#[derive(Default)]
pub(super) struct RuntimeState {
    pub(super) sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub(super) containers: BTreeMap<ContainerId, Container>,
}

pub(super) struct Sandbox {
    /// The pod named by its metadata.
    pub(super) pod: PodRef,
    /// It has a pod's labels, so lists show it.
    pub(super) is_pod: bool,
    pub(super) attempt: u32,
    pub(super) created_at: Timestamp,
    pub(super) stage: SandboxStage,
    pub(super) host_network: bool,
    /// Name of its runtime handler; empty for this runtime.
    pub(super) handler: Box<str>,
    pub(super) ips: Vec<IpAddr>,
    /// Process id of its monitor, while that is known to run.
    pub(super) monitor: Option<i32>,
    /// Held while the sandbox or its set of containers changes.
    pub(super) lock: Arc<Mutex<()>>,
}

pub(super) struct Container {
    pub(super) sandbox: SandboxId,
    pub(super) is_pod: bool,
    pub(super) name: ContainerName,
    pub(super) attempt: u32,
    pub(super) hash: Box<str>,
    pub(super) image: Box<str>,
    pub(super) image_ref: Box<str>,
    pub(super) created_at: Timestamp,
    pub(super) phase: ContainerPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerPhase {
    /// Being made: not listed, but its name is taken.
    Making,
    Created,
    /// The monitor has been asked to start it, and it may run.
    Starting,
    Running(Started),
    /// It has ended, and its record has the exit.
    Exited,
}

impl Sandbox {
    pub(super) fn new(config: &SandboxConfig, created_at: Timestamp) -> Self {
        Self {
            is_pod: pod_from_labels(&config.labels).is_some(),
            pod: pod_from_labels(&config.labels).unwrap_or_else(|| config.pod.clone()),
            attempt: config.attempt,
            created_at,
            stage: SandboxStage::Making,
            host_network: config.namespaces.network == NamespaceMode::Node,
            handler: config.runtime_handler.as_str().into(),
            ips: Vec::new(),
            monitor: None,
            lock: Arc::default(),
        }
    }

    pub(super) fn from_record(record: &SandboxRecord) -> Self {
        Self {
            stage: record.stage,
            ips: record.ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            ..Self::new(&record.config, Timestamp::from_nanos(record.created_at))
        }
    }

    fn observed(&self, id: &SandboxId) -> ObservedSandbox {
        ObservedSandbox {
            id: id.clone(),
            pod: self.pod.clone(),
            ready: self.stage == SandboxStage::Ready,
            attempt: self.attempt,
            created_at: self.created_at,
            ips: if self.host_network {
                Vec::new()
            } else {
                self.ips.iter().map(ToString::to_string).collect()
            },
            host_network: self.host_network,
        }
    }
}

impl Container {
    pub(super) fn new(sandbox: &SandboxId, config: &ContainerConfig, created_at: Timestamp) -> Self {
        let label = config.labels.get(labels::CONTAINER_NAME).unwrap_or(&config.name);
        let hash = config.annotations.get(labels::CONTAINER_HASH);
        Self {
            sandbox: sandbox.clone(),
            is_pod: pod_from_labels(&config.labels).is_some() && may_name_files(label),
            name: ContainerName::from(label.as_str()),
            attempt: config.attempt,
            hash: hash.map(String::as_str).unwrap_or_default().into(),
            image: Box::default(),
            image_ref: Box::default(),
            created_at,
            phase: ContainerPhase::Making,
        }
    }

    pub(super) fn from_record(record: &ContainerRecord, phase: ContainerPhase) -> Self {
        Self {
            image: record.image.as_str().into(),
            image_ref: record.image_ref.as_str().into(),
            phase,
            ..Self::new(&record.sandbox, &record.config, Timestamp::from_nanos(record.created_at))
        }
    }

    pub(super) fn kind(&self) -> ContainerStateKind {
        match self.phase {
            ContainerPhase::Making | ContainerPhase::Created | ContainerPhase::Starting => {
                ContainerStateKind::Created
            }
            ContainerPhase::Running(_) => ContainerStateKind::Running,
            ContainerPhase::Exited => ContainerStateKind::Exited,
        }
    }
}

impl RuntimeState {
    /// The sandbox that has taken the name of this one.
    pub(super) fn same_sandbox(&self, config: &SandboxConfig) -> Option<&SandboxId> {
        let same = |sandbox: &Sandbox| {
            sandbox.pod.uid == config.pod.uid
                && sandbox.pod.name == config.pod.name
                && sandbox.pod.namespace == config.pod.namespace
                && sandbox.attempt == config.attempt
        };
        self.sandboxes.iter().find(|(_, sandbox)| same(sandbox)).map(|(id, _)| id)
    }

    /// The container that has taken the name of this one.
    pub(super) fn same_container(&self, id: &SandboxId, config: &ContainerConfig) -> Option<&ContainerId> {
        let same = |container: &Container| {
            container.sandbox == *id
                && container.name.as_str() == config.name
                && container.attempt == config.attempt
        };
        self.containers.iter().find(|(_, container)| same(container)).map(|(id, _)| id)
    }

    pub(super) fn containers_of(&self, sandbox: &SandboxId) -> Vec<ContainerId> {
        let of = self.containers.iter().filter(|(_, container)| container.sandbox == *sandbox);
        of.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn observed_sandboxes(&self, pod: Option<&PodUid>) -> Vec<ObservedSandbox> {
        let wanted = |sandbox: &Sandbox| {
            sandbox.is_pod
                && sandbox.stage != SandboxStage::Making
                && pod.is_none_or(|uid| sandbox.pod.uid == *uid)
        };
        let found = self.sandboxes.iter().filter(|(_, sandbox)| wanted(sandbox));
        // Only a status call reports addresses and network, as with other runtimes.
        found
            .map(|(id, sandbox)| ObservedSandbox {
                ips: Vec::new(),
                host_network: false,
                ..sandbox.observed(id)
            })
            .collect()
    }

    pub(super) fn observed_sandbox(&self, id: &SandboxId) -> Option<ObservedSandbox> {
        self.sandboxes.get(id).map(|sandbox| sandbox.observed(id))
    }

    pub(super) fn observed_containers(&self, pod: Option<&PodUid>) -> Vec<ObservedContainer> {
        let found = self
            .containers
            .iter()
            .filter(|(_, container)| container.is_pod && container.phase != ContainerPhase::Making);
        found
            .filter_map(|(id, container)| self.observed_container(id, container))
            .filter(|container| pod.is_none_or(|uid| container.pod.uid == *uid))
            .collect()
    }

    fn observed_container(&self, id: &ContainerId, container: &Container) -> Option<ObservedContainer> {
        let sandbox = self.sandboxes.get(&container.sandbox)?;
        Some(ObservedContainer {
            id: id.clone(),
            pod: sandbox.pod.clone(),
            name: container.name.clone(),
            sandbox: container.sandbox.clone(),
            state: container.kind(),
            attempt: container.attempt,
            hash: container.hash.to_string(),
            image: container.image.to_string(),
            image_id: container.image_ref.to_string(),
            created_at: container.created_at,
            ..ObservedContainer::default()
        })
    }
}
