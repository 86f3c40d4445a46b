//! The agent's own runtime, from the resolved configuration.
//!
//! Owns its configuration.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::agent::config::{Origin, Resolved};
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::CgroupDriver;
use crate::platform::cgroup::CgroupConfig;
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::node;
use crate::runtime::embedded::images::watch::{Broken, watch_images};
use crate::runtime::embedded::layout::Layout;
use crate::runtime::embedded::network::NetworkConfig;
use crate::runtime::embedded::network::subnet::{Subnet, SubnetError, default_subnets};
use crate::runtime::embedded::runtime::{EmbeddedConfig, EmbeddedRuntime, OWN_PROGRAM, OpenError};
use crate::serve::server::report::ProblemReport;

/// How long pods wait for the archives that exist at the start.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// Image archives that could not be imported.
pub(super) type BrokenArchives = Rc<RefCell<Vec<ProblemReport>>>;

/// The value of `containerRuntimeEndpoint` for this runtime.
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
    Box::pin(EmbeddedRuntime::open(config(resolved, subnets), clock)).await
}

/// The runtime's paths and settings, as configured.
#[must_use]
pub fn config(resolved: &Resolved, subnets: Vec<Subnet>) -> EmbeddedConfig {
    let agent = &resolved.agent;
    let layout = Layout::new(&resolved.flags.root_dir.join("runtime"), &agent.runtime_state_dir);
    let v2 = node::cgroup_v2();
    let chosen = resolved.provenance.get("cgroupDriver").is_some_and(Origin::is_explicit);
    let chosen = chosen.then_some(resolved.kubelet.cgroup_driver.as_str());
    let driver = driver(chosen, v2, node::systemd_is_running());
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
        program: PathBuf::from(OWN_PROGRAM),
        cgroup: CgroupConfig { mount: PathBuf::from("/sys/fs/cgroup"), v2, driver },
        handlers: handlers(&agent.runtime_handlers),
        registry_hosts_dirs: agent.registry_hosts_dirs.clone(),
        image_policy: agent.image_policy.clone(),
        image_keep_free: resolved.kubelet.eviction_hard.get("imagefs.available").cloned().unwrap_or_default(),
    }
}

/// The configured cgroup driver, otherwise the one that suits the machine: a unified tree has a single
/// manager, and under systemd that is systemd. The kubelet's own default, `cgroupfs`, is for a runtime that
/// reports its driver; here the agent is the runtime.
fn driver(chosen: Option<&str>, v2: bool, systemd: bool) -> CgroupDriver {
    match chosen {
        Some("systemd") => CgroupDriver::Systemd,
        None if v2 && systemd => CgroupDriver::Systemd,
        Some(_) | None => CgroupDriver::Cgroupfs,
    }
}

/// Imports the archives of the images directory and keeps importing new ones; `broken` has those that cannot be
/// imported. Returns once those already present are imported, so that pods with `imagePullPolicy: Never` find
/// their images.
pub(super) async fn import_images(
    resolved: &Resolved,
    runtime: &EmbeddedRuntime,
    broken: BrokenArchives,
) -> JoinHandle<()> {
    let (store, directory) = (runtime.images().clone(), resolved.agent.images_dir.clone());
    let (looked, first_look) = tokio::sync::oneshot::channel();
    let mut looked = Some(looked);
    let scanned = move |now: &Broken| {
        let report = |(path, message): (&Path, &str)| ProblemReport {
            subject: path.display().to_string(),
            message: message.to_owned(),
        };
        *broken.borrow_mut() = now.problems().map(report).collect();
        if let Some(looked) = looked.take() {
            let _ = looked.send(());
        }
    };
    let task = rt::spawn("import images", async move {
        if let Err(error) = watch_images(store, directory, scanned).await {
            log::warn!(err = chain(&error); "Failed to watch images directory, new archives are not imported");
        }
    });
    // An error ends the task: nothing is imported any more. A large archive must not delay the management of
    // running pods; pods that wait for its image retry.
    let _ = tokio::time::timeout(FIRST_LOOK, first_look).await;
    task
}

fn handlers(given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    given
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, program)| (name.clone(), program.clone()))
        .into_map()
}

/// `podCIDR`, one or, separated by a comma, one of each family; otherwise the defaults.
///
/// # Errors
/// The first invalid one.
pub fn subnets(resolved: &Resolved) -> Result<Vec<Subnet>, SubnetError> {
    let given = resolved.kubelet.pod_cidr.as_str();
    if given.is_empty() {
        let machine_id = std::fs::read("/etc/machine-id").unwrap_or_default();
        return Ok(default_subnets(&machine_id, Path::new("/proc/sys/net/ipv6").exists()));
    }
    given.split(',').map(|subnet| subnet.trim().parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_driver_is_the_chosen_one_else_systemds_where_it_rules_the_tree() {
        for (chosen, v2, systemd, expected) in [
            (None, true, true, CgroupDriver::Systemd),
            (None, true, false, CgroupDriver::Cgroupfs),
            (None, false, true, CgroupDriver::Cgroupfs),
            (Some("cgroupfs"), true, true, CgroupDriver::Cgroupfs),
            (Some("systemd"), false, false, CgroupDriver::Systemd),
        ] {
            assert_eq!(driver(chosen, v2, systemd), expected, "{chosen:?} {v2} {systemd}");
        }
    }
}
