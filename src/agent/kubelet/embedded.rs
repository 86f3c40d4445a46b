//! The agent's own runtime: its pod subnets, and the archives that it imports.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::platform::logging::chain;
use crate::platform::rt;
use crate::runtime::embedded::images::watch::{Broken, watch_images};
use crate::runtime::embedded::network::subnet::{Subnet, SubnetError, default_subnets};
use crate::runtime::embedded::runtime::EmbeddedRuntime;
use crate::serve::server::report::ProblemReport;

/// How long pods wait for the archives that exist at the start.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// Image archives that could not be imported, and an image policy without effect.
pub(super) type ImageProblems = Rc<RefCell<Vec<ProblemReport>>>;

/// The value of `containerRuntimeEndpoint` for this runtime.
pub(super) const ENDPOINT: &str = "embedded";

/// Imports the archives of a directory and keeps importing new ones; `broken` has those that cannot be
/// imported. Returns once those already present are imported, so that pods with `imagePullPolicy: Never` find
/// their images.
pub(super) async fn import_images(
    directory: PathBuf,
    runtime: &EmbeddedRuntime,
    broken: ImageProblems,
) -> JoinHandle<()> {
    let store = runtime.images().clone();
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

/// The problem that images are pulled without the policy that is there: an external runtime does not know it.
pub(super) fn policy_without_effect(policy: Option<PathBuf>) -> Option<ProblemReport> {
    let subject = policy?.display().to_string();
    let message = "this image policy has no effect: only the embedded runtime applies it; verify images with the \
                   container runtime's own means, and remove the file";
    log::warn!(file = subject; "Image policy has no effect with an external container runtime");
    Some(ProblemReport { subject, message: message.to_owned() })
}

/// `podCIDR`, one or, separated by a comma, one of each family; otherwise the defaults.
pub(crate) fn subnets(given: &str) -> Result<Vec<Subnet>, SubnetError> {
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
    fn policy_beside_an_external_runtime_is_a_problem() {
        assert_eq!(policy_without_effect(None), None);
        let problem = policy_without_effect(Some("/etc/agent/image-policy.json".into())).unwrap();
        assert_eq!(problem.subject, "/etc/agent/image-policy.json");
        assert!(problem.message.starts_with("this image policy has no effect"), "{}", problem.message);
    }
}
