//! Watches.
//!
//! Owns who watches, and what each of them is sent. While nobody watches there is no task and nothing is looked at; a change of
//! the node wakes one task per store, which looks once for all who watch. Must not know where objects come from.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cluster::Changes;
use super::path::{Options, Wanted};
use super::read::is_chosen;
use super::resource::Store;
use super::selector::Selector;
use super::shape::{Form, View};
use super::status::{self, Failure};
use super::versions::{Change, Step, parse_version};
use super::{LocalApi, read};
use crate::clock::Clock;
use crate::server::body::{self, Body, Pieces};

/// Changes that wait for a client that reads slowly. Then its watch ends, and it begins again where it was.
const MAX_WAITING: usize = 512;
/// Changes come in crowds; one look takes them all.
const CROWD: Duration = Duration::from_millis(50);

/// A change, and the line that most of those who watch get.
pub(super) struct News {
    change: Change,
    line: OnceCell<Bytes>,
}

impl News {
    fn new(change: Change) -> Self {
        Self { change, line: OnceCell::new() }
    }
}

/// Who watches which store.
#[derive(Default)]
pub(super) struct Watchers {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    stores: BTreeMap<Store, Watched>,
}

#[derive(Default)]
struct Watched {
    clients: BTreeMap<u64, mpsc::Sender<Rc<News>>>,
    /// Looks when something has changed.
    task: Option<JoinHandle<()>>,
}

impl Watchers {
    /// Somebody watches.
    pub(super) fn has(&self, store: Store) -> bool {
        self.state.borrow().stores.contains_key(&store)
    }

    /// Tells everybody. Who does not keep up is let go.
    pub(super) fn tell(&self, store: Store, change: Change) {
        let mut state = self.state.borrow_mut();
        let Some(watched) = state.stores.get_mut(&store) else { return };
        let news = Rc::new(News::new(change));
        watched.clients.retain(|_, client| client.try_send(Rc::clone(&news)).is_ok());
    }
}

/// One who watches; leaves when dropped.
struct Membership {
    api: Rc<LocalApi>,
    store: Store,
    number: u64,
    changes: mpsc::Receiver<Rc<News>>,
}

impl Membership {
    fn join(api: &Rc<LocalApi>, store: Store) -> Self {
        let (sender, changes) = mpsc::channel(MAX_WAITING);
        let mut state = api.watchers.state.borrow_mut();
        let number = state.next;
        state.next += 1;
        let watched = state.stores.entry(store).or_default();
        watched.clients.insert(number, sender);
        // From now on, and not from when the task has its first turn.
        watched.task.get_or_insert_with(|| {
            crate::rt::spawn("watch", keep_looking(Rc::clone(api), store, api.cluster.changes(store)))
        });
        drop(state);
        Self { api: Rc::clone(api), store, number, changes }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.api.watchers.state.borrow_mut();
        let Some(watched) = state.stores.get_mut(&self.store) else { return };
        watched.clients.remove(&self.number);
        if watched.clients.is_empty() {
            if let Some(task) = watched.task.take() {
                task.abort();
            }
            state.stores.remove(&self.store);
            self.api.forget_states(self.store);
        }
    }
}

async fn keep_looking(api: Rc<LocalApi>, store: Store, mut changes: Changes) {
    loop {
        changes.next().await;
        tokio::time::sleep(CROWD).await;
        api.look(store);
    }
}

/// What a watch begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// All there is, and with `true` a bookmark behind it.
    Everything(bool),
    /// What has happened since.
    Since(u64),
}

fn beginning(options: &Options) -> Result<Beginning, Failure> {
    let asked = parse_version(&options.resource_version)?;
    let matching = options.resource_version_match.as_str();
    let bad = |message: &str| Err(status::bad_request(message));
    match options.initial_events {
        None if !matching.is_empty() => {
            return bad(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        Some(_) if matching != "NotOlderThan" => {
            return bad(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
        Some(true) => return Ok(Beginning::Everything(true)),
        Some(false) | None => {}
    }
    Ok(match asked {
        None | Some(0) if options.initial_events.is_none() => Beginning::Everything(false),
        // Nothing of what there is now.
        None | Some(0) => Beginning::Since(u64::MAX),
        Some(version) => Beginning::Since(version),
    })
}

/// Answers `watch`.
pub(super) fn watch(api: &Rc<LocalApi>, wanted: Wanted, view: View) -> Result<Response<Body>, Failure> {
    let selector = read::selector(&wanted)?;
    let beginning = beginning(&wanted.options)?;
    let store = wanted.resource.store;
    // Nothing is awaited between them: no change is missed and none is told twice.
    let mut membership = Membership::join(api, store);
    let objects = api.look(store);
    while membership.changes.try_recv().is_ok() {}
    let current = api.current();
    let first = match beginning {
        Beginning::Everything(_) => {
            let all = objects.into_iter().map(|object| Change {
                step: Step::Added,
                object: Rc::new(object),
                before: None,
                version: current,
            });
            Ok(all.collect())
        }
        Beginning::Since(u64::MAX) => Ok(Vec::new()),
        Beginning::Since(version) => api.since(store, version, &objects),
    };
    let (pieces, body) = Body::in_pieces();
    let bookmarks = wanted.options.bookmarks;
    let replays = matches!(beginning, Beginning::Since(_));
    let watch = Watch { wanted, selector, view, clock: api.clock.clone(), headed: true, replays };
    let initial = matches!(beginning, Beginning::Everything(true)).then_some(current);
    crate::rt::spawn("watch of a client", async move {
        // A client that has gone ends it.
        let _ = watch.send(pieces, membership, first, initial, bookmarks).await;
    });
    Ok(body::response(StatusCode::OK, "application/json", body))
}

/// The client has gone.
struct HasGone;

struct Watch {
    wanted: Wanted,
    selector: Selector,
    view: View,
    clock: Clock,
    /// A table has yet to say what its columns are.
    headed: bool,
    /// It begins with what has happened since a version.
    replays: bool,
}

impl Watch {
    async fn send(
        mut self,
        pieces: Pieces,
        mut membership: Membership,
        first: Result<Vec<Change>, Failure>,
        initial: Option<u64>,
        bookmarks: bool,
    ) -> Result<(), HasGone> {
        let first = match first {
            Ok(first) => first,
            // As an event: the watch itself has begun.
            Err(failure) => return put(&pieces, "ERROR", &failure.to_value()).await,
        };
        let seconds = self.wanted.options.timeout_seconds.filter(|seconds| *seconds > 0);
        let end =
            seconds.and_then(|seconds| tokio::time::Instant::now().checked_add(Duration::from_secs(seconds)));
        let replays = self.replays;
        for change in first {
            self.tell(&pieces, &News::new(change), replays).await?;
        }
        if let Some(version) = initial {
            put(&pieces, "BOOKMARK", &self.view.bookmark(version, true)).await?;
        }
        loop {
            let ended = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = pieces.closed() => return Err(HasGone),
                change = membership.changes.recv() => match change {
                    Some(change) => self.tell(&pieces, &change, false).await?,
                    // It did not keep up.
                    None => return Ok(()),
                },
                () = ended => {
                    if bookmarks {
                        let version = membership.api.current();
                        put(&pieces, "BOOKMARK", &self.view.bookmark(version, false)).await?;
                    }
                    return Ok(());
                }
            }
        }
    }

    async fn tell(&mut self, pieces: &Pieces, news: &News, replayed: bool) -> Result<(), HasGone> {
        let change = &news.change;
        let is_chosen = |object: &Value| is_chosen(object, &self.wanted, &self.selector);
        let is_here = || read::is_here(&change.object, &self.wanted);
        let step = match change.step {
            Step::Added => is_chosen(&change.object).then_some(Step::Added),
            Step::Deleted => {
                is_chosen(change.before.as_ref().unwrap_or(&change.object)).then_some(Step::Deleted)
            }
            Step::Modified => match (change.before.as_ref().map(is_chosen), is_chosen(&change.object)) {
                (Some(false), true) => Some(Step::Added),
                (Some(true), false) => Some(Step::Deleted),
                (_, true) => Some(Step::Modified),
                // What it was then is not known: who did not know it does not mind hearing that it is gone.
                (None, false) if replayed && is_here() => Some(Step::Deleted),
                (_, false) => None,
            },
        };
        let Some(step) = step else { return Ok(()) };
        self.view.now = self.clock.now();
        let written = || line(step.as_str(), &self.view.one(&change.object, self.headed));
        let is_common =
            self.view.form == Form::Whole && self.view.resource.group.is_empty() && step == change.step;
        let line = if is_common { news.line.get_or_init(written).clone() } else { written() };
        self.headed = false;
        pieces.send(Ok(line)).await.map_err(|_| HasGone)
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut line = json!({"type": kind, "object": object}).to_string().into_bytes();
    line.push(b'\n');
    Bytes::from(line)
}

async fn put(pieces: &Pieces, kind: &str, object: &Value) -> Result<(), HasGone> {
    pieces.send(Ok(line(kind, object))).await.map_err(|_| HasGone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::SourceObject;
    use crate::localapi::cluster::Cluster;
    use crate::localapi::node::NodeState;
    use crate::localapi::{objects, text};
    use crate::pod_config::notes::Mirror;
    use crate::reconcile::node_changes::NodeBase;
    use crate::server::AgentReport;
    use crate::server::node::testing::Shown;
    use crate::store::StoredEvent;
    use crate::types::{PodUid, Timestamp};
    use tokio::sync::watch as version;

    /// A node of which only the namespaces change.
    struct Spaces {
        names: RefCell<Vec<String>>,
        version: version::Sender<u64>,
    }

    impl Cluster for Spaces {
        fn objects(&self) -> Vec<SourceObject> {
            Vec::new()
        }

        fn events(&self) -> Vec<StoredEvent> {
            Vec::new()
        }

        fn namespaces(&self) -> Vec<Value> {
            self.names.borrow().iter().map(|name| objects::namespace(name, Timestamp::default())).collect()
        }

        fn claim_directory(&self, _: &str, _: &str) -> String {
            String::new()
        }

        fn node(&self) -> NodeState {
            NodeState::default()
        }

        fn node_base(&self) -> NodeBase {
            NodeBase::default()
        }

        fn mirror(&self, _: &PodUid) -> Option<Mirror> {
            None
        }

        fn deleted_namespaces(&self) -> BTreeMap<String, Timestamp> {
            BTreeMap::new()
        }

        fn changes(&self, _: Store) -> Changes {
            Changes(vec![self.version.subscribe()])
        }
    }

    /// The task that looks has not had a turn yet.
    #[test]
    fn what_changes_right_after_a_watch_has_begun_is_told_to_all_and_nothing_goes_on_without_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let cluster = Rc::new(Spaces { names: RefCell::default(), version: version::Sender::new(0) });
            let node = Rc::new(Shown(AgentReport::default()));
            let api = LocalApi::new(
                node,
                Rc::<Spaces>::clone(&cluster),
                crate::localapi::Editor::channel().0,
                Clock::System,
            );
            let mut members = [(); 2].map(|()| Membership::join(&api, Store::Namespaces));
            api.look(Store::Namespaces);
            cluster.names.borrow_mut().push("new".to_owned());
            cluster.version.send_modify(|version| *version += 1);
            for member in &mut members {
                let mut told = Vec::new();
                while !told.contains(&"ADDED new".to_owned()) {
                    let next = tokio::time::timeout(Duration::from_secs(60), member.changes.recv());
                    let change = next.await.expect("in time").expect("it is a member");
                    let name = text(&change.change.object, "/metadata/name").to_owned();
                    told.push(format!("{} {name}", change.change.step.as_str()));
                }
                assert_eq!(
                    told,
                    ["ADDED default", "ADDED kube-node-lease", "ADDED kube-system", "ADDED new"]
                );
            }
            let [first, second] = members;
            drop(first);
            assert!(api.watchers.has(Store::Namespaces));
            drop(second);
            assert!(!api.watchers.has(Store::Namespaces));
            let alone = async {
                while cluster.version.receiver_count() > 0 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), alone).await.expect("nobody listens");
        });
    }

    fn begins(version: &str, matching: &str, initial: Option<bool>) -> Result<Beginning, u16> {
        let options = Options {
            resource_version: version.to_owned(),
            resource_version_match: matching.to_owned(),
            initial_events: initial,
            ..Options::default()
        };
        beginning(&options).map_err(|failure| failure.code)
    }

    #[test]
    fn watches_begin_where_upstreams_do() {
        assert_eq!(begins("", "", None), Ok(Beginning::Everything(false)));
        assert_eq!(begins("0", "", None), Ok(Beginning::Everything(false)));
        assert_eq!(begins("7", "", None), Ok(Beginning::Since(7)));
        assert_eq!(begins("", "NotOlderThan", Some(true)), Ok(Beginning::Everything(true)));
        assert_eq!(begins("7", "NotOlderThan", Some(true)), Ok(Beginning::Everything(true)));
        assert_eq!(begins("7", "NotOlderThan", Some(false)), Ok(Beginning::Since(7)));
        assert_eq!(begins("", "NotOlderThan", Some(false)), Ok(Beginning::Since(u64::MAX)));
        assert_eq!(begins("7", "", Some(true)), Err(400));
        assert_eq!(begins("7", "NotOlderThan", None), Err(400));
        assert_eq!(begins("x", "", None), Err(400));
    }
}
