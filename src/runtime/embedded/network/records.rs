//! The network's record of each sandbox: one file each, written before anything is made, removed after
//! everything was undone.
//!
//! The files are the only state; nothing is kept in memory. A lock serializes threads and agents.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use crate::model::api::decode::decode;
use crate::model::api::record;
use crate::model::ordered::Sortable as _;
use crate::model::types::{PodRef, SandboxId};
use crate::platform::sys::lock::{FileLock, acquire};

const LOCK: &str = ".lock";
const LAST: &str = ".last";
/// A record is a few hundred bytes; the result of a long chain of plugins some kilobytes.
const MAX_BYTES: u64 = 1024 * 1024;

record! {
    #[derive(Eq)]
    pub struct HostPort {
        /// `TCP`, `UDP`, `SCTP`.
        #[wire(always)]
        pub protocol: String,
        /// Only on this address of the node; `None` for all.
        #[wire(always)]
        pub host_ip: Option<IpAddr>,
        #[wire(always)]
        pub host_port: u16,
        #[wire(always)]
        pub container_port: u16,
    }

    /// The input and output of plugins.
    pub(crate) struct CniRecord {
        /// The configuration list that was used; another may be in force when the pod goes.
        pub list: Value,
        /// `runtimeConfig`: all capability arguments.
        pub capabilities: BTreeMap<String, Value>,
        /// Result of the last plugin; absent when none had finished.
        pub result: Option<Value>,
    }

    pub(crate) struct NetworkRecord {
        pub sandbox: SandboxId,
        pub pod: PodRef,
        pub addresses: Vec<IpAddr>,
        /// The ranges of the addresses, as text; none in records of earlier releases.
        pub ranges: Vec<String>,
        /// Host ports opened by the built-in network.
        pub ports: Vec<HostPort>,
        /// The node's side of the pod's link; empty with plugins.
        pub veth: String,
        /// Set when plugins made the network.
        pub cni: Option<CniRecord>,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Records {
    directory: PathBuf,
}

/// A record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{call} {path:?}")]
pub(crate) struct RecordError {
    call: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl RecordError {
    fn new(call: &'static str, path: &Path, source: io::Error) -> Self {
        Self { call, path: path.to_owned(), source }
    }
}

impl Records {
    /// Does not access the directory yet.
    #[must_use]
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Makes the directory.
    pub(crate) fn prepare(&self) -> Result<(), RecordError> {
        fs::create_dir_all(&self.directory)
            .map_err(|source| RecordError::new("create directory", &self.directory, source))
    }

    /// Takes the lock; dropping the value releases it.
    pub(crate) fn lock(&self) -> Result<FileLock, RecordError> {
        self.prepare()?;
        let path = self.directory.join(LOCK);
        acquire(&path).map_err(|error| RecordError::new("lock", &path, io::Error::other(error)))
    }

    /// All records, and the errors of those that could not be read.
    pub(crate) fn all(&self) -> (Vec<NetworkRecord>, Vec<RecordError>) {
        let (mut records, mut errors) = (Vec::new(), Vec::new());
        let mut names: Vec<PathBuf> = match fs::read_dir(&self.directory) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return (records, vec![RecordError::new("read directory", &self.directory, error)]),
        };
        names.order_by(Ord::cmp);
        for path in names.iter().filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        {
            match read(path) {
                Ok(Some(record)) => records.push(record),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        (records, errors)
    }

    pub(crate) fn one(&self, sandbox: &SandboxId) -> Result<Option<NetworkRecord>, RecordError> {
        read(&self.path(sandbox)?)
    }

    pub(crate) fn write(&self, record: &NetworkRecord) -> Result<(), RecordError> {
        let path = self.path(&record.sandbox)?;
        let text =
            serde_json::to_vec(record).map_err(|error| RecordError::new("encode", &path, error.into()))?;
        replace(&path, &text)
    }

    /// Removes a record. Succeeds when there is none.
    pub(crate) fn remove(&self, sandbox: &SandboxId) -> Result<(), RecordError> {
        let path = self.path(sandbox)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(RecordError::new("remove", &path, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes files that look like records but are not: partial writes, and those that [`Self::all`] could not read.
    pub(crate) fn sweep(&self, unreadable: &[RecordError]) {
        let is_of = |path: &Path, extension: &str| path.extension().is_some_and(|found| found == extension);
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if is_of(&path, "new")
                || is_of(&path, "json") && unreadable.iter().any(|error| error.path == path)
            {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// The most recently assigned addresses, one per family.
    pub(crate) fn last(&self) -> Vec<IpAddr> {
        let text = fs::read_to_string(self.directory.join(LAST)).unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    /// Stores the most recently assigned addresses.
    pub(in crate::runtime) fn set_last(&self, addresses: &[IpAddr]) -> Result<(), RecordError> {
        let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        replace(&self.directory.join(LAST), words.join(" ").as_bytes())
    }

    /// Ids are the agent's own hexadecimal ones, or those of a CRI client: in any case they must be plain
    /// words.
    fn path(&self, sandbox: &SandboxId) -> Result<PathBuf, RecordError> {
        let id = sandbox.as_str();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if id.is_empty() || id.len() > 128 || !id.bytes().all(plain) {
            let source = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(RecordError::new("rename a record", Path::new(id), source));
        }
        Ok(self.directory.join(format!("{id}.json")))
    }
}

/// By a new file and a rename: a reader, or a restart, sees the old or the new content. The file system is in
/// memory, so nothing is synced.
fn replace(path: &Path, text: &[u8]) -> Result<(), RecordError> {
    let new = path.with_extension("new");
    fs::write(&new, text).map_err(|source| RecordError::new("write", &new, source))?;
    fs::rename(&new, path).map_err(|source| RecordError::new("rename", path, source))
}

fn read(path: &Path) -> Result<Option<NetworkRecord>, RecordError> {
    let broken = |error: String| RecordError::new("read", path, io::Error::other(error));
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(metadata) if metadata.len() > MAX_BYTES => return Err(broken("too long".to_owned())),
        _ => {}
    }
    let bytes = fs::read(path).map_err(|source| RecordError::new("read", path, source))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
    decode(value).map(|decoded| Some(decoded.object)).map_err(|error| broken(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_listed_and_forgotten() {
        let directory = std::env::temp_dir().join(format!("edge-agent-records-{}", std::process::id()));
        let records = Records::new(directory.clone());
        let lock = records.lock().unwrap();
        let record = NetworkRecord {
            sandbox: "a1".into(),
            addresses: vec!["10.86.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ports: vec![HostPort {
                protocol: "TCP".into(),
                host_ip: None,
                host_port: 80,
                container_port: 8080,
            }],
            veth: "agent00000000".into(),
            cni: Some(CniRecord { result: Some(serde_json::json!({"ips": [1]})), ..CniRecord::default() }),
            ..NetworkRecord::default()
        };
        records.write(&record).unwrap();
        records.set_last(&record.addresses).unwrap();
        assert_eq!(records.one(&"a1".into()).unwrap(), Some(record.clone()));
        assert_eq!(records.last(), record.addresses);
        fs::write(directory.join("bad.json"), "{").unwrap();
        fs::write(directory.join("half.new"), "{").unwrap();
        let (all, errors) = records.all();
        assert_eq!((all, errors.len()), (vec![record], 1));
        records.sweep(&errors);
        assert!(records.all().1.is_empty());
        records.remove(&"a1".into()).unwrap();
        records.remove(&"a1".into()).unwrap();
        assert!(records.all().0.is_empty());
        for id in ["", "../x", "a/b", ".lock", &"x".repeat(129)] {
            assert!(records.one(&id.into()).is_err(), "{id}");
        }
        drop(lock);
        fs::remove_dir_all(directory).unwrap();
    }
}
