//! Tests from arguments and files to the resolved configuration.

mod command_line;
mod explained;
mod layers;
mod rules;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("agent-config-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
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

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
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
