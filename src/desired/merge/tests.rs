use proptest::prelude::*;

use super::*;
use crate::model::provenance::{CONFIG_SEEN_ANNOTATION, CONFIG_SOURCE_ANNOTATION};

fn pod(name: &str, uid: &str, image: &str, origin: &str) -> SourcePod {
    let mut pod = Pod::default();
    pod.metadata.name = name.to_owned();
    pod.metadata.namespace = "default".to_owned();
    pod.metadata.uid = uid.into();
    pod.spec.containers =
        vec![crate::model::api::pod::Container { image: image.to_owned(), ..Default::default() }];
    SourcePod { pod: Rc::new(pod), origin: origin.to_owned() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn ops(merged: &Merged) -> Vec<(PodOp, &str)> {
    merged.changes.iter().map(|change| (change.op, change.pod.pod.metadata.name.as_str())).collect()
}

fn file(desired: &DesiredSet, pods: Vec<SourcePod>) -> Merged {
    merge(desired, PodSource::File, Some(pods), at(100))
}

#[test]
fn the_generation_of_a_manifests_pod_counts_changes_of_its_spec() {
    let generation = |merged: &Merged| merged.desired.pods().next().unwrap().1.pod.metadata.generation;
    let first = file(&DesiredSet::default(), vec![pod("a", "1", "x", "o")]);
    assert_eq!(generation(&first), 1);
    let mut labelled = pod("a", "1", "x", "o");
    Rc::make_mut(&mut labelled.pod).metadata.labels.insert("a".to_owned(), "b".to_owned());
    let second = file(&first.desired, vec![labelled]);
    assert_eq!((ops(&second), generation(&second)), (vec![(PodOp::Update, "a")], 1));
    let third = file(&second.desired, vec![pod("a", "1", "y", "o")]);
    assert_eq!(generation(&third), 2);
    assert_eq!(generation(&file(&third.desired, vec![pod("a", "1", "y", "o")])), 2);
    // The API sets generations itself.
    let api = |desired: &DesiredSet, counted: i64| {
        let mut pod = pod("a", "1", "x", "o");
        Rc::make_mut(&mut pod.pod).metadata.generation = counted;
        Rc::make_mut(&mut pod.pod).metadata.labels.insert("n".to_owned(), counted.to_string());
        merge(desired, PodSource::Api, Some(vec![pod]), at(100))
    };
    assert_eq!(generation(&api(&api(&DesiredSet::default(), 4).desired, 9)), 9);
}

#[test]
fn changes_come_in_upstreams_order_and_are_classified_as_there() {
    let old = file(
        &DesiredSet::default(),
        vec![
            pod("gone", "1", "x", "a"),
            pod("changed", "2", "x", "b"),
            pod("deleted", "3", "x", "c"),
            pod("status", "4", "x", "d"),
            pod("same", "5", "x", "e"),
        ],
    );
    assert!(old.first_seen);
    assert_eq!(old.changes.len(), 5);
    let mut deleted = pod("deleted", "3", "x", "c");
    Rc::make_mut(&mut deleted.pod).metadata.deletion_timestamp = Some(at(5));
    let mut status = pod("status", "4", "x", "d");
    Rc::make_mut(&mut status.pod).status.phase = "Running".to_owned();
    let new = file(
        &old.desired,
        vec![
            pod("new", "0", "x", "f"),
            status,
            deleted,
            pod("changed", "2", "y", "b"),
            pod("same", "5", "x", "e"),
        ],
    );
    assert!(!new.first_seen);
    assert_eq!(
        ops(&new),
        [
            (PodOp::Remove, "gone"),
            (PodOp::Add, "new"),
            (PodOp::Update, "changed"),
            (PodOp::Delete, "deleted"),
            (PodOp::Reconcile, "status"),
        ]
    );
}

#[test]
fn source_and_first_sight_are_noted_once_and_carried_over() {
    let first = file(&DesiredSet::default(), vec![pod("web", "1", "x", "a")]);
    let second = merge(&first.desired, PodSource::File, Some(vec![pod("web", "1", "y", "a")]), at(200));
    let annotations = &second.changes[0].pod.pod.metadata.annotations;
    assert_eq!(annotations[CONFIG_SOURCE_ANNOTATION], "file");
    assert_eq!(annotations[CONFIG_SEEN_ANNOTATION], at(100).to_rfc3339_nano());
    assert_eq!(second.changes[0].pod.pod.spec.containers[0].image, "y");
}

#[test]
fn annotations_count_except_the_local_ones() {
    let first = file(&DesiredSet::default(), vec![pod("web", "1", "x", "a")]);
    let with = |name: &str| {
        let mut new = pod("web", "1", "x", "a");
        Rc::make_mut(&mut new.pod).metadata.annotations.insert(name.to_owned(), "v".to_owned());
        file(&first.desired, vec![new])
    };
    assert_eq!(ops(&with("note")), [(PodOp::Update, "web")]);
    for local in LOCAL_ANNOTATIONS {
        assert_eq!(ops(&with(local)), [], "{local}");
    }
}

#[test]
fn unknown_answer_or_silent_source_keeps_the_stored_set() {
    let mut stored = file(&DesiredSet::default(), vec![pod("web", "1", "x", "a")]).desired;
    stored.sources.get_mut(&PodSource::File).unwrap().seen = false;
    let silent = merge(&stored, PodSource::File, None, at(200));
    assert_eq!(silent.desired, stored);
    assert!(silent.changes.is_empty() && !silent.first_seen);
    let other = merge(&stored, PodSource::Http, Some(vec![]), at(200));
    assert_eq!(other.desired.sources[&PodSource::File], stored.sources[&PodSource::File]);
    assert!(other.changes.is_empty() && other.first_seen);
    assert!(!other.desired.seen_all_sources(&[PodSource::File, PodSource::Http]));
    let spoken = file(&other.desired, vec![pod("web", "1", "x", "a")]);
    assert!(spoken.changes.is_empty() && spoken.first_seen);
    assert!(spoken.desired.seen_all_sources(&[PodSource::File, PodSource::Http]));
    assert_eq!(ops(&file(&spoken.desired, vec![])), [(PodOp::Remove, "web")]);
}

#[test]
fn first_origin_wins_for_duplicate_names_in_any_order() {
    let (a, b) = (pod("web", "1", "x", "a.yaml"), pod("web", "2", "x", "b.yaml"));
    let one = file(&DesiredSet::default(), vec![a.clone(), b.clone()]);
    let two = file(&DesiredSet::default(), vec![b, a]);
    assert_eq!(one, two);
    assert_eq!(one.desired.pods().map(|(_, pod)| pod.origin.as_str()).collect::<Vec<_>>(), ["a.yaml"]);
    assert_eq!(one.findings.len(), 1);
    assert_eq!(one.findings[0].origin, "b.yaml");
    assert_eq!(
        one.findings[0].message,
        "Error validating pod web_default(2) from file due to duplicate pod name \"web_default\", ignoring (a.yaml is used)"
    );
}

#[test]
fn first_origin_wins_for_duplicate_uids_and_both_are_named() {
    let merged =
        file(&DesiredSet::default(), vec![pod("b", "1", "x", "b.yaml"), pod("a", "1", "x", "a.yaml")]);
    assert_eq!(ops(&merged), [(PodOp::Add, "a")]);
    let message = &merged.findings[0].message;
    assert!(
        message.contains("duplicate uid \"1\"")
            && message.contains("a.yaml")
            && message.contains("metadata.uid")
    );
}

#[test]
fn same_name_in_two_sources_is_kept_twice_and_reported() {
    let first = file(&DesiredSet::default(), vec![pod("web", "1", "x", "a.yaml")]);
    let second = merge(&first.desired, PodSource::Http, Some(vec![pod("web", "2", "x", "http://x/")]), at(1));
    assert_eq!(second.desired.pods().count(), 2);
    assert_eq!(second.findings.len(), 1);
    let message = &second.findings[0].message;
    assert!(message.contains("file (a.yaml)") && message.contains("http (http://x/)"), "{message}");
    let doubled = vec![pod("a", "8", "x", "http://x/"), pod("a", "9", "x", "http://x/")];
    let third = merge(&first.desired, PodSource::Http, Some(doubled), at(2));
    assert_eq!(third.findings.len(), 1);
    assert_eq!(
        file(&third.desired, vec![]).findings,
        third.findings,
        "another source's answer does not clear it"
    );
    let unchanged = merge(&second.desired, PodSource::File, None, at(2));
    assert_eq!(unchanged.findings, second.findings, "a finding stands until it is mended");
}

fn any_pods() -> impl Strategy<Value = Vec<SourcePod>> {
    let one = (0..5_u8, 0..5_u8, 0..2_u8, 0..3_u8).prop_map(|(name, uid, image, origin)| {
        pod(&format!("n{name}"), &format!("u{uid}"), &format!("i{image}"), &format!("o{origin}"))
    });
    proptest::collection::vec(one, 0..8)
}

/// Applies the changes as a consumer does.
fn apply(mut pods: BTreeMap<PodUid, SourcePod>, changes: &[PodChange]) -> BTreeMap<PodUid, SourcePod> {
    for PodChange { op, pod } in changes {
        match op {
            PodOp::Remove => {
                pods.remove(&pod.pod.metadata.uid);
            }
            _ => {
                pods.insert(pod.pod.metadata.uid.clone(), pod.clone());
            }
        }
    }
    pods
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn following_the_changes_leads_from_the_old_set_to_the_new_one(sets in proptest::collection::vec(any_pods(), 1..5)) {
        let mut desired = DesiredSet::default();
        let mut believed = BTreeMap::new();
        for pods in sets {
            let merged = merge(&desired, PodSource::File, Some(pods.clone()), at(1));
            prop_assert_eq!(&merge(&desired, PodSource::File, Some(pods.clone()), at(1)), &merged);
            believed = apply(believed, &merged.changes);
            let strip = |pods: &BTreeMap<PodUid, SourcePod>| -> Vec<Rc<Pod>> { pods.values().map(|pod| pod.pod.clone()).collect() };
            prop_assert_eq!(strip(&believed), strip(&merged.desired.sources[&PodSource::File].pods));
            let again = merge(&merged.desired, PodSource::File, Some(pods), at(2));
            prop_assert!(again.changes.is_empty(), "the same set twice changes nothing: {:?}", again.changes);
            desired = merged.desired;
        }
    }

    #[test]
    fn what_one_source_says_costs_another_nothing(mine in any_pods(), theirs in any_pods()) {
        let before = file(&DesiredSet::default(), mine).desired;
        let after = merge(&before, PodSource::Http, Some(theirs), at(3));
        prop_assert_eq!(&after.desired.sources[&PodSource::File], &before.sources[&PodSource::File]);
        prop_assert!(after.changes.iter().all(|change| change.op == PodOp::Add));
    }
}

#[test]
fn a_pod_of_the_cluster_is_shared_with_its_source() {
    let of_cluster = |label: &str, generation: i64| {
        let mut pod = pod("a", "1", "x", "o");
        let own = Rc::make_mut(&mut pod.pod);
        crate::model::provenance::mark_first_seen(own, PodSource::Cluster, at(5));
        own.metadata.labels.insert("n".to_owned(), label.to_owned());
        own.metadata.generation = generation;
        pod
    };
    let merged = |desired: &DesiredSet, pod: &SourcePod| {
        merge(desired, PodSource::Cluster, Some(vec![pod.clone()]), at(100))
    };
    let (first, same, second) = (of_cluster("1", 4), of_cluster("1", 4), of_cluster("2", 9));
    let is_shared = |merged: &Merged, pod: &SourcePod| {
        let (source, found) = merged.desired.pods().next().unwrap();
        source == PodSource::Cluster && Rc::ptr_eq(&found.pod, &pod.pod)
    };
    let set = merged(&DesiredSet::default(), &first);
    assert_eq!((ops(&set), is_shared(&set, &first)), (vec![(PodOp::Add, "a")], true));
    let unchanged = merged(&set.desired, &same);
    assert_eq!((ops(&unchanged), is_shared(&unchanged, &first)), (vec![], true));
    let changed = merged(&set.desired, &second);
    assert_eq!((ops(&changed), is_shared(&changed, &second)), (vec![(PodOp::Update, "a")], true));
}
