//! The choices about a pod's volumes before anything is created: kind and size of an emptyDir, groups of
//! volumes, which mounts below a pod's directory are the agent's.
//!
//! Owns these choices.
//!
//! Pure: what it returns depends on its arguments alone.

use std::path::{Component, Path, PathBuf};

use crate::model::api::pod::{EmptyDirVolumeSource, Pod, Volume};
use crate::model::api::quantity::Quantity;
use crate::model::containers::all_with_ephemeral;
use crate::model::objects::{ClaimedVolume, ObjectLookup};
use crate::model::ordered::Sortable as _;
use crate::model::provenance::{is_of_cluster, realm};
use crate::pod::resources::{NodeCapacity, ResourceFlags, pod_resources};

/// The plugins that mount something on their directory.
const MOUNTING_PLUGINS: [&str; 10] = [
    "kubernetes.io~empty-dir",
    "kubernetes.io~fc",
    "kubernetes.io~host-path",
    "kubernetes.io~iscsi",
    "kubernetes.io~local-volume",
    "kubernetes.io~nfs",
    "kubernetes.io~secret",
    "kubernetes.io~configmap",
    "kubernetes.io~projected",
    "kubernetes.io~downward-api",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pod) enum EmptyDirMedium {
    Disk,
    Memory {
        /// The size; `None` when it is not set and the node's memory is unknown.
        size_bytes: Option<i64>,
    },
    HugePages {
        page_bytes: i64,
    },
}

/// The medium is invalid for this pod. Texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MediumError {
    #[error("unknown storage medium {0:?}")]
    Unknown(String),
    /// `HugePages` without a size, but the pod requests several.
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    ManySizes(String),
    /// No container requests such pages.
    #[error("medium {0}: hugePages storage requested, but there is no resource request for huge pages")]
    NotRequested(String),
}

/// The kind and size of an emptyDir. A tmpfs is as large as the smallest of its limit, the pod's and the
/// node's memory.
pub(in crate::pod) fn empty_dir_medium(
    pod: &Pod,
    source: &EmptyDirVolumeSource,
    node: &NodeCapacity,
) -> Result<EmptyDirMedium, MediumError> {
    match source.medium.as_str() {
        "" => Ok(EmptyDirMedium::Disk),
        "Memory" => {
            let limit = source.size_limit.map_or(0, Quantity::value);
            let of_pod = pod_resources(pod, node, &ResourceFlags::default()).memory_bytes.unwrap_or(0);
            let sizes = [limit, of_pod, node.memory_bytes];
            Ok(EmptyDirMedium::Memory { size_bytes: sizes.into_iter().filter(|size| *size > 0).min() })
        }
        medium => huge_page_bytes(pod, medium).map(|page_bytes| EmptyDirMedium::HugePages { page_bytes }),
    }
}

fn huge_page_bytes(pod: &Pod, medium: &str) -> Result<i64, MediumError> {
    let unknown = || MediumError::Unknown(medium.to_owned());
    let wanted = match medium.strip_prefix("HugePages").ok_or_else(unknown)? {
        "" => None,
        rest => Some(rest.strip_prefix('-').and_then(page_bytes).ok_or_else(unknown)?),
    };
    let spec = &pod.spec;
    // Requests and limits of huge pages are equal, and a missing request means the limit.
    let lists = spec.containers.iter().chain(&spec.init_containers).map(|container| &container.resources);
    let names =
        spec.resources.iter().chain(lists).flat_map(|each| each.requests.keys().chain(each.limits.keys()));
    let mut sizes: Vec<i64> = names.filter_map(|name| page_bytes(name.strip_prefix("hugepages-")?)).collect();
    sizes.order_by(Ord::cmp);
    sizes.dedup();
    match (wanted, sizes.as_slice()) {
        (None, [one]) => Ok(*one),
        (None, [_, _, ..]) => Err(MediumError::ManySizes(medium.to_owned())),
        (Some(size), sizes) if sizes.contains(&size) => Ok(size),
        _ => Err(MediumError::NotRequested(medium.to_owned())),
    }
}

fn page_bytes(size: &str) -> Option<i64> {
    Quantity::parse(size).ok().map(Quantity::value).filter(|bytes| *bytes > 0)
}

/// The claim behind a volume, and whether it is to be read only. The claim of an ephemeral volume is named after pod
/// and volume.
#[must_use]
pub(crate) fn claim_of(pod: &Pod, volume: &Volume) -> Option<(String, bool)> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some((source.claim_name.clone(), source.read_only));
    }
    let is_ephemeral = volume.ephemeral.is_some();
    is_ephemeral.then(|| (format!("{}-{}", pod.metadata.name, volume.name), false))
}

/// Why this pod must not use a claim that others may use, in upstream's words.
pub(in crate::pod) fn check_use(
    pod: &Pod,
    volume: &str,
    claim: &str,
    bound: &ClaimedVolume,
) -> Option<String> {
    let is_ephemeral = pod.spec.volumes.iter().any(|known| known.name == volume && known.ephemeral.is_some());
    if is_ephemeral && bound.owner != pod.metadata.uid.as_str() {
        let pod = &pod.metadata;
        let of_pod = format!("{}/{}", pod.namespace, pod.name);
        return Some(format!("PVC {claim} was not created for pod {of_pod} (pod is not owner)"));
    }
    if !is_of_cluster(pod) {
        return None;
    }
    let mut devices = all_with_ephemeral(pod).flat_map(|(container, _)| &container.volume_devices);
    let is_device = devices.any(|device| device.name == volume);
    is_device.then(|| format!("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices"))
}

/// Groups of the pod's claimed volumes, in the order of the spec.
#[must_use]
pub(in crate::pod) fn claim_groups(pod: &Pod, objects: &dyn ObjectLookup) -> Vec<i64> {
    let (mut groups, objects) = (Vec::new(), objects.of(realm(pod)));
    for (claim, _) in pod.spec.volumes.iter().filter_map(|volume| claim_of(pod, volume)) {
        let found = objects.persistent_volume_claim(&pod.metadata.namespace, &claim);
        let group = found.and_then(|volume| volume.supplemental_group);
        groups.extend(group.filter(|group| !groups.contains(group)));
    }
    groups
}

/// The mount points below a pod's directory that volumes created, newest first: the order to unmount them in.
#[must_use]
pub(crate) fn own_mounts(pod_dir: &Path, mount_points: &[PathBuf]) -> Vec<PathBuf> {
    let is_own = |point: &&PathBuf| point.strip_prefix(pod_dir).is_ok_and(is_volume_mount);
    mount_points.iter().rev().filter(is_own).cloned().collect()
}

fn is_volume_mount(below_pod: &Path) -> bool {
    let parts: Vec<&str> = below_pod
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str().unwrap_or_default(),
            _ => "",
        })
        .collect();
    match parts.as_slice() {
        ["volumes", plugin, _volume] => MOUNTING_PLUGINS.contains(plugin),
        ["volume-subpaths", _volume, _container, index] => index.parse::<usize>().is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use serde_json::{Value, json};

    fn pod(spec: &Value) -> Pod {
        decode::<Pod>(json!({"metadata": {"namespace": "ns"}, "spec": spec})).unwrap().object
    }

    fn medium(medium: &str, limit: Option<&str>, spec: &Value) -> Result<EmptyDirMedium, String> {
        let size_limit = limit.map(|limit| Quantity::parse(limit).unwrap());
        let source = EmptyDirVolumeSource { medium: medium.to_owned(), size_limit };
        let node = NodeCapacity { memory_bytes: 1 << 30, ..NodeCapacity::default() };
        empty_dir_medium(&pod(spec), &source, &node).map_err(|error| error.to_string())
    }

    #[test]
    fn tmpfs_size_is_the_least_of_its_pod_and_node_limits() {
        let limited = json!({"containers": [{"name": "a", "resources": {"limits": {"memory": "64Mi"}}}]});
        let half = json!({"containers": [
            {"name": "a", "resources": {"limits": {"memory": "64Mi"}}}, {"name": "b"}]});
        let by_pod = json!({"containers": [{"name": "a"}], "resources": {"limits": {"memory": "8Mi"}}});
        let none = json!({"containers": [{"name": "a"}]});
        let cases = [
            (None, &none, 1 << 30),
            (Some("0"), &none, 1 << 30),
            (Some("4Gi"), &none, 1 << 30),
            (Some("1Mi"), &none, 1 << 20),
            (Some("1Mi"), &limited, 1 << 20),
            (None, &limited, 64 << 20),
            (Some("128Mi"), &limited, 64 << 20),
            (None, &half, 1 << 30),
            (None, &by_pod, 8 << 20),
        ];
        for (limit, spec, expected) in cases {
            let made = medium("Memory", limit, spec);
            assert_eq!(made, Ok(EmptyDirMedium::Memory { size_bytes: Some(expected) }), "{limit:?} {spec}");
        }
        assert_eq!(medium("", Some("1Mi"), &none), Ok(EmptyDirMedium::Disk));
    }

    #[test]
    fn huge_pages_are_of_the_size_the_pod_requests() {
        let of = |sizes: &[&str]| {
            let limits: Value =
                sizes.iter().map(|size| (format!("hugepages-{size}"), json!("4Mi"))).collect();
            json!({"containers": [{"name": "a", "resources": {"limits": limits}}]})
        };
        let pages = |page_bytes| Ok(EmptyDirMedium::HugePages { page_bytes });
        assert_eq!(medium("HugePages", None, &of(&["2Mi"])), pages(2 << 20));
        assert_eq!(medium("HugePages-1Gi", None, &of(&["2Mi", "1Gi"])), pages(1 << 30));
        let refused = |name: &str, sizes: &[&str]| medium(name, None, &of(sizes)).unwrap_err();
        assert_eq!(
            refused("HugePages", &["2Mi", "1Gi"]),
            "medium: HugePages can't be used if container requests multiple huge page sizes"
        );
        assert_eq!(
            refused("HugePages-1Gi", &["2Mi"]),
            "medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages"
        );
        for unknown in ["Disk", "HugePages2Mi", "HugePages-x"] {
            assert_eq!(refused(unknown, &["2Mi"]), format!("unknown storage medium {unknown:?}"));
        }
    }

    #[test]
    fn only_volume_mount_points_are_own_and_newest_comes_first() {
        let points: Vec<PathBuf> = [
            "/",
            "/pods/u/volumes/kubernetes.io~empty-dir/ram",
            "/pods/u/volumes/kubernetes.io~empty-dir/ram/inside",
            "/pods/u/volumes/kubernetes.io~csi/x",
            "/pods/u/volume-subpaths/ram/web/0",
            "/pods/u/volume-subpaths/ram/web",
            "/pods/u/volume-subpaths/ram/web/x",
            "/pods/u/data",
            "/pods/u2/volumes/kubernetes.io~empty-dir/ram",
            "/pods/u/volumes/kubernetes.io~empty-dir/ram",
        ]
        .map(PathBuf::from)
        .to_vec();
        let ram = PathBuf::from("/pods/u/volumes/kubernetes.io~empty-dir/ram");
        let sub_path = PathBuf::from("/pods/u/volume-subpaths/ram/web/0");
        assert_eq!(own_mounts(Path::new("/pods/u"), &points), [ram.clone(), sub_path, ram]);
    }
}
