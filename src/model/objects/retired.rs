//! Kinds of volumes that Kubernetes 1.36 still accepts and no longer sets up itself: drivers that were removed, disabled
//! or replaced by CSI.
//!
//! Owns their list: what the API server requires of each, what the kubelet says, what to use instead.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::Value;

use crate::model::api::pod::Volume;

/// A kind of volume that no node sets up any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    /// The field of the volume.
    pub(crate) field: &'static str,
    /// Fields of the source that must not be empty, as pointers.
    pub(crate) required: &'static [&'static str],
    /// What the API server warns of when a pod with it is created; empty for nothing.
    deprecated: &'static str,
    fate: Fate,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The driver was removed; the text says what to use instead.
    Removed(&'static str),
    /// Kubernetes leaves the kind to this CSI driver.
    Migrated(&'static str),
    /// Its feature gate is locked to false.
    Disabled(&'static str),
}

const SINCE_1_25: &str = "deprecated in v1.22, non-functional in v1.25+";
const SINCE_1_31: &str = "deprecated in v1.28, non-functional in v1.31+";
const ON_THE_NODE: &str = "mount it on the node and use hostPath";

const fn removed(
    field: &'static str,
    required: &'static [&'static str],
    deprecated: &'static str,
    instead: &'static str,
) -> Retired {
    Retired { field, required, deprecated, fate: Fate::Removed(instead) }
}

const fn migrated(field: &'static str, required: &'static [&'static str], driver: &'static str) -> Retired {
    Retired { field, required, deprecated: "", fate: Fate::Migrated(driver) }
}

const RETIRED: [Retired; 17] = [
    Retired {
        field: "gitRepo",
        required: &["/repository"],
        deprecated: "deprecated in v1.11, and disabled by default in v1.33+",
        fate: Fate::Disabled("clone into an emptyDir in an init container"),
    },
    migrated("gcePersistentDisk", &["/pdName"], "pd.csi.storage.gke.io"),
    migrated("awsElasticBlockStore", &["/volumeID"], "ebs.csi.aws.com"),
    migrated("cinder", &["/volumeID"], "cinder.csi.openstack.org"),
    migrated("azureFile", &["/secretName", "/shareName"], "file.csi.azure.com"),
    migrated("azureDisk", &["/diskName", "/diskURI"], "disk.csi.azure.com"),
    migrated("vsphereVolume", &["/volumePath"], "csi.vsphere.vmware.com"),
    migrated("portworxVolume", &["/volumeID"], "pxd.portworx.com"),
    removed("cephfs", &["/monitors"], SINCE_1_31, "use the CSI driver cephfs.csi.ceph.com"),
    removed("rbd", &["/monitors", "/image"], SINCE_1_31, "use the CSI driver rbd.csi.ceph.com"),
    removed(
        "glusterfs",
        &["/endpoints", "/path"],
        "deprecated in v1.25, non-functional in v1.26+",
        ON_THE_NODE,
    ),
    removed("flexVolume", &["/driver"], "", "use a CSI driver, or mount it on the node and use hostPath"),
    removed(
        "scaleIO",
        &["/gateway", "/system", "/volumeName"],
        "deprecated in v1.16, non-functional in v1.22+",
        "use the CSI driver csi-vxflexos.dellemc.com",
    ),
    removed("storageos", &["/volumeName"], SINCE_1_25, ON_THE_NODE),
    removed("flocker", &[], SINCE_1_25, ON_THE_NODE),
    removed("quobyte", &["/registry", "/volume"], SINCE_1_25, "use the CSI driver csi.quobyte.com"),
    removed("photonPersistentDisk", &["/pdID"], "deprecated in v1.11, non-functional in v1.16+", ON_THE_NODE),
];

/// The kind with this field.
pub(crate) fn by_field(field: &str) -> Option<&'static Retired> {
    RETIRED.iter().find(|kind| kind.field == field)
}

/// The retired sources of a volume; a valid one has at most one.
pub(crate) fn sources(volume: &Volume) -> impl Iterator<Item = (&'static Retired, &Value)> {
    let fields = [
        &volume.git_repo,
        &volume.gce_persistent_disk,
        &volume.aws_elastic_block_store,
        &volume.cinder,
        &volume.azure_file,
        &volume.azure_disk,
        &volume.vsphere_volume,
        &volume.portworx_volume,
        &volume.cephfs,
        &volume.rbd,
        &volume.glusterfs,
        &volume.flex_volume,
        &volume.scale_io,
        &volume.storageos,
        &volume.flocker,
        &volume.quobyte,
        &volume.photon_persistent_disk,
    ];
    RETIRED.iter().zip(fields).filter_map(|(kind, source)| Some((kind, &**source.as_ref()?)))
}

/// What the API server warns of when a pod with such volumes is created.
pub(crate) fn warnings(volumes: &[Volume]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        for (kind, _) in sources(volume).filter(|(kind, _)| !kind.deprecated.is_empty()) {
            warnings.push(format!("spec.volumes[{index}].{}: {}", kind.field, kind.deprecated));
        }
    }
    warnings
}

impl Retired {
    /// Why no volume of this kind is set up, in the kubelet's words, and what to use instead. `volume` is its name in
    /// the pod, or that of its PersistentVolume.
    pub(crate) fn problem(&self, volume: &str) -> String {
        match self.fate {
            Fate::Removed(instead) => format!(
                "failed to get Plugin from volumeSpec for volume {volume:?} err=no volume plugin matched; {instead}"
            ),
            Fate::Migrated(driver) => format!(
                "failed to translate in-tree pv to CSI: this node does not translate {}; use a PersistentVolume of the CSI driver {driver}",
                self.field
            ),
            Fate::Disabled(instead) => format!(
                "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`, which Kubernetes 1.36 no longer allows; {instead}"
            ),
        }
    }

    /// The message of a pod with such a volume.
    pub(crate) fn refusal(&self, volume: &str) -> String {
        let problem = self.problem(volume);
        if matches!(self.fate, Fate::Disabled(_)) {
            return format!("MountVolume.SetUp failed for volume {volume:?} : {problem}");
        }
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: {problem}"
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::api::decode::decode;

    #[test]
    fn every_retired_kind_is_found_by_its_own_field() {
        for kind in &RETIRED {
            let volume = json!({"name": "v", kind.field: {"fsType": "ext4"}});
            let volume = decode::<Volume>(volume).unwrap().object;
            let found: Vec<_> =
                sources(&volume).map(|(kind, source)| (kind.field, source["fsType"].clone())).collect();
            assert_eq!(found, [(kind.field, json!("ext4"))]);
            assert!(by_field(kind.field).unwrap().refusal("v").contains('v'));
        }
        assert!(by_field("nfs").is_none());
    }

    #[test]
    fn warnings_name_the_volume_and_since_when() {
        let volume = |source: Value| decode::<Volume>(source).unwrap().object;
        let volumes = [volume(json!({"name": "a", "cinder": {}})), volume(json!({"name": "b", "rbd": {}}))];
        assert_eq!(
            warnings(&volumes),
            ["spec.volumes[1].rbd: deprecated in v1.28, non-functional in v1.31+"]
        );
    }

    #[test]
    fn refusals_are_in_upstreams_words() {
        let refusal = |field: &str| by_field(field).unwrap().refusal("data");
        assert!(refusal("gitRepo").starts_with(
            "MountVolume.SetUp failed for volume \"data\" : git-repo volume plugin has been disabled; "
        ));
        let unable = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], \
                      failed to process volumes=[data]: ";
        assert_eq!(
            refusal("rbd"),
            format!(
                "{unable}failed to get Plugin from volumeSpec for volume \"data\" err=no volume plugin matched; use \
                 the CSI driver rbd.csi.ceph.com"
            )
        );
        assert!(
            refusal("azureDisk").starts_with(&format!("{unable}failed to translate in-tree pv to CSI: "))
        );
    }
}
