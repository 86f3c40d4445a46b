//! What every phase works with: the settings, the directories, and the way to files and to the output.
//!
//! Owns the dry run: nothing is written then, and later phases read what would have been.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use super::Paths;
use super::config::InitSettings;
use super::patches::{self, Patches};
use crate::cmd::init::install::File;
use crate::cmd::init::{InitError, InitSession, write};
use crate::model::types::Timestamp;
use crate::platform::sys::dir;

/// What a dry run shows of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visibility {
    Shown,
    Secret,
}

/// The form of a dry run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Real,
    Dry,
    /// Standard output gets the files as YAML documents, and nothing else.
    DryYaml,
}

pub(crate) struct Context<'a, 'b> {
    pub session: &'a mut InitSession<'b>,
    pub settings: InitSettings,
    pub paths: Paths,
    /// Of kubeconfigs: usually that of [`Paths`].
    pub kubeconfig_dir: PathBuf,
    pub mode: Mode,
    /// Files of the dry run.
    pub drafts: BTreeMap<PathBuf, String>,
    /// `None` until a phase needs them.
    pub patches: Option<Patches>,
}

impl Context<'_, '_> {
    pub(crate) fn now(&self) -> Timestamp {
        self.session.environment.now
    }

    pub(crate) fn is_dry(&self) -> bool {
        self.mode != Mode::Real
    }

    /// A line about progress.
    pub(crate) fn say(&mut self, text: &str) -> Result<(), InitError> {
        if self.mode == Mode::DryYaml {
            self.session.print_error(text);
            return Ok(());
        }
        self.session.print(text)
    }

    pub(crate) fn warn(&mut self, text: &str) {
        self.session.print_error(&["W ", text, "\n"].concat());
    }

    /// The patches in the directory of the settings, which is read once.
    pub(crate) fn patches(&mut self) -> Result<Patches, InitError> {
        if let Some(patches) = &self.patches {
            return Ok(patches.clone());
        }
        let directory = self.settings.patches.clone();
        let mut patches = Patches::default();
        if !directory.as_os_str().is_empty() {
            let path = directory.display().to_string();
            self.say(&format!("[patches] Reading patches from path {path:?}\n"))?;
            let read = patches::read(&directory)?;
            patches = read.patches;
            self.say(&format!("[patches] Found the following patch files: [{}]\n", read.found.join(" ")))?;
            if !read.ignored.is_empty() {
                let ignored = read.ignored.join(" ");
                self.say(&format!("[patches] Ignored the following files: [{ignored}]\n"))?;
            }
        }
        self.patches = Some(patches.clone());
        Ok(patches)
    }

    /// The object with the patches of its target.
    pub(crate) fn patched(&mut self, target: &str, object: Value) -> Result<Value, InitError> {
        let (object, kinds) = self.patches()?.applied(target, object).map_err(InitError::ControlPlane)?;
        for kind in kinds {
            self.say(&kind.applied_to(target))?;
        }
        Ok(object)
    }

    /// The text of a file, if there is one.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<String>, InitError> {
        if let Some(draft) = self.drafts.get(path) {
            return Ok(Some(draft.clone()));
        }
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(InitError::File { action: "read", path: path.to_owned(), source }),
        }
    }

    pub(crate) fn has(&self, path: &Path) -> bool {
        self.drafts.contains_key(path) || path.symlink_metadata().is_ok()
    }

    pub(crate) fn put(
        &mut self,
        path: PathBuf,
        mode: u32,
        text: String,
        content: Visibility,
    ) -> Result<(), InitError> {
        if self.mode == Mode::Real {
            return write(&File { path, mode, content: text });
        }
        if content == Visibility::Shown {
            self.show(&path.display().to_string(), &text)?;
        }
        self.drafts.insert(path, text);
        Ok(())
    }

    /// In a dry run: what would be written to `place`.
    pub(crate) fn show(&mut self, place: &str, text: &str) -> Result<(), InitError> {
        if self.mode == Mode::DryYaml {
            return self.session.print(&format!("---\n# {place}\n{text}"));
        }
        let lines: String = text.lines().map(|line| ["\t", line, "\n"].concat()).collect();
        self.session.print(&format!("[dryrun] Would write file {place:?} with content:\n{lines}"))
    }

    /// Creates a directory, unless it exists.
    pub(crate) fn directory(&mut self, path: &Path, mode: u32) -> Result<(), InitError> {
        if self.is_dry() || path.is_dir() {
            return Ok(());
        }
        dir::make_dir(path, mode).map_err(|source| InitError::File {
            action: "create directory",
            path: path.to_owned(),
            source,
        })
    }
}
