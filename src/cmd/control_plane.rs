//! `agent init --control-plane`: what `kubeadm init` does, with its names of phases, files and objects (1.36).
//!
//! Expected flow: the configuration is read and completed, then one phase after the other writes its part. Certificates,
//! kubeconfigs and manifests come first, the node's agent starts the static pods, and the remaining phases talk to the API
//! server.

pub(crate) mod addons;
pub(crate) mod api;
pub(crate) mod api_phases;
mod args;
pub(crate) mod certs;
pub mod certs_command;
pub(crate) mod config;
pub mod config_command;
mod context;
pub(crate) mod etcd;
mod expiry;
pub(crate) mod finalize;
pub(crate) mod images;
pub mod join;
pub(crate) mod join_command;
pub(crate) mod kubeconfigs;
mod kubelet_files;
pub(crate) mod manifests;
pub(crate) mod mark;
mod objects;
mod output;
mod patches;
mod phases;
pub(crate) mod preflight;
mod random;
mod requests;
mod select;
mod static_pods;
pub mod tokens;
pub mod upgrade;
pub(crate) mod upload;
pub mod user_command;
pub(crate) mod wait;
mod words;

pub use phases::{check, is_check, run, selects};

use std::path::PathBuf;

/// Directories of the machine, which tests put elsewhere. Those of certificates and of etcd are in the configuration.
#[derive(Clone)]
pub(crate) struct Paths {
    /// `/etc/kubernetes`.
    pub kubernetes: PathBuf,
    /// `/var/lib/kubelet`.
    pub kubelet: PathBuf,
}

impl Paths {
    pub(crate) fn system() -> Self {
        Self { kubernetes: "/etc/kubernetes".into(), kubelet: "/var/lib/kubelet".into() }
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.kubernetes.join("manifests")
    }

    /// A kubeconfig such as `admin.conf`.
    pub(crate) fn conf(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }
}
