//! Precedence, retention and findings.

use serde_json::json;

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::ConfigMapData;

fn map(name: &str, value: &str, immutable: bool, origin: &str) -> SourceObject {
    let wire = json!({"metadata": {"name": name}, "data": {"k": value}, "immutable": immutable});
    let decoded = AnyObject::ConfigMap(decode(wire).unwrap().object);
    SourceObject { object: Rc::new(prepare(decoded).unwrap().0), origin: origin.to_owned() }
}

fn value(sets: &ObjectSets, name: &str) -> Option<String> {
    let winners = sets.winners();
    let object = winners.values().find(|object| object.object.key.name == name)?;
    match &object.object.content {
        ObjectContent::ConfigMap { data: ConfigMapData { data, .. }, .. } => {
            Some(String::from_utf8(data["k"].clone()).unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn messages(sets: &ObjectSets) -> Vec<String> {
    sets.findings().into_iter().map(|finding| format!("{}: {}", finding.origin, finding.message)).collect()
}

#[test]
fn first_file_by_name_wins_in_any_read_order() {
    let pair = [map("m", "from-b", false, "/m/b.yaml"), map("m", "from-a", false, "/m/a.yaml")];
    for order in [[0, 1], [1, 0]] {
        let wanted = order.map(|at: usize| pair[at].clone()).to_vec();
        let sets = ObjectSets::default().merge(PodSource::File, wanted);
        assert_eq!(value(&sets, "m").as_deref(), Some("from-a"));
        assert_eq!(
            messages(&sets),
            [
                "/m/b.yaml: ConfigMap default/m is defined more than once, ignoring this one (/m/a.yaml is used); delete one of them"
            ]
        );
    }
}

#[test]
fn file_object_wins_and_the_url_one_returns_after_removal() {
    let sets = ObjectSets::default().merge(PodSource::Http, vec![map("m", "url", false, "http://u/")]);
    let both = sets.merge(PodSource::File, vec![map("m", "file", false, "/m/a.yaml")]);
    assert_eq!(value(&both, "m").as_deref(), Some("file"));
    assert_eq!(
        messages(&both),
        [
            "http://u/: ConfigMap default/m is defined by both file (/m/a.yaml) and http (http://u/); the first is used, delete one of them"
        ]
    );
    let url = both.merge(PodSource::File, Vec::new());
    assert_eq!((value(&url, "m").as_deref(), messages(&url).len()), (Some("url"), 0));
}

#[test]
fn an_immutable_object_stays_until_it_is_deleted() {
    let file = |value: &str, immutable| vec![map("m", value, immutable, "/m/a.yaml")];
    let sets = ObjectSets::default().merge(PodSource::File, file("1", true));
    let refused = sets.merge(PodSource::File, file("2", true));
    assert_eq!(value(&refused, "m").as_deref(), Some("1"));
    assert_eq!(
        messages(&refused),
        ["/m/a.yaml: ConfigMap default/m cannot be changed, keeping its last version: \
          data: Forbidden: field is immutable when `immutable` is set; delete it first, or use another name"]
    );
    assert_eq!(refused.merge(PodSource::File, file("2", true)), refused, "said again, refused again");
    let mended = refused.merge(PodSource::File, file("1", true));
    assert_eq!((value(&mended, "m").as_deref(), messages(&mended).len()), (Some("1"), 0));
    let deleted = refused.merge(PodSource::File, Vec::new());
    assert_eq!(value(&deleted, "m"), None);
    assert_eq!(value(&deleted.merge(PodSource::File, file("2", false)), "m").as_deref(), Some("2"));
    let stored = sets.sources[&PodSource::File].values().cloned().collect();
    let restarted = ObjectSets::remembered([(PodSource::File, stored)]);
    assert_eq!(
        value(&restarted.merge(PodSource::File, file("2", true)), "m").as_deref(),
        Some("1"),
        "after a restart too"
    );
}

#[test]
fn unchanged_object_is_shared_and_keeps_its_creation_time() {
    let new = || Rc::unwrap_or_clone(map("m", "1", false, "x").object);
    let first = carry(None, new(), Timestamp::from_secs(5));
    assert_eq!(first.created, Timestamp::from_secs(5));
    assert!(Rc::ptr_eq(&first, &carry(Some(&first), new(), Timestamp::from_secs(6))));
    let changed = Rc::unwrap_or_clone(map("m", "2", false, "x").object);
    let second = carry(Some(&first), changed, Timestamp::from_secs(7));
    assert!(!Rc::ptr_eq(&first, &second) && second.created == Timestamp::from_secs(5));
}

#[test]
fn a_storage_class_is_accepted_and_what_it_needs_is_said() {
    let claim = |class: &str| {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}});
        let wire = json!({"metadata": {"name": "c"}, "spec": spec});
        prepare(AnyObject::Claim(Box::new(decode(wire).unwrap().object))).unwrap().1
    };
    assert!(claim("").is_empty());
    assert_eq!(
        claim("fast"),
        [
            "spec.storageClassName: \"fast\" has no effect without a PersistentVolume or a StorageClass of it: the claim uses a directory of this node"
        ]
    );
}

#[test]
fn what_a_removed_service_had_is_free_at_once() {
    let service = |name: &str| {
        let key =
            ObjectKey { kind: ObjectKind::Service, namespace: "shop".to_owned(), name: name.to_owned() };
        let mut body = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.7.7",
            "ports": [{"port": 80, "nodePort": 30_080}]}});
        (rules(ObjectKind::Service).defaults)(&mut body);
        let object = wire::plain_object(key, PlainBody::new(&body));
        SourceObject { object: Rc::new(object), origin: format!("/m/{name}.yaml") }
    };
    let cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    let ranges = ServiceRanges { cidrs, node_ports: (30_000, 32_767) };
    let sets = ObjectSets { services: Some(ranges), ..ObjectSets::default() };
    let old = sets.merge(PodSource::File, vec![service("old")]);
    let renamed = old.merge(PodSource::File, vec![service("new")]);
    assert_eq!(messages(&renamed), [] as [&str; 0]);
    assert!(renamed.winners().keys().all(|key| key.name == "new"));
    let both = old.merge(PodSource::File, vec![service("new"), service("old")]);
    let said = messages(&both).concat();
    assert!(said.contains("/m/new.yaml") && said.contains("provided IP is already allocated"), "{said}");
}
