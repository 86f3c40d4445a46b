//! The latest status of every pod, and notification of changes (upstream: status manager).
//!
//! Owns the statuses and the resource version of each pod. Sinks: the store (written only when the meaning changed) and watchers of the version,
//! such as the run-once report and the local API. The object beside a status is the newest that the main loop
//! has passed.

pub mod rules;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::disruption::is_shutdown_status;
use crate::model::ordered::Sortable as _;
use crate::model::provenance::is_from_api;
use crate::model::revisions::Revisions;
use crate::model::types::PodUid;
use crate::platform::metrics::{self, Family};
use crate::pod::admission::rules::may_be_readmitted;
use crate::pod::lifecycle::adopt_earlier_end;
use crate::pod::scheduling::first_status;
use crate::pod::start;
use crate::pod::status::rules::{add_client_conditions, has_ended, same_meaning};
use crate::store::StoreHandle;

struct StatusEntry {
    pod: Rc<Pod>,
    status: PodStatus,
    /// When the pod appeared, if it has never run.
    seen: Option<Instant>,
    /// The resource version of pod and status.
    version: u64,
}

static START_DURATION: Family = Family::seconds(
    "kubelet_pod_start_duration_seconds",
    "Duration in seconds from first seeing a pod until it runs",
    &[],
)
.with_buckets(&start::BUCKETS);

impl StatusEntry {
    fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// Takes another version of the pod. Status conditions set by clients are shown before the worker syncs.
    fn describe(&mut self, pod: &Rc<Pod>, revisions: &Revisions) {
        let status = self.status.clone();
        add_client_conditions(&mut self.status, pod);
        let before = std::mem::replace(&mut self.pod, Rc::clone(pod));
        adopt_earlier_end(&mut self.pod, &before);
        if self.status != status || !is_same(&self.pod, &before) {
            self.version = revisions.next();
        }
    }
}

/// Whether two versions of a pod are equal, beside their statuses.
fn is_same(one: &Rc<Pod>, other: &Rc<Pod>) -> bool {
    Rc::ptr_eq(one, other) || (one.metadata == other.metadata && one.spec == other.spec)
}

/// A wanted pod without a first status from its worker.
struct ExpectedPod {
    pod: Rc<Pod>,
    since: Instant,
    version: u64,
}

/// Latest statuses, shared by workers (who write their own pod's) and readers.
pub struct StatusManager {
    store: StoreHandle,
    entries: RefCell<BTreeMap<PodUid, StatusEntry>>,
    expected: RefCell<BTreeMap<PodUid, ExpectedPod>>,
    remembered: RefCell<BTreeMap<PodUid, PodStatus>>,
    revisions: Revisions,
    version: watch::Sender<u64>,
}

impl StatusManager {
    /// Starts from the stored statuses, so that start times, restart counts and transition times are kept.
    #[must_use]
    pub fn new(store: StoreHandle, remembered: BTreeMap<PodUid, PodStatus>, revisions: Revisions) -> Self {
        Self {
            store,
            entries: RefCell::default(),
            expected: RefCell::default(),
            remembered: RefCell::new(remembered),
            revisions,
            version: watch::Sender::new(0),
        }
    }

    /// The last status of a pod: this process's, else the stored one.
    #[must_use]
    pub fn last(&self, uid: &PodUid) -> Option<PodStatus> {
        let current = self.entries.borrow().get(uid).map(|entry| entry.status.clone());
        current.or_else(|| self.remembered.borrow().get(uid).cloned())
    }

    /// The pod is wanted. Until its worker sets a status, [`Self::all_pods`] shows the pod with its
    /// remembered status.
    pub(crate) fn expect(&self, pod: &Rc<Pod>) {
        let uid = &pod.metadata.uid;
        let mut entries = self.entries.borrow_mut();
        match entries.get_mut(uid) {
            None => {
                self.remembered
                    .borrow_mut()
                    .retain(|known, status| known != uid || !may_be_readmitted(pod, status));
                match self.remembered.borrow_mut().get_mut(uid) {
                    Some(status) => add_client_conditions(status, pod),
                    None => start::expect(uid),
                }
                let mut expected = self.expected.borrow_mut();
                let since = expected.get(uid).map_or_else(Instant::now, |expected| expected.since);
                let version = self.revisions.next();
                expected.insert(uid.clone(), ExpectedPod { pod: Rc::clone(pod), since, version });
            }
            // Another version of the pod: a client that changed it must read its own write.
            Some(entry) if !entry.is_terminating() && !Rc::ptr_eq(&entry.pod, pod) => {
                entry.describe(pod, &self.revisions);
            }
            Some(_) => return,
        }
        drop(entries);
        self.version.send_modify(|version| *version += 1);
    }

    /// Another version of a pod that is being taken down, or will be from now on.
    pub(crate) fn update_terminating(&self, pod: &Rc<Pod>) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(&pod.metadata.uid) {
            entry.describe(pod, &self.revisions);
        }
        self.version.send_modify(|version| *version += 1);
    }

    /// Publishes the status of a pod. Of the object itself only its deletion is taken: a client may have
    /// changed the rest since the worker read its mailbox, and must find its change. The store is written
    /// only if the meaning of the status changed, and never during a shutdown of the machine.
    pub(crate) fn set(&self, pod: &Rc<Pod>, mut status: PodStatus) {
        let uid = &pod.metadata.uid;
        let last = self.last(uid);
        let expected = self.expected.borrow_mut().remove(uid);
        let known = expected.map(|known| (known.pod, Some(known.since), known.version)).or_else(|| {
            let entries = self.entries.borrow();
            entries.get(uid).map(|entry| (Rc::clone(&entry.pod), entry.seen, entry.version))
        });
        let before = known.as_ref().map(|(pod, _, version)| (Rc::clone(pod), *version));
        let (mut shown, seen, _) = known.unwrap_or_else(|| (Rc::clone(pod), None, 0));
        let mut ends_sooner = false;
        if !Rc::ptr_eq(&shown, pod) {
            add_client_conditions(&mut status, &shown);
            ends_sooner = adopt_earlier_end(&mut shown, pod);
        }
        let news = last.as_ref().is_none_or(|last| !same_meaning(last, &status));
        let is_unchanged = |pod: &Rc<Pod>| {
            let is_last = last.as_ref().map_or_else(|| first_status(pod) == status, |last| *last == status);
            is_last && is_same(pod, &shown)
        };
        let version = before.filter(|(pod, _)| is_unchanged(pod)).map(|(_, version)| version);
        let version = version.unwrap_or_else(|| self.revisions.next());
        // A pod that ran before this process began was not started by it.
        let seen = seen.filter(|_| last.is_none_or(|last| last.phase == "Pending"));
        if let Some(seen) = seen.filter(|_| status.phase == "Running") {
            metrics::observe(&START_DURATION, &[], seen.elapsed());
        }
        start::observe(&shown, &status);
        let entry = StatusEntry { pod: shown, status, seen, version };
        if news && !is_shutdown_status(pod, &entry.status) {
            self.store.put_status(uid, &entry.status);
        }
        self.remembered.borrow_mut().remove(uid);
        let replaced = self.entries.borrow_mut().insert(uid.clone(), entry);
        if news || ends_sooner || replaced.is_none() {
            self.version.send_modify(|version| *version += 1);
        }
    }

    pub(crate) fn remove(&self, uid: &PodUid) {
        start::remove(uid);
        let expected = self.expected.borrow_mut().remove(uid);
        self.remembered.borrow_mut().remove(uid);
        let entry = self.entries.borrow_mut().remove(uid);
        let signals = entry.is_some();
        if let Some(gone) = entry.map(|entry| entry.pod).or(expected.map(|expected| expected.pod)) {
            // Another pod of that name takes its place.
            self.stamp(|pod| is_named(pod, &gone.metadata.namespace, &gone.metadata.name, None));
        }
        if signals {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Clients see another object from now on, for a reason that is not in the pod: its mirror pod was replaced.
    pub(crate) fn set_mirror(&self, uid: &PodUid) {
        self.stamp(|pod| pod.metadata.uid == *uid);
    }

    fn stamp(&self, is_it: impl Fn(&Pod) -> bool) {
        let (mut entries, mut expected) = (self.entries.borrow_mut(), self.expected.borrow_mut());
        let entries = entries.values_mut().map(|entry| (&entry.pod, &mut entry.version));
        let all = entries.chain(expected.values_mut().map(|known| (&known.pod, &mut known.version)));
        all.filter(|(pod, _)| is_it(pod)).for_each(|(_, version)| *version = self.revisions.next());
    }

    /// The resource version of a pod in [`Self::everybody`].
    #[must_use]
    pub(crate) fn resource_version(&self, uid: &PodUid) -> u64 {
        let entry = self.entries.borrow().get(uid).map(|entry| entry.version);
        entry.or_else(|| self.expected.borrow().get(uid).map(|known| known.version)).unwrap_or_default()
    }

    /// The pods whose workers have published a status, with it, by namespace and name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Pod> {
        let mut pods = self.published();
        pods.order_by(by_name);
        pods
    }

    /// Whether a wanted pod has no status of this process yet. What is remembered of it may be old.
    #[must_use]
    pub(crate) fn is_behind(&self) -> bool {
        !self.expected.borrow().is_empty()
    }

    /// As [`Self::snapshot`], plus the wanted pods without a status, with what is remembered of them: a
    /// client that saw a pod before a restart of the agent sees it right after.
    #[must_use]
    pub fn all_pods(&self) -> Vec<Pod> {
        let mut pods = self.published();
        for (uid, ExpectedPod { pod, .. }) in &*self.expected.borrow() {
            let status = self.last(uid).unwrap_or_else(|| first_status(pod));
            pods.push(Pod { status, ..Pod::clone(pod) });
        }
        pods.order_by(by_name);
        pods
    }

    /// Those of [`Self::all_pods`] that have not ended.
    #[must_use]
    pub(crate) fn active_pods(&self) -> Vec<Pod> {
        let mut pods = self.all_pods();
        pods.retain(|pod| !has_ended(&pod.status));
        pods
    }

    /// Shows all pods of [`Self::all_pods`] with what is known of them, without a copy.
    pub(crate) fn with_pods<T>(&self, read: impl FnOnce(&[(&Pod, &PodStatus)]) -> T) -> T {
        let (entries, expected) = (self.entries.borrow(), self.expected.borrow());
        let (remembered, nothing) = (self.remembered.borrow(), PodStatus::default());
        let mut pods: Vec<(&Pod, &PodStatus)> =
            entries.values().map(|entry| (&*entry.pod, &entry.status)).collect();
        pods.extend(
            expected.iter().map(|(uid, known)| (&*known.pod, remembered.get(uid).unwrap_or(&nothing))),
        );
        pods.order_by(|one, other| by_name(one.0, other.0));
        read(&pods)
    }

    /// One of [`Self::all_pods`], without copying the others; of two with one name, that with this uid, or
    /// the first.
    #[must_use]
    pub(crate) fn find(&self, namespace: &str, name: &str, uid: Option<&PodUid>) -> Option<Pod> {
        let entries = self.entries.borrow();
        if let Some(StatusEntry { pod, status, .. }) =
            entries.values().find(|entry| is_named(&entry.pod, namespace, name, uid))
        {
            return Some(Pod { status: status.clone(), ..Pod::clone(pod) });
        }
        let expected = self.expected.borrow();
        let (uid, ExpectedPod { pod, .. }) =
            expected.iter().find(|(_, known)| is_named(&known.pod, namespace, name, uid))?;
        let status = self.remembered.borrow().get(uid).cloned().unwrap_or_else(|| first_status(pod));
        Some(Pod { status, ..Pod::clone(pod) })
    }

    /// The static pods of [`Self::all_pods`], by name, without their statuses: nothing is copied.
    #[must_use]
    pub(crate) fn static_pods(&self) -> Vec<Rc<Pod>> {
        let (entries, expected) = (self.entries.borrow(), self.expected.borrow());
        let all = entries.values().map(|entry| &entry.pod).chain(expected.values().map(|known| &known.pod));
        let mut pods: Vec<Rc<Pod>> = all.filter(|pod| !is_from_api(pod)).cloned().collect();
        pods.order_by(|one, other| by_name(one, other));
        pods
    }

    /// Calls `visit` with each of [`Self::all_pods`], its status and its resource version, in no order: nothing is
    /// copied.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Rc<Pod>, &PodStatus, u64)) {
        for StatusEntry { pod, status, version, .. } in self.entries.borrow().values() {
            visit(pod, status, *version);
        }
        let remembered = self.remembered.borrow();
        for (uid, ExpectedPod { pod, version, .. }) in &*self.expected.borrow() {
            match remembered.get(uid) {
                Some(status) => visit(pod, status, *version),
                None => visit(pod, &first_status(pod), *version),
            }
        }
    }

    fn published(&self) -> Vec<Pod> {
        let entries = self.entries.borrow();
        entries.values().map(|entry| Pod { status: entry.status.clone(), ..Pod::clone(&entry.pod) }).collect()
    }

    /// Changes whenever any status changes.
    #[must_use]
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}

/// The pod has this name, and this uid if one is named.
#[must_use]
pub(crate) fn is_named(pod: &Pod, namespace: &str, name: &str, uid: Option<&PodUid>) -> bool {
    let metadata = &pod.metadata;
    metadata.name == name && metadata.namespace == namespace && uid.is_none_or(|uid| *uid == metadata.uid)
}

fn by_name(a: &Pod, b: &Pod) -> Ordering {
    (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::model::api::decode::decode;
    use crate::model::types::Timestamp;
    use crate::store::{Mode, OpenOptions};

    fn pod(name: &str) -> Rc<Pod> {
        let mut pod = Pod::default();
        name.clone_into(&mut pod.metadata.name);
        pod.metadata.uid = PodUid::from(name);
        Rc::new(pod)
    }

    fn revisions() -> Revisions {
        Revisions::since(Timestamp::from_secs(1))
    }

    fn running() -> PodStatus {
        PodStatus { phase: "Running".to_owned(), ..PodStatus::default() }
    }

    fn shown(pods: &[Pod]) -> Vec<(&str, &str)> {
        pods.iter().map(|pod| (pod.metadata.name.as_str(), pod.status.phase.as_str())).collect()
    }

    /// The pods must be visible without a gap between the start of the agent and the first sync of its
    /// workers.
    #[test]
    fn wanted_pod_is_listed_before_its_first_sync() {
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        let remembered = BTreeMap::from([(PodUid::from("b"), running())]);
        let statuses = StatusManager::new(store.unwrap(), remembered, revisions());
        assert_eq!(shown(&statuses.all_pods()), [], "nobody wants it yet");
        for name in ["b", "a", "c"] {
            statuses.expect(&pod(name));
        }
        assert_eq!(shown(&statuses.all_pods()), [("a", "Pending"), ("b", "Running"), ("c", "Pending")]);
        assert_eq!(shown(&statuses.snapshot()), []);
        let found = |name: &str, uid: Option<&str>| {
            statuses.find("", name, uid.map(PodUid::from).as_ref()).map(|pod| pod.status.phase)
        };
        assert_eq!(found("b", None).as_deref(), Some("Running"), "as it is remembered");
        assert_eq!((found("d", None), found("b", Some("another"))), (None, None));

        statuses.set(&pod("a"), running());
        statuses.remove(&PodUid::from("c"));
        statuses.expect(&pod("a"));
        assert_eq!(shown(&statuses.all_pods()), [("a", "Running"), ("b", "Running")]);
        assert_eq!(shown(&statuses.snapshot()), [("a", "Running")]);
        for pod in statuses.all_pods() {
            assert_eq!(statuses.find("", &pod.metadata.name, None), Some(pod));
        }
        assert_eq!(shown(&statuses.active_pods()), [("a", "Running"), ("b", "Running")]);
        statuses.set(&pod("a"), PodStatus { phase: "Failed".to_owned(), ..PodStatus::default() });
        assert_eq!(shown(&statuses.active_pods()), [("b", "Running")], "the other has ended");
    }

    #[test]
    fn static_pods_are_shared_and_not_copied() {
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        let statuses = StatusManager::new(store.unwrap(), BTreeMap::new(), revisions());
        let of = |name: &str, source: &str| {
            let annotations = json!({"kubernetes.io/config.source": source});
            let raw = json!({"metadata": {"name": name, "uid": name, "annotations": annotations}});
            Rc::new(decode::<Pod>(raw).unwrap().object)
        };
        let (waiting, runs) = (of("b", "file"), of("a", "file"));
        for pod in [&waiting, &runs, &of("c", "cluster"), &of("d", "api")] {
            statuses.expect(pod);
        }
        statuses.set(&runs, running());
        let found = statuses.static_pods();
        let [first, second] = &found[..] else { panic!("{found:?}") };
        assert!(Rc::ptr_eq(first, &runs) && Rc::ptr_eq(second, &waiting));
    }

    /// A worker that is in the middle of a step publishes the status of the version it read before.
    #[test]
    fn a_status_of_an_older_version_leaves_the_newer_object_shown() {
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        let statuses = StatusManager::new(store.unwrap(), BTreeMap::new(), revisions());
        let version = |label: &str, going: Option<(i64, i64)>| {
            let condition = json!({"type": "example.com/ready", "status": label});
            let raw = json!({"metadata": {"name": "a", "uid": "a", "labels": {"v": label}},
                "status": {"conditions": [condition]}});
            let mut pod = decode::<Pod>(raw).unwrap().object;
            pod.metadata.deletion_timestamp = going.map(|(since, _)| Timestamp::from_secs(since));
            pod.metadata.deletion_grace_period_seconds = going.map(|(_, grace)| grace);
            Rc::new(pod)
        };
        let shown = || {
            let pod = statuses.find("", "a", None).unwrap();
            let metadata = &pod.metadata;
            let conditions: Vec<_> = pod.status.conditions.iter().map(|one| one.status.clone()).collect();
            (metadata.labels["v"].clone(), conditions.concat(), metadata.deletion_grace_period_seconds)
        };
        let expected = |label: &str, grace| (label.to_owned(), label.to_owned(), grace);
        let (one, two, three) = (version("1", None), version("2", None), version("3", None));
        statuses.expect(&one);
        statuses.expect(&two);
        statuses.set(&one, running());
        assert_eq!(shown(), expected("2", None), "changed before the first status");
        statuses.expect(&three);
        statuses.set(&two, running());
        assert_eq!(shown(), expected("3", None), "changed in the middle of a step");
        statuses.update_terminating(&version("4", Some((100, 30))));
        statuses.set(&three, running());
        assert_eq!(shown(), expected("4", Some(30)), "it goes, and its worker has not heard of that");
        statuses.update_terminating(&version("5", Some((101, 5))));
        statuses.set(&version("4", Some((100, 30))), running());
        assert_eq!(shown(), expected("5", Some(5)), "it goes sooner now");
        statuses.update_terminating(&version("6", Some((104, 30))));
        assert_eq!(shown(), expected("6", Some(5)), "and never later");
        statuses.set(&version("5", Some((120, 0))), running());
        assert_eq!(shown(), expected("6", Some(0)), "nothing of it is left but the object");
    }

    #[test]
    fn a_version_is_stamped_when_what_is_shown_changes() {
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        let statuses = StatusManager::new(store.unwrap(), BTreeMap::new(), revisions());
        let version = |uid: &str| statuses.resource_version(&PodUid::from(uid));
        let mut before = version("a");
        let mut is_new = || version("a") > std::mem::replace(&mut before, version("a"));
        statuses.expect(&pod("a"));
        assert!(is_new());
        statuses.set(&pod("a"), statuses.find("", "a", None).unwrap().status);
        assert!(!is_new(), "the first status is the expected one");
        let mut status = running();
        statuses.set(&pod("a"), status.clone());
        assert!(is_new());
        statuses.set(&pod("a"), status.clone());
        statuses.expect(&pod("a"));
        assert!(!is_new());
        status.start_time = Some(Timestamp::from_secs(7));
        statuses.set(&pod("a"), status.clone());
        assert!(is_new(), "not only what has a meaning for the store");
        let mut labelled = pod("a");
        Rc::make_mut(&mut labelled).metadata.labels.insert("a".into(), "b".into());
        statuses.expect(&labelled);
        assert!(is_new());
        statuses.set(&pod("a"), status);
        assert!(!is_new(), "the worker has read an older version");
        statuses.set_mirror(&PodUid::from("a"));
        assert!(is_new());

        let mut other = pod("a");
        Rc::make_mut(&mut other).metadata.uid = PodUid::from("b");
        statuses.expect(&other);
        let waiting = version("b");
        statuses.remove(&PodUid::from("a"));
        assert!(version("b") > waiting, "it is shown from now on");
    }

    #[tokio::test(start_paused = true)]
    async fn pod_start_is_timed_once_and_not_for_remembered_pods() {
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        let remembered = BTreeMap::from([(PodUid::from("old"), running())]);
        let statuses = StatusManager::new(store.unwrap(), remembered, revisions());
        for name in ["old", "new"] {
            statuses.expect(&pod(name));
        }
        tokio::time::advance(Duration::from_secs(4)).await;
        statuses.expect(&pod("new"));
        for status in [PodStatus::pending(), PodStatus::pending(), running(), running()] {
            tokio::time::advance(Duration::from_secs(1)).await;
            statuses.set(&pod("new"), status);
            statuses.set(&pod("old"), running());
        }
        let mut text = metrics::Text::default();
        metrics::write_recorded(&mut text, &["kubelet_pod_start_duration"]);
        let text = text.finish();
        assert!(text.contains("kubelet_pod_start_duration_seconds_sum 7\n"), "{text}");
        assert!(text.contains("kubelet_pod_start_duration_seconds_count 1\n"), "{text}");
    }
}
