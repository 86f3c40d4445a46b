//! Observes one pod in the runtime: lists, then the details that decisions need, termination messages
//! included.
//!
//! Owns nothing: the result may be outdated at once.

use std::path::{Path, PathBuf};

use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedPod};
use crate::model::types::PodUid;
use crate::platform::{rt, sys};
use crate::pod::termination_message::{LOG_TAIL, MESSAGE_MAX, falls_back_to_log, from_log, joined};
use crate::runtime::{ErrorKind, Runtime, RuntimeError, labels};

/// Ended records per container that are read in full: the current one and the one before, for `lastState`.
const DETAILED_RECORDS: usize = 2;

/// Reads the state of one pod from the runtime. The newest sandbox and the two newest records of each
/// container carry all fields.
///
/// # Errors
/// The first call that failed, except for objects that were removed meanwhile.
pub(super) async fn observe_pod<R: Runtime>(runtime: &R, uid: &PodUid) -> Result<ObservedPod, RuntimeError> {
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

/// Adds the container's termination log, or else the end of its log if its policy says so, to the runtime's
/// message.
async fn read_termination_message(container: &mut ObservedContainer) {
    if container.state != ContainerStateKind::Exited {
        return;
    }
    let path = container.annotations.get(labels::TERMINATION_MESSAGE_PATH);
    let mount = path.and_then(|path| container.mounts.iter().find(|mount| mount.container_path == *path));
    let file = mount.map(|mount| PathBuf::from(&mount.host_path));
    let log = falls_back_to_log(container).then(|| PathBuf::from(&container.log_path));
    if file.is_none() && log.is_none() {
        return;
    }
    let own =
        rt::blocking("read termination message", move || read_message(file.as_deref(), log.as_deref())).await;
    container.message = joined(&container.message, &own);
}

fn read_message(file: Option<&Path>, log: Option<&Path>) -> String {
    let left = file.and_then(|file| read_end(file, MESSAGE_MAX)).map(|end| end.bytes).unwrap_or_default();
    if !left.is_empty() {
        return String::from_utf8_lossy(&left).into_owned();
    }
    let end = log.and_then(|log| read_end(log, LOG_TAIL));
    end.map(|end| from_log(&end.bytes, end.is_cut)).unwrap_or_default()
}

struct FileTail {
    bytes: Vec<u8>,
    /// There is more before them.
    is_cut: bool,
}

/// The file may belong to the container and be anything by now, so never block on it and never read more than
/// `max` bytes.
fn read_end(path: &Path, max: usize) -> Option<FileTail> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let max = u64::try_from(max).ok()?;
    let mut file = sys::open::open_without_following(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() {
        return None;
    }
    let start = metadata.len().saturating_sub(max);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes).ok()?;
    Some(FileTail { bytes, is_cut: start > 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("edge-agent-observe-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn termination_log_precedes_container_log() {
        let (file, log) = (scratch("file"), scratch("log"));
        std::fs::write(&log, "2026-11-20T16:00:00Z stdout F from the log\n").unwrap();
        assert_eq!(read_message(Some(&file), Some(&log)), "from the log\n");
        std::fs::write(&file, "").unwrap();
        assert_eq!(read_message(Some(&file), Some(&log)), "from the log\n");
        assert_eq!(read_message(Some(&file), None), "");
        std::fs::write(&file, format!("{}end", "x".repeat(2 * MESSAGE_MAX))).unwrap();
        let words = read_message(Some(&file), Some(&log));
        assert_eq!((words.len(), words.ends_with("xend")), (MESSAGE_MAX, true));
        for path in [file, log] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn what_is_no_file_is_not_read_and_nothing_waits_for_it() {
        let link = scratch("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(read_end(&link, MESSAGE_MAX).is_none());
        std::fs::remove_file(&link).unwrap();
        let pipe = scratch("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read_end(&pipe, MESSAGE_MAX).is_none());
        std::fs::remove_file(&pipe).unwrap();
        assert!(read_end(Path::new("/dev"), MESSAGE_MAX).is_none());
    }
}
