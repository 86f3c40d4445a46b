//! Tests from arguments and files to the resolved configuration.

mod command_line;
mod explained;
mod layers;
mod page;
mod rules;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::*;
use crate::platform::testing::TempDir;

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A directory that is removed with the test.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(TempDir::new())
    }

    /// Writes a file with the right kind and returns its path.
    fn config(&self, name: &str, body: &str) -> String {
        self.write(name, &format!("{HEADER}{body}"))
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

fn host() -> Environment {
    Environment { hostname: "Edge-1".to_owned() }
}

fn parse_words(words: &[&str]) -> Result<Invocation, ConfigError> {
    let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
    parse(&arguments, &host())
}

fn resolved(words: &[&str]) -> Resolved {
    match parse_words(words) {
        Ok(Invocation::Run(resolved)) => *resolved,
        other => panic!("{words:?}: {other:?}"),
    }
}

fn refusal(words: &[&str]) -> String {
    match parse_words(words) {
        Err(error) => error.to_string(),
        Ok(other) => panic!("{words:?}: {other:?}"),
    }
}

/// The value of a field after all layers, as JSON text.
fn field(resolved: &Resolved, path: &str) -> String {
    tree::get(&resolved.document, path).map_or_else(|| "(unset)".to_owned(), Value::to_string)
}
