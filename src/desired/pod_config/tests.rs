//! The set of the cluster.

use std::rc::Rc;

use serde_json::json;

use super::edit::ApiChange;
use super::*;
use crate::desired::garbage::Owners as _;
use crate::desired::merge::PodOp;
use crate::model::api::decode::decode;
use crate::model::api::pod::{Pod, Volume};
use crate::model::objects::{ObjectLookup, wire};
use crate::store::{Mode, OpenOptions};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn open_store() -> StoreHandle {
    StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() }).unwrap()
}

async fn start(store: &StoreHandle, registered: Vec<PodSource>, cluster: &Rc<LocalObjects>) -> PodConfig {
    let events = EventRecorder::new("node".to_owned(), Clock::System, store.clone(), Vec::new());
    let stored = store.load().await.unwrap().desired;
    PodConfig::new(registered, stored, Rc::default(), store.clone(), events, Clock::System)
        .with_cluster_objects(Rc::clone(cluster))
}

fn pod(name: &str, source: PodSource) -> SourcePod {
    let annotations = json!({"kubernetes.io/config.source": source.as_str(), "kubernetes.io/config.seen": "2026-01-01T00:00:00Z"});
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("{name}-{source}"), "annotations": annotations},
        "spec": {"runtimeClassName": "sandboxed", "containers": [{"name": "c", "image": "i"}]},
    });
    SourcePod { pod: Rc::new(decode::<Pod>(pod).unwrap().object), origin: "https://server".to_owned() }
}

fn map(value: &str) -> SourceObject {
    let wire = json!({"metadata": {"name": "m", "namespace": "default", "uid": "1"}, "data": {"k": value},
        "immutable": true});
    let object = Rc::new(wire::from_value(ObjectKind::ConfigMap, wire).unwrap());
    SourceObject { object, origin: "https://server".to_owned() }
}

fn class() -> SourceObject {
    let wire =
        json!({"metadata": {"name": "sandboxed"}, "handler": "kata", "overhead": {"podFixed": {"cpu": "1"}}});
    let object = Rc::new(wire::from_value(ObjectKind::RuntimeClass, wire).unwrap());
    SourceObject { object, origin: "/m/class.yaml".to_owned() }
}

fn update(source: PodSource, pods: &[SourcePod], objects: &[SourceObject]) -> SourceUpdate {
    let answer = SourceAnswer::Pods(pods.to_vec());
    let (objects, problems) = (objects.to_vec(), Vec::new());
    SourceUpdate { source, answer, objects, problems, validator: None, signed: None }
}

/// How many pods the store has of the cluster.
async fn stored(store: &StoreHandle) -> usize {
    let desired = store.load().await.unwrap().desired;
    desired.iter().filter(|set| set.source == PodSource::Cluster).map(|set| set.pods.len()).sum()
}

#[test]
fn an_equal_set_of_the_cluster_is_not_written() {
    run(async {
        let (store, cluster) = (open_store(), Rc::new(LocalObjects::default()));
        let mut config = start(&store, vec![PodSource::Cluster], &cluster).await;
        let (pods, objects) = ([pod("a", PodSource::Cluster)], [map("1")]);
        let again = || update(PodSource::Cluster, &pods, &objects);
        assert_eq!(config.apply(again()).await.len(), 1);
        assert!(Rc::ptr_eq(&config.pods().next().unwrap().pod, &pods[0].pod), "one copy in memory");
        // A write would bring the row back.
        store.commit_source(PodSource::Cluster, &[], &[], None).await.unwrap();
        assert_eq!(config.apply(again()).await.len(), 0);
        assert_eq!(stored(&store).await, 0);
        // An immutable object, too, is the server's business.
        config.apply(update(PodSource::Cluster, &pods, &[map("2")])).await;
        assert_eq!(stored(&store).await, 1);
        assert_eq!(cluster.config_map("default", "m").unwrap().data["k"], b"2");
        assert!(config.views()[&PodSource::Cluster].problems.is_empty());
    });
}

#[test]
fn a_start_without_kubeconfig_ends_no_pod() {
    run(async {
        let (store, cluster) = (open_store(), Rc::new(LocalObjects::default()));
        let mut config = start(&store, vec![PodSource::Cluster], &cluster).await;
        config.apply(update(PodSource::Cluster, &[pod("a", PodSource::Cluster)], &[map("1")])).await;

        let mut joined = start(&store, vec![PodSource::File], &cluster).await.of_joined_node();
        assert!(joined.drop_unregistered().await.is_empty());
        assert_eq!((joined.pods().count(), stored(&store).await), (1, 1));
        assert!(cluster.config_map("default", "m").is_some());
        joined.apply(update(PodSource::File, &[], &[])).await;
        assert!(!joined.seen_all_sources(), "the cluster has not spoken");
        assert_eq!(joined.views()[&PodSource::Cluster].pods, 1);

        let mut left = start(&store, vec![PodSource::File], &cluster).await;
        let changes = left.drop_unregistered().await;
        assert_eq!(changes.iter().map(|change| change.op).collect::<Vec<_>>(), [PodOp::Remove]);
        assert_eq!(stored(&store).await, 0);
        assert!(cluster.config_map("default", "m").is_none());
    });
}

#[test]
fn local_objects_mean_nothing_to_pods_of_the_cluster() {
    run(async {
        let (store, cluster) = (open_store(), Rc::new(LocalObjects::default()));
        let mut config = start(&store, vec![PodSource::File, PodSource::Cluster], &cluster).await;
        let local = pod("local", PodSource::File);
        config.apply(update(PodSource::File, &[local], &[class(), map("local")])).await;
        config.apply(update(PodSource::Cluster, &[pod("of-cluster", PodSource::Cluster)], &[map("1")])).await;
        let overhead = |name: &str| {
            let (_, found) = config.find_pod("default", name).unwrap();
            found.pod.spec.overhead.len()
        };
        assert_eq!((overhead("local"), overhead("of-cluster")), (1, 0));
        assert_eq!(config.objects.config_map("default", "m").unwrap().data["k"], b"local");
        assert_eq!(cluster.config_map("default", "m").unwrap().data["k"], b"1");
        let problems = config.views().values().flat_map(|view| &view.problems);
        assert_eq!(problems.count(), 0, "equal keys of two realms are no conflict");
    });
}

#[test]
fn a_local_pod_and_one_of_the_cluster_share_no_name() {
    run(async {
        let (store, cluster) = (open_store(), Rc::new(LocalObjects::default()));
        let mut config = start(&store, vec![PodSource::File, PodSource::Cluster], &cluster).await;
        config.apply(update(PodSource::File, &[pod("web", PodSource::File)], &[])).await;
        let changes = config.apply(update(PodSource::Cluster, &[pod("web", PodSource::Cluster)], &[])).await;
        assert_eq!(changes.len(), 1, "its worker waits in the queue of the name");
        let problems = &config.views()[&PodSource::Cluster].problems;
        assert!(problems[0].message.contains("only one can run at a time"), "{problems:?}");
    });
}

#[test]
fn the_end_of_a_pod_is_garbage_until_it_is_collected() {
    run(async {
        let (store, cluster) = (open_store(), Rc::default());
        let terminating = json!({"metadata": {"name": "x", "namespace": "default", "uid": "x", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": "1", "blockOwnerDeletion": true}]}});
        let terminating = [decode::<Pod>(terminating).unwrap().object];
        let config = start(&store, vec![PodSource::Api], &cluster).await;
        let mut config = config.with_garbage_collection(true, &terminating);
        assert!(config.collect_garbage().await.is_ok() && !config.has_garbage());
        assert!(!config.forget_ended(|_| true) && !config.has_garbage());
        assert!(config.forget_ended(|_| false) && config.has_garbage(), "a failed collection is tried again");
        assert!(config.collect_garbage().await.is_ok() && !config.has_garbage());
    });
}

#[test]
fn an_unreadable_row_does_not_end_the_collection() {
    run(async {
        let (store, cluster) = (open_store(), Rc::default());
        let config = start(&store, vec![PodSource::Api], &cluster).await;
        let mut config = config.with_garbage_collection(false, &[]);
        let owned = |name: &str, owner: &str| {
            let wire = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": owner}]}});
            Rc::new(wire::from_value(ObjectKind::ConfigMap, wire).unwrap())
        };
        let one = json!({"metadata": {"name": "one", "namespace": "default", "uid": "one"}});
        let one = Rc::new(wire::from_value(ObjectKind::ConfigMap, one).unwrap());
        let gone = one.key.clone();
        let objects = vec![one, owned("s", "one"), owned("kept", "unread")];
        let put = ApiChange { put_objects: objects, ..ApiChange::default() };
        config.edit(Box::new(move |_| put)).await.unwrap();
        let remove = ApiChange { remove_objects: vec![gone], ..ApiChange::default() };
        config.edit(Box::new(move |_| remove)).await.unwrap();
        config.collect_garbage().await.unwrap();
        let left: Vec<&str> =
            config.objects_by_source().map(|(_, found)| found.object.key.name.as_str()).collect();
        assert_eq!(left, ["kept"]);
    });
}

#[test]
fn a_pod_owns_with_the_uid_that_it_is_shown_with() {
    run(async {
        let (store, cluster) = (open_store(), Rc::default());
        let mut config = start(&store, vec![PodSource::File], &cluster).await;
        config.apply(update(PodSource::File, &[pod("web", PodSource::File)], &[])).await;
        let uid = config.pods().next().unwrap().pod.metadata.uid.clone();
        assert!(config.has_pod("default", "web", uid.as_str()));
        let mirror = notes::Mirror { uid: "later".to_owned(), created: Timestamp::from_secs(1) };
        config.notes.mirrors.insert(uid.clone(), mirror);
        assert!(config.has_pod("default", "web", "later") && !config.has_pod("default", "web", uid.as_str()));
    });
}

/// The uid of the one claim, if there is one.
fn claim_uid(config: &PodConfig) -> Option<String> {
    let mut objects = config.objects_by_source();
    let found = objects.find(|(_, found)| found.object.key.name == "web-data");
    found.map(|(_, found)| found.object.uid.clone())
}

#[test]
fn an_ephemeral_volume_has_its_claim_as_long_as_the_pod() {
    run(async {
        let (store, cluster) = (open_store(), Rc::default());
        let sources = vec![PodSource::File, PodSource::Api];
        let config = start(&store, sources.clone(), &cluster).await;
        let mut config = config.with_garbage_collection(true, &[]);
        let mut web = pod("web", PodSource::File);
        let volume = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}});
        Rc::make_mut(&mut web.pod).spec.volumes = vec![decode::<Volume>(volume).unwrap().object];
        config.collect_garbage().await.unwrap();
        config.apply(update(PodSource::File, std::slice::from_ref(&web), &[])).await;
        assert!(config.has_garbage() && claim_uid(&config).is_none());
        config.collect_garbage().await.unwrap();
        let first = claim_uid(&config).unwrap();
        // Its mirror was deleted, and is shown with another uid.
        let mirror = notes::Mirror { uid: "later".to_owned(), created: Timestamp::from_secs(1) };
        config.notes.mirrors.insert(web.pod.metadata.uid.clone(), mirror);
        config.collect_garbage().await.unwrap();
        assert_eq!(claim_uid(&config), Some(first.clone()));
        drop(config);
        let config = start(&store, sources, &cluster).await;
        let mut config = config.with_garbage_collection(true, &[]);
        config.collect_garbage().await.unwrap();
        assert_eq!(claim_uid(&config), Some(first.clone()), "a source that has not answered loses nothing");
        config.apply(update(PodSource::File, &[], &[])).await;
        config.collect_garbage().await.unwrap();
        assert_eq!(claim_uid(&config), None);
        config.apply(update(PodSource::File, &[web], &[])).await;
        config.collect_garbage().await.unwrap();
        assert!(claim_uid(&config).is_some_and(|uid| uid != first), "it begins empty");
    });
}
