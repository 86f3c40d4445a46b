//! The kubelet's flags that are not fields of the configuration file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::model::duration::GoDuration;

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are upstream's; `flags` describes each")]
pub struct KubeletFlags {
    pub config: String,
    pub config_dir: String,
    pub kubeconfig: String,
    pub bootstrap_kubeconfig: String,
    pub hostname_override: String,
    pub node_ip: String,
    pub cert_dir: PathBuf,
    pub cloud_provider: String,
    pub root_dir: PathBuf,
    pub seccomp_default: bool,
    pub node_labels: BTreeMap<String, String>,
    pub lock_file: String,
    pub exit_on_lock_contention: bool,
    pub runtime_cgroups: String,
    pub image_credential_provider_config: String,
    pub image_credential_provider_bin_dir: String,
    pub minimum_container_ttl_duration: GoDuration,
    pub maximum_dead_containers_per_container: i32,
    pub maximum_dead_containers: i32,
    pub experimental_mounter_path: String,
    pub experimental_allocatable_ignore_eviction: bool,
    /// `--version=vX.Y.Z`: the version to report.
    pub reported_version: Option<String>,
}
