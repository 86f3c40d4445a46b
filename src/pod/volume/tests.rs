//! Volumes of whole pods, with real mounts in scratch directories.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{ConfigMapData, FixedFacts, LocalObjects, NodeObjects, ObjectData};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::sys::mount;
use crate::platform::testing::TempDir;
use serde_json::{Value, json};

/// Claims that tests bind when they like.
#[derive(Default)]
struct Claims(RefCell<BTreeMap<String, ClaimedVolume>>, RefCell<String>);

impl Claims {
    fn bind(&self, claim: &str, source: ClaimedSource, read_only: bool) {
        let volume = ClaimedVolume {
            single_pod: false,
            owner: self.1.borrow().clone(),
            name: format!("pv-{claim}"),
            source,
            mount_options: Vec::new(),
            supplemental_group: None,
            read_only,
        };
        self.0.borrow_mut().insert(claim.to_owned(), volume);
    }
}

impl ObjectLookup for Claims {
    fn config_map(&self, _: &str, _: &str) -> Option<ConfigMapData> {
        None
    }

    fn secret(&self, _: &str, _: &str) -> Option<ObjectData> {
        None
    }

    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume> {
        self.0.borrow().get(name).filter(|_| namespace == "ns").cloned()
    }

    crate::model::objects::plain_lookup!();
}

struct VolumeNode {
    scratch: TempDir,
    claims: Rc<Claims>,
    volumes: Volumes,
}

impl VolumeNode {
    fn new() -> Self {
        let scratch = TempDir::new();
        let pods_dir = scratch.0.join("pods");
        std::fs::create_dir_all(&pods_dir).unwrap();
        let claims = Rc::new(Claims::default());
        let config = VolumeConfig { pods_dir, capacity: NodeCapacity::default() };
        let volumes = Volumes::new(config, Rc::clone(&claims) as Rc<dyn ObjectLookup>, Clock::System);
        Self { scratch, claims, volumes }
    }

    fn dir(&self, uid: &str) -> PathBuf {
        self.scratch.0.join("pods").join(uid)
    }

    fn mounts(&self) -> usize {
        mount::mount_points().unwrap().iter().filter(|point| point.starts_with(&self.scratch.0)).count()
    }
}

fn host(path: &str, type_: &str) -> ClaimedSource {
    ClaimedSource::HostPath { path: path.to_owned(), type_: type_.to_owned() }
}

fn pod(uid: &str, security: &Value, volumes: &Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": uid},
        "spec": {"securityContext": security, "volumes": volumes, "containers": [{"name": "a"}]},
    });
    decode::<Pod>(pod).unwrap().object
}

#[test]
fn a_claim_is_waited_for_and_its_volume_is_used_as_it_is_bound() {
    let house = VolumeNode::new();
    let (local, missing) = (house.scratch.0.join("local"), house.scratch.0.join("made"));
    std::fs::create_dir_all(&local).unwrap();
    let volumes = json!([
        {"name": "one", "persistentVolumeClaim": {"claimName": "local"}},
        {"name": "two", "persistentVolumeClaim": {"claimName": "host", "readOnly": true}},
    ]);
    let pod = pod("u1", &json!({}), &volumes);
    let waiting = run(house.volumes.ensure(&pod)).unwrap_err();
    let text = "MountVolume.SetUp failed for volume \"one\" : persistentvolumeclaim \"local\" not found";
    assert_eq!(waiting.to_string(), text);
    assert!(!waiting.is_permanent());
    let text = |path: &Path| path.display().to_string();
    house.claims.bind("local", ClaimedSource::Local { path: text(&local), fs_type: String::new() }, false);
    house.claims.bind("host", host(&text(&missing), ""), false);
    let mounted = run(house.volumes.ensure(&pod)).unwrap();
    run(house.volumes.tear_down(&pod.metadata.uid)).unwrap();
    assert_eq!(mounted["one"].host_path, house.dir("u1").join("volumes/kubernetes.io~local-volume/pv-local"));
    assert!(mounted["one"].selinux_relabel && !mounted["one"].read_only);
    assert_eq!(mounted["two"].host_path, missing);
    assert!(mounted["two"].read_only && !mounted["two"].selinux_relabel);
    assert!(missing.is_dir() && local.is_dir());
    assert_eq!(house.mounts(), 0);
}

#[test]
fn volumes_of_a_running_pod_survive_an_agent_restart() {
    let house = VolumeNode::new();
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "pic", "image": {"reference": "registry.example/pic:1"}},
    ]);
    let pod = pod("u1", &json!({"fsGroup": 777}), &volumes);
    let first = run(house.volumes.ensure(&pod)).unwrap();
    for name in ["disk", "ram"] {
        std::fs::write(first[name].host_path.join("kept"), name).unwrap();
    }
    let group = first["disk"].host_path.metadata().unwrap().gid();
    let next = Volumes::new(
        house.volumes.config.clone(),
        Rc::clone(&house.claims) as Rc<dyn ObjectLookup>,
        Clock::System,
    );
    let second = run(next.ensure(&pod)).unwrap();
    let kept = ["disk", "ram"].map(|name| second[name].host_path.join("kept").metadata().unwrap().gid());
    run(next.tear_down(&pod.metadata.uid)).unwrap();
    assert_eq!(first, second);
    assert_eq!(group, 777);
    assert_eq!(kept, [777, 777], "setgid directories, and no walk over what is there");
    let image = first["pic"].image.clone().unwrap();
    assert_eq!((image.user_specified_image.as_str(), image.image.as_str()), ("registry.example/pic:1", ""));
    assert!(first["pic"].read_only);
    assert!(!house.dir("u1").exists());
}

#[test]
fn unsupported_volume_kinds_fail_permanently_like_upstream() {
    let house = VolumeNode::new();
    let error = run(house.volumes.ensure(&pod("u1", &json!({}), &json!([{"name": "x", "unknown": {}}]))))
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message
            .starts_with("MountVolume.SetUp failed for volume \"x\" : no volume plugin matched: this node")
    );
    let medium = json!([{"name": "x", "emptyDir": {"medium": "HugePages"}}]);
    let odd = run(house.volumes.ensure(&pod("u2", &json!({}), &medium))).unwrap_err();
    assert!(chain(&odd).ends_with("no resource request for huge pages"), "{}", chain(&odd));
    assert!(error.is_permanent() && odd.is_permanent());
}

#[test]
fn orphaned_volumes_are_removed_and_those_of_known_pods_kept() {
    let house = VolumeNode::new();
    let ram = json!([{"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]);
    for uid in ["gone", "known"] {
        let earlier = Volumes::new(
            house.volumes.config.clone(),
            Rc::clone(&house.claims) as Rc<dyn ObjectLookup>,
            Clock::System,
        );
        run(earlier.ensure(&pod(uid, &json!({}), &ram))).unwrap();
    }
    run(house.volumes.ensure(&pod("arrived", &json!({}), &json!([])))).unwrap();
    let foreign = house.dir("foreign").join("volumes/somebody/mounted");
    std::fs::create_dir_all(&foreign).unwrap();
    mount::mount_tmpfs(&foreign, Some(1 << 20)).unwrap();
    std::fs::write(foreign.join("precious"), "x").unwrap();
    // Of a file system whose root this is.
    std::fs::create_dir(house.dir("lost+found")).unwrap();
    let known = BTreeSet::from([PodUid::from("known")]);
    let (removed, errors) = run(house.volumes.clean_orphans(&known));
    let (_, repeated) = run(house.volumes.clean_orphans(&known));
    let survived = foreign.join("precious").exists();
    mount::unmount(&foreign).unwrap();
    assert!(repeated.is_empty(), "it is told once: {repeated:?}");
    let tries_again = house.volumes.may_have_orphans();
    let left = |uid: &str| house.dir(uid).exists();
    let state = ["gone", "known", "arrived", "foreign", "lost+found"].map(left);
    run(house.volumes.tear_down(&PodUid::from("known"))).unwrap();
    assert_eq!(removed, 1);
    assert!(
        matches!(errors.as_slice(), [VolumeError::StillMounted { path }] if *path == foreign),
        "{errors:?}"
    );
    assert!(survived);
    assert_eq!(state, [false, true, true, true, true]);
    assert!(tries_again);
    let (removed, errors) = run(house.volumes.clean_orphans(&BTreeSet::new()));
    assert_eq!(
        (removed, errors.len(), house.dir("foreign").exists()),
        (1, 0, false),
        "now that nothing is mounted"
    );
    assert!(!house.volumes.may_have_orphans());
    assert_eq!(house.mounts(), 0);
}

#[test]
fn arriving_pod_waits_for_orphan_cleanup_and_keeps_its_data() {
    let house = VolumeNode::new();
    std::fs::create_dir_all(house.dir("u1").join("old")).unwrap();
    let disk = json!([{"name": "disk", "emptyDir": {}}]);
    let arriving = pod("u1", &json!({}), &disk);
    let unknown = BTreeSet::new();
    run(async {
        let (cleaned, mounted) =
            tokio::join!(house.volumes.clean_orphans(&unknown), house.volumes.ensure(&arriving));
        assert!(cleaned.1.is_empty());
        assert!(mounted.unwrap()["disk"].host_path.is_dir());
        let again = house.volumes.clean_orphans(&unknown).await;
        assert_eq!(again.0, 0, "it is in use now");
    });
    assert!(house.dir("u1").join("volumes/kubernetes.io~empty-dir/disk").is_dir());
}

#[test]
fn host_path_on_a_dead_server_blocks_only_its_own_pod() {
    let house = VolumeNode::new();
    let (dir, (release, hangs)) = (house.dir("one"), std::sync::mpsc::channel::<()>());
    let job = move || {
        let _ = hangs.recv();
        Ok(MountedVolume::default())
    };
    let (first, again, others) = run(async {
        tokio::time::pause();
        let first = house.volumes.run_with_timeout(&dir, "nas", job).await.unwrap_err().to_string();
        let again = house.volumes.run_with_timeout(&dir, "nas", || Ok(MountedVolume::default())).await;
        tokio::time::resume();
        let other =
            house.volumes.run_with_timeout(&house.dir("two"), "nas", || Ok(MountedVolume::default())).await;
        let others = (other.is_ok(), rt::blocking("another pod's", || 7).await);
        drop(release);
        (first, again, others)
    });
    assert_eq!(first, "MountVolume.SetUp failed for volume \"nas\" : waiting for the server to respond");
    assert!(matches!(again, Err(VolumeError::Remote { .. })), "one thread per path: {again:?}");
    assert_eq!(others, (true, 7));
}

#[test]
fn an_unbound_claim_says_so() {
    let refused = |text: &str| Absence::Refused(text.to_owned());
    for (absence, why) in [
        (Absence::NotFound, "failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found"),
        (Absence::NotSynced, "failed to fetch PVC from API server: timed out waiting for the condition"),
        (refused("PVC is not bound"), "PVC is not bound"),
    ] {
        let facts = FixedFacts { absence, ..FixedFacts::default() };
        let objects = NodeObjects::joined(LocalObjects::default(), LocalObjects::default(), facts);
        let scratch = TempDir::new();
        let config = VolumeConfig { pods_dir: scratch.0.join("pods"), capacity: NodeCapacity::default() };
        let volumes = Volumes::new(config, Rc::new(objects), Clock::System);
        let claims = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        let mut pod = pod("u1", &json!({}), &claims);
        let source = ("kubernetes.io/config.source".to_owned(), "cluster".to_owned());
        pod.metadata.annotations.extend([source]);
        let waiting = run(volumes.ensure(&pod)).unwrap_err();
        let text = format!(
            "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], \
             failed to process volumes=[v]: error processing PVC ns/data: {why}"
        );
        assert_eq!(waiting.to_string(), text);
        assert!(!waiting.is_permanent());
    }
}

#[test]
fn a_claim_that_was_bound_for_another_pod_is_checked() {
    let house = VolumeNode::new();
    house.claims.bind("web-data", host("/", ""), false);
    let of_cluster = |uid: &str, volume: &Value, container: &Value| {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": uid,
                "annotations": {"kubernetes.io/config.source": "cluster"}},
            "spec": {"volumes": [volume], "containers": [container]},
        });
        decode::<Pod>(pod).unwrap().object
    };
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "web-data"}});
    let ephemeral = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {}}});
    let container = json!({"name": "a"});
    run(house.volumes.ensure(&of_cluster("u1", &claim, &container))).unwrap();
    let owned = of_cluster("u2", &ephemeral, &container);
    let error = run(house.volumes.ensure(&owned)).unwrap_err().to_string();
    assert!(error.ends_with("PVC ns/web-data was not created for pod ns/web (pod is not owner)"), "{error}");
    *house.claims.1.borrow_mut() = "u2".to_owned();
    house.claims.bind("web-data", host("/", ""), false);
    run(house.volumes.ensure(&owned)).unwrap();
    let device = json!({"name": "a", "volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]});
    let error = run(house.volumes.ensure(&of_cluster("u3", &claim, &device))).unwrap_err().to_string();
    let why = "volume data has volumeMode Filesystem, but is specified in volumeDevices";
    assert!(error.ends_with(why), "{error}");
}

mod claims;
