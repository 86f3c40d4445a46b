//! Whole volumes in real directories and mounts, with objects that come, change and go.

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{ClusterFacts, ConfigMapData, FixedFacts, LocalObjects, NodeObjects, ObjectData};
use crate::platform::clock::Clock;
use crate::platform::testing::TempDir;
use crate::pod::resources::NodeCapacity;
use crate::pod::volume::VolumeConfig;

struct Fixture {
    _scratch: TempDir,
    objects: Rc<LocalObjects>,
    volumes: Volumes,
    config: VolumeConfig,
}

impl Fixture {
    fn new() -> Self {
        let scratch = TempDir::new();
        let config = VolumeConfig { pods_dir: scratch.0.join("pods"), capacity: NodeCapacity::default() };
        let objects = Rc::new(LocalObjects::default());
        let lookup: Rc<LocalObjects> = Rc::clone(&objects);
        let volumes = Volumes::new(config.clone(), lookup, Clock::System);
        Self { _scratch: scratch, objects, volumes, config }
    }

    fn set_config(&self, entries: &[(&str, &str)]) {
        let content = ConfigMapData { data: data(entries), ..ConfigMapData::default() };
        self.objects.set_config_map("ns", "cm", Some(content));
    }

    fn path(&self, pod: &Pod, below: &str) -> PathBuf {
        pod_dir(&self.config, &pod.metadata.uid).join("volumes").join(below)
    }
}

fn data(entries: &[(&str, &str)]) -> ObjectData {
    entries.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
}

fn pod(volumes: &Value) -> Pod {
    let metadata = json!({"name": "web", "namespace": "ns", "uid": "uid", "labels": {"app": "x"}});
    decode::<Pod>(json!({"metadata": metadata, "spec": {"volumes": volumes, "containers": []}}))
        .unwrap()
        .object
}

fn config_pod() -> Pod {
    pod(&json!([{"name": "v", "configMap": {"name": "cm"}}]))
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(test)
}

fn inodes(dir: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino())).collect()
}

#[test]
fn secrets_and_what_may_hold_them_never_reach_the_disk() {
    run(async {
        let fixture = Fixture::new();
        fixture.set_config(&[("k", "v")]);
        fixture.objects.set_secret("ns", "s", Some(data(&[("token", "hidden")])));
        let pod = pod(&json!([
            {"name": "c", "configMap": {"name": "cm"}},
            {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
            {"name": "d", "downwardAPI": {"items": [{"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}}]}},
            {"name": "p", "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "cm"}}]}},
        ]));
        let mounted = fixture.volumes.ensure(&pod).await.unwrap();
        assert_eq!(fixture.volumes.ensure(&pod).await.unwrap(), mounted);
        let read = |below: &str| fs::read_to_string(fixture.path(&pod, below)).unwrap();
        assert_eq!(read("kubernetes.io~configmap/c/k"), "v");
        assert_eq!(read("kubernetes.io~secret/s/token"), "hidden");
        assert_eq!(read("kubernetes.io~downward-api/d/app"), "x");
        assert_eq!(read("kubernetes.io~projected/p/token") + &read("kubernetes.io~projected/p/k"), "hiddenv");
        let points = mount::mount_points().unwrap();
        for (name, volume) in &mounted {
            let mounts = points.iter().filter(|point| Path::new(point) == volume.host_path).count();
            assert_eq!(mounts, usize::from(name != "c"), "{name}");
            assert_eq!(
                fs::metadata(&volume.host_path).unwrap().mode() & 0o7777,
                if name == "c" { 0o777 } else { 0o1777 },
                "{name}"
            );
            assert!(volume.read_only && volume.selinux_relabel, "{name}");
        }
        fixture.volumes.tear_down(&pod.metadata.uid).await.unwrap();
        assert!(!pod_dir(&fixture.config, &pod.metadata.uid).exists());
        let points = mount::mount_points().unwrap();
        assert!(!points.iter().any(|point| Path::new(point).starts_with(&fixture.config.pods_dir)));
    });
}

#[test]
fn missing_config_map_is_reported_and_mounted_once_it_exists() {
    run(async {
        let fixture = Fixture::new();
        let pod = config_pod();
        let error = fixture.volumes.ensure(&pod).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "MountVolume.SetUp failed for volume \"v\" : configmap \"cm\" not found"
        );
        fixture.volumes.refresh(&pod).await.unwrap();
        assert!(!fixture.path(&pod, "kubernetes.io~configmap/v").exists(), "refreshing makes no volumes");
        fixture.set_config(&[("k", "v")]);
        let path = fixture.volumes.ensure(&pod).await.unwrap()["v"].host_path.clone();
        assert_eq!(fs::read_to_string(path.join("k")).unwrap(), "v");
    });
}

#[test]
fn changed_config_map_updates_the_volume_and_others_do_not() {
    run(async {
        let fixture = Fixture::new();
        let pod = config_pod();
        fixture.set_config(&[("k", "1")]);
        let path = fixture.volumes.ensure(&pod).await.unwrap()["v"].host_path.clone();
        let before = inodes(&path);
        fixture.volumes.refresh(&pod).await.unwrap();
        fixture.objects.set_secret("ns", "unrelated", Some(ObjectData::new()));
        fixture.volumes.refresh(&pod).await.unwrap();
        assert_eq!(inodes(&path), before);
        fixture.set_config(&[("k", "2"), ("new", "x")]);
        fixture.volumes.refresh(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(path.join("k")).unwrap(), "2");
        assert_eq!(fs::read_to_string(path.join("new")).unwrap(), "x");
        // The files are not checked while the objects have not changed.
        fs::remove_file(path.join("k")).unwrap();
        fixture.volumes.refresh(&pod).await.unwrap();
        assert!(!path.join("k").exists());
        fixture.volumes.ensure(&pod).await.unwrap();
        assert!(path.join("k").exists(), "a container that starts finds everything");
    });
}

#[test]
fn an_object_that_goes_leaves_the_content() {
    run(async {
        let fixture = Fixture::new();
        let pod = config_pod();
        fixture.set_config(&[("k", "1")]);
        let path = fixture.volumes.ensure(&pod).await.unwrap()["v"].host_path.clone();
        fixture.objects.set_config_map("ns", "cm", None);
        let error = fixture.volumes.refresh(&pod).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "MountVolume.SetUp failed for volume \"v\" : configmap \"cm\" not found"
        );
        fixture.volumes.refresh(&pod).await.expect("it is said once per change");
        fixture.volumes.ensure(&pod).await.expect("a container may start again");
        assert_eq!(fs::read_to_string(path.join("k")).unwrap(), "1");
        fixture.set_config(&[("k", "2")]);
        fixture.volumes.refresh(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(path.join("k")).unwrap(), "2");
    });
}

#[test]
fn the_pods_own_labels_reach_the_volume() {
    run(async {
        let fixture = Fixture::new();
        let mut pod = pod(&json!([{"name": "v", "downwardAPI": {"items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]));
        let path = fixture.volumes.ensure(&pod).await.unwrap()["v"].host_path.clone();
        fixture.volumes.refresh(&pod).await.unwrap();
        pod.metadata.labels.insert("app".to_owned(), "y".to_owned());
        fixture.volumes.refresh(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(path.join("labels")).unwrap(), "app=\"y\"");
        fixture.volumes.tear_down(&pod.metadata.uid).await.unwrap();
    });
}

#[test]
fn optional_objects_and_the_pods_group() {
    run(async {
        let fixture = Fixture::new();
        let mut pod = pod(&json!([
            {"name": "none", "configMap": {"name": "cm", "optional": true}}, {"name": "s", "secret": {"secretName": "s"}}]));
        let security =
            crate::model::api::pod::PodSecurityContext { fs_group: Some(1234), ..Default::default() };
        pod.spec.security_context = Some(security);
        fixture.objects.set_secret("ns", "s", Some(data(&[("token", "hidden")])));
        let mounted = fixture.volumes.ensure(&pod).await.unwrap();
        assert_eq!(fs::read_dir(mounted["none"].host_path.join(DATA)).unwrap().count(), 0);
        for path in ["", "token"] {
            assert_eq!(fs::metadata(mounted["s"].host_path.join(path)).unwrap().gid(), 1234, "{path:?}");
        }
        assert_eq!(fs::metadata(&mounted["s"].host_path).unwrap().mode() & 0o7777, 0o3777);
        fixture.set_config(&[("k", "late")]);
        fixture.volumes.refresh(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(mounted["none"].host_path.join("k")).unwrap(), "late");
        fixture.volumes.tear_down(&pod.metadata.uid).await.unwrap();
    });
}

#[test]
fn volumes_inside_a_volume_find_their_place() {
    run(async {
        let fixture = Fixture::new();
        fixture.set_config(&[("k", "v")]);
        let spec = json!({"volumes": [{"name": "v", "configMap": {"name": "cm"}}], "containers": [{"name": "c",
            "volumeMounts": [{"name": "v", "mountPath": "/etc/app"}, {"name": "x", "mountPath": "/etc/app/data/x"},
                {"name": "x", "mountPath": "/etc/app/k", "subPath": "k"}]}]});
        let pod = decode::<Pod>(json!({"metadata": {"namespace": "ns", "uid": "uid"}, "spec": spec}))
            .unwrap()
            .object;
        let path = fixture.volumes.ensure(&pod).await.unwrap()["v"].host_path.clone();
        assert!(path.join("data/x").is_dir() && path.join("k").is_file());
        fixture.set_config(&[("other", "v")]);
        fixture.volumes.refresh(&pod).await.unwrap();
        assert!(path.join("data/x").is_dir() && path.join("other").exists());
    });
}

#[test]
fn a_renewed_token_is_written_for_its_user() {
    run(async {
        let scratch = TempDir::new();
        let config = VolumeConfig { pods_dir: scratch.0.join("pods"), capacity: NodeCapacity::default() };
        let facts = Rc::new(FixedFacts { token: Ok("t1".into()).into(), ..FixedFacts::default() });
        let known: Rc<dyn ClusterFacts> = Rc::clone(&facts) as Rc<dyn ClusterFacts>;
        let objects = Rc::new(NodeObjects::new((Rc::default(), None), (Rc::default(), Some(known))));
        let volumes = Volumes::new(config.clone(), objects, Clock::System);
        let sources = json!([{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]);
        let mut pod = pod(&json!([{"name": "v", "projected": {"sources": sources}}]));
        let source = ("kubernetes.io/config.source".to_owned(), "cluster".to_owned());
        pod.metadata.annotations.extend([source]);
        let container = json!({"name": "c", "securityContext": {"runAsUser": 4321}});
        pod.spec.containers = vec![decode(container).unwrap().object];
        volumes.ensure(&pod).await.unwrap();
        let path = pod_dir(&config, &pod.metadata.uid).join("volumes/kubernetes.io~projected/v/token");
        let read = || {
            let metadata = fs::metadata(&path).unwrap();
            (fs::read_to_string(&path).unwrap(), metadata.uid(), metadata.mode() & 0o777)
        };
        let first = read();
        volumes.refresh(&pod).await.unwrap();
        *facts.token.borrow_mut() = Ok("t2".into());
        facts.generation.set(1);
        volumes.refresh(&pod).await.unwrap();
        let second = read();
        volumes.tear_down(&pod.metadata.uid).await.unwrap();
        assert_eq!(first, ("t1".to_owned(), 4321, 0o600));
        assert_eq!(second, ("t2".to_owned(), 4321, 0o600));
    });
}
