//! The machine as seen and changed by an upgrade: one function per effect.
//!
//! Owns the files beside the program: `agent.previous`, which is the replaced one, and the staged one. A name
//! appears with one rename, after its bytes are on the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::time::Instant;

use super::service::{Service, remove};
use super::{ASKED_BACK, LOOK_AGAIN, UpgradeError};
use crate::cmd::cli::fetch_report;
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::sys::{durable, node};
use crate::serve::server::ObjectDetail;
use crate::store::upgrade as records;
use crate::store::upgrade::rules::{Answering, Effect, InPlace, Seen, UpgradeRecord, lost};

const MODE: u32 = 0o755;

/// Identifies a file without reading it.
type Identity = (u64, u64, u64, i64);

/// The part of the machine that an upgrade affects.
pub(super) struct Machine {
    root_dir: PathBuf,
    pub(super) record: UpgradeRecord,
    pub(super) service: Service,
    /// The program in place, and the identity of the file from which that was determined.
    found: Option<(Identity, InPlace)>,
}

impl Machine {
    pub(super) fn new(root_dir: &Path, record: UpgradeRecord) -> Self {
        let service = Service::parse(&record.service);
        Self { root_dir: root_dir.to_owned(), record, service, found: None }
    }

    fn program(&self) -> &Path {
        Path::new(&self.record.program)
    }

    /// A path beside the program: `agent` and this suffix.
    fn beside(&self, before: &str, after: &str) -> PathBuf {
        let name = self.program().file_name().unwrap_or_default().to_string_lossy();
        self.program().with_file_name([before, &name, after].concat())
    }

    /// The replaced program.
    pub(super) fn previous(&self) -> PathBuf {
        self.beside("", ".previous")
    }

    /// The new program before it is in place.
    pub(super) fn staged(&self) -> PathBuf {
        self.beside(".", ".new")
    }

    /// Whether the replaced program exists and can be restored.
    pub(super) fn has_previous(&self) -> bool {
        records::digest(&self.previous()).is_ok_and(|digest| digest == self.record.from.digest)
    }

    /// Writes the new program beside the current one; it is on disk when this returns.
    pub(super) fn stage(&self, bytes: &[u8]) -> Result<(), UpgradeError> {
        let path = self.staged();
        let write = || {
            remove(&path)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&path)?;
            file.write_all(bytes)?;
            // Independent of the caller's umask.
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(MODE))?;
            file.sync_all()
        };
        write().map_err(|source| {
            self.unstage();
            UpgradeError::File { action: "write the new program to", path: path.clone(), source }
        })
    }

    /// A file that cannot be removed is overwritten by the next upgrade.
    pub(super) fn unstage(&self) {
        let _ = remove(&self.staged());
    }

    pub(super) fn in_place(&mut self) -> InPlace {
        let Some(identity) = identity(self.program()) else { return InPlace::Missing };
        if let Some((known, found)) = self.found
            && known == identity
        {
            return found;
        }
        let found = match records::digest(self.program()) {
            Ok(digest) if digest == self.record.to.digest => InPlace::New,
            Ok(digest) if digest == self.record.from.digest => InPlace::Old,
            Ok(_) => InPlace::Other,
            Err(_) => InPlace::Missing,
        };
        self.found = Some((identity, found));
        found
    }

    pub(super) async fn observe(&mut self) -> Seen {
        Seen {
            in_place: self.in_place(),
            rollback_requested: self.root_dir.join(ASKED_BACK).exists(),
            agent: self.agent().await,
        }
    }

    async fn agent(&self) -> Result<Answering, String> {
        let report = fetch_report(Path::new(&self.record.socket), ObjectDetail::Counted).await;
        let report = report.map_err(|error| chain(&error))?;
        let exe = PathBuf::from(format!("/proc/{}/exe", report.pid));
        let is_this_boot = self.record.boot == node::boot_id();
        Ok(Answering {
            life: (report.pid, report.started_at.unwrap_or_default().as_nanos()),
            runs_program: identity(&exe).is_some_and(|running| Some(running) == identity(self.program())),
            is_ready: report.runtime.ready || !self.record.was_ready,
            // A reboot ends all of them.
            lost: if is_this_boot { lost(&self.record.containers, &report.pods) } else { Vec::new() },
        })
    }

    pub(super) fn save_record(&self) -> Result<(), UpgradeError> {
        let failed =
            |source| UpgradeError::File { action: "write", path: records::file(&self.root_dir), source };
        records::write(&self.root_dir, &self.record).map_err(failed)
    }

    pub(super) async fn carry_out(&mut self, effect: Effect) -> Result<(), UpgradeError> {
        let (path, done) = match effect {
            Effect::Note(phase) => {
                self.record.phase = phase;
                if phase.is_settled() && self.record.settled.is_zero() {
                    self.record.settled = Clock::System.now();
                }
                return self.save_record();
            }
            Effect::Restart => {
                self.restart_with_program().await;
                return Ok(());
            }
            Effect::Guard => (self.previous(), self.service.guard(&self.previous(), &self.root_dir)),
            Effect::Unguard => {
                let asked = self.root_dir.join(ASKED_BACK);
                (asked.clone(), remove(&asked).and_then(|()| self.service.unguard()))
            }
            Effect::Keep => (self.previous(), self.copy_name(self.program(), &self.previous())),
            Effect::SwapIn => {
                let swapped = self.swap_in();
                self.found = None;
                (self.program().to_owned(), swapped)
            }
            Effect::PutBack => {
                if self.in_place() == InPlace::Old {
                    return Ok(());
                }
                if !self.has_previous() {
                    return Err(UpgradeError::WrongPrevious(self.previous().display().to_string()));
                }
                let put_back = self.copy_name(&self.previous(), self.program());
                self.found = None;
                (self.program().to_owned(), put_back)
            }
            Effect::Forget => {
                self.unstage();
                (self.previous(), remove(&self.previous()))
            }
        };
        let action = match effect {
            Effect::Guard => "create the watch service for",
            Effect::Keep => "keep the program as",
            Effect::Unguard | Effect::Forget => "clean up after the upgrade:",
            _ => "install the program as",
        };
        done.map_err(|source| UpgradeError::File { action, path, source })
    }

    fn swap_in(&self) -> io::Result<()> {
        fs::rename(self.staged(), self.program())?;
        durable::sync_dir(self.program().parent().unwrap_or(Path::new("/")))
    }

    /// Makes `to` the same program as `from`: a hard link, or a copy where the file system has none.
    fn copy_name(&self, from: &Path, to: &Path) -> io::Result<()> {
        let young = self.beside(".", ".kept");
        remove(&young)?;
        if fs::hard_link(from, &young).is_err() {
            fs::copy(from, &young)?;
            File::open(&young)?.sync_all()?;
        }
        fs::rename(&young, to)?;
        // rename(2) does nothing when both names are hard links to the same file.
        remove(&young)?;
        durable::sync_dir(to.parent().unwrap_or(Path::new("/")))
    }

    /// Restarts the agent unless it runs the program in place, and waits until it does. It is the old
    /// program: whether it answers or not, there is nothing else to try.
    async fn restart_with_program(&mut self) {
        if self.service == Service::None {
            return;
        }
        // A service manager that is between two starts may refuse, and start it nevertheless.
        let (begin, mut refused) = (Instant::now(), None);
        loop {
            let trouble = match self.agent().await {
                Ok(agent) if agent.runs_program => return,
                Ok(_) => "a different program is running".to_owned(),
                Err(why) => why,
            };
            let Some(refusal) = &refused else {
                refused = Some(self.service.restart().err());
                continue;
            };
            if begin.elapsed() > self.record.patience {
                let why = refusal.as_ref().unwrap_or(&trouble);
                self.record.reason.push_str(&["; after the rollback: ", why].concat());
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.size(), metadata.mtime()))
}
