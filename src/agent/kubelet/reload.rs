//! A changed configuration while pods run: on SIGHUP, and when the configuration file or a drop-in changes.
//!
//! Owns the configuration in force after the start. A file that cannot be used changes nothing; it and the settings that
//! need a restart are problems of `agent status`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::agent::config::Resolved;
use crate::agent::kubelet::report::LoopView;
use crate::platform::logging::chain;
use crate::platform::sys::inotify::{InotifyError, InotifyEvent, Interest, WatchId, Watcher};
use crate::serve::server::report::ProblemReport;

/// An editor writes a file in several steps.
const SETTLED: Duration = Duration::from_millis(200);

/// What takes new values over, and what shows them.
pub(super) struct ReloadParts {
    /// The configuration at the start, and its warnings.
    pub(super) start: Value,
    pub(super) told: Vec<String>,
    /// Reads the command line's files as the start did.
    pub(super) read: Box<dyn Fn() -> Result<Resolved, String>>,
    /// Passes the new configuration to the parts of the agent.
    pub(super) apply: Box<dyn Fn(&Resolved)>,
    pub(super) view: Rc<LoopView>,
    /// `--config`.
    pub(super) file: Option<PathBuf>,
    /// `--config-dir`.
    pub(super) drop_ins: Option<PathBuf>,
}

/// Follows the configuration; runs as long as the process. SIGHUP ends the process no more once this has returned.
///
/// # Errors
/// The signal cannot be handled.
pub(super) fn follow(parts: ReloadParts) -> io::Result<impl Future<Output = ()>> {
    let hangup = signal(SignalKind::hangup())?;
    Ok(run(parts, hangup))
}

async fn run(parts: ReloadParts, mut hangup: Signal) {
    let watched = || {
        watch(parts.file.as_deref(), parts.drop_ins.as_deref()).unwrap_or_else(|error| {
            log::warn!(err = chain(&error); "Failed to watch the configuration, send SIGHUP after a change");
            None
        })
    };
    let mut files = watched();
    let mut seen = LastRead { last: parts.start.clone(), refused: None, told: parts.told.clone() };
    loop {
        let is_asked = tokio::select! {
            biased;
            // Cancel safe: a signal that arrives meanwhile is not lost.
            _ = hangup.recv() => true,
            () = changed(files.as_ref()) => false,
        };
        if is_asked {
            log::info!("Received SIGHUP, reloading the configuration");
        }
        // A directory may be another one now; what changes from here on is read next time.
        files = watched();
        reload(&parts, &mut seen, is_asked);
    }
}

/// What was found last.
struct LastRead {
    last: Value,
    refused: Option<String>,
    /// Warnings in the log.
    told: Vec<String>,
}

/// The directories of the configuration file and of the drop-ins.
struct WatchedFiles {
    watcher: Watcher,
    /// The file and the directory of the drop-ins: the directory that each is in, and its name there.
    names: Vec<(WatchId, OsString)>,
    /// `None` while there is no such directory.
    drop_ins: Option<WatchId>,
}

impl WatchedFiles {
    fn is_of_configuration(&self, event: &InotifyEvent) -> bool {
        match event {
            InotifyEvent::Entry { watch, .. } if self.drop_ins == Some(*watch) => true,
            // A mounted ConfigMap changes its files by renaming a link whose name begins with two dots.
            InotifyEvent::Entry { watch, name, .. } => self.names.iter().any(|(directory, own)| {
                directory == watch && (name == own || name.as_encoded_bytes().starts_with(b".."))
            }),
            InotifyEvent::Directory { .. } => false,
            InotifyEvent::Overflow => true,
        }
    }
}

/// `None` without files.
fn watch(file: Option<&Path>, drop_ins: Option<&Path>) -> Result<Option<WatchedFiles>, InotifyError> {
    if file.is_none() && drop_ins.is_none() {
        return Ok(None);
    }
    let watcher = Watcher::new()?;
    let mut files = WatchedFiles { watcher, names: Vec::new(), drop_ins: None };
    for path in file.into_iter().chain(drop_ins) {
        let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let name = path.file_name().map(OsStr::to_owned).unwrap_or_default();
        files.names.push((files.watcher.watch(directory, Interest::Closing)?, name));
    }
    let existing = drop_ins.filter(|directory| directory.is_dir());
    let number = existing.map(|directory| files.watcher.watch(directory, Interest::Closing));
    files.drop_ins = number.transpose()?;
    Ok(Some(files))
}

/// Returns when something has happened to the files, and nothing more for a moment. Cancel safe: what it forgets is read
/// by the reload for which it was dropped.
async fn changed(files: Option<&WatchedFiles>) {
    let Some(files) = files else { return std::future::pending().await };
    let mut events = Vec::new();
    let mut due: Option<Instant> = None;
    loop {
        let read = files.watcher.read(&mut events);
        let end = match due {
            Some(due) => tokio::time::timeout_at(due, read).await,
            None => Ok(read.await),
        };
        match end {
            // Other files in the directory put nothing off.
            Ok(Ok(())) if events.drain(..).any(|event| files.is_of_configuration(&event)) => {
                due = Some(Instant::now() + SETTLED);
            }
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                log::warn!(err = chain(&error); "Failed to watch the configuration, send SIGHUP after a change");
                return std::future::pending().await;
            }
            // Quiet for a moment.
            Err(_) => return,
        }
    }
}

fn reload(parts: &ReloadParts, seen: &mut LastRead, is_asked: bool) {
    let subject = parts
        .file
        .as_deref()
        .or(parts.drop_ins.as_deref())
        .map_or_else(|| "configuration".to_owned(), |path| path.display().to_string());
    let problem = |message: String| vec![ProblemReport { subject: subject.clone(), message }];
    let resolved = match (parts.read)() {
        Ok(resolved) => resolved,
        Err(error) => {
            if is_asked || seen.refused.as_ref() != Some(&error) {
                log::error!(err = error; "Failed to reload the configuration, keeping the previous one");
            }
            parts.view.set_configuration_problems(problem(format!(
                "{error}; the previous configuration stays in force"
            )));
            seen.refused = Some(error);
            return;
        }
    };
    seen.refused = None;
    for line in resolved.warnings.iter().filter(|line| !seen.told.contains(line)) {
        log::warn!("{line}");
    }
    seen.told.clone_from(&resolved.warnings);
    let changes = resolved.changes_since(&parts.start, &seen.last);
    seen.last = resolved.document();
    let restart = changes.at_restart.join(", ");
    if !changes.at_once.is_empty() {
        (parts.apply)(&resolved.taken_over(&parts.start));
        log::info!(fields = changes.at_once.join(", "); "Reloaded the configuration");
    } else if is_asked && restart.is_empty() {
        log::info!("Configuration is unchanged");
    }
    let shown = if restart.is_empty() {
        Vec::new()
    } else {
        problem(format!("restart the agent to apply {restart}; pods keep running"))
    };
    if parts.view.set_configuration_problems(shown) && !restart.is_empty() {
        log::warn!(fields = restart; "Changed settings take effect when the agent is restarted; pods keep running");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[tokio::test]
    async fn a_recreated_directory_of_drop_ins_is_watched() {
        let directory = TempDir::new();
        let drop_ins = directory.join("conf.d");
        let again = || watch(None, Some(&drop_ins)).unwrap();
        let see = async |files: Option<WatchedFiles>| {
            tokio::time::timeout(Duration::from_secs(20), changed(files.as_ref())).await.expect("seen");
        };
        std::fs::create_dir(&drop_ins).unwrap();
        let files = again();
        std::fs::remove_dir(&drop_ins).unwrap();
        see(files).await;
        let files = again();
        std::fs::create_dir(&drop_ins).unwrap();
        see(files).await;
        let files = again();
        std::fs::write(drop_ins.join("10-a.conf"), "").unwrap();
        see(files).await;
    }
}
