//! The driver of tests and the fake apiserver.

use serde_json::json;
use tokio::task::LocalSet;

use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::fake::{FakeApiserver, FakeTransport};
use crate::cluster::node::register::NodeFromServer;
use crate::devices::plugins::CsiPlugins as _;
use crate::model::api::pod::Pod;
use crate::model::objects::{ClaimedSource, ClaimedVolume, ConfigMapData, ObjectData};
use crate::model::provenance::CONFIG_SOURCE_ANNOTATION;
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::platform::grpc::Code;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::mount;
use crate::platform::testing::TempDir;
use crate::pod::csi::CsiNode;
use crate::pod::csi::drivers::save;
use crate::pod::csi::rules::{MULTI_WRITER, STAGE_UNSTAGE, attachment_name, inline_handle, unique_name};
use crate::pod::csi::testing::{self, DRIVER, SharedDriver, serve, until};
use crate::pod::resources::NodeCapacity;
use crate::pod::volume::csi::{CsiRecord, CsiVolumes};
use crate::pod::volume::{VolumeConfig, Volumes};
use crate::store::{Mode, OpenOptions};

mod later;

const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n1";

/// One claim, `data`, which is bound when there is a volume.
#[derive(Default)]
struct OneClaim(RefCell<Option<ClaimedVolume>>);

impl ObjectLookup for OneClaim {
    fn config_map(&self, _: &str, _: &str) -> Option<ConfigMapData> {
        None
    }

    fn secret(&self, _: &str, _: &str) -> Option<ObjectData> {
        None
    }

    fn persistent_volume_claim(&self, _: &str, _: &str) -> Option<ClaimedVolume> {
        self.0.borrow().clone()
    }

    crate::model::objects::plain_lookup!();
}

struct CsiWorld {
    scratch: TempDir,
    server: FakeApiserver,
    driver: SharedDriver,
    claims: Rc<OneClaim>,
    store: StoreHandle,
    online: Rc<Cell<bool>>,
    node: Rc<ClusterCsi<FakeTransport>>,
    csi: Rc<CsiNode>,
    volumes: Volumes,
}

impl CsiWorld {
    fn new() -> Self {
        let scratch = TempDir::new();
        std::fs::create_dir_all(scratch.join("pods")).unwrap();
        let server = FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1);
        server.put(json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}));
        let driver = SharedDriver::default();
        serve(&driver, &scratch.join("driver.sock"));
        let claims = Rc::new(OneClaim::default());
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() })
            .unwrap();
        let parts = (&scratch, &server, &claims, &store);
        let online = Rc::new(Cell::new(true));
        let (node, csi, volumes) = Self::process(parts, "admin", &[], &online);
        Self { scratch, server, driver, claims, store, online, node, csi, volumes }
    }

    /// What the agent makes when it starts.
    fn process(
        (scratch, server, claims, store): (&TempDir, &FakeApiserver, &Rc<OneClaim>, &StoreHandle),
        user: &str,
        rows: &[ClusterRow],
        online: &Rc<Cell<bool>>,
    ) -> (Rc<ClusterCsi<FakeTransport>>, Rc<CsiNode>, Volumes) {
        let limits = ClientConfig {
            limit: Limit { qps: 50, burst: 100 },
            timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(10),
        };
        let dice = Dice::seeded(1);
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let parts = CsiParts {
            store: store.clone(),
            events: EventRecorder::new("n1".to_owned(), clock.clone(), store.clone(), Vec::new()),
            clock,
            dice: dice.clone(),
            drivers: CsiDrivers::new(scratch.0.clone(), "n1".to_owned()),
            objects: Rc::clone(claims) as Rc<dyn ObjectLookup>,
        };
        let drivers = Rc::clone(&parts.drivers);
        let node = ClusterCsi::new(parts, rows);
        let csi = CsiNode::new(&drivers, Rc::clone(&node) as Rc<dyn CsiServer>);
        let client = Rc::new(Client::new(Rc::new(server.transport(user)), limits, dice));
        let online = Rc::clone(online);
        node.connect(client, Rc::new(move || online.get()));
        let config = VolumeConfig { pods_dir: scratch.join("pods"), capacity: NodeCapacity::default() };
        let volumes = Volumes::new(config, Rc::clone(claims) as Rc<dyn ObjectLookup>, Clock::System);
        volumes.set_csi(Rc::clone(&csi) as Rc<dyn CsiVolumes>);
        (node, csi, volumes)
    }

    /// The agent ends and starts.
    async fn restart(&mut self) {
        let rows = self.store.load().await.unwrap().cluster;
        let parts = (&self.scratch, &self.server, &self.claims, &self.store);
        (self.node, self.csi, self.volumes) = Self::process(parts, "admin", &rows, &self.online);
    }

    /// The node posts its status.
    fn post(&self) {
        self.node.set_reported(&self.node.volumes_in_use());
    }

    /// The machine is off: nothing is mounted when it is on again.
    fn reboot(&self) {
        for point in mount::mount_points().unwrap().iter().rev().filter(|it| it.starts_with(&self.scratch.0))
        {
            mount::unmount(point).unwrap();
        }
    }

    async fn register(&self) {
        let node = self.csi.drivers();
        let endpoint = self.scratch.join("driver.sock");
        node.register(DRIVER.to_owned(), vec!["1.0.0".to_owned()], endpoint).await.unwrap();
    }

    fn put_driver(&self, spec: &Value) {
        let metadata = json!({"name": DRIVER});
        self.server.put(
            json!({"kind": "CSIDriver", "apiVersion": "storage.k8s.io/v1", "metadata": metadata, "spec": spec}),
        );
    }

    fn bind(&self, single_pod: bool) {
        let source = json!({"driver": DRIVER, "volumeHandle": "h1", "fsType": "ext4",
            "volumeAttributes": {"pool": "fast"},
            "nodeStageSecretRef": {"name": "key", "namespace": "storage"}});
        self.server.put(json!({"kind": "Secret", "apiVersion": "v1",
            "metadata": {"name": "key", "namespace": "storage"}, "data": {"password": "c2VjcmV0"}}));
        *self.claims.0.borrow_mut() = Some(ClaimedVolume {
            name: "pv-1".to_owned(),
            source: ClaimedSource::Csi { source, access_modes: vec!["ReadWriteOnce".to_owned()] },
            mount_options: vec!["noatime".to_owned()],
            supplemental_group: None,
            read_only: false,
            single_pod,
            owner: String::new(),
        });
    }

    /// The controller and the attacher do their work.
    fn attach(&self) {
        let name = attachment_name("h1", DRIVER, "n1");
        self.server.put(json!({"kind": "VolumeAttachment", "apiVersion": "storage.k8s.io/v1",
            "metadata": {"name": name}, "spec": {},
            "status": {"attached": true, "attachmentMetadata": {"disk": "vdb"}}}));
        let attached = json!([{"name": unique_name(DRIVER, "h1"), "devicePath": ""}]);
        self.server.put(json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"},
            "status": {"volumesAttached": attached}}));
        self.show_node();
    }

    fn show_node(&self) {
        let node = self.server.object("/api/v1/nodes/n1").unwrap();
        self.node.set_node(&NodeFromServer::of(&node));
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.driver.borrow_mut().calls)
    }

    fn mounts(&self) -> usize {
        mount::mount_points().unwrap().iter().filter(|point| point.starts_with(&self.scratch.0)).count()
    }
}

fn of_cluster(mut pod: Pod) -> Pod {
    pod.metadata
        .annotations
        .insert(CONFIG_SOURCE_ANNOTATION.to_owned(), PodSource::Cluster.as_str().to_owned());
    pod
}

fn inline(uid: &str) -> Pod {
    of_cluster(testing::inline(uid))
}

fn claimed(uid: &str) -> Pod {
    of_cluster(testing::claimed(uid))
}

#[test]
fn a_static_pod_gets_no_volume_of_a_driver_of_the_cluster() {
    in_world(async |world| {
        world.register().await;
        let error = chain(&world.volumes.ensure(&testing::inline("u1")).await.unwrap_err());
        assert!(error.ends_with("CSI drivers of a cluster mount no volumes for static pods"), "{error}");
    });
}

fn in_world<F: Future<Output = ()>>(test: impl FnOnce(CsiWorld) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt::run_jobs_inline();
    LocalSet::new().block_on(&runtime, async { test(CsiWorld::new()).await });
}

#[test]
fn a_driver_is_shown_in_csi_node_and_node_until_it_goes() {
    in_world(async |world| {
        let user = "system:node:n1";
        let parts = (&world.scratch, &world.server, &world.claims, &world.store);
        let (_server, csi, _volumes) = CsiWorld::process(parts, user, &[], &world.online);
        let (_task, node) = (csi.start(Dice::seeded(1)), csi.drivers());
        let register = |versions: &[&str]| {
            let versions = versions.iter().map(|version| (*version).to_owned()).collect();
            Rc::clone(&node).register(DRIVER.to_owned(), versions, world.scratch.join("driver.sock"))
        };
        assert!(register(&["0.3.0", "2.0.0"]).await.unwrap_err().contains("None of the versions"));
        register(&["1.5.0"]).await.unwrap();
        assert!(register(&["1.0.0"]).await.unwrap_err().contains("higher supported version"));
        until(|| world.server.object(CSI_NODE).is_some()).await;
        let shown = world.server.object(CSI_NODE).unwrap();
        let object = world.server.object("/api/v1/nodes/n1").unwrap();
        assert_eq!(shown["metadata"]["ownerReferences"][0]["uid"], object["metadata"]["uid"]);
        assert_eq!(
            shown["spec"]["drivers"],
            json!([{"name": DRIVER, "nodeID": "id-1", "topologyKeys": ["topology.example.com/rack"],
                "allocatable": {"count": 7}}])
        );
        assert_eq!(object["metadata"]["labels"]["topology.example.com/rack"], "r1");
        let annotation = &object["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"];
        assert_eq!(*annotation, r#"{"csi.example.com":"id-1"}"#);
        let writes = world.server.writes().len();
        register(&["1.5.0"]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(world.server.writes().len(), writes, "nothing differs");
        node.remove(DRIVER);
        let is_empty = || world.server.object(CSI_NODE).unwrap()["spec"]["drivers"] == json!([]);
        until(is_empty).await;
        let object = world.server.object("/api/v1/nodes/n1").unwrap();
        assert!(object["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].is_null());
    });
}

#[test]
fn a_node_without_csi_node_works_and_tries_again() {
    in_world(async |world| {
        let _task = world.csi.start(Dice::seeded(1));
        world.put_driver(&json!({"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"]}));
        world.volumes.ensure(&inline("u0")).await.unwrap_err();
        world.server.faults().status = Some(403);
        world.register().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(world.csi.drivers().driver_names(), [DRIVER]);
        assert!(world.server.object(CSI_NODE).is_none());
        world.server.faults().status = None;
        world.volumes.ensure(&inline("u1")).await.unwrap();
        until(|| world.server.object(CSI_NODE).is_some()).await;
        world.volumes.tear_down(&PodUid::from("u1")).await.unwrap();
    });
}

#[test]
fn an_inline_volume_outlives_the_agent_and_goes_with_its_pod() {
    in_world(async |mut world| {
        let pod = inline("u1");
        let error = chain(&world.volumes.ensure(&pod).await.unwrap_err());
        assert!(
            error.ends_with("driver name csi.example.com not found in the list of registered CSI drivers")
        );
        world.register().await;
        let error = chain(&world.volumes.ensure(&pod).await.unwrap_err());
        assert!(error.ends_with("not supported by driver csi.example.com (no CSIDriver object)"), "{error}");
        world.put_driver(&json!({"podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]}));
        let mounted = world.volumes.ensure(&pod).await.unwrap();
        let directory = world.scratch.join("pods/u1/volumes/kubernetes.io~csi/data");
        assert_eq!(mounted["data"].host_path, directory.join("mount"));
        let request = world.driver.borrow_mut().published.take().unwrap();
        assert_eq!(request.volume_id, inline_handle("u1", "data"));
        assert_eq!(request.volume_context["csi.storage.k8s.io/pod.uid"], "u1");
        assert_eq!(request.volume_context["csi.storage.k8s.io/ephemeral"], "true");
        assert_eq!(request.volume_context["size"], "1");
        assert_eq!(request.staging_target_path, "");
        assert_eq!(world.node.volumes_in_use(), Vec::<String>::new());
        world.calls();
        world.restart().await;
        world.volumes.ensure(&pod).await.unwrap();
        assert_eq!(world.calls(), Vec::<String>::new(), "it is mounted, and no driver is registered yet");
        let uid = PodUid::from("u1");
        let error = chain(&world.volumes.tear_down(&uid).await.unwrap_err());
        assert!(
            error.starts_with("UnmountVolume.TearDown failed for volume \"data\" : driver name"),
            "{error}"
        );
        world.register().await;
        world.volumes.tear_down(&uid).await.unwrap();
        assert_eq!(world.calls(), ["NodeGetInfo", "NodeGetCapabilities", "NodeUnpublishVolume"]);
        assert_eq!((world.mounts(), directory.exists()), (0, false));
    });
}

#[test]
fn a_claimed_volume_waits_for_its_attachment_and_is_staged() {
    in_world(async |mut world| {
        world.driver.borrow_mut().capabilities = vec![STAGE_UNSTAGE, MULTI_WRITER];
        world.register().await;
        world.bind(false);
        let pod = claimed("u1");
        let error = chain(&world.volumes.ensure(&pod).await.unwrap_err());
        assert!(error.contains("has not been added to the list of VolumesInUse"), "{error}");
        let name = "kubernetes.io/csi/csi.example.com^h1";
        assert_eq!(world.node.volumes_in_use(), [name], "from now on the controller does not detach it");
        world.post();
        let error = chain(&world.volumes.ensure(&pod).await.unwrap_err());
        assert!(error.contains("Volume not attached according to node status"), "{error}");
        world.attach();
        world.volumes.ensure(&pod).await.unwrap();
        let staged = world.driver.borrow_mut().staged.take().unwrap();
        let published = world.driver.borrow_mut().published.take().unwrap();
        let global = world.csi.drivers().staging(DRIVER, "h1");
        assert_eq!(staged.staging_target_path, global.display().to_string());
        assert_eq!(staged.secrets["password"], "secret");
        assert_eq!(staged.publish_context["disk"], "vdb");
        let capability = staged.volume_capability.unwrap();
        assert_eq!(capability.access_mode.unwrap().mode, 7);
        let how = capability.mount.unwrap();
        assert_eq!((how.fs_type.as_str(), how.mount_flags), ("ext4", vec!["noatime".to_owned()]));
        assert_eq!(published.staging_target_path, staged.staging_target_path);
        assert!(published.secrets.is_empty(), "it names no secret for this call");
        world.volumes.ensure(&claimed("u2")).await.unwrap();
        world.restart().await;
        assert_eq!(world.node.volumes_in_use(), [name], "before the first status is posted");
        world.register().await;
        world.calls();
        world.volumes.tear_down(&PodUid::from("u1")).await.unwrap();
        assert_eq!(world.calls(), ["NodeUnpublishVolume"], "another pod has it");
        world.volumes.tear_down(&PodUid::from("u2")).await.unwrap();
        assert_eq!(world.calls(), ["NodeUnpublishVolume", "NodeUnstageVolume"]);
        assert_eq!(world.node.volumes_in_use(), Vec::<String>::new());
        assert!(!global.exists());
        world.bind(true);
        world.volumes.ensure(&claimed("u3")).await.unwrap_err();
        world.post();
        world.attach();
        world.volumes.ensure(&claimed("u3")).await.unwrap();
        let error = chain(&world.volumes.ensure(&claimed("u4")).await.unwrap_err());
        assert!(error.contains("ReadWriteOncePod"), "{error}");
        world.volumes.tear_down(&PodUid::from("u3")).await.unwrap();
    });
}

#[test]
fn an_uncertain_mount_is_unmounted_and_a_failed_one_is_not() {
    in_world(async |world| {
        world.register().await;
        world.put_driver(&json!({"volumeLifecycleModes": ["Ephemeral"]}));
        let record = world.scratch.join("pods/u1/volumes/kubernetes.io~csi/data/vol_data.json");
        let uid = PodUid::from("u1");
        for (code, is_kept) in [(Code::InvalidArgument, false), (Code::Unavailable, true)] {
            world.driver.borrow_mut().fails.insert("NodePublishVolume", code);
            world.volumes.ensure(&inline("u1")).await.unwrap_err();
            assert_eq!(record.exists(), is_kept, "{code:?}");
            world.calls();
            world.volumes.tear_down(&uid).await.unwrap();
            assert_eq!(!world.calls().is_empty(), is_kept, "{code:?}");
        }
        world.driver.borrow_mut().fails = [("NodeUnpublishVolume", Code::Unavailable)].into();
        world.volumes.ensure(&inline("u1")).await.unwrap();
        world.volumes.clean_orphans(&BTreeSet::new()).await;
        world.volumes.tear_down(&uid).await.unwrap_err();
        assert!(record.exists());
        world.driver.borrow_mut().fails.clear();
        world.volumes.tear_down(&uid).await.unwrap();
        assert_eq!(world.mounts(), 0);
    });
}

#[test]
fn what_a_crash_left_staged_is_unstaged() {
    in_world(async |mut world| {
        world.driver.borrow_mut().capabilities = vec![STAGE_UNSTAGE];
        let staging = world.csi.drivers().staging(DRIVER, "h1");
        let record = CsiRecord { driver: DRIVER.to_owned(), handle: "h1".to_owned(), ..CsiRecord::default() };
        save(record, &staging, true).await.unwrap();
        world.restart().await;
        let _task = world.csi.start(Dice::seeded(1));
        assert_eq!(world.node.volumes_in_use().len(), 1);
        world.register().await;
        until(|| world.node.volumes_in_use().is_empty()).await;
        assert!(!staging.exists() && world.calls().contains(&"NodeUnstageVolume".to_owned()));
    });
}
