//! The desired state: sources, defaults, validation, the merge of all sources, and the rollout of a new
//! set of manifests.

pub mod api_pod;
pub mod change;
pub mod defaults;
pub mod ephemeral;
pub mod garbage;
pub mod kinds;
pub mod local_objects;
pub mod merge;
pub mod pod_config;
pub mod priority;
pub mod rollout;
pub mod service_account;
pub mod source;
pub mod static_pod;
pub mod stored;
pub mod validation;
