//! The files of a pod that are neither volumes nor the runtime's: log directories and links, hosts file,
//! termination logs.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::model::api::pod::Pod;
use crate::model::observed::ObservedContainer;
use crate::model::ordered::Ordered as _;
use crate::model::types::{ContainerId, ContainerName};
use crate::platform::rt;
use crate::platform::sys::dir::make_dir;
use crate::platform::sys::open::{open_file_below, open_without_following, open_without_waiting};
use crate::pod::executor::Executor;
use crate::pod::log_rotation::is_rotated;
use crate::pod::volume;
use crate::runtime::Runtime;

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

/// Upstream uses eight random hex digits; the restart count also distinguishes instances and can be
/// recomputed.
pub(super) fn termination_log_name(attempt: u32) -> String {
    format!("{attempt:08x}")
}

/// The restart count at the beginning of a log's name; the names of rotated logs are longer.
fn attempt_of(log_name: &str) -> Option<u32> {
    let (attempt, rest) = log_name.split_once(".log")?;
    (rest.is_empty() || rest.starts_with('.')).then(|| attempt.parse().ok()).flatten()
}

fn counts_in(directory: &Path) -> BTreeMap<ContainerName, u32> {
    let entries = |directory: &Path| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let next = |container: &Path| {
        let attempts = entries(container).filter_map(|log| attempt_of(log.file_name().to_str()?));
        attempts.max().map(|attempt| attempt.saturating_add(1))
    };
    let containers = entries(directory).filter_map(|container| {
        let name = ContainerName::from(container.file_name().to_str()?);
        Some((name, next(&container.path())?))
    });
    containers.into_map()
}

impl<R: Runtime> Executor<R> {
    pub(super) async fn make_log_dir(&self, directory: &str) -> std::io::Result<()> {
        let directory = PathBuf::from(directory);
        rt::blocking("create log directory", move || make_dir(&directory, 0o755)).await
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

    /// Removes the files of a container's record: the link to its log, the log, its termination log. Without
    /// this a crash loop would fill the disk one small file at a time; a log that is kept replaces the
    /// previous one.
    pub(super) async fn remove_container_files(
        &self,
        pod: &Pod,
        container: &ObservedContainer,
        keep_log: bool,
    ) {
        let name = container.name.as_str();
        let logs = log_directory(&self.config.pod_logs_dir, pod).join(name);
        let messages = volume::pod_dir(&self.config.volumes, &pod.metadata.uid).join("containers").join(name);
        let log_of = if keep_log { container.attempt.checked_sub(1) } else { Some(container.attempt) };
        let mut files = vec![
            self.config.container_logs_dir.join(log_link_name(pod, name, &container.id)),
            messages.join(termination_log_name(container.attempt)),
        ];
        let log = log_of.map(log_file_name);
        files.extend(log.iter().map(|log| logs.join(log)));
        rt::blocking("remove container files", move || {
            if let Some(log) = log {
                let entries = std::fs::read_dir(&logs).into_iter().flatten().flatten();
                let rotated =
                    entries.filter(|entry| is_rotated(&log, entry.file_name().to_str().unwrap_or_default()));
                files.extend(rotated.map(|entry| entry.path()));
            }
            for file in files {
                let _ = std::fs::remove_file(file);
            }
        })
        .await;
    }

    /// The restart count of each container's next instance by the pod's log files; containers without a log
    /// file are left out.
    pub(in crate::pod) async fn logged_counts(&self, pod: &Pod) -> BTreeMap<ContainerName, u32> {
        let directory = log_directory(&self.config.pod_logs_dir, pod);
        rt::blocking("read pod logs", move || counts_in(&directory)).await
    }

    /// Removes the pod's log directory, and links into it: normally they are removed with their containers,
    /// but an agent may have died between the two.
    pub(super) async fn remove_logs(&self, pod: &Pod) {
        let directory = log_directory(&self.config.pod_logs_dir, pod);
        let links = self.config.container_logs_dir.clone();
        let removed = rt::blocking("remove pod logs", move || {
            let links = remove_links_into(&directory, &links);
            match std::fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => links,
            }
        })
        .await;
        if let Err(error) = removed {
            log::warn!(pod:% = pod.pod_ref(), err:% = error; "Failed to remove pod logs");
        }
    }
}

/// Removes the links of a directory that lead below `target`, dangling or not.
fn remove_links_into(target: &Path, links: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(links) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let path = entry?.path();
        if std::fs::read_link(&path).is_ok_and(|leads_to| leads_to.starts_with(target)) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Reads a file of a volume that the pod can write.
pub(super) fn read_file_below(root: &Path, path: &Path, most_bytes: u64) -> std::io::Result<Vec<u8>> {
    read_bounded(open_file_below(root, path)?, most_bytes)
}

/// Reads a file of the node. Invalid UTF-8 becomes replacement characters: a comment in an old encoding must
/// not cost a pod its hosts file.
pub(super) fn read_text(path: &Path, most_bytes: u64) -> std::io::Result<String> {
    let content = read_bounded(open_without_waiting(path)?, most_bytes)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn read_bounded(file: std::fs::File, most_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most_bytes {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(content)
}

/// Writes a file with a mode that ignores the umask, only if its content differs, to spare flash on restarts.
/// Containers may have written it, so no more of it is read than the expected length.
pub(super) fn write_file(path: &Path, content: &str, mode: u32) -> std::io::Result<()> {
    if has_content(path, content.as_bytes()) {
        return Ok(());
    }
    std::fs::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

fn has_content(path: &Path, content: &[u8]) -> bool {
    let same_length = |found: &std::fs::Metadata| found.is_file() && found.len() == content.len() as u64;
    let mut old = Vec::new();
    std::fs::symlink_metadata(path).is_ok_and(|found| same_length(&found))
        && open_without_following(path)
            .and_then(|file| file.take(content.len() as u64 + 1).read_to_end(&mut old))
            .is_ok()
        && old == content
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::pod::ObjectMeta;

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
    fn log_symlinks_of_the_pod_are_removed_even_if_dangling() {
        let links = std::env::temp_dir().join(format!("edge-agent-links-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&links);
        std::fs::create_dir_all(&links).unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, links.join(name)).unwrap();
        link("/logs/default_web_1/main/0.log", "ours.log");
        link("/logs/default_web_10/main/0.log", "other.log");
        remove_links_into(Path::new("/logs/default_web_1"), &links).unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&links).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        std::fs::remove_dir_all(&links).unwrap();
        assert_eq!(left, ["other.log"]);
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
        // A container has grown its hosts file to a sparse terabyte, which must not be read into memory.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        write_file(&path, "b", 0o600).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "b");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn next_restart_count_follows_the_newest_log_even_if_rotated() {
        let logs = std::env::temp_dir().join(format!("edge-agent-logs-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&logs);
        assert!(counts_in(&logs).is_empty());
        let files = [
            "web/0.log",
            "web/9.log",
            "web/10.log.20260102-030405.gz",
            "db/0.log",
            "new/1.login",
            "odd/x.log",
        ];
        for file in files {
            let path = logs.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let counts = counts_in(&logs);
        std::fs::remove_dir_all(&logs).unwrap();
        assert_eq!(counts, [("web".into(), 11), ("db".into(), 1)].into());
    }
}
