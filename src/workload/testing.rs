//! A node without an agent: objects and pods in memory, and a pass of the controllers over them.
#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::environment::NodeEnvironment;
use super::item::Item;
use super::pods::PodView;
use super::steps;
use super::world::{CONTROLLERS, Changes, Rest, World};
use crate::desired::api_pod;
use crate::desired::local_objects::{accept, refused_change};
use crate::model::api::decode::decode;
use crate::model::api::pod::{Pod, PodStatus};
use crate::model::cron::Zone;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind, PlainBody, wire};
use crate::model::types::{PodUid, Timestamp};

/// 20 November 2026, 16:00 UTC.
pub(super) const START: Timestamp = Timestamp::from_secs(1_795_190_400);
const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

pub(super) struct FakeEnvironment {
    /// What two pods cannot have.
    pub exclusive: Option<String>,
    pub daemon_fits: (bool, bool),
    pub up: Duration,
    pub clock_since: Option<Timestamp>,
    pub is_settled: bool,
    /// Why pods may not be created.
    pub refuses: Option<String>,
    /// Claims with a directory.
    pub directories: BTreeSet<ObjectKey>,
    /// Claims that a pod names, and when it was created.
    pub used: BTreeMap<ObjectKey, Timestamp>,
    now: Timestamp,
}

impl NodeEnvironment for FakeEnvironment {
    fn admit(&self, pod: Pod, uid: PodUid) -> Result<Pod, String> {
        if let Some(why) = &self.refuses {
            return Err(why.clone());
        }
        let texts = |errors: Vec<crate::model::field_error::FieldError>| format!("{errors:?}");
        api_pod::create(pod, "node1", uid, self.now).map_err(texts)
    }

    fn is_claim_used(&self, namespace: &str, name: &str, before: Option<Timestamp>) -> bool {
        let is_it = |(used, since): (&ObjectKey, &Timestamp)| {
            used.namespace == namespace && used.name == name && before.is_none_or(|before| *since <= before)
        };
        self.used.iter().any(is_it)
    }

    fn has_directory(&self, claim: &LocalObject) -> bool {
        self.directories.contains(&claim.key)
    }

    fn exclusive(&self, _: &Pod) -> Option<String> {
        self.exclusive.clone()
    }

    fn daemon_fits(&self, _: &Pod) -> (bool, bool) {
        self.daemon_fits
    }

    fn claim(&self, claim: Value) -> Result<LocalObject, String> {
        let (decoded, _) = wire::decode_object(ObjectKind::PersistentVolumeClaim, claim).unwrap();
        accept(decoded).map_err(|invalid| invalid.to_string())
    }

    fn zone(&self, name: &str) -> Option<Result<Rc<Zone>, String>> {
        Some(match name {
            "Europe/Berlin" => Ok(Rc::new(Zone::of_rule(BERLIN).unwrap())),
            name => Err(format!("unknown time zone {name}")),
        })
    }

    fn node_name(&self) -> &'static str {
        "node1"
    }

    fn up(&self) -> Duration {
        self.up
    }

    fn clock_since(&self) -> Option<Timestamp> {
        self.clock_since
    }

    fn clock_is_settled(&self) -> bool {
        self.is_settled
    }
}

pub(super) struct FakeNode {
    pub now: Timestamp,
    pub environment: FakeEnvironment,
    pub objects: BTreeMap<ObjectKey, Rc<LocalObject>>,
    /// Those that manifests define.
    pub read_only: BTreeSet<ObjectKey>,
    pub pods: BTreeMap<PodUid, PodView>,
    pub rests: BTreeMap<ObjectKey, Rest>,
    /// `Kind/name Reason: message`, those of the last passes.
    pub events: Vec<String>,
    /// Every object of these kinds that was ever made.
    pub made: Vec<String>,
    /// How many times something was written.
    pub writes: usize,
    seed: u64,
    uids: RefCell<u64>,
}

impl FakeNode {
    pub(super) fn new() -> Self {
        Self {
            now: START,
            environment: FakeEnvironment {
                exclusive: None,
                daemon_fits: (true, true),
                up: Duration::from_secs(100_000_000),
                clock_since: Some(START),
                is_settled: true,
                refuses: None,
                directories: BTreeSet::new(),
                used: BTreeMap::new(),
                now: START,
            },
            objects: BTreeMap::new(),
            read_only: BTreeSet::new(),
            pods: BTreeMap::new(),
            rests: BTreeMap::new(),
            events: Vec::new(),
            made: Vec::new(),
            writes: 0,
            seed: 1,
            uids: RefCell::new(0),
        }
    }

    /// As `kubectl apply` of a document.
    pub(super) fn apply(&mut self, document: Value) {
        let kind = ObjectKind::from_name(document["kind"].as_str().unwrap()).unwrap();
        let (decoded, _) = wire::decode_object(kind, document).unwrap();
        let mut object = accept(decoded).unwrap_or_else(|invalid| panic!("{invalid}"));
        *self.uids.borrow_mut() += 1;
        match self.objects.get(&object.key) {
            None => {
                object.uid = format!("uid-{}", self.uids.borrow());
                object.created = self.now;
            }
            Some(known) => {
                let refused = refused_change(known, &object);
                assert!(refused.is_empty(), "{refused:?}");
                object.uid.clone_from(&known.uid);
                object.created = known.created;
                object.owner_references.clone_from(&known.owner_references);
                let (was, mut becomes) = (known.content.body(), object.content.body());
                object.generation = known.generation + i64::from(was["spec"] != becomes["spec"]);
                becomes["status"] = was["status"].clone();
                object.content = ObjectContent::Plain(PlainBody::new(&becomes));
                for (name, value) in &known.annotations {
                    object.annotations.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        self.objects.insert(object.key.clone(), Rc::new(object));
    }

    /// Changes the spec of an object.
    pub(super) fn edit(&mut self, kind: ObjectKind, name: &str, change: impl FnOnce(&mut Value)) {
        let mut document = self.get(kind, name);
        document["kind"] = json!(kind.as_str());
        change(&mut document);
        self.apply(document);
    }

    fn key(kind: ObjectKind, name: &str) -> ObjectKey {
        ObjectKey { kind, namespace: "default".to_owned(), name: name.to_owned() }
    }

    pub(super) fn has(&self, kind: ObjectKind, name: &str) -> bool {
        self.objects.contains_key(&Self::key(kind, name))
    }

    pub(super) fn get(&self, kind: ObjectKind, name: &str) -> Value {
        let key = Self::key(kind, name);
        let object = self.objects.get(&key).unwrap_or_else(|| panic!("{key} is not there"));
        wire::to_value(object, wire::Values::Shown)
    }

    pub(super) fn status(&self, kind: ObjectKind, name: &str) -> Value {
        self.get(kind, name)["status"].clone()
    }

    pub(super) fn condition(&self, kind: ObjectKind, name: &str, condition: &str) -> [String; 3] {
        let status = self.status(kind, name);
        let found =
            status["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == condition);
        let text =
            |field: &str| found.map_or("", |found| found[field].as_str().unwrap_or_default()).to_owned();
        [text("status"), text("reason"), text("message")]
    }

    pub(super) fn names(&self, kind: ObjectKind) -> Vec<String> {
        let keys = self.objects.keys().filter(|key| key.kind == kind);
        keys.map(|key| key.name.clone()).collect()
    }

    pub(super) fn delete(&mut self, kind: ObjectKind, name: &str) {
        self.remove(&Self::key(kind, name));
    }

    /// With what it manages, as the garbage collector does.
    fn remove(&mut self, key: &ObjectKey) {
        let Some(object) = self.objects.remove(key) else { return };
        let owned: Vec<ObjectKey> = self
            .objects
            .values()
            .filter(|other| other.owner_references.iter().any(|owner| owner.uid == object.uid))
            .map(|other| other.key.clone())
            .collect();
        for key in &owned {
            self.remove(key);
        }
        let pods: Vec<PodUid> = self
            .pods
            .values()
            .filter(|pod| pod.owner() == Some(&object.uid))
            .map(|pod| pod.uid().clone())
            .collect();
        for pod in &pods {
            self.delete_pod(pod);
        }
    }

    /// As `kubectl delete pod`.
    pub(super) fn delete_pod(&mut self, uid: &PodUid) {
        let now = self.now;
        let Some(view) = self.pods.get_mut(uid) else { return };
        view.is_deleted = true;
        Rc::make_mut(&mut view.pod).metadata.deletion_timestamp.get_or_insert(now);
    }

    /// The pods that are deleted and have no finalizers end.
    pub(super) fn end_deleted(&mut self) {
        self.pods.retain(|_, pod| !pod.is_deleted || !pod.pod.metadata.finalizers.is_empty());
    }

    pub(super) fn set_pod(&mut self, uid: &PodUid, phase: &str, ready: bool) {
        let now = self.now;
        let pod = self.pods.get_mut(uid).unwrap();
        let before = pod.ready_since();
        let since = before.filter(|_| ready).unwrap_or(now).to_rfc3339();
        let status = json!({
            "phase": phase,
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "lastTransitionTime": since}],
        });
        pod.status = Rc::new(decode::<PodStatus>(status).unwrap().object);
    }

    /// The pod ends with this code.
    pub(super) fn end_pod(&mut self, uid: &PodUid, code: i32) {
        let now = self.now.to_rfc3339();
        let pod = self.pods.get_mut(uid).unwrap();
        let status = json!({
            "phase": if code == 0 { "Succeeded" } else { "Failed" },
            "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": code, "finishedAt": now}}}],
        });
        pod.status = Rc::new(decode::<PodStatus>(status).unwrap().object);
    }

    /// All pods that wait get ready.
    pub(super) fn ready_all(&mut self) {
        for uid in self.uids(|pod| pod.is_active() && !pod.is_ready()) {
            self.set_pod(&uid, "Running", true);
        }
    }

    pub(super) fn uids(&self, is_it: impl Fn(&PodView) -> bool) -> Vec<PodUid> {
        self.pods.values().filter(|pod| is_it(pod)).map(|pod| pod.uid().clone()).collect()
    }

    pub(super) fn active(&self) -> Vec<&PodView> {
        self.pods.values().filter(|pod| pod.is_active()).collect()
    }

    pub(super) fn pod_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.pods.values().map(|pod| pod.name().to_owned()).collect();
        names.sort();
        names
    }

    pub(super) fn pod(&self, name: &str) -> &PodView {
        self.pods.values().find(|pod| pod.name() == name).unwrap_or_else(|| panic!("no pod {name}"))
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.now = self.now.saturating_add(Duration::from_secs(seconds));
        self.pass();
    }

    /// Everything takes its step; a second pass has nothing to do.
    pub(super) fn pass(&mut self) {
        self.take(true);
        let again = self.take(false);
        assert!(again, "not at rest after a pass");
    }

    /// One pass. True when nothing was written.
    fn take(&mut self, with_due: bool) -> bool {
        self.seed += 1;
        self.environment.now = self.now;
        let items = self
            .objects
            .values()
            .map(|object| Item::new(Rc::clone(object), self.read_only.contains(&object.key)));
        let mut world =
            World::new(self.now, &self.environment, self.seed, items, self.pods.values().cloned());
        world.remember(self.rests.clone());
        for key in self.objects.keys().filter(|key| CONTROLLERS.contains(&key.kind)) {
            world.mark(key);
            let wake = self.rests.get(key).and_then(|rest| rest.wake);
            if with_due && wake.is_some_and(|wake| wake <= self.now) {
                world.mark_due(key);
            }
        }
        assert!(world.settle(steps::take), "the steps do not come to rest");
        world.release_orphans();
        world.trim_ended();
        assert!(world.settle(steps::take));
        self.rests = world.rests().clone();
        self.rests.retain(|key, _| self.objects.contains_key(key));
        let changes = world.finish();
        self.put(changes)
    }

    fn put(&mut self, changes: Changes) -> bool {
        let writes = changes.put_objects.len()
            + changes.remove_objects.len()
            + changes.put_pods.len()
            + changes.remove_pods.len();
        self.writes += usize::from(writes > 0);
        for event in changes.events {
            let key = &event.key;
            self.events.push(format!(
                "{}/{} {}: {}",
                key.kind.as_str(),
                key.name,
                event.reason,
                event.message
            ));
        }
        for object in changes.put_objects {
            if !self.objects.contains_key(&object.key) {
                self.made.push(format!("{}/{}", object.key.kind.as_str(), object.key.name));
            }
            self.objects.insert(object.key.clone(), object);
        }
        for pod in changes.put_pods {
            let uid = pod.metadata.uid.clone();
            let is_deleted = pod.metadata.deletion_timestamp.is_some();
            let status = self
                .pods
                .get(&uid)
                .map_or_else(|| Rc::new(pod.status.clone()), |known| Rc::clone(&known.status));
            self.pods.insert(uid, PodView { pod, status, is_deleted });
        }
        for pod in changes.remove_pods {
            let view = self.pods.get_mut(&pod.metadata.uid).expect("only known pods are removed");
            // The agent goes on with the version that was there before.
            *view = PodView::removed(Rc::clone(&view.pod), Rc::clone(&view.status));
            Rc::make_mut(&mut view.pod).metadata.deletion_timestamp.get_or_insert(self.now);
        }
        // What they own goes with them.
        for key in &changes.remove_objects {
            self.remove(key);
        }
        writes == 0
    }

    /// The reasons of the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }
}

/// A template with this image.
pub(super) fn template(image: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": image}]},
    })
}

pub(super) fn document(kind: &str, name: &str, spec: Value) -> Value {
    json!({"kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}
