//! From a bundle to a running program: what the monitor does for its pod at its start, and what its children
//! do between fork and exec.
//!
//! | module | what |
//! |---|---|
//! | `pod` | the pod's namespaces, its sysctls, the init process of a shared PID namespace |
//! | `container`, `exec` | the two steps of a container's first process, and of an exec |
//! | `rootfs`, `options`, `devices`, `cgroups` | what is mounted, and how |
//! | `process`, `capabilities`, `lookup` | dropping privileges, and finding the program |
//! | `external` | containers of another OCI runtime |
//! | `report`, `error` | messages to the monitor |

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use super::layout::ContainerDir;
use super::spec::PodSpec;
use crate::platform::sys::clone;

mod capabilities;
mod cgroups;
mod container;
mod devices;
mod error;
mod exec;
mod external;
mod input;
mod lookup;
mod options;
mod pod;
mod process;
pub mod report;
mod rootfs;
#[cfg(test)]
mod tests;

pub(crate) use error::InitError;
pub(crate) use report::Report;

/// What a pod's children need from the pod.
#[derive(Debug, Default)]
pub(crate) struct PodHandles {
    /// Process id of the pod's init process, when it has a shared PID namespace.
    pub init: Option<i32>,
    pub pids: Option<OwnedFd>,
    /// A mount namespace in which there is that namespace's procfs, and nothing else.
    pub procfs: Option<OwnedFd>,
    /// The pod's user namespace.
    pub users: Option<OwnedFd>,
}

/// Puts this process, the monitor, into its cgroups and the pod's namespaces, and makes what belongs to the pod as a whole.
/// The monitor keeps the node's users, mounts and process ids.
///
/// # Errors
/// What could not be made. The monitor ends then, and with it everything that was made.
pub(in crate::runtime) fn make_pod(spec: &PodSpec) -> Result<PodHandles, InitError> {
    cgroups::enter(&spec.cgroups)?;
    pod::make(spec)
}

/// Makes the pod's shared PID namespace, unless there is one. Returns the process id of its init process.
pub(in crate::runtime) fn share_pids(pod: &mut PodHandles) -> Result<i32, InitError> {
    if let Some(init) = pod.init {
        return Ok(init);
    }
    let (init, made) = pod::start_init()?;
    *pod = PodHandles { users: pod.users.take(), ..made };
    Ok(init)
}

/// In a forked child: becomes the container in `dir`. Descriptors 0, 1 and 2 are its streams; for a terminal
/// they are `/dev/null`, and the terminal's master is sent.
pub(crate) fn container(dir: &ContainerDir, pod: &PodHandles, report: OwnedFd) -> ! {
    // A copy that cannot be made causes an error where it is needed.
    let [users, pids, procfs] = pod.copies();
    let kept = [Some(report), users, pids, procfs];
    clone::continue_as(kept, (pod.init, dir.0.clone()), |[report, users, pids, procfs], (init, dir)| {
        let Some(report) = report else { return 1 };
        let pod = PodHandles { init, pids, procfs, users };
        finish(container::start(&ContainerDir(dir), pod, &report), &report)
    })
}

/// In a forked child: becomes another program in the container whose first process is `target`. `spec` has an
/// [`super::spec::ExecSpec`] in JSON.
pub(crate) fn exec(spec: File, target: i32, pod: &PodHandles, report: OwnedFd) -> ! {
    let [users, ..] = pod.copies();
    let kept = [Some(report), Some(spec.into()), users];
    clone::continue_as(kept, target, |[report, spec, users], target| {
        let (Some(report), Some(spec)) = (report, spec) else { return 1 };
        finish(exec::start(spec.into(), target, users, &report), &report)
    })
}

impl PodHandles {
    /// Copies of users, process ids and procfs.
    fn copies(&self) -> [Option<OwnedFd>; 3] {
        [&self.users, &self.pids, &self.procfs].map(|fd| fd.as_ref().and_then(|fd| fd.try_clone().ok()))
    }
}

/// In a forked child, when the container of an external runtime has ended: runs that runtime's `delete`.
pub(in crate::runtime) fn delete_external(dir: &ContainerDir) -> ! {
    clone::exit(i32::from(external::delete(dir).is_err()))
}

/// Both steps end here unless they became another program.
fn finish(outcome: Result<(), InitError>, report: &OwnedFd) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            Report::Failed(error.chain()).send(report.as_fd());
            1
        }
    }
}
