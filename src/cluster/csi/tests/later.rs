//! What happens to volumes after they were mounted: boots, republishing, statistics, growth.

use super::*;
use crate::model::objects::Realm;
use crate::pod::csi::AGAIN;
use crate::pod::csi::rules::{EXPAND_VOLUME, VOLUME_STATS};

/// Waits until the store has nothing more of such a volume: the Secret of one that is not used must not stay there.
async fn until_forgotten(world: &CsiWorld, is_its: impl Fn(&str) -> bool) {
    for _ in 0..400 {
        if !world.store.load().await.unwrap().cluster.iter().any(|row| is_its(&row.key.name)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the Secret of a volume that is not used stays on the disk");
}

#[test]
fn a_machine_that_boots_offline_mounts_its_volumes_again() {
    in_world(async |mut world| {
        world.driver.borrow_mut().capabilities = vec![STAGE_UNSTAGE];
        world.register().await;
        world.bind(false);
        let pod = claimed("u1");
        world.volumes.ensure(&pod).await.unwrap_err();
        world.post();
        world.attach();
        world.volumes.ensure(&pod).await.unwrap();
        let seen = std::mem::take(&mut world.driver.borrow_mut().staged).unwrap();
        world.reboot();
        world.server.faults().refuse = true;
        world.online.set(false);
        world.restart().await;
        world.show_node();
        world.register().await;
        world.volumes.ensure(&pod).await.unwrap();
        assert_eq!(world.driver.borrow_mut().staged.take(), Some(seen), "with Secret and publish context");
        let uid = PodUid::from("u1");
        world.volumes.tear_down(&uid).await.unwrap();
        let _task = world.csi.start(Dice::seeded(1));
        until_forgotten(&world, |name| name.contains('^')).await;
    });
}

#[test]
fn a_volume_is_published_again_when_its_driver_asks() {
    in_world(async |world| {
        let tokens = json!([{"audience": "vault", "expirationSeconds": 3600}]);
        world.put_driver(&json!({"volumeLifecycleModes": ["Ephemeral"], "requiresRepublish": true,
            "tokenRequests": tokens}));
        world.server.put(json!({"kind": "ServiceAccount", "apiVersion": "v1",
            "metadata": {"name": "app", "namespace": "ns"}}));
        world.register().await;
        let pod = inline("u1");
        world.volumes.ensure(&pod).await.unwrap();
        let first = world.driver.borrow_mut().published.take().unwrap();
        let tokens = "csi.storage.k8s.io/serviceAccount.tokens";
        assert!(first.volume_context[tokens].contains("vault"), "{:?}", first.volume_context);
        world.volumes.refresh(&pod).await.unwrap();
        assert_eq!(world.driver.borrow_mut().published, None, "too early");
        let before = Instant::now().checked_sub(AGAIN).unwrap();
        world.csi.drivers().published.borrow_mut().values_mut().for_each(|(_, at)| *at = before);
        world.volumes.refresh(&pod).await.unwrap();
        assert_eq!(world.driver.borrow_mut().published.take(), Some(first), "with the token that it has");
        world.csi.drivers().published.borrow_mut().clear();
        world.driver.borrow_mut().fails.insert("NodePublishVolume", Code::InvalidArgument);
        world.volumes.refresh(&pod).await.unwrap_err();
        assert_eq!(world.mounts(), 1, "it keeps what it has");
        world.volumes.tear_down(&PodUid::from("u1")).await.unwrap();
        assert_eq!(world.mounts(), 0);
    });
}

#[test]
fn volumes_that_are_never_attached_are_not_reported() {
    in_world(async |world| {
        world.put_driver(&json!({"attachRequired": false}));
        world.register().await;
        world.bind(false);
        world.volumes.ensure(&claimed("u1")).await.unwrap();
        assert_eq!(world.node.volumes_in_use(), Vec::<String>::new());
        world.volumes.tear_down(&PodUid::from("u1")).await.unwrap();
    });
}

#[test]
fn a_driver_measures_its_volume() {
    in_world(async |world| {
        world.put_driver(&json!({"volumeLifecycleModes": ["Ephemeral"]}));
        world.register().await;
        let mounted = world.volumes.ensure(&inline("u1")).await.unwrap();
        let usage = async || Rc::clone(&world.csi).usage(mounted["data"].host_path.clone()).await;
        assert_eq!(usage().await, Ok(None), "it does not measure");
        world.driver.borrow_mut().capabilities = vec![VOLUME_STATS];
        let facts = usage().await.unwrap().unwrap();
        assert_eq!((facts.capacity, facts.used, facts.available), (100, 30, 70));
        assert_eq!((facts.inodes, facts.inodes_free), (10, 6));
        world.volumes.tear_down(&PodUid::from("u1")).await.unwrap();
        usage().await.unwrap_err();
    });
}

#[test]
fn a_volume_that_has_grown_is_resized_on_the_node() {
    in_world(async |world| {
        let claim = "/api/v1/namespaces/ns/persistentvolumeclaims/data";
        let put = |status: Value| {
            let metadata = json!({"name": "data", "namespace": "ns"});
            world
                .server
                .put(json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": metadata,
                "status": status}));
        };
        world.driver.borrow_mut().capabilities = vec![STAGE_UNSTAGE, EXPAND_VOLUME];
        world.put_driver(&json!({"attachRequired": false}));
        let _task = world.csi.start(Dice::seeded(1));
        world.register().await;
        world.bind(false);
        world
            .server
            .put(json!({"kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": "pv-1"},
            "spec": {"capacity": {"storage": "2Gi"}, "csi": {"driver": DRIVER, "volumeHandle": "h1"}}}));
        let conditions = json!([{"type": "FileSystemResizePending", "status": "True"},
            {"type": "Other", "status": "True"}]);
        put(json!({"capacity": {"storage": "1Gi"}, "conditions": conditions,
            "allocatedResourceStatuses": {"storage": "NodeResizePending"}}));
        world.volumes.ensure(&claimed("u1")).await.unwrap();
        let status = || world.server.object(claim).unwrap()["status"].clone();
        until(|| status()["capacity"]["storage"] == "2Gi").await;
        assert!(status()["allocatedResourceStatuses"]["storage"].is_null(), "{}", status());
        assert_eq!(status()["conditions"], json!([{"type": "Other", "status": "True"}]));
        let asked = world.driver.borrow_mut().expanded.take().unwrap();
        assert_eq!(asked.capacity_range.unwrap().required_bytes, 2 << 30);
        assert!(asked.volume_path.ends_with("pods/u1/volumes/kubernetes.io~csi/pv-1/mount"));
        assert_eq!(
            asked.staging_target_path,
            world.csi.drivers().staging(DRIVER, "h1").display().to_string()
        );
        let reasons =
            || world.node.parts.events.recent().into_iter().map(|event| event.key.reason).collect::<Vec<_>>();
        assert_eq!(reasons(), ["FileSystemResizeSuccessful"]);
        put(
            json!({"capacity": {"storage": "1Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
        );
        world.driver.borrow_mut().fails.insert("NodeExpandVolume", Code::InvalidArgument);
        world.node.resized.take();
        world.csi.drivers().wake.notify_one();
        until(|| status()["allocatedResourceStatuses"]["storage"] == "NodeResizeInfeasible").await;
        assert_eq!(status()["conditions"][0]["type"], "NodeResizeError");
        until(|| reasons().len() == 2).await;
        assert!(reasons().contains(&"VolumeResizeFailed".to_owned()));
        world.volumes.tear_down(&PodUid::from("u1")).await.unwrap();
    });
}

/// What pod `u1` has of a disk.
fn disk(world: &CsiWorld, secret: &Value) -> CsiVolume {
    CsiVolume {
        pod: claimed("u1").pod_ref(),
        realm: Realm::Cluster,
        account: String::new(),
        name: "data".to_owned(),
        claim: "data".to_owned(),
        source: json!({"driver": "kubernetes.io/iscsi", "volumeHandle": "nas:iqn:1", "secretRef": secret}),
        claimed: world.claims.0.borrow().clone(),
        read_only: false,
        fs_group: None,
        target: world.scratch.join("pods/u1/volumes/kubernetes.io~iscsi/pv-1"),
        is_again: false,
    }
}

#[test]
fn a_disk_of_a_running_pod_is_in_use_after_a_restart() {
    in_world(async |mut world| {
        world.bind(false);
        world.online.set(false);
        let (disk, name) = (disk(&world, &Value::Null), "kubernetes.io/iscsi/nas:iqn:1");
        let pod_dir = world.scratch.join("pods/u1");
        std::fs::create_dir_all(disk.target.parent().unwrap()).unwrap();
        Rc::clone(&world.csi).attach(disk).await.unwrap();
        for _ in 0..2 {
            world.restart().await;
            assert_eq!(world.node.volumes_in_use(), [name], "before the first status is posted");
            world.node.drop_answers().await;
        }
        Rc::clone(&world.csi).forget(&pod_dir);
        assert_eq!(world.node.volumes_in_use(), [""; 0]);
        world.restart().await;
        std::fs::remove_dir_all(pod_dir).unwrap();
        world.restart().await;
        assert_eq!(world.node.volumes_in_use(), [""; 0], "the pod has gone without the agent");
    });
}

#[test]
fn a_disk_waits_for_the_controller_and_has_its_secret_offline() {
    in_world(async |mut world| {
        world.bind(false);
        let first = disk(&world, &json!({"name": "key", "namespace": "storage"}));
        let again = CsiVolume { is_again: true, ..first.clone() };
        let attach = async |world: &CsiWorld| Rc::clone(&world.csi).attach(first.clone()).await;
        let error = attach(&world).await.unwrap_err();
        assert!(error.contains("has not been added to the list of VolumesInUse"), "{error}");
        let name = "kubernetes.io/iscsi/nas:iqn:1";
        assert_eq!(world.node.volumes_in_use(), [name]);
        world.post();
        let error = attach(&world).await.unwrap_err();
        assert!(error.contains("Volume not attached according to node status"), "{error}");
        world.server.put(json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"},
            "status": {"volumesAttached": [{"name": name, "devicePath": ""}]}}));
        world.show_node();
        assert_eq!(attach(&world).await.unwrap()["password"], "secret");
        world.server.faults().refuse = true;
        world.online.set(false);
        world.restart().await;
        assert_eq!(attach(&world).await.unwrap()["password"], "secret", "as it was");
        assert!(Rc::clone(&world.csi).attach(again.clone()).await.unwrap().is_empty(), "it is mounted");
        Rc::clone(&world.csi).forget(&world.scratch.join("pods/u1"));
        assert_eq!(world.node.volumes_in_use(), [""; 0]);
        let _task = world.csi.start(Dice::seeded(1));
        until_forgotten(&world, |known| known == name).await;
    });
}
