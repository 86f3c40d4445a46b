//! Whole disks, with real mounts and fake programs.

use super::super::{VolumeConfig, run};
use super::testing::FakeNode;
use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{ClaimedSource, LocalObjects, ObjectData, ObjectLookup};
use crate::model::types::PodUid;
use crate::platform::clock::Clock;
use crate::pod::resources::NodeCapacity;

const IQN: &str = "iqn.2001-04.com.example:disk";

struct DiskNode {
    fake: FakeNode,
    objects: Rc<LocalObjects>,
}

impl DiskNode {
    fn new() -> Self {
        Self { fake: FakeNode::new(), objects: Rc::default() }
    }

    /// As after a start of the agent: nothing is remembered.
    fn volumes(&self) -> Volumes {
        let pods_dir = self.fake.path("root/pods");
        let config = VolumeConfig { pods_dir: pods_dir.clone(), capacity: NodeCapacity::default() };
        let lookup = Rc::clone(&self.objects) as Rc<dyn ObjectLookup>;
        let mut volumes = Volumes::new(config, lookup, Clock::System);
        volumes.disks = NetworkDisks::on(self.fake.host(), &pods_dir, &volumes.remote_jobs);
        volumes
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let points = mount::mount_points().unwrap().into_iter();
        points.filter(|point| point.starts_with(&self.fake.scratch.0)).collect()
    }

    fn place(&self) -> PathBuf {
        self.fake.path(&format!("root/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-{IQN}-lun-1"))
    }
}

impl Drop for DiskNode {
    fn drop(&mut self) {
        for point in self.mounts().iter().rev() {
            mount::unmount(point).unwrap();
        }
    }
}

fn iscsi(change: &Value) -> Value {
    let mut source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 1});
    source.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    json!([{"name": "data", "iscsi": source}])
}

fn pod(uid: &str, volumes: &Value) -> Pod {
    let pod = json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"securityContext": {"fsGroup": 4321}, "volumes": volumes, "containers": [{"name": "a"}]},
    });
    decode::<Pod>(pod).unwrap().object
}

fn tear_down(volumes: &Volumes, uid: &str) -> Result<(), VolumeError> {
    run(volumes.tear_down(&PodUid::from(uid)))
}

#[test]
fn a_disk_is_mounted_once_for_all_its_pods() {
    use std::os::unix::fs::MetadataExt;
    let (node, volumes) = (DiskNode::new(), iscsi(&json!({})));
    let agent = node.volumes();
    let first = run(agent.ensure(&pod("u1", &volumes))).unwrap();
    let target = node.fake.path("root/pods/u1/volumes/kubernetes.io~iscsi/data");
    assert_eq!(first["data"].host_path, target);
    assert!(first["data"].remote && first["data"].selinux_relabel && !first["data"].read_only);
    assert_eq!(target.metadata().unwrap().gid(), 4321);
    std::fs::write(target.join("rows"), "x").unwrap();
    let second = run(agent.ensure(&pod("u2", &volumes))).unwrap();
    assert!(second["data"].host_path.join("rows").exists());
    run(node.volumes().ensure(&pod("u1", &volumes))).unwrap();
    assert_eq!(node.mounts().len(), 3);
    let calls = |part| node.fake.calls(part);
    assert_eq!(
        calls("mkfs"),
        ["mkfs.ext4 -F -m0 /dev/disk/by-path/ip-10.0.0.1:3260-iscsi-IQN-lun-1".replace("IQN", IQN)]
    );
    assert_eq!((calls("--login").len(), calls("fsck").len()), (1, 0));
    assert!(calls("mount -t ext4 -o defaults /dev").len() == 1, "{:?}", calls("mount -t"));
    tear_down(&agent, "u1").unwrap();
    assert!(node.place().exists() && calls("--logout").is_empty());
    assert!(second["data"].host_path.join("rows").exists());
    tear_down(&agent, "u2").unwrap();
    assert_eq!((node.mounts().len(), node.place().exists(), calls("--logout").len()), (0, false, 1));
    assert!(!node.fake.path("root/pods/u1").exists() && !node.fake.path("root/pods/u2").exists());
    run(agent.ensure(&pod("u3", &volumes))).unwrap();
    assert_eq!((calls("mkfs").len(), calls("fsck -a").len()), (1, 1), "what is on it stays");
}

#[test]
fn an_agent_killed_at_any_step_goes_on_from_there() {
    let (node, volumes) = (DiskNode::new(), iscsi(&json!({})));
    // Each step of setting up fails once, and the next agent knows nothing of it.
    for step in ["-o show", "--discover", "--login", "blkid", "mkfs", "mount -t"] {
        node.fake.write("fail", step);
        let failed = run(node.volumes().ensure(&pod("u1", &volumes))).unwrap_err().to_string();
        assert!(failed.contains("exit status 8"), "{step}: {failed}");
        let record = std::fs::read_to_string(node.place().join("iscsi.json")).unwrap();
        assert!(record.contains(IQN), "{step}");
    }
    node.fake.write("fail", "");
    let logins = || node.fake.calls("--login").len();
    assert_eq!(logins(), 2, "the one that failed, and one");
    run(node.volumes().ensure(&pod("u1", &volumes))).unwrap();
    assert_eq!((logins(), node.mounts().len()), (2, 2));
    for step in ["--logout", "-o delete"] {
        node.fake.write("fail", step);
        let error = tear_down(&node.volumes(), "u1").unwrap_err();
        assert!(error.to_string().starts_with("UnmountVolume.TearDown failed for volume"), "{error}");
        assert!(node.place().exists() && node.mounts().is_empty());
    }
    node.fake.write("fail", "");
    tear_down(&node.volumes(), "u1").unwrap();
    assert!(!node.place().exists() && !node.fake.path("root/pods/u1").exists());
    // A pod that never got its disk leaves no session.
    node.fake.write("fail", "mount -t");
    run(node.volumes().ensure(&pod("u2", &volumes))).unwrap_err();
    let known = BTreeSet::new();
    let (removed, errors) = run(node.volumes().clean_orphans(&known));
    assert_eq!((removed, errors.len(), node.place().exists()), (1, 0, false));
    assert!(node.fake.calls("--logout").len() >= 3);
}

#[test]
fn a_disk_in_use_elsewhere_is_not_detached() {
    let (node, volumes) = (DiskNode::new(), iscsi(&json!({})));
    let agent = node.volumes();
    run(agent.ensure(&pod("u1", &volumes))).unwrap();
    let open = std::fs::File::create(node.place().join("open")).unwrap();
    let error = tear_down(&agent, "u1").unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
    assert_eq!(node.fake.calls("--logout"), [""; 0]);
    drop(open);
    tear_down(&node.volumes(), "u1").unwrap();
    assert_eq!(node.fake.calls("--logout").len(), 1);
}

#[test]
fn a_claim_brings_options_and_limits() {
    let node = DiskNode::new();
    let source = iscsi(&json!({"fsType": "xfs"}))[0]["iscsi"].clone();
    let claimed = ClaimedVolume {
        name: "pv-1".to_owned(),
        source: ClaimedSource::Disk { kind: "iscsi", source: source.clone() },
        mount_options: vec!["noatime".to_owned(), "discard".to_owned()],
        supplemental_group: None,
        read_only: false,
        single_pod: true,
        owner: String::new(),
    };
    let ensure = |uid: &str, read_only: bool| {
        let (pod, dir) = (pod(uid, &json!([])), node.fake.path("root/pods").join(uid));
        let disk = ("iscsi", source.clone());
        run(node.volumes().ensure_disk(&pod, &dir, "data", disk, Some(claimed.clone()), read_only))
    };
    let error = ensure("u1", true).unwrap_err().to_string();
    assert!(error.ends_with("as we are manipulating it in read-only mode"), "{error}");
    assert_eq!(node.fake.calls("mkfs"), [""; 0]);
    let mounted = ensure("u1", false).unwrap();
    assert!(mounted.host_path.ends_with("kubernetes.io~iscsi/pv-1"));
    assert_eq!(node.fake.calls("mkfs.xfs -f /dev").len(), 1);
    assert_eq!(node.fake.calls("mount -t xfs -o discard,noatime,defaults /dev").len(), 1);
    let error = ensure("u2", false).unwrap_err().to_string();
    let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert_eq!(error, format!("MountVolume.SetUp failed for volume \"data\" : {why}"));
    tear_down(&node.volumes(), "u1").unwrap();
    assert!(ensure("u2", true).unwrap().read_only);
    assert_eq!(node.fake.calls("mount -t xfs -o discard,noatime,ro,defaults /dev").len(), 1);
}

#[test]
fn a_secret_is_waited_for() {
    let node = DiskNode::new();
    let volumes = iscsi(&json!({"chapAuthSession": true, "secretRef": {"name": "chap"}}));
    let error = run(node.volumes().ensure(&pod("u1", &volumes))).unwrap_err();
    assert!(
        error.to_string().ends_with("in the namespace ns with error: secrets \"chap\" not found"),
        "{error}"
    );
    assert!(!error.is_permanent());
    let data = ObjectData::from([("node.session.auth.username".to_owned(), b"joe".to_vec())]);
    node.objects.set_secret("ns", "chap", Some(data));
    run(node.volumes().ensure(&pod("u1", &volumes))).unwrap();
    assert_eq!(node.fake.calls("username -v joe").len(), 1);
}

#[test]
fn only_an_empty_disk_is_formatted() {
    let node = FakeNode::new();
    std::fs::create_dir_all(node.path("dev")).unwrap();
    let mounted = |blkid: &str, start: &[u8], read_only: bool| {
        node.write("blkid", blkid);
        let mut content = vec![0; 2 << 20];
        content[..start.len()].copy_from_slice(start);
        std::fs::write(node.path("dev/sda"), content).unwrap();
        node.forget_calls();
        let target = node.path("mounted");
        std::fs::create_dir_all(&target).unwrap();
        let made = node.host().format_and_mount(&node.path("dev/sda"), &target, ("", &[]), read_only);
        if made.is_ok() {
            mount::unmount(&target).unwrap();
        }
        (made.err().unwrap_or_default(), node.calls("mkfs").len(), node.calls("fsck").len())
    };
    assert_eq!(mounted("exit 2", &[], false), (String::new(), 1, 0));
    let found = "echo DEVNAME=/dev/sda; echo TYPE=ext4; exit 0";
    assert_eq!(mounted(found, &[], false), (String::new(), 0, 1));
    assert_eq!(mounted(found, &[], true), (String::new(), 0, 0));
    for (blkid, start, why) in [
        ("exit 2", &[0, 0, 7][..], "it has data of an unknown kind"),
        ("echo cannot read >&2; exit 2", &[], "exit status 2: cannot read"),
        ("exit 4", &[], "exit status 4"),
        ("echo ambivalent; exit 8", &[], "exit status 8"),
        ("exit 0", &[], "exit status 0"),
        ("echo DEVNAME=x; exit 0", &[], "exit status 0"),
        ("echo garbage; exit 0", &[], "garbage"),
        ("kill -9 $$", &[], "exit status -1"),
    ] {
        let (error, formatted, checked) = mounted(blkid, start, false);
        assert!(error.contains(why), "{blkid}: {error}");
        assert_eq!((formatted, checked), (0, 0), "{blkid}");
    }
    node.write("fail", "mount -t");
    for (blkid, what) in
        [("echo PTTYPE=dos", "unknown data, probably partitions"), ("echo TYPE=LVM2_member", "LVM2_member")]
    {
        let (error, formatted, _) = mounted(&format!("{blkid}; exit 0"), &[], false);
        assert!(error.ends_with(&format!("the volume's fsType is ext4, on the disk is {what}")), "{error}");
        assert_eq!(formatted, 0);
    }
    node.remove("fail");
    let (error, formatted, _) = mounted("exit 2", &[], true);
    assert!(error.contains("cannot mount unformatted disk"), "{error}");
    assert_eq!(formatted, 0);
    std::fs::remove_file(node.path("bin/blkid")).unwrap();
    let (error, formatted, _) = mounted("exit 2", &[], false);
    assert!(error.ends_with("it is in the Debian package util-linux"), "{error}");
    assert_eq!(formatted, 0);
}

#[test]
fn a_disk_that_cannot_be_read_is_not_formatted() {
    let node = FakeNode::new();
    node.write("blkid", "exit 2");
    for (device, why) in [("dev/none", "No such file"), ("dev", "directory")] {
        std::fs::create_dir_all(node.path("dev")).unwrap();
        let made = node.host().format_and_mount(&node.path(device), &node.path("at"), ("ext4", &[]), false);
        assert!(made.unwrap_err().contains(why), "{device}");
    }
    node.write("dev/short", "");
    let made = node.host().format_and_mount(&node.path("dev/short"), &node.path("at"), ("ext4", &[]), false);
    assert!(made.unwrap_err().contains("it has data of an unknown kind"));
    assert_eq!(node.calls("mkfs"), [""; 0]);
    let made = node.host().format_and_mount(&node.path("dev"), &node.path("at"), ("../sh", &[]), false);
    assert_eq!(made.unwrap_err(), "fsType \"../sh\" is no name of a file system");
}

#[test]
fn a_file_system_is_checked_before_it_is_mounted() {
    let node = FakeNode::new();
    node.write("blkid", "echo TYPE=ext4; exit 0");
    node.write("dev/sda", "x");
    let target = node.path("at");
    std::fs::create_dir_all(&target).unwrap();
    let mounted = |fsck: &str| {
        node.write("fsck", fsck);
        let made = node.host().format_and_mount(&node.path("dev/sda"), &target, ("ext4", &[]), false);
        if made.is_ok() {
            mount::unmount(&target).unwrap();
        }
        made
    };
    for fsck in ["exit 0", "exit 1", "exit 8", "exit 127"] {
        mounted(fsck).unwrap();
    }
    let error = mounted("echo bad block; exit 4").unwrap_err();
    assert!(error.starts_with("'fsck' found errors on device"), "{error}");
    assert!(error.ends_with("but could not correct them: bad block"), "{error}");
    std::fs::remove_file(node.path("bin/fsck")).unwrap();
    mounted("").unwrap();
}

#[test]
fn a_slow_disk_does_not_hold_up_its_pod() {
    let (node, volumes) = (DiskNode::new(), iscsi(&json!({})));
    let agent = node.volumes();
    // It ends when the file is there.
    node.fake.program("blkid", "while [ ! -e \"$top/go\" ]; do sleep 0.05; done; exit 2");
    run(async {
        let wanted = pod("u1", &volumes);
        tokio::time::pause();
        let first = agent.ensure(&wanted).await.unwrap_err().to_string();
        assert!(first.ends_with("waiting for the disk"), "{first}");
        let again = agent.ensure(&wanted).await.unwrap_err().to_string();
        assert_eq!(again, first, "one attempt at a time");
        let gone = agent.tear_down(&PodUid::from("u1")).await.unwrap_err().to_string();
        assert!(gone.ends_with("a disk is still being mounted"), "{gone}");
        tokio::time::resume();
        node.fake.write("go", "");
        while !agent.disks.busy.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        agent.ensure(&wanted).await.unwrap();
        agent.tear_down(&PodUid::from("u1")).await.unwrap();
    });
    assert_eq!(node.fake.calls("--login").len(), 1);
}

#[test]
fn an_fc_disk_is_mounted_and_removed() {
    let node = DiskNode::new();
    std::fs::create_dir_all(node.fake.path("dev")).unwrap();
    node.fake.disk("sda", "by-path/fc-0x50-lun-0");
    let volumes = json!([{"name": "data", "fc": {"targetWWNs": ["50"], "lun": 0, "readOnly": false}}]);
    let agent = node.volumes();
    run(agent.ensure(&pod("u1", &volumes))).unwrap();
    assert_eq!(node.fake.calls("mkfs.ext4").len(), 1);
    let place = node.fake.path("root/plugins/kubernetes.io/fc/50-lun-0");
    assert!(mount::is_mount_point(&place).unwrap());
    tear_down(&node.volumes(), "u1").unwrap();
    assert!(!place.exists());
    assert_eq!(std::fs::read_to_string(node.fake.path("sys/block/sda/device/delete")).unwrap(), "1");
}

#[test]
fn a_hanging_target_does_not_hold_up_pods_of_others() {
    let (node, volumes) = (DiskNode::new(), iscsi(&json!({})));
    let other = iscsi(&json!({"targetPortal": "10.0.0.2", "iqn": "iqn.2001-04.com.example:other"}));
    let tear_down = async |volumes: &Volumes, uid: &str| {
        let done = volumes.tear_down(&PodUid::from(uid)).await;
        while !volumes.remote_jobs.borrow().is_empty() {
            tokio::task::yield_now().await;
        }
        done.map_err(|error| error.to_string())
    };
    run(async {
        let agent = node.volumes();
        agent.ensure(&pod("u1", &volumes)).await.unwrap();
        node.fake.write("fail", "--login");
        agent.ensure(&pod("u2", &other)).await.unwrap_err();
        let held = agent.disks.lock(&node.place()).try_lock_owned().unwrap();
        assert_eq!(tear_down(&agent, "u2").await, Ok(()), "its target is another one");
        drop(held);
        node.fake.write("fail", "--login\nnode -p 10.0.0.1:3260");
        agent.ensure(&pod("u3", &other)).await.unwrap_err();
        tear_down(&agent, "u1").await.unwrap_err();
        assert_eq!(tear_down(&agent, "u3").await, Ok(()), "what fails is another pod's");
        tear_down(&node.volumes(), "u1").await.unwrap_err();
        node.fake.write("fail", "");
        assert_eq!(tear_down(&node.volumes(), "u1").await, Ok(()));
        assert!(!node.place().exists());
    });
}

#[test]
fn a_local_block_device_is_mounted_once_and_bound() {
    let node = DiskNode::new();
    std::fs::create_dir_all(node.fake.path("dev")).unwrap();
    let device = node.fake.path("dev/usb");
    // Of a loop device that is not there: the programs are fakes.
    let made = std::process::Command::new("mknod").arg(&device).args(["b", "7", "251"]).status().unwrap();
    assert!(made.success());
    node.fake.write("blkid", "echo TYPE=xfs; exit 0");
    let source = ClaimedSource::Local { path: device.to_string_lossy().into_owned(), fs_type: String::new() };
    let claimed = ClaimedVolume {
        name: "pv-1".to_owned(),
        source,
        mount_options: vec!["noatime".to_owned(), "discard".to_owned()],
        supplemental_group: None,
        read_only: false,
        single_pod: false,
        owner: String::new(),
    };
    let ensure = |uid: &str| {
        let (pod, dir) = (pod(uid, &json!([])), node.fake.path("root/pods").join(uid));
        let volume = (claimed.clone(), ("data".to_owned(), false));
        run(node.volumes().ensure_claim(&pod, &dir, "data", volume.0, volume.1))
    };
    node.fake.write("fail", "mount -t");
    let error = ensure("u1").unwrap_err().to_string();
    assert!(error.contains("exit status 8: broken"), "{error}");
    node.fake.write("fail", "");
    node.fake.forget_calls();
    let first = ensure("u1").unwrap().host_path;
    assert_eq!(first, node.fake.path("root/pods/u1/volumes/kubernetes.io~local-volume/pv-1"));
    std::fs::write(first.join("rows"), "x").unwrap();
    assert!(ensure("u2").unwrap().host_path.join("rows").exists());
    assert_eq!(node.fake.calls("mount -t xfs -o discard,noatime,defaults /dev/usb").len(), 1);
    let place = node.fake.path("root/plugins/kubernetes.io/local-volume/mounts/pv-1");
    tear_down(&node.volumes(), "u1").unwrap();
    assert!(place.join("rows").exists() && node.mounts().len() == 2);
    let agent = node.volumes();
    let attempt = agent.disks.lock(&place).try_lock_owned().unwrap();
    tear_down(&agent, "u2").unwrap();
    assert!(place.join("rows").exists() && agent.may_have_orphans(), "another pod's attempt");
    drop(attempt);
    run(agent.clean_orphans(&BTreeSet::new()));
    assert!(!place.exists() && node.mounts().is_empty() && !agent.may_have_orphans());
}
