//! The phase of a pod, counted from its container statuses.

use super::RESTARTING_ALL_CONTAINERS;
use crate::model::api::pod::{Container, ContainerStatus, Pod, PodStatus};
use crate::model::containers::is_sidecar;
use crate::model::types::ContainerId;
use crate::pod::prober::rules::{ProbeResults, runs_again_after_kill};
use crate::pod::restart::restarts_after;

#[derive(Default)]
struct Count {
    pending_init: u32,
    pending_sidecars: u32,
    failed_init_for_good: u32,
    running: u32,
    waiting: u32,
    unknown: u32,
    stopped: u32,
    succeeded: u32,
    will_restart: u32,
}

/// Upstream's checks in upstream's order. `terminal` means that nothing will be restarted.
pub(super) fn phase(pod: &Pod, status: &PodStatus, terminal: bool, probes: &ProbeResults) -> &'static str {
    let mut count = Count::default();
    for container in &pod.spec.init_containers {
        let found = find(&status.init_container_statuses, container);
        if is_sidecar(container) {
            count.sidecar(found);
        } else {
            count.init(pod, container, found);
        }
    }
    for container in &pod.spec.containers {
        let found = find(&status.container_statuses, container);
        count.regular(pod, container, found);
        let killed = found.filter(|found| found.state.running.is_none()).and_then(shown_id);
        let again = killed.is_some_and(|id| runs_again_after_kill(pod, container, &id, probes));
        count.will_restart += u32::from(again);
    }
    let initialised = status
        .container_statuses
        .iter()
        .any(|container| container.state.running.is_some() || container.state.terminated.is_some());
    if count.failed_init_for_good > 0 {
        "Failed"
    } else if count.pending_init > 0 || (count.pending_sidecars > 0 && !initialised) || count.waiting > 0 {
        "Pending"
    } else if count.running > 0 && count.unknown == 0 {
        "Running"
    } else if count.running == 0 && count.stopped > 0 && count.unknown == 0 {
        match (terminal, count.stopped == count.succeeded) {
            (false, _) if count.will_restart > 0 => "Running",
            (_, true) => "Succeeded",
            (_, false) => "Failed",
        }
    } else {
        "Pending"
    }
}

/// Of the newest instance.
fn shown_id(status: &ContainerStatus) -> Option<ContainerId> {
    status.container_id.split_once("://").map(|(_, id)| id.into())
}

fn find<'a>(statuses: &'a [ContainerStatus], container: &Container) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == container.name)
}

/// The container waits because the whole pod restarts, so it runs again whatever its policy is.
fn starts_over(status: Option<&ContainerStatus>) -> bool {
    status.is_some_and(|status| {
        let last = status.last_state.terminated.as_ref();
        status.state.waiting.is_some() && last.is_some_and(|ended| ended.reason == RESTARTING_ALL_CONTAINERS)
    })
}

impl Count {
    fn init(&mut self, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
        let ended = status.and_then(|status| {
            let last = status.state.waiting.as_ref().and(status.last_state.terminated.as_ref());
            status.state.terminated.as_ref().or(last)
        });
        match ended {
            None => self.pending_init += 1,
            Some(_) if starts_over(status) => self.pending_init += 1,
            Some(ended) if ended.exit_code != 0 && !restarts_after(pod, container, ended.exit_code) => {
                self.failed_init_for_good += 1;
            }
            Some(_) => {}
        }
    }

    fn sidecar(&mut self, status: Option<&ContainerStatus>) {
        let Some(status) = status else {
            self.pending_sidecars += 1;
            return;
        };
        if status.state.running.is_some() {
            self.running += 1;
            if status.started != Some(true) {
                self.pending_sidecars += 1;
            }
        } else if status.state.terminated.is_none() && status.last_state.terminated.is_none() {
            self.pending_sidecars += 1;
            self.waiting += 1;
        }
    }

    fn regular(&mut self, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
        let Some(status) = status else {
            self.unknown += 1;
            return;
        };
        if status.state.running.is_some() {
            self.running += 1;
        } else if let Some(ended) = &status.state.terminated {
            self.stopped += 1;
            self.succeeded += u32::from(ended.exit_code == 0);
            self.will_restart += u32::from(restarts_after(pod, container, ended.exit_code));
        } else if let Some(ended) = &status.last_state.terminated {
            // Waiting for its next run.
            let again = starts_over(Some(status)) || restarts_after(pod, container, ended.exit_code);
            self.stopped += 1;
            self.will_restart += u32::from(again);
        } else if status.state.waiting.is_some() {
            self.waiting += 1;
        } else {
            self.unknown += 1;
        }
    }
}
