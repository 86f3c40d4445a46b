//! Rotation of container logs (upstream: the container log manager), and their file system in memory if
//! configured.
//!
//! Expected flow: every `containerLogMonitorInterval` the links of the container log directory are scanned. A
//! log above its size limit is renamed and the runtime reopens it. Rotated files are removed by
//! `containerLogMaxFiles`; on the in-memory file system also when it is nearly full, the oldest file of all
//! first.
//!
//! Owns the rotated files. The runtime is not called until a log exceeds its limit.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::model::observed::ContainerStateKind;
use crate::model::ordered::Sortable as _;
use crate::model::types::{ContainerId, PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::platform::sys::{layer, mount};
use crate::pod::log_rotation::{
    LogLimits, Rotated, excess, is_long, is_rotated, is_tight, room, rotated_name,
};
use crate::runtime::Runtime;

#[derive(Clone, Debug)]
pub(crate) struct LogConfig {
    /// `/var/log/containers`: a link for each container.
    pub links_dir: PathBuf,
    pub pod_logs_dir: PathBuf,
    pub limits: LogLimits,
    /// `containerLogMaxWorkers`: logs that are rotated at the same time.
    pub workers: usize,
    pub interval: Duration,
    /// They are on a file system of their own, in memory.
    pub in_memory: bool,
}

/// The log of a running or ended container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogFile {
    path: PathBuf,
    /// `None`: the file was renamed, but the runtime has not reopened it. An earlier agent died between the
    /// two steps.
    bytes: Option<u64>,
}

/// Mounts a tmpfs of at most `bytes` on the log directory. If an earlier start has mounted it, only its size
/// is set. A failure must not keep pods from starting.
pub(crate) fn keep_in_memory(pod_logs_dir: &Path, bytes: u64) {
    if let Err(error) = mount::ensure_private_tmpfs(pod_logs_dir, bytes) {
        log::error!(
            path = pod_logs_dir.display().to_string(), err:% = error;
            "Failed to keep container logs in memory, writing them to disk"
        );
    }
}

/// Rotates logs until it is dropped.
pub(crate) async fn rotate_logs<R: Runtime>(runtime: Rc<R>, config: Live<LogConfig>, clock: Clock) {
    let mut told = BTreeSet::new();
    let mut interval = config.get().interval;
    let mut scans = rt::Periodic::every(interval);
    loop {
        scans.due().await;
        let config = config.get();
        if config.interval != interval {
            interval = config.interval;
            scans = rt::Periodic::every(interval);
        }
        let looked = LogConfig::clone(&config);
        let logs = rt::blocking("read container logs", move || scan_logs(&looked)).await;
        for (log, rotated) in rotate_all(&runtime, &config, logs, &clock).await {
            match rotated {
                Ok(()) => drop(told.remove(&log.path)),
                Err(error) => {
                    // Logged once: a log that cannot be rotated now usually cannot be ten seconds later
                    // either.
                    if told.insert(log.path.clone()) {
                        log::warn!(path = log.path.display().to_string(), err = error; "Failed to rotate \
                             container log");
                    }
                }
            }
        }
        told.retain(|path| path.exists());
    }
}

/// Rotates logs, as many at once as there are workers.
async fn rotate_all<R: Runtime>(
    runtime: &Rc<R>,
    config: &Rc<LogConfig>,
    logs: Vec<LogFile>,
    clock: &Clock,
) -> Vec<(LogFile, Result<(), String>)> {
    let workers = config.workers.min(logs.len());
    let (waiting, done) = (Rc::new(RefCell::new(logs)), Rc::new(RefCell::new(Vec::new())));
    let work = || {
        let (runtime, config, clock) = (Rc::clone(runtime), Rc::clone(config), clock.clone());
        let (waiting, done) = (Rc::clone(&waiting), Rc::clone(&done));
        rt::spawn("rotate container log", async move {
            loop {
                let Some(log) = waiting.borrow_mut().pop() else { return };
                let rotated = rotate(&*runtime, &config, &log, clock.now()).await;
                done.borrow_mut().push((log, rotated));
            }
        })
    };
    let workers: Vec<_> = (0..workers).map(|_| work()).collect();
    for worker in workers {
        let _ = worker.await;
    }
    done.take()
}

/// The logs above their limit. Also removes rotated files if the file system is nearly full.
fn scan_logs(config: &LogConfig) -> Vec<LogFile> {
    let mut logs = logs(&config.links_dir);
    let mut tight = false;
    if config.in_memory
        && let Ok((free, total)) = disk_space(&config.pod_logs_dir)
        && is_tight(free, total)
    {
        let rotated = logs.iter().flat_map(|log| rotated_of(&log.path)).collect();
        for path in room(rotated, free, total) {
            let _ = fs::remove_file(path);
        }
        tight = disk_space(&config.pod_logs_dir).is_ok_and(|(free, total)| is_tight(free, total));
    }
    if tight {
        // No rotated file is left: the longest log is rotated now, and removed by the next scan.
        logs.order_by_key(|log| std::cmp::Reverse(log.bytes));
        logs.truncate(1);
        return logs;
    }
    logs.retain(|log| log.bytes.is_none_or(|bytes| is_long(bytes, config.limits)));
    logs
}

fn logs(links_dir: &Path) -> Vec<LogFile> {
    let Ok(entries) = fs::read_dir(links_dir) else { return Vec::new() };
    let log = |entry: DirEntry| {
        let path = fs::read_link(entry.path()).ok()?;
        let bytes = match fs::symlink_metadata(&path) {
            Ok(metadata) => Some(metadata.is_file().then_some(metadata.len())?),
            Err(_) => None,
        };
        (bytes.is_some() || !rotated_of(&path).is_empty()).then_some(LogFile { path, bytes })
    };
    entries.flatten().filter_map(log).collect()
}

fn rotated_of(log: &Path) -> Vec<Rotated<PathBuf>> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let rotated = |entry: DirEntry| {
        let is_ours = is_rotated(name, entry.file_name().to_str()?);
        let metadata = entry.metadata().ok().filter(|metadata| is_ours && metadata.is_file())?;
        let nanos = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        let written_at = Timestamp::from_nanos(nanos);
        Some(Rotated { key: entry.path(), written_at, bytes: metadata.len() })
    };
    entries.flatten().filter_map(rotated).collect()
}

fn disk_space(directory: &Path) -> io::Result<(u64, u64)> {
    let free = layer::free_space(directory)?;
    Ok((free.bytes, free.total_bytes))
}

/// Rotates one log. Skips that of an ended container: it does not grow and cannot be reopened. One that was
/// renamed before is only reopened.
async fn rotate<R: Runtime>(
    runtime: &R,
    config: &LogConfig,
    log: &LogFile,
    now: Timestamp,
) -> Result<(), String> {
    let Some(id) = container_of(runtime, &config.pod_logs_dir, &log.path).await? else { return Ok(()) };
    if log.bytes.is_none() {
        return runtime.reopen_container_log(&id).await.map_err(|error| error.to_string());
    }
    let (path, limits) = (log.path.clone(), config.limits);
    let moved = rt::blocking("rotate container log", move || move_aside(&path, limits, now)).await;
    let moved = moved.map_err(|error| error.to_string())?;
    let Err(error) = runtime.reopen_container_log(&id).await else { return Ok(()) };
    let path = log.path.clone();
    // As upstream: the runtime still writes to the old file, which must have its old name.
    rt::blocking("undo rotation", move || {
        if !path.exists() {
            let _ = fs::rename(moved, path);
        }
    })
    .await;
    Err(error.to_string())
}

fn move_aside(log: &Path, limits: LogLimits, now: Timestamp) -> io::Result<PathBuf> {
    for old in excess(rotated_of(log), limits) {
        fs::remove_file(old)?;
    }
    let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let target = log.with_file_name(rotated_name(&name, now, |name| log.with_file_name(name).exists()));
    fs::rename(log, &target)?;
    Ok(target)
}

/// The running container whose log this is: `<namespace>_<pod>_<uid>/<container>/<attempt>.log`.
async fn container_of<R: Runtime>(
    runtime: &R,
    pod_logs_dir: &Path,
    log: &Path,
) -> Result<Option<ContainerId>, String> {
    let Some((uid, name, attempt)) = parts(pod_logs_dir, log) else { return Ok(None) };
    let containers = runtime.list_containers(Some(&uid)).await.map_err(|error| error.to_string())?;
    let found = containers.into_iter().find(|container| {
        container.state == ContainerStateKind::Running
            && container.name.as_str() == name
            && container.attempt == attempt
    });
    Ok(found.map(|container| container.id))
}

fn parts(pod_logs_dir: &Path, log: &Path) -> Option<(PodUid, String, u32)> {
    let mut names = log.strip_prefix(pod_logs_dir).ok()?.iter().map(|name| name.to_str());
    let (pod, container, file) = (names.next()??, names.next()??, names.next()??);
    if names.next().is_some() || pod == ".." || container == ".." {
        return None;
    }
    let uid = pod.rsplit_once('_')?.1;
    let attempt = file.strip_suffix(".log")?.parse().ok()?;
    Some((PodUid::from(uid), container.to_owned(), attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logs_place_says_whose_it_is() {
        let place = |log: &str| parts(Path::new("/var/log/pods"), Path::new(log));
        let expected = Some((PodUid::from("abc"), "main".to_owned(), 3));
        assert_eq!(place("/var/log/pods/default_web-edge_abc/main/3.log"), expected);
        for other in [
            "/else/default_web-edge_abc/main/3.log",
            "/var/log/pods/abc/main/3.log",
            "/var/log/pods/a_b_c/main/x.log",
            "/var/log/pods/a_b_c/main/0.log/../../../../../etc/passwd",
            "/var/log/pods/a_b_c/../3.log",
        ] {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn a_long_log_is_moved_aside_and_the_oldest_goes() {
        let root = std::env::temp_dir().join(format!("edge-agent-logs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (links_dir, pod_logs_dir) = (root.join("containers"), root.join("pods"));
        let directory = pod_logs_dir.join("default_web_u/main");
        fs::create_dir_all(&directory).unwrap();
        fs::create_dir_all(&links_dir).unwrap();
        let log = directory.join("0.log");
        std::os::unix::fs::symlink(&log, links_dir.join("web.log")).unwrap();
        std::os::unix::fs::symlink(root.join("nowhere"), links_dir.join("dangling.log")).unwrap();
        let limits = LogLimits { max_bytes: 10, max_files: 2 };
        let config = LogConfig {
            links_dir,
            pod_logs_dir,
            limits,
            workers: 2,
            interval: Duration::ZERO,
            in_memory: false,
        };
        fs::write(&log, "123456789").unwrap();
        assert_eq!(scan_logs(&config), []);
        for (second, text) in ["0123456789", "abcdefghij"].iter().enumerate() {
            fs::write(&log, text).unwrap();
            assert_eq!(scan_logs(&config), [LogFile { path: log.clone(), bytes: Some(10) }]);
            let now = Timestamp::from_secs(1_700_000_000 + i64::try_from(second).unwrap());
            let moved = move_aside(&log, limits, now).unwrap();
            assert_eq!(fs::read_to_string(moved).unwrap(), *text);
            assert_eq!(
                scan_logs(&config),
                [LogFile { path: log.clone(), bytes: None }],
                "nobody has opened it again"
            );
        }
        fs::write(&log, "").unwrap();
        assert_eq!(scan_logs(&config), []);
        let left = rotated_of(&log);
        assert_eq!(left.len(), 1);
        assert!(left[0].key.ends_with("0.log.20231114-221321"), "{left:?}");
        fs::remove_dir_all(&root).unwrap();
    }
}
