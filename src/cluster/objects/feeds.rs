//! The task `cluster objects`: a watch for each object, Services and trust bundles that pods need, and requests again
//! and again for what cannot be watched.
//!
//! Owns the open watches. A quiet task waits for events only: no timer runs for an object that is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::facts::{FactChange, GRAPH_LAG, ServiceScope, reduced};
use crate::cluster::objects::{Detection, Objects, ObjectsParts, is_immutable};
use crate::cluster::watch::frames::WatchItem;
use crate::cluster::watch::{Outlet, Outputs, WatchOutput, WatchSpec, channel, spawn};
use crate::model::api::pod::Pod;
use crate::model::back_off::Retry;
use crate::model::objects::service_variables::from_server;
use crate::model::objects::{Absence, LocalObject, ObjectContent, ObjectKey, ObjectKind, wire};
use crate::model::ordered::Sortable as _;
use crate::model::source::SourceProblem;
use crate::platform::rt;

/// Upstream reads an object at most once in a sync of a pod, whatever its time to live is.
const SHORTEST_TTL: Duration = Duration::from_secs(60);
const LONG_TTL: Duration = Duration::from_secs(300);
/// A claim that is not bound is read again.
const UNBOUND: Duration = Duration::from_secs(300);
/// A server without trust bundles is asked again: it may have been upgraded.
const NO_BUNDLES: Duration = Duration::from_secs(600);
const FIRST_RETRY: Duration = Duration::from_millis(800);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Upstream's text for a server that has no trust bundles.
const UNSUPPORTED: &str = "ClusterTrustBundle projection is not supported in static kubelet mode";

/// What one watch is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FeedKey {
    Object(ObjectKey),
    Services(ServiceScope),
    Bundles,
}

struct Feed {
    /// `None`: it is not watched now, or not any more.
    outputs: Option<Outputs>,
    /// When it is read again.
    due: Option<Instant>,
    retry: Retry,
    /// The last answer was none.
    is_lost: bool,
    /// The first 403 since the last answer.
    refused: Option<Instant>,
}

struct Feeds<T> {
    parts: ObjectsParts<T>,
    feeds: BTreeMap<FeedKey, Feed>,
}

pub(super) async fn run<T: Transport>(
    parts: ObjectsParts<T>,
    objects: Weak<Objects>,
    mut needed: watch::Receiver<u64>,
) {
    let mut task = Feeds { parts, feeds: BTreeMap::new() };
    if needed.changed().await.is_err() {
        return;
    }
    loop {
        {
            let Some(objects) = objects.upgrade() else { return };
            task.open_and_close(&objects);
        }
        let due = task.feeds.values().filter_map(|feed| feed.due).min();
        let output = tokio::select! {
            biased;
            // Cancel safe, all: an output stays in its channel until it is taken.
            changed = needed.changed() => {
                if changed.is_err() {
                    return;
                }
                task.feeds.values_mut().for_each(Feed::hurry);
                None
            }
            output = poll_fn(|context| next(&mut task.feeds, context)) => Some(output),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => None,
        };
        let (Some(mut output), Some(objects)) = (output, objects.upgrade()) else { continue };
        let mut has_changed = false;
        loop {
            has_changed |= task.take(&objects, &output.0, output.1.map(|output| *output));
            // What has arrived together is one change.
            let more = poll_fn(|context| Poll::Ready(next(&mut task.feeds, context))).await;
            let Poll::Ready(more) = more else { break };
            output = more;
        }
        if has_changed {
            objects.publish();
        }
    }
}

/// The next output of any feed; `None` at its end.
fn next(
    feeds: &mut BTreeMap<FeedKey, Feed>,
    context: &mut Context<'_>,
) -> Poll<(FeedKey, Option<Box<WatchOutput>>)> {
    for (key, feed) in feeds {
        let Some(outputs) = &mut feed.outputs else { continue };
        if let Poll::Ready(output) = outputs.poll_recv(context) {
            return Poll::Ready((key.clone(), output));
        }
    }
    Poll::Pending
}

impl Feed {
    /// What failed is asked again at once.
    fn hurry(&mut self) {
        if self.is_lost {
            self.outputs = None;
            self.due = Some(Instant::now());
        }
    }

    fn answered(&mut self) {
        self.retry.reset();
        (self.is_lost, self.refused, self.due) = (false, None, None);
    }
}

impl<T: Transport> Feeds<T> {
    /// Watches what pods need, and nothing else.
    fn open_and_close(&mut self, objects: &Objects) {
        let mut wanted = BTreeSet::new();
        let mut has_pods = false;
        objects.needed(|all| {
            for needs in all.values() {
                has_pods = true;
                wanted.extend(needs.keys().map(FeedKey::Object));
                wanted.insert(FeedKey::Services(ServiceScope::all(&needs.namespace)));
                if !needs.bundles.is_empty() {
                    wanted.insert(FeedKey::Bundles);
                }
            }
        });
        let master = ServiceScope::master();
        if has_pods && !wanted.contains(&FeedKey::Services(ServiceScope::all(&master.namespace))) {
            wanted.insert(FeedKey::Services(master));
        }
        self.feeds.retain(|key, _| wanted.contains(key));
        let facts = &self.parts.facts;
        let is_idle = |scope: &ServiceScope| !wanted.contains(&FeedKey::Services(scope.clone()));
        let idle = facts.service_scopes().into_iter().filter(is_idle);
        let mut gone: Vec<Option<FactChange>> = idle.map(|scope| facts.drop_services(&scope)).collect();
        if !wanted.contains(&FeedKey::Bundles) {
            gone.push(facts.set_bundles(None));
        }
        for change in gone.into_iter().flatten() {
            (self.parts.on_row)(change);
        }
        let asked = objects.state.borrow().asked.clone();
        for key in wanted {
            let now = Instant::now();
            let feed = self.feeds.entry(key.clone()).or_insert_with(|| Feed {
                outputs: None,
                due: Some(now),
                retry: Retry::new(FIRST_RETRY, LONGEST_RETRY),
                is_lost: false,
                refused: None,
            });
            let is_asked = matches!(&key, FeedKey::Object(key) if asked.contains(key));
            let is_due = feed.due.is_some_and(|due| due <= now) || (is_asked && !feed.is_lost);
            if is_due && feed.outputs.is_none() {
                feed.due = None;
                feed.outputs = Some(open(&self.parts, objects, &key));
            }
        }
    }

    /// Takes an output; whether anything has changed that readers see.
    fn take(&mut self, objects: &Objects, key: &FeedKey, output: Option<WatchOutput>) -> bool {
        let Some(feed) = self.feeds.get_mut(key) else { return false };
        let Some(output) = output else {
            feed.outputs = None;
            return false;
        };
        match &output {
            WatchOutput::Set { .. } | WatchOutput::Put(_) | WatchOutput::Current => feed.answered(),
            WatchOutput::Lost(_) => feed.is_lost = true,
            _ => {}
        }
        if let WatchOutput::Lost(error) = output {
            return self.lose(objects, key, &error);
        }
        match key {
            FeedKey::Object(key) if key.kind == ObjectKind::PersistentVolumeClaim => {
                self.take_claim(objects, key, output)
            }
            FeedKey::Object(key) => self.take_object(objects, key, output),
            FeedKey::Services(scope) => self.take_services(scope, output),
            FeedKey::Bundles => self.take_bundles(output),
        }
    }

    fn lose(&mut self, objects: &Objects, key: &FeedKey, error: &ApiError) -> bool {
        let Some(feed) = self.feeds.get_mut(key) else { return false };
        let is_single = matches!(key, FeedKey::Object(key) if objects.is_read_once(key.kind));
        if is_single {
            feed.due = Some(Instant::now() + feed.retry.delay_with(self.parts.dice.unit()));
        }
        let is_final = match error.kind {
            ApiErrorKind::TooMany | ApiErrorKind::NoTurn => false,
            ApiErrorKind::Forbidden => feed.refused.get_or_insert_with(Instant::now).elapsed() >= GRAPH_LAG,
            _ => !error.is_offline(),
        };
        match key {
            FeedKey::Object(key) => {
                let waits = error.kind == ApiErrorKind::Forbidden && !is_final;
                !waits && objects.lack(key, is_final.then(|| Absence::Refused(error.message.clone())))
            }
            FeedKey::Bundles
                if !error.is_offline() && self.parts.facts.bundles().is_none_or(|it| it.is_err()) =>
            {
                feed.outputs = None;
                feed.is_lost = false;
                feed.due = Some(Instant::now() + NO_BUNDLES);
                let row = self.parts.facts.set_bundles(Some(Err(UNSUPPORTED.to_owned())));
                self.write(row);
                true
            }
            _ => false,
        }
    }

    fn take_object(&mut self, objects: &Objects, key: &ObjectKey, output: WatchOutput) -> bool {
        let item = match output {
            WatchOutput::Put(item) => Some(item),
            WatchOutput::Set { items, .. } => items.into_iter().next(),
            WatchOutput::Gone(_) => None,
            _ => return false,
        };
        let ttl = objects.is_read_once(key.kind).then(|| self.ttl());
        let Some(feed) = self.feeds.get_mut(&FeedKey::Object(key.clone())) else { return false };
        feed.due = ttl.map(|ttl| Instant::now() + ttl);
        let Some(item) = item else {
            return objects.lack(key, Some(Absence::NotFound));
        };
        match object_of(key.kind, item.value) {
            Ok(object) => {
                if is_immutable(&object) {
                    feed.outputs = None;
                    feed.due = None;
                }
                objects.put(object, &self.parts.origin)
            }
            Err(why) => self.refuse(objects, key, &why),
        }
    }

    /// The last version stays; without one the pod gets this message.
    fn refuse(&self, objects: &Objects, key: &ObjectKey, why: &str) -> bool {
        let message = format!("{key} cannot be read: {why}");
        let has_changed = objects.lack(key, Some(Absence::Refused(message.clone())));
        let (origin, since) = (self.parts.origin.clone(), self.parts.clock.now());
        let reason = "FailedValidation".to_owned();
        let problem = SourceProblem { origin, reason, message, since, pod: String::new() };
        objects.add_problem(key, problem) || has_changed
    }

    /// `Set` has the claim, and its volume when it is bound.
    fn take_claim(&mut self, objects: &Objects, key: &ObjectKey, output: WatchOutput) -> bool {
        let WatchOutput::Set { items, .. } = output else { return false };
        let Some(feed) = self.feeds.get_mut(&FeedKey::Object(key.clone())) else { return false };
        feed.due = Some(Instant::now() + UNBOUND);
        let mut items = items.into_iter().map(|item| item.value);
        let Some(claim) = items.next() else {
            return objects.lack(key, Some(Absence::NotFound));
        };
        let volume = items.next().unwrap_or_default();
        let mut object = match object_of(key.kind, claim.clone()) {
            Ok(object) => object,
            Err(why) => return self.refuse(objects, key, &why),
        };
        let ObjectContent::Claim(spec) = &mut object.content else { return false };
        let place = (key.namespace.clone(), key.name.clone());
        let pods: Vec<Rc<Pod>> = objects.needed(|all| {
            let users = all.values().filter(|needs| needs.claims.contains(&place));
            users.filter_map(|needs| needs.pod.clone()).collect()
        });
        let mut bound = Err(String::new());
        for pod in pods {
            bound = (self.parts.bind)(&claim, &volume, &pod, spec);
            if bound.is_ok() {
                break;
            }
        }
        match bound {
            Ok(()) => {
                feed.due = None;
                objects.put(object, &self.parts.origin)
            }
            Err(why) => objects.lack(key, Some(Absence::Refused(why))),
        }
    }

    fn take_services(&self, scope: &ServiceScope, output: WatchOutput) -> bool {
        let Some((items, gone)) = put_and_gone(output) else { return false };
        let change = self.parts.facts.change_services(scope, |known| {
            known.retain(|service| gone.as_ref().is_some_and(|gone| service.name != *gone));
            known.extend(items.iter().filter_map(|item| from_server(&item.value)));
            known.order_by(|one, other| one.name.cmp(&other.name));
        });
        self.write(change)
    }

    fn take_bundles(&self, output: WatchOutput) -> bool {
        let Some((items, gone)) = put_and_gone(output) else { return false };
        let facts = &self.parts.facts;
        let mut bundles = facts.bundles().and_then(Result::ok).unwrap_or_default();
        bundles.retain(|bundle| gone.as_ref().is_some_and(|gone| bundle["metadata"]["name"] != *gone));
        bundles.extend(items.iter().map(|item| reduced(&item.value)));
        bundles.order_by_key(|bundle| bundle["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        self.write(facts.set_bundles(Some(Ok(bundles))))
    }

    fn write(&self, change: Option<FactChange>) -> bool {
        let has_changed = change.is_some();
        if let Some(change) = change {
            (self.parts.on_row)(change);
        }
        has_changed
    }

    fn ttl(&self) -> Duration {
        match self.parts.detection {
            Detection::Cache => (self.parts.node_ttl)().unwrap_or_default().max(SHORTEST_TTL),
            Detection::Seldom => LONG_TTL,
            Detection::Get | Detection::Watch => SHORTEST_TTL,
        }
    }
}

fn open<T: Transport>(parts: &ObjectsParts<T>, objects: &Objects, key: &FeedKey) -> Outputs {
    let (into, outputs) = channel();
    let client = Rc::clone(&parts.client);
    let spec = match key {
        FeedKey::Object(key) if objects.is_read_once(key.kind) => {
            drop(rt::spawn("cluster object", read_once(client, path_of(key), into)));
            return outputs;
        }
        FeedKey::Object(key) => WatchSpec::single(path_of(key)),
        FeedKey::Services(scope) => {
            let path = ResourcePath::namespaced("", "services", &scope.namespace, &scope.name);
            match scope.name.as_str() {
                "" => WatchSpec::list(path, "spec.clusterIP!=None".to_owned()),
                _ => WatchSpec::single(path),
            }
        }
        FeedKey::Bundles => {
            let path = ResourcePath::whole("certificates.k8s.io/v1beta1", "clustertrustbundles", "");
            WatchSpec::list(path, String::new())
        }
    };
    drop(spawn(client, spec, into, parts.clock.clone(), parts.dice.clone()));
    outputs
}

/// What an output of a list adds, and the object that it takes away or replaces: all of them without a name.
fn put_and_gone(output: WatchOutput) -> Option<(Vec<WatchItem>, Option<String>)> {
    match output {
        WatchOutput::Set { items, .. } => Some((items, None)),
        WatchOutput::Put(item) => {
            let name = item.key.name.clone();
            Some((vec![item], Some(name)))
        }
        WatchOutput::Gone(key) => Some((Vec::new(), Some(key.name))),
        _ => None,
    }
}

fn path_of(key: &ObjectKey) -> ResourcePath {
    let (group, plural) = (key.kind.group(), key.kind.plural());
    if key.kind.is_namespaced() {
        ResourcePath::namespaced(group, plural, &key.namespace, &key.name)
    } else {
        ResourcePath::whole(group, plural, &key.name)
    }
}

/// The output of a watch that ends with its first answer; of a claim with its volume.
async fn read_once<T: Transport>(client: Rc<Client<T>>, path: ResourcePath, into: Outlet) {
    let output = match read_all(&client, &path).await {
        Ok(values) => {
            let items = values.into_iter().filter_map(WatchItem::of).collect();
            WatchOutput::Set { items, went_back: false }
        }
        Err(error) => WatchOutput::Lost(error),
    };
    // The owner may have gone on without it.
    let _ = into.send(Box::new(output)).await;
}

async fn read_all<T: Transport>(client: &Client<T>, path: &ResourcePath) -> Result<Vec<Value>, ApiError> {
    let object = match client.get(Lane::Main, path, Accept::Json).await {
        Ok(object) => object,
        Err(error) if error.kind == ApiErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let volume = object["spec"]["volumeName"].as_str().unwrap_or_default();
    if volume.is_empty() || object["status"]["phase"] != "Bound" {
        return Ok(vec![object]);
    }
    let path = ResourcePath::whole("", "persistentvolumes", volume);
    match client.get(Lane::Main, &path, Accept::Json).await {
        Ok(volume) => Ok(vec![object, volume]),
        Err(error) => {
            let message = format!("failed to fetch PV {volume} from API server: {}", error.message);
            Err(ApiError { message, ..error })
        }
    }
}

/// As objects of manifests, but with uid and time of the server, whose validation they have passed. What has no effect
/// here is left out, so that an object reads back from the store as it was.
fn object_of(kind: ObjectKind, value: Value) -> Result<LocalObject, String> {
    let mut object = wire::from_value(kind, value)?;
    object.finalizers.clear();
    object.deleted = None;
    if kind == ObjectKind::Secret {
        object.annotations.remove(wire::LAST_APPLIED);
    }
    Ok(object)
}
