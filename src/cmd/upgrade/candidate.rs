//! Checks whether a file may replace the agent.
//!
//! Owns the checks: signature, machine, whether it runs, versions. Must not change anything.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::args::{KEY_FILE, UpgradeOptions};
use crate::codec::signature::{SignatureError, VerifyKey};
use crate::platform::sys::command;
use crate::runtime::embedded::protocol;
use crate::store;
use crate::store::upgrade::rules::is_older;

/// An agent has ten megabytes; a debug build has a few hundred.
const MAX_BYTES: u64 = 1 << 30;
const MAX_SIGNATURE: u64 = 64 << 10;
/// Long enough for a program on a slow card.
const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_ANSWER: u64 = 4096;
/// Magic, class, byte order; `e_machine` is further on.
const ELF_IDENTITY: usize = 6;
const ELF_MACHINE: std::ops::Range<usize> = 18..20;
const PACKAGE_LIST: &str = "/var/lib/dpkg/info/edge-agent.list";

/// Why the file may not replace the agent.
#[derive(Debug, thiserror::Error)]
pub(super) enum CandidateError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "no public key to verify the signature: put the signer's minisign public key into {KEY_FILE}, or \
         use --verify-key-file or --allow-unsigned"
    )]
    NoKey,
    #[error(
        "no signature {}: create it with `minisign -S -m FILE`, or use --signature or --allow-unsigned",
        .0.display()
    )]
    NoSignature(PathBuf),
    #[error("key {}", path.display())]
    Key {
        path: PathBuf,
        #[source]
        source: SignatureError,
    },
    #[error("signature {}", path.display())]
    Signature {
        path: PathBuf,
        #[source]
        source: SignatureError,
    },
    #[error("{} is not a program for this machine ({})", .0.display(), std::env::consts::ARCH)]
    Foreign(PathBuf),
    #[error("{} cannot be run on this machine: {why}", path.display())]
    DoesNotRun { path: PathBuf, why: String },
    #[error("{} does not report its version: it is not an agent that supports upgrade", .0.display())]
    NoAgent(PathBuf),
    #[error("its version ({new}) is older than the current one ({own}): use --allow-downgrade to accept it")]
    Older { new: String, own: String },
    #[error(
        "its store schema ({new}) is not readable by the current agent ({own}): a rollback would be impossible"
    )]
    Store { new: i64, own: i64 },
    #[error("it does not support the current store schema ({own}, it supports up to {new})")]
    OldStore { new: i64, own: i64 },
    #[error(
        "it does not support the protocol of the running pods' monitors ({own}; it supports {oldest} to \
         {newest}): pods would be restarted"
    )]
    Monitors { own: i64, oldest: i64, newest: i64 },
}

/// The facts that a new program reports to the one that it replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CandidateFacts {
    pub(super) version: String,
    /// The schema version of its store, and the oldest that can read what it writes.
    store: i64,
    store_readable_by: i64,
    /// The versions of the monitors' protocol that it supports.
    monitor: i64,
    monitor_oldest: i64,
}

impl CandidateFacts {
    pub(super) fn own() -> Self {
        let (store, store_readable_by) = store::schema_versions();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store,
            store_readable_by,
            monitor: protocol::VERSION.into(),
            monitor_oldest: protocol::OLDEST.into(),
        }
    }

    /// One fact per line. Later releases may add lines, and drop none.
    pub(super) fn to_text(&self) -> String {
        let Self { version, store, store_readable_by, monitor, monitor_oldest } = self;
        format!(
            "version {version}\nstore {store}\nstoreReadableBy {store_readable_by}\nmonitor {monitor}\nmonitorOldest {monitor_oldest}\n"
        )
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |wanted: &str| {
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(key, _)| *key == wanted)
                .map(|(_, value)| value)
        };
        let number = |wanted| value(wanted)?.parse().ok();
        Some(Self {
            version: value("version").filter(|version| !version.is_empty())?.to_owned(),
            store: number("store")?,
            store_readable_by: number("storeReadableBy")?,
            monitor: number("monitor")?,
            monitor_oldest: number("monitorOldest")?,
        })
    }

    /// Whether `self` may replace `own`.
    fn check(&self, own: &Self, allow_downgrade: bool) -> Result<(), CandidateError> {
        if is_older(&self.version, &own.version) && !allow_downgrade {
            return Err(CandidateError::Older { new: self.version.clone(), own: own.version.clone() });
        }
        if self.store_readable_by > own.store {
            return Err(CandidateError::Store { new: self.store, own: own.store });
        }
        if self.store < own.store_readable_by {
            return Err(CandidateError::OldStore { new: self.store, own: own.store });
        }
        if !(self.monitor_oldest..=self.monitor).contains(&own.monitor) {
            let (own, oldest, newest) = (own.monitor, self.monitor_oldest, self.monitor);
            return Err(CandidateError::Monitors { own, oldest, newest });
        }
        Ok(())
    }
}

/// A program whose signature is valid, or was not required.
pub(super) struct Candidate {
    path: PathBuf,
    bytes: Vec<u8>,
    is_signed: bool,
}

impl Candidate {
    /// Reads it once: the verified bytes are the installed ones.
    pub(super) fn read(path: &Path, options: &UpgradeOptions) -> Result<Self, CandidateError> {
        let key_file = options.key.clone().unwrap_or_else(|| KEY_FILE.into());
        let is_signed = options.key.is_some() || options.signature.is_some() || key_file.exists();
        if !is_signed && !options.allow_unsigned {
            return Err(CandidateError::NoKey);
        }
        let bytes = read(path, MAX_BYTES)?;
        if is_signed && !options.allow_unsigned {
            let text = String::from_utf8_lossy(&read(&key_file, MAX_SIGNATURE)?).into_owned();
            let key = VerifyKey::parse(&text)
                .map_err(|source| CandidateError::Key { path: key_file.clone(), source })?;
            let beside = || {
                [path.as_os_str(), VerifyKey::EXTENSION.as_ref()].into_iter().collect::<std::ffi::OsString>()
            };
            let signature = options.signature.clone().unwrap_or_else(|| beside().into());
            if !signature.exists() {
                return Err(CandidateError::NoSignature(signature));
            }
            key.verify(&bytes, &read(&signature, MAX_SIGNATURE)?)
                .map_err(|source| CandidateError::Signature { path: signature, source })?;
        }
        let own = read_head(Path::new("/proc/self/exe"))?;
        if !is_same_machine(&own, &bytes) {
            return Err(CandidateError::Foreign(path.to_owned()));
        }
        Ok(Self { path: path.to_owned(), bytes, is_signed: is_signed && !options.allow_unsigned })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Runs the copy at `program` to get its facts, and checks them.
    pub(super) fn prove(
        &self,
        program: &Path,
        allow_downgrade: bool,
    ) -> Result<CandidateFacts, CandidateError> {
        let failed = |why: String| CandidateError::DoesNotRun { path: self.path.clone(), why };
        let mut command = Command::new(program);
        let answer = command::run(command.args(["upgrade", "facts"]), &[], LONGEST_ANSWER, PATIENCE)
            .map_err(|error| failed(error.to_string()))?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.errors).trim().to_owned();
            return Err(failed(if said.is_empty() { answer.status.to_string() } else { said }));
        }
        let facts = CandidateFacts::parse(&String::from_utf8_lossy(&answer.output))
            .ok_or_else(|| CandidateError::NoAgent(self.path.clone()))?;
        facts.check(&CandidateFacts::own(), allow_downgrade)?;
        Ok(facts)
    }

    /// Warnings that do not stop the upgrade but need the user's judgement.
    pub(super) fn warnings(&self, program: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.is_signed {
            warnings.push(format!("the signature of {} was not verified", self.path.display()));
        }
        let list = fs::read_to_string(PACKAGE_LIST).unwrap_or_default();
        if list.lines().any(|line| line == program) {
            warnings.push(format!(
                "{program} belongs to package edge-agent: the package's next upgrade will overwrite it"
            ));
        }
        warnings
    }
}

fn read(path: &Path, longest: u64) -> Result<Vec<u8>, CandidateError> {
    let failed = |source| CandidateError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // Opening a FIFO would block with the lock held, and a device may have no end.
    let file = crate::platform::sys::open::open_without_waiting(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    file.take(longest).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn read_head(path: &Path) -> Result<Vec<u8>, CandidateError> {
    read(path, ELF_MACHINE.end as u64)
}

/// Whether both are ELF, of the same class, byte order and machine.
fn is_same_machine(own: &[u8], other: &[u8]) -> bool {
    let of = |bytes: &[u8]| Some((bytes.get(..ELF_IDENTITY)?.to_vec(), bytes.get(ELF_MACHINE)?.to_vec()));
    of(own).is_some() && of(own) == of(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(version: &str, store: (i64, i64), monitor: (i64, i64)) -> CandidateFacts {
        CandidateFacts {
            version: version.to_owned(),
            store: store.0,
            store_readable_by: store.1,
            monitor: monitor.0,
            monitor_oldest: monitor.1,
        }
    }

    #[test]
    fn candidate_facts_round_trip_and_ignore_unknown_lines() {
        let own = CandidateFacts::own();
        assert_eq!(CandidateFacts::parse(&(own.to_text() + "moon 3\n")), Some(own));
        for broken in ["", "version 1\n", "agent v0.1.0 (Kubernetes v1.36)\n", "version \nstore 3\n"] {
            assert_eq!(CandidateFacts::parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn candidate_is_accepted_only_if_rollback_and_pods_are_safe() {
        let own = facts("1.2.0", (4, 3), (2, 1));
        let said =
            |new: CandidateFacts, downgrade| new.check(&own, downgrade).map_err(|error| error.to_string());
        assert_eq!(said(own.clone(), false), Ok(()));
        assert_eq!(said(facts("1.3.0", (7, 4), (5, 2)), false), Ok(()), "it is read by what is here");
        assert!(
            said(facts("1.3.0", (5, 5), (2, 1)), true)
                .unwrap_err()
                .contains("a rollback would be impossible")
        );
        assert!(said(facts("1.1.9", (4, 3), (2, 1)), false).unwrap_err().contains("--allow-downgrade"));
        assert_eq!(said(facts("1.1.9", (3, 3), (2, 1)), true), Ok(()));
        assert!(
            said(facts("1.1.9", (2, 2), (2, 1)), true)
                .unwrap_err()
                .contains("does not support the current store schema")
        );
        assert!(said(facts("1.3.0", (4, 3), (4, 3)), true).unwrap_err().contains("pods would be restarted"));
        assert!(said(facts("1.1.9", (4, 3), (1, 1)), true).unwrap_err().contains("monitors"));
    }

    #[test]
    fn unsigned_programs_are_refused_before_they_are_opened() {
        use crate::codec::signature::testing::{BODY, KEY, OTHER_KEY, SIGNATURE};
        let directory = std::env::temp_dir().join(format!("agent-upgrade-candidate-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, key) = (directory.join("agent"), directory.join("key.pub"));
        let arguments = |more: &[&str]| {
            let mut words =
                vec![file.display().to_string(), "--verify-key-file".to_owned(), key.display().to_string()];
            words.extend(more.iter().map(|word| (*word).to_owned()));
            UpgradeOptions::parse(&words).unwrap()
        };
        let said = |more: &[&str]| match Candidate::read(&file, &arguments(more)) {
            Err(error) => crate::platform::logging::chain(&error),
            Ok(_) => "taken".to_owned(),
        };
        fs::write(&file, BODY).unwrap();
        fs::write(&key, KEY).unwrap();
        assert!(said(&[]).contains("agent.minisig: create it with `minisign -S -m FILE`"), "{}", said(&[]));
        fs::write(directory.join("agent.minisig"), SIGNATURE).unwrap();
        // The signature is valid: the next error is reported.
        assert!(said(&[]).contains("not a program for this machine"), "{}", said(&[]));
        fs::write(&file, "a=2").unwrap();
        assert!(said(&[]).contains("does not match the content"), "{}", said(&[]));
        assert!(said(&["--allow-unsigned"]).contains("not a program for this machine"));
        fs::write(&file, BODY).unwrap();
        fs::write(&key, OTHER_KEY).unwrap();
        assert!(said(&[]).contains("a key other than"), "{}", said(&[]));
        fs::write(&key, "no key").unwrap();
        assert!(said(&[]).contains("key.pub"), "{}", said(&[]));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_program_is_of_this_machine_by_its_first_bytes() {
        let own = read_head(Path::new("/proc/self/exe")).unwrap();
        assert!(is_same_machine(&own, &own));
        for (at, value) in [(0, b'#'), (4, own[4] ^ 3), (18, own[18] ^ 1)] {
            let mut other = own.clone();
            other[at] = value;
            assert!(!is_same_machine(&own, &other), "byte {at}");
        }
        assert!(!is_same_machine(&own, b"") && !is_same_machine(b"", b""));
    }
}
