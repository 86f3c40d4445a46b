//! Volumes of pods on a whole node, with real files and mounts.

use std::rc::Rc;

use edge_agent::desired::source::manifest::parse_manifest;
use edge_agent::model::observed::ContainerStateKind;
use edge_agent::model::source::{ManifestOrigin, SourcePod};
use edge_agent::model::types::PodSource;
use edge_agent::platform::sys::mount::mount_points;
use edge_agent::runtime::{Mount, RuntimeHandler};
use serde_json::{Value, json};

use super::{MINUTE, SECOND, files, is_empty, node, running, status};
use crate::sim::node::{Node, simulate};
use crate::sim::pods::{Act, Manifest};

fn pod(volumes: &Value, mounts: &Value) -> SourcePod {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "volumes": volumes,
            "containers": [{
                "name": "c", "image": Act::Forever.image(), "imagePullPolicy": "IfNotPresent",
                "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "volumeMounts": mounts,
            }],
        },
    });
    let origin = ManifestOrigin { source: PodSource::File, location: "/manifests/web.yaml".to_owned() };
    let parsed = parse_manifest(manifest.to_string().as_bytes(), &origin, "node1");
    assert!(parsed.is_complete() && parsed.pods.len() == 1, "{:?}", parsed.problems);
    SourcePod { pod: Rc::new(parsed.pods[0].clone()), origin: origin.location }
}

/// What the pod's newest container mounts, without the files that every container has.
fn mounts(node: &Node) -> Vec<Mount> {
    let world = node.fake.world();
    let newest = world.containers.values().max_by_key(|container| container.observed.attempt);
    let mounts = newest.map(|container| container.config.mounts.clone()).unwrap_or_default();
    mounts.into_iter().filter(|mount| mount.container_path.starts_with("/data")).collect()
}

fn mounted_below(node: &Node) -> usize {
    let pods = node.path("pods");
    mount_points().expect("read the mount table").iter().filter(|point| point.starts_with(&pods)).count()
}

#[test]
fn sub_paths_and_image_volumes_go_with_their_pod() {
    simulate(async {
        let mut node = node().await;
        node.fake.add_image("registry.example/pictures:1");
        node.fake.change(|world, _| {
            let able = RuntimeHandler { recursive_read_only_mounts: true, ..RuntimeHandler::default() };
            world.status.handlers = vec![able];
        });
        let pod = pod(
            &json!([
                {"name": "disk", "emptyDir": {}},
                {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "pictures", "image": {"reference": "registry.example/pictures:1"}},
            ]),
            &json!([
                {"name": "disk", "mountPath": "/data/part", "subPathExpr": "of/$(POD)"},
                {"name": "ram", "mountPath": "/data/ram", "readOnly": true, "recursiveReadOnly": "Enabled"},
                {"name": "pictures", "mountPath": "/data/pictures", "subPath": "summer"},
            ]),
        );
        let dir = node.path("pods").join(pod.pod.metadata.uid.as_str());
        let volume = |name: &str| dir.join("volumes/kubernetes.io~empty-dir").join(name);
        node.want(PodSource::File, std::slice::from_ref(&pod));
        node.wait(MINUTE).await;
        let [part, ram, pictures] = mounts(&node).try_into().expect("three mounts of volumes");
        let bound = dir.join("volume-subpaths/disk/c/0");
        assert_eq!(
            (part.container_path.as_str(), part.host_path),
            ("/data/part", bound.display().to_string())
        );
        std::fs::write(bound.join("file"), "kept").expect("write as the container");
        assert!(volume("disk").join("of/web-node1/file").exists());
        assert_eq!(ram.host_path, volume("ram").display().to_string());
        assert!(ram.readonly && ram.recursive_read_only);
        let image = pictures.image.expect("an image");
        assert_eq!(image.sub_path, "summer");
        assert!(pictures.readonly && !image.image.is_empty(), "{image:?}");
        assert_eq!(mounted_below(&node), 2, "tmpfs and subPath");

        node.crash();
        node.start().await;
        node.want(PodSource::File, std::slice::from_ref(&pod));
        let [container] = running(&node, "web").try_into().expect("one running container");
        node.fake.change(|world, now| world.kill_container(&container, 1, now));
        node.wait(5 * MINUTE).await;
        assert_eq!(running(&node, "web").len(), 1, "restarted");
        assert_eq!(mounts(&node).len(), 3);
        assert_eq!(mounted_below(&node), 2, "the same mounts serve the next instance");
        assert!(bound.join("file").exists());

        node.want(PodSource::File, &[]);
        node.wait(MINUTE).await;
        assert!(is_empty(&node));
        assert_eq!(mounted_below(&node), 0);
        assert!(!dir.exists());
    });
}

#[test]
fn failed_mounts_report_upstreams_reasons_and_messages() {
    let mounts = |extra: &Value| {
        let mut mount = json!({"name": "v", "mountPath": "/data"});
        mount.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        json!([mount])
    };
    let disk = json!([{"name": "v", "emptyDir": {}}]);
    let cases = [
        (
            disk.clone(),
            json!({"subPathExpr": "$(NOPE)"}),
            "CreateContainerConfigError",
            "missing value for NOPE",
        ),
        (
            disk,
            json!({"readOnly": true, "recursiveReadOnly": "Enabled"}),
            "CreateContainerConfigError",
            "failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but it is not supported by the runtime",
        ),
        (
            json!([{"name": "v", "image": {"reference": "registry.example/none:1", "pullPolicy": "Never"}}]),
            json!({}),
            "ErrImageNeverPull",
            "Container image \"registry.example/none:1\" is not present with pull policy of Never",
        ),
        (
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "rows"}}]),
            json!({}),
            "ContainerCreating",
            "MountVolume.SetUp failed for volume \"v\" : persistentvolumeclaim \"rows\" not found",
        ),
    ];
    for (volumes, extra, reason, message) in cases {
        simulate(async {
            let mut node = node().await;
            let pod = pod(&volumes, &mounts(&extra));
            node.want(PodSource::File, std::slice::from_ref(&pod));
            node.wait(5 * SECOND).await;
            let status = status(&node, &pod);
            let waiting = status.container_statuses[0].state.waiting.clone().expect("the container waits");
            assert_eq!((waiting.reason.as_str(), waiting.message.as_str()), (reason, message));
        });
    }
}

#[test]
fn orphaned_directories_go_only_after_all_sources_report() {
    simulate(async {
        let mut node = node().await;
        let lives = Manifest::new("lives", "Always", Act::Forever);
        let wanted = files(&[&lives]);
        node.want(PodSource::File, &wanted);
        node.wait(MINUTE).await;
        node.crash();
        let orphan = node.path("pods").join("nobody");
        std::fs::create_dir_all(orphan.join("volumes/kubernetes.io~empty-dir/data")).expect("make an orphan");
        node.start().await;
        node.wait(MINUTE).await;
        assert!(orphan.exists(), "no source has spoken");
        node.want(PodSource::File, &wanted);
        node.wait(6 * MINUTE).await;
        assert!(!orphan.exists());
        let uid = &wanted[0].pod.metadata.uid;
        assert!(node.path("pods").join(uid.as_str()).is_dir(), "the pod that runs keeps its own");
        let world = node.fake.world();
        assert!(world.containers.values().all(|each| each.observed.state == ContainerStateKind::Running));
    });
}
