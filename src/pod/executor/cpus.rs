//! The CPUs and the memory nodes of containers, as the resource managers have decided.
//!
//! Owns the order: containers on shared CPUs leave an exclusive one before its container starts.

use crate::managers::ResourceManagers;
use crate::managers::cpu_set::CpuSet;
use crate::model::api::pod::{Container, Pod};
use crate::model::observed::ContainerStateKind;
use crate::model::ordered::Sortable as _;
use crate::model::types::{ContainerId, PodUid};
use crate::pod::events::EventType;
use crate::pod::executor::Executor;
use crate::pod::resources::{QosClass, ResourceFlags, container_resources, qos_class};
use crate::runtime::{ErrorKind, LinuxResources, Runtime};

impl<R: Runtime> Executor<R> {
    #[must_use]
    pub(crate) fn managers(&self) -> &ResourceManagers {
        &self.config.managers
    }

    /// How resources become values for this container, or, without a name, for the pod.
    pub(super) fn flags_for(&self, uid: &PodUid, container: Option<&str>) -> ResourceFlags {
        let mut flags = self.config.resources.clone();
        flags.cpu_cfs_quota &= !self.config.managers.lifts_quota(uid, container);
        flags
    }

    /// The container's cgroup values, with its CPUs and its memory nodes.
    pub(super) fn resources_of(&self, pod: &Pod, container: &Container) -> LinuxResources {
        let (uid, name) = (&pod.metadata.uid, container.name.as_str());
        let flags = self.flags_for(uid, Some(name));
        let mut resources = container_resources(pod, container, &self.config.capacity, &flags);
        resources.cpuset_cpus = self.config.managers.cpus(uid, name).to_string();
        resources.cpuset_mems = self.config.managers.memory_nodes(uid, name);
        resources
    }

    /// A running pod that has less than it asks for, because the policies are newer than it is.
    pub(in crate::pod) async fn keep_resources(&self, pod: &Pod) {
        let managers = &self.config.managers;
        if let Err(refusal) = managers.keep(pod, qos_class(pod) == QosClass::Guaranteed).await {
            let message = format!("the pod keeps running with what it has: {}", refusal.message);
            self.pod_event(pod, EventType::Warning, refusal.reason, &message);
        }
        if !managers.is_settled() {
            self.settle_cpus().await;
        }
    }

    /// The container exists and is about to start. If it has CPUs to itself, no other container may be on them; if
    /// the shared ones are fewer than when it was configured, it must not start on more.
    pub(super) async fn settle_before_start(
        &self,
        pod: &Pod,
        container: &Container,
        id: &ContainerId,
        given: &str,
    ) {
        let managers = &self.config.managers;
        if !managers.pins_cpus() {
            return;
        }
        let given = CpuSet::parse(given).unwrap_or_default();
        managers.note(id, given);
        let uid = &pod.metadata.uid;
        if given != managers.cpus(uid, &container.name) {
            managers.set_settled(false);
        }
        // Also when all is said to be settled: another worker may be about it, and holds the lock.
        if !managers.is_settled() || !managers.exclusive(uid, &container.name).is_empty() {
            self.settle_cpus().await;
        }
    }

    /// Gives every container the CPUs that it should have now, those on shared CPUs first. What fails is tried again
    /// after `cpuManagerReconcilePeriod`.
    pub(in crate::pod) async fn settle_cpus(&self) {
        let managers = &self.config.managers;
        let _turn = self.settling.lock().await;
        if managers.is_settled() {
            return;
        }
        // Before the first await: a change from here on makes it unsettled again.
        managers.set_settled(true);
        let mut containers = match self.runtime.list_containers(None).await {
            Ok(containers) => containers,
            Err(error) => {
                managers.set_settled(false);
                log::debug!(err:% = error.message; "Failed to list containers to update their CPUs");
                return;
            }
        };
        managers.keep_notes(|id| containers.iter().any(|container| container.id == *id));
        let is_live = |state| matches!(state, ContainerStateKind::Running | ContainerStateKind::Created);
        containers.retain(|container| is_live(container.state));
        containers.order_by_key(|container| {
            !managers.exclusive(&container.pod.uid, container.name.as_str()).is_empty()
        });
        for container in containers {
            let cpus = managers.cpus(&container.pod.uid, container.name.as_str());
            if cpus.is_empty() || managers.has(&container.id, &cpus) {
                continue;
            }
            let change = LinuxResources { cpuset_cpus: cpus.to_string(), ..LinuxResources::default() };
            match self.runtime.update_container_resources(&container.id, &change).await {
                Ok(()) => managers.note(&container.id, cpus),
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => {
                    managers.set_settled(false);
                    log::warn!(pod:% = container.pod, container:% = container.name, cpus:% = cpus,
                        err:% = error.message; "Failed to update the CPUs of a container");
                }
            }
        }
        managers.settled().await;
    }
}
