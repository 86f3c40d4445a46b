//! The files of a pod that are neither volumes nor the runtime's: log directories and links, hosts file, termination logs.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::api::pod::Pod;
use crate::executor::Executor;
use crate::observed::ObservedContainer;
use crate::rt;
use crate::runtime::Runtime;
use crate::types::ContainerId;
use crate::volume;

/// The longest file name Linux file systems take.
const MAX_FILE_NAME: usize = 255;

/// `<podLogsDir>/<namespace>_<name>_<uid>`.
pub(super) fn log_directory(pod_logs_dir: &Path, pod: &Pod) -> PathBuf {
    let metadata = &pod.metadata;
    pod_logs_dir.join(format!("{}_{}_{}", metadata.namespace, metadata.name, metadata.uid))
}

/// `<pod>_<namespace>_<container>-<id>.log`, the base cut so that the whole name fits.
pub(super) fn log_link_name(pod: &Pod, container: &str, id: &ContainerId) -> String {
    let mut base = format!("{}_{}_{container}-{id}", pod.metadata.name, pod.metadata.namespace);
    let mut most = MAX_FILE_NAME - ".log".len();
    while !base.is_char_boundary(most.min(base.len())) {
        most -= 1;
    }
    base.truncate(most);
    base + ".log"
}

/// `<restart count>.log`.
pub(super) fn log_file_name(attempt: u32) -> String {
    format!("{attempt}.log")
}

/// Upstream's eight hex digits are random; the restart count tells instances apart as well and can be found again.
pub(super) fn termination_log_name(attempt: u32) -> String {
    format!("{attempt:08x}")
}

impl<R: Runtime> Executor<R> {
    pub(super) async fn make_log_dir(&self, directory: &str) -> std::io::Result<()> {
        let directory = PathBuf::from(directory);
        rt::blocking("make log directory", move || make_dir(&directory, 0o755)).await
    }

    /// The link by which log shippers find a container's log. Failure is only logged, as upstream.
    pub(super) async fn make_log_link(
        &self,
        pod: &Pod,
        container: &str,
        id: &ContainerId,
        log_directory: &str,
        log_path: &str,
    ) {
        let target = Path::new(log_directory).join(log_path);
        let directory = self.config.container_logs_dir.clone();
        let link = directory.join(log_link_name(pod, container, id));
        let made = rt::blocking("link container log", move || {
            if !target.exists() {
                return Ok(());
            }
            make_dir(&directory, 0o755)?;
            match std::os::unix::fs::symlink(&target, &link) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                other => other,
            }
        })
        .await;
        if let Err(error) = made {
            log::warn!(pod:% = pod.pod_ref(), containerName = container, err:% = error; "Failed to link container log");
        }
    }

    /// Removes what a container's record leaves on the node: the link to its log, the log, its termination log. Without
    /// this a crash loop would fill the disk one small file at a time.
    pub(super) async fn remove_container_files(&self, pod: &Pod, container: &ObservedContainer) {
        let name = container.name.as_str();
        let logs = log_directory(&self.config.pod_logs_dir, pod).join(name);
        let messages = volume::pod_dir(&self.config.volumes, &pod.metadata.uid).join("containers").join(name);
        let files = [
            self.config.container_logs_dir.join(log_link_name(pod, name, &container.id)),
            logs.join(log_file_name(container.attempt)),
            messages.join(termination_log_name(container.attempt)),
        ];
        rt::blocking("remove container files", move || {
            for file in files {
                let _ = std::fs::remove_file(file);
            }
        })
        .await;
    }

    /// Removes the pod's log directory; links go with their containers.
    pub(super) async fn remove_logs(&self, pod: &Pod) {
        let directory = log_directory(&self.config.pod_logs_dir, pod);
        let removed = rt::blocking("remove pod logs", move || match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
        .await;
        if let Err(error) = removed {
            log::warn!(pod:% = pod.pod_ref(), err:% = error; "Failed to remove pod logs");
        }
    }
}

pub(super) fn make_dir(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Writes a file whose mode the umask must not change, only if its content differs: flash is not worn by restarts.
pub(super) fn write_file(path: &Path, content: &str, mode: u32) -> std::io::Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == content.as_bytes()) {
        return Ok(());
    }
    std::fs::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod::ObjectMeta;

    #[test]
    fn log_links_are_named_as_log_shippers_expect_and_always_fit() {
        let named = |name: &str| Pod {
            metadata: ObjectMeta {
                name: name.to_owned(),
                namespace: "shop".to_owned(),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        let id = ContainerId::from("abc");
        assert_eq!(log_link_name(&named("web-node1"), "nginx", &id), "web-node1_shop_nginx-abc.log");
        let long = log_link_name(&named(&"x".repeat(300)), "nginx", &id);
        assert_eq!(long.len(), 255);
        assert!(Path::new(&long).extension().is_some_and(|extension| extension == "log"));
    }

    #[test]
    fn an_unchanged_file_is_not_written_again() {
        let path = std::env::temp_dir().join(format!("edge-agent-write-{}", std::process::id()));
        write_file(&path, "a", 0o644).unwrap();
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        write_file(&path, "a", 0o644).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
        write_file(&path, "b", 0o600).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b");
        std::fs::remove_file(path).unwrap();
    }
}
