use std::cell::Cell;

use tokio::task::LocalSet;
use tokio::time::Instant;

use super::*;
use crate::devices::plugins::CsiPlugins as _;
use crate::model::objects::{
    ClaimedVolume, ConfigMapData, NodeFacts, ObjectData, ObjectKey, SourceObject, wire,
};
use crate::model::types::PodUid;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::mount;
use crate::platform::testing::TempDir;
use crate::pod::csi::drivers::{CsiDrivers, save};
use crate::pod::csi::testing::{DRIVER, SharedDriver, claimed, inline, serve, until};
use crate::pod::csi::{AGAIN, CsiNode, STAGE_UNSTAGE};
use crate::pod::resources::NodeCapacity;
use crate::pod::volume::csi::{CsiRecord, CsiVolumes};
use crate::pod::volume::{VolumeConfig, Volumes};

/// Issues tokens that end at 1,800,000,000.
struct Issuer(Cell<u32>);

impl NodeFacts for Issuer {
    fn token(&self, request: &TokenRequest) -> Result<Rc<str>, Absence> {
        if request.account != "app" {
            return Err(Absence::NotFound);
        }
        self.0.set(self.0.get() + 1);
        Ok(format!("h.{}.{}", base64::encode_url(br#"{"exp":1800000000}"#), request.audience).into())
    }

    fn root_ca(&self) -> Option<ConfigMapData> {
        None
    }

    fn generation(&self) -> u64 {
        0
    }
}

struct Alone {
    scratch: TempDir,
    objects: Rc<LocalObjects>,
    driver: SharedDriver,
    csi: Rc<CsiNode>,
    volumes: Volumes,
}

impl Alone {
    fn new() -> Self {
        let scratch = TempDir::new();
        std::fs::create_dir_all(scratch.join("pods")).unwrap();
        let driver = SharedDriver::default();
        serve(&driver, &scratch.join("driver.sock"));
        let objects = Rc::new(LocalObjects::default());
        let (csi, volumes) = Self::process(&scratch, &objects);
        Self { scratch, objects, driver, csi, volumes }
    }

    /// What the agent makes when it starts.
    fn process(scratch: &TempDir, objects: &Rc<LocalObjects>) -> (Rc<CsiNode>, Volumes) {
        let issuer = Rc::new(Issuer(Cell::new(0))) as Rc<dyn NodeFacts>;
        let lookup = Rc::new(NodeObjects::new((Rc::clone(objects), Some(issuer)), (Rc::default(), None)));
        let drivers = CsiDrivers::new(scratch.0.clone(), "box".to_owned());
        let csi = CsiNode::new(&drivers, LocalCsi::new(Rc::clone(objects), Rc::clone(&lookup)));
        let config = VolumeConfig { pods_dir: scratch.join("pods"), capacity: NodeCapacity::default() };
        let volumes = Volumes::new(config, lookup, Clock::System);
        volumes.set_csi(Rc::clone(&csi) as Rc<dyn CsiVolumes>);
        (csi, volumes)
    }

    async fn register(&self) {
        let endpoint = self.scratch.join("driver.sock");
        self.csi.drivers().register(DRIVER.to_owned(), vec!["1.0.0".to_owned()], endpoint).await.unwrap();
    }

    fn put(&self, kind: ObjectKind, namespace: &str, name: &str, spec: &Value) {
        let mut value = json!({"metadata": {"name": name}, "spec": spec});
        if !namespace.is_empty() {
            value["metadata"]["namespace"] = json!(namespace);
        }
        let object = Rc::new(wire::from_value(kind, value).unwrap());
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        self.objects.set(&key, Some(&SourceObject { object, origin: String::new() }));
    }

    fn put_driver(&self, spec: &Value) {
        self.put(ObjectKind::CSIDriver, "", DRIVER, spec);
    }

    async fn error(&self, pod: &crate::model::api::pod::Pod) -> String {
        chain(&self.volumes.ensure(pod).await.unwrap_err())
    }

    async fn remove(&self, uid: &str) {
        self.volumes.tear_down(&PodUid::from(uid)).await.unwrap();
        let points = mount::mount_points().unwrap();
        assert!(!points.iter().any(|point| point.starts_with(&self.scratch.0)), "{points:?}");
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.driver.borrow_mut().calls)
    }
}

fn alone<F: Future<Output = ()>>(test: impl FnOnce(Alone) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt::run_jobs_inline();
    LocalSet::new().block_on(&runtime, async { test(Alone::new()).await });
}

#[test]
fn an_inline_volume_is_mounted_as_its_csi_driver_says() {
    alone(async |world| {
        let pod = inline("u1");
        let error = world.error(&pod).await;
        assert!(error.ends_with("not found in the list of registered CSI drivers"), "{error}");
        world.register().await;
        let error = world.error(&pod).await;
        assert!(error.ends_with("not supported by driver csi.example.com (no CSIDriver object)"), "{error}");
        world.put_driver(&json!({"volumeLifecycleModes": ["Persistent"]}));
        let error = world.error(&pod).await;
        assert!(error.ends_with(r#"(only supports ["Persistent"])"#), "{error}");
        world.put_driver(&json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true,
            "requiresRepublish": true, "tokenRequests": [{"audience": "vault"}]}));
        world.volumes.ensure(&pod).await.unwrap();
        let first = world.driver.borrow_mut().published.take().unwrap();
        assert_eq!(first.volume_context["csi.storage.k8s.io/pod.name"], "web");
        let tokens: Value =
            serde_json::from_str(&first.volume_context["csi.storage.k8s.io/serviceAccount.tokens"]).unwrap();
        assert_eq!(tokens["vault"]["expirationTimestamp"], "2027-01-15T08:00:00Z");
        assert!(tokens["vault"]["token"].as_str().unwrap().split('.').next_back() == Some("vault"));
        let before = Instant::now().checked_sub(AGAIN).unwrap();
        world.csi.drivers().published.borrow_mut().values_mut().for_each(|(_, at)| *at = before);
        world.volumes.refresh(&pod).await.unwrap();
        assert_eq!(world.driver.borrow_mut().published.take(), Some(first), "published again");
        world.remove("u1").await;
    });
}

#[test]
fn a_token_needs_the_account_of_the_pod() {
    alone(async |world| {
        world.register().await;
        world.put_driver(&json!({"volumeLifecycleModes": ["Ephemeral"], "tokenRequests": [{}]}));
        let mut pod = inline("u1");
        "other".clone_into(&mut pod.spec.service_account_name);
        let error = world.error(&pod).await;
        assert!(
            error.ends_with("failed to get service account token: serviceaccounts \"other\" not found"),
            "{error}"
        );
        world.remove("u1").await;
    });
}

#[test]
fn a_claimed_volume_is_staged_with_the_secrets_of_the_node() {
    alone(async |mut world| {
        world.driver.borrow_mut().capabilities = vec![STAGE_UNSTAGE];
        world.put(
            ObjectKind::PersistentVolume,
            "",
            "pv-1",
            &json!({
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "mountOptions": ["noatime"],
                "csi": {"driver": DRIVER, "volumeHandle": "h1", "fsType": "ext4",
                    "volumeAttributes": {"pool": "fast"},
                    "nodeStageSecretRef": {"name": "key", "namespace": "storage"}},
            }),
        );
        world.put(
            ObjectKind::PersistentVolumeClaim,
            "ns",
            "data",
            &json!({
                "accessModes": ["ReadWriteOnce"], "volumeName": "pv-1",
                "resources": {"requests": {"storage": "1Gi"}},
            }),
        );
        let pod = claimed("u1");
        world.register().await;
        let error = world.error(&pod).await;
        assert!(error.contains("no controller attaches volumes on a node without a cluster"), "{error}");
        world.put_driver(&json!({"attachRequired": false}));
        let error = world.error(&pod).await;
        assert!(error.ends_with("in the namespace storage with error: secrets \"key\" not found"), "{error}");
        let password = ObjectData::from([("password".to_owned(), b"secret".to_vec())]);
        world.objects.set_secret("storage", "key", Some(password));
        world.volumes.ensure(&pod).await.unwrap();
        let staged = world.driver.borrow_mut().staged.take().unwrap();
        assert_eq!((&*staged.volume_id, &*staged.secrets["password"]), ("h1", "secret"));
        assert_eq!(staged.volume_capability.clone().unwrap().mount.unwrap().mount_flags, ["noatime"]);
        assert_eq!(staged.volume_context["pool"], "fast");
        // The machine loses its power: nothing is mounted, and the driver registers again later.
        for point in mount::mount_points().unwrap().iter().filter(|it| it.starts_with(&world.scratch.0)) {
            mount::unmount(point).unwrap();
        }
        (world.csi, world.volumes) = Alone::process(&world.scratch, &world.objects);
        let error = world.error(&pod).await;
        assert!(error.contains("not found in the list of registered CSI drivers"), "{error}");
        let _task = world.csi.start(Dice::seeded(1));
        world.register().await;
        world.volumes.ensure(&pod).await.unwrap();
        assert_eq!(world.driver.borrow_mut().staged.take(), Some(staged));
        world.calls();
        world.remove("u1").await;
        until(|| world.csi.drivers().in_use.borrow().is_empty()).await;
        assert!(world.calls().contains(&"NodeUnstageVolume".to_owned()));
    });
}

#[test]
fn a_pod_that_ends_while_its_volume_is_staged_waits_for_it() {
    alone(async |world| {
        world.driver.borrow_mut().capabilities = vec![STAGE_UNSTAGE];
        let gate = Rc::new(tokio::sync::Notify::new());
        world.driver.borrow_mut().gate = Some(("/NodeStageVolume", Rc::clone(&gate)));
        world.put_driver(&json!({"attachRequired": false}));
        let one = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": DRIVER, "volumeHandle": "h1"}});
        world.put(ObjectKind::PersistentVolume, "", "pv-1", &one);
        let claim = json!({"accessModes": ["ReadWriteOnce"], "volumeName": "pv-1",
            "resources": {"requests": {"storage": "1Gi"}}});
        world.put(ObjectKind::PersistentVolumeClaim, "ns", "data", &claim);
        world.register().await;
        let staging = world.csi.drivers().staging(DRIVER, "h1");
        let pod = claimed("u1");
        tokio::select! {
            _ = world.volumes.ensure(&pod) => panic!("it waits for the driver"),
            () = until(|| staging.exists()) => {}
        }
        let uid = PodUid::from("u1");
        let early = chain(&world.volumes.tear_down(&uid).await.unwrap_err());
        let why = "UnmountVolume.TearDown failed for volume \"pv-1\" : it is still being mounted";
        assert_eq!(early, why);
        gate.notify_one();
        until(|| world.driver.borrow().published.is_some()).await;
        until(|| world.csi.mounting(&world.scratch.join("pods/u1")).is_none()).await;
        world.calls();
        world.remove("u1").await;
        assert_eq!(world.calls(), ["NodeUnpublishVolume", "NodeUnstageVolume"]);
        assert!(!world.scratch.join("pods/u1").exists() && !staging.exists());
    });
}

#[test]
fn a_volume_without_its_driver_holds_up_no_other() {
    alone(async |world| {
        world.put_driver(&json!({"volumeLifecycleModes": ["Ephemeral"]}));
        let (waiting, other) = (inline("u1"), inline("u2"));
        world.volumes.ensure(&waiting).await.unwrap_err();
        let before = world.csi.generation();
        world.register().await;
        assert_ne!(world.csi.generation(), before, "pods try again");
        world.volumes.ensure(&other).await.unwrap();
        world.remove("u2").await;
        world.volumes.tear_down(&PodUid::from("u1")).await.unwrap();
    });
}

#[test]
fn pods_that_a_cluster_has_left_here_get_no_volume() {
    alone(async |world| {
        world.register().await;
        let mut volume = CsiVolume {
            pod: inline("u1").pod_ref(),
            realm: Realm::Cluster,
            account: String::new(),
            name: "data".to_owned(),
            claim: String::new(),
            source: json!({"driver": DRIVER}),
            claimed: None::<ClaimedVolume>,
            read_only: false,
            fs_group: None,
            target: world.scratch.join("pods/u1/volumes/kubernetes.io~csi/data/mount"),
            is_again: false,
        };
        let answer = Rc::clone(&world.csi).publish(volume.clone()).await;
        assert_eq!(answer.unwrap_err(), "no CSI driver can be called yet");
        volume.realm = Realm::Node;
        let answer = Rc::clone(&world.csi).publish(volume).await;
        assert!(answer.unwrap_err().contains("no CSIDriver object"));
    });
}

#[test]
fn what_an_attempt_works_at_is_unstaged_after_it() {
    alone(async |world| {
        world.driver.borrow_mut().capabilities = vec![STAGE_UNSTAGE];
        let drivers = world.csi.drivers();
        let staging = drivers.staging(DRIVER, "h1");
        let record = CsiRecord { driver: DRIVER.to_owned(), handle: "h1".to_owned(), ..CsiRecord::default() };
        save(record, &staging, true).await.unwrap();
        world.register().await;
        let (end, ended) = tokio::sync::oneshot::channel();
        let name = rules::unique_name(DRIVER, "h1");
        let attempt =
            drivers.attempt(name, async move { ended.await.map_err(|closed| format!("{closed:?}")) });
        let sweeps = async {
            drivers.sweep().await.unwrap();
            assert!(staging.exists());
            end.send(()).unwrap();
        };
        let (attempted, ()) = tokio::join!(attempt, sweeps);
        attempted.unwrap();
        drivers.sweep().await.unwrap();
        assert!(!staging.exists() && world.calls().contains(&"NodeUnstageVolume".to_owned()));
    });
}
