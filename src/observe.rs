//! Looking at one pod in the runtime: lists, then the details that decisions need, termination messages included.
//!
//! Owns nothing: what it returns is true for a moment. Must not know what is desired.

use std::path::Path;

use crate::observed::{ContainerStateKind, ObservedContainer, ObservedPod};
use crate::rt;
use crate::runtime::{ErrorKind, Runtime, RuntimeError, labels};
use crate::sys;
use crate::types::PodUid;

/// A longer termination message is cut (upstream's limit per container).
const MAX_TERMINATION_MESSAGE: u64 = 4096;
/// Ended records per container that are read in full: the current one and the one before, for `lastState`.
const DETAILED_RECORDS: usize = 2;

/// A fresh look at one pod. The newest sandbox and the two newest records of each container carry all fields.
///
/// # Errors
/// The first call that failed for another reason than that the object went away meanwhile.
pub async fn observe_pod<R: Runtime>(runtime: &R, uid: &PodUid) -> Result<ObservedPod, RuntimeError> {
    let mut pod = ObservedPod {
        sandboxes: runtime.list_sandboxes(Some(uid)).await?,
        containers: runtime.list_containers(Some(uid)).await?,
    };
    pod.sort();
    for sandbox in pod.sandboxes.iter_mut().take(1) {
        if let Some(status) = unless_gone(runtime.sandbox_status(&sandbox.id).await)? {
            *sandbox = status;
        }
    }
    let mut seen = std::collections::BTreeMap::new();
    for container in &mut pod.containers {
        let count = seen.entry(container.name.clone()).or_insert(0_usize);
        *count += 1;
        if *count > DETAILED_RECORDS {
            continue;
        }
        if let Some(status) = unless_gone(runtime.container_status(&container.id).await)? {
            *container = status;
            read_termination_message(container).await;
        }
    }
    Ok(pod)
}

fn unless_gone<T>(answer: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match answer {
        Ok(status) => Ok(Some(status)),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the container wrote to its termination log, if anything, becomes its message.
async fn read_termination_message(container: &mut ObservedContainer) {
    if container.state != ContainerStateKind::Exited {
        return;
    }
    let Some(path) = container.annotations.get(labels::TERMINATION_MESSAGE_PATH) else { return };
    let Some(mount) = container.mounts.iter().find(|mount| mount.container_path == *path) else { return };
    let host_path = mount.host_path.clone();
    let text = rt::blocking("read termination message", move || read_bounded(Path::new(&host_path))).await;
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        container.message = text;
    }
}

/// The file belongs to the container: it may be anything by now, so never block on it and never read more than the limit.
fn read_bounded(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let file = sys::open::open_without_following(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_TERMINATION_MESSAGE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
