//! Watches of a simulated node, and their cost.

use std::collections::BTreeSet;

use super::*;
use crate::desired::pod_config::notes::Mirror;
use crate::model::node_changes::NodeBase;
use crate::model::objects::{LocalObject, ObjectKey, ObjectKind, VersionedObject, wire};
use crate::model::revisions::Revisions;
use crate::model::types::{PodUid, Timestamp};
use crate::node::object::NodeState;
use crate::serve::localapi::ApiOptions;
use crate::serve::localapi::implied;
use crate::serve::localapi::local_node::LocalNode;
use crate::serve::roles::Roles;
use crate::serve::server::AgentReport;
use crate::serve::server::node::testing::Shown;
use crate::store::StoredEvent;
use tokio::sync::watch as version;

/// A node of which only the namespaces change.
struct Spaces {
    names: RefCell<Vec<String>>,
    version: version::Sender<u64>,
}

impl LocalNode for Spaces {
    fn objects_of(&self, kind: ObjectKind) -> Vec<VersionedObject> {
        let made = |name: &String| {
            let wire = implied::namespace(name, Timestamp::default());
            let object = Rc::new(wire::from_value(ObjectKind::Namespace, wire).unwrap());
            VersionedObject { object, version: 1, origin: Rc::from("") }
        };
        match kind {
            ObjectKind::Namespace => self.names.borrow().iter().map(made).collect(),
            _ => Vec::new(),
        }
    }

    fn object(&self, _: &ObjectKey) -> Option<VersionedObject> {
        None
    }

    fn namespaces_in_use(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn events(&self) -> Vec<StoredEvent> {
        Vec::new()
    }

    fn claim_directory(&self, _: &LocalObject) -> String {
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

    fn pod_version(&self, _: &PodUid) -> u64 {
        0
    }

    fn deleted_namespaces(&self) -> BTreeMap<String, Timestamp> {
        BTreeMap::new()
    }

    fn changes(&self, _: Store) -> Changes {
        Changes(vec![self.version.subscribe()])
    }
}

fn api_of(cluster: &Rc<Spaces>) -> Rc<LocalApi> {
    let (node, editor) =
        (Rc::new(Shown(AgentReport::default())), crate::serve::localapi::Editor::channel().0);
    let revisions = Revisions::since(Timestamp::default());
    let roles = (None, Rc::new(Roles::new(None)));
    let cluster = Rc::<Spaces>::clone(cluster);
    LocalApi::new(node, cluster, editor, Clock::System, revisions, ApiOptions::default(), roles)
}

fn spaces() -> Rc<Spaces> {
    Rc::new(Spaces { names: RefCell::default(), version: version::Sender::new(0) })
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

fn change(api: &LocalApi, bytes: usize) -> Change {
    let state = Written::unsent(vec![b'x'; bytes].into(), &api.watchers.retained);
    Change { step: ObjectChange::Modified, name: Default::default(), state, before: None, version: 1 }
}

#[test]
fn watches_of_a_user_are_counted_and_others_are_served() {
    run(async {
        let api = api_of(&spaces());
        let join =
            |user: &str| Membership::join(&api, Store::Namespaces, user).map_err(|failure| failure.code);
        let mut members: Vec<_> = (0..MAX_OF_A_USER).map(|_| join("jane").unwrap()).collect();
        assert_eq!(join("jane").err(), Some(429));
        assert!(join("joe").is_ok());
        members.pop();
        assert!(join("jane").is_ok());
    });
}

#[test]
fn the_slowest_watch_ends_when_too_much_waits() {
    run(async {
        let api = api_of(&spaces());
        let [slow, quick] = [(); 2].map(|()| Membership::join(&api, Store::Namespaces, "jane").unwrap());
        for _ in 0..20 {
            api.watchers.notify(Store::Namespaces, change(&api, 1024 * 1024));
            // The fast client reads what is queued.
            quick.client.took.set(Instant::now());
            while quick.client.next().is_some() {}
        }
        assert!(slow.client.has_ended.get() && !quick.client.has_ended.get());
        assert_eq!(api.watchers.retained.bytes(), 0);
        // Queued changes share their text.
        let many: Vec<_> =
            (0..100).map(|_| Membership::join(&api, Store::Namespaces, "joe").unwrap()).collect();
        api.watchers.notify(Store::Namespaces, change(&api, 1024 * 1024));
        assert_eq!(api.watchers.retained.bytes(), 1024 * 1024);
        assert!(many.iter().all(|member| !member.client.has_ended.get()));
    });
}

#[test]
fn a_line_goes_out_in_pieces_that_keep_nothing_of_it() {
    let retained = Retained::default();
    for length in [0, 1, PIECE - 10, PIECE, 3 * PIECE + 7] {
        let text = Written::unsent(vec![b'x'; length].into(), &retained);
        let line = Line { head: "{head:".to_owned(), text, tail: "}\n" };
        let whole = format!("{{head:{}}}\n", "x".repeat(length));
        let (mut sent, mut pieces) = (Vec::new(), Vec::new());
        while let Some(piece) = line.piece(sent.len()) {
            sent.extend_from_slice(&piece);
            pieces.push(piece.len());
        }
        assert_eq!(String::from_utf8(sent).unwrap(), whole);
        assert!(pieces.iter().all(|piece| *piece <= PIECE), "{pieces:?}");
    }
    assert_eq!(retained.bytes(), 0);
}

#[test]
fn watches_that_begin_together_share_one_look() {
    run(async {
        let cluster = spaces();
        let api = api_of(&cluster);
        let _watch = Membership::join(&api, Store::Namespaces, "jane").unwrap();
        assert!(!api.watchers.is_fresh(Store::Namespaces), "nothing was looked at");
        api.refresh(Store::Namespaces);
        assert!(api.watchers.is_fresh(Store::Namespaces));
        assert!(Rc::ptr_eq(&api.all(Store::Namespaces)[0].state, &api.all(Store::Namespaces)[0].state));
        cluster.version.send_modify(|version| *version += 1);
        assert!(!api.watchers.is_fresh(Store::Namespaces), "something has changed");
    });
}

/// The task that reads the store has not been polled yet.
#[test]
fn early_changes_reach_all_watchers_and_the_reader_then_ends() {
    run(async {
        let cluster = spaces();
        let api = api_of(&cluster);
        let mut members = [(); 2].map(|()| Membership::join(&api, Store::Namespaces, "jane").unwrap());
        api.refresh(Store::Namespaces);
        cluster.names.borrow_mut().push("new".to_owned());
        cluster.version.send_modify(|version| *version += 1);
        for member in &mut members {
            let mut told = Vec::new();
            while !told.contains(&"ADDED new".to_owned()) {
                let next = async {
                    loop {
                        match member.client.next() {
                            Some(change) => return change,
                            None => member.client.wakes.notified().await,
                        }
                    }
                };
                let change = tokio::time::timeout(Duration::from_secs(60), next).await.expect("in time");
                told.push(format!("{} {}", change.step.as_str(), change.name.1));
            }
            assert_eq!(told, ["ADDED default", "ADDED kube-node-lease", "ADDED kube-system", "ADDED new"]);
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
    let options = QueryOptions {
        resource_version: version.to_owned(),
        resource_version_match: matching.to_owned(),
        initial_events: initial,
        ..QueryOptions::default()
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
