//! The file `kubelet_internal_checkpoint`.
//!
//! Owns when it is written: only when its content changes.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::devices::allocation::{Allocation, Resources, from_checkpoint};
use crate::platform::rt;

const NAME: &str = "kubelet_internal_checkpoint";

/// The file, and its last content.
pub(super) struct File {
    path: PathBuf,
    written: String,
}

impl File {
    pub(super) fn new(directory: &Path) -> Self {
        Self { path: directory.join(NAME), written: String::new() }
    }

    /// Reads the checkpoint. Empty when the file is missing or invalid; an invalid one is logged.
    pub(super) fn read(&mut self) -> (Vec<Allocation>, Resources) {
        let text = match std::fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Default::default(),
            Err(error) => Err(error.to_string()),
            Ok(text) => Ok(text),
        };
        let remembered = text.and_then(|text| {
            let remembered = from_checkpoint(&text)?;
            self.written = text;
            Ok(remembered)
        });
        remembered.unwrap_or_else(|why| {
            log::warn!(path:% = self.path.display(), err = why; "Failed to read device checkpoint, starting \
                 without device allocations");
            Default::default()
        })
    }

    pub(super) async fn write(&mut self, text: String) -> Result<(), String> {
        if self.written == text {
            return Ok(());
        }
        let (path, content) = (self.path.clone(), text.clone());
        let written = rt::blocking("write device checkpoint", move || replace(&path, &content)).await;
        written.map_err(|error| format!("write {}: {error}", self.path.display()))?;
        self.written = text;
        Ok(())
    }
}

/// Replaces the file atomically.
fn replace(path: &Path, content: &str) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        crate::platform::sys::dir::make_dir(directory, 0o750)?;
    }
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}
