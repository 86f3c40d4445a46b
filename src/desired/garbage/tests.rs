//! One row per shape of ownership: what goes with a deletion, what stays and how.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::json;

use super::*;
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, wire};

/// What came through the API, what manifests define, and pods that have not ended.
#[derive(Default)]
struct Node {
    api: Vec<StoredObject>,
    manifests: Vec<StoredObject>,
    ending: Vec<StoredObject>,
    /// Rows of the store could not be read.
    is_damaged: bool,
    /// How often all members were read.
    looks: Cell<usize>,
}

fn uid_in<'a>(known: &'a [StoredObject], key: &ObjectKey) -> Option<&'a str> {
    known.iter().find_map(|known| match known {
        StoredObject::Object(object) if object.key == *key => Some(object.uid.as_str()),
        _ => None,
    })
}

impl Owners for Node {
    fn members(&self) -> Vec<StoredObject> {
        self.looks.set(self.looks.get() + 1);
        self.api.clone()
    }

    fn object_uid(&self, key: &ObjectKey) -> Option<&str> {
        uid_in(&self.manifests, key).or_else(|| uid_in(&self.api, key))
    }

    fn member_uid(&self, key: &ObjectKey) -> Option<&str> {
        uid_in(&self.api, key)
    }

    fn has_pod(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let is_it =
            |known: &StoredObject| is_pod(known) && known.place() == (namespace, name) && known.uid() == uid;
        self.api.iter().any(is_it)
    }

    fn is_ending(&self, uid: &str) -> bool {
        self.ending.iter().any(|pod| pod.uid() == uid)
    }

    fn has_ending(&self, namespace: &str) -> bool {
        self.ending.iter().any(|pod| pod.place().0 == namespace)
    }

    fn is_blocked_by_pod(&self, owner: &str) -> bool {
        let blocks = |one: &OwnerReference| one.uid == owner && one.block_owner_deletion;
        self.ending.iter().any(|pod| pod.owners().iter().any(blocks))
    }

    fn is_complete(&self) -> bool {
        !self.is_damaged
    }
}

fn is_pod(known: &StoredObject) -> bool {
    matches!(known, StoredObject::Pod(_))
}

/// `KIND NAME OWNER...`, an owner as `KIND/NAME`, with `!` when the member blocks it. Uids are the names.
fn member(text: &str) -> StoredObject {
    let mut words = text.split(' ');
    let (kind, name) = (words.next().unwrap(), words.next().unwrap());
    let (mut owners, mut finalizers) = (Vec::new(), Vec::new());
    for word in words {
        if let Some(finalizer) = word.strip_prefix('+') {
            finalizers.push(finalizer);
            continue;
        }
        let (kind, name) = word.split_once('/').unwrap();
        let version = match kind {
            "Deployment" | "ReplicaSet" => "apps/v1",
            "Gauge" => "edge.example/v1",
            "ClusterRole" => "rbac.authorization.k8s.io/v1",
            "Lease" => "coordination.k8s.io/v1",
            _ => "v1",
        };
        let uid = name.trim_end_matches('!');
        owners.push(json!({"apiVersion": version, "kind": kind, "name": uid, "uid": uid,
            "blockOwnerDeletion": name.ends_with('!')}));
    }
    let object = json!({"metadata": {"name": name, "namespace": "a", "uid": name, "ownerReferences": owners,
        "finalizers": finalizers}});
    match kind {
        "Pod" => StoredObject::Pod(Rc::new(decode::<Pod>(object).unwrap().object)),
        kind => {
            let kind = ObjectKind::from_name(kind).unwrap();
            StoredObject::Object(Rc::new(wire::from_value(kind, object).unwrap()))
        }
    }
}

fn node_of(texts: &[&str]) -> Node {
    Node { api: texts.iter().map(|text| member(text)).collect(), ..Node::default() }
}

/// Each change as a line: `-NAME` goes, `NAME FINALIZERS OWNERS` stays like that.
fn lines(change: &ApiChange) -> Vec<String> {
    let shown = |member: &StoredObject| {
        let words = [vec![member.uid().to_owned()], member.finalizers().to_vec()];
        let owners = member.owners().into_iter().map(|owner| format!("<{}", owner.uid));
        let words: Vec<String> = words.concat().into_iter().chain(owners).collect();
        words.join(" ")
    };
    let mut lines: Vec<String> =
        change.remove_pods.iter().map(|(pod, _)| format!("-{}", pod.metadata.name)).collect();
    lines.extend(change.remove_objects.iter().map(|key| format!("-{}", key.name)));
    lines.extend(put_members(change).map(|member| shown(&member)));
    lines.sort();
    lines
}

fn at() -> Timestamp {
    Timestamp::from_secs(7)
}

fn delete(house: &Node, name: &str) -> ApiChange {
    house.api.iter().find(|known| known.uid() == name).unwrap().removal(None, at())
}

fn after(house: &Node, name: &str) -> Vec<String> {
    lines(&collect(house, delete(house, name), Reach::Change, at()))
}

const TREE: [&str; 4] = [
    "Deployment web",
    "ReplicaSet web-1 Deployment/web!",
    "Pod web-1-x ReplicaSet/web-1!",
    "Pod web-1-y ReplicaSet/web-1!",
];

#[test]
fn everything_below_an_owner_goes_with_it() {
    assert_eq!(after(&node_of(&TREE), "web"), ["-web", "-web-1", "-web-1-x", "-web-1-y"]);
    assert_eq!(after(&node_of(&TREE), "web-1"), ["-web-1", "-web-1-x", "-web-1-y"]);
    assert_eq!(after(&node_of(&TREE), "web-1-x"), ["-web-1-x"]);
}

#[test]
fn a_dependent_with_another_owner_only_loses_a_reference() {
    let house = node_of(&["ConfigMap one", "ConfigMap two", "Secret s ConfigMap/one ConfigMap/two"]);
    assert_eq!(after(&house, "one"), ["-one", "s <two"]);
}

#[test]
fn a_finalizer_keeps_a_dependent_and_what_hangs_on_it() {
    let house = node_of(&["ConfigMap one", "Secret s ConfigMap/one +x/y", "ConfigMap below Secret/s"]);
    assert_eq!(after(&house, "one"), ["-one", "s x/y <one"]);
}

#[test]
fn cycles_and_owners_that_never_were_do_not_hang() {
    let cycle = node_of(&["ConfigMap one Secret/two", "Secret two ConfigMap/one"]);
    assert_eq!(after(&cycle, "one"), ["-one", "-two"]);
    let own = node_of(&["ConfigMap one ConfigMap/one"]);
    assert_eq!(after(&own, "one"), ["-one"]);
    for (text, expected) in [
        ("Pod orphan ReplicaSet/none", vec!["-orphan"]),
        // Kinds that are not known here, and owners that cannot be looked up.
        ("Pod orphan Gauge/none", vec!["orphan <none"]),
        ("Pod orphan Node/none", vec!["orphan <none"]),
    ] {
        let change = member(text).to_change();
        assert_eq!(lines(&collect(&Node::default(), change, Reach::Change, at())), expected, "{text}");
    }
}

#[test]
fn an_owner_of_another_uid_is_not_the_owner() {
    let mut house = node_of(&["ConfigMap one"]);
    let StoredObject::Object(one) = &mut house.api[0] else { panic!() };
    "later".clone_into(&mut Rc::make_mut(one).uid);
    let change = member("Secret s ConfigMap/one").to_change();
    assert_eq!(lines(&collect(&house, change, Reach::Change, at())), ["-s"]);
}

#[test]
fn dependents_of_a_manifest_go_when_it_does() {
    let mut house = node_of(&["ReplicaSet web-1 Deployment/web!", "Pod web-1-x ReplicaSet/web-1!"]);
    house.manifests.push(member("Deployment web"));
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), [""; 0]);
    house.manifests.clear();
    let change = collect(&house, ApiChange::default(), Reach::All, at());
    assert_eq!(lines(&change), ["-web-1", "-web-1-x"]);
}

fn in_foreground(house: &Node, name: &str) -> ApiChange {
    let mut owner = house.api.iter().find(|known| known.uid() == name).unwrap().clone().deleted(None, at());
    owner.finalizers_mut().push(FOREGROUND.to_owned());
    collect(house, owner.to_change(), Reach::Change, at())
}

/// The node after a change; the pods that it removes have not ended.
fn changed(mut house: Node, change: &ApiChange) -> Node {
    let removed: BTreeSet<String> =
        lines(change).iter().filter_map(|line| Some(line.strip_prefix('-')?.to_owned())).collect();
    let ending = house.api.iter().filter(|known| is_pod(known) && removed.contains(known.uid()));
    house.ending.extend(ending.cloned().collect::<Vec<_>>());
    let put: Vec<StoredObject> = put_members(change).collect();
    house
        .api
        .retain(|known| !removed.contains(known.uid()) && put.iter().all(|new| new.uid() != known.uid()));
    house.api.extend(put);
    house
}

#[test]
fn in_the_foreground_owners_wait_for_the_end_of_pods() {
    let house = node_of(&TREE);
    let change = in_foreground(&house, "web");
    assert_eq!(
        lines(&change),
        ["-web-1-x", "-web-1-y", "web foregroundDeletion", "web-1 foregroundDeletion <web"]
    );
    let house = changed(house, &change);
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), [""; 0]);
    let house = Node { ending: Vec::new(), ..house };
    let change = collect(&house, ApiChange::default(), Reach::All, at());
    assert_eq!(lines(&change), ["-web", "-web-1"]);
}

#[test]
fn dependents_of_a_pod_wait_for_its_end() {
    let house = node_of(&["Pod x ConfigMap/one", "ConfigMap one", "Secret s Pod/x", "Secret t Secret/s"]);
    assert_eq!(after(&house, "x"), ["-x"]);
    // With its owner, and when it is deleted once more with a shorter grace period.
    let change = collect(&house, delete(&house, "one"), Reach::Change, at());
    assert_eq!(lines(&change), ["-one", "-x"]);
    let pod = house.api[0].clone();
    let house = changed(house, &change);
    assert_eq!(lines(&collect(&house, pod.removed(Some(0)), Reach::Change, at())), ["-x"]);
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), [""; 0]);
    let house = Node { ending: Vec::new(), ..house };
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), ["-s", "-t"]);
}

#[test]
fn a_namespace_goes_after_its_last_pod() {
    let mut house = node_of(&["Namespace a", "Pod x", "Secret s"]);
    let StoredObject::Object(namespace) = &mut house.api[0] else { panic!() };
    Rc::make_mut(namespace).key.namespace.clear();
    let mut change = house.api[0].clone().deleted(None, at()).to_change();
    change.join(delete(&house, "x"));
    change.join(delete(&house, "s"));
    let change = collect(&house, change, Reach::Change, at());
    assert_eq!(lines(&change), ["-s", "-x", "a"]);
    let house = changed(house, &change);
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), [""; 0]);
    let house = Node { ending: Vec::new(), ..house };
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), ["-a"]);
}

#[test]
fn in_the_foreground_only_what_blocks_is_waited_for() {
    let house = node_of(&["ConfigMap one", "Secret s ConfigMap/one! +x/y", "Secret t ConfigMap/one +x/y"]);
    assert_eq!(lines(&in_foreground(&house, "one")), ["one foregroundDeletion", "s x/y <one"]);
    let house = node_of(&["ConfigMap one", "Secret t ConfigMap/one"]);
    assert_eq!(lines(&in_foreground(&house, "one")), ["-one", "-t"]);
    let shared = node_of(&["ConfigMap one", "ConfigMap two", "Secret s ConfigMap/one! ConfigMap/two!"]);
    assert_eq!(lines(&in_foreground(&shared, "one")), ["-one", "s <two"]);
}

#[test]
fn owners_that_block_each_other_do_not_wait() {
    let cycle = node_of(&["ConfigMap one Secret/two!", "Secret two ConfigMap/one!"]);
    assert_eq!(lines(&in_foreground(&cycle, "one")), ["-one", "-two"]);
}

fn uids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).into_set()
}

#[test]
fn orphans_lose_their_reference_and_stay() {
    let house = node_of(&TREE);
    let change = orphans(&house, &uids(&["web"]), delete(&house, "web"));
    assert_eq!(lines(&change), ["-web", "web-1"]);
    assert_eq!(lines(&collect(&house, change, Reach::Change, at())), ["-web", "web-1"]);
    assert_eq!(blocked(&house, &uids(&["web", "web-1-x"])), uids(&["web"]));
}

#[test]
fn each_dependent_of_several_owners_is_orphaned_once() {
    let house = node_of(&[
        "ConfigMap one",
        "ConfigMap two ConfigMap/one",
        "ConfigMap three ConfigMap/one ConfigMap/two +x/y",
        "Secret s ConfigMap/one ConfigMap/two ConfigMap/other",
    ]);
    let mut change = ApiChange::default();
    for name in ["one", "two", "three"] {
        change.join(delete(&house, name));
    }
    let owners = uids(&["one", "two", "three"]);
    house.looks.set(0);
    let change = orphans(&house, &owners, change);
    assert_eq!(lines(&change), ["-one", "-two", "s <other", "three x/y"]);
    assert_eq!(blocked(&house, &owners), uids(&[]));
    assert_eq!(house.looks.get(), 2, "once each, however many owners there are");
}

#[test]
fn an_owner_waits_for_pods_that_lost_their_finalizer() {
    let mut house = node_of(&["ConfigMap one +foregroundDeletion", "Pod x ConfigMap/one!"]);
    house.api[0] = house.api[0].clone().deleted(None, at());
    // What the removal of the last finalizer of a deleted pod makes.
    let change = collect(&house, delete(&house, "x"), Reach::Change, at());
    assert_eq!(lines(&change), ["-x"]);
    // One that is no longer desired blocks only as long as it is known to be ending.
    let pod = house.api.remove(1);
    let house = Node { ending: vec![pod.clone()], ..house };
    assert_eq!(lines(&collect(&house, pod.removed(Some(0)), Reach::Change, at())), ["-x"]);
    let house = Node { ending: Vec::new(), ..house };
    assert_eq!(lines(&collect(&house, pod.removed(Some(0)), Reach::Change, at())), ["-one", "-x"]);
}

#[test]
fn with_damaged_rows_only_what_goes_now_is_absent() {
    let texts = ["Pod lost ReplicaSet/unread", "ConfigMap one", "Secret s ConfigMap/one"];
    let mut house = Node { is_damaged: true, ..node_of(&texts) };
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), [""; 0]);
    let put = member("Pod new ReplicaSet/unread").to_change();
    assert_eq!(lines(&collect(&house, put, Reach::Change, at())), ["new <unread"]);
    assert_eq!(after(&house, "one"), ["-one", "-s"]);
    house.api.push(member("ConfigMap waits +foregroundDeletion").deleted(None, at()));
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), ["-waits"]);
    house.is_damaged = false;
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), ["-lost", "-waits"]);
}

#[test]
fn owners_that_are_shown_and_not_stored_exist() {
    for owner in [
        "ServiceAccount/default",
        "ConfigMap/kube-root-ca.crt",
        "ClusterRole/view",
        "ClusterRole/system:basic-user",
    ] {
        let change = member(&format!("Secret s {owner}")).to_change();
        let name = owner.split_once('/').unwrap().1;
        assert_eq!(lines(&collect(&Node::default(), change, Reach::Change, at())), [format!("s <{name}")]);
    }
    let change = member("Secret s ClusterRole/mine").to_change();
    assert_eq!(lines(&collect(&Node::default(), change, Reach::Change, at())), ["-s"]);
    // The node's own Lease.
    let StoredObject::Object(mut map) = member("ConfigMap c Lease/box") else { panic!() };
    NODE_LEASES.clone_into(&mut Rc::make_mut(&mut map).key.namespace);
    let change = StoredObject::Object(map).to_change();
    assert_eq!(lines(&collect(&Node::default(), change, Reach::Change, at())), ["c <box"]);
}

#[test]
fn what_a_manifest_shadows_goes_without_its_dependents() {
    let mut house =
        node_of(&["ConfigMap one", "Secret of-manifest ConfigMap/one", "Secret of-api ConfigMap/one"]);
    let StoredObject::Object(one) = &mut house.api[0] else { panic!() };
    "shadowed".clone_into(&mut Rc::make_mut(one).uid);
    let StoredObject::Object(of_api) = &mut house.api[2] else { panic!() };
    "shadowed".clone_into(&mut Rc::make_mut(of_api).owner_references[0].uid);
    house.manifests.push(member("ConfigMap one"));
    assert_eq!(lines(&collect(&house, ApiChange::default(), Reach::All, at())), [""; 0]);
    assert_eq!(after(&house, "shadowed"), ["-of-api", "-one"]);
}

#[test]
fn a_change_without_owners_is_left_as_it_is() {
    let house = node_of(&TREE);
    let StoredObject::Object(object) = &house.api[1] else { panic!() };
    let status = json!({"status": {"replicas": 1}});
    let content = crate::model::objects::ObjectContent::Plain(crate::model::objects::PlainBody::new(&status));
    let new = LocalObject { content, ..LocalObject::clone(object) };
    let change = StoredObject::Object(Rc::new(new)).to_change();
    assert_eq!(lines(&collect(&house, change, Reach::Change, at())), ["web-1 <web"]);
}
