//! The agent's own runtime, from the resolved configuration.
//!
//! Owns its configuration. What pods are to be is not its business.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cgroup::CgroupConfig;
use crate::clock::Clock;
use crate::config::Resolved;
use crate::runtime::CgroupDriver;
use crate::runtime::embedded::layout::Layout;
use crate::runtime::embedded::network::NetworkConfig;
use crate::runtime::embedded::network::subnet::{Subnet, SubnetError, default_subnets};
use crate::runtime::embedded::runtime::{EmbeddedConfig, EmbeddedRuntime, OpenError};
use crate::sys::node;

/// What `containerRuntimeEndpoint` says for this runtime.
pub(super) const ENDPOINT: &str = "embedded";

/// Opens it, with everything an earlier agent left running.
///
/// # Errors
/// As [`EmbeddedRuntime::open`].
pub(super) async fn open(
    resolved: &Resolved,
    subnets: Vec<Subnet>,
    clock: Clock,
) -> Result<EmbeddedRuntime, OpenError> {
    EmbeddedRuntime::open(config(resolved, subnets), clock).await
}

fn config(resolved: &Resolved, subnets: Vec<Subnet>) -> EmbeddedConfig {
    let agent = &resolved.agent;
    let layout = Layout::new(&resolved.flags.root_dir.join("runtime"), &agent.runtime_state_dir);
    let driver = match resolved.kubelet.cgroup_driver.as_str() {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    };
    EmbeddedConfig {
        network: NetworkConfig {
            bridge: agent.bridge_name.clone(),
            subnets,
            mtu: None,
            state: layout.network(),
            cni_conf_dir: agent.cni_conf_dir.clone(),
            cni_bin_dirs: agent.cni_bin_dirs.clone(),
        },
        layout,
        program: PathBuf::from("/proc/self/exe"),
        cgroup: CgroupConfig { mount: PathBuf::from("/sys/fs/cgroup"), v2: node::cgroup_v2(), driver },
        handlers: handlers(&agent.runtime_handlers),
        registry_hosts_dirs: agent.registry_hosts_dirs.clone(),
    }
}

fn handlers(given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    given.iter().filter(|(name, _)| !name.is_empty()).map(|(name, program)| (name.clone(), program.clone())).collect()
}

/// `podCIDR`, one or, separated by a comma, one of each family; else the usual ones.
///
/// # Errors
/// The first that is none.
pub(super) fn subnets(resolved: &Resolved) -> Result<Vec<Subnet>, SubnetError> {
    let given = resolved.kubelet.pod_cidr.as_str();
    if given.is_empty() {
        let machine_id = std::fs::read("/etc/machine-id").unwrap_or_default();
        return Ok(default_subnets(&machine_id, Path::new("/proc/sys/net/ipv6").exists()));
    }
    given.split(',').map(|subnet| subnet.trim().parse()).collect()
}
