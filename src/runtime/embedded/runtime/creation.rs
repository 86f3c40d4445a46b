//! From a container's configuration to everything its start needs: image, user, writable layer, cgroup, filter, bundle.
//!
//! Owns the order of effects of making a container; what the bundle says is `oci`'s. Everything here blocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::super::images::{Image, ImageStore};
use super::super::layout::{ContainerDir, Layout, SandboxDir};
use super::super::oci::{self, users};
use super::super::seccomp;
use super::api::ContainerStats;
use super::record::{ContainerRecord, RecordedUser, write_json, write_whole};
use super::{Failure, Shared, cgroups, fault, files};
use crate::cgroup::{CgroupConfig, Skipped, container as cgroup};
use crate::runtime::{ContainerConfig, ErrorKind, SandboxConfig, SeccompChoice};
use crate::types::{ContainerId, SandboxId, Timestamp};

/// Most of `/etc/passwd` and `/etc/group` that is read from an image.
const MAX_ACCOUNTS: usize = 1 << 20;

/// What this node can do, measured once.
pub(super) type Facts = oci::NodeFacts;

/// Everything that making one container needs, handed to the pool of threads that may block.
pub(super) struct Creation {
    layout: Layout,
    images: ImageStore,
    facts: Arc<Facts>,
    cgroup: CgroupConfig,
    external_runtime: Vec<String>,
    sandbox: SandboxId,
    sandbox_config: SandboxConfig,
    id: ContainerId,
    config: ContainerConfig,
    created_at: Timestamp,
    monitor: i32,
    target: Option<i32>,
}
