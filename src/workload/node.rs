//! What the steps ask of this node: whether a pod may be created, what only one pod can have, its time zones.
//!
//! Owns the time zones that CronJobs name, and since when the clock is believed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::environment::{FLOOR, NodeEnvironment};
use crate::desired::api_pod;
use crate::desired::local_objects::accept;
use crate::desired::pod_config::PodConfig;
use crate::desired::priority;
use crate::model::api::pod::{Pod, PodStatus};
use crate::model::cron::Zone;
use crate::model::objects::{LocalObject, LocalObjects, ObjectKind, ObjectLookup as _, wire};
use crate::model::provenance::mark_first_seen;
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::pod::admission::Admission;
use crate::pod::admission::rules::{daemon_placement, exclusive_port, shortage};
use crate::pod::runtime_class;
use crate::pod::status::StatusManager;
use crate::pod::status::rules::has_ended;
use crate::pod::volume::rules::claim_of;

/// Where the time zone database is.
const ZONES: &str = "/usr/share/zoneinfo";
/// Time zones that are remembered.
const MAX_ZONES: usize = 64;
/// A clock that nothing keeps right is believed when the machine has been up for so long.
const SETTLED: Duration = Duration::from_secs(600);
const DEVICES: &str = "devices.agent.edge/";

type Zones = BTreeMap<String, Result<Rc<Zone>, String>>;

/// The parts that do not change from one pass to the next.
pub(super) struct Node {
    pub name: String,
    pub clock: Clock,
    pub admission: Admission,
    pub objects: Rc<LocalObjects>,
    /// The names of the runtime's handlers.
    pub handlers: Rc<dyn Fn() -> Vec<String>>,
    zones: RefCell<Zones>,
    /// Zones to read before the next pass.
    wanted: RefCell<BTreeSet<String>>,
    believed: Cell<Option<Timestamp>>,
}

impl Node {
    pub(super) fn new(
        name: String,
        clock: Clock,
        admission: Admission,
        objects: Rc<LocalObjects>,
        handlers: Rc<dyn Fn() -> Vec<String>>,
    ) -> Self {
        Self {
            name,
            clock,
            admission,
            objects,
            handlers,
            zones: RefCell::default(),
            wanted: RefCell::default(),
            believed: Cell::new(None),
        }
    }

    /// Looks at the clock before a pass.
    pub(super) fn check_clock(&self) {
        let now = self.clock.now();
        let believed = self.believed.get().filter(|_| now >= FLOOR).or((now >= FLOOR).then_some(now));
        self.believed.set(believed);
    }

    /// Reads the zones that the last pass has asked for. False when there are none.
    pub(super) async fn read_zones(&self) -> bool {
        // One that is not there is looked for again each time.
        self.zones.borrow_mut().retain(|_, zone| zone.is_ok());
        let wanted = self.wanted.take();
        for name in &wanted {
            let path = format!("{ZONES}/{name}");
            let read = rt::blocking("time zone", move || std::fs::read(path)).await;
            let zone = read.ok().and_then(|bytes| Zone::parse(&bytes)).map(Rc::new);
            let zone = zone.ok_or_else(|| {
                format!("unknown time zone {name}: {ZONES} of this node does not have it; install tzdata, or leave the field out for UTC")
            });
            let mut zones = self.zones.borrow_mut();
            while zones.len() >= MAX_ZONES {
                zones.pop_first();
            }
            zones.insert(name.clone(), zone);
        }
        !wanted.is_empty()
    }
}

/// The node, and the desired state in one pass.
pub(super) struct InPass<'p> {
    pub node: &'p Node,
    pub config: &'p PodConfig,
    pub statuses: &'p StatusManager,
}

/// Calls `visit` with each pod that has not ended and the name of each claim that it names.
pub(super) fn each_used_claim(statuses: &StatusManager, mut visit: impl FnMut(&Pod, String)) {
    statuses.each(|pod, status, _| {
        if has_its_volumes(pod, status) {
            for (claim, _) in pod.spec.volumes.iter().filter_map(|volume| claim_of(pod, volume)) {
                visit(pod, claim);
            }
        }
    });
}

/// A deleted pod has its volumes until it is gone, whatever its phase.
fn has_its_volumes(pod: &Pod, status: &PodStatus) -> bool {
    pod.metadata.deletion_timestamp.is_some() || !has_ended(status)
}

impl NodeEnvironment for InPass<'_> {
    fn admit(&self, mut pod: Pod, uid: PodUid) -> Result<Pod, String> {
        let name = pod.metadata.name.clone();
        let forbidden = |why: String| format!("pods {name:?} is forbidden: {why}");
        self.config.admit_account(&mut pod, uid.as_str()).map_err(forbidden)?;
        priority::admit(&mut pod.spec, &self.config.priority_classes()).map_err(forbidden)?;
        let handlers = (self.node.handlers)();
        let class = runtime_class::class_of(&pod).and_then(|class| self.config.runtime_class(class));
        runtime_class::admit(&mut pod, class, handlers.iter().map(String::as_str)).map_err(forbidden)?;
        api_pod::create(pod, &self.node.name, uid, self.node.clock.now()).map_err(|errors| {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            match &texts[..] {
                [one] => format!("Pod {name:?} is invalid: {one}"),
                all => format!("Pod {name:?} is invalid: [{}]", all.join(", ")),
            }
        })
    }

    fn is_claim_used(&self, namespace: &str, name: &str, before: Option<Timestamp>) -> bool {
        let is_early = |created: Option<Timestamp>| {
            before.is_none_or(|before| created.is_none_or(|created| created <= before))
        };
        let mut is_used = false;
        each_used_claim(self.statuses, |pod, claim| {
            let of = &pod.metadata;
            is_used |= of.namespace == namespace && claim == name && is_early(of.creation_timestamp);
        });
        is_used
    }

    fn has_directory(&self, claim: &LocalObject) -> bool {
        self.node.objects.has_directory(claim)
    }

    fn exclusive(&self, pod: &Pod) -> Option<String> {
        if let Some(port) = exclusive_port(pod) {
            return Some(format!("host port {port}"));
        }
        let mut annotations = pod.metadata.annotations.iter();
        if let Some((_, devices)) = annotations.find(|(name, _)| name.starts_with(DEVICES)) {
            return Some(format!("device {devices}"));
        }
        let namespace = match pod.metadata.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let claims = pod.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        let mut single = claims.filter(|claim| {
            let found = self.node.objects.persistent_volume_claim(namespace, &claim.claim_name);
            found.is_some_and(|volume| volume.single_pod)
        });
        if let Some(claim) = single.next() {
            return Some(format!("claim {} (ReadWriteOncePod)", claim.claim_name));
        }
        let others: Vec<&Pod> = self.config.pods().map(|pod| &*pod.pod).collect();
        let lacking = shortage(pod, &others, &self.node.admission.node());
        lacking.first().map(|(name, _)| format!("the {name} that they request on this node"))
    }

    fn daemon_fits(&self, pod: &Pod) -> (bool, bool) {
        let mut pod = pod.clone();
        mark_first_seen(&mut pod, PodSource::Api, Timestamp::default());
        daemon_placement(&pod, &self.node.admission.node())
    }

    fn claim(&self, claim: Value) -> Result<LocalObject, String> {
        let kind = ObjectKind::PersistentVolumeClaim;
        let (decoded, _) = wire::decode_object(kind, claim).map_err(|error| error.to_string())?;
        accept(decoded).map_err(|invalid| invalid.to_string())
    }

    fn zone(&self, name: &str) -> Option<Result<Rc<Zone>, String>> {
        let found = self.node.zones.borrow().get(name).cloned();
        if found.is_none() {
            self.node.wanted.borrow_mut().insert(name.to_owned());
        }
        found
    }

    fn node_name(&self) -> &str {
        &self.node.name
    }

    fn up(&self) -> Duration {
        self.node.clock.since_boot()
    }

    fn clock_since(&self) -> Option<Timestamp> {
        self.node.believed.get()
    }

    fn clock_is_settled(&self) -> bool {
        self.node.clock.is_synchronized() || self.up() >= SETTLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_its_volumes_until_it_has_ended_or_is_gone() {
        let status = |phase: &str| PodStatus { phase: phase.to_owned(), ..PodStatus::default() };
        let (kept, mut deleted) = (Pod::default(), Pod::default());
        deleted.metadata.deletion_timestamp = Some(Timestamp::from_secs(1));
        assert!(has_its_volumes(&kept, &status("Pending")) && has_its_volumes(&kept, &status("Running")));
        assert!(!has_its_volumes(&kept, &status("Succeeded")));
        assert!(has_its_volumes(&deleted, &status("Succeeded")), "they may still be mounted");
    }
}
