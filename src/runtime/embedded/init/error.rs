//! Why a pod or container could not be made.
//!
//! Owns the messages.

use std::error::Error;
use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use crate::model::api::decode::DecodeError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("{doing} {subject}")]
    Kernel {
        /// For example `mount`.
        doing: &'static str,
        subject: String,
        source: io::Error,
    },
    #[error("{field}: {problem}")]
    Invalid {
        /// Field of the specification, and its value.
        field: String,
        problem: &'static str,
    },
    /// A specification that is no JSON.
    #[error("read {path}")]
    Syntax { path: PathBuf, source: serde_json::Error },
    /// A specification whose fields have the wrong types.
    #[error("read {path}")]
    Fields { path: PathBuf, source: DecodeError },
    /// The program cannot be started, in the wording of other runtimes.
    #[error("exec: {program:?}: {problem}")]
    Program {
        program: String,
        /// For example `permission denied`.
        problem: String,
    },
    #[error("{program} {verb}: {output}")]
    External {
        program: String,
        verb: &'static str,
        /// Its output, or how it ended.
        output: String,
    },
    #[error("the pod's monitor has exited")]
    Orphaned,
}

impl InitError {
    #[must_use]
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(error) = next {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {error}");
            next = error.source();
        }
        text
    }
}

/// Adds the action and its object to an error.
pub(super) trait Doing<T> {
    /// `doing subject: <the kernel's answer>`.
    fn doing(self, doing: &'static str, subject: impl ToString) -> Result<T, InitError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, subject: impl ToString) -> Result<T, InitError> {
        self.map_err(|source| InitError::Kernel { doing, subject: subject.to_string(), source })
    }
}
