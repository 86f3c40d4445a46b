//! The objects a pod may refer to, as whoever looks them up sees them: ConfigMaps, Secrets, claims.
//!
//! Owns shapes and the seam. Must not know where objects are kept, nor what is made of them.

mod memory;

pub use memory::MemoryObjects;

use std::collections::BTreeMap;

/// Keys and values of a ConfigMap or Secret.
pub type ObjectData = BTreeMap<String, Vec<u8>>;

/// A ConfigMap's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigMapData {
    /// `data`: the part that may become variables.
    pub data: ObjectData,
    /// `binaryData`, decoded: files only.
    pub binary_data: ObjectData,
}

/// The volume a PersistentVolumeClaim is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedVolume {
    /// Name of the PersistentVolume.
    pub name: String,
    /// Where the data is.
    pub source: ClaimedSource,
    /// `spec.mountOptions`.
    pub mount_options: Vec<String>,
    /// Annotation `pv.beta.kubernetes.io/gid`: a further supplemental group of the pod's processes.
    pub supplemental_group: Option<i64>,
    /// The volume can only be read.
    pub read_only: bool,
}

/// What kind of PersistentVolume it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimedSource {
    /// `spec.local`: a directory of this node; it must exist.
    Local {
        /// Absolute.
        path: String,
    },
    /// `spec.hostPath`: a directory of this node; made when it is missing.
    HostPath {
        /// Absolute.
        path: String,
    },
    /// `spec.nfs`.
    Nfs {
        /// Host name or address.
        server: String,
        /// Exported path.
        path: String,
    },
}

/// Finds the objects pods refer to.
pub trait ObjectLookup {
    /// A ConfigMap.
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData>;
    /// `data` of a Secret, decoded.
    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData>;
    /// The volume a claim is bound to.
    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume>;
    /// Changes whenever any object does: whoever rendered something looks again when it differs.
    fn generation(&self) -> u64;
}

/// No objects at all: references to them wait, as for any missing object.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObjects;

impl ObjectLookup for NoObjects {
    fn config_map(&self, _namespace: &str, _name: &str) -> Option<ConfigMapData> {
        None
    }

    fn secret(&self, _namespace: &str, _name: &str) -> Option<ObjectData> {
        None
    }

    fn persistent_volume_claim(&self, _namespace: &str, _name: &str) -> Option<ClaimedVolume> {
        None
    }

    fn generation(&self) -> u64 {
        0
    }
}
