//! The agent's store at start: the key it is opened with, and the comparison with an earlier run.
//!
//! Owns where the key comes from. A key that cannot be used affects Secrets only: the agent starts without
//! them and reports it.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::task::JoinHandle;

use crate::agent::kubelet::previous_runtimes::{self, RuntimesConfig};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::open::open_without_waiting;
use crate::pod::events::{EventRecorder, EventType};
use crate::runtime::embedded::runtime::{EmbeddedConfig, EmbeddedRuntime, OpenError};
use crate::store::upgrade::rules::{UpgradePhase, summary};
use crate::store::{
    BadKey, FILE_NAME, Loaded, Mode, OpenOptions, SealingKey, StoreError, StoreHandle, StoreKey, meta,
    upgrade,
};

/// The systemd credential that holds the key.
pub(in crate::agent) const CREDENTIAL: &str = "agent-store-key";
/// The limit of the file; a key is far shorter.
const MAX_KEY_FILE_BYTES: u64 = 4096;

#[derive(Debug, thiserror::Error)]
enum KeyError {
    #[error("read the store key {path:?}: {source}; provide the key and restart the agent")]
    Read { path: PathBuf, source: io::Error },
    #[error("the store key {path:?} {source}")]
    Content { path: PathBuf, source: BadKey },
}

/// As a key file: values are stored in plain text on purpose, in a store that was encrypted as well.
const NO_KEY_FILE: &str = "/dev/null";

/// The key from `--store-key-file`, otherwise from the systemd credential, otherwise none. A credential that
/// is a broken link is configured, and missing.
pub(super) fn store_key(key_file: Option<&Path>, credentials: Option<&Path>) -> StoreKey {
    let credential = credentials
        .map(|directory| directory.join(CREDENTIAL))
        .filter(|path| fs::symlink_metadata(path).is_ok());
    let Some(path) = key_file.map(Path::to_owned).or(credential) else { return StoreKey::None };
    if path == Path::new(NO_KEY_FILE) {
        return StoreKey::Off;
    }
    match read_key(&path) {
        Ok(key) => StoreKey::Sealed(Box::new(key)),
        Err(error) => {
            let reason = error.to_string();
            log::error!(err = reason; "Store key is missing, Secrets are not stored and encrypted ones \
                                       cannot be read");
            StoreKey::Unusable { reason }
        }
    }
}

fn read_key(path: &Path) -> Result<SealingKey, KeyError> {
    let failed = |source| KeyError::Read { path: path.to_owned(), source };
    let file = open_without_waiting(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    let (mode, owner) = (metadata.mode(), metadata.uid());
    if is_exposed(mode, owner) {
        log::warn!(path:% = path.display(), mode = format!("{:o}", mode & 0o7777), owner = owner; "Store \
             key is readable by other users: chmod 600, and chown root");
    }
    let mut content = Vec::new();
    file.take(MAX_KEY_FILE_BYTES).read_to_end(&mut content).map_err(failed)?;
    SealingKey::parse(&content).map_err(|source| KeyError::Content { path: path.to_owned(), source })
}

/// Whether users other than root, as which the agent runs, can read a file.
fn is_exposed(mode: u32, owner: u32) -> bool {
    mode & 0o077 != 0 || owner != 0
}

/// The problem of the store's objects, for `agent status`: why the key cannot be used, or the first object
/// that was lost.
pub(super) fn object_trouble(key: &StoreKey, unsealed: Option<String>, loaded: &Loaded) -> ObjectTrouble {
    let key = match key {
        StoreKey::Unusable { reason } => Some(reason.clone()),
        StoreKey::None | StoreKey::Off | StoreKey::Sealed(_) => unsealed,
    };
    let mut rows = loaded.unreadable.iter().filter(|row| row.table == "object");
    let lost = rows.next().map(|row| match rows.count() {
        0 => format!("{}: {}", row.key, row.message),
        more => format!("{}: {} (and {more} more)", row.key, row.message),
    });
    ObjectTrouble { key, lost }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectTrouble {
    /// The key cannot be used and Secrets are not stored, or plain text may be left.
    pub key: Option<String>,
    /// Objects that could not be read at start; cleared once every source has answered.
    pub lost: Option<String>,
}

type OpenedStore = (StoreHandle, Loaded, Option<String>);

/// The store while it is opened in a task of its own.
pub(super) struct OpeningStore {
    pub(super) path: PathBuf,
    pub(super) key: StoreKey,
    opened: JoinHandle<Result<OpenedStore, StoreError>>,
}

impl OpeningStore {
    /// Begins to open the store in an existing directory, which this process owns.
    pub(super) fn begin(root: &Path, key: StoreKey) -> Self {
        let path = root.join(FILE_NAME);
        let opened = rt::spawn("open store", open_store(path.clone(), key.clone(), Clock::System));
        Self { path, key, opened }
    }

    /// The store and all that was in it; with it, what is wrong with the key or the encryption.
    pub(super) async fn opened(&mut self) -> Result<OpenedStore, StoreError> {
        match (&mut self.opened).await {
            Ok(opened) => opened,
            // Nothing else aborts it.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Opens the runtime, and the store beside that: neither waits for the other.
pub(super) async fn open_with_runtime(
    config: EmbeddedConfig,
    root: &Path,
    key: StoreKey,
) -> Result<(EmbeddedRuntime, OpeningStore), OpenError> {
    let mut store = None;
    let claimed = Box::new(|| store = Some(OpeningStore::begin(root, key)));
    let runtime = Box::pin(EmbeddedRuntime::open_beside(config, Clock::System, claimed)).await?;
    Ok((runtime, store.expect("begun when the directories were claimed")))
}

async fn open_store(path: PathBuf, key: StoreKey, clock: Clock) -> Result<OpenedStore, StoreError> {
    let options = OpenOptions { mode: Mode::Threaded, now: clock.now(), key };
    let (store, mut report) = StoreHandle::open(&path, options.clone())?;
    let (store, loaded) = store.load_or_set_aside(&path, options, &mut report).await?;
    if let Some(damaged) = report.damaged {
        log::error!(keptAs:% = damaged.moved_to.display(), reason = damaged.reason; "Store was damaged and \
             has been moved aside, starting from sources and the runtime");
    }
    let unsealed = report.unsealed.as_ref().map(|error| chain(error));
    match (&report.unsealed, &unsealed) {
        (Some(StoreError::NoKey { .. } | StoreError::TextKey), Some(reason)) => {
            log::error!(err = reason; "Store key is missing or weak");
        }
        (_, Some(reason)) => {
            log::error!(err = reason; "Failed to encrypt Secrets in the store, retrying at the next start");
        }
        _ => {}
    }
    if report.removed > 0 {
        log::warn!(files = report.removed; "Removed damaged copies of the store, which may have held Secrets \
             in plain text");
    }
    if report.reindexed {
        log::warn!(path:% = path.display(); "Store had a damaged index, which was rebuilt");
    }
    for row in &loaded.unreadable {
        log::error!(table = row.table, key = row.key, err = row.message; "Skipped unreadable row in the store");
    }
    for row in &loaded.dropped {
        log::warn!(table = row.table, pod = row.key, err = row.message; "Dropped field of the wrong type \
             from stored pod");
    }
    Ok((store, loaded, unsealed))
}

/// Facts of this run, for comparison by the next one.
pub(super) async fn remember_node(
    runtimes: &RuntimesConfig,
    node_name: &str,
    store: &StoreHandle,
    loaded: &Loaded,
) {
    Box::pin(previous_runtimes::clear_previous(runtimes, store, &loaded.meta)).await;
    if let Err(error) = store.put_meta(meta::NODE_NAME, Some(node_name)).await {
        log::warn!(key = meta::NODE_NAME, err:% = error; "Failed to write to the store");
    }
}

/// Reports an upgrade of this program as events of the node. `agent upgrade status` reports its outcome: the
/// agent on trial does not judge itself.
pub(super) fn report_upgrade(root_dir: &Path, events: &EventRecorder) {
    let Some(record) = upgrade::read(root_dir).filter(|record| !record.phase.is_settled()) else { return };
    let own = upgrade::digest(Path::new("/proc/self/exe")).unwrap_or_default();
    let (event_type, reason) = match record.phase {
        UpgradePhase::Trial if own == record.to.digest => (EventType::Normal, "AgentUpgraded"),
        UpgradePhase::RollingBack if own == record.from.digest => {
            (EventType::Warning, "AgentUpgradeRolledBack")
        }
        _ => return,
    };
    events.node_event(event_type, reason, &summary(&record));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_key_file_is_roots_alone() {
        let exposed = [(0o100_600, 0), (0o100_400, 0), (0o100_640, 0), (0o100_600, 1000)];
        assert_eq!(exposed.map(|(mode, owner)| is_exposed(mode, owner)), [false, false, true, true]);
    }

    #[test]
    fn key_flag_overrides_credential_and_errors_hide_the_content() {
        let root = std::env::temp_dir().join(format!("agent-store-key-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let (flag, none) = (root.join("flag"), root.join("none"));
        assert!(matches!(store_key(None, None), StoreKey::None));
        assert!(matches!(store_key(None, Some(&root)), StoreKey::None), "no such credential");
        fs::write(root.join(CREDENTIAL), [1; 32]).unwrap();
        fs::write(&flag, "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n").unwrap();
        let shown = |key: StoreKey| format!("{key:?}");
        let (by_flag, by_credential) =
            (shown(store_key(Some(&flag), Some(&root))), shown(store_key(None, Some(&root))));
        assert!(
            by_flag.starts_with("Sealed(")
                && by_credential.starts_with("Sealed(")
                && by_flag != by_credential
        );
        fs::write(&flag, "hunter2").unwrap();
        let reason = |path: &Path| match store_key(Some(path), Some(&root)) {
            StoreKey::Unusable { reason } => reason,
            other => panic!("{other:?}"),
        };
        let bad = reason(&flag);
        assert!(bad.contains("flag\" must hold a key of 32 bytes") && !bad.contains("hunter2"), "{bad}");
        assert!(reason(&none).contains("No such file"), "{}", reason(&none));
        assert!(matches!(store_key(Some(Path::new("/dev/null")), Some(&root)), StoreKey::Off));
        let pipe = root.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for odd in [&pipe, &root, Path::new("/dev/zero")] {
            assert!(reason(odd).contains("not a regular file"), "{odd:?}: {}", reason(odd));
        }
        fs::write(&flag, "0".repeat(100_000)).unwrap();
        assert!(reason(&flag).contains("must hold a key"));
        // systemd's directory, with a link to a credential that is not there.
        fs::remove_file(root.join(CREDENTIAL)).unwrap();
        std::os::unix::fs::symlink(&none, root.join(CREDENTIAL)).unwrap();
        let missing = store_key(None, Some(&root));
        assert!(
            matches!(&missing, StoreKey::Unusable { reason } if reason.contains(CREDENTIAL)),
            "{missing:?}"
        );
        fs::remove_dir_all(root).unwrap();
    }
}
