//! When each probe of each instance runs.
//!
//! Owns the queue of due times and the slots for running probes.
//!
//! Invariants: a probe is in the queue exactly while its phase is `Due`; a probe has at most one run at a
//! time; the result of a run for a removed instance is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::counts::{self, Counts};
use super::instance::{Instance, ProbePhase, ScheduledProbe, next_run, period};
use super::place::{ProbeAddress, Queue, Sight, Speed};
use super::run::{Ended, Job};
use crate::model::api::pod::Pod;
use crate::model::containers::find_container;
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedPod};
use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;
use crate::platform::metrics::Text;
use crate::pod::inbox::Inbox;
use crate::pod::prober::rules::{ProbeKind, ProbeResults, probed_containers};

/// Concurrent runs of each speed. A run costs a socket and some ten kilobytes.
const PLACES: usize = 32;
/// A probe whose last run took longer is slow and waits for the slots of slow ones, so that any number of
/// hanging probes delays the others by one run at most.
const SLOW: Duration = Duration::from_millis(500);

/// The effects of an ended run on other components.
#[derive(Default)]
pub(super) struct News {
    /// For an event.
    pub complaint: Option<Complaint>,
    /// A published result has changed.
    pub wake: Option<Rc<Inbox>>,
}

/// The content of an event.
pub(super) struct Complaint {
    pub pod: Rc<Pod>,
    pub list: &'static str,
    pub reason: &'static str,
    pub text: String,
}

#[derive(Default)]
pub(super) struct Schedule {
    pods: BTreeMap<PodUid, PodProbes>,
    queue: Queue,
    quick: Places,
    slow: Places,
}

/// The slots of one speed, and the probes that wait for them.
#[derive(Default)]
struct Places {
    waiting: VecDeque<Rc<ProbeAddress>>,
    taken: usize,
}

/// One pod's instances, and the parts of the pod that their probes need.
struct PodProbes {
    pod: Rc<Pod>,
    pod_ip: Rc<str>,
    wake: Rc<Inbox>,
    keep_only_readiness: bool,
    instances: Vec<Instance>,
    /// The results of its containers' probes, over all instances.
    counts: Vec<Counts>,
}

impl Schedule {
    /// Returns true when the queue has new entries.
    pub(in crate::pod) fn observe(&mut self, sight: &Sight<'_>) -> bool {
        let uid = sight.pod.metadata.uid.clone();
        let probes = self.pods.entry(uid).or_insert_with(|| PodProbes::new(sight));
        probes.update(sight);
        probes.instances.retain_mut(|instance| {
            let newest = newest(sight.observed, instance.name.as_str());
            let newest =
                newest.filter(|newest| newest.id == instance.id && instance.is_up_to_date(sight.pod));
            let runs = newest.is_some_and(is_running);
            if !runs {
                instance.stop_all(&mut self.queue);
            }
            // Its failure is why it ended, and counts until there is a successor.
            runs || (newest.is_some() && instance.has_failed())
        });
        let mut is_new = false;
        for (container, kind) in probed_containers(sight.pod) {
            let known = probes.instances.iter().any(|instance| instance.name.as_str() == container.name);
            let newest = newest(sight.observed, &container.name);
            let Some(record) = newest.filter(|record| is_running(record) && !known) else { continue };
            let mut instance = Instance::new(container, kind, record, sight);
            instance.begin(&mut self.queue);
            if probes.keep_only_readiness {
                instance.stop_for_termination(container, &mut self.queue, sight.now);
            }
            probes.instances.push(instance);
            is_new = true;
        }
        is_new
    }

    pub(in crate::pod) fn results(&self, uid: &PodUid) -> ProbeResults {
        let instances = self.pods.get(uid).map_or(&[][..], |probes| &probes.instances);
        instances.iter().map(|instance| (instance.id.clone(), instance.results())).into_map()
    }

    /// Returns true when the queue has new entries.
    pub(in crate::pod) fn keep_only_readiness(&mut self, uid: &PodUid, now: Instant) -> bool {
        let Some(probes) = self.pods.get_mut(uid).filter(|probes| !probes.keep_only_readiness) else {
            return false;
        };
        probes.keep_only_readiness = true;
        for instance in &mut probes.instances {
            if let Some((container, _)) = find_container(&probes.pod, &instance.name) {
                instance.stop_for_termination(container, &mut self.queue, now);
            }
        }
        true
    }

    pub(in crate::pod) fn remove(&mut self, uid: &PodUid) {
        let Some(probes) = self.pods.remove(uid) else { return };
        for mut instance in probes.instances {
            instance.stop_all(&mut self.queue);
        }
    }

    /// Writes the counts of all probes, for `/metrics/probes`.
    pub(in crate::pod) fn show(&self, text: &mut Text) {
        let all = self.pods.values().flat_map(|of_pod| of_pod.counts.iter().map(|one| (&*of_pod.pod, one)));
        counts::show(text, &all.collect::<Vec<_>>());
    }

    /// The runs to start now, and when to call again. Probes without a free slot are checked again when a run
    /// ends.
    pub(in crate::pod) fn begin_due(&mut self, now: Instant) -> (Vec<Job>, Option<Instant>) {
        while let Some((due, _)) = self.queue.first()
            && *due <= now
            && let Some((due, place)) = self.queue.pop_first()
        {
            let Some(entry) = entry_of(&mut self.pods, &place) else { continue };
            entry.phase = ProbePhase::Waiting(due);
            let places = if entry.speed == Speed::Slow { &mut self.slow } else { &mut self.quick };
            places.waiting.push_back(place);
        }
        let mut jobs = Vec::new();
        for (speed, places) in [(Speed::Quick, &mut self.quick), (Speed::Slow, &mut self.slow)] {
            while places.taken < PLACES
                && let Some(place) = places.waiting.pop_front()
            {
                let job = begin(&mut self.pods, place, speed);
                places.taken += usize::from(job.is_some());
                jobs.extend(job);
            }
        }
        (jobs, self.queue.first().map(|(due, _)| *due))
    }

    /// A run has ended: counts its result and plans the next one.
    pub(in crate::pod) fn finish(&mut self, ended: &Ended, now: Instant) -> News {
        let places = if ended.speed == Speed::Slow { &mut self.slow } else { &mut self.quick };
        places.taken -= 1;
        self.count(ended, now).unwrap_or_default()
    }

    /// `None` when the probe was removed meanwhile.
    fn count(&mut self, ended: &Ended, now: Instant) -> Option<News> {
        let kind = ended.place.kind;
        let of_pod = self.pods.get_mut(&ended.place.uid)?;
        let instance = of_pod.instances.iter_mut().find(|instance| instance.id == ended.id)?;
        let (container, _) = find_container(&of_pod.pod, &ended.place.container)?;
        let probe = kind.of(container)?;
        let entry = instance.probes.iter_mut().find(|entry| entry.place.kind == kind)?;
        let ProbePhase::Running(planned) = entry.phase else { return None };
        Counts::add(&mut of_pod.counts, ended);
        entry.speed = if ended.took > SLOW { Speed::Slow } else { Speed::Quick };
        let complaint = entry.next_complaint(&ended.answer, probe.failure_threshold);
        let before = entry.counter.published;
        if let Some(result) = ended.answer.result() {
            entry.counter = entry.counter.record(kind, probe, result);
        }
        let is_changed = entry.counter.published != before;
        if entry.counter.on_hold {
            entry.unschedule(&mut self.queue);
        } else {
            entry.schedule(&mut self.queue, next_run(planned, period(probe), now));
        }
        if is_changed && kind == ProbeKind::Startup && instance.has_started() {
            instance.release(container, &mut self.queue, now);
        }
        let complaint = complaint.map(|(reason, words)| Complaint {
            pod: Rc::clone(&of_pod.pod),
            list: instance.list,
            reason,
            text: format!("{} probe {words}", kind.as_str()),
        });
        Some(News { complaint, wake: is_changed.then(|| Rc::clone(&of_pod.wake)) })
    }
}

impl PodProbes {
    fn new(sight: &Sight<'_>) -> Self {
        Self {
            pod: Rc::clone(sight.pod),
            pod_ip: sight.pod_ip.into(),
            wake: Rc::clone(sight.wake),
            keep_only_readiness: false,
            instances: Vec::new(),
            counts: Vec::new(),
        }
    }

    fn update(&mut self, sight: &Sight<'_>) {
        self.pod = Rc::clone(sight.pod);
        self.wake = Rc::clone(sight.wake);
        if *self.pod_ip != *sight.pod_ip {
            self.pod_ip = sight.pod_ip.into();
        }
    }
}

/// The newest record of a container.
fn newest<'a>(observed: &'a ObservedPod, name: &str) -> Option<&'a ObservedContainer> {
    observed.containers.iter().find(|record| record.name.as_str() == name)
}

fn is_running(record: &ObservedContainer) -> bool {
    record.state == ContainerStateKind::Running
}

fn entry_of<'a>(
    pods: &'a mut BTreeMap<PodUid, PodProbes>,
    place: &ProbeAddress,
) -> Option<&'a mut ScheduledProbe> {
    let instances = &mut pods.get_mut(&place.uid)?.instances;
    let instance = instances.iter_mut().find(|instance| instance.name == place.container)?;
    instance.probes.iter_mut().find(|entry| entry.place.kind == place.kind)
}

/// `None` when the probe was removed while it waited.
fn begin(pods: &mut BTreeMap<PodUid, PodProbes>, place: Rc<ProbeAddress>, speed: Speed) -> Option<Job> {
    let entry = entry_of(pods, &place)?;
    let ProbePhase::Waiting(planned) = entry.phase else { return None };
    entry.phase = ProbePhase::Running(planned);
    let of_pod = pods.get(&place.uid)?;
    let instance = of_pod.instances.iter().find(|instance| instance.name == place.container)?;
    Some(Job {
        id: instance.id.clone(),
        place,
        pod: Rc::clone(&of_pod.pod),
        pod_ip: Rc::clone(&of_pod.pod_ip),
        speed,
    })
}
