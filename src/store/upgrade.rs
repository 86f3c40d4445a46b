//! The record of the last upgrade of the agent's program, a small file beside the store: its reader and its
//! writer may be of different releases, and there may be no store that either can open.
//!
//! Owns its name, and its durability when a call returns.

pub mod rules;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::codec::hex;
use crate::platform::sys::durable;
use crate::store::upgrade::rules::UpgradeRecord;

/// Beside the store. Mode 0600: it names containers.
pub(crate) const FILE_NAME: &str = "upgrade";
const MODE: u32 = 0o600;

#[must_use]
pub(crate) fn file(root_dir: &Path) -> PathBuf {
    root_dir.join(FILE_NAME)
}

#[must_use]
pub(crate) fn read(root_dir: &Path) -> Option<UpgradeRecord> {
    UpgradeRecord::parse(&fs::read_to_string(file(root_dir)).ok()?)
}

/// Writes the record, durably, unless the file already holds it.
///
/// # Errors
/// The kernel's answer; the old record is still there then.
pub(crate) fn write(root_dir: &Path, record: &UpgradeRecord) -> io::Result<()> {
    let (path, text) = (file(root_dir), record.to_text());
    if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    durable::write_durably(&path, text.as_bytes(), MODE)
}

/// SHA-256 of a file, in hex.
pub(crate) fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut hasher, mut piece) = (File::open(path)?, Sha256::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex::encode(&hasher.finalize())),
            length => hasher.update(&piece[..length]),
        }
    }
}

/// SHA-256 of bytes, in hex.
#[must_use]
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::upgrade::rules::UpgradePhase;

    #[test]
    fn what_was_written_is_read_and_a_torn_or_foreign_file_is_none() {
        let directory = std::env::temp_dir().join(format!("agent-upgrade-record-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(read(&directory), None);
        let record = UpgradeRecord { phase: UpgradePhase::Upgraded, watches: 2, ..UpgradeRecord::default() };
        write(&directory, &record).unwrap();
        assert_eq!(read(&directory), Some(record));
        fs::write(file(&directory), "watches 3\n").unwrap();
        assert_eq!(read(&directory), None);
        fs::write(file(&directory), "abc").unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest(&file(&directory)).unwrap().as_str(), digest_of(b"abc").as_str()), (known, known));
        fs::remove_dir_all(&directory).unwrap();
    }
}
