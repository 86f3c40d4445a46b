//! One container instance and the state of each of its probes.
//!
//! Owns phases and due times.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::place::{ProbeAddress, Queue, Sight, Speed};
use super::run::ProbeOutcome;
use crate::model::api::pod::{Container, Pod, Probe};
use crate::model::containers::{ContainerKind, find_container};
use crate::model::observed::ObservedContainer;
use crate::model::types::{ContainerId, ContainerName};
use crate::pod::prober::rules::{
    InstanceProbes, ProbeCounter, ProbeKind, ProbeResult, initial_results, is_reported,
};

/// A running instance, or a failed one without a successor.
pub(super) struct Instance {
    pub name: ContainerName,
    pub id: ContainerId,
    /// Of the pod's spec, as events name it.
    pub list: &'static str,
    /// One of each kind at most.
    pub probes: Vec<ScheduledProbe>,
    /// The instance has ended: it is not probed any more.
    is_over: bool,
}

pub(super) struct ScheduledProbe {
    pub place: Rc<ProbeAddress>,
    pub counter: ProbeCounter,
    pub phase: ProbePhase,
    pub speed: Speed,
    /// The earliest time of a run.
    base: Instant,
    last_complaint: LastComplaint,
}

/// Each phase has the time for which the run is or was planned: the next run is one period after that,
/// however late this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbePhase {
    /// Waits for an event: the startup probe succeeds, or there is a new instance.
    Parked,
    /// In the queue.
    Due(Instant),
    /// Waits for a free slot.
    Waiting(Instant),
    Running(Instant),
}

/// The last complaint, by hash, and how often it was repeated.
#[derive(Default)]
struct LastComplaint {
    words: u64,
    times: u32,
}

impl Instance {
    pub(in crate::pod) fn new(
        container: &Container,
        kind: ContainerKind,
        record: &ObservedContainer,
        sight: &Sight<'_>,
    ) -> Self {
        let initial = initial_results(container, &record.id, sight.remembered);
        let entry = |kind: ProbeKind| {
            let probe = kind.of(container)?;
            let published = match kind {
                ProbeKind::Startup => initial.startup,
                ProbeKind::Readiness => initial.readiness,
                ProbeKind::Liveness => initial.liveness,
            };
            let uid = sight.pod.metadata.uid.clone();
            let place = ProbeAddress { uid, container: record.name.clone(), kind };
            Some(ScheduledProbe {
                place: Rc::new(place),
                counter: ProbeCounter::new(kind, published),
                phase: ProbePhase::Parked,
                speed: Speed::default(),
                base: first_run(probe, kind, record, sight),
                last_complaint: LastComplaint::default(),
            })
        };
        Self {
            name: record.name.clone(),
            id: record.id.clone(),
            list: if kind == ContainerKind::Regular { "containers" } else { "initContainers" },
            probes: ProbeKind::ALL.into_iter().filter_map(entry).collect(),
            is_over: false,
        }
    }

    pub(in crate::pod) fn results(&self) -> InstanceProbes {
        let of = |kind| self.probes.iter().find(|entry| entry.place.kind == kind)?.counter.published;
        InstanceProbes {
            startup: of(ProbeKind::Startup),
            readiness: of(ProbeKind::Readiness),
            liveness: of(ProbeKind::Liveness),
        }
    }

    /// Whether the pod's spec has exactly these probes for the container.
    pub(in crate::pod) fn is_up_to_date(&self, pod: &Pod) -> bool {
        let is_known = |kind| self.probes.iter().any(|entry| entry.place.kind == kind);
        find_container(pod, &self.name).is_some_and(|(container, _)| {
            ProbeKind::ALL.into_iter().all(|kind| kind.of(container).is_some() == is_known(kind))
        })
    }

    /// Whether the instance is or was to be killed for a failed probe.
    pub(in crate::pod) fn has_failed(&self) -> bool {
        let InstanceProbes { startup, liveness, .. } = self.results();
        [startup, liveness].contains(&Some(ProbeResult::Failure))
    }

    /// Whether the startup probe has succeeded, or there is none.
    pub(in crate::pod) fn has_started(&self) -> bool {
        let startup = self.probes.iter().find(|entry| entry.place.kind == ProbeKind::Startup);
        startup.is_none_or(|entry| entry.counter.published == Some(ProbeResult::Success))
    }

    /// Plans the first runs: only of the startup probe until it has succeeded.
    pub(in crate::pod) fn begin(&mut self, queue: &mut Queue) {
        let has_started = self.has_started();
        for entry in &mut self.probes {
            if (entry.place.kind == ProbeKind::Startup) != has_started {
                let base = entry.base;
                entry.schedule(queue, base);
            }
        }
    }

    /// The instance has started: the readiness probe runs at once, the liveness probe at its time.
    pub(in crate::pod) fn release(&mut self, container: &Container, queue: &mut Queue, now: Instant) {
        for entry in self.probes.iter_mut().filter(|entry| entry.phase == ProbePhase::Parked) {
            let Some(probe) = entry.place.kind.of(container) else { continue };
            let next = match entry.place.kind {
                _ if entry.counter.on_hold => continue,
                ProbeKind::Startup => continue,
                ProbeKind::Readiness => now.max(entry.base),
                ProbeKind::Liveness if entry.base >= now => entry.base,
                ProbeKind::Liveness => {
                    let turn = next_run(entry.base, period(probe), now);
                    if turn < now { turn + period(probe) } else { turn }
                }
            };
            entry.schedule(queue, next);
        }
    }

    /// Publishes success for liveness and startup and stops these probes, as upstream does for a pod that is
    /// being taken down.
    pub(in crate::pod) fn stop_for_termination(
        &mut self,
        container: &Container,
        queue: &mut Queue,
        now: Instant,
    ) {
        if self.is_over {
            return;
        }
        let had_started = self.has_started();
        for entry in self.probes.iter_mut().filter(|entry| entry.place.kind != ProbeKind::Readiness) {
            entry.counter.published = Some(ProbeResult::Success);
            entry.counter.on_hold = true;
            entry.unschedule(queue);
        }
        if !had_started {
            self.release(container, queue, now);
        }
    }

    pub(in crate::pod) fn stop_all(&mut self, queue: &mut Queue) {
        self.is_over = true;
        for entry in &mut self.probes {
            entry.unschedule(queue);
        }
    }
}

impl ScheduledProbe {
    pub(in crate::pod) fn schedule(&mut self, queue: &mut Queue, due: Instant) {
        self.unschedule(queue);
        self.phase = ProbePhase::Due(due);
        queue.insert((due, Rc::clone(&self.place)));
    }

    pub(in crate::pod) fn unschedule(&mut self, queue: &mut Queue) {
        if let ProbePhase::Due(due) = self.phase {
            queue.remove(&(due, Rc::clone(&self.place)));
        }
        self.phase = ProbePhase::Parked;
    }

    /// Reason and message of an event; `None` if the same message was reported often enough.
    pub(in crate::pod) fn next_complaint(
        &mut self,
        answer: &ProbeOutcome,
        threshold: i32,
    ) -> Option<(&'static str, String)> {
        let Some((reason, words)) = answer.complaint() else {
            self.last_complaint = LastComplaint::default();
            return None;
        };
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        let hash = hasher.finish();
        let times =
            if self.last_complaint.words == hash { self.last_complaint.times.saturating_add(1) } else { 1 };
        self.last_complaint = LastComplaint { words: hash, times };
        is_reported(times, threshold).then_some((reason, words))
    }
}

pub(super) fn period(probe: &Probe) -> Duration {
    Duration::from_secs(u64::try_from(probe.period_seconds).unwrap_or_default().max(1))
}

/// One period after the run planned for `planned`. A run that is later than that is due at once, and further
/// missed runs are skipped, so that runs keep their phase.
pub(super) fn next_run(planned: Instant, period: Duration, now: Instant) -> Instant {
    let behind = now.saturating_duration_since(planned).as_nanos() / period.as_nanos().max(1);
    planned + period * u32::try_from(behind).unwrap_or(u32::MAX).max(1)
}

/// The time of the first run: after the initial delay, counted from the container's start. Probes of
/// containers that an earlier process started are spread over a period by the container's id, so that they do
/// not all run in the first second of this process.
fn first_run(probe: &Probe, kind: ProbeKind, record: &ObservedContainer, sight: &Sight<'_>) -> Instant {
    let initial = Duration::from_secs(u64::try_from(probe.initial_delay_seconds).unwrap_or_default());
    let delay = initial.saturating_sub(sight.wall.saturating_since(record.started_at));
    let is_adopted = record.started_at < sight.agent_since;
    let spread = if is_adopted { spread(&record.id, kind, period(probe)) } else { Duration::ZERO };
    sight.now + delay + spread
}

/// A time in `[0, period)`, always the same for the same probe of the same instance.
pub(super) fn spread(id: &ContainerId, kind: ProbeKind, period: Duration) -> Duration {
    let bytes = id.as_str().bytes().chain(kind.as_str().bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let nanos = (period.as_nanos() * u128::from(hash)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}
