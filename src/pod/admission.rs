//! Which pods fit on this node together.
//!
//! Owns the set of admitted pods and of those that wait for room. The decision itself is in `rules`.

mod preemption;
pub mod rules;

use crate::model::ordered::Sortable as _;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::devices::allocation::is_extended;
use crate::model::api::pod::{Pod, ResourceList, StringMap};
use crate::model::disruption::Pressure;
use crate::model::node_changes::{NodeBase, NodeChanges, Taint};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::is_of_cluster;
use crate::model::types::PodUid;
use crate::platform::metrics::{self, Family};
use crate::pod::admission::preemption::pods_to_preempt;
use crate::pod::admission::rules::{
    NodeFacts, Rejection, admit, beyond_node, schedule, shortage, waiting_order,
};
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::plan::resize::{PendingResize, infeasible};
use crate::pod::resources::is_critical;
use crate::runtime::RuntimeStatus;

static REJECTIONS: Family = Family::counter(
    "kubelet_admission_rejections_total",
    "Cumulative number of pod admission rejections, by reason",
    &["reason"],
);

/// The admission state of the node. Clones share it.
#[derive(Clone)]
pub struct Admission {
    shared: Rc<AdmissionInner>,
}

struct AdmissionInner {
    events: EventRecorder,
    /// The labels and taints of the configuration.
    base: NodeBase,
    state: RefCell<AdmissionState>,
}

#[derive(Default)]
struct AdmissionState {
    node: NodeFacts,
    admitted: BTreeMap<PodUid, Rc<Pod>>,
    /// Pods that have ended and left their room, and something on the node.
    leaving: BTreeSet<PodUid>,
    waiting: BTreeMap<PodUid, Waiting>,
    /// Labels and taints are those of the Node in the cluster.
    is_joined: bool,
}

/// A pod that did not fit at its last admission check.
struct Waiting {
    pod: Rc<Pod>,
    rejection: Rejection,
    /// The pod runs unchanged; only its resize waits.
    runs: bool,
}

impl Admission {
    /// A node without pods. Rejections are recorded as events.
    #[must_use]
    pub fn new(node: NodeFacts, events: EventRecorder) -> Self {
        let base = NodeBase { labels: node.labels.clone(), taints: node.taints.clone() };
        let state = AdmissionState { node, ..AdmissionState::default() };
        Self { shared: Rc::new(AdmissionInner { events, base, state: RefCell::new(state) }) }
    }

    /// The node as it is now.
    #[must_use]
    pub(crate) fn node(&self) -> NodeFacts {
        self.shared.state.borrow().node.clone()
    }

    /// Admits the pod if it fits; otherwise it is tried again when room appears. Idempotent for an admitted
    /// pod. Also returns the waiting pods to check again: a changed pod may need less, or lose its place.
    pub(crate) fn admit(&self, pod: &Rc<Pod>) -> (Result<(), Rejection>, BTreeSet<PodUid>) {
        let mut state = self.shared.state.borrow_mut();
        let uid = &pod.metadata.uid;
        if state.admitted.get(uid).is_some_and(|admitted| **admitted == **pod) {
            return (Ok(()), BTreeSet::new());
        }
        let had_place = state.admitted.remove(uid).is_some();
        let verdict = if had_place { state.check_admission(pod) } else { state.check_new(pod) };
        match &verdict {
            Ok(()) => state.add_admitted(pod),
            Err(rejection) => {
                state.waiting.retain(|_, waiting| !waiting.runs || waiting.pod.metadata.uid != *uid);
                if is_of_cluster(pod) && !had_place {
                    // It has failed: room that appears later is not for it.
                    self.report_rejection(pod, rejection);
                } else {
                    self.reject(&mut state, pod, rejection);
                }
            }
        }
        let news = if had_place { self.retry_waiting(&mut state) } else { BTreeSet::new() };
        (verdict, news)
    }

    /// Admits a pod that runs already, whether it fits or not. Returns the waiting pods to check again,
    /// because this one may use less than before.
    pub(crate) fn reserve(&self, pod: &Rc<Pod>) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        let before = state.admitted.get(&pod.metadata.uid).cloned();
        state.add_admitted(pod);
        if before.is_none_or(|before| before.spec == pod.spec) {
            return BTreeSet::new();
        }
        self.retry_waiting(&mut state)
    }

    /// Reserves room for the resize of a running pod; if there is none now, the pod keeps `current`. Also
    /// returns the waiting pods to check again.
    pub(crate) fn resize(
        &self,
        current: &Rc<Pod>,
        wanted: &Rc<Pod>,
    ) -> (Result<(), PendingResize>, BTreeSet<PodUid>) {
        let impossible = {
            let state = self.shared.state.borrow();
            infeasible(current, wanted, state.node.static_policies)
                .or_else(|| beyond_node(wanted, &state.node))
        };
        if let Some(message) = impossible {
            return (Err(PendingResize::infeasible(message)), self.reserve(current));
        }
        let verdict = self.shared.state.borrow().check_admission(wanted);
        let Err(rejection) = verdict else { return (Ok(()), self.reserve(wanted)) };
        let news = self.reserve(current);
        let pending = PendingResize::deferred(rejection.message.clone());
        let waiting = Waiting { pod: Rc::clone(wanted), rejection, runs: true };
        self.shared.state.borrow_mut().waiting.insert(wanted.metadata.uid.clone(), waiting);
        (Err(pending), news)
    }

    /// Releases the room of a pod that has ended and is still cleaned up. Returns the waiting pods to check again.
    pub(super) fn vacate(&self, uid: &PodUid) -> BTreeSet<PodUid> {
        let news = self.release(uid);
        self.shared.state.borrow_mut().leaving.insert(uid.clone());
        news
    }

    /// Releases the pod's room; nothing of the pod is left on the node. Returns the waiting pods to check again.
    pub(crate) fn release(&self, uid: &PodUid) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        state.leaving.remove(uid);
        state.waiting.remove(uid);
        match state.admitted.remove(uid) {
            Some(_) => self.retry_waiting(&mut state),
            None => BTreeSet::new(),
        }
    }

    /// Releases the room of an admitted pod that cannot run after all. Records an event unless it `is_told`.
    /// Returns the waiting pods to check again.
    pub(super) fn revoke(&self, pod: &Pod, rejection: &Rejection, is_told: bool) -> BTreeSet<PodUid> {
        let news = self.release(&pod.metadata.uid);
        if !is_told {
            self.report_rejection(pod, rejection);
        }
        news
    }

    /// Sets the runtime's features. Returns the waiting pods to check again.
    pub(super) fn set_runtime_features(&self, runtime: &RuntimeStatus) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        let able = runtime.handlers.iter().filter(|handler| handler.user_namespaces);
        let able = able.map(|handler| handler.name.clone()).into_set();
        let node = NodeFacts {
            user_namespaces: (!runtime.handlers.is_empty()).then_some(able),
            // A runtime that does not report the feature lacks it, as for the kubelet.
            supplemental_groups_policy: Some(runtime.supplemental_groups_policy == Some(true)),
            ..state.node.clone()
        };
        self.change_node(&mut state, node)
    }

    /// Replaces the facts about the node. Returns the waiting pods to check again.
    #[cfg(test)]
    pub(crate) fn set_facts(&self, node: NodeFacts) -> BTreeSet<PodUid> {
        self.change_node(&mut self.shared.state.borrow_mut(), node)
    }

    /// Sets `allowedUnsafeSysctls`. Returns the waiting pods to check again.
    pub(super) fn set_unsafe_sysctls(&self, allowed_unsafe_sysctls: Vec<String>) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        let node = NodeFacts { allowed_unsafe_sysctls, ..state.node.clone() };
        self.change_node(&mut state, node)
    }

    /// Sets the node's pressure. Returns the waiting pods to check again.
    pub(crate) fn set_pressure(&self, pressure: BTreeSet<Pressure>) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        let node = NodeFacts { pressure, ..state.node.clone() };
        self.change_node(&mut state, node)
    }

    /// Sets what the cluster says of the Node, which replaces this node's own. Returns the waiting pods to check again.
    pub(crate) fn set_node(
        &self,
        labels: StringMap,
        taints: Vec<Taint>,
        unschedulable: bool,
    ) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        state.is_joined = true;
        let node = NodeFacts { labels, unschedulable, taints, ..state.node.clone() };
        self.change_node(&mut state, node)
    }

    /// The pods that have to end so that a critical pod of the cluster without a place gets one; none when it needs no
    /// room, or when room does not help.
    pub(super) fn victims(&self, pod: &Pod) -> Vec<Rc<Pod>> {
        let state = self.shared.state.borrow();
        let uid = &pod.metadata.uid;
        if !is_of_cluster(pod) || !is_critical(pod) || state.admitted.contains_key(uid) {
            return Vec::new();
        }
        let others: Vec<&Pod> = state.admitted.values().map(|other| &**other).collect();
        let short = shortage(pod, &others, &state.node);
        if short.is_empty() || schedule(pod, &state.node).is_err() {
            return Vec::new();
        }
        let Some(victims) = pods_to_preempt(pod, &others, &short) else { return Vec::new() };
        let is_victim = |other: &Pod| victims.contains(&&other.metadata.uid);
        let rest: Vec<&Pod> = others.iter().copied().filter(|other| !is_victim(other)).collect();
        if admit(pod, &rest, &state.node).is_err() {
            return Vec::new();
        }
        state.admitted.values().filter(|other| is_victim(other)).cloned().collect()
    }

    /// Sets the changes that clients made to the Node. Returns the waiting pods to check again.
    pub(crate) fn set_node_changes(&self, changes: &NodeChanges) -> BTreeSet<PodUid> {
        let base = &self.shared.base;
        let mut state = self.shared.state.borrow_mut();
        if state.is_joined {
            return BTreeSet::new();
        }
        let node = NodeFacts {
            labels: changes.labels(base),
            unschedulable: changes.unschedulable,
            taints: changes.taints(base).to_vec(),
            ..state.node.clone()
        };
        self.change_node(&mut state, node)
    }

    /// Sets how many healthy devices of each resource there are. Returns the waiting pods to check again.
    pub(super) fn set_devices(&self, healthy: ResourceList) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        let mut node = state.node.clone();
        node.allocatable.retain(|name, _| !is_extended(name));
        node.allocatable.extend(healthy);
        self.change_node(&mut state, node)
    }

    /// Sets whether the machine shuts down. Returns the waiting pods to check again.
    pub(crate) fn set_shutting_down(&self, is_shutting_down: bool) -> BTreeSet<PodUid> {
        let mut state = self.shared.state.borrow_mut();
        let node = NodeFacts { is_shutting_down, ..state.node.clone() };
        self.change_node(&mut state, node)
    }

    /// The pod has a place, running or about to, or something of it is left on the node.
    #[must_use]
    pub(crate) fn holds(&self, uid: &PodUid) -> bool {
        let state = self.shared.state.borrow();
        state.admitted.contains_key(uid) || state.leaving.contains(uid)
    }

    fn change_node(&self, state: &mut AdmissionState, node: NodeFacts) -> BTreeSet<PodUid> {
        if state.node == node {
            return BTreeSet::new();
        }
        state.node = node;
        self.retry_waiting(state)
    }

    /// Room may have appeared: admits the pods that fit, in order of precedence. Returns the pods with a new
    /// result.
    fn retry_waiting(&self, state: &mut AdmissionState) -> BTreeSet<PodUid> {
        let mut pods: Vec<Rc<Pod>> = state.waiting.values().map(|waiting| Rc::clone(&waiting.pod)).collect();
        pods.order_by_key(|pod| waiting_order(pod));
        let mut news = BTreeSet::new();
        for pod in pods {
            let uid = &pod.metadata.uid;
            let runs = state.waiting.get(uid).is_some_and(|waiting| waiting.runs);
            match if runs { state.check_admission(&pod) } else { state.check_new(&pod) } {
                Ok(()) => state.add_admitted(&pod),
                Err(rejection) if state.waiting.get(uid).is_some_and(|last| last.rejection == rejection) => {
                    continue;
                }
                Err(rejection) => self.reject(state, &pod, &rejection),
            }
            news.insert(uid.clone());
        }
        news
    }

    /// Adds the pod to the waiting ones. Records an event unless the same rejection was reported before.
    fn reject(&self, state: &mut AdmissionState, pod: &Rc<Pod>, rejection: &Rejection) {
        let runs = state.waiting.get(&pod.metadata.uid).is_some_and(|waiting| waiting.runs);
        let waiting = Waiting { pod: Rc::clone(pod), rejection: rejection.clone(), runs };
        let before = state.waiting.insert(pod.metadata.uid.clone(), waiting);
        let told = before
            .is_some_and(|before| before.rejection.reason == rejection.reason && before.pod.spec == pod.spec);
        if !told && !runs {
            self.report_rejection(pod, rejection);
        }
    }

    fn report_rejection(&self, pod: &Pod, rejection: &Rejection) {
        metrics::count(&REJECTIONS, &[&rejection.reason]);
        let (reason, message) = (rejection.event_reason(), &rejection.message);
        self.shared.events.event(&pod.pod_ref(), None, EventType::Warning, reason, message);
    }
}

impl AdmissionState {
    /// Checks a pod that has no place yet.
    fn check_new(&self, pod: &Pod) -> Result<(), Rejection> {
        schedule(pod, &self.node)?;
        self.check_admission(pod)
    }

    fn check_admission(&self, pod: &Pod) -> Result<(), Rejection> {
        let others = self.admitted.iter().filter(|(uid, _)| **uid != pod.metadata.uid);
        let others: Vec<&Pod> = others.map(|(_, other)| &**other).collect();
        admit(pod, &others, &self.node)
    }

    fn add_admitted(&mut self, pod: &Rc<Pod>) {
        self.waiting.remove(&pod.metadata.uid);
        self.admitted.insert(pod.metadata.uid.clone(), Rc::clone(pod));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use crate::model::api::quantity::Quantity;
    use crate::model::types::Timestamp;
    use crate::platform::clock::Clock;
    use crate::store::{Mode, OpenOptions, StoreHandle};
    use serde_json::json;

    fn pod(name: &str, cpu: &str, seen: &str) -> Rc<Pod> {
        let raw = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name,
                "annotations": {"kubernetes.io/config.seen": seen}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        });
        Rc::new(decode(raw).unwrap().object)
    }

    fn node(cpu: &str) -> NodeFacts {
        let allocatable = [("cpu".to_owned(), Quantity::parse(cpu).unwrap())].into();
        NodeFacts { allocatable, ..NodeFacts::default() }
    }

    fn admission() -> (Admission, EventRecorder) {
        let options = OpenOptions { mode: Mode::Inline, ..OpenOptions::default() };
        let store = StoreHandle::open_in_memory(options).unwrap();
        let events = EventRecorder::new("n".into(), Clock::manual(Timestamp::from_secs(1)), store, vec![]);
        (Admission::new(node("2"), events.clone()), events)
    }

    fn uids(names: &[&str]) -> BTreeSet<PodUid> {
        names.iter().map(|name| PodUid::from(*name)).collect()
    }

    #[test]
    fn waiting_pods_are_admitted_oldest_first_when_room_appears() {
        let (admission, events) = admission();
        let big = pod("big", "2", "2026-01-01T00:00:00Z");
        let late = pod("a-late", "2", "2026-01-01T00:00:09Z");
        let early = pod("early", "1500m", "2026-01-01T00:00:05Z");
        admission.admit(&big).0.unwrap();
        for pod in [&late, &early] {
            assert_eq!(admission.admit(pod).0.unwrap_err().reason, "OutOfcpu");
        }
        assert_eq!(events.recent().len(), 2);
        assert_eq!(
            admission.release(&"big".into()),
            uids(&["a-late", "early"]),
            "one is in, one hears why not"
        );
        assert!(admission.holds(&"early".into()) && !admission.holds(&"a-late".into()));
        let why = admission.admit(&late).0.unwrap_err().message;
        assert_eq!(why, "Node didn't have enough resource: cpu, requested: 2000, used: 1500, capacity: 2000");
        assert_eq!(events.recent().len(), 2, "told once, whatever else is used");
        assert_eq!(admission.release(&"early".into()), uids(&["a-late"]));
        assert!(admission.release(&"unknown".into()).is_empty());
    }

    #[test]
    fn running_pod_keeps_its_reservation_until_it_shrinks() {
        let (admission, _) = admission();
        let first = pod("first", "2", "2026-01-01T00:00:00Z");
        admission.reserve(&first);
        admission.reserve(&pod("second", "2", "2026-01-01T00:00:00Z"));
        admission.admit(&first).0.unwrap();
        assert!(admission.admit(&pod("third", "1", "2026-01-01T00:00:00Z")).0.is_err());
        admission.release(&"second".into());
        assert_eq!(admission.reserve(&pod("first", "1", "2026-01-01T00:00:00Z")), uids(&["third"]));
        assert!(admission.holds(&"third".into()));
    }

    #[test]
    fn changed_manifest_or_node_is_evaluated_again() {
        let (admission, events) = admission();
        assert!(admission.admit(&pod("p", "3", "2026-01-01T00:00:00Z")).0.is_err());
        assert!(admission.admit(&pod("p", "4", "2026-01-01T00:00:00Z")).0.is_err());
        assert_eq!(events.recent().len(), 2, "another manifest, another event");
        assert_eq!(admission.set_facts(node("4")), uids(&["p"]));
        assert!(admission.holds(&"p".into()));
        assert!(admission.set_facts(node("4")).is_empty());
    }

    #[test]
    fn a_pod_that_changes_before_it_runs_makes_room_for_others() {
        let (admission, _) = admission();
        let seen = "2026-01-01T00:00:00Z";
        admission.admit(&pod("first", "2", seen)).0.unwrap();
        assert!(admission.admit(&pod("second", "1", seen)).0.is_err());
        let (verdict, news) = admission.admit(&pod("first", "1", seen));
        assert_eq!((verdict, news), (Ok(()), uids(&["second"])));
        assert!(admission.holds(&"second".into()));
        assert!(admission.admit(&pod("third", "1", seen)).0.is_err());
        let (verdict, news) = admission.admit(&pod("first", "3", seen));
        assert!(verdict.is_err() && news.contains(&"third".into()), "{news:?}");
        assert!(admission.holds(&"third".into()) && !admission.holds(&"first".into()));
    }

    #[test]
    fn a_pod_waits_until_the_node_is_not_short_of_anything_any_more() {
        let (admission, events) = admission();
        assert!(admission.set_pressure([Pressure::Disk].into()).is_empty());
        let why = admission.admit(&pod("p", "1", "2026-01-01T00:00:00Z")).0.unwrap_err();
        assert_eq!(
            (why.reason.as_str(), why.message.as_str()),
            ("Evicted", "The node had condition: [DiskPressure]. ")
        );
        assert_eq!(events.recent().len(), 1);
        assert_eq!(admission.set_pressure(BTreeSet::new()), uids(&["p"]));
        assert!(admission.holds(&"p".into()));
    }

    #[test]
    fn a_cordoned_node_keeps_what_has_a_place_and_takes_no_more() {
        let (admission, events) = admission();
        let seen = "2026-01-01T00:00:00Z";
        let of_api = |name: &str, cpu: &str| {
            let mut pod = pod(name, cpu, seen);
            let annotations = &mut Rc::make_mut(&mut pod).metadata.annotations;
            annotations.insert("kubernetes.io/config.source".to_owned(), "api".to_owned());
            pod
        };
        let cordon = |unschedulable| NodeChanges { unschedulable, ..NodeChanges::default() };
        admission.admit(&of_api("early", "100m")).0.unwrap();
        assert!(admission.set_node_changes(&cordon(true)).is_empty());
        let why = admission.admit(&of_api("late", "100m")).0.unwrap_err();
        assert_eq!(why.reason, "Unschedulable");
        assert_eq!(events.recent()[0].key.reason, "FailedScheduling");
        admission.admit(&pod("static", "100m", seen)).0.unwrap();
        admission.admit(&of_api("early", "200m")).0.unwrap();
        assert_eq!(admission.set_node_changes(&cordon(false)), uids(&["late"]));
        assert!(admission.holds(&"late".into()));

        let labels = [("disk".to_owned(), "ssd".to_owned())];
        let mut choosy = of_api("choosy", "100m");
        Rc::make_mut(&mut choosy).spec.node_selector = labels.clone().into();
        assert_eq!(admission.admit(&choosy).0.unwrap_err().reason, "NodeAffinity");
        let labelled = NodeChanges { labels: labels.into(), ..NodeChanges::default() };
        assert_eq!(admission.set_node_changes(&labelled), uids(&["choosy"]));
    }

    fn of_cluster(name: &str, cpu: &str, priority: i32) -> Rc<Pod> {
        let mut pod = pod(name, cpu, "2026-01-01T00:00:00Z");
        let own = Rc::make_mut(&mut pod);
        own.metadata.annotations.insert("kubernetes.io/config.source".to_owned(), "cluster".to_owned());
        own.spec.priority = Some(priority);
        pod
    }

    #[test]
    fn a_rejected_cluster_pod_has_failed() {
        let (admission, events) = admission();
        admission.admit(&of_cluster("big", "2", 0)).0.unwrap();
        assert_eq!(admission.admit(&of_cluster("late", "1", 0)).0.unwrap_err().reason, "OutOfcpu");
        assert_eq!(events.recent().len(), 1);
        assert!(admission.release(&"big".into()).is_empty(), "later room is not for it");
        assert!(!admission.holds(&"late".into()));
    }

    #[test]
    fn a_node_of_a_cluster_has_its_labels_and_taints() {
        let (admission, _) = admission();
        let taint =
            |effect: &str| Taint { key: "gone".to_owned(), effect: effect.to_owned(), ..Taint::default() };
        let labels: StringMap = [("disk".to_owned(), "ssd".to_owned())].into();
        admission.set_node(labels, vec![taint("NoSchedule")], true);
        let mut choosy = of_cluster("choosy", "100m", 0);
        Rc::make_mut(&mut choosy).spec.node_selector = [("disk".to_owned(), "ssd".to_owned())].into();
        admission.admit(&choosy).0.unwrap();
        admission.set_node_changes(&NodeChanges::default());
        admission.set_node(StringMap::new(), vec![taint("NoExecute")], false);
        let why = admission.admit(&of_cluster("late", "100m", 0)).0.unwrap_err();
        let message = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
        assert_eq!((why.reason.as_str(), why.message.as_str()), ("TaintToleration", message));
        admission.admit(&choosy).0.unwrap();
        admission.admit(&pod("static", "100m", "2026-01-01T00:00:00Z")).0.unwrap();
    }

    #[test]
    fn only_a_critical_pod_of_the_cluster_ends_others() {
        let (admission, _) = admission();
        let critical = of_cluster("critical", "1500m", 2_000_000_000);
        assert!(admission.victims(&critical).is_empty(), "there is room");
        for name in ["a", "b"] {
            admission.admit(&of_cluster(name, "1", 0)).0.unwrap();
        }
        let names = |pod: &Pod| {
            let victims = admission.victims(pod);
            victims.iter().map(|victim| victim.metadata.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&critical), ["a", "b"]);
        assert_eq!(names(&of_cluster("small", "500m", 2_000_000_000)).len(), 1);
        assert!(names(&of_cluster("plain", "1500m", 1000)).is_empty());
        assert!(names(&of_cluster("huge", "3", 2_000_000_000)).is_empty(), "room does not help");
        let mut elsewhere = critical;
        Rc::make_mut(&mut elsewhere).spec.node_selector = [("disk".to_owned(), "ssd".to_owned())].into();
        assert!(names(&elsewhere).is_empty(), "it is rejected for another reason");
    }

    #[test]
    fn strict_groups_are_refused_without_reported_runtime_support() {
        let (admission, _) = admission();
        let strict = json!({"metadata": {"name": "p", "namespace": "default", "uid": "p"},
            "spec": {"containers": [{"name": "c"}], "securityContext": {"supplementalGroupsPolicy": "Strict"}}});
        let strict = Rc::new(decode(strict).unwrap().object);
        let runtime = |supplemental_groups_policy| RuntimeStatus {
            runtime_ready: Ok(()),
            network_ready: Ok(()),
            handlers: Vec::new(),
            supplemental_groups_policy,
        };
        admission.set_runtime_features(&runtime(None));
        assert_eq!(admission.admit(&strict).0.unwrap_err().reason, "SupplementalGroupsPolicyNotSupported");
        assert_eq!(admission.set_runtime_features(&runtime(Some(true))), uids(&["p"]), "it was upgraded");
        assert!(admission.holds(&"p".into()));
    }
}
