//! Volumes of a CSI driver: attached by the cluster's controller, mounted by a driver of the test.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::control_plane::said;
use super::{Cluster, pod, spec};
use crate::support::agent::{NODE, PATIENCE};
use crate::support::csi_driver::{CsiDriver, DRIVER, FILE};
use crate::support::embedded::Embedded;
use crate::support::wait::wait_for;

/// As the Node has it.
const UNIQUE: &str = "kubernetes.io/csi/csi.example.com^h1";

fn driver_object(spec: &Value) -> Value {
    let metadata = json!({ "name": DRIVER });
    json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": metadata, "spec": spec })
}

/// A volume and a claim that are bound to each other by hand, and the Secret to stage it.
fn bound() -> [Value; 3] {
    let capacity = json!({ "storage": "1Gi" });
    [
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "key" },
            "stringData": { "password": "secret" } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pv-1" }, "spec": {
            "capacity": capacity, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "claimRef": { "namespace": "default", "name": "data" },
            "csi": { "driver": DRIVER, "volumeHandle": "h1", "volumeAttributes": { "pool": "fast" },
                "nodeStageSecretRef": { "name": "key", "namespace": "default" } },
        } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "pv-1",
            "resources": { "requests": capacity },
        } }),
    ]
}

/// A pod that says what its volume has, whenever it starts.
fn reader(name: &str, volume: &Value) -> Value {
    let mut spec = spec(&format!("cat /data/{FILE} && echo && exec sleep 1000"));
    spec["volumes"] = json!([volume]);
    spec["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    pod(name, &spec)
}

impl Cluster {
    /// What the node reports of its volumes.
    fn volumes(&self, field: &str) -> Result<Vec<String>, String> {
        let node = self.node()?;
        let volumes = node["status"][field].as_array().cloned().unwrap_or_default();
        let name = |volume: &Value| volume["name"].as_str().or(volume.as_str()).map(str::to_owned);
        Ok(volumes.iter().filter_map(name).collect())
    }

    /// Stands in for the driver's attacher.
    fn attach(&self) {
        let plane = &self.control_plane;
        let path = "/apis/storage.k8s.io/v1/volumeattachments";
        let name = plane.wait("the attachment", || {
            let list = plane.get(path)?;
            let name = list["items"][0]["metadata"]["name"].as_str();
            name.map(str::to_owned).ok_or_else(|| list.to_string())
        });
        let done = r#"{"status": {"attached": true, "attachmentMetadata": {"disk": "vdb"}}}"#;
        let of = format!("volumeattachment/{name}");
        plane.kubectl(&["patch", &of, "--subresource=status", "--type=merge", "-p", done]);
    }

    fn wait_for_volumes(&self, field: &str, volumes: &[&str]) {
        self.control_plane.wait(field, || match self.volumes(field) {
            Ok(found) if found == volumes => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// As after a boot: nothing is mounted, nothing runs.
    fn lose_power(&mut self) {
        self.agent.kill9();
        for instance in self.runtime.instances() {
            if let Some(pid) = instance.pid {
                // It may end with another one.
                let _ = kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), Signal::SIGKILL);
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
        let mut points: Vec<PathBuf> =
            mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect();
        points.retain(|point| point.ends_with("mount") || point.ends_with("globalmount"));
        points.retain(|point| point.starts_with(self.agent.root_dir()));
        assert!(!points.is_empty(), "nothing was mounted");
        for point in points.iter().rev() {
            umount2(point, MntFlags::MNT_DETACH).expect("unmount");
        }
    }
}

#[test]
fn a_volume_is_attached_staged_and_survives_a_boot_offline() {
    let mut cluster = Cluster::new();
    let driver = CsiDriver::start(&cluster.agent.root_dir());
    assert_eq!(driver.wait("NotifyRegistrationStatus")["registered"], true);
    let plane = &cluster.control_plane;
    plane.wait("the CSINode", || {
        let shown = plane.get(&format!("/apis/storage.k8s.io/v1/csinodes/{NODE}"))?;
        let wanted = json!([{ "name": DRIVER, "nodeID": "id-1", "topologyKeys": ["topology.example.com/rack"],
            "allocatable": { "count": 7 } }]);
        if shown["spec"]["drivers"] == wanted { Ok(()) } else { Err(shown.to_string()) }
    });
    let node = cluster.node().expect("the node");
    assert_eq!(node["metadata"]["labels"]["topology.example.com/rack"], "r1", "{node}");
    plane.apply(&[driver_object(&json!({ "attachRequired": true }))]);
    plane.apply(&bound());
    plane.apply(&[reader(
        "one",
        &json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }),
    )]);
    cluster.wait_for_volumes("volumesInUse", &[UNIQUE]);
    assert!(driver.calls().iter().all(|(name, _)| name != "NodeStageVolume"), "it is not attached");
    cluster.attach();
    let staged = driver.wait("NodeStageVolume");
    assert_eq!(
        (&staged["secrets"]["password"], &staged["publish"]["disk"]),
        (&json!("secret"), &json!("vdb"))
    );
    assert_eq!(driver.wait("NodePublishVolume")["context"]["pool"], "fast");
    cluster.ready_pods("app=one", 1);
    assert_eq!(cluster.control_plane.kubectl(&["logs", "one"]), "h1\n");
    cluster.wait_for_volumes("volumesAttached", &[UNIQUE]);

    let plane = &cluster.control_plane;
    plane.wait("the driver's figures", || {
        let summary = plane.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/stats/summary")]);
        let summary: Value = serde_json::from_str(&summary).map_err(|error| error.to_string())?;
        let pods = summary["pods"].as_array().into_iter().flatten();
        let mut volumes = pods.flat_map(|pod| pod["volume"].as_array().into_iter().flatten());
        let is_right = |volume: &&Value| volume["name"] == "data" && volume["usedBytes"] == 1_234_567;
        volumes.find(is_right).map(drop).ok_or_else(|| summary["pods"].to_string())
    });

    cluster.control_plane.signal("kube-apiserver", Signal::SIGSTOP);
    cluster.lose_power();
    driver.calls();
    cluster.agent.start();
    let again = driver.wait("NodeStageVolume");
    assert_eq!(again, staged, "offline, with Secret and publish context");
    driver.wait("NodePublishVolume");
    let running = wait_for("the pod to run", PATIENCE, || {
        let all = cluster.runtime.instances();
        let found = all.iter().find(|instance| instance.container == "main" && instance.pid.is_some());
        found.cloned().ok_or_else(|| format!("{all:?}"))
    });
    assert_eq!(Embedded::exec(&running, &["cat", &format!("/data/{FILE}")]), "h1");
    cluster.control_plane.signal("kube-apiserver", Signal::SIGCONT);
    cluster.ready_pods("app=one", 1);

    cluster.control_plane.kubectl(&["delete", "pod", "one"]);
    driver.wait("NodeUnpublishVolume");
    driver.wait("NodeUnstageVolume");
    cluster.wait_for_volumes("volumesInUse", &[]);
    cluster.wait_for_volumes("volumesAttached", &[]);
    let left = cluster.agent.root_dir().join("plugins/kubernetes.io/csi").join(DRIVER);
    let left: Vec<_> = fs::read_dir(left).into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    drop(driver);
    let plane = &cluster.control_plane;
    plane.wait("the CSINode without the driver", || {
        let shown = plane.get(&format!("/apis/storage.k8s.io/v1/csinodes/{NODE}"))?;
        let is_empty = shown["spec"]["drivers"].as_array().is_none_or(Vec::is_empty);
        if is_empty { Ok(()) } else { Err(shown.to_string()) }
    });
    cluster.finish();
}

#[test]
fn inline_volumes_and_volumes_that_are_not_attached_are_mounted() {
    let cluster = Cluster::new();
    let driver = CsiDriver::start(&cluster.agent.root_dir());
    let plane = &cluster.control_plane;
    plane.apply(&[driver_object(
        &json!({ "attachRequired": false, "podInfoOnMount": true, "requiresRepublish": true,
        "tokenRequests": [{ "audience": "vault" }], "volumeLifecycleModes": ["Persistent", "Ephemeral"] }),
    )]);
    plane.apply(&bound());
    plane.apply(&[
        reader("claiming", &json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } })),
        reader(
            "inline",
            &json!({ "name": "data", "csi": { "driver": DRIVER, "volumeAttributes": { "size": "1" } } }),
        ),
    ]);
    for name in ["claiming", "inline"] {
        cluster.ready_pods(&format!("app={name}"), 1);
    }
    assert_eq!(plane.kubectl(&["logs", "claiming"]), "h1\n");
    assert!(plane.kubectl(&["logs", "inline"]).starts_with("csi-"));
    assert_eq!(cluster.volumes("volumesInUse"), Ok(Vec::new()), "the controller has nothing to attach");
    let calls = driver.calls();
    let of_inline = |(name, said): &&(String, Value)| {
        name == "NodePublishVolume" && said["context"]["csi.storage.k8s.io/ephemeral"] == "true"
    };
    let (_, published) = calls.iter().find(of_inline).expect("it was published");
    assert_eq!(published["context"]["csi.storage.k8s.io/pod.name"], "inline");
    assert_eq!(published["context"]["size"], "1");
    let tokens = published["context"]["csi.storage.k8s.io/serviceAccount.tokens"].as_str();
    assert!(tokens.is_some_and(|tokens| tokens.contains("\"vault\"")), "{published}");

    // The controller has grown the volume; the node's part is left.
    plane.kubectl(&["patch", "pv", "pv-1", "-p", r#"{"spec": {"capacity": {"storage": "2Gi"}}}"#]);
    let status = r#"{"status": {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}}"#;
    plane.kubectl(&["patch", "pvc", "data", "--subresource=status", "--type=merge", "-p", status]);
    // Another pod publishes the volume, so its claim is read now.
    plane.apply(&[reader(
        "late",
        &json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }),
    )]);
    assert_eq!(driver.wait("NodeExpandVolume")["bytes"], 2_i64 << 30);
    plane.wait("the claim to have its size", || {
        let claim = plane.get("/api/v1/namespaces/default/persistentvolumeclaims/data")?;
        let status = &claim["status"];
        let is_done = status["capacity"]["storage"] == "2Gi"
            && status["allocatedResourceStatuses"]["storage"].is_null();
        if is_done { Ok(()) } else { Err(status.to_string()) }
    });
    plane.kubectl(&["delete", "pod", "claiming", "inline", "late"]);
    driver.wait("NodeUnstageVolume");
    let mounts = said(Command::new("cat").arg("/proc/self/mountinfo")).expect("the mounts");
    let of_csi = mounts.lines().filter(|line| line.contains("kubernetes.io~csi") && line.contains("pods/"));
    let root = cluster.agent.root_dir().display().to_string();
    assert_eq!(of_csi.filter(|line| line.contains(&root)).count(), 0, "{mounts}");
    cluster.finish();
}
