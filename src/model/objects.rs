//! The objects of this node: those that pods refer to (ConfigMaps, Secrets, claims, RuntimeClasses) with their
//! lookup, and all others as they were written.
//!
//! Owns their types, the lookup interface and the objects in memory.

mod any;
mod kinds;
mod local;
mod node_objects;
mod plain;
pub(crate) mod retired;
pub mod service_variables;
pub(crate) mod volumes;
pub mod wire;

pub use any::AnyObject;
pub use kinds::{CustomKind, ObjectKind};

pub use local::{LocalObjects, VersionedObject};
#[cfg(test)]
pub(crate) use node_objects::FixedFacts;
pub(crate) use node_objects::{ClusterFacts, NodeFacts, NodeObjects};
pub use plain::{OwnerReference, PlainBody, PlainObject};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::Value;

use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::pod::{Pod, ResourceList, ServiceAccountTokenProjection, StringMap, Toleration};
use crate::model::api::quantity::Quantity;
use crate::model::types::{PodRef, Timestamp};

/// Who defines an object: this node (its manifests and its own API) or the cluster. Equal names are two objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Realm {
    Node,
    Cluster,
}

/// Why an object is not there: upstream's messages differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    NotFound,
    /// The server has not answered yet.
    NotSynced,
    /// The server, or this node, refuses it; the message for the pod.
    Refused(String),
}

impl Absence {
    /// Upstream's message for a pod; `None`: the object does not exist, as its reader says.
    #[must_use]
    pub(crate) fn message(self, kind: ObjectKind) -> Option<String> {
        match self {
            Self::NotFound => None,
            Self::NotSynced => {
                let kind = kind.as_str().to_ascii_lowercase();
                Some(format!("failed to sync {kind} cache: timed out waiting for the condition"))
            }
            Self::Refused(message) => Some(message),
        }
    }
}

/// A token of a service account, bound to a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRequest {
    pub namespace: String,
    pub account: String,
    pub pod: PodRef,
    /// Empty: the API server's own.
    pub audience: String,
    pub seconds: i64,
}

impl TokenRequest {
    /// The API server's default for a projection that sets no time; admission has always filled it in.
    pub(crate) const SECONDS: i64 = 3600;

    /// The token that a projection asks for.
    #[must_use]
    pub(crate) fn of(pod: &Pod, projection: &ServiceAccountTokenProjection) -> Self {
        Self {
            namespace: pod.metadata.namespace.clone(),
            account: pod.spec.service_account_name.clone(),
            pod: pod.pod_ref(),
            audience: projection.audience.clone(),
            seconds: projection.expiration_seconds.unwrap_or(Self::SECONDS),
        }
    }
}

/// Keys and values of a ConfigMap or Secret.
pub(crate) type ObjectData = BTreeMap<String, Vec<u8>>;

/// The ConfigMap of every namespace with the certificates that clients of the API trust.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";

/// The type of a Secret that sets none.
pub(crate) const OPAQUE: &str = "Opaque";

/// Below the agent's root directory: `<namespace>/<name>` of each claim.
pub(crate) const VOLUMES_DIR: &str = "volumes";
/// Below it: the directories of claims that were made for a pod's ephemeral volumes, by uid. They go with their claims.
pub(crate) const EPHEMERAL_DIR: &str = ".ephemeral";
/// What the uids of such claims begin with: unlike an owner or an annotation it cannot be changed, and decides where
/// the data is.
pub(crate) const EPHEMERAL_UID: &str = "65706865-6d65-8";
/// The directory of their snapshots, below the root directory.
pub(crate) const SNAPSHOTS_DIR: &str = "snapshots";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return write!(formatter, "{} {}", self.kind.as_str(), self.name);
        }
        write!(formatter, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// An object of this node, complete.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalObject {
    pub key: ObjectKey,
    /// `metadata.uid`: random when it was created through the API, else [derived from the
    /// key](wire::derived_uid).
    pub uid: String,
    /// `metadata.labels`.
    pub labels: StringMap,
    /// `metadata.annotations`.
    pub annotations: StringMap,
    /// When a source first defined it.
    pub created: Timestamp,
    /// `metadata.managedFields`; none of an object from a manifest.
    pub managed_fields: ManagedFields,
    /// `metadata.finalizers`; none of an object from a manifest.
    pub finalizers: Vec<String>,
    /// `metadata.ownerReferences`.
    pub owner_references: Vec<OwnerReference>,
    /// `metadata.generation`; zero of a kind that has none.
    pub generation: i64,
    /// When it was deleted, if finalizers keep it.
    pub deleted: Option<Timestamp>,
    pub content: ObjectContent,
}

impl LocalObject {
    /// The claim was made for an ephemeral volume of a pod.
    #[must_use]
    pub(crate) fn is_ephemeral_claim(&self) -> bool {
        self.uid.starts_with(EPHEMERAL_UID)
    }

    /// Where the data of a claim is.
    #[must_use]
    pub(crate) fn claim_directory(&self, volumes_dir: &Path) -> PathBuf {
        if self.is_ephemeral_claim() {
            return volumes_dir.join(EPHEMERAL_DIR).join(&self.uid);
        }
        volumes_dir.join(&self.key.namespace).join(&self.key.name)
    }
}

/// An object and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceObject {
    /// Defaulted and valid.
    pub object: Rc<LocalObject>,
    /// File path, URL or the API, for messages. An object whose newest manifest is broken keeps its last good version.
    pub origin: String,
}

/// What an object holds. Its `Debug` does not show values of Secrets.
#[derive(Clone, PartialEq)]
pub enum ObjectContent {
    ConfigMap {
        data: ConfigMapData,
        immutable: bool,
    },
    Secret {
        /// `type`; [`OPAQUE`] when the manifest names none.
        secret_type: String,
        /// Keys and values: `data`, decoded, and over it `stringData`.
        data: ObjectData,
        immutable: bool,
    },
    Claim(ClaimSpec),
    /// Of a Namespace: nothing.
    Namespace,
    RuntimeClass(RuntimeClassSpec),
    /// Of any other kind.
    Plain(PlainBody),
}

impl ObjectContent {
    /// The members of a plain object beside its metadata; empty of the kinds that have types of their own.
    #[must_use]
    pub fn body(&self) -> Value {
        match self {
            Self::Plain(body) => body.parse(),
            _ => PlainBody::default().parse(),
        }
    }
}

impl fmt::Debug for ObjectContent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConfigMap { data, immutable } => {
                formatter.debug_tuple("ConfigMap").field(data).field(immutable).finish()
            }
            Self::Secret { secret_type, data, immutable } => {
                let keys: Vec<&String> = data.keys().collect();
                formatter.debug_tuple("Secret").field(secret_type).field(&keys).field(immutable).finish()
            }
            Self::Claim(claim) => claim.fmt(formatter),
            Self::Namespace => formatter.write_str("Namespace"),
            Self::RuntimeClass(class) => class.fmt(formatter),
            Self::Plain(body) => body.fmt(formatter),
        }
    }
}

/// A claim for a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimSpec {
    /// `ReadWriteOncePod` is honoured; the others are recorded, since there is only one node.
    pub access_modes: Vec<String>,
    /// `resources.requests.storage`: enforced where the file system has project quotas.
    pub storage: Quantity,
    pub storage_class: Option<String>,
    /// The PersistentVolume that it names; empty when it names none, or its own directory.
    pub volume_name: String,
    /// Of a claim of the cluster: the volume it is bound to, as this node uses it. Always `None` of a claim of this
    /// node: see [`volumes::binding`].
    pub volume: Option<Box<ClaimedVolume>>,
}

/// How pods that name a class are run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeClassSpec {
    pub handler: String,
    /// `overhead.podFixed`: the resources that the pod uses beside its containers. `None` when `overhead` is
    /// not set.
    pub overhead: Option<ResourceList>,
    /// Where such pods may run. `None` when `scheduling` is not set.
    pub scheduling: Option<ClassScheduling>,
}

/// `scheduling` of a RuntimeClass: added to the pods that name it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassScheduling {
    pub node_selector: StringMap,
    /// Taints of nodes.
    pub tolerations: Vec<Toleration>,
}

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
    pub source: ClaimedSource,
    /// `spec.mountOptions`.
    pub mount_options: Vec<String>,
    /// Annotation `pv.beta.kubernetes.io/gid`: a further supplemental group of the pod's processes.
    pub supplemental_group: Option<i64>,
    pub read_only: bool,
    /// `ReadWriteOncePod` is its only access mode: one pod at a time.
    pub single_pod: bool,
    /// Uid of the pod whose ephemeral volume the claim is; empty without one.
    pub owner: String,
}

/// What kind of PersistentVolume it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimedSource {
    /// A directory that the agent manages for a claim of this node: created at first use, never removed by
    /// it.
    Directory {
        path: String,
        /// The size of the claim, which is the limit of the directory where its file system has project quotas.
        bytes: u64,
        /// Of the claim.
        uid: String,
    },
    /// `spec.local`: a directory or a block device of this node; it must exist.
    Local {
        path: String,
        /// Of a block device; empty: what is on it.
        fs_type: String,
    },
    /// `spec.hostPath`: a path of this node; without a type a missing one is created as a directory.
    HostPath { path: String, type_: String },
    /// `spec.nfs`.
    Nfs {
        /// Host name or address.
        server: String,
        path: String,
    },
    /// `spec.iscsi` or `spec.fc`.
    Disk {
        /// Which of [`volumes::DISKS`].
        kind: &'static str,
        source: Value,
    },
    /// `spec.csi`, of a volume with a file system.
    Csi {
        /// As the PersistentVolume has it: `driver`, `volumeHandle`, `fsType`, `volumeAttributes`, secrets.
        source: Value,
        /// Of the PersistentVolume.
        access_modes: Vec<String>,
    },
}

/// Finds the objects pods refer to.
pub trait ObjectLookup {
    fn config_map(&self, namespace: &str, name: &str) -> Option<ConfigMapData>;
    /// `data` of a Secret, decoded.
    fn secret(&self, namespace: &str, name: &str) -> Option<ObjectData>;
    /// Distinguishes a Secret from an earlier one of the same name; `None` if that is not possible.
    fn secret_uid(&self, _namespace: &str, _name: &str) -> Option<String> {
        None
    }
    fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Option<ClaimedVolume>;
    /// The directory of ephemeral claims of this node, and the names in it that claims have. `None`: it is not known
    /// which these are.
    fn ephemeral_claims(&self) -> Option<(PathBuf, BTreeSet<String>)> {
        None
    }
    /// All RuntimeClasses, by name.
    fn runtime_classes(&self) -> Vec<(String, RuntimeClassSpec)> {
        Vec::new()
    }
    fn runtime_class(&self, name: &str) -> Option<RuntimeClassSpec> {
        self.runtime_classes().into_iter().find(|(known, _)| known == name).map(|(_, class)| class)
    }
    /// Changes whenever any object changes; a caller that rendered an object renders it again when the number
    /// differs.
    fn generation(&self) -> u64;
    /// The objects that pods of this realm may refer to.
    fn of(&self, realm: Realm) -> &dyn ObjectLookup;
    /// Why a look-up found nothing.
    fn absence(&self, _key: &ObjectKey) -> Absence {
        Absence::NotFound
    }
    /// The current token of a service account.
    ///
    /// # Errors
    /// There is none to give.
    fn token(&self, _request: &TokenRequest) -> Result<Rc<str>, Absence> {
        Err(Absence::NotFound)
    }
    /// The certificates of a `clusterTrustBundle` projection, as PEM.
    ///
    /// # Errors
    /// It is not there, or not read yet.
    fn trust_bundle(&self, _source: &Value) -> Result<Vec<u8>, Absence> {
        Err(Absence::NotFound)
    }
    /// The variables that Services give to containers of this namespace; `links` is `enableServiceLinks`.
    ///
    /// # Errors
    /// The Services have never been read.
    fn service_variables(&self, namespace: &str, links: bool) -> Result<Vec<(String, String)>, Absence>;
}

/// The rest of a lookup of a test: of one realm, without Services, and of objects that do not change.
#[cfg(test)]
macro_rules! plain_lookup {
    () => {
        fn generation(&self) -> u64 {
            0
        }

        fn of(&self, _realm: $crate::model::objects::Realm) -> &dyn $crate::model::objects::ObjectLookup {
            self
        }

        fn service_variables(
            &self,
            _namespace: &str,
            _links: bool,
        ) -> Result<Vec<(String, String)>, $crate::model::objects::Absence> {
            Ok(Vec::new())
        }
    };
}
#[cfg(test)]
pub(crate) use plain_lookup;
