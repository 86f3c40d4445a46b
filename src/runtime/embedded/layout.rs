//! Where the embedded runtime keeps its files: what must survive a power cut on disk, everything about
//! processes in memory.
//!
//! Owns names of directories and files.

use std::path::{Path, PathBuf};

use crate::model::types::{ContainerId, SandboxId};

/// The two trees.
///
/// `data` is on disk: images, unpacked layers, and writable layers of containers. `state` is on a tmpfs
/// (`/run`): a record per sandbox and container, gone with the boot, as the processes they describe are. So
/// starting a pod writes nothing to flash, and nothing has to be reconciled after a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    data: PathBuf,
    state: PathBuf,
}

impl Layout {
    /// `data` usually is `<root-dir>/runtime`, `state` `/run/agent/runtime`.
    #[must_use]
    pub(crate) fn new(data: &Path, state: &Path) -> Self {
        Self { data: data.to_owned(), state: state.to_owned() }
    }

    /// Locks held by the process that owns the trees.
    #[must_use]
    pub(in crate::runtime) fn locks(&self) -> [PathBuf; 2] {
        [self.state.join("state.lock"), self.data.join("data.lock")]
    }

    #[must_use]
    pub(crate) fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// Writable layers of all containers, a directory per container id.
    #[must_use]
    pub(crate) fn writable_layers(&self) -> PathBuf {
        self.data.join("containers")
    }

    /// A container's writable layer: `upper` and `work` are in it.
    #[must_use]
    pub(crate) fn writable_layer(&self, container: &ContainerId) -> PathBuf {
        self.writable_layers().join(container.as_str())
    }

    /// All sandboxes, a directory per sandbox id.
    #[must_use]
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    /// The network's record of each sandbox.
    #[must_use]
    pub(crate) fn network(&self) -> PathBuf {
        self.state.join("network")
    }

    /// Compiled seccomp filters, named by the digest of their profile.
    #[must_use]
    pub(crate) fn seccomp(&self) -> PathBuf {
        self.state.join("seccomp")
    }

    #[must_use]
    pub(crate) fn sandbox(&self, sandbox: &SandboxId) -> SandboxDir {
        SandboxDir(self.sandboxes().join(sandbox.as_str()))
    }
}

/// The directory of one sandbox: the monitor knows this directory and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxDir(pub PathBuf);

impl SandboxDir {
    #[must_use]
    pub(crate) fn record(&self) -> PathBuf {
        self.0.join("sandbox.json")
    }

    /// What the monitor is to make ([`super::spec::PodSpec`]).
    #[must_use]
    pub fn pod_spec(&self) -> PathBuf {
        self.0.join("pod.json")
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.join("monitor.sock")
    }

    /// The monitor's process id and start time, written by it.
    #[must_use]
    pub fn monitor_pid(&self) -> PathBuf {
        self.0.join("monitor.pid")
    }

    /// `/dev/shm` of the pod, a mount point.
    #[must_use]
    pub(crate) fn shm(&self) -> PathBuf {
        self.0.join("shm")
    }

    #[must_use]
    pub(crate) fn resolv_conf(&self) -> PathBuf {
        self.0.join("resolv.conf")
    }

    #[must_use]
    pub(crate) fn hostname(&self) -> PathBuf {
        self.0.join("hostname")
    }

    /// The pod's `/etc/hosts`, for containers that bring none.
    #[must_use]
    pub(crate) fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }

    /// All containers, a directory per container id.
    #[must_use]
    pub fn containers(&self) -> PathBuf {
        self.0.join("containers")
    }

    #[must_use]
    pub fn container(&self, container: &str) -> ContainerDir {
        ContainerDir(self.containers().join(container))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDir(pub PathBuf);

impl ContainerDir {
    #[must_use]
    pub(in crate::runtime) fn record(&self) -> PathBuf {
        self.0.join("container.json")
    }

    /// What to start ([`super::spec::Bundle`]).
    #[must_use]
    pub(in crate::runtime) fn bundle(&self) -> PathBuf {
        self.0.join("bundle.json")
    }

    /// The facts of the bundle that the monitor itself needs ([`super::facts::ContainerFacts`]), so that it
    /// need not read the bundle.
    #[must_use]
    pub(in crate::runtime) fn facts(&self) -> PathBuf {
        self.0.join("facts")
    }

    /// Mount point of the root file system inside the container's own mount namespace; empty seen from
    /// outside.
    #[must_use]
    pub fn rootfs(&self) -> PathBuf {
        self.0.join("rootfs")
    }

    /// How it started ([`super::protocol::Started`]), written by the monitor.
    #[must_use]
    pub fn started(&self) -> PathBuf {
        self.0.join("started")
    }

    /// How it ended ([`super::protocol::Exited`]), written by the monitor.
    #[must_use]
    pub fn exited(&self) -> PathBuf {
        self.0.join("exited")
    }
}
