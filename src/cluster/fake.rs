//! A simulated apiserver for tests: objects in memory, time from a clock, faults by switch.
//!
//! It listens on nothing. No flag of the program enables it: only tests that construct a [`FakeApiserver`] use it. It
//! answers as Kubernetes 1.36 does where a node can tell the difference: versions, selectors, pages, watches with a
//! window of history, streaming lists, graceful deletion, preconditions, what a node may see and do.
//!
//! Owns the verbs. Imports of the client only what a request is.

mod admission;
mod answers;
mod controllers;
mod faults;
mod issue;
mod joined;
mod objects;
mod watches;
mod world;

use std::cell::RefMut;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::client::error::{LinkError, LinkErrorKind};
use crate::cluster::client::transport::{Accept, ApiRequest, ApiResponse, Content, Lane, Method, Transport};
use crate::platform::clock::Clock;

use answers::{Refusal, Target, body, generated};
use objects::{FakeObjects, ObjectPlace};
use watches::FakeWatch;
use world::World;

pub use faults::ApiFaults;
pub use joined::{ClusterMemory, JoinedParts, join};
pub use watches::FakeBody;
pub use world::ApiCall;
pub use world::ReviewTable;

/// An answer of the fake apiserver.
pub type FakeAnswer = ApiResponse<FakeBody>;

/// A handle to the simulated cluster; clones share it.
#[derive(Clone)]
pub struct FakeApiserver(Rc<World>);

/// The state of the storage at some time.
#[derive(Clone)]
pub struct Snapshot(FakeObjects);

/// How an administrator deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// With this grace in seconds.
    Graceful(i64),
    /// With a grace of 0: a pod without finalizers is gone at once.
    Force,
    /// By removing its finalizers, whatever has not been done.
    Finalized,
}

/// What a request comes to.
enum ApiReply {
    Object(u16, Value),
    Watch(FakeWatch),
}

impl FakeApiserver {
    /// A cluster without objects. Equal seeds give equal uids.
    #[must_use]
    pub fn new(clock: Clock, seed: u64) -> Self {
        Self(Rc::new(World::new(clock, seed)))
    }

    /// Requests of this user, `system:node:NAME` for a node; without I/O.
    #[must_use]
    pub fn transport(&self, user: &str) -> FakeTransport {
        FakeTransport { server: self.clone(), user: user.to_owned() }
    }

    /// Answers one request.
    pub fn answer(&self, user: &str, request: &ApiRequest) -> FakeAnswer {
        let answer = self.attempt(user, request);
        self.0.calls.borrow_mut().push(ApiCall {
            at: self.0.clock.now(),
            user: user.to_owned(),
            method: request.method,
            path: request.path.clone(),
            body: body(request),
            bytes: request.body.as_ref().map_or(0, |(_, bytes)| bytes.len()),
            status: answer.status,
        });
        answer
    }

    /// Creates or replaces an object, as an administrator or a controller does; returns its version.
    ///
    /// # Panics
    /// For a kind that the server does not have.
    pub fn put(&self, object: Value) -> String {
        let place = objects::place_of(&object).expect("the kind and the name of an object");
        let stored = self.store(&place, object);
        stored["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
    }

    /// Deletes the object at a path.
    pub fn remove(&self, path: &str, how: Removal) {
        let Some(Target { place, .. }) = Target::of(Method::Delete, path) else { return };
        match how {
            Removal::Graceful(seconds) => drop(self.end(&place, Some(seconds))),
            Removal::Force => drop(self.end(&place, Some(0))),
            Removal::Finalized => {
                let mut objects = self.0.objects.borrow_mut();
                if objects.objects.get(&place).is_some_and(is_deleting) {
                    objects.remove(&place);
                }
            }
        }
        self.0.changed.notify_waiters();
    }

    /// Assigns a pod to a node, as the scheduler does.
    pub fn bind(&self, mut pod: Value, node: &str) {
        pod["spec"]["nodeName"] = node.into();
        if pod["status"].is_null() {
            pod["status"] = admission::first_status(&pod);
        }
        self.put(pod);
    }

    /// The object at a path.
    #[must_use]
    pub fn object(&self, path: &str) -> Option<Value> {
        let target = Target::of(Method::Get, path)?;
        self.0.objects.borrow().objects.get(&target.place).cloned()
    }

    /// All requests so far.
    #[must_use]
    pub fn calls(&self) -> Vec<ApiCall> {
        self.0.calls.borrow().clone()
    }

    /// All requests so far that are not reads.
    #[must_use]
    pub fn writes(&self) -> Vec<ApiCall> {
        self.0.calls.borrow().iter().filter(|call| call.method != Method::Get).cloned().collect()
    }

    /// The fault switches, for changing them.
    pub fn faults(&self) -> RefMut<'_, ApiFaults> {
        // Watches check the switches again.
        self.0.changed.notify_waiters();
        self.0.faults.borrow_mut()
    }

    /// The users of tokens and what users may do, for changing them.
    pub fn reviews(&self) -> RefMut<'_, ReviewTable> {
        self.0.reviews.borrow_mut()
    }

    /// From now on, a node whose lease has not been renewed for this long is unreachable, and its pods are deleted. The
    /// controllers work whenever there is a request.
    pub fn evict_after(&self, lost: Duration) {
        self.0.evict_after.set(Some(lost));
    }

    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.objects.borrow().clone())
    }

    /// etcd from a backup: objects and versions of that time; all connections end.
    pub fn restore(&self, snapshot: Snapshot) {
        let Snapshot(mut objects) = snapshot;
        objects.compact();
        self.0.become_other(objects);
    }

    /// Another cluster at the same address.
    pub fn replace(&self) {
        let cluster = self.0.objects.borrow().cluster.wrapping_add(1);
        self.0.become_other(FakeObjects { cluster, version: 10, ..FakeObjects::default() });
    }

    /// Forgets the history: a watch from an older version fails.
    pub fn compact(&self) {
        self.0.objects.borrow_mut().compact();
        self.0.changed.notify_waiters();
    }

    fn attempt(&self, user: &str, request: &ApiRequest) -> FakeAnswer {
        let faults = self.0.faults.borrow().clone();
        if faults.html {
            return text_answer(200, "text/html", "<html><body>Please log in</body></html>");
        }
        if let Some(wait) = faults.too_many {
            let retry_after = (!wait.is_zero()).then_some(wait);
            let answer = text_answer(429, "text/plain", "Too many requests, please try again later.");
            return ApiResponse { retry_after, ..answer };
        }
        if let Some(status) = faults.status {
            let refusal = Refusal(status, "InternalError", "simulated fault".to_owned());
            return json_answer(status, &refusal.status());
        }
        let target = Target::of(request.method, &request.path)
            .filter(|target| !faults.no_trust_bundles || target.place.kind.2 != "clustertrustbundles");
        let Some(target) = target else {
            return text_answer(404, "text/plain", "404 page not found");
        };
        self.control();
        let known_by = self.0.clock.now().saturating_sub(faults.graph_lag);
        let authorized = admission::authorize(user, &target, &self.0.objects.borrow(), known_by);
        match authorized.and_then(|()| self.perform(user, &target, request)) {
            Ok(ApiReply::Object(status, object)) if request.accept == Accept::Metadata => json_answer(
                status,
                &json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                    "metadata": object["metadata"]}),
            ),
            Ok(ApiReply::Object(status, object)) => json_answer(status, &faults.shown(object)),
            Ok(ApiReply::Watch(watch)) => {
                ApiResponse { body: FakeBody::watch(watch), ..text_answer(200, JSON, "") }
            }
            Err(refusal) => json_answer(refusal.0, &refusal.status()),
        }
    }

    fn perform(&self, user: &str, target: &Target, request: &ApiRequest) -> Result<ApiReply, Refusal> {
        match target.verb {
            "get" => {
                let objects = self.0.objects.borrow();
                let object = objects.objects.get(&target.place).ok_or_else(|| Refusal::not_found(target))?;
                Ok(ApiReply::Object(200, object.clone()))
            }
            "list" => self.list(target).map(|list| ApiReply::Object(200, list)),
            "watch" => FakeWatch::open(&self.0, target).map(ApiReply::Watch),
            "create" => self.create(user, target, body(request)).map(|object| ApiReply::Object(201, object)),
            "delete" => self.delete(user, target, &body(request)).map(|object| ApiReply::Object(200, object)),
            _ => self.change(user, target, request).map(|object| ApiReply::Object(200, object)),
        }
    }

    fn list(&self, target: &Target) -> Result<Value, Refusal> {
        let faults = self.0.faults.borrow().clone();
        let mut pages = self.0.pages.borrow_mut();
        let token = target.query("continue");
        let (version, mut items) = if token.is_empty() {
            let objects = self.0.objects.borrow();
            let selected =
                objects.select(target.place.kind, &target.place.namespace, target.query("fieldSelector"));
            let shown = selected.filter(|_| !faults.empty_lists).map(|object| faults.shown(object.clone()));
            let items: Vec<Value> = shown.collect();
            (objects.version, items)
        } else {
            let expired = || Refusal(410, "Expired", "The provided continue parameter is too old".to_owned());
            pages.remove(token).filter(|_| !faults.gone).ok_or_else(expired)?
        };
        let limit = target.query("limit").parse().unwrap_or(usize::MAX);
        let rest = items.split_off(items.len().min(limit));
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if !rest.is_empty() {
            let token = format!("{version}+{}", rest.len());
            metadata["continue"] = token.clone().into();
            pages.insert(token, (version, rest));
        }
        for object in &mut items {
            // The items of a list do not say what they are.
            if let Some(members) = object.as_object_mut() {
                members.remove("kind");
                members.remove("apiVersion");
            }
        }
        let (kind, api_version, _, _) = target.place.kind;
        Ok(
            json!({"kind": format!("{kind}List"), "apiVersion": api_version, "metadata": metadata, "items": items}),
        )
    }

    fn create(&self, user: &str, target: &Target, mut object: Value) -> Result<Value, Refusal> {
        if let Some(answer) = issue::answer(user, target, &object, &self.0) {
            return answer;
        }
        let mut target = target.clone();
        if !target.part.is_empty() || target.place.kind.3 && target.place.namespace.is_empty() {
            return Err(Refusal::not_found(&target));
        }
        let metadata = &object["metadata"];
        target.place.name = match (metadata["name"].as_str(), metadata["generateName"].as_str()) {
            (Some(name), _) if !name.is_empty() => name.to_owned(),
            (_, Some(prefix)) => generated(prefix, self.0.objects.borrow().version),
            _ => {
                return Err(Refusal::invalid(
                    &target,
                    "metadata.name: Required value: name or generateName is required",
                ));
            }
        };
        if self.0.objects.borrow().objects.contains_key(&target.place) {
            let message = format!("{} {:?} already exists", target.place.kind.2, target.place.name);
            return Err(Refusal(409, "AlreadyExists", message));
        }
        admission::admit(user, &target, None, Some(&object), &self.0.objects.borrow())?;
        if target.place.kind.2 == "pods" {
            object["status"] = admission::first_status(&object);
        }
        Ok(self.store(&target.place, object))
    }

    fn change(&self, user: &str, target: &Target, request: &ApiRequest) -> Result<Value, Refusal> {
        let known = self.0.objects.borrow().objects.get(&target.place).cloned();
        let old = known.ok_or_else(|| Refusal::not_found(target))?;
        let patch = body(request);
        let wanted = &patch["metadata"];
        if wanted["uid"].as_str().is_some_and(|uid| !uid.is_empty() && old["metadata"]["uid"] != uid) {
            return Err(Refusal::conflict(target, "Precondition failed: UID in precondition differs"));
        }
        let version = &wanted["resourceVersion"];
        let is_any = |version: &str| version.is_empty() || version == "0";
        if version
            .as_str()
            .is_some_and(|version| !is_any(version) && old["metadata"]["resourceVersion"] != version)
        {
            let message =
                "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Refusal::conflict(target, message));
        }
        let mut new = old.clone();
        match request.body.as_ref().map(|(content, _)| *content) {
            Some(Content::StrategicMerge) => objects::strategic_merge(&mut new, &patch),
            Some(Content::MergePatch) => objects::merge_patch(&mut new, &patch),
            _ => new = patch,
        }
        keep(&old, &mut new, &target.part);
        admission::admit(user, target, Some(&old), Some(&new), &self.0.objects.borrow())?;
        if target.place.kind.2 == "pods"
            && target.part == "status"
            && let Some(message) = admission::invalid_status(&old, &new)
        {
            return Err(Refusal::invalid(target, &message));
        }
        let stored = self.store(&target.place, new);
        if is_deleting(&stored) && has_ended(&stored) {
            self.0.objects.borrow_mut().remove(&target.place);
            self.0.changed.notify_waiters();
        }
        Ok(stored)
    }

    fn delete(&self, user: &str, target: &Target, options: &Value) -> Result<Value, Refusal> {
        let known = self.0.objects.borrow().objects.get(&target.place).cloned();
        let old = known.ok_or_else(|| Refusal::not_found(target))?;
        admission::admit(user, target, Some(&old), None, &self.0.objects.borrow())?;
        let uid = &options["preconditions"]["uid"];
        if uid.is_string() && *uid != old["metadata"]["uid"] {
            return Err(Refusal::conflict(target, "Precondition failed: UID in precondition differs"));
        }
        self.end(&target.place, options["gracePeriodSeconds"].as_i64())
            .ok_or_else(|| Refusal::not_found(target))
    }

    /// Begins or carries out a deletion; returns the last state of the object.
    fn end(&self, place: &ObjectPlace, grace: Option<i64>) -> Option<Value> {
        let mut object = self.0.objects.borrow().objects.get(place).cloned()?;
        let grace = match place.kind.2 {
            "pods" => pod_grace(&object, grace),
            _ => 0,
        };
        let metadata = &mut object["metadata"];
        let current = metadata["deletionGracePeriodSeconds"].as_i64();
        if current.is_none_or(|current| grace < current) {
            let ends =
                self.0.clock.now().saturating_add(Duration::from_secs(u64::try_from(grace).unwrap_or(0)));
            metadata["deletionTimestamp"] = ends.to_rfc3339().into();
            metadata["deletionGracePeriodSeconds"] = grace.into();
        }
        if has_ended(&object) {
            let last = self.0.objects.borrow_mut().remove(place);
            self.0.changed.notify_waiters();
            return last;
        }
        Some(self.store(place, object))
    }

    /// What controllers of the cluster do by now.
    fn control(&self) {
        let Some(lost) = self.0.evict_after.get() else { return };
        let plan = controllers::plan(&self.0.objects.borrow(), self.0.clock.now().saturating_sub(lost));
        for (place, node) in plan.nodes {
            self.store(&place, node);
        }
        for place in plan.evicted {
            self.end(&place, None);
        }
    }

    fn store(&self, place: &ObjectPlace, object: Value) -> Value {
        let now = self.0.clock.now();
        let stored = self.0.objects.borrow_mut().store(place, object, now);
        self.0.changed.notify_waiters();
        stored
    }
}

/// What a write does not change: of the status the rest of the object, of the object its status.
fn keep(old: &Value, new: &mut Value, part: &str) {
    if part == "status" {
        let mut metadata = old["metadata"].clone();
        for name in ["labels", "annotations"] {
            metadata[name] = new["metadata"][name].clone();
        }
        if let Some(members) = metadata.as_object_mut() {
            members.retain(|_, member| !member.is_null());
        }
        new["metadata"] = metadata;
        new["spec"] = old["spec"].clone();
        if new["status"]["qosClass"].is_null() && !old["status"]["qosClass"].is_null() {
            new["status"]["qosClass"] = old["status"]["qosClass"].clone();
        }
        return;
    }
    if !old["status"].is_null() {
        new["status"] = old["status"].clone();
    }
    for name in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if !old["metadata"][name].is_null() {
            new["metadata"][name] = old["metadata"][name].clone();
        }
    }
}

/// The grace of a deletion: that of the request, else the pod's; none for a pod that runs nowhere.
fn pod_grace(pod: &Value, wanted: Option<i64>) -> i64 {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty()
        || matches!(phase, "Succeeded" | "Failed")
    {
        return 0;
    }
    match wanted.or(pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30) {
        ..0 => 1,
        grace => grace,
    }
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Nothing keeps a deleted object any more.
fn has_ended(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let is_free = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
    is_free && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() == 0
}

const JSON: &str = "application/json";

fn json_answer(status: u16, object: &Value) -> FakeAnswer {
    text_answer(status, JSON, &object.to_string())
}

fn text_answer(status: u16, kind: &str, text: &str) -> FakeAnswer {
    ApiResponse { status, retry_after: None, content_type: kind.to_owned(), body: FakeBody::whole(text) }
}

/// The way of one user to a [`FakeApiserver`].
pub struct FakeTransport {
    server: FakeApiserver,
    user: String,
}

impl Transport for FakeTransport {
    type Body = FakeBody;

    async fn send(&self, _lane: Lane, request: ApiRequest) -> Result<FakeAnswer, LinkError> {
        // Other tasks run while a request is on its way.
        tokio::task::yield_now().await;
        let faults = self.server.0.faults.borrow().clone();
        let lost = |kind, message: &str| Err(LinkError { kind, message: message.to_owned() });
        if faults.refuse {
            return lost(LinkErrorKind::Dial, "connect: connection refused");
        }
        if faults.hang {
            pending::<()>().await;
        }
        let answer = self.server.answer(&self.user, &request);
        if faults.lose_answers {
            return lost(LinkErrorKind::Lost, "the connection was reset");
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
