//! What must hold whatever the agent does.
//!
//! Owns the checks and their messages. Must not change anything.

use crate::model::observed::{ContainerStateKind, ObservedContainer};
use crate::model::types::{ContainerId, SandboxId};
use crate::runtime::IdRange;

use super::World;

impl World {
    /// A description of all objects, for messages of failing tests.
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

    /// No two running pods share users; called when a sandbox has just been made.
    pub(super) fn check_users(&self, made: &SandboxId) {
        let made = &self.sandboxes[made];
        let Some(range) = made.config.user_namespace else { return };
        let overlaps =
            |other: IdRange| other.host < range.host + range.length && range.host < other.host + other.length;
        let other = self.sandboxes.values().find(|other| {
            other.observed.ready
                && other.config.pod.uid != made.config.pod.uid
                && other.config.user_namespace.is_some_and(overlaps)
        });
        if let Some(other) = other {
            panic!(
                "invariant: {} and {} share users\n{}",
                made.config.pod,
                other.config.pod,
                self.describe()
            );
        }
    }

    /// What must hold whatever the agent does; called when a container has just started.
    pub(super) fn check_invariants(&self, started: &ContainerId) {
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
}

/// The distinctive end of a long id.
fn short(id: &str) -> &str {
    id.get(id.len().saturating_sub(6)..).unwrap_or(id)
}
