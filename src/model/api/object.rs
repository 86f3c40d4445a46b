//! `v1.ConfigMap`, `v1.Secret`, `v1.PersistentVolumeClaim`, `v1.Namespace` and `node.k8s.io/v1.RuntimeClass`,
//! as far as a node without an apiserver honours them.
//!
//! Owns shapes only. The types of Secrets have no `Debug` that shows values.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::model::api::pod::{ObjectMeta, ResourceList, StringMap, Toleration};
use crate::model::api::wire;

wire! {
    /// `v1.ConfigMap`.
    pub struct ConfigMap {
        pub api_version: String,
        pub kind: String,
        pub metadata: ObjectMeta,
        pub immutable: Option<bool>,
        pub data: StringMap,
        pub binary_data: BTreeMap<String, Encoded>,
    }

    /// `v1.Secret`.
    pub struct Secret {
        pub api_version: String,
        pub kind: String,
        pub metadata: ObjectMeta,
        #[wire(rename = "type")]
        pub secret_type: String,
        pub immutable: Option<bool>,
        pub data: BTreeMap<String, Encoded>,
        pub string_data: BTreeMap<String, Encoded>,
    }

    /// `v1.Namespace`.
    pub struct Namespace {
        pub api_version: String,
        pub kind: String,
        pub metadata: ObjectMeta,
        pub spec: Option<Value>,
        pub status: Option<Value>,
    }

    /// `v1.PersistentVolumeClaim`.
    pub struct PersistentVolumeClaim {
        pub api_version: String,
        pub kind: String,
        pub metadata: ObjectMeta,
        pub spec: PersistentVolumeClaimSpec,
        pub status: Option<Value>,
    }

    /// `v1.PersistentVolumeClaimSpec`. Fields for provisioners are decoded so that they can be refused by
    /// name.
    pub struct PersistentVolumeClaimSpec {
        pub access_modes: Vec<String>,
        pub resources: VolumeResources,
        pub storage_class_name: Option<String>,
        pub volume_name: String,
        pub volume_mode: Option<String>,
        pub selector: Option<Value>,
        pub data_source: Option<Value>,
        pub data_source_ref: Option<Value>,
        pub volume_attributes_class_name: Option<String>,
    }

    /// `node.k8s.io/v1.RuntimeClass`.
    pub struct RuntimeClass {
        pub api_version: String,
        pub kind: String,
        pub metadata: ObjectMeta,
        pub handler: String,
        pub overhead: Option<Overhead>,
        pub scheduling: Option<Scheduling>,
    }

    /// `node.k8s.io/v1.Overhead`.
    pub struct Overhead {
        pub pod_fixed: ResourceList,
    }

    /// `node.k8s.io/v1.Scheduling`.
    pub struct Scheduling {
        pub node_selector: StringMap,
        pub tolerations: Vec<Toleration>,
    }

    /// `v1.VolumeResourceRequirements`.
    pub struct VolumeResources {
        pub requests: ResourceList,
        pub limits: ResourceList,
    }
}

/// An encoded value: text that must not be printed.
#[derive(Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Encoded(pub String);

impl std::fmt::Debug for Encoded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} characters", self.0.len())
    }
}
