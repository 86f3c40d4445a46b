//! One file of a cgroup: its value, and writing it.

use std::io::{self, Write};
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueFile {
    pub(super) controller: &'static str,
    pub(super) file: String,
    pub(super) value: String,
}

/// Writes to a file of the kernel's, which is never created.
pub(super) fn write_file(path: &Path, value: &str) -> io::Result<()> {
    std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}
