//! Atomic and durable file writes.
//!
//! Owns the order of writing, syncing and renaming.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes names and removals in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Replaces the file at `path` atomically by one with this content and mode: all of it or the previous file,
/// also after a power cut. The temporary file is hidden and always has the same name, so that no files pile
/// up: one writer at a time.
pub(crate) fn write_durably(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".tmp");
    let young = directory.join(name);
    match std::fs::remove_file(&young) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&young)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&young, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&young);
    }
    written.and_then(|()| sync_dir(directory))
}

/// Replaces the file at `path` atomically by one that only its owner can read: all of it or the previous
/// file. Not synced, for file systems in memory. The temporary file always has the same name: one writer at a
/// time.
///
/// # Errors
/// The kernel's answer; no temporary file is left behind then.
pub(crate) fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let young = path.with_file_name(name);
    write_private(&young, bytes).and_then(|()| std::fs::rename(&young, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&young);
    })
}

/// Writes a file that only its owner can read, also over one that others can read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_its_owners_whatever_was_there() {
        let directory = std::env::temp_dir().join(format!("edge-agent-private-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("bundle.json");
        for left in [&path, &directory.join("bundle.json.new")] {
            std::fs::write(left, "open").unwrap();
            std::fs::set_permissions(left, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        replace_private(&path, b"secret").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn durable_write_replaces_the_file_despite_a_torn_leftover() {
        let directory = std::env::temp_dir().join(format!("edge-agent-durable-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("key");
        std::fs::write(directory.join(".key.tmp"), "torn").unwrap();
        for (text, mode) in [("first, and longer", 0o600), ("second", 0o640)] {
            write_durably(&path, text.as_bytes(), mode).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode & !0o022);
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
        let missing = write_durably(&directory.join("none/key"), b"", 0o600).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
